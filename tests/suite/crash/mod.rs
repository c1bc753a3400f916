//! Law 5: whatever a crash takes, opening gives what the levels promised, or says why not.

mod cuts;
mod simulator;
mod stories;

use std::sync::atomic::{AtomicU64, Ordering};

/// How many seeds a normal run takes.
const SEEDS: u64 = 200;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}

/// `FOLDLOG_CRASH_SEED=n` runs that seed alone and tells each step; `FOLDLOG_CRASH_SEEDS=count` runs so many.
#[test]
fn nothing_promised_is_lost_and_nothing_else_is_invented_whenever_the_power_or_the_process_goes() {
    if let Some(seed) = number_from("FOLDLOG_CRASH_SEED") {
        simulator::run(seed, true);
        return;
    }
    let seeds = number_from("FOLDLOG_CRASH_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    simulator::run(seed, false);
                }
            });
        }
    });
}
