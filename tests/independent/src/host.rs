//! A host: its records, and its only tool.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::LogReader;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolReport, ToolResult, ToolRunner,
};
use foldlog::{
    Durability, Event, ExecutionState, ResourceRegistry, Session, SessionTypes, Slice, Store, StoreOptions,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::chance::Chance;
use crate::report::{Result, Trouble};

/// All durabilities, with their names for child processes.
pub(crate) const LEVELS: [Level; 3] = [
    Level { word: "process", durability: Durability::Process },
    Level { word: "boundary", durability: Durability::Boundary },
    Level { word: "every", durability: Durability::Every },
];

/// A durability, and its name.
#[derive(Clone, Copy)]
pub(crate) struct Level {
    pub(crate) word: &'static str,
    pub(crate) durability: Durability,
}

pub(crate) fn durability(word: &str) -> Result<Durability> {
    let found = LEVELS.iter().find(|level| level.word == word);
    found.map(|level| level.durability).ok_or_else(|| Trouble::from(format!("there is no level `{word}`")))
}

/// A record with a number, which reveals a gap, and a text that follows from it, which reveals a
/// change.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Said {
    pub(crate) n: u64,
    pub(crate) text: String,
}

impl Event for Said {
    const NAME: &'static str = "independent.said";
}

/// All records, in order.
pub(crate) struct Talk;

impl Slice for Talk {
    const NAME: &'static str = "talk";
    type Item = Said;
}

pub(crate) fn types() -> Result<SessionTypes> {
    Ok(SessionTypes::builder().slice::<Talk>().append_all::<Talk>().build()?)
}

/// Returns the record of a number: mostly short, sometimes long enough for a file of its own.
pub(crate) fn said(seed: u64, n: u64) -> Said {
    let mut chance = Chance::of(seed, n);
    let len = match chance.below(200) {
        0 => 70_000 + chance.below(50_000),
        1..=5 => 2_000 + chance.below(6_000),
        _ => 10 + chance.below(150),
    };
    let text = (0..len).map(|_| char::from(b'a' + u8::try_from(chance.below(26)).unwrap_or_default()));
    Said { n, text: text.collect() }
}

/// Returns a short record of a number.
pub(crate) fn said_briefly(n: u64) -> Said {
    Said { n, text: format!("what was said as number {n}, in about as many bytes as an agent's step takes") }
}

pub(crate) fn store(directory: &Path, durability: Durability) -> Result<Store> {
    Ok(Store::open_with(directory, StoreOptions { durability, ..StoreOptions::default() })?)
}

/// Reads a session's records as an audit does.
pub(crate) fn heard(dir: &Path) -> std::result::Result<Vec<Said>, String> {
    let reader = LogReader::open(dir).map_err(|error| error.to_string())?;
    let state = reader.state().map_err(|error| error.to_string())?;
    let Some(slice) = state.slices.get(Talk::NAME) else { return Ok(Vec::new()) };
    let items = slice.items.iter().map(|item| {
        let value = item.value().map_err(|error| error.to_string())?;
        let n = value.get("n").and_then(|n| n.as_u64()).ok_or("an item has no number")?;
        let text = value.get("text").and_then(|text| text.as_str()).ok_or("an item has no text")?;
        Ok(Said { n, text: text.to_owned() })
    });
    items.collect()
}

type Deed = dyn Fn(&ToolContext) -> std::result::Result<(), ToolError> + Send + Sync;

/// Runs a function of the harness, and fails if that fails.
struct Act(Box<Deed>);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Act {
    const NAME: &'static str = "act";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        (self.0)(context).map(|()| ToolResult::ok("done", ()))
    }
}

/// A session with a real directory as its workspace.
pub(crate) struct Desk {
    pub(crate) session: Session,
    state: ExecutionState,
}

impl Desk {
    /// Opens or creates a session, with the workspace at `root`.
    pub(crate) fn at(
        base: &Path,
        root: &Path,
        durability: Durability,
        session: Option<Uuid>,
    ) -> Result<Desk> {
        Desk::with(base, root, durability, session, HostFilesystemOptions::default())
    }

    pub(crate) fn with(
        base: &Path,
        root: &Path,
        durability: Durability,
        session: Option<Uuid>,
        options: HostFilesystemOptions,
    ) -> Result<Desk> {
        let store = store(&base.join("store"), durability)?;
        let session = match session {
            Some(id) => store.open_session(id, &types()?)?,
            None => store.create(&types()?)?,
        };
        let files = HostFilesystem::open(root, base.join("captures"), options)?;
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
        Ok(Desk { state: ExecutionState::new(session.clone(), resources), session })
    }

    /// Continues without a capture if a call's files can neither be captured nor be moved aside.
    pub(crate) fn without_capture(self) -> Desk {
        let Desk { session, state } = self;
        let resources = state.resources().clone();
        Desk {
            state: ExecutionState::builder(session.clone(), resources).without_capture(true).build(),
            session,
        }
    }

    pub(crate) fn state(&self) -> &ExecutionState {
        &self.state
    }

    fn runner(&self, deed: Box<Deed>) -> ToolRunner {
        ToolRunner::new(self.state.clone(), ToolRegistry::new().with(Act(deed)))
    }

    /// Calls the tool, which runs this function.
    pub(crate) fn call(
        &self,
        deed: impl Fn(&ToolContext) -> std::result::Result<(), ToolError> + Send + Sync + 'static,
    ) -> foldlog::Result<ToolReport> {
        self.call_within(None, deed)
    }

    /// As [`call`](Desk::call), with a deadline.
    pub(crate) fn call_within(
        &self,
        deadline: Option<Duration>,
        deed: impl Fn(&ToolContext) -> std::result::Result<(), ToolError> + Send + Sync + 'static,
    ) -> foldlog::Result<ToolReport> {
        self.runner(Box::new(deed)).execute(
            &ToolCall::new(Act::NAME, "{}"),
            &ExecuteOptions { deadline, ..ExecuteOptions::default() },
        )
    }

    /// Recovers open calls. The tool is [`Manual`](foldlog::Idempotency::Manual), so none runs
    /// again.
    pub(crate) fn recover(&self) -> foldlog::Result<()> {
        let options = ExecuteOptions { deadline: Some(Duration::from_secs(60)), ..ExecuteOptions::default() };
        self.runner(Box::new(|_| Ok(()))).recover(&options).map(drop)
    }
}

/// Returns the failure that ends a function to be rolled back.
pub(crate) fn fails() -> ToolError {
    ToolError::failed("on purpose")
}
