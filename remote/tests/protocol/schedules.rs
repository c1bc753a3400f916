//! Thousands of seeded schedules of two to eight writers over a store that fails in every way it can.

use std::collections::BTreeMap;

use crate::sim::world::schedule;

/// Returns how many schedules to run: `FOLDLOG_REMOTE_SEEDS`, or enough for every gate.
fn seeds() -> u64 {
    std::env::var("FOLDLOG_REMOTE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(4_000)
}

#[test]
fn writers_over_a_failing_store_never_fork_or_lose_what_was_acknowledged() {
    let (mut outcomes, mut faults) = (BTreeMap::new(), BTreeMap::new());
    let mut records = 0;
    for seed in 0..seeds() {
        let outcome = std::panic::catch_unwind(|| schedule(seed)).unwrap_or_else(|_| panic!("seed {seed}"));
        outcome.outcomes.iter().for_each(|(what, count)| *outcomes.entry(*what).or_insert(0) += count);
        outcome.faults.iter().for_each(|(what, count)| *faults.entry(*what).or_insert(0) += count);
        records += outcome.records;
    }
    println!("{} schedules, {records} records: {outcomes:?}, {faults:?}", seeds());
    // A schedule in which nothing happens shows nothing.
    let happened = [
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
    for what in happened {
        assert!(outcomes.get(what).is_some_and(|count| *count >= seeds() / 100), "{what}: {outcomes:?}");
    }
    assert_eq!(faults.len(), 9, "{faults:?}");
}

#[test]
fn a_seed_gives_the_same_schedule_each_time() {
    for seed in [3, 7, 50, 51] {
        assert_eq!(schedule(seed).trace, schedule(seed).trace, "{seed}");
    }
}
