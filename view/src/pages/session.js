// Begins the page of a session that a server shows.

import { CompareView } from 'view/comparing.js';
import { el, fill } from 'view/dom.js';
import { watch } from 'view/live.js';
import { start } from 'view/main.js';
import { ServerSource } from 'view/server-source.js';

try {
  const source = await ServerSource.open();
  document.title = `foldlog ${source.head().root ?? source.head().session}`;
  // A store has other sessions to compare with.
  const isInStore = document.documentElement.dataset.store === 'yes';
  const compare = { name: 'compare', label: 'Compare', make: (navigate) => new CompareView(source, navigate) };
  const page = start(source, document, isInStore ? [compare] : []);
  watch(source, page, document);
} catch (error) {
  fill(/** @type {Element} */ (document.getElementById('app')), el('section', { class: 'trouble', role: 'alert' }, el('h1', null, 'This session cannot be shown'), el('p', null, error.message), el('p', null, el('a', { href: '../../' }, 'All sessions'))));
}
