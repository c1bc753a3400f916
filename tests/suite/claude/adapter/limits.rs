//! Deadlines, cancellation and budgets, and the threads from which an evaluation may be called.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::conversation::EntryContent;
use foldlog::tools::resources::BudgetTracker;
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::events::PromptExecutions;
use foldlog_agent::provider::CancelToken;
use foldlog_agent::{Budget, Deadline, Error, EvaluateOptions, EvaluationPhase};
use foldlog_claude::RunOptions;
use serde_json::json;

use super::world::{EVALUATION, World, asking, native, prompt};

/// The model's text for a call of `Write` that is open at the deadline.
const STOPPED: &str = "The run reached its deadline before this call ended. What it changed in the workspace was rolled back. Call the \
                       tool again if it is still needed.";

/// A deadline that passes during the test, but not before the program has reached its gate, even on
/// a slow machine.
pub(super) const SHORT: Duration = Duration::from_secs(4);

fn within(duration: Duration) -> EvaluateOptions<'static> {
    EvaluateOptions { deadline: Deadline::after(duration), ..asking("Go.") }
}

#[test]
fn a_deadline_that_has_passed_starts_no_program() {
    let world = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    world.run_unreplayed(|host| {
        let error = host.adapter().evaluate(&prompt(), &host.state, within(Duration::ZERO)).unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded { phase: EvaluationPhase::Deadline }), "{error:?}");
        assert!(error.to_string().starts_with("the deadline passed before the next step:"), "{error}");
        assert!(host.session().conversation().read(EVALUATION).unwrap().is_none());
    });
    assert!(world.starts().is_empty());
}

#[test]
fn a_run_is_interrupted_at_its_deadline_its_usage_is_told_and_it_is_resumed() {
    let world = World::new(&json!([
        {"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"text": "half"}, {"gate": "never"}, {"result": "never"},
    ]));
    world.run(|host| {
        let error = host.adapter().evaluate(&prompt(), &host.state, within(SHORT)).unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded { phase: EvaluationPhase::Request }), "{error:?}");
        assert!(error.to_string().contains("deadline"), "{error}");
        let conversation = host.session().conversation().read(EVALUATION).unwrap().unwrap();
        assert_eq!((conversation.usage().input, conversation.usage().output), (20, 20));
        assert_eq!(host.page(), ["one"]);
    });
    world.stand_in.play(&json!([{"turn": true}, {"text": "$history"}, {"result": "$history"}]));
    world.run_unreplayed(|host| {
        assert_eq!(host.ask("Go.").unwrap().text, "Go.|Your work was interrupted. Go on where you stopped.")
    });
    assert!(world.argument("--resume").is_some());
}

/// If a program ignores the interrupt, the wait for it is limited by the options.
#[test]
fn a_program_that_goes_on_behind_its_deadline_is_ended() {
    let world = World::new(&json!([{"turn": true}, {"text": "half"}, {"hold": true}]));
    world.run(|host| {
        let began = Instant::now();
        let adapter = host
            .adapter()
            .with_options(RunOptions { result_within: Duration::from_millis(200), ..native(&[]) });
        let error = adapter.evaluate(&prompt(), &host.state, within(SHORT)).unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    });
    let pid = world.starts()[0]["pid"].as_u64().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the program outlived its evaluation");
}

/// The call is open at the deadline, so its changes are rolled back. The program tells the model
/// that the user rejected the call, and so did the log and the resumed session.
#[test]
fn a_call_that_is_open_at_the_deadline_is_rolled_back() {
    let world = World::new(&json!([
        {"turn": true}, {"native": "Write", "input": {}, "write": {"page": "half"}, "gate": "never"}, {"result": "never"},
    ]));
    world.run(|host| {
        let adapter = host.adapter().with_options(native(&["Write"]));
        let error = adapter.evaluate(&prompt(), &host.state, within(SHORT)).unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded { phase: EvaluationPhase::Tool }), "{error:?}");
        assert_eq!(host.said().last().unwrap().1, STOPPED);
    });
    assert_eq!(world.file("page"), None);
    assert_eq!(world.ledger(), [("Write".to_owned(), "failed".to_owned())]);
    // The program tells the model that the user rejected the call. The resumed session tells the
    // actual outcome.
    world.stand_in.play(&json!([{"turn": true}, {"text": "$results"}, {"result": "$results"}]));
    world.run_unreplayed(|host| assert_eq!(host.ask("Go.").unwrap().text, format!("toolu_1: {STOPPED}")));
}

/// The replay ended differently, since the log did not record whether the deadline had passed.
#[test]
fn a_run_that_ends_well_behind_its_deadline_is_late_and_is_answered_from_the_log() {
    let world = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}, {"gate": "late"}]));
    let gate = world.stand_in.path("late");
    world.run(|host| {
        let options = within(SHORT);
        let deadline = options.deadline;
        let error = std::thread::scope(|scope| {
            let gate = &gate;
            scope.spawn(move || {
                std::thread::sleep(deadline.remaining() + Duration::from_millis(1));
                std::fs::write(gate, "").unwrap();
            });
            host.adapter().evaluate(&prompt(), &host.state, options).unwrap_err()
        });
        assert!(matches!(error, Error::DeadlineExceeded { phase: EvaluationPhase::Response }), "{error:?}");
        assert!(error.to_string().starts_with("the deadline passed while the answer was read:"), "{error}");
        assert_eq!(host.ask("Go.").unwrap().text, "ok");
    });
    assert_eq!(world.starts().len(), 1);
}

#[test]
fn a_cancelled_run_ends_soon_and_is_resumed() {
    let world = World::new(
        &json!([{"turn": true}, {"text": "half"}, {"touch": "begun"}, {"gate": "never"}, {"result": "never"}]),
    );
    let begun = world.stand_in.path("begun");
    world.run(|host| {
        let cancel = CancelToken::new();
        let options = EvaluateOptions { cancel: cancel.clone(), ..asking("Go.") };
        let error = std::thread::scope(|scope| {
            let begun = &begun;
            scope.spawn(move || {
                while !begun.exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                cancel.cancel();
            });
            host.adapter().evaluate(&prompt(), &host.state, options).unwrap_err()
        });
        assert!(matches!(error, Error::Cancelled), "{error:?}");
    });
    world.stand_in.play(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    world.run_unreplayed(|host| assert_eq!(host.ask("Go.").unwrap().text, "ok"));
}

/// The run could not be cancelled until the program had answered `initialize`, or its time was
/// over.
#[test]
fn a_run_whose_program_does_not_start_up_is_cancelled_soon() {
    let world = World::new(&json!([{"initialize": "never"}]));
    let started = world.stand_in.path("script.starts");
    world.run(|host| {
        let cancel = CancelToken::new();
        let options = EvaluateOptions { cancel: cancel.clone(), ..asking("Go.") };
        let (error, took) = std::thread::scope(|scope| {
            let started = &started;
            let cancelled = scope.spawn(move || {
                while !started.exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                cancel.cancel();
                Instant::now()
            });
            let error = host.adapter().evaluate(&prompt(), &host.state, options).unwrap_err();
            (error, cancelled.join().unwrap().elapsed())
        });
        assert!(matches!(error, Error::Cancelled), "{error:?}");
        // A second, plus delays of a busy machine; `initialize` may take a minute.
        assert!(took < Duration::from_secs(20), "{took:?}");
    });
    let pid = world.starts()[0]["pid"].as_u64().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the program outlived its evaluation");
    world.stand_in.play(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    world.run_unreplayed(|host| assert_eq!(host.ask("Go.").unwrap().text, "ok"));
}

/// The usage is that of the result, not of the answers before; a tracker is adjusted to it.
#[test]
fn what_the_result_says_is_recorded_and_counts_for_budget_and_tracker() {
    let world = World::new(&json!([
        {"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"text": "ok"},
        {"result": "ok", "usage": {"input_tokens": 1000, "output_tokens": 200, "cache_read_input_tokens": 30,
            "cache_creation_input_tokens": 4}},
    ]));
    world.run(|host| {
        let tracker = Arc::new(BudgetTracker::default());
        let options = EvaluateOptions { tracker: Some(Arc::clone(&tracker)), ..asking("Go.") };
        let response = host.adapter().evaluate(&prompt(), &host.state, options).unwrap();
        let usage = response.usage;
        assert_eq!((usage.input, usage.output, usage.cache_read, usage.cache_write), (1000, 200, 30, 4));
        assert_eq!(response.unmetered, 0);
        let spent = tracker.total();
        assert_eq!((spent.input_tokens, spent.output_tokens), (1034, 200));
        let conversation = host.session().conversation().read(EVALUATION).unwrap().unwrap();
        let answers: Vec<_> = conversation
            .entries()
            .iter()
            .filter_map(|entry| match &entry.content {
                EntryContent::Answer { usage, .. } => Some(*usage),
                _ => None,
            })
            .collect();
        assert_eq!(answers.len(), 2);
    });
}

/// If the program reported no difference, a resumed run seemed to cost nothing. Such a program
/// counts from zero in each process; one with a running sum also reports the difference.
#[test]
fn the_cost_of_a_resumed_run_is_its_own() {
    let said = |more: &[(&str, serde_json::Value)]| {
        let mut result = json!({"result": "ok", "total_cost_usd": 0.75});
        for (name, value) in more {
            result[*name] = value.clone();
        }
        json!([{"turn": true}, {"text": "ok"}, result])
    };
    let difference = json!({"claude-opus": {"costUSD": 0.2}, "claude-haiku": {"costUSD": 0.05}});
    let world = World::new(&said(&[]));
    world.run(|host| {
        let scripts = [
            said(&[]),
            said(&[]),
            said(&[("model_usage_since_last_result", difference.clone())]),
            said(&[("total_cost_usd", json!(-1.0))]),
        ];
        for (number, script) in scripts.iter().enumerate() {
            world.stand_in.play(script);
            host.ask(&format!("{number}")).unwrap();
        }
        let executed = host.session().log().slice::<PromptExecutions>().unwrap();
        let costs: Vec<_> = executed.iter().map(|one| one.unwrap().cost_micros).collect();
        assert_eq!(costs, [Some(750_000), Some(750_000), Some(250_000), None]);
    });
}

#[test]
fn a_budget_that_is_used_up_asks_nobody_any_more() {
    let world = World::new(
        &json!([{"turn": true}, {"text": "ok"}, {"result": "ok", "usage": {"input_tokens": 1000, "output_tokens": 200}}]),
    );
    world.run(|host| {
        host.ask("Go.").unwrap();
        let options = EvaluateOptions { budget: Some(Budget::total(500)), ..asking("More.") };
        let error = host.adapter().evaluate(&prompt(), &host.state, options).unwrap_err();
        assert!(matches!(error, Error::BudgetExceeded { max: 500, .. }), "{error:?}");
        assert_eq!(error.phase(), Some(EvaluationPhase::Budget));
    });
    assert_eq!(world.starts().len(), 1);
}

/// The adapter needs no runtime: it is called from a pool's thread, and in parallel with other
/// evaluations.
#[test]
fn evaluations_are_called_from_any_thread_and_side_by_side() {
    let script =
        json!([{"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"text": "ok"}, {"result": "ok"}]);
    let worlds: Vec<_> = (0..3).map(|_| World::new(&script)).collect();
    std::thread::scope(|scope| {
        for world in &worlds {
            // A thread in a thread, like a pool's worker.
            scope.spawn(move || {
                std::thread::scope(|inner| {
                    inner.spawn(move || world.run(|host| assert_eq!(host.ask("Go.").unwrap().text, "ok")));
                });
            });
        }
    });
    for world in worlds {
        assert_eq!(world.ledger(), [("add".to_owned(), "committed".to_owned())]);
    }
}

/// A host with an async runtime calls the adapter from within it, where starting another runtime
/// panics.
#[test]
fn evaluations_are_called_within_a_runtime_of_one_thread_and_of_several() {
    use tokio::runtime::Builder;
    let script =
        json!([{"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"text": "ok"}, {"result": "ok"}]);
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.enable_all().build().unwrap();
        // On the thread that drives the runtime, and in a task of it.
        let world = World::new(&script);
        world.run(|host| runtime.block_on(async { assert_eq!(host.ask("Go.").unwrap().text, "ok") }));
        assert_eq!(world.ledger(), [("add".to_owned(), "committed".to_owned())]);
        let world = World::new(&script);
        world.run(|host| {
            let (adapter, state) = (host.adapter(), host.state.clone());
            let task = async move { adapter.evaluate(&prompt(), &state, asking("Go.")).unwrap().text };
            assert_eq!(runtime.block_on(async { tokio::spawn(task).await }).unwrap(), "ok");
        });
        assert_eq!(world.ledger(), [("add".to_owned(), "committed".to_owned())]);
    }
}

#[test]
fn one_adapter_evaluates_for_several_sessions_at_once() {
    let world = World::new(&json!([{"turn": true}, {"text": "$history"}, {"result": "$history"}]));
    let other = World::new(&json!([]));
    world.run_unreplayed(|host| {
        other.run_unreplayed(|beside| {
            let adapter = host.adapter();
            std::thread::scope(|scope| {
                let first =
                    scope.spawn(|| adapter.evaluate(&prompt(), &host.state, asking("first")).unwrap().text);
                let second = scope
                    .spawn(|| adapter.evaluate(&prompt(), &beside.state, asking("second")).unwrap().text);
                assert_eq!(
                    (first.join().unwrap(), second.join().unwrap()),
                    ("first".to_owned(), "second".to_owned())
                );
            });
        });
    });
}

/// While the program repeats requests for an output, it ignores the limit on answers, and the
/// requests had no end.
#[test]
fn a_run_with_more_answers_than_are_allowed_is_ended() {
    let answer = json!({"text": "still no output"});
    let steps: Vec<_> =
        std::iter::once(json!({"turn": true})).chain(std::iter::repeat_n(answer, 9)).collect();
    let steps = [steps, vec![json!({"gate": "never"}), json!({"result": "never"})]].concat();
    let world = World::new(&steps.into());
    world.run(|host| {
        let adapter = host.adapter().with_options(RunOptions { max_turns: Some(4), ..native(&[]) });
        let error = host.ask_with(&adapter, "Go.").unwrap_err();
        assert!(matches!(error, Error::TooManyRequests { max: 4 }), "{error:?}");
    });
}
