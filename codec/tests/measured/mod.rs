//! Measures by how many bytes an operation exceeds its memory bound.

use std::alloc::System;
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cap::Cap;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Keeps the other tests of this binary from allocating while one of them measures.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A panicking test leaves no state that affects the others.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of bytes that a decoder may allocate for an input of this length.
pub(crate) fn bound(input: usize) -> usize {
    64 * input + (1 << 20)
}

/// Runs `work` and returns by how many bytes the peak of the heap exceeded `bound`, or 0.
///
/// The test harness prints from a thread of its own, which allocates now and then. So the smallest
/// excess of three runs counts, and one run without excess is enough.
pub(crate) fn excess(bound: usize, work: impl Fn()) -> usize {
    let mut least = usize::MAX;
    for _ in 0..3 {
        least = least.min(excess_once(bound, &work));
        if least == 0 {
            break;
        }
    }
    least
}

/// Runs `work` once and returns its excess over `bound`.
///
/// The allocator's high-water mark never decreases. So untouched ballast, no page of which is ever
/// mapped, raises the allocated bytes to `bound` below the mark. The mark then moves by exactly the
/// excess.
pub(crate) fn excess_once(bound: usize, work: impl Fn()) -> usize {
    if HEAP.max_allocated() - HEAP.allocated() < bound {
        drop(black_box(Vec::<u8>::with_capacity(bound)));
    }
    let headroom = HEAP.max_allocated() - HEAP.allocated();
    let ballast = black_box(Vec::<u8>::with_capacity(headroom.saturating_sub(bound)));
    let mark = HEAP.max_allocated();
    work();
    drop(ballast);
    HEAP.max_allocated() - mark
}

/// Drops a decoded value only after the optimizer has to assume that it was used, so that its
/// memory counts.
pub(crate) fn take<T>(decoded: T) {
    drop(black_box(decoded));
}
