//! The examples of the specification of conversation state, each under its name there.

use crate::story;

use foldlog::ImportOptions;
use foldlog::conversation::{ConversationMessage, ConversationState, Role};
use foldlog_agent::events::PromptRenderings;
use foldlog_agent::provider::rendering::render_openai;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{ProviderAnswer, ProviderErrorKind};
use foldlog_agent::{EvaluateOptions, ProviderAdapter, ResumeFrom, UserMessage};
use serde_json::{Value, json};
use story::{Desk, Script, limits};

fn options<'a>(evaluation: &str) -> EvaluateOptions<'a> {
    EvaluateOptions { evaluation_id: Some(evaluation.to_owned()), ..EvaluateOptions::default() }
}

fn state(desk: &Desk, evaluation: &str) -> ConversationState {
    desk.session().conversation().read(evaluation).unwrap().unwrap().state().unwrap()
}

/// Two turns: one with two calls, whose arguments no encoder would write this way, and an answer.
fn evaluated() -> (Desk, ConversationState) {
    let desk = Desk::new();
    let calls = [("c1", "look", "{ \"text\" :\"a\"}"), ("c2", "add", "{\"text\":\"\\u0062\"}")];
    let with_payload = |reply| match reply {
        ScriptedReply::Answer(answer) => {
            let payload = Some(json!({ "id": "r1", "nested": [null, { "é": 1.5 }] }));
            ScriptedReply::Answer(ProviderAnswer { payload, ..answer })
        }
        other => other,
    };
    let replies = vec![with_payload(ScriptedReply::calls(calls)), ScriptedReply::text("done")];
    let adapter = ProviderAdapter::new(ScriptedProvider::new(replies)).with_limits(limits());
    adapter.evaluate(&desk.prompt(), &desk.state, options("one")).unwrap();
    let state = state(&desk, "one");
    (desk, state)
}

/// "ConversationMessage", "Serialization Considerations": four roles, seven fields, and times with
/// their zone.
#[test]
fn conversation_message() {
    let (_desk, state) = evaluated();
    let json = serde_json::to_value(&state.turns[0].tool_messages[1]).unwrap();
    let fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["content", "created_at", "message_id", "name", "role", "tool_call_id"]);
    assert_eq!(
        (&json["role"], &json["name"], &json["tool_call_id"]),
        (&"tool".into(), &"add".into(), &"c2".into())
    );
    let time = json["created_at"].as_str().unwrap();
    let parsed: chrono::DateTime<chrono::FixedOffset> = time.parse().unwrap();
    assert_eq!(parsed, state.turns[0].tool_messages[1].created_at);
    assert!(time.starts_with("2026-01-02T") && time.ends_with('Z'), "{time}");
    let asks = serde_json::to_value(&state.turns[0].assistant_message).unwrap();
    assert_eq!(asks["tool_calls"].as_array().unwrap().len(), 2);
    for (role, name) in
        [(Role::System, "system"), (Role::User, "user"), (Role::Assistant, "assistant"), (Role::Tool, "tool")]
    {
        let message = ConversationMessage::new(role, "é");
        let json = serde_json::to_value(&message).unwrap();
        assert_eq!(json["role"], name);
        assert_eq!(serde_json::from_value::<ConversationMessage>(json).unwrap(), message);
    }
}

/// "ToolCallRecord", "ConversationTurn": arguments stay as they arrived, the provider's payload is
/// any JSON, turns are counted from 1.
#[test]
fn tool_call_record_and_conversation_turn() {
    let (_desk, state) = evaluated();
    let calls = &state.turns[0].assistant_message.tool_calls;
    assert_eq!(calls[0].arguments, "{ \"text\" :\"a\"}");
    assert_eq!(calls[1].arguments, "{\"text\":\"\\u0062\"}");
    assert_eq!(state.turns[0].provider_payload, Some(json!({ "id": "r1", "nested": [null, { "é": 1.5 }] })));
    assert_eq!(state.turns.iter().map(|turn| turn.turn_number).collect::<Vec<_>>(), [1, 2]);
    assert!(state.turns.iter().all(|turn| turn.evaluation_id == "one"));
}

/// "ConversationState", "Slice Registration": one current conversation for each evaluation, which
/// converts to JSON and back.
#[test]
fn conversation_state() {
    let (desk, first) = evaluated();
    assert_eq!((first.prompt_ns.as_str(), first.prompt_key.as_str()), ("story", "page"));
    assert_eq!(first.system_message.role, Role::System);
    let json = serde_json::to_string(&first).unwrap();
    assert_eq!(serde_json::from_str::<ConversationState>(&json).unwrap(), first);
    let script = Script::new(vec![("another", vec![])]);
    script.adapter().evaluate(&desk.prompt(), &desk.state, options("two")).unwrap();
    assert_eq!(state(&desk, "one"), first, "another evaluation has a conversation of its own");
    assert_eq!(state(&desk, "two").turns.len(), 1);
    assert_eq!(desk.session().conversation().evaluations(), ["one", "two"]);
}

/// "ConversationState": an imported state is the same state, ids and times included, by an export
/// or by `resume_from`.
#[test]
fn an_imported_conversation_state_keeps_its_ids_and_times() {
    let (desk, state) = evaluated();
    let types = story::types();
    let export = desk.session().log().export().unwrap();
    let elsewhere = Desk::new();
    let imported = elsewhere.store().import(&export, &types, ImportOptions::default()).unwrap();
    let imported = Desk { id: imported.id(), state: story::state_of(imported), ..elsewhere };
    assert_eq!(self::state(&imported, "one"), state);
    let again = imported.session().log().export().unwrap();
    let conversations = |export: &foldlog::Export| -> Vec<_> {
        export
            .slices
            .iter()
            .filter(|slice| slice.slice_type.ends_with("ConversationState"))
            .cloned()
            .collect()
    };
    assert_eq!(conversations(&again), conversations(&export));

    let mut resumed = Desk::new();
    let from = ResumeFrom::Conversation(Box::new(state.clone()));
    let say = vec![UserMessage { id: "1".to_owned(), text: "And then?".to_owned() }];
    let options = EvaluateOptions { resume_from: from, messages: say, ..EvaluateOptions::default() };
    let adapter = ProviderAdapter::new(ScriptedProvider::new(vec![ScriptedReply::text("the end")]));
    adapter.evaluate(&resumed.prompt(), &resumed.state, options).unwrap();
    resumed.reopen();
    let after = self::state(&resumed, "one");
    let begin = ConversationState { turns: after.turns[..2].to_vec(), ..after.clone() };
    assert_eq!((begin, after.turns.len()), (state, 3));
}

/// "Message Reconstruction": the messages of `_state_to_messages`, field for field. Without calls
/// there is no `tool_calls`.
#[test]
fn state_to_messages() {
    let (desk, _) = evaluated();
    let sent = desk.session().conversation().read("one").unwrap().unwrap().sent_messages();
    let messages: Value = serde_json::from_str(&render_openai(&sent)).unwrap();
    let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let expected = json!([
        { "role": "system", "content": sent[0].content },
        { "role": "assistant", "content": null, "tool_calls": [
            call("c1", "look", "{ \"text\" :\"a\"}"),
            call("c2", "add", "{\"text\":\"\\u0062\"}"),
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": "saw a" },
        { "role": "tool", "tool_call_id": "c2", "content": "added b" },
        { "role": "assistant", "content": "done" },
    ]);
    assert_eq!(messages, expected);
}

/// "Resume Behavior": a resume of the same prompt renders nothing, and its first request is the one
/// after the last turn.
#[test]
fn resume_behavior() {
    let mut desk = Desk::new();
    let renderings = |desk: &Desk| desk.session().log().slice::<PromptRenderings>().unwrap().len();
    let cut = vec![
        ScriptedReply::calls([("c1", "add", "{\"text\":\"x\"}")]),
        ScriptedReply::fail(ProviderErrorKind::BadRequest, "the process ends here"),
    ];
    let adapter = ProviderAdapter::new(ScriptedProvider::new(cut)).with_limits(limits());
    adapter.evaluate(&desk.prompt(), &desk.state, options("one")).unwrap_err();
    let before = state(&desk, "one");
    assert_eq!((before.turns.len(), renderings(&desk)), (1, 1));
    desk.reopen();
    let resumed = ProviderAdapter::new(ScriptedProvider::new(vec![ScriptedReply::text("done")]));
    resumed.evaluate(&desk.prompt(), &desk.state, options("one")).unwrap();
    assert_eq!(renderings(&desk), 1, "the recorded system message is sent again");
    let [request] = &resumed.provider().seen_requests()[..] else { panic!("one request") };
    let roles: Vec<Role> = request.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::Assistant, Role::Tool]);
    let after = state(&desk, "one");
    assert_eq!((&after.turns[..1], after.turns.len()), (&before.turns[..], 2), "no turn is written anew");
}
