// Reads JSON exactly: numbers keep all their digits, objects the order of their keys and keys that come twice.

/**
 * @typedef {{type: 'object', keys: string[], values: Json[]}} JsonObject
 * @typedef {{type: 'array', values: Json[]}} JsonArray
 * @typedef {{type: 'string', value: string}} JsonString
 * @typedef {{type: 'plain', text: string}} JsonPlain number, true, false or null, as it was written
 * @typedef {JsonObject | JsonArray | JsonString | JsonPlain} Json
 */

/**
 * Reads one JSON text.
 * @param {string} text
 * @returns {Json}
 */
export function parse(text) {
  let at = 0;
  const blank = () => { while (at < text.length && ' \t\n\r'.includes(text[at])) at++; };
  const string = () => {
    let end = at + 1;
    let escapes = false;
    while (text[end] !== '"') {
      if (end >= text.length) throw new SyntaxError('a text does not end');
      if (text[end] === '\\') { escapes = true; end += 2; } else end++;
    }
    const token = text.slice(at, end + 1);
    at = end + 1;
    return escapes ? JSON.parse(token) : token.slice(1, -1);
  };
  const expect = (character) => {
    if (text[at] !== character) throw new SyntaxError(`${character} is missing at ${at}`);
    at++;
  };
  /** @returns {Json} */
  const value = () => {
    blank();
    const first = text[at];
    if (first === '"') return { type: 'string', value: string() };
    if (first === '{' || first === '[') {
      at++;
      const isObject = first === '{';
      const end = isObject ? '}' : ']';
      const keys = [];
      const values = [];
      blank();
      while (text[at] !== end) {
        if (values.length > 0) { expect(','); blank(); }
        if (isObject) { keys.push(string()); blank(); expect(':'); }
        values.push(value());
        blank();
      }
      at++;
      return isObject ? { type: 'object', keys, values } : { type: 'array', values };
    }
    const begin = at;
    while (at < text.length && !',]} \t\n\r'.includes(text[at])) at++;
    if (begin === at) throw new SyntaxError(`a value is missing at ${at}`);
    return { type: 'plain', text: text.slice(begin, at) };
  };
  const read = value();
  blank();
  if (at !== text.length) throw new SyntaxError('something follows the value');
  return read;
}

/**
 * Returns the value of a key; null if the value is no object, or has no such key.
 * @param {Json | null} json
 * @param {string} key
 * @returns {Json | null}
 */
export function field(json, key) {
  if (!json || json.type !== 'object') return null;
  const at = json.keys.indexOf(key);
  return at < 0 ? null : json.values[at];
}

/**
 * Returns the text that a value is, or null.
 * @param {Json | null} json
 * @returns {string | null}
 */
export function textOf(json) {
  return json && json.type === 'string' ? json.value : null;
}

/**
 * Returns the number that a value is, or null. One beyond 2^53 is not exact.
 * @param {Json | null} json
 * @returns {number | null}
 */
export function numberOf(json) {
  return json && json.type === 'plain' && /^-?\d/.test(json.text) ? Number(json.text) : null;
}

/**
 * Writes a value on one line.
 * @param {Json} json
 * @returns {string}
 */
export function write(json) {
  switch (json.type) {
    case 'string': return quote(json.value);
    case 'plain': return json.text;
    case 'array': return `[${json.values.map(write).join(',')}]`;
    default: return `{${json.keys.map((key, at) => `${quote(key)}:${write(json.values[at])}`).join(',')}}`;
  }
}

const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/**
 * Writes a text as JSON, what cannot be seen in it escaped.
 * @param {string} text
 */
export function quote(text) {
  return JSON.stringify(text).replace(UNSEEN, (character) => {
    let escaped = '';
    for (let at = 0; at < character.length; at++) escaped += `\\u${character.charCodeAt(at).toString(16).padStart(4, '0')}`;
    return escaped;
  });
}

/**
 * Makes what cannot be seen in a text visible: marks that turn the direction of writing, and the like. Newlines and tabs stay; a
 * carriage return before a newline is part of it.
 * @param {string} text
 */
export function visible(text) {
  return text.replaceAll('\r\n', '\n').replace(UNSEEN, (character) => (character === '\n' || character === '\t' ? character : `\\u{${character.codePointAt(0)?.toString(16)}}`));
}

/**
 * Returns whether two values are the same, keys in the same order.
 * @param {Json} one
 * @param {Json} other
 * @returns {boolean}
 */
export function same(one, other) {
  if (one.type !== other.type) return false;
  if (one.type === 'string') return one.value === /** @type {JsonString} */ (other).value;
  if (one.type === 'plain') return one.text === /** @type {JsonPlain} */ (other).text;
  const others = /** @type {JsonArray | JsonObject} */ (other);
  if (one.values.length !== others.values.length) return false;
  if (one.type === 'object' && !one.keys.every((key, at) => key === /** @type {JsonObject} */ (others).keys[at])) return false;
  return one.values.every((value, at) => same(value, others.values[at]));
}
