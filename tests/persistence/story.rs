//! Four days of an agent in a few seconds: hundreds of tasks and thousands of calls, crashes within
//! calls and between them, three machines, a disk that loses a sector. At the end, everything
//! equals a model that does not know any of these events.
//!
//! `FOLDLOG_STORY=whole` plays 400 tasks and 4,000 calls; the default is a tenth of that. Both have
//! 30 crashes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use foldlog::filesystem::Filesystem;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Outcome, Session, Store};
use foldlog_tasks::{
    ArtifactBuilt, ArtifactKind, Artifacts, BuildArtifact, CheckpointManager, CheckpointPolicy,
    CrashRecoveryManager, ExecutionEvent, NewTask, RecoveryAction, RecoveryActions, RecoveryStrategy,
    RestoreOptions, RetentionPolicy, SessionState, StateValidator, TaskCreated, TaskStatus,
    TaskStatusChanged, Tasks,
};
use foldlog_test_support::child;

use crate::agent::{self, Agent};
use crate::checkpoints::kills::{copy, frames};
use crate::{BEGIN_US, id, quick_directory};

const CALLS_OF_TASK: usize = 10;
const CRASHES: usize = 30;
const DAY_US: i64 = 86_400_000_000;
/// Tasks of one group have one parent, and are created together.
const GROUP: usize = 10;

fn tasks_len() -> usize {
    if std::env::var("FOLDLOG_STORY").is_ok_and(|size| size == "whole") { 400 } else { 40 }
}

fn name(task: usize) -> String {
    format!("t{task:03}")
}

fn fails_at_first(task: usize) -> bool {
    task % 7 == 2
}

fn is_skipped(task: usize) -> bool {
    task % 11 == 5
}

fn is_cancelled(task: usize) -> bool {
    task % 13 == 6
}

fn converses(task: usize) -> bool {
    task % 8 == 3
}

fn call_fails(task: usize, call: usize) -> bool {
    call == 3 && task % 5 == 1
}

fn path_of(task: usize, call: usize) -> String {
    format!("f{}.txt", (task * 7 + call) % 12)
}

/// The final result, independent of all events in between.
#[derive(Debug, Default, PartialEq)]
struct Told {
    /// Tasks with their state, the number of their starts, and the number of their failures.
    tasks: BTreeMap<String, (TaskStatus, u32, u32)>,
    /// Calls, and whether they succeeded.
    calls: BTreeMap<String, bool>,
    files: BTreeMap<String, String>,
    /// Last message of each conversation, and the number of messages.
    said: BTreeMap<String, (String, usize)>,
}

impl Told {
    fn by_the_model() -> Told {
        let mut told = Told::default();
        for task in 0..tasks_len() {
            if is_skipped(task) {
                told.tasks.insert(name(task), (TaskStatus::Skipped, 0, 0));
                continue;
            }
            for call in 0..CALLS_OF_TASK {
                let (label, fails) = (format!("{}/{call}", name(task)), call_fails(task, call));
                if !fails {
                    told.files.insert(path_of(task, call), label.clone());
                }
                told.calls.insert(label, !fails);
            }
            if converses(task) {
                told.files.insert(format!("m{}.txt", task % 4), "by the model".to_owned());
                told.said.insert(name(task), ("It is written.".to_owned(), 5));
            }
            let status = if is_cancelled(task) { TaskStatus::Cancelled } else { TaskStatus::Completed };
            let failures = u32::from(fails_at_first(task));
            told.tasks.insert(name(task), (status, 1 + failures, failures));
        }
        told
    }

    fn of(state: &SessionState, workspace: &Path) -> Told {
        let tasks = state.task_tree.tasks.values();
        let tasks = tasks.map(|one| (one.id.to_string(), (one.status, one.attempts, one.failures)));
        let calls = state.file_system.build_artifacts.values();
        let calls = calls.map(|one| (one.name.clone(), one.success));
        let said = state.claude_context.conversation_history.conversations.iter();
        let said = said.filter_map(|one| {
            let last = one.messages.last()?.content.clone().unwrap_or_default();
            Some((one.evaluation_id.clone(), (last, one.messages.len())))
        });
        let (tasks, calls, said) = (tasks.collect(), calls.collect(), said.collect());
        Told { tasks, calls, files: files_in(workspace), said }
    }
}

fn files_in(workspace: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(workspace).unwrap().map(|entry| entry.unwrap());
    let files = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()));
    files.collect()
}

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crash {
    /// Within a call, after it has written its file.
    Within,
    /// After a call, before the next step.
    Between,
    /// Anywhere, once a call has ended.
    Anywhere,
}

/// Ends a life once this many calls have started in it.
#[derive(Clone, Copy)]
struct Stop {
    calls: usize,
    crash: Crash,
}

fn wait_for_the_kill() {
    child::tell("ready", "to be killed");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    panic!("nobody killed this process");
}

#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Step {
    task: usize,
    call: usize,
    stops: bool,
}

/// A tool that writes a file, and reports that within the call.
struct Work;

impl Tool for Work {
    const NAME: &'static str = "work";
    const DESCRIPTION: &'static str = "Does a step of a task.";
    type Parameters = Step;
    type Output = ();

    fn call(&self, step: Step, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        let label = format!("{}/{}", name(step.task), step.call);
        files.write(&path_of(step.task, step.call), label.as_bytes())?;
        context
            .session()
            .dispatch(done(&label, true))
            .map_err(|error| ToolError::failed(error.to_string()))?;
        if step.stops {
            wait_for_the_kill();
        }
        if call_fails(step.task, step.call) {
            return Err(ToolError::failed("it does not compile"));
        }
        Ok(ToolResult::ok("done", ()))
    }
}

fn done(label: &str, success: bool) -> ArtifactBuilt {
    let (name, kind, summary) = (label.to_owned(), ArtifactKind::Compilation, String::new());
    let (path, digest, bytes, task) = (None, None, None, None);
    ArtifactBuilt { artifact: BuildArtifact { name, kind, success, summary, path, digest, bytes, task } }
}

/// One life of the agent, which continues the work that its session lists.
struct Life {
    agent: Agent,
    manager: CheckpointManager,
    stop: Option<Stop>,
    calls: usize,
}

impl Life {
    fn new(agent: Agent, stop: Option<Stop>) -> Life {
        let policy = CheckpointPolicy { every_updates: Some(40), ..CheckpointPolicy::default() };
        let retention = RetentionPolicy { count: Some(6), ..RetentionPolicy::default() };
        let manager = agent.manager().with_policy(policy).with_retention(retention);
        Life { agent, manager, stop, calls: 0 }
    }

    fn session(&self) -> &Session {
        &self.agent.session
    }

    fn status(&self, task: usize) -> Option<(TaskStatus, u32)> {
        let tasks = self.session().view::<Tasks>().unwrap();
        tasks.find(&id(&name(task))).unwrap().map(|task| (task.status, task.failures))
    }

    fn change(&self, task: usize, old_status: TaskStatus, new_status: TaskStatus) {
        let task_id = id(&name(task));
        self.manager.dispatch(TaskStatusChanged { task_id, old_status, new_status, reason: None }).unwrap();
    }

    /// Goes back to the latest checkpoint, once, halfway through the story.
    fn restores(&self) -> bool {
        let actions = self.session().log().slice::<RecoveryActions>().unwrap();
        let is_done = |action: &str| actions.iter().any(|one| one.unwrap().action == action);
        if is_done(RecoveryAction::RESTORED) {
            return false;
        }
        let latest = self.manager.latest().unwrap().unwrap().id;
        let (by, reason) = ("ada".to_owned(), "the second day went wrong".to_owned());
        let options = RestoreOptions { by, reason, with_resources: true, ..RestoreOptions::default() };
        child::tell("restores", latest);
        self.manager.restore_from_checkpoint(latest, &options).unwrap();
        child::tell("restored", self.session().view::<Artifacts>().unwrap().iter().count());
        true
    }

    fn work(&mut self) {
        let mut task = 0;
        while task < tasks_len() {
            if task == tasks_len() / 2 && self.restores() {
                task = 0;
                continue;
            }
            self.agent.clock.set_us(BEGIN_US + 4 * DAY_US * (task as i64 + 1) / tasks_len() as i64);
            self.create_group(task);
            self.do_task(task);
            task += 1;
        }
    }

    fn create_group(&self, task: usize) {
        let parent = task / GROUP * GROUP;
        for task in parent..parent + GROUP {
            if self.status(task).is_none() {
                let mut new = NewTask::new(id(&name(task)), "a step on the way");
                if task > parent {
                    new.parent = Some(id(&name(parent)));
                }
                if task > 0 && !is_cancelled(task - 1) {
                    new = new.requires(id(&name(task - 1)));
                }
                self.manager.dispatch(TaskCreated { task: new }).unwrap();
            }
        }
    }

    fn do_task(&mut self, task: usize) {
        use TaskStatus::{Blocked, Cancelled, Completed, Failed, InProgress, Pending, Skipped};
        loop {
            let (status, failures) = self.status(task).unwrap();
            match status {
                Pending if is_skipped(task) => self.change(task, Pending, Skipped),
                Pending => self.change(task, Pending, InProgress),
                InProgress => {
                    let is_first = fails_at_first(task) && failures == 0;
                    let calls = if is_first { CALLS_OF_TASK / 2 } else { CALLS_OF_TASK };
                    (0..calls).for_each(|call| self.call(task, call));
                    if is_first {
                        self.change(task, InProgress, Failed);
                        continue;
                    }
                    if converses(task) {
                        let path = format!("m{}.txt", task % 4);
                        assert_eq!(self.agent.converse(&name(task), &path), "It is written.");
                    }
                    self.change(task, InProgress, if is_cancelled(task) { Cancelled } else { Completed });
                }
                Failed => self.change(task, Failed, Pending),
                Completed | Skipped | Cancelled => return,
                Blocked => unreachable!("nobody blocks a task"),
            }
        }
    }

    /// Performs a step, unless the session records that it was done.
    fn call(&mut self, task: usize, call: usize) {
        let label = format!("{}/{call}", name(task));
        if self.session().view::<Artifacts>().unwrap().find(&label).unwrap().is_some() {
            return;
        }
        self.calls += 1;
        let stops = self.stop.filter(|stop| self.calls == stop.calls).map(|stop| stop.crash);
        let step = Step { task, call, stops: stops == Some(Crash::Within) };
        let arguments = serde_json::to_string(&step).unwrap();
        let runner = ToolRunner::new(self.manager_run(), ToolRegistry::new().with(Work));
        let call_id = format!("{label}-{}", self.agent.position());
        let report =
            runner.execute(&ToolCall::new("work", arguments).with_id(call_id), &ExecuteOptions::default());
        let success = report.unwrap().success;
        assert_eq!(success, !call_fails(task, call));
        if stops == Some(Crash::Between) {
            wait_for_the_kill();
        }
        if !success {
            self.session().dispatch(done(&label, false)).unwrap();
        }
        child::tell("done", label);
        if stops == Some(Crash::Anywhere) {
            child::tell("ready", "to be killed while it goes on");
        }
        self.manager.after_dispatch().unwrap();
    }

    fn manager_run(&self) -> foldlog::ExecutionState {
        self.agent.runner().state().clone()
    }
}

/// Checks that a workspace contains exactly the results of its session's calls.
fn assert_files(agent: &Agent) {
    let state = agent.read();
    let mut files = BTreeMap::new();
    for (task, call) in (0..tasks_len()).flat_map(|task| (0..CALLS_OF_TASK).map(move |call| (task, call))) {
        let label = format!("{}/{call}", name(task));
        if state.file_system.build_artifacts.get(&label).is_some_and(|one| one.success) {
            files.insert(path_of(task, call), label);
        }
    }
    let mut found = files_in(&agent.workspace());
    found.retain(|path, _| path.starts_with('f'));
    assert_eq!(found, files);
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_lives() {
    let Some(argument) = child::argument() else { return };
    let words: Vec<&str> = argument.split('|').collect();
    let [root, calls, crash] = words[..] else { panic!("{argument}") };
    let crash = match crash {
        "Within" => Crash::Within,
        "Between" => Crash::Between,
        _ => Crash::Anywhere,
    };
    let root = Path::new(root);
    let is_new = !root.join("store/sessions").exists();
    let agent = if is_new { Agent::begin(root) } else { resume(root) };
    assert_files(&agent);
    let state = agent.read();
    child::tell("begins", state.file_system.build_artifacts.len());
    Life::new(agent, Some(Stop { calls: calls.parse().unwrap(), crash })).work();
    panic!("there was to be more work");
}

/// The bounds on the number of recorded calls, from the reports.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    least: usize,
    most: usize,
}

impl Heard {
    fn exactly(calls: usize) -> Heard {
        Heard { least: calls, most: calls }
    }

    /// Takes in a process's line; returns whether the process is to be killed.
    fn hear(&mut self, line: &str) -> bool {
        if line.starts_with("@done ") {
            *self = Heard { least: self.least + 1, most: self.most + 1 };
        } else if line.starts_with("@restores ") {
            self.least = 0;
        } else if let Some(left) = line.strip_prefix("@restored ").and_then(|left| left.parse().ok()) {
            *self = Heard::exactly(left);
        }
        line.starts_with("@ready ")
    }
}

/// Runs a process until its time to be killed, and kills it. Takes and returns the bounds on
/// recorded calls.
fn live(root: &Path, calls: usize, crash: Crash, heard: Heard) -> Heard {
    let argument = format!("{}|{calls}|{crash:?}", root.display());
    let mut process = child::start("story::part_of_a_child_that_lives", &argument);
    let begins = process.hear("begins").expect("it begins").parse::<usize>().unwrap();
    // No reported call is lost, and an unreported call is recorded wholly or not at all.
    assert!((heard.least..=heard.most + 1).contains(&begins), "{begins} of {heard:?}");
    let mut heard = Heard::exactly(begins);
    loop {
        let line = process.line().unwrap_or_else(|| panic!("{root:?} ended by itself behind {heard:?}"));
        if heard.hear(&line) {
            break;
        }
    }
    process.kill();
    while let Some(line) = process.line() {
        heard.hear(&line);
    }
    heard
}

/// Continues the work on a machine, which on all but the first was copied there.
fn resume(root: &Path) -> Agent {
    if root.ends_with("machine-0") { Agent::resume(root) } else { Agent::resume_copied(root) }
}

fn move_to(from: &Path, to: &Path) {
    copy(from, to);
    fs::remove_dir_all(from).unwrap();
}

fn session_of(root: &Path) -> (Store, uuid::Uuid) {
    let (store, _) = agent::open_store(root);
    let id = store.session_ids().unwrap()[0];
    (store, id)
}

/// Overwrites a sector of the disk, near the end of the log.
fn damage(root: &Path) -> PathBuf {
    let (store, id) = session_of(root);
    let frames = frames(&store.session_dir(id));
    let (file, begin, _) = &frames[frames.len() * 9 / 10];
    let mut bytes = fs::read(file).unwrap();
    let begin = usize::try_from(*begin).unwrap();
    bytes[begin..begin + 512].fill(0xa5);
    fs::write(file, bytes).unwrap();
    file.clone()
}

/// Continues after the damage: the intact part becomes a session on another disk, and its latest
/// checkpoint restores the workspace. Returns how many calls are left.
fn recover(root: &Path, to: &Path) -> usize {
    let damaged = damage(root);
    let (store, id) = session_of(root);
    let recovery = CrashRecoveryManager::new(store.clone(), id).with_types(agent::types());
    let now = serde_json::from_str("\"2026-01-06T03:00:00Z\"").unwrap();
    let found = recovery.detect_crash_state(now).unwrap().expect("damage is found");
    assert!(found.corrupted_files.iter().any(|one| one.file == damaged), "{found:?}");
    assert!(store.open_session(id, &agent::types()).is_err());
    assert!(recovery.plan(RecoveryStrategy::LatestCheckpoint).unwrap().impossible.is_some());
    let workspace = to.join("workspace");
    copy(&root.join("workspace"), &workspace);
    // A call that is open at the end of the intact part is rolled back.
    let captures = store.session_dir(id).join("files");
    let recovery = recovery.with_resources(agent::resources(&workspace, &captures, true));
    // The captures of checkpoints do not know the new session's id.
    let new = Store::open(to.join("store")).unwrap();
    let recovered =
        recovery.recover(RecoveryStrategy::PartialRecovery, &new, "ada", "a disk failed").unwrap();
    assert!(!recovered.lost.is_empty() && recovered.session != id);
    copy(&captures, &new.session_dir(recovered.session).join("files"));
    let agent = resume(to);
    assert!(agent.read().configuration.requires_validation);
    let manager = agent.manager();
    let (by, reason) = ("ada".to_owned(), "to have the workspace as it was".to_owned());
    let options = RestoreOptions { by, reason, with_resources: true, ..RestoreOptions::default() };
    let latest = manager.latest().unwrap().unwrap().id;
    manager.restore_from_checkpoint(latest, &options).unwrap();
    assert_files(&agent);
    let state = agent.read();
    assert!(StateValidator::new().validate(&state).is_valid);
    agent.session.clone().close().unwrap();
    state.file_system.build_artifacts.len()
}

/// Whatever happens to a long-running agent, the result of its work is the same.
#[test]
fn four_days_of_crashes_moves_and_a_damaged_disk_come_to_what_the_model_says() {
    let directory = quick_directory();
    let mut root = directory.path().join("machine-0");
    fs::create_dir(&root).unwrap();
    let predicted = Told::by_the_model();
    let calls = predicted.calls.len() / (CRASHES + 1);
    let (mut heard, mut within) = (Heard::default(), 0);
    for crash in 0..CRASHES {
        let kind = [Crash::Within, Crash::Between, Crash::Within, Crash::Anywhere][crash % 4];
        within += usize::from(kind == Crash::Within);
        heard = live(&root, calls, kind, heard);
        if crash == CRASHES / 3 || crash == CRASHES * 2 / 3 {
            let next = directory.path().join(format!("machine-{}", 1 + crash * 2 / CRASHES));
            move_to(&root, &next);
            root = next;
        }
        if crash == CRASHES * 4 / 5 {
            let next = directory.path().join("another-disk");
            fs::create_dir(&next).unwrap();
            heard = Heard::exactly(recover(&root, &next));
            root = next;
        }
    }
    assert_eq!(within, CRASHES / 2);

    let agent = resume(&root);
    assert_files(&agent);
    let mut life = Life::new(agent, None);
    life.work();
    let state = life.agent.read();
    assert_eq!(Told::of(&state, &life.agent.workspace()), predicted);
    let result =
        StateValidator::new().validate_log(&life.agent.log(), life.agent.position(), &life.agent.stores());
    let result = result.unwrap();
    assert!(result.is_valid, "{:?}", result.issues);
    // All these events have really occurred.
    let entries = state.execution_logs.tasks.values().flatten().chain(&state.execution_logs.system_events);
    let is_interrupted = |what: &ExecutionEvent| {
        matches!(what, ExecutionEvent::ToolEnded { outcome: Outcome::Interrupted, .. })
    };
    let interrupted = entries.filter(|entry| is_interrupted(&entry.what)).count();
    assert!(interrupted >= within - 3, "{interrupted} of {within}");
    assert!(state.resource_usage.tool_runs >= predicted.calls.len() as u64);
    assert!(i64::try_from(state.resource_usage.elapsed_us).unwrap() > 3 * DAY_US);
}
