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
        let first = first.iter().map(each).collect();
        let all = std::iter::once(first).chain(others.into_iter().map(join_thread));
        Ok(all.collect::<Result<Vec<Vec<U>>>>()?.into_iter().flatten().collect())
    })
}

/// Waits for the result of a thread, and passes its panic on.
pub(super) fn join_thread<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(2, THREADS_MAX)
}
