//! Rounds of a command that the user interrupts or that outlives the killed program, at different
//! moments.

use std::cell::Cell;
use std::fs;
use std::time::Duration;

use crate::calls::bash;
use crate::driver::Driver;
use crate::event::{Event, main_lane};
use crate::manifest::Manifest;
use crate::model::{Model, NO_CALL};
use crate::project::{Project, wait_until};
use crate::session::starts;

/// The lines that a command writes if nothing stops it, in 20 ms each.
const LINES: usize = 60;

/// The time between two moments. The first moment is the start of the hook that precedes the tool,
/// so the early ones are within a slow hook.
const BETWEEN_MOMENTS: Duration = Duration::from_millis(13);

/// The moments of the rounds. All of them come before a command has written all of its lines.
const MOMENTS: u32 = 50;

/// A round that ended.
pub(crate) struct Round<'project> {
    pub(crate) project: &'project Project,
    /// The number of the round, from 0.
    pub(crate) number: u32,
    /// Whether the program was killed, or else interrupted.
    pub(crate) killed: bool,
    /// The name of the file that the command writes line by line.
    pub(crate) file: String,
    pub(crate) events: Vec<Event>,
    pub(crate) before: Manifest,
    pub(crate) after: Manifest,
}

/// Runs rounds, and interrupts the program or kills it in turn. Calls `after_round` once nothing
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
        std::thread::sleep(moment);

        let killed = number % 2 == 1;
        let running = if killed {
            driver.kill();
            None
        } else {
            driver.interrupt();
            Some(driver)
        };
        wait_for_writers(project, &file);
        let events = project.wait_for(past, "the events", |events| events.len() > 1);
        assert_eq!(main_lane(&events), ["UserPromptSubmit", "PreToolUse Bash"], "round {number}");
        past += events.len();
        let after = project.manifest();
        after_round(&Round { project, number, killed, file, events, before, after });

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
