//! The remains of an earlier process that ended within a run: its program, an open call, and a
//! session that the program no longer has.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::conversation::EntryContent;
use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions, Rebind};
use foldlog::tools::{Question, Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{
    ExecutionState, Idempotency, Outcome, ResourceRegistry, Session, SessionOptions, Settlement, Store,
};
use foldlog_agent::adapter_state::{AdapterResume, ResumeMode, StatefulAdapter};
use foldlog_agent::pairing::{MessageFormat, validate};
use foldlog_agent::{Error, EvaluateOptions, MarkdownSection, Prompt, ResumeFrom};
use foldlog_claude::{ClaudeAgentSDKAdapter, ProgramHome, RunOptions};
use parking_lot::Mutex;
use serde_json::json;

use super::world::{
    Add, EVALUATION, Host, Line, Page, World, adapter_of, asking, native, prompt, state_of, types,
};

pub(super) fn wait_for(file: &Path) {
    let until = Instant::now() + Duration::from_secs(30);
    while !file.exists() {
        assert!(Instant::now() < until, "{} does not come to be", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Copies a directory in its current state. Files may vanish meanwhile.
fn copy(from: &Path, to: &Path) {
    let _ = fs::create_dir_all(to);
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), &target)),
        }
    }
}

fn pid(world: &World, start: usize) -> PathBuf {
    Path::new("/proc").join(world.starts()[start]["pid"].to_string())
}

/// The remains of a killed process: a copy of a run's directories at that moment.
pub(super) struct Left {
    directory: tempfile::TempDir,
    pub(super) session: Session,
}

impl Left {
    pub(super) fn of(world: &World) -> Left {
        Left::found_in(world, Left::take(&world.workspace(), &world.dir()))
    }

    /// Copies a workspace and the directory of a session.
    fn take(workspace: &Path, dir: &Path) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        copy(workspace, &directory.path().join("work"));
        copy(dir, &directory.path().join("left"));
        directory
    }

    /// Opens the copy.
    fn found_in(world: &World, directory: tempfile::TempDir) -> Left {
        let store = Store::open(directory.path().join("store")).unwrap();
        let id = world.dir().file_name().unwrap().to_string_lossy().parse().unwrap();
        fs::create_dir_all(store.session_dir(id).parent().unwrap()).unwrap();
        fs::rename(directory.path().join("left"), store.session_dir(id)).unwrap();
        Left { session: store.open_session(id, &types()).unwrap(), directory }
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// Creates a run over the copied session and workspace.
    pub(super) fn state(&self) -> ExecutionState {
        let (captures, options) = (self.session.dir().join("files"), HostFilesystemOptions::default());
        let files = HostFilesystem::open(self.workspace(), captures, options).unwrap();
        files.rebind(Rebind::Overwrite).unwrap();
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
        ExecutionState::new(self.session.clone(), resources)
    }
}

/// A call of the program's own tools need not be settled: it is rolled back once the program has
/// ended.
#[test]
fn an_interrupted_call_of_the_program_is_undone_behind_its_program_and_the_run_goes_on() {
    let world = World::new(&json!([{"turn": true}, {"model": [
        {"text": "first", "calls": [{"native": "Write", "input": {}, "write": {"page": "whole"}}], "mirror": true},
        // The stand-in writes files in the order of their names: `ready` exists once `page` does.
        {"text": "second", "calls": [{"native": "Write", "input": {}, "write": {"page": "half", "ready": ""}, "gate": "never"}],
            "mirror": true},
        {"text": "$results"},
    ]}]));
    let script = world.stand_in.path("script");
    let adapter = |cwd: &Path| adapter_of(&script, cwd).with_options(native(&["Write"]));
    let (left, state) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            world.run_unreplayed(|host| host.ask_with(&adapter(&world.workspace()), "Go.").map(drop))
        });
        wait_for(&world.workspace().join("ready"));
        let left = Left::of(&world);
        let state = left.state();
        assert!(left.session.calls().is_interrupted() && pid(&world, 0).exists());
        let error = adapter(&left.workspace()).evaluate(&prompt(), &state, asking("Go.")).unwrap_err();
        assert!(
            matches!(error, Error::Engine(foldlog::Error::Interrupted { .. })),
            "nobody recovered: {error:?}"
        );
        assert_eq!(fs::read_to_string(left.workspace().join("page")).unwrap(), "half");
        let recovered = adapter(&left.workspace()).recover(&prompt(), &state).unwrap();
        assert_eq!((recovered.undone.len(), recovered.recovered.len()), (1, 0));
        assert_eq!(recovered.undone[0].tool, "Write");
        assert!(first.join().unwrap().is_err(), "the program outlived the recovery");
        (left, state)
    });
    assert!(!pid(&world, 0).exists());
    assert_eq!(fs::read_to_string(left.workspace().join("page")).unwrap(), "whole");
    assert!(!left.workspace().join("ready").exists());
    assert!(left.session.calls().unsettled_operations().is_empty());
    assert!(adapter(&left.workspace()).recover(&prompt(), &state).unwrap().undone.is_empty());
    let text = adapter(&left.workspace()).evaluate(&prompt(), &state, asking("Go.")).unwrap().text;
    assert!(text.contains("interrupted; its effects were undone"), "{text}");

    // Both processes are replayed, in another workspace; each knows its working directory.
    let (elsewhere, mut texts) = (tempfile::tempdir().unwrap(), Vec::new());
    foldlog_replay::assert_host_replays(left.session.dir(), &types(), |session| {
        let state = state_of(session, &elsewhere.path().join("work"));
        let cwd = if texts.is_empty() { world.workspace() } else { left.workspace() };
        if !texts.is_empty() {
            adapter(&cwd).evaluate(&prompt(), &state, asking("Go.")).unwrap_err();
        }
        adapter(&cwd).recover(&prompt(), &state).unwrap();
        texts.push(adapter(&cwd).evaluate(&prompt(), &state, asking("Go.")).map(|response| response.text));
    });
    assert_eq!((texts.len(), texts[1].as_ref().unwrap()), (2, &text));
    assert_eq!(world.starts().len(), 2);
}

/// The effects of a tool that the prompt no longer has are unknown, so a person decides.
#[test]
fn a_call_of_a_tool_that_is_not_the_programs_waits_for_a_person() {
    let world = World::new(
        &json!([{"turn": true}, {"native": "Other", "input": {}, "write": {"begun": ""}, "gate": "never"}]),
    );
    let script = world.stand_in.path("script");
    let adapter = |cwd: &Path, tools: &[&str]| adapter_of(&script, cwd).with_options(native(tools));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            world.run_unreplayed(|host| {
                host.ask_with(&adapter(&world.workspace(), &["Other"]), "Go.").map(drop)
            })
        });
        wait_for(&world.workspace().join("begun"));
        let left = Left::of(&world);
        let recovered = adapter(&left.workspace(), &["Write"]).recover(&prompt(), &left.state()).unwrap();
        assert_eq!((recovered.undone.len(), recovered.recovered.len()), (0, 1));
        assert_eq!(left.session.calls().unsettled_operations().len(), 1);
        first.join().unwrap().unwrap_err();
    });
}

/// The fork also contains the record of the program's start.
#[test]
fn an_evaluation_in_a_fork_leaves_the_program_of_its_origin_alone() {
    let world = World::new(
        &json!([{"turn": true}, {"text": "one"}, {"touch": "begun"}, {"gate": "goes on"}, {"result": "one"}]),
    );
    std::thread::scope(|scope| {
        let first =
            scope.spawn(|| world.run_unreplayed(|host| host.ask("Go.").map(|response| response.text)));
        wait_for(&world.stand_in.path("begun"));
        let id = world.dir().file_name().unwrap().to_string_lossy().parse().unwrap();
        let position = world.store.open_untyped(id).unwrap().log().position().unwrap();
        let fork = world.store.fork(id, position, &types(), SessionOptions::default()).unwrap();
        world.stand_in.play(&json!([{"turn": true}, {"text": "two"}, {"result": "two"}]));
        let work = world.stand_in.path("work of the fork");
        let adapter = adapter_of(&world.stand_in.path("script"), &work);
        let options = EvaluateOptions { evaluation_id: Some("other".to_owned()), ..asking("Go.") };
        let text = adapter.evaluate(&prompt(), &state_of(fork, &work), options).unwrap().text;
        assert_eq!(text, "two");
        assert!(pid(&world, 0).exists(), "the origin's program was ended");
        world.stand_in.open_gate("goes on");
        assert_eq!(first.join().unwrap().unwrap(), "one");
    });
}

/// The program is killed between the end of a call and the transcript line with the call: twice, so
/// that the second session follows a line that only the log contains.
#[test]
fn a_call_that_committed_is_told_although_no_transcript_holds_it() {
    let add = |text: &str, id: &str| json!({"tool": "add", "input": {"text": text}, "id": id});
    let dies = |text: &str, id: &str| json!([{"turn": true}, {"text": text}, {"mirror": true}, add(text, id), {"die": 9}]);
    let world = World::new(&dies("one", "t1"));
    let story = |host: &Host| host.ask("Go.").map(|response| response.text);
    world.run_unreplayed(story).unwrap_err();
    world.stand_in.play(&dies("two", "t2"));
    world.run_unreplayed(story).unwrap_err();
    world.stand_in.play(&json!([{"turn": true}, {"text": "$results"}, {"result": "$results"}]));
    assert_eq!(world.run_unreplayed(story).unwrap(), "t1: added one|t2: added two");
    assert!(world.argument("--resume").is_some());
    world.replay(story);
    assert_eq!(world.ledger().len(), 2);
}

/// Creates a session of the program that cannot be rewritten: the first mirrored lines are lost.
fn lost() -> World {
    let entry = json!({"type": "assistant", "uuid": "00000000-0000-4000-8000-000000000002",
        "parentUuid": "00000000-0000-4000-8000-000000000001", "message": {"role": "assistant", "content": []}});
    let mirror = json!({"type": "transcript_mirror", "filePath": "/x/$session.jsonl", "entries": [entry]});
    let world = World::new(&json!([{"turn": true}, {"text": "half"}, {"emit": mirror}, {"die": 9}]));
    world.run_unreplayed(|host| host.ask("Go.").map(drop).unwrap_err());
    world.stand_in.play(&json!([{"turn": true}, {"text": "$prompt"}, {"result": "$prompt"}]));
    world
}

#[test]
fn a_session_that_the_program_does_not_know_is_replaced_by_one_that_is_told_the_conversation() {
    let world = lost();
    let story = |host: &Host| host.ask("Go.").map(|response| response.text);
    let text = world.run_unreplayed(story).unwrap();
    assert!(text.starts_with("This is the conversation so far:") && text.contains("half"), "{text}");
    assert_eq!(world.starts().len(), 3, "the program did not refuse the session");
    world.replay(story);
    world.run_unreplayed(|host| {
        let occasions: Vec<String> = host.states().into_iter().map(|state| state.occasion).collect();
        let expected = ["init", "failed", "init", "failed", "expired", "init", "complete"];
        assert_eq!(occasions, expected, "the log does not say what became of the session");
    });
}

#[test]
fn a_host_that_names_a_session_is_told_that_the_program_does_not_know_it() {
    lost().run_unreplayed(|host| {
        let snapshot = host.states().pop().unwrap();
        let resume = AdapterResume { snapshot, mode: ResumeMode::Fork, at_entry: None };
        let options = EvaluateOptions { resume_from: ResumeFrom::Adapter(Box::new(resume)), ..asking("Go.") };
        let error = host.adapter().evaluate(&prompt(), &host.state, options).unwrap_err();
        assert!(matches!(error, Error::SessionExpired { .. }), "{error:?}");
        // Unless the host requires that session, the evaluation continues in a new one.
        assert!(host.ask("Go.").unwrap().text.contains("half"));
        assert!(host.states().iter().any(|state| state.occasion == "expired"));
    });
}

/// The failure was in no record, so a replay waited for a program.
#[test]
fn a_run_that_cannot_be_made_ready_fails_in_the_replay_too() {
    let world = World::new(&json!([]));
    let file = world.stand_in.path("a file");
    fs::write(&file, "").unwrap();
    world.run(|host| {
        let adapter = host.adapter().with_home(ProgramHome::Kept(file.clone()));
        let error = host.ask_with(&adapter, "Go.").unwrap_err();
        assert!(error.to_string().contains("a directory of the run cannot be created"), "{error}");
        assert!(error.to_string().contains("tests:page"), "{error}");
    });
    assert!(world.starts().is_empty());
    world.stand_in.play(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    assert_eq!(world.run_unreplayed(|host| host.ask("Go.").unwrap().text), "ok");
}

/// The log could not show whose call a recovery finds.
#[test]
fn a_tool_of_the_host_must_not_have_the_name_of_one_of_the_program_that_may_run() {
    let world = World::new(&json!([]));
    world.run_unreplayed(|host| {
        let error = host.ask_with(&host.adapter().with_options(native(&["add"])), "Go.").unwrap_err();
        assert!(
            error.to_string().contains("`add` has the same name as an enabled tool of the program"),
            "{error}"
        );
    });
    assert!(world.starts().is_empty());
}

/// Adds a line after an approval.
struct Ask;

impl Tool for Ask {
    const NAME: &'static str = "ask";
    const DESCRIPTION: &'static str = "Adds a line, if somebody agrees.";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        match context.approval() {
            None => Err(ToolError::Ask(Question::new("Add it?"))),
            Some(_) => Add.call(line, context),
        }
    }
}

fn asking_prompt() -> Prompt {
    Prompt::text("tests", "asking")
        .with_section(MarkdownSection::new("task", "Write the page."))
        .with_tools(ToolRegistry::new().with(Ask))
}

/// Recovers, and evaluates until completion; a person approves all questions. Returns the output.
fn finish(adapter: &ClaudeAgentSDKAdapter, state: &ExecutionState) -> String {
    for _ in 0..10 {
        adapter.recover(&asking_prompt(), state).unwrap();
        match adapter.evaluate(&asking_prompt(), state, asking("Go.")) {
            Ok(response) => return response.text,
            Err(Error::Suspended { .. }) => {
                for asked in state.session().calls().pending_questions().unwrap() {
                    state
                        .session()
                        .calls()
                        .settle(asked.operation, &Settlement::approved(asked.digest), "Ada", "")
                        .unwrap();
                }
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    let conversation = state.session().conversation().read(EVALUATION).unwrap().unwrap();
    for entry in conversation.entries() {
        println!("{} {:?}", entry.sequence, entry.content);
    }
    panic!("it asks for ever")
}

/// Wherever the process is killed, the evaluation completes. No call runs without its own approval,
/// no approved call of the host's tool runs twice, and the conversation is valid for a provider.
#[test]
fn a_run_that_asks_ends_well_wherever_its_process_is_killed() {
    let write =
        json!({"native": "Write", "input": {"text": "one"}, "write": {"page": "one"}, "mirror": true});
    let world = World::new(&json!([{"turn": true}, {"model": [
        {"text": "first", "calls": [write], "mirror": true}, {"text": "second", "calls": [write], "mirror": true},
        {"text": "third", "calls": [{"tool": "ask", "input": {"text": "two"}}], "mirror": true}, {"text": "last"},
    ]}]));
    let adapter = |cwd: &Path| {
        let asks = [("Write".to_owned(), Question::new("Write it?"))].into();
        let options = RunOptions { asks, result_within: Duration::from_millis(50), ..native(&["Write"]) };
        adapter_of(&world.stand_in.path("script"), cwd).with_options(options)
    };
    let left = Arc::new(Mutex::new(Vec::new()));
    let text = world.run_unreplayed(|host| {
        let (kept, workspace, dir) = (Arc::clone(&left), world.workspace(), world.dir());
        let subscribed = host.session().log().subscribe(move |_| {
            kept.lock().push(Left::take(&workspace, &dir));
        });
        let text = finish(&adapter(&world.workspace()), &host.state);
        host.session().log().unsubscribe(subscribed);
        text
    });
    assert_eq!(text, "last");
    let left = std::mem::take(&mut *left.lock());
    assert!(left.len() > 40, "{}", left.len());
    for (place, directory) in left.into_iter().enumerate().step_by(2) {
        let left = Left::found_in(&world, directory);
        let state = left.state();
        // If the program had mirrored its last message and the log lacks that answer, the model
        // adds another one.
        let text = finish(&adapter(&left.workspace()), &state);
        assert!(text == "last" || text == "done", "killed behind record {place}: {text}");
        let conversation = left.session.conversation().read(EVALUATION).unwrap().unwrap();
        validate(MessageFormat::Anthropic, &conversation.sent_messages()).unwrap();
        let (mut approved, mut written, mut added) = (0, 0, 0);
        for entry in conversation.entries() {
            match &entry.content {
                EntryContent::CallSettled { committed: None, .. } => approved += 1,
                EntryContent::CallEnded { outcome: Outcome::Committed, tool, .. } if tool == "Write" => {
                    written += 1
                }
                EntryContent::CallEnded { outcome: Outcome::Committed, .. } => added += 1,
                _ => {}
            }
        }
        assert!(
            written + added <= approved,
            "behind {place}: {approved} approvals, {written} and {added} calls"
        );
        assert_eq!(left.session.view::<Page>().unwrap().len(), added, "behind record {place}");
        assert!(
            left.session.calls().unsettled_operations().is_empty()
                && left.session.calls().pending_questions().unwrap().is_empty()
        );
    }
}

/// A command in a session of its own outlived the run, and wrote into the workspace after its
/// rollback.
#[test]
fn a_command_that_the_program_left_running_ends_with_the_run() {
    let leave = json!({"leave": ["setsid", "sleep", "600"]});
    let world = World::new(&json!([{"turn": true}, leave, {"text": "ok"}, {"result": "ok"}]));
    let id = world.run_unreplayed(|host| {
        host.ask("Go.").unwrap();
        host.session().id()
    });
    let left = foldlog_test_support::child::with_variable(&format!("FOLDLOG_RUN={id}-"));
    assert_eq!(left, 0, "a command outlived the run");
    // The program was started with it.
    let given = world.starts()[0]["environment"]["FOLDLOG_RUN"].as_str().unwrap().to_owned();
    assert!(given.starts_with(&format!("{id}-")), "{given}");
}

/// A killed process left the directory of its run among the temporary files forever, including the
/// transcript.
#[test]
fn the_next_run_of_a_session_removes_the_directories_that_killed_ones_left() {
    let world = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    let one = |host: &Host| drop(host.ask("Go.").unwrap());
    world.run_unreplayed(one);
    let mark = world.starts()[0]["environment"]["FOLDLOG_RUN"].as_str().unwrap().to_owned();
    let directory = |mark: &str| std::env::temp_dir().join(format!("foldlog-claude-{mark}-00000001"));
    let (own, others) = (directory(&mark), directory(&uuid::Uuid::new_v4().to_string()));
    for left in [&own, &others] {
        fs::create_dir_all(left.join("config/projects")).unwrap();
        fs::write(left.join("config/projects/said.jsonl"), "{}").unwrap();
    }
    world.run_unreplayed(|host| drop(host.ask("And now?").unwrap()));
    let stay = others.exists();
    fs::remove_dir_all(&others).unwrap();
    assert!(!own.exists() && stay);
}
