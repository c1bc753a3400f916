//! `foldlog demo`: a self-contained demonstration of foldlog.
//!
//! A scripted agent plans and edits files. A child process starts a conversation with a scripted
//! model and is killed within a tool call of its first answer. The session is opened again and
//! recovered, and the conversation continues to its end. A tool fails half way and is rolled back;
//! only its notes remain. A fork tries another way. The logs are verified and replayed. Finally,
//! the conversation and the ledger are printed.

mod agent;
mod child;
mod conversation;
mod tools;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use foldlog::inspect::LogReader;
use foldlog::tools::{ExecuteOptions, ToolRunner};
use foldlog::{SequenceNumber, Session, SessionOptions, SessionTypes, Settlement, Store};
use foldlog_view::document;
use foldlog_view::documents::verify::{self, VerifyReport};
use uuid::Uuid;

pub use child::ChildArguments;

use self::agent::{DemoNote, Notes, PlanStep, StepState, Steps};
use self::tools::{Edit, EditEnding};
use super::{ledger, transcript};
use foldlog_codec::escape;
use foldlog_view::shell::quote_word;

use crate::command::{Access, Command, Group, Target};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::replay_check::replay;

/// Watch a session being killed, recovered and rolled back.
///
/// Without --dir the store is temporary.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Keep the store in this directory, which must be new or empty. Without it the store is
    /// temporary.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

impl Command for Args {
    const GROUP: Group = Group::Run;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog demo --dir demo";

    /// Runs the demo in a temporary store, or in a permanent store at `dir`.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if `dir` is not empty.
    /// - [`CommandError::Child`] if the child process cannot be run.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) or
    ///   [`Error::File`](foldlog_view::Error::File) if the store or the workspace cannot be
    ///   written.
    /// - [`Error::DoesNotHold`](foldlog_view::Error::DoesNotHold) if a guarantee of foldlog is
    ///   violated.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let dir = self.dir.as_deref();
        let since = Instant::now();
        let temporary;
        let root = match dir {
            Some(dir) => dir,
            None => {
                let made = tempfile::tempdir();
                temporary = made.map_err(|source| CommandError::file(&std::env::temp_dir(), source))?;
                temporary.path()
            }
        };
        if dir.is_some() {
            must_be_empty(root)?;
        }
        let store = Store::open(root)?;
        let types = agent::types()?;

        let workspace = tools::workspace(root);
        std::fs::create_dir_all(&workspace).map_err(|source| CommandError::file(&workspace, source))?;
        let (id, files) = plan(root, &store, &types, output)?;
        let acknowledged = kill(root, id, output)?;
        let session = store.open_session(id, &types)?;
        let recovery = session.log().recovery().clone();
        report_reopening(&session, acknowledged.last, output)?;
        let runner = tools::runner(root, &session)?;
        recover_and_settle(&runner, &files, output)?;
        let resumed = conversation::resume(&runner, acknowledged.asked, output)?;
        let rolled_back_to = failing_step(&runner, output)?;
        drop(runner);
        let fork = fork(&store, &types, &session, rolled_back_to, output)?;
        let records = session.log().position().map_or(0, |last| last.get() + 1);
        let dir_of = [session.dir().to_owned(), store.session_dir(fork)];
        session.close()?;
        audit_logs(&dir_of, output)?;
        let [own, _] = &dir_of;
        print_conversation(own, output)?;

        let summary = document! {
            // Null if it was temporary.
            store: dir,
            session: id,
            fork,
            acknowledged: acknowledged.count,
            // Of the conversation. The next fields count those that the killed process and this one
            // requested.
            answers: resumed.answers,
            asked_before: acknowledged.asked,
            asked_after: resumed.requests,
            recovered_records: recovery.records,
            unattested: recovery.unattested,
            torn_bytes: recovery.torn.map_or(0, |torn| torn.bytes),
            rolled_back_to,
            records,
            verify: true,
            replay: true,
            seconds: since.elapsed().as_secs_f64(),
        };
        output.print(&summary, |output| print_next_steps(dir, own, acknowledged.last, output))?;
        Ok(HOLDS)
    }
}

fn must_be_empty(dir: &Path) -> Result<()> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(CommandError::file(dir, error)),
        Ok(mut entries) => {
            if entries.next().is_none() {
                return Ok(());
            }
            let what = format!("{} is not empty", escape::path(dir));
            Err(CommandError::usage(what, "give a directory that is empty, or does not exist yet"))
        }
    }
}

/// Writes a line for a person. With `--json` only the summary is written.
fn say(output: &mut Output<'_>, text: impl std::fmt::Display) -> Result<()> {
    if output.json() { Ok(()) } else { output.line(text) }
}

/// Writes a heading for a person, after an empty line. A line break within the text would be shown
/// as a continuation.
fn heading(output: &mut Output<'_>, text: impl std::fmt::Display) -> Result<()> {
    say(output, "")?;
    say(output, text)
}

/// Returns the error for a violated guarantee.
fn broken(what: impl Into<String>) -> CommandError {
    CommandError::View(foldlog_view::Error::DoesNotHold(what.into()))
}

/// Runs the agent's planning, notes and edits of files. Returns the session's id, and the files.
fn plan(
    root: &Path,
    store: &Store,
    types: &SessionTypes,
    output: &mut Output<'_>,
) -> Result<(Uuid, Vec<String>)> {
    let session = store.create_with(types, SessionOptions::default().tag("agent", "demo"))?;
    say(output, "1. An agent plans three steps and writes files with a tool.")?;
    say(output, format_args!("   session: {}", escape::path(session.dir())))?;
    for title in ["read the issue", "write the fix", "run the tests"] {
        session.dispatch(PlanStep { title: title.to_owned() })?;
    }
    session.dispatch(DemoNote { text: "the issue is about time zones".to_owned() })?;
    let runner = tools::runner(root, &session)?;
    let edit = |edit: Edit| runner.execute(&edit.call(), &ExecuteOptions::default());
    edit(
        Edit::new("read the issue", EditEnding::Succeed)
            .write("README.txt", "a library of time zones")
            .write("src/zones.txt", "all zones are UTC")
            .write("draft.txt", "they are not"),
    )?;
    edit(
        Edit::new("read the issue", EditEnding::Succeed)
            .rename("draft.txt", "notes.txt")
            .write("old.txt", "gone soon"),
    )?;
    let last = edit(Edit::new("read the issue", EditEnding::Succeed).delete("old.txt"))?;
    let files = tools::list_files(&runner)?;
    drop(runner);
    say(output, format_args!("   files: {}", files.join(", ")))?;
    say(output, format_args!("   {} records are in its log", last.end + 1))?;
    let id = session.id();
    session.close()?;
    Ok((id, files))
}

/// Lets a child process write, and kills it within a tool call.
fn kill(root: &Path, id: Uuid, output: &mut Output<'_>) -> Result<child::ChildProgress> {
    heading(
        output,
        "2. A second process continues. It asks a model, whose answer requests three tool calls.",
    )?;
    say(output, "   While the second call changes files, the process is killed (SIGKILL).")?;
    let acknowledged = child::kill_within_a_call(root, id, output)?;
    say(
        output,
        format_args!(
            "   acknowledged before the kill: {} records and {} answer",
            acknowledged.count, acknowledged.asked
        ),
    )?;
    Ok(acknowledged)
}

/// Recovers the session: rolls back the killed call's changes, and lets a person settle the call.
fn recover_and_settle(runner: &ToolRunner, files: &[String], output: &mut Output<'_>) -> Result<()> {
    let session = runner.state().session();
    let half_done = tools::list_files(runner)?;
    say(output, format_args!("   files as the killed call left them: {}", half_done.join(", ")))?;
    let steps = session.dynamic().state()?;
    for recovered in runner.recover(&ExecuteOptions::default())? {
        let (operation, tool) = (recovered.operation, recovered.tool);
        say(
            output,
            format_args!("   the recovery rolls back the changes of operation {operation} (`{tool}`)"),
        )?;
        session.calls().settle(
            operation,
            &Settlement::failed(),
            "the demo",
            "it was killed before it was done",
        )?;
        say(output, "   a person decides whether the call may run again: here it counts as failed")?;
    }
    let after = tools::list_files(runner)?;
    say(output, format_args!("   files after the recovery: {}", after.join(", ")))?;
    let same = |name: &str| -> Result<bool> {
        Ok(session.dynamic().state()?.slices.get(name) == steps.slices.get(name))
    };
    if after != files || half_done == files || !same("steps")? || !same("plan")? {
        return Err(broken("the recovery did not restore files and slices to before the call"));
    }
    Ok(())
}

/// Reports the result of opening the session. No acknowledged record may be missing.
fn report_reopening(session: &Session, acknowledged: SequenceNumber, output: &mut Output<'_>) -> Result<()> {
    let report = session.log().recovery();
    heading(output, "3. The session is opened again and recovered.")?;
    let closed = if report.closed { "closed" } else { "not closed" };
    say(output, format_args!("   {} records are found; the log was {closed}", report.records))?;
    if let Some(torn) = &report.torn {
        say(output, format_args!("   {} bytes of an incomplete record are left out", torn.bytes))?;
    }
    for open in &report.interrupted {
        say(output, format_args!("   interrupted: operation {} (`{}`)", open.operation, open.tool))?;
    }
    match session.log().position() {
        Some(last) if last >= acknowledged => say(
            output,
            format_args!("   no acknowledged record is lost: record {acknowledged} was the last one"),
        ),
        Some(last) => Err(broken(format!("record {acknowledged} was acknowledged; the last one is {last}"))),
        None => Err(broken(format!("record {acknowledged} was acknowledged; there is none"))),
    }
}

/// Runs a tool that fails half way: files and STATE are rolled back, LOG remains. Returns the
/// position before the call.
fn failing_step(runner: &ToolRunner, output: &mut Output<'_>) -> Result<SequenceNumber> {
    heading(
        output,
        "5. A tool fails half way. Its changes to files and STATE are rolled back; its note in LOG stays.",
    )?;
    let session = runner.state().session();
    let (steps, notes) = (session.view::<Steps>()?.len(), session.log().slice::<Notes>()?.len());
    let files = tools::list_files(runner)?;
    let edit = Edit::new("run the tests", EditEnding::Fail)
        .write("src/zones.txt", "some zones")
        .rename("README.txt", "R.txt");
    let report = runner.execute(&edit.call(), &ExecuteOptions::default())?;
    let (steps_after, notes_after) = (session.view::<Steps>()?.len(), session.log().slice::<Notes>()?.len());
    say(output, format_args!("   error: {}", report.message))?;
    say(output, format_args!("   steps: {steps} before the call, {steps_after} after it"))?;
    say(output, format_args!("   notes: {notes} before the call, {notes_after} after it"))?;
    let files_after = tools::list_files(runner)?;
    say(output, format_args!("   files: {}", files_after.join(", ")))?;
    if steps_after != steps || notes_after != notes + 1 || files_after != files {
        return Err(broken("a failed call did not leave files and STATE as before, or LOG lost its note"));
    }
    Ok(report.begin.saturating_sub(1))
}

/// Forks the session, and lets the fork try another way. Returns the fork's id.
fn fork(
    store: &Store,
    types: &SessionTypes,
    session: &Session,
    at: SequenceNumber,
    output: &mut Output<'_>,
) -> Result<Uuid> {
    heading(output, format_args!("6. A fork of the session at record {at} tries another way."))?;
    let fork = store.fork(session.id(), at, types, SessionOptions::default().tag("attempt", "2"))?;
    let before = session.dynamic().state()?.digest();
    fork.dispatch(StepState { step: "run the tests".to_owned(), status: "passed".to_owned() })?;
    fork.dispatch(DemoNote { text: "all 40 tests pass".to_owned() })?;
    if session.dynamic().state()?.digest() != before {
        return Err(broken("what the fork wrote reached its parent"));
    }
    say(output, format_args!("   fork: {}", fork.id()))?;
    say(output, format_args!("   it shares {} records with its parent, which is unchanged", at + 1))?;
    let id = fork.id();
    fork.close()?;
    Ok(id)
}

/// Prints the conversation as it would be sent to the model, and the outcome of each tool call.
fn print_conversation(session: &Path, output: &mut Output<'_>) -> Result<()> {
    if output.json() {
        return Ok(());
    }
    heading(output, "8. The conversation, as the model would receive it:")?;
    let asked = transcript::Args {
        session: session.to_owned(),
        evaluation: Some(conversation::EVALUATION.to_owned()),
        at: None,
        as_recorded: false,
        close_open: false,
        format: transcript::Format::Text,
    };
    Command::run(asked, output)?;
    heading(output, "9. The ledger, with the outcome of each tool call:")?;
    Command::run(ledger::Args { session: session.to_owned(), operation: None }, output)?;
    Ok(())
}

/// Prints commands to explore the store with, or how to keep one.
fn print_next_steps(
    store: Option<&Path>,
    session: &Path,
    before: SequenceNumber,
    output: &mut Output<'_>,
) -> Result<()> {
    output.line("")?;
    let Some(store) = store else {
        return output.line("`foldlog demo --dir DIR` keeps the store in DIR, for you to explore.");
    };
    let (workspace, session) =
        (quote_word(tools::workspace(store).as_os_str()), quote_word(session.as_os_str()));
    let store = quote_word(store.as_os_str());
    output.line("Explore it:")?;
    output.line(format_args!("   foldlog view {store}"))?;
    output.line(format_args!("   foldlog show {session}"))?;
    output.line("Undo what the conversation changed, in the session and in the files:")?;
    output.line(format_args!(
        "   foldlog rewind {session} {before} --workspace {workspace} --by you --reason \"a trial\""
    ))
}

/// Verifies and replays both logs, as an auditor would.
fn audit_logs(dirs: &[PathBuf], output: &mut Output<'_>) -> Result<()> {
    heading(output, "7. Both logs are checked without the agent's code.")?;
    let mut verified = VerifyReport::default();
    for dir in dirs {
        verify::session(dir, None, &mut verified)?;
    }
    if let Some(damage) = verified.corrupt.first() {
        return Err(broken(format!("verify: {}", damage.reason)));
    }
    let (sessions, records) = (verified.sessions, verified.records);
    say(output, format_args!("   verify: {sessions} sessions with {records} records are intact"))?;
    let mut digests = BTreeSet::new();
    for dir in dirs {
        let reader = LogReader::open(dir)?;
        let replayed = replay(&reader, true, output.progress("replaying", reader.records_len()))?;
        if let Some(difference) = replayed.difference {
            return Err(broken(format!("replay: {difference}")));
        }
        digests.insert(replayed.digest);
    }
    say(output, format_args!("   replay: every rollback gives the state of a fresh fold"))?;
    if digests.len() != dirs.len() {
        return Err(broken("the fork's state is its parent's"));
    }
    Ok(())
}
