/* What the views of a finished run share: which run is on view, what the server tells of it, marks of verdicts, files. */

/* ---- verdicts: a colour and a shape each ---- */
Lantern.verdicts = {
  a: ['Accepted', '--strict'], x: ['Accepted by pooling', '--relax'], r: ['Rejected', '--reject'],
  n: ['Not reached', '--ink-3'], z: ['Past the end', '--ink-3'], '-': ['Not drawn', '--ink-3'],
  recovered: ['Recovered token', '--ink'], bonus: ['Bonus token', '--ink'], sampled: ['Sampled token', '--ink'],
};
Lantern.verdictMark = (verdict, x, y, r) => {
  const fill = `var(${Lantern.verdicts[verdict][1]})`, on = 'var(--bg)';
  const tick = s => `<path d="M${x - s * 0.45} ${y}l${s * 0.32} ${s * 0.34}l${s * 0.56} ${-s * 0.66}" fill="none" stroke="${on}" stroke-width="${r * 0.28}" stroke-linecap="round" stroke-linejoin="round"/>`;
  if (verdict === 'a') return `<circle cx="${x}" cy="${y}" r="${r}" fill="${fill}"/>${tick(r * 0.9)}`;
  if (verdict === 'x') return `<path d="M${x} ${y - r * 1.22}l${r * 1.22} ${r * 1.22}l${-r * 1.22} ${r * 1.22}l${-r * 1.22} ${-r * 1.22}Z" fill="${fill}"/>${tick(r * 0.75)}`;
  if (verdict === 'r') {
    const d = r * 0.42;
    return `<rect x="${x - r * 0.88}" y="${y - r * 0.88}" width="${r * 1.76}" height="${r * 1.76}" rx="${r * 0.2}" fill="${fill}"/>`
      + `<path d="M${x - d} ${y - d}l${2 * d} ${2 * d}m0 ${-2 * d}l${-2 * d} ${2 * d}" stroke="${on}" stroke-width="${r * 0.28}" stroke-linecap="round"/>`;
  }
  if (verdict === 'bonus') {
    const points = Array.from({ length: 10 }, (_, i) => {
      const radius = r * (i % 2 ? 0.52 : 1.2), angle = Math.PI * (i / 5 - 0.5);
      return `${(x + radius * Math.cos(angle)).toFixed(2)} ${(y + radius * Math.sin(angle)).toFixed(2)}`;
    });
    return `<path d="M${points.join('L')}Z" fill="${fill}"/>`;
  }
  if (verdict === 'recovered' || verdict === 'sampled') {
    return `<circle cx="${x}" cy="${y}" r="${r * 0.85}" fill="var(--bg)" stroke="${fill}" stroke-width="${r * 0.32}"/><circle cx="${x}" cy="${y}" r="${r * 0.3}" fill="${fill}"/>`;
  }
  return `<circle cx="${x}" cy="${y}" r="${r * 0.8}" fill="var(--bg)" stroke="${fill}" stroke-width="1.2" stroke-dasharray="2 2"/>`;
};
Lantern.verdictIcon = verdict => `<svg viewBox="-9 -9 18 18" aria-hidden="true">${Lantern.verdictMark(verdict, 0, 0, 7)}</svg>`;
Lantern.cividis = t => {
  const stops = ['#00224e', '#123570', '#3b496c', '#575d6d', '#707173', '#8a8678', '#a59c74', '#c3b369', '#fee838'];
  const at = Lantern.clamp(t, 0, 1) * 8, i = Math.min(7, Math.floor(at));
  const channel = (hex, c) => parseInt(hex.slice(1 + 2 * c, 3 + 2 * c), 16);
  return [0, 1, 2].map(c => Math.round(channel(stops[i], c) + (channel(stops[i + 1], c) - channel(stops[i], c)) * (at - i)));
};
Lantern.svg = (width, height, body, label) => `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="${label}">${body}</svg>`;
/* A probability as a table shows it. */
Lantern.number = (x, digits = 3) => (x === null || x === undefined ? '–' : x && x < 10 ** -digits / 2 ? x.toExponential(1) : x.toFixed(digits));

/* ---- files made in the browser ---- */
Lantern.file = (name, content, type) => {
  const url = URL.createObjectURL(new Blob([content], { type }));
  Object.assign(document.createElement('a'), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};
/* An SVG that stands alone: the page's colours are written into it. */
Lantern.svgText = svg => {
  const copy = svg.cloneNode(true);
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  return copy.outerHTML.replace(/var\((--[\w-]+)\)/g, (_, name) => Lantern.css(name));
};
Lantern.csv = rows => rows.map(row => row.map(cell => (cell === null || cell === undefined ? '' : cell)).join(',')).join('\n') + '\n';
Lantern.copy = async (text, word) => {
  try { await navigator.clipboard.writeText(text); word.textContent = 'Copied.'; } catch { word.textContent = text; }
};

/* ---- the run on view ----
   `show(run, place)` gets what app/inspector.py's `whole` tells, with its picture and patches loaded; again once the run was
   looked into. `note` says what is being waited for. */
Lantern.atlasOf = async server => (Lantern.atlasImage ||= await server.atlas('').then(source => source && Lantern.image(source)).catch(() => null));
/* Runs with their pictures loaded, for all views: whichever asks first pays. */
const keptRuns = Lantern.keptRuns = new Map(), coming = new Map();
Lantern.fetchRun = (server, id) => {
  if (keptRuns.has(id)) return Promise.resolve(keptRuns.get(id));
  const load = async () => {
    const atlas = Lantern.atlasOf(server), run = await server.look(id);
    if (!run) return null;
    [run.picture, run.sheet, run.atlas] = await Promise.all([Lantern.image(run.image), run.patches && Lantern.image(run.patches), atlas]);
    keptRuns.set(id, run);
    while (keptRuns.size > 6) keptRuns.delete(keptRuns.keys().next().value);
    return run;
  };
  if (!coming.has(id)) coming.set(id, load().finally(() => coming.delete(id)));
  return coming.get(id);
};
/* A run that a view may open with is fetched when the browser has nothing else to do. */
Lantern.fetchAhead = (server, id) => {
  const later = window.requestIdleCallback || (run => setTimeout(run, 500));
  later(() => Lantern.fetchRun(server, id).catch(() => null), { timeout: 3000 });
};
Lantern.runOnView = (element, props, watch, ask, server, tab, show) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), select = part('run'), note = part('note');
  const runs = [...props.value.runs], asked = new Set();
  let current = '', serial = 0, shown = null;
  const say = (text, bad) => { note.hidden = !text; note.textContent = text; note.classList.toggle('err', !!bad); };
  const list = () => {
    select.replaceChildren(...(runs.length ? runs : [{ title: 'No run yet: press Generate on the Race tab', id: '' }]).map(run => {
      const option = Lantern.make('option', '', run.title);
      option.value = run.id;
      return option;
    }));
    select.disabled = !runs.length;
    select.value = current;
  };
  const open = async (id, place = {}) => {
    current = id;
    list();
    const mine = ++serial, run = await Lantern.fetchRun(server, id).catch(() => null);
    if (mine !== serial) return;
    if (!run) { say('This run is no longer kept; run it again.', true); return; }
    say('');
    element.dataset.run = id;
    shown = run;
    show(run, place);
    wish();
  };
  /* Only a view that somebody looks at makes the worker decode. */
  const wish = () => {
    const run = keptRuns.get(current);
    if (run && run.places && shown && shown.id === current && !shown.places) { open(current, { stay: true }); return; }  // another view asked
    if (!run || run.places || !element.offsetParent || (asked.has(current) && !run.recorded)) return;
    asked.add(current);
    if (run.recorded) {                                          // another machine's rounding would seldom give it again
      say('This recorded run keeps its trace alone: no random numbers, no neighbours. Press Generate on the Race tab for a run that has them.');
      return;
    }
    props.value = { run: current };
    say('The run is decoded once more, untimed, to keep what its verdicts compared.');
    ask();
  };
  new IntersectionObserver(wish).observe(element);
  select.addEventListener('change', () => open(select.value));
  watch('value', async () => {
    const { run, done, of, ready, error } = props.value;
    if (ready) { keptRuns.delete(run); if (run === current) { await open(run, { stay: true }); } }
    else if (run !== current) return;
    else if (error) say(error, true);
    else if (of && done !== undefined) say(`Looking inside: ${done} of ${of} tokens decoded once more, untimed.`);
  });
  const add = ({ lane, typed }) => {
    if (runs.some(run => run.id === lane.run)) return;
    const tree = lane.method === 'ar' ? '' : `, tree ${lane.tree}`;
    runs.unshift({ id: lane.run, title: `${lane.label}${tree} · ${typed[0]}, seed ${lane.settings.seed}`, method: lane.method });
    list();
    if (lane.method !== 'ar' || !current) open(lane.run);
  };
  Lantern.finishedBefore.forEach(add);
  Lantern.on('finished', add);
  if (!current && runs.length) open(runs[0].id);
  Lantern.on('open', place => { if (Lantern.slug(place.tab) === Lantern.slug(tab) && place.run) open(place.run, place); });
  list();
  return { runs: () => runs, fetch: id => Lantern.fetchRun(server, id) };
};
/* A node's patch: what it would paint in its place; where the run was not looked into, its code alone. */
Lantern.nodePatch = (context, run, step, node, x, y, size) => {
  const columns = run.parents.length - 1;
  if (run.sheet) {
    const cell = run.sheet.width / columns;
    context.drawImage(run.sheet, (node - 1) * cell, step * cell, cell, cell, x, y, size, size);
  } else Lantern.codePatch(context, run, run.steps[step].drafted[node - 1], x, y, size);
};
Lantern.codePatch = (context, run, code, x, y, size) => {
  if (!run.atlas) { context.fillStyle = Lantern.css('--line-2'); context.fillRect(x, y, size, size); return; }
  const row = Math.ceil(Math.sqrt(run.codes)), cell = run.atlas.width / row;
  context.drawImage(run.atlas, (code % row) * cell, Math.floor(code / row) * cell, cell, cell, x, y, size, size);
};
Lantern.placePatch = (context, run, place, x, y, size) => {
  const cell = run.picture.width / run.grid;
  context.drawImage(run.picture, (place % run.grid) * cell, Math.floor(place / run.grid) * cell, cell, cell, x, y, size, size);
};
