// Statistics and integrity: what the log is made of, what its tools took, and what `verify` found.

import { address, bdi, el, fill, svg } from 'view/dom.js';
import { visible } from 'view/json.js';
import { bytes, counted, duration, money, number } from 'view/words.js';

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
    el('thead', null, el('tr', null, ['tool', `${duration(Math.round(10 ** least))} to ${duration(Math.round(10 ** most))}`, 'median · 95 %', 'total'].map((name) => el('th', { scope: 'col' }, name)))), el('tbody', null, rows.map(({ row }) => row))));
}

/** @param {any} one */
const sent = (one) => one.input_tokens + one.cache_read_tokens + one.cache_write_tokens;

/** Shows tokens and cost of each of some things, as far as somebody has said them. @param {string} what @param {any[]} rows @param {string} key */
function spending(what, rows, key) {
  rows = rows.filter((one) => one.output_tokens !== undefined);
  const named = (one, amount, label, note) => ({ name: one[key] ?? 'not named', amount, label, note });
  return [bars(`Tokens of each ${what}`, rows.map((one) => named(one, sent(one) + one.output_tokens, number(sent(one) + one.output_tokens), `${number(sent(one))} sent, ${number(one.output_tokens)} answered`))),
    bars(`Cost of each ${what}`, rows.map((one) => named(one, one.cost_micros, money(one.cost_micros))))];
}

/** Draws what had been spent from record to record: tokens on one scale, the cost on another. @param {any[]} spent @param {number} end last record */
function overRecords(spent, end) {
  const last = spent[spent.length - 1];
  if (!last) return null;
  end = Math.max(end, last.sequence, 1);
  const tokens = Math.max(sent(last), last.output_tokens);
  const series = [['sent', sent, tokens, (sum) => `${number(sum)} tokens sent`], ['answered', (one) => one.output_tokens, tokens, (sum) => `${number(sum)} answered`], ['cost', (one) => one.cost_micros, last.cost_micros, (sum) => `cost ${money(sum)}`]].filter(([, of]) => of(last) > 0);
  const paths = series.map(([name, of, most]) => svg('path', { class: `is-${name}`, d: `M0 100${spent.map((one) => `H${(one.sequence / end) * 1000}V${100 - ((of(one) ?? 0) / most) * 97}`).join('')}H1000` }));
  const legend = series.map(([name, of, , said]) => el('span', { class: `is-${name}` }, said(of(last))));
  const plot = svg('svg', { class: 'spent', viewBox: '0 0 1000 100', preserveAspectRatio: 'none', role: 'img', 'aria-label': legend.map((one) => one.textContent).join(', ') }, ...paths);
  const step = (at, label) => el('a', { href: address({ view: 'step', at }) }, label);
  plot.addEventListener('click', (event) => {
    const at = (event.offsetX / plot.clientWidth) * end;
    const near = spent.reduce((best, one) => (Math.abs(one.sequence - at) < Math.abs(best.sequence - at) ? one : best));
    location.hash = address({ view: 'step', at: near.sequence });
  });
  return el('figure', { class: 'plot' }, el('figcaption', null, 'Spent from record to record'), el('div', { class: 'legend' }, legend), plot,
    el('div', { class: 'axis' }, step(spent[0].sequence, `first at record ${number(spent[0].sequence)}, ${spent[0].time.slice(0, 19)}`), step(last.sequence, `last at record ${number(last.sequence)}, ${last.time.slice(0, 19)}`)));
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
    fill(this.element,
      el('div', { class: 'fact-row' }, fact('records', number(stats.records)), fact('abandoned', number(stats.abandoned_records)), fact('log', bytes(stats.used_bytes)), fact('objects', bytes(stats.objects.bytes)), fact('segments', number(stats.segments.length)), fact('snapshots', number(stats.snapshots)), fact('rollbacks', number(stats.rollbacks))),
      overRecords(stats.spent, this.source.head().log_last),
      bars('Calls of each tool', stats.tools.map((one) => ({ name: one.tool, amount: one.calls, label: number(one.calls), note: one.failed_calls > 0 ? `${number(one.failed_calls)} failed` : undefined }))),
      durations(ledger),
      bars('Bytes of each tool', stats.tools.map((one) => ({ name: one.tool, amount: one.argument_bytes + one.result_bytes, label: bytes(one.argument_bytes + one.result_bytes), note: `${bytes(one.argument_bytes)} of arguments, ${bytes(one.result_bytes)} of results` }))),
      spending('tool', stats.tools, 'tool'), spending('model', stats.models, 'model'), spending('conversation', usage, 'evaluation_id'),
      bars('Bytes of the log by kind of record', stats.kinds.map((kind) => ({ name: kind.kind, amount: kind.bytes, label: bytes(kind.bytes), note: `in ${counted(kind.frames, 'frame')}` }))),
      bars('Bytes of each event', stats.events.map((event) => ({ name: event.event, amount: event.payload_bytes, label: bytes(event.payload_bytes), note: `in ${counted(event.records, 'record')}` }))),
      bars('Bytes of each slice at the end', stats.slices.map((slice) => ({ name: slice.slice, amount: slice.live_bytes, label: bytes(slice.live_bytes), note: `in ${counted(slice.live_items, 'item')} of ${number(slice.ever_items)}` }))));
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
      damage && el('p', { class: 'note' }, `The view ends before record ${number(damage.sequence)}: `, visible(damage.reason), '. ', el('a', { href: address({ view: 'step', at: last, beyond: 0 }) }, 'Show where')),
      found.corrupt.length > 0 && el('table', { class: 'items' }, el('thead', null, el('tr', null, ['record', 'where', 'what', 'intact after it'].map((name) => el('th', { scope: 'col' }, name)))),
        el('tbody', null, found.corrupt.map((one) => el('tr', null, el('td', null, one.sequence ?? '–'), where(one), el('td', null, visible(one.reason)), el('td', null, one.follows ? counted(one.follows.records, 'record') : '–'))))),
      (found.torn ?? []).length > 0 && el('p', { class: 'note' }, (found.torn ?? []).map((one) => `The tail is torn: record ${one.sequence} and later ones, ${bytes(one.bytes)} never reported as durable, are skipped. `)),
      (found.unsupported ?? []).length > 0 && el('p', { class: 'note' }, (found.unsupported ?? []).map((one) => `Record ${one.sequence} is of kind ${visible(one.kind)}, which this version does not support. `)),
      (found.exposed ?? []).length > 0 && el('p', { class: 'note' }, (found.exposed ?? []).map((one) => `Other users may read ${visible(one.path)} (mode ${one.mode}). `)),
      unknown.length > 0 && el('p', { class: 'note' }, `Compactions dropped the contents of slices at ${counted(unknown.length, 'range')} of positions: `, unknown.slice(0, 20).map(([first, last]) => `${first} to ${last}`).join(', ')));
  }
}
