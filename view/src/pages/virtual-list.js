// A list of any length of which only the rows in sight are elements. All rows are equally high.

import { el } from 'view/dom.js';

/** Number of rows that are made beyond both edges. */
const BEYOND = 8;

/** Height in pixels that browsers can still scroll to the pixel. */
const HEIGHT_MAX = 8e6;

export class VirtualList {
  /**
   * @param {object} options
   * @param {number} options.rowHeight in pixels
   * @param {string} options.label
   * @param {(row: number) => HTMLElement} options.make makes the element of a row
   * @param {(row: number) => void} options.choose
   */
  constructor({ rowHeight, label, make, choose }) {
    this.rowHeight = rowHeight;
    this.make = make;
    this.length = 0;
    this.chosen = -1;
    this.rows = new Map();
    this.space = el('div', { class: 'list-space', role: 'presentation' });
    this.element = el('div', { class: 'list', role: 'listbox', tabindex: '0', 'aria-label': label }, this.space);
    this.element.addEventListener('scroll', () => this.draw(), { passive: true });
    this.element.addEventListener('click', (event) => {
      const row = /** @type {HTMLElement} */ (event.target).closest('[data-row]');
      if (row) choose(Number(/** @type {HTMLElement} */ (row).dataset.row));
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** Number of pixels of the whole list that a pixel of scrolling stands for. */
  scale() {
    const height = this.element.clientHeight;
    const whole = this.length * this.rowHeight;
    return whole > HEIGHT_MAX ? (whole - height) / (HEIGHT_MAX - height) : 1;
  }

  /** @param {number} length */
  resize(length) {
    this.length = length;
    this.space.style.height = `${Math.min(length * this.rowHeight, HEIGHT_MAX)}px`;
    this.redraw();
  }

  /** Makes all rows anew. */
  redraw() {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.draw();
  }

  draw() {
    const top = this.element.scrollTop * this.scale();
    const shift = this.element.scrollTop - top;
    const first = Math.max(0, Math.floor(top / this.rowHeight) - BEYOND);
    const last = Math.min(this.length, Math.ceil((top + this.element.clientHeight) / this.rowHeight) + BEYOND);
    for (const [at, row] of this.rows) {
      if (at < first || at >= last) { row.remove(); this.rows.delete(at); }
    }
    for (let at = first; at < last; at++) {
      let row = this.rows.get(at);
      if (!row) {
        row = this.make(at);
        row.id = `row-${at}`;
        row.dataset.row = String(at);
        row.setAttribute('role', 'option');
        row.setAttribute('aria-setsize', String(this.length));
        row.setAttribute('aria-posinset', String(at + 1));
        this.mark(row, at === this.chosen);
        this.rows.set(at, row);
        this.space.append(row);
      }
      row.style.transform = `translateY(${at * this.rowHeight + shift}px)`;
    }
  }

  /** @param {HTMLElement} row @param {boolean} chosen */
  mark(row, chosen) {
    row.classList.toggle('chosen', chosen);
    row.setAttribute('aria-selected', String(chosen));
  }

  /**
   * Marks a row, and scrolls to it if it is out of sight.
   * @param {number} row -1 for none
   */
  show(row) {
    const before = this.rows.get(this.chosen);
    if (before) this.mark(before, false);
    this.chosen = row;
    if (row < 0) return;
    const [height, scale] = [this.element.clientHeight, this.scale()];
    const top = this.element.scrollTop * scale;
    const at = row * this.rowHeight;
    if (at < top || at + this.rowHeight > top + height) {
      const near = Math.abs(at - top) < 2 * height;
      const to = near ? (at < top ? at - this.rowHeight : at + 2 * this.rowHeight - height) : at - height / 2;
      this.element.scrollTop = Math.max(0, to / scale);
    }
    this.draw();
    const now = this.rows.get(row);
    if (now) this.mark(now, true);
    this.element.setAttribute('aria-activedescendant', `row-${row}`);
  }
}
