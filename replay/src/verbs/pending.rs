//! `foldlog pending`: the questions of suspended tool calls, in all sessions of a store.

use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat, Utc};
use clap::Args;
use foldlog::{CallOrigin, Clock, OperationId, PendingQuestion, SuspensionForm, SystemClock};
use foldlog_codec::escape;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{Failure, HOLDS, Result, worse};
use crate::output::Output;
use crate::reading::{self, digest_text};

/// Describes the fields of `pending --json`.
const PENDING_JSON: &str = "\
With --json one object a line:
  session, operation   what `foldlog settle` needs
  tool, call_id        its name, and the provider's id of the call
  asked_by             the answer that asked for the call, and which of its calls it is
  parent               the operation within which it ran
  waits_for            approval, result
  question, arguments  as the tool and the model gave them
  digest               BLAKE3 of the arguments, which an approval names
  asked_at, expires_at times; a call that nobody answers in time has failed";

/// Holds what the command line asks of `foldlog pending`.
#[derive(Clone, Debug, Args)]
#[command(after_help = PENDING_JSON)]
pub struct Arguments {
    /// The store's folder.
    #[arg(value_name = "STORE")]
    pub dir: PathBuf,
}

impl Arguments {
    /// Runs the verb, and returns the exit code.
    ///
    /// # Errors
    ///
    /// Those of [`run`].
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        run(&self.dir, output)
    }
}

#[derive(Serialize)]
struct Row<'a> {
    session: Uuid,
    operation: OperationId,
    tool: &'a str,
    call_id: Option<&'a str>,
    asked_by: Option<CallOrigin>,
    parent: Option<OperationId>,
    waits_for: &'a str,
    question: &'a str,
    arguments: &'a str,
    digest: String,
    asked_at: String,
    expires_at: Option<String>,
}

impl<'a> Row<'a> {
    fn of(pending: &'a PendingQuestion) -> Row<'a> {
        let time = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Micros, true);
        Row {
            session: pending.session,
            operation: pending.operation,
            tool: &pending.tool,
            call_id: pending.call_id.as_deref(),
            asked_by: pending.origin,
            parent: pending.parent,
            waits_for: match pending.form {
                SuspensionForm::Asks => "approval",
                SuspensionForm::Awaits => "result",
                SuspensionForm::Within | SuspensionForm::Other(_) => "unknown",
            },
            question: &pending.question,
            arguments: &pending.arguments,
            digest: digest_text(&pending.digest),
            asked_at: time(pending.asked_at),
            expires_at: pending.expires_at.map(time),
        }
    }
}

/// Returns the present time.
pub fn now() -> DateTime<Utc> {
    DateTime::from_timestamp_micros(SystemClock.now_us()).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Prints the questions of all sessions of the store at `dir`, in the order of the sessions' ids. A session that cannot be
/// read is reported on standard error, and the others are listed; the exit code is then 1 if any session is damaged, else 2.
///
/// # Errors
///
/// [`Failure::Usage`] if there is no store at `dir`, [`Failure::Engine`] if the store cannot be read.
pub fn run(dir: &Path, output: &mut Output<'_>) -> Result<u8> {
    let store = reading::open_store(dir)?;
    let (mut code, mut found) = (HOLDS, false);
    for id in store.session_ids()? {
        let session = store.session_dir(id);
        if !reading::holds_anything(&session) {
            reading::pass_over(&session, output);
            continue;
        }
        let pending = reading::open_outline(&session, output)
            .and_then(|reader| reader.pending(now()).map_err(Failure::from));
        match pending {
            Ok(pending) => {
                found |= !pending.is_empty();
                pending.iter().try_for_each(|one| show(one, output))?;
            }
            Err(failure) => {
                output.error(format_args!("session {id}: {failure}"));
                code = worse(code, failure.exit_code());
            }
        }
    }
    if !found && !output.json() {
        output.line(format_args!("no call waits for an answer"))?;
    }
    Ok(code)
}

fn show(pending: &PendingQuestion, output: &mut Output<'_>) -> Result<()> {
    let row = Row::of(pending);
    if output.json() {
        return output.value(&row);
    }
    let Row { session, operation, waits_for, digest, asked_at, .. } = &row;
    let expires = row.expires_at.as_deref().unwrap_or("never");
    output.line(format_args!("session {session}  operation {operation}  `{}`", escape::text(row.tool)))?;
    output.line(format_args!("  waits for its {waits_for} since {asked_at}, expires {expires}"))?;
    output.line(format_args!("  {}", escape::text(row.question)))?;
    output.line(format_args!("  arguments {}", escape::text(row.arguments)))?;
    output.line(format_args!("  digest    {digest}"))
}
