// At this step: the record, each slice, the conversations and the tags, as they are when this record has been written.

import { address, bdi, el, fill } from 'view/dom.js';
import { visible } from 'view/json.js';
import { showItems, showValue, paged } from 'view/value-tree.js';
import { showConversation } from 'view/conversation.js';
import { showTasks } from 'view/tasks.js';
import { fileContent, fileTree } from 'view/files.js';
import { bytes, counted, money, number, time } from 'view/words.js';

/** Number of items on a page, and of those that are shown as JSON at once. */
const PAGE = 30;
/** Number of values that are shown at once as JSON, a line each. */
const JSON_PAGE = 200;

/** A place that shows things that are read: what was asked for last counts, whatever is there first. */
class Latest {
  constructor() { this.asked = 0; }

  /**
   * @template T
   * @param {Promise<T>} read
   * @param {(value: T) => void} show
   */
  async show(read, show) {
    const mine = ++this.asked;
    const value = await read;
    if (mine === this.asked) show(value);
  }
}

export class StepView {
  /**
   * @param {import('./source.js').Source} source
   * @param {(change: Record<string, string | number | null>) => void} navigate
   */
  constructor(source, navigate) {
    this.source = source;
    this.navigate = navigate;
    this.latest = new Latest();
    this.title = el('header', { class: 'step-title', 'aria-live': 'polite' });
    this.tabs = el('nav', { class: 'parts', 'aria-label': 'Parts of the state' });
    this.body = el('div', { class: 'part', tabindex: '-1' });
    this.element = el('section', { class: 'view step', 'aria-label': 'At this step' }, this.title, this.tabs, this.body);
  }

  /** @param {{at: number, beyond?: number, part?: string, from?: string, form?: string, file?: string}} route */
  show(route) {
    const { at } = route;
    const { damage, last, log_last: end, unknown } = this.source.head();
    const read = Promise.all([this.source.records(at, 1), this.source.slices(at), this.source.conversations(at), this.source.workspaces(at)])
      .then(async ([[record], slices, conversations, workspaces]) => {
        const tasks = slices.some((slice) => slice.name === 'tasks' && slice.total !== 0) ? await this.source.tasks(at) : [];
        const part = route.beyond === undefined ? this.part(route.part, slices, conversations, record, workspaces, tasks) : 'damage';
        return { tasks, record, slices, conversations, workspaces, part, content: await this.content(part, route) };
      });
    return this.latest.show(read, ({ tasks, record, slices, conversations, workspaces, part, content }) => {
      if (route.beyond === undefined) this.heading(record);
      else fill(this.title, el('h2', null, `After record ${number(at)}`), el('p', { class: 'facts' }, 'The other parts show the state after that record, the last intact one.'));
      const dropped = route.beyond === undefined && unknown.find(([first, end]) => first <= at && at <= end);
      if (dropped) this.title.append(el('p', { class: 'note compacted' }, `Bodies before record ${number(dropped[1] + 1)} were compacted: the contents of slices are unknown here, and known again from that record on`, dropped[0] > 0 && `, and before record ${number(dropped[0])}`, '.'));
      const tab = (name, label, count, extra = '') => el('a', { href: address({ part: name, from: null, beyond: null }), class: `tab ${extra}`, 'aria-current': name === part ? 'page' : null }, bdi(label), count !== null && el('span', { class: 'count' }, count));
      fill(this.tabs,
        damage && last === end && tab('damage', 'Damage', null),
        tab('record', 'Record', null),
        conversations.map((one) => tab(`conversation:${one.evaluation_id}`, conversations.length > 1 ? `Conversation ${one.evaluation_id}` : 'Conversation', one.total === null ? '?' : number(one.total))),
        tasks.length > 0 && tab('tasks', 'Tasks', number(tasks.length), tasks.some((one) => one.record === at) ? 'changed' : ''),
        workspaces.map((one) => tab(`files:${one.name}`, one.name === 'workspace' ? 'Files' : `Files of ${one.name}`, number(one.total))),
        slices.map((slice) => tab(`slice:${slice.name}`, slice.name, slice.total === null ? '?' : number(slice.total), record.slices.includes(slice.name) ? 'changed' : '')),
        tab('tags', 'Tags', number(Object.keys(this.source.tags(at)).length)),
        el('span', { class: 'grow' }),
        el('a', { class: 'tab', href: address({ form: route.form === 'json' ? null : 'json' }), 'aria-current': route.form === 'json' ? 'true' : null }, 'JSON'));
      this.tabs.querySelector('[aria-current=page]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
      // Most records leave most lists as they are: what is shown already stays.
      const isNew = content.key === undefined || content.key !== this.shown;
      if (isNew) {
        content(this.body);
        this.shown = content.key;
      }
      for (const one of this.body.querySelectorAll('[data-sequence]')) one.classList.toggle('marked', one.dataset.sequence === String(at));
      if (isNew) this.scroll(part, route.from);
      this.body.querySelector('.marked')?.scrollIntoView({ block: 'nearest' });
      this.element.dataset.at = String(at);
      this.element.dataset.beyond = String(route.beyond ?? '');
    });
  }

  /**
   * Scrolls to what the record brought, or else to what came last.
   * @param {string} part
   * @param {string | undefined} from
   */
  scroll(part, from) {
    const toEnd = /^(slice|conversation):/.test(part) && from === undefined;
    const scroll = () => {
      this.body.scrollTop = toEnd ? this.body.scrollHeight : 0;
      this.body.querySelector('.marked')?.scrollIntoView({ block: 'nearest' });
    };
    scroll();
    // Items out of sight have their height once they come into sight.
    if (toEnd) requestAnimationFrame(scroll);
  }

  /**
   * Chooses what is shown: what was asked for if it is there, else what says most.
   * @param {string | undefined} asked
   */
  part(asked, slices, conversations, record, workspaces, tasks) {
    if (asked === 'tasks' && tasks.length > 0) return asked;
    if (asked === 'record' || asked === 'tags' || (asked === 'damage' && this.source.head().damage)) return asked;
    if (asked?.startsWith('slice:') && slices.some((slice) => `slice:${slice.name}` === asked)) return asked;
    if (asked?.startsWith('conversation:') && conversations.some((one) => `conversation:${one.evaluation_id}` === asked)) return asked;
    if (asked?.startsWith('files:') && workspaces.some((one) => `files:${one.name}` === asked)) return asked;
    const readable = conversations.filter((one) => one.total !== null);
    if (readable.length > 0) return `conversation:${readable[readable.length - 1].evaluation_id}`;
    if (record.slices.length > 0) return `slice:${record.slices[0]}`;
    if (tasks.length > 0) return 'tasks';
    const largest = slices.reduce((most, slice) => ((slice.total ?? 0) > (most?.total ?? 0) ? slice : most), null);
    return largest ? `slice:${largest.name}` : 'record';
  }

  /** @param {import('./source.js').RecordLine} record */
  heading(record) {
    const operation = record.operation >= 0 && el('a', { href: address({ view: 'operations', operation: record.operation }) }, `operation ${record.operation}`, record.tool ? ` (${visible(record.tool)})` : '');
    fill(this.title,
      el('h2', null, `Record ${number(record.sequence)} `, el('span', { class: `kind kind-${record.kind}` }, record.kind.replaceAll('_', ' ')), ' ', el('bdi', { class: 'title-name' }, visible(record.name))),
      el('p', { class: 'facts' }, time(record.time), ' · ', bytes(record.bytes), ' · ', el('span', { class: `badge path-${record.path}` }, record.path), record.outcome && [' · ', el('span', { class: `badge outcome-${record.outcome}` }, record.outcome)], operation && [' · ', operation]));
  }

  /**
   * Reads what a part shows, and returns what shows it.
   * @param {string} part
   * @param {{at: number, beyond?: number, from?: string, form?: string, file?: string}} route
   * @returns {Promise<((body: HTMLElement) => void) & {key?: string}>} with a key, if the same key stands for the same content
   */
  async content(part, { at, beyond, from, form, file }) {
    const go = (sequence) => this.navigate({ at: sequence });
    const turn = (place) => this.navigate({ from: place });
    if (part === 'record') {
      const document = await this.source.document(at);
      if (form === 'json') return (body) => fill(body, lines([document]));
      return (body) => fill(body, document.whole ? null : withheld(this.source.head()), showValue(document));
    }
    if (part === 'tasks') {
      const tasks = await this.source.tasks(at);
      return (body) => fill(body, showTasks(tasks, go));
    }
    if (part === 'damage') return this.damage(beyond ?? 0);
    if (part === 'tags') {
      const tags = Object.entries(this.source.tags(at));
      return (body) => fill(body, tags.length === 0 ? el('p', { class: 'faint' }, 'No tags at this step.') : el('table', { class: 'items' }, tags.map(([key, value]) => el('tr', null, el('th', { scope: 'row' }, bdi(key)), el('td', null, bdi(value))))));
    }
    const name = part.slice(part.indexOf(':') + 1);
    if (part.startsWith('files:')) return this.files(name, at, file);
    const isSlice = part.startsWith('slice:');
    // Known with the step: nothing is asked for.
    const [list, key] = isSlice ? [await this.source.slices(at), 'name'] : [await this.source.conversations(at), 'evaluation_id'];
    const { total, refused } = list.find((one) => one[key] === name);
    if (refused !== undefined) {
      return (body) => fill(body, el('p', { class: 'note', role: 'alert' }, `This conversation cannot be shown: ${visible(refused)}`));
    }
    const page = form === 'json' ? JSON_PAGE : PAGE;
    const window = (begin, count) => (isSlice ? this.source.state(at, name, begin, count) : this.source.messages(at, name, begin, count));
    const shown = await window(from === undefined ? Math.max(0, (total ?? 0) - page) : Number(from), page);
    if (isSlice && total === null) {
      return keyed([part, shown], (body) => fill(body, el('p', { class: 'note' }, 'A compaction has dropped the contents of this slice here. They are known at later steps, and at kept ones.')));
    }
    if (form === 'json') {
      return keyed([`json ${part}`, shown], (body) => paged(body, shown, page, turn, lines(shown.items.map((item) => item.value))));
    }
    if (isSlice) {
      return keyed([part, shown], (body) => {
        if (total === 0) fill(body, el('p', { class: 'faint' }, `${visible(name)} is empty at this step.`));
        else paged(body, shown, page, turn, showItems(shown.items, go));
      });
    }
    const used = (await this.source.usage(at)).find((one) => one.evaluation_id === name);
    const { summaries = [] } = shown;
    return keyed([part, shown, [used?.sequence, ...summaries.map((one) => one.sequence)].join('/')], (body) => {
      paged(body, shown, page, turn, showConversation(shown.items, go, at, summaries));
      if (used) body.prepend(el('p', { class: 'facts' }, `${number(used.input_tokens)} tokens sent, ${number(used.output_tokens)} answered by this step`, used.cache_read_tokens > 0 && `, ${number(used.cache_read_tokens)} read from a cache`, used.cost_micros !== undefined && `; cost ${money(used.cost_micros)}`));
    });
  }

  /** What is damaged behind the last record, and a record behind the damage. @param {number} beyond that record's row; 0 for none */
  async damage(beyond) {
    const { damage } = this.source.head();
    const row = (name, value) => value !== null && el('tr', null, el('th', { scope: 'row' }, name), el('td', null, value));
    const [one, document] = beyond > 0 && beyond <= damage.listed ? await Promise.all([this.source.beyond(beyond - 1), this.source.beyondDocument(beyond - 1)]) : [null, null];
    const behind = damage.behind === 0 ? 'No intact record follows.' : [`${counted(damage.behind, 'intact record')} after it: nothing proves what preceded them, and no state includes them. `,
      damage.behind > damage.listed && `The first ${number(damage.listed)} are in the timeline. `, el('code', null, 'foldlog show SESSION --beyond-damage'), ' lists them.'];
    return (body) => fill(body,
      one && document && el('section', { class: 'unattached-record' }, el('h3', null, `Record ${number(one.sequence)} `, el('span', { class: `kind kind-${one.kind}` }, one.kind.replaceAll('_', ' ')), ' ', bdi(one.name), ' ', el('span', { class: 'badge path-unattached' }, 'unattached')),
        el('p', { class: 'facts' }, time(one.time), ' · ', bytes(one.bytes), ' · ', bdi(one.segment), ` at byte ${number(one.offset)}`), showValue(document)),
      el('section', { class: 'damage' }, el('h3', null, `The intact part ends before record ${number(damage.sequence)}`),
        el('table', { class: 'items' }, row('file', bdi(damage.segment)), row('offset', `byte ${number(damage.offset)}`), row('expected', damage.expected), row('found', damage.found), row('what', visible(damage.reason))),
        el('p', null, behind)));
  }

  /**
   * @param {string} workspace
   * @param {number} at
   * @param {string | undefined} path
   */
  async files(workspace, at, path) {
    const [files, all] = await Promise.all([this.source.files(at, workspace), this.source.workspaces(at)]);
    const { gap, ignored } = all.find((one) => one.name === workspace) ?? {};
    const file = files.find((one) => one.path === path);
    const content = file ? await this.source.content(file) : null;
    const go = (sequence) => this.navigate({ at: sequence });
    return (body) => fill(body,
      gap && el('p', { class: 'note' }, `The files are unknown here: ${visible(gap)}`),
      el('p', { class: 'facts' }, 'As last captured by a call. Later changes by hand are unknown.', ignored > 0 && ` ${counted(ignored, 'ignored file')}, not shown.`),
      el('div', { class: 'file-panes' }, el('nav', { 'aria-label': 'Files' }, fileTree(files, at, path, (chosen) => this.navigate({ file: chosen }))), file && fileContent(file, content, go)));
  }
}

/**
 * Names what a window into a list shows: which items, where they stand, and what else is said of them.
 * @param {[string, import('./source.js').Window, string?]} content
 * @param {(body: HTMLElement) => void} show
 */
function keyed([part, { total, items }, beside], show) {
  return Object.assign(show, { key: [part, total, beside, items[0]?.place, ...items.map((item) => item.number)].join(' ') });
}

/** Shows values as JSON, one a line, as the command line prints them. @param {import('./source.js').Shown[]} values */
function lines(values) {
  return el('pre', { class: 'text json' }, values.map((value) => visible(value.text)).join('\n'));
}

/** @param {any} head */
function withheld(head) {
  // The top of a report without payloads states how to include them.
  if (head.payload_bytes === null) return null;
  return el('p', { class: 'note' }, 'Values of more than ', bytes(head.payload_bytes), ' are cut here; ', head.isServed ? [el('code', null, 'foldlog show --json'), ' prints them whole.'] : [el('code', null, '--limit'), ' includes longer ones.']);
}
