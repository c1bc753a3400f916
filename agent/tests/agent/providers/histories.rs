//! Histories that providers refuse. The servers of these tests refuse them too, by independent
//! rules, and accept every rendered history.

use foldlog::conversation::{ContentBlocks, ConversationMessage, Role, ToolCallRecord};
use foldlog_agent::pairing::{MessageFormat, repair, validate};
use foldlog_agent::provider::{
    LlmConfig, PreparedRequest, Provider, ProviderErrorKind, ProviderRequest, SendOptions,
};
use serde_json::{Value, json};

use super::asking::{BOTH, Which, ask_with, result_of};
use super::server::Server;
use crate::rules::{self, Protocol};

fn says(role: Role, text: &str) -> ConversationMessage {
    ConversationMessage::new(role, text)
}

fn call(id: &str) -> ToolCallRecord {
    ToolCallRecord { call_id: id.into(), name: "search".into(), arguments: "{}".into() }
}

fn asks(ids: &[&str]) -> ConversationMessage {
    ConversationMessage {
        content: None,
        tool_calls: ids.iter().map(|id| call(id)).collect(),
        ..says(Role::Assistant, "")
    }
}

fn send(which: Which, messages: &[ConversationMessage]) -> Option<ProviderErrorKind> {
    let server = Server::start(move |_, _| which.answers(false, "ok", &[]));
    ask_with(&*which.provider(&server), messages, false, SendOptions::default())
        .outcome
        .err()
        .map(|error| error.kind)
}

/// Other tests rely on these servers to refuse a call without its result and a result without its
/// call.
#[test]
fn the_servers_refuse_what_the_real_ones_refuse() {
    let user = says(Role::User, "go");
    let refused = Some(ProviderErrorKind::BadRequest);
    for which in BOTH {
        let unanswered = [user.clone(), asks(&["a", "b"]), result_of(&call("a"), "x")];
        let interrupted = [user.clone(), asks(&["a"]), user.clone(), result_of(&call("a"), "x")];
        let orphan = [user.clone(), result_of(&call("a"), "x")];
        let twice = [user.clone(), asks(&["a"]), result_of(&call("a"), "x"), result_of(&call("a"), "y")];
        for history in [&unanswered[..], &interrupted, &orphan, &twice] {
            assert_eq!(send(which, history), refused, "{which:?} {history:?}");
        }
        let repaired = [unanswered.as_slice(), &[result_of(&call("b"), "y")]].concat();
        assert_eq!(send(which, &repaired), None);
    }
    assert_eq!(send(Which::OpenAi, &[]), refused, "no message");
}

/// Covers repeated ids, missing contents, and roles that do not alternate.
#[test]
fn what_is_rendered_passes_the_servers() {
    let (user, system) = (says(Role::User, "go"), says(Role::System, "Search."));
    let mut failed = result_of(&call("a"), "");
    failed.is_error = true;
    let nothing = ConversationMessage { content: None, ..says(Role::Assistant, "") };
    let histories: [Vec<ConversationMessage>; 7] = [
        vec![system.clone()],
        vec![user.clone(), user.clone(), asks(&["a"]), failed, user.clone()],
        vec![user.clone(), asks(&["a", "a"]), result_of(&call("a"), "1"), result_of(&call("a"), " ")],
        vec![
            user.clone(),
            asks(&["a"]),
            result_of(&call("a"), "1"),
            asks(&["a", "a_2"]),
            result_of(&call("a"), "2"),
            result_of(&call("a_2"), "3"),
        ],
        vec![user.clone(), nothing, says(Role::User, " "), system, user.clone()],
        vec![
            asks(&[""]),
            result_of(&call(""), "1"),
            says(Role::Assistant, "so "),
            says(Role::Assistant, "what \n"),
        ],
        vec![user, asks(&["b.1", "b_1"]), result_of(&call("b_1"), "2"), result_of(&call("b.1"), "1")],
    ];
    for which in BOTH {
        for history in &histories {
            assert_eq!(send(which, history), None, "{which:?} {history:?}");
        }
    }
}

/// Draws numbers that are the same in every run.
struct Drawn(u64);

impl Drawn {
    fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        &choices[(self.0 >> 33) as usize % choices.len()]
    }

    /// Draws a message: mostly a valid one, with every possible fault mixed in.
    fn message(&mut self, before: &[ConversationMessage]) -> ConversationMessage {
        let roles = [Role::User, Role::Assistant, Role::Assistant, Role::Tool, Role::Tool, Role::System];
        let texts = [Some("said"), Some("said \n"), Some(""), Some(" "), None];
        let ids = ["a", "a", "b", "b.1", "b_1", "", "x123456789x123456789x123456789x123456789x123456789"];
        let role = *self.of(&roles);
        let mut message = says(role, "");
        message.content = self.of(&texts).map(str::to_owned);
        message.is_error = *self.of(&[false, false, true]);
        if role == Role::Tool {
            let calls: Vec<_> = before.iter().flat_map(|message| &message.tool_calls).collect();
            let id = match calls.last() {
                Some(_) if *self.of(&[true, true, true, false]) => self.of(&calls).call_id.clone(),
                _ => (*self.of(&ids)).to_owned(),
            };
            message.tool_call_id = Some(id);
        }
        if role == Role::Assistant {
            for _ in 0..*self.of(&[0, 1, 1, 2, 3]) {
                let id: &str = self.of::<&str>(&ids);
                let mut made = call(id);
                made.name = (*self.of(&["search", "no.such", ""])).to_owned();
                made.arguments = (*self.of(&["{}", "{\"q\":1}", "[", ""])).to_owned();
                message.tool_calls.push(made);
            }
        }
        if role != Role::Tool && *self.of(&[true, false, false]) {
            let format = *self.of(&["openai", "anthropic", "other"]);
            let own: Vec<_> = message
                .tool_calls
                .iter()
                .map(|call| json!({ "type": "tool_use", "id": call.call_id, "name": call.name, "input": {} }))
                .collect();
            let text = json!({ "type": "text", "text": self.of(&["in a block", " "]) });
            let blocks = if *self.of(&[true, false]) { [vec![text], own].concat() } else { own };
            message.blocks =
                Some(ContentBlocks { format: format.into(), json: Value::from(blocks).to_string() });
        }
        message
    }
}

/// Returns the rule that a request with these messages breaks.
fn refused(which: Which, provider: &dyn Provider, messages: &[ConversationMessage]) -> Option<String> {
    let config = LlmConfig::default();
    let request = ProviderRequest { messages, tools: &[], output: None, config: &config };
    let body = serde_json::from_slice(&provider.prepare(&request).unwrap().body).unwrap();
    rules::broken(if which == Which::OpenAi { Protocol::OpenAi } else { Protocol::Anthropic }, &body)
}

/// The rendered form must satisfy independent rules for every history that the engine's validator
/// accepts or its repair produces.
#[test]
fn what_the_validator_accepts_or_repairs_passes_rules_written_apart_from_it() {
    let mut drawn = Drawn(23);
    let (mut accepted, mut repaired) = (0, 0);
    for which in BOTH {
        let server = Server::start(move |_, _| which.answers(false, "ok", &[]));
        let provider = which.provider(&server);
        let format = if which == Which::OpenAi { MessageFormat::OpenAi } else { MessageFormat::Anthropic };
        for _ in 0..4_000 {
            let mut history = vec![says(Role::User, "go")];
            for _ in 0..*drawn.of(&[0, 1, 2, 3, 4, 6, 9]) {
                let next = drawn.message(&history);
                history.push(next);
            }
            if validate(format, &history).is_ok() {
                accepted += 1;
                assert_eq!(refused(which, &*provider, &history), None, "accepted: {which:?} {history:#?}");
            }
            let sound = repair(format, &history);
            repaired += usize::from(!sound.changes.is_empty());
            let rule = refused(which, &*provider, &sound.messages);
            assert_eq!(rule, None, "repaired: {which:?} {history:#?}\n{:#?}", sound.messages);
        }
    }
    assert!(accepted > 500 && repaired > 2_000, "{accepted} accepted, {repaired} repaired");
}

/// Other tests rely on these servers to refuse repeated ids and empty contents, which the renderer
/// never sends.
#[test]
fn the_servers_refuse_repeated_ids_and_empty_contents() {
    let openai = |id: &str, content: Value| {
        let call = json!({ "id": "a", "type": "function", "function": { "name": "s", "arguments": "{}" } });
        let mut second = call.clone();
        second["id"] = id.into();
        let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "x" });
        json!({ "messages": [
            { "role": "user", "content": content },
            { "role": "assistant", "content": null, "tool_calls": [call, second] }, result("a"), result(id),
        ] })
    };
    let anthropic = |id: &str, content: Value| {
        let call = |id: &str| json!({ "type": "tool_use", "id": id, "name": "s", "input": {} });
        let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "x" });
        json!({ "max_tokens": 1, "messages": [
            { "role": "user", "content": content },
            { "role": "assistant", "content": [call("a"), call(id)] },
            { "role": "user", "content": [result("a"), result(id)] },
        ] })
    };
    let bodies = [
        (Which::OpenAi, openai("b", json!("go")), openai("a", json!("go")), openai("b", Value::Null)),
        (
            Which::Anthropic,
            anthropic("b", json!("go")),
            anthropic("a", json!("go")),
            anthropic("b", json!(" ")),
        ),
    ];
    for (which, sound, repeated, empty) in bodies {
        let server = Server::start(move |_, _| which.answers(false, "ok", &[]));
        let provider = which.provider(&server);
        let send = |body: &Value| {
            let (model, parameters, body) = ("m".to_owned(), Value::Null, body.to_string().into_bytes());
            let prepared = PreparedRequest { model, parameters, body, stream: false };
            provider.send(&prepared, &mut SendOptions::default()).err().map(|error| error.kind)
        };
        let refused = Some(ProviderErrorKind::BadRequest);
        assert_eq!(
            [send(&sound), send(&repeated), send(&empty)],
            [None, refused.clone(), refused],
            "{which:?}"
        );
    }
}
