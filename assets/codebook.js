/* The Codebook view: a map of all codes, the nearest of one, and a picture with every token exchanged. */

Lantern.codebook = (element, props, server) => {
  const part = name => element.querySelector(`[data-part="${name}"]`);
  const PATCHES = 36, KS = [1, 2, 3, 5, 10, 20, 50, 100, 300, 1000];
  let plane = null, atlas = null, near = null, code = 0, hover = -1, k = 10, base = null, asked = 0, began = 0;

  /* ---- patches: a code as it is painted alone, 8 × 8 pixels of the atlas ---- */
  const patch = (context, index, x, y, side) => {
    if (!atlas) { context.fillStyle = Lantern.css('--ink-3'); context.fillRect(x + side / 4, y + side / 4, side / 2, side / 2); return; }
    const row = atlas.width / 8;
    context.drawImage(atlas, (index % row) * 8, Math.floor(index / row) * 8, 8, 8, x, y, side, side);
  };

  /* ---- the map ---- */
  const canvas = part('map');
  const count = () => plane.x.length;
  const place = (width, index) => {
    const room = width / 2 * 0.94;
    return [width / 2 + plane.x[index] * room, width / 2 - plane.y[index] * room];
  };
  const size = width => Lantern.clamp(width * 0.85 / Math.sqrt(count()), 5, 26);
  const ring = (context, width, index, color, line, grow) => {
    const [x, y] = place(width, index), side = size(width) + grow;
    for (const [shade, thick] of [[Lantern.css('--bg'), line + 2], [color, line]]) {
      context.strokeStyle = shade;
      context.lineWidth = thick;
      context.strokeRect(x - side / 2, y - side / 2, side, side);
    }
  };
  const redraw = Lantern.canvas(canvas, (context, width) => {
    context.clearRect(0, 0, width, width);
    if (!plane) return;
    if (!base || base.width !== canvas.width || base.theme !== Lantern.css('--bg') || base.atlas !== atlas) {
      base = Object.assign(document.createElement('canvas'), { width: canvas.width, height: canvas.height });
      Object.assign(base, { theme: Lantern.css('--bg'), atlas });
      const ground = base.getContext('2d'), side = size(width);
      ground.scale(canvas.width / width, canvas.height / width);
      for (let i = 0; i < count(); i++) { const [x, y] = place(width, i); patch(ground, i, x - side / 2, y - side / 2, side); }
    }
    context.drawImage(base, 0, 0, width, width);
    if (near && near.code === code) {
      near.neighbours.slice(0, k).reverse().forEach(each => {
        const [x, y] = place(width, each), side = size(width);
        if (k <= 100) { ring(context, width, each, Lantern.css('--ink'), k > 20 ? 1.5 : 2, 4); patch(context, each, x - side / 2, y - side / 2, side); }
        else { context.strokeStyle = Lantern.css('--ink'); context.lineWidth = 1; context.strokeRect(x - side / 2, y - side / 2, side, side); }
      });
    }
    for (const [index, color] of [[hover, '--ink'], [code, '--relax']]) {
      if (index < 0) continue;
      const [x, y] = place(width, index), side = size(width) * 2.2;
      ring(context, width, index, Lantern.css(color), 2.5, size(width) * 1.2 + 2);
      patch(context, index, x - side / 2, y - side / 2, side);
    }
  });
  const closest = (width, x, y, allowed = () => true) => {
    let best = -1, least = Infinity;
    for (let i = 0; i < count(); i++) {
      const [px, py] = place(width, i), far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least && allowed(px - x, py - y, i)) { best = i; least = far; }
    }
    return [best, Math.sqrt(least)];
  };
  const under = event => {
    const box = canvas.getBoundingClientRect();
    const [index, far] = plane ? closest(box.width, event.clientX - box.left, event.clientY - box.top) : [-1, 0];
    return far < 16 ? index : -1;
  };
  const tip = () => {
    const box = part('tip'), width = canvas.clientWidth;
    box.hidden = hover < 0;
    if (hover < 0) return;
    const at = near ? near.neighbours.indexOf(hover) : -1, [x, y] = place(width, hover);
    box.replaceChildren(Lantern.make('b', '', `Code ${hover}`), at >= 0 ? `neighbour ${at + 1} of code ${code}, ${near.distances[at].toFixed(2)} away` : 'Click to pick it');
    box.style.left = `${Lantern.clamp(x - 30, 4, width - box.offsetWidth - 4)}px`;
    box.style.top = `${y > width - 80 ? y - 70 : y + 22}px`;
  };
  canvas.addEventListener('pointermove', event => {
    const next = under(event);
    if (next !== hover) { hover = next; redraw(); tip(); }
  });
  canvas.addEventListener('pointerleave', () => { hover = -1; redraw(); tip(); });
  canvas.addEventListener('click', event => { const next = under(event); if (next >= 0) pick(next); });
  canvas.addEventListener('keydown', event => {
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!way || !plane) return;
    event.preventDefault();
    const width = canvas.clientWidth, [x, y] = place(width, code);
    const [next] = closest(width, x, y, (dx, dy, i) => i !== code && dx * way[0] + dy * way[1] > Math.abs(dx * way[1] - dy * way[0]));
    if (next >= 0) pick(next);
  });

  /* ---- one code ---- */
  Lantern.placeOf.codebook = () => (near ? { code } : {});
  const pick = async index => {
    code = Lantern.clamp(Math.round(index) || 0, 0, count() - 1);
    part('field').value = code;
    redraw();
    const mine = ++asked, answer = await server.near(code).catch(() => null);
    if (mine !== asked || !answer) return;                       // a later pick wins
    near = answer;
    show();
  };
  const chosen = Lantern.canvas(part('chosen'), (context, width) => { context.clearRect(0, 0, width, width); if (plane) patch(context, code, 0, 0, width); });
  const cells = Array.from({ length: PATCHES }, () => {
    const button = Lantern.make('button', 'patch'), face = document.createElement('canvas'), words = document.createElement('span');
    button.type = 'button';
    button.append(face, words);
    button.addEventListener('click', () => near && pick(near.neighbours[button.dataset.at]));
    part('patches').append(button);
    return { button, words, redraw: Lantern.canvas(face, (context, width) => { if (near) patch(context, near.neighbours[button.dataset.at], 0, 0, width); }) };
  });
  const show = () => {
    if (!near) return;
    const n = near.neighbours.length, at = Math.min(k, n) - 1, nearest = near.distances[0];
    Lantern.say(part('code'), String(code));
    Lantern.say(part('within'), `${at + 1} ${at ? 'codes lie' : 'code lies'} within ${near.distances[at].toFixed(2)}`);
    Lantern.say(part('far'), `The nearest is ${nearest.toFixed(2)} away, a random code ${near.random.toFixed(2)} on average.`);
    Lantern.say(part('said'), `Code ${code}: nearest is code ${near.neighbours[0]} at ${nearest.toFixed(2)}. The ${at + 1} nearest are ringed; arrow keys move to the next code.`);
    part('chosen').setAttribute('aria-label', `Code ${code} as it is painted alone`);
    canvas.setAttribute('aria-label', `Map of ${count()} codes. Code ${code} is picked; its nearest is code ${near.neighbours[0]}, ${nearest.toFixed(2)} away. Arrow keys move.`);
    cells.forEach((cell, i) => {
      cell.button.hidden = i >= n;
      if (i >= n) return;
      cell.button.dataset.at = i;
      cell.button.classList.toggle('beyond', i >= k);
      cell.words.textContent = `${i + 1} · ${near.distances[i].toFixed(2)}`;
      cell.button.setAttribute('aria-label', `Neighbour ${i + 1}: code ${near.neighbours[i]}, distance ${near.distances[i].toFixed(2)}${i < k ? '' : ', beyond k'}`);
      cell.redraw();
    });
    redraw();
    chosen();
    distances();
  };
  const distances = () => {
    const box = part('distances'), width = Math.max(220, box.clientWidth), height = 172, n = near.neighbours.length, left = 30;
    const X = Lantern.logX(n, left, width - 14), top = near.random * 1.04, Y = value => height - 22 - value / top * (height - 44);
    const step = top > 2 ? 1 : 0.5, at = Math.min(k, n);
    const points = near.distances.map((distance, i) => [X(i + 1), Y(distance)]);
    let body = '';
    for (let value = 0; value < near.random - step / 4; value += step) {
      body += `<path d="M${left} ${Y(value)}H${width}" stroke="var(--line)"/><text class="axis" x="${left - 6}" y="${Y(value) + 4}" text-anchor="end">${value}</text>`;
    }
    body += Lantern.decades(n).map(each => `<text class="axis" x="${X(each)}" y="${height - 4}" text-anchor="${each === 1 ? 'start' : 'middle'}">${each.toLocaleString('en')}</text>`).join('');
    const edge = X(at) > width * 0.6;
    body += `<path d="M${left} ${Y(near.random)}H${width}" stroke="var(--ink-3)" stroke-dasharray="3 3"/>`
      + `<text class="axis" x="${width}" y="${Y(near.random) - 6}" text-anchor="end">random codes, ${near.random.toFixed(2)}</text>`
      + `<path d="${Lantern.line(points)}" fill="none" stroke="var(--relax-fill)" stroke-width="2"/>`
      + `<path d="M${X(at)} ${Y(near.distances[at - 1])}V${height - 22}" stroke="var(--ink-3)" stroke-dasharray="2 3"/>`
      + `<circle cx="${X(at)}" cy="${Y(near.distances[at - 1])}" r="4.5" fill="var(--relax)"/>`
      + `<text class="axis-t" x="${X(at) + (edge ? -8 : 8)}" y="${Y(near.distances[at - 1]) + (edge ? -9 : 16)}" text-anchor="${edge ? 'end' : 'start'}">k = ${k}: ${near.distances[at - 1].toFixed(2)}</text>`;
    box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="Distance of the j-th neighbour of code ${code}, from ${near.distances[0].toFixed(2)} to ${near.distances.at(-1).toFixed(2)}; a random code is ${near.random.toFixed(2)} away">${body}</svg>`;
  };
  part('field').addEventListener('change', event => plane && pick(Number(event.target.value)));

  /* ---- exchanged pictures ---- */
  const swap = Lantern.swap(element, server, props.value);

  /* ---- opening: the map as soon as there is a tokenizer, the patches when they are drawn ---- */
  const open = async () => {
    plane ||= await server.plane('').catch(() => null);
    if (plane && !near) {
      part('title').textContent = `${count().toLocaleString('en')} codes, near in looks`;
      part('lead').textContent = `Every code drawn as what it paints, placed by its first two principal components (${Lantern.percent(plane.share)} of the variance). Pick one.`;
      part('field').max = count() - 1;
      k = Math.min(k, count() - 1);
      Lantern.slider(part('k'), {
        label: [Lantern.make('i', '', 'k'), ', neighbours that may be pooled'], value: k, help: 'Ringed on the map.',
        values: [...KS.filter(each => each < count() - 1), Math.min(1000, count() - 1)], change: value => { k = value; show(); },
      });
      const linked = new URLSearchParams(location.search).get('code');
      await pick(/^\d{1,6}$/.test(linked) ? Number(linked) : props.value.start);
    }
    if (plane && !atlas) {
      const source = await server.atlas('').catch(() => null);
      if (source) { atlas = await Lantern.image(source); show(); return; }
    }
    if (plane && atlas) return;
    began ||= Date.now();
    part('said').textContent = `${plane ? 'Each code is being drawn' : 'The tokenizer is being loaded'}, ${Math.round((Date.now() - began) / 1000)} s. First time only.`;
    setTimeout(open, 1000);
  };
  new ResizeObserver(() => near && distances()).observe(part('distances'));

  const actions = {
    map: () => canvas.toBlob(blob => Lantern.download('codebook-map.png', blob)),
    near: () => near && Lantern.download(`code-${code}-neighbours.csv`, `j,code,distance\n${near.neighbours.map((each, i) => `${i + 1},${each},${near.distances[i]}`).join('\n')}\n`, 'text/csv'),
    ...swap,
  };
  element.querySelectorAll('[data-action]').forEach(button => {
    button.insertAdjacentHTML('afterbegin', Lantern.icons.down);
    button.addEventListener('click', () => actions[button.dataset.action]());
  });
  open();
};

/* A picture, the same with every token exchanged for its j-th neighbour, and with random codes. All are decoded once. */
Lantern.swap = (element, server, { runs }) => {
  const part = name => element.querySelector(`[data-part="${name}"]`);
  const pictures = [...runs], select = part('run');
  let made = null, j = 10, wanted = '', slide = null;

  const list = () => {
    select.replaceChildren(...(pictures.length ? pictures : [{ title: 'No picture yet' }]).map(each => Lantern.make('option', '', each.title)));
    select.disabled = !pictures.length;
    select.selectedIndex = Math.max(0, pictures.findIndex(each => each.run === wanted));
  };
  const decibels = value => (value === null ? 'identical' : `${value.toFixed(1)} dB`);
  const picture = (name, item, alt) => Object.assign(part(name), { src: item.image, alt });
  const load = async run => {
    wanted = run;
    const answer = await server.swaps(run).catch(() => null);
    if (run !== wanted) return;
    if (!answer || answer.wait) {
      part('swapped-facts').textContent = answer ? 'Waits until no run is being decoded.' : 'That run is no longer kept.';
      if (answer) setTimeout(() => run === wanted && load(run), 1000);
      return;
    }
    made = answer;
    const last = made.ranks.at(-1);
    slide ||= Lantern.slider(part('j'), {
      label: ['Swap for neighbour ', Lantern.make('i', '', 'j')], values: [0, ...made.ranks], value: j = Math.min(j, last),
      change: value => { j = value; show(); },
    });
    show();
  };
  const show = () => {
    if (!made) return;
    const item = j ? made.swapped[made.ranks.indexOf(j)] : made.own, title = (pictures.find(each => each.run === made.run) || { title: '' }).title;
    part('tokens').textContent = made.tokens;
    part('swapped-title').textContent = j ? `Neighbour ${j}` : 'Nothing swapped';
    picture('own', made.own, `${title}, as decoded`);
    picture('swapped', item, `The same with every token swapped for its neighbour ${j}: ${decibels(item.psnr)}`);
    picture('random', made.random, `The same with random codes: ${decibels(made.random.psnr)}`);
    part('swapped-facts').textContent = `${decibels(item.psnr)} to the picture as decoded`;
    part('random-facts').textContent = decibels(made.random.psnr);
    curve();
  };
  /* Curves over j, each with its own unit; a further measure, such as a scorer's similarity, is one more entry. */
  const curve = () => {
    const series = [{ name: 'PSNR, dB', values: made.swapped.map(each => each.psnr), random: made.random.psnr, color: '--relax-fill', ink: '--relax' }];
    const box = part('curve'), width = Math.max(260, box.clientWidth), height = 236, left = 30, top = made.ranks.at(-1);
    const X = Lantern.logX(top, left, width - 16), body = [];
    series.forEach(({ name, values, random, color, ink }) => {
      const known = values.filter(value => value !== null), low = Math.floor(Math.min(...known, random) / 5) * 5, high = Math.ceil(Math.max(...known, random) / 5) * 5;
      const Y = value => height - 24 - (value - low) / Math.max(1, high - low) * (height - 54), step = high - low > 15 ? 10 : 5;
      for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
        body.push(`<path d="M${left} ${Y(value)}H${width}" stroke="var(--line)"/><text class="axis" x="${left - 6}" y="${Y(value) + 4}" text-anchor="end">${value}</text>`);
      }
      const points = values.map((value, i) => [X(made.ranks[i]), Y(value === null ? high : value)]), at = made.ranks.indexOf(j);
      body.push(`<path d="M${left} ${Y(random)}H${width}" stroke="var(--ink-3)" stroke-dasharray="3 3"/><text class="axis" x="${width}" y="${Y(random) - 6}" text-anchor="end">random codes, ${random.toFixed(1)}</text>`,
        `<path d="${Lantern.line(points)}" fill="none" stroke="var(${color})" stroke-width="2"/>`,
        ...points.map(([x, y]) => `<circle cx="${x}" cy="${y}" r="3" fill="var(${color})"/>`),
        `<text class="axis-t" x="${left}" y="12">${name}</text>`);
      if (at >= 0) {
        const [x, y] = points[at], edge = x > width * 0.8;
        body.push(`<path d="M${x} ${y - 7}L${x + 7} ${y} ${x} ${y + 7} ${x - 7} ${y}Z" fill="var(${ink})"/><text class="axis-t" x="${x + (edge ? -10 : 10)}" y="${y - 9}" text-anchor="${edge ? 'end' : 'start'}">${values[at].toFixed(1)}</text>`);
      }
    });
    body.push(...Lantern.decades(top).map(each => `<text class="axis" x="${X(each)}" y="${height - 4}" text-anchor="${each === 1 ? 'start' : 'middle'}">${each === 1 ? 'j = 1' : each.toLocaleString('en')}</text>`));
    const words = made.ranks.map((rank, i) => `${decibels(made.swapped[i].psnr)} at ${rank}`).join(', ');
    box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="PSNR by neighbour: ${words}; random codes ${decibels(made.random.psnr)}">${body.join('')}</svg>`;
  };
  select.addEventListener('change', () => load(pictures[select.selectedIndex].run));
  const add = ({ lane, typed, recorded }) => {
    if (pictures.some(each => each.run === lane.run)) return;
    pictures.unshift({ run: lane.run, title: `${typed[0]}, ${lane.label}${recorded ? ', recorded' : ''}` });
    list();
    if (!made && !wanted) load(lane.run);
  };
  list();
  if (pictures.length) load(pictures[0].run);
  Lantern.finishedBefore.forEach(add);
  Lantern.on('finished', add);
  new ResizeObserver(() => made && curve()).observe(part('curve'));
  return {
    picture: () => made && Object.assign(document.createElement('a'), { href: part('swapped').src, download: `neighbour-${j}.png` }).click(),
    curve: () => made && Lantern.download('swap-psnr.csv', `j,psnr_db\n${made.ranks.map((rank, i) => `${rank},${made.swapped[i].psnr ?? 'inf'}`).join('\n')}\nrandom,${made.random.psnr}\n`, 'text/csv'),
  };
};
