//! Opens a child session as a run on the resources of its parent's call, under that call's leases.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

use super::call::{ToolContext, ToolRegistry};
use super::captures::CaptureSet;
use super::children::{Children, ParentCall};
use super::execution::ExecutionState;
use super::runner::ToolRunner;
use crate::error::{Error, Result};
use crate::operation::{CHILD_SESSION, ChildAnnounced, PutBack};
use crate::session::Asker;
use crate::session::operation_records::RecordedCaptures;
use crate::types::SessionTypes;

impl ToolContext {
    /// Opens the call's child session number `ordinal`, like
    /// [`child_session`](ToolContext::child_session), for work on the resources of this run, under
    /// the leases of this call. A tool that drives a sub-agent passes it the returned run.
    ///
    /// Calls of the child wait for calls nested in this one and for calls of its other children, if
    /// these change something. None starts once this call is over or cancelled, and this call's
    /// deadline applies to them too. If this call fails, their committed changes of the resources
    /// are rolled back. The child's own records remain, and the
    /// [ledger](crate::inspect::LogReader::ledger) lists its operations as abandoned.
    ///
    /// If this call runs an interrupted operation again, the child continues where it stopped: the
    /// resources are restored to their state at the child's last end, and calls that a killed
    /// process left open in it are ended as interrupted. Its committed calls and recorded answers
    /// are available, and are not repeated. A change that this run of the call makes before it
    /// opens the child is lost, unless the run before made it too. A tool should therefore repeat
    /// the same steps. Children that work at the same time have to be opened before any of them
    /// works.
    ///
    /// [`tools`](crate::tools) describes the recovery after the process is killed at any point.
    ///
    /// ```
    /// # use foldlog::tools::{ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
    /// # use foldlog::{Event, ExecutionState, Idempotency, ResourceRegistry, SessionTypes, Slice, Store};
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
    /// #         context.session().dispatch(said)?;
    /// #         Ok(ToolResult::ok("said", ()))
    /// #     }
    /// # }
    /// # struct Delegate(SessionTypes);
    /// # impl Tool for Delegate {
    /// #     const NAME: &'static str = "delegate";
    /// #     type Parameters = Said;
    /// #     type Output = ();
    /// # fn idempotency(&self) -> Idempotency { Idempotency::Natural }
    /// // In a tool that may run again, since the child remembers what it did:
    /// fn call(&self, task: Said, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
    ///     let child = context.child(0, &self.0)?;
    ///     let agent = ToolRunner::new(child, ToolRegistry::new().with(Say));
    ///     let call = ToolCall::new("say", serde_json::to_string(&task.0).unwrap_or_default());
    ///     let report = agent.execute(&call, &ExecuteOptions::default())?;
    ///     Ok(ToolResult::ok(format!("the sub-agent: {}", report.message), ()))
    /// }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(directory.path())?.create(&types)?;
    /// # let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// # let runner = ToolRunner::new(state, ToolRegistry::new().with(Delegate(types)));
    /// # let report = runner.execute(&ToolCall::new("delegate", r#""hello""#), &ExecuteOptions::default())?;
    /// # assert_eq!(report.message, "the sub-agent: said");
    /// # assert!(session.view::<Chat>()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`child_session`](ToolContext::child_session). [`Error::SnapshotMismatch`] if the child
    /// cannot continue: this run lacks a resource that the child worked on, a capture of the child
    /// did not outlive its process, or another child has worked on the resources since.
    /// [`Error::RestoreFailed`] if a resource cannot be restored, and those of
    /// [`recover`](ToolRunner::recover) if calls were left open in the child; this call cannot
    /// commit then.
    pub fn child(&self, ordinal: u32, types: &SessionTypes) -> Result<ExecutionState> {
        let children = Arc::clone(self.running.children());
        let is_first = self.read_stints(&mut children.lock(), ordinal)?;
        let session = self.child_session(ordinal, types)?;
        let child = ChildAnnounced::new(self.operation(), ordinal, session.id());
        let parent =
            ParentCall { call: self.session.clone_uncounted(), child, children: Arc::clone(&children) };
        let state = ExecutionState::builder(session, self.resources().clone())
            .clock(Arc::clone(self.running.state.clock()))
            .without_capture(self.running.state.inner.without_capture)
            .under(parent)
            .build();
        self.resume_child(&state, &children, ordinal, is_first)?;
        children.lock().working.insert(ordinal, state.session().clone_uncounted());
        Ok(state)
    }

    /// Reads the stints of the children before this run of the call. Returns whether this run is a
    /// re-run that opens the child for the first time.
    fn read_stints(&self, children: &mut Children, ordinal: u32) -> Result<bool> {
        if self.running.info.again.is_none() {
            return Ok(false);
        }
        if children.before.is_none() {
            let (from, begin) = (self.operation().sequence(), self.running.begun.begin);
            let announced: Vec<ChildAnnounced> =
                self.session.calls().observed_within(CHILD_SESSION, from, begin)?;
            let mut before = BTreeMap::new();
            for child in announced.into_iter().filter(|child| child.operation == self.operation()) {
                let Some(holds) = child.holds else { continue };
                let last = holds.iter().map(|(_, stint)| *stint).max().unwrap_or_default();
                children.stints = children.stints.max(last);
                before.insert(child.ordinal, holds.into_iter().collect());
            }
            children.before = Some(before);
        }
        Ok(!children.working.contains_key(&ordinal))
    }

    /// Restores the resources to their state after the child in an earlier run, if they differ from
    /// it, and ends the calls that were left open in it.
    fn resume_child(
        &self,
        state: &ExecutionState,
        children: &Arc<parking_lot::Mutex<Children>>,
        ordinal: u32,
        is_first: bool,
    ) -> Result<()> {
        let session = state.session();
        let left_open = session.calls().changing_operation();
        let left =
            if is_first && left_open.is_none() { session.calls().captures_left()? } else { BTreeMap::new() };
        let leaves = left_open.is_some() || !left.is_empty();
        // Stints that the resources contain once the child's captures are restored; `None` if these
        // are not restored.
        let holds = {
            let children = children.lock();
            let before = children.before.as_ref().and_then(|before| before.get(&ordinal)).cloned();
            let last = before.as_ref().and_then(|before| before.get(&ordinal));
            let has_it = left_open.is_none() && last.is_some() && children.holds.get(&ordinal) >= last;
            if !leaves || has_it {
                None
            } else if is_first {
                let holds = before.unwrap_or_default();
                let other = children.worked.or_else(|| {
                    let lost = |(child, stint): &(&u32, &u64)| holds.get(*child) < Some(*stint);
                    children.holds.iter().find(lost).map(|(child, _)| *child)
                });
                self.check_nothing_lost(ordinal, other)?;
                Some(holds)
            } else {
                self.check_nothing_lost(ordinal, children.worked.filter(|worked| *worked != ordinal))?;
                None
            }
        };
        let before = if holds.is_some() { self.decode_captures(state, left)? } else { CaptureSet::default() };
        let restore = || {
            let mut put_back = PutBack::default();
            if session.calls().is_interrupted() {
                let patience = self.session.patience(self.deadline(), None);
                let ended = ToolRunner::new(state.clone(), ToolRegistry::new()).end_open(&patience)?;
                ended.into_iter().for_each(|(_, told)| put_back.append(told));
            }
            if !before.is_empty() {
                let patience = self.session.patience(self.deadline(), None);
                let asker = Asker::new("a child session's restore", Location::caller());
                let _guest = self.session.admit_live(false, &patience, asker)?.into_guest();
                put_back.append(state.put_back(&before, false)?);
            }
            Ok(put_back)
        };
        let done = restore();
        let mut children = children.lock();
        match done {
            Ok(put_back) => {
                children.put_back.append(put_back);
                children.holds.extend(holds.unwrap_or_default());
                Ok(())
            }
            Err(error) => {
                let session = session.id();
                children.broken =
                    Some(format!("what its child session {session} had left was not restored: {error}"));
                Err(error)
            }
        }
    }

    /// Fails if restoring the state after this child would lose the work of `other`.
    fn check_nothing_lost(&self, ordinal: u32, other: Option<u32>) -> Result<()> {
        let Some(other) = other else { return Ok(()) };
        let operation = self.operation();
        Err(Error::SnapshotMismatch(format!(
            "child session {ordinal} of operation {operation} cannot continue: child session {other} has worked on \
             the resources since, and its changes would be lost; open all children before any of them works"
        )))
    }

    /// Decodes a child's captures of the resources, and checks that they can be restored.
    fn decode_captures(&self, state: &ExecutionState, left: RecordedCaptures) -> Result<CaptureSet> {
        let resources = state.resources();
        let lost = left.iter().find(|(name, recorded)| {
            recorded.is_none()
                && resources.captured_resources().get(name.as_str()).is_some_and(|it| it.rolls_back())
        });
        if let Some((name, _)) = lost {
            let session = state.session().id();
            return Err(Error::SnapshotMismatch(format!(
                "resource `{name}`: its capture by child session {session} was lost with its process"
            )));
        }
        let before = CaptureSet::from_recorded(left).decode_recorded(resources, true)?;
        before.check(resources)?;
        Ok(before)
    }
}
