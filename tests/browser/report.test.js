// Opens reports from disk in a browser that has no network, and does with them what a reader does.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Browser, cases, foldlog, session } from './pages.js';

const browser = new Browser();
before(() => browser.start());
after(() => browser.stop());

/** What `foldlog state --json` says of each slice: the items, each as its JSON. */
function stateOf(dir, at) {
  const { slices } = JSON.parse(foldlog('state', dir, '--at', at, '--json'));
  return Object.fromEntries(Object.entries(slices).map(([name, { items }]) => [name, items]));
}

/** What a part of the state shows as JSON, a value a line: all pages of it, from the last one to the first. */
async function shownAs(page, at, part) {
  await page.go({ at, view: 'step', part, form: 'json', from: null });
  const shown = [];
  let before = Infinity;
  for (;;) {
    const text = await page.text('.step pre.json');
    const values = text === '' ? [] : text.split('\n').map((line) => JSON.parse(line));
    const [, first] = (await page.text('.step .pages span')).match(/^([\d,]+) to/) ?? [0, '0'];
    const from = Number(first.replaceAll(',', ''));
    // The first page may reach into the one behind it.
    shown.unshift(...values.slice(0, before - from));
    if (from === 0) return shown;
    before = from;
    await page.go({ from: Math.max(0, from - 200) });
  }
}

describe('a report', () => {
  test('says at any step what the command line says', { timeout: 900_000 }, async () => {
    const dir = session('history', 700, 11);
    const page = await browser.open(dir, ['--payloads']);
    const last = Number(await page.attribute('.step-field', 'max'));
    for (const at of cases(last + 1)) {
      const slices = stateOf(dir, at);
      await page.go({ at, view: 'step', part: 'record', form: null });
      const tabs = await page.all('.parts .tab bdi', (tab) => tab.textContent);
      assert.deepEqual(tabs.filter((name) => name in slices).sort(), Object.keys(slices).sort(), `slices at ${at}`);
      for (const [name, items] of Object.entries(slices)) {
        assert.deepEqual(await shownAs(page, at, `slice:${name}`), items, `${name} at ${at}`);
      }
      const summaries = JSON.parse(foldlog('state', dir, '--at', at, '--json')).conversations ?? [];
      if (summaries.length > 0) {
        const said = foldlog('transcript', dir, '--as-recorded', '--at', at, '--json').split('\n').filter(Boolean).map((line) => JSON.parse(line));
        assert.deepEqual(await shownAs(page, at, 'conversation:talk'), said, `messages at ${at}`);
      }
      const [record] = foldlog('show', dir, '--from', at, '--to', at, '--json').split('\n');
      assert.deepEqual(await shownAs(page, at, 'record'), [JSON.parse(record)], `record ${at}`);
    }
    await page.close();
  });

  test('says of any two steps the differences that the command line says', { timeout: 900_000 }, async () => {
    const dir = session('history', 700, 12);
    const page = await browser.open(dir, ['--payloads']);
    const last = Number(await page.attribute('.step-field', 'max'));
    const steps = cases(last + 1);
    for (const [place, to] of steps.entries()) {
      const from = steps[(place + 1) % steps.length];
      const expected = foldlog('diff', dir, from, to, '--json').split('\n').filter(Boolean).map((line) => JSON.parse(line)).map((one) => `${one.conversation ?? one.slice ?? ''} ${one.change} ${one.path}`);
      await page.go({ view: 'diff', before: from, at: to });
      await page.page.waitForSelector(`.diff[data-shows="${from} ${to}"]`, { state: 'attached' });
      while (await page.press('.differences button.more')) { /* Until all are there. */ }
      const shown = await page.all('.difference', (one) => {
        const name = one.closest('.group').querySelector('h3 bdi').textContent.replace(/^Conversation /, '').replace(/^Tags$/, '');
        return `${name} ${one.querySelector('.sign').title} ${one.querySelector('.path bdi').textContent}`;
      });
      assert.deepEqual(shown.sort(), expected.sort(), `from ${from} to ${to}`);
    }
    await page.close();
  });

  test('states once that payloads are not included, and shows the type and size of each', async () => {
    const dir = session('history', 700, 11);
    const page = await browser.open(dir);
    await page.go({ at: await page.attribute('.step-field', 'max'), view: 'step', part: 'conversation:talk' });
    await page.page.waitForSelector('.conversation .left-out');
    assert.match(await page.text('.top'), /Payloads are not included.*--payloads/);
    const marks = await page.all('.left-out', (mark) => mark.textContent);
    assert.ok(marks.every((mark) => /^\w+, [\d.]+ (B|[KM]iB)$/.test(mark)), marks.join('\n'));
    await page.close();
    const whole = await browser.open(dir, ['--payloads']);
    assert.doesNotMatch(await whole.text('.top'), /Payloads/);
    await whole.close();
  });

  test('lists the operations that the ledger lists', async () => {
    const dir = session('history', 700, 11);
    const page = await browser.open(dir);
    await page.go({ view: 'operations' });
    const ledger = foldlog('ledger', dir, '--json').split('\n').filter(Boolean).map((line) => JSON.parse(line));
    while (await page.press('.ledger button.more')) { /* Until all are there. */ }
    const shown = await page.all('.operation-row', (row) => [Number(row.dataset.operation), row.querySelector('code').textContent, row.querySelector('.badge').textContent.split(':')[0]]);
    assert.deepEqual(shown, ledger.map((one) => [one.operation, one.tool, one.outcome]));
    await page.close();
  });

  test('moves by keys, by its slider and by its address, and shows the state at the step', async () => {
    const dir = session('history', 700, 11);
    const page = await browser.open(dir, ['--at', '100']);
    const at = () => page.attribute('.step', 'data-at');
    await page.is('100', at);
    await page.key('j'); await page.is('101', at);
    await page.key('k'); await page.key('k'); await page.is('99', at);
    await page.key('J'); await page.is('109', at);
    await page.key('g'); await page.is('0', at);
    const last = await page.attribute('.step-field', 'max');
    await page.key('G'); await page.is(last, at);
    await page.page.fill('.scrubber input', '42'); await page.is('42', at);
    assert.match(await page.hash(), /at=42/);
    await page.go({ at: 77, view: 'step' }); await page.is('77', at);
    await page.page.reload(); await page.is('77', at);
    await page.key('/');
    assert.equal(await page.page.evaluate(() => document.activeElement?.getAttribute('type')), 'search');
    await page.key('Escape'); await page.page.evaluate(() => document.activeElement?.blur());
    await page.key('?');
    assert.ok(await page.page.isVisible('dialog.keys'));
    await page.key('Escape');
    await page.key('Control+k');
    await page.page.keyboard.type('55');
    await page.key('Enter'); await page.go({ view: 'step' }); await page.is('55', at);
    await page.key('f');
    assert.match(await page.text('.step-title'), /failed/);
    await page.close();
  });

  test('shows the files of a workspace as a step has them, and as unified diffs', async () => {
    const page = await browser.open(session('edits'), ['--payloads']);
    const last = Number(await page.attribute('.step-field', 'max'));
    await page.go({ at: last, view: 'step', part: 'files:workspace' });
    const names = await page.all('.file bdi', (name) => name.textContent);
    assert.ok(names.length > 1 && names.every((name) => /^\d<img src=x onerror=window.ran=5>\.txt$/.test(name)), names.join());
    await page.press('.file');
    await page.page.waitForSelector('.file-content code');
    const text = await page.text('.file-content code');
    assert.match(text, /^fn main\(\) \{\}\n\d+: correct-horse-battery-staple\n$/);
    await page.go({ view: 'diff', before: 2, at: last, file: null });
    await page.page.waitForSelector('.files-changed li');
    assert.deepEqual(new Set(await page.all('.files-changed .sign', (sign) => sign.title)), new Set(['added']));
    assert.ok((await page.all('.files-changed .line-added', (line) => line.textContent)).includes('+ fn main() {}'));
    await page.close();
  });

  test('filters the timeline, and finds what is searched for', async () => {
    const dir = session('history', 700, 11);
    const page = await browser.open(dir, ['--payloads']);
    await page.press('.filters summary');
    await page.page.waitForSelector('.filter-fields input');
    await page.page.getByLabel('rollback', { exact: true }).check();
    const rollbacks = foldlog('show', dir, '--kind', 'rollback', '--json').split('\n').filter(Boolean).length;
    await page.is(`${rollbacks} of`, async () => (await page.text('.timeline .bar [role=status]')).slice(0, `${rollbacks} of`.length));
    await page.go({ view: 'search', q: 'Question 3:' });
    // What is found comes bit by bit.
    for (const where of ['message talk', 'record input']) {
      await page.page.locator('.results .chip', { hasText: where }).first().waitFor();
    }
    await page.close();
  });

  test('shows what its views promise, in light and dark, and when it is narrow', async () => {
    const dir = session('history', 700, 11);
    for (const [colorScheme, width] of [['light', 1440], ['dark', 1440], ['light', 480]]) {
      const page = await browser.open(dir, [], { colorScheme, viewport: { width, height: 800 } });
      for (const view of ['step', 'diff', 'operations', 'search', 'statistics', 'integrity']) {
        await page.go({ at: 300, view });
        await page.page.waitForSelector(`.view.${view}`);
        const wide = await page.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `${view} is ${wide} pixels wider than a window of ${width}`);
      }
      assert.match(await page.text('.integrity'), /No damage was found/);
      await page.close();
    }
  });

  test('draws what was spent, as the command line tells it, and leads from there to its records', async () => {
    const dir = session('spending');
    const page = await browser.open(dir);
    const { spent, models, tools } = JSON.parse(foldlog('stats', dir, '--json'));
    const last = spent.at(-1);
    await page.go({ view: 'statistics' });
    await page.page.waitForSelector('.spent path');
    const sent = (one) => one.input_tokens + one.cache_read_tokens + one.cache_write_tokens;
    const legend = await page.all('.legend span', (one) => one.textContent);
    assert.deepEqual(legend, [`${sent(last).toLocaleString('en-US')} tokens sent`, `${last.output_tokens} answered`, `cost ${(last.cost_micros / 1e6).toFixed(4)}`]);
    assert.equal(await page.attribute('.spent', 'aria-label'), legend.join(', '));
    const bars = (caption) => page.all('.plot', (one) => [one.querySelector('figcaption').textContent, [...one.querySelectorAll('.bars th')].map((name) => name.textContent)]).then((all) => all.find(([name]) => name === caption)?.[1]);
    const by = (rows, key, amount) => rows.filter((row) => amount(row) > 0).sort((one, two) => amount(two) - amount(one)).map((row) => row[key] ?? 'not named');
    const tokens = (one) => sent(one) + one.output_tokens;
    assert.deepEqual(await bars('Tokens of each model'), by(models, 'model', tokens));
    assert.deepEqual(await bars('Tokens of each tool'), by(tools, 'tool', tokens));
    assert.deepEqual(await bars('Cost of each model'), by(models, 'model', (one) => one.cost_micros ?? 0));
    assert.deepEqual(await bars('Cost of each tool'), by(tools, 'tool', (one) => one.cost_micros ?? 0));
    assert.deepEqual(await bars('Bytes of each tool'), by(tools, 'tool', (one) => one.argument_bytes + one.result_bytes));
    const { width } = await page.page.locator('.spent').boundingBox();
    await page.page.click('.spent', { position: { x: Math.floor(width) - 2, y: 60 } });
    await page.page.waitForSelector(`.step[data-at="${last.sequence}"]`);
    await page.go({ at: last.sequence, view: 'step', part: 'conversation:main' });
    await page.is(true, async () => (await page.text('.step .part .facts')).includes('cost 0.0125'));
    // Who knows no cost says nothing of it.
    const none = await browser.open(session('history', 700, 11));
    await none.go({ view: 'statistics' });
    await none.page.waitForSelector('.plot');
    assert.doesNotMatch(await none.text('.statistics'), /[Cc]ost|Spent|Tokens/);
    await none.close();
    await page.close();
  });

  test('has a policy that keeps out what bears no nonce', async () => {
    const page = await browser.open(session('history', 700, 11));
    const ran = await page.page.evaluate(async () => {
      const script = document.createElement('script');
      script.textContent = 'window.ran = 9';
      const style = document.createElement('style');
      style.textContent = 'body { color: rgb(1, 2, 3) }';
      document.body.append(script, style);
      const image = new Image();
      const loaded = new Promise((resolve) => { image.onload = () => resolve('loaded'); image.onerror = () => resolve('refused'); });
      image.src = 'https://example.com/x.png';
      const fetched = await fetch('https://example.com/').then(() => 'fetched', () => 'refused');
      return [window.ran, getComputedStyle(document.body).color === 'rgb(1, 2, 3)', await loaded, fetched];
    });
    assert.deepEqual(ran, [undefined, false, 'refused', 'refused']);
    const refused = page.problems.splice(0).filter((problem) => problem.includes('Content Security Policy'));
    assert.ok(refused.length >= 4, refused.join('\n'));
    await page.close();
  });

  test('runs nothing and asks for nothing, whatever a session holds', { timeout: 120_000 }, async () => {
    const dir = session('hostile');
    const page = await browser.open(dir, ['--payloads', '--limit', '64M']);
    const last = Number(await page.attribute('.step-field', 'max'));
    const obeysNone = async (where) => {
      const turns = await page.page.evaluate(() => /[\u202a-\u202e\u2066-\u2069\u200b]/.test(document.getElementById('app').textContent));
      assert.equal(turns, false, `marks that nobody sees are shown, not obeyed, in ${where}`);
    };
    for (let at = 0; at <= last; at++) {
      await page.go({ at, view: 'step', part: 'record' });
      await page.page.waitForSelector(`.step[data-at="${at}"]`);
      await obeysNone(`record ${at}`);
    }
    for (const part of await page.all('.parts .tab', (tab) => new URLSearchParams(tab.hash.slice(1)).get('part'))) {
      await page.go({ at: last, view: 'step', part });
      await page.page.waitForFunction((wanted) => document.querySelector('.parts .tab[aria-current]')?.hash.includes(`part=${encodeURIComponent(wanted).slice(0, 5)}`), part ?? '');
      await obeysNone(part);
    }
    for (const view of ['diff', 'operations', 'statistics', 'integrity']) {
      await page.go({ at: last, view, before: 0, operation: null });
      await page.page.waitForSelector(`.view.${view} *`);
      await obeysNone(view);
    }
    for (const row of await page.all('.operation-row', (one) => one.dataset.operation)) await page.go({ view: 'operations', operation: row });
    await page.go({ view: 'search', q: 'window.ran' });
    await page.page.waitForSelector('.results li');
    const state = await page.page.evaluate(() => ({ ran: window.ran, polluted: {}.polluted, scripts: document.querySelectorAll('#app script, #app img[src^=http], #app style, #app a[href]:not([href^="#"])').length, seen: document.body.checkVisibility() }));
    assert.deepEqual(state, { ran: undefined, polluted: undefined, scripts: 0, seen: true });
    await page.close();
  });
});
