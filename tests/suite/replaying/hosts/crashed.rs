//! A host of five threads, two of which have conversations, that is killed once and continues in
//! another process: a third process replays both.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use foldlog::conversation::Role;
use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{ExecutionState, Generator, ResourceRegistry, Session, SessionTypes, SystemClock};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply, ScriptedRequest};
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, UserMessage};
use foldlog_test_support::child;
use foldlog_test_support::replayed_host::{Diary, Noted, Notes, Works, store_in};
use nix::sys::signal::{Signal, raise};

use super::seeds;

/// Lanes that have conversations.
const SPEAKERS: [&str; 2] = ["ada", "ben"];

/// Lanes that count: each records numbers from its start value, a hundred apart.
const COUNTERS: [(&str, u64); 3] = [("", 0), ("mailbox", 100), ("clock", 200)];
const COUNT: u64 = 8;

fn types() -> SessionTypes {
    let builder = SessionTypes::builder()
        .slice::<Notes>()
        .append_all::<Notes>()
        .slice_with::<Diary>(foldlog::Policy::Log)
        .append_all::<Diary>();
    foldlog_agent::events::declare(builder).build().unwrap()
}

fn arguments(number: u64) -> String {
    format!("{{\"number\":{number},\"inner\":{}}}", number % 3)
}

/// Returns three answers with two calls each, and then a final answer.
fn reply(speaker: &str, request: &ScriptedRequest) -> ScriptedReply {
    let answers = request.messages.iter().filter(|message| message.role == Role::Assistant).count() as u64;
    let number = 1_000 * speaker.len() as u64 + 10 * answers;
    match answers {
        0..3 => ScriptedReply::calls([
            (format!("{speaker}-{answers}-0").as_str(), "works", arguments(number).as_str()),
            (format!("{speaker}-{answers}-1").as_str(), "works", arguments(number + 1).as_str()),
        ]),
        _ => ScriptedReply::text(format!("{speaker} is done")),
    }
}

/// One process's work, which continues that of the last one. The main lane ends its process at its
/// step `dies`.
struct Agency {
    /// The seed that determines how often each thread yields.
    schedule: u64,
    dies: Option<u64>,
}

impl Agency {
    fn run(&self, session: &Session) -> foldlog::Result<()> {
        // From here on no lane reads records of others.
        let mut noted = Vec::new();
        for item in session.log().slice::<Diary>()?.iter() {
            noted.push(item?.number);
        }
        let state = |session: Session| -> foldlog::Result<ExecutionState> {
            Ok(ExecutionState::new(session, ResourceRegistry::builder().build()?))
        };
        let main = state(session.clone())?;
        let tools = |state: &ExecutionState| {
            let inner = ToolRegistry::new().with(Works::new(None));
            ToolRegistry::new().with(Works::new(Some(ToolRunner::new(state.clone(), inner))))
        };
        let runner = ToolRunner::new(main.clone(), tools(&main));
        runner.recover(&ExecuteOptions::default())?;
        let count = |(lane, from): (&str, u64)| -> foldlog::Result<()> {
            let session = if lane.is_empty() { session.clone() } else { session.lane(lane) };
            let done = noted.iter().filter(|number| (from..from + COUNT).contains(number)).count() as u64;
            for number in from + done..from + COUNT {
                self.pause(number);
                if lane.is_empty() && self.dies == Some(number) {
                    // The parallel lanes continued to an arbitrary step.
                    return if session.replays() {
                        Ok(())
                    } else {
                        raise(Signal::SIGKILL).map_err(|_| unreachable!())
                    };
                }
                match lane {
                    "mailbox" => drop(session.inputs().observe("mail", || format!("letter {number}"))?),
                    "clock" => drop((session.inputs().now()?, session.inputs().draw()?)),
                    _ => {
                        let call = ToolCall::new("works", arguments(500 + number));
                        runner.execute(&call, &ExecuteOptions::default())?;
                    }
                }
                session.dispatch(Noted::new(number, lane))?;
            }
            Ok(())
        };
        let speak = |speaker: &'static str| -> Result<(), foldlog_agent::Error> {
            let state = state(session.lane(speaker))?;
            let schedule = Agency { schedule: self.schedule + speaker.len() as u64, dies: None };
            let provider = ScriptedProvider::from_fn(move |request| {
                schedule.pause(request.number);
                reply(speaker, request)
            });
            let prompt = Prompt::text("agency", speaker)
                .with_section(MarkdownSection::new("task", "Work."))
                .with_tools(tools(&state));
            let messages = vec![UserMessage { id: "task".to_owned(), text: "Begin.".to_owned() }];
            let evaluation_id = Some(speaker.to_owned());
            let options = EvaluateOptions { evaluation_id, messages, ..EvaluateOptions::default() };
            ProviderAdapter::new(provider).evaluate(&prompt, &state, options).map(drop)
        };
        thread::scope(|scope| {
            let (count, speak) = (&count, &speak);
            let counters = COUNTERS.map(|counter| scope.spawn(move || count(counter)));
            let speakers = SPEAKERS.map(|speaker| scope.spawn(move || speak(speaker)));
            for speaker in speakers {
                let spoken = speaker.join().unwrap();
                assert!(session.replays() || spoken.is_ok(), "{spoken:?}");
            }
            counters.map(|counter| counter.join().unwrap()).into_iter().collect()
        })
    }

    fn pause(&self, place: u64) {
        let mut draw = Generator::from_seed(self.schedule * 1_000 + place);
        (0..draw.next_below(8)).for_each(|_| thread::yield_now());
    }
}

/// A child process's task: its directory, its number, and its seed.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_process_that_works_or_replays() {
    let Some(argument) = child::argument() else { return };
    let mut words = argument.splitn(3, ' ');
    let (part, seed) = (words.next().unwrap(), words.next().unwrap().parse::<u64>().unwrap());
    let directory = Path::new(words.next().unwrap());
    let store = store_in(directory, Arc::new(SystemClock));
    let first = Agency { schedule: seed, dies: Some(1 + seed % (COUNT - 1)) };
    let second = Agency { schedule: seed + 7, dies: None };
    match part {
        "first" => first.run(&store.create(&types()).unwrap()).unwrap(),
        "second" => {
            let session = store.open_session(store.sessions().unwrap()[0].0, &types()).unwrap();
            second.run(&session).unwrap();
            session.close().unwrap();
        }
        _ => {
            let dir = store.session_dir(store.sessions().unwrap()[0].0);
            let log = LogReader::open(dir).unwrap();
            let mut process = 0;
            let replayed = Replay::new(&log, &types()).run(|session| {
                process += 1;
                let agency = if process == 1 { &first } else { &second };
                Agency { schedule: seed + 31, dies: agency.dies }.run(&session)
            });
            match replayed {
                Ok(report) => child::tell("replayed", format!("{} {}", report.processes, report.compared)),
                Err(error) => child::tell("replayed", error.to_string()),
            }
        }
    }
}

#[test]
fn threads_and_conversations_that_a_kill_cut_short_are_replayed_in_another_process() {
    let (_, module) = module_path!().split_once("::").unwrap();
    let part = format!("{module}::part_of_a_process_that_works_or_replays");
    let mut compared = 0;
    for seed in 0..seeds(4) {
        let directory = tempfile::tempdir().unwrap();
        let start =
            |what: &str| child::start(&part, &format!("{what} {seed} {}", directory.path().display()));
        assert!(!start("first").passed(), "seed {seed}: it was to be killed");
        assert!(start("second").passed(), "seed {seed}");
        let mut third = start("replay");
        let told = third.hear("replayed").unwrap();
        let (processes, records) = told.split_once(' ').unwrap();
        assert_eq!(processes, "2", "seed {seed}: {told}");
        compared += records.parse::<u64>().unwrap_or_else(|_| panic!("seed {seed}: {told}"));
        assert!(third.passed());
    }
    println!("{compared} records compared");
    assert!(compared > 50 * seeds(4), "hardly anything was compared");
}
