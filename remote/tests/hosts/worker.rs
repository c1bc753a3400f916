//! A worker on a host of its own that executes commands.

use std::io::stdin;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use foldlog::inspect::LogReader;
use foldlog::replication::Replication;
use foldlog::tools::ExecuteOptions;
use foldlog::{
    Clock, Durability, Error, RecordKind, ResourceRegistry, Session, SessionOptions, Store, StoreOptions,
};
use foldlog_remote::{
    LeaseWait, LeaseWaitOutcome, Place, PlaceEnvironment, Retries, SteadyPacing, open_place_with,
    wait_for_lease,
};
use uuid::Uuid;

use crate::child::{END, Process, say};
use crate::net::Net;
use crate::notes::{call, note, runner_over, texts, types};

const SESSION: Uuid = Uuid::from_u128(0x4057);

/// Short, since a test waits for it to expire. Longer than a slow machine may delay a thread
/// between two renewals.
const LEASE: Duration = Duration::from_secs(3);

/// Name the variables that contain a worker's name, its directory, the server's address, and
/// whether its clock leaps.
const NAME: &str = "FOLDLOG_HOSTS_NAME";
const DIRECTORY: &str = "FOLDLOG_HOSTS_FOLDER";
const SERVER: &str = "FOLDLOG_HOSTS_ADDRESS";
const LEAPS: &str = "FOLDLOG_HOSTS_LEAPS";

pub(crate) struct Worker {
    pub(crate) process: Process,
    _directory: tempfile::TempDir,
}

impl Worker {
    pub(crate) fn start(net: &Net, worker: u8) -> Worker {
        Worker::start_with(net, worker, &[], false)
    }

    /// Starts a worker with a command prefix, or with a clock that leaps.
    pub(crate) fn start_with(net: &Net, worker: u8, within: &[&str], leaps: bool) -> Worker {
        let directory = tempfile::tempdir().unwrap();
        let mut variables = vec![
            (NAME, format!("worker {worker}")),
            (DIRECTORY, directory.path().display().to_string()),
            (SERVER, Net::address(worker)),
        ];
        variables.extend(leaps.then(|| (LEAPS, "1".to_owned())));
        let name = net.worker(worker);
        let process = Process::start(&name, within, "worker::part_of_a_worker", &variables);
        Worker { process, _directory: directory }
    }

    /// Sends a command that succeeds, and returns the worker's output.
    pub(crate) fn does(&mut self, words: &str) -> Vec<String> {
        let said = self.process.ask(words);
        assert!(
            !said.is_empty() && !said.iter().any(|said| said.starts_with("refused")),
            "{words}: {said:?}"
        );
        said
    }

    /// Sends a command that is refused. Returns the reason, and the output before it.
    pub(crate) fn is_refused(&mut self, words: &str) -> (String, Vec<String>) {
        let mut said = self.process.ask(words);
        let last = said.pop().unwrap_or_default();
        let reason = last.strip_prefix("refused ").unwrap_or_else(|| panic!("{words}: {said:?} {last}"));
        (reason.to_owned(), said)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) notes: Vec<String>,
    pub(crate) begins: Vec<String>,
}

/// Reads a worker's report of its log.
pub(crate) fn told(worker: &mut Worker) -> Told {
    let said = worker.does("tell");
    let all = |word: &str| said.iter().filter_map(|said| Some(said.strip_prefix(word)?.to_owned())).collect();
    Told { notes: all("note "), begins: all("begin ") }
}

/// Checks that a log contains each acknowledged note and call once, and that no handler ran without
/// a start record.
pub(crate) fn assert_holds(told: &Told, said: &[String]) {
    let mut each = told.notes.clone();
    each.sort();
    each.dedup();
    assert_eq!(each.len(), told.notes.len(), "something is there twice: {told:?}");
    for word in said {
        match word.split_once(' ') {
            Some(("noted", text)) => assert!(told.notes.iter().any(|note| note == text), "{text}: {told:?}"),
            Some(("within", operation)) => {
                assert!(told.begins.iter().any(|begin| begin == operation), "{operation}: {told:?}");
            }
            _ => {}
        }
    }
}

/// Leaps back and forth by a year at each reading of the time of day.
#[derive(Debug, Default)]
struct Leaping(AtomicI64);

impl Clock for Leaping {
    fn now_us(&self) -> i64 {
        let readings = self.0.fetch_add(1, Ordering::SeqCst);
        1_800_000_000_000_000 + (readings % 2) * 31_536_000_000_000
    }
}

/// Runs the worker in a process of its own.
#[test]
#[ignore = "run by other tests, as a process of its own"]
fn part_of_a_worker() {
    let Ok(name) = std::env::var(NAME) else { return };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let place = place();
    let mut works =
        Works { store: store(&directory, place.as_ref(), &name), place, name, rounds: 0, session: None };
    for line in stdin().lines() {
        if let Err(error) = works.does(&line.unwrap()) {
            say(&format!("refused {}", kind_of(&error)));
        }
        say(END);
    }
}

fn place() -> Arc<dyn Place> {
    let retries = Retries {
        within: Duration::ZERO,
        attempts: 3,
        request_timeout: Duration::from_secs(2),
        first_wait: Duration::from_millis(20),
        longest_wait: Duration::from_millis(100),
    };
    let variables: PlaceEnvironment = [
        ("AWS_ENDPOINT_URL", format!("http://{}", std::env::var(SERVER).unwrap())),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "id".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "key".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    open_place_with("s3://agents/team", retries, &variables).unwrap()
}

fn store(directory: &Path, place: &dyn Place, name: &str) -> Store {
    let mut options = StoreOptions {
        replication: Some(Replication::new(place.replicator_with(name, Some(LEASE)).unwrap())),
        durability: Durability::Every,
        ..StoreOptions::default()
    };
    if std::env::var_os(LEAPS).is_some() {
        options.clock = Arc::new(Leaping::default());
    }
    Store::open_with(directory, options).unwrap()
}

struct Works {
    store: Store,
    place: Arc<dyn Place>,
    name: String,
    rounds: u64,
    session: Option<Session>,
}

impl Works {
    fn does(&mut self, words: &str) -> foldlog::Result<()> {
        match words.split_once(' ').unwrap_or((words, "")) {
            ("create", _) => {
                let options = SessionOptions { id: Some(SESSION), ..SessionOptions::default() };
                self.session = Some(self.store.create_with(&types(), options)?);
                say("created");
            }
            ("open", _) => {
                self.session = None;
                self.session = Some(self.store.open_session(SESSION, &types())?);
                self.recover()?;
                say("opened");
            }
            ("take-over", _) => {
                self.session = Some(self.store.take_over(SESSION, &types())?);
                self.recover()?;
                say("taken-over");
            }
            ("rounds", count) => (0..count.parse::<u64>().unwrap()).try_for_each(|_| self.round())?,
            ("wait", milliseconds) => self.wait(milliseconds.parse().unwrap()),
            ("tell", _) => self.tell()?,
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    fn recover(&self) -> foldlog::Result<()> {
        let runner = runner_over(self.session(), ResourceRegistry::default(), |_| Ok(()))?;
        runner.recover(&ExecuteOptions::default()).map(drop)
    }

    /// Records a note and calls the tool. Reports each once it is acknowledged.
    fn round(&mut self) -> foldlog::Result<()> {
        let text = format!("{} {}", self.name, self.rounds);
        self.rounds += 1;
        self.session().dispatch(note(text.clone()))?;
        say(&format!("noted {text}"));
        let within = |context: &foldlog::tools::ToolContext| {
            say(&format!("within {}", context.operation()));
            Ok(())
        };
        call(&runner_over(self.session(), ResourceRegistry::default(), within)?)?;
        say("called");
        Ok(())
    }

    /// Waits until the session's lease has expired, or until its worker is known to live.
    fn wait(&self, milliseconds: u64) {
        let pacing = SteadyPacing::new();
        let wait = LeaseWait::new(Duration::from_millis(milliseconds), &pacing).until_it_lives();
        say(match wait_for_lease(self.place.as_ref(), SESSION, &wait) {
            Ok(LeaseWaitOutcome::Free { lease: Some(_) }) => "ran-out",
            Ok(LeaseWaitOutcome::Free { lease: None }) => "free",
            Ok(LeaseWaitOutcome::Kept { lives: true, .. }) => "lives",
            Ok(_) => "kept",
            Err(_) => "refused",
        });
    }

    fn tell(&self) -> foldlog::Result<()> {
        texts(self.session()).iter().for_each(|text| say(&format!("note {text}")));
        let log = LogReader::open(self.session().dir())?;
        log.records(0, log.last_position(), |record| {
            if record.kind == RecordKind::ToolBegin {
                say(&format!("begin {}", record.sequence));
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Names the original error, also if it is reported by a poisoned session.
fn kind_of(error: &Error) -> &'static str {
    match error {
        Error::Fenced { .. } => "fenced",
        Error::Poisoned { cause } | Error::DurabilityUnknown { cause, .. } => kind_of(cause),
        Error::ReplicaFailed { .. } => "failed",
        Error::ReplicaUnknown { .. } => "unknown",
        Error::Superseded { .. } | Error::ReplicaAhead { .. } => "superseded",
        _ => "otherwise",
    }
}
