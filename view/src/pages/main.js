// Puts the page together: the timeline beside one view, and the step that both show, which the address's hash says.

import { address, button, el, fill } from 'view/dom.js';
import { DiffView } from 'view/diff.js';
import { IntegrityView, StatisticsView } from 'view/facts.js';
import { OperationsView } from 'view/operations.js';
import { Palette, keyList } from 'view/palette.js';
import { Scrubber, Timeline } from 'view/timeline.js';
import { SearchView } from 'view/search.js';
import { StepView } from 'view/step.js';
import { number } from 'view/words.js';

const VIEWS = [
  ['step', 'At this step'],
  ['diff', 'Diff'],
  ['operations', 'Operations'],
  ['search', 'Search'],
  ['statistics', 'Statistics'],
  ['integrity', 'Integrity'],
];

const KEYS = /** @type {[string, string][]} */ ([
  ['j', 'next record'], ['k', 'previous record'], ['J', 'ten records forward'], ['K', 'ten records back'], ['g', 'first record'], ['G', 'last record'],
  ['f', 'first failure'], ['o', 'first own record of a fork'], ['r', 'next rollback'], ['/', 'search'], ['1 … 7', 'views'], ['t', 'light, dark, or system theme'], ['Ctrl K', 'command palette'], ['?', 'these keys'],
]);

class Page {
  /** @param {import('./source.js').Source} source @param {Document} page @param {Parameters<typeof start>[2]} further */
  constructor(source, page, further) {
    this.source = source;
    this.page = page;
    /** Names and labels of the views, in the order of their keys. */
    this.labels = [...VIEWS, ...further.map(({ name, label }) => [name, label])];
    this.head = source.head();
    const go = (at) => this.navigate({ at, from: null });
    const navigate = (change) => this.navigate(change);
    // Whoever chooses a record of a list of calls looks for the record.
    this.timeline = new Timeline(source, (change) => navigate(this.head.root && this.viewShown === 'operations' ? { view: 'step', part: 'record', ...change } : change));
    this.scrubber = new Scrubber(this.head, go);
    this.views = {
      step: new StepView(source, navigate),
      diff: new DiffView(source, navigate),
      operations: new OperationsView(source, navigate),
      search: new SearchView(source, navigate),
      statistics: new StatisticsView(source),
      integrity: new IntegrityView(source, navigate),
      ...Object.fromEntries(further.map(({ name, make }) => [name, make(navigate)])),
    };
    this.tabs = el('nav', { class: 'views', 'aria-label': 'Views' });
    this.holder = el('div', { class: 'holder' });
    this.stepField = el('input', { type: 'number', class: 'step-field', min: this.head.from, max: this.head.last, 'aria-label': 'Step', on: { change: () => go(Number(this.stepField.value)) } });
    this.stepCount = el('span', { class: 'faint' }, ` of ${number(this.head.last)}`);
    this.palette = new Palette((text) => this.commands(text));
    this.keys = keyList(KEYS);
  }

  draw() {
    const { head } = this;
    const facts = [
      head.damage && el('a', { class: 'badge outcome-failed', href: '#view=integrity' }, 'damaged'),
      (head.from > 0 || head.last < head.log_last) && el('span', { class: 'badge' }, `records ${number(head.from)} to ${number(head.last)} of ${number(head.log_last + 1)}`),
    ];
    fill(/** @type {Element} */ (this.page.getElementById('app')),
      el('a', { class: 'skip', href: '#main', on: { click: (event) => { event.preventDefault(); this.holder.querySelector('.view')?.focus(); } } }, 'Skip to the view'),
      el('header', { class: 'top' },
        el('h1', null, el('span', { class: 'brand' }, 'foldlog'), ' ', el('code', { class: 'session', title: head.session }, head.root ?? head.session)),
        facts, el('span', { class: 'grow' }),
        el('label', { class: 'step-label' }, 'step ', this.stepField, this.stepCount),
        button('Commands', () => this.palette.open(), { title: 'Ctrl K' }),
        button('Theme', () => this.theme(), { title: 't' }),
        button('Keys', () => this.keys.showModal(), { class: 'by-key', title: '?' }),
        head.payload_bytes === null && el('p', { class: 'facts' }, 'Payloads are not included, only types and sizes. To include them: ', el('code', null, 'foldlog report SESSION --html FILE --payloads'))),
      this.scrubber.element,
      el('main', { id: 'main' }, this.timeline.element, el('div', { class: 'right' }, this.tabs, this.holder)),
      this.palette.element, this.keys);
    addEventListener('hashchange', () => this.show());
    addEventListener('keydown', (event) => this.key(event));
    this.show();
  }

  /** The listed record that is nearest to a number. @param {number} at */
  within(at) {
    return Math.min(this.head.last, Math.max(this.head.from, at));
  }

  /** What the address says. */
  route() {
    const said = new URLSearchParams(location.hash.slice(1));
    const asked = said.get('at');
    const at = asked === null || !/^\d+$/.test(asked) ? this.head.at : this.within(Number(asked));
    // The calls of agents are recorded without a state: they are what there is to see.
    const view = said.get('view') ?? (this.head.root ? 'operations' : 'step');
    const beyond = /^\d+$/.test(said.get('beyond') ?? '') ? Number(said.get('beyond')) : undefined;
    return { ...Object.fromEntries(said), at, beyond, view: view in this.views || view === 'timeline' ? view : 'step' };
  }

  /**
   * Changes where somebody is. Values that are null are taken out of the address.
   * @param {Record<string, string | number | null>} change
   */
  navigate(change) {
    const { at } = change;
    const hash = address(at === undefined ? change : { beyond: null, ...change, at: this.within(Number(at) || 0) });
    if (hash === location.hash) return;
    // Steps that follow each other are one entry of the history.
    if (Object.keys(change).every((name) => ['at', 'from', 'beyond'].includes(name))) history.replaceState(null, '', hash); else history.pushState(null, '', hash);
    this.show();
  }

  /** Shows what the address says. */
  show() {
    const route = this.route();
    this.at = route.at;
    this.stepField.value = String(route.at);
    this.scrubber.step(route.at);
    if (route.view !== this.viewShown) {
      this.viewShown = route.view;
      const all = [['timeline', 'Timeline'], ...this.labels];
      fill(this.tabs, all.map(([name, label]) => el('a', { class: `tab${name === 'timeline' ? ' only-narrow' : ''}`, href: address({ view: name, from: null }), 'aria-current': name === route.view ? 'page' : null, on: { click: (event) => { event.preventDefault(); this.navigate({ view: name, from: null }); } } }, label)));
      this.tabs.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
      const view = this.views[route.view === 'timeline' ? 'step' : route.view];
      view.element.tabIndex = -1;
      fill(this.holder, view.element);
      this.page.body.dataset.view = route.view;
    }
    // Only now a list that was out of sight has a height.
    this.timeline.step(route.at, route.beyond);
    const view = this.views[route.view === 'timeline' ? 'step' : route.view];
    view.show(route).catch((error) => fill(this.holder, el('p', { class: 'note', role: 'alert' }, `This cannot be shown: ${error.message}`)));
  }

  /**
   * Shows what a session that has grown is now. Whoever was at its last record stays at the last one.
   * @param {number} before the last record until now
   */
  grow(before) {
    const { head } = this;
    for (const field of [this.stepField, this.scrubber.slider, this.views.diff.before, this.views.diff.after]) field.max = String(head.last);
    fill(this.stepCount, ` of ${number(head.last)}`);
    this.scrubber.draw();
    this.timeline.grow().catch(() => this.timeline.resize());
    for (const view of [this.views.operations, this.views.statistics, this.views.integrity]) view.drawn = false;
    const route = this.route();
    const follows = this.at === before && ['step', 'timeline'].includes(route.view);
    if (follows && head.last !== before) this.navigate({ at: head.last, from: null });
    else if (route.at !== this.at || route.view === 'operations') this.show();
  }

  theme() {
    const root = this.page.documentElement;
    const next = { '': 'light', light: 'dark', dark: '' }[root.dataset.theme ?? ''] ?? '';
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    this.scrubber.draw();
  }

  /** @param {string} text @returns {import('./palette.js').Command[]} */
  commands(text) {
    const views = this.labels.map(([name, label], at) => ({ name: `Show ${label}`, keys: String(at + 1), run: () => this.navigate({ view: name, from: null }) }));
    const go = (at) => () => this.navigate({ at, from: null });
    const numbered = /^\s*\d+\s*$/.test(text) ? [{ name: `${text.trim()}: go to this record`, run: go(Number(text)) }, { name: `${text.trim()}: compare with this record`, run: () => this.navigate({ view: 'diff', before: Number(text) }) }] : [];
    const slices = this.head.slices.map((slice) => ({ name: `Slice ${slice.name}`, run: () => this.navigate({ view: 'step', part: `slice:${slice.name}`, from: null }) }));
    return [...numbered, ...views,
      { name: 'Go to the first record', keys: 'g', run: go(this.head.from) },
      { name: 'Go to the last record', keys: 'G', run: go(this.head.last) },
      { name: 'Go to the first failure', keys: 'f', run: () => this.timeline.jump('failure') },
      ...(this.timeline.firstOwn() === null ? [] : [{ name: 'Go to the first own record', keys: 'o', run: () => this.timeline.jump('own') }]),
      { name: 'Go to the next rollback', keys: 'r', run: () => this.timeline.jump('rollback') },
      { name: 'Show the record’s document', run: () => this.navigate({ view: 'step', part: 'record', from: null }) },
      { name: 'Switch between light and dark', keys: 't', run: () => this.theme() },
      { name: 'Print', run: () => print() }, ...slices];
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
      event.preventDefault();
      this.palette.open();
      return;
    }
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.matches?.('input:not([type=range]):not([type=checkbox]), select, textarea');
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping || this.page.querySelector('dialog[open]')) return;
    const move = (by) => () => this.navigate(this.timeline.beside(by));
    const inList = this.timeline.list.element.contains(target);
    const actions = {
      j: move(1), k: move(-1), J: move(10), K: move(-10), g: move(-Infinity), G: move(Infinity),
      f: () => this.timeline.jump('failure'), o: () => this.timeline.jump('own'), r: () => this.timeline.jump('rollback'), t: () => this.theme(), '?': () => this.keys.showModal(),
      '/': () => { this.navigate({ view: 'search', from: null }); this.views.search.input.focus(); },
      ...(inList ? { ArrowDown: move(1), ArrowUp: move(-1), PageDown: move(20), PageUp: move(-20), Home: move(-Infinity), End: move(Infinity) } : {}),
      ...Object.fromEntries(this.labels.map(([name], at) => [String(at + 1), () => this.navigate({ view: name, from: null })])),
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  }
}

/**
 * Shows a session.
 * @param {import('./source.js').Source} source
 * @param {Document} page
 * @param {{name: string, label: string, make: (navigate: (change: Record<string, string | number | null>) => void) => any}[]} further views behind those of a report
 */
export function start(source, page, further = []) {
  const shown = new Page(source, page, further);
  shown.draw();
  page.documentElement.dataset.started = String(Math.round(performance.now()));
  // The rows in sight and the neighbours of the first ones are drawn again once their records are there.
  const first = Math.max(0, shown.at - 50);
  source.records(first, 200).then(() => shown.timeline.list.redraw());
  return shown;
}
