//! The guarantees of the real file system to the log.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::{TempDir, tempdir};

use super::*;

fn room() -> (FileStorage, TempDir) {
    (FileStorage::new(), tempdir().unwrap())
}

#[test]
fn a_created_file_has_its_length_and_reads_as_zeros() {
    let (storage, dir) = room();
    let path = dir.path().join("segment");
    let file = storage.create(&path, 10_000).unwrap();
    assert_eq!(file.len().unwrap(), 10_000);
    let mut buf = vec![1; 20_000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 10_000);
    assert!(buf.iter().take(10_000).all(|byte| *byte == 0));
    file.write_at(b"hello", 4094).unwrap();
    file.sync_data().unwrap();
    storage.sync_dir(dir.path()).unwrap();
    let other = storage.open(&path, Access::Read).unwrap();
    let mut word = [0; 5];
    assert_eq!(other.read_at(&mut word, 4094).unwrap(), 5);
    assert_eq!(&word, b"hello");
    assert_eq!(other.read_at(&mut word, 9_998).unwrap(), 2);
    assert_eq!(other.read_at(&mut word, 10_000).unwrap(), 0);
    assert!(other.write_at(b"x", 0).is_err());
    let again = storage.create(&path, 0).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    assert!(storage.create(&dir.path().join("empty"), 0).unwrap().is_empty().unwrap());
}

#[test]
fn holes_and_space_that_was_only_allocated_are_passed_over() {
    let (storage, dir) = room();
    let file = storage.create(&dir.path().join("sparse"), 1 << 22).unwrap();
    file.write_at(b"here", 1 << 21).unwrap();
    let found = file.next_data(4096).unwrap();
    assert!((4096..=1 << 21).contains(&found), "{found}");
    let behind = file.next_data((1 << 21) + (1 << 16)).unwrap();
    assert!(((1 << 21) + (1 << 16)..=1 << 22).contains(&behind), "{behind}");
    assert_eq!(file.next_data(1 << 30).unwrap(), 1 << 30);
}

#[test]
fn filling_gives_the_length_that_is_no_multiple_of_a_page() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("filled");
    fill_with_zeros(&File::create_new(&path).unwrap(), 0, 9_001).unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![0; 9_001]);
}

#[test]
fn a_failed_allocation_leaves_nothing() {
    let (storage, dir) = room();
    for too_much in [u64::MAX, 1 << 62] {
        assert!(storage.create(&dir.path().join("huge"), too_much).is_err());
        assert_eq!(storage.list(dir.path()).unwrap(), vec![]);
    }
}

#[test]
fn links_and_everything_that_is_no_regular_file_are_refused() {
    let (storage, dir) = room();
    let path = |name: &str| dir.path().join(name);
    storage.create(&path("real"), 1).unwrap();
    storage.create_dir_all(&path("folder/deep")).unwrap();
    symlink(path("real"), path("link")).unwrap();
    symlink(path("folder"), path("folder-link")).unwrap();
    symlink(path("nowhere"), path("dangling")).unwrap();
    mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
    let _listener = UnixListener::bind(path("socket")).unwrap();
    for name in ["link", "folder", "folder-link", "dangling", "pipe", "socket"] {
        for access in [Access::Read, Access::Write] {
            let error = storage.open(&path(name), access).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name} {access:?}: {error}");
        }
        assert_eq!(storage.try_lock(&path(name), 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(storage.create(&path(name), 0).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let linked = storage.hard_link(&path(name), &path("second")).unwrap_err();
        assert_eq!(linked.kind(), io::ErrorKind::InvalidInput);
    }
    for answer in [
        storage.list(&path("folder-link")).map(drop),
        storage.sync_dir(&path("folder-link")),
        storage.create_dir_all(&path("folder-link")),
        storage.remove_dir_all(&path("folder-link")),
        storage.create_dir_all(&path("real")),
    ] {
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }
    assert_eq!(storage.entry(&path("link")).unwrap().unwrap().kind, EntryKind::Link);
    assert!(!path("nowhere").exists());
    assert!(path("folder/deep").exists());
}

#[test]
fn removing_a_directory_leaves_what_its_links_point_to() {
    let (storage, dir) = room();
    let kept = dir.path().join("kept");
    let gone = dir.path().join("gone");
    storage.create_dir_all(&kept).unwrap();
    storage.create(&kept.join("file"), 1).unwrap();
    storage.create_dir_all(&gone).unwrap();
    symlink(&kept, gone.join("link")).unwrap();
    storage.remove_dir_all(&gone).unwrap();
    assert!(storage.entry(&gone).unwrap().is_none());
    assert!(storage.entry(&kept.join("file")).unwrap().is_some());
}

#[test]
fn names_are_listed_in_order_renamed_linked_and_removed() {
    let (storage, dir) = room();
    let path = |name: &str| dir.path().join(name);
    for name in ["b", "a", "c"] {
        storage.create(&path(name), 3).unwrap();
    }
    storage.create_dir_all(&path("folder")).unwrap();
    storage.rename(&path("c"), &path("a")).unwrap();
    storage.hard_link(&path("a"), &path("z")).unwrap();
    storage.remove_file(&path("a")).unwrap();
    let entries = storage.list(dir.path()).unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["b", "folder", "z"]);
    assert_eq!(storage.entry(&path("z")).unwrap().unwrap().len, 3);
    assert!(storage.entry(&path("a")).unwrap().is_none());
    let across = storage.rename(&path("z"), &path("folder/z")).unwrap_err();
    assert_eq!(across.kind(), io::ErrorKind::InvalidInput);
    let taken = storage.hard_link(&path("z"), &path("b")).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn a_lock_excludes_the_same_byte_and_no_other() {
    let (storage, dir) = room();
    let path = dir.path().join("lock");
    let held = storage.try_lock(&path, 7).unwrap().unwrap();
    assert!(storage.try_lock(&path, 7).unwrap().is_none());
    let far = storage.try_lock(&path, i64::MAX as u64).unwrap();
    assert!(far.is_some());
    // Opening and closing the file elsewhere must not release the lock, as it would with a lock
    // that belongs to the process.
    drop(storage.open(&path, Access::Read).unwrap());
    assert!(storage.try_lock(&path, 7).unwrap().is_none());
    drop(held);
    assert!(storage.try_lock(&path, 7).unwrap().is_some());
    assert_eq!(storage.try_lock(&path, u64::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// Each lock had its own descriptor, so a process with a limit of 20,000 files could not open
/// 10,000 sessions.
#[test]
fn locks_of_one_file_share_a_descriptor() {
    let (storage, dir) = room();
    let path = dir.path().join("lock");
    let descriptors = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        links
            .filter(|link| std::fs::read_link(link.as_ref().unwrap().path()).is_ok_and(|to| to == path))
            .count()
    };
    let lock = |byte: u64| storage.try_lock(&path, byte * 3).unwrap().unwrap();
    // Threads that requested a lock at the same time got separate descriptors.
    let mut held: Vec<_> = std::thread::scope(|scope| {
        let threads =
            (0..10).map(|nth| scope.spawn(move || (nth * 100..nth * 100 + 100).map(lock).collect()));
        let threads: Vec<std::thread::ScopedJoinHandle<'_, Vec<_>>> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(descriptors(), 1);
    // Each lock is released separately.
    held.remove(50);
    assert!(storage.try_lock(&path, 147).unwrap().is_none());
    assert!(storage.try_lock(&path, 150).unwrap().is_some());
    assert_eq!(storage.locked_bytes(&path).unwrap().len(), 999);
    drop(held);
    assert_eq!(storage.locked_bytes(&path).unwrap().len(), 0);
    assert_eq!(descriptors(), 0);
}

#[test]
fn the_boot_id_stays_the_same() {
    assert_eq!(FileStorage::new().boot_id(), FileStorage::new().boot_id());
    assert_eq!(FileStorage::new().boot_id().is_some(), Path::new("/proc/sys/kernel/random/boot_id").exists());
}

/// Linux reports a file as missing while a rename replaces it. One in six hundred forks failed if a
/// compaction ran at the same time.
#[test]
fn a_file_that_is_replaced_meanwhile_is_linked_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let (storage, at) = (FileStorage::new(), |name: &str| directory.path().join(name));
    storage.create(&at("segment"), 0).unwrap();
    let linked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !linked.load(Ordering::Relaxed) {
                storage.create(&at("compacted"), 0).unwrap();
                storage.rename(&at("compacted"), &at("segment")).unwrap();
            }
        });
        let refused = (0..20_000).find_map(|_| {
            let refused = storage.hard_link(&at("segment"), &at("fork")).err();
            let _ = storage.remove_file(&at("fork"));
            refused
        });
        linked.store(true, Ordering::Relaxed);
        assert!(refused.is_none(), "{refused:?}");
    });
    // There are no retries for a missing file.
    let missing = storage.hard_link(&at("nothing"), &at("fork")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let nowhere = storage.hard_link(&at("segment"), &at("no folder/fork")).unwrap_err();
    assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
}
