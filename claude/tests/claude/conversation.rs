//! Shows the program's start options, its requests to the model, and the texts that the model gets.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::provider::CancelToken;
use foldlog_agent::{Deadline, Error, EvaluateOptions, EvaluationPhase};
use foldlog_claude::{
    ClaudeAgentSDKClientConfig, ClaudeVersion, DEFAULT_MODEL, ProgramHome, RunOptions, SettingSource,
};
use serde_json::json;

use crate::api::{Answers, Api, call, text};
use crate::recovery::wait_for;
use crate::world::{World, cli, config};
use crate::{ledger, native, results, said};

/// The specification's default model was retired. A run asked for it, and failed.
#[test]
fn the_program_chooses_the_model_and_a_prompt_is_sent_as_it_is() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(vec![Answers::With(vec![text("It snows.")])]);
    let adapter = world.adapter(&cli, &api, RunOptions::default());
    // Older versions took this prompt for a command, and sent instructions of their own or nothing.
    let asked = "/review of the weather";
    assert_eq!(
        adapter.evaluate(&world.prompt(), &world.state, world.asking(asked)).unwrap().text,
        "It snows."
    );
    let request = &api.seen()[0];
    assert_ne!(request["model"], DEFAULT_MODEL);
    let sent = request["messages"].to_string();
    assert!(sent.contains(asked) && !sent.contains("command-name"), "{sent}");
    assert_eq!(said(&world.session)[1].1, asked);
    assert!(ClaudeVersion::parse(&adapter.program_version().unwrap()).is_some());
}

/// The program reported a call that the host stopped as rejected by the user.
#[test]
fn a_call_that_was_cancelled_is_not_said_to_be_rejected() {
    [false, true].into_iter().for_each(|is_kept| stop_a_call(false, is_kept));
}

#[test]
fn a_call_whose_deadline_is_over_is_not_said_to_be_rejected() {
    stop_a_call(true, false);
}

/// Stops a command, by a deadline or by the host, and continues the conversation.
fn stop_a_call(by_deadline: bool, is_kept: bool) {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let asked = AtomicUsize::new(0);
    let api = Api::start(move |_, _| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Answers::With(vec![call(
            "toolu_1",
            "Bash",
            &json!({"command": "echo half > page; echo > ../started; sleep 60", "description": "d"}),
        )]),
        _ => Answers::With(vec![text("done")]),
    });
    let adapter = world.adapter(&cli, &api, native(&["Bash"]));
    let adapter = match is_kept {
        true => adapter.with_home(ProgramHome::Kept(world.directory.path().join("kept"))),
        false => adapter,
    };
    let cancel = CancelToken::new();
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let mut options = EvaluateOptions { cancel: cancel.clone(), ..world.asking("Write.") };
            if by_deadline {
                options.deadline = Deadline::after(std::time::Duration::from_secs(15));
            }
            adapter.evaluate(&world.prompt(), &world.state, options)
        });
        wait_for(&world.directory.path().join("started"));
        if !by_deadline {
            cancel.cancel();
        }
        run.join().unwrap()
    });
    let (is_expected, what) = match &ran {
        Err(Error::DeadlineExceeded { phase: EvaluationPhase::Tool }) => {
            (by_deadline, "reached its deadline")
        }
        other => (!by_deadline && matches!(other, Err(Error::Cancelled)), "was interrupted"),
    };
    assert!(is_expected, "{ran:?}");
    let told = said(&world.session).pop().unwrap().1;
    assert!(told.starts_with(&format!("The run {what} before this call ended.")), "{told}");
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Go on.")).unwrap();
    assert_eq!(response.text, "done");
    let request = api.seen().pop().unwrap();
    assert_eq!(results(&request), [("toolu_1".to_owned(), told, true)]);
    let sent = request["messages"].to_string();
    assert!(!sent.contains("rejected") && !sent.contains("by user"), "{sent}");
}

/// Versions before 2.1.330 take the start of an answer for the answer.
#[test]
fn an_answer_that_is_cut_behind_its_text_is_no_output() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api =
        Api::answering(vec![Answers::Unended(vec![text("half an answ")]), Answers::With(vec![text("done")])]);
    let adapter = world.adapter(&cli, &api, RunOptions::default());
    let evaluate = || adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?"));
    let response = match evaluate() {
        Ok(response) => response,
        Err(error) => {
            assert_eq!(error.phase(), Some(EvaluationPhase::Response), "{error:?}");
            evaluate().unwrap()
        }
    };
    assert_eq!(response.text, "done");
}

#[test]
fn a_reading_tool_that_fails_is_not_said_to_be_rolled_back() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let nowhere = world.workspace().join("nowhere");
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "Read", &json!({"file_path": nowhere}))]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Read"]));
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Read.")).unwrap();
    let request = &api.seen()[1];
    assert!(results(request)[0].2, "{request}");
    assert!(!request["messages"].to_string().contains("rolled back"), "{request}");
}

#[test]
fn tools_that_the_version_does_not_offer_are_refused() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(vec![Answers::With(vec![text("done")])]);
    let adapter = world.adapter(&cli, &api, native(&["Read", "NoSuchTool"]));
    let error = adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?")).unwrap_err();
    assert!(error.to_string().contains("offers no tool `NoSuchTool`"), "{error}");
    let before = api.seen().len();
    let init = adapter.inspect(&["Read", "NoSuchTool", "Task", "Glob"].map(str::to_owned)).unwrap();
    assert_eq!(init.tools, ["Task", "Glob", "Read"]);
    let unasked = adapter.inspect(&["default".to_owned()]).unwrap().tools;
    assert!(
        ["Bash", "Edit", "Write"].iter().all(|name| unasked.iter().any(|one| one == name)),
        "{unasked:?}"
    );
    assert_eq!(api.seen().len(), before, "the model was asked");
}

#[test]
fn task_is_another_name_of_agent() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let agent = json!({"description": "d", "prompt": "Look around.", "subagent_type": "general-purpose"});
    let api = Api::start(move |request, _| match request["messages"].to_string() {
        messages if messages.contains("toolu_1") => Answers::With(vec![text("done")]),
        messages if messages.contains("Look around.") => Answers::With(vec![text("looked")]),
        _ => Answers::With(vec![call("toolu_1", "Agent", &agent)]),
    });
    let adapter = world.adapter(&cli, &api, native(&["Task"]));
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Go.")).unwrap();
    let (_, told, is_error) = results(api.seen().last().unwrap()).remove(0);
    assert!(told.contains("looked") && !is_error, "{told}");
}

/// A server over standard input and output whose one tool writes a file.
const SERVER: &str = r#"while read -r line; do
  id=$(sed -n 's/.*"id":\([0-9]*\).*/\1/p' <<<"$line")
  case $line in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"p","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"poke","description":"Pokes.","inputSchema":{"type":"object","properties":{}}}]}' ;;
    *'"tools/call"'*) echo poked > poked; result='{"content":[{"type":"text","text":"poked it"}]}' ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

#[test]
fn options_let_the_program_read_the_project_and_start_its_servers() {
    let Some(cli) = cli() else { return };
    for reads in [true, false] {
        let world = World::new();
        let workspace = world.workspace();
        fs::write(workspace.join("CLAUDE.md"), "Rule of this project: say banana.").unwrap();
        fs::write(workspace.join("server"), SERVER).unwrap();
        let servers = json!({"mcpServers": {"p": {"command": "bash", "args": ["server"]}}});
        fs::write(workspace.join(".mcp.json"), servers.to_string()).unwrap();
        let api = Api::answering(vec![
            Answers::With(vec![call("toolu_1", "mcp__p__poke", &json!({}))]),
            Answers::With(vec![text("done")]),
        ]);
        let mut client = config(&workspace, &api.url());
        if reads {
            let setting_sources = vec![SettingSource::Project, SettingSource::Local];
            client = ClaudeAgentSDKClientConfig { setting_sources, project_servers: true, ..client };
        }
        let adapter = world.adapter(&cli, &api, native(&["Read", "mcp__p__poke"])).with_client_config(client);
        let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Poke.")).unwrap();
        assert_eq!(response.text, "done");
        assert_eq!(api.seen()[0].to_string().contains("say banana"), reads);
        assert_eq!(workspace.join("poked").exists(), reads);
        let committed = ("mcp__p__poke".to_owned(), "committed".to_owned());
        assert_eq!(ledger(&world.session).contains(&committed), reads, "{:?}", ledger(&world.session));
    }
}
