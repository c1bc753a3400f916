//! The order of calls to the disk: data is durable before anything that relies on it. The simulator
//! shows the consequences of a wrong order; these tests check the calls themselves.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use foldlog::storage::{MemoryStorage, Op};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Durability, ExecutionState, ResourceRegistry, SessionOptions, SnapshotOptions};
use foldlog_test_support::crash::{Machine, large_note, step};
use foldlog_test_support::host::types;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

type Trace = Vec<(Op, PathBuf)>;

/// Asserts that calls occur in this order; each is named by its kind and a part of its path.
fn assert_in_order(trace: &Trace, calls: &[(Op, &str)]) {
    let mut rest = trace.iter();
    for (op, part) in calls {
        let found = rest.any(|(found, path)| found == op && path.to_string_lossy().contains(part));
        assert!(found, "{op:?} of `{part}` is missing, or comes too early: {trace:#?}");
    }
}

/// Returns the result of a call and its trace.
fn traced<T>(disk: &MemoryStorage, call: impl FnOnce() -> foldlog::Result<T>) -> (T, Trace) {
    disk.take_trace();
    let done = call().expect("nothing is broken");
    (done, disk.take_trace().into_iter().filter(|(op, _)| op.changes()).collect())
}

#[test]
fn a_sessions_directories_are_durable_before_it_is_there() {
    let machine = Machine::default();
    let store = machine.process(Durability::Every);
    let (_, trace) = traced(&machine.disk, || store.create(&types()));
    assert_in_order(
        &trace,
        &[
            (Op::Create, "0000000000.seg"),
            (Op::Write, "0000000000.seg"),
            (Op::SyncDir, "/sessions"),
            (Op::SyncData, "0000000000.seg"),
            // Only after the sync may a frame attest it.
            (Op::Write, "0000000000.seg"),
        ],
    );
}

#[test]
fn an_object_and_its_name_are_durable_before_the_record_that_refers_to_it() {
    let machine = Machine::default();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    let (_, trace) = traced(&machine.disk, || session.dispatch(large_note(0)));
    assert_in_order(
        &trace,
        &[
            (Op::Write, "/objects/"),
            (Op::SyncData, "/objects/"),
            (Op::SyncDir, "/objects"),
            (Op::SyncData, ".seg"),
        ],
    );
    // The record is written before its sync, and its attestation after it.
    let sync = trace.iter().rposition(|(op, path)| *op == Op::SyncData && path.extension().unwrap() == "seg");
    let behind = trace[sync.unwrap() + 1..].iter().filter(|(op, _)| *op == Op::Write).count();
    assert_eq!(behind, 1, "the frame that attests it: {trace:#?}");
}

#[test]
fn a_segment_and_its_name_are_durable_before_what_is_in_it_and_the_one_before_it_too() {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    for n in 0..20 {
        let (_, trace) = traced(&machine.disk, || session.dispatch(step(n)));
        if !trace.iter().any(|(op, path)| *op == Op::Write && path.ends_with("0000000001.seg")) {
            continue;
        }
        assert_in_order(
            &trace,
            &[
                (Op::Write, "0000000001.seg"),
                (Op::SyncDir, "/sessions/"),
                (Op::SyncData, "0000000000.seg"),
                (Op::SyncData, "0000000001.seg"),
                (Op::Write, "0000000001.seg"),
                // The log is written before its image, and the image is complete before its rename.
                (Op::Write, ".image.new"),
                (Op::SyncData, ".image.new"),
                (Op::Rename, ".image"),
            ],
        );
        return;
    }
    panic!("no segment was begun");
}

/// At this durability the log is not synced for its own sake: an image written first would describe
/// records that a power cut can still take.
#[test]
fn an_image_is_written_once_the_log_is_durable_up_to_it() {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Process).create(&types()).unwrap();
    for n in 0..40 {
        let (_, trace) = traced(&machine.disk, || session.dispatch(step(n)));
        if trace.iter().any(|(op, path)| *op == Op::Write && path.to_string_lossy().ends_with(".image.new")) {
            let calls = [(Op::SyncDir, "/sessions/"), (Op::SyncData, ".seg"), (Op::Write, ".image.new")];
            assert_in_order(&trace, &calls);
            return;
        }
    }
    panic!("no image was written");
}

#[test]
fn a_fork_is_whole_and_its_parent_durable_before_it_bears_its_name() {
    let machine = Machine::default();
    let store = machine.process(Durability::Process);
    let parent = store.create(&types()).unwrap();
    parent.dispatch(large_note(0)).unwrap();
    let position = parent.dispatch(step(0)).unwrap();
    let (fork, trace) =
        traced(&machine.disk, || store.fork(parent.id(), position, &types(), SessionOptions::default()));
    let (of_parent, of_fork) = (parent.id().to_string(), fork.id().to_string());
    let in_parent = format!("{of_parent}/0000000000.seg");
    assert_in_order(
        &trace,
        &[
            (Op::SyncData, "/objects/"),
            (Op::SyncData, &in_parent),
            (Op::HardLink, ".new-"),
            (Op::SyncDir, ".new-"),
            (Op::Write, ".new-"),
            (Op::SyncData, ".new-"),
            (Op::Rename, &format!("/sessions/{of_fork}")),
            (Op::SyncDir, "/sessions"),
        ],
    );
}

#[test]
fn a_snapshot_is_durable_when_it_is_returned_with_all_before_it_at_the_level_of_boundaries() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let (_, trace) = traced(&machine.disk, || session.dispatch(step(0)));
    assert!(trace.iter().all(|(op, _)| *op == Op::Write), "a dispatch waits for no disk: {trace:#?}");
    let (taken, trace) = traced(&machine.disk, || session.snapshot(SnapshotOptions::default()));
    assert_in_order(&trace, &[(Op::Write, ".seg"), (Op::SyncData, ".seg"), (Op::Write, ".seg")]);
    assert!(session.log().synced_end() > taken.position);
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Nothing {}

/// Records the calls to the disk up to the start of its handler.
struct Watches {
    disk: MemoryStorage,
    seen: Arc<Mutex<Trace>>,
}

impl Tool for Watches {
    const NAME: &'static str = "watches";
    type Parameters = Nothing;
    type Output = bool;

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<bool>, ToolError> {
        *self.seen.lock().unwrap() = self.disk.take_trace();
        assert!(context.session().log().synced_end() > context.operation().into(), "its begin is durable");
        Ok(ToolResult::ok("seen", true))
    }
}

#[test]
fn a_begin_is_durable_before_its_tool_runs_and_an_end_before_it_is_returned() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let seen = Arc::new(Mutex::new(Trace::new()));
    let tools = ToolRegistry::new().with(Watches { disk: machine.disk.clone(), seen: Arc::clone(&seen) });
    let runner = ToolRunner::new(ExecutionState::new(session.clone(), ResourceRegistry::default()), tools);
    let call = ToolCall::new("watches", "{}");
    let (report, trace) = traced(&machine.disk, || runner.execute(&call, &ExecuteOptions::default()));
    assert_in_order(&seen.lock().unwrap(), &[(Op::Write, ".seg"), (Op::SyncData, ".seg")]);
    assert_in_order(&trace, &[(Op::Write, ".seg"), (Op::SyncData, ".seg")]);
    assert!(session.log().synced_end() > report.end);
}
