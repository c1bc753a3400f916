//! Reads the records of one conversation from the log, at the places in the fold's index.

use std::borrow::Cow;
use std::cell::Cell;
use std::path::Path;

use chrono::{DateTime, Utc};
use foldlog_codec::body::{
    AdapterState, AnswerBody, CallOrigin, Decision, Input, Original, Payload, PromptAccepted, Request,
    Settle, Shortened, ToolEnd, Turn,
};
use foldlog_codec::image::EntryKind;
use foldlog_codec::msgpack::{MsgpackReader, Value};
use foldlog_codec::{Record, RecordKind, SequenceNumber, escape};
use uuid::Uuid;

use super::conversations::Conversations;
use super::log_source::{LogSource, NEAR_RECORDS};
use crate::conversation::{
    AdapterStateSnapshot, ContentBlocks, Conversation, ConversationMessage, ConversationRecord, EntryContent,
    PromptIdentity, ToolCallRecord, message_id, settled_text,
};
use crate::error::{Error, Result};

/// Passes the records with these sequence numbers to `visit`, each with its own value. The numbers
/// must be in ascending order.
pub(crate) fn read_records<T>(
    source: &LogSource,
    wanted: &[(SequenceNumber, T)],
    visit: &mut dyn FnMut(&Record<'_>, &T) -> Result<()>,
) -> Result<()> {
    for run in wanted.chunk_by(|(one, _), (next, _)| *next - *one < NEAR_RECORDS) {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { continue };
        let mut rest = run.iter().peekable();
        source.places.read(&source.storage, *first, *last, &mut |record| {
            let own = rest.next_if(|(wanted, _)| *wanted == record.sequence);
            own.map_or(Ok(()), |(_, own)| visit(&record, own))
        })?;
    }
    Ok(())
}

/// Reads the text of a payload, which is one MessagePack string.
pub(crate) fn text(source: &LogSource, sequence: SequenceNumber, payload: Payload<'_>) -> Result<String> {
    let bytes = source.objects.resolve(payload)?;
    MsgpackReader::new(&bytes).str().map(str::to_owned).map_err(Error::unread(sequence))
}

/// Limits the total memory of texts and states of conversations, for readers of untrusted logs: a
/// short record may name a large object, and several records may name the same one.
#[derive(Debug, Clone)]
pub(crate) struct TextBudget<'a> {
    session_dir: &'a Path,
    bytes: u64,
    /// Bytes that are in memory so far.
    held: Cell<u64>,
}

impl TextBudget<'_> {
    pub(crate) fn new(session_dir: &Path, bytes: u64) -> TextBudget<'_> {
        TextBudget { session_dir, bytes, held: Cell::new(0) }
    }

    /// Counts bytes that stay in memory from now on.
    pub(crate) fn hold(&self, sequence: SequenceNumber, bytes: u64) -> Result<()> {
        self.held.set(self.check(sequence, bytes)?);
        Ok(())
    }

    /// Checks that the budget allows this many more bytes. Returns the new total.
    fn check(&self, sequence: SequenceNumber, bytes: u64) -> Result<u64> {
        let needed = self.held.get().saturating_add(bytes);
        if needed <= self.bytes {
            return Ok(needed);
        }
        let (session_dir, budget) = (self.session_dir.to_owned(), self.bytes);
        Err(Error::OverBudget { session_dir, sequence, needed, budget })
    }
}

/// Maximum bytes that a value takes for each byte that it is decoded from: `nil` is one byte long.
const VALUE_PER_BYTE: u64 = size_of::<Value>() as u64 * 2;

/// Reads the conversations of a log. Cheap to create.
pub(crate) struct ConversationReader<'a> {
    conversations: Conversations,
    source: LogSource,
    session: Uuid,
    budget: Option<&'a TextBudget<'a>>,
    /// Id and time of the state that was imported, as far as the records were read.
    imported: Cell<Option<(Uuid, DateTime<Utc>)>>,
}

impl<'a> ConversationReader<'a> {
    pub(crate) fn new(
        conversations: Conversations,
        source: LogSource,
        session: Uuid,
        budget: Option<&'a TextBudget<'a>>,
    ) -> ConversationReader<'a> {
        ConversationReader { conversations, source, session, budget, imported: Cell::default() }
    }

    /// Reads one conversation as it was at `position`. Returns `None` if the evaluation has no
    /// record at or before it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged, [`Error::Inconsistent`] if a text is not valid, [`Error::OverBudget`] if its texts
    /// exceed the memory budget.
    pub(crate) fn conversation(
        &self,
        evaluation: &str,
        position: SequenceNumber,
    ) -> Result<Option<Conversation>> {
        let mut conversation = Conversation::new(self.session, evaluation.to_owned());
        self.update(&mut conversation, None, position)?;
        Ok(Some(conversation).filter(|conversation| !conversation.is_empty()))
    }

    /// Updates a conversation that was read at record `through` to its state at `position`. Only
    /// the records after `through` are read. After an error the conversation must not be used.
    pub(crate) fn update(
        &self,
        conversation: &mut Conversation,
        through: Option<SequenceNumber>,
        position: SequenceNumber,
    ) -> Result<()> {
        let conversations = &self.conversations;
        let Some(place) = conversations.place(&conversation.evaluation_id) else { return Ok(()) };
        let live = conversations.live_at(position);
        if through.is_some_and(|through| conversations.changed_before() > Some(through)) {
            let counts =
                |sequence| conversations.entry(sequence).is_some_and(|entry| live.holds(sequence, entry));
            conversation.divide(counts);
        }
        let first = through.map_or(SequenceNumber::MIN, |through| through + 1);
        let wanted: Vec<(SequenceNumber, (Option<CallOrigin>, bool))> = conversations
            .entries_of(place, first, position)
            .into_iter()
            .filter(|(_, entry)| entry.kind != EntryKind::AdapterState)
            .map(|(sequence, entry)| (sequence, (entry.origin, live.holds(sequence, entry))))
            .collect();
        let Conversation { entries, abandoned, imported, .. } = conversation;
        self.imported.set(*imported);
        read_records(&self.source, &wanted, &mut |record, (origin, is_live)| {
            let to = if *is_live { &mut *entries } else { &mut *abandoned };
            to.extend(self.entry(record, *origin)?);
            self.hold(record.sequence, size_of::<ConversationRecord>() as u64)
        })?;
        *imported = self.imported.get();
        Ok(())
    }

    /// Passes the records of a conversation whose kinds are `wanted` to `visit`, in their order,
    /// including abandoned ones. One record is in memory at a time. `visit` returns the number of
    /// bytes of the record that it retains. Returns whether the conversation exists.
    ///
    /// # Errors
    ///
    /// The errors of [`conversation`](ConversationReader::conversation), for a record that exceeds
    /// the remaining memory; the error of `visit`.
    pub(crate) fn each_entry(
        &self,
        evaluation: &str,
        wanted: impl Fn(EntryKind) -> bool,
        visit: &mut dyn FnMut(ConversationRecord) -> Result<u64>,
    ) -> Result<bool> {
        let Some(place) = self.conversations.place(evaluation) else { return Ok(false) };
        let entries = self.conversations.entries_of(place, SequenceNumber::MIN, SequenceNumber::MAX);
        let is_any = entries.iter().any(|(_, entry)| entry.kind != EntryKind::AdapterState);
        let wanted: Vec<(SequenceNumber, Option<CallOrigin>)> = entries
            .into_iter()
            .filter(|(_, entry)| wanted(entry.kind))
            .map(|(sequence, entry)| (sequence, entry.origin))
            .collect();
        read_records(&self.source, &wanted, &mut |record, origin| {
            let held = self.budget.map(|budget| budget.held.get());
            let Some(entry) = self.entry(record, *origin)? else { return Ok(()) };
            let kept = visit(entry)?;
            if let (Some(budget), Some(held)) = (self.budget, held) {
                budget.held.set(held);
            }
            self.hold(record.sequence, kept)
        })?;
        Ok(is_any)
    }

    /// Reads the states that adapters have recorded at or before `position`, in the order of their
    /// records.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged, [`Error::Inconsistent`] if a state cannot be read as JSON, [`Error::OverBudget`] if
    /// the states exceed the memory budget.
    pub(crate) fn adapter_states(&self, position: SequenceNumber) -> Result<Vec<AdapterStateSnapshot>> {
        let live = self.conversations.live_at(position);
        let captured: Vec<(SequenceNumber, bool)> = self
            .conversations
            .entries()
            .filter(|(sequence, entry)| *sequence <= position && entry.kind == EntryKind::AdapterState)
            .map(|(sequence, entry)| (sequence, live.holds(sequence, entry)))
            .collect();
        let mut states = Vec::new();
        read_records(&self.source, &captured, &mut |record, is_live| {
            let bad = Error::unread(record.sequence);
            let body = AdapterState::decode(record.body).map_err(bad)?;
            let value = self.value(record.sequence, body.state)?;
            let no_json = |error: serde_json::Error| Error::Inconsistent {
                sequence: record.sequence,
                reason: error.to_string(),
            };
            self.hold(record.sequence, (size_of::<AdapterStateSnapshot>() + record.body.len()) as u64)?;
            states.push(AdapterStateSnapshot {
                sequence: record.sequence,
                adapter: body.adapter.into_owned(),
                resumable: body.resumable,
                state: serde_json::to_value(value).map_err(no_json)?,
                captured_at: time(record.time_us),
                evaluation_id: body.scope.evaluation.into_owned(),
                supersedes: body.supersedes,
                entry: body.entry.map(Cow::into_owned),
                occasion: body.occasion.into_owned(),
                is_live: *is_live,
            });
            Ok(())
        })?;
        Ok(states)
    }

    /// Counts bytes that stay in memory from now on.
    fn hold(&self, sequence: SequenceNumber, bytes: u64) -> Result<()> {
        self.budget.map_or(Ok(()), |budget| budget.hold(sequence, bytes))
    }

    fn text(&self, sequence: SequenceNumber, payload: Payload<'_>) -> Result<String> {
        // The length is counted first: an object's name contains it, so an object that is too large
        // need not be read.
        self.hold(sequence, recorded_len(payload))?;
        text(&self.source, sequence, payload)
    }

    /// Reads a text that is, or was meant to be, JSON. A lone surrogate in it, which no provider
    /// accepts, becomes U+FFFD; the record is unchanged.
    fn json(&self, sequence: SequenceNumber, payload: Payload<'_>) -> Result<String> {
        let json = self.text(sequence, payload)?;
        let whole = match escape::whole_surrogates(&json) {
            Cow::Owned(whole) => Some(whole),
            Cow::Borrowed(_) => None,
        };
        Ok(whole.unwrap_or(json))
    }

    /// Decodes a value. Its bytes are counted together with the bytes from which it is decoded.
    fn value(&self, sequence: SequenceNumber, payload: Payload<'_>) -> Result<Value> {
        let len = recorded_len(payload);
        if let Some(budget) = self.budget {
            budget.check(sequence, len.saturating_mul(VALUE_PER_BYTE))?;
        }
        let bytes = self.source.objects.resolve(payload)?;
        let value = Value::decode(&bytes).map_err(Error::unread(sequence))?;
        self.hold(sequence, value_bytes(&value))?;
        Ok(value)
    }

    fn entry(&self, record: &Record<'_>, origin: Option<CallOrigin>) -> Result<Option<ConversationRecord>> {
        let (sequence, body, bad) = (record.sequence, record.body, Error::unread(record.sequence));
        let text = |payload: Payload<'_>| self.text(sequence, payload);
        let time = time(record.time_us);
        let content = match record.kind {
            RecordKind::Input => self.input(record, &Input::decode(body).map_err(bad)?)?,
            RecordKind::Request => self.request(sequence, Request::decode(body).map_err(bad)?)?,
            RecordKind::Answer => self.answer(record, &AnswerBody::decode(body).map_err(bad)?)?,
            RecordKind::ToolEnd => match origin {
                Some(origin) => self.end(sequence, origin, &ToolEnd::decode(body).map_err(bad)?)?,
                None => return Ok(None),
            },
            RecordKind::Settle => match origin {
                Some(origin) => self.settlement(sequence, origin, &Settle::decode(body).map_err(bad)?)?,
                None => return Ok(None),
            },
            RecordKind::Turn => {
                let Turn { number, inputs, answer, ends, complete, .. } = Turn::decode(body).map_err(bad)?;
                EntryContent::Turn { number, inputs, answer, ends, complete }
            }
            RecordKind::Shortened => {
                let Shortened { from, to, messages, reason, .. } = Shortened::decode(body).map_err(bad)?;
                let message =
                    |one: &foldlog_codec::body::ShortenedMessage<'_>| Ok((one.role, text(one.content)?));
                let messages = messages.iter().map(message).collect::<Result<_>>()?;
                EntryContent::Shortened { from, to, messages, reason: reason.into_owned() }
            }
            RecordKind::PromptAccepted => {
                let PromptAccepted { was, now, by, reason, .. } =
                    PromptAccepted::decode(body).map_err(bad)?;
                let (was, now) = (identity(&was), identity(&now));
                EntryContent::PromptAccepted { was, now, by: by.into_owned(), reason: reason.into_owned() }
            }
            _ => return Ok(None),
        };
        Ok(Some(ConversationRecord { sequence, time, content }))
    }

    /// Builds the message of a record. An imported message retains its original id and time.
    fn message(
        &self,
        record: &Record<'_>,
        original: Option<&Original>,
        role: foldlog_codec::body::Role,
    ) -> ConversationMessage {
        if let Some((id, time_us)) = original.and_then(|original| original.state) {
            self.imported.set(self.imported.get().or(Some((Uuid::from_bytes(id), time(time_us)))));
        }
        let message_id = match original {
            Some(original) => Uuid::from_bytes(original.id),
            None => message_id(self.session, record.sequence, 0),
        };
        let created_at = time(original.map_or(record.time_us, |original| original.time_us));
        ConversationMessage { content: None, created_at, message_id, ..ConversationMessage::new(role, "") }
    }

    fn blocks(
        &self,
        sequence: SequenceNumber,
        blocks: Option<&foldlog_codec::body::Blocks<'_>>,
    ) -> Result<Option<ContentBlocks>> {
        let Some(blocks) = blocks else { return Ok(None) };
        let json = self.json(sequence, blocks.json)?;
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
            ..self.message(record, input.scope.original.as_ref(), input.role)
        };
        let (id, prompt) = (input.id.as_deref().map(str::to_owned), input.prompt.as_ref().map(identity));
        Ok(EntryContent::Input { message, id, prompt, origin: input.origin })
    }

    fn request(&self, sequence: SequenceNumber, request: Request<'_>) -> Result<EntryContent> {
        let Some(failure) = request.failure else {
            let (attempt, prompt, sent) = (request.attempt, request.prompt, request.sent);
            let parameters = self.optional(sequence, request.parameters)?;
            let model = request.model.map(Cow::into_owned);
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

    fn answer(&self, record: &Record<'_>, answer: &AnswerBody<'_>) -> Result<EntryContent> {
        let sequence = record.sequence;
        let call = |call: &foldlog_codec::body::AnsweredCall<'_>| {
            let arguments = self.json(sequence, call.arguments)?;
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
            ..self.message(record, answer.scope.original.as_ref(), foldlog_codec::body::Role::Assistant)
        };
        let incomplete = (0..).zip(&answer.calls).filter(|(_, call)| call.incomplete);
        let owned = |text: &Option<Cow<'_, str>>| text.as_deref().map(str::to_owned);
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
        let overrides = end.overrides.map(|payload| self.value(sequence, payload)).transpose()?;
        Ok(EntryContent::CallEnded {
            origin,
            operation: end.operation(),
            tool: end.tool.clone().into_owned(),
            call_id: end.call_id.as_deref().map(str::to_owned),
            outcome: end.outcome,
            cause: end.cause,
            exit_code: end.exit_code,
            shown: self.optional(sequence, end.shown)?,
            overrides: overrides.and_then(|value| serde_json::to_value(value).ok()),
        })
    }

    fn settlement(
        &self,
        sequence: SequenceNumber,
        origin: CallOrigin,
        settle: &Settle<'_>,
    ) -> Result<EntryContent> {
        let result = settle.result.map(|payload| self.value(sequence, payload)).transpose()?;
        let own = self.optional(sequence, settle.shown)?;
        let shown = settled_text(settle.decision, result.as_ref(), own.as_deref(), &settle.reason);
        let committed = match settle.decision {
            Decision::Committed => Some(true),
            Decision::Failed => Some(false),
            Decision::RunAgain => None,
        };
        let until = settle.until_us.map(time);
        Ok(EntryContent::CallSettled { origin, operation: settle.operation, committed, until, shown })
    }
}

/// Returns the length of a payload's content in bytes, as stated in the record.
pub(crate) fn recorded_len(payload: Payload<'_>) -> u64 {
    payload.object().map_or(payload.bytes().len() as u64, |object| object.len)
}

pub(crate) fn value_bytes(value: &Value) -> u64 {
    let own = size_of::<Value>() as u64;
    own + match value {
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Map(entries) => entries.iter().map(|(key, value)| value_bytes(key) + value_bytes(value)).sum(),
        Value::Str(text) => text.len() as u64,
        Value::Bin(bytes) => bytes.len() as u64,
        _ => 0,
    }
}

fn identity(prompt: &foldlog_codec::body::PromptIdentity<'_>) -> PromptIdentity {
    PromptIdentity {
        namespace: prompt.namespace.clone().into_owned(),
        key: prompt.key.clone().into_owned(),
        digest: prompt.digest,
    }
}

/// Returns the time of a record. A time outside the calendar's range becomes the earliest or latest
/// time of the calendar.
pub(crate) fn time(time_us: i64) -> DateTime<Utc> {
    let ends = if time_us < 0 { DateTime::<Utc>::MIN_UTC } else { DateTime::<Utc>::MAX_UTC };
    DateTime::from_timestamp_micros(time_us).unwrap_or(ends)
}
