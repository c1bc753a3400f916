//! The end of a call: its outcome, the restore of its resources, the end record and the report.
//!
//! A [`CallEnd`] without a cause commits the call. One with a cause fails it, and one that waits
//! suspends it. An operation is *left open* if its end cannot be recorded or its resources cannot
//! be restored: a recovery ends it.
//!
//! # Invariants
//!
//! 1. The nested calls of a call end, and its programs are terminated, before its resources are
//!    captured or restored.
//! 2. The resources of a failed call are restored before its end is recorded. The end record itself
//!    rolls STATE back.
//! 3. Before that restore the current resources are captured, or [set
//!    aside](crate::tools::rollback). If the restore replaces or removes anything, the end record
//!    names that capture.
//! 4. Once the call's captures and leases are taken for its end, the operation either ends or is
//!    left open.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{
    Cause, ExternalEffects, InnerCall, Outcome, Payload, Suspension, SuspensionForm, ToolEnd,
};
use foldlog_codec::msgpack::{MsgpackReader, Value};
use foldlog_codec::{OperationId, SequenceNumber};
use uuid::Uuid;

use super::answer::{EncodedToolResult, Question, ToolError, ToolResult};
use super::operation::{CallEndState, CallSource, RunningCall};
use super::report::ToolReport;
use super::request::RestoreScope;
use crate::conversation::text_payload;
use crate::error::{Error, Result, catch_panic, panic_message};
use crate::operation::{NotUndone, PutBack, ReplacedContent};
use crate::session::Snapshot;
use crate::session::operation_records::RecordedCaptures;
use crate::session::operations::OperationEnd;
use crate::session::wait::CallScope;
use crate::tools::captures::CaptureSet;
use crate::tools::checkpoints::{CheckpointStore, ToolCheckpoint};
use crate::tools::composite::{CompositeSnapshot, SnapshotMetadata, SnapshotPhase};
use crate::tools::execution::Leases;
use crate::tools::replay;
use crate::tools::rollback::{Rollback, RollbackPlan};
use crate::types::encode;

/// Reason why a call is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tools) enum Wait {
    /// It waits for an approval; nothing has run.
    Asks(Option<Duration>),
    /// It waits for its result; its changes remain.
    Awaits(Option<Duration>),
    /// It waits for a call within it, of this or a different session.
    Within(Uuid, OperationId),
}

/// Ending of a call, from which its end record and its report are built.
#[derive(Default)]
pub(in crate::tools) struct CallEnd {
    /// Cause of a failure. `None` commits the call.
    pub(in crate::tools) cause: Option<Cause>,
    /// Reason of a suspension. No cause is set then.
    pub(in crate::tools) wait: Option<Wait>,
    /// Form of the suspension for the end record.
    pub(in crate::tools) suspension: Option<Suspension>,
    /// Text that the model sees, or the question.
    pub(in crate::tools) message: String,
    /// The tool's answer: one MessagePack value.
    pub(in crate::tools) value: Option<Vec<u8>>,
    /// Sections of the prompt that the tool requests: as JSON, and encoded for the end record.
    pub(in crate::tools) overrides: Option<(serde_json::Value, Vec<u8>)>,
    /// Exit code of the tool's command, if known.
    pub(in crate::tools) exit_code: Option<i32>,
    /// Effects outside, if the tool knows them.
    pub(in crate::tools) outside: Option<ExternalEffects>,
    /// Outcome of the restores of resources.
    pub(in crate::tools) put_back: PutBack,
}

impl CallEnd {
    /// Fails the call for `cause`, with a text for the model.
    pub(in crate::tools) fn with_cause(cause: Cause, message: impl Into<String>) -> CallEnd {
        CallEnd { cause: Some(cause), ..CallEnd::with_message(message) }
    }

    /// Fails the call because its handler panicked.
    pub(in crate::tools) fn from_panic(panic: &(dyn Any + Send)) -> CallEnd {
        CallEnd::with_cause(Cause::Panic, format!("panicked: {}", panic_message(panic)))
    }

    /// Returns the ending of a call whose deadline has passed before its handler starts; `None` if
    /// it has not.
    pub(in crate::tools) fn too_late(within: &CallScope) -> Option<CallEnd> {
        let late = || CallEnd::with_cause(Cause::Deadline, "its time was over before it began").harmless();
        within.is_late().then(late)
    }

    /// Commits the call without an answer's value.
    pub(in crate::tools) fn with_message(message: impl Into<String>) -> CallEnd {
        CallEnd { message: message.into(), ..CallEnd::default() }
    }

    /// Converts the tool's answer to an ending. An error due to another operation's deadline or
    /// cancellation counts as a plain error of this call.
    pub(in crate::tools) fn from_answer(
        answer: std::result::Result<EncodedToolResult, ToolError>,
        within: &CallScope,
    ) -> CallEnd {
        match answer {
            Ok(ToolResult { message, outside, awaits: Some(question), .. }) => {
                CallEnd { outside, ..CallEnd::with_wait(Wait::Awaits(question.expires_after), message) }
            }
            Ok(ToolResult { success, message, value, outside, awaits: None, exit_code }) => {
                let cause = (!success).then_some(Cause::Unsuccessful);
                CallEnd { cause, value, exit_code, outside, ..CallEnd::with_message(message) }
            }
            Err(ToolError::Ask(Question { text, expires_after })) => {
                CallEnd::with_wait(Wait::Asks(expires_after), text).harmless()
            }
            Err(ToolError::Engine(Error::Suspended { session, operation, question, .. })) => {
                CallEnd::with_wait(Wait::Within(session, operation), question)
            }
            Err(error) => {
                let cause = match error.cause() {
                    // The tool passed on the error of another operation.
                    Cause::Deadline if !within.is_late() => Cause::Error,
                    Cause::Cancelled if !within.is_cancelled() && !matches!(error, ToolError::Cancelled) => {
                        Cause::Error
                    }
                    cause => cause,
                };
                let ending = CallEnd::with_cause(cause, error.to_string());
                match error {
                    ToolError::Failed { outside, .. } => CallEnd { outside, ..ending },
                    // The tool's code has not run yet.
                    ToolError::InvalidArguments(_) => ending.harmless(),
                    ToolError::VisibilityExpansion { overrides, .. }
                    | ToolError::Engine(Error::VisibilityExpansion { overrides, .. }) => {
                        match encode("overrides", &overrides) {
                            Ok(encoded) => CallEnd { overrides: Some((overrides, encoded)), ..ending },
                            Err(error) => CallEnd::with_cause(Cause::Error, error.to_string()),
                        }
                    }
                    _ => ending,
                }
            }
        }
    }

    /// Suspends the call with a question.
    fn with_wait(wait: Wait, question: impl Into<String>) -> CallEnd {
        CallEnd { wait: Some(wait), ..CallEnd::with_message(question) }
    }

    /// Returns the outcome for the end record.
    pub(in crate::tools) fn outcome(&self) -> Outcome {
        match (self.cause, self.wait) {
            (Some(_), _) => Outcome::Failed,
            (None, Some(_)) => Outcome::Suspended,
            (None, None) => Outcome::Committed,
        }
    }

    /// Returns whether the call keeps its changes.
    pub(in crate::tools) fn keeps(&self) -> bool {
        self.cause.is_none() && matches!(self.wait, None | Some(Wait::Awaits(_)))
    }

    /// Makes this the ending of a call that failed for `reason`. The effects outside that the tool
    /// has reported, and earlier restores, remain.
    fn fail(&mut self, cause: Cause, reason: impl Into<String>) {
        let (outside, put_back) = (self.outside, std::mem::take(&mut self.put_back));
        *self = CallEnd { outside, put_back, ..CallEnd::with_cause(cause, reason) };
    }

    /// Declares that the call had no effects outside.
    pub(in crate::tools) fn harmless(self) -> CallEnd {
        CallEnd { outside: Some(ExternalEffects::None), ..self }
    }
}

/// Guards the end of an operation: dropping it releases the leases, and leaves the operation open
/// for a recovery unless its end was recorded.
struct CallEndGuard<'a> {
    running: &'a RunningCall,
    ended: bool,
    /// Captures of the resources from before the call. A recovery by the same run restores them.
    before: CaptureSet,
    _leases: Option<Arc<Leases>>,
}

impl Drop for CallEndGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let mut unended = self.running.state.inner.unended.lock();
            unended.insert(self.running.begun.begin, self.before.clone());
            drop(unended);
            self.running.begun.give_up();
        }
    }
}

/// Maximum length in bytes of a message that is recorded on a full disk.
const SHORT_BYTES: usize = 256;

impl RunningCall {
    /// Leaves the call open before its tool has started: no restore is needed.
    pub(super) fn leave_open(&self) {
        let held = self.held.lock().take();
        if let Some(CallEndState { before, leases, .. }) = held {
            drop(CallEndGuard { running: self, ended: false, before, _leases: leases });
        }
    }

    /// Ends the call, and returns its report.
    pub(super) fn finish(&self, ending: CallEnd) -> Result<ToolReport> {
        let mut held = self.held.lock();
        let ended =
            Error::NoSuchOperation { operation: self.begun.within.operation(), reason: "it has ended" };
        if held.is_none() {
            return Err(ended);
        }
        if self.source != CallSource::Live {
            let CallEndState { before, .. } = held.take().unwrap_or_default();
            return self.finish_replayed(ending, &before);
        }
        let overrides = ending.overrides.as_ref().map(|(overrides, _)| overrides.clone());
        let mut ending = self.checked(ending);
        // If a nested call does not end, this call still has its captures and leases, and can be
        // ended later.
        self.begun.end_inner()?;
        let CallEndState { before, leases } = held.take().ok_or(ended)?;
        // From here on the operation either ends, or is left open for a recovery.
        let mut unended =
            CallEndGuard { running: self, ended: false, before: before.clone(), _leases: leases };
        self.end_programs_and_children(&mut ending);
        let mut after = self.capture_after(&mut ending);
        // If this fails, the call has no end and is left open, and a recovery restores the
        // resources again.
        let mut found = if ending.keeps() { None } else { self.roll_back(&before, &mut ending)? };
        ending.suspension = self.suspension(&ending);
        // Resources that are never rolled back, such as budgets, keep the use of a failed call.
        let spends = !ending.keeps() && !self.info.reads_only && found.is_none();
        let kept = if spends { CaptureSet::of_kept(self.state.live_resources()) } else { None };
        let named = after.as_ref().or(found.as_ref()).or(kept.as_ref());
        let mut recorded = self.record(&ending, named);
        let unrecorded = match &recorded {
            Err(Error::Full { .. }) => Some("there is no space to record what the tool answered".to_owned()),
            Err(error @ Error::TooLarge { .. }) => {
                Some(format!("what the tool answered cannot be recorded: {error}"))
            }
            _ => None,
        };
        if let Some(reason) = unrecorded {
            // The log reserves room for an end record of at most this length.
            if ending.cause.is_none() {
                let keeps = ending.keeps();
                ending.fail(Cause::Error, reason);
                if keeps {
                    found = self.roll_back(&before, &mut ending)?;
                }
            }
            ending.message.truncate(ending.message.floor_char_boundary(SHORT_BYTES));
            (ending.value, ending.overrides, after) = (None, None, None);
            let replaced = ending.put_back.replaced.iter().map(ReplacedContent::without_paths).collect();
            let counted = PutBack { not_undone: Vec::new(), replaced };
            let put_back = std::mem::replace(&mut ending.put_back, counted);
            recorded = self.record(&ending, found.as_ref());
            ending.put_back = put_back;
        }
        let ended = recorded?;
        unended.ended = true;
        drop(unended);
        let suspension = ending.suspension;
        let report = self.report(ending, &ended)?;
        self.checkpoint(&report, before, after);
        report.into_result(self.state.session(), suspension, overrides)
    }

    /// Returns the ending of a call whose tool has returned, as the state of the call allows it.
    fn checked(&self, mut ending: CallEnd) -> CallEnd {
        // The session refused writes of a call that should stop, so its work may be incomplete even
        // if it reports success.
        let stopped = match &self.begun.within {
            within if within.is_late() => Some((Cause::Deadline, "its deadline passed")),
            within if within.was_cancelled() => Some((Cause::Cancelled, "it was cancelled")),
            _ => None,
        };
        if let Some((cause, reason)) = stopped.filter(|_| ending.cause.is_none()) {
            ending.fail(cause, reason);
        }
        let is_about_another = self.info.undoes.is_some() || self.info.verifies.is_some();
        if ending.wait.is_some() && (is_about_another || self.info.restores.is_some()) {
            let reason = "what undoes or verifies another call cannot ask, nor leave its result to somebody";
            ending.fail(Cause::Error, reason);
        }
        if matches!(ending.wait, Some(Wait::Awaits(_))) && self.info.parent.is_some() {
            ending.fail(Cause::Error, "a call within another one cannot leave its result to somebody");
        }
        ending
    }

    /// Terminates the programs of the call. Fails the call if one does not end, or if a child
    /// session left a call open.
    fn end_programs_and_children(&self, ending: &mut CallEnd) {
        if !self.programs.end() && ending.cause.is_none() {
            ending.fail(Cause::Error, "a program that the tool started does not end");
        }
        if let Some(children) = self.children.get() {
            let mut children = children.lock();
            if let Some(reason) = children.refusal().filter(|_| ending.cause.is_none()) {
                ending.fail(Cause::Error, reason);
            }
            ending.put_back.append(std::mem::take(&mut children.put_back));
        }
    }

    /// Captures the resources of a call that keeps its changes. Fails the call if that is not
    /// possible.
    fn capture_after(&self, ending: &mut CallEnd) -> Option<CaptureSet> {
        if !ending.keeps() || self.info.reads_only {
            return None;
        }
        let until = self.begun.within.until();
        match catch_panic("the resources after the call", || self.state.capture(until)) {
            // Parts of a capture that cannot be stopped, such as a sync, may have passed the
            // deadline.
            _ if self.begun.within.is_late() => {
                ending.fail(Cause::Deadline, "its deadline passed");
            }
            Ok(captures) => return Some(captures),
            Err(error) => {
                let reason = format!("the resources cannot be captured after the call: {error}");
                ending.fail(Cause::Error, reason);
            }
        }
        None
    }

    /// Ends a call of a replay. If its tool ran again on copies of the resources, compares the
    /// copies and the end record with the log; otherwise the end comes from the log.
    fn finish_replayed(&self, mut ending: CallEnd, before: &CaptureSet) -> Result<ToolReport> {
        if self.source == CallSource::Reported {
            self.state.session().calls().let_go_replayed(self.begun.begin, true);
        }
        if self.source != CallSource::RunAgain {
            return replay::end(self.state.session(), self.begun.begin);
        }
        ending.suspension = self.suspension(&ending);
        let session = self.state.session();
        let left = match ending.keeps() {
            true if before.is_empty() => Ok(BTreeMap::new()),
            true => {
                let recorded = session.calls().captures_at_end(self.begun.begin);
                recorded.and_then(|recorded| self.state.differ_from(recorded))
            }
            false => {
                self.restore(&before.with_undone(self.begun.within.operation())).map(|_| BTreeMap::new())
            }
        };
        self.state.end_on_copies();
        let left = self.state.or_end_replay(left)?;
        let shown = text_payload(&ending.message);
        let ended = session.calls().end_run_again(&self.end(&ending, None, &shown), left)?;
        let suspension = ending.suspension;
        let overrides = ending.overrides.as_ref().map(|(overrides, _)| overrides.clone());
        self.report(ending, &ended)?.into_result(session, suspension, overrides)
    }

    /// Captures the resources, and restores their state before the call. Returns the capture if the
    /// restore replaced anything.
    fn roll_back(&self, before: &CaptureSet, ending: &mut CallEnd) -> Result<Option<CaptureSet>> {
        if self.info.reads_only {
            return Ok(None);
        }
        let before = before.with_undone(self.begun.within.operation());
        let rollback = Rollback {
            begin: self.begun.begin,
            before: &before,
            all: self.info.restores == Some(RestoreScope::All),
            earlier: RecordedCaptures::new(),
            until: None,
        };
        let RollbackPlan { found, target, told: mut put_back } = self.state.prepare_rollback(rollback)?;
        put_back.append(self.restore(&target)?);
        let is_replaced = !put_back.replaced.is_empty();
        ending.put_back.append(put_back);
        Ok(found.filter(|_| is_replaced))
    }

    /// Restores the resources to their state before the call. Returns the changes that could not be
    /// undone, and the replaced contents.
    fn restore(&self, before: &CaptureSet) -> Result<PutBack> {
        if self.info.reads_only {
            return Ok(PutBack::default());
        }
        let all = self.info.restores == Some(RestoreScope::All);
        self.state.put_back(before, all)
    }

    /// Returns the effects outside: those that the tool reports, otherwise those that its
    /// declaration implies.
    fn outside(&self, ending: &CallEnd) -> ExternalEffects {
        ending.outside.unwrap_or(self.info.outside())
    }

    /// Returns the suspension for the end record.
    fn suspension(&self, ending: &CallEnd) -> Option<Suspension> {
        let arguments = MsgpackReader::new(&self.info.arguments).str().unwrap_or_default();
        let expiring = |after: Option<Duration>| {
            let after = i64::try_from(after?.as_micros()).unwrap_or(i64::MAX);
            Some(self.state.session().now_us().saturating_add(after))
        };
        let own = self.state.session().id();
        let (form, expires_us, inner) = match ending.wait? {
            Wait::Asks(after) => (SuspensionForm::Asks, expiring(after), None),
            Wait::Awaits(after) => (SuspensionForm::Awaits, expiring(after), None),
            Wait::Within(session, operation) => {
                let session = (session != own).then_some(session);
                (SuspensionForm::Within, None, Some(InnerCall { session, operation }))
            }
        };
        let arguments = *blake3::hash(arguments.as_bytes()).as_bytes();
        Some(Suspension { expires_us, inner, ..Suspension::new(form, arguments) })
    }

    /// Returns the body of the end record. `shown` is the encoded message.
    fn end<'a>(&'a self, ending: &'a CallEnd, after: Option<&'a CaptureSet>, shown: &'a [u8]) -> ToolEnd<'a> {
        ToolEnd {
            exit_code: ending.exit_code,
            outside: self.outside(ending),
            result: ending.value.as_deref().map(Payload::new),
            shown: Some(Payload::new(shown)),
            overrides: ending.overrides.as_ref().map(|(_, encoded)| Payload::new(encoded)),
            resources: after.map(CaptureSet::to_record).unwrap_or_default(),
            not_undone: ending.put_back.not_undone.iter().map(NotUndone::to_record).collect(),
            replaced: ending.put_back.replaced.iter().map(ReplacedContent::to_record).collect(),
            suspension: ending.suspension,
            rolls_back: !ending.keeps() && !self.info.reads_only,
            ..self.info.to_end(self.begun.begin, ending.outcome(), ending.cause)
        }
    }

    /// Writes the end record.
    fn record(&self, ending: &CallEnd, after: Option<&CaptureSet>) -> Result<OperationEnd> {
        let shown = text_payload(&ending.message);
        self.begun.end(self.end(ending, after, &shown), self.checkpoints().is_some())
    }

    fn report(&self, ending: CallEnd, ended: &OperationEnd) -> Result<ToolReport> {
        let value = ending.value.as_deref().map(Value::decode).transpose();
        let unread = |error| Error::Encode { name: self.info.tool.to_string(), reason: format!("{error}") };
        Ok(ToolReport {
            operation: self.begun.within.operation(),
            begin: self.begun.begin,
            end: ended.end,
            tool: self.info.tool.clone(),
            call_id: self.info.call_id.clone(),
            outcome: ending.outcome(),
            cause: ending.cause,
            success: ending.outcome() == Outcome::Committed,
            outside: self.outside(&ending),
            not_undone: ending.put_back.not_undone,
            replaced: ending.put_back.replaced,
            message: ending.message,
            value: value.map_err(unread)?,
            elapsed_us: ended.elapsed_us,
            recorded: false,
        })
    }

    /// Returns the store of checkpoints. `None` if the run keeps none, and for a restore, which is
    /// not a tool's call.
    fn checkpoints(&self) -> Option<&CheckpointStore> {
        self.state.checkpoints().filter(|_| self.info.restores.is_none())
    }

    /// Stores the positions before and after the call, if the run keeps checkpoints.
    fn checkpoint(&self, report: &ToolReport, before: CaptureSet, after: Option<CaptureSet>) {
        let Some(checkpoints) = self.checkpoints() else { return };
        let session = self.state.session();
        let at = |position: SequenceNumber, resources: CaptureSet, phase: SnapshotPhase| {
            let policies = [crate::Policy::State].into_iter().collect();
            let (time_us, tag) = (self.begun.began_us, None);
            let snapshot = Snapshot { session: session.id(), position, time_us, tag, policies };
            let side = if phase == SnapshotPhase::PreTool { "pre" } else { "post" };
            let metadata = SnapshotMetadata {
                tag: self.info.call_id.as_deref().map(|call_id| format!("{side}:{call_id}")),
                tool_call_id: self.info.call_id.clone(),
                tool_name: Some(self.info.tool.clone()),
                phase,
            };
            CompositeSnapshot::new(snapshot, self.state.clock().now_us(), resources, metadata)
        };
        // The first record opens the session, so a record precedes every start record.
        let begin = report.begin.saturating_sub(1);
        checkpoints.record(ToolCheckpoint {
            operation: report.operation,
            tool_call_id: self.info.call_id.clone(),
            tool_name: self.info.tool.clone(),
            pre: at(begin, before, SnapshotPhase::PreTool),
            post: report.success.then(|| at(report.end, after.unwrap_or_default(), SnapshotPhase::PostTool)),
            result_summary: Some(report.message.clone()),
            success: report.success,
            elapsed_us: report.elapsed_us,
            recorded_at_us: self.state.clock().now_us(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::storage::MemoryStorage;
    use crate::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
    use crate::{ExecutionState, ResourceRegistry};
    use crate::{SessionTypes, Store, StoreOptions};

    /// Guards against an abandoned call that never ends. Another thread could start a nested call
    /// after a first thread had started to end the abandoned one, and before its handle was
    /// revoked. The nested call prevented the end, no thread tried again, and the call blocked all
    /// all later calls until the session was recovered.
    #[test]
    fn nothing_begins_within_a_call_that_was_let_go_of_once_somebody_ends_it() {
        let (storage, grace) = (Arc::new(MemoryStorage::new()), Duration::ZERO);
        let options = StoreOptions { storage, grace, ..StoreOptions::default() };
        let store = Store::open_with("/store", options).unwrap();
        let session = store.create(&SessionTypes::builder().build().unwrap()).unwrap();
        let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
        let runner = ToolRunner::new(state, ToolRegistry::new());
        // The deadline prevents a failure of this test from waiting forever.
        let options = ExecuteOptions { deadline: Some(Duration::from_secs(20)), ..ExecuteOptions::default() };
        let call = ToolCall::new("elsewhere", "{}");
        let outer = runner.begin(&call, &ExecuteOptions::default()).unwrap();
        let (within, core) = (runner.within(outer.context()), Arc::clone(&outer.context().running));
        drop(outer);
        // Replaces the closure that dropping the operation registered: another thread's call comes
        // first, at that very moment.
        let (tells, told) = mpsc::channel();
        let (inner, again) = (call.clone(), Arc::clone(&core));
        let dropped = move || {
            tells.send(within.begin(&inner, &options)).unwrap();
            again.finish(CallEnd::with_cause(Cause::Dropped, "dropped without an end")).map(drop)
        };
        core.begun.abandon(Arc::new(dropped));
        let next = runner.begin(&call, &options);
        let inner = told.recv().unwrap();
        assert!(matches!(inner, Err(Error::Revoked { .. })), "{inner:?}; and the next one: {next:?}");
        next.unwrap().abort("it is over").unwrap();
        assert!(session.calls().open_operations().is_empty() && !session.calls().is_interrupted());
    }
}
