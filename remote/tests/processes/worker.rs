//! Runs a worker: it creates the session or takes it over, then alternates notes and calls, and
//! reports each once it is acknowledged.

use std::fmt::Display;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::str::FromStr;

use foldlog::filesystem::Filesystem;
use foldlog::tools::ExecuteOptions;
use foldlog::{Error, Session, SessionOptions};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::host::{CALLS, SESSION, runner_in, store};
use crate::notes::{call, note, types};
use crate::steps::Steps;

/// Names the variable that contains a worker's orders.
pub(crate) const ORDERS: &str = "FOLDLOG_REMOTE_WORKER";

/// Describes a worker's task: its place and name, the number of rounds, and the step at which it
/// waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) bucket: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) name: String,
    /// Number of notes, and of calls.
    pub(crate) rounds: u64,
    pub(crate) waits_at: Option<u64>,
    pub(crate) takes_over: bool,
    /// Whether steps are counted only once the session exists.
    pub(crate) counts_late: bool,
    /// Whether it waits between the last check of its first call and the start of the tool.
    pub(crate) waits_in_window: bool,
}

impl Display for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Orders { bucket, directory, name, rounds, waits_at, takes_over, counts_late, waits_in_window } =
            self;
        let waits_at = waits_at.map_or(-1, u64::cast_signed);
        let (bucket, directory) = (bucket.display(), directory.display());
        write!(f, "{bucket}\n{directory}\n{name}\n{rounds}\n{waits_at}\n")?;
        write!(f, "{takes_over}\n{counts_late}\n{waits_in_window}")
    }
}

impl FromStr for Orders {
    type Err = ();

    fn from_str(text: &str) -> Result<Orders, ()> {
        let [bucket, directory, name, rounds, waits_at, takes_over, counts_late, waits_in_window] =
            text.split('\n').collect::<Vec<_>>().try_into().map_err(drop)?;
        Ok(Orders {
            bucket: bucket.into(),
            directory: directory.into(),
            name: name.to_owned(),
            rounds: rounds.parse().map_err(drop)?,
            waits_at: waits_at.parse::<i64>().map_err(drop)?.try_into().ok(),
            takes_over: takes_over == "true",
            counts_late: counts_late == "true",
            waits_in_window: waits_in_window == "true",
        })
    }
}

/// Prints one line for the parent, and flushes it.
pub(crate) fn say(word: &str, value: impl Display) {
    let mut out = stdout().lock();
    writeln!(out, "\n@{word} {value}").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "a process that another test starts"]
fn part_of_a_worker() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Orders = orders.parse().unwrap();
    let steps = Steps::waiting_at(orders.waits_at, orders.counts_late);
    match work(&orders, &steps) {
        Ok(()) => say("done", steps.made()),
        Err(error) => say("refused", kind_of(&error)),
    }
}

fn work(orders: &Orders, steps: &Steps) -> foldlog::Result<()> {
    let Orders { bucket, directory, name, rounds, takes_over, counts_late, waits_in_window, .. } = orders;
    let workers = store(directory, bucket, name, steps.clone());
    let session = match takes_over {
        true => workers.take_over(SESSION, &types())?,
        false => workers
            .create_with(&types(), SessionOptions { id: Some(SESSION), ..SessionOptions::default() })?,
    };
    if *counts_late {
        steps.begin_anew();
    }
    let runner = runner_in(&session, &directory.join("work"), |context| {
        say("within", context.operation());
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        files.append(CALLS, format!("{}\n", context.operation()).as_bytes()).unwrap();
        if !files.exists("large").unwrap() {
            // Too large to be stored with records: it gets a pack of its own.
            files.write("large", &noise(3 << 19)).unwrap();
        }
        Ok(())
    });
    runner.recover(&ExecuteOptions::default())?;
    for round in 0..*rounds {
        let text = format!("{name} {round}");
        session.dispatch(note(text.clone()))?;
        say("noted", text);
        if *waits_in_window {
            steps.wait_in_window();
        }
        if call(&runner)?.success {
            say("called", round);
        }
    }
    drop(runner);
    closed(session)
}

fn closed(session: Session) -> foldlog::Result<()> {
    session.close()
}

/// Returns incompressible bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(7).fill_bytes(&mut bytes);
    bytes
}

/// Names the original error, also if it is reported by a poisoned session.
fn kind_of(error: &Error) -> &'static str {
    match error {
        Error::Fenced { .. } => "fenced",
        Error::Poisoned { cause } | Error::DurabilityUnknown { cause, .. } => kind_of(cause),
        Error::ReplicaFailed { .. } => "failed",
        Error::ReplicaUnknown { .. } => "unknown",
        _ => "otherwise",
    }
}
