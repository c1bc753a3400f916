//! Permissions of the files in a store.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use foldlog::inspect::{self, LogReader};
use foldlog::{Durability, SessionOptions, Store, StoreAccess, StoreOptions};
use foldlog_test_support::child;
use foldlog_test_support::host::{StepAdded, types};
use nix::sys::stat::{Mode, umask};

fn options(access: StoreAccess) -> StoreOptions {
    StoreOptions { durability: Durability::Process, access, image_bytes_min: 0, ..StoreOptions::default() }
}

fn access_of(name: &str) -> StoreAccess {
    let all = [
        StoreAccess::Private,
        StoreAccess::GroupReads,
        StoreAccess::GroupWrites,
        StoreAccess::EverybodyReads,
    ];
    all.into_iter().find(|access| format!("{access:?}") == name).unwrap()
}

/// The child, since a umask applies to a whole process: creates one of each kind of file in a
/// store.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_with_a_umask() {
    let Some(argument) = child::argument() else { return };
    let [directory, bits, access] = argument.split(' ').collect::<Vec<_>>().try_into().unwrap();
    umask(Mode::from_bits_truncate(u32::from_str_radix(bits, 8).unwrap()));
    let store = Store::open_with(Path::new(directory).join("store"), options(access_of(access))).unwrap();
    let session = store.create(&types()).unwrap();
    for title in ["a step", &"x".repeat(100_000), "a step", "a step"] {
        session.dispatch(StepAdded { title: title.to_owned(), part: 0 }).unwrap();
    }
    let at = session.snapshot(Default::default()).unwrap();
    let fork = store.fork(session.id(), at.position, &types(), SessionOptions::default()).unwrap();
    fork.dispatch(StepAdded { title: "in the fork".to_owned(), part: 0 }).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    fork.close().unwrap();
    store.salvage(&dir, SessionOptions::default()).unwrap();
    let held = store.create(&types()).unwrap();
    child::tell("made", held.id());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Shows each path below a directory, directories first, with its permission bits.
fn each_below(directory: &Path, show: &mut dyn FnMut(&Path, bool, u32)) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        show(&path, found.is_dir(), found.permissions().mode() & 0o7777);
        if found.is_dir() {
            each_below(&path, show);
        }
    }
}

/// Under the usual umask directories were created with 0755 and files with 0644. Any user of the
/// machine could read in a store what the agent had read in private files.
#[test]
fn whatever_a_store_makes_is_for_its_users_alone_whatever_the_umask_is() {
    for (bits, access) in [
        ("000", StoreAccess::Private),
        ("022", StoreAccess::Private),
        ("277", StoreAccess::Private),
        ("077", StoreAccess::GroupReads),
        ("022", StoreAccess::GroupWrites),
        ("077", StoreAccess::EverybodyReads),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let argument = format!("{} {bits} {access:?}", directory.path().display());
        let mut process = child::start("private::part_of_a_child_with_a_umask", &argument);
        process.hear("made").unwrap();
        let (mut directories, mut files) = (0, Vec::new());
        each_below(directory.path(), &mut |path, is_directory, mode| {
            let expected = if is_directory { access.directory_mode() } else { access.file_mode() };
            // The background may be about to write an image, which no other user reads until it is
            // complete.
            let is_unfinished = path.extension().is_some_and(|extension| extension == "new");
            let mut found = if is_unfinished { mode | expected } else { mode };
            // It may also be about to open a new private directory to others.
            let began = Instant::now();
            while is_directory && found != expected && began.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
                found = fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
            }
            assert_eq!(found, expected, "{} is {mode:04o} under umask {bits}", path.display());
            match is_directory {
                true => directories += 1,
                false => files.push(path.extension().unwrap_or_default().to_string_lossy().into_owned()),
            }
        });
        process.kill();
        // The store, its sessions, its writers, four sessions, objects and images: nothing was left
        // out.
        assert!(directories >= 9, "{directories}");
        for kind in ["seg", "lock", "json", "image", ""] {
            assert!(files.iter().any(|extension| extension == kind), "{kind:?} of {files:?}");
        }
    }
}

#[test]
fn a_store_that_others_can_read_is_told_of_where_it_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("store");
    // The store itself has to exclude users who can reach it.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let store = Store::open_with(&root, options(StoreAccess::Private)).unwrap();
    let session = store.create(&types()).unwrap();
    session.dispatch(StepAdded { title: "a step".to_owned(), part: 0 }).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let told = |access: StoreAccess| {
        let store = Store::open_with(&root, options(access)).unwrap();
        let session = store.open_session(id, &types()).unwrap();
        session.log().recovery().exposed.clone()
    };
    assert_eq!(told(StoreAccess::Private), None);
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    // As an earlier version left it.
    let segment = dir.join("0000000000.seg");
    mode(&segment, 0o644);
    mode(&dir, 0o755);
    mode(&root.join("sessions"), 0o755);
    assert_eq!(told(StoreAccess::Private), None, "a directory keeps everybody out");
    mode(&root, 0o755);
    let exposed = told(StoreAccess::Private).unwrap();
    assert_eq!((exposed.path, exposed.mode, exposed.expected), (segment.clone(), 0o644, 0o600));
    assert_eq!(told(StoreAccess::EverybodyReads), None);
    assert_eq!(LogReader::open(&dir).unwrap().report().exposed.as_ref().unwrap().path, segment);
    assert_eq!(inspect::find_exposure(&dir).unwrap().path, segment);
    mode(&segment, 0o600);
    assert_eq!(told(StoreAccess::Private), None);
}
