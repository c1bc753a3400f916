//! Crashes: whatever one takes, opening gives what the durability promised, or says why not.

mod beginnings;
mod cuts;
mod lives;
mod order;
mod simulator;
mod stories;

use std::sync::atomic::{AtomicU64, Ordering};

use simulator::Files;

/// How many seeds a normal run takes.
const SEEDS: u64 = 200;

/// How many of them over real files.
const MAPPED_SEEDS: u64 = 40;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}

/// `FOLDLOG_CRASH_SEED=n` runs that seed alone and tells each step; `FOLDLOG_CRASH_SEEDS=count` runs so many.
#[test]
fn nothing_promised_is_lost_and_nothing_else_is_invented_whenever_the_power_or_the_process_goes() {
    if let Some(seed) = number_from("FOLDLOG_CRASH_SEED") {
        simulator::run(seed, Files::InMemory, true);
        return;
    }
    run_all(number_from("FOLDLOG_CRASH_SEEDS").unwrap_or(SEEDS), Files::InMemory);
}

/// Seeds that found what others seldom find; as long as the simulator draws as it did, they come the same way again.
///
/// 6775: an image named a frame in front of those that attest it, and a scan from it did not know that the segments before it were compacted:
/// a power cut took the attesting frames, and what had lost its bodies was written anew as if it had never been attested.
/// 12281: a decision to run a call again goes with a rollback to before that call, as the engine says and the model did not.
/// 51366: a compaction went through a record whose payload the power had taken, where a segment had been begun behind it. It made that
/// record one that counts, and the log could not be opened any more.
/// 149632: a collection removed what was in the directory of a session whose deletion had failed before its new name was durable. A power cut
/// gave the session its name back, and it was damaged.
/// 199686: an image named the frame that attests a close, which no sync covers. A power cut took the page on which a frame before it began,
/// and not the next one: the log was opened behind a hole, and what was written there could not be read.
/// 173132: a call that had been interrupted twice was run again although the session had gone back to before it since that was decided.
/// 206856: a session was to rest, and the sync of the frame that attests its last record failed. Whoever went on behind that frame synced it
/// once more, which writes nothing, and a power cut took it.
/// 296446: a fork linked a segment that a recovery had made, and a power cut gave its parent the temporary name of that segment back. The next
/// recovery built its own segment in it, and the fork's was overwritten.
#[test]
fn what_single_seeds_found_stays_mended() {
    for seed in [6_775, 12_281, 51_366, 149_632, 173_132, 199_686, 206_856, 296_446] {
        simulator::run(seed, Files::InMemory, false);
    }
}

/// What the first test does, over real files through the mapped backend: what a power cut leaves is cut from them, of the pages that a
/// sync had covered and some of the others. `FOLDLOG_CRASH_MAPPED_SEED` and `FOLDLOG_CRASH_MAPPED_SEEDS` as above.
#[test]
fn any_image_that_is_cut_from_the_files_of_a_mapped_run_holds_what_was_promised() {
    if let Some(seed) = number_from("FOLDLOG_CRASH_MAPPED_SEED") {
        simulator::run(seed, Files::Mapped, true);
        return;
    }
    run_all(number_from("FOLDLOG_CRASH_MAPPED_SEEDS").unwrap_or(MAPPED_SEEDS), Files::Mapped);
}

/// Runs so many seeds on all cores, from `FOLDLOG_CRASH_FIRST` on.
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
