//! A session of calls, which are then undone and redone.

use std::fs;

use crate::api::{Api, ToolCall};
use crate::manifest::Manifest;
use crate::project::Project;
use crate::wait::wait_until;

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Failed,
    /// The user refused it.
    Refused,
    /// The user interrupted it once this file existed.
    Interrupted(&'static str),
    /// The program was killed once this file existed.
    Killed(&'static str),
}

/// A prompt with one call.
pub(crate) struct Call {
    pub(crate) tool: &'static str,
    pub(crate) call: fn() -> ToolCall,
    pub(crate) ending: Ending,
    /// The recorded outcome and exit code.
    pub(crate) outcome: &'static str,
    pub(crate) exit_code: Option<i64>,
}

/// A running program with a session.
pub(crate) trait Driver {
    /// Submits a prompt.
    fn prompt(&mut self, text: &str);
    /// Waits for the end of the turn that a prompt began.
    fn wait(&mut self, prompt: &str);
    /// Refuses the call that the program asks about. Returns once the turn has ended.
    fn refuse(&mut self, prompt: &str);
    /// Interrupts the running call. Returns once the program takes prompts.
    fn interrupt(&mut self);
    /// Kills the program.
    fn kill(self);
    /// Submits a prompt that a hook answers, and waits for the answer.
    fn ask(&mut self, prompt: &str, answer: &str);
    /// Ends the program as a user does.
    fn end(self);
}

/// Runs the calls, undoes each of them from the last to the first, and redoes them.
pub(crate) fn run<D: Driver>(project: &Project, start: fn(&Project, &str) -> D, calls: &[Call]) {
    let api = Api::start();
    let prompt = |number: usize| format!("Make call {number}.");
    for (place, call) in calls.iter().enumerate() {
        api.teach(&prompt(place + 1), vec![(call.call)()]);
    }
    let mut driver = Some(start(project, &api.url()));
    let mut states = Vec::new();
    for (place, call) in calls.iter().enumerate() {
        let before = project.manifest();
        let prompt = prompt(place + 1);
        let running = driver.as_mut().expect("the last call alone kills the program");
        running.prompt(&prompt);
        match call.ending {
            Ending::Succeeded | Ending::Failed => running.wait(&prompt),
            Ending::Refused => running.refuse(&prompt),
            Ending::Interrupted(file) => {
                wait_for(project, file);
                running.interrupt();
            }
            Ending::Killed(file) => {
                wait_for(project, file);
                driver.take().expect("it runs").kill();
            }
        }
        let after = project.manifest();
        println!("call {}: {:?}", place + 1, before.changes(&after));
        assert_eq!(before == after, call.changes_nothing(), "call {}", place + 1);
        states.push((before, after));
    }
    check(project, calls);
    undo_and_redo(project, &states);
}

impl Call {
    fn changes_nothing(&self) -> bool {
        self.ending == Ending::Refused || self.tool == "a failing edit"
    }
}

fn wait_for(project: &Project, name: &str) {
    let file = project.root().join(name);
    wait_until("the call wrote", || fs::read_to_string(&file).is_ok_and(|text| !text.is_empty()));
}

/// Asserts what is recorded about each call.
fn check(project: &Project, calls: &[Call]) {
    let log = project.foldlog(&["--json", "log", "-n", "100"]);
    let mut steps: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    steps.reverse();
    let found: Vec<_> = steps
        .iter()
        .map(|step| (step["outcome"].as_str().unwrap_or("open"), step["call"]["exit_code"].as_i64()))
        .collect();
    let expected: Vec<_> = calls.iter().map(|call| (call.outcome, call.exit_code)).collect();
    assert_eq!(found, expected, "{log}");
}

fn undo_and_redo(project: &Project, states: &[(Manifest, Manifest)]) {
    let changing = || states.iter().enumerate().filter(|(_, (before, after))| before != after);
    for (place, (before, _)) in changing().rev() {
        project.foldlog(&["undo", &(place + 1).to_string(), "--yes"]);
        assert_eq!(&project.manifest(), before, "undo of call {}", place + 1);
    }
    assert_eq!(project.manifest(), states[0].0);
    for (place, (_, after)) in changing() {
        project.foldlog(&["redo", "--yes"]);
        assert_eq!(&project.manifest(), after, "redo of call {}", place + 1);
    }
}
