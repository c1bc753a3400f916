//! The rendered form of a conversation: each provider's message format, unique ids for all calls,
//! the provider's own contents byte for byte, and nothing that the provider refuses.

// The functions below are all tests, or called by nothing else.

use foldlog::conversation::{ContentBlocks, ConversationMessage, ConversationState, Role, ToolCallRecord};
use foldlog_agent::provider::rendering::{
    render_anthropic, render_anthropic_system, render_openai, render_openai_recorded,
};
use serde_json::{Value, json};

fn says(role: Role, text: &str) -> ConversationMessage {
    ConversationMessage::new(role, text)
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCallRecord {
    ToolCallRecord { call_id: id.into(), name: name.into(), arguments: arguments.into() }
}

fn asks(content: Option<&str>, calls: Vec<ToolCallRecord>) -> ConversationMessage {
    ConversationMessage {
        content: content.map(str::to_owned),
        tool_calls: calls,
        ..says(Role::Assistant, "")
    }
}

fn result(id: &str, text: &str) -> ConversationMessage {
    ConversationMessage {
        tool_call_id: Some(id.into()),
        name: Some("search".into()),
        ..says(Role::Tool, text)
    }
}

fn with_blocks(mut message: ConversationMessage, format: &str, json: &str) -> ConversationMessage {
    message.blocks = Some(ContentBlocks { format: format.into(), json: json.into() });
    message
}

fn openai(messages: &[ConversationMessage]) -> Value {
    serde_json::from_str(&render_openai(messages)).unwrap()
}

fn anthropic(messages: &[ConversationMessage]) -> Value {
    serde_json::from_str(&render_anthropic(messages)).unwrap()
}

/// Returns a prompt, an answer with a call and no text, its result, and an answer with a text and
/// no calls.
fn conversation() -> Vec<ConversationMessage> {
    vec![
        says(Role::System, "You search."),
        says(Role::User, "Où est-ce ?"),
        asks(None, vec![call("call_1", "search", "{ \"query\":\"l\\u00e0\" }")]),
        result("call_1", "ici"),
        asks(Some("C'est ici."), vec![]),
    ]
}

/// Specifications state OpenAI messages in this form: no empty list of calls, `null` contents, and
/// arguments as they arrived.
#[test]
fn openai_messages_have_exactly_the_specified_fields() {
    let expected = json!([
        { "role": "system", "content": "You search." },
        { "role": "user", "content": "Où est-ce ?" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "call_1", "type": "function",
              "function": { "name": "search", "arguments": "{ \"query\":\"l\\u00e0\" }" } },
        ] },
        { "role": "tool", "tool_call_id": "call_1", "content": "ici" },
        { "role": "assistant", "content": "C'est ici." },
    ]);
    assert_eq!(openai(&conversation()), expected);
}

/// Transcripts of imported conversations keep repeated ids and the names of tools.
#[test]
fn recorded_messages_keep_repeated_ids_and_names() {
    let mut messages = conversation();
    messages.extend([asks(None, vec![call("call_1", "search", "{}")]), result("call_1", "again")]);
    let recorded: Value = serde_json::from_str(&render_openai_recorded(&messages)).unwrap();
    assert_eq!(recorded[5]["tool_calls"][0]["id"], "call_1");
    assert_eq!(
        recorded[6],
        json!({ "role": "tool", "tool_call_id": "call_1", "name": "search", "content": "again" })
    );
    assert_eq!(recorded[2]["content"], Value::Null);
}

/// A provider refuses repeated ids, within one answer and across answers. A result must stay with
/// its own call.
#[test]
fn calls_that_share_an_id_get_ids_of_their_own_and_keep_their_results() {
    let messages = [
        says(Role::User, "go"),
        asks(None, vec![call("a", "first", "{}"), call("a", "second", "{}")]),
        result("a", "of the first"),
        result("a", "of the second"),
        asks(None, vec![call("a", "third", "{}"), call("a_2", "fourth", "{}")]),
        result("a_2", "of the fourth"),
        result("a", "of the third"),
    ];
    let sent = openai(&messages);
    let id = |message: usize, ordinal: usize| sent[message]["tool_calls"][ordinal]["id"].as_str().unwrap();
    let ids = [id(1, 0), id(1, 1), id(4, 0), id(4, 1)];
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((ids[0], distinct.len()), ("a", 4), "{ids:?}");
    let answered: Vec<_> = [2, 3, 5, 6].map(|at| sent[at]["tool_call_id"].as_str().unwrap()).into();
    assert_eq!(answered, [ids[0], ids[1], ids[3], ids[2]]);

    let blocks = anthropic(&messages);
    let order: Vec<_> =
        blocks[4]["content"].as_array().unwrap().iter().map(|b| b["content"].clone()).collect();
    assert_eq!(order, ["of the third", "of the fourth"], "results stand in the order of the calls");
    assert_eq!(render_openai(&messages), render_openai(&messages));
}

/// Anthropic requires alternating roles: results and the user's next text are one message, and so
/// are successive answers.
#[test]
fn anthropic_messages_alternate_and_begin_with_the_user() {
    let mut messages = conversation();
    messages.insert(4, says(Role::User, "And now?"));
    messages.push(asks(Some("Really. \n"), vec![]));
    assert_eq!(
        anthropic(&messages),
        json!([
            { "role": "user", "content": "Où est-ce ?" },
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "call_1", "name": "search", "input": { "query": "là" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "call_1", "content": "ici" },
                { "type": "text", "text": "And now?" },
            ] },
            { "role": "assistant", "content": [
                { "type": "text", "text": "C'est ici." },
                { "type": "text", "text": "Really." },
            ] },
        ])
    );
    assert!(render_anthropic(&messages).contains("\"input\":{ \"query\":\"l\\u00e0\" }"), "byte for byte");
    assert_eq!(render_anthropic_system(&messages).unwrap(), "\"You search.\"");

    let alone = [says(Role::System, "a"), says(Role::System, "b")];
    assert_eq!(render_anthropic_system(&alone).unwrap(), "\"a\\n\\nb\"");
    assert_eq!(anthropic(&alone)[0]["role"], "user");
    assert_eq!(
        anthropic(&messages[2..])[0]["role"],
        "user",
        "a shortened conversation begins with an answer"
    );
    assert_eq!(render_anthropic_system(&messages[1..]), None);
}

/// Anthropic refuses empty and blank texts, which failures without a text would cause.
#[test]
fn no_blank_text_is_sent_to_anthropic() {
    let mut failed = result("1", "");
    failed.is_error = true;
    let messages = [
        says(Role::User, "go"),
        asks(Some(" \n"), vec![call("1", "a", ""), call("2", "b", "not json"), call("3", "c", "[1]")]),
        failed,
        result("2", ""),
        result("3", "  "),
        asks(Some(""), vec![]),
        says(Role::User, " "),
    ];
    assert_eq!(
        anthropic(&messages),
        json!([
            { "role": "user", "content": "go" },
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "1", "name": "a", "input": {} },
                { "type": "tool_use", "id": "2", "name": "b", "input": { "invalid_arguments": "not json" } },
                { "type": "tool_use", "id": "3", "name": "c", "input": { "invalid_arguments": "[1]" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "1", "content": "The call failed.", "is_error": true },
                { "type": "tool_result", "tool_use_id": "2" },
                { "type": "tool_result", "tool_use_id": "3" },
            ] },
        ])
    );
}

/// A signature covers the bytes of thinking. A provider's own blocks return to it unchanged, and
/// are sent to another provider as text.
#[test]
fn blocks_go_back_to_their_provider_byte_for_byte() {
    let thinking = "[ {\"type\":\"thinking\", \"signature\":\"+/\\u003d\",\"thinking\":\"h\\u006dm\"},\n\
                    {\"type\":\"text\",\"text\":\"é\"}, {\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"s\",\"input\":{\"n\":1e2}}]";
    let answer = with_blocks(asks(Some("é"), vec![call("t", "s", "{\"n\":1e2}")]), "anthropic", thinking);
    let picture = "[{\"type\":\"text\",\"text\":\"see\"},{\"type\":\"image\",\"source\":{}},{\"type\":\"text\",\"text\":\"!\"}]";
    let messages = [with_blocks(says(Role::User, "see"), "anthropic", picture), answer, result("t", "done")];
    let sent = render_anthropic(&messages);
    assert!(sent.contains(&format!("\"content\":{thinking}")), "{sent}");
    assert!(sent.contains(&format!("\"content\":{picture}")), "{sent}");

    let reduced = openai(&messages);
    assert_eq!(reduced[0]["content"], "see\n[image]\n!");
    assert_eq!(reduced[1]["content"], "é");
    assert_eq!(reduced[1]["tool_calls"][0]["function"]["arguments"], "{\"n\":1e2}");

    let whole = "{\"role\":\"assistant\", \"content\":null,\"reasoning\":\"\\u0068m\",\"tool_calls\":[{\"id\":\"t\",\
                 \"type\":\"function\",\"sig\":1.50,\"function\":{\"name\":\"s\",\"arguments\":\"{}\"}}]}";
    let own = with_blocks(asks(None, vec![call("t", "s", "{}")]), "openai", whole);
    assert!(render_openai(std::slice::from_ref(&own)).contains(whole));
    let again = openai(&[own.clone(), result("t", ""), own]);
    assert_eq!((&again[2]["tool_calls"][0]["id"], &again[2]["reasoning"]), (&json!("t_2"), &json!("hm")));
    let broken = with_blocks(says(Role::User, "text"), "anthropic", "{no json");
    assert_eq!(anthropic(&[broken])[0]["content"], "text", "blocks that are no JSON");
}

/// A unique id within blocks is kept. Otherwise it is replaced in its block alone.
#[test]
fn an_id_within_blocks_yields_only_to_another_one_within_blocks() {
    let block = "[{\"type\":\"thinking\",\"thinking\":\"\\u0068m\",\"signature\":\"s\"},{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"s\",\"input\":{\"a\":1.50}}]";
    let own = || with_blocks(asks(None, vec![call("t", "s", "{\"a\":1.50}")]), "anthropic", block);
    let plain = asks(None, vec![call("t", "s", "{}")]);
    let messages =
        [says(Role::User, "go"), plain, result("t", "1"), own(), result("t", "2"), own(), result("t", "3")];
    let sent = anthropic(&messages);
    let ids: Vec<_> =
        [(1, 0), (3, 1), (5, 1)].map(|(at, block)| sent[at]["content"][block]["id"].clone()).into();
    assert_eq!(ids, ["t_2", "t", "t_3"].map(Value::from).to_vec().as_slice());
    let results: Vec<_> = [2, 4, 6].map(|at| sent[at]["content"][0]["tool_use_id"].clone()).into();
    assert_eq!(results, ids);
    let text = render_anthropic(&messages);
    assert_eq!(text.matches("\"thinking\":\"\\u0068m\",\"signature\":\"s\"").count(), 2, "{text}");
    assert_eq!(text.matches("\"input\":{\"a\":1.50}").count(), 2, "{text}");
}

/// Ids and names of calls from another provider are adapted if this one refuses them.
#[test]
fn ids_and_names_of_another_provider_are_made_fit() {
    let long = "x".repeat(60);
    let messages = [
        says(Role::User, "go"),
        asks(
            None,
            vec![
                call("functions.a:0", "multi_tool_use.parallel", "{}"),
                call("", "", "{}"),
                call(&long, "a", "{}"),
            ],
        ),
        result("functions.a:0", "1"),
        result("", "2"),
        result(&long, "3"),
    ];
    let sent = anthropic(&messages);
    assert_eq!(sent[1]["content"][0]["id"], "functions_a_0");
    assert_eq!(sent[1]["content"][0]["name"], "multi_tool_use_parallel");
    assert_eq!(sent[2]["content"][0]["tool_use_id"], "functions_a_0");
    let sent = openai(&messages);
    assert_eq!(sent[1]["tool_calls"][1]["id"], "call");
    assert_eq!(sent[1]["tool_calls"][1]["function"]["name"], "unnamed");
    assert!(sent[1]["tool_calls"][2]["id"].as_str().unwrap().len() <= 40);
    assert_eq!(sent[1]["tool_calls"][2]["id"], sent[4]["tool_call_id"]);
}

/// If a model once called a tool by an invalid name, the name is replaced within blocks too. Blocks
/// whose calls differ from the recorded ones are not sent.
#[test]
fn blocks_are_sent_with_names_that_the_provider_takes_and_with_the_recorded_calls() {
    let block = "[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"no.such\",\"input\":{\"a\":1.50}}]";
    let own = with_blocks(asks(Some("text"), vec![call("t", "no.such", "{\"a\":1.50}")]), "anthropic", block);
    let messages = [says(Role::User, "go"), own, result("t", "unknown")];
    assert_eq!(anthropic(&messages)[1]["content"][0]["name"], "no_such");
    assert!(render_anthropic(&messages).contains("\"input\":{\"a\":1.50}"));

    let more = with_blocks(asks(Some("text"), vec![]), "anthropic", block);
    assert_eq!(anthropic(&[says(Role::User, "go"), more])[1]["content"], "text");
}

/// The specification's `_state_to_messages`: the messages of a state without a session, in the
/// specified form.
#[test]
fn a_state_without_a_session_becomes_the_messages_of_the_specification() {
    let state = json!({
        "evaluation_id": "one", "prompt_ns": "demo", "prompt_key": "review",
        "system_message": { "role": "system", "content": "Review.", "created_at": "2026-01-01T12:00:00Z",
            "message_id": "00000000-0000-0000-0000-000000000001" },
        "turns": [{
            "turn_number": 1, "evaluation_id": "one", "created_at": "2026-01-01T12:00:01Z",
            "assistant_message": { "role": "assistant", "content": "I look.", "created_at": "2026-01-01T12:00:01Z",
                "message_id": "00000000-0000-0000-0000-000000000002",
                "tool_calls": [{ "call_id": "call_1", "name": "read", "arguments": "{ \"path\": \"a\" }" }] },
            "tool_messages": [{ "role": "tool", "content": "text", "tool_call_id": "call_1", "name": "read",
                "created_at": "2026-01-01T12:00:02Z", "message_id": "00000000-0000-0000-0000-000000000003" }],
        }, {
            "turn_number": 2, "evaluation_id": "one", "created_at": "2026-01-01T12:00:03Z",
            "assistant_message": { "role": "assistant", "content": "Fine.", "created_at": "2026-01-01T12:00:03Z",
                "message_id": "00000000-0000-0000-0000-000000000004" },
        }],
        "created_at": "2026-01-01T12:00:00Z", "state_id": "00000000-0000-0000-0000-000000000005",
    });
    let state: ConversationState = serde_json::from_value(state).unwrap();
    let sent: Value = serde_json::from_str(&render_openai(&state.messages())).unwrap();
    assert_eq!(
        sent,
        json!([
            { "role": "system", "content": "Review." },
            { "role": "assistant", "content": "I look.", "tool_calls": [{ "id": "call_1", "type": "function",
                "function": { "name": "read", "arguments": "{ \"path\": \"a\" }" } }] },
            { "role": "tool", "tool_call_id": "call_1", "content": "text" },
            { "role": "assistant", "content": "Fine." },
        ])
    );
}
