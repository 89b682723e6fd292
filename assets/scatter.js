/* Speed against quality: a point a setting, its quartiles, the Pareto front. Pure functions of rows. */

/* What a point of the scatter may stand for; `sign` says which way is better. */
const QUALITIES = {
  'Prompt similarity': { key: 'similarity_change', low: 'similarity_low', high: 'similarity_high', sign: 1, words: 'similarity to the prompt, change from AR', digits: 3, change: true },
  'Found among 100': { key: 'top1_change', low: 'top1_low', high: 'top1_high', sign: 1, words: 'prompt found among 100, change from AR', digits: 2, change: true },
  'Fréchet distance': { key: 'frechet_real', sign: -1, words: 'Fréchet distance to real pictures, lower is better', digits: 2 },
  'Accepted length': { key: 'accepted_length', sign: 1, words: 'accepted length, tokens a step', digits: 2 },
};
const known = value => value !== null && value !== undefined && Number.isFinite(value);
const signed = (value, digits) => `${value < -0.5 / 10 ** digits ? '−' : value > 0 ? '+' : '±'}${Math.abs(value).toFixed(digits)}`;
const minutes = seconds => (seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h ${Math.round(seconds % 3600 / 60)} min`);
const counted = (n, word) => `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`;

/* Settings that no other beats in both; AR is one of them. */
Lantern.front = (rows, { key, sign }) => rows.filter(a => known(a[key]) && !rows.some(b => known(b[key])
  && b.speedup >= a.speedup && sign * b[key] >= sign * a[key] && (b.speedup > a.speedup || sign * b[key] > sign * a[key])));
/* A method's mark, hollow where the setting is not on the front. */
Lantern.point = (method, full) => {
  const inside = Lantern.mark(method).replace(/^<svg[^>]*>|<\/svg>$/g, '');
  if (full || method === 'ar') return inside;
  return /fill="var/.test(inside) ? inside.replace(/fill="(var[^"]+)"/, 'fill="var(--bg)" stroke="$1" stroke-width="1.7"') : inside.replace(/stroke-width="[\d.]+"/, 'stroke-width="1.2"');
};
const ticks = (low, high, most) => {
  const step = [1, 2, 5].flatMap(each => [-3, -2, -1, 0, 1].map(power => each * 10 ** power)).sort((a, b) => a - b).find(each => (high - low) / each <= most) || 100;
  return Array.from({ length: Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1 }, (_, i) => (Math.ceil(low / step - 1e-9) + i) * step);
};
/* rows: a setting's number, method, speedup with quartiles, and what QUALITIES name; name and words: of a setting. */
Lantern.scatter = (box, rows, quality, picked, name, words) => {
  const width = Math.max(300, box.clientWidth), narrow = width < 560, height = narrow ? 320 : 530, pad = { left: 50, right: 14, top: 28, bottom: 40 };
  const spec = QUALITIES[quality], all = spec ? rows.filter(each => known(each[spec.key]) && known(each.speedup)) : [];
  if (!all.length) { box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="presentation"><rect x="${pad.left}" y="${pad.top}" width="${width - pad.left - pad.right}" height="${height - pad.top - pad.bottom}" fill="var(--sunken)"/></svg>`; return; }
  const xs = all.flatMap(each => [each.speedup, each.speedup_low, each.speedup_high].filter(known)), ys = all.map(each => each[spec.key]);
  const stretch = (values, least) => { const low = Math.min(...values), high = Math.max(...values), more = Math.max(least, (high - low) * 0.09); return [low - more, high + more]; };
  const [x0, x1] = stretch([1, ...xs], 0.06), [y0, y1] = stretch(ys, spec.change ? 0.01 : 0.05);
  const X = value => pad.left + (value - x0) / (x1 - x0) * (width - pad.left - pad.right), up = value => (value - y0) / (y1 - y0);
  const Y = value => pad.top + (spec.sign > 0 ? 1 - up(value) : up(value)) * (height - pad.top - pad.bottom);
  const floor = height - pad.bottom, label = value => (spec.change && Math.abs(value) < 1e-9 ? 'AR' : `${value < 0 ? '−' : ''}${Number(Math.abs(value).toFixed(4))}`);
  const lines = [...ticks(x0, x1, narrow ? 5 : 8).map(at => `<path class="grid-l" d="M${X(at)} ${pad.top}V${floor}"/><text class="axis" x="${X(at)}" y="${floor + 15}" text-anchor="middle">${Number(at.toFixed(2))}×</text>`),
    ...ticks(y0, y1, 7).map(at => `<path class="grid-l" d="M${pad.left} ${Y(at)}H${width - pad.right}"/><text class="axis" x="${pad.left - 7}" y="${Y(at) + 4}" text-anchor="end">${label(at)}</text>`)];
  const front = Lantern.front(all, spec).sort((a, b) => a.speedup - b.speedup);
  const stair = front.map((each, i) => (i ? `V${Y(each[spec.key]).toFixed(1)}H${X(each.speedup).toFixed(1)}` : `M${X(each.speedup).toFixed(1)} ${Y(each[spec.key]).toFixed(1)}`)).join('');
  const taken = [], notes = [];
  [...front].sort((a, b) => (b.setting === picked) - (a.setting === picked)).filter(each => each.setting).forEach(each => {
    const text = words(each.setting), wide = text.length * 5.8, x = Lantern.clamp(X(each.speedup), pad.left + wide / 2, width - pad.right - wide / 2), y = Y(each[spec.key]) - 11;
    if (text === 'strict' || taken.some(other => Math.abs(other.x - x) < (other.wide + wide) / 2 + 4 && Math.abs(other.y - y) < 13)) return;
    taken.push({ x, y, wide });
    notes.push(`<text class="axis" x="${x.toFixed(1)}" y="${Math.max(24, y).toFixed(1)}" text-anchor="middle" style="fill:var(--ink-2)${each.setting === picked ? ';font-weight:600' : ''}">${text}</text>`);
  });
  const order = [...all].sort((a, b) => (a.setting === picked) - (b.setting === picked) || front.includes(a) - front.includes(b));
  const marks = order.map(each => {
    const x = X(each.speedup), y = Y(each[spec.key]), own = each.setting === picked, colour = `var(${Lantern.methods[each.method].fill})`, full = front.includes(each);
    const spread = known(each.speedup_low) && each.setting ? `<path d="M${X(each.speedup_low).toFixed(1)} ${y.toFixed(1)}H${X(each.speedup_high).toFixed(1)}" stroke="${colour}" stroke-width="1" opacity=".7"/>` : '';
    const span = own && spec.low && known(each[spec.low]) ? `<path d="M${x.toFixed(1)} ${Lantern.clamp(Y(each[spec.low]), pad.top, floor).toFixed(1)}V${Lantern.clamp(Y(each[spec.high]), pad.top, floor).toFixed(1)}" stroke="${colour}" stroke-width="1"/>` : '';
    return `<g id="sweep-point-${each.setting}" role="option" aria-selected="${own}" data-setting="${each.setting}" aria-label="${name(each.setting)}: ${each.speedup.toFixed(2)} times, ${spec.words} ${each[spec.key].toFixed(spec.digits)}${full ? ', on the Pareto front' : ''}">${spread}${span}`
      + `<circle class="hit" cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="13"/>${own ? `<circle class="aid" cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="11" fill="var(--tint)" stroke="var(--relax)" stroke-width="2"/>` : ''}`
      + `<g transform="translate(${(x - 6).toFixed(1)},${(y - 6).toFixed(1)})">${Lantern.point(each.method, full)}</g></g>`;
  });
  box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="presentation">${lines.join('')}<path d="${stair}" fill="none" stroke="var(--ink-3)" stroke-width="1.2"/>${notes.join('')}${marks.join('')}`
    + `<text class="axis" x="${pad.left - 7}" y="13" style="fill:var(--ink-2)">↑ ${spec.words}</text><text class="axis" x="${width - pad.right}" y="${height - 6}" text-anchor="end" style="fill:var(--ink-2)">measured speedup over plain AR →</text></svg>`;
  box.setAttribute('aria-activedescendant', `sweep-point-${picked}`);
};
