//! A small host over a bucket: notes, and a tool that runs a test's function, whose calls may run
//! again.

use std::sync::Arc;

use foldlog::tools::{
    ExecuteOptions, ExecutionState, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolReport,
    ToolResult, ToolRunner,
};
use foldlog::{Event, Idempotency, Policy, ResourceRegistry, Session, SessionTypes, Slice, schemars};
use serde::{Deserialize, Serialize};

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

pub(crate) fn texts(session: &Session) -> Vec<String> {
    session.log().slice::<Notes>().unwrap().iter().map(|item| item.unwrap().text.clone()).collect()
}

#[derive(Deserialize, schemars::JsonSchema)]
pub(crate) struct Nothing {}

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

/// Makes a runner over resources whose tool runs `act`.
pub(crate) fn runner_over(
    session: &Session,
    resources: ResourceRegistry,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) -> foldlog::Result<ToolRunner> {
    Ok(runner_of(ExecutionState::new(session.clone(), resources), act))
}

/// Makes a runner of an execution state, whose tool runs `act`.
pub(crate) fn runner_of(
    state: ExecutionState,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) -> ToolRunner {
    ToolRunner::new(state, ToolRegistry::new().with(Acts(Arc::new(act))))
}

pub(crate) fn call(runner: &ToolRunner) -> foldlog::Result<ToolReport> {
    runner.execute(&ToolCall::new("act", "{}"), &ExecuteOptions::default())
}
