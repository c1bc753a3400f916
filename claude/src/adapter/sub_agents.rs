//! Continues after a process that ended while sub-agents were running.
//!
//! The program does not continue a sub-agent in another process. So its conversation ends, and the
//! call that started it gets a result that lists the outcomes of the sub-agent's calls. The model
//! then knows which work is done.
//!
//! | content of the log | records |
//! |---|---|
//! | arrivals with an answer that contains calls, and no record of the answer | the answer. It was paid for, and it is in the transcript that the program resumes |
//! | a sub-agent's open call that was approved | its end, as in [`approvals`](super::approvals) |
//! | other open calls of a sub-agent | their ends: they never started |
//! | a call that started a sub-agent and has no result | its end, with the outcomes of the sub-agent's calls |
//!
//! # Invariants
//!
//! 1. Each committed call of a sub-agent is reported to the model, or is reported as left out.
//! 2. An answer is recorded once: arrivals before the last answer or the last request are not read
//!    again.

use std::collections::BTreeMap;

use foldlog::conversation::{
    Conversation, ConversationMessage, EntryContent, PromptIdentity, ResumePoint, Role, ToolCallRecord,
};
use foldlog::process::ProcessIdentity;
use foldlog::tools::ToolRunner;
use foldlog::{SequenceNumber, Session};
use serde_json::Value;

use super::approvals;
use super::arrival::{ARRIVED, Arrival, STARTED, TimedArrival, message_of};
use super::conversation::{Recorder, of_sub_agent};
use super::start_or_resume::close_open;
use super::transcript::SYNTHETIC;
use crate::{Assistant, ClaudeBlock, ClaudeMessageBody};
use foldlog_agent::deadline::Deadline;
use foldlog_agent::error::Result;
use foldlog_agent::evaluation::{Journal, Used, must_settle, shorten_for_model};
use foldlog_agent::inner_loop::{LoopStart, OpenTurn};
use foldlog_agent::prompt::VisibilityOverrides;

/// Start of the text for the model about the call of a sub-agent whose process ended.
const AGENT_GONE: &str = "The process ended while this sub-agent worked. What its calls did before stays. Begin another \
                          one if its work is still needed.";

/// Number of characters of a result in the text.
const RESULT_MAX: usize = 2000;

/// Number of bytes of all results of one sub-agent in the text. The text of a closed call is
/// limited to 16 KiB.
const RESULTS_MAX: usize = 12 << 10;

/// Greatest nesting depth of sub-agents whose conversations are ended.
const DEPTH_MAX: u32 = 16;

/// Ends the open work of an earlier process.
pub(super) struct SubAgentCleanup<'a> {
    pub(super) session: &'a Session,
    pub(super) evaluation: &'a str,
    pub(super) prompt: &'a PromptIdentity,
    pub(super) runner: &'a ToolRunner,
    pub(super) deadline: Deadline,
}

impl SubAgentCleanup<'_> {
    /// Continues the calls of sub-agents that waited for a decision, and closes their other open
    /// calls. Returns the texts for the model about the calls of `open` that started the
    /// sub-agents, by id.
    ///
    /// # Errors
    ///
    /// [`Error::Suspended`](foldlog_agent::Error::Suspended) and
    /// [`Error::ToolIdempotency`](foldlog_agent::Error::ToolIdempotency) if a call of a sub-agent
    /// has to be settled first.
    pub(super) fn sub_agents(&self, open: &OpenTurn) -> Result<BTreeMap<String, String>> {
        self.sub_agents_at(open, 0)
    }

    fn sub_agents_at(&self, open: &OpenTurn, depth: u32) -> Result<BTreeMap<String, String>> {
        let mut told = BTreeMap::new();
        for (_, call) in (0..).zip(&open.calls).filter(|(ordinal, _)| !open.closed.contains(ordinal)) {
            if let Some(text) = self.sub_agent(call, depth)? {
                told.insert(call.call_id.clone(), text);
            }
        }
        Ok(told)
    }

    /// Ends the conversation of the sub-agent that a call started. Returns the text for the model
    /// about the call; `None` if there is no such conversation.
    fn sub_agent(&self, call: &ToolCallRecord, depth: u32) -> Result<Option<String>> {
        let SubAgentCleanup { session, prompt, runner, .. } = self;
        let child = of_sub_agent(self.evaluation, &call.call_id);
        match session.conversation().resume(Some(&child))?.point {
            ResumePoint::NotRecorded => return Ok(None),
            ResumePoint::NeedsSettle(operations) => return Err(must_settle(session, operations)?),
            _ => {}
        }
        let mut followed = session.conversation().follow(&child);
        let Some(conversation) = followed.read()? else { return Ok(None) };
        let (start, _) = LoopStart::from_conversation(conversation, prompt, VisibilityOverrides::new());
        let mut journal = Journal::in_session((*session).clone(), followed, Used::default(), None);
        if let Some(mut open) = start.open {
            // A log from another host may contain a cycle.
            let told =
                if depth < DEPTH_MAX { self.sub_agents_at(&open, depth + 1)? } else { BTreeMap::new() };
            approvals::continue_decided(&mut open, runner, self.deadline)?;
            close_open(&mut journal, &open, runner, &told)?;
        }
        Ok(Some(AGENT_GONE.to_owned() + &summarize_calls(&journal.messages()?)))
    }

    /// Records an answer that an earlier process received but did not record, after it has closed
    /// the answer before it.
    pub(super) fn record_received(&self, model: &str) -> Result<()> {
        if matches!(
            self.session.conversation().resume(Some(self.evaluation))?.point,
            ResumePoint::NeedsSettle(_)
        ) {
            return Ok(());
        }
        let mut followed = self.session.conversation().follow(self.evaluation);
        let Some(conversation) = followed.read()? else { return Ok(()) };
        let Some(received) = find_unrecorded_answer(self.session, conversation)? else { return Ok(()) };
        let (start, _) = LoopStart::from_conversation(conversation, self.prompt, VisibilityOverrides::new());
        let used = Used::from_conversation(conversation);
        let mut journal = Journal::in_session(self.session.clone(), followed, used, None);
        if let Some(open) = &start.open {
            if !open.asked.is_empty() {
                return Ok(());
            }
            let told = self.sub_agents(open)?;
            close_open(&mut journal, open, self.runner, &told)?;
        }
        let mut recorder = Recorder::new(journal, self.prompt.clone(), model);
        recorder.record_received(&received.answer, received.request, self.runner)
    }
}

/// Contains an answer that was received but is not recorded.
struct UnrecordedAnswer {
    answer: Vec<Assistant>,
    /// Request of the answer, if it has no other answer.
    request: Option<SequenceNumber>,
}

/// Reads the last received answer, if it contains calls and is not recorded. An answer with only
/// text may be a part of another one.
fn find_unrecorded_answer(
    session: &Session,
    conversation: &Conversation,
) -> Result<Option<UnrecordedAnswer>> {
    let (mut request, mut last, mut is_start) = (None, None, false);
    for entry in conversation.entries().iter().rev() {
        match &entry.content {
            EntryContent::RequestFailed { .. } => return Ok(None),
            EntryContent::Answer { .. } => last = Some(entry.sequence),
            EntryContent::Request { parameters, .. } => {
                request.get_or_insert(entry.sequence);
                // Requests within a run are recorded after the arrival of their answers.
                is_start = parameters.as_ref().is_some_and(|parameters| session_in(parameters).is_some());
                last = is_start.then_some(entry.sequence);
            }
            _ => {}
        }
        if last.is_some() {
            break;
        }
    }
    let Some(last) = last else { return Ok(None) };
    // Records after an abandoned record are abandoned too.
    if conversation.abandoned_entries().iter().any(|entry| entry.sequence > last) {
        return Ok(None);
    }
    let mut started = Vec::new();
    session.inputs().observations_from(STARTED, last, &mut |at, _: Option<ProcessIdentity>| {
        started.push(at);
        Ok(())
    })?;
    // The program of a run starts after the first request of the run. A later start belongs to
    // another evaluation.
    let end = started.get(usize::from(is_start)).copied().unwrap_or(SequenceNumber::MAX);
    let parameters = conversation.entries().iter().rev().filter_map(|entry| match &entry.content {
        EntryContent::Request { parameters, .. } => parameters.as_deref(),
        _ => None,
    });
    let session_id = parameters.filter_map(session_in).next();
    let mut answer: Vec<Assistant> = Vec::new();
    session.inputs().observations_from(ARRIVED, last, &mut |at, stamped: TimedArrival| {
        let Arrival::Message(line) = stamped.arrival else { return Ok(()) };
        if at >= end || !line.contains("\"assistant\"") {
            return Ok(());
        }
        if let Some(ClaudeMessageBody::Assistant(said)) = message_of(&line).map(|message| message.body)
            && said.parent_tool_use_id.is_none()
            && said.model.as_deref() != Some(SYNTHETIC)
            && said.session_id == session_id
        {
            answer.retain(|one| one.id == said.id);
            answer.push(said);
        }
        Ok(())
    })?;
    let asks =
        |said: &Assistant| said.content.iter().any(|block| matches!(block, ClaudeBlock::ToolUse { .. }));
    Ok(answer.iter().any(asks).then_some(UnrecordedAnswer { answer, request }))
}

/// Returns the id of the program's session in the parameters of a run's first request; `None` for
/// other requests.
fn session_in(parameters: &str) -> Option<String> {
    let named: Value = serde_json::from_str(parameters).ok()?;
    let id = |name: &str| named.get(name)?.as_str().map(str::to_owned);
    id("session_id").or_else(|| id("resume"))
}

/// Lists the outcomes of a sub-agent's calls for the model: only the latest ones, if there are too
/// many.
fn summarize_calls(messages: &[ConversationMessage]) -> String {
    let mut calls: Vec<&ToolCallRecord> = Vec::new();
    let mut texts = Vec::new();
    for message in messages {
        // The results of an answer follow it, in the order of its calls.
        if !message.tool_calls.is_empty() {
            calls = message.tool_calls.iter().collect();
        }
        let Some(id) = message.tool_call_id.as_ref().filter(|_| message.role == Role::Tool) else { continue };
        if let Some(place) = calls.iter().position(|call| call.call_id == *id) {
            let call = calls.remove(place);
            let result: String =
                message.content.iter().flat_map(|text| text.chars()).take(RESULT_MAX).collect();
            let failed = if message.is_error { " (failed)" } else { "" };
            let (name, arguments) = (shorten_for_model(&call.name), shorten_for_model(&call.arguments));
            texts.push(format!("\n\nIts call of `{name}` with {arguments}{failed}: {result}"));
        }
    }
    let mut left = RESULTS_MAX;
    let kept = texts.iter().rev().take_while(|text| {
        let fits = text.len() <= left;
        left = left.saturating_sub(text.len());
        fits
    });
    let kept = kept.count();
    let dropped = texts.len() - kept;
    let mut told = texts.split_off(dropped).concat();
    if dropped > 0 {
        told = format!("\n\n{dropped} calls before these are left out.{told}");
    }
    told
}
