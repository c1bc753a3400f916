//! What bounds an evaluation: calls of an answer, requests, tokens, the length of an answer, and what others ask it to wait.
#![allow(clippy::unwrap_used, clippy::panic)]

mod story;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldlog::conversation::Role;
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog_agent::provider::ProviderAnswer;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{Error, EvaluateOptions, LoopLimits, Prompt, ProviderAdapter};
use story::{Desk, Line, Script, limits};

const EVALUATION: &str = "one";

fn options<'a>() -> EvaluateOptions<'a> {
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), ..EvaluateOptions::default() }
}

fn replies(replies: Vec<ScriptedReply>) -> ProviderAdapter<ScriptedProvider> {
    ProviderAdapter::new(ScriptedProvider::new(replies)).with_limits(limits())
}

/// What the model reads of its calls.
fn shown(desk: &Desk) -> Vec<String> {
    let results = desk.sent(EVALUATION).into_iter().filter(|said| said.role == Role::Tool);
    results.map(|said| said.content.unwrap()).collect()
}

/// A model asked for any number of calls in one answer, and all of them ran.
#[test]
fn calls_beyond_the_limit_of_an_answer_are_skipped_and_the_model_reads_so() {
    let desk = Desk::new();
    let calls = vec![("a", "add", "1"), ("b", "look", "2"), ("c", "add", "3"), ("d", "look", "4")];
    let script = Script::new(vec![("one", calls), ("done", vec![])]);
    let few = LoopLimits { calls_per_answer: 2, ..limits() };
    script.adapter().with_limits(few).evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let shown = shown(&desk);
    assert_eq!(shown[..2], ["added 1", "saw 2"]);
    assert!(shown[2..].iter().all(|text| text.contains("may have 2 calls")), "{shown:?}");
    assert_eq!(desk.ran.lines(), ["add 1", "look 2"]);
}

/// A model that came to no end was asked for ever.
#[test]
fn requests_of_an_evaluation_are_counted_from_the_log_and_bounded() {
    let mut desk = Desk::new();
    let endless =
        || replies((0..9).map(|_| ScriptedReply::calls([("a", "look", "{\"text\":\"x\"}")])).collect());
    let of = |requests| LoopLimits { requests, ..limits() };
    let adapter = endless().with_limits(of(3));
    let error = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap_err();
    assert!(matches!(error, Error::TooManyRequests { max: 3 }), "{error}");
    assert_eq!(adapter.provider().requests(), 3);
    // Another process has what is left of a larger limit.
    desk.reopen();
    let adapter = endless().with_limits(of(5));
    let error = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap_err();
    assert!(matches!(error, Error::TooManyRequests { max: 5 }), "{error}");
    assert_eq!(adapter.provider().requests(), 2);
    // An evaluation that is complete and continued has all of them anew.
    let adapter = replies(vec![ScriptedReply::text("done")]);
    adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    let more = foldlog_agent::UserMessage { id: "m".to_owned(), text: "more".to_owned() };
    let more = EvaluateOptions { messages: vec![more], ..options() };
    let adapter = replies(vec![ScriptedReply::text("more")]).with_limits(of(1));
    assert_eq!(adapter.evaluate(&desk.prompt(), &desk.state, more).unwrap().text, "more");
}

fn cut(text: &str, stop: &str) -> ScriptedReply {
    ScriptedReply::Answer(ProviderAnswer {
        content: Some(text.to_owned()),
        stop: Some(stop.to_owned()),
        ..ProviderAnswer::default()
    })
}

/// A text that reached its greatest length was returned as if the model had ended it.
#[test]
fn a_text_that_was_cut_says_so_also_when_it_is_read_from_the_log() {
    for stop in ["length", "max_tokens", "model_context_window_exceeded"] {
        let desk = Desk::new();
        for adapter in [replies(vec![cut("half", stop)]), replies(vec![])] {
            let response = adapter.evaluate(&desk.prompt(), &desk.state, options()).unwrap();
            assert_eq!((response.text.as_str(), response.stop.as_deref()), ("half", Some(stop)));
            assert!(response.is_cut());
        }
    }
    let desk = Desk::new();
    let response =
        replies(vec![ScriptedReply::text("whole")]).evaluate(&desk.prompt(), &desk.state, options()).unwrap();
    assert_eq!((response.is_cut(), response.stop.as_deref()), (false, Some("stop")));
}

/// The beginning of a number is a number: a structured output that was cut could be taken for another one.
#[test]
fn a_structured_output_that_was_cut_is_refused_and_the_model_reads_why() {
    let desk = Desk::new();
    let prompt = Prompt::<u64>::structured("story", "number");
    let adapter = replies(vec![cut("12", "length"), cut("1234", "stop")]);
    let response = adapter.evaluate(&prompt, &desk.state, options()).unwrap();
    assert_eq!(response.output, Some(1234));
    let told = desk.sent(EVALUATION)[2].content.clone().unwrap();
    assert!(told.contains("greatest length"), "{told}");

    let desk = Desk::new();
    let never = LoopLimits { output_retries: 0, ..limits() };
    for adapter in [replies(vec![cut("12", "max_tokens")]), replies(vec![])] {
        let adapter = adapter.with_limits(never.clone());
        let error = adapter.evaluate(&prompt, &desk.state, options()).unwrap_err();
        assert!(
            matches!(&error, Error::OutputInvalid { reason, .. } if reason.contains("length")),
            "{error}"
        );
    }
}

/// Counts how many of its calls run at the same time.
#[derive(Clone, Default)]
struct Crowd {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Tool for Crowd {
    const NAME: &'static str = "crowd";
    type Parameters = Line;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, line: Line, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..1_000 {
            std::thread::yield_now();
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(ToolResult::ok(line.text, ()))
    }
}

/// Each call that only reads had a thread of its own, however many there were.
#[test]
fn no_more_than_eight_calls_run_at_the_same_time() {
    let (desk, crowd) = (Desk::new(), Crowd::default());
    let prompt = story::prompt_of(ToolRegistry::new().with(crowd.clone()));
    let calls: Vec<String> = (0..30).map(|number| format!("{{\"text\":\"{number}\"}}")).collect();
    let answer = ScriptedReply::calls(calls.iter().map(|call| ("a", "crowd", call.as_str())));
    replies(vec![answer, ScriptedReply::text("done")]).evaluate(&prompt, &desk.state, options()).unwrap();
    let expected: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    assert_eq!(shown(&desk), expected);
    let most = crowd.most.load(Ordering::SeqCst);
    assert!((1..=foldlog::tools::TOGETHER_MAX).contains(&most), "{most}");
}
