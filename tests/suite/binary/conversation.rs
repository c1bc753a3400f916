//! A conversation in the listings: each record is shown with its content, so that a person can
//! follow it line by line.

use std::collections::BTreeMap;

use foldlog::{RecordKind, Value};
use foldlog_codec::body::{
    AdapterState, AnswerBody, AnsweredCall, CallOrigin, ConversationScope, Input, Payload, PromptAccepted,
    PromptIdentity, Request, RequestFailure, Role, SessionOpening, Shortened, Turn,
};
use foldlog_tests::verbs::foldlog;
use uuid::Uuid;

use super::damaged::forge;

fn scope() -> ConversationScope<'static> {
    ConversationScope::new("review 7")
}

fn string(text: &str) -> Payload<'static> {
    Payload::new(Value::from(text).encode().leak())
}

/// Returns a conversation whose first request fails, with a call's result and every kind of
/// decision by a host.
fn records() -> Vec<(RecordKind, Vec<u8>)> {
    let opened = SessionOpening { session: Uuid::from_u128(9), seed: 1, tags: BTreeMap::new(), parent: None };
    let call = |id: &'static str| AnsweredCall {
        id: id.into(),
        name: "read_file".into(),
        arguments: string("{}"),
        incomplete: false,
    };
    let answer = AnswerBody {
        request: Some(4.into()),
        calls: vec![call("call_1")],
        stop: Some("tool_use".into()),
        ..AnswerBody::new(scope(), Some(string("I look.")))
    };
    let result = Input {
        call_id: Some("call_1".into()),
        origin: Some(CallOrigin { answer: 5.into(), ordinal: 0 }),
        ..Input::new(scope(), Role::Tool, string("the text"))
    };
    let failure = RequestFailure::new(2.into(), "overloaded", "the provider answered 529");
    let failed = Request { failure: Some(failure), ..Request::new(scope(), 1) };
    let turn = Turn {
        scope: scope(),
        number: 1,
        inputs: vec![1.into()],
        answer: 5.into(),
        ends: vec![6.into()],
        complete: false,
    };
    let prompt = || PromptIdentity { namespace: "agents".into(), key: "reviewer".into(), digest: [7; 32] };
    let accepted =
        PromptAccepted { scope: scope(), was: prompt(), now: prompt(), by: "ann".into(), reason: "".into() };
    let shortened =
        Shortened { scope: scope(), from: 1.into(), to: 7.into(), messages: vec![], reason: "".into() };
    let state = |resumable| AdapterState {
        scope: scope(),
        adapter: "claude".into(),
        resumable,
        state: Payload::new(&[0xc0]),
        supersedes: None,
        entry: None,
        occasion: "init".into(),
    };
    vec![
        (RecordKind::Opened, opened.encode()),
        (RecordKind::Input, Input::new(scope(), Role::User, string("Read it.")).encode()),
        (RecordKind::Request, Request::new(scope(), 1).encode()),
        (RecordKind::Request, failed.encode()),
        (RecordKind::Request, Request::new(scope(), 2).encode()),
        (RecordKind::Answer, answer.encode()),
        (RecordKind::Input, result.encode()),
        (RecordKind::Turn, turn.encode()),
        (RecordKind::Shortened, shortened.encode()),
        (RecordKind::PromptAccepted, accepted.encode()),
        (RecordKind::AdapterState, state(true).encode()),
        (RecordKind::AdapterState, state(false).encode()),
    ]
}

#[test]
fn each_record_of_a_conversation_is_named_by_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let session = directory.path().join("sessions").join(Uuid::from_u128(9).to_string());
    forge(&session, &records());
    let expected = [
        ("input", "user in review 7"),
        ("request", "attempt 1 in review 7"),
        ("request", "2 failed: overloaded in review 7"),
        ("request", "attempt 2 in review 7"),
        ("answer", "1 call, tool_use in review 7"),
        ("input", "tool call_1 in review 7"),
        ("turn", "turn 1 in review 7"),
        ("shortened", "1 to 7 in review 7"),
        ("prompt_accepted", "agents:reviewer by ann in review 7"),
        ("adapter_state", "claude init in review 7"),
        ("adapter_state", "claude init, not resumable in review 7"),
    ];
    let ran = foldlog(["show".into(), session.clone().into_os_string(), "--json".into()]);
    let values = serde_json::Deserializer::from_str(&ran.stdout).into_iter::<serde_json::Value>();
    let named: Vec<(String, String)> = values
        .map(|value| value.unwrap())
        .map(|value| [&value["kind"], &value["name"]].map(|text| text.as_str().unwrap().to_owned()).into())
        .collect();
    let named: Vec<(&str, &str)> = named.iter().map(|(kind, name)| (kind.as_str(), name.as_str())).collect();
    assert_eq!(named[1..], expected);

    for verb in ["show", "tail"] {
        let ran = foldlog([verb.into(), session.clone().into_os_string()]);
        let lines: Vec<&str> = ran.stdout.lines().filter(|line| line.ends_with("  live")).collect();
        assert!(lines.len() >= 10, "{}", ran.stdout);
        let ends: std::collections::BTreeSet<usize> = lines.iter().map(|line| line.chars().count()).collect();
        assert_eq!(ends.len(), 1, "the columns stay in line:\n{}", ran.stdout);
    }
}

/// Every kind must have a name, for people who look into the content of a log.
#[test]
fn stats_count_the_records_of_a_conversation_by_their_kinds() {
    let directory = tempfile::tempdir().unwrap();
    let session = directory.path().join("sessions").join(Uuid::from_u128(9).to_string());
    forge(&session, &records());
    let ran = foldlog(["stats".into(), session.into_os_string(), "--json".into()]);
    let stats: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let counted: BTreeMap<&str, u64> = stats["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| (kind["kind"].as_str().unwrap(), kind["frames"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("adapter_state", 2),
        ("answer", 1),
        ("input", 2),
        ("opened", 1),
        ("prompt_accepted", 1),
        ("request", 3),
        ("shortened", 1),
        ("turn", 1),
    ];
    assert_eq!(counted, BTreeMap::from(expected));
}
