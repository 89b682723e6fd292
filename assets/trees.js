/* Draft trees as nested lists of children: notations, expected accepted length, figures. */

const sumOf = numbers => numbers.reduce((total, each) => total + each, 0);
const share = value => (value >= 0.0995 ? `${Math.round(value * 100)}` : (value * 100).toFixed(value < 0.00995 ? 1 : 0));

const cividis = rampOf(['#00224e', '#123570', '#3b496c', '#575d6d', '#707173', '#8a8678', '#a59c74', '#c3b369', '#e1cc55', '#fee838']);

const Trees = {
  of: parents => {
    const nodes = parents.map(() => []);
    parents.forEach((parent, i) => { if (parent >= 0) nodes[parent].push(nodes[i]); });
    return nodes[0];
  },
  /* Breadth first: every node with its parent's index, its depth, its rank and its path of ranks. */
  list: root => {
    const out = [{ node: root, parent: -1, depth: 0, rank: 0, path: [] }];
    for (let i = 0; i < out.length; i++) out[i].node.forEach((node, rank) => out.push({ node, parent: i, depth: out[i].depth + 1, rank, path: [...out[i].path, rank] }));
    return out;
  },
  text: root => {
    const levels = [];
    for (let level = [root]; level.some(node => node.length); level = level.flat()) {
      const counts = level.map(node => node.length);
      levels.push(counts.every(count => count === counts[0]) ? String(counts[0]) : counts.join('.'));
    }
    return levels.join('/');
  },
  at: (root, path) => path.reduce((node, rank) => node && node[rank], root),
  /* Each node's probability to lie on the accepted path, in the order of `list`; as lanternpp.acceptance.reach. */
  reach: (list, rate) => {
    const reached = [1], left = list.map(() => 0);
    list.forEach((item, i) => {
      if (i) {
        reached[i] = left[item.parent] * rate(item.depth, item.rank);
        left[item.parent] -= reached[i];
      }
      left[i] = reached[i];
    });
    return { reached, left };
  },
  expected: (root, rate) => sumOf(Trees.reach(Trees.list(root), rate).reached),
  /* Where one more token brings most, and how many tokens a step it brings. */
  best: (root, rate, limits) => {
    const list = Trees.list(root), { left } = Trees.reach(list, rate);
    if (list.length > limits.nodes) return null;
    let top = null;
    list.forEach((item, i) => {
      const gain = item.depth < limits.depth ? left[i] * rate(item.depth + 1, item.node.length) : 0;
      if (gain > 0 && (!top || gain > top.gain + 1e-12)) top = { parent: i, path: item.path, gain };
    });
    return top;
  },
  /* Expected accepted length of the tree grown by its best next token, of 0 to 64 tokens. */
  growth: (rate, limits) => {
    const tree = [], lengths = [1];
    while (lengths.length <= 64) {
      const next = Trees.best(tree, rate, limits);
      if (!next) break;
      Trees.at(tree, next.path).push([]);
      lengths.push(lengths.at(-1) + next.gain);
    }
    return lengths;
  },
  /* Accepted length against tree size: the grown trees as a line, trees at hand as rings, the one at work as a diamond. */
  curve: (box, lengths, points, here) => {
    const width = Math.max(260, box.clientWidth), height = 224, left = 28;
    const most = Math.max(here.size, lengths.length - 1), high = Math.ceil(Math.max(...lengths, here.length) * 2 + 0.2) / 2;
    const X = value => left + value / most * (width - left - 16), Y = value => height - 24 - (value - 1) / (high - 1) * (height - 40), step = high > 3 ? 1 : 0.5;
    let body = '';
    for (let value = 1; value <= high + 1e-9; value += step) body += `<path d="M${left} ${Y(value)}H${width}" stroke="var(--line)"/><text class="axis" x="${left - 6}" y="${Y(value) + 4}" text-anchor="end">${value}</text>`;
    for (let value = 0; value <= most; value += most > 80 ? 32 : 16) {
      const last = value + (most > 80 ? 32 : 16) > most;
      body += `<text class="axis" x="${X(value)}" y="${height - 4}" text-anchor="${last ? 'end' : 'middle'}">${value}${last ? ' tokens' : ''}</text>`;
    }
    body += `<path d="${Lantern.line(lengths.map((value, i) => [X(i), Y(value)]))}" fill="none" stroke="var(--ink-3)" stroke-width="2"/>`;
    points.filter(point => point.size <= most).forEach(({ size, length }) => {
      body += `<circle cx="${X(size)}" cy="${Y(length)}" r="4" fill="var(--bg)" stroke="var(--ink-2)" stroke-width="1.5"><title>${size} tokens: ${length.toFixed(2)}</title></circle>`;
    });
    const x = X(here.size), y = Y(here.length), anchor = x > width - 90 ? 'end' : x < 70 ? 'start' : 'middle';
    body += `<path d="M${x} ${y - 7}L${x + 7} ${y} ${x} ${y + 7} ${x - 7} ${y}Z" fill="var(--relax)"/><text class="axis-t" x="${x + (anchor === 'end' ? 6 : 0)}" y="${y + 22}" text-anchor="${anchor}" style="fill:var(--relax)">this tree, ${here.length.toFixed(2)}</text>`;
    const same = lengths[here.size];
    box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="Expected accepted length by tree size: this tree of ${here.size} tokens ${here.length.toFixed(2)}${same ? `; grown by the best next token ${same.toFixed(2)}` : ''}">${body}</svg>`;
  },
  /* Acceptance by depth and rank, with the number of drafts behind each rate. */
  table: (box, { tested, rates }) => {
    const ranks = Math.min(6, tested[0].length), head = document.createElement('tr');
    head.append(Lantern.make('th'), ...Array.from({ length: ranks }, (_, i) => Lantern.make('th', '', `child ${i + 1}`)));
    const line = (label, values, counts) => {
      const row = document.createElement('tr');
      row.append(Lantern.make('th', '', label), ...values.slice(0, ranks).map((value, i) => {
        const cell = document.createElement('td'), known = counts && counts[i], shade = cividis(value);
        cell.append(Lantern.make('b', '', `${share(value)} %`), Lantern.make('span', '', known ? `n ${counts[i].toLocaleString('en')}` : 'assumed'));
        if (known) Object.assign(cell.style, { background: Lantern.rgb(shade), color: Lantern.isDark(shade) ? '#fff' : '#000' });
        return cell;
      }));
      return row;
    };
    box.replaceChildren(head, ...tested.map((counts, d) => line(`depth ${d + 1}`, rates[d], counts)), line('deeper', rates.at(-1)));
  },
};
