//! Calls that need a person's approval: the run ends with the question, and continues once it is
//! answered.

use std::sync::Arc;
use std::time::Duration;

use foldlog::conversation::Role;
use foldlog::tools::{Question, Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{ExecutionState, FixedClock, PendingQuestion, Settlement, StoreOptions};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{Error, MarkdownSection, Prompt};
use foldlog_claude::{ClaudeAgentSDKAdapter, ProgramHome, RunOptions};
use serde_json::{Value, json};

use super::world::{Add, Host, Line, World, asking, native};

/// Returns an adapter in which `Write` asks.
fn asks(host: &Host) -> ClaudeAgentSDKAdapter {
    let asks = [("Write".to_owned(), Question::new("Write the page?"))].into();
    host.adapter().with_options(RunOptions { asks, ..native(&["Write"]) })
}

/// Evaluates, and returns the one question for which the run is suspended.
fn question<O>(host: &Host, evaluated: Result<O, Error>) -> PendingQuestion {
    match evaluated {
        Err(Error::Suspended { operations, calls }) => {
            let pending = host.session().calls().pending_questions().unwrap();
            assert_eq!((operations, calls.len()), (vec![pending[0].operation], 1));
            pending.into_iter().next().unwrap()
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("nothing asked"),
    }
}

fn writing(text: &str) -> Value {
    json!({"native": "Write", "input": {"text": text}, "write": {"page": text}, "mirror": true})
}

fn approve(host: &Host, asked: &PendingQuestion) {
    host.session().calls().settle(asked.operation, &Settlement::approved(asked.digest), "Ada", "").unwrap();
}

/// The program cannot run a call of an earlier run. The model is informed of the approval and calls
/// again: that call passes, and no other one.
#[test]
fn a_tool_of_the_programs_own_runs_once_for_each_approval() {
    let world = World::new(&json!([{"turn": true}, {"model": [
        {"text": "first", "calls": [writing("one")], "mirror": true},
        {"text": "$results", "calls": [writing("one")], "mirror": true},
        {"text": "third", "calls": [writing("one")], "mirror": true},
        {"text": "last: $results"},
    ]}]));
    world.run(|host| {
        let adapter = asks(host);
        let asked = question(host, host.ask_with(&adapter, "Go."));
        assert_eq!((asked.tool.as_str(), asked.question.as_str()), ("Write", "Write the page?"));
        assert_eq!(asked.arguments, r#"{"text":"one"}"#);
        let again = question(host, host.ask_with(&adapter, "Go."));
        assert_eq!(again, asked, "the question stays until somebody answers");
        approve(host, &asked);
        let more = question(host, host.ask_with(&adapter, "Go."));
        assert_ne!(more.operation, asked.operation, "an approval holds for one call");
        host.session()
            .calls()
            .settle(more.operation, &Settlement::failed().showing("No more."), "Ada", "")
            .unwrap();
        let last = host.ask_with(&adapter, "Go.").unwrap().text;
        assert!(last.starts_with("last: ") && last.contains("No more."), "{last}");
        let said = host.said();
        let told = |text: &str| said.iter().any(|(role, said)| *role == Role::Tool && said.contains(text));
        assert!(told("was approved") && told("No more."), "{said:?}");
        assert!(said.iter().any(|(role, said)| *role == Role::Assistant && said.contains("was approved")));
    });
    assert_eq!(world.file("page").as_deref(), Some("one"));
    let outcomes: Vec<String> = world.ledger().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["failed", "committed", "settled"]);
    assert_eq!(world.starts().len(), 3, "a program was started while a person was to answer");
}

/// A tool that advances the clock by an hour.
struct Wait(Arc<FixedClock>);

impl Tool for Wait {
    const NAME: &'static str = "wait";
    const DESCRIPTION: &'static str = "Lets an hour pass.";
    type Parameters = Value;
    type Output = ();

    fn call(&self, _: Value, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.advance_us(60 * 60 * 1_000_000);
        Ok(ToolResult::ok("an hour passed", ()))
    }
}

/// Once the model had been informed of an approval, it never expired.
#[test]
fn an_approval_that_expires_before_the_model_repeats_the_call_asks_again() {
    let waits = json!({"tool": "wait", "input": {}});
    let script = json!([{"turn": true}, {"model": [
        {"text": "first", "calls": [writing("one")], "mirror": true},
        {"text": "second", "calls": [waits, writing("one")], "mirror": true},
        {"text": "third", "calls": [writing("one")], "mirror": true},
        {"text": "last"},
    ]}]);
    let clock = Arc::new(FixedClock::new(1_800_000_000_000_000));
    let options = StoreOptions { clock: Arc::<FixedClock>::clone(&clock), ..StoreOptions::default() };
    let world = World::with_options(&script, options);
    world.run(|host| {
        let prompt: Prompt = Prompt::text("tests", "waiting")
            .with_section(MarkdownSection::new("task", "Write the page."))
            .with_tools(ToolRegistry::new().with(Wait(Arc::clone(&clock))));
        let resources = host.state.resources().clone();
        let state = ExecutionState::builder(host.session().clone(), resources)
            .clock(Arc::<FixedClock>::clone(&clock))
            .build();
        let adapter = asks(host);
        let evaluate = || adapter.evaluate(&prompt, &state, asking("Go.")).map(|response| response.text);
        let asked = question(host, evaluate());
        let within_an_hour = asked.asked_at + Duration::from_secs(60 * 60);
        let approval = Settlement::approved(asked.digest).until(within_an_hour);
        host.session().calls().settle(asked.operation, &approval, "Ada", "").unwrap();
        let again = question(host, evaluate());
        assert_ne!(again.operation, asked.operation);
        approve(host, &again);
        assert_eq!(evaluate().unwrap(), "last");
    });
    assert_eq!(world.file("page").as_deref(), Some("one"));
}

#[test]
fn a_call_that_is_refused_does_not_run_and_the_model_is_told_so() {
    let world = World::new(&json!([{"turn": true}, {"model": [
        {"text": "first", "calls": [writing("one")], "mirror": true}, {"text": "$results"},
    ]}]));
    world.run(|host| {
        let adapter = asks(host);
        let asked = question(host, host.ask_with(&adapter, "Go."));
        host.session()
            .calls()
            .settle(asked.operation, &Settlement::failed().showing("Not that."), "Ada", "")
            .unwrap();
        let text = host.ask_with(&adapter, "Go.").unwrap().text;
        assert!(text.ends_with("Not that."), "{text}");
    });
    assert_eq!(world.file("page"), None);
}

/// Adds a line after an approval.
struct Ask;

impl Tool for Ask {
    const NAME: &'static str = "ask";
    const DESCRIPTION: &'static str = "Adds a line, if somebody agrees.";
    type Parameters = Line;
    type Output = ();

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        match context.approval() {
            None => Err(ToolError::Ask(Question::new(format!("Add {}?", line.text)))),
            Some(approval) => {
                Add.call(line, context)?;
                Ok(ToolResult::ok(format!("added, as {} agreed", approval.by), ()))
            }
        }
    }
}

/// The approved call runs before the program starts, through a recovery or the evaluation itself.
/// The program receives its result in a rewritten transcript, or in the file in the host's
/// directory.
#[test]
fn a_tool_of_the_host_that_asks_runs_once_it_is_approved() {
    for (recovers, is_kept) in [(true, false), (false, true)] {
        let world = World::new(&json!([{"turn": true}, {"model": [
            {"text": "first", "calls": [{"tool": "ask", "input": {"text": "one"}}], "mirror": true},
            {"text": "$results"},
        ]}]));
        world.run(|host| {
            let prompt = Prompt::text("tests", "asking")
                .with_section(MarkdownSection::new("task", "Write the page."))
                .with_tools(ToolRegistry::new().with(Ask));
            let adapter = match is_kept {
                true => host.adapter().with_home(ProgramHome::Kept(world.stand_in.path("kept"))),
                false => host.adapter(),
            };
            let evaluate = || adapter.evaluate(&prompt, &host.state, asking("Go."));
            let asked = question(host, evaluate());
            assert_eq!(asked.question, "Add one?");
            approve(host, &asked);
            if recovers {
                assert_eq!(adapter.recover(&prompt, &host.state).unwrap().recovered.len(), 1);
                assert_eq!(host.page(), ["one"]);
            }
            let text = evaluate().unwrap().text;
            assert!(text.ends_with("added, as Ada agreed"), "{text}");
            assert_eq!(host.page(), ["one"]);
        });
        assert_eq!(world.ledger(), [("ask".to_owned(), "committed".to_owned())]);
        assert!(
            world.replies().is_empty(),
            "a call that waits for a person was answered: {:?}",
            world.replies()
        );
    }
}

/// A sub-agent ends with the run. Its call's fate is reported as the result of the call that
/// started it, and the next sub-agent's call passes.
#[test]
fn a_call_of_a_sub_agent_that_asks_ends_the_run_and_its_approval_holds_for_the_next_one() {
    let sub_agent = |id: &str| {
        let write = json!({"native": "Write", "input": {"text": "one"}, "write": {"page": "one"}});
        json!({"native": "Task", "input": {}, "id": id, "steps": [{"mirror": true}, write]})
    };
    let world = World::new(&json!([{"turn": true}, sub_agent("t1")]));
    world.run(|host| {
        let options = RunOptions {
            asks: [("Write".to_owned(), Question::new("Write the page?"))].into(),
            result_within: Duration::from_millis(100),
            ..native(&["Write", "Task"])
        };
        let adapter = host.adapter().with_options(options);
        let asked = question(host, host.ask_with(&adapter, "Go."));
        assert_eq!(question(host, host.ask_with(&adapter, "Go.")), asked);
        approve(host, &asked);
        let script =
            json!([{"turn": true}, {"text": "$results"}, sub_agent("t2"), {"text": "done"}, {"result": "done"}]);
        world.stand_in.play(&script);
        assert_eq!(host.ask_with(&adapter, "Go.").unwrap().text, "done");
        let said = host.said();
        let told = |text: &str| said.iter().any(|(role, said)| *role == Role::Assistant && said.contains(text));
        assert!(told("Begin another one") && told("Its call of `Write`") && told("was approved"), "{said:?}");
    });
    assert_eq!(world.file("page").as_deref(), Some("one"));
    let ledger = world.ledger();
    let outcomes: Vec<_> = ledger.iter().map(|(tool, outcome)| (tool.as_str(), outcome.as_str())).collect();
    assert_eq!(outcomes, [("Write", "failed"), ("Task", "failed"), ("Write", "committed")]);
    assert_eq!(world.starts().len(), 2);
}

/// The wait for a program that mirrors nothing is limited; the model then repeats a call that it
/// does not know.
#[test]
fn a_question_is_put_although_the_program_mirrors_nothing() {
    let world = World::new(&json!([{"turn": true}, {"native": "Write", "input": {"text": "one"}}]));
    world.run(|host| {
        let options = RunOptions {
            result_within: Duration::from_millis(100),
            asks: [("Write".to_owned(), Question::new("?"))].into(),
            ..native(&["Write"])
        };
        question(host, host.ask_with(&host.adapter().with_options(options), "Go."));
    });
}
