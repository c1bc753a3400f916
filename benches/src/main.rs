//! Measures foldlog, and in the same run its limits: the least work of the machine for the same
//! result.
//!
//! `cargo run --release -p foldlog-benches -- [append|dispatch|replay|verify|rollback|open|fork|tau-bench|tools|conversation|
//! workspace|claude|persistence|backup|sessions|remote|scale|compressed|growth]... [--json] [--dir DIR]`
//! prints one row a line: `bench, subject, param, ns_per_op, ratio_to_limit, at_most`, and whether
//! the target is met. Each number is the median of several rounds, of the subject and of the limit
//! alternately. A row whose limit's median is over 1.5 times its minimum is void, since the machine
//! was busy then. A row reports a subject that waited for a processor over a tenth of its time.
//! `README.md` next to the sources describes the rows, and `docs/reference/performance.md` has
//! results.
//!
//! | module | contains |
//! |---|---|
//! | `limits` | the limits of the subjects |
//! | `subject` | the measured host |
//! | `measure` | rounds, medians, rows |
//! | `append`, `readers`, `positions`, `open`, `growth`, `import`, `tools`, `conversations`, `workspaces`, `claude`, `persistence`, `backups`, `listing`, `remote`, `compressed`, `scale` | the benches |

mod append;
mod backups;
mod claude;
mod compressed;
mod conversations;
mod growth;
mod import;
mod limits;
mod listing;
mod measure;
mod open;
mod persistence;
mod positions;
mod readers;
mod remote;
mod scale;
mod subject;
mod tools;
mod workspaces;

use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use crate::measure::{BenchRow, Result};

#[derive(Parser)]
#[command(about = "Measures foldlog beside its limits")]
struct Args {
    /// Benches to run [default: all].
    benches: Vec<Bench>,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Directory for files, at most 3.3 GB at a time [default: the system's temporary directory].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Size in MiB of the session that is backed up.
    #[arg(long, default_value_t = 1024)]
    backup_mib: u64,
    /// Number of sessions that are listed.
    #[arg(long, default_value_t = 20_000)]
    sessions: u64,
    #[command(flatten)]
    remote: remote::Sizes,
    #[command(flatten)]
    scale: scale::Sizes,
    /// Open a session of a store and print its memory. For the runner itself.
    #[arg(long, hide = true, num_args = 2)]
    held_by: Option<Vec<String>>,
    /// Open this many sessions of a new store and print the resources of each. For the runner
    /// itself.
    #[arg(long, hide = true, num_args = 2)]
    held_open: Option<Vec<String>>,
    /// Open a session of a store, write to it and crash. For the runner itself.
    #[arg(long, hide = true, num_args = 2)]
    crash: Option<Vec<String>>,
}

#[derive(Clone, Copy, ValueEnum, PartialEq)]
enum Bench {
    Append,
    Dispatch,
    Replay,
    Verify,
    Rollback,
    Open,
    Fork,
    #[value(name = "tau-bench")]
    Import,
    Tools,
    Conversation,
    Workspace,
    Claude,
    Persistence,
    Backup,
    Sessions,
    Remote,
    Scale,
    Compressed,
    Growth,
}

impl Bench {
    fn run(self, dir: &Path, arguments: &Args) -> Result<Vec<BenchRow>> {
        match self {
            Bench::Append => append::append(dir),
            Bench::Dispatch => append::dispatch(dir),
            Bench::Replay => readers::replay(dir),
            Bench::Verify => readers::verify(dir),
            Bench::Rollback => positions::rollback(dir),
            Bench::Open => open::open(dir),
            Bench::Fork => positions::fork(dir),
            Bench::Import => import::tau_bench(dir),
            Bench::Tools => tools::tools(dir),
            Bench::Conversation => conversations::conversation(dir),
            Bench::Workspace => workspaces::workspace(dir),
            Bench::Claude => claude::claude(dir),
            Bench::Persistence => persistence::persistence(dir),
            Bench::Backup => backups::backup(dir, arguments.backup_mib),
            Bench::Sessions => listing::sessions(dir, arguments.sessions),
            Bench::Remote => remote::remote(dir, &arguments.remote),
            Bench::Scale => scale::scale(dir, arguments.scale),
            Bench::Compressed => compressed::compressed(dir),
            Bench::Growth => growth::growth(dir),
        }
    }
}

fn main() -> Result<()> {
    let arguments = Args::parse();
    if let Some([store, session]) = arguments.held_by.as_deref() {
        return open::print_held(store, session);
    }
    if let Some([store, count]) = arguments.held_open.as_deref() {
        return scale::print_held_open(store, count);
    }
    if let Some([store, session]) = arguments.crash.as_deref() {
        return scale::crash(store, session);
    }
    for bench in Bench::value_variants() {
        if !arguments.benches.is_empty() && !arguments.benches.contains(bench) {
            continue;
        }
        // Each has a directory of its own, which is removed at its end.
        let directory = match &arguments.dir {
            Some(dir) => tempfile::tempdir_in(dir)?,
            None => tempfile::tempdir()?,
        };
        for row in bench.run(directory.path(), &arguments)? {
            row.print(arguments.json)?;
        }
    }
    Ok(())
}
