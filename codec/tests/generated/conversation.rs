//! Strategies for the records of conversations and of adapters' states.

use std::borrow::Cow;

use foldlog_codec::body::{
    AdapterState, AnswerBody, AnsweredCall, Blocks, CallOrigin, ConversationScope, Input, Original,
    PromptAccepted, PromptIdentity, Request, RequestFailure, Role, Shortened, ShortenedMessage, TokenUsage,
    Turn,
};
use foldlog_codec::{RecordKind, SequenceNumber};
use proptest::prelude::*;

use super::{lane, payload, text, unsigned, unsigned32};

fn words() -> impl Strategy<Value = Cow<'static, str>> {
    text().prop_map(Cow::from)
}

fn maybe() -> impl Strategy<Value = Option<Cow<'static, str>>> {
    prop::option::of(words())
}

fn sequence() -> impl Strategy<Value = SequenceNumber> {
    unsigned().prop_map(SequenceNumber::from)
}

fn scope() -> impl Strategy<Value = ConversationScope<'static>> {
    let state = prop::option::of((any::<[u8; 16]>(), any::<i64>()));
    let original = (any::<[u8; 16]>(), any::<i64>(), state).prop_map(|(id, time_us, state)| Original {
        id,
        time_us,
        state,
    });
    (words(), lane(), prop::option::of(original)).prop_map(|(evaluation, lane, original)| ConversationScope {
        evaluation,
        lane,
        original,
    })
}

fn role() -> impl Strategy<Value = Role> {
    prop::sample::select(Role::ALL)
}

fn blocks() -> impl Strategy<Value = Option<Blocks<'static>>> {
    prop::option::of((words(), payload()).prop_map(|(format, json)| Blocks { format, json }))
}

fn prompt() -> impl Strategy<Value = PromptIdentity<'static>> {
    (words(), words(), any::<[u8; 32]>()).prop_map(|(namespace, key, digest)| PromptIdentity {
        namespace,
        key,
        digest,
    })
}

fn usage() -> impl Strategy<Value = Option<TokenUsage>> {
    let tokens = || prop_oneof![Just(0), unsigned()];
    prop::option::of((tokens(), tokens(), tokens(), tokens(), tokens()).prop_map(
        |(input, output, cache_read, cache_write, reasoning)| TokenUsage {
            input,
            output,
            cache_read,
            cache_write,
            reasoning,
        },
    ))
}

fn rate_limits() -> impl Strategy<Value = Vec<(Cow<'static, str>, Cow<'static, str>)>> {
    prop::collection::vec((words(), words()), 0..3)
}

pub(crate) fn input() -> impl Strategy<Value = Input<'static>> {
    let payloads = [(); 2].map(|()| prop::option::of(payload()));
    let texts = [(); 3].map(|()| maybe());
    let origin = prop::option::of((unsigned(), unsigned32()));
    (scope(), role(), payloads, blocks(), texts, prop::option::of(prompt()), origin, any::<bool>()).prop_map(
        |(scope, role, [content, payload], blocks, [id, name, call_id], prompt, origin, is_error)| Input {
            scope,
            role,
            content,
            blocks,
            id,
            name,
            prompt,
            call_id,
            origin: origin.map(|(answer, ordinal)| CallOrigin::new(answer, ordinal)),
            is_error,
            payload,
        },
    )
}

fn failure() -> impl Strategy<Value = RequestFailure<'static>> {
    let said = (words(), words(), prop::option::of(unsigned32()), prop::option::of(payload()), maybe());
    (sequence(), said, usage(), rate_limits()).prop_map(
        |(request, (cause, message, status, arrived, request_id), usage, rate_limits)| RequestFailure {
            request,
            cause,
            message,
            status,
            arrived,
            request_id,
            usage,
            rate_limits,
        },
    )
}

pub(crate) fn request() -> impl Strategy<Value = Request<'static>> {
    let digest = || prop::option::of(any::<[u8; 32]>());
    let attempt = prop_oneof![Just(1), unsigned()];
    let parameters = prop::option::of(payload());
    (scope(), attempt, digest(), maybe(), parameters, digest(), prop::option::of(failure())).prop_map(
        |(scope, attempt, prompt, model, parameters, sent, failure)| Request {
            scope,
            attempt,
            prompt,
            model,
            parameters,
            sent,
            failure,
        },
    )
}

pub(crate) fn answer() -> impl Strategy<Value = AnswerBody<'static>> {
    let call = (words(), words(), payload(), any::<bool>())
        .prop_map(|(id, name, arguments, incomplete)| AnsweredCall { id, name, arguments, incomplete });
    let calls = prop::collection::vec(call, 0..18);
    let payloads = [(); 2].map(|()| prop::option::of(payload()));
    let texts = [(); 3].map(|()| maybe());
    let cost = (usage(), rate_limits());
    (scope(), prop::option::of(sequence()), payloads, calls, blocks(), texts, any::<bool>(), cost).prop_map(
        |(scope, request, [content, payload], calls, blocks, texts, continues, (usage, rate_limits))| {
            let [stop, model, request_id] = texts;
            AnswerBody {
                scope,
                request,
                content,
                calls,
                blocks,
                stop,
                continues,
                model,
                request_id,
                usage,
                rate_limits,
                payload,
            }
        },
    )
}

pub(crate) fn turn() -> impl Strategy<Value = Turn<'static>> {
    let list = || prop::collection::vec(sequence(), 0..20);
    (scope(), unsigned(), list(), sequence(), list(), any::<bool>()).prop_map(
        |(scope, number, inputs, answer, ends, complete)| Turn {
            scope,
            number,
            inputs,
            answer,
            ends,
            complete,
        },
    )
}

pub(crate) fn shortened() -> impl Strategy<Value = Shortened<'static>> {
    let message = (role(), payload()).prop_map(|(role, content)| ShortenedMessage { role, content });
    (scope(), sequence(), sequence(), prop::collection::vec(message, 0..4), words())
        .prop_map(|(scope, from, to, messages, reason)| Shortened { scope, from, to, messages, reason })
}

pub(crate) fn prompt_accepted() -> impl Strategy<Value = PromptAccepted<'static>> {
    (scope(), prompt(), prompt(), words(), words()).prop_map(|(scope, was, now, by, reason)| PromptAccepted {
        scope,
        was,
        now,
        by,
        reason,
    })
}

pub(crate) fn adapter_state() -> impl Strategy<Value = AdapterState<'static>> {
    let supersedes = prop::option::of(sequence());
    (scope(), words(), any::<bool>(), payload(), supersedes, maybe(), words()).prop_map(
        |(scope, adapter, resumable, state, supersedes, entry, occasion)| AdapterState {
            scope,
            adapter,
            resumable,
            state,
            supersedes,
            entry,
            occasion,
        },
    )
}

/// Draws one of these kinds, and the bytes of a body of that kind.
pub(super) fn body() -> impl Strategy<Value = (RecordKind, Vec<u8>)> {
    prop_oneof![
        input().prop_map(|body| (RecordKind::Input, body.encode())),
        request().prop_map(|body| (RecordKind::Request, body.encode())),
        answer().prop_map(|body| (RecordKind::Answer, body.encode())),
        turn().prop_map(|body| (RecordKind::Turn, body.encode())),
        shortened().prop_map(|body| (RecordKind::Shortened, body.encode())),
        prompt_accepted().prop_map(|body| (RecordKind::PromptAccepted, body.encode())),
        adapter_state().prop_map(|body| (RecordKind::AdapterState, body.encode())),
    ]
}
