//! Records conversations and adapter states, and finds the point at which a conversation continues.
//!
//! None of these records waits for an operation. A record written through an operation's handle
//! names the run of the operation, and is abandoned if that run fails.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldlog_codec::body::{
    AdapterState, AnswerBody, AnsweredCall, CallOrigin, ConversationScope, Input, Payload, PromptAccepted,
    Request, RequestFailure, Role, Shortened, ShortenedMessage, Turn,
};
use foldlog_codec::image::{ConversationEntry, EntryKind};
use foldlog_codec::{RecordKind, SequenceNumber};
use parking_lot::MutexGuard;
use smol_str::SmolStr;

use super::schedule::WriteScope;
use super::settle;
use super::{Session, SessionConversation, WriterState};
use crate::conversation::{
    AdapterStateSnapshot, ContentBlocks, Conversation, NewAdapterState, NewAnswer, NewInput, NewRequest,
    NewRequestFailure, OriginalMessage, PromptIdentity, Resume, ResumePoint, blocks_of, text_payload,
};
use crate::error::{Error, Result};
use crate::fold::conversation_reading::{ConversationReader, TextBudget};
use crate::fold::conversation_resume::resume_of;
use crate::fold::conversations::{ConversationNote, Conversations, input_key};
use crate::fold::log_source::LogSource;
use crate::fold::record_kinds::RecordBody;
use crate::types::encode;

fn json_text(value: &serde_json::Value) -> Vec<u8> {
    text_payload(&value.to_string())
}

fn encoded_blocks(blocks: Option<&ContentBlocks>) -> Option<(&str, Vec<u8>)> {
    blocks.map(|blocks| (blocks.format.as_str(), text_payload(&blocks.json)))
}

fn pairs(pairs: &[(String, String)]) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    pairs.iter().map(|(name, value)| (Cow::from(name), Cow::from(value))).collect()
}

fn recorded_identity(prompt: &PromptIdentity) -> foldlog_codec::body::PromptIdentity<'_> {
    foldlog_codec::body::PromptIdentity {
        namespace: Cow::from(&prompt.namespace),
        key: Cow::from(&prompt.key),
        digest: prompt.digest,
    }
}

/// Writes the body of a record, and stores large payloads as objects.
macro_rules! write_body {
    ($session:expr, $state:expr, $kind:expr, $body:ident) => {{
        let (session, state): (&Session, MutexGuard<'_, WriterState>) = ($session, $state);
        let references = session.inner.references(&state, $body.payloads_mut())?;
        session.inner.refer($body.payloads_mut(), &references);
        session.conversation().write_note(state, $kind, &$body.encode(), (&$body).into())
    }};
}

impl SessionConversation<'_> {
    /// Records a message of a conversation, or the result of a call. If the conversation has a live
    /// record with the host's id of the message, returns that record without writing.
    ///
    /// This does not wait for a running tool. The record remains if that tool fails, unless it was
    /// written through the tool's handle. With
    /// [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every), the record is durable when this returns.
    ///
    /// # Errors
    ///
    /// The errors of [`dispatch`](Session::dispatch) that do not concern events.
    pub fn record_input(&self, input: &NewInput) -> Result<SequenceNumber> {
        let known = |state: &WriterState| {
            let id = input.id.as_deref()?;
            known_input(state, &input.evaluation_id, id, self.session.record_lane().within)
        };
        if let Some(known) = self.session.known_before_turn(known) {
            return Ok(known);
        }
        let state = self.session.writable(WriteScope::Log)?;
        if let Some(known) = known(&state) {
            return Ok(known);
        }
        let content = input.content.as_deref().map(text_payload);
        let blocks = encoded_blocks(input.blocks.as_ref());
        let payload = input.payload.as_ref().map(json_text);
        let mut body = Input {
            scope: self.scope_of(&input.evaluation_id, input.original),
            role: input.role,
            content: content.as_deref().map(Payload::new),
            blocks: blocks_of(blocks.as_ref()),
            id: input.id.as_deref().map(Cow::from),
            name: input.name.as_deref().map(Cow::from),
            prompt: input.prompt.as_ref().map(recorded_identity),
            call_id: input.call_id.as_deref().map(Cow::from),
            origin: input.origin,
            is_error: input.is_error,
            payload: payload.as_deref().map(Payload::new),
        };
        write_body!(self.session, state, RecordKind::Input, body)
    }

    /// Records a request to a provider, before it is sent.
    pub fn record_request(&self, request: &NewRequest) -> Result<SequenceNumber> {
        let state = self.session.writable(WriteScope::Log)?;
        let parameters = request.parameters.as_ref().map(json_text);
        let mut body = Request {
            prompt: request.prompt,
            model: request.model.as_deref().map(Cow::from),
            parameters: parameters.as_deref().map(Payload::new),
            sent: request.sent,
            ..Request::new(self.scope(&request.evaluation_id), request.attempt.max(1))
        };
        write_body!(self.session, state, RecordKind::Request, body)
    }

    /// Records the failure of a request, and its known usage.
    pub fn record_request_failure(&self, failure: &NewRequestFailure) -> Result<SequenceNumber> {
        let state = self.session.writable(WriteScope::Log)?;
        let arrived = failure.arrived.as_deref().map(text_payload);
        let mut body = Request {
            failure: Some(RequestFailure {
                status: failure.status.map(u32::from),
                arrived: arrived.as_deref().map(Payload::new),
                request_id: failure.request_id.as_deref().map(Cow::from),
                usage: failure.usage,
                rate_limits: pairs(&failure.rate_limits),
                ..RequestFailure::new(failure.request, &failure.cause, &failure.message)
            }),
            ..Request::new(self.scope(&failure.evaluation_id), failure.attempt.max(1))
        };
        write_body!(self.session, state, RecordKind::Request, body)
    }

    /// Records a complete answer. Its calls must not run before this returns.
    ///
    /// With [`Durability::Boundary`](crate::Durability::Boundary) and
    /// [`Durability::Every`](crate::Durability::Every), the record is durable when this returns.
    pub fn record_answer(&self, answer: &NewAnswer) -> Result<SequenceNumber> {
        let state = self.session.writable(WriteScope::Log)?;
        let content = answer.content.as_deref().map(text_payload);
        let arguments: Vec<Vec<u8>> = answer.calls.iter().map(|call| text_payload(&call.arguments)).collect();
        let payload = answer.payload.as_ref().map(json_text);
        let blocks = encoded_blocks(answer.blocks.as_ref());
        let last = answer.calls.len();
        let calls =
            (1..).zip(answer.calls.iter().zip(&arguments)).map(|(place, (call, arguments))| AnsweredCall {
                id: Cow::from(&call.call_id),
                name: Cow::from(&call.name),
                arguments: Payload::new(arguments),
                incomplete: answer.last_call_incomplete && place == last,
            });
        let mut body = AnswerBody {
            request: answer.request,
            calls: calls.collect(),
            blocks: blocks_of(blocks.as_ref()),
            stop: answer.stop.as_deref().map(Cow::from),
            continues: answer.continues,
            model: answer.model.as_deref().map(Cow::from),
            request_id: answer.request_id.as_deref().map(Cow::from),
            usage: answer.usage,
            rate_limits: pairs(&answer.rate_limits),
            payload: payload.as_deref().map(Payload::new),
            ..AnswerBody::new(
                self.scope_of(&answer.evaluation_id, answer.original),
                content.as_deref().map(Payload::new),
            )
        };
        write_body!(self.session, state, RecordKind::Answer, body)
    }

    /// Records the end of a turn, once the last answer and all its calls have ended, with the
    /// records of the turn. Returns the record of the turn, also if it exists already.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchConversation`] if the evaluation has no answer, or one of its calls is still
    /// open; otherwise the errors of [`record_input`](crate::SessionConversation::record_input).
    pub fn record_turn(&self, evaluation_id: &str, complete: bool) -> Result<SequenceNumber> {
        let refused = |reason| Error::NoSuchConversation { evaluation: evaluation_id.to_owned(), reason };
        let known = |parts: &TurnParts| {
            parts.turn.filter(|(_, was_complete)| *was_complete || !complete).map(|(turn, _)| turn)
        };
        let recorded = |state: &WriterState| known(&turn_parts(state, evaluation_id)?);
        if let Some(turn) = self.session.known_before_turn(recorded) {
            return Ok(turn);
        }
        let state = self.session.writable(WriteScope::Log)?;
        let parts = turn_parts(&state, evaluation_id).ok_or_else(|| refused("it has no answer"))?;
        if let Some(turn) = known(&parts) {
            return Ok(turn);
        }
        let ends: Option<Vec<SequenceNumber>> = parts.ends.iter().copied().collect();
        let ends = ends.ok_or_else(|| refused("a call of its last answer is still open"))?;
        let scope = self.scope(evaluation_id);
        let body =
            Turn { scope, number: parts.number, inputs: parts.inputs, answer: parts.answer, ends, complete };
        self.write_note(state, RecordKind::Turn, &body.encode(), (&body).into())
    }

    /// Records that a provider is sent `messages` in place of the records from `from` through `to`.
    /// The log retains the replaced records.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchConversation`] if `from` is after `to`, if `to` is not in the log yet, or if
    /// a message has the role `tool`; otherwise the errors of
    /// [`record_input`](crate::SessionConversation::record_input).
    pub fn record_shortened(
        &self,
        evaluation_id: &str,
        from: SequenceNumber,
        to: SequenceNumber,
        messages: &[(Role, String)],
        reason: &str,
    ) -> Result<SequenceNumber> {
        let state = self.session.writable(WriteScope::Log)?;
        if from > to
            || to >= state.log.next_sequence()
            || messages.iter().any(|(role, _)| *role == Role::Tool)
        {
            let reason = "its records cannot be replaced: the range is not in the log, or the replacement contains a tool's result";
            return Err(Error::NoSuchConversation { evaluation: evaluation_id.to_owned(), reason });
        }
        let texts: Vec<Vec<u8>> = messages.iter().map(|(_, content)| text_payload(content)).collect();
        let messages = messages.iter().zip(&texts);
        let mut body = Shortened {
            scope: self.scope(evaluation_id),
            from,
            to,
            messages: messages
                .map(|((role, _), content)| ShortenedMessage { role: *role, content: Payload::new(content) })
                .collect(),
            reason: Cow::from(reason),
        };
        write_body!(self.session, state, RecordKind::Shortened, body)
    }

    /// Records that a conversation continues with a changed prompt.
    pub fn accept_prompt(
        &self,
        evaluation_id: &str,
        was: &PromptIdentity,
        now: &PromptIdentity,
        by: &str,
        reason: &str,
    ) -> Result<SequenceNumber> {
        let state = self.session.writable(WriteScope::Log)?;
        let body = PromptAccepted {
            scope: self.scope(evaluation_id),
            was: recorded_identity(was),
            now: recorded_identity(now),
            by: Cow::from(by),
            reason: Cow::from(reason),
        };
        self.write_note(state, RecordKind::PromptAccepted, &body.encode(), (&body).into())
    }

    /// Records the state of an adapter. Rollbacks do not affect the record.
    pub fn record_adapter_state(&self, captured: &NewAdapterState) -> Result<SequenceNumber> {
        let state = self.session.writable(WriteScope::Log)?;
        let encoded = encode("an adapter's state", &captured.state)?;
        let mut body = AdapterState {
            scope: self.scope(&captured.evaluation_id),
            adapter: Cow::from(&captured.adapter),
            resumable: captured.resumable,
            state: Payload::new(&encoded),
            supersedes: captured.supersedes,
            entry: captured.entry.as_deref().map(Cow::from),
            occasion: Cow::from(&captured.occasion),
        };
        write_body!(self.session, state, RecordKind::AdapterState, body)
    }

    /// Returns the recorded states of adapters in the order of their records, including abandoned
    /// ones.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged, [`Error::Inconsistent`] if a state cannot be read as JSON.
    pub fn adapter_states(&self) -> Result<Vec<AdapterStateSnapshot>> {
        self.adapter_states_at(SequenceNumber::MAX)
    }

    /// Returns the states of adapters recorded up to `position`.
    pub(crate) fn adapter_states_at(&self, position: SequenceNumber) -> Result<Vec<AdapterStateSnapshot>> {
        let (conversations, source, last) = self.recorded_conversations();
        let reader = ConversationReader::new(conversations, source, self.session.inner.id, None);
        reader.adapter_states(position.min(last))
    }

    /// Returns whether a rollback of the host has abandoned the answer that requested a call.
    /// `false` if the log has no answer there.
    pub(crate) fn is_abandoned(&self, origin: CallOrigin) -> bool {
        let state = self.session.inner.state.lock();
        let conversations = &state.live.projection.conversations;
        let live = conversations.live_at(state.last_position());
        conversations.entry(origin.answer).is_some_and(|answer| !live.holds(origin.answer, answer))
    }

    /// Returns whether a rollback after the record `since` went back to before the record `at`, and
    /// `since` is not live again.
    pub(crate) fn was_rolled_back_behind(&self, at: SequenceNumber, since: SequenceNumber) -> bool {
        let state = self.session.inner.state.lock();
        let went_back = state.live.rollbacks.range(since..).any(|(_, rollback)| rollback.to < at);
        went_back && !state.live.path.is_live(since, state.last_position())
    }

    /// Returns the ids of the evaluations that have a conversation on the live path, in the order
    /// of their first records.
    pub fn evaluations(&self) -> Vec<SmolStr> {
        self.evaluations_at(SequenceNumber::MAX)
    }

    /// Returns the ids of the evaluations with a conversation on the live path at `position`.
    pub fn evaluations_at(&self, position: impl Into<SequenceNumber>) -> Vec<SmolStr> {
        let state = self.session.inner.state.lock();
        let last = state.last_position();
        state.live.projection.conversations.evaluations_at(position.into().min(last))
    }

    /// Returns the conversation of an evaluation as it is now, or `None` if the session has
    /// recorded none.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged.
    pub fn read(&self, evaluation_id: &str) -> Result<Option<Conversation>> {
        self.read_at(evaluation_id, SequenceNumber::MAX)
    }

    /// Returns the conversation of an evaluation as of the record at `position`, or `None` if there
    /// was none.
    pub fn read_at(
        &self,
        evaluation_id: &str,
        position: impl Into<SequenceNumber>,
    ) -> Result<Option<Conversation>> {
        self.read_conversation(evaluation_id, position.into(), None)
    }

    /// Reads the conversation of an evaluation at a position. The budget limits the memory for its
    /// texts.
    pub(crate) fn read_conversation(
        &self,
        evaluation_id: &str,
        position: SequenceNumber,
        budget: Option<&TextBudget<'_>>,
    ) -> Result<Option<Conversation>> {
        let (conversations, source, last) = self.recorded_conversations();
        let reader = ConversationReader::new(conversations, source, self.session.inner.id, budget);
        reader.conversation(evaluation_id, position.min(last))
    }

    /// Returns the records of a conversation after the record `after` through `position`, without
    /// reading earlier ones. Returns `None` if a rollback since `after`, or the failure of a tool
    /// with records, may have changed the set of earlier live records.
    pub fn read_behind(
        &self,
        evaluation_id: &str,
        after: impl Into<SequenceNumber>,
        position: impl Into<SequenceNumber>,
    ) -> Result<Option<Conversation>> {
        let (after, position) = (after.into(), position.into());
        let (conversations, source, last) = self.recorded_conversations();
        if conversations.changed_before() > Some(after) {
            return Ok(None);
        }
        let mut conversation = Conversation::new(self.session.inner.id, evaluation_id.to_owned());
        let reader = ConversationReader::new(conversations, source, self.session.inner.id, None);
        reader.update(&mut conversation, Some(after), position.min(last))?;
        Ok(Some(conversation))
    }

    /// Returns the point at which a conversation continues: the one of `evaluation_id`, or else the
    /// one that was recorded last.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if operations were left open: recover the session first.
    pub fn resume(&self, evaluation_id: Option<&str>) -> Result<Resume> {
        let state = self.session.inner.state.lock();
        if state.interrupted {
            return Err(self.session.inner.interrupted_error(&state));
        }
        let projection = &state.live.projection;
        let conversations = &projection.conversations;
        let live = conversations.live_at(state.last_position());
        let counts = |(sequence, entry): &(SequenceNumber, &ConversationEntry)| {
            entry.kind != EntryKind::AdapterState && live.holds(*sequence, entry)
        };
        let place = match evaluation_id {
            Some(evaluation) => conversations.place(evaluation),
            None => conversations.entries().rev().find(counts).map(|(_, entry)| entry.evaluation),
        };
        let Some(place) = place else {
            let evaluation_id = evaluation_id.map(str::to_owned);
            return Ok(Resume { evaluation_id, answer: None, point: ResumePoint::NotRecorded });
        };
        let standings = self.session.inner.standings(&state);
        let waits_for = |operation| settle::waits_for(&standings, operation);
        let (answer, point) = resume_of(conversations, &live, place, waits_for);
        let evaluation_id = conversations.evaluation(place).map(|id| id.to_string());
        Ok(Resume { evaluation_id, answer, point })
    }

    /// Returns the index of conversation records, the source to read them from, and the last record
    /// of the log.
    pub(super) fn recorded_conversations(&self) -> (Conversations, LogSource, SequenceNumber) {
        let state = self.session.inner.state.lock();
        let last = state.last_position();
        (state.live.projection.conversations.clone(), self.session.inner.log_source(&state), last)
    }

    fn scope<'a>(&'a self, evaluation: &'a str) -> ConversationScope<'a> {
        self.scope_of(evaluation, None)
    }

    fn scope_of<'a>(
        &'a self,
        evaluation: &'a str,
        original: Option<OriginalMessage>,
    ) -> ConversationScope<'a> {
        let original = original.map(OriginalMessage::into_original);
        ConversationScope { lane: self.session.record_lane(), original, ..ConversationScope::new(evaluation) }
    }

    fn write_note(
        &self,
        state: MutexGuard<'_, WriterState>,
        kind: RecordKind,
        body: &[u8],
        note: ConversationNote,
    ) -> Result<SequenceNumber> {
        self.session.inner.write_now(state, kind, body, RecordBody::Conversation(Some(note)))
    }
}

impl WriterState {
    /// Returns the sequence number of the last record; 0 before the first.
    pub(super) fn last_position(&self) -> SequenceNumber {
        self.log.next_sequence().saturating_sub(1)
    }
}

/// Returns the record of an input with an id of the host, if it is live, and remains so as long as
/// records of the run `within` do.
fn known_input(
    state: &WriterState,
    evaluation: &str,
    id: &str,
    within: Option<SequenceNumber>,
) -> Option<SequenceNumber> {
    let conversations = &state.live.projection.conversations;
    let live = conversations.live_at(state.last_position());
    let operations = &state.live.projection.operations;
    let outwards = || std::iter::successors(within, |run| operations.parent_run(*run));
    // An input written through a tool's handle is abandoned if that tool fails, so it cannot
    // replace the same input of a different writer.
    let lasts = |entry: &ConversationEntry| {
        conversations.undecided_run(entry.within).is_none_or(|run| outwards().any(|outer| outer == run))
    };
    let mut inputs = conversations.inputs(conversations.place(evaluation)?, input_key(id));
    let known = inputs.find(|(sequence, entry)| live.holds(*sequence, entry) && lasts(entry));
    known.map(|(sequence, _)| sequence)
}

/// The records of the last turn of a conversation.
struct TurnParts {
    number: u64,
    inputs: Vec<SequenceNumber>,
    answer: SequenceNumber,
    /// By ordinal; `None` for a call that is open.
    ends: Vec<Option<SequenceNumber>>,
    /// Record of the turn, if there is one, and whether it is the last turn.
    turn: Option<(SequenceNumber, bool)>,
}

/// Collects the records since the last live turn, walking backwards from the last record.
fn turn_parts(state: &WriterState, evaluation: &str) -> Option<TurnParts> {
    let conversations = &state.live.projection.conversations;
    let place = conversations.place(evaluation)?;
    let live = conversations.live_at(state.last_position());
    let (mut number, mut turn, mut answer) = (1, None, None);
    let (mut inputs, mut ends) = (Vec::new(), BTreeMap::new());
    for (sequence, entry) in live.back(place) {
        match entry.kind {
            // There is no later answer: this is the record of the turn.
            EntryKind::Turn if answer.is_none() => turn = turn.or(Some((sequence, entry))),
            EntryKind::Turn => {
                number = entry.number.saturating_add(1);
                break;
            }
            EntryKind::Answer if answer.is_none() => {
                answer = Some((sequence, entry.number));
                // Later inputs belong to the next turn.
                inputs.clear();
            }
            EntryKind::Answer => break,
            EntryKind::Input => inputs.push(sequence),
            EntryKind::Committed | EntryKind::Failed | EntryKind::Result => {
                ends.extend(entry.origin.filter(|_| answer.is_none()).map(|origin| (origin, sequence)));
            }
            _ => {}
        }
    }
    let (answer, calls) = answer?;
    let settled = conversations.decided_entries(place, answer).filter(|(_, entry)| {
        // Otherwise the call was interrupted, or is to run again.
        matches!(entry.kind, EntryKind::Settled | EntryKind::Decided) && !entry.flag
    });
    for (sequence, entry) in settled.filter(|(sequence, entry)| live.holds(*sequence, entry)) {
        if let Some(origin) = entry.origin {
            let first = ends.entry(origin).or_insert(sequence);
            *first = sequence.min(*first);
        }
    }
    inputs.reverse();
    let number = turn.map_or(number, |(_, own)| own.number);
    let turn = turn.map(|(turn, own)| (turn, own.flag));
    let calls = 0..u32::try_from(calls).unwrap_or(u32::MAX);
    let ends = calls.map(|ordinal| ends.get(&CallOrigin { answer, ordinal }).copied()).collect();
    Some(TurnParts { number, inputs, answer, ends, turn })
}
