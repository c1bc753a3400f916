//! Measures foldlog beside other logs and stores: the same payloads, in the same run, one round of each after the other.
//!
//! `cd benches/peers && cargo run --release -- [kill|append|durable|durable16|durable64|scan|reopen|steady|tau-bench]...` prints
//! the table whose rows `benches/README.md` keeps. Each round is a process of its own, so that no contestant has another's
//! memory or threads, and can be killed; `kill` shows what that leaves of each. A number is the median of the rounds.
//!
//! | module | holds |
//! |---|---|
//! | `contestants` | who takes part, and how each is configured |
//! | `works` | the works, round after round |
//! | `child` | what a round's process does |
//! | `steady`, `tau_bench` | two works that measure more than one number |
//! | `measure` | payloads, medians, rows |

mod child;
mod contestants;
mod measure;
mod steady;
mod tau_bench;
mod works;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::contestants::Contestant;
use crate::measure::Result;
use crate::works::Works;

/// Finds the recorded runs beside the checkout, where the benches look for them too.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/tau-bench/gpt-4o-airline.json");

#[derive(Parser)]
#[command(about = "Measures foldlog beside other logs and stores")]
struct Args {
    /// What to measure [default: everything].
    works: Vec<PeerBench>,
    /// Who takes part [default: everybody].
    #[arg(long, value_delimiter = ',')]
    only: Vec<Contestant>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Where files go, at most 6 GB at a time [default: the system's temporary directory].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Number of rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// MiB of payloads that a round appends.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Longest time that such a round takes, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Number of durable records of a round of one writer; of several, each writes a quarter of that.
    #[arg(long, default_value_t = 2_000)]
    durable: u64,
    /// Number of records that are scanned, and reopened.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// MiB of payloads of the run whose appends are timed one by one.
    #[arg(long, default_value_t = 2_048)]
    steady_mib: u64,
    /// Recorded runs of tau-bench.
    #[arg(long, default_value = FILE)]
    file: PathBuf,
    /// Do what a round's process does. For the runner itself.
    #[arg(long, hide = true)]
    child: Option<String>,
}

#[derive(Clone, Copy, ValueEnum, PartialEq)]
enum PeerBench {
    Kill,
    Append,
    Durable,
    Durable16,
    Durable64,
    Scan,
    Reopen,
    Steady,
    TauBench,
}

fn main() -> Result<()> {
    let arguments = Args::parse();
    if let Some(task) = &arguments.child {
        return child::serve(task);
    }
    let directory = match &arguments.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let works = Works { arguments: &arguments, dir: directory.path().to_owned() };
    measure::print_head(arguments.json);
    for chosen in PeerBench::value_variants() {
        if !arguments.works.is_empty() && !arguments.works.contains(chosen) {
            continue;
        }
        // How busy the machine is, for whoever reads the rows.
        eprint!("load {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default());
        match chosen {
            PeerBench::Kill => works.kill(),
            PeerBench::Append => works.append(),
            PeerBench::Durable => works.durable(1),
            PeerBench::Durable16 => works.durable(16),
            PeerBench::Durable64 => works.durable(64),
            PeerBench::Scan => works.scan(),
            PeerBench::Reopen => works.reopen(),
            PeerBench::Steady => works.steady(),
            PeerBench::TauBench => works.tau_bench(),
        }?;
    }
    Ok(())
}
