/* The page's address: the open view, what an opened link asks for, and the links that bring all of it back.
   `tab` names a view by its title in small letters with hyphens; `view` and the title itself are read as well. */

Lantern.slug = name => name.trim().toLowerCase().replace(/[\s_]+/g, '-');
/* What the link that opened the page asks of the views; the server says what of it cannot be had (app/links.py). */
Lantern.asked = (() => {
  const query = new URLSearchParams(location.search), text = name => query.get(name) || '';
  const whole = name => (/^\d{1,6}$/.test(text(name)) ? Number(text(name)) : 0);
  const view = ['api', 'settings'].includes(text('view')) ? '' : text('view');  // gradio's own pages
  return { tab: Lantern.slug(text('tab') || view), run: text('run'), step: whole('step'), node: whole('node'), lesson: whole('lesson') };
})();

/* ---- tabs: on a phone those that do not fit are plain buttons in the bar's menu ---- */
const tabs = () => [...document.querySelectorAll('#tabs [role="tab"], #tabs .overflow-menu button')];
Lantern.tab = () => {
  const open = document.querySelector('#tabs [role="tab"][aria-selected="true"]');
  return open ? Lantern.slug(open.textContent) : '';
};
Lantern.openTab = name => {
  const tab = tabs().find(each => Lantern.slug(each.textContent) === Lantern.slug(name));
  if (tab) tab.click();
};
/* Another view, at a step: a click before the page has woken up is lost, so it is repeated until the tab is open. */
let going = 0;
Lantern.visit = (tab, place = {}) => {
  const until = Date.now() + 20000, there = () => Lantern.tab() === Lantern.slug(tab);
  clearInterval(going);
  Lantern.emit('open', { tab, ...place });
  if (there()) return;
  Lantern.openTab(tab);
  going = setInterval(() => { if (there() || Date.now() > until) clearInterval(going); else Lantern.openTab(tab); }, 100);
};
{
  const { tab, lesson, ...place } = Lantern.asked;
  if (tab && !(tab === 'learn' && lesson)) Lantern.visit(tab, place);
}

/* ---- links ---- */
Lantern.linked = {};                                             // what views add to every link
Lantern.placeOf = {};                                            // of a view by its tab: what names the place it shows
Lantern.linkTo = ({ view, ...place }) => {
  const url = new URL(location.href);
  url.search = new URLSearchParams(view ? { tab: Lantern.slug(view), ...place } : place);
  url.hash = '';
  return url.href;
};
/* Prompt, seed, model, every knob that the method reads, and the open view with its place; where other things are
   linked than what the views add, those alone. */
Lantern.link = (knobs, linked = Lantern.linked) => {
  const query = new URLSearchParams(), tab = Lantern.tab(), lesson = Lantern.lesson();
  for (const [name, value] of Object.entries(knobs)) {
    if (value === null || value === undefined || value === '') continue;
    if (name === 'branching' && knobs.tree !== 'custom') continue;
    if (['k', 'lam', 'delta', 'gamma', 'order'].includes(name) && !Lantern.uses(knobs).includes(name)) continue;
    if ((name === 'same' && !(value && knobs.method in Lantern.SAME)) || (name === 'against' && value === 'none')) continue;
    query.set(name, value);
  }
  const place = linked !== Lantern.linked ? {} : lesson ? { tab: 'learn', lesson } : tab && tab !== 'race' ? { tab, ...(Lantern.placeOf[tab] ? Lantern.placeOf[tab]() : {}) } : {};
  for (const [name, value] of Object.entries({ ...linked, ...place })) query.set(name, value);
  return `${location.origin}${location.pathname}?${query}`;
};
Lantern.lesson = () => 0;                                        // of the tour, where it is on
