// The timeline: one line for each record, with the graph of live and abandoned paths; filters, and jumps.

import { bdi, button, el, fill, svg } from 'view/dom.js';
import { visible } from 'view/json.js';
import { VirtualList } from 'view/virtual-list.js';
import { bytes, clock, number, time } from 'view/words.js';

const ROW = 24;

/** Width of a lane of the graph, and the number of lanes that are drawn. */
const LANE = 10;
const LANES = 5;

/** @typedef {import('./source.js').RecordLine} RecordLine */

/**
 * Draws a record's part of the graph: a lane for each rollback that goes past it, and its own.
 * @param {RecordLine} record
 * @param {RecordLine | null} before
 * @param {RecordLine | null} after
 */
function graph(record, before, after) {
  const x = (lane) => 7 + Math.min(lane, LANES - 1) * LANE;
  const own = record.depth;
  const middle = ROW / 2;
  const parts = [];
  const path = (d, kind) => parts.push(svg('path', { d, class: `line ${kind}` }));
  for (let lane = 0; lane < Math.min(own, LANES); lane++) path(`M${x(lane)} 0V${ROW}`, 'past');
  const kind = record.path;
  if (before) {
    if (before.depth < own) path(`M${x(before.depth)} ${-middle}C${x(before.depth)} 2 ${x(own)} -2 ${x(own)} ${middle}`, kind);
    else path(`M${x(own)} 0V${middle}`, kind);
  }
  if (after && after.depth >= own) path(`M${x(own)} ${middle}V${ROW}`, after.depth > own ? 'past' : after.path);
  parts.push(record.kind === 'rollback'
    ? svg('path', { d: `M${x(own)} ${middle - 5}l5 5l-5 5l-5 -5Z`, class: `mark ${kind}` })
    : svg('circle', { cx: x(own), cy: middle, r: record.outcome === 'failed' ? 4.5 : 3.5, class: `mark ${kind}${record.outcome === 'failed' ? ' failed' : ''}` }));
  const width = 7 + LANES * LANE;
  if (record.operation >= 0) {
    for (let level = 0; level <= Math.min(record.nesting, 3); level++) {
      const at = width + level * 4;
      const isEnd = level === Math.min(record.nesting, 3);
      const [top, bottom] = [isEnd && record.kind === 'tool_begin' ? 5 : 0, isEnd && record.kind === 'tool_end' ? ROW - 5 : ROW];
      parts.push(svg('rect', { x: at, y: top, width: 2.5, height: bottom - top, class: `operation tint-${record.operation % 4}` }));
    }
  }
  const drawing = svg('svg', { width: width + 18, height: ROW, class: 'graph', 'aria-hidden': 'true' }, ...parts);
  return drawing;
}

/** The graph's part of a row behind the last sound record. @param {boolean} isDamage */
function beyondMark(isDamage) {
  const part = isDamage
    ? svg('path', { d: `M1 ${ROW / 2}l4 -5l5 10l5 -10l5 10l4 -5`, class: 'line damaged' })
    : svg('circle', { cx: 7, cy: ROW / 2, r: 3.5, class: 'mark unattached' });
  return svg('svg', { width: isDamage ? 28 : 75, height: ROW, class: 'graph', 'aria-hidden': 'true' }, part);
}

/** Says in a line what is damaged. @param {any} damage */
function damageText({ segment, offset, expected, found }) {
  const short = (said) => said.replace(/^checksum /, '');
  const what = expected && found ? `: expected ${short(expected)}, found ${short(found)}` : '';
  return `${segment.split('/').pop()} at byte ${number(offset)}${what}`;
}

export class Timeline {
  /**
   * @param {import('./source.js').Source} source
   * @param {(change: Record<string, string | number | null>) => void} navigate
   */
  constructor(source, navigate) {
    this.source = source;
    this.go = (sequence) => navigate({ at: sequence, from: null });
    this.head = source.head();
    this.at = this.head.at;
    /** Records that the filters allow; null for all. @type {Uint32Array | null} */
    this.allowed = null;
    this.facets = { kinds: [], slices: [], tools: [], outcomes: [] };
    this.list = new VirtualList({ rowHeight: ROW, label: 'Records', make: (row) => this.row(row), choose: (row) => navigate(this.place(row)) });
    this.filters = el('details', { class: 'filters' }, el('summary', null, 'Filter'), el('div', { class: 'filter-fields' }));
    this.filters.addEventListener('toggle', () => this.fillFilters(), { once: true });
    this.count = el('span', { class: 'faint', role: 'status' });
    this.element = el('section', { class: 'timeline', 'aria-label': 'Timeline' },
      el('div', { class: 'bar' }, this.filters, this.count, el('span', { class: 'grow' }),
        this.firstOwn() !== null && button('First own record', () => this.jump('own'), { title: 'The first record after the fork' }),
        button('First failure', () => this.jump('failure'), { disabled: this.head.failures.length === 0 }),
        button('Next rollback', () => this.jump('rollback'), { disabled: this.head.rollbacks.length === 0 })),
      el('div', { class: 'columns', 'aria-hidden': 'true' }, el('span', { class: 'sequence' }, 'record'), el('span', { class: 'graph' }), el('span', { class: 'kind' }, 'kind'), el('span', { class: 'name' }, 'name'), el('span', { class: 'time' }, 'time'), el('span', { class: 'bytes' }, 'bytes')),
      this.list.element);
    this.resize();
  }

  /** Number of rows. */
  length() {
    return this.allowed ? this.allowed.length : this.head.last - this.head.from + 1;
  }

  /** Number of rows behind those of records: the damage that ends what is sound, and the sound records behind it. */
  beyondLength() {
    const { damage, last, log_last: end } = this.head;
    return damage && last === end && !this.allowed ? 1 + damage.listed : 0;
  }

  /** Where a row leads. @param {number} row @returns {Record<string, string | number | null>} */
  place(row) {
    const beyond = row - this.length();
    return beyond < 0 ? { at: this.sequence(row), from: null } : { at: this.head.last, beyond, from: null };
  }

  /** @param {number} row */
  sequence(row) {
    return this.allowed ? this.allowed[row] : this.head.from + row;
  }

  /** Row of a record, or of the last one before it; -1 if there is none. @param {number} sequence */
  rowOf(sequence) {
    if (!this.allowed) return sequence - this.head.from;
    let [low, high] = [0, this.allowed.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.allowed[middle] <= sequence) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  resize() {
    this.list.resize(this.length() + this.beyondLength());
    const all = this.head.last - this.head.from + 1;
    fill(this.count, this.allowed ? `${number(this.allowed.length)} of ${number(all)} records` : `${number(all)} records`);
  }

  /** Shows what a session that has grown is now. */
  async grow() {
    if (this.allowed) this.allowed = await this.source.filter(this.facets);
    this.resize();
  }

  /** @param {number} row */
  row(row) {
    if (row >= this.length()) return this.beyondRow(row - this.length());
    const sequence = this.sequence(row);
    const element = el('div', { class: 'record' });
    const record = this.source.recordNow(sequence);
    if (record) this.fillRow(element, record);
    else {
      element.append(el('span', { class: 'sequence' }, sequence));
      this.source.records(sequence, 1).then(([read]) => read && this.fillRow(element, read), () => element.classList.add('is-unread'));
    }
    return element;
  }

  /** The row of the damage, or of a record behind it. @param {number} beyond 0 for the damage */
  beyondRow(beyond) {
    const { damage } = this.head;
    const element = el('div', { class: `record ${beyond === 0 ? 'is-damage' : 'path-unattached'}` });
    const show = (sequence, kind, name, more, label) => {
      element.title = `${label}\n${more.title}`;
      element.setAttribute('aria-label', label);
      fill(element, el('span', { class: 'sequence' }, sequence), beyondMark(beyond === 0), el('span', { class: `kind kind-${kind}` }, kind.replaceAll('_', ' ')), el('span', { class: 'name' }, more.chip, bdi(name)), more.cells);
    };
    if (beyond === 0) {
      const said = damageText(damage);
      show(damage.sequence, 'damaged', said, { title: visible(damage.reason), cells: [] }, `Damage before record ${damage.sequence}: ${said}`);
    } else {
      element.append(el('span', { class: 'sequence' }, '…'));
      this.source.beyond(beyond - 1).then((one) => show(one.sequence, one.kind, one.name,
        { title: `${visible(one.segment)} at byte ${one.offset}\n${time(one.time)}`, chip: el('span', { class: 'chip' }, 'unattached'), cells: [el('span', { class: 'time' }, clock(one.time)), el('span', { class: 'bytes' }, bytes(one.bytes))] },
        `Record ${one.sequence}, ${one.kind}, ${visible(one.name)}, unattached: after damage, nothing proves what preceded it`), () => element.classList.add('is-unread'));
    }
    return element;
  }

  /** @param {HTMLElement} element @param {RecordLine} record */
  fillRow(element, record) {
    const near = (sequence) => (this.allowed ? null : this.source.recordNow(sequence));
    const tool = record.tool && !record.name.includes(record.tool) ? el('span', { class: 'chip' }, visible(record.tool)) : null;
    const { unknown } = this.head;
    const known = unknown.some(([, last]) => last === record.sequence - 1);
    element.classList.add(`path-${record.path}`);
    element.classList.toggle('is-failed', record.outcome === 'failed');
    element.classList.toggle('is-compacted', unknown.some(([first, last]) => first <= record.sequence && record.sequence <= last));
    const compacted = known ? el('span', { class: 'chip compaction' }, `bodies before ${number(record.sequence)} were compacted`) : null;
    element.title = `${record.kind} ${visible(record.name)}\n${time(record.time)}\n${bytes(record.bytes)}, ${record.path}${known ? `\nbodies before ${number(record.sequence)} were compacted` : ''}${record.slices.length > 0 ? `\nchanges ${visible(record.slices.join(', '))}` : ''}`;
    element.setAttribute('aria-label', `Record ${record.sequence}, ${record.kind}, ${visible(record.name)}, ${record.path}${record.outcome ? `, ${record.outcome}` : ''}`);
    fill(element,
      el('span', { class: 'sequence' }, record.sequence),
      graph(record, near(record.sequence - 1), near(record.sequence + 1)),
      el('span', { class: `kind kind-${record.kind}` }, record.kind.replaceAll('_', ' ')),
      el('span', { class: 'name' }, bdi(record.name), tool, compacted),
      el('span', { class: 'time' }, clock(record.time)),
      el('span', { class: 'bytes' }, bytes(record.bytes)));
  }

  /** Shows the step, or a row behind the last one. @param {number} at @param {number} [beyond] */
  step(at, beyond) {
    this.at = at;
    this.chosen = beyond === undefined || beyond >= this.beyondLength() ? this.rowOf(at) : this.length() + beyond;
    this.list.show(this.chosen);
  }

  /**
   * Returns where the row leads that is some rows away: of records, or from the last one on of what is behind it.
   * @param {number} by
   */
  beside(by) {
    const end = this.length() + (by === Infinity ? 0 : this.beyondLength());
    return end > 0 ? this.place(Math.max(0, Math.min(end - 1, this.chosen + by))) : { at: this.at, from: null };
  }

  /** The first record of a fork that is not its parent's; null if there is none, or it is not listed. */
  firstOwn() {
    const own = this.head.parent?.first_own;
    return own >= this.head.from && own <= this.head.last ? own : null;
  }

  /** @param {'failure' | 'rollback' | 'own'} what */
  jump(what) {
    if (what === 'own') {
      const own = this.firstOwn();
      if (own !== null) this.go(own);
      return;
    }
    if (what === 'failure') { this.go(this.head.failures[0]); return; }
    const listed = this.head.rollbacks.map(([at]) => at).filter((at) => at >= this.head.from && at <= this.head.last);
    const next = listed.find((at) => at > this.at) ?? listed[0];
    if (next !== undefined) this.go(next);
  }

  async fillFilters() {
    const choices = await this.source.facets();
    const choice = (name, label, values) => values.length > 0 && el('fieldset', null, el('legend', null, label), values.map((value) => {
      const box = el('input', { type: 'checkbox', on: { change: () => {
        const chosen = new Set(this.facets[name]);
        if (box.checked) chosen.add(value); else chosen.delete(value);
        this.facets[name] = [...chosen];
        this.filter();
      } } });
      return el('label', null, box, bdi(value));
    }));
    fill(/** @type {Element} */ (this.filters.querySelector('.filter-fields')), choice('kinds', 'Kind', choices.kinds), choice('slices', 'Changes slice', choices.slices), choice('tools', 'Tool', choices.tools), choice('outcomes', 'Outcome', choices.outcomes),
      button('Clear', () => {
        for (const box of this.filters.querySelectorAll('input')) box.checked = false;
        this.facets = { kinds: [], slices: [], tools: [], outcomes: [] };
        this.filter();
      }));
  }

  async filter() {
    const isAny = Object.values(this.facets).some((values) => values.length > 0);
    this.allowed = isAny ? await this.source.filter(this.facets) : null;
    this.resize();
    this.step(this.at);
  }
}

/** Shows where in the session what lies, and the step; a slider moves it. */
export class Scrubber {
  /**
   * @param {any} head
   * @param {(sequence: number) => void} go
   */
  constructor(head, go) {
    this.head = head;
    this.canvas = el('canvas', { class: 'density', 'aria-hidden': 'true' });
    this.slider = el('input', { type: 'range', min: head.from, max: head.last, step: '1', 'aria-label': 'Step', on: { input: () => go(Number(this.slider.value)) } });
    this.element = el('div', { class: 'scrubber' }, this.canvas, this.slider);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  draw() {
    const { canvas, head: { density, unknown, from, last } } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext('2d');
    if (!context) return;
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const color = (name) => style.getPropertyValue(name);
    const count = density.live.length;
    const most = Math.max(1, ...density.live.map((live, at) => live + density.abandoned[at]));
    const [mostFailed, mostRollbacks] = [Math.max(1, ...density.failed), Math.max(1, ...density.rollbacks)];
    for (let at = 0; at < count; at++) {
      const [x, wide] = [(at * width) / count, Math.max(1, width / count)];
      const bar = (from, amount, name) => {
        const high = (amount / most) * (height - 7);
        context.fillStyle = color(name);
        context.fillRect(x, height - from - high, wide, high);
        return from + high;
      };
      bar(bar(0, density.live[at], '--live-soft'), density.abandoned[at], '--abandoned-soft');
      const tick = (amount, among, name, top) => {
        if (amount === 0) return;
        context.globalAlpha = 0.35 + (0.65 * amount) / among;
        context.fillStyle = color(name);
        context.fillRect(x, top, Math.max(2, wide), 2.5);
        context.globalAlpha = 1;
      };
      tick(density.rollbacks[at], mostRollbacks, '--warn', 3);
      tick(density.failed[at], mostFailed, '--bad', 0);
    }
    // What a compaction dropped is hatched.
    context.beginPath();
    context.strokeStyle = color('--faint');
    for (const [first, end] of unknown) {
      const place = (sequence) => ((sequence - from) * width) / (last - from + 1);
      const [left, right] = [Math.max(0, place(first)), Math.min(width, place(end + 1))];
      for (let x = left - (left % 5); x < right; x += 5) { context.moveTo(Math.max(left, x), height); context.lineTo(Math.min(right, x + 5), 7); }
    }
    context.stroke();
  }

  /** @param {number} at */
  step(at) {
    this.slider.value = String(at);
    this.slider.setAttribute('aria-valuetext', `record ${at} of ${this.head.from} to ${this.head.last}`);
  }
}
