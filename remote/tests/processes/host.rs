//! A small host over a bucket in a folder: notes, and a tool whose calls may run again.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog::audit::LogReader;
use foldlog::replication::Replication;
use foldlog::tools::{
    ExecuteOptions, ExecutionState, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolReport,
    ToolResult, ToolRunner,
};
use foldlog::{
    Durability, Event, Idempotency, Kind, Policy, ResourceRegistry, Session, SessionTypes, Slice, Store,
    StoreOptions, schemars,
};
use foldlog_remote::{ObjectReplicator, Retries};
use object_store::local::LocalFileSystem;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::steps::Steps;

/// The session that all workers write, one after the other.
pub(crate) const SESSION: Uuid = Uuid::from_u128(0x5e55);

#[derive(Serialize, Deserialize)]
pub(crate) struct Noted {
    pub(crate) text: String,
}

impl Event for Noted {
    const NAME: &'static str = "noted";
}

pub(crate) struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = Noted;
}

pub(crate) fn types() -> SessionTypes {
    SessionTypes::builder().slice_with::<Notes>(Policy::Log).append_all::<Notes>().build().unwrap()
}

/// Opens the store of a worker of that name in a folder. `steps` are told of each request to the bucket.
pub(crate) fn store(folder: &Path, bucket: &Path, name: &str, steps: Steps) -> Store {
    let files = LocalFileSystem::new_with_prefix(bucket).unwrap().with_fsync(true);
    let retries = Retries {
        attempts: 3,
        // A process may be stopped for as long as another one works.
        request_timeout: Duration::from_secs(600),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(1),
    };
    let replicator = ObjectReplicator::new(Arc::new(steps.over(files)), "team", name, retries).unwrap();
    let options = StoreOptions {
        replication: Some(Replication::new(Arc::new(replicator))),
        durability: Durability::Every,
        ..StoreOptions::default()
    };
    Store::open_with(folder, options).unwrap()
}

#[derive(Deserialize, schemars::JsonSchema)]
pub(crate) struct Nothing {}

type Act = dyn Fn(&ToolContext) + Send + Sync;

struct Acts(Arc<Act>);

impl Tool for Acts {
    const NAME: &'static str = "act";
    type Parameters = Nothing;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        (self.0)(context);
        Ok(ToolResult::ok("done", ()))
    }
}

/// Makes a runner whose tool does what `act` does.
pub(crate) fn runner(session: &Session, act: impl Fn(&ToolContext) + Send + Sync + 'static) -> ToolRunner {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    ToolRunner::new(state, ToolRegistry::new().with(Acts(Arc::new(act))))
}

/// Runs the tool once.
pub(crate) fn call(runner: &ToolRunner) -> foldlog::Result<ToolReport> {
    runner.execute(&ToolCall::new("act", "{}"), &ExecuteOptions::default())
}

/// What a log says: the notes, and the begins of calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) notes: Vec<String>,
    pub(crate) begins: Vec<u64>,
}

pub(crate) fn told(session: &Session) -> Told {
    let notes = session.log::<Notes>().unwrap().iter().map(|item| item.unwrap().text.clone()).collect();
    let mut begins = Vec::new();
    let log = LogReader::open(session.dir()).unwrap();
    log.records(0, log.last_position(), |record| {
        begins.extend((record.kind == Kind::TOOL_BEGIN).then_some(record.sequence.get()));
        Ok(())
    })
    .unwrap();
    Told { notes, begins }
}
