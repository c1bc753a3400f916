// Opens the server's pages in a browser, and looks at a session while it is written.

import assert from 'node:assert/strict';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Browser, Server, Writer, foldlog, others, session, temporary } from './pages.js';

const browser = new Browser();
before(() => browser.start());
after(() => browser.stop());

describe('the server', () => {
  test('lists a store, and opens its sessions', async () => {
    const dir = session('history', 700, 11);
    const server = await Server.start(dir.replace(/\/sessions\/.*$/, ''));
    const page = await browser.visit(server, server.url);
    await page.page.waitForSelector('.store .session-row[data-row]');
    const [row] = foldlog('sessions', dir.replace(/\/sessions\/.*$/, ''), '--json').split('\n').map((line) => JSON.parse(line || '{}'));
    assert.equal(await page.text('.session-row[data-row] code'), row.session);
    await page.page.fill('.store input[type=search]', 'no such tag');
    await page.is(0, () => page.all('.session-row[data-row]', (one) => one).then((all) => all.length));
    await page.page.fill('.store input[type=search]', 'task=show');
    await page.page.waitForSelector('.store .session-row[data-row]');
    await page.press('.session-row[data-row]');
    await page.page.waitForSelector('.step[data-at]');
    assert.equal(await page.attribute('.step', 'data-at'), String(row.records - 1));
    await page.close();
    await server.end();
  });

  test('shows a session as it grows, and follows its last record', { timeout: 120_000 }, async () => {
    const writer = await Writer.start('growing');
    const server = await Server.start(writer.dir);
    const page = await browser.visit(server, server.url);
    await page.page.waitForSelector('.step[data-at]');
    const at = () => page.attribute('.step', 'data-at');
    for (let count = 0; count < 3; count++) {
      const last = await writer.write(5);
      await page.is(String(last), at);
      await page.is(` of ${last}`, () => page.text('.step-label .faint'));
    }
    // Whoever looks at an earlier step stays there.
    await page.go({ at: 2, view: 'step' });
    const last = await writer.write(1200);
    await page.is(String(last), () => page.attribute('.step-field', 'max'));
    assert.equal(await at(), '2');
    await page.key('G');
    await page.is(String(last), at);
    await page.go({ at: last, view: 'step', part: 'slice:notes', form: 'json' });
    const notes = JSON.parse(foldlog('state', writer.dir, '--json')).slices.notes.items;
    assert.deepEqual((await page.text('.step pre.json')).split('\n').map((line) => JSON.parse(line)), notes.slice(-200));
    const back = await writer.rollBack(last - 100);
    await page.is(String(back), () => page.attribute('.step-field', 'max'));
    await page.go({ at: last, view: 'step', part: 'record', form: null });
    await page.is(true, async () => (await page.text('.step-title')).includes('log-only'));
    await page.close();
    await writer.end();
    await server.end();
  });

  test('runs nothing, whatever a session holds, and asks nobody else', { timeout: 120_000 }, async () => {
    const server = await Server.start(session('hostile'));
    const page = await browser.visit(server, server.url);
    await page.page.waitForSelector('.step[data-at]');
    const last = Number(await page.attribute('.step-field', 'max'));
    for (let at = 0; at <= last; at++) {
      await page.go({ at, view: 'step', part: 'record' });
      await page.page.waitForSelector(`.step[data-at="${at}"]`);
    }
    for (const part of await page.all('.parts .tab', (tab) => new URLSearchParams(tab.hash.slice(1)).get('part'))) await page.go({ at: last, view: 'step', part });
    for (const view of ['diff', 'operations', 'statistics', 'integrity']) {
      await page.go({ at: last, view, before: 0 });
      await page.page.waitForSelector(`.view.${view} *`);
    }
    await page.go({ view: 'search', q: 'window.ran' });
    await page.page.waitForSelector('.results li');
    const state = await page.page.evaluate(() => ({ ran: window.ran, polluted: {}.polluted }));
    assert.deepEqual(state, { ran: undefined, polluted: undefined });
    await page.close();
    await server.end();
  });

  test('shows a fork beside its parent, and where they part', async () => {
    const fork = session('fork');
    const store = fork.replace(/\/sessions\/.*$/, '');
    const server = await Server.start(store);
    const page = await browser.visit(server, `${server.url}session/${fork.split('/').pop()}/`);
    await page.page.waitForSelector('.step[data-at]');
    await page.press('.views .tab:has-text("Compare")');
    await page.press('.compare .bar a');
    await page.page.waitForSelector('.compare[data-shows] .parting li');
    const printed = foldlog('diff', fork, '--parent', '--json').trim().split('\n').map((line) => JSON.parse(line));
    const [{ parting }, ...differences] = printed;
    assert.ok((await page.text('.compare .parting')).includes(`the same ${parting.alike} records`));
    const shown = await page.all('.compare .group:not(.parting, .files-changed) .difference .path bdi', (one) => one.textContent);
    assert.deepEqual(shown, differences.filter((one) => !one.conversation).map((one) => one.path));
    // The address leads there again.
    const address = await page.page.evaluate(() => location.href);
    const again = await browser.visit(server, address);
    await again.page.waitForSelector('.compare[data-shows] .parting li');
    assert.equal(await again.attribute('.compare', 'data-shows'), await page.attribute('.compare', 'data-shows'));
    await again.page.context().close();
    await page.go({ view: 'compare', with: '00000000-0000-0000-0000-000000000000', there: null });
    await page.is(true, async () => (await page.text('.compare .part')).includes('no such session'));
    await page.page.context().close();
    await server.end();
  });

  test('shows every view of the demo’s sessions, and the files in which two of them differ', { timeout: 120_000 }, async () => {
    const store = join(temporary(), 'demo');
    foldlog('demo', '--dir', store);
    const [one, other] = readdirSync(join(store, 'sessions')).map((id) => join(store, 'sessions', id)).sort((a, b) => foldlog('show', a).length - foldlog('show', b).length);
    const server = await Server.start(store);
    const page = await browser.visit(server, `${server.url}session/${other.split('/').pop()}/`);
    await page.page.waitForSelector('.step[data-at]');
    const last = Number(await page.attribute('.step-field', 'max'));
    for (const view of ['diff', 'operations', 'search', 'statistics', 'integrity', 'compare']) {
      await page.go({ at: last, view, before: 0, q: 'notes', with: one.split('/').pop() });
      await page.page.waitForSelector(`.view.${view} ${{ diff: '.difference', search: '.results li', compare: '.parting li' }[view] ?? '*'}`);
    }
    for (const part of await page.all('.parts .tab', (tab) => new URLSearchParams(tab.hash.slice(1)).get('part'))) await page.go({ at: last, view: 'step', part });
    const fork = foldlog('ledger', other, '--json').split('\n').filter(Boolean).map((line) => JSON.parse(line));
    await page.go({ view: 'operations' });
    await page.is(fork.length, () => page.all('.operation-row', (row) => row).then((rows) => rows.length));
    // What was edited behind the beginning, compared with what was there before anything was.
    const edited = session('edits');
    const edits = await Server.start(edited.replace(/\/sessions\/.*$/, ''));
    const id = edited.split('/').pop();
    const compared = await browser.visit(edits, `${edits.url}session/${id}/`);
    await compared.page.waitForSelector('.step[data-at]');
    const end = Number(await compared.attribute('.step-field', 'max'));
    await compared.go({ view: 'compare', at: 2, with: id, there: end });
    await compared.page.waitForSelector('.compare .files-changed .difference');
    const shown = () => compared.all('.files-changed .difference', (item) => [item.querySelector('.sign').title, item.querySelector('.path bdi').textContent, ...[...item.querySelectorAll('.line-added, .line-removed')].map((line) => line.textContent)].join('\n'));
    const beside = await shown();
    await compared.go({ view: 'diff', before: 2, at: end });
    await compared.page.waitForSelector('.diff:not(.compare) .files-changed .difference');
    assert.deepEqual(beside, await shown());
    assert.ok(beside.length > 1 && beside.some((text) => text.includes('+ fn main() {}')), beside.join('\n\n'));
    await compared.close();
    await page.close();
    await edits.end();
    await server.end();
  });

  test('shows what objects hold where two sessions part, and which these are', async () => {
    const here = session('parting');
    const [other] = others(here);
    const server = await Server.start(here.replace(/\/sessions\/.*$/, ''));
    const page = await browser.visit(server, `${server.url}session/${here.split('/').pop()}/`);
    await page.page.waitForSelector('.step[data-at]');
    await page.go({ view: 'compare', with: other });
    await page.page.waitForSelector('.compare[data-shows] .parting .difference');
    // A line differs, with three around it.
    assert.deepEqual(await page.all('.parting .line-removed, .parting .line-added', (line) => line.textContent), ['- here', '+ there']);
    assert.equal((await page.all('.parting .line-kept', (line) => line)).length, 6);
    const { objects } = JSON.parse(foldlog('diff', here, '--with', join(here, '..', other), '--json').split('\n')[0]);
    assert.deepEqual(await page.all('.parting .facts code', (name) => name.textContent), [objects.here.object, objects.there.object]);
    // What is damaged is said in its place.
    const object = join(here, '..', other, 'objects', objects.there.object);
    const bytes = readFileSync(object);
    bytes[99] ^= 1;
    writeFileSync(object, bytes);
    await page.page.reload();
    await page.page.waitForSelector('.parting .note code');
    assert.match(await page.text('.parting .note'), /^there: object [0-9a-f]{64}, .*do not match its name/);
    assert.ok((await page.text('.compare .part')).includes('Not all could be compared'));
    bytes[99] ^= 1;
    writeFileSync(object, bytes);
    await page.close();
    await server.end();
  });

  test('shows a conversation that is larger than memory, and says why where one message is', async () => {
    const directory = temporary();
    const server = {};
    for (const [name, messages] of [['long', Array.from({ length: 40 }, (_, number) => `${number} ${'said '.repeat(8000)}`)], ['huge', ['said '.repeat(160_000)]]]) {
      const [file, store] = [join(directory, `${name}.json`), join(directory, name)];
      writeFileSync(file, JSON.stringify(messages.map((content, number) => ({ role: number % 2 ? 'assistant' : 'user', content }))));
      foldlog('import', 'openai', file, '--store', store);
      server[name] = await Server.start(join(store, 'sessions', readdirSync(join(store, 'sessions'))[0]), '--memory', '600K');
    }
    const page = await browser.visit(server.long, server.long.url);
    await page.page.waitForSelector('.step[data-at]');
    await page.go({ at: await page.attribute('.step-field', 'max'), view: 'step', part: 'conversation:imported' });
    await page.page.waitForSelector('.conversation > li');
    const spoken = await page.all('.conversation > li', (one) => one.querySelector('.said')?.textContent.match(/^(\d+) said said/)?.[1]);
    assert.ok(spoken.length === 30 && spoken.includes('20'), spoken.join());
    await page.go({ from: 0 });
    await page.is('0', () => page.all('.conversation > li', (one) => one.querySelector('.said')?.textContent.match(/^(\d+) said said/)?.[1]).then(([first]) => first));
    await page.close();
    const refused = await browser.visit(server.huge, server.huge.url);
    await refused.page.waitForSelector('.step[data-at]');
    await refused.go({ at: await refused.attribute('.step-field', 'max'), view: 'step', part: 'conversation:imported' });
    await refused.is(true, async () => (await refused.text('.step')).includes('This conversation cannot be shown'));
    assert.ok((await refused.text('.step')).includes('--memory BYTES'));
    await refused.close();
    await server.long.end();
    await server.huge.end();
  });

  test('says so when it has ended', async () => {
    const server = await Server.start(session('history', 700, 11));
    const page = await browser.visit(server, server.url);
    await page.page.waitForSelector('.step[data-at]');
    await server.end();
    await page.is(true, async () => (await page.text('.banner')).includes('does not answer'));
    await page.page.context().close();
  });
});
