//! Histories that providers refuse: the servers of these tests refuse them too, by rules of their own, and what is
//! rendered here passes them.

use foldlog::conversation::{ConversationMessage, Role, ToolCallRecord};
use foldlog_agent::provider::{ProviderErrorKind, SendOptions};

use crate::asking::{BOTH, Which, ask_with, result_of};
use crate::server::Server;

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

/// Protects the tests that rely on these servers: a call without its result, and a result without its call, are refused.
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

/// Protects conversations that only look wrong: ids that repeat, contents that are missing, roles that do not alternate.
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
