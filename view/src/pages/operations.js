// The operations: what waits for somebody first, with the commands that decide; then all of them as a tree.

import { bdi, button, el, fill } from 'view/dom.js';
import { field, parse, visible } from 'view/json.js';
import { text, tree } from 'view/value-tree.js';
import { counted, duration, number } from 'view/words.js';

/** Number of operations of one level that are shown until somebody asks for more. */
const SHOWN = 200;

export class OperationsView {
  /** @param {import('./source.js').Source} source @param {(change: Record<string, string | number | null>) => void} navigate */
  constructor(source, navigate) {
    this.source = source;
    this.navigate = navigate;
    this.tree = el('div', { class: 'operations-tree' });
    this.account = el('div', { class: 'account', 'aria-live': 'polite' });
    this.element = el('section', { class: 'view operations', 'aria-label': 'Operations' }, this.tree);
  }

  /** @param {{at: number, operation?: string, call?: string}} route */
  async show(route) {
    const { ledger, waiting } = await this.source.operations();
    if (!this.drawn) {
      this.drawn = true;
      this.draw(ledger, waiting);
    }
    const called = route.call === undefined ? undefined : ledger.findLast((one) => one.call_id === route.call);
    const asked = called?.operation ?? (route.operation === undefined ? null : Number(route.operation));
    for (const row of this.tree.querySelectorAll('[aria-current]')) row.removeAttribute('aria-current');
    const entry = ledger.find((one) => one.operation === asked);
    if (!entry) { this.account.remove(); return; }
    let row = this.tree.querySelector(`[data-operation="${asked}"]`);
    row?.setAttribute('aria-current', 'true');
    fill(this.account, await this.details(entry, ledger));
    const holder = row?.closest('li');
    if (holder) row?.after(this.account); else this.tree.prepend(this.account);
    row?.scrollIntoView({ block: 'nearest' });
  }

  /** @param {any[]} ledger @param {Record<string, any>} waiting */
  draw(ledger, waiting) {
    const below = new Map();
    for (const one of ledger) below.set(one.parent ?? null, [...(below.get(one.parent ?? null) ?? []), one]);
    const known = new Set(ledger.map((one) => one.operation));
    const roots = ledger.filter((one) => one.parent === null || !known.has(one.parent));
    const outcomes = new Map();
    for (const one of ledger) outcomes.set(one.outcome, (outcomes.get(one.outcome) ?? 0) + 1);
    const questions = ledger.filter((one) => waiting[one.operation]);
    fill(this.tree,
      questions.length > 0 && el('section', { class: 'questions' }, el('h3', null, `${counted(questions.length, 'open question')}`), questions.map((one) => this.question(one, waiting[one.operation]))),
      el('h3', null, counted(ledger.length, 'operation'), ' ', [...outcomes].map(([outcome, count]) => el('span', { class: `badge outcome-${outcome}` }, `${number(count)} ${outcome}`))),
      ledger.length === 0 ? el('p', { class: 'faint' }, 'This session ran no tool.') : this.level(roots, below, 0));
  }

  /** @param {any[]} entries @param {Map<any, any[]>} below @param {number} depth */
  level(entries, below, depth) {
    const list = el('ul', { class: depth === 0 ? 'ledger' : 'ledger inner' });
    const more = (from) => {
      for (const one of entries.slice(from, from + SHOWN)) {
        const inner = depth < 40 ? (below.get(one.operation) ?? []) : [];
        list.append(el('li', null, this.row(one), inner.length > 0 && this.level(inner, below, depth + 1)));
      }
      if (from + SHOWN < entries.length) {
        const rest = el('li', null, button(`${number(entries.length - from - SHOWN)} more`, () => { rest.remove(); more(from + SHOWN); }, { class: 'more' }));
        list.append(rest);
      }
    };
    more(0);
    return list;
  }

  /** @param {any} one */
  row(one) {
    const effects = one.effects === null ? 'effects unknown' : one.effects === 'none' ? '' : `effects ${one.effects}`;
    return el('button', { type: 'button', class: 'operation-row', data: { operation: one.operation }, on: { click: () => this.navigate({ operation: one.operation, call: null }) } },
      el('span', { class: 'sequence' }, one.step ?? one.operation),
      el('code', null, visible(one.tool)),
      one.title && el('bdi', { class: 'title-name' }, visible(one.title)),
      el('span', { class: `badge outcome-${one.outcome}` }, one.outcome, one.cause ? `: ${visible(String(one.cause))}` : ''),
      el('span', { class: 'faint' }, [one.undone, one.files && one.files.total > 0 && counted(one.files.total, 'file'), one.files?.ignored > 0 && `${counted(one.files.ignored, 'ignored file')} not shown`, one.files?.unrecorded > 0 && `${counted(one.files.unrecorded, 'file')} not recorded`, one.runs > 1 && `${one.runs} runs`, one.undoes !== null && `undoes ${one.undoes}`, effects].filter(Boolean).join(' · ')),
      el('span', { class: 'grow' }),
      el('span', { class: 'time' }, one.elapsed_us === null ? '–' : duration(one.elapsed_us)));
  }

  /** @param {any} one @param {any} account */
  question(one, account) {
    const [first, ...others] = account.decide ?? [];
    const command = (choice) => el('div', { class: 'choice' }, el('span', { class: 'faint' }, choice.meaning), el('code', { class: 'command' }, visible(choice.command)), button('Copy', () => navigator.clipboard?.writeText(choice.command)));
    return el('article', { class: 'question' },
      el('div', null, el('strong', null, `Operation ${one.operation} `), el('code', null, visible(one.tool)), ' ', el('span', { class: `badge outcome-${one.outcome}` }, one.outcome, one.waits_for ? `: ${visible(String(one.waits_for))}` : '')),
      account.question && text(account.question),
      account.before && el('p', null, 'First: ', el('span', null, visible(account.before))),
      first && command(first),
      others.length > 0 && el('details', null, el('summary', null, counted(others.length, 'other decision')), others.map(command)),
      button('Show', () => this.navigate({ operation: one.operation })));
  }

  /** @param {any} entry @param {any[]} ledger */
  async details(entry, ledger) {
    const go = (sequence) => button(`record ${number(sequence)}`, () => this.navigate({ at: sequence, view: 'step', part: 'record' }), { class: 'link' });
    const isListed = (sequence) => sequence !== null && sequence >= this.source.head().from && sequence <= this.source.head().last;
    const part = async (sequence, name) => {
      if (!isListed(sequence)) return null;
      const shown = parse((await this.source.document(sequence)).text);
      const found = field(entry.step === undefined ? shown : field(field(field(shown, 'data'), 'step'), 'call'), name);
      return !found || (found.type === 'plain' && found.text === 'null') ? null : found;
    };
    const [given, result, shown] = await Promise.all([part(entry.begin, 'arguments'), part(entry.end, 'result'), part(entry.end, 'shown')]);
    const { asked_by: asked, conversation, message, files } = entry;
    const said = conversation && button(`message ${number(message + 1)} of ${visible(conversation)}`, () => this.navigate({ at: entry.begin, view: 'step', part: `conversation:${conversation}`, from: Math.max(0, message - 1) }), { class: 'link' });
    const changed = files && (files.total > 0 || files.ignored > 0 || files.unrecorded > 0) && [
      files.listed.map(([kind, path]) => el('div', null, `${kind} `, bdi(path))),
      files.total > files.listed.length && el('div', null, `and ${number(files.total - files.listed.length)} others`),
      files.ignored > 0 && el('div', { class: 'faint' }, `${counted(files.ignored, 'ignored file')}, not shown`),
      files.unrecorded > 0 && el('div', { class: 'faint' }, `${counted(files.unrecorded, 'file')}, not recorded`),
      entry.end !== null && button('Show the changes', () => this.navigate({ view: 'diff', before: entry.begin, at: entry.end }), { class: 'link' })];
    const undoneBy = ledger.filter((one) => one.undoes === entry.operation).map((one) => one.operation);
    const row = (name, value) => ![null, undefined, false, ''].includes(value) && el('tr', null, el('th', { scope: 'row' }, name), el('td', null, value));
    return [
      el('table', { class: 'facts-table' },
        row('Start', isListed(entry.begin) ? go(entry.begin) : entry.begin),
        row('End', entry.end === null ? 'not ended' : isListed(entry.end) ? go(entry.end) : entry.end),
        row('Call', entry.call_id && bdi(entry.call_id)),
        row('Asked by', said || (asked && tree(parse(JSON.stringify(asked))))),
        row('Files', changed),
        row('May run again', entry.idempotency && visible(String(entry.idempotency))),
        row('Effects outside', entry.step === undefined && (entry.effects ?? 'unknown')),
        row('Undone by', undoneBy.join(', ')),
        row('Settled', entry.settled && `${entry.settled.decision} by ${visible(entry.settled.by)}: ${visible(entry.settled.reason)}`),
        row('Approved arguments', entry.settled?.arguments),
        row('Not undone', entry.not_undone && entry.not_undone.map((left) => el('div', null, visible(`${left.resource} ${left.path}: ${left.reason}`)))),
        row('Children', entry.children && entry.children.map((child) => el('div', null, `session ${child.session}: ${child.fate}`)))),
      given && el('div', { class: 'payload' }, el('h4', null, 'Arguments'), given.type === 'string' ? json(given.value) : tree(given)),
      shown && el('div', { class: 'payload' }, el('h4', null, 'Shown to the model'), shown.type === 'string' ? text(shown.value) : tree(shown)),
      result && el('div', { class: 'payload' }, el('h4', null, 'Result'), result.type === 'string' ? json(result.value) : tree(result)),
    ];
  }
}

/** Shows a text that is mostly JSON. @param {string} value */
function json(value) {
  try { return tree(parse(value)); } catch { return text(value); }
}

