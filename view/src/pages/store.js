// The first page of a store: its sessions, each with how it stands.

import { button, el, fill } from 'view/dom.js';
import { visible } from 'view/json.js';
import { ask } from 'view/server-source.js';
import { VirtualList } from 'view/virtual-list.js';
import { bytes, counted, number } from 'view/words.js';

const ROW = 32;

const ORDERS = {
  activity: ['last activity', (row) => row.last_at ?? ''],
  created: ['creation', (row) => row.created_at ?? ''],
  records: ['records', (row) => row.records ?? 0],
  bytes: ['bytes', (row) => (row.log_bytes ?? 0) + row.object_bytes],
};

class StorePage {
  /** @param {Document} page */
  constructor(page) {
    this.rows = [];
    this.shown = [];
    this.list = new VirtualList({ rowHeight: ROW, label: 'Sessions', make: (row) => this.row(this.shown[row]), choose: (row) => { location.href = `session/${this.shown[row].session}/`; } });
    const change = () => this.draw();
    this.filter = el('input', { type: 'search', placeholder: 'Filter by id, tag or parent', 'aria-label': 'Filter', on: { input: change } });
    this.status = el('select', { 'aria-label': 'Status', on: { change } }, el('option', { value: '' }, 'any status'));
    this.order = el('select', { 'aria-label': 'Order', on: { change } }, Object.entries(ORDERS).map(([name, [label]]) => el('option', { value: name }, `by ${label}`)));
    this.count = el('span', { class: 'faint', role: 'status' });
    const headings = [['session', ''], ['status', ''], ['records', 'records'], ['bytes', 'bytes'], ['last activity, UTC', 'only-wide'], ['tags and parent', 'only-wide']];
    fill(/** @type {Element} */ (page.getElementById('app')), el('div', { class: 'store' },
      el('header', { class: 'top' }, el('h1', null, el('span', { class: 'brand' }, 'foldlog')), this.count),
      el('div', { class: 'bar', role: 'search' }, this.filter, this.status, this.order, button('Refresh', () => this.read(), { class: 'quiet' })),
      el('div', { class: 'session-row headings faint', 'aria-hidden': 'true' }, headings.map(([label, kind]) => el('span', { class: kind }, label))),
      this.list.element));
    this.list.element.addEventListener('keydown', (event) => this.key(event));
  }

  async read() {
    try {
      const rows = [];
      for (let from = 0; from !== null;) {
        const told = await ask('sessions', { from });
        rows.push(...told.rows);
        from = told.next;
        fill(this.count, from === null ? '' : `Reading: ${number(rows.length)} of ${number(told.total)}`);
        this.rows = rows;
        this.draw();
      }
    } catch (error) {
      fill(this.count, `The sessions cannot be listed: ${error.message}`);
    }
    document.documentElement.dataset.started = '1';
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const statuses = [...new Set(this.rows.map((row) => row.status))].sort();
    const chosen = this.status.value;
    fill(this.status, el('option', { value: '' }, 'any status'), statuses.map((status) => el('option', { value: status, selected: status === chosen }, status)));
    const text = (row) => [row.session, row.parent?.session ?? '', ...Object.entries(row.tags).map(([key, value]) => `${key}=${value}`)].join('\n').toLowerCase();
    const [, rank] = ORDERS[this.order.value];
    this.shown = this.rows.filter((row) => (chosen === '' || row.status === chosen) && (wanted === '' || text(row).includes(wanted)));
    this.shown.sort((one, other) => (rank(one) < rank(other) ? 1 : rank(one) > rank(other) ? -1 : 0));
    fill(this.count, this.shown.length === this.rows.length ? counted(this.rows.length, 'session') : `${number(this.shown.length)} of ${counted(this.rows.length, 'session')}`);
    this.list.chosen = -1;
    this.list.resize(this.shown.length);
  }

  /** @param {any} row */
  row(row) {
    const tags = Object.entries(row.tags).map(([key, value]) => el('span', { class: 'chip' }, el('bdi', null, visible(`${key}=${value}`))));
    const waits = row.suspended.length > 0 && ` · ${counted(row.suspended.length, 'open question')}`;
    const parent = row.parent && el('span', { class: 'faint' }, ` ${row.parent.how} of ${row.parent.session.slice(0, 8)}…`);
    return el('div', { class: 'session-row', title: row.error ? visible(row.error) : null, 'aria-label': `Session ${row.session}, ${row.status}` },
      el('a', { href: `session/${row.session}/`, tabindex: '-1' }, el('code', null, row.session)),
      el('span', null, el('span', { class: `badge${['damaged', 'unreadable'].includes(row.status) ? ' outcome-failed' : ''}` }, row.status)),
      el('span', { class: 'records' }, row.records === undefined ? '–' : number(row.records)),
      el('span', { class: 'bytes' }, row.log_bytes === undefined ? '–' : bytes(row.log_bytes + row.object_bytes)),
      el('span', { class: 'only-wide' }, (row.last_at ?? '–').slice(0, 19).replace('T', ' ')),
      el('span', { class: 'only-wide' }, row.error ? el('span', { class: 'faint' }, visible(row.error)) : [tags, parent, waits]));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      this.list.show(Math.max(0, Math.min(this.shown.length - 1, this.list.chosen + by)));
    } else if (event.key === 'Enter' && this.shown[this.list.chosen]) location.href = `session/${this.shown[this.list.chosen].session}/`;
  }
}

new StorePage(document).read();
