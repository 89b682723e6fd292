/* The rail: the stop slider of k, draft trees, what the bound means, chips, errors beside their field. */

/* Values of the page's knobs, as the last change left them; previews follow at once, a decode follows when they rest. */
Lantern.knobs = { method: 'lanternpp' };
Lantern.REST = 350;                                              // milliseconds without a change before a decode
let acted = 0, held = false, rest = 0;
for (const type of ['pointerdown', 'keydown', 'wheel']) addEventListener(type, () => { acted = Date.now(); }, { capture: true, passive: true });
addEventListener('pointerdown', () => { held = true; }, true);
for (const type of ['pointerup', 'pointercancel', 'blur']) {
  addEventListener(type, event => {                              // of blur, that of the window: a field's says nothing
    if (type === 'blur' && event.target !== window) return;
    held = false;
    acted = Date.now();
  }, true);
}

const DECODED_AGAIN = ['method', 'same', 'against', 'tree', 'branching', 'k', 'lam', 'delta', 'gamma', 'order'];
/* The method that choice and switch name, and the knobs that each method's rule reads: as app/params.py has them. */
Lantern.SAME = { exact: 'coupled', lanternpp: 'coupled-relaxed', eagle2: 'eagle2' };
Lantern.rule = ({ method, same }) => (same && Lantern.SAME[method]) || method;
const USES = { lantern: 'k delta order', lanternpp: 'k lam order', annealed: 'k lam gamma order', 'coupled-relaxed': 'k lam' };
Lantern.uses = knobs => [Lantern.rule(knobs), knobs.against].flatMap(method => (USES[method] || '').split(' '));
Lantern.turn = (names, values) => {
  const read = () => JSON.stringify(DECODED_AGAIN.map(name => Lantern.knobs[name]));
  const before = read();
  names.forEach((name, i) => { Lantern.knobs[name] = values[i]; });
  document.body.dataset.method = Lantern.knobs.method;
  document.body.dataset.uses = Lantern.uses(Lantern.knobs).join(' ');
  document.body.dataset.same = Lantern.knobs.method in Lantern.SAME;
  document.body.dataset.tree = Lantern.knobs.tree;
  if (read() === before) return;
  Lantern.emit('knobs', Lantern.knobs);
  if (Date.now() - acted < 3000) settle();                       // a visitor turned it, not the page itself
};
/* All widgets of the page, in the order of params.PAGE. */
Lantern.page = (names, values) => {
  Lantern.turn(names, values);
  const { cfg_scale: cfg, temperature, top_k: topK } = Lantern.knobs, title = document.querySelector('#sampling > button span');
  const kept = Number(topK) ? `, top-k ${Number(topK).toLocaleString('en')}` : '';
  if (title) title.textContent = `Sampling: CFG ${cfg}, T ${temperature}${kept}`;
  Lantern.emit('typed', [String(Lantern.knobs.prompt || ''), Lantern.knobs.style]);
};
const settle = () => {
  clearTimeout(rest);
  rest = setTimeout(() => (held ? settle() : Lantern.emit('settle')), Lantern.REST);
};

/* ---- k: a range over stops that grow, with the exact number beside it ---- */
Lantern.stopSlider = (element, props, watch, { label, help, stops }) => {
  const range = element.querySelector('input[type=range]'), field = element.querySelector('input[type=number]');
  element.querySelector('label').textContent = label;
  element.querySelector('.slider > .help').textContent = help;
  element.querySelector('.high').textContent = stops.at(-1);
  field.setAttribute('aria-label', label);
  field.max = stops.at(-1);
  range.max = stops.length - 1;
  const nearest = value => stops.reduce((best, stop, i) => (stop <= value ? i : best), 0);
  const show = () => {
    const value = Number(props.value) || 0;
    range.value = nearest(value);
    field.value = value;
    range.setAttribute('aria-valuetext', `k = ${value}`);
    range.style.setProperty('--f', `${range.value / (stops.length - 1) * 100}%`);
  };
  const set = value => { props.value = value; show(); Lantern.turn(['k'], [value]); };
  range.addEventListener('input', () => set(stops[range.value]));
  field.addEventListener('change', () => {
    const value = Math.round(Number(field.value));
    set(field.value.trim() === '' || !Number.isFinite(value) ? Number(props.value) : Lantern.clamp(value, 0, stops.at(-1)));
  });
  watch('value', () => { show(); Lantern.turn(['k'], [props.value]); });
  show();
  Lantern.turn(['k'], [props.value]);
};

/* ---- draft trees: tidy layout by contours, depth to the right so that it reads like the painting ---- */
Lantern.layout = parents => {
  const children = parents.map(() => []), depth = [0];
  parents.forEach((parent, node) => { if (parent >= 0) { children[parent].push(node); depth[node] = depth[parent] + 1; } });
  const offset = Array(parents.length).fill(0), contour = [];
  for (let node = parents.length - 1; node >= 0; node--) {        // children stand after their parents
    const below = [];
    children[node].forEach(child => {
      const mine = contour[child];
      let shift = 0;
      mine.top.forEach((top, d) => { if (below[d] !== undefined) shift = Math.max(shift, below[d] + 1 - top); });
      offset[child] = shift;
      mine.top.forEach((_, d) => { below[d] = mine.bottom[d] + shift; });
    });
    const own = children[node];
    const middle = own.length ? (offset[own[0]] + offset[own.at(-1)]) / 2 : 0;
    own.forEach(child => { offset[child] -= middle; });
    const top = [0], bottom = [0];
    own.forEach(child => contour[child].top.forEach((value, d) => {
      const high = value + offset[child], low = contour[child].bottom[d] + offset[child];
      if (top[d + 1] === undefined || high < top[d + 1]) top[d + 1] = high;
      if (bottom[d + 1] === undefined || low > bottom[d + 1]) bottom[d + 1] = low;
    }));
    contour[node] = { top, bottom };
  }
  const y = [0];
  for (let node = 1; node < parents.length; node++) y[node] = y[parents[node]] + offset[node];
  const low = Math.min(...y), high = Math.max(...y);
  return { y: y.map(value => value - low), rows: high - low + 1, depth, levels: Math.max(...depth) };
};
Lantern.treeDrawing = (parents, width, height) => {
  const tree = Lantern.layout(parents);
  const X = d => 7 + d * (width - 14) / Math.max(1, tree.levels);
  const Y = v => (tree.rows > 1 ? 6 + v * (height - 12) / (tree.rows - 1) : height / 2);
  const radius = Lantern.clamp(height / tree.rows / 2.6, 1.6, 3);
  let edges = '', nodes = '';
  parents.forEach((parent, i) => {
    const x = X(tree.depth[i]), y = Y(tree.y[i]);
    if (parent >= 0) {
      const px = X(tree.depth[parent]), py = Y(tree.y[parent]), mid = (px + x) / 2;
      edges += `<path d="M${px.toFixed(1)} ${py.toFixed(1)}C${mid.toFixed(1)} ${py.toFixed(1)} ${mid.toFixed(1)} ${y.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}"/>`;
    }
    nodes += `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${i ? radius : 4.5}"/>`;
  });
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${parents.length - 1} drafted tokens, depth ${tree.levels}">`
    + `<g fill="none" stroke="var(--line-2)" stroke-width="1.2">${edges}</g><g fill="var(--ink-2)">${nodes}</g></svg>`;
};

/* ---- the draft tree, at once ---- */
Lantern.treePreview = (element, presets, limits) => {
  const drawing = element.querySelector('.drawing'), words = element.querySelector('.help');
  /* Children per level, one number for all of a level's tokens or, between dots, one for each: as Tree.from_counts. */
  const branching = text => {
    if (/^\s*\[/.test(text)) { const root = Trees.ofPaths(text); return root && root.length ? Trees.list(root).map(item => item.parent) : null; }
    const levels = String(text || '').split(/[\s,;/]+/).filter(Boolean).map(level => level.split('.').map(Number));
    if (!levels.length || levels.flat().some(count => !Number.isInteger(count) || count < 0) || levels.length > limits.depth) return null;
    const parents = [-1];
    let level = [0];
    for (const counts of levels) {
      if (counts.length > 1 && counts.length !== level.length) return null;
      const next = [];
      for (const [place, parent] of level.entries()) for (let i = 0; i < counts[counts.length > 1 ? place : 0]; i++) {
        if (parents.length > limits.nodes) return null;
        next.push(parents.length);
        parents.push(parent);
      }
      if (!next.length) return null;
      level = next;
    }
    return parents;
  };
  const draw = () => {
    const { tree, branching: text } = Lantern.knobs;
    const parents = presets[tree] || branching(text);
    if (!parents) {
      drawing.replaceChildren();
      words.textContent = `Children per level, such as 4, 2, 2, 1: at most ${limits.nodes} drafted tokens and ${limits.depth} levels.`;
      return;
    }
    const layout = Lantern.layout(parents), widths = Array(layout.levels).fill(0);
    layout.depth.forEach(d => { if (d) widths[d - 1]++; });
    drawing.innerHTML = Lantern.treeDrawing(parents, 304, 92);
    words.textContent = layout.levels ? `${parents.length - 1} drafted tokens: ${widths.join(' / ')}` : 'Nothing is drafted: one token a pass.';
  };
  Lantern.on('knobs', draw);
  draw();
};

/* ---- what the bound means: the share of the drafts tested in the run on view that would pass ----
   The strict share, r / q, is exact. The pooled share is exact at the run's own knobs. At others the trace supports only a
   ceiling: pooling never lifts r above λ·r (or r + δ), and never above the traced mass where no knob was raised. */
Lantern.shares = (run, knobs) => {
  const { q, r, m, d, v } = run.tested, own = run.settings, n = q.length;
  const mean = pass => (n ? q.reduce((sum, _, i) => sum + pass(i), 0) / n : 0);
  knobs = { ...knobs, method: Lantern.rule(knobs) };
  const bound = knobs.method === 'lantern' ? Number(knobs.delta) : Number(knobs.lam), k = Number(knobs.k), gamma = Number(knobs.gamma);
  const drawn = /coupled|eagle2/;                                    // judged by the target's own draw, not by a ratio
  const exact = knobs.method === 'exact' || k === 0 || (knobs.method === 'lantern' ? bound === 0 : bound === 1);
  const asRun = knobs.method === own.method && k === own.k && bound === own.bound && (own.method !== 'annealed' || gamma === own.gamma);
  if (own.temperature === 0 || drawn.test(own.method) || drawn.test(knobs.method)) {  // greedy: no chance is involved, the verdicts are all there is
    return { n, greedy: true, strict: mean(i => v[i] === 'a'), pooled: mean(i => v[i] !== 'r'), known: asRun };
  }
  const strict = mean(i => Math.min(1, r[i] / q[i]));
  if (exact) return { n, strict, pooled: strict, known: true };
  const lower = knobs.method === own.method && k <= own.k && bound <= own.bound && (own.method !== 'annealed' || gamma <= own.gamma);
  const cap = i => {
    const fade = knobs.method === 'annealed' ? gamma ** (d[i] - 1) : 1;
    const most = knobs.method === 'lantern' ? r[i] + bound : r[i] * (1 + (bound - 1) * fade);
    return Math.min(most, lower || asRun ? m[i] : Infinity);
  };
  return { n, strict, pooled: mean(i => Math.min(1, (asRun ? m[i] : cap(i)) / q[i])), known: asRun };
};
Lantern.boundPreview = (element, trigger) => {
  const text = element.querySelector('.help'), bars = element.querySelector('.half');
  let run = null;
  const draw = () => {
    element.classList.toggle('idle', !run);
    if (!run) { text.textContent = 'After a run: the share of its tested drafts that would pass at these settings.'; return; }
    const { n, strict, pooled, known, greedy } = Lantern.shares(run, Lantern.knobs), added = pooled - strict;
    const say = [`Of ${n} drafts tested in the run shown, `, Lantern.make('b', '', Lantern.percent(known || greedy ? pooled : strict))];
    if (greedy) say.push(known ? ' passed.' : ' passed at its own settings; run again to see these.');
    else if (!known) say.push(' pass by the strict rule, and ', Lantern.make('b', '', `at most ${Lantern.percent(pooled)}`), ' with pooling.');
    else say.push(added > 0.004 ? ` pass; the strict rule alone passes ${Lantern.percent(strict)}.` : ' pass, all by the strict rule.');
    text.replaceChildren(...say);
    bars.children[0].style.width = `${strict * 100}%`;
    bars.children[1].style.width = `${Math.max(0, added) * 100}%`;
    bars.children[1].classList.toggle('ceiling', !known);
    bars.setAttribute('aria-label', text.textContent);
  };
  Lantern.on('shown', value => {
    const lane = value.lanes && value.lanes[1];
    if (lane && lane.tested && lane.tested.q.length) run = lane;
    else if (value.state === 'running' && lane.state === 'waiting' && !value.lanes[0].kept) run = null;
    draw();
  });
  Lantern.on('knobs', draw);
  Lantern.on('settle', () => trigger('settle'));
  draw();
};

/* ---- a line that the server writes, such as how far a model is loaded ---- */
Lantern.words = (element, props, watch) => {
  const show = () => {
    const { text = '', model = '' } = props.value || {};
    Lantern.say(element.querySelector('p'), text);
    if (model) Lantern.emit('model', model);
  };
  watch('value', show);
  show();
};

/* ---- examples, and the sentence under the prompt ---- */
Lantern.chips = (element, props, trigger, examples) => {
  const row = element.querySelector('.chips');
  const buttons = examples.map(([prompt, picture]) => {
    const chip = Lantern.make('button', 'chip');
    chip.type = 'button';
    if (picture) {
      const image = document.createElement('img');
      Object.assign(image, { src: picture, alt: '' });
      chip.append(image);
    } else chip.classList.add('plain');
    chip.append(prompt);
    chip.addEventListener('click', () => { props.value = prompt; trigger('pick'); });
    row.append(chip);
    return [prompt, chip];
  });
  Lantern.on('typed', ([prompt]) => buttons.forEach(([own, chip]) => chip.setAttribute('aria-pressed', own === prompt.trim())));
};

/* One sentence beside the field that caused it; under the prompt where it was none of them. */
Lantern.fieldError = error => {
  document.querySelectorAll('.field-error').forEach(each => each.remove());
  document.querySelectorAll('[aria-invalid]').forEach(each => each.removeAttribute('aria-invalid'));
  if (!error) return;
  const knob = { bound: Lantern.knobs.method === 'lantern' ? 'delta' : 'lam', tree: Lantern.knobs.tree === 'custom' ? 'branching' : 'tree' }[error.field] || error.field;
  const field = knob && knob !== 'prompt' && document.getElementById(`knob-${knob}`);
  const note = Lantern.make('p', 'note err field-error', error.text);
  note.setAttribute('role', 'alert');
  if (field) field.append(note);
  else document.getElementById('promptline').after(note);        // the chips may be hidden
  const input = (field || document.getElementById('knob-prompt')).querySelector('input, textarea');
  if (input && error.field) input.setAttribute('aria-invalid', 'true');
};

Lantern.header = (element, text) => {
  const model = element.querySelector('.model'), button = element.querySelector('button');
  model.textContent = text;
  Lantern.on('model', loaded => { model.textContent = loaded; });
  button.addEventListener('click', async () => {
    const link = Lantern.link(Lantern.knobs), label = button.querySelector('span');
    try { await navigator.clipboard.writeText(link); label.textContent = 'Copied'; }
    catch { history.replaceState(null, '', link); label.textContent = 'In the address bar'; }
    setTimeout(() => { label.textContent = 'Copy link'; }, 2000);
  });
};

/* A row of buttons of which one is pressed. */
Lantern.segments = (element, labels, current, name, choose) => {
  element.className = 'seg';
  element.setAttribute('role', 'group');
  element.setAttribute('aria-label', name);
  const buttons = labels.map(label => {
    const button = Lantern.make('button', '', label);
    button.type = 'button';
    button.setAttribute('aria-pressed', label === current);
    button.addEventListener('click', () => {
      buttons.forEach(other => other.setAttribute('aria-pressed', other === button));
      choose(label);
    });
    return button;
  });
  element.replaceChildren(...buttons);
};
