// Answers by requests to the server that handed out the page. `view/src/server/answers.rs` says what it answers. Of a long
// session only what was looked at is here, and of that what was looked at last.

import { field, parse, textOf, write } from 'view/json.js';

/** @typedef {import('./source.js').Source} Source */

const CHUNK = 1024;

/** Numbers of chunks of columns, and of other answers, that are kept. */
const KEPT_CHUNKS = 200;
const KEPT_ANSWERS = 60;

/** Says that the server refused or could not be reached. */
export class Refused extends Error {
  /** @param {number} status 0 if there was no answer @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Asks the server, and returns its JSON.
 * @param {string} path
 * @param {Record<string, string | number | string[]>} [query]
 * @param {AbortSignal} [signal] gives up
 * @returns {Promise<any>}
 */
export async function ask(path, query = {}, signal = undefined) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const one of Array.isArray(value) ? value : [value]) said.append(name, String(one));
  let answer;
  try {
    answer = await fetch(`${path}?${said}`, { credentials: 'omit', redirect: 'error', signal });
  } catch {
    throw new Refused(0, 'the server does not answer: it has ended, or the connection to it is lost');
  }
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  throw new Refused(answer.status, [told.error ?? `the server answers ${answer.status}`, told.next].filter(Boolean).join('; '));
}

/** Reads a difference, told as the line that `diff --json` prints. @param {string} line @returns {import('./source.js').Difference} */
export function difference(line) {
  const told = parse(line);
  const json = (name) => { const value = field(told, name); return value ? write(value) : 'null'; };
  const text = (name) => textOf(field(told, name));
  return { slice: text('slice'), conversation: text('conversation'), path: text('path') ?? '', change: /** @type {any} */ (text('change')), before: json('before'), after: json('after'), whole: true };
}

/** A map that forgets what was put into it or read long ago. @template T */
class Recent {
  /** @param {number} most */
  constructor(most) {
    this.most = most;
    /** @type {Map<any, T>} */
    this.map = new Map();
  }

  /** @param {any} key @returns {T | undefined} */
  get(key) {
    const found = this.map.get(key);
    if (found !== undefined) { this.map.delete(key); this.map.set(key, found); }
    return found;
  }

  /** @param {any} key @param {T} value */
  put(key, value) {
    this.map.set(key, value);
    if (this.map.size > this.most) this.map.delete(this.map.keys().next().value);
  }
}

/** @implements {Source} */
export class ServerSource {
  constructor() {
    /** @type {any} */
    this.known = {};
    this.forget();
  }

  /** Opens the session of this page. */
  static async open() {
    const source = new ServerSource();
    await source.refresh();
    return source;
  }

  forget() {
    /** Chunks that were read, by their numbers. @type {Recent<any>} */
    this.chunks = new Recent(KEPT_CHUNKS);
    /** Chunks that are being read. @type {Map<number, Promise<any>>} */
    this.reading = new Map();
    this.forgetAnswers();
  }

  forgetAnswers() {
    /** @type {Recent<Promise<any>>} */
    this.answers = new Recent(KEPT_ANSWERS);
    /** Tags of steps. @type {Recent<Record<string, string>>} */
    this.tagsOf = new Recent(KEPT_ANSWERS);
  }

  /**
   * Learns how the session is now. The head stays the same object, so that whoever has it sees that.
   * @returns {Promise<void>}
   */
  async refresh() {
    const head = await ask('head');
    const before = this.known;
    if (head.epoch !== before.epoch) this.forget();
    else if (head.last !== before.last) {
      this.forgetAnswers();
      for (let at = Math.floor(before.last / CHUNK); at <= Math.floor(head.last / CHUNK); at++) { this.chunks.map.delete(at); this.reading.delete(at); }
    }
    const { at } = before;
    Object.assign(before, head, { isServed: true });
    if (at !== undefined) before.at = Math.min(at, head.last);
  }

  /** Waits until the session is not as this page knows it, for a while. @returns {Promise<{last: number, epoch: number, ended: boolean}>} */
  async live() {
    const given = new AbortController();
    const giveUp = () => { if (document.hidden) given.abort(); };
    document.addEventListener('visibilitychange', giveUp);
    try {
      return await ask('live', { last: this.known.last, epoch: this.known.epoch }, given.signal);
    } finally {
      document.removeEventListener('visibilitychange', giveUp);
    }
  }

  head() {
    return this.known;
  }

  /**
   * Asks, and keeps the answer for a while.
   * @param {string} name
   * @param {Record<string, string | number>} query
   */
  kept(name, query) {
    const key = JSON.stringify([name, query]);
    let read = this.answers.get(key);
    if (!read) {
      read = ask(name, query);
      const { answers } = this;
      read.catch(() => answers.map.delete(key));
      answers.put(key, read);
    }
    return read;
  }

  /** @param {number} at number of the chunk */
  chunk(at) {
    const here = this.chunks.get(at);
    if (here) return Promise.resolve(here);
    let read = this.reading.get(at);
    if (!read) {
      const { reading, chunks } = this;
      read = ask('records', { chunk: at }).then((chunk) => {
        // What was asked for before the session changed is not kept.
        if (reading.get(at) === read) { chunks.put(at, chunk); reading.delete(at); }
        return chunk;
      });
      read.catch(() => reading.delete(at));
      reading.set(at, read);
    }
    return read;
  }

  /** @param {any} chunk @param {number} sequence @returns {import('./source.js').RecordLine} */
  line(chunk, sequence) {
    const at = sequence % CHUNK;
    const text = (place) => (place ? chunk.texts[place - 1] : '');
    return {
      sequence,
      kind: chunk.kinds[chunk.kind[at]],
      name: text(chunk.name[at]),
      time: chunk.time[at],
      bytes: chunk.bytes[at],
      path: chunk.paths[chunk.path[at]],
      depth: chunk.depth[at],
      operation: chunk.operation[at],
      nesting: chunk.nesting[at],
      tool: text(chunk.tool[at]),
      outcome: text(chunk.outcome[at]),
      slices: chunk.sets[chunk.slices[at]].map((id) => chunk.names[id] ?? `slice-${id}`),
    };
  }

  /** @param {number} sequence */
  recordNow(sequence) {
    const chunk = this.chunks.map.get(Math.floor(sequence / CHUNK));
    return chunk && sequence % CHUNK < chunk.kind.length ? this.line(chunk, sequence) : null;
  }

  /** @param {number} from @param {number} count */
  async records(from, count) {
    const lines = [];
    for (let sequence = Math.max(from, 0); sequence < Math.min(from + count, this.known.last + 1); sequence++) {
      const chunk = this.chunks.get(Math.floor(sequence / CHUNK)) ?? (await this.chunk(Math.floor(sequence / CHUNK)));
      if (sequence % CHUNK < chunk.kind.length) lines.push(this.line(chunk, sequence));
    }
    return lines;
  }

  /** @param {number} at */
  document(at) {
    return this.kept('document', { at });
  }

  /** @param {number} number */
  async beyond(number) {
    const from = number - (number % CHUNK);
    return (await this.kept('beyond', { from, count: CHUNK }))[number - from];
  }

  /** @param {number} number */
  beyondDocument(number) {
    return this.kept('beyond-document', { number });
  }

  /** @param {number} at */
  async step(at) {
    const step = await this.kept('step', { at });
    this.tagsOf.put(at, step.tags);
    return step;
  }

  /** @param {number} at */
  async slices(at) {
    return (await this.step(at)).slices;
  }

  /** @param {number} at */
  async conversations(at) {
    return (await this.step(at)).conversations;
  }

  /** @param {number} at */
  tags(at) {
    return this.tagsOf.get(at) ?? {};
  }

  /**
   * Reads a window into a list: an answer may end before it does.
   * @param {string} name
   * @param {Record<string, string | number>} query
   * @param {number} from
   * @param {number} count
   */
  async window(name, query, from, count) {
    const begin = Math.max(0, from);
    const window = await this.kept(name, { ...query, from: begin, count });
    const items = [...window.items];
    while (items.length < Math.min(count, (window.total ?? 0) - begin)) {
      const more = await ask(name, { ...query, from: begin + items.length, count: count - items.length });
      if (more.items.length === 0) break;
      items.push(...more.items);
    }
    return { total: window.total, summaries: window.summaries, items: items.map((item) => ({ number: `${item.sequence}.${item.ordinal}`, ...item })) };
  }

  /** @param {number} at @param {string} slice @param {number} from @param {number} count */
  state(at, slice, from, count) {
    return this.window('items', { at, slice }, from, count);
  }

  /** @param {number} at @param {string} evaluation @param {number} from @param {number} count */
  messages(at, evaluation, from, count) {
    return this.window('messages', { at, evaluation }, from, count);
  }

  /** @param {number} before @param {number} after */
  async diff(before, after) {
    const told = await this.kept('diff', { before, after });
    return Object.assign(told.differences.map(difference), { isCut: told.more, refused: told.refused });
  }

  /** @param {number} at */
  tasks(at) {
    return this.kept('tasks', { at });
  }

  /** @param {number} at */
  usage(at) {
    return this.kept('usage', { at: Math.min(at, this.known.last) });
  }

  /** @param {number} at */
  workspaces(at) {
    return this.kept('workspaces', { at });
  }

  /** @param {number} at @param {string} workspace */
  async files(at, workspace) {
    return (await this.kept('files', { at, workspace })).map((file) => ({ ...file, workspace, at }));
  }

  /** @param {any} file */
  content({ workspace, at, path }) {
    return this.kept('content', { workspace, at, path });
  }

  /** @param {number} before @param {number} after */
  async fileChanges(before, after) {
    const told = await this.kept('file-changes', { before, after });
    const placed = (file, workspace, at) => file && { ...file, workspace, at };
    return told.map(({ workspace, ...one }) => ({ workspace, path: one.path, before: placed(one.before, workspace, before), after: placed(one.after, workspace, after) }));
  }

  operations() {
    return this.kept('operations', {});
  }

  integrity() {
    return this.kept('integrity', {});
  }

  statistics() {
    return this.kept('statistics', {});
  }

  facets() {
    return this.kept('facets', {});
  }

  /** @param {import('./source.js').Facets} facets */
  async filter(facets) {
    const found = [];
    for (let chunk = 0; chunk !== null;) {
      const told = await ask('filter', { ...facets, chunk });
      for (const sequence of told.records) found.push(sequence);
      chunk = told.next;
    }
    return Uint32Array.from(found);
  }

  /**
   * @param {string} text
   * @param {import('./source.js').Facets} facets
   * @param {(results: import('./source.js').Found[]) => boolean} found
   */
  async search(text, facets, found) {
    let [from, place] = [0, 0];
    while (from !== null) {
      const told = await ask('search', { ...facets, q: text, from, place });
      if (!found(told.found)) return;
      [from, place] = [told.next, told.place ?? 0];
    }
  }
}
