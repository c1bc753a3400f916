//! Salvage of each kind of damage: the new session opens, contains the intact records unchanged,
//! and reports the others; the damaged session stays as it is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foldlog::inspect::LogReader;
use foldlog::storage::{CrashKind, Fault, Op, Storage};
use foldlog::tools::ExecuteOptions;
use foldlog::{
    Durability, Error, Parent, RecordKind, SalvageReport, SequenceNumber, SessionOptions, Settlement, Store,
};
use foldlog_test_support::crash::{BOOT, FrameAt, Machine, OTHER_BOOT, step, write_steps};
use foldlog_test_support::host::types;
use uuid::Uuid;

use super::bytes::SEGMENT_HEADER;
use super::everything::{Meddling, everything, neighbours, runner};
use super::{flip, frame_at, unattested, used};

/// Opens a separate store on the same disk.
fn elsewhere(machine: &Machine) -> Store {
    Store::open_with("/home/salvaged", machine.options(Durability::Boundary)).unwrap()
}

fn files(machine: &Machine, id: Uuid) -> BTreeMap<PathBuf, Vec<u8>> {
    machine.disk.dump().into_iter().filter(|(path, _)| path.starts_with(machine.dir(id))).collect()
}

/// Salvages a session, and checks that the session was not changed.
pub(super) fn salvage(machine: &Machine, id: Uuid) -> Result<SalvageReport, Error> {
    let before = files(machine, id);
    let salvaged = elsewhere(machine).salvage(machine.dir(id), SessionOptions::default());
    assert!(before == files(machine, id), "the damaged session was changed");
    if salvaged.is_err() {
        let sessions =
            machine.disk.files().into_iter().filter(|path| path.starts_with("/home/salvaged/sessions"));
        assert_eq!(sessions.count(), 0, "nothing is left of what failed");
    }
    salvaged
}

type Content = Vec<(u64, RecordKind, i64, Vec<u8>)>;

fn content(reader: &LogReader, records: u64) -> Content {
    let mut content = Vec::new();
    let Some(last) = records.checked_sub(1) else { return content };
    let take = |record: &foldlog::Record<'_>| {
        content.push((record.sequence.get(), record.kind, record.time_us, record.body.to_vec()));
        Ok(())
    };
    reader.records(0, last, take).unwrap();
    content
}

/// Checks that the salvaged session has the first `records` of the whole log unchanged, and the
/// same state.
pub(super) fn holds(
    machine: &Machine,
    whole: &LogReader,
    salvaged: &SalvageReport,
    records: u64,
    told: &str,
) {
    assert_eq!(salvaged.records, records, "{told}: {salvaged:?}");
    let reader = LogReader::open_on(std::sync::Arc::new(machine.disk.clone()), &salvaged.dir).unwrap();
    reader.check_seals().unwrap();
    assert!(
        reader.report().torn.is_none() && reader.report().unattested == 0,
        "{told}: {:?}",
        reader.report()
    );
    assert_eq!(content(&reader, records), content(whole, records), "{told}");
    let expected = whole.state_at(records - 1).unwrap();
    assert_eq!(reader.state_at(records - 1).unwrap(), expected, "{told}");
    assert_eq!(reader.state().unwrap().slices, expected.slices, "{told}");
    // Its own records name its origin.
    assert_eq!(reader.records_len(), records + 2, "{told}");
    assert_eq!(
        (reader.opening_record().session, reader.opened_sequence()),
        (salvaged.session, records.into()),
        "{told}"
    );
    assert!(
        matches!(reader.opening_record().parent, Some(Parent::Fork { position, .. }) if position == records - 1),
        "{told}"
    );
    let mut kinds = Vec::new();
    reader
        .records(records, records + 1, |record| {
            kinds.push(record.kind);
            Ok(())
        })
        .unwrap();
    assert_eq!(kinds, [RecordKind::Opened, RecordKind::Observed], "{told}");
    let open: Vec<_> = salvaged.open.iter().map(|open| open.operation).collect();
    assert_eq!(open, expected.open_operations, "{told}");
    // A host can open it, and continue if nothing is to be recovered first.
    let session = elsewhere(machine).open_session(salvaged.session, &types()).unwrap();
    match open.as_slice() {
        [] => {
            session.dispatch(step(77)).unwrap();
            assert!(session.log().position() > Some(SequenceNumber::new(records + 1)), "{told}");
        }
        _ => assert!(matches!(session.dispatch(step(77)), Err(Error::Interrupted { .. })), "{told}"),
    }
    session.close().unwrap();
}

/// Returns the bytes to invert: all header bytes, the first, the kind, a middle and the last byte
/// of each frame, and some outside the chain; with `FOLDLOG_EVERY_BYTE` all of them.
fn places(machine: &Machine, id: Uuid, frames: &[FrameAt]) -> Vec<(PathBuf, usize)> {
    let every = std::env::var_os("FOLDLOG_EVERY_BYTE").is_some();
    let mut places = Vec::new();
    for path in machine.segments(id) {
        for at in 0..used(machine, &path) {
            let in_frame = frame_at(frames, &path, at).is_some_and(|frame| {
                let of_frame = [0, 4, 17, 20, (frame.end - frame.start) / 2, frame.end - frame.start - 1];
                of_frame.contains(&(at - frame.start))
            });
            let in_header = at < SEGMENT_HEADER && at % 5 == 0;
            let in_none = frame_at(frames, &path, at).is_none() && at >= SEGMENT_HEADER && at % 11 == 0;
            if every || in_frame || in_header || in_none {
                places.push((path.clone(), at));
            }
        }
    }
    places
}

/// A wrong byte in a record costs that record and the later ones, which are counted. A wrong byte
/// in a header, or in a frame that is no record, costs nothing: the following frames determine its
/// content.
#[test]
fn a_wrong_byte_costs_what_cannot_be_known_and_nothing_else() {
    let (whole, id, parent) = everything();
    let frames = whole.frames(id).unwrap();
    let reader = whole.audit(id).unwrap();
    let all = reader.records_len();
    let mut costs: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, at) in places(&whole, id, &frames) {
        let machine = whole.copied(OTHER_BOOT);
        flip(&machine, &path, at);
        let told = format!("byte {at} of {}", path.display());
        let frame = frame_at(&frames, &path, at);
        if frame.is_some_and(|frame| frame.sequence == 0 && !frame.kind.is_envelope()) {
            // Without its first record there is no session.
            assert!(salvage(&machine, id).unwrap_err().is_damage(), "{told}");
            continue;
        }
        let salvaged = salvage(&machine, id).unwrap_or_else(|error| panic!("{told}: {error}"));
        let in_chain = frames.iter().any(|frame| frame.segment == path);
        let left: u64 = salvaged.left.iter().map(|left| left.records).sum();
        let sequences: Vec<u64> = salvaged
            .left
            .iter()
            .flat_map(|left| &left.sequences)
            .flat_map(|(first, last)| first.get()..=last.get())
            .collect();
        match frame.map(|frame| (frame.kind, frame.sequence)) {
            Some((kind, _)) if kind.is_envelope() => {
                holds(&machine, &reader, &salvaged, all, &told);
                assert_eq!(left, 0, "{told}: {salvaged:?}");
                // No later frame notices the loss of the last one.
                let mended = (path, frame.unwrap().start as u64);
                assert!(salvaged.mended == [mended] || frame == frames.last(), "{told}: {salvaged:?}");
                *costs.entry("nothing: a frame that is no record").or_default() += 1;
            }
            Some((_, sequence)) => {
                holds(&machine, &reader, &salvaged, sequence.get(), &told);
                let (end, offset) = &salvaged.end;
                assert!(*end != path || *offset <= frame.unwrap().start as u64, "{told}: {salvaged:?}");
                assert_eq!(sequences, (sequence.get() + 1..all).collect::<Vec<_>>(), "{told}: {salvaged:?}");
                assert_eq!(left, all - sequence.get() - 1, "{told}");
                assert!(
                    salvaged.damage.is_some() && salvaged.left[0].segment == path,
                    "{told}: {salvaged:?}"
                );
                // Without its first record, none of a fork's own part is taken.
                let forked = sequence == reader.opened_sequence();
                let start = if forked { SEGMENT_HEADER } else { frame.unwrap().start };
                assert_eq!(salvaged.left[0].offset, start as u64, "{told}");
                *costs.entry("the records behind it").or_default() += 1;
            }
            None if in_chain && at < SEGMENT_HEADER => {
                holds(&machine, &reader, &salvaged, all, &told);
                assert_eq!((left, salvaged.left.len()), (0, 0), "{told}: {salvaged:?}");
                assert!(salvaged.damage.is_some() && salvaged.mended == [(path, 0)], "{told}: {salvaged:?}");
                *costs.entry("nothing: a header").or_default() += 1;
            }
            None => {
                holds(&machine, &reader, &salvaged, all, &told);
                assert!(salvaged.damage.is_none(), "{told}: {salvaged:?}");
                *costs.entry("nothing: of no chain").or_default() += 1;
            }
        }
    }
    assert!(costs.len() == 4 && costs.values().all(|count| *count > 10), "{costs:?}");
    assert!(files(&whole, parent).len() > 1, "and its parent is still there");
}

#[test]
fn frames_that_are_swapped_repeated_or_removed_cost_what_stands_behind_them() {
    let (whole, id, _) = everything();
    let reader = whole.audit(id).unwrap();
    let frames = whole.frames(id).unwrap();
    let mut tried = 0;
    for (first, second) in neighbours(&frames).step_by(3) {
        for what in Meddling::ALL {
            let records = what.found_at(first, second).sequence;
            let machine = whole.copied(BOOT);
            machine.disk.mutate_file(&first.segment, |bytes| what.with(first, second, bytes)).unwrap();
            let told = format!("{} at {} of {} {what:?}", first.kind, first.start, first.segment.display());
            if records == 0 {
                assert!(salvage(&machine, id).unwrap_err().is_damage(), "{told}");
                continue;
            }
            holds(&machine, &reader, &salvage(&machine, id).unwrap(), records.get(), &told);
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn a_segment_that_is_gone_costs_what_stood_in_it_and_behind_it() {
    let (whole, id, parent) = everything();
    let reader = whole.audit(id).unwrap();
    let frames = whole.frames(id).unwrap();
    let segments: Vec<PathBuf> = whole
        .segments(id)
        .into_iter()
        .filter(|path| frames.iter().any(|frame| frame.segment == *path))
        .collect();
    for (place, path) in segments.iter().enumerate().skip(1) {
        let machine = whole.copied(OTHER_BOOT);
        Storage::remove_file(&machine.disk, path).unwrap();
        let told = path.display().to_string();
        let first = frames.iter().find(|frame| frame.segment == *path).unwrap();
        // The original copies of records that a recovery rewrote are still in place.
        let records = first.sequence + if path.ends_with("0000000002.seg") { 2 } else { 0 };
        if place == segments.len() - 1 {
            continue;
        }
        if path.ends_with("0000000003.seg") {
            // With its first segment, the fork loses the record that it shares the earlier ones.
            let error = salvage(&machine, id).unwrap_err();
            assert!(matches!(error, Error::WrongSession { found, .. } if found == parent), "{error}");
            continue;
        }
        let salvaged = salvage(&machine, id).unwrap();
        holds(&machine, &reader, &salvaged, records.get(), &told);
        assert!(
            matches!(salvaged.damage, Some(Error::MissingSegment { .. } | Error::Corrupt(_))),
            "{salvaged:?}"
        );
        let left: Vec<&PathBuf> = salvaged.left.iter().map(|left| &left.segment).collect();
        assert_eq!(left, segments[place + 1..].iter().collect::<Vec<_>>(), "{told}");
        // The shared part belongs to the parent, and the new session is a fork of the parent.
        let opened = LogReader::open_on(std::sync::Arc::new(machine.disk.clone()), &salvaged.dir).unwrap();
        let own = salvaged.records > 35;
        let of = opened.opening_record().parent.unwrap().session();
        assert!(salvaged.from == id && (of == parent || own && of == id), "{told}: {of}");
    }
}

/// The headers state the order of the segments, whatever the names of the files.
#[test]
fn segments_that_changed_places_are_put_right() {
    let (whole, id, _) = everything();
    let reader = whole.audit(id).unwrap();
    let paths = whole.segments(id);
    for left in 0..paths.len() {
        for right in left + 1..paths.len() {
            let machine = whole.copied(BOOT);
            machine.disk.write_file(&paths[left], whole.disk.read_file(&paths[right]).unwrap()).unwrap();
            machine.disk.write_file(&paths[right], whole.disk.read_file(&paths[left]).unwrap()).unwrap();
            let salvaged = salvage(&machine, id).unwrap();
            holds(&machine, &reader, &salvaged, reader.records_len(), &format!("{left} and {right}"));
            assert!(salvaged.damage.is_some() && salvaged.left.is_empty(), "{salvaged:?}");
        }
    }
}

/// A segment of another session is left out, and the part before it is taken. In place of the first
/// segment it is refused.
#[test]
fn a_segment_of_another_session_is_never_taken_for_ones_own() {
    let (whole, id, parent) = everything();
    let reader = whole.audit(id).unwrap();
    let frames = whole.frames(id).unwrap();
    let other = {
        let machine = Machine::default();
        let options = SessionOptions { id: Some(Uuid::from_u128(5)), ..Default::default() };
        let session = machine.process(Durability::Boundary).create_with(&types(), options).unwrap();
        write_steps(&session, 70);
        session.clone().close().unwrap();
        (machine, session.id())
    };
    let strangers = other.0.segments(other.1);
    for path in whole.segments(id) {
        let Some(first) = frames.iter().find(|frame| frame.segment == path) else { continue };
        let stranger = strangers.iter().find(|stranger| stranger.file_name() == path.file_name()).unwrap();
        let machine = whole.copied(BOOT);
        machine.disk.write_file(&path, other.0.disk.read_file(stranger).unwrap()).unwrap();
        if first.sequence == 0 {
            let error = salvage(&machine, id).unwrap_err();
            assert!(
                matches!(error, Error::WrongSession { expected, found, .. } if expected == id && found == other.1)
            );
            continue;
        }
        let records = first.sequence + if path.ends_with("0000000002.seg") { 2 } else { 0 };
        if path.ends_with("0000000003.seg") {
            assert!(
                matches!(salvage(&machine, id), Err(Error::WrongSession { found, .. }) if found == parent)
            );
            continue;
        }
        let salvaged = salvage(&machine, id).unwrap();
        holds(&machine, &reader, &salvaged, records.get(), &path.display().to_string());
        let left = salvaged.left.iter().find(|left| left.segment == path).unwrap();
        assert!(left.records > 0 && left.reason.contains(&other.1.to_string()), "{left:?}");
    }
}

/// A record without its object cannot be folded; all missing objects are named.
#[test]
fn a_record_whose_object_is_missing_or_damaged_ends_what_is_taken() {
    let (whole, id, _) = everything();
    let reader = whole.audit(id).unwrap();
    let mut naming: BTreeMap<String, u64> = BTreeMap::new();
    reader
        .records(0, u64::MAX, |record| {
            for object in record.objects() {
                naming.entry(object.file_name()).or_insert(record.sequence.get());
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(naming.len(), 4);
    for (name, sequence) in &naming {
        let path = whole.dir(id).join("objects").join(name);
        for gone in [true, false] {
            let machine = whole.copied(OTHER_BOOT);
            match gone {
                true => Storage::remove_file(&machine.disk, &path).unwrap(),
                false => flip(&machine, &path, 20),
            }
            let salvaged = salvage(&machine, id).unwrap();
            holds(&machine, &reader, &salvaged, *sequence, name);
            let before = naming.values().filter(|naming| *naming < sequence).count();
            assert_eq!(salvaged.objects, before as u64, "{salvaged:?}");
            let [missing] = salvaged.missing_objects.as_slice() else { panic!("{salvaged:?}") };
            assert_eq!((&missing.path, missing.sequence), (&path, SequenceNumber::new(*sequence)));
            let left: u64 = salvaged.left.iter().map(|left| left.records).sum();
            assert_eq!(left, reader.records_len() - sequence);
        }
    }
    // All objects together: the first one decides, and each is named.
    let machine = whole.copied(OTHER_BOOT);
    for name in naming.keys() {
        let path = machine.dir(id).join("objects").join(name);
        Storage::remove_file(&machine.disk, &path).unwrap();
    }
    let salvaged = salvage(&machine, id).unwrap();
    holds(&machine, &reader, &salvaged, *naming.values().min().unwrap(), "all objects");
    assert_eq!(salvaged.missing_objects.len(), 4);
}

#[test]
fn a_sound_session_is_taken_whole_and_a_torn_tail_is_named() {
    let (whole, id, _) = everything();
    let reader = whole.audit(id).unwrap();
    let salvaged = salvage(&whole, id).unwrap();
    holds(&whole, &reader, &salvaged, reader.records_len(), "sound");
    assert!(
        salvaged.damage.is_none() && salvaged.left.is_empty() && salvaged.mended.is_empty(),
        "{salvaged:?}"
    );
    assert_eq!((salvaged.objects, salvaged.beside.len()), (4, 0));

    let (whole, id) = unattested();
    let reader = whole.audit(id).unwrap();
    let machine = whole.copied(OTHER_BOOT);
    let last = whole.frames(id).unwrap().pop().unwrap();
    flip(&machine, &last.segment, last.start + 3);
    machine.disk.write_file(machine.dir(id).join("notes.txt"), "of the host").unwrap();
    let salvaged = salvage(&machine, id).unwrap();
    holds(&machine, &reader, &salvaged, last.sequence.get(), "torn");
    let [left] = salvaged.left.as_slice() else { panic!("{salvaged:?}") };
    assert_eq!((left.offset, left.bytes), (last.start as u64, (last.end - last.start) as u64));
    assert!(salvaged.damage.is_none() && left.reason.contains("durable"), "{salvaged:?}");
    assert_eq!(salvaged.beside, ["notes.txt"]);
}

/// A call that lost its end record is open at the end of the intact part. The new session's host
/// recovers it like a call of a killed process.
#[test]
fn a_call_that_was_open_where_the_sound_part_ends_is_reported_and_recovered() {
    let (whole, id, _) = everything();
    let reader = whole.audit(id).unwrap();
    let frames = whole.frames(id).unwrap();
    let ends: Vec<&FrameAt> = frames.iter().filter(|frame| frame.kind == RecordKind::ToolEnd).collect();
    assert_eq!(ends.len(), 12);
    for end in ends {
        let machine = whole.copied(OTHER_BOOT);
        flip(&machine, &end.segment, end.end - 1);
        let salvaged = salvage(&machine, id).unwrap();
        holds(&machine, &reader, &salvaged, end.sequence.get(), "an open call");
        // With the end record of a call, the end of its nested call is lost too.
        let open = salvaged.open.first().unwrap();
        assert!(salvaged.open[1..].iter().all(|inner| inner.parent == Some(open.operation)), "{salvaged:?}");
        let session = elsewhere(&machine).open_session(salvaged.session, &types()).unwrap();
        assert_eq!(session.log().recovery().interrupted, salvaged.open);
        let at_begin = reader.state_at(open.begin).unwrap().slices;
        let plan = |slices: &BTreeMap<String, foldlog::SliceState>| slices["plan"].items.clone();
        assert_eq!(
            plan(&session.dynamic().state().unwrap().slices),
            plan(&at_begin),
            "STATE as at its begin"
        );
        let recovered = runner(&session).recover(&ExecuteOptions::default()).unwrap();
        assert_eq!(
            (recovered.len(), session.calls().unsettled_operations()[0].operation),
            (1, open.operation)
        );
        session.calls().settle(open.operation, &Settlement::failed(), "a person", "lost").unwrap();
        session.dispatch(step(78)).unwrap();
        session.close().unwrap();
        let again = LogReader::open_on(std::sync::Arc::new(machine.disk.clone()), &salvaged.dir).unwrap();
        assert!(again.report().interrupted.is_empty() && again.report().unsettled.is_empty());
    }
}

/// A salvaged session is a normal session, and can be salvaged itself.
#[test]
fn what_was_salvaged_can_be_salvaged() {
    let (whole, id, _) = everything();
    let frames = whole.frames(id).unwrap();
    let bad = frames.iter().rfind(|frame| frame.kind == RecordKind::Dispatch).unwrap();
    flip(&whole, &bad.segment, bad.start + 40);
    let first = salvage(&whole, id).unwrap();
    let again = elsewhere(&whole).salvage(&first.dir, SessionOptions::default()).unwrap();
    assert_eq!((again.records, again.from), (first.records + 2, first.session));
    let disk = || std::sync::Arc::new(whole.disk.clone());
    let (parent, reader) =
        (LogReader::open_on(disk(), &first.dir).unwrap(), LogReader::open_on(disk(), &again.dir).unwrap());
    reader.check_lineage(&parent).unwrap();
    assert_eq!(reader.state().unwrap().slices, parent.state().unwrap().slices);
}

#[test]
fn what_cannot_be_salvaged_is_refused_and_leaves_nothing() {
    let (whole, id, parent) = everything();
    // The session has no intact part.
    let machine = whole.copied(BOOT);
    for path in machine.segments(id) {
        machine.disk.mutate_file(&path, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x5a)).unwrap();
    }
    assert!(matches!(salvage(&machine, id), Err(Error::NotASession { .. } | Error::Corrupt(_))));
    // The session does not exist, or the directory is none.
    assert!(matches!(salvage(&machine, Uuid::from_u128(5)), Err(Error::NotASession { .. })));
    machine.disk.write_file(machine.dir(Uuid::from_u128(5)).join("notes.txt"), "no segment").unwrap();
    assert!(matches!(salvage(&machine, Uuid::from_u128(5)), Err(Error::NotASession { .. })));
    // The session has a later format.
    let machine = whole.copied(BOOT);
    machine.disk.mutate_file(&machine.segments(id)[1], |bytes| bytes[8..84].fill(0x5a)).unwrap();
    assert!(matches!(salvage(&machine, id), Err(Error::FutureFormat { .. })));
    // The session is being written.
    let session = whole.open(parent, Durability::Boundary).unwrap();
    assert!(matches!(salvage(&whole, parent), Err(Error::Locked { session, .. }) if session == parent));
    assert!(salvage(&whole, id).is_ok(), "and its fork is not");
    session.close().unwrap();
    assert!(salvage(&whole, parent).is_ok());
    // The target store is within the session.
    let within =
        Store::open_with(whole.dir(id).join("objects/store"), whole.options(Durability::Boundary)).unwrap();
    let refused = within.salvage(whole.dir(id), SessionOptions::default());
    assert!(matches!(refused, Err(Error::WithinSession { .. })), "{refused:?}");
    // The new session exists already.
    let options = SessionOptions { id: Some(parent), ..Default::default() };
    let store = whole.process(Durability::Boundary);
    assert!(matches!(store.salvage(whole.dir(id), options), Err(Error::SessionExists { .. })));
}

/// A link or a directory in place of a segment is never opened, and is named.
#[test]
fn what_only_has_a_segments_name_is_left_and_named() {
    let (whole, id, _) = everything();
    let reader = whole.audit(id).unwrap();
    let path = whole.segments(id)[1].clone();
    let first = whole.frames(id).unwrap().into_iter().find(|frame| frame.segment == path).unwrap();
    whole.disk.make_other(&path).unwrap();
    let salvaged = elsewhere(&whole).salvage(whole.dir(id), SessionOptions::default()).unwrap();
    holds(&whole, &reader, &salvaged, first.sequence.get(), "a link");
    let left = salvaged.left.iter().find(|left| left.segment == path).unwrap();
    assert!(left.more && left.reason.contains("not a regular file"), "{left:?}");
}

/// If the disk fails or the process dies at any step, the new session is either whole or does not
/// exist.
#[test]
fn a_salvage_that_fails_at_any_step_leaves_a_whole_session_or_none() {
    let (whole, id, _) = everything();
    let frames = whole.frames(id).unwrap();
    let bad = frames.iter().rfind(|frame| frame.kind == RecordKind::Dispatch).unwrap();
    flip(&whole, &bad.segment, bad.start + 40);
    let (mut failed, mut at) = (0, 0);
    loop {
        at += 1;
        let machine = whole.copied(BOOT);
        let store = elsewhere(&machine);
        let before = files(&machine, id);
        machine.disk.inject(Fault::Die { nth: at, bytes: 20 });
        let salvaged = store.salvage(machine.dir(id), SessionOptions::default());
        machine.disk.clear_faults();
        if let Ok(salvaged) = &salvaged {
            assert_eq!(salvaged.records, bad.sequence);
            break;
        }
        machine.disk.crash(CrashKind::PowerLosingAll);
        assert!(before == files(&machine, id), "killed at {at}");
        for (session, summary) in elsewhere(&machine).sessions().unwrap() {
            assert_eq!(summary.unwrap().records, bad.sequence + 2, "killed at {at}: {session} is whole");
        }
        failed += 1;
    }
    assert!(failed > 20, "{failed}");
    for op in [Op::Write, Op::SyncData, Op::Create, Op::Rename, Op::SyncDir] {
        let refused = (1..6).filter(|nth| {
            let machine = whole.copied(BOOT);
            let store = elsewhere(&machine);
            machine.disk.inject(Fault::FailNth { op, nth: *nth, error: std::io::ErrorKind::Other });
            let salvaged = store.salvage(machine.dir(id), SessionOptions::default());
            machine.disk.clear_faults();
            for (session, summary) in elsewhere(&machine).sessions().unwrap() {
                assert_eq!(summary.unwrap().records, bad.sequence + 2, "{op:?} {nth}: {session} is whole");
            }
            salvaged.is_err()
        });
        assert!(refused.count() > 0, "{op:?}");
    }
}
