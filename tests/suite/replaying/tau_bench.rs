//! The recorded runs of tau-bench, run as conversations and replayed from their own logs: neither
//! the provider nor a tool is called again, and a change of the host's code is found at its record.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldlog::conversation::{EntryContent, Role};
use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::{
    BackgroundSync, DivergenceKind, Durability, Error, Generator, SequenceNumber, Session, Store,
    StoreOptions,
};
use foldlog_test_support::runs::directory;
use foldlog_tests::held::{Change, HELD, Run, runs, types};

/// The environment variable that selects all runs, and 40 changes.
const ALL: &str = "FOLDLOG_TAU_BENCH";

/// Returns the first number, or the second if all runs are selected.
fn count(short: usize, all: usize) -> usize {
    if std::env::var_os(ALL).is_some() { all } else { short }
}

/// Returns the recorded runs. If they are missing, returns `None` and reports that.
fn recorded() -> Option<Vec<Arc<Run>>> {
    Some(runs(&directory()?.join("tau-bench/gpt-4o-airline.json")))
}

fn store(directory: &std::path::Path) -> Store {
    let options = StoreOptions {
        durability: Durability::Process,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with(directory, options).unwrap()
}

/// Runs a conversation live, and returns its session.
fn held(store: &Store, run: &Arc<Run>) -> Session {
    let session = store.create(&types(None)).unwrap();
    run.hold(&session, None).unwrap();
    session
}

/// Returns the number of the provider's requests and of tool runs.
fn outside(run: &Run) -> (u64, u64) {
    (run.asked.load(Ordering::Relaxed), run.ran.load(Ordering::Relaxed))
}

/// The records at which a change of the code can be noticed.
#[derive(Default)]
struct Records {
    system: SequenceNumber,
    /// The inputs of the user, by part.
    said: Vec<SequenceNumber>,
    requests: Vec<SequenceNumber>,
    begins: Vec<SequenceNumber>,
    /// The host's dispatches after each turn.
    turned: Vec<SequenceNumber>,
}

impl Records {
    fn of(session: &Session) -> Records {
        let mut records = Records::default();
        for entry in session.conversation().read(HELD).unwrap().unwrap().entries() {
            match &entry.content {
                EntryContent::Input { message, .. } if message.role == Role::System => {
                    records.system = entry.sequence;
                }
                EntryContent::Input { .. } => records.said.push(entry.sequence),
                EntryContent::Request { .. } => records.requests.push(entry.sequence),
                EntryContent::CallEnded { operation, .. } => records.begins.push((*operation).into()),
                EntryContent::Turn { .. } => records.turned.push(entry.sequence + 1),
                _ => {}
            }
        }
        records
    }

    /// Returns the `number`-th request after the user's input in a part.
    fn request(&self, part: usize, number: usize) -> SequenceNumber {
        *self.requests.iter().filter(|request| **request > self.said[part]).nth(number).unwrap()
    }

    /// Returns the record and the kind of the divergence for a change.
    fn expected(&self, change: &Change) -> (SequenceNumber, DivergenceKind) {
        match *change {
            Change::Policy | Change::Title | Change::ToolSet => (self.system, DivergenceKind::Changed),
            Change::Idempotency => (self.begins[0], DivergenceKind::Changed),
            Change::Temperature(part) | Change::Model(part) => {
                (self.request(part, 0), DivergenceKind::Changed)
            }
            Change::Said(part) => (self.said[part], DivergenceKind::Changed),
            Change::Unsaid(part) => (self.said[part], DivergenceKind::Missing),
            Change::Swapped(part) => (self.said[part], DivergenceKind::Missing),
            // The first text is followed by another input: the prompt.
            Change::SaidMore(0) => (self.said[0] + 1, DivergenceKind::Changed),
            Change::SaidMore(part) => (self.said[part] + 1, DivergenceKind::Extra),
            Change::ClockRead(part) | Change::Tagged(part) => (self.said[part], DivergenceKind::Extra),
            Change::GivesUp(part) => (self.request(part, 1), DivergenceKind::Missing),
            Change::Reducer => (*self.turned.last().unwrap(), DivergenceKind::Changed),
        }
    }
}

/// Draws the place of a kind of change within a run; `None` if the run has none.
fn change(kind: usize, run: &Run, draw: &mut Generator) -> Option<Change> {
    let answered: Vec<usize> = (0..run.parts.len()).filter(|part| run.parts[*part].answers > 0).collect();
    // The next input must be close enough to be recognized.
    let is_short = |part: &&usize| run.parts[**part].answers <= 5 && **part + 1 < run.parts.len();
    let short: Vec<usize> = answered.iter().filter(is_short).copied().collect();
    let part = answered[draw.next_below(answered.len() as u64) as usize];
    Some(match kind {
        0 => Change::Policy,
        1 => Change::Title,
        2 => Change::ToolSet,
        3 => Change::Temperature(part),
        4 => Change::Model(part),
        5 => Change::Said(part),
        6 => Change::Unsaid(*short.last()?),
        7 => Change::SaidMore(part),
        8 => Change::Swapped(*short.first()?),
        9 => Change::ClockRead(part),
        10 => Change::Tagged(part),
        11 => Change::GivesUp(answered.into_iter().find(|part| run.parts[*part].answers > 1)?),
        _ if run.tools().is_empty() => return None,
        12 => Change::Idempotency,
        _ => Change::Reducer,
    })
}

const KINDS: usize = 14;

#[test]
fn each_run_of_tau_bench_does_the_same_again_and_neither_asks_nor_runs_anything() {
    let Some(runs) = recorded() else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let (mut compared, mut records) = (0, 0);
    let count = count(20, runs.len());
    for (number, run) in runs.iter().enumerate().step_by(runs.len() / count) {
        let session = held(&store, run);
        let said = session.conversation().read(HELD).unwrap().unwrap().messages();
        let said = said.into_iter().filter(|message| message.role != Role::System);
        let said: Vec<_> = said.map(|message| (message.role.name().to_owned(), message.content)).collect();
        assert_eq!(said, run.said, "run {number}: the conversation is the file's");
        let dir = session.dir().to_owned();
        session.close().unwrap();

        let before = outside(run);
        assert_eq!(before, (run.answers.len() as u64, run.tools().len() as u64));
        let log = LogReader::open(dir).unwrap();
        let replay = Replay::new(&log, &types(None)).run(|session| run.hold(&session, None).unwrap());
        let report = replay.unwrap_or_else(|error| panic!("run {number}: {error}"));
        assert_eq!((report.divergences.len(), report.processes), (0, 1), "run {number}");
        assert_eq!(outside(run), before, "run {number}: the provider was asked, or a tool ran");
        compared += report.compared;
        records += report.records;
    }
    println!(
        "{count} runs replayed: {records} records, of which the host wrote {compared}, and none differs"
    );
}

#[test]
fn a_change_of_the_host_of_a_run_of_tau_bench_is_found_at_its_record() {
    let Some(runs) = recorded() else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut draw = Generator::from_seed(1);
    let mut left = runs.iter().enumerate().step_by(2);
    for number in 0..count(KINDS, 40) {
        let drawn = left.find_map(|(at, run)| Some((at, run, change(number % KINDS, run, &mut draw)?)));
        let (at, run, change) = drawn.expect("a run in which it can be planted");
        let of = format!("run {at}, {change:?}");
        let session = held(&store, run);
        let expected = Records::of(&session).expected(&change);
        let dir = session.dir().to_owned();
        session.close().unwrap();

        let changed = match &change {
            Change::Reducer => Some(run.answers.len() as u64),
            _ => None,
        };
        let log = LogReader::open(dir).unwrap();
        let hold = |session: Session| run.hold(&session, Some(&change));
        let divergence = match Replay::new(&log, &types(changed)).run(hold) {
            Err(Error::Diverged(divergence)) => *divergence,
            other => panic!("{of} was not found: {other:?}"),
        };
        assert_eq!((divergence.sequence, divergence.divergence), expected, "{of}: {divergence}");
        let mut shown = divergence.to_string();
        shown.truncate(shown.floor_char_boundary(200));
        println!("{of}: {shown}");
    }
}
