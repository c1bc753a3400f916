//! Shows the recovery of a run whose process ends within a call of the program's own tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use foldlog::Settlement;
use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions, Rebind};
use foldlog::process::ProcessIdentity;
use foldlog::tools::{Question, Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{ExecutionState, ResourceRegistry, Session, SessionTypes};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{Error, MarkdownSection, Prompt};
use foldlog_claude::{ProgramHome, RunOptions};
use serde_json::json;

use crate::api::{Answers, Api, call, text};
use crate::world::{City, Store, Weather, World, cli};
use crate::{copy, ledger, native, results};

/// Waits until a condition is true.
fn wait_until(is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "it does not come to be");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn wait_for(file: &Path) {
    wait_until(|| file.exists());
}

/// Makes a run whose workspace is a copy of the logged one.
fn moved(directory: tempfile::TempDir, session: Session) -> World {
    let options = HostFilesystemOptions::default();
    let files =
        HostFilesystem::open(directory.path().join("workspace"), session.dir().join("files"), options)
            .unwrap();
    files.rebind(Rebind::Overwrite).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let state = ExecutionState::new(session.clone(), resources);
    World { directory, session, state }
}

/// The directories of a run are copied while a command of the program runs. That is the state that
/// a killed process leaves, and its program continues to run.
#[test]
fn an_interrupted_call_of_the_program_is_undone_and_the_run_goes_on() {
    let Some(cli) = cli() else { return };
    let first = World::new();
    let page = first.workspace().join("page");
    let command = "echo half > page; echo > ../started; sleep 100";
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "Write", &json!({"file_path": page, "content": "whole"}))]),
        Answers::With(vec![call("toolu_2", "Bash", &json!({"command": command, "description": "d"}))]),
    ]);
    let types = SessionTypes::builder().build().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = Store::open(elsewhere.path().join("store")).unwrap();
    let (ended, is_ended) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let adapter = first.adapter(&cli, &api, native(&["Write", "Bash"]));
            let ran = adapter.evaluate(&first.prompt(), &first.state, first.asking("Write."));
            ended.send(ran.map(|response| response.text)).unwrap();
        });
        wait_for(&first.directory.path().join("started"));
        copy(&first.workspace(), &elsewhere.path().join("workspace"));
        copy(
            first.session.dir(),
            &elsewhere.path().join("store/sessions").join(first.session.id().to_string()),
        );

        let session = store.open_session(first.session.id(), &types).unwrap();
        assert!(session.calls().is_interrupted());
        let second = moved(elsewhere, session);
        assert_eq!(fs::read_to_string(second.workspace().join("page")).unwrap(), "half\n");
        let api = Api::answering(vec![Answers::With(vec![text("done")])]);
        let adapter = second.adapter(&cli, &api, native(&["Write", "Bash"]));
        let recovered = adapter.recover(&second.prompt(), &second.state).unwrap();
        let tools: Vec<&str> = recovered.undone.iter().map(|one| one.tool.as_str()).collect();
        assert_eq!((tools, recovered.recovered.len()), (vec!["Bash"], 0));
        let gone = is_ended.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(gone.is_err(), "the program of the first process outlived the recovery: {gone:?}");
        assert_eq!(fs::read_to_string(second.workspace().join("page")).unwrap(), "whole");

        let response = adapter.evaluate(&second.prompt(), &second.state, second.asking("Write.")).unwrap();
        assert_eq!(response.text, "done");
        let told = results(&api.seen()[0]);
        let bash = told.iter().find(|(id, ..)| id == "toolu_2").unwrap();
        assert!(bash.1.contains("interrupted; its effects were undone") && bash.2, "{told:?}");
        let outcomes: Vec<_> = ledger(&second.session);
        assert_eq!(outcomes.len(), 2, "{outcomes:?}");
        assert_eq!(adapter.recover(&second.prompt(), &second.state).unwrap().undone.len(), 0);

        let (again, mut texts) = (tempfile::tempdir().unwrap(), Vec::new());
        foldlog_replay::assert_host_replays(second.session.dir(), &types, |session| {
            let (state, prompt) = World::at(again.path(), session);
            // The first process worked in another directory.
            let adapter = if texts.is_empty() {
                first.adapter(&cli, &api, native(&["Write", "Bash"]))
            } else {
                second.adapter(&cli, &api, native(&["Write", "Bash"]))
            };
            adapter.recover(&prompt, &state).unwrap();
            texts.push(
                adapter.evaluate(&prompt, &state, second.asking("Write.")).map(|response| response.text),
            );
        });
        assert_eq!(texts.len(), 2);
        assert_eq!(texts[1].as_deref().unwrap(), "done");
    });
}

/// The program does not run calls of an earlier run, so the model learns of the approval and calls
/// again.
#[test]
fn a_call_of_the_program_waits_for_a_person_and_passes_once_it_is_approved() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let bash = |id: &str| call(id, "Bash", &json!({"command": "echo one > page", "description": "d"}));
    let api = Api::answering(vec![
        Answers::With(vec![text("I write."), bash("toolu_1")]),
        Answers::With(vec![bash("toolu_2")]),
        Answers::With(vec![text("done")]),
    ]);
    let asks = [("Bash".to_owned(), Question::new("Run it?"))].into();
    let adapter = world.adapter(&cli, &api, RunOptions { asks, ..native(&["Bash"]) });
    let evaluate = || adapter.evaluate(&world.prompt(), &world.state, world.asking("Write."));
    let error = evaluate().unwrap_err();
    assert!(matches!(error, Error::Suspended { .. }), "{error:?}");
    assert!(!world.workspace().join("page").exists());
    let asked = world.session.calls().pending_questions().unwrap().remove(0);
    world.session.calls().settle(asked.operation, &Settlement::approved(asked.digest), "Ada", "").unwrap();
    assert_eq!(evaluate().unwrap().text, "done");
    assert_eq!(fs::read_to_string(world.workspace().join("page")).unwrap(), "one\n");
    let told = results(&api.seen()[1]);
    assert!(told[0].0 == "toolu_1" && told[0].1.contains("was approved") && told.len() == 1, "{told:?}");
    assert_eq!(api.seen().len(), 3);
    let outcomes: Vec<String> = ledger(&world.session).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["failed", "committed"]);
}

/// Kills the program that calls it, and succeeds.
struct Kill(PathBuf);

impl Tool for Kill {
    const NAME: &'static str = "kill";
    const DESCRIPTION: &'static str = "Kills.";
    type Parameters = City;
    type Output = ();

    fn call(&self, _: City, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        // The program writes a little later.
        wait_until(|| file_in(&self.0).is_some());
        let mut pid = None;
        context.session().inputs().observations("claude.started", &mut |_,
                                                                         started: Option<
            ProcessIdentity,
        >| {
            pid = started.map(|started| started.pid.to_string());
            Ok(())
        })?;
        let killed = Command::new("kill").args(["-9", &pid.unwrap_or_default()]).status()?;
        assert!(killed.success());
        Ok(ToolResult::ok("killed", ()))
    }
}

/// Finds the transcript below a directory of the program.
fn file_in(kept: &Path) -> Option<PathBuf> {
    let projects = fs::read_dir(kept.join("projects")).ok()?.flatten();
    let files = projects.filter_map(|project| Some(fs::read_dir(project.path()).ok()?.flatten())).flatten();
    let mut files = files.map(|file| file.path());
    files.find(|file| file.extension().is_some_and(|it| it == "jsonl"))
}

/// The call was committed, but no line of the transcript contains it, since the program writes
/// late.
#[test]
fn a_call_that_committed_is_told_although_the_transcript_lacks_it() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let kept = world.directory.path().join("kept");
    let prompt = Prompt::text("tests", "killing")
        .with_section(MarkdownSection::new("task", "Kill."))
        .with_tools(ToolRegistry::new().with(Weather).with(Kill(kept.clone())));
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "mcp__wink__weather", &json!({"city": "Oslo"}))]),
        Answers::With(vec![call("toolu_2", "mcp__wink__kill", &json!({"city": "Oslo"}))]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&[])).with_home(ProgramHome::Kept(kept.clone()));
    adapter.evaluate(&prompt, &world.state, world.asking("Kill.")).unwrap_err();
    let file = file_in(&kept).unwrap();
    let lines = fs::read_to_string(&file).unwrap();
    let early: Vec<&str> = lines.lines().filter(|line| !line.contains("toolu_2")).collect();
    fs::write(&file, early.join("\n")).unwrap();
    assert_eq!(adapter.evaluate(&prompt, &world.state, world.asking("Kill.")).unwrap().text, "done");
    let told = results(api.seen().last().unwrap());
    let texts: Vec<&str> = told.iter().map(|(_, text, _)| text.as_str()).collect();
    assert_eq!(texts, ["snow", "killed"], "{told:?}");
}

/// Two calls of one answer, of which the second has no result in the transcript.
#[test]
fn each_call_of_an_answer_has_its_result_behind_a_kill() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let page = world.workspace().join("page");
    let api = Api::answering(vec![
        Answers::With(vec![
            call("toolu_1", "Write", &json!({"file_path": page, "content": "one"})),
            call(
                "toolu_2",
                "Bash",
                &json!({"command": "sleep 0.3; kill -9 $PPID; sleep 1", "description": "d"}),
            ),
        ]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Write", "Bash"]));
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap_err();
    assert_eq!(adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap().text, "done");
    let told = results(api.seen().last().unwrap());
    let failed: std::collections::BTreeMap<&str, bool> =
        told.iter().map(|(id, _, failed)| (id.as_str(), *failed)).collect();
    assert_eq!(failed, [("toolu_1", false), ("toolu_2", true)].into(), "{told:?}");
    let written = ledger(&world.session).into_iter().filter(|(tool, _)| tool == "Write").count();
    assert_eq!(written, 1);
}
