// Sessions that few have: damaged, and what else is special about a session; each as a report and on the server's pages.

import assert from 'node:assert/strict';
import { cpSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Browser, Server, foldlog, session, temporary } from './pages.js';

const browser = new Browser();
before(() => browser.start());
after(() => browser.stop());

/** Calls a test with a session's report, and with its page on a server. */
async function both(dir, run, args = ['--payloads']) {
  const report = await browser.open(dir, args);
  await run(report);
  await report.close();
  const server = await Server.start(dir);
  const page = await browser.visit(server, server.url);
  await page.page.waitForSelector('.step[data-at]');
  await run(page);
  await page.close();
  await server.end();
}

/** What a verb prints of a session, a document a line. */
const printed = (...words) => foldlog(...words, '--json').split('\n').filter(Boolean).map((line) => JSON.parse(line));

/** A copy of a session of which a byte in the first segment is another one. */
function damaged() {
  const dir = join(temporary(), 'damaged');
  cpSync(session('history', 400, 11), dir, { recursive: true });
  const segment = join(dir, '0000000000.seg');
  const bytes = readFileSync(segment);
  bytes[Math.floor(bytes.length / 3)] ^= 0x40;
  writeFileSync(segment, bytes);
  return dir;
}

describe('a damaged session', () => {
  test('ends its timeline with the damage, and the sound records behind it as unattached', { timeout: 60_000 }, async () => {
    const dir = damaged();
    const behind = printed('show', dir, '--beyond-damage').filter((record) => record.path === 'unattached');
    const [{ corrupt: [place] }] = printed('verify', dir);
    assert.ok(behind.length > 20);
    await both(dir, async (page) => {
      const last = place.sequence - 1;
      await page.is(String(last), () => page.attribute('.step', 'data-at'));
      // One row further is what is damaged.
      await page.key('j');
      await page.page.waitForSelector('.record.is-damage.chosen');
      const said = await page.text('.record.is-damage .name');
      assert.match(said, new RegExp(`at byte ${place.offset.toLocaleString('en-US')}: expected 0x[0-9a-f]{8}, found 0x[0-9a-f]{8}`));
      const facts = await page.all('.damage tr', (row) => row.textContent);
      assert.deepEqual(facts.slice(0, 2), [`file${place.segment}`, `offsetbyte ${place.offset.toLocaleString('en-US')}`]);
      await page.key('j');
      await page.page.waitForSelector('.unattached-record');
      await page.page.waitForSelector('.record.path-unattached .kind');
      assert.match(await page.text('.record.path-unattached.chosen'), new RegExp(`^${behind[0].sequence}${behind[0].kind.replaceAll('_', ' ')}unattached`));
      assert.match(await page.text('.unattached-record .tree'), new RegExp(`offset: ?${behind[0].offset}`));
      await page.go({ at: last, beyond: behind.length });
      await page.page.waitForSelector(`.step[data-beyond="${behind.length}"]`, { state: 'attached' });
      assert.match(await page.text('.unattached-record h3'), new RegExp(`Record ${behind.at(-1).sequence.toLocaleString('en-US')} `));
      // The last record is the last sound one, and no step is behind it.
      await page.key('G');
      await page.page.waitForSelector('.step[data-beyond=""]', { state: 'attached' });
      assert.doesNotMatch(await page.hash(), /beyond/);
    });
  });
});

describe('a session with tasks', () => {
  test('shows them at any step as the tree that the command line prints', { timeout: 60_000 }, async () => {
    const dir = session('work');
    const printedTree = (at) => foldlog('tasks', dir, '--at', at).split('\n').filter((line) => /^ *\[.\] /.test(line)).map((line) => [line.search(/\S/) / 2, line.match(/\] (\S+)/)[1]]);
    const last = printed('show', dir).length - 1;
    await both(dir, async (page) => {
      for (const at of [last, Math.floor(last / 2), last - 1]) {
        await page.go({ at, view: 'step', part: 'tasks' });
        const shown = await page.all('.task', (row) => [Number(row.getAttribute('aria-level')) - 1, row.querySelector('code').textContent]);
        assert.deepEqual(shown, printedTree(at), `at ${at}`);
      }
      // Each leads to the record of its last change.
      const record = await page.attribute('.task', 'data-sequence');
      await page.press('.task button.link');
      await page.is(record, () => page.attribute('.step', 'data-at'));
    });
  });
});

describe('a fork', () => {
  test('leads to the first record of its own', { timeout: 60_000 }, async () => {
    const dir = session('fork');
    const own = printed('show', dir).findLast((record) => record.kind === 'opened').sequence;
    assert.ok(own > 0);
    await both(dir, async (page) => {
      await page.go({ at: 1 });
      await page.page.getByRole('button', { name: 'First own record' }).click();
      await page.is(String(own), () => page.attribute('.step', 'data-at'));
      await page.key('g');
      await page.key('o');
      await page.is(String(own), () => page.attribute('.step', 'data-at'));
    });
    const page = await browser.open(session('work'));
    assert.equal(await page.page.getByRole('button', { name: 'First own record' }).count(), 0);
    await page.close();
  });
});

describe('a conversation with a summary', () => {
  test('shows it where what it replaces begins', { timeout: 60_000 }, async () => {
    const dir = session('work');
    const [summary] = printed('show', dir, '--kind', 'shortened');
    await both(dir, async (page) => {
      await page.go({ at: summary.sequence, view: 'step', part: 'conversation:talk' });
      const order = await page.all('.conversation > li', (one) => [one.classList.contains('summary'), one.classList.contains('is-replaced')].join());
      assert.deepEqual(order, ['true,false', 'false,true', 'false,true', 'false,true', 'false,true']);
      assert.match(await page.text('.step-title'), /^Record 16 /);
      assert.match(await page.text('.summary'), new RegExp(`records ${summary.from} to ${summary.to}: it was long.*Twice it was asked`));
      await page.go({ at: summary.sequence - 1 });
      assert.deepEqual(await page.all('.summary', (one) => one.textContent), []);
    });
  });
});

describe('a compacted session', () => {
  test('marks what was compacted, and says at such a step what is not known', { timeout: 60_000 }, async () => {
    const dir = session('history', 899, 6);
    foldlog('compact', dir, '--keep', 'none');
    await both(dir, async (page) => {
      await page.go({ at: 5, view: 'step', part: 'slice:plan' });
      const said = await page.text('.note.compacted');
      const known = Number(said.match(/Bodies before record ([\d,]+) were compacted/)[1].replaceAll(',', ''));
      await page.page.waitForSelector('.record.is-compacted');
      await page.go({ at: known });
      await page.page.waitForSelector('.record.chosen .compaction');
      assert.equal(await page.text('.note.compacted'), '');
      assert.doesNotMatch(await page.text('.step .part'), /dropped the contents of this slice here/);
    });
  });
});

/** Milliseconds that each of these steps takes, from the change of the address to the frame in which it stands. */
const timed = (page, steps) => page.page.evaluate(async (steps) => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const taken = [];
  for (const at of steps) {
    const began = performance.now();
    const holder = document.querySelector('.step');
    delete holder?.dataset.at;
    const said = new URLSearchParams(location.hash.slice(1));
    said.set('at', String(at));
    location.hash = `#${said}`;
    while (document.querySelector('.step')?.dataset.at !== String(at)) await frame();
    taken.push(performance.now() - began);
  }
  return taken.sort((one, other) => one - other);
}, steps);

const quantiles = (sorted) => [0.5, 0.95].map((share) => `${sorted[Math.floor((sorted.length - 1) * share)].toFixed(0)} ms`).join(' and ');

describe('a session of 100,000 records', () => {
  test('is shown at once, and at any step as the command line has it', { timeout: 240_000 }, async () => {
    const dir = session('long', 100_000);
    const server = await Server.start(dir);
    const page = await browser.visit(server, server.url);
    await page.page.waitForSelector('.step[data-at]');
    const painted = await page.page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime);
    const last = Number(await page.attribute('.step', 'data-at'));
    assert.ok(last >= 100_000 - 1);
    await page.go({ at: 50_000, view: 'step', part: 'slice:plan', form: 'json', from: null });
    const onward = await timed(page, Array.from({ length: 60 }, (_, step) => 50_001 + step));
    const apart = await timed(page, Array.from({ length: 30 }, (_, step) => (step * 37_199 + 11) % last));
    // What a frame costs here where a page does nothing else.
    const bare = await browser.visit(server, 'about:blank');
    const frames = await bare.page.evaluate(async () => {
      const taken = [];
      for (let step = 0; step < 60; step++) {
        const began = performance.now();
        document.body.textContent = String(step);
        await new Promise((resolve) => requestAnimationFrame(resolve));
        taken.push(performance.now() - began);
      }
      return taken.sort((one, other) => one - other);
    });
    await bare.page.context().close();
    console.log(`first paint after ${painted?.toFixed(0)} ms; next step, median and 95 %: ${quantiles(onward)}; a step anywhere: ${quantiles(apart)}; a bare page: ${quantiles(frames)}`);
    for (const at of [31_337, 99_000]) {
      await page.go({ at });
      const items = JSON.parse(foldlog('state', dir, '--at', at, '--json')).slices.plan.items;
      const shown = (await page.text('.step pre.json')).split('\n').filter(Boolean).map((line) => JSON.parse(line));
      assert.deepEqual(shown, items.slice(-200), `at ${at}`);
    }
    await page.close();
    await server.end();
  });
});

/** Recorded runs of tau-bench; not everybody has them. */
const runs = join(process.env.FOLDLOG_RECORDED_RUNS ?? '../shared/data', 'tau-bench', 'gpt-4o-airline.json');

describe('recorded runs of tau-bench', () => {
  test('are listed, and their conversations are what the command line prints', { timeout: 120_000, skip: existsSync(runs) ? false : `there is no ${runs}` }, async () => {
    const store = join(temporary(), 'runs');
    foldlog('import', 'tau-bench', runs, '--store', store);
    const rows = printed('sessions', store);
    const server = await Server.start(store);
    const page = await browser.visit(server, server.url);
    await page.page.waitForSelector('.store .session-row[data-row]');
    await page.is(true, async () => (await page.text('.store .top')).includes(String(rows.length)));
    // The longest one, whose messages are more than a page shows: which session is listed first, chance decides.
    const { session: id } = rows.reduce((longest, row) => (row.records > longest.records ? row : longest));
    const one = await browser.visit(server, `${server.url}session/${id}/`);
    await one.page.waitForSelector('.step[data-at]');
    const [evaluation] = printed('state', join(store, 'sessions', id))[0].conversations.map((one) => one.evaluation_id);
    const messages = printed('transcript', join(store, 'sessions', id), '--as-recorded');
    assert.ok(messages.length > 30, `${messages.length} messages`);
    for (const from of [0, messages.length - 30]) {
      await one.go({ view: 'step', part: `conversation:${evaluation}`, from });
      const spoken = messages.slice(from, from + 30).filter((message) => message.role === 'user' && message.content).map((message) => message.content.trim().split('\n')[0].slice(0, 30));
      // The last page may hold calls and their results alone.
      assert.ok(spoken.length > 0 || from > 0);
      for (const words of spoken) {
        await one.is(words, async () => ((await one.text('.conversation')).includes(words) ? words : 'not there'));
      }
    }
    await one.close();
    await page.close();
    await server.end();
  });
});
