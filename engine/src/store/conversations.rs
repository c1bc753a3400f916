//! Converts the conversations of an export to records: the messages, the answers, and the results
//! of their calls, as results of calls that ran elsewhere. Also converts the states of adapters.

use std::borrow::Cow;
use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use foldlog_codec::body::{
    AdapterState, AnswerBody, AnsweredCall, CallOrigin, ConversationScope, Input, ObjectId, Payload,
    PromptIdentity, Role, Turn,
};
use foldlog_codec::{RecordKind, SequenceNumber, escape};
use uuid::Uuid;

use crate::conversation::{
    ADAPTER_STATES, AdapterStateSnapshot, CONVERSATION, ContentBlocks, ConversationMessage,
    ConversationState, ConversationTurn, OriginalMessage, blocks_of, text_payload,
};
use crate::error::{Error, Result};
use crate::snapshot_json::ExportedSlice;
use crate::types::encode;

/// Builds the records of imported conversations. The first one gets the sequence number `next`.
pub(super) struct ImportedConversations {
    pub(super) records: Vec<(RecordKind, Vec<u8>)>,
    /// Payloads that become objects.
    pub(super) large: Vec<Vec<u8>>,
    next: u64,
    object_bytes_min: u64,
    /// State with a first message that is not recorded yet.
    begins: Option<(Uuid, DateTime<Utc>)>,
}

impl ImportedConversations {
    pub(super) fn new(next: u64, object_bytes_min: u64) -> ImportedConversations {
        ImportedConversations { records: Vec::new(), large: Vec::new(), next, object_bytes_min, begins: None }
    }

    /// Adds the conversations of a slice, or the states of adapters.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] if an item is not the state of a conversation, or of an adapter.
    pub(super) fn add(&mut self, slice: &ExportedSlice) -> Result<()> {
        match slice.slice_type.as_str() {
            ADAPTER_STATES => self.add_states(slice),
            _ => self.add_conversations(slice),
        }
    }

    /// Adds the states of adapters. A state that a rollback abandoned becomes one that cannot be
    /// resumed, since the import has no record of the rollback. Exports of other programs name the
    /// superseded state by the id of its evaluation.
    fn add_states(&mut self, slice: &ExportedSlice) -> Result<()> {
        let mut known: BTreeMap<SequenceNumber, SequenceNumber> = BTreeMap::new();
        let mut last_of: BTreeMap<String, SequenceNumber> = BTreeMap::new();
        for (place, item) in slice.items.iter().enumerate() {
            let refused = refused(ADAPTER_STATES, place, "the state of an adapter");
            let json = serde_json::to_value(item).map_err(refused)?;
            let named = json.get("supersedes").and_then(serde_json::Value::as_str);
            let named = named.and_then(|evaluation| last_of.get(evaluation).copied());
            let state: AdapterStateSnapshot = serde_json::from_value(json).map_err(refused)?;
            let encoded = self.store_payload(encode("an adapter's state", &state.state)?);
            let body = AdapterState {
                scope: ConversationScope::new(state.evaluation_id.as_str()),
                adapter: Cow::from(&state.adapter),
                resumable: state.resumable && state.is_live,
                state: Payload::new(&encoded),
                supersedes: named.or_else(|| known.get(&state.supersedes?).copied()),
                entry: state.entry.as_deref().map(Cow::from),
                occasion: Cow::from(&state.occasion),
            };
            let body = body.encode();
            let sequence = self.push(RecordKind::AdapterState, body);
            known.insert(state.sequence, sequence);
            last_of.insert(state.evaluation_id, sequence);
        }
        Ok(())
    }

    fn add_conversations(&mut self, slice: &ExportedSlice) -> Result<()> {
        for (place, item) in slice.items.iter().enumerate() {
            let refused = refused(CONVERSATION, place, "a conversation");
            let json = serde_json::to_value(item).map_err(refused)?;
            let digest = json.get("prompt_digest").and_then(serde_json::Value::as_str);
            let digest = digest.and_then(|hex| blake3::Hash::from_hex(hex).ok());
            let digest = digest.map_or([0; 32], |hash| *hash.as_bytes());
            let complete = json.get("complete").and_then(serde_json::Value::as_bool);
            let state: ConversationState = serde_json::from_value(json).map_err(refused)?;
            self.add_one(&state, digest, complete)?;
        }
        Ok(())
    }

    /// `complete` tells whether the last turn is complete. Without it, a turn without calls counts
    /// as complete.
    fn add_one(&mut self, state: &ConversationState, digest: [u8; 32], complete: Option<bool>) -> Result<()> {
        let scope = ConversationScope::new(state.evaluation_id.as_str());
        let prompt = PromptIdentity {
            namespace: Cow::from(&state.prompt_ns),
            key: Cow::from(&state.prompt_key),
            digest,
        };
        self.begins = Some((state.state_id, state.created_at)).filter(|(id, _)| !id.is_nil());
        let system = &state.system_message;
        if system.content.is_some() || system.blocks.is_some() {
            self.input(&scope, system, Some(prompt), None);
        }
        for turn in &state.turns {
            let said = turn.input_messages.iter().filter(|message| message.role != Role::System);
            let inputs = said.map(|message| self.input(&scope, message, None, None)).collect();
            let answer = self.answer(&scope, &turn.assistant_message, turn.provider_payload.as_ref());
            let ends = self.results(&scope, answer, turn)?;
            let is_last = Some(turn.turn_number) == state.turns.last().map(|turn| turn.turn_number);
            let guessed = turn.assistant_message.tool_calls.is_empty();
            let complete = is_last && complete.unwrap_or(guessed);
            let body =
                Turn { scope: scope.clone(), number: turn.turn_number, inputs, answer, ends, complete };
            self.push(RecordKind::Turn, body.encode());
        }
        Ok(())
    }

    /// Records the results of a turn's calls by ordinal. If the export lacks the result of a call,
    /// the recorded result states that its outcome is unknown.
    fn results(
        &mut self,
        scope: &ConversationScope<'_>,
        answer: SequenceNumber,
        turn: &ConversationTurn,
    ) -> Result<Vec<SequenceNumber>> {
        let (results, orphans) = turn.paired_results();
        let mut ends = Vec::new();
        for (ordinal, (call, result)) in (0..).zip(turn.assistant_message.tool_calls.iter().zip(results)) {
            let unknown = ConversationMessage {
                tool_call_id: Some(call.call_id.clone()),
                name: Some(call.name.clone()),
                is_error: true,
                ..ConversationMessage::new(Role::Tool, "What became of this call is not known.")
            };
            let origin = Some(CallOrigin { answer, ordinal });
            ends.push(self.input(scope, result.unwrap_or(&unknown), None, origin));
        }
        match orphans.first() {
            None => Ok(ends),
            Some(orphan) => Err(Error::Export(format!(
                "turn {} of slice `{CONVERSATION}` contains the result of call `{}`, which its answer does not request",
                turn.turn_number,
                escape::text(orphan.tool_call_id.as_deref().unwrap_or_default())
            ))),
        }
    }

    fn input(
        &mut self,
        scope: &ConversationScope<'_>,
        message: &ConversationMessage,
        prompt: Option<PromptIdentity<'_>>,
        origin: Option<CallOrigin>,
    ) -> SequenceNumber {
        let content = message.content.as_deref().map(|content| self.text(content));
        let blocks = self.blocks(message.blocks.as_ref());
        let body = Input {
            blocks: blocks_of(blocks.as_ref()),
            name: message.name.as_deref().map(Cow::from),
            prompt,
            call_id: message.tool_call_id.as_deref().map(Cow::from),
            origin,
            is_error: message.is_error,
            content: content.as_deref().map(Payload::new),
            ..Input::new(self.scope_of(scope, message), message.role, Payload::new(&[]))
        };
        let body = body.encode();
        self.push(RecordKind::Input, body)
    }

    fn answer(
        &mut self,
        scope: &ConversationScope<'_>,
        message: &ConversationMessage,
        payload: Option<&serde_json::Value>,
    ) -> SequenceNumber {
        let content = message.content.as_deref().map(|content| self.text(content));
        let blocks = self.blocks(message.blocks.as_ref());
        let payload = payload.map(|payload| self.text(&payload.to_string()));
        let arguments: Vec<Vec<u8>> =
            message.tool_calls.iter().map(|call| self.text(&call.arguments)).collect();
        let calls = message.tool_calls.iter().zip(&arguments).map(|(call, arguments)| AnsweredCall {
            id: Cow::from(&call.call_id),
            name: Cow::from(&call.name),
            arguments: Payload::new(arguments),
            incomplete: false,
        });
        let body = AnswerBody {
            calls: calls.collect(),
            blocks: blocks_of(blocks.as_ref()),
            payload: payload.as_deref().map(Payload::new),
            ..AnswerBody::new(self.scope_of(scope, message), content.as_deref().map(Payload::new))
        };
        let body = body.encode();
        self.push(RecordKind::Answer, body)
    }

    /// Returns the scope of a message. It preserves the id and the time of the message.
    fn scope_of<'a>(
        &mut self,
        scope: &ConversationScope<'a>,
        message: &ConversationMessage,
    ) -> ConversationScope<'a> {
        let original = OriginalMessage::from_message(message, &mut self.begins);
        ConversationScope { original: original.map(OriginalMessage::into_original), ..scope.clone() }
    }

    fn blocks<'a>(&mut self, blocks: Option<&'a ContentBlocks>) -> Option<(&'a str, Vec<u8>)> {
        blocks.map(|blocks| (blocks.format.as_str(), self.text(&blocks.json)))
    }

    /// Encodes a text as one MessagePack string, or as the reference to an object if it is large.
    fn text(&mut self, text: &str) -> Vec<u8> {
        self.store_payload(text_payload(text))
    }

    /// Returns a payload, or the reference to an object if it is large.
    fn store_payload(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        if bytes.len() as u64 <= self.object_bytes_min {
            return bytes;
        }
        let reference = ObjectId::from_content(&bytes).reference();
        self.large.push(bytes);
        reference
    }

    fn push(&mut self, kind: RecordKind, body: Vec<u8>) -> SequenceNumber {
        let sequence = SequenceNumber::new(self.next);
        self.next += 1;
        self.records.push((kind, body));
        sequence
    }
}

/// Returns the error for an item that is not what an import expects in its slice.
fn refused(slice: &str, place: usize, expected: &str) -> impl Fn(serde_json::Error) -> Error + Copy {
    move |error| Error::Export(format!("item {place} of slice `{slice}` is not {expected}: {error}"))
}
