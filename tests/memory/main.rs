//! Memory limits of open sessions and of arbitrary input. This is a separate binary, since its
//! allocator counts for the whole process; each test holds [`alone`] while it measures.

// All functions below are tests, or are only called by tests.
#![allow(clippy::unwrap_used)]

mod any_bytes;
mod replays;
mod verbs;

use std::alloc::System;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cap::Cap;
use foldlog::inspect::LogReader;
use foldlog::{Durability, Policy, SessionTypes, Store, StoreOptions};
use foldlog_test_support::host::{Noted, Notes};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

static MEASUREMENT: RwLock<()> = RwLock::new(());

/// Prevents the other tests of this binary from allocating during a measurement.
fn alone() -> RwLockWriteGuard<'static, ()> {
    // A failed test leaves nothing that matters to the others.
    MEASUREMENT.write().unwrap_or_else(PoisonError::into_inner)
}

/// Permits to allocate outside of measurements in this process.
fn together() -> RwLockReadGuard<'static, ()> {
    MEASUREMENT.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many bytes an open session with this many notes takes, after they were written and
/// after it was opened again.
fn held(notes: u64) -> (usize, usize) {
    let types =
        SessionTypes::builder().slice_with::<Notes>(Policy::Log).append_all::<Notes>().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let before = HEAP.allocated();
    let session = store.create(&types).unwrap();
    let id = session.id();
    for n in 0..notes {
        session.dispatch(Noted { text: format!("{n:06} {}", "x".repeat(193)) }).unwrap();
    }
    assert_eq!(session.log().slice::<Notes>().unwrap().len(), notes);
    let written = HEAP.allocated().saturating_sub(before);
    session.close().unwrap();
    let session = store.open_session(id, &types).unwrap();
    let log = session.log().slice::<Notes>().unwrap();
    assert!(log.get(notes / 2).unwrap().unwrap().text.starts_with(&format!("{:06}", notes / 2)));
    drop(log);
    (written, HEAP.allocated().saturating_sub(before))
}

/// The limit per item, in addition to the memory of every session, is a hundredth of the item's
/// size. A LOG slice may be far longer than memory allows: each 256 items take a mark of 16 bytes,
/// and the log's records some places.
#[test]
fn a_session_does_not_grow_with_its_log_items() {
    let _alone = alone();
    let (few, many) = (held(2_000), held(200_000));
    let bound = |few: usize| 2 * few + (256 << 10);
    assert!(many.0 <= bound(few.0), "written: {} bytes of 2,000 items, {} of 200,000", few.0, many.0);
    assert!(many.1 <= bound(few.1), "opened: {} bytes of 2,000 items, {} of 200,000", few.1, many.1);
}

/// Payloads that are objects remained in memory for as long as their reader, once read.
#[test]
fn a_reader_holds_no_payloads_of_dropped_states() {
    let _alone = alone();
    let types =
        SessionTypes::builder().slice_with::<Notes>(Policy::State).replace_latest::<Notes>().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    let session = Store::open_with(directory.path(), options).unwrap().create(&types).unwrap();
    const PAYLOAD_BYTES: usize = 500_000;
    let positions: Vec<_> = (0..40)
        .map(|n| session.dispatch(Noted { text: format!("{n} {}", "x".repeat(PAYLOAD_BYTES)) }).unwrap())
        .collect();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let log = LogReader::open(dir).unwrap();
    let before = HEAP.allocated();
    for position in positions {
        assert_eq!(log.state_at(position).unwrap().items::<Notes>(&types).unwrap().len(), 1);
    }
    let held = HEAP.allocated().saturating_sub(before);
    assert!(held < 3 * PAYLOAD_BYTES, "{held} bytes are held");
}
