//! Three workers share fifty conversations in a bucket, while they are killed and paused at random.
//! Each worker is a process with its own directory, as if on its own machine. The bucket is a
//! directory here, and could be any place that a URL names. Before a worker continues a
//! conversation of another one, it waits until that worker's lease has run out. The lease is not
//! needed for a safe takeover.
//!
//! `cargo run --bin worker_pool [SEED]`

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use foldlog::replication::Replication;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::uuid::Uuid;
use foldlog::{
    Event, ExecutionState, Idempotency, ResourceRegistry, Session, SessionOptions, SessionTypes, Slice,
    Store, StoreOptions,
};
use foldlog_remote::{LeaseWait, LeaseWaitOutcome, Place, Retries, SteadyPacing, open_place, wait_for_lease};
use serde::{Deserialize, Serialize};

const WORKERS: usize = 3;
const CONVERSATIONS: u128 = 50;
const TURNS: u64 = 3;
/// Maximum number of killed workers, and of paused ones.
const MISHAPS: usize = 12;
/// Time after which a silent worker no longer counts as alive; most hosts use the default of 30 s.
const LEASE: Duration = Duration::from_millis(500);
/// Time that a worker waits for a lease before it does something else.
const PATIENCE: Duration = Duration::from_secs(3);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[derive(Serialize, Deserialize)]
struct Said {
    turn: u64,
}

impl Event for Said {
    const NAME: &'static str = "said";
}

struct Chat;

impl Slice for Chat {
    const NAME: &'static str = "chat";
    type Item = Said;
}

fn types() -> Result<SessionTypes> {
    Ok(SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["work", name, directory, bucket] => Worker::at(name, directory.as_ref(), bucket)?.work(),
        [seed] => pool(seed.parse()?),
        _ => pool(7),
    }
}

/// One worker, in its own process.
struct Worker {
    store: Store,
    place: std::sync::Arc<dyn Place>,
    types: SessionTypes,
}

impl Worker {
    /// Opens the store of a worker, whose sessions are replicated to the bucket.
    fn at(name: &str, directory: &Path, bucket: &str) -> Result<Worker> {
        let place = open_place(bucket, Retries::default())?;
        let replication = Some(Replication::new(place.replicator_with(name, Some(LEASE))?));
        let store = Store::open_with(directory, StoreOptions { replication, ..StoreOptions::default() })?;
        Ok(Worker { store, place, types: types()? })
    }

    /// Runs the conversations whose ids it reads, one per line, until its input ends.
    fn work(&self) -> Result<()> {
        for line in stdin().lines() {
            let id: Uuid = line?.parse()?;
            match self.converse(id) {
                Ok(word) => println!("{word} {id}"),
                Err(error) if error.downcast_ref().is_some_and(is_fenced) => println!("fenced {id}"),
                Err(error) => println!("failed {id} {error}"),
            }
        }
        Ok(())
    }

    /// Starts a conversation, or continues it, and returns a word for the result.
    fn converse(&self, id: Uuid) -> Result<&'static str> {
        let Some(session) = self.find(id)? else { return Ok("left") };
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
        let runner = ToolRunner::new(state, ToolRegistry::new().with(Speak));
        // A turn that another worker started and did not end is run again.
        runner.recover(&ExecuteOptions::default())?;
        loop {
            let turn = session.view::<Chat>()?.len();
            if turn >= TURNS {
                break;
            }
            let call = ToolCall::new("speak", format!(r#"{{"turn":{turn}}}"#));
            runner.execute(&call, &ExecuteOptions::default())?;
            println!("said {id}");
        }
        drop(runner);
        session.close()?;
        Ok("done")
    }

    /// Opens the conversation: the one in this directory, a new one, or the one in the bucket.
    /// Waits until no other worker seems to write it.
    fn find(&self, id: Uuid) -> Result<Option<Session>> {
        use foldlog::Error::{NoSuchSession, ReplicaAhead, Superseded};
        match self.store.open_session(id, &self.types) {
            Err(NoSuchSession { .. }) => {}
            // Other workers have continued it, so the local copy is useless.
            Err(Superseded { .. } | ReplicaAhead { .. }) => self.store.delete(id)?,
            opened => return Ok(Some(opened?)),
        }
        let options = SessionOptions { id: Some(id), ..SessionOptions::default() };
        match self.store.create_with(&self.types, options) {
            Err(ReplicaAhead { .. }) => {}
            created => return Ok(Some(created?)),
        }
        // A host that should end stops the pacing, and thereby the wait.
        let pacing = SteadyPacing::new();
        match wait_for_lease(self.place.as_ref(), id, &LeaseWait::new(PATIENCE, &pacing))? {
            LeaseWaitOutcome::Free { .. } => {
                println!("takes-over {id}");
                Ok(Some(self.store.take_over(id, &self.types)?))
            }
            _ => Ok(None),
        }
    }
}

fn is_fenced(error: &foldlog::Error) -> bool {
    match error {
        foldlog::Error::Fenced { .. } => true,
        foldlog::Error::Poisoned { cause } => is_fenced(cause),
        _ => false,
    }
}

/// Says the next turn. The call can safely run twice.
struct Speak;

#[derive(Deserialize, schemars::JsonSchema)]
struct Turn {
    turn: u64,
}

impl Tool for Speak {
    const NAME: &'static str = "speak";
    type Parameters = Turn;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, Turn { turn }: Turn, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().dispatch(Said { turn })?;
        Ok(ToolResult::ok("said", ()))
    }
}

/// One worker, from the pool's view.
struct Member {
    process: Child,
    orders: ChildStdin,
    busy: Option<Uuid>,
    is_paused: bool,
}

impl Member {
    /// Starts a worker on a new machine. Each line that it prints is sent to the pool.
    fn start(
        number: usize,
        place: usize,
        directory: &Path,
        lines: Sender<(usize, usize, String)>,
    ) -> Result<Member> {
        let name = format!("worker {number}");
        let mut process = Command::new(std::env::current_exe()?)
            .args(["work", &name])
            .args([directory.join(&name).as_os_str(), bucket(directory).as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (orders, told) = (process.stdin.take(), process.stdout.take());
        let (orders, told) = (orders.ok_or("no input")?, told.ok_or("no output")?);
        std::thread::spawn(move || {
            for line in BufReader::new(told).lines().map_while(Result::ok) {
                let _ = lines.send((place, number, line));
            }
        });
        Ok(Member { process, orders, busy: None, is_paused: false })
    }

    fn signal(&mut self, signal: &str) -> Result<()> {
        Command::new("kill").args([signal, &self.process.id().to_string()]).status()?;
        self.is_paused = signal == "-STOP";
        Ok(())
    }
}

fn bucket(directory: &Path) -> String {
    format!("file://{}", directory.join("bucket").display())
}

/// Draws pseudo-random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Runs the pool until every conversation is complete, and prints statistics.
fn pool(seed: u64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::create_dir(directory.path().join("bucket"))?;
    let (send, told) = channel();
    let mut workers = Vec::new();
    for place in 0..WORKERS {
        workers.push((place, Member::start(place, place, directory.path(), send.clone())?));
    }
    let mut chance = Chance(seed);
    let mut waiting: VecDeque<Uuid> = (1..=CONVERSATIONS).map(Uuid::from_u128).collect();
    let mut done = BTreeSet::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut next_number = WORKERS;
    while done.len() < CONVERSATIONS as usize {
        for (_, worker) in workers.iter_mut().filter(|(_, worker)| worker.busy.is_none() && !worker.is_paused)
        {
            let Some(id) = waiting.pop_front() else { break };
            writeln!(worker.orders, "{id}")?;
            worker.busy = Some(id);
        }
        // Paused workers continue if no other worker has anything to do.
        let works = workers.iter().any(|(_, worker)| worker.busy.is_some() && !worker.is_paused);
        for (_, worker) in workers.iter_mut().filter(|(_, worker)| worker.is_paused) {
            if !works || chance.below(20) == 0 {
                worker.signal("-CONT")?;
            }
        }
        let (place, number, line) = told.recv()?;
        let (word, id) = line.split_once(' ').unwrap_or((&line, ""));
        let id: Uuid = id.split(' ').next().unwrap_or_default().parse()?;
        for known in ["said", "takes-over", "left", "fenced", "failed"] {
            *seen.entry(known).or_default() += usize::from(word == known);
        }
        if word == "failed" {
            println!("{line}");
        }
        if word == "done" {
            done.insert(id);
        }
        if matches!(word, "done" | "left" | "fenced" | "failed") && workers[place].0 == number {
            workers[place].1.busy = None;
        }
        let is_held = |id| workers.iter().any(|(_, worker)| worker.busy == Some(id)) || waiting.contains(&id);
        if !done.contains(&id) && !is_held(id) {
            waiting.push_back(id);
        }
        mishap(&mut workers, &mut chance, &mut seen, &mut waiting, &mut next_number, |number, place| {
            Member::start(number, place, directory.path(), send.clone())
        })?;
    }
    for (_, mut worker) in workers {
        // This kills paused workers too.
        worker.process.kill()?;
        worker.process.wait()?;
    }
    report(directory.path(), &seen)
}

/// Occasionally kills or pauses a worker. Its conversation is given to another one.
fn mishap(
    workers: &mut [(usize, Member)],
    chance: &mut Chance,
    seen: &mut BTreeMap<&str, usize>,
    waiting: &mut VecDeque<Uuid>,
    next_number: &mut usize,
    start: impl Fn(usize, usize) -> Result<Member>,
) -> Result<()> {
    let (place, what) = (chance.below(WORKERS), chance.below(12));
    let count = |seen: &BTreeMap<&str, usize>, what| seen.get(what).copied().unwrap_or(0);
    let (number, worker) = &mut workers[place];
    if what > 1 || worker.is_paused {
        return Ok(());
    }
    if let Some(id) = worker.busy.filter(|id| !waiting.contains(id)) {
        waiting.push_front(id);
    }
    if what == 0 && count(seen, "killed") < MISHAPS {
        worker.process.kill()?;
        worker.process.wait()?;
        (*number, *worker) = (*next_number, start(*next_number, place)?);
        *next_number += 1;
        *seen.entry("killed").or_default() += 1;
    } else if what == 1 && count(seen, "paused") < MISHAPS {
        worker.signal("-STOP")?;
        *seen.entry("paused").or_default() += 1;
    }
    Ok(())
}

/// Reads the bucket as an independent reader, and checks that each turn of each conversation is
/// there once.
fn report(directory: &Path, seen: &BTreeMap<&str, usize>) -> Result<()> {
    let reader = Worker::at("reader", &directory.join("reader"), &bucket(directory))?;
    let mut complete = 0;
    for id in (1..=CONVERSATIONS).map(Uuid::from_u128) {
        reader.store.pull(id)?;
        let session = reader.store.open_read_only(id, &reader.types)?;
        let turns: Vec<u64> = session.view::<Chat>()?.iter().map(|said| said.turn).collect();
        if turns != (0..TURNS).collect::<Vec<_>>() {
            return Err(format!("conversation {id} has the turns {turns:?}").into());
        }
        complete += 1;
    }
    let count = |what: &str| seen.get(what).copied().unwrap_or(0);
    println!("{complete} conversations of {TURNS} turns, each turn there once");
    println!(
        "workers killed: {}, paused: {}, refused since another one went on: {}",
        count("killed"),
        count("paused"),
        count("fenced")
    );
    println!(
        "conversations taken over: {}, left for later since their lease had not run out: {}",
        count("takes-over"),
        count("left")
    );
    Ok(())
}
