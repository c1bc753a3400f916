//! Crashes: after any loss, opening returns all that the durability promised, or an error that
//! explains why not.

mod beginnings;
mod cuts;
mod lives;
mod order;
mod simulator;
mod stories;

use std::sync::atomic::{AtomicU64, Ordering};

use simulator::Files;

/// Seeds in a normal run.
const SEEDS: u64 = 200;

/// Seeds over real files in a normal run.
const MAPPED_SEEDS: u64 = 40;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}

/// `FOLDLOG_CRASH_SEED=n` runs that seed alone and prints each step; `FOLDLOG_CRASH_SEEDS=count`
/// sets the number of seeds.
#[test]
fn nothing_promised_is_lost_and_nothing_else_is_invented_whenever_the_power_or_the_process_goes() {
    if let Some(seed) = number_from("FOLDLOG_CRASH_SEED") {
        simulator::run(seed, Files::InMemory, true);
        return;
    }
    run_all(number_from("FOLDLOG_CRASH_SEEDS").unwrap_or(SEEDS), Files::InMemory);
}

/// Seeds that found rare faults. They reproduce these as long as the simulator draws in the same
/// order.
///
/// - 6775: an image named a frame before the frames that attest it. A scan from there did not know
///   that earlier segments were compacted. A power cut took the attesting frames, and records whose
///   bodies had been dropped were rewritten as if they had never been attested.
/// - 12281: a decision to run a call again is undone by a rollback to before that call. The engine
///   did so, and the model did not.
/// - 51366: a compaction covered a record whose payload the power cut had taken, and after which a
///   segment had been started. It made that record count, and the log could no longer be opened.
/// - 149632: a collection removed the files of a session whose deletion had failed before its new
///   name was durable. A power cut gave the session its name back, and it was damaged.
/// - 199686: an image named the frame that attests a close, which no sync covers. A power cut took
///   the page on which an earlier frame began, and not the next page: the log was opened after a
///   hole, and later records could not be read.
/// - 173132: a call that had been interrupted twice was run again, although the session had gone
///   back to before the call since that decision.
/// - 206856: while a session came to rest, the sync of the frame that attests its last record
///   failed. The next writer synced that frame again, which writes nothing, and a power cut took
///   it.
/// - 296446: a fork linked a segment that a recovery had made, and a power cut gave the parent's
///   segment its temporary name back. The next recovery built its own segment in that file and
///   overwrote the fork's.
#[test]
fn what_single_seeds_found_stays_mended() {
    for seed in [6_775, 12_281, 51_366, 149_632, 173_132, 199_686, 206_856, 296_446] {
        simulator::run(seed, Files::InMemory, false);
    }
}

/// Like the first test, over real files through the mapped backend. A power cut keeps the pages
/// that a sync had covered and some of the others. `FOLDLOG_CRASH_MAPPED_SEED` and
/// `FOLDLOG_CRASH_MAPPED_SEEDS` work as above.
#[test]
fn any_image_that_is_cut_from_the_files_of_a_mapped_run_holds_what_was_promised() {
    if let Some(seed) = number_from("FOLDLOG_CRASH_MAPPED_SEED") {
        simulator::run(seed, Files::Mapped, true);
        return;
    }
    run_all(number_from("FOLDLOG_CRASH_MAPPED_SEEDS").unwrap_or(MAPPED_SEEDS), Files::Mapped);
}

/// Runs this many seeds on all cores, starting with `FOLDLOG_CRASH_FIRST`.
fn run_all(seeds: u64, files: Files) {
    let first = number_from("FOLDLOG_CRASH_FIRST").unwrap_or(0);
    let next = AtomicU64::new(first);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    simulator::run(seed, files, false);
                }
            });
        }
    });
}
