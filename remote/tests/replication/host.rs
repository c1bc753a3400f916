//! A small host: notes, and a tool that does what a test says.

use std::path::Path;
use std::sync::Arc;

use foldlog::replication::Replication;
use foldlog::tools::{
    ExecuteOptions, ExecutionState, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolReport,
    ToolResult, ToolRunner,
};
use foldlog::{
    Durability, Event, Idempotency, Policy, ResourceRegistry, Session, SessionTypes, Slice, Store,
    StoreOptions, schemars,
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

/// Opens the same store without a replicator; `unreplicated` says that it writes all the same.
pub(crate) fn plain_store(folder: &Path, unreplicated: bool) -> Store {
    Store::open_with(folder, StoreOptions { unreplicated, ..StoreOptions::default() }).unwrap()
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

pub(crate) fn texts(session: &Session) -> Vec<String> {
    session.log::<Notes>().unwrap().iter().map(|item| item.unwrap().text.clone()).collect()
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

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

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
    runner(session, act)?.execute(&ToolCall::new("act", "{}"), &ExecuteOptions::default())
}

/// Recovers a session, whose open calls of that tool run again.
pub(crate) fn recover_by_running_again(
    session: &Session,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) {
    let recovered = runner(session, act).unwrap().recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(recovered.len(), 1);
}

fn runner(
    session: &Session,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) -> foldlog::Result<ToolRunner> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    Ok(ToolRunner::new(state, ToolRegistry::new().with(Acts(Arc::new(act)))))
}
