// Renders Markdown to elements: headings, lists, quotes, code, emphasis, rules, tables. Links and images are shown as text: nothing
// in a page leads outside. What is no Markdown stays text.

import { el } from 'view/dom.js';
import { visible } from 'view/json.js';

/** Number of characters beyond which a text is shown as it is. */
const CHARS = 100_000;

/** Number of characters of a line beyond which no marks are looked for in it. */
const LINE_CHARS = 4000;

/**
 * @param {string} source
 * @returns {HTMLElement}
 */
export function markdown(source) {
  if (source.length > CHARS) return el('pre', { class: 'text' }, visible(source.slice(0, CHARS)), el('span', { class: 'faint' }, ' … cut'));
  return el('div', { class: 'markdown' }, blocks(visible(source).split('\n'), 0));
}

/**
 * @param {string[]} lines
 * @param {number} depth
 * @returns {HTMLElement[]}
 */
function blocks(lines, depth) {
  const out = [];
  let at = 0;
  const take = (test) => {
    const begin = at;
    while (at < lines.length && test(lines[at])) at++;
    return lines.slice(begin, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/.exec(line);
    const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (line.trim() === '') at++;
    else if (fence) {
      at++;
      const code = take((one) => !(one.trim().startsWith(fence[1]) && one.trim().replaceAll(fence[1][0], '') === ''));
      at++;
      out.push(el('pre', { class: 'code' }, el('code', null, highlight(code.join('\n')))));
    } else if (heading) {
      at++;
      out.push(el('div', { class: `heading h${heading[1].length}`, role: 'heading', 'aria-level': String(Math.min(6, heading[1].length + 2)) }, inline(heading[2])));
    } else if (/^ {0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) { at++; out.push(el('hr')); }
    else if (/^ {0,3}>/.test(line) && depth < 5) {
      const quoted = take((one) => /^ {0,3}>/.test(one)).map((one) => one.replace(/^ {0,3}> ?/, ''));
      out.push(el('blockquote', null, blocks(quoted, depth + 1)));
    } else if (/^\s*([-*+]|\d{1,9}[.)])\s+/.test(line) && depth < 5) out.push(list(depth));
    else if (line.includes('|') && /^[\s|:-]+$/.test(lines[at + 1] ?? '') && (lines[at + 1] ?? '').includes('-') && (lines[at + 1] ?? '').includes('|')) {
      const rows = take((one) => one.includes('|')).filter((_, row) => row !== 1).map((row) => row.trim().replace(/^\||\|$/g, '').split('|'));
      out.push(el('div', { class: 'table-holder' }, el('table', null, rows.map((row, number) => el('tr', null, row.map((cell) => el(number ? 'td' : 'th', null, inline(cell.trim()))))))));
    } else {
      const begin = at;
      at++;
      take((one) => one.trim() !== '' && !/^ {0,3}(#{1,6}\s|>|`{3,}|~{3,}|([-*+]|\d{1,9}[.)])\s)/.test(one));
      out.push(el('p', null, lines.slice(begin, at).flatMap((one, row) => (row ? [el('br'), ...inline(one)] : inline(one)))));
    }
  }
  return out;

  /** @param {number} below */
  function list(below) {
    const item = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
    const first = /** @type {RegExpExecArray} */ (item.exec(lines[at]));
    const ordered = /\d/.test(first[2]);
    const indent = first[1].length;
    const items = [];
    while (at < lines.length) {
      const match = item.exec(lines[at]);
      if (!match || match[1].length > indent + 1 || match[1].length < indent || /\d/.test(match[2]) !== ordered) break;
      at++;
      const own = [match[4]];
      const inner = indent + match[2].length + 1;
      own.push(...take((one) => one.trim() !== '' && one.length - one.trimStart().length >= Math.min(inner, indent + 2)).map((one) => one.slice(Math.min(inner, one.length - one.trimStart().length))));
      const content = blocks(own, below + 1);
      items.push(el('li', null, content.length === 1 && content[0].tagName === 'P' ? [...content[0].childNodes] : content));
    }
    return el(ordered ? 'ol' : 'ul', ordered ? { start: String(parseInt(first[2], 10)) } : null, items);
  }
}

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[^*]*[^\s*])?)\*\*|__([^\s_](?:[^_]*[^\s_])?)__|(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])|(?<!\w)_([^\s_](?:[^_]*[^\s_])?)_(?!\w)|~~([^~]+)~~|(!?)\[([^\]]*)\]\(([^()\s]*(?:\([^()\s]*\))?)[^)]*\)/g;

/**
 * @param {string} source
 * @returns {Node[]}
 */
function inline(source) {
  // What the pattern may take for each opening mark grows with the line.
  if (source.length > LINE_CHARS) return [document.createTextNode(source)];
  const out = [];
  let from = 0;
  for (const match of source.matchAll(INLINE)) {
    if (match.index > from) out.push(document.createTextNode(source.slice(from, match.index)));
    const [whole, ticks, code, strong, strongToo, emphasis, emphasisToo, struck, image, label, target] = match;
    if (ticks) out.push(el('code', null, code.trim() || code));
    else if (strong || strongToo) out.push(el('strong', null, strong || strongToo));
    else if (emphasis || emphasisToo) out.push(el('em', null, emphasis || emphasisToo));
    else if (struck) out.push(el('s', null, struck));
    else out.push(el('span', { class: 'link-text', title: 'Links in content are not followed' }, image ? 'image: ' : '', label, el('span', { class: 'target' }, ` (${target})`)));
    from = match.index + whole.length;
  }
  if (from < source.length) out.push(document.createTextNode(source.slice(from)));
  return out;
}

const CODE = /("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)|(\/\/.*|#(?![{!\[]).*|\/\*[\s\S]*?\*\/|<!--[\s\S]*?-->)|\b(\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?|0x[\da-fA-F]+)\b|\b(async|await|break|case|catch|class|const|continue|def|else|elif|enum|except|export|false|False|finally|fn|for|from|func|function|if|impl|import|in|let|match|mod|mut|new|nil|None|null|pub|raise|return|self|static|struct|switch|this|throw|trait|true|True|try|type|use|var|void|while|with|yield)\b/g;

/**
 * Highlights code as most languages read: texts, comments, numbers, words of the language.
 * @param {string} source
 * @returns {Node[]}
 */
export function highlight(source) {
  if (source.length > 20_000) return [document.createTextNode(source)];
  const out = [];
  let from = 0;
  for (const match of source.matchAll(CODE)) {
    if (match.index > from) out.push(document.createTextNode(source.slice(from, match.index)));
    const kind = match[1] ? 'text' : match[2] ? 'comment' : match[3] ? 'number' : 'word';
    out.push(el('span', { class: `code-${kind}` }, match[0]));
    from = match.index + match[0].length;
  }
  if (from < source.length) out.push(document.createTextNode(source.slice(from)));
  return out;
}
