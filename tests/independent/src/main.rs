//! Tests foldlog's promises from outside: through its public API alone, without any code of its
//! test suite.
//!
//! `cargo run --release -p foldlog-independent -- all --long` runs every harness at full length.
//! Without `--long` each takes seconds. Exit codes: 0 every tested promise was kept, 1 one was
//! broken, 2 a harness could not run.
//!
//! | module | tests |
//! |---|---|
//! | `kills` | writers that are killed at any moment, with each record acknowledged over a pipe |
//! | `cycles` | lives without a close: their files, and the cost of opening |
//! | `swaps` | workspaces, parents and directories that are exchanged while calls fail and are recovered |
//! | `hostile` | logs of any shape against every verb of the binary, under a limit of memory and time |
//! | `exhausted` | full disks, and limits of descriptors, file lengths and memory |
//! | `obstacles` | files of a tool that obstruct its own rollback: sparse files, deep trees, a forged mark |
//! | `powercuts` | an ext4 that is shut down without a flush |
//! | `copies` | copies that are taken while a session is written |
//! | `owners` | ownership and modes under several users |
//! | `fs_suite` | a file-system test suite that runs inside of a tool that fails |
//!
//! | module | contains |
//! |---|---|
//! | `report` | a harness's counts, skipped parts and broken promises |
//! | `host` | a host's types, its session and its workspace |
//! | `child` | parts of a harness in processes of their own |
//! | `place` | directories and small disks |
//! | `tree` | the contents of a directory, for comparison |
//! | `verbs` | the binary `foldlog` |
//! | `chance` | random numbers from a seed |

mod chance;
mod child;
mod copies;
mod cycles;
mod exhausted;
mod fs_suite;
mod host;
mod hostile;
mod kills;
mod obstacles;
mod owners;
mod place;
mod powercuts;
mod report;
mod swaps;
mod tree;
mod verbs;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;

use clap::{Parser, ValueEnum};

use crate::report::{Report, Result};

#[derive(Parser)]
#[command(about = "Tries foldlog's promises through its public API alone")]
struct Arguments {
    /// Harnesses to run
    #[arg(required = true)]
    harnesses: Vec<Harness>,
    /// Run the short form, which is the default.
    #[arg(long, conflicts_with = "long")]
    short: bool,
    /// Run the long form.
    #[arg(long)]
    long: bool,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of rounds instead of the form's: kills, lives, swaps, cuts, copies or suites,
    /// depending on the harness.
    #[arg(long)]
    count: Option<u64>,
    /// Duration of `swaps`; by default its long form takes an hour.
    #[arg(long)]
    seconds: Option<u64>,
    /// Directory for files; by default the system's temporary directory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print each verb of `hostile` with its result.
    #[arg(long)]
    verbose: bool,
    /// Run only the shapes of `hostile` whose names contain this text.
    #[arg(long)]
    only: Option<String>,
    /// Binary whose verbs are run; by default this one, which contains the same verbs.
    #[arg(long)]
    foldlog: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq)]
enum Harness {
    All,
    Kills,
    Cycles,
    Swaps,
    Hostile,
    Exhausted,
    Obstacles,
    Powercuts,
    Copies,
    Owners,
    FsSuite,
}

/// All harnesses, the longest first.
const ALL: [Harness; 10] = [
    Harness::Hostile,
    Harness::Kills,
    Harness::Cycles,
    Harness::Copies,
    Harness::Exhausted,
    Harness::Obstacles,
    Harness::Owners,
    Harness::FsSuite,
    Harness::Powercuts,
    Harness::Swaps,
];

/// Describes how a harness runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) long: bool,
    pub(crate) seed: u64,
    count: Option<u64>,
    pub(crate) seconds: Option<u64>,
    pub(crate) dir: PathBuf,
    pub(crate) foldlog: Option<PathBuf>,
    pub(crate) verbose: bool,
    pub(crate) only: Option<String>,
}

impl Plan {
    /// Returns the number of rounds: the requested one, or the form's.
    pub(crate) fn rounds(&self, short: u64, long: u64) -> u64 {
        self.count.unwrap_or(if self.long { long } else { short })
    }
}

impl Harness {
    fn run(self, plan: &Plan) -> Result<Report> {
        match self {
            Harness::Kills => kills::run(plan),
            Harness::Cycles => cycles::run(plan),
            Harness::Swaps => swaps::run(plan),
            Harness::Hostile => hostile::run(plan),
            Harness::Exhausted => exhausted::run(plan),
            Harness::Obstacles => obstacles::run(plan),
            Harness::Powercuts => powercuts::run(plan),
            Harness::Copies => copies::run(plan),
            Harness::Owners => owners::run(plan),
            Harness::FsSuite => fs_suite::run(plan),
            Harness::All => Err("this stands for several".into()),
        }
    }
}

/// Runs a part of a harness for its parent process.
fn part(name: &str, arguments: &[String]) -> Result<()> {
    match name {
        "kills" => kills::part(arguments),
        "cycles" => cycles::part(arguments),
        "swaps" => swaps::part(arguments),
        "exhausted" => exhausted::part(arguments),
        "obstacles" => obstacles::part(arguments),
        "powercuts" => powercuts::part(arguments),
        "copies" => copies::part(arguments),
        "owners" => owners::part(arguments),
        _ => Err(format!("there is no part `{name}`").into()),
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == child::PART) {
        return part_of_process();
    }
    let arguments = Arguments::parse();
    let plan = Plan {
        long: arguments.long,
        seed: arguments.seed,
        count: arguments.count,
        seconds: arguments.seconds,
        dir: arguments.dir.unwrap_or_else(std::env::temp_dir),
        foldlog: arguments.foldlog,
        verbose: arguments.verbose,
        only: arguments.only,
    };
    let chosen = arguments.harnesses.iter().flat_map(|harness| match harness {
        Harness::All => ALL.to_vec(),
        one => vec![*one],
    });
    let summary = Mutex::new(Summary::default());
    let left = Mutex::new(chosen.collect::<Vec<_>>().into_iter());
    // The long forms measure times, so each runs alone.
    let threads = if plan.long { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(harness) = next(&left) {
                    let result = harness.run(&plan);
                    summary.lock().unwrap_or_else(PoisonError::into_inner).add(harness, result);
                }
            });
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
}

fn next(left: &Mutex<std::vec::IntoIter<Harness>>) -> Option<Harness> {
    left.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// The results of all harnesses.
#[derive(Default)]
struct Summary {
    broken: bool,
    failed: bool,
    /// Failures are repeated at the end, where the other reports do not hide them.
    again: Vec<String>,
}

impl Summary {
    fn add(&mut self, harness: Harness, result: Result<Report>) {
        match result {
            Ok(report) => {
                println!("{report}");
                self.broken |= !report.holds();
                self.again.extend(report.first_broken().map(|how| format!("{harness:?}: BROKEN: {how}")));
            }
            Err(trouble) => {
                let said = format!("{harness:?}: could not run: {}", trouble.to_string().escape_debug());
                println!("{said}");
                self.again.push(said);
                self.failed = true;
            }
        }
    }

    fn finish(&self) -> ExitCode {
        self.again.iter().for_each(|said| println!("{said}"));
        match (self.failed, self.broken) {
            (true, _) => ExitCode::from(2),
            (false, true) => ExitCode::from(1),
            (false, false) => ExitCode::SUCCESS,
        }
    }
}

fn part_of_process() -> ExitCode {
    let mut arguments = std::env::args_os().skip(2);
    let Some(name) = arguments.next().and_then(|name| name.into_string().ok()) else {
        return ExitCode::from(2);
    };
    if name == verbs::PART {
        return verbs::part(arguments);
    }
    let Ok(arguments) =
        arguments.map(|argument| argument.into_string()).collect::<std::result::Result<Vec<_>, _>>()
    else {
        return ExitCode::from(2);
    };
    let done = part(&name, &arguments);
    child::write_peak();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("{trouble}");
            ExitCode::from(1)
        }
    }
}
