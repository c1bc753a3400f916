//! A session of ten calls, which one user drives.

use std::fs;
use std::time::Duration;

use crate::calls::{CALLS, Call, Ending, prompt, teach};
use crate::driver::Driver;
use crate::event::{Event, agent_lane, main_lane};
use crate::manifest::Manifest;
use crate::model::{Model, NO_CALL};
use crate::project::Project;
use crate::wait::wait_until;

/// A call that ended, with the project before and after it.
pub(crate) struct Step<'project> {
    pub(crate) project: &'project Project,
    /// The number of the call, from 1.
    pub(crate) number: usize,
    pub(crate) call: &'static Call,
    /// The events of the call's turn.
    pub(crate) events: Vec<Event>,
    pub(crate) before: Manifest,
    pub(crate) after: Manifest,
}

/// Runs the ten calls, with a prompt for each, then resumes the session and ends it. Calls
/// `after_call` once a call has ended and its changes are known to be whole.
pub(crate) fn run<D: Driver>(project: &Project, mut after_call: impl FnMut(&Step<'_>)) {
    let model = Model::start();
    teach(&model, &project.root());
    let mut driver = Some(D::start(project, &model.url(), false));
    let mut past = 0;
    let mut before = project.manifest();
    for (place, call) in CALLS.iter().enumerate() {
        let running = driver.as_mut().expect("the last call alone kills the program");
        let number = place + 1;
        println!("call {number}: {}", call.title);
        running.prompt(&prompt(number));
        if place == 0 {
            // Version 2.1.100 starts its hook after it takes prompts.
            past = starts(project, 0, "startup");
        }
        match call.ending {
            Ending::Ran => {}
            Ending::Denied => running.refuse(),
            Ending::Interrupted(file) => {
                wait_for_file(project, file);
                running.interrupt();
            }
            Ending::Killed(file) => {
                wait_for_file(project, file);
                driver.take().expect("it runs").kill(&[]);
                let file = project.root().join(file);
                wait_until("the surviving shell has ended", || {
                    fs::read_to_string(&file).unwrap().lines().count() == 2
                });
            }
        }
        let turn_ends = call.ending == Ending::Ran || call.ending == Ending::Denied && D::REFUSED_TURN_ENDS;
        let events = if turn_ends {
            project
                .wait_for(past, "the end of the turn", |events| events.last().is_some_and(Event::ends_turn))
        } else {
            // A hook that would come after all has time to do so.
            std::thread::sleep(Duration::from_millis(500));
            project.wait_for(past, "the events", |events| events.len() > call.events.len())
        };
        past += events.len();
        let after = project.manifest();
        let step = Step { project, number, call, events, before, after };
        step.check(turn_ends);
        after_call(&step);
        before = project.manifest();
    }
    let mut driver = D::start(project, &model.url(), true);
    driver.prompt(NO_CALL);
    past = starts(project, past, "resume");
    let is_over = |events: &[Event]| events.last().is_some_and(Event::ends_turn);
    let events = project.wait_for(past, "the turn after the resumption", is_over);
    assert_eq!(main_lane(&events), ["UserPromptSubmit", "Stop"]);
    past += events.len();
    driver.end();
    let events = project.wait_for(past, "the end of the session", |events| !events.is_empty());
    assert_eq!(main_lane(&events), ["SessionEnd"]);
}

/// Waits for the start of a session, which is the event after the first `past` ones. Returns the
/// number of events up to it.
pub(crate) fn starts(project: &Project, past: usize, source: &str) -> usize {
    let events = project.wait_for(past, "the start", |events| !events.is_empty());
    assert_eq!(events[0].title(), "SessionStart");
    assert_eq!(events[0].input()["source"], source);
    past + 1
}

fn wait_for_file(project: &Project, name: &str) {
    let file = project.root().join(name);
    wait_until("the call wrote", || fs::read_to_string(&file).is_ok_and(|text| !text.is_empty()));
}

impl Step<'_> {
    /// Asserts the order of events and the changed paths.
    fn check(&self, turn_ends: bool) {
        let Step { number, call, .. } = self;
        let mut expected = vec!["UserPromptSubmit"];
        expected.extend(call.events);
        if turn_ends {
            expected.push("Stop");
        }
        assert_eq!(main_lane(&self.events), expected, "the main agent's events of call {number}");
        let agent = agent_lane(&self.events);
        assert_eq!(agent, call.agent_events, "the sub-agent's events of call {number}");
        let changes = self.before.changes(&self.after);
        let expected = call.changes.iter().map(|(name, change)| ((*name).to_owned(), *change));
        assert_eq!(changes, expected.collect::<Vec<_>>(), "the changes of call {number}");
    }
}
