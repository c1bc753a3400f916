//! Compaction: a log gives up bodies that nothing needs, a kill at any step leaves a complete log,
//! and open readers continue. Law 7 (`tests/suite/laws/`) shows that nothing else changes.

mod copies;
mod forks;
mod open;
mod readers;
mod stores;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldlog::inspect::{DecodedRecord, EventFeed, Fed, Follower, LogReader, LogUpdate, ReadOptions};
use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::tools::{ExecuteOptions, RewindOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{
    CompactOptions, CompactReport, Durability, Error, ExecutionState, KeptSnapshots, RecordKind,
    ResourceRegistry, SequenceNumber, Session, SessionOptions, SnapshotOptions, State, Store, StoreOptions,
};
use foldlog_codec::body::Dropped;
use foldlog_test_support::crash::{BOOT, CHANGES, Machine, large_note, step};
use foldlog_test_support::host::{Draft, DraftEdited, Noted, Notes, assert_reduced_again, types};
use foldlog_test_support::killed;
use foldlog_test_support::workload::write_lines;
use uuid::Uuid;

/// Writes until a segment contains nothing droppable. It is the last segment, and no compaction
/// finishes it.
fn write_what_stays(machine: &Machine, session: &Session) {
    let segments = machine.segments(session.id()).len();
    while machine.segments(session.id()).len() < segments + 2 {
        session.dispatch(Noted { text: "so it is".to_owned() }).unwrap();
    }
}

fn compact(machine: &Machine, id: Uuid) -> foldlog::Result<CompactReport> {
    machine.process(Durability::Boundary).compact(id, &CompactOptions::default())
}

/// Returns a closed session of several segments, most of whose bodies are droppable.
fn written() -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_lines(&session, 40);
    session.snapshot(SnapshotOptions::with_tag("then")).unwrap();
    write_lines(&session, 40);
    let id = session.id();
    session.close().unwrap();
    (machine.copied(BOOT), id)
}

fn tagged(reader: &LogReader) -> SequenceNumber {
    reader.snapshots().unwrap()[0].position
}

#[test]
fn a_log_takes_room_for_what_its_slices_hold_and_for_its_history() {
    let (machine, id) = written();
    let before = machine.audit(id).unwrap();
    let (last, state) = (before.last_position(), before.state().unwrap());
    let (digest, then) = (before.digest_through(last).unwrap(), before.state_at(tagged(&before)).unwrap());
    let planned = machine
        .process(Durability::Boundary)
        .compact(id, &CompactOptions { dry_run: true, ..CompactOptions::default() })
        .unwrap();
    assert_eq!(machine.audit(id).unwrap().log_bytes(), before.log_bytes(), "a dry run changes nothing");

    let report = compact(&machine, id).unwrap();
    assert_eq!(
        (planned.dropped, planned.bytes, planned.through),
        (report.dropped, report.bytes, report.through)
    );
    assert!(report.dropped > 60 && report.segments > 3, "{report:?}");
    let after = machine.audit(id).unwrap();
    assert!(
        after.log_bytes() < before.log_bytes() * 2 / 3,
        "{} of {}",
        after.log_bytes(),
        before.log_bytes()
    );
    assert_eq!(after.state_at(last).unwrap(), state);
    assert_eq!(after.state_at(tagged(&after)).unwrap(), then, "what has a name is kept");
    assert_eq!(after.digest_through(last).unwrap(), digest, "the hashes of what was dropped stay");
    assert!(after.check_seals().unwrap() > 3);
    assert_reduced_again(&after, &types());

    // The owner of a copy of a dropped body can prove that it is the one.
    let mut dropped = BTreeMap::new();
    after
        .records(0, u64::MAX, |record| {
            if record.kind == RecordKind::Dropped {
                dropped.insert(record.sequence, Dropped::decode(record.body).unwrap());
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(dropped.len() as u64, report.dropped);
    let (copy, _) = written();
    let mut shown = 0;
    copy.audit(id)
        .unwrap()
        .records(0, u64::MAX, |record| {
            if let Some(dropped) = dropped.get(&record.sequence) {
                assert_eq!(Dropped::from_body(record.kind, record.body), *dropped);
                shown += 1;
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(shown, report.dropped);

    // Nothing is left to drop until more is written.
    assert_eq!(compact(&machine, id).unwrap().through, None);
    let session = machine.open(id, Durability::Boundary).unwrap();
    assert_eq!(session.view::<Draft>().unwrap().len(), state.slices["draft"].items.len() as u64);
    write_lines(&session, 30);
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    assert!(compact(&machine, id).unwrap().dropped > 20);
    assert_eq!(
        machine.open(id, Durability::Boundary).unwrap().dynamic().state().unwrap().slices,
        state.slices
    );
}

#[test]
fn positions_are_kept_as_the_options_say_and_others_are_refused() {
    let (machine, id) = written();
    let reader = machine.audit(id).unwrap();
    let (kept, asked) = (tagged(&reader), SequenceNumber::from(17));
    let (then, there) = (reader.state_at(kept).unwrap(), reader.state_at(asked).unwrap());
    let options = CompactOptions { positions: [asked].into(), ..CompactOptions::default() };
    let report = machine.process(Durability::Boundary).compact(id, &options).unwrap();
    assert!(
        report.kept.contains(&kept) && report.kept.contains(&asked) && report.kept.len() == 3,
        "{report:?}"
    );
    let through = report.through.unwrap();

    let session = machine.open(id, Durability::Boundary).unwrap();
    let gone = |error: Error, at: SequenceNumber| {
        let text = error.to_string();
        assert!(
            matches!(error, Error::Compacted { position, earliest } if position == at && earliest == through),
            "{text}"
        );
    };
    gone(session.rollback_to(18).unwrap_err(), 18.into());
    gone(session.dynamic().state_at(18).unwrap_err(), 18.into());
    let store = machine.process(Durability::Boundary);
    gone(store.fork(id, 18, &types(), SessionOptions::default()).unwrap_err(), 18.into());
    for (at, was) in [(kept, &then), (asked, &there)] {
        session.rollback_to(at).unwrap();
        assert_eq!(draft(&session.dynamic().state().unwrap()), draft(was), "back at {at}");
        let fork = store.fork(id, at, &types(), SessionOptions::default()).unwrap();
        fork.dispatch(DraftEdited { place: 0, line: "in the fork".to_owned() }).unwrap();
        let live = fork.dynamic().state().unwrap();
        let fork = (fork.id(), fork.close().unwrap()).0;
        assert_eq!(
            machine.open(fork, Durability::Boundary).unwrap().dynamic().state().unwrap(),
            live,
            "and goes on from there"
        );
    }
    // A rollback after the range keeps its target through the next compaction.
    write_lines(&session, 20);
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    let none = CompactOptions { snapshots: KeptSnapshots::None, ..CompactOptions::default() };
    machine.process(Durability::Boundary).compact(id, &none).unwrap();
    let session = machine.open(id, Durability::Boundary).unwrap();
    assert_eq!(session.dynamic().state().unwrap().slices, state.slices);
    assert!(session.rollback_to(kept).is_err());
    session.close().unwrap();

    let (machine, id) = written();
    let young =
        CompactOptions { younger_than: Some(Duration::from_secs(86_400)), ..CompactOptions::default() };
    assert_eq!(machine.process(Durability::Boundary).compact(id, &young).unwrap().through, None);
}

fn draft(state: &State) -> Vec<Arc<[u8]>> {
    state.slices["draft"].items.iter().map(|item| Arc::clone(&item.bytes)).collect()
}

fn segments(machine: &Machine, id: Uuid) -> Vec<(PathBuf, Vec<u8>)> {
    machine
        .segments(id)
        .into_iter()
        .map(|path| (path.clone(), machine.disk.read_file(&path).unwrap()))
        .collect()
}

/// The log after the kill has the same content, and the next compaction finishes this one.
#[test]
fn a_compaction_that_is_killed_at_any_step_leaves_a_whole_log() {
    let (whole, id) = written();
    let reader = whole.audit(id).unwrap();
    let (last, state) = (reader.last_position(), reader.state().unwrap());
    let digest = reader.digest_through(last).unwrap();
    let look = |machine: &Machine, killed: &str| {
        let audit = machine.audit(id).unwrap_or_else(|error| panic!("{killed}: {error}"));
        assert_eq!(audit.digest_through(last).unwrap(), digest, "{killed}");
        assert_eq!(audit.state().unwrap().slices, state.slices, "{killed}");
        audit.check_seals().unwrap_or_else(|error| panic!("{killed}: {error}"));
        let ranges = audit.compacted_ranges().len();
        let session = machine.open(id, Durability::Boundary).unwrap();
        assert_eq!(session.dynamic().state().unwrap().slices, state.slices, "{killed}");
        session.dispatch(step(3)).unwrap();
        session.rollback_to(last).unwrap_or_else(|error| panic!("{killed}: {error}"));
        let after = session.dynamic().state().unwrap();
        assert_eq!(after.slices["plan"], state.slices["plan"], "{killed}");
        session.close().unwrap();
        compact(machine, id).unwrap_or_else(|error| panic!("{killed}: {error}"));
        let again = machine.audit(id).unwrap();
        assert_eq!(again.state().unwrap().slices, after.slices, "{killed}");
        assert!(
            machine.disk.files().iter().all(|path| path.extension().is_none_or(|it| it != "new")),
            "{killed}"
        );
        ranges
    };
    let mut partly = BTreeMap::new();
    let crashes = |at| vec![CrashKind::Process, CrashKind::PowerLosingAll, CrashKind::Power { seed: at }];
    let act = |machine: &Machine| compact(machine, id);
    whole.killed_at_each_step(crashes, act, |machine, killed| {
        *partly.entry(look(machine, killed)).or_insert(0) += 1;
    });
    assert!(partly.contains_key(&0) && partly.contains_key(&1), "{partly:?}");
    whole.refused_at_each_step(&CHANGES, 7, act, |machine, refused| {
        look(machine, refused);
    });
}

/// Undoing the last rewind needs the position before it, also after restores of checkpoints, which
/// are calls of the same name.
#[test]
fn the_last_rewind_can_still_be_undone() {
    let (machine, id) = written();
    let session = machine.open(id, Durability::Boundary).unwrap();
    let state = || ExecutionState::new(session.clone(), ResourceRegistry::default());
    let (before, options) = (draft(&session.dynamic().state().unwrap()), RewindOptions::default());
    state().rewind(30, &options).unwrap();
    write_lines(&session, 10);
    let checkpoint = state().snapshot(None).unwrap();
    write_lines(&session, 10);
    state().restore(&checkpoint).unwrap();
    write_lines(&session, 10);
    session.close().unwrap();
    assert!(compact(&machine, id).unwrap().dropped > 0);
    let session = machine.open(id, Durability::Boundary).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    state.undo_rewind(&options).unwrap();
    assert_eq!(draft(&session.dynamic().state().unwrap()), before);
}

/// The next compaction completes a killed one even if nothing was written in between.
#[test]
fn what_a_killed_compaction_left_is_done_by_the_next() {
    let (whole, id) = written();
    let dropped = compact(&whole.copied(BOOT), id).unwrap().dropped;
    let machine = whole.copied(BOOT);
    machine.disk.inject(Fault::FailNth { op: Op::Rename, nth: 3, error: std::io::ErrorKind::Other });
    compact(&machine, id).unwrap_err();
    machine.disk.clear_faults();
    let left = compact(&machine, id).unwrap().dropped;
    assert!(left > 0 && left < dropped, "{left} of {dropped}");
    assert_eq!(machine.audit(id).unwrap().compacted_ranges()[0].from, 0, "all of it is compacted now");
}

#[test]
fn a_session_that_is_open_or_was_interrupted_is_left_alone() {
    let (machine, id) = written();
    let session = machine.open(id, Durability::Boundary).unwrap();
    assert!(matches!(compact(&machine, id), Err(Error::Locked { .. })));
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let operation = runner.begin(&ToolCall::new("write", "{}"), &ExecuteOptions::default()).unwrap();
    operation.context().session().dispatch(step(1)).unwrap();
    machine.crash(CrashKind::Process);
    std::mem::forget(operation);
    let before = segments(&machine, id);
    assert!(matches!(compact(&machine, id), Err(Error::Interrupted { .. })));
    assert!(before == segments(&machine, id));
    assert!(matches!(compact(&machine, Uuid::from_u128(4)), Err(Error::NoSuchSession { .. })));
}

#[test]
fn no_range_ends_within_a_call() {
    let (machine, id) = written();
    let session = machine.open(id, Durability::Boundary).unwrap();
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let operation = runner.begin(&ToolCall::new("write", "{}"), &ExecuteOptions::default()).unwrap();
    let begin = session.log().position().unwrap();
    for n in 0..200 {
        let line = format!("{n} within the call, {}", "and so on ".repeat(9));
        operation.context().session().dispatch(DraftEdited { place: 0, line }).unwrap();
    }
    operation.fail(foldlog::tools::ToolError::failed("it did not work")).unwrap();
    let slices = session.dynamic().state().unwrap().slices;
    session.close().unwrap();
    // The end record is in the segment that is finished last, so nothing after the start record is
    // old enough.
    let report = compact(&machine, id).unwrap();
    assert!(report.dropped > 200, "a call that is over gives up its bodies too: {report:?}");
    assert_eq!(machine.audit(id).unwrap().state().unwrap().slices, slices);
    assert!(report.kept.iter().all(|position| *position < begin || *position >= begin + 201), "{report:?}");
}

/// An open reader continues with the replaced files, and returns each record once.
#[test]
fn who_reads_while_segments_are_replaced_reads_on() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = SegmentSizes { first_bytes: 16 << 10, max_bytes: 16 << 10, ahead_bytes_min: 0 };
    let options = StoreOptions { segments: sizes, ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let session = store.create(&types()).unwrap();
    let id = session.id();
    write_lines(&session, 400);
    session.close().unwrap();
    let (dir, stop) = (store.session_dir(id), AtomicBool::new(false));
    let reader = LogReader::open(&dir).unwrap();
    let (last, notes) = (reader.last_position(), reader.state().unwrap().slices["notes"].clone());
    let digest = reader.digest_through(last).unwrap();
    let rounds = 12;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // One reader knows the old offsets, and one the current ones.
                    assert_eq!(reader.digest_through(last).unwrap(), digest);
                    let now = LogReader::open(&dir).unwrap();
                    assert_eq!(now.digest_through(last).unwrap(), digest);
                    assert!(now.state().unwrap().slices["notes"].items.starts_with(&notes.items));
                    let (mut follower, mut next) = (Follower::open(&dir, 0).unwrap(), 0);
                    follower
                        .poll(|met| {
                            if let LogUpdate::Record { record, .. } = met {
                                assert_eq!(record.sequence.get(), next);
                                next += 1;
                            }
                            Ok(())
                        })
                        .unwrap();
                    assert!(next > last.get());
                }
            });
        }
        for _ in 0..rounds {
            let session = store.open_session(id, &types()).unwrap();
            write_lines(&session, 60);
            session.close().unwrap();
            store.compact(id, &CompactOptions::default()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let session = store.open_session(id, &types()).unwrap();
    assert!(session.log().slice::<Notes>().unwrap().len() > notes.items.len() as u64);
}

/// A follower within a replaced segment continues in the file that it has open.
#[test]
fn a_follower_within_a_log_that_is_compacted_hands_over_each_record_once() {
    let (machine, id) = written();
    let storage = Arc::new(machine.disk.clone());
    let last = machine.audit(id).unwrap().last_position();
    for stop in [0_u64, 10, 25, 60, last.get()] {
        let machine = machine.copied(BOOT);
        let storage = Arc::new(machine.disk.clone());
        let mut follower = Follower::open_on(storage, machine.dir(id), 0).unwrap();
        let mut seen = Vec::new();
        let _ = follower.poll(|met| {
            let LogUpdate::Record { record, .. } = met else { panic!("nothing was replaced by a recovery") };
            if record.sequence.get() > stop {
                return Err(Error::NoSuchPosition { position: record.sequence, last: None });
            }
            seen.push(record.sequence.get());
            Ok(())
        });
        compact(&machine, id).unwrap();
        let session = machine.open(id, Durability::Boundary).unwrap();
        session.dispatch(step(9)).unwrap();
        follower
            .poll(|met| {
                let LogUpdate::Record { record, .. } = met else {
                    panic!("nothing was replaced by a recovery")
                };
                seen.push(record.sequence.get());
                Ok(())
            })
            .unwrap();
        let all: Vec<u64> = (0..=session.log().position().unwrap().get()).collect();
        assert_eq!(seen, all, "stopped at {stop}");
    }
    drop(storage);
}

/// A read model cannot be built from dropped events. The feed reports where it can start.
#[test]
fn a_feed_says_where_events_were_dropped_and_goes_on_behind() {
    let (machine, id) = written();
    compact(&machine, id).unwrap();
    let storage = Arc::new(machine.disk.clone());
    let mut feed = EventFeed::open_on(storage.clone(), machine.dir(id), 0).unwrap();
    let earliest = loop {
        match feed.try_next() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it passed over what was dropped"),
            Err(Error::Compacted { earliest, .. }) => break earliest,
            Err(error) => panic!("{error}"),
        }
    };
    let session = machine.open(id, Durability::Boundary).unwrap();
    session.dispatch(step(1)).unwrap();
    let nothing = |_: DecodedRecord<'_>| Ok(());
    for read in [
        session.log().contents(0, u64::MAX, nothing),
        machine.audit(id).unwrap().contents(0, u64::MAX, nothing),
    ] {
        assert!(matches!(read, Err(Error::Compacted { earliest: then, .. }) if then == earliest), "{read:?}");
    }
    session.log().contents(earliest + 1, u64::MAX, nothing).unwrap();
    let mut feed = EventFeed::open_on(storage, machine.dir(id), earliest + 1).unwrap();
    let mut fed = 0;
    while let Some(next) = feed.try_next().unwrap() {
        fed += u64::from(matches!(next, Fed::Event(_)));
    }
    assert_eq!(fed, 1);
}

#[test]
fn a_changed_byte_anywhere_in_a_compacted_segment_is_found() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_lines(&session, 12);
    let id = session.id();
    session.close().unwrap();
    assert!(compact(&machine, id).unwrap().dropped > 0);
    let machine = machine.copied(BOOT);
    let sound = machine.audit(id).unwrap();
    let (last, state) = (sound.last_position(), sound.state().unwrap());
    let digest = sound.digest_through(last).unwrap();
    let seals = sound.check_seals().unwrap();
    let compacted = segments(&machine, id).remove(0);
    let (mut found, mut sealed) = (0, 0);
    // The seal is at the end of the file; also tries one byte after it.
    let used = compacted.1.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let step = killed::step(5);
    // All bytes of the seal, whose length is used below.
    for at in (0..=used).filter(|at| at % step == 0 || at + 150 > used) {
        let mut bytes = compacted.1.clone();
        bytes.resize(bytes.len().max(used + 1), 0);
        bytes[at] ^= 0x10;
        machine.disk.write_file(&compacted.0, &bytes).unwrap();
        match machine.audit(id) {
            Err(error) => {
                assert!(error.is_damage() || matches!(error, Error::FutureFormat { .. }), "{at}: {error}");
                found += 1;
            }
            // The seal is after the end, and no record needs it.
            Ok(reader) => {
                assert_eq!(reader.state().unwrap(), state, "byte {at}");
                assert_eq!(reader.digest_through(last).unwrap(), digest, "byte {at}");
                let error = reader.check_seals().unwrap_err();
                assert!(error.is_damage() && error.to_string().contains("seal"), "byte {at}: {error}");
                sealed += 1;
            }
        }
    }
    assert!((40..120).contains(&sealed) && found > 1_000 / step, "{sealed} of the seal, {found}");
    // A copy may still lack its seal.
    let mut bytes = compacted.1.clone();
    bytes.truncate(used - (sealed - 1));
    for len in [bytes.len(), 2 * bytes.len()] {
        bytes.resize(len, 0);
        machine.disk.write_file(&compacted.0, &bytes).unwrap();
        assert_eq!(machine.audit(id).unwrap().check_seals().unwrap(), seals - 1);
    }
}

/// Records before the first damage are read and salvaged as far as the slices are known: up to a
/// base, or before the range.
#[test]
fn a_damaged_compacted_log_is_salvaged_up_to_a_position_that_is_known() {
    let (machine, id) = written();
    compact(&machine, id).unwrap();
    let machine = machine.copied(BOOT);
    let sound = machine.audit(id).unwrap();
    let (kept, last) = (tagged(&sound), sound.last_position());
    let [then, now] = [kept, last].map(|at| sound.state_at(at).unwrap().slices);
    let mut ends = BTreeMap::new();
    for (path, bytes) in segments(&machine, id) {
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let mut damaged = bytes.clone();
        damaged[used / 2] ^= 4;
        machine.disk.write_file(&path, &damaged).unwrap();
        let storage = Arc::new(machine.disk.clone());
        let read = LogReader::open_sound(storage, machine.dir(id), ReadOptions::default());
        let salvaged =
            machine.process(Durability::Boundary).salvage(machine.dir(id), SessionOptions::default());
        let end = match (read, salvaged) {
            (Ok(read), Ok(salvaged)) => {
                let position = read.last_position();
                let slices = read.state().unwrap().slices;
                assert!(position != kept || slices == then, "up to the base");
                assert!(position < last || slices == now);
                let again = machine.audit(salvaged.session).unwrap();
                // A salvage also repairs what can be recomputed.
                assert!(salvaged.records > position.get());
                assert_eq!(again.state_at(position).unwrap().slices, slices);
                machine.open(salvaged.session, Durability::Boundary).unwrap().dispatch(step(1)).unwrap();
                Some(position)
            }
            (Err(read), Err(salvaged)) => {
                assert!(read.is_damage() && salvaged.is_damage(), "{read} {salvaged}");
                None
            }
            (read, salvaged) => panic!("{path:?}: {:?} {:?}", read.map(drop), salvaged.map(drop)),
        };
        *ends.entry(end).or_insert(0) += 1;
        machine.disk.write_file(&path, &bytes).unwrap();
    }
    assert!(ends.contains_key(&None) && ends.contains_key(&Some(kept)), "{ends:?}");
}

/// The newest records may be the only reason to drop an earlier body. The last segment used to be
/// finished only if something was dropped in it, so a dry run reported bodies that no compaction
/// ever dropped.
#[test]
fn the_last_segment_is_finished_for_what_is_dropped_before_it_too() {
    let (machine, id) = written();
    compact(&machine, id).unwrap();
    let session = machine.open(id, Durability::Boundary).unwrap();
    let long = |n| DraftEdited { place: 9, line: format!("{n}, {}", "a long story ".repeat(40)) };
    for n in 0..7 {
        session.dispatch(long(n)).unwrap();
    }
    let segments = machine.segments(id).len();
    while machine.segments(id).len() == segments {
        session.snapshot(SnapshotOptions::default()).unwrap();
    }
    session.clear::<Draft>().unwrap();
    session.close().unwrap();
    let store = machine.process(Durability::Boundary);
    let planned = store.compact(id, &CompactOptions { dry_run: true, ..CompactOptions::default() }).unwrap();
    let before = machine.audit(id).unwrap();
    let done = store.compact(id, &CompactOptions::default()).unwrap();
    assert!(done.dropped >= 7, "{done:?}");
    assert_eq!((planned.dropped, planned.bytes, planned.kept), (done.dropped, done.bytes, done.kept));
    assert_eq!(machine.audit(id).unwrap().state().unwrap().slices, before.state().unwrap().slices);
}

/// A compacted segment attests itself and everything before it, which a killed process may have
/// written without a sync. A power cut after the compaction damaged the log.
#[test]
fn all_before_a_compacted_segment_is_durable_once_that_has_its_name() {
    let machine = Machine::default();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    let id = session.id();
    // Nothing of this is dropped, and some of it is in objects.
    for n in 0..20 {
        session.dispatch(step(n)).unwrap();
        session.dispatch(large_note(n)).unwrap();
    }
    write_lines(&session, 60);
    write_what_stays(&machine, &session);
    machine.crash(CrashKind::Process);
    drop(session);
    let report = compact(&machine, id).unwrap();
    assert!(report.dropped > 20, "{report:?}");
    let audit = machine.audit(id).unwrap();
    let (last, state) = (audit.last_position(), audit.state_at(report.through.unwrap()).unwrap());
    machine.crash(CrashKind::PowerLosingAll);
    let session = machine.open(id, Durability::Process).unwrap();
    assert!(session.log().position() >= report.through && session.log().position() <= Some(last));
    let notes = session.log().slice::<Notes>().unwrap();
    notes.iter().map(|note| note.map(drop)).collect::<foldlog::Result<Vec<()>>>().unwrap();
    assert_eq!(session.dynamic().state_at(report.through.unwrap()).unwrap().slices, state.slices);
}

/// The last record of a compacted segment counted as unattested, since no later frame attests it. A
/// recovery rewrote it after the segment, whose range then ended where the slices are unknown: the
/// log could not be folded any more. The recovering session also assumed that the compacted segment
/// ended where the original had ended, and reported damage.
#[test]
fn no_recovery_cuts_into_a_compacted_segment() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_lines(&session, 40);
    write_what_stays(&machine, &session);
    session.close().unwrap();
    let report = compact(&machine, id).unwrap();
    let through = report.through.unwrap();
    let audit = machine.audit(id).unwrap();
    assert!(report.dropped > 20 && through + 1 < audit.last_position(), "{report:?}");
    let state = audit.state_at(through).unwrap().slices;
    // Records that a close attests need not be durable.
    for kind in [CrashKind::PowerLosingAll, CrashKind::Process] {
        machine.crash(kind);
        let session = machine.open(id, Durability::Process).unwrap();
        session.dispatch(step(1)).unwrap();
        assert_eq!(session.dynamic().state_at(through).unwrap().slices, state);
        machine.crash(CrashKind::Process);
        drop(session);
        let audit = machine.audit(id).unwrap();
        assert_eq!(audit.state_at(through).unwrap().slices, state);
        let plan = audit.state().unwrap().slices["plan"].items.len();
        assert!(plan > state["plan"].items.len(), "and it goes on");
    }
}
