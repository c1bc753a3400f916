//! Many threads on one session.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::{BackgroundSync, Durability, SnapshotOptions, Store, StoreOptions};
use foldlog_test_support::host::*;

use super::{home_with, kinds, part};

const THREADS: u8 = 8;
const EACH: u64 = 50;

#[test]
fn no_record_is_lost_and_each_is_durable_when_its_call_returns() {
    let home = home_with(|options| options.durability = Durability::Every);
    let session = home.session();
    let (told, early) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counts, counts_early, looks) = (Arc::clone(&told), Arc::clone(&early), session.clone());
    session.log().subscribe(move |notice| {
        // On any thread, notices are delivered in order, once each, and not before their record is
        // durable.
        let expected = counts.fetch_add(1, Ordering::Relaxed) + 1;
        if notice.sequence() != expected || looks.log().synced_end() <= notice.sequence() {
            counts_early.fetch_add(1, Ordering::Relaxed);
        }
    });
    home.disk.take_trace();
    std::thread::scope(|scope| {
        for of in 0..THREADS {
            let session = &session;
            scope.spawn(move || {
                let mut last = 0;
                for n in 0..EACH {
                    let sequence = session.dispatch(part(&n.to_string(), of)).unwrap();
                    assert!(sequence > last.into() && sequence < session.log().synced_end());
                    last = sequence.get();
                    // Readers run concurrently and see at least the writes of their own thread.
                    let view = session.view::<Plan>().unwrap();
                    assert_eq!(view.iter().filter(|step| step.part == of).count() as u64, n + 1);
                }
            });
        }
    });
    let syncs = home.disk.take_trace().into_iter().filter(|(op, _)| *op == Op::SyncData).count() as u64;
    let records = u64::from(THREADS) * EACH;
    assert!(syncs <= records + 32, "at most one sync a record ({syncs})");
    assert_eq!(told.load(Ordering::Relaxed), records + 1, "the declaration and each record");
    assert_eq!(early.load(Ordering::Relaxed), 0);
    let again = home.reopened(session, &types());
    let plan = again.view::<Plan>().unwrap();
    assert_eq!(plan.len(), records);
    for of in 0..THREADS {
        let titles: Vec<&str> = plan.iter().filter(|s| s.part == of).map(|s| s.title.as_str()).collect();
        let expected: Vec<String> = (0..EACH).map(|n| n.to_string()).collect();
        assert_eq!(titles, expected, "each thread's records stand in its order");
    }
    assert_eq!(kinds(&again).len() as u64, records + 2, "and there are no others");
}

/// On a real disk a sync takes long enough for others to wait for it.
#[test]
fn one_sync_serves_all_who_wait() {
    let directory = tempfile::tempdir().unwrap();
    let options = foldlog::StoreOptions { durability: Durability::Every, ..foldlog::StoreOptions::default() };
    let store = foldlog::Store::open_with(directory.path(), options).unwrap();
    let session = store.create(&types()).unwrap();
    let acknowledged = AtomicU64::new(0);
    let marks = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for of in 0..THREADS {
            let (session, acknowledged, marks) = (&session, &acknowledged, &marks);
            scope.spawn(move || {
                for _ in 0..EACH {
                    session.dispatch(part("", of)).unwrap();
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                    marks.lock().unwrap().insert(session.log().synced_end());
                }
            });
        }
    });
    let records = acknowledged.load(Ordering::Relaxed);
    assert_eq!(records, u64::from(THREADS) * EACH);
    // Each sync raises the mark once, so there are at most as many marks as syncs.
    let syncs = marks.lock().unwrap().len() as u64;
    assert!(syncs < records, "{syncs} syncs for {records} records");
    let id = session.id();
    session.close().unwrap();
    assert_eq!(store.open_session(id, &types()).unwrap().view::<Plan>().unwrap().len(), records);
}

#[test]
fn rollbacks_forks_and_readers_may_come_from_anywhere() {
    let home = home_with(|options| options.background = BackgroundSync::Thread);
    let session = home.session();
    session.dispatch(part("first", 0)).unwrap();
    let first = session.snapshot(SnapshotOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for of in 0..4 {
            let session = &session;
            scope.spawn(move || {
                for _ in 0..EACH {
                    session.dispatch(part("", of)).unwrap();
                    session.dispatch(Noted { text: String::new() }).unwrap();
                }
            });
        }
        let (session, first, store) = (&session, &first, &home.store);
        scope.spawn(move || {
            for _ in 0..20 {
                session.rollback(first).unwrap();
                let at = session.log().position().unwrap();
                let fork = store.fork(session.id(), at, &types(), Default::default()).unwrap();
                assert_eq!(
                    fork.dynamic().state().unwrap().slices,
                    session.dynamic().state_at(at).unwrap().slices
                );
            }
        });
        scope.spawn(move || {
            for _ in 0..20 {
                let reader = store.open_read_only(session.id(), &types()).unwrap();
                let position = reader.log().position().unwrap();
                assert_eq!(reader.dynamic().state().unwrap(), session.dynamic().state_at(position).unwrap());
            }
        });
    });
    assert_eq!(session.log().slice::<Notes>().unwrap().len(), 4 * EACH, "LOG lost nothing");
    let live = session.dynamic().state().unwrap();
    assert_eq!(home.reopened(session, &types()).dynamic().state().unwrap(), live);
}

#[test]
fn a_background_sync_needs_no_call_to_wait_for_it() {
    let home = home_with(|options| {
        options.durability = Durability::Process;
        options.background = BackgroundSync::Thread;
        options.clock = Arc::new(foldlog::SystemClock);
    });
    let session = home.session();
    session.dispatch(part("", 0)).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while session.log().synced_end() < 3.into() {
        assert!(std::time::Instant::now() < deadline, "about a second was promised");
        std::thread::yield_now();
    }
}

/// Threads checked whether the log was poisoned before they took the writer's lock. Those that
/// waited while another's write failed wrote all the same, over its leftovers.
#[test]
fn nothing_is_written_after_a_failed_write_by_whoever_waited_meanwhile() {
    for durability in [Durability::Process, Durability::Every] {
        let home = home_with(|options| options.durability = durability);
        let session = home.session();
        session.dispatch(part("", 0)).unwrap();
        home.disk.take_trace();
        let fault = Fault::FailNth { op: Op::Write, nth: 40, error: std::io::ErrorKind::Other };
        home.disk.inject(fault);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| while session.dispatch(part("on", 0)).is_ok() {});
            }
        });
        let writes = home.disk.take_trace().into_iter().filter(|(op, _)| *op == Op::Write).count();
        assert_eq!(writes, 40, "the failed write was the last, at {durability:?}");
    }
}

/// When `sync` returns, the caller's records are on the disk, whichever thread did the work.
#[test]
fn a_sync_of_any_thread_returns_once_its_own_records_are_durable() {
    for background in [BackgroundSync::Inline, BackgroundSync::Thread] {
        let home = home_with(|options| {
            (options.durability, options.background) = (Durability::Process, background);
        });
        let session = home.session();
        home.disk.take_trace();
        std::thread::scope(|scope| {
            for of in 0..THREADS {
                let session = &session;
                scope.spawn(move || {
                    for n in 0..EACH {
                        let sequence = session.dispatch(part(&n.to_string(), of)).unwrap();
                        session.sync().unwrap();
                        assert!(session.log().synced_end() > sequence);
                        let again = session.log().synced_end();
                        session.sync().unwrap();
                        assert!(session.log().synced_end() >= again, "the mark never goes back");
                    }
                });
            }
        });
        let syncs = home.disk.take_trace().into_iter().filter(|(op, _)| *op == Op::SyncData).count() as u64;
        let records = u64::from(THREADS) * EACH;
        assert!(syncs <= records + 32, "nothing is synced for a call that finds all durable ({syncs})");
        // The power is cut, and nothing else had reached the disk.
        let id = session.id();
        home.disk.crash(CrashKind::PowerLosingAll);
        let options = StoreOptions { storage: Arc::new(home.disk.clone()), ..StoreOptions::default() };
        let again = Store::open_with("/store", options).unwrap().open_session(id, &types()).unwrap();
        assert_eq!(again.view::<Plan>().unwrap().len(), records);
    }
}
