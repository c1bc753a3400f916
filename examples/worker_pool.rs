//! Three workers share fifty conversations in a bucket, while they are killed and paused at random. Each worker is a process with a folder
//! of its own, as if on a machine of its own; the bucket is a folder here, and could be any object store.
//!
//! `cargo run --bin worker_pool [SEED]`

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use foldlog::replication::Replication;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::uuid::Uuid;
use foldlog::{
    Event, ExecutionState, Idempotency, ResourceRegistry, Session, SessionOptions, SessionTypes, Slice,
    Store, StoreOptions,
};
use foldlog_remote::object_store::local::LocalFileSystem;
use foldlog_remote::{ObjectReplicator, Retries};
use serde::{Deserialize, Serialize};

const WORKERS: usize = 3;
const CONVERSATIONS: u128 = 50;
const TURNS: u64 = 3;
/// How many workers are killed, and how many are paused, at most.
const MISHAPS: usize = 12;

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
        ["work", name, folder, bucket] => work(name, folder.as_ref(), bucket.as_ref()),
        [seed] => pool(seed.parse()?),
        _ => pool(7),
    }
}

/// Opens the store of a worker, whose sessions the bucket holds.
fn store(name: &str, folder: &Path, bucket: &Path) -> Result<Store> {
    let bucket = LocalFileSystem::new_with_prefix(bucket)?;
    let replicator = ObjectReplicator::new(Arc::new(bucket), "team", name, Retries::default())?;
    let replication = Some(Replication::new(Arc::new(replicator)));
    Ok(Store::open_with(folder, StoreOptions { replication, ..StoreOptions::default() })?)
}

/// Holds the conversations whose ids it reads, one a line, until its input ends.
fn work(name: &str, folder: &Path, bucket: &Path) -> Result<()> {
    let (store, types) = (store(name, folder, bucket)?, types()?);
    for line in stdin().lines() {
        let id: Uuid = line?.parse()?;
        match converse(&store, id, &types) {
            Ok(()) => println!("done {id}"),
            Err(error) if is_fenced(&error) => println!("fenced {id}"),
            Err(error) => println!("failed {id} {error}"),
        }
    }
    Ok(())
}

fn is_fenced(error: &foldlog::Error) -> bool {
    match error {
        foldlog::Error::Fenced { .. } => true,
        foldlog::Error::Poisoned { cause } => is_fenced(cause),
        _ => false,
    }
}

/// Begins a conversation, or goes on with it wherever it stands.
fn converse(store: &Store, id: Uuid, types: &SessionTypes) -> foldlog::Result<()> {
    let session = find(store, id, types)?;
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Speak));
    // A turn that another worker began and did not end is run again.
    runner.recover(&ExecuteOptions::default())?;
    loop {
        let turn = session.view::<Chat>()?.len();
        if turn >= TURNS {
            break;
        }
        runner
            .execute(&ToolCall::new("speak", format!(r#"{{"turn":{turn}}}"#)), &ExecuteOptions::default())?;
        println!("said {id}");
    }
    drop(runner);
    session.close()
}

/// Opens the conversation: the one in this folder, a new one, or the one that the bucket holds.
fn find(store: &Store, id: Uuid, types: &SessionTypes) -> foldlog::Result<Session> {
    use foldlog::Error::{NoSuchSession, ReplicaAhead, Superseded};
    match store.open_session(id, types) {
        Err(NoSuchSession { .. }) => {}
        // Others went on with it, so what is here is of no use any more.
        Err(Superseded { .. } | ReplicaAhead { .. }) => store.delete(id)?,
        opened => return opened,
    }
    let options = SessionOptions { id: Some(id), ..SessionOptions::default() };
    match store.create_with(types, options) {
        Err(ReplicaAhead { .. }) => {
            println!("takes-over {id}");
            store.take_over(id, types)
        }
        created => created,
    }
}

/// Says the next thing. What it does can be done twice.
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

/// One worker, as the pool knows it.
struct Worker {
    process: Child,
    orders: ChildStdin,
    busy: Option<Uuid>,
    is_paused: bool,
}

impl Worker {
    /// Starts a worker on a new machine, which tells the pool each line that it prints.
    fn start(
        number: usize,
        place: usize,
        folder: &Path,
        lines: Sender<(usize, usize, String)>,
    ) -> Result<Worker> {
        let name = format!("worker {number}");
        let mut process = Command::new(std::env::current_exe()?)
            .args(["work", &name])
            .args([folder.join(&name), folder.join("bucket")])
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
        Ok(Worker { process, orders, busy: None, is_paused: false })
    }

    fn signal(&mut self, signal: &str) -> Result<()> {
        Command::new("kill").args([signal, &self.process.id().to_string()]).status()?;
        self.is_paused = signal == "-STOP";
        Ok(())
    }
}

/// Draws numbers that a seed decides.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Runs the pool until every conversation is complete, and says what it saw.
fn pool(seed: u64) -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("bucket"))?;
    let (send, told) = channel();
    let mut workers = Vec::new();
    for place in 0..WORKERS {
        workers.push((place, Worker::start(place, place, folder.path(), send.clone())?));
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
        // Whoever is paused goes on where nobody else has anything to do.
        let works = workers.iter().any(|(_, worker)| worker.busy.is_some() && !worker.is_paused);
        for (_, worker) in workers.iter_mut().filter(|(_, worker)| worker.is_paused) {
            if !works || chance.below(20) == 0 {
                worker.signal("-CONT")?;
            }
        }
        let (place, number, line) = told.recv()?;
        let (word, id) = line.split_once(' ').unwrap_or((&line, ""));
        let id: Uuid = id.split(' ').next().unwrap_or_default().parse()?;
        for known in ["said", "takes-over", "fenced", "failed"] {
            *seen.entry(known).or_default() += usize::from(word == known);
        }
        if word == "failed" {
            println!("{line}");
        }
        if word == "done" {
            done.insert(id);
        }
        if matches!(word, "done" | "fenced" | "failed") && workers[place].0 == number {
            workers[place].1.busy = None;
        }
        let is_held = |id| workers.iter().any(|(_, worker)| worker.busy == Some(id)) || waiting.contains(&id);
        if !done.contains(&id) && !is_held(id) {
            waiting.push_back(id);
        }
        mishap(&mut workers, (&mut chance, &mut seen), &mut waiting, &mut next_number, |number, place| {
            Worker::start(number, place, folder.path(), send.clone())
        })?;
    }
    for (_, mut worker) in workers {
        // A paused one is killed too.
        worker.process.kill()?;
        worker.process.wait()?;
    }
    report(folder.path(), &seen)
}

/// Kills a worker or pauses it, now and then. What it worked on is given to another one.
fn mishap(
    workers: &mut [(usize, Worker)],
    (chance, seen): (&mut Chance, &mut BTreeMap<&str, usize>),
    waiting: &mut VecDeque<Uuid>,
    next_number: &mut usize,
    start: impl Fn(usize, usize) -> Result<Worker>,
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

/// Reads what the bucket holds, as anybody could, and says whether each turn of each conversation is there once.
fn report(folder: &Path, seen: &BTreeMap<&str, usize>) -> Result<()> {
    let reader = store("reader", &folder.join("reader"), &folder.join("bucket"))?;
    let mut complete = 0;
    for id in (1..=CONVERSATIONS).map(Uuid::from_u128) {
        reader.pull(id)?;
        let session = reader.open_read_only(id, &types()?)?;
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
    println!("conversations taken over: {}", count("takes-over"));
    Ok(())
}
