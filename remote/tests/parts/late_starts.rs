//! Stops workers at random moments, takes their sessions over, and continues the workers. Counts
//! the tools that such a worker starts after the takeover.
//!
//! A worker is another process of the test binary that calls a tool again and again. For each call
//! it reports three times: the start of the tool, the engine's last reading of the clock before
//! that (its last check), and the request for the confirmation of the claim that this check
//! trusted. In every other round the other worker waits for the lease. Otherwise it takes over at
//! once, as `foldlog takeover --now` does.
//!
//! `FOLDLOG_LATE_START_ROUNDS` sets the number of rounds. 200 rounds of about two seconds each are
//! meant for a run by hand.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::replication::{Replication, Replicator};
use foldlog::{Error, ResourceRegistry, SessionOptions, Store, StoreOptions};
use foldlog_remote::{LeaseWait, LeaseWaitOutcome, Place, Retries, SteadyPacing, wait_for_lease};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::notes::{call, runner_over, types};

pub(crate) const LEASE: Duration = Duration::from_millis(1_200);

/// Lifetime of a confirmation.
const FRESH: Duration = Duration::from_millis(200);

/// Names the variable that contains a worker's orders.
const ORDERS: &str = "FOLDLOG_LATE_START_WORKER";

/// Opens a worker's replicator in a place, with a lease of [`LEASE`] and this clock.
pub(crate) type Open = fn(place: &str, name: &str, clock: fn() -> Duration) -> Arc<dyn Replicator>;

/// Describes the place that the workers share.
pub(crate) struct Ground<'a> {
    pub(crate) place: &'a dyn Place,
    /// The place in the form that [`Open`] takes.
    pub(crate) words: &'a str,
    pub(crate) open: Open,
    /// Name of the ignored test that runs a worker.
    pub(crate) worker: &'a str,
}

/// Limits of requests that last as long as a process is stopped.
pub(crate) fn retries() -> Retries {
    Retries {
        within: Duration::ZERO,
        attempts: 10,
        request_timeout: Duration::from_secs(30),
        first_wait: Duration::from_millis(5),
        longest_wait: Duration::from_millis(50),
    }
}

fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap()
}

thread_local! {
    /// Contains the last two readings of this thread.
    static READINGS: Cell<[Duration; 2]> = const { Cell::new([Duration::ZERO; 2]) };
}

fn read_clock() -> Duration {
    let read = now();
    READINGS.set([READINGS.get()[1], read]);
    read
}

fn store(directory: &std::path::Path, replicator: Arc<dyn Replicator>) -> Store {
    let replication = Some(Replication::new(replicator));
    Store::open_with(directory, StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}

/// Runs the worker in a process of its own.
pub(crate) fn work(open: Open) {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let [words, directory, session] = orders.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let workers = store(directory.as_ref(), open(words, "stopped", read_clock));
    let id = Some(session.parse().unwrap());
    let session = workers.create_with(&types(), SessionOptions { id, ..SessionOptions::default() }).unwrap();
    let started = |_: &foldlog::tools::ToolContext| {
        let (start, [asked, checked]) = (now(), READINGS.get());
        say(&format!("start {} {} {}", asked.as_nanos(), checked.as_nanos(), start.as_nanos()));
        Ok(())
    };
    let runner = runner_over(&session, ResourceRegistry::default(), started).unwrap();
    let ended = loop {
        if let Err(error) = call(&runner) {
            break error;
        }
    };
    say(if is_fenced(&ended) { "fenced" } else { "failed" });
}

fn is_fenced(error: &Error) -> bool {
    match error {
        Error::Fenced { .. } => true,
        Error::Poisoned { cause } | Error::DurabilityUnknown { cause, .. } => is_fenced(cause),
        _ => false,
    }
}

fn say(words: &str) {
    let mut out = stdout().lock();
    writeln!(out, "\n@{words}").unwrap();
    out.flush().unwrap();
}

enum Said {
    Started { asked: Duration, checked: Duration, start: Duration },
    Fenced,
    Failed,
}

struct Worker {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(ground: &Ground<'_>, directory: &std::path::Path, session: Uuid) -> Worker {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", ground.worker, "--ignored", "--nocapture", "--test-threads=1"])
            .env(ORDERS, format!("{}\n{}\n{session}", ground.words, directory.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Worker { process, output }
    }

    fn hear(&mut self) -> Option<Said> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let Some(said) = line.strip_prefix('@').and_then(|line| line.strip_suffix('\n')) else {
                continue;
            };
            let mut words = said.split(' ');
            return Some(match words.next() {
                Some("start") => {
                    let mut next = || Duration::from_nanos(words.next().unwrap().parse().unwrap());
                    Said::Started { asked: next(), checked: next(), start: next() }
                }
                Some("fenced") => Said::Fenced,
                _ => Said::Failed,
            });
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        kill(pid, signal).unwrap();
        if signal == Signal::SIGSTOP {
            let stands = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
            assert!(matches!(stands, WaitStatus::Stopped(..)), "{stands:?}");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Debug, Default)]
struct Counts {
    /// Late starts of workers that were stopped between the last check and the start.
    stopped_in_window: u64,
    /// Late starts whose check trusted a fresh confirmation, since the other worker did not wait
    /// for the lease.
    taken_over_in_window: u64,
    outside: u64,
    fenced: u64,
    failed: u64,
}

/// Runs a round: a worker is stopped, taken over and continued.
fn round(ground: &Ground<'_>, random: &mut ChaCha8Rng, waits: bool, counts: &mut Counts) {
    let (directory, other, session) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Uuid::new_v4());
    let mut worker = Worker::start(ground, directory.path(), session);
    for _ in 0..random.next_u32() % 5 + 2 {
        let said = worker.hear();
        assert!(matches!(said, Some(Said::Started { .. })), "the worker ends by itself");
    }
    let (begun, after) = (Instant::now(), Duration::from_micros(u64::from(random.next_u32() % 20_000)));
    while begun.elapsed() < after {
        std::hint::spin_loop();
    }
    worker.signal(Signal::SIGSTOP);
    let stopped = now();
    if waits {
        let pacing = SteadyPacing::new();
        let waited =
            wait_for_lease(ground.place, session, &LeaseWait::new(Duration::from_secs(60), &pacing)).unwrap();
        assert!(matches!(waited, LeaseWaitOutcome::Free { lease: Some(_) }), "{waited:?}");
    }
    let taken =
        store(other.path(), (ground.open)(ground.words, "next", now)).take_over(session, &types()).unwrap();
    let resumed = now();
    worker.signal(Signal::SIGCONT);
    while let Some(said) = worker.hear() {
        match said {
            Said::Started { start, .. } if start < resumed => {}
            Said::Started { checked, .. } if checked <= stopped => counts.stopped_in_window += 1,
            Said::Started { asked, checked, .. } if !waits && checked - asked < FRESH => {
                counts.taken_over_in_window += 1;
            }
            Said::Started { .. } => counts.outside += 1,
            Said::Fenced => counts.fenced += 1,
            Said::Failed => counts.failed += 1,
        }
    }
    drop(taken);
}

/// Runs all rounds, prints the counts, and asserts that no tool started late except within the
/// documented window.
pub(crate) fn count(ground: &Ground<'_>) {
    let rounds = std::env::var("FOLDLOG_LATE_START_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    let (mut counts, mut random) = (Counts::default(), ChaCha8Rng::seed_from_u64(23));
    for number in 0..rounds {
        round(ground, &mut random, number % 2 == 0, &mut counts);
    }
    let Counts { stopped_in_window, taken_over_in_window, outside, fenced, failed } = counts;
    println!(
        "{rounds} workers stopped, taken over and continued: {outside} late starts outside of the window; within it \
         {stopped_in_window} by a stop between check and start, {taken_over_in_window} by a takeover that did not wait for \
         the lease; {fenced} were fenced, {failed} failed otherwise"
    );
    assert_eq!(outside, 0, "tools started late");
    assert!(fenced > 0);
}
