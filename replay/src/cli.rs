//! The verbs and their options, and [`run`].

use foldlog::{OperationId, SequenceNumber};
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ColorChoice, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use foldlog_codec::escape;
use uuid::Uuid;

use crate::failure::{Failure, HOLDS, Result, UNUSABLE};
use crate::output::Output;
use crate::verbs;
use crate::verbs::tail::Start;

/// Reads, checks and replays the logs of agents' sessions, without the code that wrote them.
///
/// SESSION is the folder of a session: STORE/sessions/ID. Exit codes: 0 what was asked holds, 1 a log does
/// not hold (corrupt, diverged), 2 wrong usage or unreadable.
#[derive(Debug, Parser)]
#[command(name = "foldlog", version, max_term_width = 100)]
struct Arguments {
    /// Print JSON: one document, or one object a line for lists.
    #[arg(long, global = true)]
    json: bool,
    /// Read a log only as long as what is known of it takes no more memory: bytes, or as 64M or 1GiB. 64 MiB if nothing is
    /// said, and three times the log's bytes on top for verbs that ask for slices.
    #[arg(long, global = true, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    #[command(subcommand)]
    verb: Verb,
}

/// A number of bytes: digits alone, or with K, M, G, KiB, MiB or GiB, of 1024 each.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err("give a number of bytes, or one with K, M, G, KiB, MiB or GiB behind it".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "it is too large".to_owned())
}

/// The fields of `stats --json`, which [`verbs::stats::Stats`] describes one by one.
const STATS_JSON: &str = "\
With --json one object. `bytes` and what ends in `_bytes` are bytes, all else are numbers of things:
  session, records, live_records, abandoned_records, snapshots, rollbacks,
  used_bytes, allocated_bytes, segment_header_bytes, torn_bytes,
  segments  ordinal, session, first_sequence, records, used_bytes, allocated_bytes, sealed
  kinds     kind, envelope, frames, bytes
  events    event, records, payload_bytes
  slices    slice, policy, live_items, live_bytes, ever_items, ever_bytes
  objects   count, bytes (in the folder), named_count, named_bytes (by records)
  images    name, bytes";

/// The fields of `ledger --json`.
const LEDGER_JSON: &str = "\
With --json one object a line, for each operation:
  operation   its name: the sequence number of its first begin
  parent      the operation within which it ran; undoes: the one that it undid
  call_id     the provider's name for the call, which may have come twice
  tool, idempotency
  outcome     open, committed, failed, interrupted, settled, abandoned (committed, then rolled back)
  cause       why it failed
  effects     outside of what is taken back: none, unknown
  not_undone  what it did to its resources and was not undone with it: resource, path, reason
  begin, end  of its latest run; elapsed_us; runs
  settled     decision, by, reason, sequence";

/// The fields of `recover --json`.
const RECOVER_JSON: &str = "\
What was left half done is captured first, so that nothing is lost, where it can be. No tool is run: calls that
may be run again are by their host, the others wait for `settle`.

With --json one object:
  session
  ended         operation, tool, call_id: the calls that were open
  workspaces    name, root, snapshots; rebound: whether another folder took its place; overwritten: whether what was in it was removed; removed_mark: what the mark said that --force removed
  marks         root, removed_mark: of the folders given with --force where no call has a workspace to be restored
  not_undone    resource, path, reason: what the call did that was not undone, and where what it left was not captured
  unsettled     operation, tool, call_id: to be run again by the host, or settled";

/// The fields of `salvage --json`.
const SALVAGE_JSON: &str = "\
With --json one object:
  session, dir     the new session
  from             the damaged one
  records          how many were taken: those below this sequence number
  objects          how many were taken
  damage           what opening says of the damaged session; null where it opens
  segment, offset  where its sound part ends
  mended           segment, offset: damaged, and known again by what follows
  left             segment, offset, bytes, records, sequences, more, reason: what was not taken
  missing_objects  sequence, path, reason
  open, unsettled  operation, tool: to be recovered, to be settled
  beside           what else is in the session's folder, and was not carried over";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what foldlog does: write, kill, reopen, roll back, fork, verify, replay.
    Demo {
        /// Keep the store in this folder, which must be new or empty.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Import agent runs of other tools, one session a run.
    #[command(subcommand)]
    Import(ImportVerb),
    /// List the sessions of a store.
    Sessions {
        /// The store's folder.
        dir: PathBuf,
    },
    /// Show the timeline, one line a record.
    Show {
        /// The session's folder.
        session: PathBuf,
        /// The first record.
        #[arg(long, default_value_t)]
        from: SequenceNumber,
        /// The last record.
        #[arg(long)]
        to: Option<SequenceNumber>,
        /// Only records of this kind, such as `dispatch` or `rollback`.
        #[arg(long)]
        kind: Option<String>,
    },
    /// Show the last records, and with --follow those that come.
    Tail {
        /// The session's folder.
        session: PathBuf,
        /// How many records.
        #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "from")]
        lines: u64,
        /// The first record, in place of a number of records; with --follow it may be yet to come.
        #[arg(long, value_name = "SEQUENCE")]
        from: Option<SequenceNumber>,
        /// Go on as another process writes, until interrupted.
        #[arg(short, long)]
        follow: bool,
    },
    /// Show the slices at a position.
    State {
        /// The session's folder.
        session: PathBuf,
        /// The position; the last one where nothing is said.
        #[arg(long)]
        at: Option<SequenceNumber>,
        /// Only this slice.
        #[arg(long)]
        slice: Option<String>,
    },
    /// Show what changed between two positions, by slice and path.
    Diff {
        /// The session's folder.
        session: PathBuf,
        /// The position before.
        before: SequenceNumber,
        /// The position after.
        after: SequenceNumber,
    },
    /// Check every frame, body, seal and object of sessions or whole stores.
    ///
    /// The captures of workspaces are not checked: a restore checks what it reads of them.
    Verify {
        /// Folders of sessions or stores.
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Fold a session from its first record and check what its rollbacks claim.
    Replay {
        /// The session's folder.
        session: PathBuf,
        /// Check every rollback, not only a sample of 16.
        #[arg(long)]
        thorough: bool,
    },
    /// Show what a session's log is made of, by segment, kind, event and slice.
    #[command(after_help = STATS_JSON)]
    Stats {
        /// The session's folder.
        session: PathBuf,
    },
    /// Show what became of each tool call.
    #[command(after_help = LEDGER_JSON)]
    Ledger {
        /// The session's folder.
        session: PathBuf,
    },
    /// Restore the workspaces of an interrupted session and end its open calls, without its host. Writes into the session.
    #[command(after_help = RECOVER_JSON)]
    Recover {
        /// The session's folder.
        session: PathBuf,
        /// The folder of a workspace that the call worked on; NAME may be left out where there is one alone.
        #[arg(long = "workspace", value_name = "NAME=DIR")]
        workspaces: Vec<String>,
        /// The folder that holds a workspace's snapshots, where that is not in the session's own.
        #[arg(long, value_name = "NAME=DIR")]
        snapshots: Vec<String>,
        /// A folder to take the place of a workspace that is gone or was replaced: an empty one, or see --overwrite.
        #[arg(long, value_name = "NAME=DIR")]
        rebind: Vec<String>,
        /// Let a folder given by --rebind have files, which are removed.
        #[arg(long, requires = "rebind")]
        overwrite: bool,
        /// Remove the mark of another session that keeps this one away, also where no call is open: for one that is not true.
        #[arg(long)]
        force: bool,
    },
    /// Decide about a tool call that was interrupted and cannot safely run again. Writes into the session.
    Settle {
        /// The session's folder.
        session: PathBuf,
        /// The operation, as `ledger` names it.
        operation: OperationId,
        /// What became of it.
        #[arg(value_enum)]
        decision: Settled,
        /// Who decides.
        #[arg(long)]
        by: String,
        /// Why.
        #[arg(long)]
        reason: String,
        /// What it came to, where it had done its work: JSON.
        #[arg(long)]
        result: Option<String>,
    },
    /// Make a new session of what is sound in a damaged one before its first damage. The damaged one is only read.
    ///
    /// Damage in a segment's header, or in a frame that holds no record, does not count where what follows proves what was
    /// there. Of a record no byte is put right: what stands behind a damaged one, behind a missing segment or behind a
    /// record whose object is missing is counted and not taken.
    #[command(after_help = SALVAGE_JSON)]
    Salvage {
        /// The session's folder.
        session: PathBuf,
        /// The store that takes the new session in; made where there is none.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
    /// Write a session for other tools.
    Export {
        /// The session's folder.
        session: PathBuf,
        /// The position; the last one where nothing is said.
        #[arg(long)]
        at: Option<SequenceNumber>,
        /// The form.
        #[arg(long)]
        format: Format,
    },
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// The demo's child, which writes until it is killed.
    #[command(hide = true)]
    DemoChild {
        /// The store's folder.
        store: PathBuf,
        /// The session.
        session: Uuid,
    },
}

#[derive(Debug, Subcommand)]
enum ImportVerb {
    /// A file of tau-bench: an array of runs with `task_id`, `trial` and `traj`.
    TauBench {
        /// The file.
        file: PathBuf,
        /// The store's folder; made where there is none.
        #[arg(long)]
        store: PathBuf,
    },
    /// Trajectories of SWE-agent: a run a file, with `history`.
    SweAgent {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The store's folder; made where there is none.
        #[arg(long)]
        store: PathBuf,
    },
}

/// What became of an interrupted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Settled {
    /// It had done its work.
    Committed,
    /// It had not, and is not to be run again.
    Failed,
    /// It is to be run again by the next recovery.
    RunAgain,
}

/// The form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The slices, as other implementations of agent sessions read them.
    SnapshotJson,
    /// The records, one JSON object a line, as `show --json` prints them.
    Jsonl,
}

/// Runs the binary with these arguments, the program's name first, and returns its exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>, output: &mut Output<'_>) -> u8 {
    let color = if output.color { ColorChoice::Always } else { ColorChoice::Never };
    let parsed = Arguments::command()
        .color(color)
        .try_get_matches_from(arguments)
        .and_then(|matches| <Arguments as clap::FromArgMatches>::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return not_parsed(&error, output),
    };
    output.json = arguments.json;
    output.memory_bytes = arguments.memory;
    match verb(arguments.verb, output) {
        Ok(code) => code,
        Err(failure) if failure.is_closed_pipe() => HOLDS,
        Err(failure) => {
            output.note(format_args!("error: {failure}"));
            if let Some(next) = failure.next() {
                output.note(format_args!("  next: {next}"));
            }
            failure.exit_code()
        }
    }
}

/// Help and versions are results; anything else is wrong usage, whose message quotes what was typed.
fn not_parsed(error: &clap::Error, output: &mut Output<'_>) -> u8 {
    let rendered = error.render();
    let plain = rendered.to_string();
    let is_plain = plain.lines().all(|line| matches!(escape::text(line), Cow::Borrowed(_)));
    let text = match (is_plain, output.color) {
        (true, true) => rendered.ansi().to_string(),
        (true, false) => plain,
        (false, _) => plain.lines().map(escape::text).collect::<Vec<_>>().join("\n"),
    };
    if error.use_stderr() {
        // Where standard error is gone there is nobody left to be told.
        let _ = writeln!(output.stderr, "{}", text.trim_end());
        return UNUSABLE;
    }
    match writeln!(output.stdout, "{}", text.trim_end()).map_err(Failure::from) {
        Err(failure) if !failure.is_closed_pipe() => UNUSABLE,
        _ => HOLDS,
    }
}

fn verb(verb: Verb, output: &mut Output<'_>) -> Result<u8> {
    match verb {
        Verb::Demo { dir } => verbs::demo::run(dir.as_deref(), output),
        Verb::Import(ImportVerb::TauBench { file, store }) => verbs::import::tau_bench(&file, &store, output),
        Verb::Import(ImportVerb::SweAgent { files, store }) => {
            verbs::import::swe_agent(&files, &store, output)
        }
        Verb::Sessions { dir } => verbs::sessions::run(&dir, output),
        Verb::Show { session, from, to, kind } => {
            verbs::show::run(&session, from, to, kind.as_deref(), output)
        }
        Verb::Tail { session, lines, from, follow } => {
            verbs::tail::run(&session, from.map_or(Start::Last(lines), Start::From), follow, output)
        }
        Verb::Stats { session } => verbs::stats::run(&session, output),
        Verb::State { session, at, slice } => verbs::state::run(&session, at, slice.as_deref(), output),
        Verb::Diff { session, before, after } => verbs::diff::run(&session, before, after, output),
        Verb::Verify { paths } => verbs::verify::run(&paths, output),
        Verb::Replay { session, thorough } => verbs::replay::run(&session, thorough, output),
        Verb::Ledger { session } => verbs::ledger::run(&session, output),
        Verb::Recover { session, workspaces, snapshots, rebind, overwrite, force } => {
            let asked = verbs::recover::Asked {
                workspaces: &workspaces,
                rebound: &rebind,
                overwrite,
                snapshots: &snapshots,
                force,
            };
            verbs::recover::run(&session, &asked, output)
        }
        Verb::Settle { session, operation, decision, by, reason, result } => {
            let decided = verbs::settle::Decided { operation, decision, by: &by, reason: &reason };
            verbs::settle::run(&session, &decided, result.as_deref(), output)
        }
        Verb::Salvage { session, to } => verbs::salvage::run(&session, &to, output),
        Verb::Export { session, at, format } => verbs::export::run(&session, at, format, output),
        Verb::Completions { shell } => {
            // Built in memory first: the generator panics where it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "foldlog", &mut script);
            output.stdout.write_all(&script)?;
            Ok(HOLDS)
        }
        Verb::DemoChild { store, session } => verbs::demo::write_until_killed(&store, session, output),
    }
}
