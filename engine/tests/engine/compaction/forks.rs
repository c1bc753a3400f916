//! Forks of compacted sessions, compactions of forks, and their effects on each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::{
    CompactOptions, Durability, Error, SequenceNumber, SessionOptions, SnapshotOptions, State, Store,
    StoreOptions,
};
use foldlog_test_support::Watched;
use foldlog_test_support::crash::{BOOT, Machine, count, step};
use foldlog_test_support::host::types;
use foldlog_test_support::workload::write_lines;
use uuid::Uuid;

use super::{compact, tagged, written};

fn states(machine: &Machine, id: Uuid) -> BTreeMap<SequenceNumber, State> {
    let reader = machine.audit(id).unwrap();
    let all = (0..reader.records_len()).map(SequenceNumber::from);
    all.map(|at| (at, reader.state_at(at).unwrap())).collect()
}

#[test]
fn a_fork_that_was_made_before_has_all_that_it_shares() {
    let (machine, id) = written();
    let store = machine.process(Durability::Boundary);
    let at = machine.audit(id).unwrap().last_position();
    let fork = store.fork(id, at, &types(), SessionOptions::default()).unwrap();
    let fork = (fork.id(), fork.close().unwrap()).0;
    let states = states(&machine, fork);
    assert!(store.compact(id, &CompactOptions::default()).unwrap().dropped > 0);
    assert!(states == self::states(&machine, fork), "each of its positions is as it was");
    // The fork can be compacted on its own, and reports it.
    let report = store.compact(fork, &CompactOptions::default()).unwrap();
    assert!(report.dropped > 0);
    assert_eq!(machine.audit(fork).unwrap().state().unwrap().slices, states[&at].slices);
}

/// A fork at a kept position has the head of its parent's segment, with the parent's later slices.
/// After the fork was compacted too, these were taken for the fork's own.
#[test]
fn a_fork_of_a_compacted_session_is_compacted_for_itself() {
    let (machine, id) = written();
    compact(&machine, id).unwrap();
    let store = machine.process(Durability::Boundary);
    let kept = tagged(&machine.audit(id).unwrap());
    let fork = store.fork(id, kept, &types(), SessionOptions::default()).unwrap();
    let id = fork.id();
    write_lines(&fork, 60);
    fork.snapshot(SnapshotOptions::with_tag("of the fork")).unwrap();
    write_lines(&fork, 20);
    fork.close().unwrap();
    let before: BTreeMap<_, _> = {
        let reader = machine.audit(id).unwrap();
        let own = (kept.get() + 1..reader.records_len()).map(SequenceNumber::from);
        own.map(|at| (at, reader.state_at(at).unwrap())).collect()
    };
    let report = compact(&machine, id).unwrap();
    assert!(report.dropped > 40, "{report:?}");
    let reader = machine.audit(id).unwrap();
    let mut known = 0;
    for (at, then) in &before {
        match reader.state_at(*at) {
            Ok(now) => {
                assert_eq!(now, *then, "at {at}");
                known += 1;
            }
            Err(error) => assert!(matches!(error, Error::Compacted { .. }), "{error}"),
        }
    }
    assert!(known >= 2 && known < before.len(), "{known}");
}

/// A fork was killed just after it got its name, then compacted and recovered. The recovery named
/// the end of the shared part by the compacted bytes, but the fork's first record names its
/// parent's. The fork could not be opened any more.
#[test]
fn a_fork_that_was_compacted_is_recovered_behind_what_it_shares() {
    let (whole, parent) = written();
    let at = whole.audit(parent).unwrap().last_position();
    let id = Uuid::from_u128(9);
    let mut compacted = 0;
    for nth in 1.. {
        let machine = whole.copied(BOOT);
        let store = machine.process(Durability::Process);
        machine.disk.inject(Fault::Die { nth, bytes: 20 });
        let options = SessionOptions { id: Some(id), ..SessionOptions::default() };
        let forked = store.fork(parent, at, &types(), options);
        machine.disk.clear_faults();
        machine.crash(CrashKind::Process);
        let is_done = forked.is_ok();
        if let Ok(report) = compact(&machine, id) {
            assert!(report.dropped > 0);
            machine.crash(CrashKind::PowerLosingAll);
            let session = machine.open(id, Durability::Process).unwrap();
            session.dispatch(step(1)).unwrap();
            let state = session.dynamic().state().unwrap();
            machine.crash(CrashKind::Process);
            let again =
                machine.open(id, Durability::Process).unwrap_or_else(|error| panic!("{nth}: {error}"));
            assert_eq!(again.dynamic().state().unwrap(), state);
            again.dispatch(step(2)).unwrap();
            let all = count(&again);
            again.close().unwrap();
            assert_eq!(count(&machine.open(id, Durability::Process).unwrap()), all);
            compacted += 1;
        }
        if is_done {
            break;
        }
    }
    assert!(compacted > 2, "it was killed before it had a name, and behind that: {compacted}");
}

/// A fork reads its parent, and then links the parent's files. If another process compacted the
/// parent in between, the fork linked the compacted files, and looked for records at their old
/// offsets.
#[test]
fn a_fork_that_is_made_while_its_parent_is_compacted_is_whole() {
    let (machine, parent) = written();
    let (last, kept) = {
        let reader = machine.audit(parent).unwrap();
        (reader.last_position(), tagged(&reader))
    };
    for at in [kept, last] {
        let machine = machine.copied(BOOT);
        let expected = machine.audit(parent).unwrap().state_at(at).unwrap().slices;
        // Another process compacts the parent just before the first of its files gets a second
        // name.
        let (elsewhere, is_done) = (machine.clone(), AtomicBool::new(false));
        let disk = Watched::new(machine.disk.process(), move |op, _| {
            if op == Op::HardLink && !is_done.swap(true, Ordering::SeqCst) {
                assert!(compact(&elsewhere, parent).unwrap().dropped > 0);
            }
        });
        let options = StoreOptions { storage: Arc::new(disk), ..machine.options(Durability::Boundary) };
        let store = Store::open_with("/home/store", options).unwrap();
        let fork = store.fork(parent, at, &types(), SessionOptions::default()).unwrap();
        fork.dispatch(step(1)).unwrap();
        let (id, state) = (fork.id(), fork.dynamic().state().unwrap());
        fork.close().unwrap();
        let audit = machine.audit(id).unwrap();
        assert_eq!(audit.state().unwrap(), state, "forked at {at}");
        assert_eq!(audit.state_at(at).unwrap().slices, expected, "forked at {at}");
        assert!(!audit.compacted_ranges().is_empty(), "it has what is there now");
    }
}
