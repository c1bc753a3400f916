// Measures a page of many records: until it is first painted, until it shows a state, and what a step takes. Run it on a machine
// that does nothing else: FOLDLOG_... as `run` sets them, and `node tests/browser/measure.js [RECORDS]`, 100,000 by default.

import { Browser, foldlog, session } from './pages.js';

const records = Number(process.argv[2] ?? 99_900);
const dir = session('history', records, 3);
const browser = new Browser();
await browser.start();
let begin = performance.now();
const page = await browser.open(dir, ['--payloads']);
const facts = await page.page.evaluate(() => ({
  records: Number(document.querySelector('.step-field').max) + 1,
  painted_ms: Math.round(performance.getEntriesByName('first-contentful-paint')[0].startTime),
  loaded_ms: Math.round(performance.timing.loadEventEnd - performance.timing.navigationStart),
  bytes: document.documentElement.outerHTML.length,
}));
console.log(JSON.stringify({ ...facts, with_writing_ms: Math.round(performance.now() - begin), ledger: foldlog('ledger', dir, '--json').split('\n').length - 1 }));
const parts = await page.all('.parts .tab', (tab) => new URLSearchParams(tab.hash.slice(1)).get('part'));
for (const part of parts.filter(Boolean)) {
  const took = await page.page.evaluate(async ([part, records]) => {
    const view = document.querySelector('.step');
    const step = (at) => new Promise((resolve) => {
      const begin = performance.now();
      delete view.dataset.at;
      const watch = new MutationObserver(() => {
        if (view.dataset.at !== String(at)) return;
        watch.disconnect();
        // Asking for its height has the browser lay the page out.
        view.getBoundingClientRect();
        resolve(performance.now() - begin);
      });
      watch.observe(view, { attributes: true });
      location.hash = `#view=step&part=${encodeURIComponent(part)}&at=${at}`;
    });
    const middle = Math.floor(records / 2);
    await step(middle);
    const [near, far] = [[], []];
    for (let by = 1; by <= 100; by++) near.push(await step(middle + by));
    for (let seed = 7, times = 0; times < 100; times++) {
      seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
      far.push(await step(seed % records));
    }
    const of = (times) => { times.sort((one, other) => one - other); return { median_ms: Math.round(times[50]), p95_ms: Math.round(times[94]) }; };
    return { next: of(near), anywhere: of(far) };
  }, [part, facts.records]);
  console.log(part, JSON.stringify(took));
}
await page.close();
await browser.stop();
