//! Problems that are not damage of the log: other processes, disks that take no writes, directories
//! that are not sessions. Each has its own error, and nothing is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use foldlog::storage::EntryKind;
use foldlog::{Durability, Error, SessionOptions, Store, StoreAccess, StoreOptions};
use foldlog_test_support::child;
use foldlog_test_support::host::{Plan, StepAdded, types};
use uuid::Uuid;

fn step(title: &str) -> StepAdded {
    StepAdded { title: title.to_owned(), part: 1 }
}

fn store_at(path: &Path, durability: Durability) -> Store {
    Store::open_with(path, StoreOptions { durability, ..StoreOptions::default() }).unwrap()
}

/// The child: opens the session, reports it, and waits to be killed.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_holds_a_session() {
    let Some(argument) = child::argument() else { return };
    let (path, id) = argument.split_once(' ').unwrap();
    let store = store_at(Path::new(path), Durability::Process);
    let session = store.open_session(id.parse().unwrap(), &types()).unwrap();
    session.dispatch(step("from the child")).unwrap();
    child::tell("holding", session.log().position().unwrap());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn a_session_that_another_process_writes_is_locked_and_says_by_whom() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_at(directory.path(), Durability::Process);
    let session = store.create(&types()).unwrap();
    session.dispatch(step("from the parent")).unwrap();
    let id = session.id();
    session.close().unwrap();

    let argument = format!("{} {id}", directory.path().display());
    let mut process = child::start("bad_input::part_of_a_child_that_holds_a_session", &argument);
    let position: u64 = process.hear("holding").unwrap().parse().unwrap();

    match store.open_session(id, &types()) {
        Err(Error::Locked { session, holder }) => {
            assert_eq!(session, id);
            assert_eq!(holder.pid, Some(process.id()));
            assert!(holder.host.is_some() && holder.since.is_some());
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.delete(id), Err(Error::Locked { .. })));
    // Readers need no lock, and see the writer's records.
    let reader = store.open_read_only(id, &types()).unwrap();
    assert_eq!(reader.log().position(), Some(position.into()));
    assert_eq!(reader.view::<Plan>().unwrap().len(), 2);
    assert!(matches!(reader.dispatch(step("no")), Err(Error::ReadOnly { .. })));
    // Other sessions of the store are not locked.
    store.create(&types()).unwrap().dispatch(step("elsewhere")).unwrap();

    // A killed process holds no lock, and its records are there.
    process.kill();
    let session = store.open_session(id, &types()).unwrap();
    assert_eq!(session.view::<Plan>().unwrap().len(), 2);
    assert!(!session.log().recovery().closed);
}

/// The child: a process without write permission opens a store that it can read.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_without_rights() {
    let Some(argument) = child::argument() else { return };
    let (path, id) = argument.split_once(' ').unwrap();
    if nix::unistd::geteuid().is_root() {
        nix::unistd::setgid(nix::unistd::Gid::from_raw(65_534)).unwrap();
        nix::unistd::setuid(nix::unistd::Uid::from_raw(65_534)).unwrap();
    }
    let store = Store::open(path).unwrap();
    let session = store.open_session(id.parse().unwrap(), &types()).unwrap();
    assert_eq!(session.view::<Plan>().unwrap().len(), 1);
    match session.dispatch(step("no")) {
        Err(Error::ReadOnly { reason, .. }) => assert!(reason.contains("writers.lock"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.create(&types()), Err(Error::ReadOnly { .. })));
    child::tell("done", session.view::<Plan>().unwrap().len());
}

#[test]
fn a_directory_that_takes_no_writes_can_be_read_and_says_so_at_the_first_append() {
    let directory = tempfile::tempdir().unwrap();
    let (durability, access) = (Durability::Process, StoreAccess::EverybodyReads);
    let store =
        Store::open_with(directory.path(), StoreOptions { durability, access, ..StoreOptions::default() })
            .unwrap();
    let session = store.create(&types()).unwrap();
    session.dispatch(step("one")).unwrap();
    let id = session.id();
    session.close().unwrap();
    let dirs = [directory.path().to_owned(), directory.path().join("sessions"), store.session_dir(id)];
    for dir in &dirs {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o555)).unwrap();
    }

    let argument = format!("{} {id}", directory.path().display());
    let mut process = child::start("bad_input::part_of_a_child_without_rights", &argument);
    let done = process.hear("done");
    assert!(process.passed());
    assert_eq!(done.as_deref(), Some("1"));

    for dir in &dirs {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn what_is_no_session_is_called_so() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_at(directory.path(), Durability::Process);
    let id = Uuid::from_u128(7);
    assert!(
        matches!(store.open_session(id, &types()), Err(Error::NoSuchSession { session, .. }) if session == id)
    );

    fs::create_dir(store.session_dir(id)).unwrap();
    let reason = |error: Error| match error {
        Error::NotASession { path, reason } => {
            assert_eq!(path, store.session_dir(id));
            reason
        }
        other => panic!("{other}"),
    };
    let open = || store.open_session(id, &types()).unwrap_err();
    assert!(reason(open()).contains("no segments"));

    fs::write(store.session_dir(id).join("0000000000.seg"), b"").unwrap();
    assert!(reason(open()).contains("intact header"));

    fs::write(store.session_dir(id).join("0000000000.seg"), b"GIF89a, and then some more bytes").unwrap();
    assert!(reason(open()).contains("intact header"));

    fs::remove_dir_all(store.session_dir(id)).unwrap();
    fs::write(store.session_dir(id), b"").unwrap();
    assert!(reason(open()).contains("not a directory"));
    assert!(store.session_ids().unwrap().is_empty());
}

#[test]
fn links_in_a_session_are_never_followed() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_at(directory.path(), Durability::Process);
    let session = store.create(&types()).unwrap();
    session.dispatch(step("one")).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let segment = dir.join("0000000000.seg");
    let outside = directory.path().join("outside");
    fs::rename(&segment, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &segment).unwrap();
    let error = store.open_session(id, &types()).unwrap_err();
    assert!(
        matches!(&error, Error::NotAFile { path, found: EntryKind::Link } if *path == segment),
        "{error}"
    );
    // Nor is a session created next to a link, whatever its target.
    fs::write(&outside, b"").unwrap();
    let options = SessionOptions { id: Some(id), ..SessionOptions::default() };
    assert!(matches!(store.create_with(&types(), options), Err(Error::SessionExists { .. })));
}

#[test]
fn a_file_that_bears_the_last_name_of_all_segments_is_told_of_where_the_next_one_is_needed() {
    // The name of the next segment overflowed.
    let directory = tempfile::tempdir().unwrap();
    let store = store_at(directory.path(), Durability::Process);
    let session = store.create(&types()).unwrap();
    session.dispatch(step("first")).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let last = dir.join(format!("{:010}.seg", u32::MAX));
    fs::write(&last, []).unwrap();

    let session = store.open_session(id, &types()).unwrap();
    let refused = (0..10_000).find_map(|_| session.dispatch(step("more")).err());
    assert!(
        matches!(refused, Some(Error::TooLarge { what: "segment ordinal", .. })),
        "{:?}",
        refused.map(|error| error.to_string())
    );
    let kept = session.view::<Plan>().unwrap().len();
    session.close().unwrap();
    // Without that file writing continues, and nothing is missing.
    fs::remove_file(&last).unwrap();
    let session = store.open_session(id, &types()).unwrap();
    assert_eq!(session.view::<Plan>().unwrap().len(), kept);
    session.dispatch(step("last")).unwrap();
}
