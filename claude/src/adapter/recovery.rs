//! Recovers a session after a process that ended within a run: ends its program, and the open
//! calls.
//!
//! | step | action | if the process ends within it |
//! |---|---|---|
//! | 1 | ends a program that outlived its host, and processes that a program left running, identified by a variable in their environment: they could change the workspace, and call the model | the next recovery ends them |
//! | 2 | the engine recovers the open calls ([`ToolRunner::recover`]): it restores their resources, and runs repeatable tools of the host again | the next recovery repeats it |
//! | 3 | interrupted calls of the program's own tools are settled as failed, with a text for the model | the next recovery settles the others |
//!
//! The calls of step 3 need no decision: their changes to the resources are rolled back by then,
//! and the program, which alone runs these tools, has ended. As for every failed call, effects
//! outside of the resources, such as a request that a command sent, cannot be rolled back. The
//! transcript that the next run resumes contains the text as the call's result.
//!
//! # Invariants
//!
//! 1. No resource is restored while a program of an earlier process runs.
//! 2. A program is ended only if the session itself recorded it: a fork does not end that of its
//!    origin.
//! 3. Tools of the host, and tools that this adapter does not allow the program, are never settled
//!    here.

use std::collections::BTreeMap;
use std::time::Duration;

use foldlog::process::{ProcessIdentity, StartMoment, end_all_with};
use foldlog::tools::{ExecuteOptions, ExecutionState, RecoveredOperation, Recovery};
use foldlog::{Parent, ReplacedContent, SequenceNumber, Session, Settlement};
use parking_lot::Mutex;
use serde_json::Value;
use uuid::Uuid;

use super::ClaudeAgentSDKAdapter;
use super::arrival::{ARRIVED, Arrival, PRE_TOOL_USE, STARTED, TimedArrival};
use super::observer::hook_after;
use super::own_tools;
use foldlog_agent::error::{Error, EvaluationPhase, Result};
use foldlog_agent::prompt::Prompt;

/// Time for a program that outlived its host to end.
const ORPHAN_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Name under which interrupted calls are settled.
const BY: &str = "foldlog";

/// Reason of these settlements in the log.
const REASON: &str = "the process ended within the call, and the recovery undid what it changed";

/// Text for the model about an interrupted call.
const UNDONE: &str =
    "The call was interrupted; its effects were undone. If they are still needed, call the tool again.";

/// Start of the text for the model about an interrupted call with remaining changes.
const PARTLY_UNDONE: &str = "The call was interrupted, and not all of its effects could be undone. Look at what it left before you go on:";

/// Reports the results of a recovery.
#[derive(Clone, Debug, Default)]
pub struct ProgramRecovery {
    /// Operations that the recovery settled as failed: unsettled calls of the program's own tools.
    pub undone: Vec<RecoveredOperation>,
    /// All others, as [`ToolRunner::recover`](foldlog::tools::ToolRunner::recover) reports them.
    pub recovered: Vec<RecoveredOperation>,
}

/// Remembers how far each session's log was searched for programs.
#[derive(Debug, Default)]
pub(super) struct OrphanSearchProgress(Mutex<BTreeMap<Uuid, SequenceNumber>>);

/// Variable in the environment of a session's program, and so of the commands that it runs, even if
/// these outlive it. Its value identifies the session.
pub const RUN_VARIABLE: &str = "FOLDLOG_RUN";

/// Returns the mark that identifies a session's program and the directories of its runs: the
/// session's id, and a digest of the path of its directory. A copy of the session elsewhere has the
/// same id, and may run too.
pub(super) fn mark(session: &Session) -> String {
    let digest = blake3::hash(session.dir().as_os_str().as_encoded_bytes()).to_hex();
    format!("{}-{}", session.id(), digest.as_str().split_at(8).0)
}

/// Ends the processes that a program of this session left running, such as a command in its own
/// process group, because they could change the workspace. Processes that were started before
/// `since`, such as the program itself, are not ended. Returns `false` if a process does not end.
pub(super) fn end_left(session: &Session, since: Option<StartMoment>) -> bool {
    end_all_with(RUN_VARIABLE, &mark(session), since)
}

/// Ends the program of an earlier process of this session, if it outlived its host, and the
/// processes that it left running, because they could change the resources to restore. Call this
/// before recovering a session without its adapter.
///
/// # Errors
///
/// [`Error::PromptEvaluation`] if a process does not end, [`Error::Engine`] if the log cannot be
/// read.
pub fn end_programs(session: &Session) -> Result<()> {
    OrphanSearchProgress::default().end_orphan(session)
}

impl OrphanSearchProgress {
    /// Ends the program of an earlier process of this session, if it outlived its host. Reads only
    /// the records added since the last search.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`] if the program does not end.
    pub(super) fn end_orphan(&self, session: &Session) -> Result<()> {
        let Some(position) = session.log().position().filter(|_| !session.replays()) else { return Ok(()) };
        let own = match session.parent() {
            Some(Parent::Fork { position, .. }) => position + 1,
            _ => SequenceNumber::from(0),
        };
        let from = self.0.lock().get(&session.id()).map_or(own, |searched| *searched + 1);
        let mut last: Option<ProcessIdentity> = None;
        session.inputs().observations_from(STARTED, from, &mut |_, identity| {
            last = identity;
            Ok(())
        })?;
        if let Some(last) = last.as_ref().filter(|last| last.is_alive() && !last.end(ORPHAN_ENDS_WITHIN)) {
            let reason =
                format!("the program of an earlier process does not end: {last:?}: end it, and resume");
            return Err(Error::evaluation(EvaluationPhase::Request, "", reason));
        }
        if last.is_some() && !end_left(session, None) {
            let reason = "a command that an earlier process left running does not end: end it, and resume";
            return Err(Error::evaluation(EvaluationPhase::Request, "", reason));
        }
        self.0.lock().insert(session.id(), position);
        Ok(())
    }
}

impl ClaudeAgentSDKAdapter {
    /// Recovers a session whose process ended within a run: ends the program, if it still runs, and
    /// then the open calls. Tools of the host run again according to
    /// [`ToolRunner::recover`](foldlog::tools::ToolRunner::recover). Calls of the program's own
    /// tools are rolled back and count as failed, so that they need no settlement.
    ///
    /// A host may call this before each evaluation: without anything to recover, it does nothing.
    /// `prompt` is that of the evaluation.
    ///
    /// # Errors
    ///
    /// [`Error::PromptEvaluation`] if the program does not end; nothing is restored then.
    /// [`Error::Engine`] as for [`ToolRunner::recover`](foldlog::tools::ToolRunner::recover) and
    /// [`SessionCalls::settle`](foldlog::SessionCalls::settle). The recovery can be called again
    /// after each of them.
    pub fn recover<O>(&self, prompt: &Prompt<O>, state: &ExecutionState) -> Result<ProgramRecovery> {
        let session = state.session();
        self.searched.end_orphan(session)?;
        let runner = own_tools::runner(state, prompt.tools(), &self.options);
        let mut report = ProgramRecovery::default();
        let recovered = runner.recover(&ExecuteOptions::default())?;
        let hooks = self.hooks_before(session, &recovered)?;
        for one in recovered {
            let waits = matches!(one.recovery, Recovery::NeedsSettling(_));
            if !waits || !self.is_native(prompt, &one.tool) {
                report.recovered.push(one);
                continue;
            }
            let text = text_of(&one);
            let hook = one.call_id.as_ref().and_then(|id| hooks.get(id.as_str()));
            if let Some((observer, hook)) = self.observer.as_ref().zip(hook) {
                observer.call_ended(&hook_after(hook, true, &text, &Value::Null));
            }
            session.calls().settle(one.operation, &Settlement::failed().showing(text), BY, REASON)?;
            report.undone.push(one);
        }
        Ok(report)
    }

    /// Returns the inputs of the hooks before some calls, by the ids of the calls, for the observer.
    fn hooks_before(
        &self,
        session: &Session,
        calls: &[RecoveredOperation],
    ) -> Result<BTreeMap<String, Value>> {
        let mut hooks = BTreeMap::new();
        if self.observer.is_none() || calls.is_empty() || session.replays() {
            return Ok(hooks);
        }
        session.inputs().observations(ARRIVED, &mut |_, TimedArrival { arrival, .. }| {
            let Arrival::Hook { event, input, tool_use_id: Some(id), .. } = arrival else { return Ok(()) };
            if event == PRE_TOOL_USE && calls.iter().any(|call| call.call_id.as_deref() == Some(&id)) {
                hooks.insert(id, serde_json::from_str(&input).unwrap_or_default());
            }
            Ok(())
        })?;
        Ok(hooks)
    }

    /// Returns whether a tool is one of the program's own that this adapter allows.
    fn is_native<O>(&self, prompt: &Prompt<O>, tool: &str) -> bool {
        let is_hosts = prompt.tools().names().contains(&tool);
        !is_hosts && self.options.allows(tool)
    }
}

/// Returns the text for the model about an interrupted call.
fn text_of(one: &RecoveredOperation) -> String {
    // Entries without a resource are not changes.
    let changes = one.not_undone.iter().filter(|left| !left.resource.is_empty());
    let left: Vec<String> = changes.map(|left| format!("{}: {}", left.path, left.reason)).collect();
    let undone =
        if left.is_empty() { UNDONE.to_owned() } else { format!("{PARTLY_UNDONE} {}", left.join("; ")) };
    // Others may have changed these files since, and the model may have read them.
    match ReplacedContent::text(&one.replaced) {
        Some(files) => format!("{undone} Files that are as before the call: {files}."),
        None => undone,
    }
}
