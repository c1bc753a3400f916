//! Shows what ends a run early or prevents a tool from running: interrupts, cut answers, lost
//! sessions, other writers, permission modes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::sync::{Mutex, mpsc};

use foldlog::SessionTypes;
use foldlog_agent::adapter_state::{AdapterStateOptions, ResumeMode, StatefulAdapter};
use foldlog_agent::events::PromptExecutions;
use foldlog_agent::provider::CancelToken;
use foldlog_agent::{Error, EvaluateOptions};
use foldlog_claude::{
    ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig, DEFAULT_MODEL, PermissionMode, ProgramHome,
    RunOptions,
};
use serde_json::json;

use crate::api::{Answers, Api, call, text};
use crate::recovery::wait_for;
use crate::world::{Store, World, cli, config, resuming};
use crate::{copy, ledger, native, results};

#[test]
fn a_run_that_is_cancelled_within_a_command_leaves_no_trace_and_is_resumed() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let command = "echo half > page; echo > ../started; sleep 100";
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "Bash", &json!({"command": command, "description": "d"}))]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Bash"]));
    let cancel = CancelToken::new();
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let options = EvaluateOptions { cancel: cancel.clone(), ..world.asking("Write.") };
            adapter.evaluate(&world.prompt(), &world.state, options)
        });
        wait_for(&world.directory.path().join("started"));
        cancel.cancel();
        run.join().unwrap()
    });
    assert!(matches!(ran, Err(Error::Cancelled)), "{ran:?}");
    assert!(!world.workspace().join("page").exists());
    assert_eq!(ledger(&world.session), [("Bash".to_owned(), "failed".to_owned())]);
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Go on.")).unwrap();
    assert_eq!(response.text, "done");
}

#[test]
fn an_answer_that_is_cut_is_asked_for_again_and_nothing_of_it_stays() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let page = world.workspace().join("page");
    let write = call("toolu_1", "Write", &json!({"file_path": page, "content": "one"}));
    let api = Api::answering(vec![
        Answers::Cut(vec![write.clone()]),
        Answers::With(vec![write]),
        Answers::Cut(vec![text("half an answer, which nobody reads")]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Write"]));
    let mut ran = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write."));
    if ran.is_err() {
        ran = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write."));
    }
    assert_eq!(ran.unwrap().text, "done");
    assert_eq!(fs::read_to_string(page).unwrap(), "one");
    let committed = ledger(&world.session).into_iter().filter(|(_, outcome)| outcome == "committed").count();
    assert_eq!(committed, 1, "{:?}", ledger(&world.session));
}

#[test]
fn a_session_that_the_program_has_lost_is_replaced_by_one_that_is_told_the_conversation() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(vec![Answers::With(vec![text("It snows.")])]);
    let adapter = world.adapter(&cli, &api, RunOptions::default());
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Oslo?")).unwrap();
    // The adapter writes nothing back into a user's home.
    let home = tempfile::tempdir().unwrap();
    let mut client = config(&world.workspace(), &api.url());
    client.env.insert(OsString::from("HOME"), home.path().as_os_str().to_owned());
    let adapter = adapter.with_home(ProgramHome::Users).with_client_config(client);
    let first = adapter.evaluate(&world.prompt(), &world.state, world.asking("And now?"));
    // Either the program reports that it lost the session, or the loss is noticed before. The next
    // session is fresh.
    if !matches!(first, Ok(_) | Err(Error::SessionExpired { .. })) {
        panic!("{first:?}");
    }
    adapter.evaluate(&world.prompt(), &world.state, world.asking("And now?")).unwrap();
    let seen = api.seen().last().unwrap()["messages"].to_string();
    for said in ["Oslo?", "It snows.", "And now?"] {
        assert!(seen.contains(said), "{seen}");
    }
}

#[test]
fn two_runs_do_not_write_into_one_session_of_the_program() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let (began, has_began) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (began, may_go_on) = (Mutex::new(began), Mutex::new(may_go_on));
    let api = Api::start(move |_, number| {
        if number == 1 {
            began.lock().unwrap().send(()).unwrap();
            // The test may have failed meanwhile.
            let _ = may_go_on.lock().unwrap().recv();
        }
        Answers::With(vec![text("Yes.")])
    });
    let kept = tempfile::tempdir().unwrap();
    let states = AdapterStateOptions { resume_mode: ResumeMode::Continue, ..resuming() };
    let adapter = |world: &World| {
        let home = ProgramHome::Kept(kept.path().to_owned());
        world.adapter(&cli, &api, RunOptions::default()).with_home(home).with_state_options(states.clone())
    };
    adapter(&world).evaluate(&world.prompt(), &world.state, world.asking("One?")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = Store::open(elsewhere.path().join("store")).unwrap();
    let id = world.session.id();
    copy(world.session.dir(), &store.session_dir(id));
    let session = store.open_session(id, &SessionTypes::builder().build().unwrap()).unwrap();
    let other = World::of(elsewhere, session);
    std::thread::scope(|scope| {
        let first =
            scope.spawn(|| adapter(&world).evaluate(&world.prompt(), &world.state, world.asking("Two?")));
        has_began.recv().unwrap();
        let second = adapter(&other).evaluate(&other.prompt(), &other.state, other.asking("Three?"));
        drop(go_on);
        let error = second.unwrap_err().to_string();
        assert!(error.contains("another run uses the program's session"), "{error}");
        assert_eq!(first.join().unwrap().unwrap().text, "Yes.");
    });
    // It can be resumed once the first run is over.
    let response = adapter(&other).evaluate(&other.prompt(), &other.state, other.asking("Three?")).unwrap();
    assert_eq!(response.text, "Yes.");
}

#[test]
fn no_permission_mode_lets_a_tool_run_that_is_not_named() {
    let Some(cli) = cli() else { return };
    use PermissionMode::{AcceptEdits, Default, DontAsk};
    for permission_mode in [Default, AcceptEdits, DontAsk] {
        let world = World::new();
        let page = world.workspace().join("page");
        let bash = json!({"command": "echo x > other", "description": "d"});
        let api = Api::answering(vec![
            Answers::With(vec![call("toolu_1", "Bash", &bash)]),
            Answers::With(vec![call("toolu_2", "Write", &json!({"file_path": page, "content": "one"}))]),
            Answers::With(vec![text("done")]),
        ]);
        let client = ClaudeAgentSDKClientConfig { permission_mode, ..config(&world.workspace(), &api.url()) };
        let adapter = world.adapter(&cli, &api, native(&["Write"])).with_client_config(client);
        let ran = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap();
        assert_eq!(ran.text, "done");
        assert!(!world.workspace().join("other").exists(), "{permission_mode}");
        assert_eq!(fs::read_to_string(page).unwrap(), "one", "{permission_mode}");
        let results: BTreeMap<_, _> =
            results(&api.seen()[2]).into_iter().map(|(id, _, is_error)| (id, is_error)).collect();
        assert_eq!((results["toolu_1"], results["toolu_2"]), (true, false), "{permission_mode}");
    }
}

/// As root the program refuses to run without permission prompts.
#[test]
fn a_mode_that_the_program_refuses_is_named_with_what_to_do() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(vec![Answers::With(vec![text("done")])]);
    let permission_mode = PermissionMode::BypassPermissions;
    let client = ClaudeAgentSDKClientConfig { permission_mode, ..config(&world.workspace(), &api.url()) };
    let adapter = world.adapter(&cli, &api, RunOptions::default()).with_client_config(client);
    let options: EvaluateOptions<'_> = world.asking("Oslo?");
    match adapter.evaluate(&world.prompt(), &world.state, options) {
        Ok(response) => assert!(!rustix::process::getuid().is_root(), "{response:?}"),
        Err(error) => assert!(error.to_string().contains("choose `dontAsk`"), "{error}"),
    }
}

/// Version 2.1.100 does not report the difference, so its cost was assumed to include earlier runs.
/// In fact it counts from zero in each process, whether it continues in its own session and
/// directory, or in a copy from the log alone.
#[test]
fn a_resumed_run_costs_what_it_used_itself() {
    let Some(cli) = cli() else { return };
    for is_kept in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let types = foldlog_agent::events::declare(SessionTypes::builder()).build().unwrap();
        let session = Store::open(directory.path().join("store")).unwrap().create(&types).unwrap();
        let world = World::of(directory, session);
        let api = Api::answering(vec![Answers::With(vec![text("It snows.")])]);
        // Every version knows its price.
        let model = Some(DEFAULT_MODEL.to_owned());
        let model = ClaudeAgentSDKModelConfig { model, ..ClaudeAgentSDKModelConfig::default() };
        let adapter = world.adapter(&cli, &api, RunOptions::default()).with_model_config(model);
        let adapter = match is_kept {
            true => adapter
                .with_state_options(AdapterStateOptions::default())
                .stateful()
                .with_home(ProgramHome::Kept(world.directory.path().join("kept"))),
            false => adapter,
        };
        for asked in ["Oslo?", "And now?"] {
            adapter.evaluate(&world.prompt(), &world.state, world.asking(asked)).unwrap();
        }
        assert!(api.seen()[1].to_string().contains("Oslo?"), "the session was not resumed");
        let executed = world.session.log().slice::<PromptExecutions>().unwrap();
        let costs: Vec<_> = executed.iter().map(|one| one.unwrap().cost_micros).collect();
        // 100 tokens of input and 20 of output.
        assert_eq!(costs, [Some(600), Some(600)], "kept: {is_kept}");
    }
}
