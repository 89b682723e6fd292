/* The Sweep: a grid of settings, its progress, speed against quality, pictures of a setting, the table, files. */

Lantern.sweepPage = (names, value) => {                          // the Race's knobs at a setting; what it does not read stays
  const page = (value && value.page) || {};
  return names.map(name => (name in page ? page[name] : Lantern.knobs[name]));
};

Lantern.sweep = (element, props, watch, trigger, server, words) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), field = name => element.querySelector(`#sweep-${name}`);
  let shown = { state: '', rows: [], settings: [] }, picked = 0, chosen = false, latest = -1, quality = '', planned = null, images = { of: '', list: [] }, place = 0, side = '', busy = false, initial = null;

  const linked = {};                                             // the grid that is not the default one, the picked point
  Lantern.placeOf.sweep = () => linked;
  /* ---- the form ---- */
  const check = (box, name, value, label) => {
    const row = Lantern.make('label', ''), input = Object.assign(document.createElement('input'), { type: 'checkbox', name, value });
    row.append(input, label);
    part(box).append(row);
  };
  Object.entries(words.methods).forEach(([value, label]) => check('methods', 'methods', value, label));
  words.trees.forEach(([value, label]) => { check('trees', 'trees', value, label.split(':')[0]); part('trees').lastChild.title = label; });
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
    if (Object.keys(changed).length) linked.sweep = JSON.stringify(changed); else delete linked.sweep;
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
  const buttons = () => {
    const kept = planned && planned.key === shown.key ? shown : planned && planned.kept;
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
    if (before.key !== shown.key) { images = { of: '', list: [] }; place = 0; picked = 0; chosen = false; }
    if (shown.error) refuse(shown.error);
    const done = shown.rows.filter(each => each.setting && (shown.recorded || each.images === shown.pictures)).length, all = Math.max(0, shown.settings.length - 1);
    Lantern.say(part('head'), { empty: 'Nothing measured yet', recorded: `${counted(all, 'setting')}, recorded`, stopped: `Stopped at ${done} of ${all} settings`, failed: `Failed at ${done} of ${all} settings` }[shown.state] || (shown.state === 'done' ? `${counted(all, 'setting')} measured` : `${done} of ${all} settings measured`));
    const left = known(shown.left) && busy ? `${minutes(shown.left)} left` : '';
    Lantern.say(part('facts'), shown.state === 'empty' ? 'Choose a grid and run it; it can be stopped and goes on later.' : [(shown.facts || []).filter(Boolean).join(', '), left, shown.note || (busy && shown.now ? `now: ${name(shown.settings.findIndex(each => each.label === shown.now))}` : '')].filter(Boolean).join(' · '));
    const share = shown.total ? shown.done / shown.total : shown.recorded ? 1 : 0;
    part('bar').firstElementChild.style.width = `${share * 100}%`;
    part('bar').classList.toggle('off', !shown.total);
    part('bar').setAttribute('aria-valuemax', shown.total || 1);
    part('bar').setAttribute('aria-valuenow', shown.done || 0);
    part('bar').setAttribute('aria-valuetext', shown.total ? `${shown.done} of ${shown.total} runs${left ? `, ${left}` : ''}` : 'not running');
    element.dataset.state = shown.state;
    if (JSON.stringify(before.rows) !== JSON.stringify(shown.rows) || before.key !== shown.key || before.state !== shown.state) draw();
    buttons();
  };
  const draw = () => {
    const there = Object.entries(QUALITIES).filter(([, each]) => shown.rows.some(one => one.setting && known(one[each.key]))).map(([label]) => label);
    if (!there.includes(quality)) quality = there[0] || '';
    part('quality').hidden = there.length < 2;
    if (part('quality').dataset.of !== there.join()) Lantern.segments(part('quality'), there, quality, 'Quality', label => { quality = label; draw(); });
    part('quality').dataset.of = there.join();
    if (!chosen || !row(picked)) {                               // the fastest of the front, until somebody picks
      const wanted = Number(linked.point), best = quality ? Lantern.front(points(), QUALITIES[quality]).filter(each => each.setting) : [];
      const fast = [...(best.length ? best : shown.rows)].sort((x, y) => y.speedup - x.speedup)[0];
      picked = row(wanted) ? wanted : fast ? fast.setting : 0;
    }
    scatter();
    table();
    card();
  };
  const pick = number => {
    if (!row(number)) return;
    [picked, chosen] = [number, true];
    linked.point = number;
    scatter();
    table();
    card();
  };

  const several = at => (shown.recorded && known(at.pairs) ? at.pairs : at.images) > 1;   // else there are no quartiles

  /* ---- the scatter ---- */
  const box = part('scatter');
  const scatter = () => {
    const rows = points(), methods = [...new Set(rows.map(each => each.method))], n = Math.max(0, ...rows.map(each => each.images || 0));
    Lantern.scatter(box, rows, quality, picked, name, number => shown.settings[number].words);
    part('legend').innerHTML = methods.map(method => `<span>${Lantern.mark(method)}${words.methods[method] || 'Plain AR'}</span>`).join('') + (rows.length ? '<span>filled: on the Pareto front</span>' : '');
    part('said').textContent = !rows.length ? '' : shown.recorded ? 'Median of the timed pairs, the line their quartiles.' : `${n > 1 ? `Median of ${counted(n, 'pair')} with plain AR, the line their quartiles; each painted` : 'One pair with plain AR, which tells nothing of the spread; both painted'} the same prompt with the same seed.`;
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
    const range = (low, high, digits) => (known(low) ? `${signed(low, digits)} … ${signed(high, digits)}` : '');
    const facts = [['Speedup', `${at.speedup.toFixed(2)}×`], picked && several(at) && ['quartiles', `${at.speedup_low.toFixed(2)}–${at.speedup_high.toFixed(2)}`], ['Accepted length', known(at.accepted_length) && at.accepted_length.toFixed(2)], ['Similarity', known(at.similarity) && at.similarity.toFixed(3).replace('-', '−')],
      picked && ['change from AR', known(at.similarity_change) && signed(at.similarity_change, 3)], picked && ['95 % interval', range(at.similarity_low, at.similarity_high, 3)], ['Found among 100', known(at.top1) && Lantern.percent(at.top1)], picked && shown.recorded && ['change, in points', known(at.top1_change) && signed(100 * at.top1_change, 1)], ['Fréchet distance', known(at.frechet_real) && at.frechet_real.toFixed(2)], ['n', known(at.images) && `${at.images}${shown.recorded && known(at.pairs) ? `, ${at.pairs} timed` : ''}`]];
    part('numbers').replaceChildren(...facts.filter(each => each && each[1]).map(([label, value]) => { const line = document.createElement('tr'); line.append(Lantern.make('td', '', label), Lantern.make('td', 'num', value)); return line; }));
    const race = { ...Lantern.knobs, ...setting.page };
    const painted = images.list[place], { prompt, style } = Lantern.knobs;
    Object.assign(race, painted ? { prompt: painted.prompt, seed: painted.seed } : shown.prompts && shown.prompts[0] ? { prompt: shown.prompts[0] } : { prompt, style });
    if (!picked) Object.assign(race, { method: Lantern.knobs.method, tree: Lantern.knobs.tree, branching: Lantern.knobs.branching });
    part('race').href = Lantern.link(race, {});
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
    const own = shown.settings[picked].name;
    part('which').hidden = !picked || !list.length;
    Lantern.segments(part('which'), [own, 'Plain AR'], ar ? 'Plain AR' : own, 'Whose picture', label => { side = label; gallery(); });
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
      if (!at && (shown.recorded || (!number && shown.rows.length))) return null;
      tr.setAttribute('aria-selected', number === picked && !!at);
      const pickable = Lantern.make(at ? 'button' : 'span', at ? 'link' : '', setting.name);
      first.innerHTML = Lantern.mark(setting.method);
      first.append(pickable);
      const n = (value, digits, unit = '') => (at && known(value) ? `${value.toFixed(digits).replace('-', '−')}${unit}` : '–'), a = at || {};
      const state = !at ? (busy ? 'waiting' : 'not measured') : front.includes(at) ? 'on the front' : shown.recorded || at.images === shown.pictures || !number ? 'done' : `${at.images} of ${shown.pictures}`;
      const cells = [n(a.speedup, 2, '×'), number && at && several(a) ? `${n(a.speedup_low, 2)}–${n(a.speedup_high, 2)}` : '–', n(a.accepted_length, 2), n(a.similarity, 3), at && number && known(a.similarity_change) ? signed(a.similarity_change, 3) : '–', known(a.top1) ? Lantern.percent(a.top1) : '–', ...(frechet ? [n(a.frechet_real, 2)] : []), known(a.images) ? String(a.images) : '–', state];
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
    link: button => copy(button, Lantern.link(Lantern.knobs), link => history.replaceState(null, '', link)),
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
  if (/^\d{1,4}$/.test(query.get('point') || '')) linked.point = Number(query.get('point'));
  show({ serial: 0, ...props.value });
  if (query.has('sweep')) fromLink(); else plan();
};
