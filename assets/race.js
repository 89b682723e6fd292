/* The race stage: two or three lanes, the score, the time tracks and the replay, drawn from one value (app/stage.py says what it holds). */

Lantern.stage = (element, props, watch, trigger, server) => {
  const part = name => element.querySelector(`[data-part="${name}"]`);
  const figures = [...element.querySelectorAll('.lane')];
  const grid = () => run.grid || 16;
  let run = props.value, typed = null, t = 0, playing = false, rate = 1, last = 0, atlas = null, atlasOf = '', announced = '', refused = 0;
  let chosen = 1, marks = true;                                  // the lane whose step is named; whether departures from AR are marked
  const painters = figures.map(() => ({ canvas: null, done: 0, picture: null, source: '' }));

  /* ---- the value: partial ones (a measurement) leave the lanes as they are; late ones of an old run are dropped.
     What is refused has no serial of its own: it stands beside the run on view until another one begins. ---- */
  const apply = value => {
    if (!value || value.serial < run.serial || value.refused <= refused) return;
    refused = value.refused || refused;
    const before = run, same = value.serial === before.serial;
    run = value.lanes ? { ...value, hint: same ? before.hint : '' } : { ...run, ...value };
    run.error = value.error || (same ? before.error : null);
    if (value.lanes && value.serial !== before.serial) {
      painters.forEach(painter => Object.assign(painter, { canvas: null, done: 0, picture: null, source: '' }));
      playing = false;
    }
    if (run.model && run.model !== atlasOf && run.state === 'running') fetchAtlas(run.model);
    if (run.state === 'done' && before.state !== 'done') finish(before.serial === run.serial);
    run.lanes.forEach((lane, i) => loadPicture(lane, painters[i]));
    Lantern.fieldError(run.error);
    if (value.model) Lantern.emit('model', value.model);          // what stands beside an older run tells no model
    Lantern.emit('shown', run);
    draw();
  };
  const finish = live => {
    t = end();
    const again = run.lanes[0].kept;                             // after a knob moved the pictures stay, the race was seen
    if (live && !again && !Lantern.still()) setTimeout(() => run.state === 'done' && t >= end() && play(), 1200);
  };
  const fetchAtlas = async model => {
    [atlas, atlasOf] = [null, model];
    let found = null;
    try {
      const source = await server.atlas(model);
      found = source ? await Lantern.image(source) : null;
    } catch { /* asked again with the next value */ }
    if (atlasOf !== model) return;                                // another model has taken its place meanwhile
    [atlas, atlasOf] = [found, found ? model : ''];
    draw();
  };
  const loadPicture = async (lane, painter) => {
    if (!lane.image || painter.source === lane.image) return;
    const shown = run;
    painter.source = lane.image;
    const loaded = await Lantern.image(lane.image);
    if (painter.source !== lane.image) return;                   // another run has taken its place meanwhile
    painter.picture = loaded;
    Lantern.emit('finished', { lane, picture: loaded, typed: shown.typed, grid: shown.grid || 16, recorded: !!shown.recorded });
    draw();
  };

  /* ---- what is on view: another prompt in the box hides the pictures of this one ---- */
  const stale = () => typed && run.typed && (typed[0].trim() !== String(run.typed[0]).trim() || typed[1] !== run.typed[1]);
  const state = () => (stale() ? 'stale' : run.state);
  const done = () => state() === 'done';
  const lines = () => run.lanes.map(Lantern.timeline);
  const end = () => Math.max(...lines().map(line => line.seconds), 0);
  const paintedTokens = (lane, line) => (stale() ? 0 : lane.summary && done() ? (t >= line.seconds - 1e-6 ? grid() ** 2 : line.tokensAt(t)) : lane.tokens.length);

  /* Live, each code is painted alone from the atlas; once the lane has finished, its decoded picture takes the place. */
  const picture = (lane, painter) => {
    if (painter.picture) return painter.picture;
    if (!(atlas instanceof HTMLImageElement)) return null;
    if (!painter.canvas) {
      painter.canvas = document.createElement('canvas');
      painter.canvas.width = painter.canvas.height = grid() * 8;
    }
    const context = painter.canvas.getContext('2d'), row = atlas.width / 8;    // codes a row of the atlas
    for (; painter.done < lane.tokens.length; painter.done++) {
      const code = lane.tokens[painter.done];
      context.drawImage(atlas, (code % row) * 8, Math.floor(code / row) * 8, 8, 8,
        (painter.done % grid()) * 8, Math.floor(painter.done / grid()) * 8, 8, 8);
    }
    return painter.canvas;
  };
  /* How many tokens to paint, and how many of them the newest step brought. */
  const painted = i => {
    const lane = run.lanes[i], line = Lantern.timeline(lane), n = paintedTokens(lane, line);
    const step = done() ? line.stepAt(t) : lane.counts.length - 1;
    const live = n && (done() ? t < line.seconds - 0.03 : lane.state === 'running');
    return { n, fresh: live ? lane.painted[Math.max(0, step)] : 0 };
  };
  const redraws = figures.map((figure, i) => Lantern.canvas(figure.querySelector('canvas'), (context, width) => {
    const lane = run.lanes[i];
    if (!lane) return;
    const { n, fresh } = painted(i);
    Lantern.paint(context, width, picture(lane, painters[i]), n, grid(), fresh, Lantern.css(i ? Lantern.methods[lane.method].fill : '--ink'));
    if (marks && done() && lane.same) Lantern.departures(context, width, grid(), lane.same, n);
    window.lanternPaints = (window.lanternPaints || 0) + 1;
  }));
  const drawn = figures.map(() => '');                           // what each canvas shows, so that only changes are painted
  const redrawChanged = () => run.lanes.forEach((lane, i) => {
    const { n, fresh } = painted(i), source = painters[i].picture ? painters[i].source.length : atlas instanceof HTMLImageElement;
    const shows = [run.serial, lane.method, n, fresh, source, marks, done()].join(), redraw = redraws[i];
    if (shows !== drawn[i]) { drawn[i] = shows; redraw(); }
  });
  const strips = figures.map((figure, i) => Lantern.stepStrip(figure, () => {
    const lane = stale() ? null : run.lanes[i], longest = Math.max(...run.lanes.map(each => each.counts.length));
    return { lane, grid: grid(), room: Math.max(grid() * (run.row_tokens || grid()), longest) - 1, key: run.serial,
      now: lane ? (done() ? Math.max(0, Lantern.timeline(lane).stepAt(t)) : lane.counts.length - 1) : 0 };
  }, step => { if (done()) { chosen = i; seek(run.lanes[i].ends[step]); } }, () => toggle()));
  const redrawTracks = Lantern.canvas(part('tracks'), (context, width, height) => {
    const now = state();
    if (now === 'done') Lantern.tracks(context, width, height, run.lanes, t, 0);
    else if (now === 'running' || now === 'stopped') {
      const longest = Math.max(...run.lanes.map(lane => lane.ends.at(-1) || 0));
      Lantern.tracks(context, width, height, run.lanes, 0, Math.max(8, Math.ceil(longest * 1.15)));
    } else Lantern.tracks(context, width, height, run.lanes.map(lane => ({ ...lane, state: '', summary: null, ends: [], counts: [], painted: [] })), 0, 8);
  });

  /* ---- words and numbers ---- */
  const score = Lantern.score(part);
  const laneNote = (lane, line, i) => {
    if (done()) return t >= line.seconds - 1e-6 ? `done in ${line.seconds.toFixed(2)} s${lane.kept ? ', kept' : ''}` : `${line.tokensAt(t)} of ${grid() ** 2} tokens`;
    if (state() === 'stale' || state() === 'empty') return '';
    return {
      running: `${lane.tokens.length} of ${grid() ** 2} tokens`,
      waiting: ['', 'next', 'last'][i],
      stopped: lane.tokens.length ? `stopped at pass ${lane.counts.length}` : '',
      failed: 'failed',
      done: lane.summary ? `done in ${lane.summary.seconds.toFixed(2)} s` : '',
    }[lane.state] || '';
  };
  const laneMessage = (lane, i) => {
    switch (state()) {
      case 'stale': return i ? '' : 'Press Generate to paint this prompt.';
      case 'empty': return i ? 'Its picture appears here, painted with the draft tree.' : 'Type a prompt and press Generate. Plain autoregression paints here.';
      case 'loading': return i ? 'Waits for the model.' : run.note;
      case 'stopped': return lane.summary ? '' : lane.tokens.length ? '' : 'Stopped before it began.';
      case 'failed': return lane.state === 'failed' ? lane.note : '';
      case 'running':
        if (lane.state !== 'waiting') return '';
        return run.note && !i ? run.note : 'Waits for its turn: each lane runs alone, so that the times are fair.';
      default: return '';
    }
  };
  const runLine = () => {
    if (stale() || !run.typed || run.state === 'empty') { Lantern.say(part('run'), '\u00a0'); return; }
    const lanes = run.lanes.filter(lane => lane.run), seed = lanes[0] ? lanes[0].settings.seed : run.seed;
    Lantern.say(part('run'), [`“${run.typed[0]}”, ${run.typed[1]}`, seed === undefined ? '' : `seed ${seed}`,
      ...lanes.map(lane => `${lane.method === 'ar' ? 'AR' : lane.label} run ${lane.run.slice(0, 8)}`),
      run.recorded ? 'recorded' : ''].filter(Boolean).join(' · '));
  };

  const draw = () => {
    const now = state(), measured = lines();
    Object.assign(element.dataset, { state: now, serial: run.serial, lanes: run.lanes.length });
    figures.forEach((figure, i) => { figure.hidden = !run.lanes[i]; });
    run.lanes.forEach((lane, i) => {
      const figure = figures[i], well = figure.querySelector('.well'), over = figure.querySelector('.over');
      const message = laneMessage(lane, i), n = paintedTokens(lane, measured[i]);
      figure.dataset.method = lane.method;
      if (figure.dataset.drawn !== lane.method) {
        figure.querySelector('.slot').innerHTML = Lantern.mark(lane.method);
        figure.dataset.drawn = lane.method;
      }
      Lantern.say(figure.querySelector('strong'), lane.name);
      Lantern.say(figure.querySelector('em'), laneNote(lane, measured[i], i));
      over.hidden = !message;
      Lantern.say(over, message);
      const busy = (now === 'running' && lane.state === 'running') || (now === 'loading' && !i);
      well.setAttribute('aria-busy', busy);
      well.style.setProperty('--p', now === 'loading' ? '0%' : `${100 * lane.tokens.length / grid() ** 2}%`);
      figure.querySelector('canvas').setAttribute('aria-label', `Picture of ${lane.name}: ${message || `${n} of ${grid() ** 2} tokens painted`}`);
    });
    redrawChanged();
    strips.forEach(redraw => redraw());
    redrawTracks();
    departed();
    picked(measured);
    score({ ...run, state: now });
    runLine();
    transport(measured);
    announce();
  };
  /* Where a picture that should be AR's is not, in words; the line keeps its place while such a run goes on. */
  const departed = () => {
    const any = run.state !== 'empty' && run.lanes.some(lane => lane.same || /^coupled/.test(lane.method));
    run.lanes.forEach((lane, i) => {
      const words = figures[i].querySelector('.same');
      words.hidden = !any;                                       // below all pictures, so that the strips stand in line
      Lantern.say(words, done() && lane.same ? lane.same.words : '\u00a0');
    });
    const parted = done() && run.lanes.some(({ same }) => same && (same.swapped.length || same.later.length || same.flipped !== null));
    part('marks').hidden = !parted;
  };
  /* The step that the replay has reached in the chosen lane. */
  const picked = measured => {
    const i = run.lanes[chosen] ? chosen : 1, lane = run.lanes[i], steps = lane.counts.length - 1, link = part('inspect');
    element.querySelector('.picked').classList.toggle('off', !done() || steps < 1);
    if (!done() || steps < 1) return;
    const step = Lantern.clamp(measured[i].stepAt(t), 1, steps), [head, detail] = Lantern.stepFacts(lane, step);
    Lantern.fill(part('picked'), Lantern.make('b', '', `${lane.name}, ${head[0].toLowerCase()}${head.slice(1)}`), ` · ${detail}`);
    link.href = Lantern.linkTo({ view: 'Step inspector', run: lane.run, step });
    link.onclick = event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;   // a new tab opens by the link itself
      event.preventDefault();
      Lantern.visit('Step inspector', { run: lane.run, step });
    };
  };
  part('marks').addEventListener('click', () => { marks = !marks; part('marks').setAttribute('aria-pressed', marks); draw(); });
  const transport = measured => {
    const over = done() && t >= end() - 0.01, clock = part('clock'), tracks = part('tracks');
    element.querySelector('.transport').classList.toggle('off', !done());
    if (!done()) return;
    const label = playing ? `${Lantern.icons.pause}Pause` : `${Lantern.icons.play}${over ? 'Replay' : 'Play'}`;
    if (part('play').dataset.label !== label) { part('play').innerHTML = label; part('play').dataset.label = label; }
    clock.replaceChildren(Lantern.make('b', '', `${Math.min(t, end()).toFixed(2)} s`), ` of ${end().toFixed(2)} s`);
    tracks.setAttribute('aria-valuemax', end().toFixed(2));
    tracks.setAttribute('aria-valuenow', t.toFixed(2));
    tracks.setAttribute('aria-valuetext', `${t.toFixed(1)} seconds: `
      + run.lanes.map((lane, i) => `${lane.name} ${paintedTokens(lane, measured[i])} tokens`).join(', '));
  };
  /* Screen readers hear the turns of a run, not every token. */
  const announce = () => {
    const text = done() && run.lanes[1].speedup ? `Done. Measured speedup ${run.lanes.slice(1).map(lane => `${lane.name} ${Lantern.speedup(run, lane)}`).join(', ')} times.`
      : state() === 'running' ? `${(run.lanes.find(lane => lane.state === 'running') || { name: 'The worker' }).name} is running.`
        : state() === 'stopped' ? 'Stopped.' : '';
    if (text !== announced) part('announce').textContent = announced = text;
  };

  /* ---- replay: only time that is real moves, at most 12 paints a second ---- */
  const tick = now => {
    if (!playing) return;
    if (now - last > 80) {
      t = Math.min(end(), t + (now - last) / 1000 * rate);
      last = now;
      if (t >= end()) playing = false;
      draw();
    }
    requestAnimationFrame(tick);
  };
  const play = () => {
    if (!done()) return;
    if (t >= end() - 0.01) t = 0;
    playing = true;
    last = performance.now();
    draw();
    requestAnimationFrame(tick);
  };
  const seek = seconds => { playing = false; t = Lantern.clamp(seconds, 0, end()); draw(); };
  const tracks = part('tracks');
  const seekTo = event => {
    const box = tracks.getBoundingClientRect();
    if (done()) seek((event.clientX - box.left) / box.width * end() * 1.002);
  };
  tracks.addEventListener('pointerdown', event => { seekTo(event); tracks.setPointerCapture(event.pointerId); });
  tracks.addEventListener('pointermove', event => { if (tracks.hasPointerCapture(event.pointerId)) seekTo(event); });
  tracks.addEventListener('keydown', event => {
    if (!done()) return;
    const lane = run.lanes[1], line = Lantern.timeline(lane), move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) seek(lane.ends[Lantern.clamp(line.stepAt(t) + move, 0, lane.ends.length - 1)]);
    else if (event.key === 'Home') seek(0);
    else if (event.key === 'End') seek(end());
    else if (event.key === ' ') toggle();
    else return;
    event.preventDefault();
  });
  const toggle = () => { if (playing) { playing = false; draw(); } else play(); };
  part('play').addEventListener('click', toggle);
  Lantern.segments(part('speed'), ['¼×', '½×', '1×', '2×'], '1×', 'Replay speed', label => { rate = { '¼×': 0.25, '½×': 0.5, '1×': 1, '2×': 2 }[label]; });
  part('legend').innerHTML = Lantern.lengthLegend(7);
  part('measure').addEventListener('click', () => trigger('measure'));
  Lantern.on('typed', now => { typed = now; draw(); });

  watch('value', () => apply(props.value));
  run.lanes.forEach((lane, i) => loadPicture(lane, painters[i]));
  (run.more || []).forEach(async lane => {
    const { typed: words, grid: side = 16 } = run;
    Lantern.emit('finished', { lane, picture: await Lantern.image(lane.image), typed: words, grid: side, recorded: true, extra: true });
  });
  if (run.model) Lantern.emit('model', run.model);
  Lantern.emit('shown', run);
  if (done() && !Lantern.still()) play();
  else { t = end(); draw(); }
};
