// Answers from the data in a report: blocks of the file, each read when it is needed. `view/src/lists.rs` and
// `records.rs` say what is in them.

import { differences } from 'view/differences.js';

/** @typedef {import('./source.js').Source} Source */

const CHUNK = 1024;

/** Number of blocks that are kept once they were read. */
const KEPT_BLOCKS = 160;

/** A list at every position. */
class SharedList {
  /** @param {Uint32Array} words */
  constructor(words) {
    const [versions, trees, nodes] = words;
    let at = 3;
    const part = (count) => words.slice(at, (at += count));
    this.positions = part(versions);
    this.tree = part(versions);
    this.length = part(versions);
    this.roots = part(trees);
    this.item = part(nodes);
    this.left = part(nodes);
    this.right = part(nodes);
    for (let i = 1; i < versions; i++) this.positions[i] += this.positions[i - 1];
    for (let i = 1; i < nodes; i++) this.item[i] += this.item[i - 1];
    // Nodes are counted from 1; 0 is none. Children come before their parents.
    this.size = new Uint32Array(nodes + 1);
    for (let node = 1; node <= nodes; node++) {
      const [left, right] = [this.left[node - 1], this.right[node - 1]];
      this.size[node] = 1 + (left ? this.size[node - left] : 0) + (right ? this.size[node - right] : 0);
    }
  }

  /**
   * Returns the version that holds at a position; -1 before the first.
   * @param {number} position
   */
  version(position) {
    let [low, high] = [0, this.positions.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.positions[middle] <= position) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  /** @param {number} position */
  total(position) {
    const version = this.version(position);
    return version < 0 ? null : this.length[version];
  }

  /**
   * Returns numbers of items of the list at a position.
   * @param {number} position
   * @param {number} from
   * @param {number} count
   * @returns {number[]}
   */
  items(position, from, count) {
    const version = this.version(position);
    const found = [];
    if (version < 0) return found;
    const end = Math.min(from + count, this.length[version]);
    // Walks down to the item `from`, and on in order.
    const stack = [];
    let node = this.roots[this.tree[version]];
    let before = 0;
    const down = () => {
      while (node) {
        const left = this.left[node - 1] ? node - this.left[node - 1] : 0;
        if (before + this.size[left] > from || (before + this.size[left] === from)) {
          stack.push(node, before + this.size[left]);
          node = left;
        } else {
          before += this.size[left] + 1;
          node = this.right[node - 1] ? node - this.right[node - 1] : 0;
        }
      }
    };
    down();
    while (stack.length > 0) {
      const place = /** @type {number} */ (stack.pop());
      const top = /** @type {number} */ (stack.pop());
      if (place >= end) break;
      if (place >= from) found.push(this.item[top - 1]);
      before = place + 1;
      node = this.right[top - 1] ? top - this.right[top - 1] : 0;
      down();
    }
    return found;
  }
}

/**
 * Returns the place of the last of the `firsts` that is not above a number.
 * @param {[number, number][]} firsts
 * @param {number} number
 */
function blockOf(firsts, number) {
  let [low, high] = [0, firsts.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (firsts[middle][0] <= number) low = middle + 1; else high = middle;
  }
  return firsts[low - 1];
}

/** @param {string} line @returns {import('./source.js').Shown} */
const shown = (line) => ({ text: line.slice(1), whole: line[0] === '=' });

/** @implements {Source} */
export class ReportSource {
  /** @param {Document} page */
  constructor(page) {
    this.page = page;
    /** @type {any} */
    this.known = JSON.parse(page.getElementById('head')?.textContent ?? '{}');
    this.blocks = new Map();
    this.lists = new Map();
    this.chunks = new Map();
    this.readChunks = new Map();
    /** @type {Map<number, string> | null} */
    this.names = null;
  }

  head() {
    return this.known;
  }

  /**
   * Returns a block's bytes.
   * @param {number} number
   * @returns {Promise<ArrayBuffer>}
   */
  async bytes(number) {
    let element = this.page.getElementById(`b${number}`);
    if (!element?.nextSibling && this.page.readyState === 'loading') {
      await new Promise((resolve) => this.page.addEventListener('DOMContentLoaded', resolve, { once: true }));
      element = this.page.getElementById(`b${number}`);
    }
    const packed = atob(element?.textContent ?? '');
    const bytes = new Uint8Array(packed.length);
    for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
    return new Response(stream).arrayBuffer();
  }

  /**
   * Reads a block in one form, and keeps it for a while.
   * @template T
   * @param {number} number
   * @param {(bytes: ArrayBuffer) => T} form
   * @returns {Promise<T>}
   */
  block(number, form) {
    const kept = this.blocks.get(number);
    if (kept) {
      this.blocks.delete(number);
      this.blocks.set(number, kept);
      return kept;
    }
    const read = this.bytes(number).then(form);
    this.blocks.set(number, read);
    if (this.blocks.size > KEPT_BLOCKS) this.blocks.delete(this.blocks.keys().next().value);
    return read;
  }

  /** @param {number} number @returns {Promise<any>} */
  json(number) {
    return this.block(number, (bytes) => JSON.parse(new TextDecoder().decode(bytes)));
  }

  /** @param {number} number @returns {Promise<string[]>} */
  lines(number) {
    return this.block(number, (bytes) => new TextDecoder().decode(bytes).split('\n'));
  }

  /**
   * Reads a chunk of columns. All that were read are kept.
   * @param {number} at number of the chunk
   */
  chunk(at) {
    let read = this.chunks.get(at);
    if (!read) {
      read = this.bytes(this.known.records[at]).then((bytes) => {
        const chunk = JSON.parse(new TextDecoder().decode(bytes));
        this.readChunks.set(at, chunk);
        return chunk;
      });
      this.chunks.set(at, read);
    }
    return read;
  }

  /** Names of slices by their ids. */
  sliceNames() {
    this.names ??= new Map(this.known.slices.map((slice) => [slice.id, slice.name]));
    return this.names;
  }

  /** @param {any} chunk @param {number} at @param {number} sequence */
  line(chunk, at, sequence) {
    const text = (place) => (place ? chunk.texts[place - 1] : '');
    const names = this.sliceNames();
    return {
      sequence,
      kind: this.known.kinds[chunk.kind[at]],
      name: text(chunk.name[at]),
      time: chunk.time[at],
      bytes: chunk.bytes[at],
      path: this.known.paths[chunk.path[at]],
      depth: chunk.depth[at],
      operation: chunk.operation[at],
      nesting: chunk.nesting[at],
      tool: text(chunk.tool[at]),
      outcome: text(chunk.outcome[at]),
      slices: chunk.sets[chunk.slices[at]].map((id) => names.get(id) ?? `slice-${id}`),
    };
  }

  /** @param {number} sequence */
  recordNow(sequence) {
    const place = sequence - this.known.from;
    const chunk = this.readChunks.get(Math.floor(place / CHUNK));
    return chunk && place >= 0 && sequence <= this.known.last ? this.line(chunk, place % CHUNK, sequence) : null;
  }

  /** @param {number} from @param {number} count */
  async records(from, count) {
    const end = Math.min(from + count, this.known.last + 1);
    const lines = [];
    for (let sequence = Math.max(from, this.known.from); sequence < end; sequence++) {
      const place = sequence - this.known.from;
      const chunk = this.readChunks.get(Math.floor(place / CHUNK)) ?? (await this.chunk(Math.floor(place / CHUNK)));
      lines.push(this.line(chunk, place % CHUNK, sequence));
    }
    return lines;
  }

  /** @param {number} sequence */
  document(sequence) {
    return this.lineAt(this.known.documents, sequence - this.known.from);
  }

  /** @param {[number, number][]} firsts @param {number} number */
  async lineAt(firsts, number) {
    const [first, block] = blockOf(firsts, number);
    return shown((await this.lines(block))[number - first]);
  }

  /** @param {number} number */
  async beyond(number) {
    return JSON.parse((await this.lineAt(this.known.beyond.rows, number)).text);
  }

  /** @param {number} number */
  beyondDocument(number) {
    return this.lineAt(this.known.beyond.documents, number);
  }

  async facets() {
    const [slices, tools, outcomes] = [new Set(), new Set(), new Set()];
    const names = this.sliceNames();
    for (let at = 0; at < this.known.records.length; at++) {
      const chunk = await this.chunk(at);
      for (const set of chunk.sets) for (const id of set) slices.add(names.get(id) ?? `slice-${id}`);
      for (const place of new Set(chunk.tool)) if (place) tools.add(chunk.texts[place - 1]);
      for (const place of new Set(chunk.outcome)) if (place) outcomes.add(chunk.texts[place - 1]);
    }
    const sorted = (set) => [...set].sort();
    return { kinds: [...this.known.kinds].sort(), slices: sorted(slices), tools: sorted(tools), outcomes: sorted(outcomes) };
  }

  /** @param {import('./source.js').Facets} facets */
  async filter(facets) {
    const found = [];
    for (let at = 0; at < this.known.records.length; at++) {
      const chunk = await this.chunk(at);
      const allows = this.allows(chunk, facets);
      for (let place = 0; place < chunk.kind.length; place++) if (allows(place)) found.push(this.known.from + at * CHUNK + place);
    }
    return Uint32Array.from(found);
  }

  /**
   * Returns what says of a place in a chunk whether the facets allow the record there.
   * @param {any} chunk
   * @param {import('./source.js').Facets} facets
   * @returns {(place: number) => boolean}
   */
  allows(chunk, facets) {
    const kinds = new Set(facets.kinds);
    const texts = (wanted) => new Set(chunk.texts.flatMap((text, at) => (wanted.includes(text) ? [at + 1] : [])));
    const [tools, outcomes] = [texts(facets.tools), texts(facets.outcomes)];
    const names = this.sliceNames();
    const sets = chunk.sets.map((set) => set.some((id) => facets.slices.includes(names.get(id) ?? '')));
    return (place) => (kinds.size === 0 || kinds.has(this.known.kinds[chunk.kind[place]]))
      && (facets.tools.length === 0 || tools.has(chunk.tool[place]))
      && (facets.outcomes.length === 0 || outcomes.has(chunk.outcome[place]))
      && (facets.slices.length === 0 || sets[chunk.slices[place]]);
  }

  /**
   * Returns the versions of a list, and the names of its items.
   * @param {any} places
   */
  list(places) {
    let read = this.lists.get(places.versions);
    if (!read) {
      const words = (bytes) => new Uint32Array(bytes);
      read = Promise.all([this.bytes(places.versions), this.bytes(places.names)])
        .then(([versions, names]) => ({ shared: new SharedList(words(versions)), names: words(names) }));
      this.lists.set(places.versions, read);
    }
    return read;
  }

  /**
   * Returns the value of an item.
   * @param {any} places
   * @param {number} number
   */
  value(places, number) {
    return this.lineAt(places.items, number);
  }

  /** @param {number} at */
  isKnown(at) {
    return !this.known.unknown.some(([first, last]) => first <= at && at <= last);
  }

  /** @param {any} places @param {number} at @param {number} from @param {number} count */
  async window(places, at, from, count) {
    const { shared, names } = await this.list(places);
    const begin = Math.max(0, from);
    const numbers = shared.items(at, begin, count);
    const items = await Promise.all(numbers.map(async (number, place) => ({
      number,
      place: begin + place,
      sequence: names[number * 3],
      ordinal: names[number * 3 + 1],
      value: await this.value(places, number),
    })));
    return { total: shared.total(at), items };
  }

  /** @param {number} at */
  async slices(at) {
    const all = await Promise.all(this.known.slices.map(async (slice) => {
      const { shared } = await this.list(slice.list);
      return { name: slice.name, policy: slice.policy, declared: shared.version(at) >= 0, total: this.isKnown(at) ? shared.total(at) : null };
    }));
    return all.filter((slice) => slice.declared);
  }

  /** @param {number} at @param {string} name @param {number} from @param {number} count */
  async state(at, name, from, count) {
    const slice = this.known.slices.find((one) => one.name === name);
    if (!slice || !this.isKnown(at)) return { total: null, items: [] };
    return this.window(slice.list, at, from, count);
  }

  /** @param {number} at */
  async conversations(at) {
    const all = await Promise.all(this.known.conversations.map(async (one) => {
      const { shared } = await this.list(one.list);
      return { evaluation_id: one.evaluation_id, total: shared.total(at) ?? 0 };
    }));
    return all.filter((one) => one.total > 0);
  }

  /** @param {number} at @param {string} evaluation @param {number} from @param {number} count */
  async messages(at, evaluation, from, count) {
    const found = this.known.conversations.find((one) => one.evaluation_id === evaluation);
    if (!found) return { total: 0, items: [] };
    const summaries = found.summaries === null ? [] : (await this.json(found.summaries)).filter((one) => one.counts.some(([first, last]) => first <= at && at <= last));
    return { ...(await this.window(found.list, at, from, count)), summaries };
  }

  /** @param {number} at */
  async workspaces(at) {
    const all = await Promise.all(this.known.files.workspaces.map(async (one) => {
      const { shared } = await this.list(one.list);
      const total = shared.total(at);
      // A gap ends with the next version.
      const begun = shared.positions[shared.version(at)];
      return { name: one.name, total, gap: one.gaps.find(([from]) => from === begun)?.[1] ?? null };
    }));
    return all.filter((one) => one.total !== null);
  }

  /** @param {number} at @param {string} workspace */
  async files(at, workspace) {
    const found = this.known.files.workspaces.find((one) => one.name === workspace);
    if (!found) return [];
    const { items } = await this.window(found.list, at, 0, Infinity);
    return items.map((item) => ({ ...JSON.parse(item.value.text), number: item.number, sequence: item.sequence }));
  }

  /** @param {import('./source.js').FileVersion} file */
  async content(file) {
    if (file.content === null) return null;
    return JSON.parse((await this.lineAt(this.known.files.contents, file.content)).text);
  }

  /** @param {number} before @param {number} after */
  async fileChanges(before, after) {
    const found = [];
    for (const { name } of this.known.files.workspaces) {
      const [old, now] = await Promise.all([this.files(before, name), this.files(after, name)]);
      const was = new Map(old.map((file) => [file.path, file]));
      for (const file of now) {
        const earlier = was.get(file.path) ?? null;
        was.delete(file.path);
        if (earlier?.number !== file.number) found.push({ workspace: name, path: file.path, before: earlier, after: file });
      }
      for (const file of was.values()) found.push({ workspace: name, path: file.path, before: file, after: null });
    }
    return found;
  }

  /** @param {number} at */
  async tasks(at) {
    if (!this.known.tasks || !this.isKnown(at)) return [];
    return (await this.window(this.known.tasks, at, 0, Infinity)).items.map((item) => JSON.parse(item.value.text));
  }

  /** @param {number} at */
  async usage(at) {
    const last = new Map();
    for (const row of await this.json(this.known.usage)) if (row.sequence <= at) last.set(row.evaluation_id, row);
    return [...last.values()];
  }

  /** @param {number} at */
  tags(at) {
    return this.known.tags.findLast(([from]) => from <= at)?.[1] ?? {};
  }

  /** @param {number} before @param {number} after */
  async diff(before, after) {
    const found = [];
    if (this.isKnown(before) && this.isKnown(after)) {
      for (const slice of this.known.slices) {
        const lists = await this.unlike(slice.list, before, after);
        if (lists) found.push(...differences.slice(slice.name, lists));
      }
    }
    found.push(...differences.tags(this.tags(before), this.tags(after)));
    for (const one of this.known.conversations) {
      const lists = await this.unlike(one.list, before, after);
      if (lists) found.push(...differences.messages(one.evaluation_id, lists));
    }
    return found;
  }

  /**
   * Reads a list at two steps: all numbers, and the values of the items that one of the two lacks.
   * @param {any} places
   * @param {number} before
   * @param {number} after
   */
  async unlike(places, before, after) {
    const { shared } = await this.list(places);
    const all = (at) => shared.items(at, 0, shared.total(at) ?? 0);
    const [old, now] = [all(before), all(after)];
    const [inOld, inNow] = [new Set(old), new Set(now)];
    const unlike = [...old.filter((number) => !inNow.has(number)), ...now.filter((number) => !inOld.has(number))];
    if (unlike.length === 0) return null;
    const values = new Map(await Promise.all(unlike.map(async (number) => /** @type {[number, any]} */ ([number, await this.value(places, number)]))));
    return { old, now, values };
  }

  operations() {
    return this.json(this.known.operations);
  }

  integrity() {
    return this.json(this.known.integrity);
  }

  statistics() {
    return this.json(this.known.statistics);
  }

  /**
   * @param {string} text
   * @param {import('./source.js').Facets} facets
   * @param {(results: import('./source.js').Found[]) => boolean} found
   */
  async search(text, facets, found) {
    const wanted = text.toLowerCase();
    const excerpt = (whole) => {
      const at = whole.toLowerCase().indexOf(wanted);
      return at < 0 ? null : whole.slice(Math.max(0, at - 60), at + wanted.length + 120);
    };
    const narrowed = facets.kinds.length + facets.tools.length + facets.outcomes.length > 0;
    const allowed = new Set(await this.filter(facets));
    for (const [at, [first, number]] of this.known.documents.entries()) {
      const lines = await this.lines(number);
      const results = [];
      for (const [place, line] of lines.entries()) {
        const sequence = this.known.from + first + place;
        const text = allowed.has(sequence) ? excerpt(line.slice(1)) : null;
        if (text !== null) results.push({ what: /** @type {const} */ ('record'), sequence, where: this.recordNow(sequence)?.kind ?? '', excerpt: text });
      }
      if (results.length > 0 && !found(results)) return;
      if (at % 4 === 3) await new Promise((resolve) => setTimeout(resolve));
    }
    if (narrowed) return;
    const slices = this.known.slices.filter((slice) => facets.slices.length === 0 || facets.slices.includes(slice.name));
    const conversations = facets.slices.length === 0 ? this.known.conversations : [];
    const lists = [
      ...slices.map((slice) => ({ what: /** @type {const} */ ('item'), where: slice.name, list: slice.list })),
      ...conversations.map((one) => ({ what: /** @type {const} */ ('message'), where: one.evaluation_id, list: one.list })),
    ];
    for (const { what, where, list } of lists) {
      const { names } = await this.list(list);
      for (const [first, number] of list.items) {
        const results = [];
        for (const [place, line] of (await this.lines(number)).entries()) {
          const text = excerpt(line.slice(1));
          if (text !== null) results.push({ what, sequence: names[(first + place) * 3], where, excerpt: text });
        }
        if (results.length > 0 && !found(results)) return;
      }
    }
  }
}
