//! Processes that are killed while they create a checkpoint, restore one with its workspace, remove
//! expired ones, or repair a session: at each system call that changes something, one after the
//! other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use foldlog_tasks::{
    CheckpointHistory, CheckpointId, CrashRecoveryManager, Dependency, DependencyType, RestoreOptions,
    RetentionPolicy, StateValidator, Task, TaskStatus, TaskTreeState, Tasks, simulate,
};
use foldlog_test_support::child;

use super::agent::{self, Agent};
use super::validation_laws::{at, sound};
use super::{create, id, quick_directory, task};
use foldlog_test_support::killed::{Call, Killed, calls, kill_at, step, tell_done};

const PART: &str = "sessions_killed::part_of_a_child_that_acts";

/// The action of a killed process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Checkpoint,
    Restore,
    Retain,
    Repair,
}

impl Act {
    const ALL: [Act; 4] = [Act::Checkpoint, Act::Restore, Act::Retain, Act::Repair];

    /// Creates the session for the action, and closes it.
    fn prepare(self, directory: &Path) {
        let agent = Agent::begin(directory);
        let (manager, session) = (agent.manager(), &agent.session);
        agent.start("a");
        agent.write("kept.txt", Some("as it was"), false);
        manager.create(None).unwrap();
        agent.write("kept.txt", Some("spoiled"), false);
        agent.write("new.txt", Some("new"), false);
        agent.finish("a");
        create(session, task("b")).unwrap();
        if self == Act::Retain {
            for name in [Some("release"), None, None, None] {
                manager.create(name).unwrap();
            }
        }
        if self == Act::Repair {
            // Like an import, which calls no reducer.
            let mut tasks: Vec<Task> = session.view::<Tasks>().unwrap().iter().cloned().collect();
            let mut broken = sound("c", 5, TaskStatus::InProgress);
            let on = |on: &str| Dependency { on: id(on), kind: DependencyType::Requires };
            (broken.parent, broken.dependencies) = (Some(id("c")), vec![on("b"), on("gone")]);
            tasks.push(broken);
            session.seed::<Tasks>(tasks).unwrap();
        }
        session.clone().close().unwrap();
    }

    fn act(self, agent: &Agent) {
        let manager = agent.manager();
        match self {
            Act::Checkpoint => drop(manager.create(None).unwrap()),
            Act::Restore => {
                let (by, reason) = ("ada".to_owned(), "it was spoiled".to_owned());
                let options = RestoreOptions { by, reason, apply_later_updates: false, with_resources: true };
                manager.restore_from_checkpoint(CheckpointId(1), &options).unwrap();
            }
            Act::Retain => {
                let retention = RetentionPolicy { count: Some(2), ..RetentionPolicy::default() };
                manager.with_retention(retention).create(None).unwrap();
            }
            Act::Repair => {
                let validator = StateValidator::new();
                let plan = validator.repair_plan(&agent.read());
                let report =
                    validator.apply(&agent.session, &plan, "ada", "it was broken", || Ok(agent.read()));
                let report = report.unwrap();
                assert_eq!((report.refused, report.result.issues), (None, Vec::new()));
            }
        }
        agent.session.sync().unwrap();
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_acts() {
    let Some(argument) = child::argument() else { return };
    let (name, directory) = argument.split_once(' ').unwrap();
    let act = Act::ALL.into_iter().find(|act| format!("{act:?}") == name).unwrap();
    let agent = Agent::resume_positioned(Path::new(directory));
    act.act(&agent);
    tell_done();
    agent.session.clone().close().unwrap();
}

/// The visible state of a session, without times.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    tasks: Vec<Task>,
    files: BTreeMap<String, String>,
    kept: Vec<u64>,
}

fn untimed<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> Vec<Task> {
    let tasks = tasks.into_iter().cloned();
    tasks.map(|task| Task { created_at: at(0), status_at: at(0), updated_at: at(0), ..task }).collect()
}

impl Seen {
    fn of(agent: &Agent) -> Seen {
        let files = fs::read_dir(agent.workspace()).unwrap().map(|entry| entry.unwrap());
        let read = |entry: fs::DirEntry| {
            (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
        };
        Seen {
            tasks: untimed(TaskTreeState::from_session(&agent.session).unwrap().tasks.values()),
            files: files.map(read).collect(),
            kept: agent.manager().list().unwrap().iter().map(|one| one.id.0).collect(),
        }
    }

    fn work(&self) -> (&Vec<Task>, &BTreeMap<String, String>) {
        (&self.tasks, &self.files)
    }
}

/// Continues the session of a killed process.
fn go_on(directory: &Path, about: &str) -> Agent {
    let (store, _) = agent::open_store(directory);
    let session = store.session_ids().unwrap()[0];
    let left = CrashRecoveryManager::new(store, session).detect_crash_state(at(0)).unwrap();
    assert!(left.is_none_or(|left| left.corrupted_files.is_empty()), "{about}: a kill damages nothing");
    let agent = Agent::resume(directory);
    let history = CheckpointHistory::from_session(&agent.session).unwrap();
    if let Some(last) = history.list().iter().map(|one| one.id).max() {
        agent.manager().verify(last).unwrap();
    }
    agent
}

/// Makes processes act and kills them. `judge` gets the states before, now, and after the completed
/// action. It returns whether the action is complete, and panics for any state between the two.
fn at_each_call(act: Act, every: usize, judge: impl Fn(&Seen, &Seen, &Seen) -> bool) {
    if !child::is_traced_here() {
        return;
    }
    let argument = |directory: &Path| format!("{act:?} {}", directory.display());
    let (before, after) = {
        let directory = quick_directory();
        act.prepare(directory.path());
        let agent = Agent::resume(directory.path());
        let before = Seen::of(&agent);
        act.act(&agent);
        (before, Seen::of(&agent))
    };
    let traced = quick_directory();
    act.prepare(traced.path());
    let calls = calls(PART, &argument(traced.path()), traced.path());
    assert!(calls.len() > 5, "{calls:?}");
    // From the last call backwards, which completes the action.
    let tried: Vec<&Call> = calls.iter().rev().step_by(step(every)).collect();
    let (mut killed, mut old) = (0, 0);
    for call in &tried {
        let directory = quick_directory();
        act.prepare(directory.path());
        let Killed { was_killed, was_done } = kill_at(call, PART, &argument(directory.path()));
        let about = format!("{act:?} at {} {}: {}", call.name, call.nth, call.text);
        let agent = go_on(directory.path(), &about);
        let now = Seen::of(&agent);
        let is_done = judge(&before, &now, &after);
        assert!(is_done || was_killed && !was_done, "{about}: what was said to be done is lost");
        (killed, old) = (killed + usize::from(was_killed), old + usize::from(!is_done));
        // The next process repeats the action, with the same result as without the kill.
        act.act(&agent);
        let then = Seen::of(&agent);
        assert_eq!(then.work(), after.work(), "{about}");
        let latest = *then.kept.last().unwrap();
        match act {
            Act::Retain => assert_eq!(then.kept, [2, latest - 1, latest], "{about}"),
            _ => assert_eq!(then.kept, (1..=latest).collect::<Vec<_>>(), "{about}"),
        }
        let history = CheckpointHistory::from_session(&agent.session).unwrap();
        agent.manager().verify(history.list().last().unwrap().id).unwrap();
        agent.session.clone().close().unwrap();
    }
    let (tried, new) = (tried.len(), tried.len() - old);
    println!("{act:?}: {killed} killed at {tried} of {} calls: {old} before, {new} behind it", calls.len());
    assert!(killed * 10 >= tried * 9 && old > 0 && new > 0, "{killed} {old} {new}");
}

#[test]
fn a_checkpoint_that_is_killed_at_any_call_is_there_or_not() {
    at_each_call(Act::Checkpoint, 9, |before, now, after| {
        assert_eq!(now.work(), before.work());
        assert!([&before.kept, &after.kept].contains(&&now.kept), "{now:?}");
        now.kept == after.kept
    });
}

/// Tasks and files go back together: the earlier state and the checkpoint's never mix, whenever the
/// process is killed.
#[test]
fn a_restore_that_is_killed_at_any_call_leaves_tasks_and_files_as_they_were_or_as_at_the_checkpoint() {
    at_each_call(Act::Restore, 23, |before, now, after| {
        assert!([before.work(), after.work()].contains(&now.work()), "{now:?}");
        // The checkpoint for undoing the restore is created first.
        assert!(now.kept == after.kept || now.kept == before.kept && now.work() == before.work(), "{now:?}");
        now.work() == after.work()
    });
}

#[test]
fn a_retention_that_is_killed_at_any_call_removes_nothing_that_is_needed_and_the_next_one_ends_it() {
    at_each_call(Act::Retain, 9, |before, now, after| {
        assert_eq!(now.work(), before.work());
        let created = [before.kept.clone(), vec![6]].concat();
        assert!([&before.kept, &created, &after.kept].contains(&&now.kept), "{now:?}");
        assert_eq!(after.kept, [2, 5, 6], "the named one and the last two");
        now.kept == after.kept
    });
}

/// A repair runs step by step; completed steps are kept, the rest is planned again, and no task is
/// dropped.
#[test]
fn a_repair_that_is_killed_at_any_call_is_gone_on_with_by_the_next_one() {
    let steps: Vec<Vec<Task>> = {
        let directory = quick_directory();
        Act::Repair.prepare(directory.path());
        let agent = Agent::resume(directory.path());
        let state = agent.read();
        let plan = StateValidator::new().repair_plan(&state);
        assert!(plan.steps.len() > 3 && plan.unrepairable.is_empty(), "{plan:?}");
        let after = |count: usize| {
            let mut part = plan.clone();
            part.steps.truncate(count);
            untimed(simulate(&state, &part).task_tree.tasks.values())
        };
        (0..=plan.steps.len()).map(after).collect()
    };
    at_each_call(Act::Repair, 9, |before, now, after| {
        assert_eq!((&now.files, &now.kept), (&before.files, &before.kept));
        assert!(steps.contains(&now.tasks), "{now:?}");
        now.tasks == after.tasks
    });
}
