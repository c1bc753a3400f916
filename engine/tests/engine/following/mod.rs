//! Following a log while it is written. Each record is returned once; incomplete records are not
//! yet returned, damage is reported, and recoveries are followed.

mod feed;
mod racing;

use foldlog::SequenceNumber;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use foldlog::inspect::{Follower, LogReader, LogUpdate, Progress};
use foldlog::storage::{Access, CrashKind, DirectoryEntry, HeldLock, MemoryStorage, Storage, StorageFile};
use foldlog::{Corruption, Durability, Error, RecordKind, Result};
use foldlog_codec::segment::SegmentHeader;
use foldlog_test_support::crash::{BOOT, Machine, OTHER_BOOT, step, write_steps};
use foldlog_test_support::host::types;
use uuid::Uuid;

/// A disk with a copy of a machine's disk for a follower, since a crash of the machine ends all
/// reads on it.
struct Shown {
    disk: MemoryStorage,
}

impl Shown {
    fn new(boot: Uuid) -> Shown {
        Shown { disk: MemoryStorage::with_boot_id(boot) }
    }

    fn of(machine: &Machine) -> Shown {
        let shown = Shown::new(BOOT);
        shown.show(machine);
        shown
    }

    fn show(&self, machine: &Machine) {
        machine.disk.dump().iter().for_each(|(path, bytes)| self.write(path, bytes));
    }

    /// Writes in place: a follower has the file open.
    fn write(&self, path: &Path, bytes: &[u8]) {
        if self.disk.mutate_file(path, |there| *there = bytes.to_vec()).is_err() {
            self.disk.write_file(path, bytes).unwrap();
        }
    }

    fn follow(&self, machine: &Machine, id: Uuid, from: u64) -> Follower {
        Follower::open_on(Arc::new(self.disk.clone()), machine.dir(id), from).unwrap()
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    sequence: u64,
    kind: RecordKind,
    body: Vec<u8>,
}

/// The result of a poll: records, and replaced ranges.
#[derive(Debug, Default)]
struct Polled {
    records: Vec<Seen>,
    replaced: Vec<(u64, u64)>,
}

impl Polled {
    fn sequences(&self) -> Vec<u64> {
        self.records.iter().map(|record| record.sequence).collect()
    }
}

fn poll(follower: &mut Follower) -> (Polled, Result<Progress>) {
    let mut polled = Polled::default();
    let progress = follower.poll(|met| {
        match met {
            LogUpdate::Record { record, .. } => polled.records.push(Seen {
                sequence: record.sequence.get(),
                kind: record.kind,
                body: record.body.to_vec(),
            }),
            LogUpdate::Replaced { from, through } => polled.replaced.push((from.get(), through.get())),
            other => panic!("{other:?}"),
        }
        Ok(())
    });
    if let Ok(progress) = &progress {
        assert_eq!(progress.records, polled.records.len() as u64);
    }
    (polled, progress)
}

/// Polls, asserts that nothing was replaced, and returns the sequence numbers.
fn come(follower: &mut Follower) -> Vec<u64> {
    let (polled, progress) = poll(follower);
    progress.unwrap();
    assert_eq!(polled.replaced, []);
    polled.sequences()
}

fn corruption(result: Result<Progress>) -> Corruption {
    match result {
        Err(Error::Corrupt(corruption)) => *corruption,
        other => panic!("{other:?}"),
    }
}

fn recorded(machine: &Machine, id: Uuid) -> Vec<Seen> {
    let audit = machine.audit(id).unwrap();
    let mut records = Vec::new();
    audit
        .records(0, u64::MAX, |record| {
            records.push(Seen {
                sequence: record.sequence.get(),
                kind: record.kind,
                body: record.body.to_vec(),
            });
            Ok(())
        })
        .unwrap();
    records
}

#[test]
fn records_come_once_each_over_turns_closings_kills_and_recoveries() {
    let machine = Machine::default();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    let id = session.id();
    let shown = Shown::of(&machine);
    let mut follower = shown.follow(&machine, id, 0);
    let mut seen = poll(&mut follower).0.records;
    assert_eq!(seen.len(), 1);
    let mut session = Some(session);
    for round in 0_u64..24 {
        let open = session.take().unwrap();
        write_steps(&open, round % 5 + 1);
        if round % 3 == 1 {
            shown.show(&machine);
            let (polled, progress) = poll(&mut follower);
            progress.unwrap();
            assert_eq!(polled.replaced, []);
            seen.extend(polled.records);
        }
        session = Some(match round % 8 {
            2 => {
                open.close().unwrap();
                machine.open(id, Durability::Boundary).unwrap()
            }
            5 => {
                machine.crash(CrashKind::Process);
                machine.open(id, Durability::Process).unwrap()
            }
            6 => {
                open.sync().unwrap();
                open
            }
            _ => open,
        });
    }
    shown.show(&machine);
    let (polled, progress) = poll(&mut follower);
    assert_eq!(progress.unwrap().torn, None);
    assert_eq!(polled.replaced, []);
    seen.extend(polled.records);
    assert!(machine.segments(id).len() > 6);
    assert_eq!(seen, recorded(&machine, id));
    assert_eq!(follower.records_len(), seen.len() as u64);
    assert_eq!(come(&mut follower), [] as [u64; 0]);
    // A later follower reads the same, and one that starts in the middle reads the rest.
    for from in [0, 1, 20, follower.records_len() - 1, follower.records_len() + 5] {
        let mut later = shown.follow(&machine, id, from);
        assert_eq!(poll(&mut later).0.records, seen.get(from as usize..).unwrap_or_default());
    }
}

/// Shows every frame, header and seal in parts, in the order of a writer: there is never damage,
/// and each record appears with its last byte.
#[test]
fn what_is_being_written_is_not_yet_there() {
    for durability in [Durability::Process, Durability::Every] {
        let machine = Machine::default();
        let session = machine.process(durability).create(&types()).unwrap();
        write_steps(&session, 22);
        let id = session.id();
        let frames = machine.frames(id).unwrap();
        let segments = machine.segments(id);
        assert!(segments.len() > 2);
        let image = |path: &Path| machine.disk.read_file(path).unwrap();
        let shown = Shown::of(&machine);
        let first = image(&segments[0]);
        let mut begun = vec![0; first.len()];
        begun[..84].copy_from_slice(&first[..84]);
        for path in &segments[1..] {
            shown.disk.remove_file(path).unwrap();
        }
        shown.write(&segments[0], &begun);
        let mut follower = shown.follow(&machine, id, 0);
        let mut next = 0;
        for (index, path) in segments.iter().enumerate() {
            let whole = image(path);
            let mut written = vec![0; whole.len()];
            let mut ends = vec![84];
            ends.extend(frames.iter().filter(|frame| frame.segment == *path).map(|frame| frame.end));
            let mut start = 0;
            for (place, end) in ends.iter().copied().enumerate() {
                for part in [start + 1, start + 9, (start + end) / 2, end - 1] {
                    if index == 0 && place == 0 {
                        break;
                    }
                    written[start..part].copy_from_slice(&whole[start..part]);
                    shown.write(path, &written);
                    assert_eq!(come(&mut follower), [] as [u64; 0], "byte {part} of segment {index}");
                }
                written[start..end].copy_from_slice(&whole[start..end]);
                shown.write(path, &written);
                if place == 0 && index > 0 {
                    // The previous segment is sealed only now.
                    shown.write(&segments[index - 1], &image(&segments[index - 1]));
                }
                let is_record = frames
                    .iter()
                    .any(|frame| frame.segment == *path && frame.end == end && !frame.kind.is_envelope());
                let expected: Vec<u64> = is_record.then_some(next).into_iter().collect();
                assert_eq!(come(&mut follower), expected, "byte {end} of segment {index}");
                next += u64::from(is_record);
                start = end;
            }
        }
        assert_eq!(next, session.log().position().unwrap() + 1);
    }
}

/// A follower that has read part of a log, which continues over several segments.
fn half_read(durability: Durability) -> (Machine, Uuid, Shown, Follower, u64) {
    let machine = Machine::default();
    let session = machine.process(durability).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 4);
    let shown = Shown::of(&machine);
    let mut follower = shown.follow(&machine, id, 0);
    let read = come(&mut follower).len() as u64;
    write_steps(&session, 20);
    // Nothing is attested that was not attested while it was written.
    machine.crash(CrashKind::Process);
    (machine, id, shown, follower, read)
}

#[test]
fn a_damaged_record_that_something_later_attests_is_named_after_those_before_it() {
    let (machine, id, shown, follower, read) = half_read(Durability::Every);
    let frames = machine.frames(id).unwrap();
    let coming: Vec<_> = frames
        .iter()
        .filter(|frame| !frame.kind.is_envelope() && frame.sequence >= read.into())
        .filter(|frame| frame.sequence + 1 < frames.last().unwrap().sequence)
        .collect();
    assert!(coming.len() > 8);
    for frame in coming {
        for zeroed in [false, true] {
            let mut follower = follower.clone();
            shown.show(&machine);
            let damage = |bytes: &mut Vec<u8>| match zeroed {
                true => bytes[frame.start..frame.end].fill(0),
                false => bytes[frame.end - 1] ^= 1,
            };
            shown.disk.mutate_file(&frame.segment, damage).unwrap();
            let (polled, progress) = poll(&mut follower);
            let found = corruption(progress);
            assert_eq!(polled.sequences(), Vec::from_iter(read..frame.sequence.get()));
            assert_eq!((&found.segment, found.offset), (&frame.segment, frame.start as u64), "{found}");
            assert_eq!((found.sequence, found.session), (frame.sequence, Some(id)));
            // The error of opening.
            let Err(Error::Corrupt(opened)) =
                foldlog::inspect::LogReader::open_on(Arc::new(shown.disk.clone()), machine.dir(id))
            else {
                panic!("opening found nothing")
            };
            assert_eq!(found.to_string(), opened.to_string());
            // The error persists until the damage is repaired, and then the log continues.
            corruption(poll(&mut follower).1);
            shown.show(&machine);
            assert_eq!(come(&mut follower).first(), Some(&frame.sequence.get()));
        }
    }
}

#[test]
fn a_damaged_end_that_nothing_attests_is_waited_for() {
    let (machine, id, shown, mut follower, read) = half_read(Durability::Process);
    let frames = machine.frames(id).unwrap();
    let last = frames.last().unwrap();
    shown.show(&machine);
    shown.disk.mutate_file(&last.segment, |bytes| bytes[last.end - 1] ^= 1).unwrap();
    let (polled, progress) = poll(&mut follower);
    assert_eq!(polled.sequences(), Vec::from_iter(read..last.sequence.get()));
    let torn = progress.unwrap().torn.unwrap();
    assert_eq!((torn.sequence, torn.offset), (last.sequence, last.start as u64));
    assert_eq!(torn.bytes, (last.end - last.start) as u64);
    for _ in 0..40 {
        assert_eq!(come(&mut follower), [] as [u64; 0]);
    }
    shown.show(&machine);
    assert_eq!(come(&mut follower), [last.sequence]);
}

/// Without an attestation, an intact frame after a bad one proves damage only if the power was not
/// cut since.
#[test]
fn an_unattested_bad_record_is_damage_in_the_boot_that_wrote_it_and_a_tear_after_it() {
    let (machine, id, _, _, _) = half_read(Durability::Process);
    let frames = machine.frames(id).unwrap();
    let records: Vec<_> = frames.iter().filter(|frame| !frame.kind.is_envelope()).collect();
    let last = records.len() - 1;
    let cases =
        [BOOT, OTHER_BOOT].into_iter().flat_map(|boot| [(boot, 0, 1), (boot, last, 1), (boot, last, 12)]);
    for (boot, from, back) in cases {
        let shown = Shown::new(boot);
        shown.show(&machine);
        let bad = records[last - back];
        assert_eq!(back > 1, bad.segment != records[last].segment);
        shown.disk.mutate_file(&bad.segment, |bytes| bytes[bad.end - 1] ^= 1).unwrap();
        let (polled, progress) = poll(&mut shown.follow(&machine, id, from as u64));
        assert_eq!(polled.sequences(), Vec::from_iter(from as u64..bad.sequence.get()));
        if boot == BOOT {
            assert_eq!(corruption(progress).sequence, bad.sequence, "from {from}");
        } else {
            assert_eq!(progress.unwrap().torn.unwrap().sequence, bad.sequence, "from {from}");
        }
    }
}

/// Two continuations of one log: the follower saw the first, and the disk kept the second.
fn other_life(steps: u64) -> (Machine, Uuid, Shown, Follower, u64) {
    let before = Machine::default();
    let session = before.process(Durability::Every).create(&types()).unwrap();
    write_steps(&session, 3);
    let (id, kept) = (session.id(), session.log().position().unwrap() + 1);
    session.close().unwrap();
    let life = |first: u64, steps: u64| {
        let machine = before.copied(BOOT);
        let session = machine.open(id, Durability::Process).unwrap();
        (first..first + steps).for_each(|n| session.dispatch(step(n)).map(drop).unwrap());
        machine.crash(CrashKind::Process);
        machine
    };
    let shown = Shown::of(&life(10, 3));
    let mut follower = shown.follow(&before, id, 0);
    assert_eq!(come(&mut follower).len() as u64, kept + 3);
    (life(10, steps), id, shown, follower, kept.get())
}

#[test]
fn a_recovery_that_lost_records_is_said_and_followed() {
    let (machine, id, shown, mut follower, kept) = other_life(1);
    // Of the three records one is left, and recovery rewrites it.
    let session = machine.open(id, Durability::Process).unwrap();
    session.sync().unwrap();
    shown.show(&machine);
    let (polled, progress) = poll(&mut follower);
    progress.unwrap();
    assert_eq!((polled.sequences(), polled.replaced), (vec![], vec![(kept + 1, kept + 2)]));
    session.dispatch(step(77)).unwrap();
    shown.show(&machine);
    assert_eq!(come(&mut follower), [kept + 1]);
    assert_eq!(follower.records_len(), kept + 2);
}

#[test]
fn a_recovery_that_put_others_in_their_place_is_said_and_followed() {
    let (machine, id, shown, mut follower, kept) = other_life(1);
    let session = machine.open(id, Durability::Process).unwrap();
    (0..20).for_each(|n| session.dispatch(step(70 + n)).map(drop).unwrap());
    shown.show(&machine);
    let (polled, progress) = poll(&mut follower);
    progress.unwrap();
    assert_eq!(polled.replaced, [(kept + 1, kept + 2)]);
    let all = recorded(&machine, id);
    assert_eq!(polled.records, all[kept as usize + 1..]);
    // A follower that started after the replaced range reports no replacement.
    let mut late = shown.follow(&machine, id, kept + 4);
    assert_eq!(come(&mut late), Vec::from_iter(kept + 4..all.len() as u64));
}

/// Files to be created, or removed.
type Coming = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// A first segment's header states, under a matching checksum, that it starts with a later record.
/// Opening reported damage, but a follower returned the records under those numbers.
#[test]
fn a_log_that_does_not_begin_with_its_first_record_is_damaged_for_a_follower_too() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 3);
    session.close().unwrap();
    let segment = machine.segments(id).remove(0);
    let later = |bytes: &mut Vec<u8>| {
        let header = SegmentHeader::decode(bytes).unwrap();
        let later = SegmentHeader { first_sequence: SequenceNumber::new(1 << 40), ..header };
        bytes[..84].copy_from_slice(&later.encode());
    };
    machine.disk.mutate_file(&segment, later).unwrap();
    let storage: Arc<dyn Storage> = Arc::new(machine.disk.clone());
    let opened = foldlog::inspect::LogReader::open_on(Arc::clone(&storage), machine.dir(id)).unwrap_err();
    assert!(matches!(&opened, Error::Corrupt(found) if found.segment == segment && found.sequence == 0));
    for from in [0, 3, u64::MAX] {
        let followed = Follower::open_on(Arc::clone(&storage), machine.dir(id), from).unwrap_err();
        assert_eq!(followed.to_string(), opened.to_string(), "from {from}");
    }
}

#[test]
fn names_are_known_wherever_a_follower_begins() {
    let (machine, id, shown, _, _) = half_read(Durability::Every);
    shown.show(&machine);
    let last = machine.audit(id).unwrap().records_len() - 1;
    assert!(machine.segments(id).len() > 2);
    for from in [5, last] {
        let mut events = Vec::new();
        shown
            .follow(&machine, id, from)
            .poll(|met| {
                if let LogUpdate::Record { names, .. } = met {
                    events = names.events.values().map(|(name, _)| name.clone()).collect();
                }
                Ok(())
            })
            .unwrap();
        assert!(events.contains(&"plan.step_added".to_owned()), "{events:?} from {from}");
    }
}

#[test]
fn a_visitor_that_fails_gets_the_same_again() {
    let (machine, _, shown, mut follower, read) = half_read(Durability::Process);
    shown.show(&machine);
    let mut taken = Vec::new();
    let stopped = follower.poll(|met| match met {
        LogUpdate::Record { record, .. } if taken.len() < 3 => {
            taken.push(record.sequence);
            Ok(())
        }
        _ => Err(Error::Export("stopped".to_owned())),
    });
    assert!(matches!(stopped, Err(Error::Export(_))));
    assert_eq!(taken, [read, read + 1, read + 2]);
    assert_eq!(come(&mut follower).first(), Some(&(read + 3)));
}

#[test]
fn what_is_taken_away_is_missed() {
    let (machine, id, shown, follower, _) = half_read(Durability::Every);
    shown.show(&machine);
    let segments = machine.segments(id);
    // A preallocated segment may follow it.
    let frames = machine.frames(id).unwrap();
    let last = &frames.last().unwrap().segment;
    let without = |gone: &Path| {
        let disk = MemoryStorage::with_boot_id(BOOT);
        for (path, bytes) in shown.disk.dump() {
            if path != gone {
                disk.write_file(path, bytes).unwrap();
            }
        }
        Shown { disk }
    };
    // A sealed segment whose successor is missing, and a successor whose predecessor is.
    let sealed = without(last);
    match poll(&mut sealed.follow(&machine, id, 0)).1 {
        Err(Error::MissingSegment { session, path, .. }) => {
            assert_eq!((session, &path), (id, last));
        }
        other => panic!("{other:?}"),
    }
    let broken = without(&segments[1]);
    let storage: Arc<dyn Storage> = Arc::new(broken.disk.clone());
    assert!(matches!(
        Follower::open_on(Arc::clone(&storage), machine.dir(id), 0),
        Err(Error::MissingSegment { .. })
    ));
    let mut follower = follower;
    come(&mut follower);
    // The segment that is being followed, and its header.
    let bytes = shown.disk.read_file(last).unwrap();
    shown.disk.remove_file(last).unwrap();
    assert!(matches!(poll(&mut follower).1, Err(Error::MissingSegment { .. })));
    shown.write(last, &bytes);
    shown.disk.mutate_file(last, |bytes| bytes[50] ^= 1).unwrap();
    let found = corruption(poll(&mut follower).1);
    assert_eq!((&found.segment, found.offset), (last, 0), "{found}");
    shown.write(last, &bytes);
    assert_eq!(come(&mut follower), [] as [u64; 0]);
    // The whole session.
    shown.disk.remove_dir_all(&machine.dir(id)).unwrap();
    assert!(matches!(poll(&mut follower).1, Err(Error::NotASession { .. })));
    let other = Follower::open_on(storage, "/home/store/sessions", 0);
    assert!(matches!(other, Err(Error::NotASession { .. })));
}
