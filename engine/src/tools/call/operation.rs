//! One call from its start to its end: admission, captures and start record; then ending, restoring
//! and the report.
//!
//! # Terms
//!
//! An operation is *abandoned* if its [`Operation`] is dropped without an end: the next caller that
//! waits for it ends it as [`Cause::Dropped`]. It is *left open* if its end cannot be recorded or
//! its resources cannot be restored: a recovery ends it.
//!
//! # Invariants
//!
//! 1. A call that may make changes captures its resources before it writes its start record.
//! 2. The nested calls of a call end, and its programs are terminated, before its resources are
//!    captured or restored.
//! 3. The resources of a failed call are restored before its end is recorded. The end record itself
//!    rolls STATE back.
//! 4. Before that restore the current resources are captured, or [set
//!    aside](crate::tools::rollback). If the restore replaces or removes anything, the end record
//!    names that capture.
//! 5. Once the call's captures and leases are taken for its end, the operation either ends or is
//!    left open.

use foldlog_codec::{OperationId, SequenceNumber};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foldlog_codec::body::{
    Cause, ExternalEffects, InnerCall, Outcome, Payload, Suspension, ToolBegin, ToolEnd,
};
use foldlog_codec::msgpack::{MsgpackReader, MsgpackWriter, Value};
use parking_lot::Mutex;
use serde::Serialize;

use super::answer::{EncodedToolResult, ToolError, ToolResult};
use super::context::ToolContext;
use super::info::{CallInfo, RestoreScope};
use super::outcome::{CallEnd, Wait};
use super::report::ToolReport;
use super::run::{CallEndState, CallSource, RunningCall};
use crate::conversation::text_payload;
use crate::error::{Error, Result, catch_panic};
use crate::operation::{NotUndone, PutBack, ReplacedContent};
use crate::process::programs::Programs;
use crate::session::operation_records::RecordedCaptures;
use crate::session::operations::{ActiveCall, OperationEnd};
use crate::session::{Patience, Session, Snapshot};
use crate::tools::captures::{CaptureSet, SnapshotMetadata, SnapshotPhase};
use crate::tools::checkpoints::{CheckpointStore, ToolCheckpoint};
use crate::tools::execution::{ExecutionState, Leases};
use crate::tools::replay;
use crate::tools::rollback::{Rollback, RollbackPlan};
use crate::types::encode;

/// Contains a started call, for a tool that runs elsewhere. [`end`](Operation::end),
/// [`fail`](Operation::fail) or [`abort`](Operation::abort) ends the call.
///
/// If the `Operation` is dropped instead, the call stays open until a later call or write has to
/// wait for it, the enclosing call ends, or the session closes. A call that was started for an
/// async host ends as soon as a thread is free. The engine then ends the call with
/// [`Cause::Dropped`] and rolls its changes back.
#[must_use]
pub struct Operation {
    context: ToolContext,
    /// Whether the end is known to be recorded.
    ended: bool,
    /// Whether dropping this ends the call soon, even if no other call waits for it.
    #[cfg(feature = "async")]
    ends_soon: bool,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("begin", &self.running_call().begun.begin)
            .field("tool", &self.running_call().info.tool)
            .finish()
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let begun = &self.running_call().begun;
        let source = self.running_call().source;
        if source == CallSource::RunAgain {
            self.running_call().state.end_on_copies();
        }
        if source != CallSource::Live {
            return self.context.session.calls().let_go_replayed(begun.begin, false);
        }
        let Some(leases) = self.running_call().held.lock().as_ref().map(|held| held.leases.clone()) else {
            return;
        };
        let running = Arc::clone(self.running_call());
        let dropped =
            move || running.finish(CallEnd::with_cause(Cause::Dropped, "dropped without an end")).map(drop);
        self.running_call().begun.abandon(Arc::new(dropped));
        if let Some(guest) = leases.as_deref().and_then(Leases::guest) {
            guest.abandon(self.running_call().state.session());
        }
        #[cfg(feature = "async")]
        if self.ends_soon {
            self.running_call().begun.end_soon();
        }
    }
}

impl Operation {
    fn running_call(&self) -> &Arc<RunningCall> {
        &self.context.running
    }

    /// Returns the operation id: the sequence number of its first `tool_begin`. It is stable across
    /// re-runs.
    pub fn id(&self) -> OperationId {
        self.running_call().begun.within.operation()
    }

    /// Returns the context of the call, for the tool.
    pub fn context(&self) -> &ToolContext {
        &self.context
    }

    /// Cancels the call and its nested calls: writes through their handles fail with
    /// [`Error::Revoked`], and a program that a tool waits for is terminated with the call's other
    /// programs. The call still has to be ended; its changes are rolled back even if it reports
    /// success. If it has not ended after the store's [grace](crate::StoreOptions::grace), it
    /// counts as [stuck](crate::SessionCalls::stuck_operations).
    pub fn cancel(&self) {
        self.running_call().begun.cancel();
    }

    /// Declares that another thread ends the call. Before this, the thread that started the call
    /// gets [`Error::InsideOperation`] where it would have to wait for the call; afterwards it
    /// blocks like other threads.
    pub fn hand_over(&self) {
        self.running_call().begun.hand_over();
    }

    /// Ends the call with the tool's result. The call's changes are rolled back if the result
    /// reports failure or cannot be recorded, if a program of the call cannot be terminated, or if
    /// the call or an enclosing one was [cancelled](Operation::cancel) before.
    ///
    /// The end is durable when this returns, with
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every).
    ///
    /// ```
    /// # use foldlog::tools::{ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
    /// # use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # struct Say;
    /// # impl Tool for Say {
    /// #     const NAME: &'static str = "say";
    /// #     type Parameters = Said;
    /// #     type Output = ();
    /// #     fn call(&self, said: Said, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
    /// #         context.session().dispatch(said.clone())?;
    /// #         if said.0.is_empty() { Err(ToolError::failed("nothing to say")) } else { Ok(ToolResult::ok("said", ())) }
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(directory.path())?.create(&types)?;
    /// # let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// # let runner = ToolRunner::new(state, ToolRegistry::new().with(Say));
    /// let operation = runner.begin(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default())?;
    /// operation.context().session().dispatch(Said("hello".to_owned()))?;
    /// let report = operation.end(ToolResult::ok("done", 7))?;
    /// assert!(report.success);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Suspended`] if the result is deferred; the call has an end then.
    ///
    /// [`Error::Stuck`] if a nested call does not end within the store's
    /// [grace](crate::StoreOptions::grace): once the nested call has ended, the engine ends this
    /// call as if it were dropped. [`Error::NoSuchOperation`] if the call is over.
    ///
    /// [`Error::RestoreFailed`] if a resource cannot be restored; [`Error::Interrupted`] if a
    /// nested call was left open; [`Error::Full`], [`Error::Io`], [`Error::DurabilityUnknown`],
    /// [`Error::Poisoned`] or [`Error::Closed`] if the end cannot be recorded. With these the call
    /// is left open: the session rejects writes until
    /// [`ToolRunner::recover`](crate::tools::ToolRunner::recover), here or in another process, has
    /// ended it. A session that fails with [`Error::Poisoned`] has to be opened again first.
    pub fn end<T: Serialize>(self, result: ToolResult<T>) -> Result<ToolReport> {
        let ToolResult { success, message, value, outside, awaits, exit_code } = result;
        let value = match value.map(|value| encode(&self.running_call().info.tool, &value)).transpose() {
            Ok(value) => value,
            // A result that cannot be recorded fails the call, like that of a tool that runs here.
            Err(error) => return self.fail(ToolError::failed(error.to_string())),
        };
        let answered = EncodedToolResult { success, message, value, outside, awaits, exit_code };
        let ending = CallEnd::from_answer(Ok(answered), &self.running_call().begun.within);
        self.finish(ending)
    }

    /// Ends the call with the tool's error. The call's changes are rolled back.
    ///
    /// # Errors
    ///
    /// [`Error::VisibilityExpansion`] if `error` requests more sections of the prompt,
    /// [`Error::Suspended`] if it asks for an approval; the call has an end then. Otherwise, the
    /// errors of [`end`](Operation::end).
    pub fn fail(self, error: ToolError) -> Result<ToolReport> {
        let ending = CallEnd::from_answer(Err(error), &self.running_call().begun.within);
        self.finish(ending)
    }

    /// Ends the call with [`Cause::Cancelled`], and `reason` as the text for the model. The call's
    /// changes are rolled back.
    ///
    /// # Errors
    ///
    /// See [`end`](Operation::end).
    pub fn abort(self, reason: &str) -> Result<ToolReport> {
        self.finish(CallEnd::with_cause(Cause::Cancelled, reason))
    }

    /// Returns the captures of the resources from before the call; empty once the call is over.
    pub(in crate::tools) fn before(&self) -> CaptureSet {
        self.running_call().held.lock().as_ref().map(|held| held.before.clone()).unwrap_or_default()
    }

    /// Confirms, directly before the tool starts, that this worker's claim of the session is still
    /// valid.
    ///
    /// # Errors
    ///
    /// See [`Session::confirm_claim`]. The call is left open then, and its tool must not start.
    pub(in crate::tools) fn confirm_claim(self) -> Result<Operation> {
        if self.running_call().info.only_reads() {
            return Ok(self);
        }
        let confirmed = self.context.session.confirm_claim();
        self.if_confirmed(confirmed)
    }

    /// Async variant of [`confirm_claim`](Operation::confirm_claim).
    #[cfg(feature = "async")]
    pub(in crate::tools) async fn confirmed_async(self) -> Result<Operation> {
        if self.running_call().info.only_reads() {
            return Ok(self);
        }
        let confirmed = self.context.session.confirm_claim_async().await;
        self.if_confirmed(confirmed)
    }

    fn if_confirmed(mut self, confirmed: Result<()>) -> Result<Operation> {
        if let Err(error) = confirmed {
            self.running_call().leave_open();
            self.ended = true;
            return Err(error);
        }
        Ok(self)
    }

    /// Lets the engine end the call as soon as this is dropped without an end.
    #[cfg(feature = "async")]
    pub(in crate::tools) fn ending_soon(mut self) -> Operation {
        self.ends_soon = true;
        self
    }

    /// Ends the call with `ending`.
    ///
    /// # Errors
    ///
    /// See [`end`](Operation::end) and [`fail`](Operation::fail).
    pub(in crate::tools) fn finish(mut self, ending: CallEnd) -> Result<ToolReport> {
        let report = self.running_call().finish_and_raise(ending);
        self.ended = report.is_ok();
        report
    }

    /// Waits, as long as `patience` allows, until the schedule admits the call. Then takes the
    /// leases of the resources, captures them and writes the start record.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotMismatch`] if `session` is not the session of `state`;
    /// [`Error::DeadlineExceeded`] if the deadline passes before the start; the errors of an
    /// admission, of a lease, and of a capture. No record is written with these. Otherwise, the
    /// errors of [`Session::dispatch`] that do not concern events.
    pub(in crate::tools) fn begin(
        state: &ExecutionState,
        session: &Session,
        info: CallInfo,
        arguments: &str,
        patience: &Patience,
        still_due: &dyn Fn() -> Result<()>,
    ) -> Result<Operation> {
        if !session.is_same(state.session()) {
            let (found, own) = (session.id(), state.session().id());
            return Err(Error::SnapshotMismatch(format!(
                "the call runs within a call of session {found}, but this run belongs to session {own}"
            )));
        }
        if session.replays() {
            return Operation::begin_again(state, session, info, arguments);
        }
        let until = patience.until();
        let reads_only = info.reads_only;
        let asker = info.to_asker();
        let mut admission = session.admit(reads_only, patience, asker.clone())?;
        // A call that ran during the wait may have made this one unnecessary.
        still_due()?;
        let info = CallInfo { parent: session.calls().call_scope().map(|within| within.operation()), ..info };
        // A nested call works under the leases of the enclosing call, and a closed call needs none.
        let works = info.parent.is_none() && info.closed.is_none();
        let leases = if works { state.lease(reads_only, patience, &asker)? } else { None };
        if let Some(guest) = leases.as_deref().and_then(Leases::guest) {
            admission.run_as(guest);
            if !reads_only {
                state.announce_work()?;
            }
        }
        if let Some(leases) = leases.as_deref().filter(|_| !reads_only) {
            catch_panic("the mark of a workspace", || leases.open())?;
        }
        let tag = || capture_tag("pre", info.call_id.as_deref());
        let captured = || catch_panic("the resources before the call", || state.capture(until, tag));
        let before = if reads_only { CaptureSet::default() } else { captured()? };
        // A restore is about to replace the current contents, and reports its findings itself.
        if info.restores.is_none() && info.parent.is_none() {
            state.tell_of_changes(&before);
        }
        let text = text_payload(arguments);
        let body = ToolBegin { resources: before.to_record(), ..info.to_begin(&text) };
        let begun = admission.begin(body, state.checkpoints().is_some() && info.restores.is_none())?;
        Ok(Operation::running_as(
            state,
            session,
            begun,
            info,
            CallEndState { before, leases, text },
            CallSource::Live,
        ))
    }

    /// Starts a call of a replay whose end comes from the log: compares its start record with the
    /// recorded one. The resources are not touched.
    pub(in crate::tools) fn begin_from_log(
        state: &ExecutionState,
        session: &Session,
        info: CallInfo,
        arguments: &str,
    ) -> Result<Operation> {
        let info = CallInfo { parent: session.calls().call_scope().map(|within| within.operation()), ..info };
        let text = text_payload(arguments);
        let begun = session.calls().begin_run_again(&info.to_begin(&text))?;
        let held = CallEndState { text, ..CallEndState::default() };
        Ok(Operation::running_as(state, session, begun, info, held, CallSource::Log))
    }

    fn running_as(
        state: &ExecutionState,
        session: &Session,
        begun: ActiveCall,
        info: CallInfo,
        held: CallEndState,
        source: CallSource,
    ) -> Operation {
        let session = session.through(Arc::clone(&begun.within));
        let running = Arc::new(RunningCall {
            // An abandoned operation must not keep its session open: the next waiter or the closing
            // of the session ends it.
            state: state.clone_uncounted(),
            begun,
            info,
            programs: Programs::default(),
            held: Mutex::new(Some(held)),
            source,
            children: OnceLock::new(),
            uncaptured: OnceLock::new(),
        });
        Operation {
            context: ToolContext { session, running },
            ended: false,
            #[cfg(feature = "async")]
            ends_soon: false,
        }
    }

    /// Starts a call of a replay whose tool runs again: compares its start record with the recorded
    /// one. Takes no lease and no captures; the tool works on copies.
    fn begin_again(
        state: &ExecutionState,
        session: &Session,
        info: CallInfo,
        arguments: &str,
    ) -> Result<Operation> {
        if !session.calls().runs_tools_again() {
            let reason = "it replays recorded records, and in this replay no tool runs";
            return Err(Error::ReadOnly { session: session.id(), reason: reason.to_owned() });
        }
        let info = CallInfo { parent: session.calls().call_scope().map(|within| within.operation()), ..info };
        let text = text_payload(arguments);
        let begun = session.calls().begin_run_again(&info.to_begin(&text))?;
        let recorded = session.calls().read_begin(begun.begin, |begin| begin.resources);
        let before = state.or_end_replay(recorded.and_then(|recorded| state.begin_on_copies(recorded)))?;
        let held = CallEndState { before, leases: None, text };
        Ok(Operation::running_as(state, session, begun, info, held, CallSource::RunAgain))
    }
}

/// Returns the tag of a capture: `side` and the provider's id of the call, if present.
fn capture_tag(side: &str, call_id: Option<&str>) -> Option<String> {
    call_id.map(|call_id| [side, ":", call_id].concat())
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
            self.running.state.leave_unended(self.running.begun.begin, self.before.clone());
            self.running.begun.give_up();
        }
    }
}

/// Maximum length in bytes of a message that is recorded on a full disk.
const SHORT_BYTES: usize = 256;

/// Truncates a message to at most [`SHORT_BYTES`], between two characters.
fn short(message: &str) -> String {
    let end = (0..=SHORT_BYTES.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
    message.get(..end.unwrap_or_default()).unwrap_or_default().to_owned()
}

impl RunningCall {
    /// Ends the call. A suspension, and a request for more sections of the prompt, become errors,
    /// because the call has no result then.
    fn finish_and_raise(&self, ending: CallEnd) -> Result<ToolReport> {
        let overrides = ending.overrides.clone();
        let (wait, form) = (ending.wait, ending.form());
        let report = self.finish(ending)?;
        let operation = report.operation;
        if let Some(form) = form.filter(|_| report.outcome == Outcome::Suspended) {
            // If the call waits for a call within it, the error names the inner one, which has to
            // be settled.
            let (session, operation) = match wait {
                Some(Wait::Within(session, operation)) => (session, operation),
                _ => (self.state.session().id(), operation),
            };
            return Err(Error::Suspended { session, operation, form, question: report.message });
        }
        match (report.cause, overrides) {
            (Some(Cause::Expansion), overrides) => Err(Error::VisibilityExpansion {
                operation,
                overrides: overrides.map(|(overrides, _)| overrides).unwrap_or_default(),
                reason: report.message,
            }),
            _ => Ok(report),
        }
    }

    /// Leaves the call open before its tool has started: no restore is needed.
    fn leave_open(&self) {
        let held = self.held.lock().take();
        if let Some(CallEndState { before, leases, .. }) = held {
            drop(CallEndGuard { running: self, ended: false, before, _leases: leases });
        }
    }

    /// Ends the call with any cause, and returns its report.
    fn finish(&self, mut ending: CallEnd) -> Result<ToolReport> {
        let mut held = self.held.lock();
        let operation = self.begun.within.operation();
        if held.is_none() {
            return Err(Error::NoSuchOperation { operation, reason: "it has ended" });
        }
        if self.source != CallSource::Live {
            let CallEndState { before, text, .. } = held.take().unwrap_or_default();
            if self.source == CallSource::RunAgain {
                return self.finish_again(ending, &before, text);
            }
            self.state.session().calls().let_go_replayed(self.begun.begin, true);
            return replay::end(self.state.session(), &self.info, self.begun.begin);
        }
        // The session refused writes of a call that should stop, so its work may be incomplete even
        // if it reports success.
        let stopped = match &self.begun.within {
            within if within.is_late() => Some((Cause::Deadline, "its deadline passed")),
            within if within.was_cancelled() => Some((Cause::Cancelled, "it was cancelled")),
            _ => None,
        };
        if let Some((cause, reason)) = stopped.filter(|_| ending.cause.is_none()) {
            ending = CallEnd { outside: ending.outside, ..CallEnd::with_cause(cause, reason) };
        }
        let is_about_another = self.info.undoes.is_some() || self.info.verifies.is_some();
        if ending.wait.is_some() && (is_about_another || self.info.restores.is_some()) {
            ending = CallEnd::with_cause(
                Cause::Error,
                "what undoes or verifies another call cannot ask, nor leave its result to somebody",
            );
        }
        if matches!(ending.wait, Some(Wait::Awaits(_))) && self.info.parent.is_some() {
            ending = CallEnd::with_cause(
                Cause::Error,
                "a call within another one cannot leave its result to somebody",
            );
        }
        // If a nested call does not end, this call still has its captures and leases, and can be
        // ended later.
        self.begun.end_inner()?;
        let Some(CallEndState { before, leases, mut text }) = held.take() else {
            return Err(Error::NoSuchOperation { operation, reason: "it has ended" });
        };
        // From here on the operation either ends, or is left open for a recovery.
        let mut unended =
            CallEndGuard { running: self, ended: false, before: before.clone(), _leases: leases };
        if !self.programs.end() && ending.cause.is_none() {
            ending = CallEnd::with_cause(Cause::Error, "a program that the tool started does not end");
        }
        if let Some(children) = self.children.get() {
            let mut children = children.lock();
            if let Some(reason) = children.refusal().filter(|_| ending.cause.is_none()) {
                ending = CallEnd::with_cause(Cause::Error, reason);
            }
            ending.tell(std::mem::take(&mut children.put_back));
        }
        let mut after = None;
        if ending.keeps() && !self.info.reads_only {
            let tag = || capture_tag("post", self.info.call_id.as_deref());
            let until = self.begun.within.until();
            match catch_panic("the resources after the call", || self.state.capture(until, tag)) {
                // Parts of a capture that cannot be stopped, such as a sync, may have passed the
                // deadline.
                _ if self.begun.within.is_late() => {
                    ending = CallEnd::with_cause(Cause::Deadline, "its deadline passed");
                }
                Ok(captures) => after = Some(captures),
                Err(error) => {
                    ending = CallEnd::with_cause(
                        Cause::Error,
                        format!("the resources cannot be captured after the call: {error}"),
                    );
                }
            }
        }
        let mut found = None;
        // If this fails, the call has no end and is left open, and a recovery restores the
        // resources again.
        if !ending.keeps() {
            found = self.roll_back(&before, &mut ending)?;
        }
        ending.suspension = self.suspension(&ending, &text);
        // Resources that are never rolled back, such as budgets, keep the use of a failed call.
        let spends = !ending.keeps() && !self.info.reads_only && found.is_none();
        let kept = if spends { self.state.capture_kept() } else { None };
        let named = after.as_ref().or(found.as_ref()).or(kept.as_ref());
        let mut recorded = self.record(&ending, named, &mut text);
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
                ending = CallEnd::with_cause(Cause::Error, &reason);
                found = self.roll_back(&before, &mut ending)?;
            }
            (ending.message, ending.value, ending.overrides, after) =
                (short(&ending.message), None, None, None);
            let not_undone = std::mem::take(&mut ending.not_undone);
            let counted = ending.replaced.iter().map(ReplacedContent::without_paths).collect();
            let replaced = std::mem::replace(&mut ending.replaced, counted);
            recorded = self.record(&ending, found.as_ref(), &mut text);
            (ending.not_undone, ending.replaced) = (not_undone, replaced);
        }
        let ended = recorded?;
        unended.ended = true;
        drop(unended);
        let report = self.report(ending, &ended)?;
        self.checkpoint(&report, before, after);
        Ok(report)
    }

    /// Ends a call of a replay whose tool ran again on copies of the resources. Compares the copies
    /// and the end record with the log.
    fn finish_again(
        &self,
        mut ending: CallEnd,
        before: &CaptureSet,
        mut text: Vec<u8>,
    ) -> Result<ToolReport> {
        ending.suspension = self.suspension(&ending, &text);
        let session = self.state.session();
        let left = match ending.keeps() {
            true => {
                let recorded = if before.is_empty() {
                    Ok(BTreeMap::new())
                } else {
                    session.calls().captures_at_end(self.begun.begin)
                };
                recorded.and_then(|recorded| self.state.differ_from(recorded))
            }
            false => {
                self.restore(&before.with_undone(self.begun.within.operation())).map(|_| BTreeMap::new())
            }
        };
        self.state.end_on_copies();
        let ended = session
            .calls()
            .end_run_again(&self.end(&ending, None, &mut text), self.state.or_end_replay(left)?)?;
        self.report(ending, &ended)
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
            tag: capture_tag("rollback", self.info.call_id.as_deref()),
            until: None,
        };
        let RollbackPlan { found, target, told: mut put_back } = self.state.prepare_rollback(rollback)?;
        put_back.append(self.restore(&target)?);
        let is_replaced = !put_back.replaced.is_empty();
        ending.tell(put_back);
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

    /// Returns the suspension for the end record. `text` contains the encoded arguments.
    fn suspension(&self, ending: &CallEnd, text: &[u8]) -> Option<Suspension> {
        let (wait, form) = (ending.wait?, ending.form()?);
        let arguments = MsgpackReader::new(text).str().unwrap_or_default();
        let expiring = |after: Option<Duration>| {
            let after = i64::try_from(after?.as_micros()).unwrap_or(i64::MAX);
            Some(self.state.session().now_us().saturating_add(after))
        };
        let own = self.state.session().id();
        let (expires_us, inner) = match wait {
            Wait::Asks(after) | Wait::Awaits(after) => (expiring(after), None),
            Wait::Within(session, operation) => {
                (None, Some(InnerCall { session: (session != own).then_some(session), operation }))
            }
        };
        let arguments = *blake3::hash(arguments.as_bytes()).as_bytes();
        Some(Suspension { expires_us, inner, ..Suspension::new(form, arguments) })
    }

    /// Returns the body of the end record. `text` stores the encoded message and reuses its memory.
    fn end<'a>(
        &'a self,
        ending: &'a CallEnd,
        after: Option<&'a CaptureSet>,
        text: &'a mut Vec<u8>,
    ) -> ToolEnd<'a> {
        let begin = self.begun.begin;
        let mut shown = MsgpackWriter::reuse_buffer(std::mem::take(text));
        shown.str(&ending.message);
        *text = shown.finish();
        ToolEnd {
            exit_code: ending.exit_code,
            outside: self.outside(ending),
            result: ending.value.as_deref().map(Payload::new),
            shown: Some(Payload::new(text)),
            overrides: ending.overrides.as_ref().map(|(_, encoded)| Payload::new(encoded)),
            resources: after.map(CaptureSet::to_record).unwrap_or_default(),
            not_undone: ending.not_undone.iter().map(NotUndone::to_record).collect(),
            replaced: ending.replaced.iter().map(ReplacedContent::to_record).collect(),
            suspension: ending.suspension,
            rolls_back: !ending.keeps() && !self.info.reads_only,
            ..self.info.to_end(begin, ending.outcome(), ending.cause)
        }
    }

    /// Writes the end record. Reuses the memory of `text` for the encoded message.
    fn record(
        &self,
        ending: &CallEnd,
        after: Option<&CaptureSet>,
        text: &mut Vec<u8>,
    ) -> Result<OperationEnd> {
        let end = self.end(ending, after, text);
        self.begun.end(end, self.checkpoints().is_some())
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
            not_undone: ending.not_undone,
            replaced: ending.replaced,
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
                tag: capture_tag(side, self.info.call_id.as_deref()),
                tool_call_id: self.info.call_id.clone(),
                tool_name: Some(self.info.tool.clone()),
                phase,
            };
            self.state.composite(snapshot, resources, metadata)
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
    use crate::ResourceRegistry;
    use crate::storage::MemoryStorage;
    use crate::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
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
        let (within, core) = (runner.within(outer.context()), Arc::clone(outer.running_call()));
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
