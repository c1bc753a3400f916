//! Runs one script with either driver, and compares the records, the result and the shown texts.

use std::sync::{Arc, Mutex};

use foldlog::conversation::ToolCallRecord;
use foldlog::{ExecutionState, Idempotency, ResourceRegistry, Session, Store};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{
    CancelToken, Delta, ProviderAnswer, ProviderError, ProviderErrorKind, ThrottleDetails, ThrottleKind,
};
use foldlog_agent::{
    Budget, Deadline, EvaluateOptions, KeepLastTurns, LoopLimits, MarkdownSection, Prompt, PromptResponse,
    ProviderAdapter, ShortenOptions, UserMessage,
};
use foldlog_replay::assert_host_replays;

use super::story::{Ran, limits, prompt_of, tools, types};
use super::{single, slow, with_futures};

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct Verdict {
    good: bool,
}

/// The model's answers, and the options of its requests.
struct Scenario {
    name: &'static str,
    replies: Vec<ScriptedReply>,
    limits: LoopLimits,
    options: fn() -> EvaluateOptions<'static>,
    is_structured: bool,
}

fn plain() -> EvaluateOptions<'static> {
    let messages = vec![UserMessage { id: "task".to_owned(), text: "Write the page.".to_owned() }];
    EvaluateOptions { evaluation_id: Some("one".to_owned()), messages, ..EvaluateOptions::default() }
}

fn scenario(name: &'static str, replies: Vec<ScriptedReply>) -> Scenario {
    Scenario { name, replies, limits: limits(), options: plain, is_structured: false }
}

fn call(id: &str, name: &str, text: &str) -> ToolCallRecord {
    let arguments = serde_json::json!({ "text": text }).to_string();
    ToolCallRecord { call_id: id.to_owned(), name: name.to_owned(), arguments }
}

fn calls(calls: &[(&str, &str, &str)]) -> ScriptedReply {
    let calls = calls.iter().map(|(id, name, text)| call(id, name, text)).collect();
    ProviderAnswer { calls, content: Some("I call".to_owned()), ..ProviderAnswer::default() }.into()
}

fn text(text: &str) -> ScriptedReply {
    ScriptedReply::text(text)
}

fn overloaded() -> ScriptedReply {
    let details = ThrottleDetails {
        kind: ThrottleKind::Overloaded,
        retry_after: None,
        attempts: 1,
        retry_safe: true,
        provider_payload: None,
    };
    ProviderError::new(ProviderErrorKind::Throttled(details), "no capacity").into()
}

fn conversations() -> Vec<Scenario> {
    let cut = ProviderAnswer {
        calls: vec![call("a", "add", "x"), call("b", "add", "y")],
        last_call_incomplete: true,
        stop: Some("length".to_owned()),
        ..ProviderAnswer::default()
    };
    let paused =
        ProviderAnswer { content: Some("thinking".to_owned()), continues: true, ..ProviderAnswer::default() };
    let add = || calls(&[("a", "add", "x")]);
    let overflow = || ScriptedReply::fail(ProviderErrorKind::ContextOverflow, "too long");
    vec![
        scenario(
            "tools of every kind, alone and beside each other",
            vec![
                calls(&[("a", "look", "a"), ("a", "look", "b"), ("b", "add", "x")]),
                calls(&[("a", "break", "y"), ("b", "fly", "away"), ("c", "write", "y")]),
                calls(&[("a", "read", "aa"), ("b", "look", "b"), ("c", "read", ""), ("d", "write", "z")]),
                calls(&[("a", "fetch", "aaa"), ("b", "add", "z")]),
                text("It is done."),
            ],
        ),
        scenario("more calls than run beside each other", {
            let reads: Vec<(&str, &str, &str)> = vec![("a", "read", "aa"); 19];
            vec![calls(&reads), text("done")]
        }),
        scenario("an answer that is cut", vec![cut.into(), text("done")]),
        scenario(
            "failures that pass",
            vec![ScriptedReply::cut("half an "), overloaded(), add(), overloaded(), text("whole answer")],
        ),
        scenario("failures that do not pass", vec![overloaded(); 6]),
        scenario("a refusal", vec![add(), ScriptedReply::fail(ProviderErrorKind::Refused, "no")]),
        scenario(
            "an expansion",
            vec![
                calls(&[("a", "look", "a"), ("b", "more", "details"), ("c", "add", "x")]),
                add(),
                text("done"),
            ],
        ),
        scenario("an answer that goes on", vec![paused.into(), text("done")]),
        scenario("a question", vec![calls(&[("a", "ask", "x"), ("b", "add", "y"), ("c", "hand", "z")])]),
        Scenario {
            limits: LoopLimits { expansions: 1, ..limits() },
            ..scenario("too many expansions", vec![calls(&[("a", "more", "details")]); 3])
        },
        Scenario {
            limits: LoopLimits { calls_per_answer: 1, ..limits() },
            ..scenario("too many calls", vec![calls(&[("a", "add", "x"), ("b", "add", "y")]), text("done")])
        },
        Scenario {
            limits: LoopLimits { requests: 2, ..limits() },
            ..scenario("too many requests", vec![add(), add(), text("done")])
        },
        Scenario {
            is_structured: true,
            ..scenario(
                "an output that is refused",
                vec![text("no"), text(r#"{"good":1}"#), text(r#"{"good":true}"#)],
            )
        },
        Scenario { is_structured: true, ..scenario("no output", vec![text("no"); 4]) },
        Scenario {
            options: || {
                let shortener = KeepLastTurns::new(1);
                EvaluateOptions { shorten: Some(ShortenOptions::at_overflow(shortener)), ..plain() }
            },
            ..scenario("a conversation that is too long", vec![add(), add(), overflow(), text("done")])
        },
        scenario("one that nobody shortens", vec![add(), overflow()]),
        Scenario {
            options: || EvaluateOptions {
                budget: Some(Budget { max_total_tokens: Some(1), ..Budget::default() }),
                ..plain()
            },
            ..scenario("a budget that is used up", vec![calls(&[("a", "add", "x")]), text("done")])
        },
        Scenario {
            options: || {
                let cancel = CancelToken::new();
                cancel.cancel();
                EvaluateOptions { cancel, ..plain() }
            },
            ..scenario("one that is cancelled before it begins", vec![text("done")])
        },
        Scenario {
            options: || EvaluateOptions { deadline: Deadline::after(std::time::Duration::ZERO), ..plain() },
            ..scenario("one whose time is over", vec![text("done")])
        },
        Scenario {
            options: || EvaluateOptions { record: false, ..plain() },
            ..scenario(
                "one that is not recorded",
                vec![calls(&[("a", "look", "a"), ("b", "fly", "x")]), text("done")],
            )
        },
    ]
}

/// The parts of a conversation that a host sees.
#[derive(Debug, PartialEq)]
struct Seen {
    result: String,
    shown: Vec<String>,
    turns: usize,
}

fn told<O: std::fmt::Debug>(result: foldlog_agent::Result<PromptResponse<O>>) -> String {
    match result {
        Ok(PromptResponse { text, output, usage, evaluation_id, .. }) => {
            let evaluation_id = if evaluation_id == "one" { "one" } else { "another" };
            format!("{text} {output:?} {usage:?} {evaluation_id}")
        }
        Err(error) => error.to_string(),
    }
}

fn evaluate<O: Send + std::fmt::Debug + 'static>(
    scenario: &Scenario,
    prompt: Prompt<O>,
    state: &ExecutionState,
    is_async: bool,
) -> Seen {
    let provider = ScriptedProvider::new(scenario.replies.clone());
    let (shown, turns) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    let (showing, turning) = (shown.clone(), turns.clone());
    let on_delta = move |delta: Delta<'_>| showing.lock().unwrap().push(format!("{delta:?}"));
    let on_turn = move |_: &Session| {
        *turning.lock().unwrap() += 1;
        Ok(())
    };
    let options = EvaluateOptions {
        on_delta: Some(Box::new(on_delta)),
        on_turn: Some(Box::new(on_turn)),
        ..(scenario.options)()
    };
    let result = if is_async {
        let adapter = slow(provider, scenario.limits.clone());
        single().block_on(adapter.evaluate_async(&Arc::new(prompt), state, options))
    } else {
        let adapter = ProviderAdapter::new(provider).with_limits(scenario.limits.clone());
        adapter.evaluate(&prompt, state, options)
    };
    let (shown, turns) = (shown.lock().unwrap().clone(), *turns.lock().unwrap());
    let result = told(result).replace(&state.session().id().to_string(), "it");
    Seen { result, shown, turns }
}

fn hold(scenario: &Scenario, session: Session, is_async: bool) -> Seen {
    let state = ExecutionState::new(session, ResourceRegistry::builder().build().unwrap());
    let registry = with_futures(tools(&Ran::new(), Idempotency::Natural));
    if scenario.is_structured {
        let prompt = Prompt::<Verdict>::structured("story", "verdict")
            .with_section(MarkdownSection::new("task", "Judge."))
            .with_tools(registry);
        return evaluate(scenario, prompt, &state, is_async);
    }
    evaluate(scenario, prompt_of(registry), &state, is_async)
}

/// Replays each log with the other driver. A replay compares each record that a host would write
/// with the recorded one.
#[test]
fn either_driver_writes_what_the_other_one_writes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    for scenario in conversations() {
        let live = |is_async| {
            let session = store.create(&types()).unwrap();
            let dir = session.dir().to_owned();
            let seen = hold(&scenario, session.clone(), is_async);
            session.close().unwrap();
            (seen, dir)
        };
        let ((blocking, by_blocking), (future, by_future)) = (live(false), live(true));
        assert_eq!(future, blocking, "{}", scenario.name);
        // A replay has fewer details of a failure than the provider gave, but both drivers have the
        // same.
        let again = [(by_blocking, true), (by_future, false)].map(|(dir, is_async)| {
            let mut again = Vec::new();
            assert_host_replays(dir, &types(), |session| again.push(hold(&scenario, session, is_async)));
            again
        });
        assert_eq!(again[0], again[1], "{}", scenario.name);
    }
}
