//! The records of one conversation, read from the log by the places that the fold knows.

use std::cell::Cell;
use std::path::Path;

use chrono::{DateTime, Utc};
use foldlog_codec::body::{
    AdapterState, Answer, CallOrigin, Decision, Input, Payload, PromptAccepted, Request, Settle, Shortened,
    ToolEnd, Turn,
};
use foldlog_codec::image::EntryKind;
use foldlog_codec::msgpack::{Reader, Value};
use foldlog_codec::{Kind, Record, SequenceNumber};
use uuid::Uuid;

use super::conversations::Conversations;
use super::log_source::{LogSource, NEAR_RECORDS};
use crate::conversation::{
    AdapterStateSnapshot, ContentBlocks, Conversation, ConversationMessage, Entry, EntryContent,
    PromptIdentity, ToolCallRecord, message_id, settled_text,
};
use crate::error::{Error, Result};

/// Reads one conversation as it was at `position`. `None` if no record of the evaluation stands at or before it.
///
/// # Errors
///
/// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or damaged,
/// [`Error::Inconsistent`] if a text is no text, [`Error::OverBudget`] if its texts take more memory than they may.
pub(crate) fn conversation(
    conversations: &Conversations,
    source: &LogSource,
    session: Uuid,
    (evaluation, position): (&str, SequenceNumber),
    budget: Option<TextBudget<'_>>,
) -> Result<Option<Conversation>> {
    let Some(place) = conversations.place(evaluation) else { return Ok(None) };
    let live = conversations.live_at(position);
    let wanted: Vec<(SequenceNumber, Option<CallOrigin>, bool)> = conversations
        .entries()
        .filter(|(sequence, entry)| {
            entry.evaluation == place && *sequence <= position && entry.kind != EntryKind::AdapterState
        })
        .map(|(sequence, entry)| (sequence, entry.origin, live.holds(sequence, entry)))
        .collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let (mut entries, mut abandoned) = (Vec::new(), Vec::new());
    let reading = Reading { source, session, budget, held: Cell::new(0) };
    let sequences: Vec<SequenceNumber> = wanted.iter().map(|(sequence, ..)| *sequence).collect();
    let mut rest = wanted.iter();
    read_records(source, &sequences, &mut |record| {
        let Some((_, origin, is_live)) = rest.next() else { return Ok(()) };
        let to = if *is_live { &mut entries } else { &mut abandoned };
        to.extend(reading.entry(record, *origin)?);
        reading.hold(record.sequence, size_of::<Entry>())
    })?;
    Ok(Some(Conversation { session, evaluation_id: evaluation.to_owned(), entries, abandoned }))
}

/// Reads the states that adapters have recorded at or before `position`, in the order of their records.
///
/// # Errors
///
/// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or damaged,
/// [`Error::Inconsistent`] if a state cannot be read as JSON.
pub(crate) fn adapter_states(
    conversations: &Conversations,
    source: &LogSource,
    position: SequenceNumber,
) -> Result<Vec<AdapterStateSnapshot>> {
    let live = conversations.live_at(position);
    let captured: Vec<(SequenceNumber, bool)> = conversations
        .entries()
        .filter(|(sequence, entry)| *sequence <= position && entry.kind == EntryKind::AdapterState)
        .map(|(sequence, entry)| (sequence, live.holds(sequence, entry)))
        .collect();
    let sequences: Vec<SequenceNumber> = captured.iter().map(|(sequence, _)| *sequence).collect();
    let mut is_live = captured.iter().map(|(_, is_live)| *is_live);
    let mut states = Vec::new();
    read_records(source, &sequences, &mut |record| {
        let bad = Error::unread(record.sequence);
        let body = AdapterState::decode(record.body).map_err(bad)?;
        let value = Value::decode(&source.objects.resolve(body.state)?).map_err(bad)?;
        let no_json = |error: serde_json::Error| Error::Inconsistent {
            sequence: record.sequence,
            reason: error.to_string(),
        };
        states.push(AdapterStateSnapshot {
            sequence: record.sequence,
            adapter: body.adapter.into_owned(),
            resumable: body.resumable,
            state: serde_json::to_value(value).map_err(no_json)?,
            captured_at: time(record.time_us),
            evaluation_id: body.scope.evaluation.into_owned(),
            supersedes: body.supersedes,
            entry: body.entry.map(std::borrow::Cow::into_owned),
            occasion: body.occasion.into_owned(),
            is_live: is_live.next().unwrap_or(true),
        });
        Ok(())
    })?;
    Ok(states)
}

/// Hands the records with these sequence numbers, which are in ascending order, to `visit`.
pub(crate) fn read_records(
    source: &LogSource,
    sequences: &[SequenceNumber],
    visit: &mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<()> {
    for run in sequences.chunk_by(|one, next| *next - *one < NEAR_RECORDS) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let mut rest = run.iter().peekable();
        source.places.read(&source.storage, *first, *last, &mut |record| {
            if rest.next_if(|wanted| **wanted == record.sequence).is_some() { visit(&record) } else { Ok(()) }
        })?;
    }
    Ok(())
}

/// Reads the text of a payload, which is one MessagePack string.
pub(crate) fn text(source: &LogSource, sequence: SequenceNumber, payload: Payload<'_>) -> Result<String> {
    let bytes = source.objects.resolve(payload)?;
    Reader::new(&bytes).str().map(str::to_owned).map_err(Error::unread(sequence))
}

/// Limits the memory that the texts of a conversation take, for a reader of logs that may come from anywhere: a short
/// record may name a large object, which another record names too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextBudget<'a> {
    pub(crate) session_dir: &'a Path,
    pub(crate) bytes: u64,
}

struct Reading<'a> {
    source: &'a LogSource,
    session: Uuid,
    budget: Option<TextBudget<'a>>,
    /// Bytes that are held so far.
    held: Cell<u64>,
}

impl Reading<'_> {
    /// Counts bytes that are held from now on.
    fn hold(&self, sequence: SequenceNumber, bytes: usize) -> Result<()> {
        let needed = self.held.get().saturating_add(bytes as u64);
        self.held.set(needed);
        match self.budget {
            Some(TextBudget { session_dir, bytes: budget }) if needed > budget => {
                Err(Error::OverBudget { session_dir: session_dir.to_owned(), sequence, needed, budget })
            }
            _ => Ok(()),
        }
    }

    fn text(&self, sequence: SequenceNumber, payload: Payload<'_>) -> Result<String> {
        let text = text(self.source, sequence, payload)?;
        self.hold(sequence, text.len())?;
        Ok(text)
    }

    fn entry(&self, record: &Record<'_>, origin: Option<CallOrigin>) -> Result<Option<Entry>> {
        let (sequence, body, bad) = (record.sequence, record.body, Error::unread(record.sequence));
        let text = |payload: Payload<'_>| self.text(sequence, payload);
        let time = time(record.time_us);
        let content = match record.kind {
            Kind::INPUT => self.input(record, &Input::decode(body).map_err(bad)?)?,
            Kind::REQUEST => self.request(sequence, Request::decode(body).map_err(bad)?)?,
            Kind::ANSWER => self.answer(record, &Answer::decode(body).map_err(bad)?)?,
            Kind::TOOL_END => match origin {
                Some(origin) => self.end(sequence, origin, &ToolEnd::decode(body).map_err(bad)?)?,
                None => return Ok(None),
            },
            Kind::SETTLE => match origin {
                Some(origin) => self.settled(sequence, origin, &Settle::decode(body).map_err(bad)?)?,
                None => return Ok(None),
            },
            Kind::TURN => {
                let Turn { number, inputs, answer, ends, complete, .. } = Turn::decode(body).map_err(bad)?;
                EntryContent::Turn { number, inputs, answer, ends, complete }
            }
            Kind::SHORTENED => {
                let Shortened { from, to, messages, reason, .. } = Shortened::decode(body).map_err(bad)?;
                let message =
                    |one: &foldlog_codec::body::ShortenedMessage<'_>| Ok((one.role, text(one.content)?));
                let messages = messages.iter().map(message).collect::<Result<_>>()?;
                EntryContent::Shortened { from, to, messages, reason: reason.into_owned() }
            }
            Kind::PROMPT_ACCEPTED => {
                let PromptAccepted { was, now, by, reason, .. } =
                    PromptAccepted::decode(body).map_err(bad)?;
                let (was, now) = (identity(&was), identity(&now));
                EntryContent::PromptAccepted { was, now, by: by.into_owned(), reason: reason.into_owned() }
            }
            _ => return Ok(None),
        };
        Ok(Some(Entry { sequence, time, content }))
    }

    fn message(&self, record: &Record<'_>, role: foldlog_codec::body::Role) -> ConversationMessage {
        ConversationMessage {
            content: None,
            created_at: time(record.time_us),
            message_id: message_id(self.session, record.sequence, 0),
            ..ConversationMessage::new(role, "")
        }
    }

    fn blocks(
        &self,
        sequence: SequenceNumber,
        blocks: Option<&foldlog_codec::body::Blocks<'_>>,
    ) -> Result<Option<ContentBlocks>> {
        let Some(blocks) = blocks else { return Ok(None) };
        let json = self.text(sequence, blocks.json)?;
        Ok(Some(ContentBlocks { format: blocks.format.clone().into_owned(), json }))
    }

    fn optional(&self, sequence: SequenceNumber, payload: Option<Payload<'_>>) -> Result<Option<String>> {
        payload.map(|payload| self.text(sequence, payload)).transpose()
    }

    fn input(&self, record: &Record<'_>, input: &Input<'_>) -> Result<EntryContent> {
        let sequence = record.sequence;
        let message = ConversationMessage {
            content: self.optional(sequence, input.content)?,
            tool_call_id: input.call_id.as_deref().map(str::to_owned),
            name: input.name.as_deref().map(str::to_owned),
            blocks: self.blocks(sequence, input.blocks.as_ref())?,
            is_error: input.is_error,
            ..self.message(record, input.role)
        };
        let (id, prompt) = (input.id.as_deref().map(str::to_owned), input.prompt.as_ref().map(identity));
        Ok(EntryContent::Input { message, id, prompt, origin: input.origin })
    }

    fn request(&self, sequence: SequenceNumber, request: Request<'_>) -> Result<EntryContent> {
        let Some(failure) = request.failure else {
            let (attempt, prompt, sent) = (request.attempt, request.prompt, request.sent);
            let parameters = self.optional(sequence, request.parameters)?;
            let model = request.model.map(std::borrow::Cow::into_owned);
            return Ok(EntryContent::Request { attempt, prompt, model, parameters, sent });
        };
        Ok(EntryContent::RequestFailed {
            request: failure.request,
            cause: failure.cause.into_owned(),
            message: failure.message.into_owned(),
            status: failure.status,
            arrived: self.optional(sequence, failure.arrived)?,
            usage: failure.usage,
        })
    }

    fn answer(&self, record: &Record<'_>, answer: &Answer<'_>) -> Result<EntryContent> {
        let sequence = record.sequence;
        let call = |call: &foldlog_codec::body::AnsweredCall<'_>| {
            let arguments = self.text(sequence, call.arguments)?;
            Ok(ToolCallRecord {
                call_id: call.id.clone().into_owned(),
                name: call.name.clone().into_owned(),
                arguments,
            })
        };
        let message = ConversationMessage {
            content: self.optional(sequence, answer.content)?,
            tool_calls: answer.calls.iter().map(call).collect::<Result<_>>()?,
            blocks: self.blocks(sequence, answer.blocks.as_ref())?,
            ..self.message(record, foldlog_codec::body::Role::Assistant)
        };
        let incomplete = (0..).zip(&answer.calls).filter(|(_, call)| call.incomplete);
        let owned = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(str::to_owned);
        Ok(EntryContent::Answer {
            message,
            request: answer.request,
            incomplete: incomplete.map(|(ordinal, _)| ordinal).collect(),
            stop: owned(&answer.stop),
            continues: answer.continues,
            model: owned(&answer.model),
            request_id: owned(&answer.request_id),
            usage: answer.usage,
            rate_limits: answer
                .rate_limits
                .iter()
                .map(|(name, value)| (name.clone().into_owned(), value.clone().into_owned()))
                .collect(),
            payload: self.optional(sequence, answer.payload)?,
        })
    }

    fn end(&self, sequence: SequenceNumber, origin: CallOrigin, end: &ToolEnd<'_>) -> Result<EntryContent> {
        let bad = Error::unread(sequence);
        let value = |payload: Payload<'_>| Value::decode(&self.source.objects.resolve(payload)?).map_err(bad);
        let overrides = end.overrides.map(value).transpose()?;
        Ok(EntryContent::CallEnded {
            origin,
            operation: end.operation(),
            tool: end.tool.clone().into_owned(),
            call_id: end.call_id.as_deref().map(str::to_owned),
            outcome: end.outcome,
            cause: end.cause,
            shown: self.optional(sequence, end.shown)?,
            overrides: overrides.and_then(|value| serde_json::to_value(value).ok()),
        })
    }

    fn settled(
        &self,
        sequence: SequenceNumber,
        origin: CallOrigin,
        settle: &Settle<'_>,
    ) -> Result<EntryContent> {
        let bad = Error::unread(sequence);
        let value = |payload: Payload<'_>| Value::decode(&self.source.objects.resolve(payload)?).map_err(bad);
        let result = settle.result.map(value).transpose()?;
        let own = self.optional(sequence, settle.shown)?;
        let shown = settled_text(settle.decision, result.as_ref(), own.as_deref(), &settle.reason);
        let committed = match settle.decision {
            Decision::Committed => Some(true),
            Decision::Failed => Some(false),
            Decision::RunAgain => None,
        };
        Ok(EntryContent::CallSettled { origin, operation: settle.operation, committed, shown })
    }
}

fn identity(prompt: &foldlog_codec::body::PromptIdentity<'_>) -> PromptIdentity {
    PromptIdentity {
        namespace: prompt.namespace.clone().into_owned(),
        key: prompt.key.clone().into_owned(),
        digest: prompt.digest,
    }
}

/// Returns the time of a record; the earliest or latest that the calendar can express for one beyond it.
pub(crate) fn time(time_us: i64) -> DateTime<Utc> {
    let ends = if time_us < 0 { DateTime::<Utc>::MIN_UTC } else { DateTime::<Utc>::MAX_UTC };
    DateTime::from_timestamp_micros(time_us).unwrap_or(ends)
}
