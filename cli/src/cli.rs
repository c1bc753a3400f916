//! The command line: the list of verbs, the options that all of them have, and [`run`], which runs
//! a verb. The arguments of a verb are next to its code in [`verbs`].

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ColorChoice, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use foldlog_codec::escape;

use crate::failure::{CommandError, HOLDS, Result, UNUSABLE};
use crate::help;
use crate::hints::HintPaths;
use crate::output::Output;
use crate::pager::{Pager, PagerWriter};
use crate::redact::TypedUrls;
use crate::remote;
use crate::style::ColorMode;
use crate::verbs;

/// Runs agents as recorded sessions, and reads, checks and repairs their logs.
#[derive(Debug, Parser)]
#[command(name = "foldlog", version, max_term_width = 100)]
struct Args {
    /// Print JSON: one document, or one object a line for lists
    #[arg(long, global = true)]
    json: bool,
    /// Limit memory for log data, such as 512M [default: 64M + 3 times the log]
    #[arg(long, global = true, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Colour the output: auto, always or never
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
    /// Print without a pager
    #[arg(long, global = true)]
    no_pager: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// Returns the command line with its help.
pub fn command() -> Command {
    help::with_groups(Args::command())
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
    /// Watch a session being killed, recovered and rolled back.
    ///
    /// Example: `foldlog demo --dir demo`
    ///
    /// Without --dir the store is temporary.
    Demo(verbs::demo::Args),
    /// Copy sessions while they are written.
    ///
    /// Example: `foldlog backup STORE --to COPY`
    ///
    /// The copy is a store: to restore it, open it. A later backup into the same directory
    /// copies only what is new, if the copy is the beginning of the session; otherwise nothing
    /// is changed, and the difference is reported. Copied bytes are checked before they count,
    /// and a kill at any moment leaves the older copy intact. Captures of workspaces are copied
    /// if they are in the session's directory, as `foldlog run` keeps them. Workspaces are not
    /// copied.
    Backup(verbs::backup::Args),
    /// Drop or compress parts of logs that nothing needs.
    ///
    /// Example: `foldlog compact STORE --keep tagged --dry-run`
    ///
    /// Drops the bodies of STATE records that no slice needs any more. The session must not be
    /// open for writing. Current slices, LOG slices, calls, conversations, times and the hashes
    /// of dropped bodies remain. A rewind to a position that was not kept is refused
    /// afterwards. Forks that were made before keep their own files.
    ///
    /// With --compress, finished segments are compressed, or decompressed by --compress none.
    /// With --compress and --keep all, nothing is dropped.
    Compact(verbs::compact::Args),
    /// List or remove files that nothing needs.
    ///
    /// Example: `foldlog gc STORE --yes`
    ///
    /// Without --yes, files are only listed: objects of bodies that `compact` has dropped,
    /// captures of workspaces that no rewind needs, old images, and leftovers of crashes.
    /// Captures of the latest calls, of open and waiting calls, of the last rewind, and of kept
    /// snapshots remain. Sessions that are open or damaged are skipped.
    ///
    /// Of a bucket, small chunks of records are removed once a larger object that is at least a
    /// day old contains them. Workers and readers may continue meanwhile.
    Gc(verbs::gc::Args),
    /// Import runs and conversations of other tools.
    ///
    /// Example: `foldlog import claude-code transcript.jsonl --store STORE`
    #[command(subcommand)]
    Import(verbs::import::Args),
    /// Run Claude Code, each tool call as a transaction.
    ///
    /// Example: `foldlog run --adapter claude --prompt task.md --workspace DIR --store STORE`
    ///
    /// Every message and call is recorded before anything follows from it. A run that was cut
    /// short is resumed by the same command with --resume.
    Run(Box<verbs::run::Args>),
    /// List the sessions of a store, with their status.
    ///
    /// Example: `foldlog sessions STORE --status interrupted`
    ///
    /// Damaged and unreadable sessions are listed too, whatever tags and times are asked for.
    /// Each session is read from its newest image on; `verify` finds damage before that.
    Sessions(verbs::sessions::Args),
    /// List the records of a session.
    ///
    /// Example: `foldlog show SESSION --payload`
    ///
    /// Each record is `live`, `abandoned` by a rollback, or `log-only`: abandoned, but its item
    /// in a LOG slice remains.
    ///
    /// If a session is damaged, the records before the first damage are listed, and the exit
    /// code is 1. The same applies to state, diff, stats, ledger and export. `tail` does not
    /// see damage before the segment of its first record.
    Show(verbs::show::Args),
    /// List the last records, and follow new ones.
    ///
    /// Example: `foldlog tail SESSION --follow`
    Tail(verbs::tail::Args),
    /// Print the slices at a position.
    ///
    /// Example: `foldlog state SESSION --at 42`
    State(verbs::state::Args),
    /// Compare two positions, or two sessions.
    ///
    /// Example: `foldlog diff SESSION 10 42`
    Diff(verbs::diff::Args),
    /// Check every byte of sessions, and list all damage.
    ///
    /// Example: `foldlog verify STORE`
    ///
    /// Checks frames, bodies, seals and objects. Each damaged place is listed once, with what
    /// is intact after it. --captures checks the captures of workspaces too.
    Verify(verbs::verify::Args),
    /// Fold a session again, and check its rollbacks.
    ///
    /// Example: `foldlog replay SESSION --thorough`
    Replay(verbs::replay::Args),
    /// Count records, bytes, calls, tokens and cost.
    ///
    /// Example: `foldlog stats SESSION`
    Stats(verbs::stats::Args),
    /// Write a session as one HTML file.
    ///
    /// Example: `foldlog report SESSION --html report.html`
    ///
    /// The file contains the timeline, the slices and files at each step, conversations and
    /// calls. It needs no network.
    Report(verbs::report::Args),
    /// Show a store or a session in a browser.
    ///
    /// Example: `foldlog view STORE`
    ///
    /// Serves pages on 127.0.0.1 only. Everyone who knows the printed address with its token
    /// can read the store, so do not pass it on. $BROWSER names the program that opens the
    /// page; the default is xdg-open. Nothing is written into the store.
    View(verbs::view::Args),
    /// List tool calls with their outcomes.
    ///
    /// Example: `foldlog ledger SESSION`
    ///
    /// With an operation, everything that is known of one call, and the commands that decide
    /// about it.
    Ledger(verbs::ledger::Args),
    /// Print a conversation.
    ///
    /// Example: `foldlog transcript SESSION --format markdown`
    ///
    /// Prints what a provider would be sent: results follow their calls, call ids are unique,
    /// and shortened parts are left out. --as-recorded prints the recorded messages. The
    /// formats openai and anthropic print one JSON array of messages, and fail if the provider
    /// would refuse the history.
    Transcript(verbs::transcript::Args),
    /// Restore directories after a crash, and end open calls.
    ///
    /// Example: `foldlog recover SESSION --workspace DIR`
    ///
    /// Works without the host's code and runs no tool. Writes into the session.
    Recover(Box<verbs::recover::Args>),
    /// List the checkpoints, and check their hashes.
    ///
    /// Example: `foldlog checkpoints SESSION`
    Checkpoints(verbs::checkpoints::Args),
    /// Restore a session to a checkpoint.
    ///
    /// Example: `foldlog restore SESSION checkpoint_002 --by NAME --reason TEXT`
    ///
    /// Works without the host's code. The state before the restore is kept as a checkpoint, so
    /// the restore can be undone. Workspaces change only if their directories are given. Writes
    /// into the session.
    Restore(verbs::restore::Args),
    /// Take a session and its files back to a position.
    ///
    /// Example: `foldlog rewind SESSION 42 --workspace DIR --by NAME --reason TEXT`
    ///
    /// Works without the host's code. The present state is captured first, and `--undo` brings
    /// it back. Files that were changed by hand since the last call are kept. Do not write into
    /// the directories meanwhile. Writes into the session.
    Rewind(verbs::rewind::Args),
    /// List what waits for a decision of a person.
    ///
    /// Example: `foldlog pending STORE`
    ///
    /// A call that asks a question has had no effect yet: `foldlog settle` approves or refuses
    /// it, by the digest of its arguments. A call that waits for its result has done its part:
    /// `foldlog settle` provides the result. If a call was interrupted, a person decides
    /// whether it did its work, or runs again.
    Pending(verbs::pending::Args),
    /// Print the tree of tasks.
    ///
    /// Example: `foldlog tasks SESSION`
    ///
    /// [ ] pending, [#] blocked, [>] in progress, [x] completed, [!] failed, [-] skipped, [/]
    /// cancelled.
    Tasks(verbs::tasks::Args),
    /// Check the state of long-running work, and repair it.
    ///
    /// Example: `foldlog validate SESSION`
    ///
    /// Lists each issue with its severity, its rule, its facts and the event that would repair
    /// it. --repair dispatches these events, each recorded with its author, and checks again.
    /// It removes no task. Reducers of the host do not see these events.
    Validate(verbs::validate::Args),
    /// Record a decision about a tool call.
    ///
    /// Example: `foldlog settle SESSION 36 failed --by NAME --reason TEXT`
    ///
    /// For a call that is suspended, or that was interrupted and cannot safely run again. If
    /// another process has the session open, the decision is left for it. Writes into the
    /// session.
    Settle(verbs::settle::Args),
    /// Copy the intact part of a damaged session.
    ///
    /// Example: `foldlog salvage SESSION --to STORE`
    ///
    /// Copies the records before the first damage into a new session. The damaged session is
    /// only read. Damage in a segment's header, or in a frame without a record, is repaired if
    /// the following bytes prove its content. Records after a damaged record, a missing segment
    /// or a missing object are counted, not copied.
    Salvage(verbs::salvage::Args),
    /// Copy sessions from a bucket or database.
    ///
    /// Example: `foldlog pull s3://BUCKET/PREFIX --to STORE`
    ///
    /// Copies what is new, to be read. The sessions' writers are not affected.
    Pull(verbs::replica::Pull),
    /// Copy sessions to a bucket or database.
    ///
    /// Example: `foldlog push STORE s3://BUCKET/PREFIX`
    ///
    /// Other machines can then take the sessions over. Each session is claimed under its host's
    /// name: no process may have it open, and a session that another worker has taken over is
    /// refused. Writes into the sessions.
    Push(verbs::replica::Push),
    /// Take over a session of another machine.
    ///
    /// Example: `foldlog takeover s3://BUCKET/PREFIX --to STORE --by NAME --reason TEXT`
    ///
    /// Fences the session's writer, and copies everything that it had acknowledged into STORE.
    /// A call that the other worker left open is open here too, and its host recovers it.
    /// Captures of workspaces are copied as well. To fill an empty directory from them, run
    /// `recover` and then `rewind SESSION POSITION --overwrite` to the last position, both with
    /// `--rebind NAME=DIR --unreplicated`.
    Takeover(verbs::replica::TakeOver),
    /// Write a session for other programs.
    ///
    /// Example: `foldlog export SESSION --format jsonl`
    Export(verbs::export::Args),
    /// Print or write pages of the manual.
    ///
    /// Example: `foldlog man show | man -l -`
    Man(verbs::man::Args),
    /// Print completions for a shell.
    ///
    /// Example: `source <(foldlog completions bash)`
    ///
    /// Completes commands, options, session ids and tags.
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
    let parsed = command()
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
