/* Drawing code shared by the components: plain functions of data, no framework.
   Tools, colour maps, canvases, the painting, maps over a picture, time tracks, method marks. */
'use strict';
const Lantern = {};

/* ---- small tools ---- */
Lantern.clamp = (x, low, high) => Math.min(high, Math.max(low, x));
/* A token of the style sheet; kept until the theme changes, because asking makes the browser lay the page out. */
let tokens = {};
Lantern.css = name => (tokens[name] ||= getComputedStyle(document.body).getPropertyValue(name).trim());
Lantern.percent = share => `${Math.round(share * 100)} %`;
Lantern.still = () => matchMedia('(prefers-reduced-motion: reduce)').matches;
Lantern.image = source => new Promise((done, fail) => {
  const image = new Image();
  image.onload = () => done(image);
  image.onerror = fail;
  image.src = source;
});
/* An element with a class and a text; text never passes through HTML. */
Lantern.make = (tag, className = '', text = '') => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== '') element.textContent = text;
  return element;
};
/* Write a text, or elements, only where they have changed: a run sends twelve values a second. */
Lantern.say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
Lantern.fill = (element, ...children) => {
  const made = document.createElement('div');
  made.append(...children);
  if (made.innerHTML !== element.innerHTML) element.replaceChildren(...made.childNodes);
};
/* A tiny signal: what one component shows, the others may follow. */
Lantern.listeners = {};
Lantern.last = {};
Lantern.on = (name, callback) => {
  (Lantern.listeners[name] ||= []).push(callback);
  if (name in Lantern.last) callback(Lantern.last[name]);        // components load in any order
};
Lantern.emit = (name, data) => {
  if (['shown', 'typed', 'model', 'open'].includes(name)) Lantern.last[name] = data;
  (Lantern.listeners[name] || []).forEach(callback => callback(data));
};

/* ---- methods: a colour and a shape each ---- */
Lantern.methods = {
  ar: { color: '--ar', fill: '--ar' },
  exact: { color: '--strict', fill: '--strict' },
  lantern: { color: '--lantern', fill: '--lantern' },
  lanternpp: { color: '--relax', fill: '--relax-fill' },
  annealed: { color: '--annealed', fill: '--annealed' },
  coupled: { color: '--coupled', fill: '--coupled' },
  'coupled-relaxed': { color: '--swapped', fill: '--swapped' },
  eagle2: { color: '--eagle', fill: '--eagle' },
};
Lantern.mark = method => {
  const fill = `var(${Lantern.methods[method].fill})`;
  const shape = {
    ar: `<circle cx="6" cy="6" r="4" fill="none" stroke="${fill}" stroke-width="2.4"/>`,
    exact: `<circle cx="6" cy="6" r="5" fill="${fill}"/>`,
    lantern: `<path d="M6 .6 11.4 10.6H.6Z" fill="${fill}"/>`,
    lanternpp: `<path d="M6 0 12 6 6 12 0 6Z" fill="${fill}"/>`,
    annealed: `<rect x="1" y="1" width="10" height="10" fill="${fill}"/>`,
    coupled: `<path d="M1 3.6h10M1 8.4h10" stroke="${fill}" stroke-width="2.6"/>`,
    'coupled-relaxed': `<path d="M1 4.4q2.5-3 5 0t5 0M1 9.2q2.5-3 5 0t5 0" fill="none" stroke="${fill}" stroke-width="2"/>`,
    eagle2: `<path d="M6 11V6M6 6 1.5 1.5M6 6l4.5-4.5" fill="none" stroke="${fill}" stroke-width="2.2"/>`,
  }[method];
  return `<svg class="mark" viewBox="0 0 12 12" aria-hidden="true">${shape}</svg>`;
};

/* ---- colour maps: viridis for counts, blue to amber for differences ---- */
const fromHex = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
const rampOf = colors => {
  const stops = colors.map(fromHex);
  return t => {
    const x = Lantern.clamp(t, 0, 1) * (stops.length - 1);
    const i = Math.min(stops.length - 2, Math.floor(x));
    return stops[i].map((v, c) => Math.round(v + (stops[i + 1][c] - v) * (x - i)));
  };
};
const viridis = rampOf(['#440154', '#472d7b', '#3b528b', '#2c728e', '#21918c', '#28ae80', '#5ec962', '#addc30', '#fde725']);
const LENGTH_AT = [0.09, 0.09, 0.28, 0.47, 0.64, 0.82, 1];       // accepted length 1 to 6, in equal steps of lightness
Lantern.MAX_LENGTH = 6;                                          // longer steps share the last colour: "6+"
Lantern.lengthColor = n => viridis(LENGTH_AT[Lantern.clamp(n, 1, Lantern.MAX_LENGTH)]);
Lantern.differenceColor = t => {
  const middle = fromHex(Lantern.css('--mid')), end = fromHex(t < 0 ? '#2f7fd6' : '#e0801f');
  const share = Math.min(1, Math.abs(t));
  return middle.map((v, c) => Math.round(v + (end[c] - v) * share));
};
Lantern.rgb = color => `rgb(${color[0]},${color[1]},${color[2]})`;
Lantern.isDark = color => 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] <= 140;
Lantern.lengthLegend = (longest = Lantern.MAX_LENGTH) => '<span>Tokens a step brought</span>'
  + Array.from({ length: Lantern.MAX_LENGTH }, (_, i) => {
    const label = i + 1 === Lantern.MAX_LENGTH && longest > Lantern.MAX_LENGTH ? `${i + 1}+` : i + 1;
    return `<span><i class="sw" style="background:${Lantern.rgb(Lantern.lengthColor(i + 1))}"></i>${label}</span>`;
  }).join('');

/* ---- canvases: device pixels, drawn again on resize and when the theme changes ---- */
Lantern.canvas = (element, draw) => {
  const redraw = () => {
    const width = element.clientWidth, height = element.clientHeight;
    if (!width || !height) return;
    const ratio = Math.max(1, window.devicePixelRatio || 1);
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (element.width !== w || element.height !== h) Object.assign(element, { width: w, height: h });
    const context = element.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.imageSmoothingQuality = 'high';
    draw(context, width, height);
  };
  new ResizeObserver(redraw).observe(element);                   // which also draws it first, once the page is laid out
  Lantern.on('theme', redraw);
  return redraw;
};
const themed = new MutationObserver(() => { tokens = {}; Lantern.emit('theme'); });
document.addEventListener('DOMContentLoaded', () => {
  for (const root of [document.documentElement, document.body]) themed.observe(root, { attributes: true, attributeFilter: ['class'] });
});

/* ---- the painting: the first n tokens in raster order, the rest a bare token grid ---- */
Lantern.paint = (context, width, picture, n, grid, fresh = 0, color = '') => {
  const side = width / grid, row = Math.floor(n / grid), part = n % grid;
  context.clearRect(0, 0, width, width);
  context.fillStyle = Lantern.css('--sunken');
  context.fillRect(0, 0, width, width);
  context.strokeStyle = Lantern.css('--hatch');
  context.lineWidth = 1;
  context.beginPath();
  for (let i = 1; i < grid; i++) {
    const at = Math.round(i * side) + 0.5;
    context.moveTo(at, row * side); context.lineTo(at, width);
    if (i >= row) { context.moveTo(0, at); context.lineTo(width, at); }
  }
  context.stroke();
  if (picture) {
    const size = picture.width, cell = size / grid;
    if (row) context.drawImage(picture, 0, 0, size, row * cell, 0, 0, width, row * side);
    if (part) context.drawImage(picture, 0, row * cell, part * cell, cell, 0, row * side, part * side, side);
  }
  if (fresh) Lantern.cells(context, side, grid, n - fresh, fresh, color, 2);
};
/* Outlines of some tokens, such as those of the newest step. */
Lantern.cells = (context, side, grid, from, count, color, line) => {
  context.strokeStyle = color;
  context.lineWidth = line;
  for (let i = from; i < from + count && i < grid * grid; i++) {
    context.strokeRect((i % grid) * side + line / 2, Math.floor(i / grid) * side + line / 2, side - line, side - line);
  }
};

/* ---- a map of all tokens; the picture lies over it as thin outlines, so that the cells keep their exact colours ---- */
Lantern.outlines = picture => {
  if (picture.outlines) return picture.outlines;
  const size = 128, source = document.createElement('canvas');
  source.width = source.height = size;
  const context = source.getContext('2d', { willReadFrequently: true });
  context.drawImage(picture, 0, 0, size, size);
  const pixels = context.getImageData(0, 0, size, size).data;
  const strength = new Float32Array(size * size), direction = new Uint8Array(size * size);
  for (let y = 1; y < size - 1; y++) for (let x = 1; x < size - 1; x++) {
    for (let channel = 0; channel < 3; channel++) {
      const at = (dx, dy) => pixels[((y + dy) * size + x + dx) * 4 + channel];
      const gx = at(1, -1) + 2 * at(1, 0) + at(1, 1) - at(-1, -1) - 2 * at(-1, 0) - at(-1, 1);
      const gy = at(-1, 1) + 2 * at(0, 1) + at(1, 1) - at(-1, -1) - 2 * at(0, -1) - at(1, -1);
      const gradient = Math.hypot(gx, gy);
      if (gradient > strength[y * size + x]) {
        strength[y * size + x] = gradient;
        direction[y * size + x] = Math.round(Math.atan2(gy, gx) / (Math.PI / 4)) & 3;
      }
    }
  }
  const across = [1, size + 1, size, size - 1], ridge = new Float32Array(size * size);
  for (let i = size + 1; i < size * (size - 1) - 1; i++) {       // keep ridges only
    const step = across[direction[i]];
    if (strength[i] >= strength[i - step] && strength[i] >= strength[i + step]) ridge[i] = Lantern.clamp((strength[i] - 70) / 130, 0, 1);
  }
  const layer = value => {
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = size;
    const target = canvas.getContext('2d'), image = target.createImageData(size, size);
    for (let i = 0; i < size * size; i++) image.data.set([value, value, value, 225 * ridge[i]], i * 4);
    target.putImageData(image, 0, 0);
    return canvas;
  };
  return picture.outlines = { dark: layer(12), light: layer(255) };
};
Lantern.heat = (context, width, values, grid, color, picture) => {
  const side = width / grid, outlines = picture && Lantern.outlines(picture), cell = 128 / grid;
  context.clearRect(0, 0, width, width);
  values.forEach((value, i) => {
    const column = i % grid, row = Math.floor(i / grid), shade = color(value);
    const x = Math.round(column * side), y = Math.round(row * side);
    const w = Math.round((column + 1) * side) - x, h = Math.round((row + 1) * side) - y;
    context.fillStyle = Lantern.rgb(shade);
    context.fillRect(x, y, w, h);
    const layer = outlines && (Lantern.isDark(shade) ? outlines.light : outlines.dark);
    if (layer) context.drawImage(layer, column * cell, row * cell, cell, cell, x, y, w, h);
  });
};

/* ---- one run on a clock ---- */
Lantern.timeline = lane => {
  let total = 0;
  const until = lane.painted.map(count => total += count);        // row ends are tokens that nothing is painted of
  const from = until.map((end, i) => end - lane.painted[i]);
  const seconds = lane.summary ? lane.summary.seconds : (lane.ends.at(-1) || 0);
  const stepAt = t => {
    let low = 0, high = lane.ends.length;
    while (low < high) { const middle = (low + high) >> 1; if (lane.ends[middle] <= t) low = middle + 1; else high = middle; }
    return low - 1;
  };
  return { until, from, seconds, stepAt, tokensAt: t => (stepAt(t) < 0 ? 0 : until[stepAt(t)]) };
};

/* ---- time tracks: every step a block, as wide as its seconds, coloured by the tokens it brought ---- */
Lantern.tracks = (context, width, height, lanes, t, live) => {
  const lines = lanes.map(Lantern.timeline), sans = Lantern.css('--sans');
  const longest = Math.max(...lines.map(line => line.seconds), 0.01);
  const span = live ? live : longest * 1.002, X = seconds => seconds / span * width;
  const rowHeight = (height - 22) / lanes.length, bar = Math.min(22, rowHeight - 22);
  const text = (string, x, y, weight, size, color, align = 'left') => {
    context.font = `${weight} ${size}px ${sans}`;
    context.fillStyle = Lantern.css(color);
    context.textAlign = align;
    context.fillText(string, x, y);
    return context.measureText(string).width;
  };
  context.clearRect(0, 0, width, height);
  lanes.forEach((lane, k) => {
    const line = lines[k], y = k * rowHeight + 18, steps = lane.counts.length;
    const name = text(lane.name, 0, y - 5, 500, 12, '--ink');
    const mean = lane.summary ? lane.summary.accepted_length : 0;
    const fact = lane.summary ? `${lane.summary.target_passes} passes, ${lane.method === 'ar' ? '1 token' : `${mean.toFixed(2)} tokens`} each`
      : steps ? `${lane.state === 'stopped' ? 'stopped at ' : ''}pass ${steps}` : { waiting: 'waits', running: 'begins' }[lane.state] || '';
    text(fact, name + 8, y - 5, 400, 12, '--ink-3');
    context.fillStyle = Lantern.css('--sunken');
    context.fillRect(0, y, live ? width : X(line.seconds), bar);
    lane.ends.forEach((end, i) => {
      const x = X(i ? lane.ends[i - 1] : lane.summary ? lane.summary.prompt_seconds : 0), w = X(end) - x;
      context.globalAlpha = live || end <= t + 1e-6 ? 1 : 0.26;
      context.fillStyle = Lantern.rgb(Lantern.lengthColor(lane.counts[i]));
      context.fillRect(x, y, Math.max(0.6, w - (w > 4.5 ? 1 : 0.35)), bar);
    });
    context.globalAlpha = 1;
    if (live || !lane.summary) return;
    const label = `${line.seconds.toFixed(2)} s`, end = X(line.seconds);
    context.font = `600 13px ${sans}`;
    const labelWidth = context.measureText(label).width;
    if (end + labelWidth + 8 < width) {
      text(label, end + 8, y + bar / 2 + 4.5, 600, 13, '--ink');
      const gained = lines[0].seconds - line.seconds;
      if (k && gained > 0) sooner(context, text, end + labelWidth + 18, X(lines[0].seconds), y + bar / 2 + 0.5, `${gained.toFixed(2)} s sooner`);
    } else text(label, width - 12, y - 5, 600, 13, '--ink', 'right');
  });
  axis(context, text, width, height, span, X);
  if (!live && lanes.some(lane => lane.summary)) head(context, Lantern.clamp(X(Math.min(t, span)), 1, width - 1), height, rowHeight, bar, lanes.length);
};
const sooner = (context, text, from, to, y, string) => {
  context.font = `400 12px ${Lantern.css('--sans')}`;
  const width = context.measureText(string).width, middle = (from + to) / 2;
  if (to - from < width) return;
  if (to - from < width + 40) { text(string, to, y + 4, 400, 12, '--ink-2', 'right'); return; }
  context.strokeStyle = Lantern.css('--ink-3');
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(from, y); context.lineTo(middle - width / 2 - 8, y);
  context.moveTo(middle + width / 2 + 8, y); context.lineTo(to, y);
  context.moveTo(to - 5, y - 4); context.lineTo(to, y); context.lineTo(to - 5, y + 4);
  context.moveTo(from, y - 4); context.lineTo(from, y + 4);
  context.stroke();
  text(string, middle, y + 4, 400, 12, '--ink-2', 'center');
};
const axis = (context, text, width, height, span, X) => {
  const y = height - 16, step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60].find(each => span / each <= 10) || 120;
  context.strokeStyle = Lantern.css('--line-2');
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, y + 0.5); context.lineTo(width, y + 0.5);
  for (let i = 0; i * step <= span; i++) {
    const x = Math.min(width - 0.5, Math.round(X(i * step)) + 0.5);
    context.moveTo(x, y); context.lineTo(x, y + 4);
  }
  context.stroke();
  for (let i = 0; i * step <= span; i++) {
    const x = X(i * step), label = i ? String(Math.round(i * step * 10) / 10) : '0 s';
    text(label, Math.min(x, width), height - 1, 400, 11, '--ink-3', !i ? 'left' : x > width - 6 ? 'right' : 'center');
  }
};
const head = (context, x, height, rowHeight, bar, rows) => {
  context.strokeStyle = context.fillStyle = Lantern.css('--ink');
  context.lineWidth = 1.5;
  context.beginPath();
  for (let k = 0; k < rows; k++) { context.moveTo(x, k * rowHeight + 16); context.lineTo(x, k * rowHeight + 20 + bar); }
  context.moveTo(x, height - 20); context.lineTo(x, height - 16);
  context.stroke();
  context.beginPath();
  context.moveTo(x - 5, 1); context.lineTo(x + 5, 1); context.lineTo(x, 8);
  context.fill();
};

Lantern.icons = {
  play: '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M3 1.500v11l9-5.500z"/></svg>',
  pause: '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M2.500 1.500h3v11h-3zM8.500 1.500h3v11h-3z"/></svg>',
  down: '<svg viewBox="0 0 14 14" aria-hidden="true"><path d="M6 1h2v6h2.600L7 10.800 3.400 7H6zM1.500 11.500h11V13h-11z"/></svg>',
};
