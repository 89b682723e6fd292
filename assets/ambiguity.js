/* Ambiguity: maps over the picture of what the target and the drafter knew of each token, with histograms and curves. */

Lantern.ambiguity = (element, props, watch, ask, server) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), number = Lantern.number;
  const ORIGINS = { a: ['Accepted by the strict rule', '--strict'], x: ['Accepted only by pooling', '--relax-fill'], e: ['Drawn by the target', '--ar'] };
  const hex = name => { const value = Lantern.css(name); return [1, 3, 5].map(i => parseInt(value.slice(i, i + 2), 16)); };
  const fixed = digits => value => (value === null || value === undefined ? '–' : value.toFixed(digits));
  const MAPS = [
    { key: 'entropy', title: 'Target entropy', about: () => 'How unsure the target is about each token, in bits, after guidance and filters. High: many codes would do.', low: 0, high: 8, unit: ' bits', say: fixed(2) },
    { key: 'top1', title: 'Top-1 probability', about: () => 'The target’s best guess. Low where no single code stands out.', low: 0, high: 1, unit: '', say: fixed(2) },
    { key: 'interchangeable', title: 'Interchangeable tokens', about: () => `Effective number of codes among the painted one and its ${run.k} nearest: 2 to the entropy of the target over them.`, low: 1, high: 8, unit: '', say: fixed(1) },
    { key: 'length', title: 'Accepted length', about: () => 'How many tokens the step brought that painted this token.', unit: '', say: value => `${value} ${value === 1 ? 'token' : 'tokens'}` },
    { key: 'origin', title: 'Where it came from', about: () => 'Amber tokens are in the picture only thanks to pooling.', unit: '', say: value => ORIGINS[value][0] },
    { key: 'agreement', title: 'Draft agreement', about: () => 'Overlap of drafter and target, Σ min(p, q). 1 means the same distribution. Empty: nothing was drafted there.', low: 0, high: 1, unit: '', say: fixed(2) },
  ];
  let run = null, map = MAPS[0], cell = 0, over = 'With outline', other = null, asked = 0;
  const color = each => ({ length: Lantern.lengthColor, origin: value => hex(ORIGINS[value][1]) }[each.key]
    || (value => (value === null ? hex('--sunken') : Lantern.cividis((value - each.low) / (each.high - each.low)))));
  const known = each => run && run.values[each.key];

  /* per token: step, accepted length, where it came from */
  const read = next => {
    next.step = []; next.values = { length: [], origin: [], ...(next.places || {}) };
    next.steps.forEach((each, s) => each.tokens.forEach((_, i) => {
      next.step.push(s);
      next.values.length.push(each.tokens.length);
      next.values.origin.push(i < each.path.length ? each.verdicts[each.path[i] - 1] : 'e');
    }));
    next.depths = Lantern.layout(next.parents).depth;
    next.children = next.parents.map((_, n) => next.parents.flatMap((parent, child) => (parent === n ? [child] : [])));
  };
  const show = (next, place = {}) => {
    run = next;
    if (!run.values) read(run);
    if (run.places) {                                            // a scale that all but a few tokens of this run lie on
      const sorted = [...run.places.interchangeable].sort((a, b) => a - b), most = sorted[Math.floor(0.95 * sorted.length)];
      MAPS[2].high = [4, 8, 12, 20, 40, 80, 160, 400].find(high => most <= high) || 1000;
    }
    if (place.map) { map = MAPS.find(each => each.key === place.map); element.dataset.chosen = map.key; }
    if (place.cell !== undefined) cell = element.dataset.cell = place.cell;
    if (!known(map)) map = MAPS[3]; else if (map === MAPS[3] && !element.dataset.chosen) [map] = MAPS;
    cell = Lantern.clamp(element.dataset.cell ? cell : Math.floor(run.step.length * 0.47), 0, run.step.length - 1);
    element.dataset.cell = cell;
    others();
    draw();
  };

  const redrawBig = Lantern.canvas(part('big'), (context, width) => {
    if (!run) { Lantern.paint(context, width, null, 0, 16); return; }
    if (over === 'Picture' || !known(map)) context.drawImage(run.picture, 0, 0, width, width);
    else Lantern.heat(context, width, known(map), run.grid, color(map), over === 'Map alone' ? null : run.picture);
    Lantern.cells(context, width / run.grid, run.grid, cell, 1, '#000', 5);
    Lantern.cells(context, width / run.grid, run.grid, cell, 1, '#fff', 3);
  });
  const buttons = MAPS.map(each => {
    const button = Lantern.make('button', 'mini'), canvas = document.createElement('canvas');
    button.type = 'button';
    button.append(canvas, Lantern.make('span', '', each.title));
    part('minis').append(button);
    const redraw = Lantern.canvas(canvas, (context, width) => {
      if (known(each)) Lantern.heat(context, width, known(each), run.grid, color(each)); else Lantern.paint(context, width, null, 0, run ? run.grid : 16);
    });
    button.addEventListener('click', () => { map = each; element.dataset.chosen = each.key; draw(); });
    return { button, redraw };
  });
  const big = part('big');
  const choose = next => { if (run && next >= 0 && next < run.step.length) { cell = next; element.dataset.cell = cell; redrawBig(); readout(); } };
  big.addEventListener('pointermove', event => {
    if (!run || event.pointerType !== 'mouse') return;
    point(event);
  });
  const point = event => {
    const box = big.getBoundingClientRect(), at = (x, size) => Lantern.clamp(Math.floor(x / size * run.grid), 0, run.grid - 1);
    const next = at(event.clientY - box.top, box.height) * run.grid + at(event.clientX - box.left, box.width);
    if (next !== cell) choose(next);
  };
  big.addEventListener('click', event => run && point(event));
  big.addEventListener('keydown', event => {
    const move = run && { ArrowRight: 1, ArrowLeft: -1, ArrowDown: run.grid, ArrowUp: -run.grid }[event.key];
    if (!move) return;
    event.preventDefault();
    choose(cell + move);
  });

  const readout = () => {
    const origin = run.values.origin[cell], step = run.steps[run.step[cell]], where = `Row ${Math.floor(cell / run.grid) + 1}, column ${cell % run.grid + 1}`;
    part('place').textContent = `${where} · token ${cell + 1} · ${run.step[cell] ? `step ${run.step[cell]}` : 'prefill'}`;
    part('origin').innerHTML = Lantern.verdictIcon(origin === 'e' ? (step.ending === 'bonus' ? 'bonus' : step.ending === 'recovered' ? 'recovered' : 'sampled') : origin);
    part('origin').append(origin === 'e' ? { bonus: 'Bonus token, drawn by the target', recovered: 'Recovered token, drawn after a rejection' }[step.ending] || 'Sampled from the target' : ORIGINS[origin][0]);
    const rows = MAPS.filter(each => each.key !== 'origin' && known(each)).map(each => [each.title, each.say(known(each)[cell]) + (known(each)[cell] === null ? '' : each.unit)]);
    if (run.places) rows.splice(1, 0, ['Without guidance or filters', `${fixed(2)(run.places.plain_entropy[cell])} bits`]);
    part('numbers').replaceChildren(...rows.flatMap(([title, value]) => [Lantern.make('dt', '', title), Lantern.make('dd', 'n', value)]));
    big.setAttribute('aria-label', `${map.title} of each token, over the picture`);
    big.setAttribute('aria-valuemax', run.step.length);
    big.setAttribute('aria-valuenow', cell + 1);
    big.setAttribute('aria-valuetext', `${where}: ${known(map) ? `${map.title} ${map.say(known(map)[cell])}${map.unit}` : ''}, ${part('origin').textContent}`);
    part('likeliest').hidden = !run.places;
    part('open').disabled = !run.step[cell];
    if (!run.places) return;
    const codes = run.places.likeliest[cell], p = run.places.likeliest_p[cell];
    part('codes').replaceChildren(...codes.slice(0, 6).map((code, i) => {
      const row = Lantern.make('div'), patch = document.createElement('canvas'), bar = Lantern.make('i'), track = Lantern.make('b');
      patch.width = patch.height = 56;
      const context = patch.getContext('2d');
      context.imageSmoothingQuality = 'high';
      Lantern.codePatch(context, run, code, 0, 0, 56);
      patch.title = `code ${code}`;
      bar.style.width = `${100 * p[i] / p[0]}%`;
      track.append(bar);
      row.append(patch, track, Lantern.make('span', '', number(p[i])));
      return row;
    }));
  };

  /* ---- scale and histogram: bars stacked by where the tokens came from ---- */
  const scale = () => {
    const box = part('scale');
    if (map.key === 'length') box.innerHTML = `<p class="legend">${Lantern.lengthLegend(7)}</p>`;
    else if (map.key === 'origin') box.innerHTML = `<p class="legend">${Object.values(ORIGINS).map(([name, tone]) => `<span><i class="sw" style="background:var(${tone})"></i>${name}</span>`).join('')}</p>`;
    else {
      const stops = Array.from({ length: 9 }, (_, i) => Lantern.rgb(Lantern.cividis(i / 8))).join(',');
      box.innerHTML = `<div class="ramp"><i style="background:linear-gradient(90deg,${stops})"></i><div><span>${map.low}${map.unit}</span><span>${map.high}${map.unit}${map.high > 1 ? ' or more' : ''}</span></div></div>`;
    }
  };
  const histogram = () => {
    const values = known(map), w = Math.max(260, part('histogram').clientWidth), h = 168, x0 = 28, kinds = ['a', 'x', 'e'];
    part('histogram-title').textContent = `${map.title}: tokens of this picture`;
    if (!values) { part('histogram').replaceChildren(); return; }
    const count = { length: 6, origin: 3 }[map.key] || 16;
    const bin = value => (map.key === 'origin' ? kinds.indexOf(value) : map.key === 'length' ? Math.min(6, value) - 1
      : Lantern.clamp(Math.floor((value - map.low) / (map.high - map.low) * count), 0, count - 1));
    const bins = Array.from({ length: count }, () => ({ a: 0, x: 0, e: 0 }));
    values.forEach((value, i) => { if (value !== null) bins[bin(value)][run.values.origin[i]]++; });
    const top = Math.max(1, ...bins.map(each => each.a + each.x + each.e)), Y = v => h - 20 - v / top * (h - 32), bar = (w - x0) / count;
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find(step => top / step <= 4) || 1000;
    let body = '';
    for (let v = 0; v <= top; v += every) body += `<line class="grid-l" x1="${x0}" x2="${w}" y1="${Y(v)}" y2="${Y(v)}"/><text class="axis" x="${x0 - 5}" y="${Y(v) + 4}" text-anchor="end">${v}</text>`;
    bins.forEach((each, i) => {
      let sum = 0;
      const total = kinds.map(kind => `${each[kind]} ${ORIGINS[kind][0].toLowerCase()}`).join(', ');
      kinds.forEach(kind => {
        if (each[kind]) body += `<rect x="${x0 + i * bar + 1}" width="${bar - 2}" y="${Y(sum + each[kind])}" height="${Y(sum) - Y(sum + each[kind])}" fill="var(${ORIGINS[kind][1]})"><title>${total}</title></rect>`;
        sum += each[kind];
      });
      if (count < 16) body += `<text class="axis" x="${x0 + (i + 0.5) * bar}" y="${h - 5}" text-anchor="middle">${map.key === 'origin' ? ['strict', 'pooling', 'target'][i] : `${i + 1}${i === 5 ? '+' : ''}`}</text>`;
    });
    if (count === 16) [0, 0.25, 0.5, 0.75, 1].forEach(t => { body += `<text class="axis" x="${x0 + (w - x0) * t}" y="${h - 5}" text-anchor="${t ? t === 1 ? 'end' : 'middle' : 'start'}">${+(map.low + (map.high - map.low) * t).toFixed(2)}</text>`; });
    part('histogram').innerHTML = Lantern.svg(w, h, body, `Histogram of ${map.title.toLowerCase()}, stacked by where the tokens came from`);
    part('histogram-legend').innerHTML = kinds.map(kind => `<span><i class="sw" style="background:var(${ORIGINS[kind][1]})"></i>${ORIGINS[kind][0]}, ${run.values.origin.filter(value => value === kind).length}</span>`).join('');
  };

  /* ---- how acceptance falls ---- */
  const tests = () => run.steps.flatMap((each, s) => each.drafted.map((_, i) => ({ each, s, i })).filter(({ i }) => 'axr'.includes(each.verdicts[i])));
  const FEWEST = 8;
  const byDepth = () => {
    const w = Math.max(240, part('depth').clientWidth), deep = Math.max(...run.depths), ranks = Math.max(1, ...run.children.map(each => each.length));
    if (!deep) { part('depth').replaceChildren(); part('depth-note').textContent = 'Plain autoregression drafts nothing.'; return; }
    const table = Array.from({ length: deep }, () => Array.from({ length: ranks }, () => [0, 0]));
    tests().forEach(({ each, i }) => {
      const slot = table[run.depths[i + 1] - 1][run.children[run.parents[i + 1]].indexOf(i + 1)];
      slot[0] += 'ax'.includes(each.verdicts[i]);
      slot[1]++;
    });
    const x0 = 54, wide = Math.min(64, (w - x0) / ranks), tall = 34;
    let body = Array.from({ length: ranks }, (_, r) => `<text class="axis" x="${x0 + (r + 0.5) * wide}" y="10" text-anchor="middle">${r ? r + 1 : 'rank 1'}</text>`).join('');
    table.forEach((row, d) => {
      body += `<text class="axis" x="0" y="${20 + d * tall + tall / 2}">${d ? d + 1 : 'depth 1'}</text>`;
      row.forEach(([passed, all], r) => {
        const x = x0 + r * wide, y = 16 + d * tall, enough = all >= FEWEST, shade = Lantern.cividis(passed / Math.max(1, all));
        body += `<rect x="${x + 1}" y="${y + 1}" width="${wide - 2}" height="${tall - 2}" fill="${enough ? Lantern.rgb(shade) : 'var(--sunken)'}"><title>${passed} of ${all}</title></rect>`
          + `<text x="${x + wide / 2}" y="${y + tall / 2 + 4}" text-anchor="middle" font-size="12" font-weight="500" fill="${!enough ? 'var(--ink-3)' : Lantern.isDark(shade) ? '#fff' : '#14161a'}">${enough ? Math.round(100 * passed / all) : '–'}</text>`;
      });
    });
    part('depth').innerHTML = Lantern.svg(w, 16 + deep * tall, body, `Share of tested drafts that passed: ${table.map((row, d) => `depth ${d + 1}: ${row.map(([p, n]) => (n ? `${Math.round(100 * p / n)} %` : 'none')).join(', ')}`).join('; ')}`);
    part('depth-note').textContent = `Per cent, of this run. A dash: fewer than ${FEWEST} tests.`;
  };
  const curve = () => {
    const w = Math.max(240, part('curve').clientWidth), h = 190, bins = 6, x0 = 30, strict = Array(bins).fill(0), pooled = Array(bins).fill(0), all = Array(bins).fill(0);
    part('curve-legend').replaceChildren();
    if (!run.places || run.parents.length < 2) { part('curve').replaceChildren(Lantern.make('p', 'help', run.places ? 'Plain autoregression drafts nothing.' : 'Shown once the run has been looked into.')); return; }
    tests().forEach(({ each, i }) => {
      const place = each.at + run.depths[i + 1] - 1;
      if (place >= run.step.length || each.q[i] <= 0) return;
      const bin = Lantern.clamp(Math.floor(run.places.entropy[place]), 0, bins - 1);
      all[bin]++;
      strict[bin] += Math.min(1, each.r[i] / each.q[i]);
      pooled[bin] += Math.min(1, each.m[i] / each.q[i]);
    });
    const X = i => x0 + (i + 0.5) / bins * (w - x0), Y = v => h - 24 - v * (h - 36), shown = [...all.keys()].filter(i => all[i] >= FEWEST);
    const points = sums => shown.map(i => `${X(i).toFixed(1)} ${Y(sums[i] / all[i]).toFixed(1)}`);
    let body = [0, 0.25, 0.5, 0.75, 1].map(v => `<line class="grid-l" x1="${x0}" x2="${w}" y1="${Y(v)}" y2="${Y(v)}"/><text class="axis" x="${x0 - 6}" y="${Y(v) + 4}" text-anchor="end">${100 * v}</text>`).join('');
    if (shown.length) body += `<path d="M${[...points(pooled), ...points(strict).reverse()].join('L')}Z" fill="var(--relax-fill)" opacity=".22"/><path d="M${points(strict).join('L')}" fill="none" stroke="var(--strict)" stroke-width="2"/><path d="M${points(pooled).join('L')}" fill="none" stroke="var(--relax)" stroke-width="2"/>`;
    const dot = (x, y) => `<circle cx="${x}" cy="${y}" r="4" fill="var(--strict)"/>`, diamond = (x, y) => `<path d="M${x} ${y - 5}l5 5-5 5-5-5z" fill="var(--relax)"/>`;
    shown.forEach(i => { body += `<g><title>${Math.round(100 * strict[i] / all[i])} % strict, ${Math.round(100 * pooled[i] / all[i])} % with pooling, ${all[i]} tests</title>${dot(X(i), Y(strict[i] / all[i]))}${diamond(X(i), Y(pooled[i] / all[i]))}</g>`; });
    for (let i = 0; i < bins; i++) body += `<text class="axis" x="${X(i)}" y="${h - 8}" text-anchor="middle">${i === bins - 1 ? `${i}+` : `${i}–${i + 1}`}</text>`;
    part('curve').innerHTML = Lantern.svg(w, h, body, `Share passing by bits of entropy: ${shown.map(i => `${i} to ${i + 1}: ${Math.round(100 * strict[i] / all[i])} % strict, ${Math.round(100 * pooled[i] / all[i])} % with pooling`).join('; ')}`);
    part('curve-legend').innerHTML = `<span><svg viewBox="-7 -7 14 14">${dot(0, 0)}</svg>strict rule, %</span><span><svg viewBox="-7 -7 14 14">${diamond(0, 0)}</svg>with pooling, %</span><span>below: bits of entropy</span>`;
  };

  /* ---- against another run ---- */
  const redrawDifference = Lantern.canvas(part('difference'), (context, width) => {
    if (!run || !other || other.step.length !== run.step.length) { Lantern.paint(context, width, null, 0, run ? run.grid : 16); return; }
    Lantern.heat(context, width, run.values.length.map((value, i) => (value - other.values.length[i]) / 4), run.grid, Lantern.differenceColor);
  });
  const others = () => {
    const select = part('other'), rest = view.runs().filter(each => each.id !== run.id), before = other && other.id !== run.id ? other.id : '';
    select.replaceChildren(...(rest.length ? rest : [{ id: '', title: 'No other run yet' }]).map(each => Object.assign(Lantern.make('option', '', each.title), { value: each.id })));
    select.disabled = !rest.length;
    const exact = rest.find(each => each.method === 'exact') || rest[0];
    select.value = rest.some(each => each.id === before) ? before : exact ? exact.id : '';
    against(select.value);
  };
  const against = async id => {
    const mine = ++asked, found = id ? await view.fetch(id).catch(() => null) : null;
    if (mine !== asked) return;
    other = found;
    if (other && !other.values) read(other);
    redrawDifference();
    const words = part('difference-words');
    if (!other || other.step.length !== run.step.length) { words.textContent = other ? 'That run has another number of tokens.' : ''; return; }
    const change = run.values.length.map((value, i) => value - other.values.length[i]), n = test => change.filter(test).length;
    words.replaceChildren('Accepted length is higher here at ', Lantern.make('b', '', n(x => x > 0)), ' tokens, lower at ', Lantern.make('b', '', n(x => x < 0)),
      `, equal at ${n(x => !x)}. Mean ${run.summary.accepted_length.toFixed(2)} against ${other.summary.accepted_length.toFixed(2)}.`);
    part('difference').setAttribute('aria-label', `Difference of accepted length. ${words.textContent}`);
    const stops = Array.from({ length: 9 }, (_, i) => Lantern.rgb(Lantern.differenceColor(i / 4 - 1))).join(',');
    part('difference-scale').innerHTML = `<i style="background:linear-gradient(90deg,${stops})"></i><div><span>other 4 more</span><span>this 4 more</span></div>`;
  };
  part('other').addEventListener('change', () => against(part('other').value));

  const draw = () => {
    part('title').textContent = map.title;
    part('about').textContent = map.about();
    buttons.forEach(({ button, redraw }, i) => { button.setAttribute('aria-pressed', MAPS[i] === map); button.disabled = !known(MAPS[i]); redraw(); });
    scale();
    redrawBig();
    readout();
    figures();
  };
  const figures = () => { histogram(); byDepth(); curve(); };

  const word = part('said');
  const actions = {
    png: () => Object.assign(document.createElement('a'), { href: big.toDataURL(), download: `${map.key}.png` }).click(),
    svg: () => { const svg = part('histogram').querySelector('svg'); if (svg) Lantern.file(`${map.key}-histogram.svg`, Lantern.svgText(svg), 'image/svg+xml'); },
    csv: () => Lantern.file('tokens.csv', Lantern.csv([['token', 'row', 'column', 'step', 'code', 'origin', 'accepted_length', 'entropy_bits', 'plain_entropy_bits', 'top1', 'interchangeable', 'agreement'],
      ...run.steps.flatMap(each => each.tokens.map((code, i) => [each.at + i, code])).map(([i, code]) => [i, Math.floor(i / run.grid), i % run.grid, run.step[i], code,
        { a: 'strict', x: 'pooling', e: 'target' }[run.values.origin[i]], run.values.length[i], ...['entropy', 'plain_entropy', 'top1', 'interchangeable', 'agreement'].map(name => run.places && run.places[name][i])])]), 'text/csv'),
    link: () => Lantern.copy(Lantern.linkTo({ view: 'Ambiguity', run: run.id }), word),
  };
  element.querySelectorAll('[data-save]').forEach(save => {
    if (save.dataset.save !== 'link') save.insertAdjacentHTML('afterbegin', Lantern.icons.down);
    save.addEventListener('click', () => { if (run) { word.textContent = ''; actions[save.dataset.save](); } });
  });
  part('open').addEventListener('click', () => {
    const step = run.steps[run.step[cell]];
    Lantern.visit('Step inspector', { run: run.id, step: run.step[cell], node: step.path[cell - step.at] || 0 });
  });
  Lantern.segments(part('overlay'), ['With outline', 'Map alone', 'Picture'], over, 'Show the map', label => { over = label; redrawBig(); });
  new ResizeObserver(() => run && figures()).observe(part('histogram'));
  Lantern.on('theme', () => { if (run) { buttons.forEach(({ redraw }) => redraw()); figures(); } });
  Lantern.placeOf.ambiguity = () => (run ? { run: run.id } : {});
  const view = Lantern.runOnView(element, props, watch, ask, server, 'Ambiguity', show);
};
