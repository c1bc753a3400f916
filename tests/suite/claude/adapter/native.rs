//! Calls of the program's own tools: each is a transaction of the engine, although the program runs
//! it.

use std::fs;

use foldlog::ToolInvocations;
use foldlog::conversation::Role::{Assistant, Tool as OfTool, User};
use foldlog::inspect::LogReader;
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{Error, EvaluationPhase, MarkdownSection, Prompt};
use foldlog_claude::{OnLeftover, RunOptions};
use serde_json::{Value, json};

use super::world::{EVALUATION, Host, World, asking, native};

/// Evaluates with some of the program's own tools.
fn ask(host: &Host, tools: &[&str]) -> Result<String, Error> {
    let adapter = host.adapter().with_options(native(tools));
    Ok(host.ask_with(&adapter, "Go.")?.text)
}

fn ended(calls: &[(&str, &str)]) -> Vec<(String, String)> {
    calls.iter().map(|(tool, outcome)| ((*tool).to_owned(), (*outcome).to_owned())).collect()
}

/// Returns the host's messages to the program and its model after calls.
fn contexts(world: &World) -> Vec<String> {
    let heard = world.stand_in.heard();
    let context = |line: &Value| {
        let text = &line["response"]["response"]["hookSpecificOutput"]["additionalContext"];
        text.as_str().map(str::to_owned)
    };
    heard.iter().filter_map(context).collect()
}

/// The next call finds the workspace as before the failed call, and the model is informed of that.
#[test]
fn a_call_that_fails_leaves_no_trace_in_the_workspace_by_the_time_of_the_reply() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Write", "input": {"file_path": "page"}, "write": {"page": "one"}},
        {"native": "Write", "input": {"file_path": "page"}, "write": {"page": "two", "other/deep": "x"}, "remove": [],
            "fails": "the disk is full"},
        {"text": "$files"}, {"result": "$files|$results"},
    ]));
    let told = "The call failed. What it changed in the workspace was rolled back. Restored: page, other/deep (removed).";
    world.run(|host| {
        let text = ask(host, &["Write"]).unwrap();
        assert_eq!(text, "page|toolu_1: ok|toolu_2: the disk is full");
        let said = host.said();
        let roles: Vec<_> = said.iter().map(|(role, _)| *role).collect();
        assert_eq!(roles, [User, Assistant, OfTool, Assistant, OfTool, Assistant]);
        // The transcript lacked the text that the model read in addition to the result.
        assert_eq!(said[4].1, format!("the disk is full\n\n{told}"));
    });
    assert_eq!(world.file("page").as_deref(), Some("one"));
    assert_eq!(world.ledger(), ended(&[("Write", "committed"), ("Write", "failed")]));
    assert_eq!(contexts(&world), [told]);
}

/// Returns run options that roll back the changes of a command whose exit code is not 0.
fn strict(tools: &[&str]) -> RunOptions {
    RunOptions { roll_back_failed: true, ..native(tools) }
}

/// A failed call that left changes behind ended the run, but commit-then-test is ordinary work.
#[test]
fn what_a_failed_call_left_is_told_to_the_model_and_ends_the_run_only_if_the_host_wants_it() {
    let script = json!([
        {"turn": true},
        {"native": "Bash", "input": {}, "write": {".git/HEAD": "elsewhere", "page": "half"}, "fails": "exit 1"},
        {"text": "ok"}, {"result": "ok"},
    ]);
    for (on_leftover, goes_on) in [(OnLeftover::Continue, true), (OnLeftover::Stop, false)] {
        let world = World::new(&script);
        // Without objects a capture cannot restore it.
        fs::create_dir(world.workspace().join(".git")).unwrap();
        fs::write(world.workspace().join(".git/HEAD"), "ref: refs/heads/main").unwrap();
        world.run_unreplayed(|host| {
            let options = RunOptions { on_leftover, ..strict(&["Bash"]) };
            let asked = host.ask_with(&host.adapter().with_options(options), "Go.");
            match asked {
                Ok(response) => assert!(goes_on && response.text == "ok"),
                Err(error) => assert!(!goes_on && matches!(error, Error::NotUndone { .. }), "{error}"),
            }
        });
        assert_eq!((world.file("page"), world.ledger()), (None, ended(&[("Bash", "failed")])));
        // When a run is ended, its program may have exited before reading that.
        if goes_on {
            let told = contexts(&world).concat();
            let expected = "was rolled back. Restored: page (removed). Not undone: workspace .git: git objects are missing";
            assert!(told.contains(expected), "{told}");
        }
    }
}

/// If a test failed, `npm install && npm test` lost the installation: each exit code except 0
/// rolled the call back.
#[test]
fn a_command_that_ends_keeps_its_changes_whatever_its_exit_code() {
    let script = json!([
        {"turn": true},
        {"native": "Bash", "input": {"command": "false"}, "write": {"page": "half"},
            "output": {"stdout": "out", "stderr": "err", "exitCode": 3, "interrupted": false}},
        {"native": "Bash", "input": {"command": "true"}, "write": {"log": "whole"},
            "output": {"stdout": "out", "stderr": "", "exitCode": 0, "interrupted": false}},
        {"text": "ok"}, {"result": "ok"},
    ]);
    let world = World::new(&script);
    world.run(|host| assert_eq!(ask(host, &["Bash"]).unwrap(), "ok"));
    assert_eq!((world.file("page").as_deref(), world.file("log").as_deref()), (Some("half"), Some("whole")));
    assert_eq!(world.ledger(), ended(&[("Bash", "committed"), ("Bash", "committed")]));

    let world = World::new(&script);
    world.run(|host| drop(host.ask_with(&host.adapter().with_options(strict(&["Bash"])), "Go.").unwrap()));
    assert_eq!((world.file("page"), world.file("log").as_deref()), (None, Some("whole")));
    assert_eq!(world.ledger(), ended(&[("Bash", "failed"), ("Bash", "committed")]));
}

/// The program's reports of a failing command and of a stopped one differ only in their texts.
#[test]
fn a_command_of_which_the_program_tells_an_error_is_rolled_back_only_if_it_was_stopped() {
    let bash = |page: &str, text: &str, untold: bool| json!({"native": "Bash", "input": {"command": "c"}, "write": {page: "half"}, "fails": text, "untold": untold});
    let script = json!([
        {"turn": true},
        bash("ended", "Exit code 3\nout", false), bash("again", "Exit code 3\nout", true),
        bash("late", "Exit code 143\nCommand timed out after 1s\nout", false),
        bash("stopped", "Exit code 137\n[Request interrupted by user for tool use]", true),
        bash("unclear", "something else", false),
        {"text": "ok"}, {"result": "$files"},
    ]);
    let world = World::new(&script);
    world.run(|host| {
        ask(host, &["Bash"]).unwrap();
        let results: Vec<_> = host.said().into_iter().filter(|(role, _)| *role == OfTool).collect();
        assert_eq!(results[0].1, "Exit code 3\nout");
    });
    let kept = ["ended", "again", "late", "stopped", "unclear"].map(|name| world.file(name).is_some());
    assert_eq!(kept, [true, true, false, false, true]);
    let outcomes: Vec<_> = world.ledger().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["committed", "committed", "failed", "failed", "committed"]);
    let codes: Vec<_> = LogReader::open(world.dir())
        .unwrap()
        .ledger()
        .unwrap()
        .into_iter()
        .map(|entry| entry.exit_code)
        .collect();
    assert_eq!(codes, [Some(3), Some(3), None, None, None]);
    let rolled_back =
        "The call failed. What it changed in the workspace was rolled back. Restored: late (removed).";
    let contexts = contexts(&world);
    assert_eq!(contexts[0], rolled_back);
    assert!(contexts[1].starts_with("Whether the command ended is unknown."), "{contexts:?}");

    let world = World::new(&script);
    world.run(|host| drop(host.ask_with(&host.adapter().with_options(strict(&["Bash"])), "Go.").unwrap()));
    assert!(world.ledger().iter().all(|(_, outcome)| outcome == "failed"), "{:?}", world.ledger());
}

/// The transcript contained the adapter's own text for a structured result, and not the model's.
#[test]
fn the_transcript_holds_what_the_model_was_told_of_a_call_that_has_ended() {
    let output = json!({"stdout": "1\n2\n3", "stderr": "", "interrupted": false});
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Bash", "input": {"command": "seq 3"}, "output": output, "saves": "1\n2\n3"},
        {"native": "Bash", "input": {"command": "c"}, "fails": "Exit code 3"},
        {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| {
        ask(host, &["Bash"]).unwrap();
        let conversation = host.session().conversation().read(EVALUATION).unwrap().unwrap();
        let sent = conversation.sent_messages();
        let results: Vec<_> = sent.iter().filter(|message| message.role == OfTool).collect();
        let told = results[0].content.as_deref().unwrap();
        assert!(told.starts_with("<persisted-output>"), "{told}");
        assert_eq!((results[1].content.as_deref(), results[1].is_error), (Some("Exit code 3"), true));
        // The log also contains the structured result.
        let calls = host.session().log().slice::<ToolInvocations>().unwrap();
        let first = calls.iter().next().unwrap().unwrap();
        let (recorded, _) = host.session().calls().result_at(first.position().unwrap().0).unwrap();
        assert_eq!(serde_json::to_value(recorded.unwrap()).unwrap()["stdout"], output["stdout"]);
    });
}

/// The output of an interrupted command states the interrupt.
#[test]
fn a_command_that_was_interrupted_is_a_failed_call() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Bash", "input": {}, "write": {"page": "half"}, "output": {"stdout": "", "stderr": "", "interrupted": true}},
        {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| assert_eq!(ask(host, &["Bash"]).unwrap(), "ok"));
    assert_eq!((world.file("page"), world.ledger()), (None, ended(&[("Bash", "failed")])));
}

/// No hook reports the end; the result for the model does.
#[test]
fn a_call_whose_end_no_hook_tells_ends_with_its_result() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Write", "input": {}, "write": {"page": "one"}, "untold": true},
        {"native": "Write", "input": {}, "write": {"page": "two"}, "fails": "no", "untold": true},
        {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| {
        assert_eq!(ask(host, &["Write"]).unwrap(), "ok");
        assert_eq!(host.said()[2], (OfTool, "ok".to_owned()));
        assert_eq!(host.said()[4], (OfTool, "no".to_owned()));
    });
    assert_eq!(world.file("page").as_deref(), Some("one"));
    assert_eq!(world.ledger(), ended(&[("Write", "committed"), ("Write", "failed")]));
}

/// With neither a hook nor a result, the program's end is the end of the call.
#[test]
fn a_call_whose_end_nobody_tells_is_rolled_back_at_the_end_of_the_run() {
    let hook = |event: &str| hook_of(event, "t1", "Write");
    let world = World::new(&json!([
        {"turn": true},
        {"emit": {"type": "assistant", "parent_tool_use_id": null, "session_id": "$session", "message": {"id": "m", "model": "m",
            "content": [{"type": "tool_use", "id": "t1", "name": "Write", "input": {}}]}}},
        {"ask": hook("PreToolUse")}, {"write": {"page": "half"}}, {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| assert_eq!(ask(host, &["Write"]).unwrap(), "ok"));
    assert_eq!((world.file("page"), world.ledger()), (None, ended(&[("Write", "failed")])));
}

#[test]
fn a_program_that_dies_within_a_call_leaves_a_workspace_that_is_rolled_back_and_a_run_that_is_resumed() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Write", "input": {}, "write": {"page": "one"}}, {"mirror": true},
        {"native": "Bash", "input": {}, "write": {"page": "half"}, "die": 9},
    ]));
    world.run(|host| {
        let error = ask(host, &["Write", "Bash"]).unwrap_err();
        assert!(error.to_string().contains("signal 9"), "{error}");
    });
    assert_eq!(world.file("page").as_deref(), Some("one"));
    assert_eq!(world.ledger(), ended(&[("Write", "committed"), ("Bash", "failed")]));
    world.stand_in.play(&json!([{"turn": true}, {"text": "$results"}, {"result": "$results"}]));
    world.run_unreplayed(|host| {
        let text = ask(host, &["Write", "Bash"]).unwrap();
        assert!(text.starts_with("toolu_1: ok"), "{text}");
    });
}

/// In no permission mode may a tool run that the host did not name, or in the background.
#[test]
fn a_tool_that_is_not_on_the_list_and_one_in_the_background_do_not_run() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Write", "input": {}, "write": {"page": "one"}},
        {"native": "Bash", "input": {"command": "sleep 9", "run_in_background": true}, "write": {"page": "two"}},
        {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| {
        assert_eq!(ask(host, &["Bash"]).unwrap(), "ok");
        let results: Vec<_> =
            host.said().into_iter().filter(|(role, _)| *role == OfTool).map(|(_, text)| text).collect();
        assert_eq!(results[0], "The tool `Write` is not allowed here.");
        assert!(results[1].contains("run it in the foreground"), "{results:?}");
    });
    assert_eq!(world.file("page"), None);
    assert!(world.ledger().iter().all(|(_, outcome)| outcome != "committed"), "{:?}", world.ledger());
}

/// Returns the program's hook request for a call.
fn hook_of(event: &str, id: &str, tool: &str) -> Value {
    json!({"subtype": "hook_callback", "callback_id": event, "tool_use_id": id, "input": {"hook_event_name": event,
        "tool_name": tool, "tool_input": {}, "tool_use_id": id, "tool_response": "ok"}})
}

/// Returns an answer that requests calls of one tool.
fn asks(tool: &str, ids: &[&str]) -> Value {
    let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": tool, "input": {}});
    let calls: Vec<_> = ids.iter().map(call).collect();
    json!({"emit": {"type": "assistant", "parent_tool_use_id": null, "session_id": "$session",
        "message": {"id": "m", "model": "m", "content": calls}}})
}

/// The program may start a tool before the answer is complete. The rest of the answer is recorded
/// as another answer, and that closed the running call as one that never ran, or, if it held the
/// workspace, left it open forever.
#[test]
fn calls_of_an_answer_that_comes_in_parts_are_closed_by_their_own_ends() {
    let begin =
        |id: &str, tool: &str| json!({"ask": hook_of("PreToolUse", id, tool), "id": id, "wait": false});
    let permission =
        json!({"ask": {"subtype": "can_use_tool", "tool_name": "Read", "input": {}, "tool_use_id": "t2"}});
    for first in ["Read", "Write"] {
        let world = World::new(&json!([
            {"turn": true},
            asks(first, &["t1"]), begin("t1", first), {"answer": "t1"},
            asks("Read", &["t2"]), begin("t2", "Read"), permission, permission, {"unanswered": "t2"},
            {"ask": hook_of("PostToolUse", "t1", first)}, {"answer": "t2"},
            {"ask": hook_of("PostToolUse", "t2", "Read")},
            {"text": "ok"}, {"result": "ok"},
        ]));
        world.run(|host| {
            assert_eq!(ask(host, &["Write", "Read"]).unwrap(), "ok");
            let roles: Vec<_> = host.said().into_iter().map(|(role, _)| role).collect();
            assert_eq!(roles, [User, Assistant, OfTool, Assistant, OfTool, Assistant]);
        });
        assert_eq!(world.ledger(), ended(&[(first, "committed"), ("Read", "committed")]));
    }
}

/// A tool of the host waits for an open call of the program.
#[test]
fn a_call_of_the_hosts_waits_for_one_of_the_programs() {
    let call = json!({"subtype": "mcp_message", "server_name": "wink", "message": {"jsonrpc": "2.0", "id": 5,
        "method": "tools/call", "params": {"name": "add", "arguments": {"text": "two"},
            "_meta": {"claudecode/toolUseId": "t2"}}}});
    let permission =
        json!({"ask": {"subtype": "can_use_tool", "tool_name": "Write", "input": {}, "tool_use_id": "t2"}});
    let world = World::new(&json!([
        {"turn": true},
        {"ask": hook_of("PreToolUse", "t1", "Write")},
        {"ask": call, "id": "second", "wait": false}, permission, permission, {"unanswered": "second"},
        {"write": {"page": "one\n"}},
        {"ask": hook_of("PostToolUse", "t1", "Write")},
        {"answer": "second"},
        {"text": "ok"}, {"result": "ok"},
    ]));
    world.run_unreplayed(|host| {
        assert_eq!(ask(host, &["Write"]).unwrap(), "ok");
        assert_eq!(host.page(), ["two"]);
    });
    assert_eq!(world.file("page").as_deref(), Some("one\ntwo\n"));
    assert_eq!(world.ledger(), ended(&[("Write", "committed"), ("add", "committed")]));
}

/// Counts the `sleep` commands with the environment of this session's program.
struct Left(String);

impl Tool for Left {
    const NAME: &'static str = "left";
    const DESCRIPTION: &'static str = "Counts what was left running.";
    type Parameters = Value;
    type Output = ();

    fn call(&self, _: Value, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let is_left = |process: &fs::DirEntry| {
            let read = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
            let sleeps = read("cmdline").starts_with(b"sleep\0");
            sleeps && String::from_utf8_lossy(&read("environ")).contains(&self.0)
        };
        let mut count = 0;
        // On a busy machine, a new process may not have become `sleep` yet.
        for _ in 0..1_000 {
            count = fs::read_dir("/proc")?.flatten().filter(is_left).count();
            if count > 0 {
                break;
            }
            std::thread::yield_now();
        }
        Ok(ToolResult::ok(format!("{count} left"), ()))
    }
}

/// A command that a failed call had left running wrote into the restored workspace until the end of
/// the run. A successful call may leave commands running.
#[test]
fn a_command_that_a_failed_call_left_running_ends_before_the_workspace_is_restored() {
    let leaves = |fails: Option<&str>| {
        let mut step = json!({"native": "Bash", "input": {}, "leave": ["setsid", "sleep", "600"]});
        step.as_object_mut().unwrap().extend(fails.map(|text| ("fails".to_owned(), text.into())));
        step
    };
    let count = json!({"tool": "left", "input": {}});
    let world = World::new(&json!([
        {"turn": true}, leaves(None), count, leaves(Some("Exit code 3")), count, leaves(Some("Exit code 3")), count,
        {"text": "ok"}, {"result": "$results"},
    ]));
    let script = world.stand_in.path("script").to_string_lossy().into_owned();
    world.run(|host| {
        let prompt: Prompt = Prompt::text("tests", "left")
            .with_section(MarkdownSection::new("task", "Leave nothing."))
            .with_tools(ToolRegistry::new().with(Left(script.clone())));
        let adapter = host.adapter().with_options(strict(&["Bash"]));
        let text = adapter.evaluate(&prompt, &host.state, asking("Go.")).unwrap().text;
        let counts: Vec<&str> = text.split('|').filter(|one| one.ends_with("left")).collect();
        assert_eq!(counts, ["toolu_2: 1 left", "toolu_4: 1 left", "toolu_6: 1 left"]);
    });
    assert_eq!(world.starts().len(), 1);
}

/// A hook that timed out lets a call pass: its changes are in no transaction, so the run ends.
#[test]
fn a_call_that_ran_without_its_begin_ends_the_run() {
    let world = World::new(&json!([
        {"turn": true}, {"write": {"page": "half"}}, {"ask": hook_of("PostToolUse", "t9", "Write")},
        {"text": "never"}, {"result": "never"},
    ]));
    world.run(|host| {
        let error = ask(host, &["Write"]).unwrap_err();
        assert_eq!(error.phase(), Some(EvaluationPhase::Tool), "{error:?}");
        assert!(error.to_string().contains("ran `Write` without waiting"), "{error}");
    });
}

/// A sub-agent's messages are a conversation of their own, and its calls are calls of the session.
#[test]
fn a_sub_agent_is_a_conversation_of_its_own() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Task", "id": "task_1", "input": {"prompt": "look"}, "output": [{"type": "text", "text": "looked"}], "steps": [
            {"text": "I look."},
            {"tool": "add", "input": {"text": "one"}, "id": "inner_1"},
            {"native": "Write", "input": {}, "write": {"note": "x"}, "id": "inner_2"},
            {"native": "Write", "input": {}, "write": {"note": "y"}, "fails": "no", "id": "inner_3"},
            {"text": "It is there."},
        ]},
        {"text": "ok"}, {"result": "ok"},
    ]));
    world.run(|host| {
        assert_eq!(ask(host, &["Task", "Write"]).unwrap(), "ok");
        let said = host.said();
        let roles: Vec<_> = said.iter().map(|(role, _)| *role).collect();
        assert_eq!(roles, [User, Assistant, OfTool, Assistant], "{said:?}");
        assert_eq!(said[2].1, "looked");
        let child = host.session().conversation().read(&format!("{EVALUATION}/task_1")).unwrap().unwrap();
        let child: Vec<_> = child
            .sent_messages()
            .into_iter()
            .map(|one| (one.role, one.content.unwrap_or_default()))
            .collect();
        let roles: Vec<_> = child.iter().map(|(role, _)| *role).collect();
        assert_eq!(
            roles,
            [Assistant, Assistant, OfTool, Assistant, OfTool, Assistant, OfTool, Assistant],
            "{child:?}"
        );
        assert_eq!(child.last().unwrap().1, "It is there.");
        assert_eq!(host.page(), ["one"]);
    });
    assert_eq!(world.ledger(), ended(&[("add", "committed"), ("Write", "committed"), ("Write", "failed")]));
    assert_eq!(fs::read_to_string(world.workspace().join("note")).unwrap(), "x");
}

/// `Task` and `Agent` are one tool: hooks call it `Agent`, and a run that named `Task` refused its
/// calls.
#[test]
fn task_means_agent() {
    let steps = json!([{"native": "Write", "input": {}, "write": {"note": "x"}, "id": "inner_1"}]);
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Agent", "id": "task_1", "input": {"prompt": "look"}, "output": "looked", "steps": steps},
        {"text": "$results"}, {"result": "$results"},
    ]));
    world.run(|host| assert_eq!(ask(host, &["Task", "Write"]).unwrap(), "task_1: looked"));
    assert_eq!(world.argument("--tools").as_deref(), Some("Agent,Write"));
    assert_eq!(world.ledger(), ended(&[("Write", "committed")]));
}

/// A version without a tool ignored its name, and the model lacked the tool without any message.
#[test]
fn a_tool_that_the_installed_version_does_not_offer_ends_the_run() {
    let world =
        World::new(&json!([{"turn": true, "lacks": ["TodoWrite"]}, {"text": "ok"}, {"result": "ok"}]));
    world.run(|host| {
        let error = ask(host, &["Read", "TodoWrite"]).unwrap_err();
        assert_eq!(error.phase(), Some(EvaluationPhase::Request), "{error:?}");
        assert!(error.to_string().contains("Claude Code 2.1.330 offers no tool `TodoWrite`"), "{error}");
        assert!(host.session().conversation().read(EVALUATION).unwrap().unwrap().usage().output == 0);
    });
    let world =
        World::new(&json!([{"turn": true, "lacks": ["TodoWrite"]}, {"text": "ok"}, {"result": "ok"}]));
    world.run_unreplayed(|host| {
        let adapter = host.adapter();
        let names = ["Agent", "TodoWrite"].map(str::to_owned);
        let init = adapter.inspect(&names).unwrap();
        assert_eq!((init.tools, init.version.as_deref()), (vec!["Task".to_owned()], Some("2.1.330")));
        assert!(adapter.inspect(&["default".to_owned()]).unwrap().tools.contains(&"Monitor".to_owned()));
        assert_eq!(adapter.program_version(), None);
        ask(host, &["Read"]).unwrap();
    });
}

/// The model was told that a read-only call was rolled back.
#[test]
fn a_call_that_only_reads_and_fails_is_not_said_to_be_rolled_back() {
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Read", "input": {"file_path": "nowhere"}, "fails": "File does not exist."},
        {"text": "$results"}, {"result": "$results"},
    ]));
    world.run(|host| assert_eq!(ask(host, &["Read"]).unwrap(), "toolu_1: File does not exist."));
    assert_eq!(contexts(&world), [] as [&str; 0]);
}

/// Tools of the project's servers were taken for tools of the host, whose calls are transactions
/// elsewhere.
#[test]
fn a_tool_of_a_server_of_the_project_is_a_transaction() {
    let call = |fails: bool| {
        let mut call = json!({"native": "mcp__files__put", "input": {}, "write": {"page": "put"}});
        if fails {
            call["fails"] = json!("no");
            call["write"] = json!({"page": "half"});
        }
        call
    };
    let world = World::new(
        &json!([{"turn": true, "lacks": ["mcp__files__put"]}, call(false), call(true), {"text": "ok"}, {"result": "ok"}]),
    );
    world.run(|host| assert_eq!(ask(host, &["mcp__files__put"]).unwrap(), "ok"));
    assert_eq!(world.file("page").as_deref(), Some("put"));
    assert_eq!(world.ledger(), ended(&[("mcp__files__put", "committed"), ("mcp__files__put", "failed")]));
    assert_eq!(world.argument("--tools").as_deref(), Some(""));
    let allowed = world.argument("--allowedTools").unwrap();
    assert!(allowed.ends_with(",mcp__files__put"), "{allowed}");
}
