//! `foldlog pending`: operations that wait for a person in the sessions of a store: questions of
//! suspended calls, and interrupted calls that only a person can judge.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::{DateTime, SecondsFormat, Utc};
use foldlog::filesystem::HostFilesystem;
use foldlog::inspect::{self, LogReader};
use foldlog::tools::resources::Snapshotable;
use foldlog::{
    CallOrigin, OpenOperation, OperationId, PendingQuestion, SequenceNumber, SuspensionForm,
    UnsettledOperation,
};
use foldlog_codec::body::ToolBegin;
use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use foldlog_view::clock::now;
use foldlog_view::documents::ledger::{DecisionChoice, choices, text_of, unread};
use foldlog_view::session_dirs::holds_anything;
use foldlog_view::shell::quote_word;
use foldlog_view::text::digest_text;
use serde::Serialize;
use uuid::Uuid;

use crate::command::{Argument, Command, Group, Target};
use crate::failure::{HOLDS, Result, worse};
use crate::output::Output;
use crate::readers;

/// Describes the fields of `pending --json`.
const PENDING_JSON: &str = "\
With --json one object a line:
  session, operation   arguments of `foldlog settle`
  tool, call_id        name of the tool, and the provider's id of the call
  asked_by             answer that made the call: its sequence number, and the number of the call
                       in it
  parent               operation within which the call ran
  waits_for            approval, result; decision: its process ended during the call, and it is
                       unknown whether the call did its work; recovery: the same, and the session
                       must be recovered first
  question, arguments  question of the tool, and arguments from the model
  digest               BLAKE3 hash of the arguments, which an approval names
  asked_at, expires_at times; a call without an answer fails at expires_at. asked_at of an
                       interrupted call is the time of its start
  decide               possible decisions: meaning, command";

/// List what waits for a decision of a person.
///
/// A call that asks a question has had no effect yet: `foldlog settle` approves or refuses
/// it, by the digest of its arguments. A call that waits for its result has done its part:
/// `foldlog settle` provides the result. If a call was interrupted, a person decides
/// whether it did its work, or runs again.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = PENDING_JSON)]
pub struct Args {
    /// Directory of the store
    #[arg(value_name = "STORE")]
    pub dir: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Decide;
    const TARGET: Target = Target::Store;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.dir);
    const EXAMPLE: &'static str = "foldlog pending STORE";

    /// Prints the operations that wait for a person in all sessions of the store at `dir`, in the
    /// order of the sessions' ids. A session that cannot be read is reported on standard error, and
    /// the others are listed. The exit code is then 1 if any session is damaged, else 2.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`](foldlog_view::Error::Usage) if there is no store at `dir`,
    /// [`Error::Engine`](foldlog_view::Error::Engine) if the store cannot be read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let store = readers::open_store(&self.dir, output)?;
        let (mut code, mut found) = (HOLDS, false);
        let ids = store.session_ids()?;
        let running = inspect::running_sessions(store.path(), &ids)?;
        for id in ids {
            let session = store.session_dir(id);
            if !holds_anything(&session) {
                readers::pass_over(&session, output);
                continue;
            }
            let pending = readers::open_outline(&session, output)
                .and_then(|reader| rows(&reader, running.contains_key(&id)));
            match pending {
                Ok(pending) => {
                    found |= !pending.is_empty();
                    pending.iter().try_for_each(|row| output.print(row, |output| show(row, output)))?;
                }
                Err(failure) => {
                    output.error(format_args!("session {id}: {failure}"));
                    code = worse(code, failure.exit_code());
                }
            }
        }
        if !found && !output.json() {
            output.line(format_args!("no call waits for a person"))?;
        }
        Ok(code)
    }
}

#[derive(Default, Serialize)]
struct PendingRow {
    session: Uuid,
    operation: OperationId,
    tool: String,
    call_id: Option<String>,
    asked_by: Option<CallOrigin>,
    parent: Option<OperationId>,
    waits_for: &'static str,
    question: String,
    arguments: String,
    digest: String,
    asked_at: String,
    expires_at: Option<String>,
    decide: Vec<DecisionChoice>,
}

/// Question about a call of a session that has not been recovered yet.
const UNRECOVERED: &str = "Its process ended during the call, and the session has not been recovered since.";

/// Question about a call if it is unknown whether its work was done.
const INTERRUPTED: &str = "Its process ended during the call. Did the call do its work?";

impl PendingRow {
    fn from_question(reader: &LogReader, pending: PendingQuestion) -> PendingRow {
        let time = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Micros, true);
        let decide =
            choices(reader, pending.operation, Some(&pending), &quote_word(reader.dir().as_os_str()));
        PendingRow {
            session: pending.session,
            operation: pending.operation,
            tool: pending.tool.to_string(),
            call_id: pending.call_id.map(|id| id.to_string()),
            asked_by: pending.origin,
            parent: pending.parent,
            waits_for: match pending.form {
                SuspensionForm::Asks => "approval",
                SuspensionForm::Awaits => "result",
                SuspensionForm::Within | SuspensionForm::Other(_) => "unknown",
            },
            digest: digest_text(&pending.digest),
            question: pending.question,
            arguments: pending.arguments,
            asked_at: time(pending.asked_at),
            expires_at: pending.expires_at.map(time),
            decide,
        }
    }

    /// Describes a call without a question of its own.
    fn of_call(
        reader: &LogReader,
        operation: OperationId,
        begin: SequenceNumber,
        waits_for: &'static str,
        question: &str,
        decide: Vec<DecisionChoice>,
    ) -> Result<PendingRow> {
        let mut row = PendingRow {
            session: reader.opening_record().session,
            operation,
            waits_for,
            question: question.to_owned(),
            decide,
            ..PendingRow::default()
        };
        reader.records(begin, begin, |record| {
            let begin = ToolBegin::decode(record.body).map_err(unread(record))?;
            (row.asked_by, row.parent) = (begin.origin, begin.parent);
            (row.tool, row.call_id) = (begin.tool.into_owned(), begin.call_id.map(Cow::into_owned));
            row.arguments = text_of(reader, begin.arguments);
            row.digest = digest_text(blake3::hash(row.arguments.as_bytes()).as_bytes());
            row.asked_at = time_text(record.time_us);
            Ok(())
        })?;
        Ok(row)
    }
}

/// Returns the command that recovers a session, with the last known directories of the workspaces
/// on which its open calls worked.
fn recovery(reader: &LogReader) -> Result<String> {
    let mut directories = BTreeMap::new();
    for open in &reader.report().interrupted {
        reader.records(open.begin, open.begin, |record| {
            let begin = ToolBegin::decode(record.body).map_err(unread(record))?;
            for captured in begin.resources {
                let bytes = captured.snapshot.and_then(|snapshot| reader.payload(snapshot).ok());
                let taken = bytes.and_then(|bytes| HostFilesystem::recall(&bytes).ok());
                if let Some(path) = taken.and_then(|taken| taken.path) {
                    directories.insert(captured.resource.into_owned(), path);
                }
            }
            Ok(())
        })?;
    }
    let mut command = format!("foldlog recover {}", quote_word(reader.dir().as_os_str()));
    for (name, path) in directories {
        command.push_str(&format!(" --workspace {}", quote_word(format!("{name}={path}").as_ref())));
    }
    Ok(command)
}

/// Returns the operations that wait for a person in a session, in the order of their ids.
fn rows(reader: &LogReader, is_running: bool) -> Result<Vec<PendingRow>> {
    let waits = |one: &&UnsettledOperation| one.idempotency.needs_settling() && !one.run_again;
    let unsettled = reader.report().unsettled.iter().filter(waits);
    let unsettled = unsettled.map(|one| {
        let decide = choices(reader, one.operation, None, &quote_word(reader.dir().as_os_str()));
        PendingRow::of_call(reader, one.operation, one.begin, "decision", INTERRUPTED, decide)
    });
    let mut rows: Vec<PendingRow> = unsettled.collect::<Result<_>>()?;
    rows.extend(
        reader.pending_questions(now())?.into_iter().map(|one| PendingRow::from_question(reader, one)),
    );
    // A call that runs again automatically when its host returns does not wait for a person.
    let is_stuck = |one: &&OpenOperation| one.parent.is_none() && one.idempotency.needs_settling();
    let mut stuck = reader.report().interrupted.iter().filter(|_| !is_running).filter(is_stuck).peekable();
    if stuck.peek().is_some() {
        let command = recovery(reader)?;
        for open in stuck {
            let recover = DecisionChoice {
                meaning: "its host does not return: restore its workspaces, with `--workspace` for each directory",
                command: command.clone(),
            };
            let (operation, decide) = (open.operation, vec![recover]);
            rows.push(PendingRow::of_call(reader, operation, open.begin, "recovery", UNRECOVERED, decide)?);
        }
    }
    rows.sort_by_key(|row| row.operation);
    Ok(rows)
}

fn show(row: &PendingRow, output: &mut Output<'_>) -> Result<()> {
    let PendingRow { session, operation, waits_for, digest, asked_at, .. } = row;
    output.line(format_args!("session {session}  operation {operation}  `{}`", escape::text(&row.tool)))?;
    match row.expires_at.as_deref() {
        Some(expires) => {
            output.line(format_args!("  waits for its {waits_for} since {asked_at}, expires {expires}"))?;
        }
        None if matches!(*waits_for, "decision" | "recovery") => {
            output
                .line(format_args!("  was interrupted, and waits for a {waits_for}; started {asked_at}"))?;
        }
        None => output.line(format_args!("  waits for its {waits_for} since {asked_at}, never expires"))?,
    }
    output.line(format_args!("  {}", escape::text(&row.question)))?;
    output.line(format_args!("  arguments {}", escape::text(&row.arguments)))?;
    output.line(format_args!("  digest    {digest}"))?;
    for DecisionChoice { meaning, command } in &row.decide {
        output.line(format_args!("  # {meaning}"))?;
        output.line(format_args!("  {command}"))?;
    }
    Ok(())
}
