/* Accepted length by token: two finished runs of this page, their difference, and how many steps brought how many tokens. */

Lantern.KEPT = 12;                                               // finished runs that can be chosen from
Lantern.maps = element => {
  const part = name => element.querySelector(`[data-part="${name}"]`);
  const runs = [], chosen = [null, null], sides = ['left', 'right'];
  let over = 'With outline', cell = -1, active = 1;

  /* lengths[i]: how many tokens the step of token i committed */
  const read = ({ lane, picture, typed, grid, recorded }) => {
    const line = Lantern.timeline(lane), lengths = [], steps = [];
    lane.counts.forEach((count, step) => { for (let i = 0; i < lane.painted[step]; i++) { lengths.push(count); steps.push(step); } });
    const title = `${lane.label}${lane.method === 'ar' ? '' : `, tree ${lane.tree}`}${recorded ? ', recorded' : ''} · ${typed[0]}, seed ${lane.settings.seed}`;
    return { id: lane.run, lane, picture, line, lengths, steps, grid, title };
  };
  const add = finished => {
    if (runs.some(run => run.id === finished.lane.run)) return;
    const run = read(finished);
    if (finished.extra) runs.push(run); else runs.unshift(run);  // the newest first
    runs.sort((a, b) => (a.lane.method === 'ar') - (b.lane.method === 'ar'));
    while (runs.length > Lantern.KEPT) runs.pop();
    const trees = runs.filter(each => each.lane.method !== 'ar');
    chosen[1] = trees[0] || runs[0];
    chosen[0] = trees.find(each => each !== chosen[1]) || runs.find(each => each !== chosen[1]) || chosen[1];
    fill();
    draw();
  };
  const selects = sides.map((side, i) => {
    const select = part(`${side}-run`);
    select.addEventListener('change', () => { chosen[i] = runs[select.selectedIndex]; draw(); });
    return select;
  });
  const fill = () => selects.forEach((select, i) => {
    select.replaceChildren(...(runs.length ? runs.map(run => run.title) : ['No run yet']).map(title => Lantern.make('option', '', title)));
    select.disabled = !runs.length;
    select.selectedIndex = Math.max(0, runs.indexOf(chosen[i]));
  });

  const canvases = sides.map((side, i) => {
    const canvas = part(side);
    const redraw = Lantern.canvas(canvas, (context, width) => {
      const run = chosen[i];
      if (!run) { Lantern.paint(context, width, null, 0, 16); return; }
      if (over === 'Picture') context.drawImage(run.picture, 0, 0, width, width);
      else Lantern.heat(context, width, run.lengths, run.grid, Lantern.lengthColor, over === 'Map alone' ? null : run.picture);
      if (cell >= 0 && active === i) {
        const step = run.steps[cell];
        Lantern.cells(context, width / run.grid, run.grid, run.line.from[step], run.lane.painted[step], '#000', 4.5);
        Lantern.cells(context, width / run.grid, run.grid, run.line.from[step], run.lane.painted[step], '#fff', 2.5);
      }
    });
    const point = (next, focus) => { cell = next; active = i; draw(); tip(focus); };
    canvas.addEventListener('pointermove', event => {
      const box = canvas.getBoundingClientRect(), run = chosen[i];
      if (!run) return;
      const at = (x, size) => Lantern.clamp(Math.floor(x / size * run.grid), 0, run.grid - 1);
      const next = at(event.clientY - box.top, box.height) * run.grid + at(event.clientX - box.left, box.width);
      if (next !== cell || active !== i) point(next);
    });
    for (const type of ['pointerleave', 'blur']) canvas.addEventListener(type, () => { cell = -1; part('tip').hidden = true; draw(); });
    canvas.addEventListener('focus', () => { if (chosen[i] && canvas.matches(':focus-visible')) point(Math.max(0, cell)); });
    canvas.addEventListener('keydown', event => {
      const run = chosen[i], move = run && { ArrowRight: 1, ArrowLeft: -1, ArrowDown: run.grid, ArrowUp: -run.grid }[event.key];
      if (!move) return;
      event.preventDefault();
      const next = Math.max(0, cell) + move;
      if (next >= 0 && next < run.lengths.length) point(next);
    });
    return redraw;
  });
  const facts = (run, i) => {
    const step = run.steps[i], count = run.lane.counts[step], ending = { s: 'sampled', b: 'bonus', r: 'recovered' }[run.lane.endings[step]];
    const drafts = count - 1;
    return [`${count} ${count === 1 ? 'token' : 'tokens'} in ${step ? `step ${step}` : 'the prefill'}`,
      `row ${Math.floor(i / run.grid) + 1}, column ${(i % run.grid) + 1} · ${drafts ? `${drafts} ${drafts === 1 ? 'draft' : 'drafts'} accepted, ` : ''}1 ${ending}`];
  };
  const tip = () => {
    const box = part('tip'), run = chosen[active];
    if (cell < 0 || !run) { box.hidden = true; return; }
    const [head, detail] = facts(run, cell), canvas = part(sides[active]);
    box.replaceChildren(Lantern.make('b', '', head), detail);
    box.hidden = false;
    const side = canvas.clientWidth / run.grid, origin = canvas.getBoundingClientRect(), frame = box.offsetParent.getBoundingClientRect();
    const x = origin.left - frame.left + (cell % run.grid) * side;
    box.style.left = `${Lantern.clamp(x - 30, 0, frame.width - box.offsetWidth)}px`;
    box.style.top = `${origin.top - frame.top + (Math.floor(cell / run.grid) + 1.3) * side}px`;
  };
  const redrawDifference = Lantern.canvas(part('difference'), (context, width) => {
    const [a, b] = chosen;
    if (!a || a.lengths.length !== b.lengths.length) { Lantern.paint(context, width, null, 0, 16); return; }
    Lantern.heat(context, width, b.lengths.map((value, i) => (value - a.lengths[i]) / 4), a.grid, Lantern.differenceColor);
  });

  const short = (run, i) => (chosen[0] && chosen[1] && chosen[0].lane.method === chosen[1].lane.method ? ['left', 'right'][i] : run.lane.name);
  const same = () => chosen[0].lane.method === chosen[1].lane.method;
  const draw = () => {
    canvases.forEach(redraw => redraw());
    redrawDifference();
    sides.forEach((side, i) => {
      const run = chosen[i], canvas = part(side);
      part(`${side}-mark`).innerHTML = run ? Lantern.mark(run.lane.method) : '';
      canvas.setAttribute('aria-label', run ? `Accepted length of each token, ${run.title}` : 'Accepted length, no run yet');
      canvas.setAttribute('aria-valuenow', Math.max(0, cell));
      canvas.setAttribute('aria-valuetext', run && cell >= 0 ? facts(run, cell).join(', ') : run ? `mean ${run.lane.summary.accepted_length.toFixed(2)} tokens a step` : '');
    });
    element.classList.toggle('idle', !chosen[0]);
    if (chosen[0]) { differenceLegend(); histogram(); }
    Lantern.chosenRuns = chosen.map(run => run && run.id);
  };
  const differenceLegend = () => {
    const ramp = Array.from({ length: 9 }, (_, i) => Lantern.rgb(Lantern.differenceColor(i / 4 - 1))).join(',');
    const bar = document.createElement('i'), ends = document.createElement('div');
    bar.style.background = `linear-gradient(90deg,${ramp})`;
    ends.append(Lantern.make('span', '', `${short(chosen[0], 0)} +4`), Lantern.make('span', '', `${short(chosen[1], 1)} +4`));
    part('difference-legend').replaceChildren(bar, ends);
    const total = chosen[1].lane.counts.length - chosen[0].lane.counts.length;
    part('difference').setAttribute('aria-label', `Difference of the accepted lengths; the right run takes ${Math.abs(total)} steps ${total <= 0 ? 'fewer' : 'more'}`);
  };
  /* Bars of both runs; of two runs of one method the left one is hatched. */
  const histogram = () => {
    const height = 296, width = Math.max(240, part('histogram').clientWidth), most = 6, row = height / most;
    const counts = chosen.map(run => {
      const bins = Array(most).fill(0);
      run.lane.counts.slice(1).forEach(count => { bins[Math.min(most, count) - 1]++; });   // the prefill drafts nothing
      return bins;
    });
    const top = Math.max(1, ...counts.flat()), X = value => value / top * (width - 74);
    const fill = i => (same() && !i ? 'url(#hatched)' : `var(${Lantern.methods[chosen[i].lane.method].fill})`);
    const color = `var(${Lantern.methods[chosen[0].lane.method].fill})`;
    let body = `<defs><pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V6" stroke="${color}" stroke-width="5"/></pattern></defs>`;
    for (let i = 0; i < most; i++) {
      const y = i * row, more = i + 1 === most && chosen.some(run => Math.max(...run.lane.counts) > most) ? '+' : '';
      body += `<text class="axis-t strong" x="8" y="${y + row / 2 + 1}" text-anchor="middle">${i + 1}${more}</text>`;
      counts.forEach((bins, j) => {
        const at = y + 7 + 14 * j;
        body += `<rect x="26" y="${at}" width="${Math.max(1, X(bins[i]))}" height="12" fill="${fill(j)}"/>`
          + `<text class="axis" x="${32 + X(bins[i])}" y="${at + 10}">${bins[i]}</text>`;
      });
    }
    part('histogram').innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="Steps by accepted length for both runs">${body}</svg>`;
    part('histogram-legend').replaceChildren(...chosen.map((run, i) => {
      const line = document.createElement('span');
      line.innerHTML = same() && !i ? `<svg viewBox="0 0 14 14"><rect width="14" height="14" fill="url(#hatched)"/></svg>` : Lantern.mark(run.lane.method);
      line.append(`${run.lane.label}${run.lane.method === 'ar' ? '' : `, tree ${run.lane.tree}`}: ${run.lane.summary.steps} steps, mean ${run.lane.summary.accepted_length.toFixed(2)}`);
      return line;
    }));
  };

  Lantern.segments(part('overlay'), ['With outline', 'Map alone', 'Picture'], over, 'Show the map', label => { over = label; draw(); });
  part('legend').innerHTML = Lantern.lengthLegend(7);
  new ResizeObserver(() => chosen[0] && histogram()).observe(part('histogram'));
  Lantern.on('finished', add);
  Lantern.on('theme', () => chosen[0] && differenceLegend());
  Lantern.finishedBefore.forEach(add);
  fill();
  draw();
};

/* Runs that finish before the maps are there are kept for them. */
Lantern.finishedBefore = [];
Lantern.on('finished', finished => Lantern.finishedBefore.push(finished));

/* ---- keep this run: files are made in the browser from what the server answers ---- */
Lantern.downloads = (element, server) => {
  let run = null;
  const word = element.querySelector('[data-part="said"]');
  const kept = answer => { if (!answer) throw new Error('gone'); return answer; };
  const save = (name, url) => Object.assign(document.createElement('a'), { href: url, download: name }).click();
  const text = (name, content, type = 'application/json') => {
    const url = URL.createObjectURL(new Blob([content], { type }));
    save(name, url);
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };
  const stem = (lane, what = lane.method) => `${run.typed[0].toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '').slice(0, 40) || 'picture'}-${what}-${lane.run.slice(0, 8)}`;
  const lanes = () => run.lanes.filter(lane => lane.run);
  const race = () => stem(lanes()[1] || lanes()[0], 'race');       // the second lane's run is what the race is about
  const actions = {
    pictures: async () => lanes().forEach(lane => save(`${stem(lane)}.png`, lane.image)),
    traces: async () => { for (const lane of lanes()) text(`${stem(lane)}.json`, kept(await server.trace(lane.run))); },
    figure: async () => save('accepted-length.png', kept(await server.figure(Lantern.chosenRuns))),
    gif: async () => save(`${race()}.gif`, kept(await server.gif(lanes().map(lane => lane.run)))),
    report: async () => text(`${race()}.html`, kept(await server.report(lanes().map(lane => lane.run))), 'text/html'),
  };
  const NOT_NOW = 'Not now: a run is being decoded, or one of these is no longer kept.';
  const GONE = { figure: NOT_NOW, gif: NOT_NOW, report: NOT_NOW };
  const buttons = [...element.querySelectorAll('button')];
  buttons.forEach(button => {
    button.insertAdjacentHTML('afterbegin', Lantern.icons.down);
    button.addEventListener('click', async () => {
      button.disabled = true;
      try { await actions[button.dataset.action](); word.textContent = ''; }
      catch { word.textContent = GONE[button.dataset.action] || 'That run is no longer kept; run it again.'; }
      button.disabled = !lanes().length;
    });
  });
  Lantern.on('shown', value => {
    run = value;
    buttons.forEach(button => { button.disabled = !lanes().length; });
  });
};
