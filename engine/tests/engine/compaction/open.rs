//! Compactions of sessions that are open for writing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use foldlog::log::SegmentSizes;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{
    CompactOptions, Durability, Error, ExecutionState, ResourceRegistry, SnapshotOptions, Store, StoreOptions,
};
use foldlog_test_support::crash::{Machine, large_note, step};
use foldlog_test_support::host::{Draft, DraftEdited, Notes, Plan, assert_reduced_again, types};
use foldlog_test_support::workload::write_lines;

use super::segments;

#[test]
fn an_open_session_is_compacted_and_goes_on() {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_lines(&session, 40);
    let kept = session.snapshot(SnapshotOptions::with_tag("then")).unwrap().position;
    let then = session.dynamic().state().unwrap().slices;
    write_lines(&session, 40);
    let (notes, before) =
        (session.log().slice::<Notes>().unwrap(), session.dynamic().state().unwrap().slices);
    let planned =
        session.log().compact(&CompactOptions { dry_run: true, ..CompactOptions::default() }).unwrap();
    let report = session.log().compact(&CompactOptions::default()).unwrap();
    assert!(report.dropped > 60 && report.segments > 3, "{report:?}");
    assert_eq!(
        (planned.dropped, planned.bytes, planned.through),
        (report.dropped, report.bytes, report.through)
    );
    assert_eq!(session.dynamic().state().unwrap().slices, before);
    assert_eq!(session.log().bytes(), machine.audit(session.id()).unwrap().log_bytes());
    // An earlier view reads its items at their new offsets.
    assert_eq!(notes.iter().filter(Result::is_ok).count() as u64, notes.len());

    // Positions known when the session was opened are dropped all the same.
    assert!(matches!(session.rollback_to(30), Err(Error::Compacted { .. })));
    assert!(matches!(session.dynamic().state_at(30), Err(Error::Compacted { .. })));
    session.rollback_to(kept).unwrap();
    assert_eq!(session.dynamic().state().unwrap().slices["draft"], then["draft"]);
    write_lines(&session, 40);
    let state = session.dynamic().state().unwrap();
    assert!(session.log().compact(&CompactOptions::default()).unwrap().dropped > 20);
    session.dispatch(step(1)).unwrap();
    let (id, plan, draft) = (
        session.id(),
        session.view::<Plan>().unwrap().len(),
        session.view::<Draft>().unwrap().iter().cloned().collect::<Vec<_>>(),
    );
    assert_eq!(plan as usize, state.slices["plan"].items.len() + 1);
    session.close().unwrap();
    let session = machine.open(id, Durability::Boundary).unwrap();
    assert_eq!(session.view::<Draft>().unwrap().iter().cloned().collect::<Vec<_>>(), draft);
    session.rollback_to(kept).unwrap();
    let audit = machine.audit(id).unwrap();
    audit.check_seals().unwrap();
    assert_reduced_again(&audit, &types());
}

/// An image records offsets in the compacted segments of its log. After a power cut had brought
/// back the original file, the image was applied to it, and intact records were reported as
/// damaged.
#[test]
fn an_image_of_a_compacted_segment_is_none_of_the_one_that_a_power_cut_brings_back() {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    let edit = |times| {
        for n in 0..times {
            let line = format!("line {n}, {}", "and so on. ".repeat(8));
            session.dispatch(DraftEdited { place: n % 3, line }).unwrap();
        }
    };
    edit(120);
    let (id, plain) = (session.id(), segments(&machine, session.id()));
    assert!(session.log().compact(&CompactOptions::default()).unwrap().segments > 3);
    edit(120);
    session.close().unwrap();
    assert!(machine.open(id, Durability::Process).unwrap().log().recovery().from_image > Some(60.into()));
    // As if the power had failed before the names were durable, after a compaction that failed
    // there.
    for (path, bytes) in &plain[..plain.len() - 2] {
        machine.disk.write_file(path, bytes).unwrap();
    }
    let session = machine.open(id, Durability::Process).unwrap();
    let (last, mut read) = (session.log().position().unwrap(), 0);
    session
        .log()
        .records(0, last, |_| {
            read += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(read, last.get() + 1);
}

#[test]
fn a_session_is_not_compacted_within_a_call() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_lines(&session, 40);
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let operation = runner.begin(&ToolCall::new("write", "{}"), &ExecuteOptions::default()).unwrap();
    let before = segments(&machine, session.id());
    for handle in [&session, operation.context().session()] {
        let refused = handle.log().compact(&CompactOptions::default()).unwrap_err();
        assert!(matches!(refused, Error::InsideTransaction { .. }), "{refused}");
    }
    assert!(before == segments(&machine, session.id()));
    operation.fail(foldlog::tools::ToolError::failed("enough")).unwrap();
    assert!(session.log().compact(&CompactOptions::default()).unwrap().dropped > 20);
}

/// Seals of finished segments are written in the background, by the offsets at which the segments
/// ended before they were compacted.
#[test]
fn threads_write_and_read_while_their_session_is_compacted() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = SegmentSizes { first_bytes: 16 << 10, max_bytes: 16 << 10, ahead_bytes_min: 0 };
    let options = StoreOptions { segments: sizes, image_bytes_min: 1, ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let session = store.create(&types()).unwrap();
    write_lines(&session, 40);
    let stop = AtomicBool::new(false);
    let mut dropped = 0;
    let (wrote, writes) = mpsc::channel();
    std::thread::scope(|scope| {
        let (session, stop) = (&session, &stop);
        scope.spawn(move || {
            let mut written = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let line = format!("{written} {}", "goes on ".repeat(20));
                session.dispatch(DraftEdited { place: 0, line }).unwrap();
                session.dispatch(large_note(written)).unwrap();
                written += 1;
                let _ = wrote.send(());
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let notes = session.log().slice::<Notes>().unwrap();
                assert_eq!(notes.iter().filter(Result::is_ok).count() as u64, notes.len());
            }
        });
        writes.recv().unwrap();
        for _ in 0..4 {
            dropped += session.log().compact(&CompactOptions::default()).unwrap().dropped;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(dropped > 30, "{dropped}");
    let (id, state) = (session.id(), session.dynamic().state().unwrap());
    session.close().unwrap();
    let audit = foldlog::inspect::LogReader::open(store.session_dir(id)).unwrap();
    assert_eq!(audit.state().unwrap().slices, state.slices);
    audit.check_seals().unwrap();
    assert!(foldlog::inspect::damaged_seals(&store.session_dir(id)).unwrap().is_empty());
}
