//! Sessions that share their past.

use foldlog::{Error, Parent, SessionOptions, SnapshotOptions, Store};
use foldlog_test_support::host::*;

use super::{home, home_with, kinds, seeded, step, stored, titles};

fn line(place: usize, line: &str) -> DraftEdited {
    DraftEdited { place, line: line.to_owned() }
}

#[test]
fn what_either_writes_later_never_reaches_the_other() {
    let home = home();
    let parent = home.session();
    parent.set_tag("task", "7").unwrap();
    parent.dispatch(step("shared")).unwrap();
    parent.dispatch(Noted { text: "shared".to_owned() }).unwrap();
    let at = parent.snapshot(SnapshotOptions::default()).unwrap().position;
    parent.dispatch(step("parent's")).unwrap();

    let options = SessionOptions::default().tag("branch", "b");
    let fork = home.store.fork(parent.id(), at, &types(), options).unwrap();

    assert_eq!(titles::<Plan>(&fork), ["shared"]);
    assert_eq!(fork.log().slice::<Notes>().unwrap().len(), 1);
    assert_eq!(fork.log().position(), Some(at + 1), "its own first record follows what it shares");
    match fork.parent() {
        Some(Parent::Fork { session, position, .. }) => assert_eq!((session, position), (parent.id(), at)),
        other => panic!("{other:?}"),
    }
    let tags = fork.tags();
    assert_eq!((tags["task"].as_str(), tags["branch"].as_str()), ("7", "b"), "tags are inherited");
    // In turn, so that each appends after the other's file has changed.
    for n in 0..200 {
        parent.dispatch(step(&format!("p{n}"))).unwrap();
        fork.dispatch(step(&format!("f{n}"))).unwrap();
    }
    let of = |letter: &str, first: &[&str]| -> Vec<String> {
        let own = (0..200).map(|n| format!("{letter}{n}"));
        first.iter().map(|title| (*title).to_owned()).chain(own).collect()
    };
    assert_eq!(titles::<Plan>(&parent), of("p", &["shared", "parent's"]));
    assert_eq!(titles::<Plan>(&fork), of("f", &["shared"]));
    let (parent, fork) = (home.reopened(parent, &types()), home.reopened(fork, &types()));
    assert_eq!(titles::<Plan>(&parent), of("p", &["shared", "parent's"]));
    assert_eq!(titles::<Plan>(&fork), of("f", &["shared"]));
    // Both can roll back into the shared records.
    fork.rollback_to(0).unwrap();
    assert!(titles::<Plan>(&fork).is_empty());
    // The fork is complete on its own.
    let id = parent.id();
    parent.close().unwrap();
    home.store.delete(id).unwrap();
    let fork = home.reopened(fork, &types());
    fork.rollback_to(at).unwrap();
    assert_eq!(titles::<Plan>(&fork), ["shared"]);
}

/// A fork shares its parent's object files. One that recorded the same large text again overwrote
/// the parent's file.
#[cfg(unix)]
#[test]
fn a_fork_that_stores_a_payload_of_its_parent_again_leaves_the_parents_file_alone() {
    use std::os::unix::fs::MetadataExt;

    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let parent = store.create(&types()).unwrap();
    let large = || Noted { text: "large ".repeat(30_000) };
    let at = parent.dispatch(large()).unwrap();
    let fork = store.fork(parent.id(), at, &types(), SessionOptions::default()).unwrap();
    let file = |dir: &std::path::Path| {
        let object = std::fs::read_dir(dir.join("objects")).unwrap().next().unwrap().unwrap();
        let metadata = object.metadata().unwrap();
        (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
    };
    let before = file(parent.dir());
    assert_eq!(file(fork.dir()), before, "they do not share the file");
    for _ in 0..3 {
        fork.dispatch(large()).unwrap();
        fork.sync().unwrap();
    }
    assert_eq!(file(parent.dir()), before, "the parent's file was written");
    let own = file(fork.dir());
    assert_ne!(own.0, before.0, "the fork's file is still the parent's");
    fork.dispatch(large()).unwrap();
    fork.sync().unwrap();
    assert_eq!(file(fork.dir()), own, "what this process has written is written once more");
    let id = fork.id();
    fork.close().unwrap();
    assert_eq!(store.open_session(id, &types()).unwrap().log().slice::<Notes>().unwrap().len(), 5);
}

/// If the parent is itself a fork and the position is older than both, the shared records all
/// belong to a third session.
#[test]
fn a_fork_of_a_fork_may_share_only_the_eldest_ones_records() {
    let home = home();
    let eldest = home.session();
    eldest.dispatch(step("eldest")).unwrap();
    let old = eldest.log().position().unwrap();
    eldest.dispatch(step("later")).unwrap();
    let last = eldest.log().position().unwrap();
    let middle = home.store.fork(eldest.id(), last, &types(), SessionOptions::default()).unwrap();
    middle.dispatch(step("middle")).unwrap();

    for at in [0, old.get(), last.get()] {
        let young = home.store.fork(middle.id(), at, &types(), SessionOptions::default()).unwrap();
        young.dispatch(step("young")).unwrap();
        let young = home.reopened(young, &types());
        let shared = match at {
            0 => vec![],
            at if at == old => vec!["eldest"],
            _ => vec!["eldest", "later"],
        };
        assert_eq!(titles::<Plan>(&young), [shared, vec!["young"]].concat(), "forked at {at}");
        assert_eq!(young.parent().unwrap().session(), middle.id());
    }
    let own = middle.log().position().unwrap();
    let young = home.store.fork(middle.id(), own, &types(), SessionOptions::default()).unwrap();
    let youngest = home.store.fork(young.id(), own, &types(), SessionOptions::default()).unwrap();
    assert_eq!(titles::<Plan>(&youngest), ["eldest", "later", "middle"]);
}

#[test]
fn a_fork_may_take_up_what_was_abandoned() {
    let home = home();
    let session = home.session();
    session.dispatch(step("kept")).unwrap();
    let kept = session.log().position().unwrap();
    session.dispatch(step("given up")).unwrap();
    let abandoned = session.log().position().unwrap();
    session.rollback_to(kept).unwrap();
    let fork = home.store.fork(session.id(), abandoned, &types(), SessionOptions::default()).unwrap();
    assert_eq!(titles::<Plan>(&fork), ["kept", "given up"]);
    // A rollback to after the parent's rollback, which the fork does not share, works too.
    fork.rollback_to(kept).unwrap();
    assert_eq!(titles::<Plan>(&fork), ["kept"]);
    let after = session.log().position().unwrap();
    let error = home.store.fork(session.id(), after + 1, &types(), SessionOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NoSuchPosition { last: Some(last), .. } if last == after));
}

/// Numbers that a reducer drew in the past are unchanged, and new ones are the fork's own.
#[test]
fn a_record_draws_from_the_seed_of_the_session_that_wrote_it_first() {
    let home = home();
    let draws = |session: &foldlog::Session| {
        for _ in 0..3 {
            session.dispatch(line(0, "?")).unwrap();
        }
        stored(session, "draft")
    };
    let parent = home.store.create_with(&types(), seeded(1)).unwrap();
    parent.dispatch(line(0, "drawn:")).unwrap();
    let at = parent.log().position().unwrap();
    let fork = |seed| home.store.fork(parent.id(), at, &types(), seeded(seed)).unwrap();
    let (same, other, again) = (fork(1), fork(2), fork(2));
    let (drawn_same, drawn_other) = (draws(&same), draws(&other));
    assert_eq!(drawn_other, draws(&again), "the same seed at the same record");
    assert_ne!(drawn_same, drawn_other);
    // Reopened, a fork continues with its own seed and not with its parent's.
    let other = home.reopened(other, &types());
    assert_eq!(draws(&other), draws(&home.reopened(again, &types())));
    // At the same positions the parent draws the same numbers as a fork with the same seed, since
    // only seed and position count; nothing of the fork has reached it.
    parent.reset().unwrap();
    parent.dispatch(line(0, "drawn:")).unwrap();
    assert_ne!(draws(&parent), drawn_other);
}

#[test]
fn large_payloads_come_along() {
    let home = home_with(|options| options.object_bytes_min = 100);
    let session = home.session();
    session.dispatch(step(&"x".repeat(1000))).unwrap();
    let at = session.log().position().unwrap();
    let fork = home.store.fork(session.id(), at, &types(), SessionOptions::default()).unwrap();
    let id = session.id();
    session.close().unwrap();
    home.store.delete(id).unwrap();
    fork.dispatch(step(&"y".repeat(1000))).unwrap();
    let fork = home.reopened(fork, &types());
    let lengths: Vec<usize> = titles::<Plan>(&fork).iter().map(String::len).collect();
    assert_eq!(lengths, [1000, 1000]);
    assert_eq!(kinds(&fork), ["opened", "declare", "dispatch", "opened", "dispatch"]);
}
