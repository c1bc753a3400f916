//! Compares foldlog with other logs and stores: the same payloads, in the same run, one round of
//! each in turn.
//!
//! `cd benches/peers && cargo run --release --
//! [kill|append|durable|durable16|durable64|scan|reopen|steady|tau-bench]...` prints a table; past
//! results are in `docs/reference/performance.md`. Each round is a process of its own, so that no
//! contestant shares memory or threads with another one, and can be killed. `kill` shows the
//! surviving records of each. A number is the median of the rounds.
//!
//! | module | contains |
//! |---|---|
//! | `contestants` | the contestants and their configurations |
//! | `works` | the works, round by round |
//! | `child` | the process of a round |
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

/// Finds the recorded runs next to the checkout, where the other benches look for them too.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/tau-bench/gpt-4o-airline.json");

#[derive(Parser)]
#[command(about = "Measures foldlog beside other logs and stores")]
struct Args {
    /// Works to measure [default: all].
    works: Vec<PeerBench>,
    /// Contestants to run [default: all].
    #[arg(long, value_delimiter = ',')]
    only: Vec<Contestant>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Directory for files, at most 6 GB at a time [default: the system's temporary directory].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Number of rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// MiB of payloads that a round appends.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Longest duration of such a round, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Number of durable records of a round of one writer; of several, each writes a quarter of
    /// that.
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
    /// Execute the task of a round's process. For the runner itself.
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
        // The machine's load, for readers of the rows.
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
