/* The Learn view and its tour: six lessons, each of which opens another view at a place of one run. */

/* Variables in *italics*, ~below~ and ^above^; text never passes through HTML. */
Lantern.rich = (element, text) => {
  element.replaceChildren(...text.split(/(\*[^*]+\*|~[^~]+~|\^[^^]+\^)/).map(piece => {
    const tag = piece.length > 2 && piece[0] === piece.at(-1) && { '*': 'i', '~': 'sub', '^': 'sup' }[piece[0]];
    return tag ? Lantern.make(tag, '', piece.slice(1, -1)) : piece;
  }));
  return element;
};

let tourReady;
const tourAtHand = new Promise(resolve => { tourReady = resolve; });   // the Learn tab may open before the panel is there

Lantern.tour = (element, props, server) => {
  const part = name => element.querySelector(`[data-part="${name}"]`), { words } = props.value;
  let tour = props.value.tour, at = 0, looking = 0;              // lessons count from 1
  const last = words.lessons.length;
  const lessons = async () => (tour ||= await server.lessons('').catch(() => null));

  /* ---- the view that a lesson speaks of: once it shows the place, the part is framed and brought into sight ---- */
  const unframe = () => { clearInterval(looking); document.querySelectorAll('.tour-here').forEach(each => each.classList.remove('tour-here')); };
  const look = place => {
    unframe();
    const until = Date.now() + 20000, id = place.tab === 'Ambiguity' ? 'ambiguity' : 'inspector';
    looking = setInterval(() => {
      const view = document.getElementById(id), shown = view && (view.matches('[data-run]') ? view : view.querySelector('[data-run]'));
      if (Date.now() > until) clearInterval(looking);
      const { run, step, node, cell } = (shown && shown.dataset) || {};
      if (run !== place.run || !shown.offsetParent || [['step', step], ['node', node], ['cell', cell]].some(([name, value]) => name in place && String(place[name]) !== value)) return;
      clearInterval(looking);
      const found = place.focus === 'card' ? view.querySelector('.card') : view.querySelector(`[data-part="${place.focus}"]`);
      const frame = found.closest('figure') || found;
      frame.classList.add('tour-here');
      requestAnimationFrame(() => bring(frame));
    }, 60);
  };
  const bring = frame => {
    const top = element.getBoundingClientRect().bottom, box = frame.getBoundingClientRect();
    if (box.top > top && box.bottom < innerHeight) return;
    frame.style.scrollMarginTop = `${element.offsetHeight + 20}px`;
    frame.scrollIntoView({ block: 'start', behavior: Lantern.still() ? 'auto' : 'smooth' });
  };

  /* ---- the panel ---- */
  const address = () => {
    const url = new URL(location.href);
    for (const name of ['view', 'run', 'step', 'node', 'lesson', 'tab']) url.searchParams.delete(name);
    if (at) { url.searchParams.set('tab', 'learn'); url.searchParams.set('lesson', at); }
    history.replaceState(history.state, '', url);
  };
  const go = async n => {
    if (!await lessons()) return false;
    at = Lantern.clamp(n, 1, last);
    const { title, text, look: where, place } = tour.lessons[at - 1];
    part('panel').hidden = false;
    part('count').textContent = words.step.replace('{n}', at).replace('{of}', last);
    part('title').textContent = title;
    Lantern.rich(part('text'), text);
    Lantern.rich(part('look'), `${words.look} ${where}.`);
    part('back').disabled = at === 1;
    part('next').textContent = at === last ? words.finish : words.next;
    address();
    Lantern.visit(place.tab, place);
    look(place);
    part('title').focus({ preventScroll: true });
    Lantern.emit('lesson', at);
    return true;
  };
  const leave = () => {
    at = 0;
    part('panel').hidden = true;
    unframe();
    address();
    requestAnimationFrame(() => {                                  // the tab that is open by then
      const open = document.querySelector('#tabs [role="tab"][aria-selected="true"]');
      if (open) open.focus({ preventScroll: true });
    });
    Lantern.emit('lesson', 0);
  };
  const finish = () => { Lantern.visit('Learn'); leave(); scrollTo(0, 0); };
  const next = () => (at === last ? finish() : go(at + 1));
  part('panel').setAttribute('aria-label', words.panel);
  part('keys').textContent = words.keys;
  part('back').textContent = words.back;
  part('leave').textContent = words.leave;
  part('back').addEventListener('click', () => go(at - 1));
  part('next').addEventListener('click', next);
  part('leave').addEventListener('click', leave);
  /* Arrows turn the steps where they mean nothing else. */
  addEventListener('keydown', event => {
    if (!at || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    const own = event.target.closest('input, select, textarea, [role="slider"], [role="tree"], [role="application"], [role="tab"], [role="listbox"]');
    if (own && !(event.key === 'Escape' && own.getAttribute('role'))) return;
    if (event.key === 'Escape') leave();
    else if (event.key === 'ArrowRight') next();
    else if (event.key === 'ArrowLeft' && at > 1) go(at - 1);
    else return;
    event.preventDefault();
  });
  Lantern.lesson = () => at;
  const ahead = id => Lantern.fetchAhead(server, id);
  const first = ({ lane, extra }) => { if (lane.method !== 'ar' && !extra) ahead(lane.run); };
  Lantern.finishedBefore.forEach(first);
  Lantern.on('finished', first);
  tourReady({ words, lessons, go, ahead });
  const { tab, lesson } = Lantern.asked;
  if (tab === 'learn' && lesson) { if (lesson <= last) go(lesson).then(begun => begun || Lantern.visit('Learn')); else Lantern.visit('Learn'); }
};

/* ---- the tab: all six lessons to read, questions, the maths, references ---- */
Lantern.learn = async element => {
  const { words, lessons, go, ahead } = await tourAtHand, box = element.querySelector('[data-part="learn"]');
  const make = Lantern.make, rich = (tag, className, text) => Lantern.rich(make(tag, className), text);
  const tour = await lessons();
  if (tour) new Set(tour.lessons.map(lesson => lesson.place.run)).forEach(ahead);
  const head = make('div', 'learn-head'), start = make('button', 'btn primary', words.start);
  start.type = 'button';
  start.disabled = !tour;
  start.addEventListener('click', () => go(1));
  const lead = make('div');
  lead.append(make('h2', '', words.title), make('p', 'lead', words.lead));
  if (tour) lead.append(make('p', 'cap', tour.about)); else lead.append(make('p', 'note', words.none));
  head.append(lead, start);
  const list = make('ol', 'lessons');
  list.append(...words.lessons.map((lesson, i) => {
    const item = make('li'), open = make('button', 'link', lesson.title), title = make('h3');
    open.type = 'button';
    open.disabled = !tour;
    open.addEventListener('click', () => go(i + 1));
    title.append(open);
    item.append(make('span', 'figure', String(i + 1)), title);
    if (tour) item.append(rich('p', '', tour.lessons[i].text));
    return item;
  }));
  const fold = (summary, ...children) => { const out = make('details'); out.append(rich('summary', '', summary), ...children); return out; };
  const questions = make('section', 'questions');
  questions.append(make('h2', '', words.questions_title), ...words.questions.map(({ question }, i) => fold(question, rich('p', '', tour ? tour.answers[i] : words.none))));
  const maths = make('dl');
  maths.append(...words.maths.flatMap(({ name, text }) => {
    const term = make('dd');
    term.append(...text.map(each => rich('p', '', each)));
    return [make('dt', '', name), term];
  }));
  const references = make('section', 'references'), sources = make('ol');
  sources.append(...words.references.map(([title, url]) => {
    const item = make('li', '', `${title}. `), link = make('a', '', url.replace('https://', ''));
    Object.assign(link, { href: url, target: '_blank', rel: 'noopener noreferrer' });
    item.append(link);
    return item;
  }));
  references.append(make('h2', '', words.references_title), sources);
  const deeper = fold(words.maths_title, maths);
  deeper.className = 'maths-fold';
  box.replaceChildren(head, list, questions, deeper, references);
};
