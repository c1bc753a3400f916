//! Processes many items in several threads.

use crate::error::Result;

const THREADS_MAX: usize = 4;

/// Fewer items are processed by one thread.
const IN_PARALLEL_MIN: usize = 32;

/// Applies a function to each item, in several threads if there are enough items.
pub(super) fn in_parallel<T: Sync, U: Send>(
    items: &[T],
    each: &(dyn Fn(&T) -> Result<U> + Sync),
) -> Result<Vec<U>> {
    let threads = if items.len() < IN_PARALLEL_MIN { 1 } else { threads() };
    let mut parts = items.chunks(items.len().div_ceil(threads).max(1));
    let first = parts.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let others: Vec<_> =
            parts.map(|part| scope.spawn(|| part.iter().map(each).collect::<Result<Vec<U>>>())).collect();
        let mut done = first.iter().map(each).collect::<Result<Vec<U>>>();
        for other in others {
            let other = match other.join() {
                Ok(other) => other,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            done = done.and_then(|mut done| {
                done.extend(other?);
                Ok(done)
            });
        }
        done
    })
}

pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(2, THREADS_MAX)
}
