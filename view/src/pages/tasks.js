// The tasks of a step as a tree: each with its state, what it waits for, its times and its record.

import { bdi, button, el } from 'view/dom.js';
import { visible } from 'view/json.js';
import { bytes, counted, number } from 'view/words.js';

const MARKS = { pending: '○', blocked: '#', in_progress: '▸', completed: '✓', failed: '!', skipped: '–', cancelled: '✕' };

/** Levels by which a task is indented at most. */
const LEVELS = 40;

/** A text of the host, or its mark if it is not included. @param {any} said @param {string} name */
const said = (said, name) => (typeof said === 'string' ? bdi(said) : el('span', { class: 'left-out' }, `${name}, ${bytes(said.bytes)}`));

/** Times to the second. @param {string} time */
const second = (time) => el('time', { datetime: time, title: time }, time.slice(0, 19).replace('T', ' '));

/**
 * Orders tasks as a tree: each below its parent. Those that no root leads to come last.
 * @param {import('./source.js').Task[]} tasks
 * @returns {{task: import('./source.js').Task, level: number, parts: number}[]}
 */
function ordered(tasks) {
  const parts = new Map();
  for (const task of tasks) parts.set(task.parent, [...(parts.get(task.parent) ?? []), task]);
  const [found, seen] = [[], new Set()];
  const walk = (roots) => {
    const next = roots.map((task) => ({ task, level: 0 })).reverse();
    while (next.length > 0) {
      const { task, level } = next.pop();
      if (seen.has(task.number)) continue;
      seen.add(task.number);
      const below = parts.get(task.number) ?? [];
      found.push({ task, level, parts: below.length });
      for (const part of [...below].reverse()) next.push({ task: part, level: level + 1 });
    }
  };
  walk(parts.get(null) ?? []);
  walk(tasks.filter((task) => !seen.has(task.number)));
  return found;
}

/**
 * @param {import('./source.js').Task[]} tasks
 * @param {(sequence: number) => void} go
 */
export function showTasks(tasks, go) {
  const counts = new Map();
  for (const { status } of tasks) counts.set(status, (counts.get(status) ?? 0) + 1);
  const words = (status) => status.replaceAll('_', ' ');
  const rows = ordered(tasks).map(({ task, level, parts }) => {
    const facts = [
      task.why !== null && said(task.why, 'reason'),
      task.next !== null && `may start${task.next === 1 ? ' next' : `, ${number(task.next)} in line`}`,
      (task.attempts > 1 || task.failures > 0) && `started ${counted(task.attempts, 'time')}, failed ${number(task.failures)}`,
      task.priority !== 0 && `priority ${number(task.priority)}`,
    ].filter(Boolean);
    const row = el('li', { class: `task is-${task.status}${task.active ? ' is-active' : ''}`, role: 'treeitem', 'aria-level': level + 1, 'aria-expanded': parts > 0 ? 'true' : null, data: { sequence: task.record ?? '' } },
      el('span', { class: 'task-mark', 'aria-hidden': 'true' }, MARKS[task.status] ?? '?'),
      el('div', { class: 'task-text' },
        el('div', null, said(task.title, `task ${task.number}`), ' ', typeof task.id === 'string' && task.id !== task.title && el('code', { class: 'faint' }, visible(task.id)), ' ',
          el('span', { class: `badge task-${task.status}` }, words(task.status)), task.active && el('span', { class: 'badge' }, 'active')),
        el('div', { class: 'facts' }, facts.map((fact) => [fact, ' · ']), words(task.status), ' since ', second(task.status_at), ' · created ', second(task.created_at),
          task.record !== null && [' · ', button(`@${task.record}`, () => go(task.record), { class: 'link', title: 'Go to the record of its last change' })])));
    row.style.paddingLeft = `${Math.min(level, LEVELS) * 22 + 4}px`;
    return row;
  });
  return el('div', null,
    el('p', { class: 'facts' }, `${counted(tasks.length, 'task')}: `, [...counts].map(([status, count]) => `${number(count)} ${words(status)}`).join(', ')),
    el('ol', { class: 'tasks', role: 'tree', 'aria-label': 'Tasks' }, rows));
}
