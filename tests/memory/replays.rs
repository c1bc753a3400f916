//! Memory limits of a host's replay.

use std::sync::Arc;

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::replay::Replay;
use foldlog::storage::FileStorage;
use foldlog::{Durability, Policy, Session, SessionTypes, Store, StoreOptions};
use foldlog_test_support::host::{Noted, Notes};

use super::{HEAP, alone};

/// Returns the peak number of bytes of a replay with this many notes, including the reader of the
/// log.
fn held_at_most(notes: u64) -> usize {
    let types =
        SessionTypes::builder().slice_with::<Notes>(Policy::Log).append_all::<Notes>().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    let session = Store::open_with(directory.path(), options).unwrap().create(&types).unwrap();
    let host = |session: &Session, seen: &mut dyn FnMut()| {
        for n in 0..notes {
            session.dispatch(Noted { text: format!("{n:06} {}", "x".repeat(193)) }).unwrap();
            if n % 50 == 0 {
                seen();
            }
        }
    };
    host(&session, &mut || ());
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let before = HEAP.allocated();
    let mut most = 0;
    let mut seen = || most = HEAP.allocated().saturating_sub(before).max(most);
    let options = ReadOptions { outline: true, ..ReadOptions::default() };
    let log = LogReader::open_with(Arc::new(FileStorage::new()), dir, options).unwrap();
    let report = Replay::new(&log, &types).run(|session| host(&session, &mut seen)).unwrap();
    assert_eq!(report.compared, notes);
    most
}

/// A replay keeps a few records ahead, and the memory of a session, without items of LOG slices.
/// Only a reader that reads more than the outline keeps the name of each item.
#[test]
fn a_replay_does_not_grow_with_its_log() {
    let _alone = alone();
    let few = held_at_most(1_000);
    // Allocations of other threads, such as one that ends a session of an earlier test, are counted
    // too. A replay that grows does so each time, so one good measurement suffices.
    let fits = (0..3).any(|_| {
        let many = held_at_most(100_000);
        println!("{few} bytes for 1,000 records, {many} for 100,000");
        many <= few + (128 << 10)
    });
    assert!(fits);
}
