// Keeps a page as its session is: what is written appears, and what ends the watching is told.

import { button, el, fill } from 'view/dom.js';

/** Waits between two attempts to reach a server that does not answer, in milliseconds: the first, and the longest. */
const WAIT = 1000;
const WAIT_MAX = 15_000;

/** @param {number} wait milliseconds */
const pause = (wait) => new Promise((resolve) => setTimeout(resolve, wait));

/** Waits until a page is seen. @param {Document} page @returns {Promise<void>} */
function seen(page) {
  if (!page.hidden) return Promise.resolve();
  return new Promise((resolve) => page.addEventListener('visibilitychange', () => resolve(seen(page)), { once: true }));
}

/**
 * Watches a session for as long as it can grow.
 * @param {import('./server-source.js').ServerSource} source
 * @param {{grow: (before: number) => void}} page
 * @param {Document} shown
 */
export async function watch(source, page, shown) {
  const badge = el('span', { class: 'badge live', title: 'New records appear as they are written' }, 'live');
  const banner = el('p', { class: 'note banner', role: 'alert', hidden: true });
  const heading = shown.querySelector('.top h1');
  heading?.after(badge, links(source.head(), shown));
  shown.querySelector('.top')?.after(banner);
  const tell = (text, then = null) => { banner.hidden = text === ''; fill(banner, text, then && [' ', button('Reload', () => location.reload(), { class: 'quiet' })]); };
  let wait = WAIT;
  for (;;) {
    await seen(shown);
    try {
      const news = await source.live();
      wait = WAIT;
      tell('');
      const head = source.head();
      if (news.last !== head.last || news.epoch !== head.epoch) {
        const before = head.last;
        await source.refresh();
        page.grow(before);
      }
      if (news.ended) {
        badge.remove();
        return;
      }
    } catch (error) {
      // Nobody sees the page: its connection is left to those that are seen.
      if (shown.hidden) continue;
      tell(`This page shows the session as it was last known: ${error.message}.`, error.status !== 0);
      if (error.status !== 0) { badge.remove(); return; }
      await pause(wait);
      wait = Math.min(wait * 2, WAIT_MAX);
    }
  }
}

/** Links from a session to its store and to its parent. @param {any} head @param {Document} shown */
function links(head, shown) {
  if (shown.documentElement.dataset.store !== 'yes') return '';
  const parent = head.parent && el('a', { class: 'badge', href: `../${head.parent.session}/#at=${Math.max(0, head.parent.first_own - 1)}`, title: head.parent.session }, 'parent');
  return el('span', null, el('a', { class: 'badge', href: '../../' }, 'all sessions'), ' ', parent);
}
