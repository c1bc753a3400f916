//! The same prompt, tools and model answers, through a host's provider and through the program: the
//! logs agree.

use std::sync::Arc;

use foldlog::conversation::{ConversationMessage, TokenUsage};
use foldlog::filesystem::{Filesystem, InMemoryFilesystem};
use foldlog::inspect::{LedgerEntry, LogReader};
use foldlog::testkit::runs_equivalent;
use foldlog::{Error, ExecutionState, ResourceRegistry};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::events::PromptExecutions;
use foldlog_agent::provider::ProviderAnswer;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{PromptResponse, ProviderAdapter};
use serde_json::{Value, json};

use super::world::{EVALUATION, Host, Line, World, asking, prompt};

/// The model's output in both cases: a text, or a call by name and arguments.
enum Says {
    Call(&'static str, Value),
    Text(&'static str),
}

fn conversation() -> Vec<Says> {
    vec![
        Says::Call("add", json!({"text": "one"})),
        Says::Call("add", json!({"text": "break"})),
        Says::Call("weather", json!({"city": "Oslo"})),
        Says::Call("add", json!({"text": "two"})),
        Says::Call("weather", json!({"city": "Nowhere"})),
        Says::Call("add", json!({"text": "panic"})),
        Says::Text("It is written."),
    ]
}

/// The tokens of each answer.
const USED: (u64, u64) = (100, 7);

fn provider() -> ProviderAdapter<ScriptedProvider> {
    let reply = |(number, says): (usize, Says)| {
        let id = format!("toolu_{}", number + 1);
        let reply = match says {
            Says::Call(name, input) => {
                ScriptedReply::calls([(id.as_str(), name, input.to_string().as_str())])
            }
            Says::Text(text) => ScriptedReply::text(text),
        };
        match reply {
            ScriptedReply::Answer(answer) => ScriptedReply::Answer(ProviderAnswer {
                usage: Some(TokenUsage { input: USED.0, output: USED.1, ..TokenUsage::default() }),
                ..answer
            }),
            failure => failure,
        }
    };
    ProviderAdapter::new(ScriptedProvider::new(conversation().into_iter().enumerate().map(reply)))
}

fn program() -> Value {
    let said = conversation();
    let answers = said.len() as u64;
    let mut steps = vec![json!({"turn": true})];
    steps.extend(said.into_iter().map(|says| match says {
        Says::Call(name, input) => json!({"tool": name, "input": input}),
        Says::Text(text) => json!({"text": text}),
    }));
    let usage = json!({"input_tokens": USED.0 * answers, "output_tokens": USED.1 * answers});
    steps.push(json!({"result": "It is written.", "usage": usage}));
    json!(steps)
}

/// The results of a run, without necessary differences: times, ids of messages, and the prefix of
/// the program's names of tools.
#[derive(Debug, PartialEq)]
struct Left {
    text: String,
    output: Option<String>,
    usage: TokenUsage,
    unmetered: u64,
    messages: Vec<Value>,
    calls: Vec<Value>,
    page: Vec<String>,
    file: String,
    executed: (u64, u64, u64, u64),
}

fn message(one: ConversationMessage) -> Value {
    let calls: Vec<Value> = one
        .tool_calls
        .iter()
        .map(|call| {
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            json!([call.call_id, call.name.trim_start_matches("mcp__wink__"), arguments])
        })
        .collect();
    let text = one.content.filter(|text| !text.is_empty());
    json!([format!("{:?}", one.role), text, calls, one.tool_call_id, one.name, one.is_error])
}

fn call(entry: LedgerEntry) -> Value {
    json!([entry.tool, entry.call_id, entry.outcome.name(), entry.cause.map(|cause| cause.name().to_owned())])
}

/// Returns a run over files in memory: captures of a directory contain times of its files, which
/// differ.
fn over_memory(host: &Host) -> ExecutionState {
    let files = Arc::new(InMemoryFilesystem::new());
    ExecutionState::new(
        host.session().clone(),
        ResourceRegistry::builder().filesystem(files).build().unwrap(),
    )
}

fn left_by(world: &World, host: &Host, state: &ExecutionState, response: PromptResponse<String>) -> Left {
    let session = host.session();
    let messages = session.conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
    let executed = session.log().slice::<PromptExecutions>().unwrap().iter().next().unwrap().unwrap();
    let executed = (executed.requests, executed.tool_calls, executed.input_tokens, executed.output_tokens);
    let ledger = LogReader::open(world.dir()).unwrap().ledger().unwrap();
    let file = files(state).read("page").unwrap();
    Left {
        text: response.text,
        output: response.output,
        usage: response.usage,
        unmetered: response.unmetered,
        messages: messages.into_iter().map(message).collect(),
        calls: ledger.into_iter().map(call).collect(),
        page: host.page(),
        file: String::from_utf8(file).unwrap(),
        executed,
    }
}

fn files(state: &ExecutionState) -> Arc<dyn Filesystem> {
    state.resources().get::<dyn Filesystem>().unwrap()
}

#[test]
fn a_provider_and_the_program_leave_the_same_behind() {
    let (by_provider, by_program) = (World::new(&json!([])), World::new(&program()));
    by_provider.run_unreplayed(|one| {
        let state = over_memory(one);
        let response = provider().evaluate(&prompt(), &state, asking("Write.")).unwrap();
        let expected = left_by(&by_provider, one, &state, response);
        by_program.run_unreplayed(|other| {
            let other_state = over_memory(other);
            let response =
                StatefulAdapter::evaluate(&other.adapter(), &prompt(), &other_state, asking("Write."))
                    .unwrap();
            assert_eq!(left_by(&by_program, other, &other_state, response), expected);
            let after = state.snapshot(None).unwrap();
            let same = || runs_equivalent(&state, &after, &other_state, &other_state.snapshot(None).unwrap());
            same().unwrap();
            // The comparison detects a difference.
            files(&other_state).write("page", b"one\ntwo\nthree\n").unwrap();
            assert!(matches!(same(), Err(Error::SnapshotMismatch(reason)) if reason == "a resource differs"));
            files(&other_state).write("page", b"one\ntwo\n").unwrap();
            same().unwrap();
            other.session().dispatch(Line { text: "three".to_owned() }).unwrap();
            assert!(
                matches!(same(), Err(Error::SnapshotMismatch(reason)) if reason == "slice `page` differs")
            );
        });
        assert_eq!(
            (expected.page, expected.file.as_str()),
            (vec!["one".to_owned(), "two".to_owned()], "one\ntwo\n")
        );
        assert_eq!(expected.calls.len(), 6);
    });
}
