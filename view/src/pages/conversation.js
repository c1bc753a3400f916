// A conversation as a reader wants it: who said what, results under the calls that they answer.

import { address, bdi, button, el } from 'view/dom.js';
import { field, numberOf, parse, textOf, visible } from 'view/json.js';
import { leftOut, text, tree } from 'view/value-tree.js';
import { bytes } from 'view/words.js';
import { markdown } from 'view/markdown.js';

const WHO = { system: 'System', user: 'User', assistant: 'Assistant', tool: 'Tool' };

/** @param {import('./json.js').Json} call */
const idOf = (call) => textOf(field(call, 'call_id')) ?? '';

/**
 * @param {import('./source.js').Item[]} items
 * @param {(sequence: number) => void} go
 * @param {number} at
 * @param {import('./source.js').Summary[]} summaries
 * @returns {HTMLElement}
 */
export function showConversation(items, go, at, summaries) {
  const told = new Set();
  const messages = items.map((item) => ({ item, json: parse(item.value.text) }));
  /** Calls that no result was shown for yet, by their ids, which may be those of several: where the next result belongs. @type {Map<string, HTMLElement[]>} */
  const open = new Map();
  const list = el('ol', { class: 'conversation' });
  for (const { item, json } of messages) {
    const role = textOf(field(json, 'role')) ?? '';
    const callId = textOf(field(json, 'tool_call_id'));
    const under = role === 'tool' ? open.get(callId)?.shift() : undefined;
    const isError = field(json, 'is_error')?.type === 'plain';
    const name = textOf(field(json, 'name'));
    // A message beside another one is shown without its record.
    const record = item.sequence < 0 ? null : button(`@${item.sequence}`, () => go(item.sequence), { class: 'link', title: 'Go to the record of this message' });
    if (under) {
      under.append(el('details', { class: `result${isError ? ' is-failed' : ''}`, data: { sequence: item.sequence }, open: item.sequence === at || size(json) < 1200 }, el('summary', null, isError ? 'Failed ' : 'Result ', record), content(json, false)));
      continue;
    }
    const given = field(json, 'tool_calls');
    const calls = given?.type === 'array' ? given.values : [];
    // A result belongs to the last answer with a call of its id.
    for (const call of calls) open.set(idOf(call), []);
    const replacing = summaries.filter((one) => role !== 'system' && one.from <= item.sequence && item.sequence <= one.to && item.sequence < one.sequence);
    for (const one of replacing) if (!told.has(one)) { told.add(one); list.append(summary(one, go)); }
    list.append(el('li', { class: `message role-${role in WHO ? role : 'other'}${isError ? ' is-failed' : ''}${replacing.length > 0 ? ' is-replaced' : ''}`, data: { sequence: item.sequence } },
      el('div', { class: 'who' }, WHO[role] ?? visible(role), name ? el('span', { class: 'faint' }, ' ', bdi(name)) : null, el('span', { class: 'grow' }), replacing.length > 0 && el('span', { class: 'chip' }, `replaced by @${replacing.at(-1).sequence}`), record),
      content(json, role !== 'tool'),
      calls.map((call) => {
        const element = el('div', { class: 'call' }, el('div', { class: 'call-head' }, el('span', { class: 'faint' }, 'calls '), el('code', null, visible(textOf(field(call, 'name')) ?? '')), ' ', el('a', { class: 'faint call-id', href: address({ view: 'operations', call: idOf(call), operation: null }), title: 'Go to the operation' }, visible(idOf(call)))), callArguments(field(call, 'arguments')));
        open.get(idOf(call))?.push(element);
        return element;
      })));
  }
  return list;
}

/**
 * A summary, where what it replaces begins.
 * @param {import('./source.js').Summary} one
 * @param {(sequence: number) => void} go
 */
function summary({ sequence, from, to, reason, messages }, go) {
  const said = (text) => (typeof text === 'string' ? markdown(text) : el('span', { class: 'left-out' }, `text, ${bytes(text.bytes)}`));
  return el('li', { class: 'message summary', data: { sequence } },
    el('div', { class: 'who' }, 'Summary', el('span', { class: 'faint' }, ` sent in place of records ${from} to ${to}`, typeof reason === 'string' && [': ', bdi(reason)]), el('span', { class: 'grow' }), button(`@${sequence}`, () => go(sequence), { class: 'link', title: 'Go to the record of the summary' })),
    messages.map(([role, text]) => el('div', { class: 'said' }, el('span', { class: 'faint' }, WHO[role] ?? visible(role)), said(text))));
}

/** Number of characters of a message's text. @param {import('./json.js').Json} json */
function size(json) {
  const said = field(json, 'content');
  return textOf(said)?.length ?? numberOf(field(said, 'bytes')) ?? 0;
}

/** @param {import('./json.js').Json | null} json */
function callArguments(json) {
  if (!json) return null;
  if (json.type !== 'string') return leftOut(json);
  try { return tree(parse(json.value)); } catch { return text(json.value); }
}

/**
 * Shows what a message says: its text, or else its blocks.
 * @param {import('./json.js').Json} json
 * @param {boolean} isProse
 */
function content(json, isProse) {
  const said = field(json, 'content');
  const blocks = field(json, 'blocks');
  const parts = [];
  if (said && said.type === 'object') parts.push(leftOut(said));
  const spoken = textOf(said);
  if (spoken !== null && spoken !== '') parts.push(isProse ? markdown(spoken) : reply(spoken));
  if (blocks) parts.push(blocksOf(blocks, spoken));
  return el('div', { class: 'said' }, parts);
}

/** A tool's reply: JSON as a tree, else text. @param {string} spoken */
function reply(spoken) {
  if (/^\s*[[{]/.test(spoken)) {
    try { return tree(parse(spoken)); } catch { /* It only looks like JSON. */ }
  }
  return text(spoken);
}

/**
 * Shows blocks in a provider's form: images, and whatever the text does not say.
 * @param {import('./json.js').Json} blocks
 * @param {string | null} spoken
 */
function blocksOf(blocks, spoken) {
  const stands = leftOut(blocks);
  if (stands) return stands;
  const source = textOf(field(blocks, 'json'));
  if (source === null) return null;
  let list;
  try { list = parse(source); } catch { return text(source); }
  const entries = list.type === 'array' ? list.values : [list];
  return el('div', { class: 'blocks' }, entries.map((block) => {
    const type = textOf(field(block, 'type'));
    const image = imageOf(block);
    if (image) return image;
    const said = textOf(field(block, 'text'));
    if (type === 'text' && said !== null) return spoken === null ? markdown(said) : null;
    if (type === 'thinking') return el('details', { class: 'thinking' }, el('summary', null, 'Thinking'), markdown(textOf(field(block, 'thinking')) ?? ''));
    if (type === 'tool_use' || type === 'tool_result') return null;
    return el('details', null, el('summary', null, visible(type ?? 'block')), tree(block));
  }));
}

/** Shows an image that the block itself holds. @param {import('./json.js').Json} block */
function imageOf(block) {
  const source = field(block, 'source');
  const kind = textOf(field(source, 'media_type'));
  const data = textOf(field(source, 'data'));
  const url = textOf(field(field(block, 'image_url'), 'url'));
  const isImage = (type) => /^image\/(png|jpeg|gif|webp)$/.test(type);
  if (kind && data && isImage(kind) && /^[A-Za-z0-9+/=\s]+$/.test(data)) return el('img', { class: 'image', alt: 'Image in the conversation', src: `data:${kind};base64,${data}` });
  if (url && /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/.test(url)) return el('img', { class: 'image', alt: 'Image in the conversation', src: url });
  return null;
}
