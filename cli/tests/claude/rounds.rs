//! Rounds of a command that the user interrupts, or that outlives the killed program, at different
//! moments. In some rounds the hook before the command is killed, too.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

use crate::calls::bash;
use crate::driver::Driver;
use crate::event::{Event, main_lane};
use crate::manifest::Manifest;
use crate::model::{Model, NO_CALL};
use crate::project::Project;
use crate::session::starts;
use crate::wait::wait_until;

/// The lines that a command writes if nothing stops it, in 20 ms each.
const LINES: usize = 60;

/// The time between two moments. The first moment is the start of the hook that precedes the tool,
/// so the early ones are within a slow hook.
const BETWEEN_MOMENTS: Duration = Duration::from_millis(13);

/// The moments of the rounds. All of them come before a command has written all of its lines.
const MOMENTS: u32 = 50;

/// How the program is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Interrupted,
    Killed,
    /// The program was killed together with the hooks of foldlog that ran, of which there were so
    /// many.
    KilledWithHooks(usize),
}

/// A round that ended.
pub(crate) struct Round<'project> {
    pub(crate) project: &'project Project,
    /// The number of the round, from 0.
    pub(crate) number: u32,
    pub(crate) ending: Ending,
    /// The name of the file that the command writes line by line.
    pub(crate) file: String,
    pub(crate) events: Vec<Event>,
    pub(crate) before: Manifest,
    pub(crate) after: Manifest,
}

/// Runs rounds, and interrupts the program, kills it, or kills it with its hooks in turn. Calls `after_round` once nothing
/// writes any more, before the next event. Each round is followed by a turn without a call.
pub(crate) fn run<D: Driver>(project: &Project, rounds: u32, mut after_round: impl FnMut(&Round<'_>)) {
    let model = Model::start();
    let mut driver = D::start(project, &model.url(), false);
    driver.prompt(NO_CALL);
    let mut past = starts(project, 0, "startup");
    past += turn(project, past);
    for number in 0..rounds {
        // A few rounds spread over the moments.
        let moment = BETWEEN_MOMENTS * (number * MOMENTS / rounds);
        let (file, prompt) = (format!("round-{number}"), format!("Begin round {number}."));
        let command = format!("for line in $(seq {LINES}); do echo $line >> {file}; sleep 0.02; done");
        model.teach(&prompt, bash(&command));
        let before = project.manifest();
        driver.prompt(&prompt);
        project.wait_for(past, "the tool's first hook", |events| events.len() > 1);
        // A hook of foldlog takes a small part of the time of a command.
        std::thread::sleep(if number % 3 == 2 { moment / 6 } else { moment });

        let (ending, running) = match number % 3 {
            0 => {
                driver.interrupt();
                (Ending::Interrupted, Some(driver))
            }
            1 => {
                driver.kill(&[]);
                (Ending::Killed, None)
            }
            _ => {
                let hooks = hooks(project);
                driver.kill(&hooks);
                (Ending::KilledWithHooks(hooks.len()), None)
            }
        };
        wait_for_writers(project, &file);
        let events = project.wait_for(past, "the events", |events| events.len() > 1);
        assert_eq!(main_lane(&events), ["UserPromptSubmit", "PreToolUse Bash"], "round {number}");
        past += events.len();
        let after = project.manifest();
        after_round(&Round { project, number, ending, file, events, before, after });

        let resumes = running.is_none();
        driver = running.unwrap_or_else(|| D::start(project, &model.url(), true));
        driver.prompt(NO_CALL);
        if resumes {
            past = starts(project, past, "resume");
        }
        past += turn(project, past);
    }
    driver.end();
}

/// Returns the running hooks of foldlog, by the home directory in their environment.
fn hooks(project: &Project) -> Vec<Pid> {
    let home = format!("HOME={}", project.path("home").display());
    let is_hook = |process: &Path| {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        let words = read("cmdline");
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.get(1..3) == Some(&[b"hook", b"event"])
            && read("environ").split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let hooks = processes.filter(|process| is_hook(process));
    hooks.filter_map(|hook| Pid::from_raw(hook.file_name()?.to_str()?.parse().ok()?)).collect()
}

/// Waits for a turn without a call, and returns the number of its events.
fn turn(project: &Project, past: usize) -> usize {
    let events = project.wait_for(past, "a turn", |events| events.last().is_some_and(Event::ends_turn));
    assert_eq!(main_lane(&events), ["UserPromptSubmit", "Stop"]);
    events.len()
}

/// Waits until a surviving command has ended. An interrupted one may not have begun.
fn wait_for_writers(project: &Project, file: &str) {
    let file = project.root().join(file);
    let lines = || fs::read_to_string(&file).unwrap_or_default().lines().count();
    let last = Cell::new(usize::MAX);
    wait_until("nothing writes", || {
        let now = lines();
        let is_over = now == LINES || now == last.replace(now);
        if !is_over {
            std::thread::sleep(Duration::from_millis(500));
        }
        is_over
    });
}
