//! Shows that the bucket also drops the bodies that a compaction dropped, and that later readers
//! get the same content as the local log.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use foldlog::inspect::LogReader;
use foldlog::replication::{Replication, Replicator};
use foldlog::{CompactOptions, CompactReport, Error, ObjectId, Record, RecordKind, Store, StoreOptions};
use foldlog_codec::body::{Observed, Payload};
use foldlog_remote::object_store::local::LocalFileSystem;
use foldlog_remote::{CollectOptions, CollectReport, MIN_AGE, ObjectReplicator, Remote};
use tempfile::TempDir;
use uuid::Uuid;

use crate::bucket::retries;
use crate::directories;
use crate::lineages::{types, write};

/// A directory that is a bucket, and the directories of three workers.
struct World {
    bucket: TempDir,
    workers: [TempDir; 3],
    id: Uuid,
    /// Longest payload within a record.
    object_bytes_min: u64,
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.flat_map(|entry| below(entry.unwrap().path())).collect()
}

impl World {
    /// Makes a session that worker 0 wrote, with a chunk for each draft, and closed.
    fn new(drafts: u64) -> World {
        World::with_objects(drafts, StoreOptions::default().object_bytes_min)
    }

    fn with_objects(drafts: u64, object_bytes_min: u64) -> World {
        let directory = || tempfile::tempdir().unwrap();
        let workers = [(); 3].map(|()| directory());
        let world = World { bucket: directory(), workers, id: Uuid::nil(), object_bytes_min };
        let session = world.store(0).create(&types()).unwrap();
        for draft in 0..drafts {
            write(&session, draft..draft + 1);
            session.sync().unwrap();
        }
        let id = session.id();
        session.close().unwrap();
        World { id, ..world }
    }

    fn remote(&self) -> Remote {
        let store = LocalFileSystem::new_with_prefix(self.bucket.path()).unwrap();
        Remote::new(Arc::new(store), "team", retries()).unwrap()
    }

    fn store_in(&self, directory: &Path, name: &str) -> Store {
        let store = Arc::new(LocalFileSystem::new_with_prefix(self.bucket.path()).unwrap());
        let replicator = ObjectReplicator::new(store, "team", name, retries()).unwrap();
        let replication = Some(Replication::new(Arc::new(replicator.without_lease())));
        let object_bytes_min = self.object_bytes_min;
        Store::open_with(directory, StoreOptions { replication, object_bytes_min, ..StoreOptions::default() })
            .unwrap()
    }

    fn store(&self, worker: usize) -> Store {
        self.store_in(self.workers[worker].path(), &format!("worker {worker}"))
    }

    /// Directory of the session's objects.
    fn held(&self) -> PathBuf {
        self.bucket.path().join(format!("team/sessions/{}", self.id))
    }

    /// Makes every object of the session older than a volume has to be.
    fn grow_old(&self) {
        for path in files(&self.held()) {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - MIN_AGE - Duration::from_secs(60)).unwrap();
        }
    }

    fn collect(&self) -> CollectReport {
        self.remote().collect(self.id, CollectOptions::default()).unwrap()
    }

    fn compact(&self) -> CompactReport {
        self.store(0).compact(self.id, &CompactOptions::default()).unwrap()
    }

    /// Returns the drafts that any object in the bucket contains.
    fn drafts_held(&self, drafts: u64) -> Vec<u64> {
        let objects: Vec<Vec<u8>> = files(&self.held()).iter().map(|path| fs::read(path).unwrap()).collect();
        let stands = |draft: &u64| {
            let text = format!("draft {draft}: and so on");
            objects.iter().any(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
        };
        (0..drafts).filter(stands).collect()
    }

    fn dir(&self, worker: usize) -> PathBuf {
        self.store(worker).session_dir(self.id)
    }

    /// Compares the log of a worker with that of worker 0, and the state at each position.
    #[track_caller]
    fn assert_alike(&self, worker: usize) {
        let log = |worker| LogReader::open(self.dir(worker)).unwrap();
        let (own, made) = (log(0), log(worker));
        made.check_seals().unwrap();
        let last = own.last_position();
        assert_eq!(made.last_position(), last);
        assert_eq!(made.digest_through(last).unwrap(), own.digest_through(last).unwrap());
        let (mut known, mut unknown) = (0, 0);
        for position in 0..=last.get() {
            match (own.state_reader_at(position), made.state_reader_at(position)) {
                (Ok(own), Ok(made)) => {
                    known += 1;
                    assert_eq!(own.digest().unwrap(), made.digest().unwrap(), "at {position}");
                }
                (Err(Error::Compacted { earliest: own, .. }), Err(Error::Compacted { earliest, .. })) => {
                    unknown += 1;
                    assert_eq!(own, earliest, "at {position}");
                }
                // The worker still knows positions whose bodies are in the place.
                (Err(Error::Compacted { .. }), Ok(_)) => {}
                (own, made) => panic!("at {position}: {:?}, {:?}", own.err(), made.err()),
            }
        }
        assert!(known > 8 && unknown > 100, "{known} known, {unknown} not");
    }
}

#[test]
fn bodies_that_a_compaction_dropped_go_from_the_bucket_once_their_chunks_are_collected() {
    let world = World::new(220);
    let everything = (0..220).collect::<Vec<u64>>();
    assert_eq!(world.drafts_held(220), everything);
    // No record states that bodies were dropped.
    world.grow_old();
    assert_eq!(world.collect().dropped, 0);
    let compacted = world.compact();
    assert!(compacted.dropped > 150, "{compacted:?}");
    // The last drafts are in chunks that are in no volume yet.
    let dry = {
        let mut options = CollectOptions::default();
        options.dry_run = true;
        world.remote().collect(world.id, options).unwrap()
    };
    assert_eq!(world.drafts_held(220), everything);
    let report = world.collect();
    assert_eq!((report.dropped, report.dropped_bytes), (dry.dropped, dry.dropped_bytes));
    assert!(report.dropped > 120 && report.waiting > 0, "{report:?}");
    assert_eq!(report.dropped + report.waiting, compacted.dropped);
    assert!(report.dropped_bytes > 200 * report.dropped, "{report:?}");
    let left = world.drafts_held(220);
    assert!(left.len() < 110, "{left:?}");
    assert!(!left.contains(&2) && left.contains(&219));
    let again = world.collect();
    assert_eq!((again.dropped, again.dropped_bytes, again.waiting), (0, 0, report.waiting));

    // A reader gets the same content as the compacted log.
    assert!(world.store(1).pull(world.id).unwrap().new > 0);
    world.assert_alike(1);
    // The writer continues, and is taken over.
    let session = world.store(0).open_session(world.id, &types()).unwrap();
    write(&session, 220..230);
    session.close().unwrap();
    let session = world.store(2).take_over(world.id, &types()).unwrap();
    let (back, last) = (session.log().snapshots().unwrap()[0].position, session.log().position().unwrap());
    session.rollback_to(back).unwrap();
    session.rollback_to(last).unwrap();
    write(&session, 230..240);
    session.close().unwrap();
    let refused = world.store(0).open_session(world.id, &types());
    assert!(matches!(refused, Err(Error::ReplicaAhead { .. } | Error::Superseded { .. })), "{refused:?}");
    assert!(LogReader::open(world.dir(2)).unwrap().check_seals().is_ok());
}

#[test]
fn payloads_that_only_dropped_bodies_named_go_too_and_no_other_is_missed_by_anybody() {
    let world = World::with_objects(220, 60);
    world.grow_old();
    world.collect();
    world.compact();
    let (held, payloads) = (world.held(), world.held().join("objects"));
    let report = world.collect();
    // Their bodies are dropped now, and named them until then.
    assert!(report.dropped > 120 && report.payloads_left == 0, "{report:?}");
    let before = files(&payloads).len();
    assert!(before >= 220, "{before}");
    world.grow_old();
    let report = world.collect();
    assert!(report.payloads == 0 && report.payloads_left > 120, "{report:?}");
    assert_eq!(files(&payloads).len(), before);
    assert_eq!(files(&held.join("withdrawn")).len(), 1);
    // A day later. Readers and writers meanwhile have all payloads that they need.
    world.store(1).pull(world.id).unwrap();
    let session = world.store(0).open_session(world.id, &types()).unwrap();
    write(&session, 0..4);
    session.sync().unwrap();
    world.grow_old();
    let left = report.payloads_left;
    let report = world.collect();
    assert!(report.payloads + 4 >= left && report.payload_bytes > 60 * report.payloads, "{report:?}");
    write(&session, 220..230);
    session.close().unwrap();
    world.store(1).pull(world.id).unwrap();
    world.assert_alike(1);
    let session = world.store(2).take_over(world.id, &types()).unwrap();
    let back = session.log().snapshots().unwrap()[0].position;
    session.rollback_to(back).unwrap();
    write(&session, 2..8);
    session.close().unwrap();
    let log = LogReader::open(world.dir(2)).unwrap();
    log.check_seals().unwrap();
    // The fourth draft's payload is stored under its second name.
    let again = files(&payloads).iter().filter(|path| path.extension().is_some()).count();
    assert!(again > 0, "{again}");
}

/// Calls a replicator as the engine does, with a pause between a payload and the record that names
/// it.
#[test]
fn a_replicator_that_was_paused_puts_payloads_again_that_were_removed_meanwhile() {
    let world = World::new(1);
    let hours = Arc::new(AtomicU64::new(0));
    let worker = |name: &str| {
        let store = Arc::new(LocalFileSystem::new_with_prefix(world.bucket.path()).unwrap());
        let replicator = ObjectReplicator::new(store, "team", name, retries()).unwrap();
        let clock = Arc::clone(&hours);
        replicator
            .without_lease()
            .with_clock(move || Duration::from_secs(3_600 * clock.load(Ordering::Relaxed)))
    };
    let claim = |replicator: &ObjectReplicator| {
        let next = replicator.read(world.id, &mut |_| {}).unwrap().next;
        (next, replicator.claim(world.id, next).unwrap())
    };
    let append = |replicator: &ObjectReplicator, epoch, sequence, bytes: &[u8]| {
        let data = ObjectId::from_content(bytes).reference();
        let body = Observed { name: "n".to_owned(), data: Payload::new(&data) }.encode();
        let record = Record { sequence, kind: RecordKind::Observed, time_us: 0, body: &body };
        replicator.append(world.id, epoch, None, &[record])
    };
    let put = |replicator: &ObjectReplicator, bytes: &[u8]| {
        replicator.put_object(world.id, ObjectId::from_content(bytes), bytes).unwrap();
    };
    let names = |bytes: &[u8]| {
        let hash = ObjectId::from_content(bytes).file_name();
        files(&world.held().join("objects"))
            .iter()
            .filter(|path| path.display().to_string().contains(&hash))
            .count()
    };
    let (paused, stays) = (worker("paused"), b"withdrawn, and there yet");
    let (next, epoch) = claim(&paused);
    put(&paused, stays);
    world.grow_old();
    assert_eq!(world.collect().payloads_left, 1);
    hours.fetch_add(13, Ordering::Relaxed);
    append(&paused, epoch, next, stays).unwrap();
    assert_eq!(names(stays), 2, "put once more, under a name that was not withdrawn");
    let goes = b"removed meanwhile";
    put(&paused, goes);
    for left in [1, 0] {
        world.grow_old();
        assert_eq!(world.collect().payloads_left, left);
    }
    assert_eq!((names(goes), names(stays)), (0, 2));
    hours.fetch_add(49, Ordering::Relaxed);
    append(&paused, epoch, next + 1, goes).unwrap();
    assert_eq!(names(goes), 1, "put once more");
    let other = worker("other");
    claim(&other);
    for bytes in [&stays[..], goes] {
        assert_eq!(other.get_object(world.id, ObjectId::from_content(bytes)).unwrap(), bytes);
    }
}

#[test]
fn what_is_dropped_later_goes_later_and_nothing_comes_back() {
    let world = World::new(150);
    world.grow_old();
    world.compact();
    let first = world.collect();
    assert!(first.dropped > 0 && first.waiting > 0, "{first:?}");
    let session = world.store(0).open_session(world.id, &types()).unwrap();
    for draft in 150..300 {
        write(&session, draft..draft + 1);
        session.sync().unwrap();
    }
    session.close().unwrap();
    world.grow_old();
    // Bodies that were dropped before, of chunks that are collected now.
    let second = world.collect();
    assert!(second.dropped > 0 && second.waiting == 0, "{second:?}");
    let more = world.compact();
    let third = world.collect();
    assert!(more.dropped > 100 && third.dropped > 80, "{more:?} {third:?}");
    world.store(1).pull(world.id).unwrap();
    world.assert_alike(1);
    let left = world.drafts_held(300);
    assert!((0..140).filter(|draft| left.contains(draft)).count() < 10, "{left:?}");
    // The objects of earlier compactions are removed.
    let newest = world.held().join("compacted/00000000000000000003");
    assert!(files(&world.held().join("compacted")).iter().all(|path| path.starts_with(&newest)));
    assert_eq!(files(&world.held().join("compactions")).len(), 3);
}

#[test]
fn nobody_goes_back_to_what_the_bucket_may_have_dropped_whatever_its_own_log_has() {
    let world = World::new(150);
    // Taken over before anything is removed, with all bodies.
    world.compact();
    world.grow_old();
    let session = world.store(1).take_over(world.id, &types()).unwrap();
    let kept = session.log().snapshots().unwrap()[0].position;
    assert!(LogReader::open(session.dir()).unwrap().compacted_ranges().is_empty(), "it has all bodies");
    for back in [20_u64, 50, 100] {
        assert!(back != kept.get());
        let refused = session.rollback_to(back);
        assert!(matches!(refused, Err(Error::Compacted { .. })), "{refused:?}");
    }
    session.rollback_to(kept).unwrap();
    write(&session, 150..160);
    session.close().unwrap();
    // A user rolled back to such a position in a store without its replicator, and replicated that
    // later. Then the session could not be read any more.
    let options = StoreOptions { unreplicated: true, ..StoreOptions::default() };
    let alone = Store::open_with(world.workers[1].path(), options).unwrap();
    let session = alone.open_session(world.id, &types()).unwrap();
    let refused = session.rollback_to(20_u64);
    assert!(matches!(refused, Err(Error::Compacted { .. })), "{refused:?}");
    session.rollback_to(kept).unwrap();
    session.close().unwrap();
    world.store(1).open_session(world.id, &types()).unwrap().close().unwrap();
    assert!(world.collect().dropped > 0);
    let session = world.store(2).take_over(world.id, &types()).unwrap();
    session.close().unwrap();

    // An older copy of the log, with all bodies, gets its missing records back, including that one.
    let world = World::new(150);
    let older = tempfile::tempdir().unwrap();
    directories::copy(world.workers[0].path(), older.path());
    world.compact();
    world.grow_old();
    assert!(world.collect().dropped > 0);
    let session = world.store_in(older.path(), "worker 0").open_session(world.id, &types()).unwrap();
    assert!(LogReader::open(session.dir()).unwrap().compacted_ranges().is_empty(), "it has all bodies");
    let refused = session.rollback_to(20_u64);
    assert!(matches!(refused, Err(Error::Compacted { .. })), "{refused:?}");
    write(&session, 150..160);
    session.close().unwrap();
    world.store(2).take_over(world.id, &types()).unwrap().close().unwrap();
}
