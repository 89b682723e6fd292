/* Below each picture of the race: all its steps, one cell each, and where a picture that should be AR's departs from it. */

/* What a step brought, as a tooltip and a screen reader say it. Steps count from 1; the prefill, which drafts nothing, is none. */
Lantern.stepFacts = (lane, step) => {
  const count = lane.counts[step], drafts = lane.endings && lane.endings[step] === 'e' ? count : count - 1;
  const ending = lane.endings && { s: 'sampled', b: 'bonus', r: 'recovered' }[lane.endings[step]];
  const parts = [drafts ? `${drafts} ${drafts === 1 ? 'draft' : 'drafts'} accepted` : '', ending ? `1 ${ending}` : ''].filter(Boolean);
  const took = 1000 * (lane.ends[step] - lane.ends[step - 1]);
  return [`Step ${step} of ${lane.counts.length - 1}: ${count} ${count === 1 ? 'token' : 'tokens'}`,
    `${parts.join(', ')}${parts.length ? ' · ' : ''}${took.toFixed(1)} ms, ended at ${lane.ends[step].toFixed(2)} s`];
};

/* The strip of a lane: rows as long for every lane, so that fewer steps are a shorter strip. Arrows choose a cell, Enter or
   a click goes to the moment that its step ended. `look()` gives the lane, the grid, cells to leave room for, the step that
   the replay has reached, and a key of the run. Returns the redraw. */
Lantern.stepStrip = (figure, look, go, toggle) => {
  const canvas = figure.querySelector('.steps'), tip = figure.querySelector('.tip');
  let cursor = 0, hover = 0, drawn = '', of = '';
  const shape = () => {
    const { grid, room } = look(), columns = 2 * grid, rows = Math.max(1, Math.ceil(room / columns));
    return { columns, rows, tall: Lantern.clamp(80 / rows, 3, 10) };
  };
  const count = () => { const { lane } = look(); return lane ? Math.max(0, lane.counts.length - 1) : 0; };
  const redraw = Lantern.canvas(canvas, (context, width) => {
    const { lane, now } = look(), { columns, tall } = shape(), wide = width / columns, gap = wide > 4 ? 1 : 0.4;
    context.clearRect(0, 0, width, canvas.clientHeight);
    const at = step => [((step - 1) % columns) * wide, Math.floor((step - 1) / columns) * tall];
    for (let step = 1; step <= count(); step++) {
      const [x, y] = at(step);
      context.globalAlpha = step <= now ? 1 : 0.26;
      context.fillStyle = Lantern.rgb(Lantern.lengthColor(lane.counts[step]));
      context.fillRect(x, y, Math.max(0.6, wide - gap), tall - gap);
    }
    context.globalAlpha = 1;
    for (const [step, color, line] of [[Math.min(now, count()), '--ink', 1.5], [hover || cursor, '--relax', 2]]) {
      if (!step) continue;
      const [x, y] = at(step);
      context.strokeStyle = Lantern.css(color);
      context.lineWidth = line;
      context.strokeRect(Math.max(x, line / 2) - 0.5, Math.max(y, line / 2) - 0.5, Math.max(3, wide), Math.max(3, tall));
    }
  });
  const say = () => {
    const { lane, now } = look(), step = cursor || Math.max(1, now), [head, detail] = count() ? Lantern.stepFacts(lane, Math.min(step, count())) : ['No step yet', ''];
    canvas.setAttribute('aria-valuemax', Math.max(1, count()));
    canvas.setAttribute('aria-valuenow', Math.min(step, Math.max(1, count())));
    canvas.setAttribute('aria-valuetext', detail ? `${head}. ${detail}. Enter goes there.` : head);
  };
  const show = () => {
    const step = hover || cursor, { columns, tall } = shape();
    tip.hidden = !step;
    redraw();
    say();
    if (!step) return;
    const [head, detail] = Lantern.stepFacts(look().lane, step), x = canvas.offsetLeft + ((step - 1) % columns) * canvas.clientWidth / columns;
    tip.replaceChildren(Lantern.make('b', '', head), detail);
    tip.style.left = `${Lantern.clamp(x - 30, 0, Math.max(0, figure.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${canvas.offsetTop + (Math.floor((step - 1) / columns) + 1) * tall + 6}px`;
  };
  const under = event => {
    const box = canvas.getBoundingClientRect(), { columns, tall } = shape();
    const step = Math.floor((event.clientY - box.top) / tall) * columns + Lantern.clamp(Math.floor((event.clientX - box.left) / box.width * columns), 0, columns - 1) + 1;
    return step >= 1 && step <= count() ? step : 0;
  };
  canvas.addEventListener('pointermove', event => {
    const step = event.pointerType === 'touch' ? 0 : under(event);
    if (step !== hover) { hover = step; cursor = 0; show(); }
  });
  canvas.addEventListener('pointerleave', () => { if (hover) { hover = 0; show(); } });
  canvas.addEventListener('click', event => { const step = under(event); if (step) { hover = cursor = 0; go(step); show(); } });
  canvas.addEventListener('focus', () => { if (canvas.matches(':focus-visible') && count()) { cursor = Math.max(1, Math.min(look().now, count())); show(); } });
  canvas.addEventListener('blur', () => { cursor = 0; show(); });
  canvas.addEventListener('keydown', event => {
    if (!count()) return;
    const { columns } = shape(), move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity }[event.key];
    const from = cursor || Math.max(1, look().now);
    if (move) { hover = 0; cursor = Lantern.clamp(from + move, 1, count()); show(); }
    else if (event.key === 'Enter') go(from);
    else if (event.key === ' ') toggle();
    else return;
    event.preventDefault();
  });
  return () => {
    const { lane, now, key, room, grid } = look(), { rows, tall } = shape();
    const shows = [key, count(), now, room, grid].join();
    if (key !== of) { of = key; hover = cursor = 0; tip.hidden = true; }
    if (shows === drawn) return;
    drawn = shows;
    const height = `${Math.max(80, Math.ceil(rows * tall)) + 1}px`;   // small grids too, so that nothing jumps when a model is known
    if (canvas.style.height !== height) canvas.style.height = height;
    canvas.setAttribute('aria-label', lane ? `Steps of ${lane.name}` : 'Steps');
    redraw();
    say();
  };
};

/* Marks on a picture that should be AR's: a frame where a near-equal code was swapped in, or where rounding flipped a
   near-tie; a dot where a token differs only since the picture before it does. */
Lantern.departures = (context, width, grid, same, painted) => {
  const side = width / grid, dot = Lantern.clamp(side / 6, 1.2, 2.6);
  const framed = same.flipped === null ? same.swapped : [...same.swapped, same.flipped];
  for (const place of same.later.filter(each => each < painted)) {
    const x = (place % grid + 0.5) * side, y = (Math.floor(place / grid) + 0.5) * side;
    for (const [radius, color] of [[dot + 0.8, '#fff'], [dot, '#000']]) {
      context.fillStyle = color;
      context.globalAlpha = color === '#fff' ? 0.7 : 0.8;
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fill();
    }
  }
  context.globalAlpha = 1;
  for (const place of framed.filter(each => each < painted)) {
    Lantern.cells(context, side, grid, place, 1, '#fff', Lantern.clamp(side / 5, 2.5, 4));
    Lantern.cells(context, side, grid, place, 1, '#b0468c', Lantern.clamp(side / 8, 1.5, 2.5));
  }
};
