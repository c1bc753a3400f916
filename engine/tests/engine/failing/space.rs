//! The space that a log needs on a full disk: smaller segments, and the space that a start record
//! reserves for a recovery of its call.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, Fault, FileStorage, MemoryStorage, Op, Storage};
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{
    BackgroundSync, Durability, Error, ExecutionState, ResourceRegistry, Session, Store, StoreOptions,
};
use foldlog_test_support::crash::{BOOT, Machine, Mortal, count, step, write_steps};
use foldlog_test_support::host::{Noted, Plan, types};
use foldlog_test_support::loop_disk::LoopDisk;

use super::LEVELS;

fn runner(session: &Session) -> ToolRunner {
    let resources = ResourceRegistry::builder().build().unwrap();
    ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new())
}

/// Returns options with default segments, which double in size.
fn options_on(storage: Arc<dyn Storage>, durability: Durability) -> StoreOptions {
    StoreOptions {
        storage,
        durability,
        seed: Some(7),
        segments: SegmentSizes { max_bytes: 4 << 20, ..SegmentSizes::default() },
        image_bytes_min: u64::MAX,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    }
}

fn store_on(storage: Arc<dyn Storage>, root: &Path, durability: Durability) -> Store {
    Store::open_with(root.join("store"), options_on(storage, durability)).unwrap()
}

fn is(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// The next segment was to be as large as all records before it. If that did not fit, no smaller
/// one was tried: on a disk of 12 MB a record was refused with 8.4 MB free, and again after 500 KB
/// more were freed.
#[test]
fn a_disk_is_full_only_when_no_segment_fits_any_more() {
    let disk = MemoryStorage::new();
    let session =
        store_on(Arc::new(disk.process()), "/home".as_ref(), Durability::Process).create(&types()).unwrap();
    let fill = |capacity_bytes: u64| {
        disk.clear_faults();
        disk.inject(Fault::DiskFull { capacity_bytes });
        let refused = (0..).find_map(|n| session.dispatch(step(n)).err()).unwrap();
        assert!(matches!(refused, Error::Full { bytes, .. } if bytes <= 8192), "{refused}");
        let left = capacity_bytes - disk.used_bytes();
        assert!(left < 8192, "{left} of {capacity_bytes} bytes are left, and yet: {refused}");
    };
    fill(12 << 20);
    let before = count(&session);
    fill((12 << 20) + (500 << 10));
    assert!(count(&session) - before > (400 << 10) / 440, "{before}, then {}", count(&session));
    disk.clear_faults();
    let id = session.id();
    session.close().unwrap();
    let machine = store_on(Arc::new(disk.process()), "/home".as_ref(), Durability::Process);
    write_steps(&machine.open_session(id, &types()).unwrap(), 100);
}

/// The next segment, preallocated or tried for, took the rest of the disk while an object was
/// written, which was then refused: on a tmpfs of 10 MB that had 2.5 MB free a moment later.
#[test]
fn what_was_made_ahead_gives_its_room_to_an_object() {
    let disk = MemoryStorage::new();
    let store = store_on(Arc::new(disk.process()), "/home".as_ref(), Durability::Process);
    let session = store.create(&types()).unwrap();
    let empty = |disk: &MemoryStorage| {
        let dump = disk.dump().into_iter();
        dump.filter(|(path, bytes)| is(path, "seg") && bytes.iter().all(|byte| *byte == 0))
            .map(|(_, bytes)| bytes.len() as u64)
            .sum::<u64>()
    };
    (0..).find(|n| {
        session.dispatch(step(*n)).unwrap();
        // Reading the disk takes longer than many records.
        n % 500 == 0 && empty(&disk) > 2 << 20
    });
    // The object needs more space than is free next to the preallocated segment.
    disk.inject(Fault::DiskFull { capacity_bytes: disk.used_bytes() + (100 << 10) });
    session.dispatch(Noted { text: "y".repeat(200 << 10) }).unwrap();
    assert_eq!(empty(&disk), 0);
    session.close().unwrap();
}

/// Images kept their space on a full disk, although a session can do without them.
#[test]
fn images_give_their_room_to_records() {
    let disk = MemoryStorage::new();
    let options =
        StoreOptions { image_bytes_min: 1, ..options_on(Arc::new(disk.process()), Durability::Process) };
    let session = Store::open_with("/home/store", options).unwrap().create(&types()).unwrap();
    write_steps(&session, 10_000);
    let images = || {
        let dump = disk.dump().into_iter().filter(|(path, _)| is(path, "image"));
        dump.map(|(_, bytes)| bytes.len()).sum::<usize>()
    };
    assert!(images() > 64 << 10, "{}", images());
    let capacity_bytes = disk.used_bytes();
    disk.inject(Fault::DiskFull { capacity_bytes });
    let refused = (0..).find_map(|n| session.dispatch(step(n)).err()).unwrap();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert_eq!(images(), 0);
    let left = capacity_bytes - disk.used_bytes();
    assert!(left < 8192, "{left} bytes are left");
    // Without images the session still opens.
    let written = count(&session);
    let id = session.id();
    session.close().unwrap();
    let store = store_on(Arc::new(disk.process()), "/home".as_ref(), Durability::Process);
    assert_eq!(count(&store.open_session(id, &types()).unwrap()), written);
}

/// An image under construction took the rest of the disk from concurrent records and objects.
#[test]
fn an_image_leaves_the_disk_its_last_room() {
    let disk = MemoryStorage::new();
    let process: Arc<dyn Storage> = Arc::new(disk.process());
    let session =
        store_on(Arc::clone(&process), "/home".as_ref(), Durability::Process).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 10_000);
    session.close().unwrap();
    let options = StoreOptions { image_bytes_min: 1, ..options_on(process, Durability::Process) };
    let store = Store::open_with("/home/store", options).unwrap();
    // Returns the number of images after a life has ended with this much space.
    let images_with = |room: u64| {
        let session = store.open_session(id, &types()).unwrap();
        write_steps(&session, 1);
        disk.inject(Fault::DiskFull { capacity_bytes: disk.used_bytes() + room });
        session.close().unwrap();
        disk.clear_faults();
        disk.files().iter().filter(|path| is(path, "image")).count()
    };
    assert_eq!(images_with(8 << 20), 0, "one of over 3 MB was written with 8 MB left");
    assert_eq!(images_with(32 << 20), 1);
}

/// Space for the end of a call was reserved in the segment being written, which takes no writes
/// after a kill. On a full disk the call could not be ended, and the session took no writes until
/// space was freed.
#[test]
fn a_call_that_is_cut_short_on_a_full_disk_is_recovered_there() {
    for durability in LEVELS {
        for (steps, nested) in [(0, 0), (3, 0), (40, 1), (150, 3)] {
            cut_short(durability, steps, nested, 16 << 10, CrashKind::Process, Recoveries::Unharmed);
            for sizes in [4096, 16 << 10] {
                for crash in [CrashKind::Process, CrashKind::PowerLosingAll] {
                    // At `Process` a power cut takes the start record too.
                    if durability != Durability::Process || crash == CrashKind::Process {
                        cut_short(durability, steps, nested, sizes, crash, Recoveries::Killed);
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recoveries {
    Unharmed,
    Killed,
}

fn cut_short(
    durability: Durability,
    steps: u64,
    nested: usize,
    first_bytes: u64,
    crash: CrashKind,
    recoveries: Recoveries,
) {
    let what =
        format!("{durability:?}, {steps} steps, {nested} within, segments of {first_bytes}, {crash:?}");
    let machine = Machine::default();
    let options = || {
        let segments = SegmentSizes { first_bytes, max_bytes: 64 << 10, ahead_bytes_min: 0 };
        StoreOptions { segments, ..machine.options(durability) }
    };
    let session = Store::open_with("/home/store", options()).unwrap().create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 5);
    let (outer, call) = (runner(&session), ToolCall::new("write", "{}"));
    let mut operations = vec![outer.begin(&call, &ExecuteOptions::default()).unwrap()];
    for _ in 0..nested {
        let within = outer.within(operations.last().unwrap().context());
        operations.push(within.begin(&call, &ExecuteOptions::default()).unwrap());
    }
    let inside = operations.last().unwrap().context().session().clone();
    write_steps(&inside, steps);
    let full = || {
        machine.disk.clear_faults();
        machine.disk.inject(Fault::DiskFull { capacity_bytes: machine.disk.used_bytes() });
    };
    full();
    // As far as there is space in allocated files.
    let refused = (0..).find_map(|n| inside.dispatch(step(n)).err()).unwrap();
    assert!(matches!(refused, Error::Full { .. }), "{what}: {refused}");
    machine.crash(crash);
    drop((operations, outer, inside, session));

    // Each recovery is killed one step later than the one before, until one completes. Once a
    // recovery has its segment, the reserved space is used: a kill while it writes the end record
    // there is a documented limit.
    let segments = machine.segments(id).len();
    for nth in 1.. {
        full();
        let options = options();
        let process = Arc::clone(&options.storage);
        let session = Store::open_with("/home/store", options).unwrap().open_session(id, &types());
        let session = session.unwrap_or_else(|error| panic!("{what}: {error}"));
        if !session.calls().is_interrupted() {
            // The end record was written before the kill.
            assert!(nth > 1, "{what}");
            break;
        }
        if recoveries == Recoveries::Killed {
            machine.disk.inject(Fault::Die { nth, bytes: 100 });
        }
        let recovered = runner(&session).recover(&ExecuteOptions::default());
        let died = process.list("/".as_ref()).is_err();
        match recovered {
            Ok(recovered) => {
                assert_eq!(recovered.len(), 1, "{what}");
                assert!(
                    !session.calls().is_interrupted() && session.calls().open_operations().is_empty(),
                    "{what}"
                );
                assert_eq!(session.view::<Plan>().unwrap().len(), 5, "{what}");
                break;
            }
            Err(Error::Full { .. }) if !died && machine.segments(id).len() > segments => break,
            Err(error) => assert!(died, "{what}, killed at change {nth}: {error}"),
        }
        machine.crash(crash);
    }
    machine.disk.clear_faults();
    let session = machine.open(id, durability).unwrap();
    runner(&session).recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(session.view::<Plan>().unwrap().len(), 5, "{what}");
    write_steps(&session, 1);
}

/// Space is reserved for a recovery only while one may be needed.
#[test]
fn a_closed_session_keeps_no_space_for_a_recovery() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let kept = |machine: &Machine| {
        machine.disk.files().iter().filter(|path| path.ends_with("recovery.spare")).count()
    };
    let runner = runner(&session);
    assert_eq!(kept(&machine), 0, "nothing was called yet");
    for _ in 0..3 {
        let call = ToolCall::new("write", "{}");
        let operation = runner.begin(&call, &ExecuteOptions::default()).unwrap();
        assert_eq!(kept(&machine), 1);
        operation.end(foldlog::tools::ToolResult::ok("done", "done")).unwrap();
    }
    drop(runner);
    session.close().unwrap();
    assert_eq!(kept(&machine), 0);
}

/// A closed session kept the whole allocation of its last segment: 200 short ones took 8.9 MiB for
/// 3.9 MiB of content.
#[test]
fn a_closed_session_gives_its_room_back_and_takes_it_anew() {
    for storage in [FileStorage::new(), FileStorage::with_positioned_writes()] {
        let directory = tempfile::tempdir().unwrap();
        let store = store_on(Arc::new(storage), directory.path(), Durability::Process);
        let session = store.create(&types()).unwrap();
        let id = session.id();
        let segment = session.dir().join("0000000000.seg");
        let taken = || {
            let found = std::fs::metadata(&segment).unwrap();
            (found.len(), 512 * found.blocks())
        };
        write_steps(&session, 10);
        let (len, blocks) = taken();
        assert!(blocks >= len, "a full disk is found out before a record is written");
        session.close().unwrap();
        let (closed_len, blocks) = taken();
        assert!(closed_len == len && blocks < len, "{blocks} of {len}");
        let session = store.open_session(id, &types()).unwrap();
        assert_eq!(taken().1, blocks, "reading takes none");
        session.dispatch(step(10)).unwrap();
        let (reopened_len, blocks) = taken();
        assert!(reopened_len == len && blocks >= len, "{blocks} of {reopened_len}");
        assert_eq!(session.view::<Plan>().unwrap().len(), 11);
    }
}

/// A session that does not get its space back writes into its allocated files, and then into a new
/// segment.
#[test]
fn a_session_that_was_closed_goes_on_where_the_disk_has_no_room() {
    let machine = Machine::default();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 10);
    session.close().unwrap();
    machine.disk.inject(Fault::FailNth { op: Op::Create, nth: 0, error: ErrorKind::StorageFull });
    let session = machine.open(id, Durability::Process).unwrap();
    let asked = (Op::Create, machine.segments(id).pop().unwrap());
    machine.disk.take_trace();
    session.dispatch(step(10)).unwrap();
    assert!(machine.disk.trace().contains(&asked), "what was given back is allocated before it is written");
    write_steps(&session, 99);
    assert!(machine.segments(id).len() > 1);
    session.close().unwrap();
    assert_eq!(machine.open(id, Durability::Process).unwrap().view::<Plan>().unwrap().len(), 110);
}

/// The same on a disk that is really full: the process is killed within its call, and the next one
/// ends the call without another byte.
#[test]
fn a_call_that_is_cut_short_is_recovered_on_a_disk_that_is_really_full() {
    let disk = match LoopDisk::mounted(16 << 20) {
        Ok(disk) => disk,
        Err(reason) => return foldlog_test_support::skipped(format_args!("no disk of its own: {reason}")),
    };
    for durability in LEVELS {
        let process = Mortal::born(Some(BOOT));
        let store = store_on(Arc::new(process.clone()), &disk.root(), durability);
        let session = store.create(&types()).unwrap();
        let id = session.id();
        write_steps(&session, 50);
        let runner_of = runner(&session);
        let operation = runner_of.begin(&ToolCall::new("write", "{}"), &ExecuteOptions::default()).unwrap();
        write_steps(operation.context().session(), 200);
        let ballast = disk.fill("ballast");
        process.kill();
        drop((operation, runner_of, session, store));

        let process = Mortal::born(Some(BOOT));
        let store = store_on(Arc::new(process.clone()), &disk.root(), durability);
        let session = store.open_session(id, &types()).unwrap();
        assert!(session.calls().is_interrupted());
        let recovered = runner(&session).recover(&ExecuteOptions::default());
        let recovered = recovered.unwrap_or_else(|error| panic!("{durability:?}: {error}"));
        assert_eq!((recovered.len(), session.view::<Plan>().unwrap().len()), (1, 50), "{durability:?}");
        session.close().unwrap();
        std::fs::remove_file(ballast).unwrap();
        let session = store.open_session(id, &types()).unwrap();
        assert_eq!(session.view::<Plan>().unwrap().len(), 50, "{durability:?}");
        session.close().unwrap();
        store.delete(id).unwrap();
    }
}

/// Returns the number of segments of a session that this process has mapped.
fn mapped_segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/not-mapped-here/") && line.contains(".seg")).count()
}

/// On a copy-on-write file system allocated space is not guaranteed: a full disk was no error but a
/// signal that killed the host. Skipped, with the reason printed, if the machine has no such file
/// system.
#[test]
fn nothing_is_mapped_on_a_disk_that_copies_on_write() {
    let disk = match LoopDisk::mounted_as("mkfs.btrfs", &["-q", "-f", "-M"], 128 << 20) {
        Ok(disk) => disk,
        Err(reason) => {
            return foldlog_test_support::skipped(format_args!("no disk that copies on write: {reason}"));
        }
    };
    let root = disk.root().join("not-mapped-here");
    std::fs::create_dir(&root).unwrap();
    let options = || StoreOptions {
        segments: SegmentSizes { max_bytes: 1 << 20, ..SegmentSizes::default() },
        durability: Durability::Process,
        ..StoreOptions::default()
    };
    let store = Store::open_with(root.join("store"), options()).unwrap();
    let session = store.create(&types()).unwrap();
    write_steps(&session, 100);
    assert_eq!(mapped_segments(), 0);
    let id = session.id();
    disk.fill("ballast");
    let mut refused = None;
    for n in 0..100_000 {
        if let Err(error) = session.dispatch(step(n)) {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    println!("the full disk said: {refused}");
    drop(session);
    std::fs::remove_file(disk.root().join("ballast")).unwrap();
    let session = store.open_session(id, &types()).unwrap();
    assert!(session.view::<Plan>().unwrap().len() >= 100);
    session.close().unwrap();
}

#[test]
fn segments_are_mapped_where_the_disk_keeps_what_it_allocates() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("not-mapped-here");
    let store = Store::open(root.join("store")).unwrap();
    let session = store.create(&types()).unwrap();
    write_steps(&session, 1);
    let mapped = mapped_segments();
    let found = rustix::fs::statfs(directory.path()).unwrap().f_type;
    match found as u32 {
        0xef53 | 0x5846_5342 | 0x0102_1994 => assert!(mapped >= 1),
        other => foldlog_test_support::skipped(format_args!(
            "the temporary directory is on a file system of type {other:#x}"
        )),
    }
    session.close().unwrap();
}
