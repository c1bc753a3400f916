//! Runs thousands of seeded schedules of two to eight writers over a store that fails in every
//! possible way.

use std::collections::BTreeMap;

use crate::sim::world::schedule;

/// Returns the number of schedules: `FOLDLOG_REMOTE_SEEDS`, or enough for every gate.
fn seeds() -> u64 {
    std::env::var("FOLDLOG_REMOTE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(4_000)
}

/// Runs schedules, and checks that each of these outcomes occurred often enough.
fn run(seeds: u64, collects: bool, happened: &[&str]) -> (u64, u64) {
    let (mut outcomes, mut faults) = (BTreeMap::new(), BTreeMap::new());
    let (mut records, mut revived, mut volumes) = (0, 0, 0);
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(|| schedule(seed, collects));
        let outcome = outcome.unwrap_or_else(|_| panic!("seed {seed}"));
        outcome.outcomes.iter().for_each(|(what, count)| *outcomes.entry(*what).or_insert(0) += count);
        outcome.faults.iter().for_each(|(what, count)| *faults.entry(*what).or_insert(0) += count);
        records += outcome.bodies.len();
        revived += outcome.revived;
        volumes += outcome.volumes;
    }
    println!(
        "{seeds} schedules, {records} records, {volumes} volumes, {revived} revived: {outcomes:?}, {faults:?}"
    );
    // A schedule without events shows nothing.
    for what in happened {
        assert!(outcomes.get(what).is_some_and(|count| *count >= seeds / 100), "{what}: {outcomes:?}");
    }
    assert_eq!(faults.len(), 9, "{faults:?}");
    (revived, volumes)
}

const HAPPENED: [&str; 9] = [
    "claimed",
    "lost the claim",
    "claim unknown",
    "could not read",
    "acknowledged",
    "unknown",
    "fenced",
    "gave up",
    "gave up waiting",
];

#[test]
fn writers_over_a_failing_store_never_fork_or_lose_what_was_acknowledged() {
    run(seeds(), false, &HAPPENED);
}

#[test]
fn writers_that_are_paused_until_their_chunks_are_collected_never_fork_or_lose_what_was_acknowledged() {
    let happened = [&HAPPENED[..], &["collected", "nothing to collect", "could not collect"]].concat();
    let (revived, volumes) = run(seeds() / 2, true, &happened);
    assert!(revived >= seeds() / 100 && volumes >= seeds(), "{revived} chunks were put once more, {volumes}");
}

#[test]
fn a_seed_gives_the_same_schedule_each_time() {
    for seed in [3, 7, 50, 51] {
        for collects in [false, true] {
            assert_eq!(schedule(seed, collects).trace, schedule(seed, collects).trace, "{seed}");
        }
    }
}
