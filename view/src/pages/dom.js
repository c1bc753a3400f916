// Makes elements. Text becomes text nodes, never markup.

import { visible } from 'view/json.js';

/**
 * Makes an element. Properties: `class`, `on` (listeners by event), `data` (data attributes); all others are attributes, left out
 * where they are null, undefined or false.
 * @param {string} tag
 * @param {Record<string, any> | null} [properties]
 * @param {...any} children elements, texts and numbers, also in lists; null, undefined and false are none
 * @returns {any} the element
 */
export function el(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === 'class') element.className = value || '';
    else if (name === 'on') for (const [event, listener] of Object.entries(value)) element.addEventListener(event, /** @type {any} */ (listener));
    else if (name === 'data') Object.assign(element.dataset, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

/**
 * Appends children to an element, those of lists too; nothing is appended for null, undefined and false.
 * @param {Node} parent
 * @param {any[]} children
 */
export function append(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(parent, child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) parent.appendChild(document.createTextNode(String(child)));
  }
}

/**
 * Replaces what an element holds.
 * @param {Element} parent
 * @param {...any} children
 */
export function fill(parent, ...children) {
  const holder = document.createDocumentFragment();
  append(holder, children);
  parent.replaceChildren(holder);
}

/**
 * Makes an element of SVG.
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @param {...Node} children
 */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * Makes an element of a text from outside: it keeps its own direction, and what cannot be seen in it is shown.
 * @param {string} text
 */
export const bdi = (text) => el('bdi', null, visible(text));

/**
 * Makes a button that does something.
 * @param {string} label
 * @param {() => void} action
 * @param {Record<string, any>} [properties]
 */
export function button(label, action, properties = {}) {
  return el('button', { type: 'button', ...properties, on: { click: action } }, label);
}

/**
 * Returns the address of this page with something changed; what is null is taken out.
 * @param {Record<string, string | number | null>} change
 */
export function address(change) {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(change)) if (value === null) said.delete(name); else said.set(name, String(value));
  return `#${said}`;
}
