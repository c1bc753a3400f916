// The command palette: what can be done, found by its words; and the list of keys.

import { el, fill } from 'view/dom.js';
import { visible } from 'view/json.js';

/** @typedef {{name: string, keys?: string, run: () => void}} Command */

export class Palette {
  /** @param {(text: string) => Command[]} commands what can be done, given what was typed */
  constructor(commands) {
    this.commands = commands;
    this.input = el('input', { type: 'text', role: 'combobox', 'aria-expanded': 'true', 'aria-controls': 'palette-list', 'aria-label': 'Command', placeholder: 'A command or a record number', on: { input: () => this.draw(), keydown: (event) => this.key(event) } });
    this.list = el('ul', { id: 'palette-list', role: 'listbox', 'aria-label': 'Commands' });
    this.element = el('dialog', { class: 'palette', 'aria-label': 'Command palette' }, this.input, this.list);
    this.element.addEventListener('click', (event) => { if (event.target === this.element) this.element.close(); });
    this.chosen = 0;
  }

  open() {
    this.input.value = '';
    this.draw();
    this.element.showModal();
    this.input.focus();
  }

  draw() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.commands(this.input.value).filter(({ name }) => words.every((word) => name.toLowerCase().includes(word))).slice(0, 40);
    this.chosen = 0;
    fill(this.list, this.shown.map((command, at) => el('li', { role: 'option', id: `command-${at}`, 'aria-selected': String(at === 0), on: { click: () => this.run(at) } }, visible(command.name), command.keys ? el('kbd', null, command.keys) : null)));
    this.input.setAttribute('aria-activedescendant', this.shown.length > 0 ? 'command-0' : '');
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && this.shown && this.shown.length > 0) {
      event.preventDefault();
      this.list.children[this.chosen].setAttribute('aria-selected', 'false');
      this.chosen = (this.chosen + by + this.shown.length) % this.shown.length;
      this.list.children[this.chosen].setAttribute('aria-selected', 'true');
      this.list.children[this.chosen].scrollIntoView({ block: 'nearest' });
      this.input.setAttribute('aria-activedescendant', `command-${this.chosen}`);
    } else if (event.key === 'Enter') {
      event.preventDefault();
      this.run(this.chosen);
    }
  }

  /** @param {number} at */
  run(at) {
    this.element.close();
    this.shown?.[at]?.run();
  }
}

/** Makes the list of keys. @param {[string, string][]} keys */
export function keyList(keys) {
  const dialog = el('dialog', { class: 'keys', 'aria-label': 'Keys' }, el('h2', null, 'Keys'), el('table', null, keys.map(([key, what]) => el('tr', null, el('th', { scope: 'row' }, el('kbd', null, key)), el('td', null, what)))), el('form', { method: 'dialog' }, el('button', null, 'Close')));
  dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
  return dialog;
}
