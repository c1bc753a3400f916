//! Sessions whose creation was cut short, and which are created again under the same id.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use foldlog::storage::{CrashKind, Fault, Storage};
use foldlog::{
    Clock, Durability, Error, FixedClock, RecordKind, Result, Session, SessionOptions, Store, StoreOptions,
};
use foldlog_codec::segment::SegmentHeader;
use foldlog_test_support::crash::{BOOT, FrameAt, Machine, OTHER_BOOT, count, large_note, step};
use foldlog_test_support::host::{Plan, types};
use uuid::Uuid;

const LEVELS: [Durability; 3] = [Durability::Process, Durability::Boundary, Durability::Every];
const ID: Uuid = Uuid::from_u128(77);

/// The seed is the last field of a first record.
const SEED_THAT_ENDS_WITH_0: u64 = 1 << 32;

fn begin(store: &Store) -> Result<Session> {
    begin_with(store, SEED_THAT_ENDS_WITH_0)
}

fn begin_with(store: &Store, seed: u64) -> Result<Session> {
    let options = SessionOptions { id: Some(ID), seed: Some(seed), ..SessionOptions::default() };
    store.create_with(&types(), options)
}

fn files_of(machine: &Machine) -> BTreeMap<PathBuf, Vec<u8>> {
    machine.disk.dump().into_iter().filter(|(path, _)| path.starts_with(machine.dir(ID))).collect()
}

/// The outcome of creating a session again.
#[derive(Debug, PartialEq)]
enum Again {
    Begun,
    /// The session exists and has this many records.
    There(u64),
    /// No session exists, and creation is refused.
    Refused,
}

/// Creates the session again in a new process with this durability. Checks that the resulting
/// session works, and that the existing files stay unchanged, byte for byte.
fn begin_again(machine: &Machine, durability: Durability) -> Again {
    let found = files_of(machine);
    let there = machine.audit(ID).map(|audit| audit.records_len());
    let (session, again) = match begin(&machine.process(durability)) {
        Ok(session) => {
            assert!(there.is_err(), "a session of {there:?} records was begun over");
            assert_eq!((session.id(), count(&session)), (ID, 1));
            (session, Again::Begun)
        }
        Err(Error::SessionExists { session }) => {
            assert_eq!((session, &files_of(machine)), (ID, &found));
            match there {
                Ok(records) => (machine.open(ID, durability).unwrap(), Again::There(records)),
                Err(_) => return Again::Refused,
            }
        }
        Err(error) => panic!("{error}"),
    };
    let steps = session.view::<Plan>().unwrap().len();
    session.dispatch(step(1)).unwrap();
    // The session needs an object and more than one segment.
    session.dispatch(large_note(1)).unwrap();
    (2..20).try_for_each(|n| session.dispatch(step(n)).map(|_| ())).unwrap();
    let records = count(&session);
    session.close().unwrap();
    let now = files_of(machine);
    if again == Again::Begun {
        // A partly lost object is replaced by the whole one.
        let mut segments = found.iter().filter(|(path, _)| path.parent() == Some(&machine.dir(ID)));
        assert!(segments.all(|(path, bytes)| now.get(path) == Some(bytes)), "nothing is written over");
    }
    machine.crash(CrashKind::PowerLosingAll);
    let session = machine.open(ID, durability).unwrap();
    assert_eq!((count(&session), session.view::<Plan>().unwrap().len()), (records, steps + 19));
    assert!(session.log().recovery().torn.is_none(), "{:?}", session.log().recovery());
    assert_eq!(machine.audit(ID).unwrap().state().unwrap(), session.dynamic().state().unwrap());
    let summary = machine.process(durability).summary(ID).unwrap();
    assert_eq!((summary.records, summary.log_bytes), (records, session.log().bytes()));
    if again == Again::Begun {
        let fork =
            machine.process(durability).fork(ID, records - 1, &types(), SessionOptions::default()).unwrap();
        assert_eq!(fork.view::<Plan>().unwrap().len(), steps + 19);
    }
    again
}

/// The process was killed after it had made a session's directory and before it had written the
/// first record. Until someone deleted it, the session could be neither opened nor created again.
#[test]
fn a_session_whose_beginning_was_cut_short_at_any_step_can_be_begun_again() {
    let mut seen = (0, 0);
    for (durability, bytes) in
        LEVELS.into_iter().flat_map(|durability| [0, 1, 20, 27, 50, 83].map(|n| (durability, n)))
    {
        for nth in 1.. {
            let machine = Machine::default();
            let store = machine.process(durability);
            machine.disk.inject(Fault::Die { nth, bytes });
            let survived = begin(&store).and_then(|session| session.dispatch(step(0)).map(|_| session));
            let done = survived.is_ok();
            machine.crash(CrashKind::Process);
            machine.disk.clear_faults();
            drop((survived, store));
            match begin_again(&machine, durability) {
                Again::Begun => seen.0 += 1,
                Again::There(_) => seen.1 += 1,
                Again::Refused => panic!("{durability:?}, call {nth}, {bytes} bytes of it"),
            }
            if done {
                break;
            }
        }
    }
    assert!(seen.0 > 30 && seen.1 > 10, "{seen:?}");
}

/// Each attempt follows the files of the one before, and the last one counts.
#[test]
fn a_session_can_be_begun_again_after_any_number_of_attempts() {
    for (first, second) in (1..9).flat_map(|first| (1..9).map(move |second| (first, second))) {
        let machine = Machine::default();
        for (nth, bytes) in [(first, 50), (second, 0), (second, 83), (first, 20)] {
            let store = machine.process(Durability::Every);
            machine.disk.inject(Fault::Die { nth, bytes });
            drop(begin(&store));
            machine.crash(CrashKind::Process);
            machine.disk.clear_faults();
        }
        assert_ne!(begin_again(&machine, Durability::Every), Again::Refused, "{first}, {second}");
    }
}

/// A power cut may lose bytes and leave later ones. The lost bytes are unknown, so such files are
/// left alone. If no bytes are left, and no record, the session is created again.
#[test]
fn after_a_power_cut_what_is_no_session_is_begun_again_or_left_alone() {
    let mut seen = (0, 0, 0);
    for (nth, seed) in (1..16).flat_map(|nth| (0..24).map(move |seed| (nth, seed))) {
        let machine = Machine::default();
        let store = machine.process(Durability::Boundary);
        machine.disk.inject(Fault::Die { nth, bytes: 60 });
        let _ = begin(&store).and_then(|session| {
            session.dispatch(large_note(1))?;
            session.sync()
        });
        machine.disk.write_back(seed);
        machine.crash(CrashKind::Power { seed });
        machine.disk.clear_faults();
        match begin_again(&machine, Durability::Boundary) {
            Again::Begun => seen.0 += 1,
            Again::There(_) => seen.1 += 1,
            Again::Refused => seen.2 += 1,
        }
    }
    assert!(seen.0 > 100 && seen.1 > 20 && seen.2 < 60, "{seen:?}");
}

/// Returns a session with only its first record, and its frames.
fn of_one_record(seed: u64) -> (Machine, PathBuf, Vec<u8>, Vec<FrameAt>) {
    let machine = Machine::default();
    let session = begin_with(&machine.process(Durability::Process), seed).unwrap();
    machine.crash(CrashKind::Process);
    drop(session);
    let frames = machine.frames(ID).unwrap();
    // The segment made ahead is a second file.
    let [segment, ahead] = machine.segments(ID).try_into().unwrap();
    machine.disk.remove_file(&ahead).unwrap();
    let bytes = machine.disk.read_file(&segment).unwrap();
    (machine, segment, bytes, frames)
}

#[test]
fn a_first_segment_that_ends_anywhere_before_its_first_record_does_is_a_leftover_and_one_behind_it_is_none() {
    let (whole, segment, bytes, frames) = of_one_record(SEED_THAT_ENDS_WITH_0);
    let opened = frames.iter().find(|frame| frame.kind == RecordKind::Opened).unwrap().end;
    assert_eq!(bytes[opened - 1], 0, "its last byte cannot be told from one that was not written");
    for len in 0..opened + 8 {
        for allocated in [len, bytes.len()] {
            let machine = whole.copied(BOOT);
            let mut cut = bytes[..len.min(allocated)].to_vec();
            cut.resize(allocated, 0);
            let is_there = cut.get(..opened) == Some(&bytes[..opened]);
            machine.disk.write_file(&segment, cut).unwrap();
            let again = begin_again(&machine, Durability::Every);
            let expected = if is_there { Again::There(1) } else { Again::Begun };
            assert_eq!(again, expected, "{len} of {allocated} bytes");
        }
    }
}

/// Like [`begin_again`], for files that are refused, also after a restart of the machine.
fn is_left_alone(what: &str, machine: &Machine) {
    for boot in [BOOT, OTHER_BOOT] {
        let copy = machine.copied(boot);
        // The copy omits directories without files.
        let dir = machine.dir(ID);
        let names = machine.disk.list(&dir).map(|entries| entries.into_iter().map(|entry| entry.name));
        let directories = names.into_iter().flatten().map(|name| dir.join(name));
        for directory in directories.filter(|path| machine.disk.list(path).is_ok()) {
            copy.disk.create_dir_all(&directory).unwrap();
        }
        let before = copy.disk.dump();
        match begin(&copy.process(Durability::Every)) {
            Err(Error::SessionExists { session }) => assert_eq!(session, ID, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(copy.disk.dump(), before, "{what}: nothing is touched");
    }
}

#[test]
fn a_directory_that_holds_anything_else_is_left_alone() {
    let (whole, segment, bytes, frames) = of_one_record(77);
    let dir = whole.dir(ID);
    let [resumed, opened] = [RecordKind::Resumed, RecordKind::Opened]
        .map(|kind| frames.iter().find(|frame| frame.kind == kind).unwrap().clone());
    let unbegun = |name: &str, bytes: &[u8]| {
        let machine = whole.copied(BOOT);
        machine.disk.write_file(&segment, bytes_until(&segment, &whole, resumed.end)).unwrap();
        machine.disk.write_file(dir.join(name), bytes).unwrap();
        machine
    };
    is_left_alone("a record", &whole);
    is_left_alone("a foreign file", &unbegun("notes.txt", b"mine"));
    is_left_alone("an empty foreign file", &unbegun("notes.txt", b""));
    is_left_alone("a picture", &unbegun("0000000000.seg", b"GIF89a, and then some more bytes"));
    is_left_alone("an image", &unbegun("snapshots/00000000000000000001.image", b""));
    is_left_alone("the last ordinal but one", &unbegun("4294967294.seg.new", b""));
    is_left_alone("a record in a later segment", &{
        let session = Machine::default();
        let _held = begin(&session.process(Durability::Every)).unwrap();
        let machine = unbegun("0000000001.seg", b"");
        machine.disk.write_file(dir.join("0000000002.seg.new"), &bytes).unwrap();
        machine
    });
    // The header of another segment.
    let own = SegmentHeader::decode(&bytes).unwrap();
    let previous = Some(foldlog_codec::segment::Previous { ordinal: 0, end: 84, crc: 1 });
    for header in [
        SegmentHeader { ordinal: 1, ..own },
        SegmentHeader { session: Uuid::from_u128(78), ..own },
        SegmentHeader { first_sequence: 1.into(), ..own },
        SegmentHeader { watermark: 1.into(), ..own },
        SegmentHeader { previous, ..own },
    ] {
        is_left_alone(&format!("{header:?}"), &unbegun("0000000000.seg", &header.encode()));
        // An incomplete header still identifies another session.
        is_left_alone(&format!("{header:?}"), &unbegun("0000000000.seg", &header.encode()[..80]));
    }
    let mut later = own.encode();
    later[8] = 9;
    is_left_alone("a later format", &unbegun("0000000000.seg", &later));
    // Damage: each byte of the first record and of the frames before it.
    for at in 0..opened.end {
        let machine = whole.copied(BOOT);
        machine.disk.mutate_file(&segment, |bytes| bytes[at] ^= 0x41).unwrap();
        is_left_alone(&format!("a wrong byte at {at}"), &machine);
    }
    // Objects without their segments.
    let machine = Machine::default();
    let session = begin(&machine.process(Durability::Every)).unwrap();
    session.dispatch(large_note(1)).unwrap();
    session.close().unwrap();
    is_left_alone("a closed session", &machine);
    machine.segments(ID).iter().for_each(|segment| machine.disk.remove_file(segment).unwrap());
    is_left_alone("objects without segments", &machine);
    // A file in place of the directory.
    let machine = Machine::default();
    drop(machine.process(Durability::Every));
    machine.disk.write_file(&dir, b"").unwrap();
    is_left_alone("a file", &machine);
}

/// Returns the segment's bytes up to `end`.
fn bytes_until(segment: &PathBuf, machine: &Machine, end: usize) -> Vec<u8> {
    machine.disk.read_file(segment).unwrap()[..end].to_vec()
}

/// A failing creation leaves earlier leftovers unchanged. Once the fault is repaired, the session
/// can be created there.
#[test]
fn a_beginning_that_fails_behind_a_leftover_takes_back_its_own_files_alone() {
    let (whole, segment, _, frames) = of_one_record(77);
    let resumed = frames.iter().find(|frame| frame.kind == RecordKind::Resumed).unwrap().end;
    let mut failed = 0;
    for (durability, nth) in
        LEVELS.into_iter().flat_map(|durability| (1..6).map(move |nth| (durability, nth)))
    {
        for fault in [
            Fault::ShortWrite { nth, bytes: 30 },
            Fault::FailNth { op: foldlog::storage::Op::SyncData, nth, error: std::io::ErrorKind::Other },
            Fault::FailNth { op: foldlog::storage::Op::Create, nth, error: std::io::ErrorKind::Other },
        ] {
            let machine = whole.copied(BOOT);
            machine.disk.write_file(&segment, bytes_until(&segment, &whole, resumed)).unwrap();
            let before = files_of(&machine);
            machine.disk.inject(fault.clone());
            let begun = begin(&machine.process(durability));
            machine.disk.clear_faults();
            if begun.is_err() {
                failed += 1;
                drop(begun);
                assert_eq!(files_of(&machine), before, "{durability:?}, {fault:?}");
                assert_eq!(begin_again(&machine, durability), Again::Begun);
            }
        }
    }
    assert!(failed > 5, "{failed}");
}

/// A clock that runs an action at one of its readings.
struct Happening {
    clock: FixedClock,
    readings: AtomicU32,
    what: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Happening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Happening").finish_non_exhaustive()
    }
}

impl Clock for Happening {
    fn now_us(&self) -> i64 {
        if self.readings.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(what) = self.what.lock().unwrap().take()
        {
            what();
        }
        self.clock.now_us()
    }
}

/// Two processes that find the same leftover directory must not both create a session there: a
/// check without the lock is no more than a hint.
#[test]
fn of_two_processes_that_begin_the_same_session_at_once_one_does() {
    let mut seen = (0, 0, 0);
    for (nth, closes, leftover) in (1..4)
        .flat_map(|nth| [(nth, true, true), (nth, false, true), (nth, true, false), (nth, false, false)])
    {
        let machine = Machine::default();
        if leftover {
            machine.process(Durability::Every);
            machine.disk.create_dir_all(&machine.dir(ID)).unwrap();
        }
        let others = Arc::new(Mutex::new(None));
        let (slot, other) = (Arc::clone(&others), machine.clone());
        let what = Box::new(move || {
            let begun = begin(&other.process(Durability::Every));
            let kept = begun.and_then(|session| match closes {
                true => session.close().map(|()| None),
                false => Ok(Some(session)),
            });
            *slot.lock().unwrap() = Some(kept);
        });
        let clock = FixedClock::with_step(1_700_000_000_000_000, 10);
        let clock =
            Arc::new(Happening { clock, readings: AtomicU32::new(nth), what: Mutex::new(Some(what)) });
        let options = StoreOptions { clock, ..machine.options(Durability::Every) };
        let own = begin(&Store::open_with("/home/store", options).unwrap());
        let other = others.lock().unwrap().take();
        match (&own, other) {
            (Err(Error::Locked { .. }), Some(Ok(Some(_)))) => seen.0 += 1,
            (Err(Error::SessionExists { .. }), Some(Ok(None))) => seen.1 += 1,
            (Ok(_), Some(Err(Error::Locked { .. } | Error::SessionExists { .. }))) => seen.2 += 1,
            (Ok(_), None) => {}
            (own, other) => panic!("reading {nth}: {own:?}, {other:?}"),
        }
        drop(own);
        assert_eq!(machine.audit(ID).unwrap().records_len(), 1);
    }
    assert!(seen.0 > 0 && seen.1 > 0 && seen.2 > 0, "{seen:?}");
}
