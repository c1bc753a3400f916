//! Stories of tools: the changes of a successful call, and that a failed one leaves none.

mod backed_up;
mod bad_input;
mod captures;
mod checkpoints;
mod child_rules;
mod children;
mod collected;
mod collected_meanwhile;
mod decisions;
mod directory;
mod durable;
mod dynamic;
mod edits;
mod exports;
mod filled;
mod full_disk;
mod futures;
mod git;
mod half_done;
mod interrupted;
mod lanes;
mod left_alone;
mod limits;
mod nesting;
mod old_logs_killed;
mod origins;
mod outcomes;
mod outside;
mod programs;
mod recovered;
mod reduced_again;
mod regressions;
mod resources;
mod rewind;
mod rewind_kills;
mod rewind_shared;
mod rewind_told;
mod several;
mod suspended;
mod swapped;
mod symptoms;
mod synced;
mod threads;
mod verifying;
mod waiting;
mod wakers;
mod workspaces;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use foldlog::inspect::{LedgerEntry, LogReader};
use foldlog::storage::{CrashKind, MemoryStorage};
use foldlog::tools::CheckpointStore;
use foldlog::tools::resources::{BudgetTracker, CaptureOptions, Snapshotable, Usage};
use foldlog::tools::{
    ExecuteOptions, InterruptedCall, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolReport,
    ToolResult, ToolRunner,
};
use foldlog::{
    BackgroundSync, Cause, Error, ExecutionState, FixedClock, Idempotency, ResourceRegistry, Result, Session,
    Store, StoreOptions, ToolInvocations, ToolInvoked,
};
use foldlog_test_support::host::{Noted, Notes, Plan, StepAdded, types};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Papers on a desk: external state that tools change. Like files, they outlive the process.
#[derive(Clone, Default)]
struct Desk {
    papers: Arc<Mutex<BTreeMap<String, String>>>,
    broken: Arc<Mutex<Option<Broken>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Snapshot,
    Restore,
    /// The restore after the next.
    SecondRestore,
}

impl Desk {
    fn papers(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.papers.lock().unwrap()
    }

    fn put(&self, paper: &str, text: &str) {
        self.papers().insert(paper.to_owned(), text.to_owned());
    }

    fn text(&self, paper: &str) -> Option<String> {
        self.papers().get(paper).cloned()
    }

    fn fails(&self, at: Broken) -> Result<()> {
        if *self.broken.lock().unwrap() != Some(at) {
            return Ok(());
        }
        Err(Error::Resource { resource: Desk::NAME.to_owned(), reason: "a leg broke".to_owned() })
    }
}

impl Snapshotable for Desk {
    const NAME: &'static str = "desk";
    type Snapshot = BTreeMap<String, String>;

    fn snapshot(&self, _: &CaptureOptions) -> Result<Self::Snapshot> {
        self.fails(Broken::Snapshot)?;
        Ok(self.papers().clone())
    }

    fn restore(&self, snapshot: &Self::Snapshot) -> Result<()> {
        self.fails(Broken::Restore)?;
        self.papers().clone_from(snapshot);
        let mut broken = self.broken.lock().unwrap();
        if *broken == Some(Broken::SecondRestore) {
            *broken = Some(Broken::Restore);
        }
        Ok(())
    }

    fn record(snapshot: &Self::Snapshot) -> Result<Option<Vec<u8>>> {
        Ok(Some(rmp_serde::to_vec(snapshot).unwrap()))
    }

    fn recall(recorded: &[u8]) -> Result<Self::Snapshot> {
        Ok(rmp_serde::from_slice(recorded).unwrap())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// What a tool of these stories does after it has changed something everywhere.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Then {
    Succeed,
    Fail,
    Panic,
    SayNo,
    Expand,
    Die,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
struct Write {
    paper: String,
    text: String,
    then: Then,
}

/// Writes a paper, adds a step to the plan, notes it in LOG, and spends tokens.
struct Writer {
    disk: MemoryStorage,
    idempotency: Idempotency,
    /// Counts of runs and undos, which no rollback changes.
    counts: Arc<Mutex<Counts>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    ran: u32,
    undone: u32,
    /// Whether the process is killed during an undo.
    dies_undoing: bool,
}

fn write(context: &ToolContext, write: &Write) -> Result<(), ToolError> {
    let desk = context.resources().get::<Desk>().unwrap();
    desk.put(&write.paper, &write.text);
    context.session().dispatch(StepAdded { title: write.text.clone(), part: 1 })?;
    context.session().dispatch(Noted { text: format!("wrote {}", write.paper) })?;
    let usage = Usage { input_tokens: 10, ..Usage::default() };
    context.resources().get::<BudgetTracker>().unwrap().record("evaluation", usage);
    Ok(())
}

impl Tool for Writer {
    const NAME: &'static str = "write";
    const DESCRIPTION: &'static str = "Writes a paper.";
    type Parameters = Write;
    type Output = usize;

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    fn call(&self, params: Write, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        let ran = {
            let mut counts = self.counts.lock().unwrap();
            counts.ran += 1;
            counts.ran
        };
        write(context, &params)?;
        match params.then {
            Then::Succeed => Ok(ToolResult::ok("written", params.text.len())),
            Then::Fail => Err(ToolError::failed("out of ink")),
            Then::Panic => panic!("the pen exploded"),
            Then::SayNo => Ok(ToolResult::unsuccessful("not today")),
            Then::Expand => Err(ToolError::VisibilityExpansion {
                overrides: serde_json::json!({ "section": "full" }),
                reason: "I need to see more".to_owned(),
            }),
            Then::Die if ran == 1 => {
                self.disk.crash(CrashKind::Process);
                Ok(ToolResult::ok("nobody hears this", 0))
            }
            Then::Die => Ok(ToolResult::ok("written after all", params.text.len())),
        }
    }

    fn undo(
        &self,
        _: Write,
        _: &InterruptedCall,
        context: &ToolContext,
    ) -> Result<ToolResult<usize>, ToolError> {
        let mut counts = self.counts.lock().unwrap();
        counts.undone += 1;
        assert!(context.is_resume());
        if counts.dies_undoing {
            counts.dies_undoing = false;
            self.disk.crash(CrashKind::Process);
        }
        Ok(ToolResult::ok("undone", 0))
    }
}

/// A run on a disk in memory, whose processes can be killed.
struct Run {
    disk: MemoryStorage,
    desk: Desk,
    budget: Arc<BudgetTracker>,
    counts: Arc<Mutex<Counts>>,
    id: Uuid,
    runner: ToolRunner,
}

const CLOCK_BEGINS_US: i64 = 1_767_322_800_000_000;

fn store_of(disk: &MemoryStorage) -> Store {
    store_with(disk, StoreOptions::default())
}

fn store_with(disk: &MemoryStorage, options: StoreOptions) -> Store {
    let options = StoreOptions {
        storage: Arc::new(disk.process()),
        clock: Arc::new(FixedClock::with_step(CLOCK_BEGINS_US, 1_000)) as _,
        seed: Some(1),
        background: BackgroundSync::Inline,
        ..options
    };
    Store::open_with("/store", options).unwrap()
}

impl Run {
    fn new() -> Run {
        Run::with(Idempotency::Manual)
    }

    fn with(idempotency: Idempotency) -> Run {
        Run::in_store(idempotency, StoreOptions::default())
    }

    /// A run whose tools are stuck as soon as their deadline has passed.
    fn without_grace() -> Run {
        Run::in_store(
            Idempotency::Manual,
            StoreOptions { grace: std::time::Duration::ZERO, ..StoreOptions::default() },
        )
    }

    fn in_store(idempotency: Idempotency, options: StoreOptions) -> Run {
        let disk = MemoryStorage::new();
        let session = store_with(&disk, options).create(&types()).unwrap();
        let id = session.id();
        let (desk, budget, counts) = (Desk::default(), Arc::default(), Arc::default());
        let runner = runner(&disk, session, &desk, &budget, &counts, idempotency);
        Run { disk, desk, budget, counts, id, runner }
    }

    /// Starts the next process, which has not recovered yet.
    fn reopen(&mut self, idempotency: Idempotency) {
        let session = store_of(&self.disk).open_session(self.id, &types()).unwrap();
        self.runner = runner(&self.disk, session, &self.desk, &self.budget, &self.counts, idempotency);
    }

    fn session(&self) -> &Session {
        self.runner.state().session()
    }

    fn write(&self, paper: &str, text: &str, then: Then) -> Result<ToolReport> {
        self.runner.execute(&call(paper, text, then), &ExecuteOptions::default())
    }

    fn plan(&self) -> Vec<String> {
        plan(self.session())
    }

    fn counts(&self) -> Counts {
        *self.counts.lock().unwrap()
    }

    /// The state that a failing tool must leave unchanged.
    fn state(&self) -> (Vec<String>, BTreeMap<String, String>) {
        (self.plan(), self.desk.papers().clone())
    }

    fn invoked(&self) -> Vec<ToolInvoked> {
        let log = self.session().log().slice::<ToolInvocations>().unwrap();
        log.iter().map(|item| (*item.unwrap()).clone()).collect()
    }

    fn ledger(&self) -> Vec<LedgerEntry> {
        LogReader::open_on(Arc::new(self.disk.clone()), self.session().dir()).unwrap().ledger().unwrap()
    }
}

/// Returns whether a call ended because its deadline had passed.
fn is_late(told: &Result<ToolReport>) -> bool {
    matches!(told, Ok(ToolReport { success: false, cause: Some(Cause::Deadline), .. }))
}

fn plan(session: &Session) -> Vec<String> {
    session.view::<Plan>().unwrap().iter().map(|step| step.title.clone()).collect()
}

fn runner(
    disk: &MemoryStorage,
    session: Session,
    desk: &Desk,
    budget: &Arc<BudgetTracker>,
    counts: &Arc<Mutex<Counts>>,
    idempotency: Idempotency,
) -> ToolRunner {
    let resources = ResourceRegistry::builder()
        .snapshotable(Arc::new(desk.clone()))
        .snapshotable(Arc::clone(budget))
        .build()
        .unwrap();
    let state = ExecutionState::builder(session, resources).checkpoints(CheckpointStore::new()).build();
    let (disk, counts) = (disk.clone(), Arc::clone(counts));
    ToolRunner::new(state, ToolRegistry::new().with(Writer { disk, idempotency, counts }))
}

fn call(paper: &str, text: &str, then: Then) -> ToolCall {
    let arguments = Write { paper: paper.to_owned(), text: text.to_owned(), then };
    ToolCall::new("write", serde_json::to_string(&arguments).unwrap())
}

fn notes(session: &Session) -> usize {
    session.log().slice::<Notes>().unwrap().len() as usize
}
