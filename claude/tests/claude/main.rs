//! Tests of the Claude Code program as an adapter: the real program against a Messages API on
//! loopback. The variable `FOLDLOG_CLAUDE_CLI` names the program: an executable, or a `cli.js` that
//! `node` runs. Without it, these tests report that they are skipped.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod api;
mod conversation;
mod endings;
mod killed;
mod limits;
mod network;
mod output;
mod recovery;
mod sub_agents;
mod world;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foldlog::conversation::Role;
use foldlog::inspect::LogReader;
use foldlog::{Session, SessionTypes};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{Deadline, Error, EvaluateOptions};
use foldlog_claude::{ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, PermissionMode, RunOptions};
use serde_json::{Value, json};

use self::api::{Answers, Api, call, text};
use self::world::{Store, World, cli};

/// Returns the roles and texts of a run's conversation.
fn said(session: &Session) -> Vec<(Role, String)> {
    let conversation = session.conversation().read("run").unwrap().unwrap();
    conversation.sent_messages().into_iter().map(|one| (one.role, one.content.unwrap_or_default())).collect()
}

/// Returns the calls of a session with their outcomes.
fn ledger(session: &Session) -> Vec<(String, String)> {
    let log = LogReader::open(session.dir()).unwrap();
    log.ledger().unwrap().into_iter().map(|entry| (entry.tool, entry.outcome.name().to_owned())).collect()
}

fn native(tools: &[&str]) -> RunOptions {
    RunOptions {
        native_tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        ..RunOptions::default()
    }
}

/// Returns the results of tools in a request. From 2.1.330 on, the program may add a part of its
/// own after a text, which then ends with a line break.
fn results(request: &Value) -> Vec<(String, String, bool)> {
    let messages = request["messages"].as_array().unwrap();
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    blocks
        .filter(|block| block["type"] == "tool_result")
        .map(|block| {
            let text = match &block["content"] {
                Value::String(text) => text.clone(),
                parts => {
                    let text = parts[0]["text"].as_str().unwrap_or_default();
                    let is_added = parts.as_array().is_some_and(|parts| parts.len() > 1);
                    text.strip_suffix('\n').filter(|_| is_added).unwrap_or(text).to_owned()
                }
            };
            let is_error = block["is_error"].as_bool().unwrap_or_default();
            (block["tool_use_id"].as_str().unwrap().to_owned(), text, is_error)
        })
        .collect()
}

#[test]
fn a_text_comes_back_and_is_recorded_as_a_conversation() {
    let Some(cli) = cli() else { return };
    let api = Api::answering(vec![Answers::With(vec![text("It snows.")])]);
    let world = World::new();
    let adapter = world.adapter(&cli, &api, RunOptions::default());
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?")).unwrap();
    assert_eq!(response.text, "It snows.");
    let said = said(&world.session);
    assert_eq!(said[1..], [(Role::User, "Oslo?".to_owned()), (Role::Assistant, "It snows.".to_owned())]);
    assert_eq!((response.usage.input, response.usage.output), (100, 20));
    // A complete evaluation is answered from the log.
    let again = adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?")).unwrap();
    assert_eq!((again.text, api.seen().len()), ("It snows.".to_owned(), 1));
}

#[test]
fn a_tool_of_the_host_runs_as_a_transaction_and_its_result_reaches_the_model() {
    let Some(cli) = cli() else { return };
    let asked = |id, city| call(id, "mcp__wink__weather", &json!({"city": city}));
    let api = Api::answering(vec![
        Answers::With(vec![text("I look."), asked("toolu_1", "Oslo"), asked("toolu_2", "Nowhere")]),
        Answers::With(vec![text("It snows.")]),
    ]);
    let world = World::new();
    let adapter = world.adapter(&cli, &api, RunOptions::default());
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?")).unwrap();
    assert_eq!(response.text, "It snows.");
    let mut results = results(&api.seen()[1]);
    // Read-only tools run concurrently.
    results.sort();
    assert_eq!(results[0], ("toolu_1".to_owned(), "snow".to_owned(), false));
    assert_eq!(results[1], ("toolu_2".to_owned(), "Tool error: no such city".to_owned(), true));
    let mut ledger = ledger(&world.session);
    ledger.sort();
    let ended = |outcome: &str| ("weather".to_owned(), outcome.to_owned());
    assert_eq!(ledger, [ended("committed"), ended("failed")]);
    let roles: Vec<Role> = said(&world.session).into_iter().map(|(role, _)| role).collect();
    use Role::{Assistant, System, Tool, User};
    assert!(
        roles == [System, User, Assistant, Tool, Tool, Assistant]
            || roles == [System, User, Assistant, Tool, Assistant, Tool, Assistant],
        "{roles:?}"
    );
}

/// The program runs both. They were one operation, so the second one ran in no transaction.
#[test]
fn two_calls_of_one_answer_with_the_same_id_are_two_operations() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let bash = |command: &str| call("toolu_1", "Bash", &json!({"command": command, "description": "d"}));
    let api = Api::answering(vec![
        Answers::With(vec![bash("echo one > page; cat page"), bash("echo two >> page; cat page")]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Bash"]));
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap();
    assert_eq!(response.text, "done");
    let committed = ("Bash".to_owned(), "committed".to_owned());
    assert_eq!(ledger(&world.session), [committed.clone(), committed]);
    let said = said(&world.session);
    let results: Vec<&str> =
        said.iter().filter(|(role, _)| *role == Role::Tool).map(|(_, text)| text.as_str()).collect();
    assert_eq!(results, ["one", "one\ntwo"]);
}

#[test]
fn a_tool_of_the_programs_own_that_fails_leaves_no_trace_in_the_workspace() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let page = world.workspace().join("page");
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "Write", &json!({"file_path": page, "content": "one"}))]),
        Answers::With(vec![call(
            "toolu_2",
            "Bash",
            &json!({"command": "echo two > page; echo x > other; exit 3", "description": "d"}),
        )]),
        Answers::With(vec![call(
            "toolu_3",
            "Bash",
            &json!({"command": "cat page; echo to-stderr >&2", "description": "d"}),
        )]),
        Answers::With(vec![text("done")]),
    ]);
    let options = RunOptions { roll_back_failed: true, ..native(&["Write", "Bash"]) };
    let adapter = world.adapter(&cli, &api, options);
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap();
    assert_eq!(response.text, "done");
    assert_eq!(fs::read_to_string(&page).unwrap(), "one");
    assert!(!world.workspace().join("other").exists());
    let ledger = ledger(&world.session);
    let outcomes: Vec<_> = ledger.iter().map(|(tool, outcome)| (tool.as_str(), outcome.as_str())).collect();
    assert_eq!(outcomes, [("Write", "committed"), ("Bash", "failed"), ("Bash", "committed")]);
    let results = results(api.seen().last().unwrap());
    assert!(results[2].1.contains("one"), "{results:?}");
    assert!(results[1].2, "{results:?}");
    let last = api.seen()[2].to_string();
    assert!(last.contains("was rolled back"), "the model is not told of the rollback: {last}");
}

#[test]
fn a_tool_that_is_not_on_the_list_does_not_run() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let page = world.workspace().join("page");
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "Write", &json!({"file_path": page, "content": "one"}))]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Read"]));
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap();
    assert!(!page.exists());
    assert!(
        ledger(&world.session).iter().all(|(_, outcome)| outcome != "committed"),
        "{:?}",
        ledger(&world.session)
    );
    let results = results(&api.seen()[1]);
    assert!(results[0].2, "{results:?}");
}

#[test]
fn failures_of_the_provider_are_told_apart() {
    let Some(cli) = cli() else { return };
    for (status, name) in [(401, "key"), (429, "throttled"), (529, "throttled"), (404, "model")] {
        let world = World::new();
        let api = Api::answering(vec![Answers::Fails(status)]);
        let adapter = world.adapter(&cli, &api, RunOptions::default());
        let error = adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?")).unwrap_err();
        match name {
            "throttled" => assert!(matches!(error, Error::Throttled { .. }), "{status}: {error:?}"),
            _ => assert!(error.to_string().contains(name), "{status}: {error:?}"),
        }
    }
}

#[test]
fn the_sessions_directory_alone_resumes_elsewhere() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let asked = call("toolu_1", "mcp__wink__weather", &json!({"city": "Oslo"}));
    let api = Api::answering(vec![Answers::With(vec![asked]), Answers::With(vec![text("It snows.")])]);
    let adapter = world.adapter(&cli, &api, RunOptions::default());
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?")).unwrap();
    let (id, dir) = (world.session.id(), world.session.dir().to_owned());
    drop(adapter);
    let World { directory, session, state } = world;
    drop(state);
    session.close().unwrap();

    // Another machine: only the session's directory is there.
    let elsewhere = tempfile::tempdir().unwrap();
    let store = elsewhere.path().join("store");
    Store::open(&store).unwrap();
    copy(&dir, &store.join("sessions").join(id.to_string()));
    drop(directory);
    let types = SessionTypes::builder().build().unwrap();
    let session = Store::open(&store).unwrap().open_session(id, &types).unwrap();
    let world = World::of(elsewhere, session);
    let api = Api::answering(vec![Answers::With(vec![text("Still.")])]);
    let adapter = world.adapter(&cli, &api, RunOptions::default());
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("And now?")).unwrap();
    assert_eq!(response.text, "Still.");
    let request = &api.seen()[0];
    let told = results(request);
    assert_eq!(told, [("toolu_1".to_owned(), "snow".to_owned(), false)], "{request}");
    let texts = request["messages"].to_string();
    assert!(texts.contains("Oslo?") && texts.contains("It snows.") && texts.contains("And now?"), "{texts}");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// The log contains every external input of a run, so a replay needs no program.
#[test]
fn a_run_replays_without_a_program_and_without_a_divergence() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let page = world.workspace().join("page");
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "mcp__wink__weather", &json!({"city": "Oslo"}))]),
        Answers::With(vec![call("toolu_2", "Write", &json!({"file_path": page, "content": "one"}))]),
        Answers::With(vec![call(
            "toolu_3",
            "Bash",
            &json!({"command": "echo two > page; exit 3", "description": "d"}),
        )]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Write", "Bash"]));
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap();
    let dir = world.session.dir().to_owned();
    let requests = api.seen().len();
    let types = SessionTypes::builder().build().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let host = |asked: &str, session: Session| {
        let again = World::at(elsewhere.path(), session);
        adapter.evaluate(&again.1, &again.0, world.asking(asked)).map(|response| response.text)
    };
    let mut texts = Vec::new();
    let report = foldlog_replay::assert_host_replays(&dir, &types, |session| {
        texts.push(host("Write.", session).unwrap());
    });
    assert_eq!(texts, ["done"]);
    assert!(report.compared > 10, "{report:?}");
    assert_eq!(api.seen().len(), requests);
    let log = LogReader::open(&dir).unwrap();
    let changed = foldlog::replay::Replay::new(&log, &types).run(|session| host("Else.", session).map(drop));
    assert!(changed.unwrap_err().to_string().contains("$.content"), "another text of the user");
}

/// Only a live run recorded whether a program started. If none did, a replay waited for an arrival
/// that is not in the log, and diverged. Needs no program.
#[test]
fn a_program_that_does_not_start_is_replayed_without_a_divergence() {
    let world = World::new();
    let nowhere = world.workspace().join("no program");
    let config = ClaudeAgentSDKClientConfig {
        permission_mode: PermissionMode::DontAsk,
        ..ClaudeAgentSDKClientConfig::default()
    };
    let adapter = ClaudeAgentSDKAdapter::new().with_program(nowhere, []).with_client_config(config);
    let evaluate = |state: &foldlog::ExecutionState| {
        adapter.evaluate(&world.prompt(), state, world.asking("Oslo?")).unwrap_err().to_string()
    };
    let error = evaluate(&world.state);
    assert!(error.contains("Claude Code was not found"), "{error}");
    let (types, elsewhere) = (SessionTypes::builder().build().unwrap(), tempfile::tempdir().unwrap());
    let mut again = String::new();
    foldlog_replay::assert_host_replays(world.session.dir(), &types, |session| {
        again = evaluate(&World::at(elsewhere.path(), session).0);
    });
    assert_eq!(again, error);
}

#[test]
fn a_run_is_interrupted_before_its_deadline_and_can_be_resumed() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let of_api = Arc::clone(&asked);
    let api = Api::start(move |_, _| match of_api.fetch_add(1, Ordering::SeqCst) {
        0 => Answers::With(vec![call(
            "toolu_1",
            "Bash",
            &json!({"command": "echo half > page; sleep 60", "description": "d"}),
        )]),
        _ => Answers::With(vec![text("done")]),
    });
    let adapter = world.adapter(&cli, &api, native(&["Bash"]));
    // On a slow machine the command may not have started by then. The run continues with a later
    // deadline.
    for seconds in [6, 12, 24, 48] {
        let mut options = world.asking("Write.");
        options.deadline = Deadline::after(Duration::from_secs(seconds));
        let error = adapter.evaluate(&world.prompt(), &world.state, options).unwrap_err();
        // It may not even have started up.
        let is_throttled = matches!(error, Error::Throttled { .. }) && ledger(&world.session).is_empty();
        assert!(is_throttled || matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
        assert!(!world.workspace().join("page").exists());
        if !ledger(&world.session).is_empty() {
            break;
        }
        asked.store(0, Ordering::SeqCst);
    }
    // A call that an earlier run asked for and did not start is closed as failed by the next one.
    let ledger = ledger(&world.session);
    assert!(!ledger.is_empty() && ledger.iter().all(|(_, outcome)| outcome == "failed"), "{ledger:?}");
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Go on.")).unwrap();
    assert_eq!(response.text, "done");
    let last = api.seen().last().unwrap().to_string();
    assert!(last.contains("Go on.") && last.contains("Write."), "{last}");
}

#[test]
fn a_program_that_is_killed_leaves_a_run_that_is_resumed() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "mcp__wink__weather", &json!({"city": "Oslo"}))]),
        Answers::With(vec![call(
            "toolu_2",
            "Bash",
            &json!({"command": "echo half > page; kill -9 $PPID; sleep 1", "description": "d"}),
        )]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Bash"]));
    let error = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap_err();
    assert!(error.to_string().contains("killed by signal 9"), "{error}");
    assert!(!world.workspace().join("page").exists());
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap();
    assert_eq!(response.text, "done");
    let ran: Vec<_> = ledger(&world.session).into_iter().filter(|(tool, _)| tool == "weather").collect();
    assert_eq!(ran.len(), 1, "a committed call ran twice");
    let told = results(api.seen().last().unwrap());
    assert!(told.contains(&("toolu_1".to_owned(), "snow".to_owned(), false)), "{told:?}");
}

#[test]
fn a_stateful_adapter_remembers_and_forks() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(["one", "two", "three"].map(|said| Answers::With(vec![text(said)])).to_vec());
    let adapter = world
        .adapter(&cli, &api, RunOptions::default())
        .with_state_options(foldlog_agent::adapter_state::AdapterStateOptions::default())
        .stateful();
    let ask = |id: &str| {
        let options = EvaluateOptions { evaluation_id: Some(id.to_owned()), ..world.asking(id) };
        adapter.evaluate(&world.prompt(), &world.state, options).unwrap().text
    };
    assert_eq!(ask("first"), "one");
    let id = adapter.session_id().unwrap();
    assert_eq!(ask("second"), "two");
    assert_eq!(adapter.session_id(), Some(id.clone()));
    assert!(
        api.seen()[1].to_string().contains("first"),
        "the model was told nothing of the first evaluation"
    );
    let fork = adapter.fork_session().unwrap();
    assert_eq!(ask("third"), "three");
    assert_eq!(adapter.session_id(), Some(fork.clone()));
    assert_ne!(fork, id);
    assert!(api.seen()[2].to_string().contains("second"));
    adapter.reset_session();
    assert_eq!(ask("fourth"), "three");
    assert!(!api.seen()[3].to_string().contains("second"), "a fresh session knows of an earlier one");
}
