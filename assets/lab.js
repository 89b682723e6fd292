/* What the lab's views share: a slider over given values, files made in the browser, axes. */

/* A range over `values` with a field for the exact number; `change` is called with the value. Returns a setter. */
Lantern.slider = (box, { label, values, value, change, help = '' }) => {
  box.classList.add('slider');
  const id = `slider-${Lantern.slider.made = (Lantern.slider.made || 0) + 1}`;
  const head = Lantern.make('div', 'head'), words = Lantern.make('label', 'lab'), ends = Lantern.make('div', 'ends');
  const field = document.createElement('input'), range = document.createElement('input');
  Object.assign(field, { type: 'number', min: values[0], max: values.at(-1), step: 1, inputMode: 'numeric' });
  Object.assign(range, { type: 'range', id, min: 0, max: values.length - 1, step: 1 });
  words.append(...[label].flat());
  words.htmlFor = id;
  field.setAttribute('aria-label', words.textContent);
  head.append(words, field);
  ends.append(Lantern.make('span', '', String(values[0])), range, Lantern.make('span', '', values.at(-1).toLocaleString('en')));
  box.replaceChildren(head, ends);
  if (help) box.append(Lantern.make('p', 'help', help));
  const show = now => {
    const at = values.reduce((best, each, i) => (each <= now ? i : best), 0);
    field.value = now;
    range.value = at;
    range.setAttribute('aria-valuetext', String(now));
    range.style.setProperty('--f', `${at / Math.max(1, values.length - 1) * 100}%`);
  };
  range.addEventListener('input', () => { show(values[range.value]); change(values[range.value]); });
  field.addEventListener('change', () => {
    const asked = Math.round(Number(field.value));
    const next = values.reduce((best, each) => (Math.abs(each - asked) < Math.abs(best - asked) ? each : best), values[0]);
    show(next);
    change(next);
  });
  show(value);
  return show;
};

Lantern.download = (name, content, type = 'text/plain') => {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const url = URL.createObjectURL(blob);
  Object.assign(document.createElement('a'), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};
/* A drawing as a file of its own: the page's colours are written into it, since no style sheet goes with it. */
Lantern.svgFile = svg => {
  const copy = svg.cloneNode(true);
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.querySelectorAll('.hit, .badge, .aid').forEach(each => each.remove());
  copy.querySelectorAll('.axis, .axis-t').forEach(each => each.setAttribute('fill', 'var(--ink-3)'));
  const [, , width, height] = svg.getAttribute('viewBox').split(' ');
  Object.assign(copy.style, { background: Lantern.css('--bg'), fontFamily: 'sans-serif', fontSize: '11px' });
  copy.setAttribute('width', width);
  copy.setAttribute('height', height);
  return copy.outerHTML.replace(/var\((--[\w-]+)\)/g, (_, name) => Lantern.css(name));
};

/* Ticks of a logarithmic axis from 1 to `top`. */
Lantern.decades = top => [1, 10, 100, 1000, 10000].filter(each => each <= top);
Lantern.logX = (top, left, right) => value => left + Math.log10(value) / Math.log10(Math.max(2, top)) * (right - left);
Lantern.line = points => points.map(([x, y], i) => `${i ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
