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
  /* Trees of 0 to 64 tokens, each grown from the one before by its best next token. */
  growth: (rate, limits) => {
    const tree = [], grown = [structuredClone(tree)];
    while (grown.length <= 64) {
      const next = Trees.best(tree, rate, limits);
      if (!next) break;
      Trees.at(tree, next.path).push([]);
      grown.push(structuredClone(tree));
    }
    return grown;
  },
  /* Predicted seconds of a step, as lanternpp.cost.CostCurve.step. */
  step: (root, { nodes, seconds, level, row, rank }) => {
    const list = Trees.list(root), size = list.length - 1, top = nodes.length - 1;
    if (!size) return seconds[0];
    let i = 1;
    while (i < top - 1 && nodes[i + 1] < size) i++;
    const part = top > 1 ? Lantern.clamp((size - nodes[i]) / (nodes[i + 1] - nodes[i]), 0, 1) : 0;
    const own = seconds[i] + part * ((top > 1 ? seconds[i + 1] : seconds[i]) - seconds[i]);
    const inner = list.filter(item => item.depth && item.node.length).length;
    return own + level * list.at(-1).depth + row * inner + rank * Math.max(...list.map(item => item.node.length));
  },
  /* Over plain AR, of a whole picture, as lanternpp.tune.predicted_speedup. */
  speedup: (root, rate, cost) => {
    const steps = cost.tokens - 1;
    return (cost.once + steps * cost.seconds[0]) / (cost.once + steps * Trees.step(root, cost) / Trees.expected(root, rate));
  },
  /* A number against tree size: the grown trees as a line, trees at hand as rings, the one at work as a diamond. */
  curve: (box, values, points, here, unit, title) => {
    const width = Math.max(260, box.clientWidth), height = 224, left = 34;
    const most = Math.max(here.size, values.length - 1), all = [...values, here.value, ...points.filter(point => point.size <= most).map(point => point.value)];
    const low = Math.min(1, Math.floor(Math.min(...all) * 4) / 4), high = Math.ceil(Math.max(...all) * 4 + 0.2) / 4;
    const X = value => left + value / most * (width - left - 16), Y = value => height - 24 - (value - low) / (high - low) * (height - 40), step = high - low > 2 ? 1 : high - low > 1 ? 0.5 : 0.25;
    let body = '';
    for (let value = Math.ceil(low / step) * step; value <= high + 1e-9; value += step) body += `<path d="M${left} ${Y(value)}H${width}" stroke="var(--line)"/><text class="axis" x="${left - 6}" y="${Y(value) + 4}" text-anchor="end">${value}${unit}</text>`;
    for (let value = 0; value <= most; value += most > 80 ? 32 : 16) {
      const last = value + (most > 80 ? 32 : 16) > most;
      body += `<text class="axis" x="${X(value)}" y="${height - 4}" text-anchor="${last ? 'end' : 'middle'}">${value}${last ? ' tokens' : ''}</text>`;
    }
    body += `<path d="${Lantern.line(values.map((value, i) => [X(i), Y(value)]))}" fill="none" stroke="var(--ink-3)" stroke-width="2"/>`;
    points.filter(point => point.size <= most).forEach(({ size, value }) => {
      body += `<circle cx="${X(size)}" cy="${Y(value)}" r="4" fill="var(--bg)" stroke="var(--ink-2)" stroke-width="1.5"><title>${size} tokens: ${value.toFixed(2)}${unit}</title></circle>`;
    });
    const x = X(here.size), y = Y(here.value), anchor = x > width - 90 ? 'end' : x < 84 ? 'start' : 'middle', under = y < height - 60;
    body += `<path d="M${x} ${y - 7}L${x + 7} ${y} ${x} ${y + 7} ${x - 7} ${y}Z" fill="var(--relax)"/><text class="axis-t" x="${x + (anchor === 'end' ? 6 : anchor === 'start' ? -6 : 0)}" y="${y + (under ? 22 : -14)}" text-anchor="${anchor}" style="fill:var(--relax);paint-order:stroke;stroke:var(--bg);stroke-width:4px">this tree, ${here.value.toFixed(2)}${unit}</text>`;
    const same = values[here.size];
    box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="${title}: this tree of ${here.size} tokens ${here.value.toFixed(2)}${unit}${same ? `; grown by the best next token ${same.toFixed(2)}${unit}` : ''}">${body}</svg>`;
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
  /* Nested lists of a path list as text, such as "[[0],[1],[0,0]]"; null where it is none. */
  ofPaths: text => {
    try {
      const root = [];
      for (const path of JSON.parse(text).sort((a, b) => a.length - b.length || (a.join() < b.join() ? -1 : 1))) {
        const above = Trees.at(root, path.slice(0, -1));
        if (above.length !== path.at(-1)) return null;
        above.push([]);
      }
      return root;
    } catch { return null; }
  },
};
