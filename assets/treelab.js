/* The Tree lab: a static draft tree edited by hand, and what it would bring, at once. A tree is nested lists of children. */

Lantern.treeLab = (element, props, trigger, server) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), { presets, limits } = props.value;
  const presetTexts = presets.map(preset => ({ ...preset, root: Trees.of(preset.parents), text: Trees.text(Trees.of(preset.parents)) }));
  let root = presetTexts[0].root, path = [0], past = [], future = [], groups = props.value.groups, group = null, best = null, { cost } = props.value;
  const speedups = {};

  /* ---- acceptance: rates beyond what was drafted are the last row's and column's ---- */
  const rate = (depth, rank) => {
    const rows = group.rates, row = rows[Math.min(depth, rows.length) - 1];
    return row[Math.min(rank, row.length - 1)];
  };
  const expected = tree => (group ? Trees.expected(tree, rate) : null);
  const bestNext = tree => (group ? Trees.best(tree, rate, limits) : null);
  const speedup = tree => (group && cost ? Trees.speedup(tree, rate, cost) : null);
  const adopt = ({ groups: next, cost: known, ready }) => {
    groups = next;
    cost = known;
    if (!ready) setTimeout(refresh, 2000);                       // the model is being loaded; its costs come with it
    const own = group && groups.find(each => each.key === group.key);
    group = own || groups.find(each => each.method === Lantern.rule(Lantern.knobs)) || groups[0] || null;
    part('rule').replaceChildren(...(groups.length ? groups.map(each => `${each.label} (${each.runs} ${each.runs === 1 ? 'run' : 'runs'})`) : ['No run yet']).map(text => Lantern.make('option', '', text)));
    part('rule').disabled = !groups.length;
    part('rule').selectedIndex = Math.max(0, groups.indexOf(group));
    show();
  };

  const refresh = () => server.measured('').then(adopt).catch(() => {});   // where the server is gone, what is known stays

  /* ---- edits, each one undoable ---- */
  const refuse = text => { part('error').hidden = !text; part('error').textContent = text || ''; };
  const set = (next, keep = true) => {
    const list = Trees.list(next);
    if (list.length - 1 > limits.nodes) { refuse(`That makes ${list.length - 1} drafted tokens; at most ${limits.nodes} are allowed.`); return false; }
    if (list.at(-1).depth > limits.depth) { refuse(`That is ${list.at(-1).depth} levels deep; at most ${limits.depth} are allowed.`); return false; }
    if (list.length < 2) { refuse('A draft tree needs at least one token.'); return false; }
    refuse('');
    if (Trees.text(next) === Trees.text(root)) { show(); return true; }
    if (keep) { past.push(root); future = []; }
    root = next;
    while (path.length && !Trees.at(root, path)) path = path.slice(0, -1);
    show();
    return true;
  };
  const changed = (at, edit) => {                                // a copy of the tree, edited at one node
    const copy = structuredClone(root);
    edit(Trees.at(copy, at));
    return copy;
  };
  const add = at => { if (set(changed(at, node => node.push([])))) { path = [...at, Trees.at(root, at).length - 1]; show(); } };
  const remove = () => {
    if (!path.length) { refuse('The root is the last committed token; it cannot be removed.'); return; }
    const parent = path.slice(0, -1), rank = path.at(-1);
    if (set(changed(parent, node => node.splice(rank, 1)))) {
      path = Trees.at(root, parent).length ? [...parent, Math.min(rank, Trees.at(root, parent).length - 1)] : parent;
      show();
    }
  };
  const back = (from, to) => { if (from.length) { to.push(root); root = from.pop(); while (path.length && !Trees.at(root, path)) path.pop(); refuse(''); show(); } };
  const setLevel = (depth, count) => {                           // every token of depth − 1 gets so many children
    const copy = structuredClone(root);
    Trees.list(copy).filter(item => item.depth === depth - 1).forEach(({ node }) => {
      node.length = Math.min(node.length, count);
      while (node.length < count) node.push([]);
    });
    if (!set(copy)) show();
  };

  /* ---- the drawing ---- */
  const box = part('tree');
  const draw = list => {
    const width = Math.max(280, box.clientWidth), narrow = width < 620;
    const parents = list.map(item => item.parent);
    if (best) parents.push(best.parent);
    const tree = Lantern.layout(parents), { reached } = group ? Trees.reach(list, rate) : { reached: list.map(() => 0) };
    const gap = Lantern.clamp(600 / tree.rows, narrow ? 17 : 21, narrow ? 28 : 38), radius = Lantern.clamp(gap * 0.42, 7, narrow ? 10 : 12.5);
    const top = 34, height = Math.max(200, top + (tree.rows - 1) * gap + 26), room = best ? (narrow ? 44 : 110) : 24;
    const across = Math.min(210, (width - 24 - room) / Math.max(1, tree.levels)), left = 18;
    const X = i => left + tree.depth[i] * across, lift = Math.max(0, (height - top - 26 - (tree.rows - 1) * gap) / 2);
    const Y = i => top + lift + tree.y[i] * gap, most = Math.max(0.01, ...reached.slice(1));
    const place = i => `${X(i).toFixed(1)} ${Y(i).toFixed(1)}`;
    const edge = (from, to) => { const mid = (X(from) + X(to)) / 2; return `M${place(from)}C${mid.toFixed(1)} ${Y(from).toFixed(1)} ${mid.toFixed(1)} ${Y(to).toFixed(1)} ${place(to)}`; };
    const at = list.findIndex(item => item.path.join() === path.join());
    const heads = Array.from({ length: tree.levels + 1 }, (_, d) => `<text class="axis" x="${left + d * across}" y="11" text-anchor="${d ? 'middle' : 'start'}"${d ? '' : ' dx="-12"'}>${d ? (narrow ? d : `depth ${d}`) : 'now'}</text>`);
    const edges = list.map((item, i) => (i ? `<path d="${edge(item.parent, i)}" stroke-width="${(1 + 5 * reached[i]).toFixed(2)}"/>` : ''));
    const nodes = list.map((item, i) => {
      const shade = cividis(Math.sqrt(reached[i] / most)), label = i && radius >= 9 && group ? `<text x="${X(i)}" y="${Y(i) + 3.6}" text-anchor="middle" style="font-size:${radius > 11 ? 11 : 10}px" fill="${Lantern.isDark(shade) ? '#fff' : '#000'}">${share(reached[i])}</text>` : '';
      const words = i ? `Depth ${item.depth}, child ${item.rank + 1} of its parent${group ? `, on the accepted path in ${share(reached[i])} % of steps` : ''}` : 'The last committed token';
      return `<g id="lab-node-${i}" role="treeitem" aria-level="${item.depth + 1}" aria-selected="${i === at}" aria-label="${words}" data-node="${i}">`
        + `<circle class="hit" cx="${X(i)}" cy="${Y(i)}" r="${Math.max(radius + 3, gap / 2)}"/>`
        + (i === at ? `<circle class="aid" cx="${X(i)}" cy="${Y(i)}" r="${radius + 4}" fill="none" stroke="var(--relax)" stroke-width="2.5"/>` : '')
        + `<circle cx="${X(i)}" cy="${Y(i)}" r="${radius}" fill="${!i ? 'var(--ink)' : group ? Lantern.rgb(shade) : 'var(--ink-3)'}" stroke="var(--line-2)"/>${label}</g>`;
    });
    const badge = (x, y, action, sign, title) => `<g class="badge" data-do="${action}" role="button" aria-label="${title}"><circle class="hit" cx="${x}" cy="${y}" r="13"/><circle cx="${x}" cy="${y}" r="8" fill="var(--panel)" stroke="var(--relax)" stroke-width="1.5"/><path d="M${x - 4} ${y}H${x + 4}${sign === '+' ? `M${x} ${y - 4}V${y + 4}` : ''}" stroke="var(--relax)" stroke-width="1.6"/></g>`;
    let marks = '';
    if (best) {
      const i = list.length;
      edges.push(`<path d="${edge(best.parent, i)}" class="aid" stroke="var(--relax)" stroke-width="1.5" stroke-dasharray="3 3"/>`);
      marks += `<g class="badge" data-do="best" role="button" aria-label="Add the best next token, plus ${best.gain.toFixed(3)} tokens a step"><circle class="hit" cx="${X(i)}" cy="${Y(i)}" r="14"/>`
        + `<circle cx="${X(i)}" cy="${Y(i)}" r="${radius}" fill="var(--bg)" stroke="var(--relax)" stroke-width="1.5" stroke-dasharray="3 3"/>`
        + `<path d="M${X(i) - 4} ${Y(i)}H${X(i) + 4}M${X(i)} ${Y(i) - 4}V${Y(i) + 4}" stroke="var(--relax)" stroke-width="1.6"/>`
        + `<text class="axis" x="${X(i) + radius + 6}" y="${Y(i) + 4}" style="fill:var(--relax)">${narrow ? '' : 'best next '}+${best.gain.toFixed(3)}</text></g>`;
    }
    if (at >= 0) {
      marks += badge(X(at) + radius + 9, Y(at) + (list[at].node.length ? radius + 3 : 0), 'add', '+', 'Add a child');
      if (at) marks += badge(X(at) - radius - 9, Y(at) - radius, 'remove', '−', 'Remove this token and those below it');
    }
    box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="presentation">${heads.join('')}<g fill="none" stroke="var(--line-2)">${edges.join('')}</g>${nodes.join('')}${marks}</svg>`;
    box.setAttribute('aria-activedescendant', `lab-node-${Math.max(0, at)}`);
    part('legend').innerHTML = `<i style="background:linear-gradient(90deg,${Array.from({ length: 9 }, (_, i) => Lantern.rgb(cividis(i / 8))).join(',')})"></i><div><span>0</span><span>${group ? share(most / 4) : ''}</span><span>${group ? `${share(most)} %` : ''}</span></div>`;
    return { at: Math.max(0, at), reached };
  };
  box.addEventListener('click', event => {
    const badge = event.target.closest('[data-do]'), node = event.target.closest('[data-node]');
    if (badge) actions[badge.dataset.do]();
    else if (node) { path = Trees.list(root)[node.dataset.node].path; show(); }
  });
  box.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const list = Trees.list(root), at = list.findIndex(item => item.path.join() === path.join()), here = list[at];
    const beside = step => list[at + step] && list[at + step].depth === here.depth && list[at + step].path;
    const to = { ArrowRight: here.node.length && [...path, 0], ArrowLeft: path.length && path.slice(0, -1), ArrowUp: beside(-1), ArrowDown: beside(1), Home: [] }[event.key];
    const act = { '+': 'add', '=': 'add', '-': 'remove', '−': 'remove', Delete: 'remove', Backspace: 'remove', b: 'best', z: 'undo', Z: 'redo', y: 'redo' }[event.key];
    if (to === undefined && !act) return;
    event.preventDefault();
    if (act) actions[act]();
    else if (to) { path = to; show(); }
  });

  /* ---- words and figures ---- */
  const show = () => {
    const list = Trees.list(root), text = Trees.text(root), nodes = list.length - 1;
    best = bestNext(root);
    const { at, reached } = draw(list), length = group ? sumOf(reached) : null, own = group && group.measured[text];
    Lantern.say(part('expected'), length ? length.toFixed(2) : '–');
    element.querySelector('.treelab').classList.toggle('costed', !!(group && cost));
    element.querySelector('.lab-figures').classList.toggle('costed', !!(group && cost));
    Lantern.say(part('expected-more'), 'tokens a step');
    if (group && cost) {
      Lantern.say(part('predicted'), `${speedup(root).toFixed(2)}×`);
      Lantern.say(part('predicted-more'), '');
      Lantern.say(part('step'), (Trees.step(root, cost) * 1000).toFixed(1));
      Lantern.say(part('step-more'), `ms, AR ${(cost.seconds[0] * 1000).toFixed(1)}`);
    }
    Lantern.say(part('measured'), own ? own.length.toFixed(2) : '–');
    Lantern.say(part('measured-more'), own ? `${own.runs} ${own.runs === 1 ? 'run' : 'runs'}, ${own.steps.toLocaleString('en')} steps` : 'not run yet');
    Lantern.say(part('nodes'), String(nodes));
    Lantern.say(part('nodes-more'), `of ${limits.nodes}`);
    Lantern.say(part('depth'), String(list.at(-1).depth));
    Lantern.say(part('depth-more'), `of ${limits.depth}`);
    const fast = group && speedups[`${group.method} ${text}`];
    Lantern.say(part('speedup'), fast ? `${fast.value.toFixed(2)}×` : '–');
    Lantern.say(part('speedup-more'), fast ? `n = ${fast.n}${fast.recorded ? ', recorded' : ''}` : '');
    part('source').textContent = group
      ? `Acceptance of ${group.label}: ${group.recorded === group.runs ? `${group.runs} recorded ${group.runs === 1 ? 'run' : 'runs'}` : `${group.runs} runs`}, ${group.steps.toLocaleString('en')} steps. Depths and ranks that they did not draft take the nearest measured rate. ${cost ? `Cost of a step: ${cost.facts.filter(Boolean).join(', ')}; the fit misses by ${(cost.misfit * 100).toFixed(1)} %.` : 'Run python -m lanternpp tune, and the speedup is predicted too.'}`
      : 'Nothing was measured yet: generate once in Race, and the expected accepted length appears.';
    const item = list[at], known = group && at && group.tested[item.depth - 1] && group.tested[item.depth - 1][item.rank];
    part('node').textContent = !at ? 'The last committed token, which the tree grows from.'
      : `Depth ${item.depth}, child ${item.rank + 1}${group ? `: on the accepted path in ${share(reached[at])} % of steps. Once reached it is accepted ${share(rate(item.depth, item.rank))} % of the time (${known ? `n = ${known.toLocaleString('en')}` : 'not drafted in these runs, so taken from the nearest depth or rank'}).` : '.'}`;
    levels(list);
    const paths = JSON.stringify(list.slice(1).map(each => each.path));
    if (document.activeElement !== part('paths')) part('paths').value = paths.replaceAll('],[', '], [');
    part('start').value = (presetTexts.find(each => each.text === text) || saved().find(each => each.text === text) || { text: '' }).text;
    button('undo').disabled = !past.length;
    button('redo').disabled = !future.length;
    button('best').disabled = !best;
    button('remove').disabled = !at;
    const stored = saved().some(each => each.text === text), preset = presetTexts.some(each => each.text === text);
    button('save').textContent = stored ? 'Forget preset' : 'Save preset';
    button('save').disabled = preset;
    figures(text, nodes);
  };
  const rows = [];
  const levels = list => {
    const deep = list.at(-1).depth, wanted = Math.min(limits.depth, Math.max(3, deep + 1));
    while (rows.length < wanted) {
      const depth = rows.length + 1, row = Lantern.make('div', 'slider level'), words = Lantern.make('label', '', `depth ${depth}`);
      const range = Object.assign(document.createElement('input'), { type: 'range', min: 0, max: 8, step: 1, id: `lab-level-${depth}` }), field = Lantern.make('output', '');
      words.htmlFor = range.id;
      range.addEventListener('input', () => setLevel(depth, Number(range.value)));
      row.append(words, range, field);
      part('levels').append(row);
      rows.push({ row, range, field });
    }
    rows.forEach(({ row, range, field }, i) => {
      row.hidden = i >= wanted;
      const counts = list.filter(item => item.depth === i).map(item => item.node.length), low = Math.min(...counts), high = Math.max(...counts);
      range.disabled = !counts.length;
      range.value = counts.length ? high : 0;
      field.textContent = !counts.length ? '–' : low === high ? String(high) : `${low}–${high}`;
      range.setAttribute('aria-valuetext', counts.length ? `${field.textContent} children` : 'no token above');
      range.style.setProperty('--f', `${range.value / 8 * 100}%`);
    });
  };
  let grown = { of: null };
  const figures = (text, nodes) => {
    const known = [...presetTexts, ...saved()], body = [{ label: 'This tree', text, root, here: true }, ...known];
    part('trees').replaceChildren(...body.map(each => {
      const row = Lantern.make('tr', each.here ? 'here' : ''), own = group && group.measured[each.text], size = Trees.list(each.root).length - 1;
      const name = document.createElement('td'), pick = Lantern.make('button', 'link', each.label);
      pick.type = 'button';
      if (each.here) name.textContent = each.label;
      else { pick.addEventListener('click', () => set(structuredClone(each.root))); name.append(pick); }
      const value = group ? expected(each.root).toFixed(2) : '–';
      row.append(name, Lantern.make('td', 'num', String(size)), Lantern.make('td', 'num strong', value), Lantern.make('td', 'num costed', cost && group ? `${speedup(each.root).toFixed(2)}×` : ''), Lantern.make('td', 'num', own ? own.length.toFixed(2) : '–'));
      return row;
    }));
    part('growth').replaceChildren();
    part('rates').replaceChildren();
    if (!group) return;
    const value = cost ? speedup : expected, [unit, title] = cost ? ['×', 'Predicted speedup against tree size'] : ['', 'Accepted length against tree size'];
    part('growth-title').textContent = title;
    if (grown.of !== group || grown.cost !== cost) grown = { of: group, cost, values: Trees.growth(rate, limits).map(value) };
    Trees.curve(part('growth'), grown.values, known.map(each => ({ size: Trees.list(each.root).length - 1, value: value(each.root) })), { size: nodes, value: value(root) }, unit, title);
    Trees.table(part('rates'), group);
  };
  /* ---- presets of this browser ---- */
  const STORE = 'lantern-trees';
  const saved = () => {
    try {
      const texts = JSON.parse(localStorage.getItem(STORE)) || [];
      return texts.filter(each => Array.isArray(each.parents) && each.parents.length <= limits.nodes + 1 && each.parents.every((parent, i) => Number.isInteger(parent) && parent < i && (parent >= 0 || !i)))
        .map(each => ({ ...each, root: Trees.of(each.parents), text: Trees.text(Trees.of(each.parents)), label: `Saved, ${each.parents.length - 1} tokens` }));
    } catch { return []; }                                       // a browser that keeps nothing
  };
  const starts = () => {
    const group = (label, items) => { const out = Object.assign(document.createElement('optgroup'), { label }); out.append(...items.map(each => Object.assign(Lantern.make('option', '', each.label), { value: each.text }))); return out; };
    const own = saved(), edited = Object.assign(Lantern.make('option', '', 'Edited by hand'), { value: '', disabled: true });
    part('start').replaceChildren(edited, group('Presets', presetTexts), ...(own.length ? [group('Saved in this browser', own)] : []));
  };
  part('start').addEventListener('change', event => {
    const chosen = [...presetTexts, ...saved()].find(each => each.text === event.target.value);
    if (chosen) set(structuredClone(chosen.root));
  });
  part('rule').addEventListener('change', event => { group = groups[event.target.selectedIndex]; show(); });
  part('paths').addEventListener('change', async event => {
    const answer = await server.parse(event.target.value);
    if (answer.error) refuse(answer.error);
    else set(Trees.of(answer.parents));
  });

  const parents = () => Trees.list(root).map(item => item.parent);
  const button = name => element.querySelector(`[data-action="${name}"]`);
  const actions = {
    add: () => add(path), remove, best: () => best && add(best.path),
    undo: () => back(past, future), redo: () => back(future, past),
    race: () => {
      const text = Trees.text(root), preset = presetTexts.find(each => each.text === text);
      props.value = { ...props.value, text, preset: preset && preset.name };
      acted = 0;                                                 // the knobs turn by themselves: Generate follows, not a second run
      trigger();
    },
    save: () => {
      const text = Trees.text(root), others = saved().filter(each => each.text !== text);
      const next = others.length < saved().length ? others : [...others, { parents: parents() }];
      try { localStorage.setItem(STORE, JSON.stringify(next.map(each => ({ parents: each.parents })))); } catch { refuse('This browser keeps nothing; copy the link instead.'); }
      starts();
      show();
    },
    link: async () => {
      const link = Lantern.link({ ...Lantern.knobs, tree: 'custom', branching: Trees.text(root) });
      try { await navigator.clipboard.writeText(link); button('link').textContent = 'Copied'; } catch { history.replaceState(null, '', link); button('link').textContent = 'In the address bar'; }
      setTimeout(() => { button('link').textContent = 'Copy link'; }, 2000);
    },
    json: () => Lantern.download('draft-tree.json', JSON.stringify({ parents: parents(), text: Trees.text(root), paths: Trees.list(root).slice(1).map(item => item.path), expected_accepted_length: expected(root), predicted_speedup: speedup(root), acceptance: group && { label: group.label, runs: group.runs, tested: group.tested, accepted: group.accepted } }, null, 1), 'application/json'),
    svg: () => Lantern.download('draft-tree.svg', Lantern.svgFile(box.querySelector('svg')), 'image/svg+xml'),
    csv: () => group && Lantern.download('acceptance.csv', `depth,rank,tested,accepted,rate\n${group.tested.flatMap((row, d) => row.map((n, i) => `${d + 1},${i},${n},${group.accepted[d][i]},${group.rates[d][i]}`)).join('\n')}\n`, 'text/csv'),
  };
  element.querySelectorAll('[data-action]').forEach(each => each.addEventListener('click', () => actions[each.dataset.action]()));
  element.querySelectorAll(':is([data-action=json], [data-action=svg], [data-action=csv])').forEach(each => each.insertAdjacentHTML('afterbegin', Lantern.icons.down));

  /* ---- what the Race shows: its tree opens here, its runs are measured here ---- */
  const fromRace = async () => {
    const { tree, branching } = Lantern.knobs, preset = presetTexts.find(each => each.name === tree);
    const answer = preset || await server.parse(String(branching || ''));
    if (answer.parents) set(Trees.of(answer.parents), past.length > 0);
  };
  Lantern.on('shown', value => {
    const lane = value.lanes && value.lanes[1];
    if (value.state !== 'done' || !lane || !lane.key || !value.speedup) return;
    const text = Trees.text(Trees.of(JSON.parse(lane.key)[0])), pairs = value.pairs && value.pairs.key === lane.key && value.pairs;
    speedups[`${lane.method} ${text}`] = { value: pairs ? pairs.median : value.speedup, n: pairs ? pairs.n : 1, recorded: value.recorded };
    show();
  });
  Lantern.on('finished', refresh);
  Lantern.on('knobs', fromRace);
  Lantern.on('theme', show);
  let seen = 0;
  new ResizeObserver(() => { if (box.clientWidth !== seen) { seen = box.clientWidth; show(); } }).observe(box);
  starts();
  adopt({ ...props.value, ready: true });
  fromRace();
  refresh();
};
