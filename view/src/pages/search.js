// Search over everything that the page has: records, items, messages.

import { bdi, button, el, fill } from 'view/dom.js';
import { visible } from 'view/json.js';
import { counted } from 'view/words.js';

/** Number of results at which a search stops until somebody asks for more. */
const PAGE = 100;

export class SearchView {
  /** @param {import('./source.js').Source} source @param {(change: Record<string, string | number | null>) => void} navigate */
  constructor(source, navigate) {
    this.source = source;
    this.navigate = navigate;
    this.input = el('input', { type: 'search', 'aria-label': 'Search' });
    this.facets = el('div', { class: 'facets' });
    this.status = el('p', { class: 'faint', role: 'status' });
    this.results = el('ol', { class: 'results' });
    this.chosen = { kinds: [], slices: [], tools: [], outcomes: [] };
    const form = el('form', { class: 'bar', role: 'search', on: { submit: (event) => { event.preventDefault(); navigate({ q: this.input.value }); } } }, this.input, el('button', { type: 'submit' }, 'Search'));
    this.element = el('section', { class: 'view search', 'aria-label': 'Search' }, form, this.facets, this.status, this.results);
    this.asked = 0;
  }

  /** @param {{q?: string}} route */
  async show(route) {
    if (!this.drawn) { this.drawn = true; await this.drawFacets(); }
    const text = route.q ?? '';
    if (document.activeElement !== this.input) this.input.value = text;
    await this.search(text, PAGE);
  }

  async drawFacets() {
    const choices = await this.source.facets();
    const select = (name, label, values) => values.length > 0 && el('label', null, `${label} `, el('select', { on: { change: (event) => { this.chosen[name] = event.target.value === '' ? [] : [event.target.value]; this.search(this.input.value, PAGE); } } }, el('option', { value: '' }, 'any'), values.map((value) => el('option', { value }, visible(value)))));
    fill(this.facets, select('kinds', 'kind', choices.kinds), select('slices', 'slice', choices.slices), select('tools', 'tool', choices.tools), select('outcomes', 'outcome', choices.outcomes));
  }

  /** @param {string} text @param {number} most */
  async search(text, most) {
    const mine = ++this.asked;
    fill(this.results);
    if (text.trim() === '') { fill(this.status, this.source.head().payload_bytes === null ? 'Without payloads, only names and structure are found.' : ''); return; }
    fill(this.status, 'Searching…');
    let count = 0;
    let stopped = false;
    await this.source.search(text, this.chosen, (found) => {
      if (mine !== this.asked) return false;
      const shown = found.slice(0, most - count);
      this.results.append(...shown.map((one) => this.result(one, text)));
      count += shown.length;
      stopped = count >= most;
      return !stopped;
    });
    if (mine !== this.asked) return;
    fill(this.status, stopped ? [`The first ${counted(count, 'result')}. `, button('More', () => this.search(text, most * 4))] : counted(count, 'result'));
  }

  /** @param {import('./source.js').Found} one @param {string} text */
  result(one, text) {
    const at = one.excerpt.toLowerCase().indexOf(text.toLowerCase());
    const part = one.what === 'record' ? 'record' : one.what === 'item' ? `slice:${one.where}` : `conversation:${one.where}`;
    return el('li', null, el('button', { type: 'button', class: 'result-row', on: { click: () => this.navigate({ at: one.sequence, view: 'step', part, from: null }) } },
      el('span', { class: 'sequence' }, `@${one.sequence}`), el('span', { class: 'chip' }, `${one.what} `, bdi(one.where)),
      el('bdi', { class: 'excerpt' }, visible(one.excerpt.slice(0, at)), el('mark', null, visible(one.excerpt.slice(at, at + text.length))), visible(one.excerpt.slice(at + text.length)))));
  }
}
