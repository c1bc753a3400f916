// A session beside another one of the store: where they part, and what differs between a step of one and one of the other. The
// server finds the differences.

import { showConversation } from 'view/conversation.js';
import { fileDifference, groups, difference as shownDifference } from 'view/diff.js';
import { bdi, el, fill } from 'view/dom.js';
import { visible } from 'view/json.js';
import { ask, difference } from 'view/server-source.js';
import { bytes, counted, number } from 'view/words.js';

/** Number of sessions that are proposed. */
const PROPOSED = 500;

export class CompareView {
  /** @param {import('./source.js').Source} source @param {(change: Record<string, string | number | null>) => void} navigate */
  constructor(source, navigate) {
    this.source = source;
    this.navigate = navigate;
    const { parent } = source.head();
    this.other = el('input', { type: 'search', class: 'other', list: 'other-sessions', placeholder: 'Id of another session', 'aria-label': 'Other session', spellcheck: 'false', on: { change: () => navigate({ with: this.other.value.trim() || null, there: null }) } });
    this.there = el('input', { type: 'number', min: 0, 'aria-label': 'Step of the other session', on: { change: () => navigate({ there: this.there.value || null }) } });
    this.proposed = el('datalist', { id: 'other-sessions' });
    this.body = el('div', { class: 'part' });
    this.element = el('section', { class: 'view diff compare', 'aria-label': 'Compare' },
      el('div', { class: 'bar' }, el('label', null, 'with ', this.other), el('label', null, 'at its step ', this.there),
        parent && el('a', { class: 'link', href: `#view=compare&with=${parent.session}`, on: { click: (event) => { event.preventDefault(); navigate({ with: parent.session, there: null }); } } }, 'its parent'), this.proposed),
      this.body);
    this.asked = 0;
  }

  /** Proposes the sessions of the store, once. */
  async propose() {
    if (this.isProposed) return;
    this.isProposed = true;
    const told = await ask('../../sessions', { from: 0 }).catch(() => ({ rows: [] }));
    const own = this.source.head().session;
    const others = told.rows.filter((row) => row.session !== own).slice(0, PROPOSED);
    fill(this.proposed, others.map((row) => el('option', { value: row.session }, visible(Object.entries(row.tags ?? {}).map(([key, value]) => `${key}=${value}`).join(' ')))));
  }

  /** @param {{at: number, with?: string, there?: string}} route */
  async show(route) {
    this.propose();
    const mine = ++this.asked;
    if (!route.with) {
      fill(this.body, el('p', { class: 'faint' }, 'Name another session of this store: a fork’s parent, or a run that worked.'));
      return;
    }
    if (this.other.value !== route.with) this.other.value = route.with;
    const query = { with: route.with, here: route.at };
    if (/^\d+$/.test(route.there ?? '')) query.there = route.there;
    let told;
    try {
      told = await ask('compare', query);
    } catch (error) {
      if (mine === this.asked) fill(this.body, el('p', { class: 'note', role: 'alert' }, error.status === 404 ? 'There is no such session in this store.' : `This cannot be compared: ${error.message}`));
      return;
    }
    if (mine !== this.asked) return;
    this.there.value = String(told.there.at);
    this.there.max = String(told.there.last);
    this.element.dataset.shows = `${told.here.at} ${told.there.session} ${told.there.at}`;
    const found = told.differences.map(difference);
    const apart = told.conversations.filter(({ rows }) => rows.length > 0);
    fill(this.body, this.parting(told),
      told.refused && el('p', { class: 'note', role: 'alert' }, `Not all could be compared: ${visible(told.refused)}`),
      this.files(told.files),
      found.length + apart.length + told.files.changes.length === 0 && !told.refused && el('p', { class: 'faint' }, `Slices, tags, conversations and files at step ${told.here.at} here and ${told.there.at} there are the same.`),
      told.more && el('p', { class: 'note' }, `Only the first ${counted(found.length, 'difference')} are shown; `, el('code', null, 'foldlog diff --with'), ' prints all of them.'),
      apart.map((one) => this.conversation(one, told)), groups(found));
  }

  /** Says where the two part. */
  parting({ parting, values, path, here, there }) {
    const damaged = [here, there].filter((side) => side.damaged);
    const side = (name, one, session) => el('li', null, el('span', { class: 'faint' }, `${name}: `),
      one ? [name === 'here' ? el('a', { href: `#at=${one.sequence}`, on: { click: (event) => { event.preventDefault(); this.navigate({ at: one.sequence, view: 'step' }); } } }, `record ${number(one.sequence)}`) : el('a', { href: `../${session}/#at=${one.sequence}` }, `record ${number(one.sequence)}`), ' ', el('code', null, visible(one.record))] : 'it ends');
    const same = parting.here === null && parting.there === null;
    const { difference } = parting;
    return el('section', { class: 'group parting' }, el('h3', null, 'Where they diverge'),
      el('p', null, same ? `Both contain the same ${counted(parting.alike, 'record')}.` : `Both start with the same ${counted(parting.alike, 'record')}.`),
      !same && el('ul', null, side('here', parting.here, here.session), side('there', parting.there, there.session)),
      difference && el('p', null, 'First difference', difference.slice ? [' of slice ', bdi(difference.slice)] : null, ':'),
      values && this.values(values, path),
      damaged.map(({ session }) => el('p', { class: 'note' }, `Session ${session} is damaged: only its intact part is compared.`)));
  }

  /** Shows the files in which the two differ, as far as captures tell. */
  files({ changes, left_out: left, unknown }) {
    const text = (one, at) => (one[at === 0 ? 'before' : 'after'] ? (one.contents[at]?.text ?? null) : '');
    return [unknown.map((one) => el('p', { class: 'note' }, 'Files of ', bdi(one.workspace), ` are unknown: ${visible(one.reason)}`)),
      changes.length > 0 && el('section', { class: 'group files-changed' }, el('h3', null, 'Files ', el('span', { class: 'faint' }, counted(changes.length + left, 'changed file'))), el('ul', { class: 'differences' }, changes.map((one) => fileDifference(one, text(one, 0), text(one, 1)))), left > 0 && el('p', { class: 'faint' }, `and ${number(left)} others`))];
  }

  /** Shows the values at which the two part, those in objects too, with the objects beside. */
  values(values, path) {
    const [before, after] = values.map((one) => one?.text ?? (one ? '"(not read)"' : 'null'));
    const change = values[0] === null ? 'added' : values[1] === null ? 'removed' : 'changed';
    return [el('ul', { class: 'differences' }, shownDifference({ path, change, before, after })),
      values.map((one, at) => (one?.object || one?.error) && el('p', { class: one.error ? 'note' : 'facts' }, at === 0 ? 'here' : 'there', one.object && [': object ', el('code', null, one.object.name), `, ${bytes(one.object.bytes)}`], one.error && `: ${visible(one.error)}`))];
  }

  /** Shows what two conversations say, one beside the other, from the first message that differs on. */
  conversation({ evaluation_id: evaluation, alike, rows, left_out: left }, { here, there }) {
    const message = (shown) => (shown ? showConversation([{ sequence: -1, ordinal: 0, place: 0, value: shown }], () => {}, 0, []) : el('p', { class: 'faint' }, '—'));
    return el('section', { class: 'group' }, el('h3', null, 'Conversation ', bdi(evaluation)),
      alike > 0 && el('p', { class: 'faint' }, `Identical before these: ${counted(alike, 'message')}.`),
      el('div', { class: 'beside heads faint', 'aria-hidden': 'true' }, el('span', null, `here, at ${here.at}`), el('span', null, `there, at ${there.at}`)),
      rows.map((row) => el('div', { class: `beside row-${row.alike ? 'alike' : 'unlike'}` }, el('div', { class: row.alike ? null : 'was' }, message(row.here)), el('div', { class: row.alike ? null : 'now' }, message(row.there)))),
      left > 0 && el('p', { class: 'faint' }, `and ${counted(left, 'message')} more`));
  }
}
