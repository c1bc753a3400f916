// What the tests of pages share: sessions, reports of them, and a browser that opens these without a network.

import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { createInterface } from 'node:readline';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import assert from 'node:assert/strict';

import { chromium } from 'playwright-core';

const BIN = process.env.FOLDLOG_BIN;
const WRITER = process.env.FOLDLOG_SESSIONS_TO_SHOW;
const CHROMIUM = process.env.FOLDLOG_CHROMIUM;
/** Number of steps that are compared with the command line. */
const CASES = Number(process.env.FOLDLOG_PAGE_STEPS ?? 30);

const directory = mkdtempSync(join(tmpdir(), 'foldlog-pages-'));
process.on('exit', () => rmSync(directory, { recursive: true, force: true }));

/** Runs the binary, and returns what it prints. It fails where the binary does, but for what it finds damaged. */
export function foldlog(...args) {
  const { status, stdout } = spawnSync(BIN, args.map(String), { encoding: 'utf8', maxBuffer: 1 << 30, stdio: ['ignore', 'pipe', 'ignore'] });
  assert.ok(status === 0 || status === 1, `${args.slice(0, 2).join(' ')} ends with ${status}`);
  return stdout;
}

/** A new directory, which is removed at the end. */
export const temporary = () => mkdtempSync(join(directory, 'more-'));

const sessions = new Map();

/** Writes a session once, and returns its directory. */
export function session(...what) {
  const name = what.join('-');
  if (!sessions.has(name)) sessions.set(name, execFileSync(WRITER, [join(directory, name), ...what.map(String)], { encoding: 'utf8' }).trim());
  return sessions.get(name);
}

/** Ids of the other sessions of a session's store. */
export const others = (dir) => readdirSync(dirname(dir)).filter((id) => id !== basename(dir));

/** Numbers below an end: the first, the last, and others that are the same in each run. */
export function cases(end) {
  let seed = 20_261_126;
  const next = () => { seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0; return seed % end; };
  return [0, end - 1, ...Array.from({ length: CASES - 2 }, next)];
}

export class Browser {
  async start() {
    this.browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
    this.count = 0;
  }

  stop() {
    return this.browser.close();
  }

  /** Writes a report of a session, and opens it. */
  async open(dir, args = [], options = {}) {
    const file = join(directory, `report-${this.count++}.html`);
    foldlog('report', dir, '--html', file, ...args);
    const context = await this.browser.newContext({ viewport: { width: 1440, height: 900 }, offline: true, ...options });
    const page = new Page(await context.newPage());
    await page.page.goto(`file://${file}`);
    await page.page.waitForSelector('.step[data-at]');
    return page;
  }

  /** Opens a page of a server, in a browser that may ask that server alone. */
  async visit(server, url, options = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
    const page = new Page(await context.newPage(), server.url);
    await page.page.goto(url);
    return page;
  }
}

/** A process that answers lines: to each that it is sent, or at its begin, with one. */
class Lines {
  constructor(program, args) {
    this.process = spawn(program, args.map(String), { stdio: ['pipe', 'pipe', 'ignore'] });
    this.ended = new Promise((resolve) => this.process.on('exit', resolve));
    this.lines = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
    process.on('exit', () => this.process.kill('SIGKILL'));
  }

  async line() {
    const { value, done } = await this.lines.next();
    assert.ok(!done, 'the process has ended');
    return value;
  }

  send(line) {
    this.process.stdin.write(`${line}\n`);
    return this.line();
  }
}

/** `foldlog view` of a store or a session. */
export class Server {
  static async start(path, ...options) {
    const server = new Server();
    server.lines = new Lines(BIN, ['view', path, '--no-open', ...options]);
    server.url = await server.lines.line();
    return server;
  }

  /** Ends the server as Ctrl-C does. */
  async end() {
    this.lines.process.kill('SIGINT');
    assert.equal(await this.lines.ended, 0);
  }
}

/** A session that is written while the test goes on. */
export class Writer {
  static async start(name) {
    const writer = new Writer();
    writer.lines = new Lines(WRITER, [join(directory, name), 'growing']);
    writer.dir = await writer.lines.line();
    return writer;
  }

  /** Writes records, and returns the last one's number. */
  async write(count) {
    return Number(await this.lines.send(`write ${count}`));
  }

  /** Rolls back to a position, and returns the rollback's number. */
  async rollBack(to) {
    return Number(await this.lines.send(`rollback ${to}`));
  }

  async end() {
    this.lines.process.stdin.end();
    await this.lines.ended;
  }
}

/** A report, or a server's page, in a browser. `origin` is where requests may go; a report makes none. */
class Page {
  constructor(page, origin = 'file:') {
    this.page = page;
    this.problems = [];
    page.on('console', (message) => { if (['error', 'warning'].includes(message.type())) this.problems.push(message.text()); });
    page.on('pageerror', (error) => this.problems.push(error.message));
    page.on('dialog', (dialog) => { this.problems.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
    page.on('request', (request) => { if (!/^(data|file|blob):/.test(request.url()) && !request.url().startsWith(origin)) this.problems.push(`a request: ${request.url()}`); });
  }

  /** Closes the page, of which nothing may have gone wrong. */
  async close() {
    assert.deepEqual(this.problems, []);
    await this.page.context().close();
  }

  /** Goes to an address: what is named is changed, what is null is taken out. */
  async go(change) {
    const step = await this.page.evaluate((change) => {
      const said = new URLSearchParams(location.hash.slice(1));
      for (const [name, value] of Object.entries(change)) if (value === null) said.delete(name); else said.set(name, String(value));
      const hash = `#${said}`;
      const holder = document.querySelector('.step');
      if (hash === location.hash || !['step', null].includes(said.get('view'))) { location.hash = hash; return null; }
      delete document.querySelector('.step')?.dataset.at;
      if (holder) delete holder.dataset.at;
      location.hash = hash;
      return said.get('at');
    }, change);
    if (step !== null) await this.page.waitForSelector(`.step[data-at="${step}"]`, { state: 'attached' });
  }

  hash() {
    return this.page.evaluate(() => location.hash);
  }

  text(selector) {
    return this.page.evaluate((selector) => document.querySelector(selector)?.textContent ?? '', selector);
  }

  attribute(selector, name) {
    return this.page.getAttribute(selector, name);
  }

  /** What `take` makes of each element of a selector. It runs in the page, and sees nothing of the test. */
  all(selector, take) {
    return this.page.$$eval(selector, /** @type {any} */ (new Function('all', `return all.map(${take})`)));
  }

  /** Clicks the first element of a selector; returns whether there is one. */
  async press(selector) {
    const found = await this.page.$(selector);
    await found?.click();
    return found !== null;
  }

  key(key) {
    return this.page.keyboard.press(key);
  }

  /** Waits until something is as expected. */
  async is(expected, read) {
    let last;
    for (const end = Date.now() + 10_000; Date.now() < end;) {
      last = await read();
      if (last === expected) return;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    assert.equal(last, expected);
  }
}
