//! Records a conversation for a driver: in a session, or in the memory of the process.

use chrono::{DateTime, Utc};
use foldlog::conversation::{
    Conversation, ConversationMessage, ConversationRecord, ConversationState, ConversationTurn, EntryContent,
    NewInput, NewRequest, NewRequestFailure, OriginalMessage, PromptIdentity, Role, SentMessage, TokenUsage,
    ToolCallRecord,
};
use foldlog::tools::resources::Usage;
use foldlog::{CallOrigin, ConversationFollower, SequenceNumber, Session};
use uuid::Uuid;

use super::start::OpenTurn;
use super::steps::CallToRun;
use crate::budget::{self, Used, spend};
use crate::error::{Error, Result};
use crate::provider::{PreparedRequest, ProviderAnswer, ProviderError};
use crate::shortening::{ShortenReason, ShortenedRange};

/// Prefix of the ids of messages that explain to the model why its output was refused.
pub(crate) const REFUSED_ID: &str = "foldlog.output_refused.";

/// Prefix of the ids of imported messages.
const IMPORTED_ID: &str = "foldlog.imported.";

/// Prefix of the ids of unknown results.
const UNKNOWN_ID: &str = "foldlog.unknown_result.";

/// Prefix of the ids of results that a provider itself passed to its model.
const TOLD_ID: &str = "foldlog.told_result.";

/// Text that replaces a missing result of an imported conversation.
const UNKNOWN: &str = "The result of this call is not known: whether it ran was not recorded.";

/// Records a conversation.
#[derive(Debug)]
pub struct Journal {
    evaluation: String,
    to: RecordsTo,
    /// Usage of the evaluation so far.
    pub used: Used,
    /// Usage of the last answer, as far as the provider reported it.
    pub(super) last_usage: Option<TokenUsage>,
    /// Number of unmetered answers that the estimate covers, and the estimate of their usage.
    estimated: (u64, Usage),
    /// Id and time of a state whose first message is to be imported.
    begins: Option<(Uuid, DateTime<Utc>)>,
}

#[derive(Debug)]
enum RecordsTo {
    Session(Session, Box<ConversationFollower>),
    /// Messages in the order in which they are sent. Messages that arrive while calls are open are
    /// placed after them.
    Memory(Vec<ConversationMessage>),
}

impl Journal {
    /// Creates a journal that records in the session of a conversation. `used` is the usage of the
    /// conversation so far, and `last_usage` that of its last answer.
    pub fn in_session(
        session: Session,
        held: ConversationFollower,
        used: Used,
        last_usage: Option<TokenUsage>,
    ) -> Journal {
        let evaluation = held.evaluation_id().to_owned();
        let (to, estimated) = (RecordsTo::Session(session, Box::new(held)), (0, Usage::default()));
        Journal { evaluation, to, used, last_usage, estimated, begins: None }
    }

    /// Creates a journal that records nothing.
    pub fn in_memory(evaluation: String) -> Journal {
        let (to, estimated) = (RecordsTo::Memory(Vec::new()), (0, Usage::default()));
        Journal { evaluation, to, used: Used::default(), last_usage: None, estimated, begins: None }
    }

    /// Returns the id of the evaluation.
    pub fn evaluation(&self) -> &str {
        &self.evaluation
    }

    /// Returns the session of the journal; `None` if it records nothing.
    pub fn session(&self) -> Option<&Session> {
        match &self.to {
            RecordsTo::Session(session, _) => Some(session),
            RecordsTo::Memory(_) => None,
        }
    }

    /// Returns the spending of the evaluation so far, as far as the provider reported it.
    pub fn spent(&self) -> Usage {
        spend(&self.used.metered)
    }

    /// Returns the spending of the evaluation so far, with estimates for unreported usage.
    pub fn estimate_usage(&mut self) -> Result<Usage> {
        let unmetered = self.used.unmetered;
        if self.estimated.0 != unmetered
            && let Some(conversation) = self.conversation()?
        {
            self.estimated = (unmetered, budget::estimate(conversation));
        }
        let (mut spent, unmetered) = (self.spent(), self.estimated.1);
        spent.input_tokens = spent.input_tokens.saturating_add(unmetered.input_tokens);
        spent.output_tokens = spent.output_tokens.saturating_add(unmetered.output_tokens);
        Ok(spent)
    }

    /// Returns the session's conversation; `None` if nothing is recorded.
    pub fn conversation(&mut self) -> Result<Option<&Conversation>> {
        match &mut self.to {
            RecordsTo::Session(_, held) => Ok(held.read()?),
            RecordsTo::Memory(_) => Ok(None),
        }
    }

    /// Returns the number of requests in the log, and the number of calls in its answers; `None` if
    /// nothing is recorded.
    pub fn counts(&mut self) -> Result<Option<(u64, u64)>> {
        let count = |(requests, calls), entry: &ConversationRecord| match &entry.content {
            EntryContent::Request { .. } => (requests + 1, calls),
            EntryContent::Answer { message, .. } => (requests, calls + message.tool_calls.len() as u64),
            _ => (requests, calls),
        };
        let of = |conversation: &Conversation| conversation.entries().iter().fold((0, 0), count);
        Ok(self.conversation()?.map(of))
    }

    /// Returns whether a user's message was recorded after the request of the last answer.
    pub fn is_outdated(&mut self) -> Result<bool> {
        let Some(conversation) = self.conversation()? else { return Ok(false) };
        let newest_first = || conversation.entries().iter().rev();
        let asked = newest_first().find_map(|entry| match &entry.content {
            EntryContent::Answer { request, .. } => Some(request.unwrap_or(entry.sequence)),
            _ => None,
        });
        let is_said = |entry: &ConversationRecord| match &entry.content {
            EntryContent::Input { message, id, .. } if message.role == Role::User => {
                !id.as_deref().is_some_and(|id| id.starts_with(REFUSED_ID))
            }
            _ => false,
        };
        let Some(asked) = asked else { return Ok(false) };
        Ok(newest_first().take_while(|entry| entry.sequence > asked).any(is_said))
    }

    /// Returns the arguments of the last call of one of these tools since the last message of the
    /// user; `None` if there is none, or if nothing is recorded.
    pub fn last_call(&mut self, tools: [&str; 2]) -> Result<Option<String>> {
        let Some(conversation) = self.conversation()? else { return Ok(None) };
        let newest_first = conversation.entries().iter().rev();
        let is_users = |entry: &&ConversationRecord| matches!(&entry.content, EntryContent::Input { message, .. } if message.role == Role::User);
        let calls =
            newest_first.take_while(|entry| !is_users(entry)).find_map(|entry| match &entry.content {
                EntryContent::Answer { message, .. } => {
                    message.tool_calls.iter().rfind(|call| tools.contains(&call.name.as_str()))
                }
                _ => None,
            });
        Ok(calls.map(|call| call.arguments.clone()))
    }

    /// Closes the open calls of an imported answer.
    pub fn close_unknown(&mut self, open: &mut OpenTurn) -> Result<()> {
        for (ordinal, call) in (0..).zip(&open.calls) {
            if open.closed.insert(ordinal) {
                let origin = open.answer.map(|answer| CallOrigin { answer, ordinal });
                let answer = open.answer.unwrap_or_default();
                self.message(&unknown(call), origin, format!("{UNKNOWN_ID}{answer}.{ordinal}"))?;
            }
        }
        Ok(())
    }

    /// Returns the messages as they would be sent.
    pub fn messages(&mut self) -> Result<Vec<ConversationMessage>> {
        Ok(self.sent_entries()?.into_iter().map(|sent| sent.message).collect())
    }

    /// Returns the messages as they would be sent, with their records, or with their indexes if
    /// they are not recorded.
    pub fn sent_entries(&mut self) -> Result<Vec<SentMessage>> {
        let messages = match &mut self.to {
            RecordsTo::Memory(messages) => messages,
            RecordsTo::Session(_, held) => {
                return Ok(held.read()?.map(Conversation::sent_entries).unwrap_or_default());
            }
        };
        let mut last = None;
        let sent = (0_u64..).map(SequenceNumber::from).zip(messages).map(|(sequence, message)| {
            if message.role == Role::Assistant {
                last = Some(sequence);
            }
            let answer = last.filter(|_| message.role == Role::Tool);
            SentMessage { sequence, answer, message: message.clone() }
        });
        Ok(sent.collect())
    }

    /// Records the replacement for a part of the conversation.
    pub fn shorten(
        &mut self,
        shortening: &ShortenedRange,
        reason: ShortenReason,
    ) -> Result<Option<SequenceNumber>> {
        let ShortenedRange { from, to, messages: texts } = shortening;
        match &mut self.to {
            RecordsTo::Session(session, _) => Ok(Some(session.conversation().record_shortened(
                &self.evaluation,
                *from,
                *to,
                texts,
                reason.name(),
            )?)),
            RecordsTo::Memory(messages) => {
                let mut instead =
                    Some(texts.iter().map(|(role, text)| ConversationMessage::new(*role, text)));
                let mut kept = Vec::with_capacity(messages.len());
                for (place, message) in (0_u64..).map(SequenceNumber::from).zip(messages.drain(..)) {
                    if message.role == Role::System || place < *from || *to < place {
                        kept.push(message);
                    } else {
                        kept.extend(instead.take().into_iter().flatten());
                    }
                }
                *messages = kept;
                Ok(None)
            }
        }
    }

    /// Records a rendered prompt, which replaces an earlier one. `original` is the message that it
    /// is imported from.
    pub fn system(
        &mut self,
        text: &str,
        prompt: PromptIdentity,
        original: Option<OriginalMessage>,
    ) -> Result<Option<SequenceNumber>> {
        match &mut self.to {
            RecordsTo::Session(session, _) => {
                let input = NewInput { original, ..NewInput::system(&self.evaluation, text, prompt) };
                Ok(Some(session.conversation().record_input(&input)?))
            }
            RecordsTo::Memory(messages) => {
                messages.retain(|message| message.role != Role::System);
                messages.insert(0, ConversationMessage::new(Role::System, text));
                Ok(None)
            }
        }
    }

    /// Records a message of the user. A message with the id of a recorded one is not recorded
    /// again.
    pub fn user(&mut self, text: &str, id: Option<&str>) -> Result<Option<SequenceNumber>> {
        match &mut self.to {
            RecordsTo::Session(session, _) => {
                let input = NewInput { id: id.map(str::to_owned), ..NewInput::user(&self.evaluation, text) };
                Ok(Some(session.conversation().record_input(&input)?))
            }
            RecordsTo::Memory(messages) => {
                messages.push(ConversationMessage::new(Role::User, text));
                Ok(None)
            }
        }
    }

    /// Records a request before it is sent.
    pub fn request(
        &mut self,
        attempt: u64,
        prompt: [u8; 32],
        prepared: &PreparedRequest,
    ) -> Result<Option<SequenceNumber>> {
        let RecordsTo::Session(session, _) = &self.to else { return Ok(None) };
        let request = NewRequest {
            evaluation_id: self.evaluation.clone(),
            attempt,
            prompt: Some(prompt),
            model: Some(prepared.model.clone()),
            parameters: Some(prepared.parameters.clone()),
            // The contents of a program's own requests are unknown here.
            sent: (!prepared.body.is_empty()).then(|| *blake3::hash(&prepared.body).as_bytes()),
        };
        Ok(Some(session.conversation().record_request(&request)?))
    }

    /// Records that a request failed.
    pub fn failure(
        &mut self,
        attempt: u64,
        request: Option<SequenceNumber>,
        error: &ProviderError,
    ) -> Result<Option<SequenceNumber>> {
        self.spend(error.usage.as_ref(), error.arrived.as_ref().map(|arrived| arrived.len() as u64));
        let (RecordsTo::Session(session, _), Some(request)) = (&self.to, request) else { return Ok(None) };
        let failure = NewRequestFailure {
            attempt,
            status: error.status,
            arrived: error.arrived.clone(),
            request_id: error.request_id.clone(),
            usage: error.usage,
            rate_limits: error.rate_limits.clone(),
            ..NewRequestFailure::new(&self.evaluation, request, error.kind.name(), &error.message)
        };
        Ok(Some(session.conversation().record_request_failure(&failure)?))
    }

    /// Records an answer before any of its calls runs.
    pub fn answer(
        &mut self,
        request: Option<SequenceNumber>,
        answer: ProviderAnswer,
    ) -> Result<Option<SequenceNumber>> {
        self.last_usage = answer.usage;
        // An imported answer has no request, and cost this evaluation nothing.
        if self.session().is_none() || request.is_some() {
            let bytes = budget::bytes(answer.content.as_deref(), &answer.calls, answer.blocks.as_ref());
            self.spend(answer.usage.as_ref(), Some(bytes));
        }
        match &mut self.to {
            RecordsTo::Session(session, _) => {
                let answer = ProviderAnswer { evaluation_id: self.evaluation.clone(), request, ..answer };
                Ok(Some(session.conversation().record_answer(&answer)?))
            }
            RecordsTo::Memory(messages) => {
                messages.push(ConversationMessage {
                    content: answer.content,
                    tool_calls: answer.calls,
                    blocks: answer.blocks,
                    ..ConversationMessage::new(Role::Assistant, "")
                });
                Ok(None)
            }
        }
    }

    /// Records the result that a provider passed to its model for a call that ran elsewhere. This
    /// closes the call, or replaces the text of its end record.
    pub fn record_shown_result(
        &mut self,
        call: &ToolCallRecord,
        origin: Option<CallOrigin>,
        shown: &str,
        is_error: bool,
    ) -> Result<()> {
        let message = ConversationMessage { is_error, ..result_of(call, shown) };
        // A provider may reuse the id of a call in a later answer.
        let at = origin.map(|origin| format!(".{}.{}", origin.answer, origin.ordinal)).unwrap_or_default();
        let id = format!("{TOLD_ID}{}{at}", call.call_id);
        self.message(&message, origin, id)
    }

    /// Stores the result of a call, if no record contains it.
    pub fn result(&mut self, call: &CallToRun, shown: &str, is_error: bool) {
        if let RecordsTo::Memory(messages) = &mut self.to {
            messages.push(ConversationMessage { is_error, ..result_of(&call.call, shown) });
        }
    }

    /// Records the end of a turn.
    pub fn turn(&mut self, complete: bool) -> Result<Option<SequenceNumber>> {
        match &self.to {
            RecordsTo::Session(session, _) => {
                Ok(Some(session.conversation().record_turn(&self.evaluation, complete)?))
            }
            RecordsTo::Memory(_) => Ok(None),
        }
    }

    /// Imports a conversation as the start of this one. Its calls without a result count as
    /// unknown: they do not run, and the model reads that their outcome is unknown. An import that
    /// another process left incomplete continues without duplicates.
    pub fn import(&mut self, state: &ConversationState, prompt: &PromptIdentity) -> Result<()> {
        let held = self.conversation()?;
        let is_rendered = held.and_then(Conversation::prompt).is_some();
        let held: Vec<SequenceNumber> =
            held.map(|held| answers(held).map(|(sequence, _)| sequence).collect()).unwrap_or_default();
        let is_begun = is_rendered || !held.is_empty();
        self.begins = (!is_begun && !state.state_id.is_nil()).then_some((state.state_id, state.created_at));
        if let Some(text) = state.system_message.content.as_deref().filter(|_| !is_rendered) {
            let original = OriginalMessage::from_message(&state.system_message, &mut self.begins);
            self.system(text, prompt.clone(), original)?;
        }
        for (place, turn) in state.turns.iter().enumerate().skip(held.len().saturating_sub(1)) {
            let answer = match held.get(place) {
                Some(answer) => Some(*answer),
                None => self.import_answer(place, turn)?,
            };
            self.results(place, answer, turn)?;
            let is_last = place + 1 == state.turns.len();
            if !is_last || !turn.assistant_message.tool_calls.is_empty() {
                self.turn(false)?;
            }
        }
        Ok(())
    }

    /// Records the inputs and the answer of a turn.
    fn import_answer(&mut self, place: usize, turn: &ConversationTurn) -> Result<Option<SequenceNumber>> {
        // The state's own system message is the last rendered one.
        let said = turn.input_messages.iter().filter(|message| message.role != Role::System);
        for (ordinal, message) in said.enumerate() {
            self.message(message, None, format!("{IMPORTED_ID}{place}.input.{ordinal}"))?;
        }
        let answer = ProviderAnswer {
            content: turn.assistant_message.content.clone(),
            calls: turn.assistant_message.tool_calls.clone(),
            blocks: turn.assistant_message.blocks.clone(),
            payload: turn.provider_payload.clone(),
            original: OriginalMessage::from_message(&turn.assistant_message, &mut self.begins),
            ..ProviderAnswer::default()
        };
        self.answer(None, answer)
    }

    /// Records the results of an answer's calls. Each result belongs to the first call with its id
    /// that has none yet.
    fn results(
        &mut self,
        place: usize,
        answer: Option<SequenceNumber>,
        turn: &ConversationTurn,
    ) -> Result<()> {
        let (results, orphans) = turn.paired_results();
        for (ordinal, (call, result)) in (0..).zip(turn.assistant_message.tool_calls.iter().zip(results)) {
            let result = result.cloned();
            let origin = answer.map(|answer| CallOrigin { answer, ordinal });
            let id = format!("{IMPORTED_ID}{place}.result.{ordinal}");
            self.message(&result.unwrap_or_else(|| unknown(call)), origin, id)?;
        }
        if orphans.is_empty() {
            return Ok(());
        }
        let problems = vec![format!("{} results belong to no call of their answer", orphans.len())];
        Err(Error::InvalidHistory { problems })
    }

    fn message(
        &mut self,
        message: &ConversationMessage,
        origin: Option<CallOrigin>,
        id: String,
    ) -> Result<()> {
        let original = OriginalMessage::from_message(message, &mut self.begins);
        match &mut self.to {
            RecordsTo::Memory(messages) => messages.push(message.clone()),
            RecordsTo::Session(session, _) => {
                let input = NewInput {
                    content: message.content.clone(),
                    blocks: message.blocks.clone(),
                    name: message.name.clone(),
                    call_id: message.tool_call_id.clone(),
                    origin,
                    is_error: message.is_error,
                    original,
                    ..NewInput::new(&self.evaluation, message.role, "")
                };
                session.conversation().record_input(&input.with_id(id))?;
            }
        }
        Ok(())
    }

    /// Adds the usage of a complete or partial answer. `returned` is its size in bytes; `None` if
    /// nothing arrived.
    fn spend(&mut self, usage: Option<&TokenUsage>, returned: Option<u64>) {
        let Some(more) = usage else {
            self.used.unmetered += u64::from(returned.is_some());
            if let (RecordsTo::Memory(messages), Some(returned)) = (&self.to, returned) {
                let sent = messages.iter().map(budget::bytes_of).sum();
                budget::add(&mut self.estimated.1, sent, returned);
            }
            return;
        };
        self.used.metered = self.used.metered.plus(*more);
    }
}

/// Creates the message that replaces an unknown result.
fn unknown(call: &ToolCallRecord) -> ConversationMessage {
    ConversationMessage { is_error: true, ..result_of(call, UNKNOWN) }
}

fn result_of(call: &ToolCallRecord, shown: &str) -> ConversationMessage {
    ConversationMessage {
        tool_call_id: Some(call.call_id.clone()),
        name: Some(call.name.clone()),
        ..ConversationMessage::new(Role::Tool, shown)
    }
}

/// Returns the answers of a conversation, with their records.
pub(crate) fn answers(
    conversation: &Conversation,
) -> impl Iterator<Item = (SequenceNumber, &ConversationMessage)> {
    conversation.entries().iter().filter_map(|entry| match &entry.content {
        EntryContent::Answer { message, .. } => Some((entry.sequence, message)),
        _ => None,
    })
}
