//! Damaged objects of a log, which are no divergence of the host.

use std::fs;

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::replay::Replay;
use foldlog::storage::FileStorage;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Error, ExecutionState, ResourceRegistry, Session};
use foldlog_test_support::replayed_host::Noted;

use super::host::{Nothing, Stored, types};

/// Length in bytes of a payload that is too large for a record.
const LARGE: usize = 70_000;

struct Long;

impl Tool for Long {
    const NAME: &'static str = "long";
    type Parameters = Nothing;
    type Output = String;

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        Ok(ToolResult::ok("a".repeat(LARGE), "short".to_owned()))
    }
}

fn answered(session: &Session) -> foldlog::Result<()> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Long));
    runner.execute(&ToolCall::new("long", "{}"), &ExecuteOptions::default()).map(drop)
}

fn observed(session: &Session) -> foldlog::Result<()> {
    session.inputs().observe("page", || "o".repeat(LARGE)).map(drop)
}

fn dispatched(session: &Session) -> foldlog::Result<()> {
    session.dispatch(Noted::new(1, &"e".repeat(LARGE))).map(drop)
}

/// The host got the error and stopped, and its unwritten records counted as missing. An event was
/// compared with its object's name alone, and the object was never read.
#[test]
fn a_damaged_object_is_told_as_that_and_not_as_a_divergence() {
    type Step = fn(&Session) -> foldlog::Result<()>;
    let steps: [(&str, Step); 3] = [("answer", answered), ("observation", observed), ("event", dispatched)];
    for (what, step) in steps {
        let host = |session: &Session| -> foldlog::Result<()> {
            step(session)?;
            session.dispatch(Noted::new(2, "behind it")).map(drop)
        };
        let stored = Stored::new();
        let session = stored.store().create(&types()).unwrap();
        host(&session).unwrap();
        let dir = session.dir().to_owned();
        session.close().unwrap();
        let whole = LogReader::open(&dir).unwrap();
        let object = fs::read_dir(dir.join("objects")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = fs::read(&object).unwrap();
        bytes[500] ^= 1;
        fs::write(&object, bytes).unwrap();
        let outline = ReadOptions { outline: true, ..ReadOptions::default() };
        let outline = LogReader::open_with(std::sync::Arc::new(FileStorage::new()), &dir, outline).unwrap();
        for (reader, log) in [("whole", whole), ("outline", outline)] {
            // The reader with everything in memory has checked the events' objects when it was
            // opened.
            if (what, reader) == ("event", "whole") {
                continue;
            }
            for all in [false, true] {
                let replay = Replay::new(&log, &types());
                let replay = if all { replay.all() } else { replay };
                let told = replay.run(|session| host(&session)).unwrap_err();
                assert!(
                    matches!(&told, Error::Object { path, .. } if *path == object),
                    "{what}, {reader}, all {all}: {told}"
                );
            }
        }
    }
}
