// Shows values: JSON as a tree, items that are alike as a table, a value that is not included as a mark with its size.

import { bdi, button, el, fill } from 'view/dom.js';
import { field, numberOf, parse, textOf, visible, write } from 'view/json.js';
import { bytes, number } from 'view/words.js';

/** How much of a text, an object or an array is shown until somebody asks for more, and how many values open at first. */
const TEXT_CHARS = 2000;
const VALUES = 200;
const OPEN_VALUES = 60;

/**
 * Shows a value.
 * @param {import('./source.js').Shown} value
 * @returns {HTMLElement}
 */
export function showValue(value) {
  try {
    const json = parse(value.text);
    return value.whole ? tree(json) : partial(json);
  } catch (error) {
    return el('pre', { class: 'text' }, visible(value.text.slice(0, TEXT_CHARS)));
  }
}

/**
 * Shows a value, or the mark of one that is not included.
 * @param {import('./json.js').Json} json
 */
function partial(json) {
  return leftOut(json) ?? tree(json);
}

/**
 * Returns the mark of a value that is not included: its type and size, and what is known of its beginning. Null for any other value.
 * @param {import('./json.js').Json} json
 * @param {boolean} [isCompared] whether the mark shows the digest, by which equal sizes differ
 * @returns {HTMLElement | null}
 */
export function leftOut(json, isCompared = false) {
  const type = textOf(field(json, '$left_out'));
  if (type === null) return null;
  const digest = textOf(field(json, 'blake3')) ?? '';
  const beginning = textOf(field(json, 'beginning'));
  const facts = `${type}, ${bytes(numberOf(field(json, 'bytes')) ?? 0)}`;
  const mark = el('span', { class: 'left-out', title: digest && `BLAKE3 ${digest}` }, facts, isCompared && el('span', { class: 'digest' }, ` ${digest.slice(0, 12)}`));
  return beginning === null ? mark : el('div', null, mark, el('pre', { class: 'text' }, visible(beginning), '…'));
}

/**
 * Shows JSON as a tree.
 * @param {import('./json.js').Json} json
 * @returns {HTMLElement}
 */
export function tree(json) {
  return el('div', { class: 'tree' }, branch(json, { left: OPEN_VALUES }));
}

/**
 * @param {import('./json.js').Json} json
 * @param {{left: number}} open number of values that may still be shown open
 * @returns {HTMLElement}
 */
function branch(json, open) {
  if (json.type === 'string') return text(json.value);
  if (json.type === 'plain') return el('span', { class: `plain ${/^[-\d]/.test(json.text) ? 'number' : 'word'}` }, json.text);
  const stands = leftOut(json);
  if (stands) return stands;
  if (json.values.length === 0) return el('span', { class: 'plain' }, json.type === 'array' ? '[ ]' : '{ }');
  if (isShort(json)) return el('span', { class: 'short' }, '[', json.values.map((value, at) => [at > 0 && ', ', branch(value, open)]), ']');
  const inner = el('ul', { class: 'values' });
  const more = (from) => {
    const rows = [];
    const end = Math.min(from + VALUES, json.values.length);
    for (let at = from; at < end; at++) {
      const key = json.type === 'object' ? el('span', { class: 'key' }, bdi(json.keys[at]), ': ') : el('span', { class: 'place' }, `${at} `);
      rows.push(el('li', null, key, branch(json.values[at], open)));
    }
    inner.append(...rows);
    if (end < json.values.length) {
      const rest = el('li', null, button(`${number(json.values.length - end)} more`, () => { rest.remove(); more(end); }, { class: 'more' }));
      inner.append(rest);
    }
  };
  const isOpen = json.values.length <= open.left;
  if (isOpen) open.left -= json.values.length;
  const summary = json.type === 'array' ? `[${number(json.values.length)}]` : `{${number(json.values.length)}}`;
  const details = el('details', { open: isOpen }, el('summary', null, el('span', { class: 'count' }, summary), isOpen ? null : el('span', { class: 'beginning' }, ` ${beginning(json)}`)), inner);
  if (isOpen) more(0);
  else details.addEventListener('toggle', () => { if (inner.childElementCount === 0) more(0); });
  return details;
}

/** Whether an array fits in a line. @param {import('./json.js').Json} json */
function isShort(json) {
  return json.type === 'array' && json.values.length <= 6 && json.values.every((value) => value.type === 'plain' || (value.type === 'string' && value.value.length <= 24 && !value.value.includes('\n')));
}

/** @param {import('./json.js').JsonObject | import('./json.js').JsonArray} json */
function beginning(json) {
  const shown = json.values.slice(0, 4).map((value, at) => {
    const short = value.type === 'object' ? '{…}' : value.type === 'array' ? '[…]' : write(value.type === 'string' && value.value.length > 40 ? { type: 'string', value: `${value.value.slice(0, 40)}…` } : value);
    return json.type === 'object' ? `${visible(json.keys[at].slice(0, 30))}: ${short}` : short;
  });
  return shown.join(', ') + (json.values.length > 4 ? ', …' : '');
}

/**
 * Shows a text; a long one in parts.
 * @param {string} whole
 * @returns {HTMLElement}
 */
export function text(whole) {
  const lines = whole.includes('\n') || whole.length > 120;
  const shown = el(lines ? 'pre' : 'bdi', { class: lines ? 'text' : 'string' });
  const piece = (from) => {
    const end = from + (from === 0 ? TEXT_CHARS : TEXT_CHARS * 32);
    shown.append(visible(whole.slice(from, end)));
    if (end < whole.length) {
      const more = button(`${number(whole.length - end)} more characters`, () => { more.remove(); piece(end); }, { class: 'more' });
      shown.append(more);
    }
  };
  piece(0);
  if (whole === '') shown.append(el('span', { class: 'faint' }, '(empty)'));
  return shown;
}

/**
 * Shows items: as a table if they are objects with the same keys and plain values, else one tree after the other.
 * @param {import('./source.js').Item[]} items
 * @param {(sequence: number) => void} go goes to a record
 */
export function showItems(items, go) {
  const head = (item) => [el('span', { class: 'place' }, item.place), button(`@${item.sequence}`, () => go(item.sequence), { class: 'link', title: 'Go to the record that added this item' })];
  const rows = items.map((item) => {
    try { return item.value.whole ? parse(item.value.text) : null; } catch { return null; }
  });
  const keys = alike(rows);
  if (keys) {
    const cell = (json) => el('td', null, !json ? null : json.type === 'string' ? text(json.value) : branch(json, { left: 0 }));
    return el('div', { class: 'table-holder' }, el('table', { class: 'items' },
      el('thead', null, el('tr', null, el('th', { scope: 'col' }, 'item'), keys.map((key) => el('th', { scope: 'col' }, bdi(key))))),
      el('tbody', null, items.map((item, at) => el('tr', { data: { sequence: item.sequence } }, el('td', { class: 'item-head' }, head(item)), keys.map((key) => cell(field(rows[at], key))))))));
  }
  return el('ol', { class: 'items' }, items.map((item, at) => {
    const json = rows[at];
    return el('li', { data: { sequence: item.sequence } }, el('div', { class: 'item-head' }, head(item)), json ? tree(json) : showValue(item.value));
  }));
}

/** Number of columns of a table at most, and of characters of a value in it. */
const COLUMNS = 10;
const CELL_CHARS = 400;

/**
 * Returns the keys of objects that have most of them in common, and nothing large in them; null if they are not alike.
 * @param {(import('./json.js').Json | null)[]} rows
 * @returns {string[] | null}
 */
function alike(rows) {
  if (rows.length < 2) return null;
  const fits = (value) => value.type === 'plain' || (value.type === 'string' ? value.value.length < CELL_CHARS : isShort(value) || value.values.length === 0);
  const keys = new Set();
  let filled = 0;
  for (const row of rows) {
    if (row?.type !== 'object' || new Set(row.keys).size !== row.keys.length || !row.values.every(fits)) return null;
    for (const key of row.keys) keys.add(key);
    filled += row.keys.length;
    if (keys.size > COLUMNS) return null;
  }
  return filled > 0 && filled >= keys.size * rows.length * 0.6 ? [...keys] : null;
}

/**
 * Replaces what an element holds by items, with buttons to pages before and behind.
 * @param {Element} holder
 * @param {import('./source.js').Window} shown
 * @param {number} page number of items on a page
 * @param {(from: number) => void} turn
 * @param {HTMLElement} body
 */
export function paged(holder, shown, page, turn, body) {
  const total = shown.total ?? 0;
  const from = shown.items[0]?.place ?? 0;
  const end = from + shown.items.length;
  const bar = total > shown.items.length && el('nav', { class: 'pages', 'aria-label': 'Pages of the list' },
    button('First', () => turn(0), { disabled: from === 0 }),
    button('Earlier', () => turn(Math.max(0, from - page)), { disabled: from === 0 }),
    el('span', null, `${number(from)} to ${number(end - 1)} of ${number(total)}`),
    button('Later', () => turn(Math.min(end, Math.max(0, total - page))), { disabled: end >= total }),
    button('Last', () => turn(Math.max(0, total - page)), { disabled: end >= total }));
  fill(holder, bar, body);
}
