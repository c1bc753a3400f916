//! The system's time, extrapolated by the processor's counter.
//!
//! Reading the system's clock takes a quarter of the time of an append; reading the counter takes a
//! third of that. So each thread stores its last reading of both, its *anchor*. For a millisecond,
//! the time is the anchor plus the ticks that the counter has counted since. Then the system's
//! clock is read again.
//!
//! # Invariants
//!
//! 1. An anchor is used for at most [`CARRIED_NS_MAX`]. If the system's clock is set, or a machine
//!    sleeps while its counter is stopped, readings show that a millisecond later. If two
//!    processors' counters differ or a counter is set back, readings are wrong by no more than
//!    that. With correct counters, the difference from the system's clock is below a microsecond.
//! 2. An anchor's two readings are at most [`ANCHOR_NS_MAX`] apart; a thread that was interrupted
//!    between them has no anchor.
//! 3. A thread's readings go back only if the system's clock is set back, or its processors'
//!    counters differ: the counter is read after the system's clock, so that an extrapolated
//!    reading is late rather than early.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// Time for which an anchor is valid, in nanoseconds.
const CARRIED_NS_MAX: u64 = 1_000_000;

/// Maximum distance between the two readings of an anchor, in nanoseconds.
const ANCHOR_NS_MAX: u64 = 1_000;

/// Number of readings of each, to compare their times.
const TRIALS: u32 = 1_000;

/// The counter, once it is measured; `None` inside if reading it is not worthwhile.
static COUNTER: OnceLock<Option<Counter>> = OnceLock::new();

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor { ticks: 0, system_ns: 0, ticks_max: 0 }) };
}

/// Measures the rate of the counter, once in a process. This takes a millisecond, at worst a fifth
/// of a second. Until then every reading comes from the system's clock.
pub(crate) fn learn() {
    COUNTER.get_or_init(Counter::learn);
}

/// Returns whether [`learn`] was called.
pub(crate) fn is_learnt() -> bool {
    COUNTER.get().is_some()
}

/// Returns nanoseconds since 1970: an extrapolated anchor, or else the result of `system_ns`.
pub(super) fn now_ns(system_ns: impl FnOnce() -> Option<u64>) -> Option<u64> {
    let Some(Some(counter)) = COUNTER.get() else { return system_ns() };
    let (anchor, ticks) = (ANCHOR.get(), counter.ticks.raw());
    if let Some(ns) = anchor.carried_on(ticks, counter.rate) {
        return Some(ns);
    }
    let system_ns = system_ns()?;
    ANCHOR.set(Anchor::new(ticks, system_ns, counter.ticks.raw(), counter.rate));
    Some(system_ns)
}

#[derive(Debug)]
struct Counter {
    ticks: quanta::Clock,
    rate: Rate,
}

impl Counter {
    /// Finds the counter and its rate. `None` if reading the counter is not at least twice as fast
    /// as reading the system's clock.
    fn learn() -> Option<Counter> {
        let ticks = quanta::Clock::new();
        let rate = Rate { ns_per_4g_ticks: ticks.delta_as_nanos(0, 1 << 32) };
        let took = |read: &dyn Fn() -> u64| {
            let start = Instant::now();
            for _ in 0..TRIALS {
                black_box(read());
            }
            start.elapsed()
        };
        let (counting, asking) = (took(&|| ticks.raw()), took(&|| super::system_ns().unwrap_or_default()));
        (rate.ns_per_4g_ticks > 0 && counting * 2 <= asking).then_some(Counter { ticks, rate })
    }
}

/// Rate of a counter, as the nanoseconds that 2^32 of its ticks take.
#[derive(Clone, Copy, Debug)]
struct Rate {
    ns_per_4g_ticks: u64,
}

impl Rate {
    /// Returns the ticks in `ns` nanoseconds, rounded down.
    fn ticks(self, ns: u64) -> u64 {
        (ns << 32).checked_div(self.ns_per_4g_ticks).unwrap_or(0)
    }

    /// Returns the nanoseconds in `ticks`, rounded down. They must be at most [`CARRIED_NS_MAX`].
    fn ns(self, ticks: u64) -> u64 {
        ticks.saturating_mul(self.ns_per_4g_ticks) >> 32
    }
}

/// The reading of the system's clock when the counter was at `ticks`.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    ticks: u64,
    system_ns: u64,
    /// Number of ticks for which the anchor is valid.
    ticks_max: u64,
}

impl Anchor {
    /// Creates the anchor from a reading of the system's clock between two readings of the counter.
    fn new(before: u64, system_ns: u64, after: u64, rate: Rate) -> Anchor {
        let apart = after.wrapping_sub(before);
        let ticks_max = if apart <= rate.ticks(ANCHOR_NS_MAX) { rate.ticks(CARRIED_NS_MAX) } else { 0 };
        Anchor { ticks: after, system_ns, ticks_max }
    }

    /// Returns the time at a later reading of the counter, `None` if the anchor is no longer valid.
    fn carried_on(self, ticks: u64, rate: Rate) -> Option<u64> {
        // For a counter that was set back, the difference wraps around, and is greater than any
        // anchor allows.
        let since = ticks.wrapping_sub(self.ticks);
        (since < self.ticks_max).then(|| self.system_ns.saturating_add(rate.ns(since)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Clock, SystemClock};

    /// Counters from that of an old ARM processor, 1 MHz, to one of 5 GHz.
    fn rates() -> impl Strategy<Value = Rate> {
        (1_000_000u64..5_000_000_000)
            .prop_map(|hz| Rate { ns_per_4g_ticks: ((1_000_000_000u128 << 32) / u128::from(hz)) as u64 })
    }

    proptest! {
        /// For any anchor and any later reading of the counter, the time is that of the anchor plus
        /// the ticks since then, or none. It is never more than a millisecond later.
        #[test]
        fn an_anchor_is_carried_on_for_a_millisecond_and_no_further(
            rate in rates(),
            before: u64,
            apart in prop_oneof![0u64..5_000, any::<u64>()],
            since in prop_oneof![0u64..10_000_000, any::<u64>()],
            system_ns in 0u64..4_000_000_000_000_000_000,
        ) {
            let after = before.wrapping_add(apart);
            let anchor = Anchor::new(before, system_ns, after, rate);
            let true_ns = |ticks: u64| (u128::from(ticks) * u128::from(rate.ns_per_4g_ticks)) >> 32;
            match anchor.carried_on(after.wrapping_add(since), rate) {
                Some(ns) => {
                    prop_assert!(true_ns(apart) <= u128::from(ANCHOR_NS_MAX));
                    prop_assert!(true_ns(since) < u128::from(CARRIED_NS_MAX));
                    prop_assert_eq!(u128::from(ns - system_ns), true_ns(since));
                }
                None => prop_assert!(
                    true_ns(apart) + 1 + true_ns(1) >= u128::from(ANCHOR_NS_MAX)
                        || true_ns(since) + 1 + true_ns(1) >= u128::from(CARRIED_NS_MAX)
                ),
            }
        }
    }

    /// Independent of whether this machine's counter is used.
    #[test]
    fn what_a_clock_says_is_what_the_system_says() {
        learn();
        let system_us = || crate::clock::system_ns().unwrap() / 1_000;
        for _ in 0..50_000 {
            let before_us = system_us();
            let said_us = SystemClock.now_us().unsigned_abs();
            let after_us = system_us();
            assert!(before_us <= said_us + 2 && said_us <= after_us + 2, "{before_us} {said_us} {after_us}");
        }
    }

    #[test]
    fn a_counter_that_was_set_back_is_not_believed() {
        let rate = Rate { ns_per_4g_ticks: 1 << 32 };
        let anchor = Anchor::new(1_000_000, 5_000, 1_000_100, rate);
        assert_eq!(anchor.carried_on(1_000_200, rate), Some(5_100));
        assert_eq!(anchor.carried_on(1_000_099, rate), None);
        assert_eq!(anchor.carried_on(0, rate), None);
    }
}
