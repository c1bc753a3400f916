use super::*;

const PAGE: usize = 4096;

fn path(text: &str) -> &Path {
    Path::new(text)
}

/// Returns a disk with a durable file of `len` zeros.
fn with_file(name: &str, len: u64) -> (MemoryStorage, Arc<dyn StorageFile>) {
    let disk = MemoryStorage::new();
    let file = disk.create(path(name), len).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(path("/")).unwrap();
    (disk, file)
}

fn names(disk: &MemoryStorage) -> Vec<String> {
    disk.files().iter().map(|path| path.display().to_string()).collect()
}

fn kind<T>(answer: io::Result<T>) -> io::ErrorKind {
    match answer {
        Ok(_) => panic!("the call should have failed"),
        Err(error) => error.kind(),
    }
}

#[test]
fn reads_see_writes_across_pages_and_other_handles() {
    let (disk, file) = with_file("/a", 3);
    let bytes: Vec<u8> = (0..3 * PAGE).map(|at| at as u8 | 1).collect();
    file.write_at(&bytes, 4000).unwrap();
    let other = disk.open(path("/a"), Access::Read).unwrap();
    assert_eq!(other.len().unwrap(), 4000 + bytes.len() as u64);
    let mut buf = vec![9; 4 * PAGE + 4000];
    assert_eq!(other.read_at(&mut buf, 0).unwrap(), 4000 + bytes.len());
    assert!(buf[..4000].iter().all(|byte| *byte == 0));
    assert_eq!(&buf[4000..4000 + bytes.len()], &bytes);
    assert_eq!(other.read_at(&mut buf, 1 << 40).unwrap(), 0);
    assert!(other.write_at(b"x", 0).is_err());
    file.write_at(b"far", 1 << 50).unwrap();
    assert_eq!(file.len().unwrap(), (1 << 50) + 3);
}

#[test]
fn a_synced_page_is_kept_and_an_unsynced_one_lost() {
    let (disk, file) = with_file("/a", 2 * PAGE as u64);
    file.write_at(b"kept", 0).unwrap();
    file.sync_data().unwrap();
    file.write_at(b"lost", PAGE as u64).unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    let bytes = disk.read_file("/a").unwrap();
    assert_eq!(&bytes[..4], b"kept");
    assert!(bytes[4..].iter().all(|byte| *byte == 0));
}

#[test]
fn seeds_tear_pages_apart_and_repeat() {
    let cut = |seed| {
        let (disk, file) = with_file("/a", 0);
        file.write_at(&[1; 4 * PAGE], 0).unwrap();
        disk.crash(CrashKind::Power { seed });
        disk.read_file("/a").unwrap()
    };
    let outcomes: std::collections::BTreeSet<_> = (0..200).map(cut).collect();
    assert!(outcomes.contains(&vec![]));
    assert!(outcomes.contains(&vec![1; 4 * PAGE]));
    assert!(outcomes.contains(&vec![0; 4 * PAGE]));
    assert!(outcomes.iter().any(|bytes| bytes.len() > PAGE && bytes[0] == 0 && bytes.contains(&1)));
    assert!((0..20).all(|seed| cut(seed) == cut(seed)));
}

#[test]
fn a_lost_length_does_not_give_its_bytes_back() {
    for seed in 0..50 {
        let (disk, file) = with_file("/a", 10);
        file.write_at(&[7; 20], 0).unwrap();
        disk.crash(CrashKind::Power { seed });
        let left = disk.read_file("/a").unwrap().len();
        let file = disk.open(path("/a"), Access::Write).unwrap();
        file.write_at(b"x", 40).unwrap();
        let bytes = disk.read_file("/a").unwrap();
        assert!(bytes[left..40].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_synced_file_without_a_synced_name_is_lost() {
    let disk = MemoryStorage::new();
    disk.create_dir_all(path("/store/session")).unwrap();
    disk.sync_dir(path("/")).unwrap();
    disk.sync_dir(path("/store")).unwrap();
    disk.create(path("/store/session/lost"), 10).unwrap().sync_data().unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    assert!(names(&disk).is_empty());
    assert!(disk.entry(path("/store/session")).unwrap().is_some());

    disk.create(path("/store/session/short"), 10).unwrap();
    disk.sync_dir(path("/store/session")).unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(disk.read_file("/store/session/short").unwrap(), b"");

    disk.create_dir_all(path("/other")).unwrap();
    disk.create(path("/other/file"), 1).unwrap();
    disk.sync_dir(path("/other")).unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    assert!(disk.entry(path("/other")).unwrap().is_none());
}

#[test]
fn a_rename_leaves_the_old_or_the_new() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = MemoryStorage::new();
        disk.write_file("/a", "old").unwrap();
        disk.write_file("/a.tmp", "new").unwrap();
        disk.rename(path("/a.tmp"), path("/a")).unwrap();
        // The freed name is created again, which must not lose the file that had it.
        disk.create(path("/a.tmp"), 0).unwrap();
        disk.crash(CrashKind::Power { seed });
        let left = disk.dump();
        assert!(left.values().any(|bytes| bytes == b"new"), "seed {seed}: {left:?}");
        assert!(disk.read_file("/a").is_some_and(|bytes| bytes == b"old" || bytes == b"new"));
        outcomes.insert(left);
    }
    assert_eq!(outcomes.len(), 3);
}

#[test]
fn a_rename_replaces_and_stays_in_its_directory() {
    let disk = MemoryStorage::new();
    disk.write_file("/a", "a").unwrap();
    disk.write_file("/b", "b").unwrap();
    disk.write_file("/folder/c", "c").unwrap();
    disk.rename(path("/a"), path("/b")).unwrap();
    assert_eq!(disk.dump().len(), 2);
    assert_eq!(disk.read_file("/b").unwrap(), b"a");
    assert_eq!(kind(disk.rename(path("/a"), path("/b"))), io::ErrorKind::NotFound);
    assert_eq!(kind(disk.rename(path("/b"), path("/folder/b"))), io::ErrorKind::InvalidInput);
    assert_eq!(kind(disk.rename(path("/b"), path("/folder"))), io::ErrorKind::IsADirectory);
}

#[test]
fn names_of_one_file_share_its_bytes() {
    let (disk, file) = with_file("/a", 1);
    disk.hard_link(path("/a"), path("/b")).unwrap();
    file.write_at(b"x", 0).unwrap();
    disk.remove_file(path("/a")).unwrap();
    assert_eq!(disk.read_file("/b").unwrap(), b"x");
    assert_eq!(kind(disk.hard_link(path("/a"), path("/c"))), io::ErrorKind::NotFound);
    file.sync_data().unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(names(&disk), ["/a"]);
}

#[test]
fn a_removal_that_was_not_synced_may_come_back_even_after_a_process_crash() {
    let (disk, file) = with_file("/a", 0);
    file.write_at(b"bytes", 0).unwrap();
    file.sync_data().unwrap();
    disk.remove_file(path("/a")).unwrap();
    disk.crash(CrashKind::Process);
    assert!(names(&disk).is_empty());
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(disk.read_file("/a").unwrap(), b"bytes");
}

#[test]
fn a_removed_directory_goes_name_by_name() {
    let disk = MemoryStorage::new();
    disk.write_file("/session/a", "a").unwrap();
    disk.write_file("/session/deep/b", "b").unwrap();
    disk.write_file("/kept", "").unwrap();
    disk.remove_dir_all(path("/session")).unwrap();
    assert_eq!(names(&disk), ["/kept"]);
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(disk.files().len(), 3);
    disk.remove_dir_all(path("/session")).unwrap();
    disk.sync_dir(path("/")).unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(names(&disk), ["/kept"]);
    assert_eq!(kind(disk.remove_dir_all(path("/kept"))), io::ErrorKind::NotADirectory);
}

#[test]
fn a_process_crash_keeps_the_bytes_and_kills_the_handles() {
    let (disk, file) = with_file("/a", 0);
    let process = disk.process();
    let lock = process.try_lock(path("/lock"), 3).unwrap().unwrap();
    file.write_at(b"unsynced", 0).unwrap();
    let boot = disk.boot_id();
    disk.crash(CrashKind::Process);
    assert_eq!(disk.boot_id(), boot);
    assert_eq!(disk.read_file("/a").unwrap(), b"unsynced");
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.read_at(&mut [0; 1], 0).is_err());
    assert!(file.len().is_err());
    assert!(file.sync_data().is_err());
    assert!(process.remove_file(path("/a")).is_err());
    let held = disk.try_lock(path("/lock"), 3).unwrap();
    assert!(held.is_some());
    drop(lock);
    assert!(disk.try_lock(path("/lock"), 3).unwrap().is_none());
    // The kill made nothing durable.
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(disk.read_file("/a").unwrap(), b"");
}

#[test]
fn a_power_cut_changes_the_boot_id() {
    let disk = MemoryStorage::new();
    let first = disk.boot_id();
    disk.crash(CrashKind::Power { seed: 5 });
    let second = disk.boot_id();
    disk.crash(CrashKind::Power { seed: 5 });
    assert!(first != second && second != disk.boot_id() && first != disk.boot_id());
    let silent = MemoryStorage::with_boot_id(None);
    silent.crash(CrashKind::PowerLosingAll);
    assert_eq!(silent.boot_id(), None);
}

#[test]
fn locks_exclude_each_other_by_byte() {
    let disk = MemoryStorage::new();
    let other = disk.clone();
    let held = disk.try_lock(path("/lock"), 1).unwrap();
    assert!(held.is_some());
    assert!(other.try_lock(path("/lock"), 1).unwrap().is_none());
    assert!(other.try_lock(path("/lock"), 2).unwrap().is_some());
    drop(held);
    assert!(other.try_lock(path("/lock"), 1).unwrap().is_some());
}

#[test]
fn links_and_directories_are_not_opened() {
    let disk = MemoryStorage::new();
    disk.make_other("/link").unwrap();
    disk.create_dir_all(path("/folder")).unwrap();
    for name in ["/link", "/folder"] {
        assert_eq!(kind(disk.open(path(name), Access::Read)), io::ErrorKind::InvalidInput);
        assert_eq!(kind(disk.try_lock(path(name), 0)), io::ErrorKind::InvalidInput);
        assert_eq!(kind(disk.create(path(name), 0)), io::ErrorKind::AlreadyExists);
    }
    assert_eq!(kind(disk.list(path("/link"))), io::ErrorKind::NotADirectory);
    assert_eq!(kind(disk.create_dir_all(path("/link/below"))), io::ErrorKind::NotADirectory);
    assert_eq!(kind(disk.open(path("/missing"), Access::Read)), io::ErrorKind::NotFound);
    let kinds: Vec<_> = disk.list(path("/")).unwrap().into_iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [super::super::EntryKind::Directory, super::super::EntryKind::Other]);
}

#[test]
fn a_full_disk_refuses_growth_and_takes_what_was_allocated() {
    let (disk, file) = with_file("/a", 100);
    disk.inject(Fault::DiskFull { capacity_bytes: 150 });
    assert_eq!(kind(disk.create(path("/b"), 51)), io::ErrorKind::StorageFull);
    assert_eq!(names(&disk), ["/a"]);
    file.write_at(&[1; 100], 0).unwrap();
    assert_eq!(kind(file.write_at(&[2; 60], 95)), io::ErrorKind::StorageFull);
    assert_eq!(disk.used_bytes(), 150);
    assert_eq!(disk.read_file("/a").unwrap()[95..], [2; 55]);
    assert_eq!(kind(disk.create(path("/b"), 0)), io::ErrorKind::StorageFull);
    assert_eq!(kind(disk.create_dir_all(path("/folder"))), io::ErrorKind::StorageFull);
    assert_eq!(kind(disk.try_lock(path("/lock"), 0)), io::ErrorKind::StorageFull);
    file.write_at(&[3; 150], 0).unwrap();
    disk.clear_faults();
    disk.create(path("/b"), 51).unwrap();
}

#[test]
fn a_read_only_disk_is_read_and_not_changed() {
    let (disk, file) = with_file("/a", 4);
    let before = disk.dump();
    disk.inject(Fault::ReadOnly);
    for answer in [
        file.write_at(b"x", 0),
        disk.create(path("/b"), 0).map(drop),
        disk.create_dir_all(path("/folder")),
        disk.rename(path("/a"), path("/b")),
        disk.hard_link(path("/a"), path("/b")),
        disk.remove_file(path("/a")),
        disk.try_lock(path("/a"), 0).map(drop),
        disk.open(path("/a"), Access::Write).map(drop),
    ] {
        assert_eq!(kind(answer), io::ErrorKind::ReadOnlyFilesystem);
    }
    let mut buf = [1; 4];
    assert_eq!(disk.open(path("/a"), Access::Read).unwrap().read_at(&mut buf, 0).unwrap(), 4);
    assert_eq!(disk.dump(), before);
}

#[test]
fn the_nth_call_fails_once_and_a_short_write_keeps_its_beginning() {
    let (disk, file) = with_file("/a", 0);
    disk.inject(Fault::FailNth { op: Op::Write, nth: 2, error: io::ErrorKind::TimedOut });
    disk.inject(Fault::ShortWrite { nth: 3, bytes: 2 });
    file.write_at(b"one", 0).unwrap();
    assert_eq!(kind(file.write_at(b"two", 0)), io::ErrorKind::TimedOut);
    assert!(file.write_at(b"six", 0).is_err());
    file.write_at(b"!", 3).unwrap();
    assert_eq!(disk.read_file("/a").unwrap(), b"sie!");
}

#[test]
fn a_process_dies_in_the_middle_of_a_write_and_looking_is_not_counted() {
    let (disk, file) = with_file("/a", 4);
    let process = disk.process();
    disk.inject(Fault::Die { nth: 2, bytes: 2 });
    file.write_at(b"one", 0).unwrap();
    assert!(process.list(path("/")).is_ok() && file.len().is_ok());
    assert!(file.write_at(b"two", 0).is_err());
    assert_eq!(disk.read_file("/a").unwrap(), b"twe\0");
    assert!(process.list(path("/")).is_err() && file.len().is_err());
    assert!(disk.list(path("/")).is_ok());
}

#[test]
fn a_process_that_dies_in_a_sync_leaves_the_kernel_its_work() {
    let (disk, file) = with_file("/a", 4);
    file.write_at(b"one", 0).unwrap();
    disk.inject(Fault::Die { nth: 1, bytes: 0 });
    assert!(file.sync_data().is_err());
    disk.open(path("/a"), Access::Read).unwrap().sync_data().unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(disk.read_file("/a").unwrap(), b"one\0");
}

#[test]
fn what_a_failed_sync_left_is_not_saved_by_the_next_one() {
    let (disk, file) = with_file("/a", 2 * PAGE as u64);
    file.write_at(b"first", 0).unwrap();
    disk.inject(Fault::FailNth { op: Op::SyncData, nth: 1, error: io::ErrorKind::Other });
    assert!(file.sync_data().is_err());
    file.write_at(b"second", PAGE as u64).unwrap();
    file.sync_data().unwrap();
    assert_eq!(&disk.read_file("/a").unwrap()[..5], b"first");
    disk.crash(CrashKind::PowerLosingAll);
    let bytes = disk.read_file("/a").unwrap();
    assert_eq!(&bytes[..5], &[0; 5]);
    assert_eq!(&bytes[PAGE..PAGE + 6], b"second");
}

#[test]
fn a_failed_sync_is_told_once_to_each_handle_that_was_open() {
    let (disk, file) = with_file("/a", 1);
    disk.hard_link(path("/a"), path("/b")).unwrap();
    let other = disk.open(path("/b"), Access::Read).unwrap();
    file.write_at(b"x", 0).unwrap();
    disk.inject(Fault::FailNth { op: Op::SyncData, nth: 1, error: io::ErrorKind::Other });
    assert!(other.sync_data().is_err());
    assert!(other.sync_data().is_ok());
    assert!(disk.open(path("/a"), Access::Read).unwrap().sync_data().is_ok());
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_ok());
}

#[test]
fn a_page_written_back_early_can_survive_in_its_older_state() {
    let survived = (0..50).any(|seed| {
        let (disk, file) = with_file("/a", PAGE as u64);
        file.write_at(b"1", 0).unwrap();
        disk.write_back(seed);
        file.write_at(b"2", 1).unwrap();
        disk.crash(CrashKind::PowerLosingAll);
        disk.read_file("/a").unwrap().starts_with(b"1\0")
    });
    assert!(survived);
}

#[test]
fn a_name_written_back_early_is_consistent_with_a_later_sync() {
    for seed in 0..50 {
        let disk = MemoryStorage::new();
        disk.write_file("/a", "1").unwrap();
        disk.write_file("/t", "2").unwrap();
        disk.remove_file(path("/a")).unwrap();
        disk.rename(path("/t"), path("/a")).unwrap();
        disk.hard_link(path("/a"), path("/t")).unwrap();
        disk.write_back(seed);
        disk.remove_file(path("/t")).unwrap();
        disk.sync_dir(path("/")).unwrap();
        let before = disk.dump();
        disk.crash(CrashKind::PowerLosingAll);
        assert_eq!(disk.dump(), before);
    }
}

#[test]
fn the_trace_tells_calls_in_their_order() {
    let disk = MemoryStorage::new();
    disk.create(path("/t"), 1).unwrap().sync_data().unwrap();
    disk.rename(path("/t"), path("/a")).unwrap();
    disk.sync_dir(path("/")).unwrap();
    let expected: Vec<(Op, PathBuf)> =
        [(Op::Create, "/t"), (Op::SyncData, "/t"), (Op::Rename, "/a"), (Op::SyncDir, "/")]
            .map(|(op, path)| (op, path.into()))
            .into();
    assert_eq!(disk.trace(), expected);
    assert_eq!(disk.take_trace(), expected);
    assert!(disk.trace().is_empty());
}

#[test]
fn a_file_is_changed_behind_the_engines_back() {
    let (disk, file) = with_file("/a", 8);
    disk.mutate_file("/a", |bytes| bytes[5] = 9).unwrap();
    disk.write_file("/deep/er/b", "b").unwrap();
    disk.crash(CrashKind::PowerLosingAll);
    assert_eq!(disk.read_file("/a").unwrap(), [0, 0, 0, 0, 0, 9, 0, 0]);
    assert_eq!(disk.read_file("/deep/er/b").unwrap(), b"b");
    assert_eq!(kind(disk.mutate_file("/none", |_| ())), io::ErrorKind::NotFound);
    assert!(file.len().is_err());
}

#[test]
fn a_page_that_was_not_synced_is_torn_at_its_sectors_or_at_any_byte_and_what_was_synced_stays() {
    let (mut at_sectors, mut at_bytes) = (false, false);
    for seed in 0..300 {
        let (disk, file) = with_file("/a", PAGE as u64);
        file.write_at(&[1; 100], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(path("/")).unwrap();
        file.write_at(&[2; PAGE - 100], 100).unwrap();
        disk.crash(CrashKind::Power { seed });
        let bytes = disk.read_file("/a").unwrap();
        assert_eq!(bytes[..100], [1; 100], "seed {seed}");
        let tail = &bytes[100..];
        assert!(tail.iter().all(|byte| [0, 2].contains(byte)), "seed {seed}");
        let tears: Vec<usize> = (101..PAGE).filter(|at| bytes[*at] != bytes[at - 1]).collect();
        let is_at_sectors = tears.iter().all(|at| at % 512 == 0);
        at_sectors |= !tears.is_empty() && is_at_sectors;
        at_bytes |= !is_at_sectors;
    }
    assert!(at_sectors && at_bytes);
}
