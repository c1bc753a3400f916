// The differences of two steps of a report, computed as `foldlog diff` computes them (`cli/src/diff.rs` says how): a server finds
// them itself.

import { field, parse, quote, same, write } from 'view/json.js';

/** @typedef {import('./source.js').Difference} Difference */
/** @typedef {import('./source.js').Shown} Shown */
/** @typedef {{old: number[], now: number[], values: Map<number, Shown>}} Lists a list at two steps, by the numbers of its items */

const NIL = 'null';

/** Path of a field: `.name`, or `["any text"]`. @param {string} path @param {string} key */
function fieldPath(path, key) {
  if (key.startsWith('$key:')) return `${path}[${key.slice(5)}]`;
  const isPlain = /^[\p{Alphabetic}_][\p{Alphabetic}\p{N}_]*$/u.test(key);
  return isPlain ? `${path}.${key}` : `${path}[${quote(key)}]`;
}

class Collector {
  /** @param {string | null} slice @param {string | null} conversation */
  constructor(slice, conversation = null) {
    this.slice = slice;
    this.conversation = conversation;
    /** @type {Difference[]} */
    this.found = [];
  }

  /** @param {string} path @param {Difference['change']} change @param {string} before @param {string} after */
  push(path, change, before, after, whole = true) {
    this.found.push({ slice: this.slice, conversation: this.conversation, path, change, before, after, whole });
  }

  /** @param {Lists} lists */
  items({ old, now, values }) {
    const places = new Map(old.map((number, place) => [number, place]));
    let [oldFrom, nowFrom] = [0, 0];
    const between = (oldEnd, nowEnd) => {
      for (let place = nowFrom; place < nowEnd; place++) {
        const after = /** @type {Shown} */ (values.get(now[place]));
        const path = `items[${place}]`;
        if (oldFrom < oldEnd) this.shown(path, /** @type {Shown} */ (values.get(old[oldFrom++])), after);
        else this.push(path, 'added', NIL, after.text, after.whole);
      }
      for (; oldFrom < oldEnd; oldFrom++) {
        const before = /** @type {Shown} */ (values.get(old[oldFrom]));
        this.push(`items[${oldFrom}]`, 'removed', before.text, NIL, before.whole);
      }
    };
    for (const [place, number] of now.entries()) {
      const at = places.get(number);
      if (at === undefined || at < oldFrom) continue;
      between(at, place);
      [oldFrom, nowFrom] = [at + 1, place + 1];
    }
    between(old.length, now.length);
  }

  /** @param {string} path @param {Shown} before @param {Shown} after */
  shown(path, before, after) {
    if (before.whole && after.whole) this.values(path, parse(before.text), parse(after.text));
    else if (before.text !== after.text) this.push(path, 'changed', before.text, after.text, false);
  }

  /** @param {string} path @param {import('./json.js').Json} before @param {import('./json.js').Json} after */
  values(path, before, after) {
    if (same(before, after)) return;
    if (before.type === 'object' && after.type === 'object') {
      before.keys.forEach((key, at) => {
        const other = after.keys.indexOf(key);
        if (other >= 0) this.values(fieldPath(path, key), before.values[at], after.values[other]);
        else this.push(fieldPath(path, key), 'removed', write(before.values[at]), NIL);
      });
      after.keys.forEach((key, at) => {
        if (!before.keys.includes(key)) this.push(fieldPath(path, key), 'added', NIL, write(after.values[at]));
      });
    } else if (before.type === 'array' && after.type === 'array') {
      const both = Math.min(before.values.length, after.values.length);
      for (let at = 0; at < both; at++) this.values(`${path}[${at}]`, before.values[at], after.values[at]);
      for (let at = both; at < before.values.length; at++) this.push(`${path}[${at}]`, 'removed', write(before.values[at]), NIL);
      for (let at = both; at < after.values.length; at++) this.push(`${path}[${at}]`, 'added', NIL, write(after.values[at]));
    } else this.push(path, 'changed', write(before), write(after));
  }
}

/** What a message says as a value, without time and id. @param {Shown} shown */
function said(shown) {
  const message = parse(shown.text);
  const of = (name) => field(message, name);
  const nil = /** @type {const} */ ({ type: 'plain', text: NIL });
  const keys = ['role', 'content'];
  const values = [of('role') ?? nil, of('content') ?? nil];
  const calls = of('tool_calls');
  if (calls?.type === 'array' && calls.values.length > 0) {
    const call = (one) => ({ type: /** @type {const} */ ('object'), keys: ['call_id', 'name', 'arguments'], values: ['call_id', 'name', 'arguments'].map((key) => field(one, key) ?? nil) });
    keys.push('tool_calls');
    values.push({ type: 'array', values: calls.values.map(call) });
  }
  if (of('tool_call_id')) { keys.push('tool_call_id'); values.push(/** @type {any} */ (of('tool_call_id'))); }
  const blocks = of('blocks');
  if (blocks) { keys.push('blocks'); values.push(field(blocks, 'json') ?? blocks); }
  return write({ type: 'object', keys, values });
}

/** Finds differences in what was read of two steps. */
export const differences = {
  /** @param {string} slice @param {Lists} lists */
  slice(slice, lists) {
    const collector = new Collector(slice);
    collector.items(lists);
    return collector.found;
  },
  /** @param {Record<string, string>} before @param {Record<string, string>} after */
  tags(before, after) {
    const collector = new Collector(null);
    const map = (tags) => ({ type: /** @type {const} */ ('object'), keys: Object.keys(tags), values: Object.values(tags).map((value) => ({ type: /** @type {const} */ ('string'), value })) });
    collector.values('tags', map(before), map(after));
    return collector.found;
  },
  /** @param {string} evaluation @param {Lists} lists */
  messages(evaluation, { old, now, values }) {
    const collector = new Collector(null, evaluation);
    const only = (these, others, change) => {
      const held = new Set(others);
      these.forEach((number, place) => {
        if (held.has(number)) return;
        const shown = /** @type {Shown} */ (values.get(number));
        const value = said(shown);
        collector.push(`messages[${place}]`, change, change === 'added' ? NIL : value, change === 'added' ? value : NIL, shown.whole);
      });
    };
    only(old, now, 'removed');
    only(now, old, 'added');
    return collector.found;
  },
};
