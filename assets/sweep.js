/* The Sweep: a grid of settings, its progress, speed against quality, pictures of a setting, the table, files. */

/* What a point of the scatter may stand for; `sign` says which way is better. */
const QUALITIES = {
  'Prompt similarity': { key: 'similarity_change', low: 'similarity_low', high: 'similarity_high', sign: 1, words: 'similarity to the prompt, change from AR', digits: 3, change: true },
  'Found among 100': { key: 'top1_change', low: 'top1_low', high: 'top1_high', sign: 1, words: 'prompt found among 100, change from AR', digits: 2, change: true },
  'Fréchet distance': { key: 'frechet_real', sign: -1, words: 'Fréchet distance to real pictures, lower is better', digits: 2 },
  'Accepted length': { key: 'accepted_length', sign: 1, words: 'accepted length, tokens a step', digits: 2 },
};
const known = value => value !== null && value !== undefined && Number.isFinite(value);
const signed = (value, digits) => `${value < -0.5 / 10 ** digits ? '−' : value > 0 ? '+' : '±'}${Math.abs(value).toFixed(digits)}`;
const minutes = seconds => (seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h ${Math.round(seconds % 3600 / 60)} min`);
const counted = (n, word) => `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`;

/* Settings that no other beats in both; AR is one of them. */
Lantern.front = (rows, { key, sign }) => rows.filter(a => known(a[key]) && !rows.some(b => known(b[key])
  && b.speedup >= a.speedup && sign * b[key] >= sign * a[key] && (b.speedup > a.speedup || sign * b[key] > sign * a[key])));
/* A method's mark, hollow where the setting is not on the front. */
Lantern.point = (method, full) => {
  const inside = Lantern.mark(method).replace(/^<svg[^>]*>|<\/svg>$/g, '');
  if (full || method === 'ar') return inside;
  return /fill="var/.test(inside) ? inside.replace(/fill="(var[^"]+)"/, 'fill="var(--bg)" stroke="$1" stroke-width="1.7"') : inside.replace(/stroke-width="[\d.]+"/, 'stroke-width="1.2"');
};
Lantern.sweepPage = (names, value) => {                          // the Race's knobs at a setting; what it does not read stays
  const page = (value && value.page) || {};
  return names.map(name => (name in page ? page[name] : Lantern.knobs[name]));
};

Lantern.sweep = (element, props, watch, trigger, server, words) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), field = name => element.querySelector(`#sweep-${name}`);
  let shown = { state: 'empty', rows: [], settings: [] }, picked = 0, latest = -1, quality = '', planned = null, images = { of: '', list: [] }, place = 0, side = '', busy = false;

  /* ---- the form ---- */
  const check = (box, name, value, label) => {
    const row = Lantern.make('label', ''), input = Object.assign(document.createElement('input'), { type: 'checkbox', name, value });
    row.append(input, label);
    part(box).append(row);
  };
  Object.entries(words.methods).forEach(([value, label]) => check('methods', 'methods', value, label));
  words.trees.forEach(([value, label]) => check('trees', 'trees', value, label));
  Object.entries(words.orders).forEach(([value, label]) => check('orders', 'orders', value, label));
  for (const [name, label] of Object.entries(words.labels)) {
    const cell = document.createElement('div'), input = Object.assign(Lantern.make('input', 'field'), { id: `sweep-${name}`, inputMode: 'decimal', autocomplete: 'off' });
    const text = Lantern.make('label', 'lab', label);
    text.htmlFor = input.id;
    cell.append(text, input);
    part('sampling').append(cell);
  }
  const TEXTS = ['k', 'lam', 'delta', 'gamma', 'prompts', 'repeats', ...Object.keys(words.labels)];
  const checked = name => [...element.querySelectorAll(`input[name="${name}"]:checked`)].map(input => input.value);
  const read = () => {
    const spec = { methods: checked('methods').join(', '), orders: checked('orders').join(', '), trees: [...checked('trees'), field('more').value.trim()].filter(Boolean).join(', ') };
    TEXTS.forEach(name => { spec[name] = field(name).value; });
    return spec;
  };
  const write = spec => {
    const full = { ...words.defaults, ...spec }, list = name => String(full[name]).split(/[,;\n]/).map(each => each.trim()).filter(Boolean);
    for (const name of ['methods', 'orders', 'trees']) element.querySelectorAll(`input[name="${name}"]`).forEach(input => { input.checked = list(name).includes(input.value); });
    const offered = words.trees.map(([value]) => value);
    field('more').value = list('trees').filter(each => !offered.includes(each)).join(', ');
    TEXTS.forEach(name => { field(name).value = full[name]; });
  };
  const used = () => new Set(checked('methods').flatMap(method => words.uses[method]));
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  let initial = null;
  const changes = spec => Object.fromEntries(Object.entries(spec).filter(([name, value]) => String(value) !== String(initial[name])));
  const refuse = error => {
    part('error').hidden = !error;
    part('error').textContent = error ? error.text : '';
    element.querySelectorAll('[aria-invalid]').forEach(each => each.removeAttribute('aria-invalid'));
    const at = error && (field(error.field === 'bound' ? (used().has('lam') ? 'lam' : 'delta') : error.field === 'trees' || error.field === 'tree' ? 'more' : error.field));
    if (at) at.setAttribute('aria-invalid', 'true');
  };
  /* The plan of what is in the form; asked for when it rests. */
  let rest = 0, asked = 0;
  const plan = async (link = false) => {
    const own = used(), turn = ++asked, spec = read();
    element.querySelectorAll('[data-used]').forEach(each => { each.hidden = !own.has(each.dataset.used); });
    const changed = changes(spec);
    if (Object.keys(changed).length) Lantern.linked.sweep = JSON.stringify(changed); else delete Lantern.linked.sweep;
    let answer;
    try { answer = await server.plan(spec); } catch { return true; }   // the server is gone; what is shown stays
    if (turn !== asked) return true;
    planned = answer.error ? null : answer;
    refuse(answer.error);
    if (answer.error && link) return false;
    if (planned) {
      const fast = planned.seconds ? `: about ${minutes(planned.seconds)} on this machine` : '';
      part('plan').textContent = `${counted(planned.settings, 'setting')} on ${counted(planned.pictures, 'picture')}, ${counted(planned.runs, 'run')} with plain AR’s${fast}.`;
      if (planned.kept && !busy && planned.kept.key !== shown.key) show({ ...planned.kept, serial: latest });
    } else part('plan').textContent = '';
    buttons();
    return true;
  };
  const turned = () => { clearTimeout(rest); rest = setTimeout(plan, 250); };
  part('form').addEventListener('input', turned);
  part('form').addEventListener('submit', event => { event.preventDefault(); if (!part('run').disabled) run(); });
  const mine = () => planned && planned.key === shown.key;
  const buttons = () => {
    const kept = mine() ? shown : planned && planned.kept;
    part('run').textContent = busy ? 'Running' : !kept || !kept.done ? 'Run sweep' : kept.complete ? 'Measure again' : 'Resume';
    part('run').disabled = busy || !planned;
    part('stop').disabled = !busy;
    element.querySelectorAll('[data-action]').forEach(each => { each.disabled = !shown.rows.length && /csv|json|png/.test(each.dataset.action); });
    element.querySelector('[data-action="json"]').hidden = !!shown.recorded;
  };
  const run = () => {
    const again = part('run').textContent === 'Measure again';
    busy = true;
    images = { of: '', list: [] };
    refuse(null);
    buttons();
    props.value = { grid: read(), again };
    trigger('run');
  };
  part('stop').addEventListener('click', () => { part('stop').disabled = true; trigger('stop'); });

  /* ---- what is measured ---- */
  const row = number => shown.rows.find(each => each.setting === number);
  const name = number => { const at = shown.settings[number]; return number ? `${at.name}, ${at.words}, tree ${at.tree}` : 'Plain AR'; };
  const arRow = () => row(0) || { setting: 0, method: 'ar', speedup: 1, speedup_low: 1, speedup_high: 1, accepted_length: 1, similarity_change: 0, top1_change: 0 };
  const points = () => (row(0) || !shown.rows.length ? shown.rows : [arRow(), ...shown.rows]);
  const show = value => {
    const before = shown;
    shown = { rows: [], settings: [], facts: [], ...value };
    latest = Math.max(latest, value.serial || 0);
    busy = shown.state === 'running';
    if (before.key !== shown.key) { images = { of: '', list: [] }; place = 0; picked = 0; }
    if (shown.error) refuse(shown.error);
    const done = shown.rows.filter(each => each.setting && (shown.recorded || each.images === shown.pictures)).length, all = Math.max(0, shown.settings.length - 1);
    Lantern.say(part('head'), { empty: 'Nothing measured yet', recorded: `${counted(all, 'setting')}, recorded`, stopped: `Stopped at ${done} of ${all} settings`, failed: `Failed at ${done} of ${all} settings` }[shown.state] || (shown.state === 'done' ? `${counted(all, 'setting')} measured` : `${done} of ${all} settings measured`));
    const left = known(shown.left) && busy ? `${minutes(shown.left)} left` : '';
    Lantern.say(part('facts'), shown.state === 'empty' ? 'Choose a grid and run it; it can be stopped and goes on later.' : [(shown.facts || []).filter(Boolean).join(', '), left, shown.note || (busy && shown.now ? `now: ${shown.now}` : '')].filter(Boolean).join(' · '));
    const share = shown.total ? shown.done / shown.total : shown.recorded ? 1 : 0;
    part('bar').firstElementChild.style.width = `${share * 100}%`;
    part('bar').classList.toggle('off', !shown.total);
    part('bar').setAttribute('aria-valuemax', shown.total || 1);
    part('bar').setAttribute('aria-valuenow', shown.done || 0);
    part('bar').setAttribute('aria-valuetext', shown.total ? `${shown.done} of ${shown.total} runs${left ? `, ${left}` : ''}` : 'not running');
    element.dataset.state = shown.state;
    if (!same(before.rows, shown.rows) || before.key !== shown.key || before.state !== shown.state) draw();
    buttons();
  };
  const draw = () => {
    const there = Object.entries(QUALITIES).filter(([, each]) => shown.rows.some(one => one.setting && known(one[each.key]))).map(([label]) => label);
    if (!there.includes(quality)) quality = there[0] || '';
    if (part('quality').dataset.of !== there.join()) {
      part('quality').dataset.of = there.join();
      if (there.length > 1) Lantern.segments(part('quality'), there, quality, 'Quality', label => { quality = label; draw(); }); else { part('quality').className = ''; part('quality').replaceChildren(); }
    }
    if (!row(picked) && shown.rows.length) {                     // the fastest of the front, until somebody picks
      const front = quality ? Lantern.front(points(), QUALITIES[quality]) : [], fast = front.filter(each => each.setting).sort((a, b) => b.speedup - a.speedup)[0];
      picked = Lantern.linked.point !== undefined && row(Number(Lantern.linked.point)) ? Number(Lantern.linked.point) : (fast || shown.rows.at(-1)).setting;
    }
    scatter();
    table();
    card();
  };
  const pick = number => {
    if (!row(number)) return;
    picked = number;
    Lantern.linked.point = number;
    scatter();
    table();
    card();
  };

  /* ---- the scatter ---- */
  const box = part('scatter');
  const ticks = (low, high, most) => {
    const step = [1, 2, 5].flatMap(each => [-3, -2, -1, 0, 1].map(power => each * 10 ** power)).sort((a, b) => a - b).find(each => (high - low) / each <= most) || 100;
    return Array.from({ length: Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1 }, (_, i) => (Math.ceil(low / step - 1e-9) + i) * step);
  };
  const scatter = () => {
    const width = Math.max(300, box.clientWidth), narrow = width < 560, height = narrow ? 320 : 420, pad = { left: 50, right: 14, top: 16, bottom: 40 };
    const spec = QUALITIES[quality], all = spec ? points().filter(each => known(each[spec.key]) && known(each.speedup)) : [];
    part('legend').innerHTML = [...new Set(points().map(each => each.method))].map(method => `<span>${Lantern.mark(method)}${Lantern.make('i', '', words.methods[method] || 'Plain AR').textContent}</span>`).join('') + (all.length ? '<span>filled: on the Pareto front</span>' : '');
    if (!all.length) { box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="presentation"><rect x="${pad.left}" y="${pad.top}" width="${width - pad.left - pad.right}" height="${height - pad.top - pad.bottom}" fill="var(--sunken)"/></svg>`; part('said').textContent = ''; return; }
    const xs = all.flatMap(each => [each.speedup, each.speedup_low, each.speedup_high].filter(known)), ys = all.map(each => each[spec.key]);
    const stretch = (values, least) => { const low = Math.min(...values), high = Math.max(...values), more = Math.max(least, (high - low) * 0.09); return [low - more, high + more]; };
    const [x0, x1] = stretch([1, ...xs], 0.06), [y0, y1] = stretch(ys, spec.change ? 0.01 : 0.05);
    const X = value => pad.left + (value - x0) / (x1 - x0) * (width - pad.left - pad.right), up = value => (value - y0) / (y1 - y0);
    const Y = value => pad.top + (spec.sign > 0 ? 1 - up(value) : up(value)) * (height - pad.top - pad.bottom);
    const floor = height - pad.bottom, label = value => (spec.change && Math.abs(value) < 1e-9 ? 'AR' : `${value < 0 ? '−' : ''}${Number(Math.abs(value).toFixed(4))}`);
    const lines = [...ticks(x0, x1, narrow ? 5 : 8).map(at => `<path class="grid-l" d="M${X(at)} ${pad.top}V${floor}"/><text class="axis" x="${X(at)}" y="${floor + 15}" text-anchor="middle">${Number(at.toFixed(2))}×</text>`),
      ...ticks(y0, y1, 7).map(at => `<path class="grid-l" d="M${pad.left} ${Y(at)}H${width - pad.right}"/><text class="axis" x="${pad.left - 7}" y="${Y(at) + 4}" text-anchor="end">${label(at)}</text>`)];
    const front = Lantern.front(all, spec).sort((a, b) => a.speedup - b.speedup);
    const stair = front.map((each, i) => (i ? `V${Y(each[spec.key]).toFixed(1)}H${X(each.speedup).toFixed(1)}` : `M${X(each.speedup).toFixed(1)} ${Y(each[spec.key]).toFixed(1)}`)).join('');
    const taken = [], notes = [];
    [...front].sort((a, b) => (b.setting === picked) - (a.setting === picked)).filter(each => each.setting).forEach(each => {
      const text = shown.settings[each.setting].words, wide = text.length * 5.8, x = Lantern.clamp(X(each.speedup), pad.left + wide / 2, width - pad.right - wide / 2), y = Y(each[spec.key]) - 11;
      if (text === 'strict' || taken.some(other => Math.abs(other.x - x) < (other.wide + wide) / 2 + 4 && Math.abs(other.y - y) < 13)) return;
      taken.push({ x, y, wide });
      notes.push(`<text class="axis" x="${x.toFixed(1)}" y="${Math.max(10, y).toFixed(1)}" text-anchor="middle" style="fill:var(--ink-2)${each.setting === picked ? ';font-weight:600' : ''}">${text}</text>`);
    });
    const order = [...all].sort((a, b) => (a.setting === picked) - (b.setting === picked) || front.includes(a) - front.includes(b));
    const marks = order.map(each => {
      const x = X(each.speedup), y = Y(each[spec.key]), own = each.setting === picked, colour = `var(${Lantern.methods[each.method].fill})`, full = front.includes(each);
      const spread = known(each.speedup_low) && each.setting ? `<path d="M${X(each.speedup_low).toFixed(1)} ${y.toFixed(1)}H${X(each.speedup_high).toFixed(1)}" stroke="${colour}" stroke-width="1" opacity=".7"/>` : '';
      const span = own && spec.low && known(each[spec.low]) ? `<path d="M${x.toFixed(1)} ${Lantern.clamp(Y(each[spec.low]), pad.top, floor).toFixed(1)}V${Lantern.clamp(Y(each[spec.high]), pad.top, floor).toFixed(1)}" stroke="${colour}" stroke-width="1"/>` : '';
      return `<g id="sweep-point-${each.setting}" role="option" aria-selected="${own}" data-setting="${each.setting}" aria-label="${name(each.setting)}: ${each.speedup.toFixed(2)} times, ${spec.words} ${each[spec.key].toFixed(spec.digits)}${full ? ', on the Pareto front' : ''}">${spread}${span}`
        + `<circle class="hit" cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="13"/>${own ? `<circle class="aid" cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="11" fill="var(--tint)" stroke="var(--relax)" stroke-width="2"/>` : ''}`
        + `<g transform="translate(${(x - 6).toFixed(1)},${(y - 6).toFixed(1)})">${Lantern.point(each.method, full)}</g></g>`;
    });
    box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="presentation">${lines.join('')}<path d="${stair}" fill="none" stroke="var(--ink-3)" stroke-width="1.2"/>${notes.join('')}${marks.join('')}`
      + `<text class="axis" x="${pad.left + 8}" y="${floor - 10}" style="fill:var(--ink-2)">↑ ${spec.words}</text><text class="axis" x="${width - pad.right}" y="${height - 6}" text-anchor="end" style="fill:var(--ink-2)">measured speedup over plain AR →</text></svg>`;
    box.setAttribute('aria-activedescendant', `sweep-point-${picked}`);
    part('said').textContent = `Median of ${shown.recorded ? 'measured' : counted(Math.max(...all.map(each => each.images || 0)), shown.rows.some(each => each.images > 1) ? 'pair' : 'pair')}${shown.recorded ? ' pairs' : ''} a setting, the line its quartiles.`;
  };
  box.addEventListener('click', event => { const at = event.target.closest('[data-setting]'); if (at) pick(Number(at.dataset.setting)); });
  box.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !quality) return;
    const order = points().filter(each => row(each.setting) && known(each[QUALITIES[quality].key])).sort((a, b) => a.speedup - b.speedup), at = order.findIndex(each => each.setting === picked);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowUp: at + 1, ArrowDown: at - 1, Home: 0, End: order.length - 1 }[event.key];
    if (to === undefined || !order.length) return;
    event.preventDefault();
    pick(order[Lantern.clamp(to, 0, order.length - 1)].setting);
  });

  /* ---- the card of a setting ---- */
  const card = async () => {
    const at = row(picked), setting = shown.settings[picked];
    part('card').classList.toggle('none', !at);
    if (!at) return;
    part('name').innerHTML = Lantern.mark(setting.method);
    part('name').append(setting.name);
    Lantern.say(part('setting'), picked ? `${setting.words === 'strict' ? '' : `${setting.words} · `}tree ${setting.tree}, ${counted(setting.nodes, 'token')}` : 'one token a pass');
    const range = (low, high, digits) => (known(low) ? `${signed(low, digits)} to ${signed(high, digits)}` : '');
    const facts = [['Speedup', `${at.speedup.toFixed(2)}×`], picked && ['quartiles', `${at.speedup_low.toFixed(2)}–${at.speedup_high.toFixed(2)}`], ['Accepted length', known(at.accepted_length) && at.accepted_length.toFixed(2)], ['Prompt similarity', known(at.similarity) && at.similarity.toFixed(3)],
      picked && ['change from AR', known(at.similarity_change) && signed(at.similarity_change, 3)], picked && ['95 % interval', range(at.similarity_low, at.similarity_high, 3)], ['Found among 100', known(at.top1) && Lantern.percent(at.top1)], picked && shown.recorded && ['change, in points', known(at.top1_change) && signed(100 * at.top1_change, 1)], ['Fréchet distance', known(at.frechet_real) && at.frechet_real.toFixed(2)], ['n', known(at.images) && `${at.images}${shown.recorded && known(at.pairs) ? `, ${at.pairs} timed` : ''}`]];
    part('numbers').replaceChildren(...facts.filter(each => each && each[1]).map(([label, value]) => { const line = document.createElement('tr'); line.append(Lantern.make('td', '', label), Lantern.make('td', 'num', value)); return line; }));
    const race = { ...Lantern.knobs, ...setting.page };
    if (images.list[place]) Object.assign(race, { prompt: images.list[place].prompt, seed: images.list[place].seed }); else if (shown.prompts && shown.prompts[0]) race.prompt = shown.prompts[0]; else delete race.style, delete race.prompt, Object.assign(race, { prompt: Lantern.knobs.prompt, style: Lantern.knobs.style });
    if (!picked) Object.assign(race, { method: Lantern.knobs.method, tree: Lantern.knobs.tree, branching: Lantern.knobs.branching });
    const hold = Lantern.linked;
    Lantern.linked = {};
    part('race').href = Lantern.link(race);
    Lantern.linked = hold;
    part('race').onclick = event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      props.value = { page: race };
      acted = 0;                                                 // the knobs turn by themselves: nothing is decoded yet
      trigger('race');
    };
    const wanted = `${shown.key} ${picked} ${at.images}`;
    if (images.of !== wanted && !shown.recorded) {
      images.of = wanted;
      let list = [];
      try { list = await server.pictures({ key: shown.key, setting: picked }); } catch { /* gone */ }
      if (images.of !== wanted) return;
      images.list = list;
      return card();
    }
    gallery();
  };
  const gallery = () => {
    const list = shown.recorded ? [] : images.list, at = list[Math.min(place, list.length - 1)], ar = side === 'Plain AR' && picked;
    part('card').classList.toggle('bare', !!shown.recorded);
    part('picture').hidden = !at;
    if (at) Object.assign(part('picture'), { src: ar ? at.ar : at.image, alt: `${at.prompt}, seed ${at.seed}, ${ar ? 'plain AR' : name(picked)}` });
    part('thumbs').replaceChildren(...list.map((each, i) => {
      const button = Lantern.make('button', 'thumb');
      button.type = 'button';
      button.setAttribute('aria-pressed', each === at);
      button.setAttribute('aria-label', `${each.prompt}, seed ${each.seed}`);
      button.title = each.prompt;
      button.append(Object.assign(new Image(), { src: ar ? each.ar : each.image, alt: '' }));
      button.addEventListener('click', () => { place = i; card(); });
      return button;
    }));
    part('thumbs').hidden = list.length < 2;
    if (picked && list.length) {
      const own = shown.settings[picked].name;
      Lantern.segments(part('which'), [own, 'Plain AR'], ar ? 'Plain AR' : own, 'Whose picture', label => { side = label; gallery(); });
    } else { part('which').className = ''; part('which').replaceChildren(); }
  };

  /* ---- the table ---- */
  const COLUMNS = [['Method'], ['Setting'], ['Tree'], ['Speedup', 'num'], ['Quartiles', 'num opt'], ['Accepted', 'num opt'], ['Similarity', 'num'], ['change', 'num opt'], ['Found', 'num opt'], ['Fréchet', 'num opt', 'frechet_real'], ['n', 'num opt'], ['State', 'opt state']];
  const table = () => {
    const heads = COLUMNS.filter(each => !each[2] || shown.rows.some(one => known(one[each[2]]))), line = document.createElement('tr'), spec = QUALITIES[quality];
    const front = spec ? Lantern.front(points(), spec) : [], frechet = heads.length === COLUMNS.length;
    line.append(...heads.map(([label, kind = '']) => Lantern.make('th', kind, label)));
    part('heads').replaceChildren(line);
    Lantern.say(part('lead'), shown.rows.length ? `Speedup: median of per-pair ratios with quartiles. Quality: against plain AR on the same prompts and seeds${shown.prompts && shown.prompts.length ? `: ${shown.prompts.join('; ')}` : ''}.` : 'Every setting of the grid appears here as it is measured.');
    const body = shown.settings.map((setting, number) => {
      const at = row(number), tr = Lantern.make('tr', at ? '' : 'waits'), first = document.createElement('td');
      if (!at && shown.recorded) return null;
      if (!at && !number && shown.rows.length) return null;
      tr.setAttribute('aria-selected', number === picked && !!at);
      const pickable = Lantern.make(at ? 'button' : 'span', at ? 'link' : '', setting.name);
      first.innerHTML = Lantern.mark(setting.method);
      first.append(pickable);
      const n = (value, digits, unit = '') => (at && known(value) ? `${value.toFixed(digits)}${unit}` : '–'), a = at || {};
      const state = !at ? (busy ? 'waiting' : 'not measured') : front.includes(at) ? 'on the front' : shown.recorded || at.images === shown.pictures || !number ? 'done' : `${at.images} of ${shown.pictures}`;
      const cells = [n(a.speedup, 2, '×'), number && at ? `${n(a.speedup_low, 2)}–${n(a.speedup_high, 2)}` : '–', n(a.accepted_length, 2), n(a.similarity, 3), at && number && known(a.similarity_change) ? signed(a.similarity_change, 3) : '–', known(a.top1) ? Lantern.percent(a.top1) : '–', ...(frechet ? [n(a.frechet_real, 2)] : []), known(a.images) ? String(a.images) : '–', state];
      tr.append(first, Lantern.make('td', '', setting.words), Lantern.make('td', '', number ? setting.tree : 'root only'), ...cells.map((text, i) => Lantern.make('td', heads[i + 3][1], text)));
      if (at) tr.addEventListener('click', () => pick(number));
      return tr;
    });
    part('rows').replaceChildren(...body.filter(Boolean));
  };

  /* ---- files and links ---- */
  const copy = async (button, text, fall) => {
    const before = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = 'Copied'; } catch { fall(text); button.textContent = 'See above'; }
    setTimeout(() => { button.textContent = before; }, 2000);
  };
  const quoted = text => (/^[\w.,/+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
  const command = () => {
    const spec = read(), own = used(), options = { methods: spec.methods, trees: spec.trees };
    for (const each of ['k', 'lam', 'delta', 'gamma', 'orders']) if (own.has(each)) options[each] = spec[each];
    for (const each of ['repeats', ...Object.keys(words.labels)]) options[each.replace('_', '-')] = spec[each];
    return ['python -m lanternpp sweep', ...Object.entries(options).map(([key, value]) => `--${key} ${quoted(String(value).replaceAll(/,\s+/g, ','))}`), ...spec.prompts.split('\n').map(each => each.trim()).filter(Boolean).map(each => `--prompt ${quoted(each)}`)].join(' ');
  };
  const file = kind => async () => {
    const answer = await server.file({ key: shown.key, kind });
    if (answer.error) refuse({ text: answer.error });
    else if (answer.url) Object.assign(document.createElement('a'), { href: answer.url, download: `sweep.${kind}` }).click();
    else Lantern.download(`sweep.${kind}`, answer.text, kind === 'csv' ? 'text/csv' : 'application/json');
  };
  const actions = {
    csv: file('csv'), json: file('json'), png: file('png'),
    command: button => copy(button, command(), text => { refuse({ text }); }),
    link: button => { Lantern.linked.tab = 'Sweep'; return copy(button, Lantern.link(Lantern.knobs), link => history.replaceState(null, '', link)); },
  };
  element.querySelectorAll('[data-action]').forEach(each => each.addEventListener('click', () => actions[each.dataset.action](each)));
  element.querySelectorAll(':is([data-action=csv], [data-action=json], [data-action=png])').forEach(each => each.insertAdjacentHTML('afterbegin', Lantern.icons.down));

  watch('value', () => {
    const value = props.value || {};
    if (!('state' in value) || value.serial < latest) return;    // an older call's last word
    latest = value.serial;
    if (value.state === 'refused') { busy = false; refuse(value.error); buttons(); return; }
    show(value);
    if (!busy) plan();
  });
  Lantern.on('theme', draw);
  let width = 0;
  new ResizeObserver(() => { if (box.clientWidth && box.clientWidth !== width) { width = box.clientWidth; scatter(); } }).observe(box);

  /* ---- as the page opens: the link's grid, or the defaults ---- */
  write({});
  initial = read();
  const query = new URLSearchParams(location.search), fromLink = async () => {
    let spec;
    try { spec = JSON.parse(query.get('sweep')); } catch { spec = undefined; }
    const names = Object.keys(words.defaults), fine = spec && typeof spec === 'object' && !Array.isArray(spec) && Object.entries(spec).every(([key, value]) => names.includes(key) && ['string', 'number'].includes(typeof value));
    if (fine) { write(spec); if (await plan(true)) return; }
    const said = fine && !part('error').hidden ? part('error').textContent : 'The link’s sweep cannot be read.';
    write({});
    await plan();
    refuse({ text: `${said} The default grid is shown.` });
  };
  if (/^\d{1,4}$/.test(query.get('point') || '')) Lantern.linked.point = Number(query.get('point'));
  show({ serial: 0, ...props.value });
  if (query.has('sweep')) fromLink(); else plan();
};
