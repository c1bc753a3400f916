//! When images are written, and when they are saved: over many short lives, on a slow disk, and for
//! STATE that is too large for one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, MemoryStorage, Op, Storage as _};
use foldlog::{
    BackgroundSync, Durability, Error, Event, SessionOptions, SessionTypes, Slice, Store, StoreOptions,
};
use foldlog_test_support::Watched;
use foldlog_test_support::host::types;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::step;

/// A store whose images are due after this many bytes.
fn store(directory: &Path, image_bytes_min: u64) -> Store {
    let options =
        StoreOptions { durability: Durability::Process, image_bytes_min, ..StoreOptions::default() };
    Store::open_with(directory, options).unwrap()
}

/// No image was ever written for a session with short lives, since only the bytes of one life
/// counted. The time of 400 clean openings of 600 records each grew with the number of openings,
/// and they left 458 segments.
#[test]
fn a_session_of_many_short_lives_gets_its_images_and_few_segments() {
    const LIVES: u64 = 60;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), 64 << 10);
    let session = store.create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let mut longest = 0;
    for life in 0..LIVES {
        let session = store.open_session(id, &types()).unwrap();
        let report = session.log().recovery();
        assert!(report.closed);
        longest = longest.max(report.records - report.from_image.map_or(0, u64::from));
        for _ in 0..40 {
            session.dispatch(step(&format!("{life} {}", "x".repeat(200)))).unwrap();
        }
        let kept = session.log().position().unwrap() - 39;
        session.rollback_to(kept).unwrap();
        session.close().unwrap();
    }
    let session = store.open_session(id, &types()).unwrap();
    let (records, log_bytes) = (session.log().recovery().records, session.log().bytes());
    // Twice what makes an image due: that is checked when the log is closed or a segment ends.
    assert!(longest < records / 4, "up to {longest} of {records} records were folded");
    assert!(log_bytes > 600_000, "{log_bytes} bytes");
    let named = |end: &str| {
        let names = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.to_str().unwrap().ends_with(end)).count()
    };
    assert!(named(".seg") < 10, "{} segments for {LIVES} lives", named(".seg"));
    assert!(fs::read_dir(dir.join("snapshots")).unwrap().count() <= 2);
}

/// An image was useless after a rollback to before it, and the next one was due only when the log
/// had grown by as much again. Until then each opening folded all records.
#[test]
fn a_rollback_to_before_an_image_makes_the_next_one_due() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), 32 << 10);
    let session = store.create(&types()).unwrap();
    let id = session.id();
    for number in 0..400 {
        session.dispatch(step(&format!("{number} {}", "x".repeat(200)))).unwrap();
    }
    session.close().unwrap();
    for to in [100_u64, 20] {
        let session = store.open_session(id, &types()).unwrap();
        assert!(session.log().recovery().from_image.is_some());
        session.rollback_to(to).unwrap();
        session.dispatch(step("behind")).unwrap();
        session.close().unwrap();
        let report = store.open_session(id, &types()).unwrap().log().recovery().clone();
        assert_eq!(report.from_image.map(u64::from), Some(report.records), "{to}");
    }
}

/// A log that ends with a recovery was said to be durable through its end with an image of that
/// end, and only through the last sync before the recovery without one.
#[test]
fn an_image_of_a_recoverys_end_changes_nothing_that_is_said_of_the_log() {
    let disk = MemoryStorage::new();
    let store = |disk: &MemoryStorage| {
        let options = StoreOptions {
            storage: Arc::new(disk.process()),
            durability: Durability::Process,
            image_bytes_min: 1,
            background: BackgroundSync::Inline,
            ..StoreOptions::default()
        };
        Store::open_with("/store", options).unwrap()
    };
    let session = store(&disk).create(&types()).unwrap();
    let id = session.id();
    session.dispatch(step("one")).unwrap();
    disk.crash(CrashKind::Process);
    let recovering = store(&disk);
    let session = recovering.open_session(id, &types()).unwrap();
    // A fork needs the parent's log to be durable.
    recovering.fork(id, 0_u64, &types(), SessionOptions::default()).unwrap();
    let recovered = disk.dump();
    session.close().unwrap();
    let images = |path: &Path| path.extension().is_some_and(|extension| extension == "image");
    let closed: Vec<_> = disk.dump().into_iter().filter(|(path, _)| images(path)).collect();
    let opened = |with_images: bool| {
        let disk = MemoryStorage::new();
        let files = recovered.iter().filter(|(path, _)| !images(path));
        for (path, bytes) in
            files.chain(closed.iter().map(|(path, bytes)| (path, bytes)).filter(|_| with_images))
        {
            disk.write_file(path, bytes.clone()).unwrap();
        }
        let session = store(&disk).open_session(id, &types()).unwrap();
        (session.log().recovery().from_image.is_some(), session.log().synced_end())
    };
    let ((with_image, synced_end), without) = (opened(true), opened(false));
    assert!(with_image);
    assert_eq!((false, synced_end), without);
}

/// Images were written in the background, or at closing. A session that was repeatedly killed
/// before the background reached it was folded from further back at each opening.
#[test]
fn a_session_that_is_killed_time_and_again_gets_its_images() {
    const LIVES: u64 = 60;
    let disk = MemoryStorage::new();
    let killed = Arc::new((Mutex::new(0), Condvar::new()));
    // The background writes the image of a life only after that life is over.
    let too_late = |life: u64| {
        let (killed, this) = (Arc::clone(&killed), thread::current().id());
        move |_: Op, path: &Path| {
            if thread::current().id() != this && path.to_string_lossy().contains("/snapshots/") {
                let (lives, wait) = (killed.0.lock().unwrap(), Duration::from_secs(60));
                drop(killed.1.wait_timeout_while(lives, wait, |lives| *lives <= life).unwrap());
            }
        }
    };
    let process = |life, background| {
        let options = StoreOptions {
            storage: Arc::new(Watched::new(disk.process(), too_late(life))),
            durability: Durability::Process,
            image_bytes_min: 64 << 10,
            background,
            ..StoreOptions::default()
        };
        Store::open_with("/store", options).unwrap()
    };
    let session = process(0, BackgroundSync::Inline).create(&types()).unwrap();
    let id = session.id();
    session.close().unwrap();
    let mut longest = 0;
    for life in 0..LIVES {
        let session = process(life, BackgroundSync::Thread).open_session(id, &types()).unwrap();
        let report = session.log().recovery();
        assert_eq!(report.closed, life == 0);
        longest = longest.max(report.records - report.from_image.map_or(0, u64::from));
        for _ in 0..40 {
            session.dispatch(step(&format!("{life} {}", "x".repeat(200)))).unwrap();
        }
        let kept = session.log().position().unwrap() - 39;
        session.rollback_to(kept).unwrap();
        disk.crash(CrashKind::Process);
        *killed.0.lock().unwrap() = life + 1;
        killed.1.notify_all();
    }
    let records =
        process(LIVES, BackgroundSync::Inline).open_session(id, &types()).unwrap().log().recovery().records;
    let images = disk.list(&Path::new("/store/sessions").join(id.to_string()).join("snapshots")).unwrap();
    // Each image that a kill interrupted was left under a temporary name.
    assert!(images.len() <= 3, "{images:?}");
    assert!(records > LIVES * 40, "{records}");
    assert!(longest < records / 4, "up to {longest} of {records} records were folded");
}

/// A segment left by a crash has no seal, so each opening from an image walked its frames again:
/// the thousandth opening after a crash took eight times as long as the tenth. A segment shorter
/// than its successor states is still damage.
#[test]
fn what_crashes_left_is_walked_by_one_opening_and_not_by_each() {
    const LIVES: u64 = 40;
    let disk = MemoryStorage::new();
    let process = || {
        let options = StoreOptions {
            storage: Arc::new(disk.process()),
            durability: Durability::Process,
            image_bytes_min: 16 << 10,
            background: BackgroundSync::Inline,
            ..StoreOptions::default()
        };
        Store::open_with("/store", options).unwrap()
    };
    let session = process().create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    for life in 0..LIVES {
        let session = process().open_session(id, &types()).unwrap();
        for _ in 0..40 {
            session.dispatch(step(&format!("{life} {}", "x".repeat(200)))).unwrap();
        }
        // STATE stays small, so that images stay due.
        session.rollback_to(session.log().position().unwrap() - 39).unwrap();
        disk.crash(CrashKind::Process);
    }
    disk.take_trace();
    let report = process().open_session(id, &types()).unwrap().log().recovery().clone();
    assert!(report.from_image.is_some());
    let mut reads = BTreeMap::new();
    for (op, path) in disk.take_trace() {
        let is_segment = path.parent() == Some(&dir) && path.extension().is_some_and(|end| end == "seg");
        if op == Op::Read && is_segment {
            *reads.entry(path).or_insert(0_u64) += 1;
        }
    }
    // Each segment's start, by two reads; those since the last image completely.
    let walked = reads.values().filter(|reads| **reads > 2).count() as u64;
    assert!(reads.len() as u64 >= LIVES && walked < LIVES / 4, "{reads:?}");

    let third = reads.keys().nth(2).unwrap();
    disk.mutate_file(third, |bytes| bytes.truncate(4 << 10)).unwrap();
    let error = process().open_session(id, &types()).unwrap_err();
    let Error::OlderThanSuccessor { segment, .. } = &error else { panic!("{error}") };
    assert_eq!(segment, third);
}

/// The images that a session requests, on a disk that delays them until they are released.
#[derive(Debug, Default)]
struct Images {
    asked: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    /// Positions of the requested images, in order.
    positions: Vec<u64>,
    through: bool,
}

impl Images {
    fn hear(&self, op: Op, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(position) = name.strip_suffix(".image.new").filter(|_| op == Op::Create) {
            self.asked.lock().unwrap().positions.push(position.parse().unwrap());
            self.changed.notify_all();
            self.wait_until(|asked| asked.through);
        }
    }

    fn wait_until(&self, done: impl Fn(&Asked) -> bool) {
        let asked = self.asked.lock().unwrap();
        let (asked, timeout) =
            self.changed.wait_timeout_while(asked, Duration::from_secs(60), |asked| !done(asked)).unwrap();
        assert!(!timeout.timed_out(), "{asked:?}");
    }

    fn let_through(&self) {
        self.asked.lock().unwrap().through = true;
        self.changed.notify_all();
    }
}

/// Each segment's end added an image with the STATE of that moment to the queue. Under dispatches
/// and rollbacks at full speed this took 21 GB of memory within 110 s.
#[test]
fn at_most_one_image_of_a_session_waits_to_be_written() {
    let disk = MemoryStorage::new();
    let images = Arc::new(Images::default());
    let hearing = Arc::clone(&images);
    let slow = Watched::new(disk.clone(), move |op, path| hearing.hear(op, path));
    let options = StoreOptions {
        storage: Arc::new(slow),
        durability: Durability::Process,
        segments: SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: u64::MAX },
        image_bytes_min: 1,
        ..StoreOptions::default()
    };
    let store = Store::open_with("/store", options).unwrap();
    let session = store.create(&types()).unwrap();
    let write = |segments: u64| {
        for _ in 0..segments {
            let before = session.log().position().unwrap();
            for _ in 0..6 {
                session.dispatch(step(&"x".repeat(1_000))).unwrap();
            }
            session.rollback_to(before).unwrap();
        }
    };
    write(3);
    images.wait_until(|asked| asked.positions.len() == 1);
    // The background is blocked while a hundred segments are written.
    write(100);
    let behind = session.log().position().unwrap();
    images.let_through();
    // The next image is captured once that one is written, and contains all records so far.
    let asked = |nth: usize| images.asked.lock().unwrap().positions.get(nth).copied();
    while asked(1).is_none() && session.log().bytes() < 64 << 20 {
        write(1);
    }
    assert!(asked(1).is_some_and(|position| position > behind.get()), "{images:?}, {behind}");
    session.sync().unwrap();
    session.close().unwrap();
    let images = disk.files().into_iter().filter(|path| path.to_str().unwrap().ends_with(".image"));
    assert!((1..=2).contains(&images.count()));
}

/// An event that is 60 MiB in the log and nothing in memory.
#[derive(Debug, Clone)]
struct Vast;

impl Serialize for Vast {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&vec![7; 60 << 20])
    }
}

impl<'de> Deserialize<'de> for Vast {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Vast)
    }
}

impl Event for Vast {
    const NAME: &'static str = "vast";
}

struct Vasts;

impl Slice for Vasts {
    const NAME: &'static str = "vasts";
    type Item = Vast;
}

/// No opening reads an image over a gibibyte. It was encoded completely and then discarded: closing
/// a session with 3.2 GiB of STATE took 14.5 s and 13.8 GB of memory.
#[test]
fn of_an_image_that_would_be_too_large_nothing_is_written_or_read() {
    let disk = MemoryStorage::new();
    let options = StoreOptions {
        storage: Arc::new(disk.clone()),
        durability: Durability::Process,
        image_bytes_min: 1,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    let store = Store::open_with("/store", options).unwrap();
    let types = SessionTypes::builder().slice::<Vasts>().append_all::<Vasts>().build().unwrap();
    let session = store.create(&types).unwrap();
    // All of them are one object.
    for _ in 0..20 {
        session.dispatch(Vast).unwrap();
    }
    disk.take_trace();
    session.close().unwrap();
    let trace = disk.take_trace();
    let called = |op: Option<Op>, part: &str| {
        let of_op = trace.iter().filter(|(other, _)| op.is_none_or(|op| op == *other));
        of_op.filter(|(_, path)| path.to_str().unwrap().contains(part)).count()
    };
    assert_eq!(called(Some(Op::Read), "/objects/"), 0, "{trace:?}");
    assert_eq!(called(None, ".image"), 0, "{trace:?}");
}
