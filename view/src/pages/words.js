// How numbers, times and lengths read.

/**
 * Returns a time as the engine writes it: ISO 8601 with microseconds and offset.
 * @param {number} us microseconds since 1970-01-01 UTC
 */
export function time(us) {
  const date = new Date(Math.floor(us / 1000));
  if (Number.isNaN(date.getTime())) return String(us);
  const micros = String(((us % 1e6) + 1e6) % 1e6).padStart(6, '0');
  return `${date.toISOString().slice(0, 19)}.${micros}+00:00`;
}

/** @param {number} us */
export function clock(us) {
  return time(us).slice(11, 23);
}

/** @param {number} us a duration in microseconds */
export function duration(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 1e4 ? 1 : 0)} ms`;
  if (us < 6e7) return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
  if (us < 3.6e9) return `${Math.floor(us / 6e7)} min ${Math.round((us % 6e7) / 1e6)} s`;
  return `${Math.floor(us / 3.6e9)} h ${Math.round((us % 3.6e9) / 6e7)} min`;
}

/** @param {number} count */
export function bytes(count) {
  if (count < 1024) return `${count} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let at = -1;
  let value = count;
  do { value /= 1024; at++; } while (value >= 1024 && at < units.length - 1);
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[at]}`;
}

/** @param {number} micros millionths of the host's currency */
export function money(micros) {
  return (micros / 1e6).toFixed(micros < 1e4 ? 6 : 4);
}

/** @param {number} count */
export function number(count) {
  return count.toLocaleString('en-US');
}

/** @param {number} count @param {string} thing */
export function counted(count, thing) {
  return `${number(count)} ${thing}${count === 1 ? '' : 's'}`;
}
