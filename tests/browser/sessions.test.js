// Sessions that few have: damaged, and what else is special about a session; each as a report and on the server's pages.

import assert from 'node:assert/strict';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
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
      await page.page.getByRole('button', { name: 'First of its own' }).click();
      await page.is(String(own), () => page.attribute('.step', 'data-at'));
      await page.key('g');
      await page.key('o');
      await page.is(String(own), () => page.attribute('.step', 'data-at'));
    });
    const page = await browser.open(session('work'));
    assert.equal(await page.page.getByRole('button', { name: 'First of its own' }).count(), 0);
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
      assert.doesNotMatch(await page.text('.step .part'), /dropped what this slice held here/);
    });
  });
});
