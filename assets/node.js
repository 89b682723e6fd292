/* The chosen draft: its numbers, the neighbours that were pooled, the formula filled in, and what another bound would do. */

/* The verdict of a node under another relaxation, at once and exactly as lanternpp.detail.whatif judges it: float32 sums and
   products, in the order in which the decoder makes them. `node` is what app/inspector.py's `inside` tells. */
Lantern.whatif = (node, { rule, k, bound, gamma }, greedy = false) => {
  const f = Math.fround, [u, q, r, other] = [f(node.u), f(node.q), f(node.r), f(node.other)];
  const strictRule = rule === 'exact' || k === 0 || bound <= (rule === 'lantern' ? 0 : 1);
  let limit = 0, fits = 0, pooled = 0;
  if (!strictRule) {
    limit = rule === 'lantern' ? f(bound) : f(f(bound - 1) * r);
    if (rule === 'annealed') limit = f(limit * f(f(gamma) ** (node.depth - 1)));
    while (fits < node.place.length && node.place[fits] <= k && f(node.total[fits]) <= limit) fits++;
    pooled = fits < node.place.length ? Math.min(k, node.place[fits] - 1) : k;
  }
  const mass = fits ? f(r + f(node.total[fits - 1])) : r, threshold = f(u * q);
  const strict = greedy ? r > other : threshold <= r && r > 0;
  const relaxed = greedy ? mass > r && mass >= other : threshold <= mass && mass > 0;
  return { verdict: q <= 0 ? '-' : strict ? 'a' : relaxed ? 'x' : 'r', mass, pooled, limit, strictRule };
};

Lantern.nodeCard = (element, server) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), number = Lantern.number;
  const STOPS = [0, 1, 2, 3, 5, 10, 20, 50, 100, 300, 1000];
  let run = null, step = 0, node = 0, facts = null, knobs = null, asked = 0;
  const own = () => ({ rule: run.method, k: run.k, bound: run.bound, gamma: run.gamma });
  const greedy = () => run.temperature === 0;
  const what = at => Lantern.whatif(facts, at, greedy());
  const width = name => Math.max(240, part(name).clientWidth);
  const letter = () => run.steps[step].verdicts[node - 1];
  const most = () => run.codes - 1;

  const show = async (nextRun, nextStep, nextNode) => {
    const mine = ++asked, same = nextRun === run;
    [run, step, node] = [nextRun, nextStep, nextNode];
    element.querySelector('.card').classList.toggle('none', !node);
    if (!node) return;
    head();
    part('inside').hidden = !run.places;
    if (!run.places) { facts = null; return; }
    const answer = await server.node([run.id, step, node]).catch(() => null);
    if (mine !== asked) return;
    facts = answer;
    part('inside').hidden = !facts;
    if (!facts) return;
    knobs = knobs && same ? knobs : own();
    sliders();
    body();
  };

  const COUPLED = {                                                // judged by the draw that AR makes there, not by ratios
    a: () => 'It is the code that the target’s own draw chose.',
    x: () => 'The target’s own draw chose a near-equal code: this one is swapped in.',
    r: () => 'The target’s own draw chose another code.',
  };
  const WHY = {
    a: () => 'It passes the strict rule.',
    x: () => 'The strict rule would have refused it.',
    r: () => (run.steps[step].m[node - 1] > run.steps[step].r[node - 1] ? 'Pooling added mass, but not enough, or an earlier rule came first.' : 'The target gives it too little.'),
    n: () => 'An earlier sibling was taken, or its parent was not.',
    z: () => 'This place lies past the end of the picture.',
    '-': () => 'The drafter gives it no probability.',
  };
  const head = () => {
    const now = run.steps[step], i = node - 1, verdict = letter(), place = now.at + run.depths[node] - 1;
    part('name').textContent = `Draft ${node}${place < run.grid ** 2 ? `, row ${Math.floor(place / run.grid) + 1}, column ${place % run.grid + 1}` : ''}, code ${now.drafted[i]}`;
    part('verdict').innerHTML = Lantern.verdictIcon(verdict);
    const word = Lantern.make('span', '', Lantern.verdicts[verdict][0]);
    word.style.color = `var(${Lantern.verdicts[verdict][1]})`;
    part('verdict').append(word);
    part('why').textContent = ((/^coupled/.test(run.method) && COUPLED[verdict]) || WHY[verdict])();
    const taken = run.children[run.parents[node]].indexOf(node);
    const rows = [['q', 'drafter, without earlier siblings', now.q[i]], ['p', 'target', now.p && now.p[i]],
      ['r', taken ? `target, less what ${taken} earlier sibling${taken > 1 ? 's' : ''} took` : 'target, nothing taken yet', now.r[i]],
      ['m', 'relaxed mass', now.m[i]], ['u', 'random number drawn', now.u && now.u[i]]];
    part('numbers').replaceChildren(...rows.filter(row => row[2] !== undefined).flatMap(([name, words, value]) => [
      Lantern.make('dt', '', name), Lantern.make('dd', 'd', words), Lantern.make('dd', 'n', number(value, name === 'u' ? 3 : 4))]));
    line();
  };
  /* u on a line from 0 to 1: blue up to r/q, amber up to m/q */
  const line = () => {
    const now = run.steps[step], i = node - 1, w = width('line'), u = now.u && now.u[i];
    const share = x => Lantern.clamp(now.q[i] > 0 ? x / now.q[i] : 0, 0, 1) * w;
    const a = share(now.r[i]), b = share(now.m[i]);
    if (greedy() || letter() === 'z') { part('line').replaceChildren(); return; }
    const ux = u === undefined ? 0 : u * w;
    const pointer = u === undefined ? '' : `<path d="M${ux - 5} 18h10l-5 7z" fill="var(--ink)"/><path d="M${ux} 22V42" stroke="var(--ink)" stroke-width="1.6"/>`
      + `<text class="axis-t" x="${Lantern.clamp(ux, 30, w - 30)}" y="13" text-anchor="middle">u = ${number(u)}</text>`;
    const ticks = [0, 0.25, 0.5, 0.75, 1].map(t => `<text class="axis" x="${t * w}" y="56" text-anchor="${t ? t === 1 ? 'end' : 'middle' : 'start'}">${t}</text>`).join('');
    part('line').innerHTML = Lantern.svg(w, 58, `<rect x="0" y="28" width="${w}" height="12" fill="var(--sunken)"/><rect x="0" y="28" width="${a}" height="12" fill="var(--strict)"/>`
      + `<rect x="${a}" y="28" width="${Math.max(0, b - a)}" height="12" fill="var(--relax-fill)"/>${ticks}${pointer}`,
    `Strict up to ${number(now.r[i] / now.q[i])}, pooled up to ${number(Math.min(1, now.m[i] / now.q[i]))}${u === undefined ? '' : `, u is ${number(u)}`}`)
      + '<p class="legend"><span><i class="sw strict"></i><span>below <i>r/q</i>: strict</span></span><span><i class="sw pooled"></i><span>below <i>m/q</i>: pooled</span></span><span><i class="sw rest"></i>rejected</span></p>';
  };

  const body = () => { pool(); formula(); curve(); };
  const greek = () => (knobs.rule === 'lantern' ? 'δ' : 'λ');
  const boundWords = () => ({ lantern: 'bound <i>δ</i>', annealed: 'bound (<i>λ</i>−1)<i>γ</i><sup>d−1</sup><i>r</i>' }[knobs.rule] || 'bound (<i>λ</i>−1)<i>r</i>');
  const sumAt = j => { let sum = 0; facts.place.forEach((place, i) => { if (place <= j) sum = facts.total[i]; }); return sum; };
  const SHOWN = 10;
  const redrawNear = Lantern.canvas(part('near'), context => {
    const w = width('pool'), size = (w - (SHOWN - 1) * 5) / SHOWN;
    context.clearRect(0, 0, w, size + 2);
    if (!facts) return;
    const { pooled } = what(knobs);
    facts.near.slice(0, SHOWN).forEach((code, i) => {
      context.globalAlpha = i < pooled ? 1 : 0.5;
      Lantern.codePatch(context, run, code, i * (size + 5), 0, size);
    });
    context.globalAlpha = 1;
  });
  const pool = () => {
    const { pooled, limit, strictRule } = what(knobs), shown = Math.min(SHOWN, facts.near.length), w = width('pool'), size = (w - (SHOWN - 1) * 5) / SHOWN;
    part('near').style.height = `${size}px`;
    const sums = Array.from({ length: shown }, (_, j) => sumAt(j + 1));
    const all = sumAt(Math.min(pooled, most())), after = sumAt(Math.min(pooled + 1, most()));
    const top = Math.max(limit * 1.2, Math.min(after, 4 * limit || after), 1e-9), X = x => Math.min(w, x / top * w);
    let body = '';
    for (let j = 0; j < shown; j++) {
      const x = j * (size + 5), inside = j < pooled, own = sums[j] - (j ? sums[j - 1] : 0);
      body += `<rect x="${x + 0.5}" y="0.5" width="${size - 1}" height="${size - 1}" rx="2" fill="none" stroke="var(${inside ? '--relax-fill' : '--line-2'})" stroke-width="${inside ? 2 : 1}"><title>neighbour ${j + 1}, code ${facts.near[j]}, r = ${number(own, 4)}</title></rect>`
        + `<text class="axis" x="${x + size / 2}" y="${size + 13}" text-anchor="middle" ${inside ? 'style="fill:var(--ink)"' : ''}>${own.toFixed(3).replace(/^0/, '')}</text>`;
    }
    const y = size + 26;
    body += `<rect x="0.5" y="${y}" width="${w - 1}" height="12" fill="var(--sunken)"/><rect x="0" y="${y}" width="${X(all)}" height="12" fill="var(--relax-fill)"/>`;
    if (after > all) body += `<rect x="${X(all)}" y="${y + 0.5}" width="${Math.max(0, X(after) - X(all) - 0.5)}" height="11" fill="none" stroke="var(--ink-3)" stroke-dasharray="3 2"/>`;
    if (!strictRule) {
      const x = X(limit);
      body += `<line x1="${x}" x2="${x}" y1="${y - 5}" y2="${y + 17}" stroke="var(--ink)" stroke-width="1.6"/>`
        + `<text class="axis-t" x="${Lantern.clamp(x, 4, w)}" y="${y + 31}" text-anchor="${x > w * 0.5 ? 'end' : 'start'}">bound ${number(limit, 4)}</text>`;
    }
    part('pool').innerHTML = Lantern.svg(w, Math.ceil(y + 36), body, `${Math.min(pooled, most())} neighbours pooled, ${number(all, 4)} of at most ${number(limit, 4)}`);
    const count = Math.min(pooled, most());
    part('pool-caption').textContent = strictRule ? 'These settings are strict: nothing is pooled.'
      : !count ? 'The nearest code alone crosses the bound, so nothing is pooled: the paper’s prefix rule.'
        : `${count === Math.min(knobs.k, most()) ? `All ${count} nearest codes fit` : `The ${count} nearest fit`} under the bound${count < Math.min(knobs.k, most()) ? '; the next would cross it' : ''}. The first ${shown} are shown, with their r.`;
    redrawNear();
  };
  const formula = () => {
    const result = what(knobs), r = facts.r, added = result.mass - r, threshold = facts.q > 0 ? Math.min(1, result.mass / facts.q) : 0;
    const judged = ['a', 'x', 'r'].includes(result.verdict), rows = [];
    const count = Math.min(result.pooled, most());
    rows.push(`<i>m</i> = <i>r</i> + Σ<sub>j ≤ ${count}</sub> <i>r</i>(<i>n<sub>j</sub></i>) = ${number(r, 4)} + ${number(added, 4)} = <b>${number(result.mass, 4)}</b>`);
    if (!result.strictRule) rows.push(`${boundWords()} = ${number(result.limit, 4)}`);
    if (greedy()) rows.push(`largest other probability <b>${number(facts.other, 4)}</b>`);
    else rows.push(`min(1, <i>m</i>/<i>q</i>) = min(1, ${number(result.mass, 4)} / ${number(facts.q, 4)}) = <b>${number(threshold)}</b>`);
    const words = { a: 'accepted by the strict rule', x: 'accepted by pooling', r: 'rejected', '-': 'never drawn' }[result.verdict];
    rows.push(`<span class="res" style="color:var(${Lantern.verdicts[result.verdict][1]})">${greedy() || !judged ? '' : `<i>u</i> = ${number(facts.u)} ${result.verdict === 'r' ? '&gt;' : '≤'} ${number(threshold)}: `}${words}</span>`);
    part('maths').innerHTML = rows.map(row => `<div>${row}</div>`).join('');
  };
  /* the threshold as the bound moves, at the chosen k */
  const curve = () => {
    const w = width('if'), h = 116, x0 = 26, y1 = h - 22, [low, high] = knobs.rule === 'lantern' ? [0, 1] : [1, 10];
    const X = b => x0 + (b - low) / (high - low) * (w - x0 - 4), Y = v => y1 - Math.min(1, v) * (y1 - 8);
    const share = at => (facts.q > 0 ? Math.min(1, at.mass / facts.q) : 0);
    const result = what(knobs);
    let path = '', since = null;
    for (let i = 0; i <= 180; i++) {
      const bound = low + (high - low) * i / 180, at = what({ ...knobs, bound });
      path += path ? `H${X(bound).toFixed(1)}V${Y(share(at)).toFixed(1)}` : `M${X(bound)} ${Y(share(at)).toFixed(1)}`;
      if (since === null && 'ax'.includes(at.verdict)) since = bound;
    }
    const grid = [0, 0.5, 1].map(v => `<line class="grid-l" x1="${x0}" x2="${w}" y1="${Y(v)}" y2="${Y(v)}"/><text class="axis" x="${x0 - 6}" y="${Y(v) + 4}" text-anchor="end">${v}</text>`).join('');
    const ticks = (knobs.rule === 'lantern' ? [0, 0.25, 0.5, 0.75, 1] : [1, 2, 4, 6, 8, 10]).map(b =>
      `<text class="axis" x="${X(b)}" y="${h - 6}" text-anchor="${b === high ? 'end' : 'middle'}">${b === low ? `${greek()} ${b}` : b}</text>`).join('');
    const u = greedy() ? '' : `<line x1="${x0}" x2="${w}" y1="${Y(facts.u)}" y2="${Y(facts.u)}" stroke="var(--ink)" stroke-dasharray="4 3"/><text class="axis-t" x="${w}" y="${Y(facts.u) + (facts.u > 0.8 ? 14 : -5)}" text-anchor="end" font-style="italic">u</text>`;
    part('if').innerHTML = Lantern.svg(w, h, `${grid}${ticks}${u}<path d="${path}" fill="none" stroke="var(--relax)" stroke-width="2"/><line x1="${X(knobs.bound)}" x2="${X(knobs.bound)}" y1="8" y2="${y1}" stroke="var(--line-2)"/>${Lantern.verdictMark(result.verdict, X(knobs.bound), Y(share(result)), 7)}`,
      `Threshold as ${greek()} moves`);
    const words = { a: 'accepted by the strict rule', x: 'accepted by pooling', r: 'rejected', '-': 'never drawn' }[result.verdict];
    const always = what({ ...knobs, rule: 'exact' }).verdict === 'a';
    const turn = always ? 'It passes without pooling.' : since === null ? `At this k no ${greek()} up to ${high} would save it.` : `At this k it passes from ${greek()} = ${since.toFixed(2)}.`;
    part('if-caption').textContent = `With k = ${knobs.k}, ${greek()} = ${knobs.bound.toFixed(2)}${knobs.rule === 'annealed' ? `, γ = ${knobs.gamma}` : ''}, judged alone: ${words}. ${turn}`;
  };
  /* the knobs: those of the run's own rule; an exact run is asked with LANTERN++'s */
  const sliders = () => {
    if (knobs.rule === 'exact') knobs = { ...knobs, rule: 'lanternpp', bound: Math.max(1, knobs.bound) };
    const stops = STOPS.filter(stop => stop < most()).concat(most() < 1000 ? [most()] : [1000]);
    const rows = [['k', 0, stops.length - 1, 1, stops.findLastIndex(stop => stop <= knobs.k), stops.at(-1)]];
    if (knobs.rule === 'lantern') rows.push(['δ', 0, 1, 0.01, knobs.bound, 1]); else rows.push(['λ', 1, 10, 0.05, knobs.bound, 10]);
    if (knobs.rule === 'annealed') rows.push(['γ', 0, 1, 0.05, knobs.gamma, 1]);
    part('knobs').replaceChildren(...rows.map(([name, low, high, by, value, end]) => {
      const box = Lantern.make('div', 'slider'), top = Lantern.make('div', 'head'), ends = Lantern.make('div', 'ends');
      const range = Object.assign(document.createElement('input'), { type: 'range', min: low, max: high, step: by, value });
      const shown = Lantern.make('output');
      const set = () => {
        const now = Number(range.value);
        knobs = { ...knobs, [name === 'k' ? 'k' : name === 'γ' ? 'gamma' : 'bound']: name === 'k' ? stops[now] : now };
        shown.textContent = name === 'k' ? stops[now] : now.toFixed(2);
        range.style.setProperty('--f', `${(now - low) / (high - low) * 100}%`);
        range.setAttribute('aria-valuetext', `${name} = ${shown.textContent}`);
      };
      range.setAttribute('aria-label', `What if ${name}`);
      range.addEventListener('input', () => { set(); body(); });
      const label = Lantern.make('span', 'lab');
      label.append(Lantern.make('i', '', name));
      top.append(label, shown);
      ends.append(Lantern.make('span', '', low), range, Lantern.make('span', '', end));
      box.append(top, ends);
      const exact = knobs;
      set();
      knobs = exact;                                             // a k between two stops stays what it is until it is moved
      if (name === 'k') shown.textContent = knobs.k;
      return box;
    }));
  };
  const again = () => { if (run && node) { head(); if (facts) body(); } };
  new ResizeObserver(again).observe(part('line'));
  Lantern.on('theme', again);
  return { show, facts: () => facts };
};
