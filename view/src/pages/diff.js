// Shows the differences of two steps.

import { bdi, button, el, fill } from 'view/dom.js';
import { parse, visible } from 'view/json.js';
import { leftOut, text, tree } from 'view/value-tree.js';
import { counted } from 'view/words.js';

/** @typedef {import('./source.js').Difference} Difference */

/** Number of lines beyond which two texts are not compared line by line. */
const LINES = 3000;

/**
 * Returns the lines of two texts: kept, removed and added ones. Null if they are too many.
 * @param {string} before
 * @param {string} after
 * @returns {{mark: ' ' | '-' | '+', line: string}[] | null}
 */
export function lineDiff(before, after) {
  const [old, now] = [before.split('\n'), after.split('\n')];
  if (old.length + now.length > LINES) return null;
  let begin = 0;
  while (begin < old.length && begin < now.length && old[begin] === now[begin]) begin++;
  let end = 0;
  while (end < old.length - begin && end < now.length - begin && old[old.length - 1 - end] === now[now.length - 1 - end]) end++;
  const [rows, columns] = [old.length - begin - end, now.length - begin - end];
  if (rows * columns > 2e6) return null;
  // Length of the longest common part behind each pair of lines.
  const common = new Uint16Array((rows + 1) * (columns + 1));
  const cell = (row, column) => row * (columns + 1) + column;
  for (let row = rows - 1; row >= 0; row--) {
    for (let column = columns - 1; column >= 0; column--) {
      common[cell(row, column)] = old[begin + row] === now[begin + column] ? common[cell(row + 1, column + 1)] + 1 : Math.max(common[cell(row + 1, column)], common[cell(row, column + 1)]);
    }
  }
  const lines = [];
  const push = (mark, line) => lines.push({ mark, line });
  for (let at = 0; at < begin; at++) push(' ', old[at]);
  let [row, column] = [0, 0];
  while (row < rows || column < columns) {
    if (row < rows && column < columns && old[begin + row] === now[begin + column]) { push(' ', old[begin + row]); row++; column++; }
    else if (row < rows && (column === columns || common[cell(row + 1, column)] >= common[cell(row, column + 1)])) push('-', old[begin + row++]);
    else push('+', now[begin + column++]);
  }
  for (let at = old.length - end; at < old.length; at++) push(' ', old[at]);
  return lines;
}

/** Shows two texts as one unified diff, three lines of context around each change. @param {string} before @param {string} after */
function unified(before, after) {
  const lines = lineDiff(before, after);
  if (!lines) return el('div', { class: 'beside' }, text(before), text(after));
  const near = (at) => lines.slice(Math.max(0, at - 3), at + 4).some(({ mark }) => mark !== ' ');
  const rows = [];
  let skipped = false;
  lines.forEach(({ mark, line }, at) => {
    if (near(at)) { rows.push(el('div', { class: `line-${mark === '+' ? 'added' : mark === '-' ? 'removed' : 'kept'}` }, `${mark} ${visible(line)}`)); skipped = false; }
    else if (!skipped) { rows.push(el('div', { class: 'line-skipped' }, '⋯')); skipped = true; }
  });
  return el('div', { class: 'unified' }, rows);
}

const MARK = { added: '+', removed: '−', changed: '~' };
const sign = (change) => el('span', { class: 'sign', title: change, 'aria-label': change }, MARK[change]);

/** Number of differences that are shown until somebody asks for more. */
const SHOWN = 300;

export class DiffView {
  /** @param {import('./source.js').Source} source @param {(change: Record<string, string | number | null>) => void} navigate */
  constructor(source, navigate) {
    this.source = source;
    const head = source.head();
    const field = (name, label) => {
      const input = el('input', { type: 'number', min: head.from, max: head.last, 'aria-label': label, on: { change: () => navigate({ [name]: input.value }) } });
      return input;
    };
    this.before = field('before', 'Earlier step');
    this.after = field('at', 'Later step');
    this.body = el('div', { class: 'part' });
    this.element = el('section', { class: 'view diff', 'aria-label': 'Diff' },
      el('div', { class: 'bar' }, el('label', null, 'from ', this.before), el('label', null, 'to ', this.after),
        button('Previous record', () => navigate({ before: Math.max(head.from, Number(this.after.value) - 1) }))),
      this.body);
    this.asked = 0;
  }

  /** @param {{at: number, before?: string}} route */
  async show(route) {
    const head = this.source.head();
    const before = route.before === undefined ? Math.max(head.from, route.at - 1) : Math.min(head.last, Math.max(head.from, Number(route.before) || 0));
    [this.before.value, this.after.value] = [String(before), String(route.at)];
    const mine = ++this.asked;
    const [found, files] = await Promise.all([this.source.diff(before, route.at), this.source.fileChanges(before, route.at)]);
    const changed = await Promise.all(files.slice(0, SHOWN).map((one) => this.file(one)));
    if (mine !== this.asked) return;
    this.element.dataset.shows = `${before} ${route.at}`;
    fill(this.body,
      found.length + files.length === 0 && el('p', { class: 'faint' }, `No difference between ${before} and ${route.at}.`),
      'isCut' in found && found.isCut && el('p', { class: 'note' }, `Only the first ${counted(found.length, 'difference')} are shown; `, el('code', null, 'foldlog diff'), ' prints all of them.'),
      files.length > 0 && el('section', { class: 'group files-changed' }, el('h3', null, 'Files ', el('span', { class: 'faint' }, counted(files.length, 'changed file'))), el('ul', { class: 'differences' }, changed), files.length > SHOWN && el('p', { class: 'faint' }, `and ${files.length - SHOWN} others`)),
      'refused' in found && found.refused && el('p', { class: 'note', role: 'alert' }, `Not all could be compared: ${visible(found.refused)}`),
      groups(found));
  }

  /** @param {import('./source.js').FileChange} one */
  async file(one) {
    const text = async (file) => (file ? ((await this.source.content(file))?.text ?? null) : '');
    return fileDifference(one, ...(await Promise.all([text(one.before), text(one.after)])));
  }
}

/**
 * Shows the differences of two versions of a file. A text is null if it is not included, or not a text.
 * @param {any} one
 * @param {string | null} before
 * @param {string | null} after
 */
export function fileDifference(one, before, after) {
  const change = one.before === null ? 'added' : one.after === null ? 'removed' : 'changed';
  const said = (file) => (file ? `${file.bytes} bytes, ${file.permissions ?? file.kind}` : 'none');
  const isSame = one.before?.digest === one.after?.digest;
  return el('li', { class: `difference is-${change}` },
    el('div', { class: 'path' }, sign(change), ' ', bdi(one.path), el('span', { class: 'faint' }, ` ${said(one.before)} → ${said(one.after)}`)),
    before !== null && after !== null && !isSame ? unified(before, after) : el('p', { class: 'faint' }, isSame ? 'The content is the same.' : 'The contents are not included, or not text.'));
}

/** Shows differences by slice and conversation. @param {Difference[]} found */
export function groups(found) {
  const named = new Map();
  for (const one of found) {
    const name = one.conversation !== null ? `Conversation ${one.conversation}` : (one.slice ?? 'Tags');
    if (!named.has(name)) named.set(name, []);
    named.get(name).push(one);
  }
  return [...named].map(([name, group]) => shownGroup(name, group));
}

/** @param {string} name @param {Difference[]} group */
function shownGroup(name, group) {
  const list = el('ul', { class: 'differences' });
  const more = (from) => {
    list.append(...group.slice(from, from + SHOWN).map((one) => difference(one)));
    if (from + SHOWN < group.length) {
      const rest = el('li', null, button(`${group.length - from - SHOWN} more`, () => { rest.remove(); more(from + SHOWN); }, { class: 'more' }));
      list.append(rest);
    }
  };
  more(0);
  return el('section', { class: 'group' }, el('h3', null, bdi(name), ' ', el('span', { class: 'faint' }, counted(group.length, 'difference'))), list);
}

/** @param {{path: string, change: Difference['change'], before: string, after: string}} one */
export function difference(one) {
  const [before, after] = [parse(one.before), parse(one.after)];
  const isText = before.type === 'string' && after.type === 'string' && (before.value + after.value).includes('\n');
  const side = (json) => leftOut(json, true) ?? (json.type === 'string' ? text(json.value) : tree(json));
  const shown = one.change === 'changed'
    ? (isText ? unified(/** @type {any} */ (before).value, /** @type {any} */ (after).value) : el('div', { class: 'beside' }, el('div', { class: 'was' }, side(before)), el('div', { class: 'now' }, side(after))))
    : el('div', { class: one.change === 'added' ? 'now' : 'was' }, side(one.change === 'added' ? after : before));
  return el('li', { class: `difference is-${one.change}` }, el('div', { class: 'path' }, sign(one.change), ' ', bdi(one.path)), shown);
}

