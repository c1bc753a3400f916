// Statistics and integrity: what the log is made of, what its tools took, and what `verify` found.

import { address, bdi, el, fill } from 'view/dom.js';
import { visible } from 'view/json.js';
import { bytes, counted, duration, number } from 'view/words.js';

/**
 * Shows amounts as bars, the largest first.
 * @param {string} caption
 * @param {{name: string, amount: number, label: string, note?: string}[]} rows
 */
function bars(caption, rows) {
  const sorted = rows.filter((row) => row.amount > 0).sort((one, other) => other.amount - one.amount);
  const most = sorted[0]?.amount ?? 1;
  if (sorted.length === 0) return null;
  return el('figure', { class: 'plot' }, el('figcaption', null, caption), el('table', { class: 'bars' }, sorted.slice(0, 30).map((row) => {
    const bar = el('span', { class: 'bar-fill' });
    bar.style.width = `${Math.max(0.5, (row.amount / most) * 100)}%`;
    return el('tr', null, el('th', { scope: 'row' }, bdi(row.name)), el('td', { class: 'bar-cell' }, bar), el('td', { class: 'bar-label' }, row.label, row.note ? el('span', { class: 'faint' }, ` ${row.note}`) : null));
  })), sorted.length > 30 && el('p', { class: 'faint' }, `and ${number(sorted.length - 30)} smaller ones`));
}

/** @param {number[]} sorted @param {number} share */
const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];

/** Shows durations of each tool on a logarithmic scale: every call a tick, the median marked. @param {any[]} ledger */
function durations(ledger) {
  const tools = new Map();
  for (const one of ledger) {
    if (one.elapsed_us === null) continue;
    tools.set(one.tool, [...(tools.get(one.tool) ?? []), one.elapsed_us]);
  }
  if (tools.size === 0) return null;
  const all = [...tools.values()].flat();
  const [least, most] = [Math.log10(Math.max(1, Math.min(...all))), Math.log10(Math.max(10, all.reduce((a, b) => Math.max(a, b), 0)))];
  const x = (us) => `${((Math.log10(Math.max(1, us)) - least) / Math.max(0.1, most - least)) * 96 + 2}%`;
  const rows = [...tools].map(([tool, list]) => {
    const sorted = list.sort((one, other) => one - other);
    const strip = el('div', { class: 'strip' });
    const step = Math.max(1, Math.floor(sorted.length / 200));
    for (let at = 0; at < sorted.length; at += step) {
      const tick = el('span', { class: 'tick' });
      tick.style.left = x(sorted[at]);
      strip.append(tick);
    }
    const middle = el('span', { class: 'median' });
    middle.style.left = x(quantile(sorted, 0.5));
    strip.append(middle);
    const sum = sorted.reduce((total, one) => total + one, 0);
    return { sum, row: el('tr', null, el('th', { scope: 'row' }, bdi(tool)), el('td', { class: 'bar-cell' }, strip), el('td', { class: 'bar-label' }, `${duration(quantile(sorted, 0.5))} · ${duration(quantile(sorted, 0.95))}`), el('td', { class: 'bar-label' }, duration(sum), el('span', { class: 'faint' }, ` in ${counted(sorted.length, 'call')}`))) };
  }).sort((one, other) => other.sum - one.sum);
  return el('figure', { class: 'plot' }, el('figcaption', null, 'Durations of each tool, on a logarithmic scale'), el('table', { class: 'bars' },
    el('thead', null, el('tr', null, ['tool', `${duration(Math.round(10 ** least))} to ${duration(Math.round(10 ** most))}`, 'median · 95 %', 'together'].map((name) => el('th', { scope: 'col' }, name)))), el('tbody', null, rows.map(({ row }) => row))));
}

export class StatisticsView {
  /** @param {import('./source.js').Source} source */
  constructor(source) {
    this.source = source;
    this.element = el('section', { class: 'view statistics', 'aria-label': 'Statistics' });
  }

  async show() {
    if (this.drawn) return;
    this.drawn = true;
    const [stats, { ledger }, usage] = await Promise.all([this.source.statistics(), this.source.operations(), this.source.usage(Infinity)]);
    const fact = (name, value) => el('div', { class: 'fact' }, el('div', { class: 'faint' }, name), el('div', { class: 'fact-value' }, value));
    const tools = new Map();
    for (const one of ledger) {
      const [calls, failed] = tools.get(one.tool) ?? [0, 0];
      tools.set(one.tool, [calls + 1, failed + Number(one.outcome === 'failed')]);
    }
    fill(this.element,
      el('div', { class: 'fact-row' }, fact('records', number(stats.records)), fact('abandoned', number(stats.abandoned_records)), fact('log', bytes(stats.used_bytes)), fact('objects', bytes(stats.objects.bytes)), fact('segments', number(stats.segments.length)), fact('snapshots', number(stats.snapshots)), fact('rollbacks', number(stats.rollbacks))),
      bars('Calls of each tool', [...tools].map(([name, [calls, failed]]) => ({ name, amount: calls, label: number(calls), note: failed > 0 ? `${number(failed)} failed` : undefined }))),
      durations(ledger),
      bars('Tokens of each conversation', usage.map((one) => ({ name: one.evaluation_id, amount: one.input_tokens + one.output_tokens, label: number(one.input_tokens + one.output_tokens), note: `${number(one.input_tokens)} sent, ${number(one.output_tokens)} answered` }))),
      bars('Bytes of the log by kind of record', stats.kinds.map((kind) => ({ name: kind.kind, amount: kind.bytes, label: bytes(kind.bytes), note: `in ${counted(kind.frames, 'frame')}` }))),
      bars('Bytes of each event', stats.events.map((event) => ({ name: event.event, amount: event.payload_bytes, label: bytes(event.payload_bytes), note: `in ${counted(event.records, 'record')}` }))),
      bars('Bytes that each slice holds at the end', stats.slices.map((slice) => ({ name: slice.slice, amount: slice.live_bytes, label: bytes(slice.live_bytes), note: `in ${counted(slice.live_items, 'item')} of ${number(slice.ever_items)}` }))));
  }
}

export class IntegrityView {
  /** @param {import('./source.js').Source} source @param {(change: Record<string, string | number | null>) => void} navigate */
  constructor(source, navigate) {
    this.source = source;
    this.navigate = navigate;
    this.element = el('section', { class: 'view integrity', 'aria-label': 'Integrity' });
  }

  async show() {
    if (this.drawn) return;
    this.drawn = true;
    const { verified_at: when, through, found } = await this.source.integrity();
    const isSound = found.corrupt.length === 0;
    const where = (one) => el('td', null, bdi(one.segment ?? ''), one.offset !== null && one.offset !== undefined ? ` at byte ${number(one.offset)}` : '');
    const { damage, unknown, last } = this.source.head();
    fill(this.element,
      el('p', { class: `verdict ${isSound ? 'is-sound' : 'is-damaged'}` }, isSound ? 'No damage was found.' : `${counted(found.corrupt.length, 'damaged place')}.`),
      el('p', null, `Verified ${when}, through record ${number(through)}: ${counted(found.records, 'record')}, ${bytes(found.bytes)}.`),
      damage && el('p', { class: 'note' }, `What is shown ends before record ${number(damage.sequence)}: `, visible(damage.reason), '. ', el('a', { href: address({ view: 'step', at: last, beyond: 0 }) }, 'Show where')),
      found.corrupt.length > 0 && el('table', { class: 'items' }, el('thead', null, el('tr', null, ['record', 'where', 'what', 'sound behind it'].map((name) => el('th', { scope: 'col' }, name)))),
        el('tbody', null, found.corrupt.map((one) => el('tr', null, el('td', null, one.sequence ?? '–'), where(one), el('td', null, visible(one.reason)), el('td', null, one.follows ? counted(one.follows.records, 'record') : '–'))))),
      (found.torn ?? []).length > 0 && el('p', { class: 'note' }, (found.torn ?? []).map((one) => `The tail is torn: record ${one.sequence} and what follows, ${bytes(one.bytes)} that nobody was told are durable, are left out. `)),
      (found.unsupported ?? []).length > 0 && el('p', { class: 'note' }, (found.unsupported ?? []).map((one) => `Record ${one.sequence} is of kind ${visible(one.kind)}, which this version cannot fold. `)),
      (found.exposed ?? []).length > 0 && el('p', { class: 'note' }, (found.exposed ?? []).map((one) => `Others may read ${visible(one.path)} (mode ${one.mode}). `)),
      unknown.length > 0 && el('p', { class: 'note' }, `Compactions have dropped what slices held at ${counted(unknown.length, 'range')} of positions: `, unknown.slice(0, 20).map(([first, last]) => `${first} to ${last}`).join(', ')));
  }
}
