//! The command line: the list of verbs, the options that all of them have, and [`run`], which runs
//! a verb. The arguments of a verb are next to its code in [`verbs`].

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ColorChoice, CommandFactory, Parser, Subcommand, ValueEnum};
use foldlog_codec::escape;

use crate::failure::{CommandError, HOLDS, Result, UNUSABLE};
use crate::hints::HintPaths;
use crate::output::Output;
use crate::pager::{Pager, PagerWriter};
use crate::redact::TypedUrls;
use crate::remote;
use crate::style::ColorMode;
use crate::verbs;

/// Runs agents as sessions, and reads, checks and repairs the logs of sessions without the code that wrote them.
///
/// STORE is a directory of sessions, SESSION the directory of one: STORE/sessions/ID. Records are numbered from 0; a position is
/// the number of the last record at some moment, or the tag of a snapshot (`tag:NAME` where NAME is a number). Verbs that only read
/// a session take URL/sessions/ID, or URL ID, for one that a bucket holds; `foldlog help pull` says which URLs there are. Only `run`,
/// `recover`, `restore`, `rewind`, `settle`, `compact`, `push`, `takeover` and `validate --repair` write into a session.
///
/// Exit codes: 0 what was asked holds; 1 a log does not hold (corrupt or diverged); 2 wrong usage, something cannot be read,
/// or a run gave no answer.
#[derive(Debug, Parser)]
#[command(name = "foldlog", version, max_term_width = 100)]
struct Args {
    /// Print JSON: one document, or for lists one object a line
    #[arg(long, global = true)]
    json: bool,
    /// Refuse what takes more memory than this, in bytes or as 64M or 1GiB [default: 64M and three times the bytes of the log; for
    /// a tree of files 1GiB a file and 4GiB in all]
    #[arg(long, global = true, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Colour what people read: auto (on a terminal, unless NO_COLOR, CLICOLOR or TERM says otherwise), always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        hide_possible_values = true,
        hide_default_value = true,
        default_value_t
    )]
    color: ColorMode,
    /// Show results without a pager: show, diff, transcript and ledger use $FOLDLOG_PAGER, $PAGER or less on a terminal
    #[arg(long, global = true)]
    no_pager: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// Parses a number of bytes: digits, optionally followed by K, M, G, KiB, MiB or GiB, which are
/// powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err("give a number of bytes, such as 67108864, 64M or 1GiB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "the number is too large".to_owned())
}

/// Parses a text that must not be blank, such as the name of a decision's author.
pub(crate) fn parse_nonblank(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("it is blank: the log is to say who does this, and why".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what foldlog is for: write, kill, recover, roll back, fork, verify, replay.
    Demo(verbs::demo::Args),
    /// Copy a session, or all sessions of a store, into another store, or what is new of them.
    ///
    /// The sessions may be written meanwhile. An older copy in DIR is gone on with, if it is the beginning of the session; else
    /// it is left as it is, and what differs is said. What was copied is checked before it counts. A kill at any moment leaves the
    /// older copy. DIR is a store: to restore is to open it. Captures of workspaces are copied where they are kept in the session's
    /// directory, as `foldlog run` keeps them; workspaces are not.
    Backup(verbs::backup::Args),
    /// Drop the bodies of STATE that nothing needs any more, of a session that is not open for writing; compress its segments.
    ///
    /// With --compress the files of finished segments are kept compressed, or made plain again by --compress none; they are read as
    /// before, and nothing is lost. With --compress and --keep all nothing else is done: no body is dropped.
    ///
    /// What the slices hold now stays, and so do LOG slices, calls, conversations, times and the hashes of what is dropped. Positions
    /// that are not kept cannot be gone back to any more. Forks that were made before have their own files.
    Compact(verbs::compact::Args),
    /// Tell which files of a store nothing needs any more, or remove them with --yes.
    ///
    /// That is, objects of bodies that `compact` has dropped, captures of workspaces that no rewind is to need, old images, and what
    /// crashes have left. Captures of the latest calls, of calls that are open or wait for somebody, of the last rewind, and of
    /// snapshots that are kept stay. Sessions that are open or damaged are skipped.
    ///
    /// Of a bucket that holds sessions: chunks of records that stand in a larger object as well, which is at least a day old. Workers and
    /// readers may go on meanwhile.
    Gc(verbs::gc::Args),
    /// Import recorded runs of other tools' agents, and conversations, one session each.
    #[command(subcommand)]
    Import(verbs::import::Args),
    /// Run an agent's program over a workspace, as a session of a store, and print its answer.
    ///
    /// What is said and done is recorded before anything follows from it, and each call of a tool is a transaction over the
    /// workspace. A run that was cut short, in whatever way, is resumed by the same command with --resume.
    Run(Box<verbs::run::Args>),
    /// List the sessions of a store: who runs where, who was cut short in which tool, who waits, who is damaged.
    ///
    /// A session that is damaged or cannot be read is a row too, whatever tags and times are asked for. Each session is read from
    /// its newest image on: damage before that is found by `verify`.
    Sessions(verbs::sessions::Args),
    /// List the records, one a line, and whether each is live, abandoned by a rollback, or abandoned but for its item in a
    /// LOG slice, which stays (`log-only`).
    ///
    /// Of a damaged session the records before its first damage are listed; the same holds of state, diff, stats, ledger and
    /// export. They say where the sound part ends, and exit with 1. `tail` does so with damage behind the beginning of the
    /// segment in which it begins.
    Show(verbs::show::Args),
    /// List the last records, and with --follow further ones as another process writes them.
    Tail(verbs::tail::Args),
    /// Show the slices at a position.
    State(verbs::state::Args),
    /// Show what changed between two positions, by slice and path.
    Diff(verbs::diff::Args),
    /// Check every frame, body, seal and object of sessions or whole stores, and list all damaged places.
    ///
    /// Each place is listed once, with what of the log is sound behind it. Captures of workspaces are not checked: a restore checks them as it reads them.
    Verify(verbs::verify::Args),
    /// Fold a session from its first record, and check that its rollbacks restored what they claim.
    Replay(verbs::replay::Args),
    /// Count what a session's log is made of, by segment, kind, event and slice.
    Stats(verbs::stats::Args),
    /// Write a session as one HTML file that a browser shows: its timeline, and its state at every step.
    Report(verbs::report::Args),
    /// Show a store or a session in a browser: its timeline, what there is at any step, and what is written meanwhile.
    ///
    /// Pages are served on 127.0.0.1 alone, to whoever knows the address with its token; whatever was said is shown. $BROWSER names
    /// the program that opens them, else xdg-open does. Nothing is written into the store.
    View(verbs::view::Args),
    /// Say what became of each tool call, or all that is known of one, with the commands that decide about it.
    Ledger(verbs::ledger::Args),
    /// Print a conversation: what a provider would be sent, or what was recorded.
    ///
    /// Without --as-recorded, results stand behind their calls, calls have ids of their own, and what was shortened is
    /// left out. The formats openai and anthropic print one JSON array of messages; a history that the provider would
    /// refuse is an error then.
    Transcript(verbs::transcript::Args),
    /// Restore the workspaces of an interrupted session and end its open calls, without its host. Writes into the session.
    Recover(Box<verbs::recover::Args>),
    /// List the checkpoints of a session, and check their hashes.
    Checkpoints(verbs::checkpoints::Args),
    /// Restore a session to a checkpoint, without its host. Writes into the session.
    ///
    /// What was there is kept as a checkpoint too, by which the restore can be undone. Workspaces stay as they are, unless their
    /// directories are given.
    Restore(verbs::restore::Args),
    /// Take a session back to a position, with the files of its workspaces, without its host. Writes into the session.
    ///
    /// What is there is captured first, and `--undo` brings it back. Files that were changed by hand since the last call are kept. Let
    /// nobody write into the directories meanwhile.
    Rewind(verbs::rewind::Args),
    /// List all that waits for a person, in all sessions of a store, each with the commands that settle it.
    ///
    /// A call that asks has done nothing yet: `foldlog settle` approves it, with the digest of its arguments, or refuses it.
    /// A call that waits for its result has done its part: `foldlog settle` brings the result. Of a call that was interrupted,
    /// and that its tool cannot judge, a person says whether it did its work, or is to run again.
    Pending(verbs::pending::Args),
    /// Draw the tasks of a session as a tree: what each waits for, and what is next.
    ///
    /// [ ] pending, [#] blocked, [>] in progress, [x] completed, [!] failed, [-] skipped, [/] cancelled.
    Tasks(verbs::tasks::Args),
    /// Check whether the state of a session holds: tasks, conversations, files, logs and digests. With --repair writes into
    /// the session.
    ///
    /// Each issue is told with its severity, its rule, its facts and the event that would repair it. A repair dispatches
    /// these events, each recorded with who asked for it, and checks again. No task is removed. Reducers of the host do not
    /// see these events.
    Validate(verbs::validate::Args),
    /// Record a person's decision about a call that was interrupted and cannot safely be run again, or that is suspended.
    /// Writes into the session, or leaves the decision for the process that has it open.
    Settle(verbs::settle::Args),
    /// Copy what is sound in a damaged session, before its first damage, into a new session. The damaged one is only read.
    ///
    /// Damage in a segment's header, or in a frame that holds no record, does not count if what follows proves what was
    /// there. No byte of a record is repaired: records behind a damaged one, behind a missing segment or behind a record
    /// whose object is missing are counted and not copied.
    Salvage(verbs::salvage::Args),
    /// Copy sessions that a bucket holds into a store, or what is new of them, to be read. Their writers go on.
    Pull(verbs::replica::Pull),
    /// Bring the sessions of a store to a bucket, so that other machines can go on with them. Writes into the sessions.
    ///
    /// Each session is claimed as its host claims it: no process may have it open, and another worker that went on with it keeps it.
    Push(verbs::replica::Push),
    /// Take a session over that a bucket holds: its writer is fenced, and what it had acknowledged is a session of DIR.
    ///
    /// A call that the other worker left open is open here too, and its host recovers it. Captures of workspaces are fetched as well:
    /// `recover`, and behind it `rewind SESSION POSITION --overwrite` to the last position, fill an empty directory by them, with `--rebind
    /// NAME=DIR --unreplicated`.
    Takeover(verbs::replica::TakeOver),
    /// Print a session for other tools.
    Export(verbs::export::Args),
    /// Print a page of the manual, or write all pages: `foldlog man show | man -l -` shows that of `show`.
    Man(verbs::man::Args),
    /// Print a script that completes verbs, options, session ids and tags in a shell.
    Completions(verbs::completions::Args),
    /// List what a shell may complete a word to.
    #[command(hide = true)]
    Candidates(verbs::candidates::Args),
    /// Run the demo's child process, which writes until it is killed.
    #[command(hide = true)]
    DemoChild(verbs::demo::ChildArguments),
}

impl Verb {
    fn is_paged(&self) -> bool {
        matches!(self, Verb::Show(_) | Verb::Diff(_) | Verb::Transcript(_) | Verb::Ledger(_))
    }

    /// Returns the path argument of the session that the verb only reads; `None` if it reads none.
    fn read_session(&mut self) -> Option<&mut PathBuf> {
        Some(match self {
            Verb::Show(arguments) => &mut arguments.session,
            Verb::State(arguments) => &mut arguments.session,
            Verb::Diff(arguments) => &mut arguments.session,
            Verb::Replay(arguments) => &mut arguments.session,
            Verb::Stats(arguments) => &mut arguments.session,
            Verb::Report(arguments) => &mut arguments.session,
            Verb::Ledger(arguments) => &mut arguments.session,
            Verb::Transcript(arguments) => &mut arguments.session,
            Verb::Checkpoints(arguments) => &mut arguments.session,
            Verb::Tasks(arguments) => &mut arguments.session,
            Verb::Export(arguments) => &mut arguments.session,
            _ => return None,
        })
    }

    /// Returns whether the verb itself accepts a place instead of a directory.
    fn reads_places(&self) -> bool {
        matches!(self, Verb::Gc(_) | Verb::Sessions(_) | Verb::Tail(_) | Verb::Verify(_))
    }

    /// Returns the directory of the one session or store that the command line names.
    fn directory(&self) -> Option<&Path> {
        let directory = match self {
            Verb::Backup(arguments) => &arguments.from,
            Verb::Compact(arguments) => &arguments.path,
            Verb::Gc(arguments) => &arguments.path,
            Verb::Sessions(arguments) => &arguments.dir,
            Verb::Pending(arguments) => &arguments.dir,
            Verb::Run(asked) => &asked.store,
            Verb::View(arguments) => &arguments.path,
            Verb::Verify(arguments) => match arguments.paths.as_slice() {
                [only] => only,
                _ => return None,
            },
            Verb::Show(arguments) => &arguments.session,
            Verb::Tail(arguments) => &arguments.session,
            Verb::State(arguments) => &arguments.session,
            Verb::Diff(arguments) => &arguments.session,
            Verb::Replay(arguments) => &arguments.session,
            Verb::Stats(arguments) => &arguments.session,
            Verb::Report(arguments) => &arguments.session,
            Verb::Ledger(arguments) => &arguments.session,
            Verb::Transcript(arguments) => &arguments.session,
            Verb::Recover(arguments) => &arguments.session,
            Verb::Checkpoints(arguments) => &arguments.session,
            Verb::Restore(arguments) => &arguments.session,
            Verb::Rewind(arguments) => &arguments.session,
            Verb::Tasks(arguments) => &arguments.session,
            Verb::Validate(arguments) => &arguments.session,
            Verb::Settle(arguments) => &arguments.session,
            Verb::Salvage(arguments) => &arguments.session,
            Verb::Export(arguments) => &arguments.session,
            Verb::Pull(arguments) => &arguments.to,
            Verb::Push(arguments) => &arguments.store,
            Verb::Takeover(arguments) => &arguments.to,
            Verb::Demo(_)
            | Verb::Import(_)
            | Verb::Man(_)
            | Verb::Completions(_)
            | Verb::Candidates(_)
            | Verb::DemoChild(_) => return None,
        };
        Some(directory)
    }
}

/// Runs the binary with `arguments`, of which the first is the program's name, and returns its exit
/// code.
///
/// The exit code is 0 on success, 1 if the data that a verb checks does not hold
/// ([`DOES_NOT_HOLD`](crate::failure::DOES_NOT_HOLD)), and 2 for wrong usage and unreadable input.
/// Errors are written to `output.stderr`, with the next step.
pub fn run(arguments: impl IntoIterator<Item = OsString>, output: &mut Output<'_>) -> u8 {
    let arguments = remote::join_session_url(arguments.into_iter().collect());
    let typed = TypedUrls::from_arguments(&arguments);
    let is_run_as_json = asks_for_run_as_json(&arguments);
    output.color = color_of(&arguments);
    let is_colored = output.colors_results() || output.colors_notes();
    let parsed = Args::command()
        .color(if is_colored { ColorChoice::Always } else { ColorChoice::Never })
        .try_get_matches_from(arguments)
        .and_then(|matches| <Args as clap::FromArgMatches>::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return not_parsed(&error, &typed, is_run_as_json, output),
    };
    output.json = arguments.json;
    output.memory_bytes = arguments.memory;
    output.color = arguments.color;
    let shown = arguments.verb.directory().filter(|directory| !typed.is_in(directory));
    output.places = shown.map(HintPaths::from_path).unwrap_or_default();
    let pager = output.pager.take().filter(|_| arguments.verb.is_paged() && !arguments.no_pager);
    let ended = match pager {
        Some(pager) => run_paged(arguments.verb, &pager, output),
        None => verb(arguments.verb, output),
    };
    match ended {
        Ok(code) => code,
        Err(failure) if failure.is_closed_pipe() => HOLDS,
        Err(failure) => {
            output.error(typed.hide(&failure.to_string()));
            if let Some(next) = failure.next() {
                output.note(format_args!("  next: {}", typed.hide(&next)));
            }
            failure.exit_code()
        }
    }
}

/// Runs a verb with a pager for its results. Its notes are written after the pager has ended.
fn run_paged(asked: Verb, pager: &Pager, output: &mut Output<'_>) -> Result<u8> {
    let mut notes = Vec::new();
    let mut paged = PagerWriter::new(pager, &mut *output.stdout);
    let mut within = Output {
        stdout: &mut paged,
        stderr: &mut notes,
        progress: false,
        terminal: output.terminal,
        pager: None,
        child: output.child,
        pause: output.pause,
        is_process: output.is_process,
        is_held: output.is_held,
        json: output.json,
        color: output.color,
        places: output.places.clone(),
        columns: output.columns,
        memory_bytes: output.memory_bytes,
    };
    let code = verb(asked, &mut within);
    let ended = paged.end();
    // If standard error is closed, the notes have no reader.
    let _ = output.stderr.write_all(&notes);
    let code = code?;
    if let Some(note) = ended? {
        output.note(note);
    }
    Ok(code)
}

/// Returns the colour mode of unparsed arguments, so that parse errors are coloured too.
fn color_of(arguments: &[OsString]) -> ColorMode {
    let mut words =
        arguments.iter().filter_map(|word| word.to_str()).skip_while(|word| !word.starts_with("--color"));
    let value = match words.next() {
        Some("--color") => words.next(),
        Some(word) => word.strip_prefix("--color="),
        None => None,
    };
    value.and_then(|value| ColorMode::from_str(value, false).ok()).unwrap_or_default()
}

/// Returns whether arguments that cannot be parsed are those of `run --json`.
fn asks_for_run_as_json(arguments: &[OsString]) -> bool {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let behind = arguments.iter().skip(1).zip(arguments);
    let mut words =
        behind.filter(|(word, before)| !is_option(word) && *before != "--memory" && *before != "--color");
    arguments.iter().any(|word| word == "--json") && words.next().is_some_and(|(verb, _)| verb == "run")
}

/// Prints clap's message when no verb runs. Help and version are results. Any other message reports
/// wrong usage; it quotes typed text, so it is escaped. For `run --json` it is also printed as a
/// JSON result.
fn not_parsed(error: &clap::Error, typed: &TypedUrls, is_run_as_json: bool, output: &mut Output<'_>) -> u8 {
    let rendered = error.render();
    let plain = typed.hide(&rendered.to_string());
    let is_plain = plain.lines().all(|line| matches!(escape::text(line), Cow::Borrowed(_)));
    let is_colored = if error.use_stderr() { output.colors_notes() } else { output.colors_results() };
    let text = match (is_plain, is_colored) {
        (true, true) => typed.hide(&rendered.ansi().to_string()),
        (true, false) => plain.clone(),
        (false, _) => plain.lines().map(escape::text).collect::<Vec<_>>().join("\n"),
    };
    if error.use_stderr() {
        // If standard error is closed, the message has no reader.
        let _ = writeln!(output.stderr, "{}", text.trim_end());
        if is_run_as_json {
            // As above.
            let _ = output.value(&verbs::run::RunFailure::of_options(&plain));
        }
        return UNUSABLE;
    }
    match writeln!(output.stdout, "{}", text.trim_end()).map_err(CommandError::from) {
        Err(failure) if !failure.is_closed_pipe() => UNUSABLE,
        _ => HOLDS,
    }
}

/// Runs a verb. If it reads a session in a place, runs it over a copy.
fn verb(mut asked: Verb, output: &mut Output<'_>) -> Result<u8> {
    let Some(url) = asked.directory().and_then(remote::url).filter(|_| !asked.reads_places()) else {
        return local(asked, output);
    };
    let url = url.to_owned();
    if asked.read_session().is_none() {
        return Err(remote::not_written(&url));
    }
    over_copy(asked, &url, output)
}

#[cfg(feature = "object-store")]
fn over_copy(mut asked: Verb, url: &str, output: &mut Output<'_>) -> Result<u8> {
    let session = remote::HeldSession::parse(url).ok_or_else(|| remote::no_session(url))?;
    remote::with_copy(&session, output, |copy, output| {
        if let Some(path) = asked.read_session() {
            copy.clone_into(path);
        }
        local(asked, output)
    })
}

#[cfg(not(feature = "object-store"))]
fn over_copy(_: Verb, _: &str, _: &mut Output<'_>) -> Result<u8> {
    Err(remote::not_built())
}

fn local(verb: Verb, output: &mut Output<'_>) -> Result<u8> {
    match verb {
        Verb::Demo(arguments) => arguments.run(output),
        Verb::Backup(arguments) => arguments.run(output),
        Verb::Compact(arguments) => arguments.run(output),
        Verb::Gc(arguments) => arguments.run(output),
        Verb::Import(arguments) => arguments.run(output),
        Verb::Run(asked) => verbs::run::run(&asked, output),
        Verb::Sessions(arguments) => arguments.run(output),
        Verb::Show(arguments) => arguments.run(output),
        Verb::Tail(arguments) => arguments.run(output),
        Verb::State(arguments) => arguments.run(output),
        Verb::Diff(arguments) => arguments.run(output),
        Verb::Verify(arguments) => arguments.run(output),
        Verb::Replay(arguments) => arguments.run(output),
        Verb::Stats(arguments) => arguments.run(output),
        Verb::Report(arguments) => verbs::report::run(&arguments, output),
        Verb::View(arguments) => verbs::view::run(&arguments, output),
        Verb::Ledger(arguments) => arguments.run(output),
        Verb::Transcript(arguments) => arguments.run(output),
        Verb::Recover(arguments) => arguments.run(output),
        Verb::Checkpoints(arguments) => arguments.run(output),
        Verb::Restore(arguments) => arguments.run(output),
        Verb::Rewind(arguments) => arguments.run(output),
        Verb::Pending(arguments) => arguments.run(output),
        Verb::Tasks(arguments) => arguments.run(output),
        Verb::Validate(arguments) => arguments.run(output),
        Verb::Settle(arguments) => arguments.run(output),
        Verb::Salvage(arguments) => arguments.run(output),
        Verb::Export(arguments) => arguments.run(output),
        Verb::Pull(arguments) => arguments.run(output),
        Verb::Push(arguments) => arguments.run(output),
        Verb::Takeover(arguments) => arguments.run(output),
        Verb::Man(arguments) => verbs::man::run(&arguments, Args::command(), output),
        Verb::Completions(arguments) => verbs::completions::run(&arguments, &mut Args::command(), output),
        Verb::Candidates(arguments) => verbs::candidates::run(&arguments, output),
        Verb::DemoChild(child) => verbs::demo::write_until_killed(&child.store, child.session, output),
    }
}
