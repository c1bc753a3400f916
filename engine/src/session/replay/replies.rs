//! Replies of a provider in the replayed run.

use std::borrow::Cow;

use foldlog_codec::body::{AnswerBody, Payload, Request};
use foldlog_codec::{RecordKind, SequenceNumber};

use super::SessionReplay;
use crate::conversation::{ContentBlocks, NewAnswer, NewRequestFailure, ToolCallRecord};
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::fold::log_source::LogSource;
use crate::session::SessionConversation;

/// Outcome of a request in the replayed run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RecordedReply {
    /// The provider answered.
    Answered(Box<NewAnswer>),
    /// The request failed.
    Failed {
        /// The failure.
        failure: Box<NewRequestFailure>,
        /// Whether a new request to the provider followed.
        asked_again: bool,
    },
}

impl SessionConversation<'_> {
    /// Returns the recorded outcome of the last request through a handle of this lane. In a replay,
    /// call this instead of the provider, and record the returned value. Returns `None` if neither
    /// an answer nor a failure is recorded there.
    ///
    /// # Errors
    ///
    /// - [`Error::ReplayEnded`] if the process ended before there was an answer
    /// - [`Error::Diverged`] if the replay has stopped
    /// - [`Error::Object`] if an object is missing or damaged
    /// - [`Error::NoSuchPosition`] if the session does not replay
    pub fn recorded_reply(&self) -> Result<Option<RecordedReply>> {
        let replay = self.session.as_replay()?;
        let kinds = [RecordKind::Answer, RecordKind::Request];
        let Some((sequence, kind, body)) = self.session.next_recorded(replay, &kinds)? else {
            return Ok(None);
        };
        let source = self.session.inner.log_source(&self.session.inner.state.lock());
        let reading = ReplyReader { source: &source, sequence };
        let bad = Error::unread(sequence);
        if kind == RecordKind::Answer {
            let answer = reading.answer(AnswerBody::decode(&body).map_err(bad)?)?;
            return Ok(Some(RecordedReply::Answered(Box::new(answer))));
        }
        let Some(failure) = reading.failure(Request::decode(&body).map_err(bad)?)? else { return Ok(None) };
        let asked_again = self.is_asked_again(replay)?;
        Ok(Some(RecordedReply::Failed { failure: Box::new(failure), asked_again }))
    }
}

impl SessionConversation<'_> {
    /// Returns whether the record after the next one of this lane is a request.
    fn is_asked_again(&self, replay: SessionReplay<'_>) -> Result<bool> {
        let own = self.session.own_producer();
        let _state = replay.turn(self.session.inner.writable()?, &own, None)?;
        replay.with(|recording| {
            recording.fill()?;
            Ok(recording.behind_next(&own).is_some_and(|record| record.kind == RecordKind::Request))
        })
    }
}

struct ReplyReader<'a> {
    source: &'a LogSource,
    sequence: SequenceNumber,
}

impl ReplyReader<'_> {
    fn text(&self, payload: Payload<'_>) -> Result<String> {
        conversation_reading::text(self.source, self.sequence, payload)
    }

    fn optional(&self, payload: Option<Payload<'_>>) -> Result<Option<String>> {
        payload.map(|payload| self.text(payload)).transpose()
    }

    fn answer(&self, answer: AnswerBody<'_>) -> Result<NewAnswer> {
        let last_call_incomplete = answer.calls.last().is_some_and(|call| call.incomplete);
        let call = |call: &foldlog_codec::body::AnsweredCall<'_>| {
            let (call_id, name) = (call.id.clone().into_owned(), call.name.clone().into_owned());
            Ok(ToolCallRecord { call_id, name, arguments: self.text(call.arguments)? })
        };
        let blocks = answer.blocks.map(|blocks| {
            let format = blocks.format.clone().into_owned();
            self.text(blocks.json).map(|json| ContentBlocks { format, json })
        });
        let payload = self.optional(answer.payload)?;
        let no_json = |error: serde_json::Error| Error::Inconsistent {
            sequence: self.sequence,
            reason: error.to_string(),
        };
        Ok(NewAnswer {
            evaluation_id: answer.scope.evaluation.into_owned(),
            request: answer.request,
            content: self.optional(answer.content)?,
            calls: answer.calls.iter().map(call).collect::<Result<_>>()?,
            last_call_incomplete,
            blocks: blocks.transpose()?,
            stop: answer.stop.map(Cow::into_owned),
            continues: answer.continues,
            model: answer.model.map(Cow::into_owned),
            request_id: answer.request_id.map(Cow::into_owned),
            usage: answer.usage,
            rate_limits: to_owned_pairs(&answer.rate_limits),
            original: None,
            payload: payload.map(|json| serde_json::from_str(&json)).transpose().map_err(no_json)?,
        })
    }

    fn failure(&self, request: Request<'_>) -> Result<Option<NewRequestFailure>> {
        let Some(failure) = request.failure else { return Ok(None) };
        let evaluation = request.scope.evaluation.into_owned();
        Ok(Some(NewRequestFailure {
            attempt: request.attempt,
            status: failure.status.and_then(|status| u16::try_from(status).ok()),
            arrived: self.optional(failure.arrived)?,
            request_id: failure.request_id.as_deref().map(str::to_owned),
            usage: failure.usage,
            rate_limits: to_owned_pairs(&failure.rate_limits),
            ..NewRequestFailure::new(evaluation, failure.request, failure.cause, failure.message)
        }))
    }
}

fn to_owned_pairs(pairs: &[(Cow<'_, str>, Cow<'_, str>)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| (name.clone().into_owned(), value.clone().into_owned())).collect()
}
