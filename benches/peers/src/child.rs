//! Runs one round in a process of its own, so that each contestant has separate memory, threads and
//! open files, and can be killed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::contestants::{self, Contestant, ContestantWriter, Survives};
use crate::measure::{Payload, Result, waited_ns};
use crate::{steady, tau_bench};

/// Number of appends between two readings of the clock, if a round may be cut short.
const BETWEEN_LOOKS: u64 = 64;

#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub enum Workload {
    /// Appends records to a new log and times them.
    Append,
    /// Appends until it is killed, and reports the number of completed appends.
    AppendUntilKilled,
    /// Fills a log and closes it.
    Fill,
    /// Fills a log, reports that, and waits to be killed.
    FillAndWait,
    /// Opens a log, counts its records, and checks that they are the appended ones, in order.
    Count,
    /// Times reading all records of an open log.
    Scan,
    /// Times opening a log until all values are in memory.
    Reopen,
    /// Times every single append.
    Steady,
    /// Writes recorded runs of an agent, a record for each message.
    TauBench,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildTask {
    pub work: Workload,
    pub contestant: Contestant,
    pub dir: PathBuf,
    /// Bytes of a payload.
    pub size: usize,
    /// Number of records of all writers together.
    pub ops: u64,
    pub writers: usize,
    pub survives: Survives,
    /// Longest duration of a round's appends. Remaining records are not appended.
    pub seconds: f64,
    /// File of recorded runs.
    pub file: PathBuf,
    /// Form in which they are written.
    pub form: tau_bench::TauBenchForm,
}

/// Contains the result of a round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub ops: u64,
    pub seconds: f64,
    /// Fraction of the time that the thread waited for a processor.
    pub waited: f64,
    pub numbers: BTreeMap<String, f64>,
}

impl Outcome {
    pub fn ns_per_op(&self) -> f64 {
        self.seconds * 1e9 / self.ops as f64
    }

    /// Times `run`, which returns its number of operations.
    pub fn timed(run: impl FnOnce() -> Result<u64>) -> Result<Outcome> {
        let waited = waited_ns();
        let start = Instant::now();
        let ops = run()?;
        let seconds = start.elapsed().as_secs_f64();
        let waited = waited_ns().saturating_sub(waited) as f64 / 1e9 / seconds;
        Ok(Outcome { ops, seconds, waited, numbers: BTreeMap::new() })
    }

    pub fn with(mut self, name: &str, number: f64) -> Outcome {
        // JSON has no number for infinity or NaN.
        if number.is_finite() {
            self.numbers.insert(name.to_owned(), number);
        }
        self
    }

    pub fn number(&self, name: &str) -> f64 {
        self.numbers.get(name).copied().unwrap_or(f64::NAN)
    }
}

impl ChildTask {
    fn child(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--child").arg(serde_json::to_string(self)?);
        // walrus has no other setting for its directory and its output.
        command.env("WALRUS_QUIET", "1").env("WALRUS_DATA_DIR", &self.dir);
        Ok(command)
    }

    /// Runs the task in a process of its own.
    pub fn run(&self) -> Result<Outcome> {
        let output = self.child()?.stderr(Stdio::inherit()).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("{} in {:?}: {}", self.contestant.name(), self.work, output.status).into());
        }
        Ok(serde_json::from_str(said.lines().last().unwrap_or_default())?)
    }

    /// Runs the task in a process of its own, and kills it after `time`. Returns the last number
    /// that it reported.
    pub fn run_and_kill(&self, time: Duration) -> Result<u64> {
        let mut child = self.child()?.stdout(Stdio::piped()).spawn()?;
        let mut said = child.stdout.take().ok_or("the child has no output")?;
        let reading = thread::spawn(move || {
            let mut all = Vec::new();
            said.read_to_end(&mut all).map(|_| all)
        });
        thread::sleep(time);
        kill(&mut child)?;
        let all = reading.join().map_err(|_| "the reader panicked")??;
        let (numbers, _) = all.as_chunks();
        Ok(numbers.last().map_or(0, |number| u64::from_le_bytes(*number)))
    }

    /// Runs the task in a process of its own, and kills it after its first line of output.
    pub fn run_until_it_waits(&self) -> Result<()> {
        let mut child = self.child()?.stdout(Stdio::piped()).spawn()?;
        let mut said = child.stdout.take().ok_or("the child has no output")?;
        let waits = said.read_exact(&mut [0; 8]);
        kill(&mut child)?;
        Ok(waits?)
    }
}

fn kill(child: &mut Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Executes a task in the process that was started for it.
pub fn serve(task: &str) -> Result<()> {
    let task: ChildTask = serde_json::from_str(task)?;
    let outcome = match task.work {
        Workload::Append => append(&task)?,
        Workload::AppendUntilKilled => append_until_killed(&task)?,
        Workload::Fill => fill(&task)?,
        Workload::FillAndWait => fill_and_wait(&task)?,
        Workload::Count => count(&task)?,
        Workload::Scan => scan(&task)?,
        Workload::Reopen => reopen(&task)?,
        Workload::Steady => steady::append(&task)?,
        Workload::TauBench => tau_bench::write(&task)?,
    };
    println!("{}", serde_json::to_string(&outcome)?);
    // Remaining work of the contestant's threads is no part of the round.
    std::process::exit(0);
}

pub fn create(task: &ChildTask) -> Result<Vec<Box<dyn ContestantWriter>>> {
    contestants::create(task.contestant, &task.dir, task.survives, task.writers)
}

/// Appends records of a writer up to a number or a time limit. Returns the number of records.
fn append_some(writer: &mut dyn ContestantWriter, task: &ChildTask, ops: u64, start: Instant) -> Result<u64> {
    let mut payload = Payload::new(task.size);
    for number in 0..ops {
        if number % BETWEEN_LOOKS == 0 && start.elapsed().as_secs_f64() > task.seconds {
            return Ok(number);
        }
        writer.append(number, payload.of(number))?;
    }
    Ok(ops)
}

fn append(task: &ChildTask) -> Result<Outcome> {
    let mut writers = create(task)?;
    let ops = task.ops / task.writers as u64;
    let outcome = if let [writer] = &mut *writers {
        Outcome::timed(|| append_some(&mut **writer, task, ops, Instant::now()))?
    } else {
        at_once(&mut writers, task, ops)?
    };
    for writer in writers {
        writer.close()?;
    }
    Ok(outcome)
}

/// Appends with each writer in a thread of its own.
fn at_once(writers: &mut [Box<dyn ContestantWriter>], task: &ChildTask, ops: u64) -> Result<Outcome> {
    let ready = Barrier::new(writers.len() + 1);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (place, writer) in writers.iter_mut().enumerate() {
            let ready = &ready;
            threads.push(scope.spawn(move || {
                let mut payload = Payload::new(task.size);
                ready.wait();
                // Keys of all writers are different.
                let first = place as u64 * ops;
                (first..first + ops).try_for_each(|number| writer.append(number, payload.of(number)))
            }));
        }
        ready.wait();
        // The waiting time of this thread does not concern the writers.
        Outcome::timed(|| {
            for thread in threads {
                thread.join().map_err(|_| "a writer panicked")??;
            }
            Ok(ops * task.writers as u64)
        })
    })
}

fn append_until_killed(task: &ChildTask) -> Result<Outcome> {
    let mut writers = create(task)?;
    let writer = writers.first_mut().ok_or("there is no writer")?;
    let (mut payload, mut stdout) = (Payload::new(task.size), std::io::stdout());
    for number in 0.. {
        writer.append(number, payload.of(number))?;
        if (number + 1) % BETWEEN_LOOKS == 0 {
            stdout.write_all(&(number + 1).to_le_bytes())?;
            stdout.flush()?;
        }
    }
    Ok(Outcome::default())
}

fn filled(task: &ChildTask) -> Result<Box<dyn ContestantWriter>> {
    let mut writer = create(task)?.pop().ok_or("there is no writer")?;
    let mut payload = Payload::new(task.size);
    (0..task.ops).try_for_each(|number| writer.append(number, payload.of(number)))?;
    writer.settle()?;
    Ok(writer)
}

fn fill(task: &ChildTask) -> Result<Outcome> {
    filled(task)?.close()?;
    Ok(Outcome { ops: task.ops, ..Outcome::default() })
}

fn fill_and_wait(task: &ChildTask) -> Result<Outcome> {
    let _writer = filled(task)?;
    let mut stdout = std::io::stdout();
    stdout.write_all(&task.ops.to_le_bytes())?;
    stdout.flush()?;
    loop {
        thread::park();
    }
}

fn count(task: &ChildTask) -> Result<Outcome> {
    let mut found = 0;
    contestants::open(task.contestant, &task.dir)?.scan(&mut |payload| {
        if payload.len() != task.size || Payload::number(payload) != Some(found) {
            return Err(format!("record {found} is not the one that was appended").into());
        }
        found += 1;
        Ok(())
    })?;
    Ok(Outcome { ops: found, ..Outcome::default() })
}

fn all(found: u64, task: &ChildTask) -> Result<u64> {
    if found == task.ops {
        return Ok(found);
    }
    Err(format!("{}: {found} of {} records were read", task.contestant.name(), task.ops).into())
}

fn scan(task: &ChildTask) -> Result<Outcome> {
    let mut reader = contestants::open(task.contestant, &task.dir)?;
    Outcome::timed(|| all(reader.check(task.size)?, task))
}

fn reopen(task: &ChildTask) -> Result<Outcome> {
    let mut reader = None;
    let outcome = Outcome::timed(|| {
        let reader = reader.insert(contestants::open(task.contestant, &task.dir)?);
        all(reader.load()?, task)
    })?;
    Ok(outcome.with("resident KiB", resident_kib()?))
}

fn resident_kib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib =
        line.and_then(|line| line.split_whitespace().next()).ok_or("the system does not say RssAnon")?;
    Ok(kib.parse()?)
}

/// Returns the total length of the files below a directory, and their allocated bytes on the disk.
pub fn bytes_below(dir: &Path) -> Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let (mut long, mut allocated) = (0, 0);
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            let below = bytes_below(&entry.path())?;
            (long, allocated) = (long + below.0, allocated + below.1);
        } else {
            (long, allocated) = (long + metadata.len(), allocated + metadata.blocks() * 512);
        }
    }
    Ok((long, allocated))
}
