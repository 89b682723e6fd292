/* The Step inspector: a strip of all steps, the picture so far, the drafted tree with verdicts, siblings, attention mask. */

Lantern.inspector = (element, props, watch, ask, server) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), number = Lantern.number;
  let run = null, cur = 0, sel = 0, playing = 0, geometry = null;
  const card = Lantern.nodeCard(element, server);
  const step = () => run.steps[cur];
  const nodes = () => run.parents.length - 1;
  /* the draft to begin with: one that pooling saved, else the last accepted, else the first */
  const first = () => (step().drafted.length ? step().path.find(n => step().verdicts[n - 1] === 'x') || step().path.at(-1) || 1 : 0);
  const where = place => (place < run.grid ** 2 ? `${Math.floor(place / run.grid) + 1}, ${place % run.grid + 1}` : 'past the end');

  const show = (next, place) => {
    const stay = place.stay && run && run.id === next.id;
    run = next;
    run.children = run.parents.map((_, n) => run.parents.flatMap((parent, child) => (parent === n ? [child] : [])));
    run.depths = Lantern.layout(run.parents).depth;
    if (!stay) {
      // the step nearest the middle of the picture in which pooling decided, else any there
      const off = each => Math.abs(each.at - run.grid ** 2 / 2) + (each.verdicts.includes('x') ? 0 : run.grid ** 2);
      const start = run.steps.reduce((best, each, i) => (off(each) < off(run.steps[best]) ? i : best), 0);
      cur = Lantern.clamp(place.step || start, 1, run.steps.length - 1);
      sel = place.node && place.node <= nodes() && step().drafted.length ? place.node : first();
      stop();
    }
    const s = run.summary;
    part('facts').replaceChildren(Lantern.make('b', '', `${s.target_passes} passes`), ` · ${s.accepted_length.toFixed(2)} tokens each · ${s.seconds.toFixed(2)} s · ${run.facts.join(', ')}`);
    part('mask-caption').textContent = nodes() ? `One pass checks all ${nodes()} drafts: each row sees the picture so far, its ancestors and itself (filled cells).` : 'Plain autoregression drafts nothing: one row, one token.';
    draw();
  };
  const go = next => { cur = Lantern.clamp(next, 1, run.steps.length - 1); sel = first(); draw(); };

  /* ---- the strip of steps ---- */
  const redrawStrip = Lantern.canvas(part('strip'), (context, width, height) => {
    context.clearRect(0, 0, width, height);
    if (!run) return;
    const n = run.steps.length - 1, w = width / n;
    run.steps.slice(1).forEach((each, i) => {
      const tall = (height - 12) * (0.28 + 0.72 * Math.min(6, each.tokens.length) / 6);
      context.fillStyle = Lantern.rgb(Lantern.lengthColor(each.tokens.length));
      context.fillRect(i * w, height - 8 - tall, Math.max(1, w - (w > 3 ? 1.2 : 0.4)), tall);
    });
    context.fillStyle = context.strokeStyle = Lantern.css('--ink');
    context.fillRect((cur - 1) * w - 0.5, height - 5, Math.max(3, w), 3);
    context.lineWidth = 1.5;
    context.strokeRect((cur - 1) * w - 1.5, 1, Math.max(4, w + 1.8), height - 8);
  });
  const strip = part('strip');
  const seek = event => {
    const box = strip.getBoundingClientRect();
    if (run) { stop(); go(1 + Math.floor((event.clientX - box.left) / box.width * (run.steps.length - 1))); }
  };
  strip.addEventListener('pointerdown', event => { seek(event); strip.setPointerCapture(event.pointerId); });
  strip.addEventListener('pointermove', event => { if (strip.hasPointerCapture(event.pointerId)) seek(event); });
  strip.addEventListener('keydown', event => {
    if (!run) return;
    if (event.key === 'ArrowRight') go(cur + 1);
    else if (event.key === 'ArrowLeft') go(cur - 1);
    else if (event.key === 'Home') go(1);
    else if (event.key === 'End') go(run.steps.length - 1);
    else if (event.key === ' ') toggle();
    else return;
    event.preventDefault();
  });
  const button = () => { part('play').innerHTML = playing ? `${Lantern.icons.pause}Pause` : `${Lantern.icons.play}Play`; };
  const stop = () => { clearInterval(playing); playing = 0; button(); };
  const toggle = () => {
    if (playing || !run) { stop(); return; }
    if (cur >= run.steps.length - 1) go(1);
    playing = setInterval(() => { if (cur >= run.steps.length - 1 || !element.offsetParent) stop(); else go(cur + 1); }, 400);
    button();
  };
  part('play').addEventListener('click', toggle);
  part('back').innerHTML = '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M2 2h2v10H2zM12 2v10L5 7z"/></svg>';
  part('on').innerHTML = '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M10 2h2v10h-2zM2 2v10l7-5z"/></svg>';
  part('back').addEventListener('click', () => run && go(cur - 1));
  part('on').addEventListener('click', () => run && go(cur + 1));
  part('lengths').innerHTML = Lantern.lengthLegend(7);
  part('marks').innerHTML = ['a', 'x', 'r', 'n', 'recovered', 'bonus'].map(v => `<span>${Lantern.verdictIcon(v)}${Lantern.verdicts[v][0]}</span>`).join('');

  /* ---- the picture so far: new tokens framed, drafted-for places dashed ---- */
  const redrawPicture = Lantern.canvas(part('picture'), (context, width) => {
    if (!run) { Lantern.paint(context, width, null, 0, 16); return; }
    const now = step(), side = width / run.grid, deep = Math.max(...run.depths);
    Lantern.paint(context, width, run.picture, now.at + now.tokens.length, run.grid);
    context.setLineDash([2, 2]);
    Lantern.cells(context, side, run.grid, now.at, Math.min(deep + 1, run.grid ** 2 - now.at), Lantern.css('--ink-3'), 1);
    context.setLineDash([]);
    Lantern.cells(context, side, run.grid, now.at, now.tokens.length, Lantern.css('--ink'), 2);
  });

  /* ---- the attention mask: rows and columns are the root and the drafts ---- */
  const redrawMask = Lantern.canvas(part('mask'), (context, width, height) => {
    context.clearRect(0, 0, width, height);
    if (!run) return;
    const n = run.parents.length, before = width * 0.06, size = Math.min((width - before - 4) / n, height / n, 26), x0 = before + 4, gap = size > 4 ? 1 : 0;
    context.fillStyle = Lantern.css('--sunken');
    context.fillRect(x0, 0, size * n, size * n);
    for (let row = 0; row < n; row++) {
      const chosen = row === sel && sel, tone = Lantern.css(chosen ? '--relax-fill' : row === 0 || step().path.includes(row) ? '--ink' : '--ar');
      context.fillStyle = chosen ? tone : Lantern.css('--line-2');
      context.fillRect(0, row * size, before, size - gap);
      context.fillStyle = tone;
      for (let at = row; at >= 0; at = run.parents[at]) context.fillRect(x0 + at * size, row * size, size - gap, size - gap);
    }
    if (sel) {
      context.strokeStyle = Lantern.css('--relax');
      context.lineWidth = 1.5;
      context.strokeRect(0.75, sel * size - 0.75, x0 + size * n - 1.5, size + 0.5);
    }
  });

  /* ---- the drafted tree, its end (bonus or recovered token) as one more node ---- */
  const drawTree = () => {
    const now = step(), drafted = now.drafted.length > 0, extra = now.ending === 'end' || (nodes() && !drafted) ? -1 : run.parents.length;
    const parents = extra < 0 ? run.parents : [...run.parents, now.path.at(-1) || 0];
    const tree = Lantern.layout(parents), width = part('wrap').clientWidth;
    if (!width) return;
    const phone = width < 480, tallest = 780, cols = tree.levels + 1;
    const rowHeight = Lantern.clamp(tallest / tree.rows, phone ? 17 : 20, phone ? 36 : 62), size = Math.min(rowHeight - 9, phone ? 26 : cols < 3 ? 48 : 36, (width - 20) / cols - 14);
    const top = 40, height = top + tree.rows * rowHeight + 8, spread = Math.min(width - size - 14, 190 * Math.max(1, tree.levels));
    const X = d => size / 2 + 4 + (tree.levels ? d * spread / tree.levels : 0), Y = n => top + (tree.y[n] + 0.5) * rowHeight;
    geometry = { tree, X, Y, size, extra, parents };
    part('wrap').style.height = `${height}px`;
    const hot = n => n === 0 || n === extra || now.path.includes(n);
    const judged = now.q.filter((_, i) => 'axr'.includes(now.verdicts[i])).concat(now.m.filter((_, i) => 'axr'.includes(now.verdicts[i])));
    const scale = Math.max(0.05, ...judged);
    let heads = '', edges = '', boxes = '';
    for (let d = 0; d < cols; d++) {
      const place = now.at + d - 1, end = d === 0 ? 'start' : 'middle', x = d === 0 ? X(0) - size / 2 : X(d);
      heads += `<text class="axis-t" x="${x}" y="12" text-anchor="${end}">${d === 0 && !phone ? `token ${place + 1}` : place < run.grid ** 2 ? place + 1 : '–'}</text>`
        + `<text class="axis" x="${x}" y="26" text-anchor="${end}">${where(place)}</text>`;
    }
    parents.forEach((parent, n) => {
      if (parent < 0) return;
      const x0 = X(tree.depth[parent]) + size / 2 + 2, x1 = X(tree.depth[n]) - size / 2 - 2, mid = (x0 + x1) / 2, y0 = Y(parent), y1 = Y(n);
      const q = n === extra ? 0 : now.q[n - 1];
      edges += `<path d="M${x0.toFixed(1)} ${y0.toFixed(1)}C${mid.toFixed(1)} ${y0.toFixed(1)} ${mid.toFixed(1)} ${y1.toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}" fill="none" stroke="var(${hot(n) ? '--ink' : '--line-2'})"`
        + ` stroke-width="${n === extra ? 2 : (1 + Math.min(6, q * 8)).toFixed(1)}"${n === extra ? ' stroke-dasharray="2 4" stroke-linecap="round"' : ''}/>`;
    });
    parents.forEach((_, n) => {
      const x = X(tree.depth[n]), y = Y(n), verdict = n === 0 ? '' : n === extra ? now.ending : now.verdicts[n - 1] || 'n', dim = 'nz-'.includes(verdict) && n;
      const color = n === 0 || n === extra ? '--ink' : Lantern.verdicts[verdict][1], half = size / 2;
      const label = n === 0 ? 'last committed token' : n === extra ? Lantern.verdicts[verdict][0]
        : `draft ${n}, ${Lantern.verdicts[verdict][0].toLowerCase()}, q ${number(now.q[n - 1])}, r ${number(now.r[n - 1])}, m ${number(now.m[n - 1])}`;
      boxes += `<g class="node" data-n="${n}" role="treeitem" aria-level="${tree.depth[n] + 1}" aria-selected="${n === sel}" tabindex="${n && n === sel ? 0 : -1}" aria-label="${label}"><title>${label}</title>`
        + `<rect x="${x - half - 4}" y="${y - half - 4}" width="${size + 8}" height="${size + 8}" fill="transparent"/>`;
      if (n && n === sel) boxes += `<rect x="${x - half - 4.5}" y="${y - half - 4.5}" width="${size + 9}" height="${size + 9}" rx="6" fill="none" stroke="var(--relax-fill)" stroke-opacity=".35" stroke-width="5"/>`;
      boxes += `<rect x="${x - half - 1}" y="${y - half - 1}" width="${size + 2}" height="${size + 2}" rx="3" fill="none" stroke="var(${dim ? '--line-2' : color})" stroke-width="${dim ? 1 : n === sel ? 3 : 2}"${dim ? ' stroke-dasharray="3 2"' : ''}/>`;
      if (n && !dim) boxes += Lantern.verdictMark(verdict, x + half, y - half, Lantern.clamp(size / 5, 3.4, 7));
      if (n && n !== extra && 'axr'.includes(verdict)) {
        const w = size + 2, [q, r, m] = ['q', 'r', 'm'].map(name => now[name][n - 1] / scale * w), thin = rowHeight > 28 ? 2.5 : 1.5, at = y + half + 2.5, left = x - half - 1;
        boxes += `<rect x="${left}" y="${at}" width="${q.toFixed(1)}" height="${thin}" fill="var(--ar)"/><rect x="${left}" y="${at + thin + 0.5}" width="${r.toFixed(1)}" height="${thin}" fill="var(--strict)"/>`
          + `<rect x="${(left + r).toFixed(1)}" y="${at + thin + 0.5}" width="${Math.max(0, m - r).toFixed(1)}" height="${thin}" fill="var(--relax-fill)"/>`;
      }
      boxes += '</g>';
    });
    const svg = part('tree'), focused = svg.contains(document.activeElement);
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.innerHTML = heads + edges + boxes;
    svg.querySelectorAll('.node').forEach(group => group.addEventListener('click', () => pick(Number(group.dataset.n))));
    if (focused) svg.querySelector(`[data-n="${sel}"]`)?.focus({ preventScroll: true });
    redrawPatches();
    part('tree-caption').textContent = !nodes() ? 'Plain autoregression drafts nothing: each pass of the target samples one token.' : `${run.patches ? 'Each square is what the token would paint there.' : 'Each square is the token’s code, painted alone.'} Line width: the drafter’s probability. Under each tested draft: q in grey, and the mass the target gives it, strict in blue, pooled in amber.`;
  };
  const redrawPatches = Lantern.canvas(part('patches'), (context, width, height) => {
    context.clearRect(0, 0, width, height);
    if (!run || !geometry) return;
    const now = step(), { tree, X, Y, size, extra, parents } = geometry;
    parents.forEach((_, n) => {
      const x = X(tree.depth[n]) - size / 2, y = Y(n) - size / 2, verdict = n && n !== extra ? now.verdicts[n - 1] || 'n' : '';
      if (verdict === 'z' || (verdict && !now.drafted.length)) return;
      context.globalAlpha = verdict === 'n' || verdict === '-' ? 0.5 : 1;
      if (!n) Lantern.placePatch(context, run, now.at - 1, x, y, size);
      else if (n === extra) Lantern.placePatch(context, run, now.at + now.path.length, x, y, size);
      else Lantern.nodePatch(context, run, cur, n, x, y, size);
    });
    context.globalAlpha = 1;
  });
  const pick = n => {
    if (!n || n > nodes() || !step().drafted.length) return;
    sel = n;
    stop();
    drawTree();
    part('tree').querySelector(`[data-n="${n}"]`)?.focus({ preventScroll: true });
    drawNode();
  };
  part('tree').addEventListener('keydown', event => {
    if (event.key === ' ') { toggle(); event.preventDefault(); return; }
    if (!sel) return;
    const kin = run.children[run.parents[sel]], i = kin.indexOf(sel);
    const next = { ArrowUp: kin[i - 1], ArrowDown: kin[i + 1], ArrowLeft: run.parents[sel], ArrowRight: run.children[sel][0] }[event.key];
    if (event.key.startsWith('Arrow')) event.preventDefault();
    if (next) pick(next);
  });

  /* ---- the chosen draft: in its place, among its siblings ---- */
  const redrawPlace = Lantern.canvas(part('place'), (context, width) => {
    context.clearRect(0, 0, width, width);
    if (!run || !sel) return;
    const now = step(), place = now.at + run.depths[sel] - 1, [row, column] = [Math.floor(place / run.grid), place % run.grid], cell = width / 5;
    context.fillStyle = Lantern.css('--sunken');
    context.fillRect(0, 0, width, width);
    const at = index => [(index % run.grid - column + 2) * cell, (Math.floor(index / run.grid) - row + 2) * cell];
    context.globalAlpha = 0.75;
    for (let y = row - 2; y <= row + 2; y++) for (let x = column - 2; x <= column + 2; x++) {
      const index = y * run.grid + x;
      if (x >= 0 && y >= 0 && x < run.grid && y < run.grid && index < now.at) Lantern.placePatch(context, run, index, ...at(index), cell + 0.5);
    }
    context.globalAlpha = 1;
    for (let n = sel; n > 0; n = run.parents[n]) if (place < run.grid ** 2) Lantern.nodePatch(context, run, cur, n, ...at(now.at + run.depths[n] - 1), cell + 0.5);
    context.lineWidth = 2;
    context.strokeStyle = Lantern.css(Lantern.verdicts[now.verdicts[sel - 1]][1]);
    context.strokeRect(2 * cell - 1, 2 * cell - 1, cell + 2, cell + 2);
  });
  const siblings = () => {
    const now = step(), kin = sel ? run.children[run.parents[sel]] : [];
    element.querySelector('.sibs').hidden = !sel;
    if (!sel) return;
    part('siblings-caption').textContent = `The children of ${run.parents[sel] ? `draft ${run.parents[sel]}` : 'the last committed token'}. Each rejection takes its q out of the target before the next is tested.${run.order === 'strict-first' ? ' The strict rule is asked of all first, pooling only if none passes.' : ''}`;
    const header = Lantern.make('tr');
    ['', 'Draft', 'q', 'r', 'm', 'threshold', 'u', 'Verdict'].forEach((name, i) => header.append(Lantern.make('th', i > 1 && i < 7 ? 'num' : '', name)));
    const rows = kin.map(n => {
      const i = n - 1, verdict = now.verdicts[i], row = Lantern.make('tr'), patch = document.createElement('canvas'), cell = Lantern.make('td');
      patch.width = patch.height = 48;
      const context = patch.getContext('2d');
      context.imageSmoothingQuality = 'high';
      if (verdict !== 'z') Lantern.nodePatch(context, run, cur, n, 0, 0, 48);
      cell.append(patch);
      const threshold = now.q[i] > 0 && !/^coupled/.test(run.method) ? Math.min(1, now.m[i] / now.q[i]) : null, u = now.u && 'axr'.includes(verdict) ? now.u[i] : null;
      row.append(cell, Lantern.make('td', '', n), ...[now.q[i], now.r[i], now.m[i], threshold, u].map(value => Lantern.make('td', 'num', number(value))));
      const words = Lantern.make('td', 'verdict');
      words.innerHTML = Lantern.verdictIcon(verdict);
      words.append(Lantern.make('span', '', Lantern.verdicts[verdict][0]));
      row.append(words);
      row.setAttribute('aria-selected', n === sel);
      row.addEventListener('click', () => pick(n));
      return row;
    });
    part('siblings').replaceChildren(header, ...rows);
  };
  const drawNode = () => { redrawMask(); redrawPlace(); siblings(); card.show(run, cur, sel); };

  const draw = () => {
    const now = step(), count = now.tokens.length, total = run.steps.length - 1, accepted = now.path.length;
    Object.assign(element.dataset, { step: cur, node: sel });
    part('where').replaceChildren(Lantern.make('b', '', `Step ${cur}`), ` of ${total} · ${count > 1 ? `tokens ${now.at + 1} to ${now.at + count}` : `token ${now.at + 1}`} of ${run.grid ** 2} · ${now.ms.toFixed(1)} ms`);
    strip.setAttribute('aria-valuemax', total);
    strip.setAttribute('aria-valuenow', cur);
    strip.setAttribute('aria-valuetext', `step ${cur} of ${total}, ${count} ${count === 1 ? 'token' : 'tokens'}`);
    const ending = { end: '', sampled: '1 token sampled' }[now.ending] ?? `1 ${now.ending} token`;
    part('caption').replaceChildren(nodes() ? `${accepted} of ${nodes()} drafts accepted${ending ? `, then ${ending}` : ', the picture is full'}: ` : `${ending}: `,
      Lantern.make('b', '', `${count} ${count === 1 ? 'token' : 'tokens'} in one pass`), nodes() ? '. Dashed: the places drafted for.' : '.');
    part('picture').setAttribute('aria-label', `Picture so far: ${now.at + count} of ${run.grid ** 2} tokens painted, ${count} of them by step ${cur}`);
    part('mask').setAttribute('aria-label', `${run.parents.length} by ${run.parents.length} mask: each draft sees the picture so far, its ancestors and itself`);
    redrawStrip();
    redrawPicture();
    drawTree();
    drawNode();
  };

  /* ---- files ---- */
  const word = part('said');
  const actions = {
    svg: () => {
      const copy = part('tree').cloneNode(true), image = document.createElementNS('http://www.w3.org/2000/svg', 'image');
      const [, , width, height] = part('tree').getAttribute('viewBox').split(' ');
      Object.entries({ href: part('patches').toDataURL(), width, height }).forEach(([name, value]) => image.setAttribute(name, value));
      copy.prepend(image);
      Lantern.file(`step-${cur}.svg`, Lantern.svgText(copy), 'image/svg+xml');
    },
    json: () => Lantern.file(`step-${cur}.json`, JSON.stringify({ run: run.id, step: cur, parents: run.parents, ...step(), node: card.facts() }, null, 1), 'application/json'),
    csv: () => Lantern.file('drafts.csv', Lantern.csv([['step', 'position', 'node', 'parent', 'depth', 'code', 'q', 'r', 'm', 'u', 'verdict'],
      ...run.steps.flatMap((each, s) => each.drafted.map((code, i) => [s, each.at + run.depths[i + 1] - 1, i + 1, run.parents[i + 1], run.depths[i + 1], code,
        each.q[i], each.r[i], each.m[i], each.u && each.u[i], each.verdicts[i]]))]), 'text/csv'),
    link: () => Lantern.copy(Lantern.linkTo({ view: 'Step inspector', ...Lantern.placeOf['step-inspector']() }), word),
  };
  element.querySelectorAll('[data-save]').forEach(save => {
    if (save.dataset.save !== 'link') save.insertAdjacentHTML('afterbegin', Lantern.icons.down);
    save.addEventListener('click', () => { if (run) { word.textContent = ''; actions[save.dataset.save](); } });
  });
  new ResizeObserver(() => run && drawTree()).observe(part('wrap'));
  Lantern.on('theme', () => run && drawTree());
  button();
  Lantern.placeOf['step-inspector'] = () => (run ? { run: run.id, step: cur, node: sel } : {});
  Lantern.runOnView(element, props, watch, ask, server, 'Step inspector', show);
};
