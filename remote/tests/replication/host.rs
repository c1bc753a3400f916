//! A small host: notes, and a tool that does what a test says.

use std::sync::Arc;

use foldlog::replication::Replication;
use foldlog::tools::{
    ExecuteOptions, ExecutionState, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolReport,
    ToolResult, ToolRunner,
};
use foldlog::{
    Durability, Event, Policy, ResourceRegistry, Session, SessionTypes, Slice, Store, StoreOptions, schemars,
};
use foldlog_remote::ObjectReplicator;
use serde::{Deserialize, Serialize};

use crate::bucket::{Bucket, retries};

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

pub(crate) fn note(text: impl Into<String>) -> Noted {
    Noted { text: text.into() }
}

pub(crate) fn types() -> SessionTypes {
    SessionTypes::builder().slice_with::<Notes>(Policy::Log).append_all::<Notes>().build().unwrap()
}

/// Opens the store of a worker of that name in a folder.
pub(crate) fn store_at(
    folder: &tempfile::TempDir,
    bucket: &Bucket,
    name: &str,
    durability: Durability,
) -> Store {
    let replicator = ObjectReplicator::new(Arc::new(bucket.clone()), "team", name, retries()).unwrap();
    let replication = Some(Replication::new(Arc::new(replicator)));
    Store::open_with(folder.path(), StoreOptions { replication, durability, ..StoreOptions::default() })
        .unwrap()
}

pub(crate) fn store(folder: &tempfile::TempDir, bucket: &Bucket, name: &str) -> Store {
    store_at(folder, bucket, name, Durability::Boundary)
}

#[derive(Deserialize, schemars::JsonSchema)]
pub(crate) struct Nothing {}

/// What a test's tool does.
type Act = dyn Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync;

struct Acts(Arc<Act>);

impl Tool for Acts {
    const NAME: &'static str = "act";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        (self.0)(context)?;
        Ok(ToolResult::ok("done", ()))
    }
}

/// Runs a tool that does what `act` does.
pub(crate) fn run(
    session: &Session,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) -> foldlog::Result<ToolReport> {
    let resources = ResourceRegistry::builder().build()?;
    let state = ExecutionState::new(session.clone(), resources);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Acts(Arc::new(act))));
    runner.execute(&ToolCall::new("act", "{}"), &ExecuteOptions::default())
}
