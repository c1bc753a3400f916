//! Calls that a person has to approve before they run.
//!
//! A tool of the host asks as usual ([`ToolError::Ask`]). A tool of the program's own asks if
//! [`RunOptions::asks`] names it. In both cases the call is suspended, its question is
//! [pending](foldlog::SessionCalls::pending_questions), and the run ends. The program is ended
//! without a reply to the call, but only after it has mirrored the answer with the call. So the
//! transcript that the next run resumes contains the call, but not yet its result. The evaluation
//! fails with [`Error::Suspended`](foldlog_agent::Error::Suspended), and so does each further one
//! until the call is [settled](foldlog::SessionCalls::settle). The decision becomes the call's
//! result in that transcript:
//!
//! | decision | a tool of the host | a tool of the program's own |
//! |---|---|---|
//! | approved | runs before the program does, and its result becomes the call's | is reported to the model, which has to call the tool again: only the program can run it, and it runs no call of an earlier run. The next call of that tool with the same arguments passes without a question, once |
//! | refused, or not answered in time | counts as failed, with the text of the settlement | the same |
//!
//! The other calls of the same answer do not run, and the model is informed. A sub-agent whose call
//! asks ends with the run. The outcome of its call is reported to the model as the result of the
//! call that started the sub-agent.
//!
//! # Invariants
//!
//! 1. A call of a tool that asks starts only if a person has approved it, with its arguments, and
//!    once per approval.
//! 2. The remaining approvals follow from the log alone.
//! 3. An approval that has expired when the model repeats the call does not count: the call asks
//!    again.
//!
//! # Limits
//!
//! A conversation that is not recorded contains no approvals, so a tool of the program's own that
//! asks never runs there.

use chrono::{DateTime, Utc};
use foldlog::conversation::{Conversation, EntryContent, ToolCallRecord};
use foldlog::tools::{ToolError, ToolRunner};
use foldlog::{CallOrigin, Cause, Outcome, Session};
use serde_json::Value;

use super::calls::hosts_tool;
use super::config::RunOptions;
use super::conversation::of_sub_agent;
use foldlog_agent::deadline::Deadline;
use foldlog_agent::error::Result;
use foldlog_agent::evaluation::asked_call;
use foldlog_agent::inner_loop::OpenTurn;
use foldlog_agent::prompt::{VisibilityOverrides, overrides_from_json};

/// Text for the model after the approval of a call of the program's own tools.
const APPROVED: &str = "The call was approved. It has not run yet: call the tool again with exactly the same arguments, and it will.";

/// Text for the model after the approval of a call whose tool no longer exists in the host.
const GONE: &str = "The call was approved, but there is no such tool any more. It did not run.";

/// Continues the calls of an open answer that waited for a decision and have it now, and closes
/// them. Returns the visibility that they request.
pub(super) fn continue_decided(
    open: &mut OpenTurn,
    runner: &ToolRunner,
    deadline: Deadline,
) -> Result<VisibilityOverrides> {
    let mut shown = VisibilityOverrides::new();
    for (ordinal, call) in (0..).zip(&open.calls) {
        let Some(answer) = open.answer.filter(|_| open.asked.contains(&ordinal)) else { continue };
        let asked = asked_call(call, Some(CallOrigin { answer, ordinal }));
        match runner.execute(&asked, &deadline.for_tools()) {
            // It ran, or its outcome is recorded.
            Ok(_) => {}
            Err(foldlog::Error::VisibilityExpansion { overrides, .. }) => {
                shown.extend(overrides_from_json(&overrides)?);
            }
            Err(foldlog::Error::NoSuchTool(_)) => {
                let text = if hosts_tool(&call.name).is_some() { GONE } else { APPROVED };
                let operation = runner.begin_told(&asked, &deadline.for_tools())?;
                operation.fail(ToolError::failed(text))?;
            }
            Err(error) => return Err(error.into()),
        }
        open.closed.insert(ordinal);
    }
    Ok(shown)
}

/// Contains the approved calls of the program's own tools that the model has to repeat.
#[derive(Debug, Default)]
pub(super) struct ApprovedCalls(Vec<ApprovedCall>);

#[derive(Debug)]
struct ApprovedCall {
    tool: String,
    arguments: Value,
    /// Time at which the approval expires.
    until: Option<DateTime<Utc>>,
}

impl ApprovedCalls {
    /// Reads the approved calls of an evaluation and its sub-agents that were not repeated yet.
    pub(super) fn from_session(
        session: &Session,
        evaluation: &str,
        options: &RunOptions,
    ) -> Result<ApprovedCalls> {
        let mut approved = ApprovedCalls::default();
        if options.asks.is_empty() {
            return Ok(approved);
        }
        let of_sub_agents = of_sub_agent(evaluation, "");
        for id in session.conversation().evaluations() {
            if id != evaluation && !id.starts_with(&of_sub_agents) {
                continue;
            }
            if let Some(conversation) = session.conversation().read(&id)? {
                approved.read(&conversation, options);
            }
        }
        Ok(approved)
    }

    fn read(&mut self, conversation: &Conversation, options: &RunOptions) {
        let mut calls = Vec::new();
        let mut asked = Vec::new();
        for entry in conversation.entries() {
            match &entry.content {
                EntryContent::Answer { message, .. } => {
                    for (ordinal, call) in (0..).zip(&message.tool_calls) {
                        if options.asks.contains_key(&call.name) {
                            calls.push((CallOrigin { answer: entry.sequence, ordinal }, call));
                        }
                    }
                }
                EntryContent::CallEnded { origin, outcome: Outcome::Suspended, .. } => asked.push(*origin),
                EntryContent::CallEnded { origin, cause, .. } => {
                    // The end record of the suspended call itself only reports the approval to the
                    // model.
                    let has_run = !asked.contains(origin) && *cause != Some(Cause::Denied);
                    if let Some(call) = find(&calls, *origin).filter(|_| has_run) {
                        self.take(&call.name, &call.arguments, entry.time);
                    }
                }
                EntryContent::CallSettled { origin, committed: None, until, .. }
                    if asked.contains(origin) =>
                {
                    if let Some(call) = find(&calls, *origin) {
                        let arguments = serde_json::from_str(&call.arguments).unwrap_or_default();
                        let (tool, until) = (call.name.clone(), *until);
                        self.0.push(ApprovedCall { tool, arguments, until });
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes the approval of a call with these arguments. Returns `false` if there is none that is
    /// valid at `now`.
    pub(super) fn take(&mut self, tool: &str, arguments: &str, now: DateTime<Utc>) -> bool {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        let counts = |one: &ApprovedCall| one.until.is_none_or(|until| until > now);
        let is_it = |one: &ApprovedCall| one.tool == tool && one.arguments == arguments && counts(one);
        let place = self.0.iter().position(is_it);
        place.map(|place| self.0.swap_remove(place)).is_some()
    }
}

fn find<'a>(calls: &[(CallOrigin, &'a ToolCallRecord)], origin: CallOrigin) -> Option<&'a ToolCallRecord> {
    calls.iter().find(|(of, _)| *of == origin).map(|(_, call)| *call)
}
