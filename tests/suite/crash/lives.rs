//! Many short lives of one session, each ended by a kill: how much of the disk they take, and how
//! much of it survives.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::{BackgroundSync, Durability, Error, Session, SessionOptions, Store, StoreOptions};
use foldlog_test_support::crash::{BOOT, Machine, Mortal, OTHER_BOOT, count, write_steps};
use foldlog_test_support::host::{Plan, types};
use uuid::Uuid;

/// Lives in a normal run.
const LIVES: u64 = 60;

/// Dispatches in each life.
const RECORDS: u64 = 20;

/// The limit on a life's disk space besides its records, which count twice: as first written and as
/// the recovery rewrote them. It covers the last pages of two segments and their first frames.
const LIFE_BYTES_MAX: u64 = 16 << 10;

/// The limit on additional reads of an opening: pages that the last writer allocated ahead and left
/// empty.
const AHEAD_BYTES_MAX: u64 = 512 << 10;

/// The limit on the files of a life: the recovery's segment and the next one.
const LIFE_FILES_MAX: u64 = 2;

const LEVELS: [Durability; 3] = [Durability::Process, Durability::Boundary, Durability::Every];

/// A session on real files, and the process that has it open.
struct Life {
    process: Mortal,
    session: Session,
}

impl Life {
    fn of(store: &Path, durability: Durability, id: Option<Uuid>) -> Life {
        let process = Mortal::born(Some(BOOT));
        let options = StoreOptions {
            storage: Arc::new(process.clone()),
            durability,
            seed: Some(7),
            // Only the log itself is measured, so no images are written.
            image_bytes_min: u64::MAX,
            background: BackgroundSync::Inline,
            ..StoreOptions::default()
        };
        let store = Store::open_with(store, options).unwrap();
        let session = match id {
            Some(id) => store.open_session(id, &types()).unwrap(),
            None => store.create_with(&types(), SessionOptions::default()).unwrap(),
        };
        Life { process, session }
    }

    /// Kills the process: its handles are dropped and can no longer change the disk.
    fn end(self) {
        self.process.kill();
        drop(self.session);
    }
}

/// Returns the disk space and the number of files that a session takes.
fn size(dir: &Path) -> (u64, u64) {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files
        .filter(fs::Metadata::is_file)
        .fold((0, 0), |(bytes, files), file| (bytes + 512 * file.blocks(), files + 1))
}

/// Each recovery rewrote the whole unattested tail and attested none of it, so the next one rewrote
/// it again: 1,000 lives of 20 records took 8.9 GB for a log of 8.7 MB, and each opening read all
/// of it.
///
/// `FOLDLOG_LIVES=n` runs that many lives at each durability.
#[test]
fn many_short_lives_take_no_more_than_their_records() {
    let lives = super::number_from("FOLDLOG_LIVES").unwrap_or(LIVES);
    for durability in LEVELS {
        many_short_lives(durability, lives);
    }
}

fn many_short_lives(durability: Durability, lives: u64) {
    let directory = tempfile::tempdir().unwrap();
    let first = Life::of(directory.path(), durability, None);
    let (id, dir) = (first.session.id(), first.session.dir().to_owned());
    write_steps(&first.session, RECORDS);
    first.end();
    let mut opening = Vec::new();
    let mut sizes = vec![size(&dir)];
    for _ in 1..lives {
        let life = Life::of(directory.path(), durability, Some(id));
        opening.push(life.process.read().0);
        write_steps(&life.session, RECORDS);
        life.end();
        sizes.push(size(&dir));
    }
    let last = Life::of(directory.path(), durability, Some(id));
    let log_bytes = last.session.log().bytes();
    assert_eq!(last.session.view::<Plan>().unwrap().len() as u64, lives * RECORDS, "{durability:?}");
    let (bytes, files) = *sizes.last().unwrap();
    let read = *opening.last().unwrap();
    eprintln!(
        "{durability:?}: {lives} lives, {log_bytes} bytes of log: {bytes} on the disk, {files} files, {read} read"
    );
    let records = 2 * log_bytes;
    assert!(bytes <= records + lives * LIFE_BYTES_MAX, "{durability:?}: {bytes} bytes for {log_bytes}");
    assert!(files <= lives * LIFE_FILES_MAX, "{durability:?}: {files} files");
    assert!(
        read <= 2 * records + AHEAD_BYTES_MAX,
        "{durability:?}: {read} bytes were read to open {log_bytes}"
    );
    // The second half of the lives leaves about as much as the first.
    let half = sizes[sizes.len() / 2];
    assert!(bytes - half.0 <= half.0 + 4 * LIFE_BYTES_MAX, "{durability:?}: {half:?}, then {bytes}");
    assert!(files - half.1 <= half.1 + 4, "{durability:?}: {half:?}, then {files}");
    let half = opening[opening.len() / 2];
    assert!(read - half <= half + AHEAD_BYTES_MAX, "{durability:?}: {half}, then {read}");
    last.end();
}

/// Six lives wrote 12,000 records; after one wrong byte 407 were left, and an audit found nothing
/// wrong. Five recoveries had synced the records, but no frame had recorded that.
#[test]
fn what_a_recovery_made_durable_is_damaged_and_never_torn_however_the_machine_restarts() {
    for durability in [Durability::Process, Durability::Boundary] {
        let machine = Machine::default();
        let session = machine.process(durability).create(&types()).unwrap();
        let id = session.id();
        write_steps(&session, RECORDS);
        let mut recovered = 0;
        for _ in 1..6 {
            machine.crash(CrashKind::Process);
            let session = machine.open(id, durability).unwrap();
            // The first append makes the tail durable.
            recovered = count(&session);
            write_steps(&session, RECORDS);
            assert!(
                session.log().synced_end() >= recovered.into(),
                "{durability:?}: what was recovered is durable"
            );
        }
        machine.crash(CrashKind::Process);
        let all = count(&machine.open(id, durability).unwrap());
        let frames = machine.frames(id).unwrap();
        let (mut damaged, mut torn) = (0, 0);
        for frame in &frames {
            let machine = machine.copied(OTHER_BOOT);
            let place = frame.start + (frame.end - frame.start) / 2;
            machine.disk.mutate_file(&frame.segment, |bytes| bytes[place] ^= 0x10).unwrap();
            match machine.open(id, durability) {
                Err(Error::Corrupt(_)) => damaged += 1,
                Err(error) => panic!("{durability:?}, record {}: {error}", frame.sequence),
                // Only the last batch, which no recovery has seen, is undetermined.
                Ok(session) => {
                    let left = count(&session);
                    assert!(
                        left >= recovered,
                        "{durability:?}, record {}: {left} of {all} left",
                        frame.sequence
                    );
                    torn += 1;
                }
            }
        }
        assert!(
            damaged > 5 * RECORDS && torn <= 2 * RECORDS,
            "{durability:?}: {damaged} damaged, {torn} torn"
        );
    }
}

/// A recovery attests its segment before the segment has its name. If it was killed before that
/// name was durable, the next process assumed that everything was durable, and its `sync` promised
/// records that a power cut then took.
#[test]
fn what_a_recovery_attests_is_promised_only_once_its_name_is_durable() {
    let mut deaths = 0;
    for nth in 1.. {
        let machine = Machine::default();
        let session = machine.process(Durability::Process).create(&types()).unwrap();
        let id = session.id();
        session.sync().unwrap();
        write_steps(&session, 3);
        let written = count(&session);
        machine.crash(CrashKind::Process);
        let store = machine.process(Durability::Process);
        let session = store.open_session(id, &types()).unwrap();
        machine.disk.inject(Fault::Die { nth, bytes: 0 });
        let died = session.sync().is_err();
        machine.crash(CrashKind::Process);
        machine.disk.clear_faults();
        let session = machine.open(id, Durability::Process).unwrap();
        let all = count(&session);
        assert_eq!(all, written, "call {nth}");
        let known = session.log().synced_end();
        if nth % 2 == 0 {
            session.sync().unwrap();
            assert_eq!(session.log().synced_end(), all, "call {nth}");
        }
        let promised = session.log().synced_end().max(known);
        machine.crash(CrashKind::PowerLosingAll);
        let left = count(&machine.open(id, Durability::Process).unwrap());
        assert!(left >= promised.get(), "call {nth}: {left} of {promised}");
        deaths += u64::from(died);
        if !died && nth % 2 == 0 {
            break;
        }
    }
    assert!(deaths > 5, "{deaths}");
}

/// Successive processes that were killed during recovery each left a copy of the tail.
#[test]
fn recoveries_that_come_to_no_end_leave_no_more_than_one_copy() {
    let machine = Machine::default();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, RECORDS);
    machine.crash(CrashKind::Process);
    let half_built = |machine: &Machine| {
        let files = machine.disk.files().into_iter();
        files.filter(|path| path.to_string_lossy().ends_with(".seg.new")).count()
    };
    for _ in 0..4 {
        let session = machine.open(id, Durability::Process).unwrap();
        machine.disk.inject(Fault::FailNth { op: Op::Rename, nth: 1, error: std::io::ErrorKind::Other });
        assert!(session.set_tag("at", "last").is_err());
        machine.crash(CrashKind::Process);
        machine.disk.clear_faults();
        assert_eq!(half_built(&machine), 1);
    }
    let session = machine.open(id, Durability::Process).unwrap();
    session.set_tag("at", "last").unwrap();
    assert_eq!(half_built(&machine), 0);
}
