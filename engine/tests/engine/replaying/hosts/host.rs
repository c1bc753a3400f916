//! A host of three threads, each with its own lane: one reads letters, one notes numbers and the
//! time, and one runs tools.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{
    Clock, ExecutionState, Generator, Policy, ResourceRegistry, Session, SessionTypes, SliceOp, Store,
    SystemClock,
};
use foldlog_test_support::replayed_host::{Diary, Noted, Notes, Works, store_in};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Returns the types. The reducer of [`Notes`] alters the text of the number `changed`.
pub(super) fn types_with(changed: Option<u64>) -> SessionTypes {
    SessionTypes::builder()
        .slice::<Notes>()
        .reducer::<Notes, Noted>(move |_, noted, _| {
            Ok(match noted.number {
                number if changed == Some(number) => {
                    SliceOp::Append(Noted { text: "otherwise".to_owned(), ..noted.clone() })
                }
                number if number % 2 == 0 => SliceOp::Append(noted.clone()),
                _ => SliceOp::nothing(),
            })
        })
        .slice_with::<Diary>(Policy::Log)
        .append_all::<Diary>()
        .build()
        .unwrap()
}

pub(super) fn types() -> SessionTypes {
    types_with(None)
}

pub(super) struct Stored(tempfile::TempDir);

impl Stored {
    pub(super) fn new() -> Stored {
        Stored(tempfile::tempdir().unwrap())
    }

    pub(super) fn store(&self) -> Store {
        self.store_with(Arc::new(SystemClock))
    }

    pub(super) fn store_with(&self, clock: Arc<dyn Clock>) -> Store {
        store_in(self.0.path(), clock)
    }

    pub(super) fn bytes(&self) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
        bytes_in(self.0.path())
    }
}

pub(super) fn bytes_in(directory: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    read(directory, &mut files);
    files
}

/// Copies a session's directory, as a kill at this moment would leave it.
pub(super) fn copy(from: &Path, to: &Path) {
    for (path, bytes) in bytes_in(from) {
        let path = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

fn read(directory: &Path, files: &mut BTreeMap<std::path::PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, files);
        } else {
            let bytes = std::fs::read(&path).unwrap();
            files.insert(path, bytes);
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Note(u64),
    Letter(u64),
    Time,
    Number,
    /// Runs a tool, within which this many others run.
    Tool(u64, u64),
    Tag(u64),
}

/// A change of the host's code, planted at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Argument,
    ClockRead,
    Draw,
    Letter,
    MapOrder,
    Float,
    LeftOut,
    Twice,
    Swapped,
    ToolsResult,
}

/// Names of the lanes; the first is the main lane.
pub(super) const LANES: [&str; 3] = ["", "mailbox", "worker"];

pub(super) const MAIN: usize = 0;

/// The lane, the step and the kind of a change.
pub(super) type Planted = (usize, usize, Change);

pub(super) struct Host {
    pub(super) lanes: [Vec<Step>; 3],
    planted: Option<Planted>,
    letters: Arc<AtomicU64>,
    tools: Arc<AtomicU64>,
}

impl Host {
    pub(super) fn from_seed(seed: u64) -> Host {
        let mut draw = Generator::from_seed(seed);
        let mut lane = |kinds: &[u64], place: u64| -> Vec<Step> {
            let len = 4 + draw.next_below(8);
            (0..len)
                .map(|number| {
                    let number = place * 1_000 + number;
                    match kinds[draw.next_below(kinds.len() as u64) as usize] {
                        0 => Step::Note(number),
                        1 => Step::Letter(number),
                        2 => Step::Time,
                        3 => Step::Number,
                        4 => Step::Tool(number, draw.next_below(3)),
                        _ => Step::Tag(number),
                    }
                })
                .collect()
        };
        let lanes = [lane(&[0, 4, 4, 5, 2], 0), lane(&[1, 1, 0], 1), lane(&[0, 2, 3], 2)];
        Host { lanes, planted: None, letters: Arc::default(), tools: Arc::default() }
    }

    pub(super) fn changed(&self, planted: Planted) -> Host {
        let (lanes, letters, tools) =
            (self.lanes.clone(), Arc::clone(&self.letters), Arc::clone(&self.tools));
        let mut changed = Host { lanes, planted: Some(planted), letters, tools };
        let (lane, step, change) = planted;
        if change == Change::Swapped {
            changed.lanes[lane].swap(step, step + 1);
        }
        changed
    }

    pub(super) fn mail_read(&self) -> u64 {
        self.letters.load(Ordering::SeqCst)
    }

    pub(super) fn tools_run(&self) -> u64 {
        self.tools.load(Ordering::SeqCst)
    }

    /// Runs the lanes on separate threads, which yield before their steps as the schedule's seed
    /// determines.
    pub(super) fn run(&self, session: &Session, schedule: u64) -> foldlog::Result<()> {
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
        let changed = self.planted.is_some_and(|(.., change)| change == Change::ToolsResult);
        let inner = ToolRegistry::new().with(Works { tools: Arc::clone(&self.tools), within: None, changed });
        let within = Some(ToolRunner::new(state.clone(), inner));
        let tools = ToolRegistry::new().with(Works { tools: Arc::clone(&self.tools), within, changed });
        let runner = ToolRunner::new(state, tools);
        let lane = |lane: usize| -> foldlog::Result<()> {
            let session = if lane == MAIN { session.clone() } else { session.lane(LANES[lane]) };
            let mut yields = Generator::from_seed(schedule * 3 + lane as u64);
            for (place, step) in self.lanes[lane].iter().enumerate() {
                (0..yields.next_below(6)).for_each(|_| thread::yield_now());
                let change = self.planted.filter(|(of, at, _)| (*of, *at) == (lane, place));
                self.step(&session, &runner, step, change.map(|(.., change)| change))?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let lane = &lane;
            let others = [1, 2].map(|number| scope.spawn(move || lane(number)));
            let main = lane(MAIN);
            others.map(|other| other.join().unwrap()).into_iter().fold(main, Result::and)
        })
    }

    fn step(
        &self,
        session: &Session,
        runner: &ToolRunner,
        step: &Step,
        change: Option<Change>,
    ) -> foldlog::Result<()> {
        match change {
            Some(Change::LeftOut) => return Ok(()),
            Some(Change::ClockRead) => drop(session.inputs().now()?),
            Some(Change::Draw) => drop(session.inputs().draw()?),
            Some(Change::Twice) => self.step(session, runner, step, None)?,
            _ => {}
        }
        match step {
            Step::Note(number) => {
                let mut noted = Noted::new(*number, &format!("{:.1}", *number as f64));
                match change {
                    Some(Change::Argument) => noted.text.push('!'),
                    Some(Change::Float) => noted.text = format!("{:.2}", *number as f64),
                    Some(Change::MapOrder) => noted.marks.reverse(),
                    _ => {}
                }
                session.dispatch(noted).map(drop)
            }
            Step::Letter(number) => {
                let name = if change == Some(Change::Letter) { "mail.other" } else { "mail" };
                let letter = session.inputs().observe(name, || {
                    self.letters.fetch_add(1, Ordering::SeqCst);
                    format!("letter {number}")
                });
                letter.map(drop)
            }
            Step::Time => session.inputs().now().map(drop),
            Step::Number => session.inputs().draw().map(drop),
            Step::Tool(number, inner) => {
                let number = if change == Some(Change::Argument) { number + 500 } else { *number };
                let call = ToolCall::new("works", format!("{{\"number\":{number},\"inner\":{inner}}}"));
                runner.execute(&call, &ExecuteOptions::default()).map(drop)
            }
            Step::Tag(number) => session.set_tag("at", number.to_string()).map(drop),
        }
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub(super) struct Nothing {}
