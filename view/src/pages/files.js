// The files of a workspace at a step, as a tree, with the content of one of them.

import { bdi, button, el } from 'view/dom.js';
import { visible } from 'view/json.js';
import { highlight } from 'view/markdown.js';
import { text } from 'view/value-tree.js';
import { bytes, number } from 'view/words.js';

/** @typedef {import('./source.js').FileVersion} FileVersion */

/** Number of files of a directory that are shown until somebody asks for more, and up to which directories are open at first. */
const SHOWN = 300;
const OPEN = 80;

/** Number of characters of a content that are numbered by lines. */
const NUMBERED_CHARS = 20_000;

/**
 * Shows the files of a workspace as a tree.
 * @param {FileVersion[]} files in the order of their paths
 * @param {number} at files that this record brought are marked
 * @param {string | undefined} chosen path of the file whose content is shown
 * @param {(path: string) => void} choose
 */
export function fileTree(files, at, chosen, choose) {
  const root = { dirs: new Map(), files: [] };
  for (const file of files) {
    const parts = file.path.split('/');
    const name = /** @type {string} */ (parts.pop());
    let dir = root;
    for (const part of parts) {
      if (!dir.dirs.has(part)) dir.dirs.set(part, { dirs: new Map(), files: [] });
      dir = dir.dirs.get(part);
    }
    dir.files.push([name, file]);
  }
  const draw = (dir) => {
    const list = el('ul', { class: 'files' });
    for (const [name, inner] of dir.dirs) {
      const body = el('div');
      const isOpen = files.length <= OPEN || (chosen ?? '').startsWith(`${name}/`);
      const details = el('details', { open: isOpen }, el('summary', null, bdi(name), '/'), body);
      const fill = () => { if (!body.firstChild) body.append(draw(inner)); };
      if (isOpen) fill(); else details.addEventListener('toggle', fill, { once: true });
      list.append(el('li', null, details));
    }
    const more = (from) => {
      for (const [name, file] of dir.files.slice(from, from + SHOWN)) {
        list.append(el('li', { data: { sequence: file.sequence } }, el('button', { type: 'button', class: 'file', 'aria-current': file.path === chosen ? 'true' : null, on: { click: () => choose(file.path) } },
          bdi(name), file.kind === 'link' ? el('span', { class: 'faint' }, ' link') : null, el('span', { class: 'grow' }), el('span', { class: 'bytes' }, bytes(file.bytes)))));
      }
      if (from + SHOWN < dir.files.length) {
        const rest = el('li', null, button(`${number(dir.files.length - from - SHOWN)} more`, () => { rest.remove(); more(from + SHOWN); }, { class: 'more' }));
        list.append(rest);
      }
    };
    more(0);
    return list;
  };
  return draw(root);
}

/**
 * Shows a file and its content.
 * @param {FileVersion} file
 * @param {import('./source.js').Content | null} content null if it is not included
 * @param {(sequence: number) => void} go
 */
export function fileContent(file, content, go) {
  return el('article', { class: 'file-content' },
    el('h3', null, bdi(file.path)),
    el('p', { class: 'facts' }, `${bytes(file.bytes)} · ${file.permissions ?? file.kind} · `, button(`since record ${number(file.sequence)}`, () => go(file.sequence), { class: 'link' }), ' · ', el('span', { class: 'digest', title: `git object ${file.digest}` }, file.digest.slice(0, 12))),
    shown(file, content));
}

/** @param {FileVersion} file @param {import('./source.js').Content | null} content */
function shown(file, content) {
  if (!content) return el('span', { class: 'left-out' }, `content, ${bytes(file.bytes)}`);
  if (content.error !== undefined) return el('p', { class: 'note' }, `The content cannot be read: ${visible(content.error)}`);
  if (content.base64 !== undefined) {
    const kind = { png: 'png', jpg: 'jpeg', jpeg: 'jpeg', gif: 'gif', webp: 'webp' }[file.path.toLowerCase().split('.').pop() ?? ''];
    return kind ? el('img', { class: 'image', alt: `Image ${visible(file.path)}`, src: `data:image/${kind};base64,${content.base64}` }) : el('p', { class: 'faint' }, 'The content is not text.');
  }
  const whole = content.text ?? '';
  if (whole.length > NUMBERED_CHARS) return text(whole);
  const lines = whole.split('\n').length - (whole.endsWith('\n') ? 1 : 0);
  return el('div', { class: 'numbered' }, el('pre', { 'aria-hidden': 'true' }, Array.from({ length: lines }, (_, line) => line + 1).join('\n')), el('pre', { class: 'code' }, el('code', null, highlight(visible(whole)))));
}
