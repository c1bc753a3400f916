//! Waiting for a program.

use std::time::{Duration, Instant};

/// Longest time for a step of a program, such as a start or an answer.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_met() {
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
