//! The tools of the simulator's processes, and the purse that they pay from.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog::storage::{MemoryStorage, Storage};
use foldlog::tools::resources::{CaptureOptions, Snapshotable};
use foldlog::tools::{
    CallVerification, ExecuteOptions, InterruptedCall, Operation, Question, Tool, ToolCall, ToolContext,
    ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Error, ExecutionState, Idempotency, ResourceRegistry, Result, Session};
use foldlog_test_support::crash::{Call, Errand, Found, Moment};

/// Coins that a session's tools pay with. Like files, they outlive every process; a dead process
/// changes nothing.
#[derive(Clone)]
pub(super) struct Purse {
    coins: Arc<Mutex<i64>>,
    process: MemoryStorage,
}

impl Purse {
    fn is_alive(&self) -> Result<()> {
        let reason = "its process is dead".to_owned();
        let dead = |_| Error::Resource { resource: Purse::NAME.to_owned(), reason };
        self.process.list("/".as_ref()).map(drop).map_err(dead)
    }

    fn pay(&self) -> Result<()> {
        self.is_alive()?;
        *self.coins.lock().unwrap() += 1;
        Ok(())
    }
}

impl Snapshotable for Purse {
    const NAME: &'static str = "purse";
    type Snapshot = i64;

    fn snapshot(&self, _: &CaptureOptions) -> Result<i64> {
        self.is_alive()?;
        Ok(*self.coins.lock().unwrap())
    }

    fn restore(&self, snapshot: &i64) -> Result<()> {
        self.is_alive()?;
        *self.coins.lock().unwrap() = *snapshot;
        Ok(())
    }

    fn record(snapshot: &i64) -> Result<Option<Vec<u8>>> {
        Ok(Some(rmp_serde::to_vec(snapshot).expect("a number can be written")))
    }

    fn recall(recorded: &[u8]) -> Result<i64> {
        Ok(rmp_serde::from_slice(recorded).expect("what was written can be read"))
    }
}

/// Facts that tools learned while they ran.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Acknowledged start records.
    pub(super) begins: Vec<u64>,
    /// Acknowledged dispatches.
    pub(super) dispatches: Vec<u64>,
}

/// State that the tools of one process share.
#[derive(Clone)]
struct Shared {
    purse: Purse,
    told: Arc<Mutex<Told>>,
    runner: Arc<Mutex<Option<ToolRunner>>>,
}

/// Runs errands. `PLACE` selects the tool's declaration from [`Idempotency::ALL`].
struct Runs<const PLACE: usize>(Shared);

const NAMES: [&str; 5] = ["natural", "keyed", "compensate", "manual", "verify"];

fn name_of(idempotency: Idempotency) -> &'static str {
    let place = Idempotency::ALL.iter().position(|one| *one == idempotency).expect("it is one of all");
    NAMES[place]
}

impl<const PLACE: usize> Tool for Runs<PLACE> {
    const NAME: &'static str = NAMES[PLACE];
    type Parameters = Errand;
    type Output = u8;

    fn idempotency(&self) -> Idempotency {
        Idempotency::ALL[PLACE]
    }

    fn call(&self, errand: Errand, context: &ToolContext) -> std::result::Result<ToolResult<u8>, ToolError> {
        let Shared { purse, told, runner } = &self.0;
        // A running tool knows that its start record was acknowledged. For a resumed call the first
        // start record proves nothing.
        if !context.is_resume() {
            told.lock().unwrap().begins.push(context.operation().get());
        }
        let asks = || Err(ToolError::Ask(question_of(&errand)));
        let is_approved = context.approval().is_some();
        if errand.waits_at(Moment::First) && !is_approved {
            return asks();
        }
        for step in errand.steps() {
            purse.pay()?;
            let sequence = context.session().dispatch(step)?;
            told.lock().unwrap().dispatches.push(sequence.get());
        }
        if !errand.within.is_empty() {
            let runner = runner.lock().unwrap().clone().expect("the process is alive").within(context);
            for within in &errand.within {
                runner.execute(&as_called(&Call::within(within.clone())), &ExecuteOptions::default())?;
            }
        }
        match errand.succeeds {
            _ if errand.waits_at(Moment::Last) && !is_approved => asks(),
            _ if errand.waits_at(Moment::Done) => Ok(ToolResult::awaits(question_of(&errand))),
            true => Ok(ToolResult::ok("done", errand.steps)),
            false => Ok(ToolResult::unsuccessful("not done")),
        }
    }

    fn undo(
        &self,
        errand: Errand,
        _: &InterruptedCall,
        _: &ToolContext,
    ) -> std::result::Result<ToolResult<u8>, ToolError> {
        Ok(ToolResult::ok("undone", errand.steps))
    }

    fn verify(
        &self,
        errand: Errand,
        _: &InterruptedCall,
        _: &ToolContext,
    ) -> std::result::Result<CallVerification<u8>, ToolError> {
        Ok(match errand.found() {
            Found::Done(true) => CallVerification::Done(ToolResult::ok("it was done", errand.steps)),
            Found::Done(false) => CallVerification::Done(ToolResult::unsuccessful("it was done in vain")),
            Found::Nothing => CallVerification::NotDone,
            Found::Unknown => CallVerification::Unknown,
        })
    }
}

fn question_of(errand: &Errand) -> Question {
    let question = Question::new(errand.question());
    let expires_us = errand.waits.and_then(|waits| waits.expires_us);
    expires_us.map(Duration::from_micros).into_iter().fold(question, Question::expiring)
}

/// Returns a call as a host makes it; without an errand it names an unknown tool.
pub(super) fn as_called(call: &Call) -> ToolCall {
    match &call.errand {
        Some(errand) => {
            let arguments = serde_json::to_string(errand).expect("an errand can be written");
            let named = ToolCall::new(name_of(call.idempotency), arguments);
            call.answer.into_iter().fold(named, |named, answer| named.with_origin(answer, 0))
        }
        None => ToolCall::new("elsewhere", "{}").with_id("the same for all"),
    }
}

/// A session that a process has open, and its tools.
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) runner: ToolRunner,
    /// The open call of an external tool.
    pub(super) operation: Option<Operation>,
    shared: Shared,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.shared.runner.lock().unwrap().take();
        // The process may be dead; then this fails without consequences.
        if let Some(operation) = self.operation.take() {
            let _ = operation.abort("its session is given up");
        }
    }
}

impl Opened {
    pub(super) fn new(session: Session, coins: &Arc<Mutex<i64>>, process: MemoryStorage) -> Opened {
        let purse = Purse { coins: Arc::clone(coins), process };
        let shared = Shared { purse: purse.clone(), told: Arc::default(), runner: Arc::default() };
        let resources =
            ResourceRegistry::builder().snapshotable(Arc::new(purse)).build().expect("there is but one");
        let tools = ToolRegistry::new()
            .with(Runs::<0>(shared.clone()))
            .with(Runs::<1>(shared.clone()))
            .with(Runs::<2>(shared.clone()))
            .with(Runs::<3>(shared.clone()))
            .with(Runs::<4>(shared.clone()));
        let runner = ToolRunner::new(ExecutionState::new(session.clone(), resources), tools);
        *shared.runner.lock().unwrap() = Some(runner.clone());
        Opened { session, runner, operation: None, shared }
    }

    /// Returns the handle for changes: the open call's, if there is one.
    pub(super) fn handle(&self) -> &Session {
        self.operation.as_ref().map_or(&self.session, |operation| operation.context().session())
    }

    /// Returns the facts that tools learned since the last call of this function.
    pub(super) fn take_told(&self) -> Told {
        std::mem::take(&mut *self.shared.told.lock().unwrap())
    }
}
