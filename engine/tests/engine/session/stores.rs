//! A store and its sessions.

use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, Fault};
use foldlog::{Error, SessionOptions, SessionTypes, Snapshot, SnapshotOptions};
use foldlog_test_support::host::*;
use uuid::Uuid;

use super::{home, home_with, kinds, step, stored, titles};

#[test]
fn a_tree_of_sessions_is_walked_from_its_leaves() {
    let home = home();
    let child = |parent: Uuid| {
        let options = SessionOptions { parent: Some(parent), ..SessionOptions::default() };
        home.store.create_with(&types(), options).unwrap().id()
    };
    let root = home.session();
    root.dispatch(step("read")).unwrap();
    let (left, right) = (child(root.id()), child(root.id()));
    let leaf = child(left);
    let fork = home.store.fork(root.id(), 0, &types(), SessionOptions::default()).unwrap().id();
    let stranger = home.session().id();

    let walked: Vec<Uuid> =
        home.store.iter_sessions_bottom_up(root.id()).unwrap().map(|summary| summary.session).collect();

    assert_eq!(walked.len(), 5, "the stranger is not of the tree");
    let place = |id: Uuid| walked.iter().position(|walked| *walked == id).unwrap();
    assert!(place(leaf) < place(left) && place(left) < place(root.id()));
    assert!(place(right) < place(root.id()) && place(fork) < place(root.id()));
    let mut children = vec![left, right, fork];
    children.sort();
    assert_eq!(home.store.children(root.id()).unwrap(), children);
    assert!(home.store.children(stranger).unwrap().is_empty());
    let from_left: Vec<Uuid> =
        home.store.iter_sessions_bottom_up(left).unwrap().map(|summary| summary.session).collect();
    assert_eq!(from_left, [leaf, left]);
    let unknown = Uuid::from_u128(7);
    assert!(matches!(home.store.iter_sessions_bottom_up(unknown), Err(Error::NoSuchSession { .. })));
}

#[test]
fn a_listing_says_what_each_session_is() {
    let home = home();
    let options = SessionOptions::default().tag("task", "7");
    let session = home.store.create_with(&types(), options).unwrap();
    home.clock.advance_us(5);
    session.dispatch(step("read")).unwrap();
    session.set_tag("trial", "2").unwrap();
    session.remove_tag("task").unwrap();
    session.remove_tag("never there").unwrap();
    let summary = home.store.summary(session.id()).unwrap();
    assert_eq!(summary.created_at_us, super::BEGIN_US);
    assert_eq!(summary.records, session.log().position().unwrap() + 1);
    assert_eq!(summary.log_bytes, session.log().bytes());
    assert_eq!(summary.tags.into_iter().collect::<Vec<_>>(), [("trial".to_owned(), "2".to_owned())]);
    assert_eq!(summary.parent, None);
    let id = session.id();
    assert_eq!(home.store.session_ids().unwrap(), [id]);
    let taken = SessionOptions { id: Some(id), ..SessionOptions::default() };
    assert!(matches!(home.store.create_with(&types(), taken), Err(Error::SessionExists { .. })));
}

#[test]
fn a_deleted_session_is_gone_and_one_in_use_is_not_deleted() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    let id = session.id();
    assert!(matches!(home.store.delete(id), Err(Error::Locked { .. })));
    session.close().unwrap();
    home.store.delete(id).unwrap();
    assert!(home.store.session_ids().unwrap().is_empty());
    assert!(matches!(home.store.open_session(id, &types()), Err(Error::NoSuchSession { .. })));
    assert!(matches!(home.store.delete(id), Err(Error::NoSuchSession { .. })));
    let files = home.disk.files();
    assert!(!files.iter().any(|file| file.to_string_lossy().contains(&id.to_string())), "{files:?}");
}

/// Two parts of a host that both needed a session had to pass it around: a second opening was
/// refused, and the error did not say how to get the open one.
#[test]
fn a_session_that_is_open_here_is_had_again_from_its_store() {
    let home = home();
    let first = home.session();
    let id = first.id();
    let second = home.store.handle(id).expect("it is open");
    second.dispatch(step("read")).unwrap();
    assert_eq!(titles::<Plan>(&first), ["read"]);
    // It stays open as long as one of them exists.
    drop(first);
    second.dispatch(step("write")).unwrap();
    assert!(matches!(home.store.open_session(id, &types()), Err(Error::Locked { .. })));
    drop(second);
    assert!(home.store.handle(id).is_none(), "nobody holds it open");
    let reader = home.store.open_read_only(id, &types()).unwrap();
    assert!(home.store.handle(id).is_none(), "who reads is no writer");
    drop(reader);
    let third = home.store.open_session(id, &types()).unwrap();
    let fourth = home.store.handle(id).expect("it is open again");
    third.close().unwrap();
    assert!(home.store.handle(id).is_none(), "it was closed for all handles");
    assert!(matches!(fourth.dispatch(step("late")), Err(Error::Closed { .. })));
}

#[test]
fn a_session_has_one_writer_also_within_one_process() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    match home.store.open_session(session.id(), &types()) {
        Err(Error::Locked { session: locked, holder }) => {
            assert_eq!(locked, session.id());
            assert_eq!(holder.pid, Some(std::process::id()));
            assert_eq!(holder.since.as_deref(), Some("2026-01-02T03:00:00.000000+00:00"));
        }
        other => panic!("{other:?}"),
    }
    let told = home.store.open_session(session.id(), &types()).unwrap_err().to_string();
    assert!(told.ends_with("`Store::handle` returns another handle of it)"), "{told}");
    // Readers are not writers, with types or without.
    assert_eq!(titles::<Plan>(&home.store.open_read_only(session.id(), &types()).unwrap()), ["read"]);
    let (handle, id) = (session.clone(), session.id());
    drop(session);
    assert!(home.store.open_session(id, &types()).is_err(), "a clone is the same session");
    handle.clone().close().unwrap();
    assert!(matches!(handle.dispatch(step("late")), Err(Error::Closed { .. })));
    assert_eq!(titles::<Plan>(&handle), ["read"], "what was read once can be looked at");
    assert!(home.store.open_session(id, &types()).is_ok());
}

#[test]
fn without_types_a_session_is_read_exported_and_forked_but_not_written() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    session.dispatch(Noted { text: "began".to_owned() }).unwrap();
    let position = session.log().position().unwrap();
    let untyped = home.store.open_untyped(session.id()).unwrap();
    assert_eq!(untyped.dynamic().state().unwrap(), session.dynamic().state().unwrap());
    assert_eq!(untyped.log().export().unwrap().slices, session.log().export().unwrap().slices);
    assert_eq!(titles::<Plan>(&untyped), ["read"], "who knows the type may read it typed");
    let refused = [
        untyped.dispatch(step("no")),
        untyped.seed::<Plan>(vec![]),
        untyped.clear::<Plan>(),
        untyped.reset(),
        untyped.set_tag("no", "no"),
        untyped.rollback_to(0).map(|done| done.sequence),
        untyped.snapshot(Default::default()).map(|snapshot| snapshot.position),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::Untyped { .. })), "{result:?}");
    }
    let fork = home.store.fork(untyped.id(), position, &types(), SessionOptions::default()).unwrap();
    assert_eq!(stored(&fork, "notes"), stored(&session, "notes"));
}

#[test]
fn numbers_have_no_gaps_across_segments_and_a_changed_byte_is_found() {
    let home = home_with(|options| {
        options.segments = SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: 0 }
    });
    let session = home.session();
    for n in 0..200 {
        let sequence = session.dispatch(step(&format!("step {n}"))).unwrap();
        assert_eq!(sequence, n + 2);
    }
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let session = home.store.open_session(id, &types()).unwrap();
    assert_eq!(session.dispatch(step("after")).unwrap(), 202);
    session.close().unwrap();
    let segments: Vec<_> = home.disk.files().into_iter().filter(|file| file.starts_with(&dir)).collect();
    assert!(segments.len() > 3, "{segments:?}");
    let reader = || LogReader::open_on(std::sync::Arc::new(home.disk.clone()), &dir);
    let mut next = 0;
    let visit = |record: &foldlog::Record<'_>| {
        assert_eq!(record.sequence, next);
        next += 1;
        Ok(())
    };
    reader().unwrap().records(0, u64::MAX, visit).unwrap();
    assert_eq!(next, 203);
    for segment in &segments {
        let good = home.disk.read_file(segment).unwrap();
        home.disk.mutate_file(segment, |bytes| bytes[300] ^= 1).unwrap();
        match reader() {
            Err(Error::Corrupt(damage)) => {
                assert_eq!(&damage.segment, segment);
                assert!(damage.offset <= 300 && damage.sequence < 203.into(), "{damage}");
                assert_ne!(damage.expected_crc, damage.found_crc);
            }
            other => panic!("{segment:?}: {:?}", other.map(|reader| reader.records_len())),
        }
        home.disk.write_file(segment, good).unwrap();
    }
    assert!(reader().is_ok());
}

#[test]
fn a_full_disk_refuses_a_dispatch_with_its_declaration() {
    let line = |line: String| DraftEdited { place: 100, line };
    // A session whose disk has no space beyond the allocated log, filled with this many lines or
    // until it is full.
    let filled = |lines: usize| {
        let home = home_with(|options| {
            options.segments = SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: 0 }
        });
        let session = home.session();
        session.dispatch(line("begin".to_owned())).unwrap();
        home.disk.inject(Fault::DiskFull { capacity_bytes: home.disk.used_bytes() });
        let fits = |_: &usize| match session.dispatch(line("x".repeat(20))) {
            Ok(_) => true,
            Err(Error::Full { .. }) => false,
            Err(other) => panic!("{other}"),
        };
        let lines = (0..lines).take_while(fits).count();
        (home, session, lines)
    };
    let all = filled(usize::MAX).2;
    let mut taken = Vec::new();
    for fewer in 0..12 {
        let (home, session, _) = filled(all - fewer);
        let (state, position) = (session.dynamic().state().unwrap(), session.log().position());
        match session.dispatch(Noted { text: "y".repeat(150) }) {
            Err(Error::Full { .. }) => {
                let now = (session.dynamic().state().unwrap(), session.log().position());
                assert_eq!(now, (state, position), "{fewer} lines fewer than fit");
                taken.push(false);
            }
            Ok(_) => taken.push(true),
            Err(other) => panic!("{other}"),
        }
        home.disk.clear_faults();
        session.dispatch(Noted { text: "once there is space".to_owned() }).unwrap();
        let live = session.dynamic().state().unwrap();
        assert_eq!(home.reopened(session, &types()).dynamic().state().unwrap(), live);
    }
    assert!(taken.is_sorted() && !taken[0] && taken[11], "refused until it fits: {taken:?}");
}

#[test]
fn a_dispatch_too_large_for_a_record_is_refused_with_its_declaration() {
    let home = home_with(|options| options.object_bytes_min = u64::MAX);
    let session = home.session();
    let large = Noted { text: "x".repeat(17 << 20) };
    assert!(matches!(session.dispatch(large), Err(Error::TooLarge { .. })));
    assert_eq!(kinds(&session), ["opened"]);
    session.dispatch(Noted { text: "small".to_owned() }).unwrap();
    let live = session.dynamic().state().unwrap();
    assert_eq!(home.reopened(session, &types()).dynamic().state().unwrap(), live);
}

#[test]
fn a_kill_loses_nothing() {
    let home = home();
    let session = {
        let store = home_with(|options| options.storage = std::sync::Arc::new(home.disk.process())).store;
        let session = store.create(&types()).unwrap();
        session.dispatch(step("read")).unwrap();
        session.dispatch(step(&"x".repeat(100_000))).unwrap();
        session
    };
    let (id, live) = (session.id(), session.dynamic().state().unwrap());
    home.disk.crash(CrashKind::Process);
    drop(session);
    let session = home.store.open_session(id, &types()).unwrap();
    assert_eq!(session.dynamic().state().unwrap(), live);
    assert!(!session.log().recovery().closed && session.log().recovery().unattested > 0);
    session.dispatch(step("on")).unwrap();
    assert_eq!(session.view::<Plan>().unwrap().len(), 3);
    let empty = SessionTypes::default();
    assert!(matches!(home.store.open_session(Uuid::nil(), &empty), Err(Error::NoSuchSession { .. })));
}

/// The writer counted the seals of finished segments, and a listing did not. Records that a
/// recovery rewrote counted twice until the session was reopened.
#[test]
fn a_session_and_a_listing_count_the_same_bytes_also_after_turns_and_a_recovery() {
    let home = home_with(|options| {
        options.segments = SegmentSizes { first_bytes: 4096, max_bytes: 8192, ahead_bytes_min: 0 };
        options.durability = foldlog::Durability::Process;
    });
    let counted = |session: &foldlog::Session| home.store.summary(session.id()).unwrap().log_bytes;
    let session = home.session();
    for number in 0..100 {
        session.dispatch(step(&format!("{number} {}", "x".repeat(200)))).unwrap();
    }
    assert_eq!(counted(&session), session.log().bytes());
    let fork = home.store.fork(session.id(), 40, &types(), SessionOptions::default()).unwrap();
    assert_eq!(counted(&fork), fork.log().bytes());
    let id = session.id();
    home.disk.crash(CrashKind::Process);
    drop(session);
    let session = home.store.open_session(id, &types()).unwrap();
    assert_eq!(counted(&session), session.log().bytes());
    session.dispatch(step("on")).unwrap();
    assert_eq!(counted(&session), session.log().bytes());
}

/// With a damaged header of its only segment, a session was taken for a directory that had never
/// been one.
#[test]
fn a_session_that_lost_its_only_header_is_damaged_and_not_nothing() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    let (id, segment) = (session.id(), session.dir().join("0000000000.seg"));
    session.close().unwrap();
    home.disk.mutate_file(&segment, |bytes| bytes[20] ^= 1).unwrap();
    match home.store.open_session(id, &types()) {
        Err(Error::Corrupt(corruption)) => {
            assert_eq!((corruption.segment, corruption.offset), (segment, 0));
            assert!(corruption.reason.contains("header"), "{}", corruption.reason);
        }
        other => panic!("{other:?}"),
    }
}

/// Without the value that `snapshot` had returned, as after a kill, there was no way to roll back
/// to it.
#[test]
fn snapshots_are_found_again_by_the_next_process_by_their_tags_and_in_forks() {
    let home = home();
    let session = home.session();
    let empty = session.snapshot(SnapshotOptions::default()).unwrap();
    session.dispatch(step("read")).unwrap();
    let first = session.snapshot(SnapshotOptions::with_tag("good").include_all()).unwrap();
    session.dispatch(step("write")).unwrap();
    let second = session.snapshot(SnapshotOptions::with_tag("good")).unwrap();
    session.rollback(&empty).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    home.disk.crash(CrashKind::Process);
    let reader = LogReader::open_on(Arc::new(home.disk.clone()), dir).unwrap();
    let session = home.store.open_session(id, &types()).unwrap();
    let all = [empty, first.clone(), second.clone()];
    assert_eq!(
        (session.log().snapshots().unwrap(), reader.snapshots().unwrap()),
        (all.to_vec(), all.to_vec())
    );
    assert_eq!(session.log().snapshot_tagged("good").unwrap(), Some(second.clone()));
    assert_eq!(session.log().snapshot_tagged("bad").unwrap(), None);
    // An abandoned snapshot can be a target all the same.
    session.rollback(&second).unwrap();
    assert_eq!(titles::<Plan>(&session), ["read", "write"]);
    let fork = home.store.fork(id, second.position, &types(), SessionOptions::default()).unwrap();
    let shared = fork.log().snapshots().unwrap();
    assert_eq!(shared.iter().map(|one| one.position).collect::<Vec<_>>(), all.map(|one| one.position));
    fork.rollback(&shared[1]).unwrap();
    assert_eq!(titles::<Plan>(&fork), ["read"]);
    // As text, for a host that stores it.
    let kept = serde_json::to_string(&first).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&kept).unwrap(), first);
}
