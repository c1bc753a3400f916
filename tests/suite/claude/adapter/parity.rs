//! The same prompt, tools and answers of a model through a provider of the host and through the program: the log tells the same
//! story.

use std::fs;

use foldlog::audit::{LedgerEntry, LogReader};
use foldlog::conversation::{ConversationMessage, TokenUsage};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::events::PromptExecutions;
use foldlog_agent::provider::ProviderAnswer;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{PromptResponse, ProviderAdapter};
use serde_json::{Value, json};

use super::world::{EVALUATION, Host, World, asking, prompt};

/// What the model says, either way: a text, or a call by name and arguments.
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

/// Tokens that each answer used.
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

/// What is left of a run, without what has to differ: times, ids of messages, and the prefix of the program's names of tools.
#[derive(Debug, PartialEq)]
struct Left {
    text: String,
    output: Option<String>,
    usage: TokenUsage,
    unmetered: u64,
    messages: Vec<Value>,
    calls: Vec<Value>,
    page: Vec<String>,
    file: Option<String>,
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

fn evaluate(world: &World, run: impl Fn(&Host) -> PromptResponse<String>) -> Left {
    let (response, messages, page, executed) = world.run_unreplayed(|host| {
        let response = run(host);
        let session = host.session();
        let messages = session.conversation(EVALUATION).unwrap().unwrap().sent_messages();
        let executed = session.log::<PromptExecutions>().unwrap().iter().next().unwrap().unwrap();
        let executed =
            (executed.requests, executed.tool_calls, executed.input_tokens, executed.output_tokens);
        (response, messages, host.page(), executed)
    });
    let ledger = LogReader::open(world.dir()).unwrap().ledger().unwrap();
    Left {
        text: response.text,
        output: response.output,
        usage: response.usage,
        unmetered: response.unmetered,
        messages: messages.into_iter().map(message).collect(),
        calls: ledger.into_iter().map(call).collect(),
        page,
        file: fs::read_to_string(world.workspace().join("page")).ok(),
        executed,
    }
}

#[test]
fn a_provider_and_the_program_leave_the_same_behind() {
    let by_provider = World::new(&json!([]));
    let expected =
        evaluate(&by_provider, |host| provider().evaluate(&prompt(), &host.state, asking("Write.")).unwrap());
    let by_program = World::new(&program());
    let left = evaluate(&by_program, |host| {
        StatefulAdapter::evaluate(&host.adapter(), &prompt(), &host.state, asking("Write.")).unwrap()
    });
    assert_eq!(left, expected);
    assert_eq!(
        (expected.page, expected.file.as_deref()),
        (vec!["one".to_owned(), "two".to_owned()], Some("one\ntwo\n"))
    );
    assert_eq!(expected.calls.len(), 6);
}
