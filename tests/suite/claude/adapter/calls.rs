//! Calls: which ones run, in which order, and the records of the others.

use std::time::Duration;

use foldlog::conversation::Role;
use foldlog::inspect::LogReader;
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::pairing::{MessageFormat, validate};
use foldlog_agent::{Deadline, Error, EvaluateOptions, EvaluationPhase};
use serde_json::{Value, json};

use super::limits::SHORT;
use super::world::{EVALUATION, World, asking, native, prompt};

/// Returns a hook request of the program with the id of its call; `waits` sets whether the program
/// waits for the reply.
fn hook(event: &str, tool: &str, id: &str, waits: bool) -> Value {
    let input = json!({"hook_event_name": event, "tool_name": tool, "tool_input": {}, "tool_use_id": id,
        "tool_response": "ok"});
    let request =
        json!({"subtype": "hook_callback", "callback_id": event, "input": input, "tool_use_id": id});
    json!({"ask": request, "id": format!("{event} {id}"), "wait": waits})
}

/// Returns the line of an answer that requests calls.
fn answer(calls: &[(&str, &str)]) -> Value {
    let block = |(id, tool): &(&str, &str)| json!({"type": "tool_use", "id": id, "name": tool, "input": {}});
    let content: Vec<Value> = calls.iter().map(block).collect();
    json!({"emit": {"type": "assistant", "session_id": "$session", "parent_tool_use_id": null,
        "message": {"id": "msg_1", "role": "assistant", "model": "m", "content": content}}})
}

/// Returns the line with a call's result for the model.
fn told(id: &str, is_error: bool) -> Value {
    let block = json!({"type": "tool_result", "tool_use_id": id, "content": "ok", "is_error": is_error});
    json!({"emit": {"type": "user", "session_id": "$session", "parent_tool_use_id": null,
        "message": {"role": "user", "content": [block]}}})
}

#[test]
fn a_call_that_is_denied_is_recorded_so_and_the_conversation_stays_whole() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Bash", "input": {"command": "ls"}, "id": "b1", "write": {"page": "ran"}},
        {"native": "Write", "input": {"run_in_background": true}, "id": "w1", "write": {"page": "ran"}},
        {"tool": "hidden", "input": {}, "id": "h1"},
        {"text": "done"}, {"result": "done"},
    ]));
    world.run(|host| {
        host.ask_with(&host.adapter().with_options(native(&["Write"])), "Go.").unwrap();
        let messages = host.session().conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
        validate(MessageFormat::Anthropic, &messages).unwrap();
        let results = messages.iter().filter(|one| one.role == Role::Tool);
        let texts: Vec<&str> = results.map(|one| one.content.as_deref().unwrap_or_default()).collect();
        assert!(texts[0].contains("`Bash` is not allowed") && texts[1].contains("foreground"), "{texts:?}");
        assert_eq!(texts[2], "There is no tool `hidden`.");
    });
    assert_eq!(world.file("page"), None);
    let log = LogReader::open(world.dir()).unwrap();
    let cause = |entry: foldlog::inspect::LedgerEntry| {
        (entry.tool, entry.cause.map(|cause| cause.name().to_owned()).unwrap_or_default())
    };
    let causes: Vec<(String, String)> = log.ledger().unwrap().into_iter().map(cause).collect();
    let expected = [("Bash", "denied"), ("Write", "denied"), ("hidden", "unknown_tool")];
    assert_eq!(causes, expected.map(|(tool, cause)| (tool.to_owned(), cause.to_owned())));
}

/// The start of the writing call waited for the reading call, on the only thread that could process
/// that call's end.
#[test]
fn a_call_that_writes_waits_for_one_that_reads_and_the_other_way_round() {
    let world = World::new(&json!([
        {"turn": true}, answer(&[("r1", "Read"), ("r2", "Read"), ("w1", "Write"), ("r3", "Read")]),
        hook("PreToolUse", "Read", "r1", true), hook("PreToolUse", "Read", "r2", true),
        hook("PreToolUse", "Write", "w1", false), {"unanswered": "PreToolUse w1"},
        hook("PostToolUse", "Read", "r1", true), {"unanswered": "PreToolUse w1"},
        hook("PostToolUse", "Read", "r2", true), {"answer": "PreToolUse w1"},
        hook("PreToolUse", "Read", "r3", false), {"unanswered": "PreToolUse r3"},
        hook("PostToolUse", "Write", "w1", true), {"answer": "PreToolUse r3"},
        hook("PostToolUse", "Read", "r3", true),
        told("r1", false), told("r2", false), told("w1", false), told("r3", false), {"text": "done"}, {"result": "done"},
    ]));
    world.run(|host| {
        let adapter = host.adapter().with_options(native(&["Read", "Write"]));
        // A deadlock fails by the deadline.
        let options = EvaluateOptions { deadline: Deadline::after(Duration::from_secs(30)), ..asking("Go.") };
        adapter.evaluate(&prompt(), &host.state, options).unwrap();
    });
    assert!(world.ledger().iter().all(|(_, outcome)| outcome == "committed"), "{:?}", world.ledger());
    assert_eq!(world.ledger().len(), 4);
}

/// A call that waits for another one when the deadline passes does not start.
#[test]
fn a_call_that_waits_at_the_deadline_does_not_begin() {
    let world = World::new(&json!([
        {"turn": true}, answer(&[("w1", "Write"), ("w2", "Write")]),
        hook("PreToolUse", "Write", "w1", true), {"write": {"page": "half"}}, hook("PreToolUse", "Write", "w2", false),
        {"gate": "never"},
    ]));
    world.run(|host| {
        let deadline = Deadline::after(SHORT);
        let options = EvaluateOptions { deadline, ..asking("Go.") };
        let adapter = host.adapter().with_options(native(&["Write"]));
        let error = adapter.evaluate(&prompt(), &host.state, options).unwrap_err();
        assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
    });
    assert_eq!(world.file("page"), None);
    assert_eq!(world.ledger(), [("Write".to_owned(), "failed".to_owned())]);
}

/// A hook that timed out let the call pass: its changes are in no transaction.
#[test]
fn a_call_that_ran_without_its_begin_ends_the_run() {
    let ran = [hook("PostToolUse", "Write", "w1", true), told("w1", false)];
    for ran in ran {
        let world = World::new(&json!([
            {"turn": true}, answer(&[("w1", "Write")]), ran, {"text": "done"}, {"result": "done"},
        ]));
        world.run(|host| {
            let error = host.ask_with(&host.adapter().with_options(native(&["Write"])), "Go.").unwrap_err();
            assert!(
                matches!(error, Error::PromptEvaluation { phase: EvaluationPhase::Tool, .. }),
                "{error:?}"
            );
            assert!(error.to_string().contains("ran `Write` without waiting"), "{error}");
        });
    }
    // A call that never ran gets an error, and the run continues.
    let world = World::new(&json!([
        {"turn": true}, answer(&[("w1", "Write")]), told("w1", true), {"text": "done"}, {"result": "done"},
    ]));
    world.run(|host| host.ask_with(&host.adapter().with_options(native(&["Write"])), "Go.").unwrap());
}

/// The program waits for a hook longer than any run lasts.
#[test]
fn the_program_is_told_to_wait_for_hooks_for_days() {
    let world = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    world.run(|host| host.ask("Go.").unwrap());
    let heard = world.stand_in.heard();
    let initialize = heard.iter().find(|line| line["request"]["subtype"] == "initialize").unwrap();
    for event in ["PreToolUse", "PostToolUse", "PostToolUseFailure"] {
        let timeout = initialize["request"]["hooks"][event][0]["timeout"].as_u64().unwrap();
        // Its timers are limited to 2^31 ms.
        assert!(timeout > 7 * 24 * 60 * 60 && timeout * 1000 < 1 << 31, "{event}: {timeout}");
    }
}

/// Each request was forwarded by its own thread, and simultaneous ones raced: a request of a later
/// answer, or a write, could overtake an earlier Read, which then got no reply.
#[test]
fn what_the_program_asks_for_at_once_is_taken_in_the_order_in_which_it_came() {
    let ids: Vec<String> = (0..24).map(|number| format!("r{number}")).collect();
    let mut steps = vec![json!({"turn": true})];
    let calls: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "Read")).collect();
    steps.push(answer(&calls));
    let each =
        |event: &str, waits: bool| ids.iter().map(|id| hook(event, "Read", id, waits)).collect::<Vec<_>>();
    steps.extend(each("PreToolUse", false));
    steps.extend(ids.iter().map(|id| json!({"answer": format!("PreToolUse {id}")})));
    steps.extend(each("PostToolUse", true));
    steps.extend(ids.iter().map(|id| told(id, false)));
    steps.extend([json!({"text": "done"}), json!({"result": "done"})]);
    let world = World::new(&steps.into());
    world.run(|host| {
        host.ask_with(&host.adapter().with_options(native(&["Read"])), "Go.").unwrap();
        let mut arrived = Vec::new();
        let visit = &mut |_, one: Value| {
            let hook = &one["arrival"]["Hook"];
            let begun = hook["tool_use_id"].as_str().filter(|_| hook["event"] == "PreToolUse");
            arrived.extend(begun.map(str::to_owned));
            Ok(())
        };
        host.session().inputs().observations("claude.arrived", visit).unwrap();
        assert_eq!(arrived, ids);
    });
    assert_eq!(world.ledger().len(), ids.len());
}

/// If the program ended a call without a hook, and the result of an earlier call with the same id
/// was known, the call stayed open, and no turn could be recorded.
#[test]
fn what_is_told_of_a_call_closes_it_although_an_earlier_one_has_its_id() {
    let second = |mut answer: Value| {
        answer["emit"]["message"]["id"] = "msg_2".into();
        answer
    };
    let world = World::new(&json!([
        {"turn": true},
        answer(&[("t1", "Read")]), told("t1", true),
        second(answer(&[("t1", "Read")])), told("t1", true),
        {"text": "done"}, {"result": "done"},
    ]));
    world.run(|host| {
        host.ask_with(&host.adapter().with_options(native(&["Read"])), "Go.").unwrap();
        let messages = host.session().conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
        let results = messages.iter().filter(|one| one.role == Role::Tool);
        let told: Vec<_> = results.map(|one| (one.content.as_deref(), one.is_error)).collect();
        assert_eq!(told, [(Some("ok"), true), (Some("ok"), true)]);
    });
}

/// A provider's id of a call is data: a model that uses an id again, in a later answer, requests
/// another call.
#[test]
fn a_call_may_have_the_id_of_an_earlier_one() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Write", "id": "t1", "input": {}, "write": {"note": "one"}},
        {"native": "Write", "id": "t1", "input": {"n": 2}, "write": {"note": "two"}, "fails": "no"},
        {"native": "Write", "id": "t1", "input": {"n": 3}, "write": {"note": "three"}},
        {"tool": "add", "id": "a1", "input": {"text": "one"}},
        {"tool": "add", "id": "a1", "input": {"text": "two"}},
        {"native": "Bash", "id": "t1", "input": {}, "write": {"note": "denied"}},
        {"native": "Bash", "id": "t1", "input": {"n": 2}, "write": {"note": "denied"}},
        {"text": "done"}, {"result": "done"},
    ]));
    world.run(|host| {
        host.ask_with(&host.adapter().with_options(native(&["Write"])), "Go.").unwrap();
        let messages = host.session().conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
        let results = messages.iter().filter(|one| one.role == Role::Tool);
        let texts: Vec<&str> = results.map(|one| one.content.as_deref().unwrap_or_default()).collect();
        let denied = "The tool `Bash` is not allowed here.";
        let failed =
            "no\n\nThe call failed. What it changed in the workspace was rolled back. Restored: note.";
        assert_eq!(texts, ["ok", failed, "ok", "added one", "added two", denied, denied]);
        assert_eq!(host.page(), ["one", "two"]);
    });
    assert_eq!(world.file("note").as_deref(), Some("three"));
    let (ran, denied): (Vec<_>, Vec<_>) = world.ledger().into_iter().partition(|(tool, _)| tool != "Bash");
    let outcomes: Vec<String> = ran.into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["committed", "failed", "committed", "committed", "committed"]);
    assert_eq!(denied.len(), 2);
}
