// Takes pictures of every view to be looked at: of a report at three sizes of window, light and dark, and of the server's pages in
// one of each. FOLDLOG_... as `run` sets them, and `node tests/browser/screenshots.js DIR`.

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { Browser, Server, others, session } from './pages.js';

const [to = 'screenshots'] = process.argv.slice(2);
mkdirSync(to, { recursive: true });
const browser = new Browser();
await browser.start();
const sizes = [[1440, 900], [900, 1100], [420, 800]];
const views = ['step', 'diff', 'operations', 'search', 'statistics', 'integrity'];

/** Takes a picture once what is there is drawn. */
async function picture(page, name) {
  await page.page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  await page.page.screenshot({ path: join(to, `${name}.png`) });
}

for (const [what, ...words] of [['history', 700, 11], ['spending'], ['edits'], ['work']]) {
  for (const [width, height] of sizes) {
    for (const colorScheme of ['light', 'dark']) {
      const page = await browser.open(session(what, ...words), ['--payloads'], { colorScheme, viewport: { width, height } });
      const last = Number(await page.attribute('.step-field', 'max'));
      for (const view of views) {
        await page.go({ at: last, view, before: 0, q: view === 'search' ? 'a' : null });
        await page.page.waitForSelector(`.view.${view} ${view === 'search' ? '.results li' : '*'}`);
        await picture(page, `${what}-${view}-${width}-${colorScheme}`);
      }
      await page.page.context().close();
    }
  }
}
const fork = session('fork');
for (const [[width, height], colorScheme] of [[sizes[0], 'light'], [sizes[2], 'dark']]) {
  const server = await Server.start(fork.replace(/\/sessions\/.*$/, ''));
  const page = await browser.visit(server, server.url, { colorScheme, viewport: { width, height } });
  await page.page.waitForSelector('.store .session-row[data-row]');
  await picture(page, `store-${width}-${colorScheme}`);
  for (const [name, dir] of [['fork', fork], ['parting', session('parting')]]) {
    const own = await Server.start(dir.replace(/\/sessions\/.*$/, ''));
    const shown = await browser.visit(own, `${own.url}session/${dir.split('/').pop()}/`, { colorScheme, viewport: { width, height } });
    await shown.page.waitForSelector('.step[data-at]');
    await shown.go({ view: 'compare', with: others(dir)[0] });
    await shown.page.waitForSelector('.compare[data-shows] .parting li');
    await picture(shown, `${name}-compare-${width}-${colorScheme}`);
    await shown.page.context().close();
    await own.end();
  }
  await page.page.context().close();
  await server.end();
}
await browser.stop();
