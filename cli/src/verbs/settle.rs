//! `foldlog settle`: records a person's decision about a tool call that was interrupted or is
//! suspended. If another process has the session open, the decision is left for that process, which
//! records it.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use foldlog::inspect;
use foldlog::{
    Error, Holder, LeftDecision, LeftFate, OperationId, PendingQuestion, SequenceNumber, Settlement, Value,
};
use foldlog_codec::escape;
use foldlog_view::clock::now;
use foldlog_view::document;
use foldlog_view::text::{DIGEST_DIGITS, digest_text};

use crate::command::{Access, Argument, Command, Group};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::{WriteArgs, in_store, open_session};

/// Record a decision about a tool call.
///
/// For a call that is suspended, or that was interrupted and cannot safely run again. If another
/// process has the session open, the decision is left for it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = SETTLE_JSON)]
pub struct Args {
    /// Directory of the session
    pub session: PathBuf,
    /// Id of the operation, as `foldlog ledger` lists it
    pub operation: OperationId,
    /// Decision about the call
    #[arg(value_enum)]
    pub decision: Settled,
    /// Name of the person who decides
    #[arg(long, value_name = "WHO", value_parser = crate::value_parsers::parse_nonblank)]
    pub by: String,
    /// Reason for the decision
    #[arg(long, value_name = "WHY", value_parser = crate::value_parsers::parse_nonblank)]
    pub reason: String,
    /// Result of a committed call, as JSON
    #[arg(long, value_name = "JSON")]
    pub result: Option<String>,
    /// Text for the model [default: the result, or the reason]
    #[arg(long, value_name = "TEXT")]
    pub shown: Option<String>,
    /// Digest of the approved arguments, from `foldlog pending`; 12 or more digits are enough
    #[arg(long, value_name = "DIGEST")]
    pub arguments: Option<String>,
    /// Time at which the approval expires, such as 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub until: Option<DateTime<Utc>>,
    /// Seconds to wait until the process that has the session open takes the decision
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_SECONDS)]
    pub wait: u64,
    /// Whether a replicated session is written.
    #[command(flatten)]
    pub writing: WriteArgs,
}

/// Default time to wait for a host that has the session open, in seconds. A host that waits for
/// decisions takes one immediately.
const WAIT_SECONDS: u64 = 2;

/// Describes the output of `settle --json`.
const SETTLE_JSON: &str = "\
If another process has the session open, the decision is left for it, and the output reports whether
it was taken. A host takes decisions when it waits for one, recovers the session or continues the
conversation. It checks each decision again.

With --json one object:
  operation    id of the operation
  sequence     record of the decision; null if no process has taken it yet
  left         file of the decision, if no process has taken it yet";

impl Command for Args {
    const GROUP: Group = Group::Decide;
    const ACCESS: Access = Access::Changes;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog settle SESSION 36 failed --by NAME --reason TEXT";

    /// Records a decision about an operation, or leaves it for the process that has the session
    /// open. The decision is durable when this returns.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the session is in no store, if the result
    ///   is not JSON, if an option does not fit the decision, if no waiting question has the
    ///   approved arguments, or if the open host refused the decision.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the operation does not wait for this
    ///   decision, or it cannot be written.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let Args { session, by, reason, .. } = &self;
        let operation = self.operation;
        let (root, id) = in_store(session)?;
        let settlement = settlement(&self, output)?;
        let store = self.writing.open(&root, output)?;
        let sequence = match store.settle(id, operation, &settlement, by, reason) {
            Err(Error::Locked { holder, .. }) => {
                let left = store.leave_decision(id, operation, &settlement, by, reason)?;
                match left.wait(Duration::from_secs(self.wait))? {
                    LeftFate::Taken(sequence) => sequence,
                    LeftFate::Refused(reason) => return Err(refusal_error(operation, &reason)),
                    // The host may have ended meanwhile.
                    LeftFate::Waits => {
                        let is_open = inspect::running_sessions(&root, &[id])?.contains_key(&id);
                        if is_open || !left.withdraw()? {
                            return tell_left(&self, &left, &holder, output);
                        }
                        store.settle(id, operation, &settlement, by, reason)?
                    }
                }
            }
            settled => settled?,
        };
        output.print(&document! { operation, sequence }, |output| {
            let next = match self.decision {
                Settled::RunAgain => "; its host runs the call again when it recovers the session",
                Settled::Approved => {
                    "; its host runs the call when it resumes the conversation or recovers the session"
                }
                Settled::Committed | Settled::Failed => "",
            };
            output.line(format_args!("operation {operation} is settled by record {sequence}{next}"))
        })?;
        Ok(HOLDS)
    }
}

/// Names what a person decides about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Settled {
    /// The call has done its work, or receives the result for which it waits
    Committed,
    /// The call has not done its work and does not run again, or its request is refused
    Failed,
    /// The next recovery by the host runs the interrupted call again
    RunAgain,
    /// The call that asks may run, with the arguments of --arguments
    Approved,
}

fn refusal_error(operation: OperationId, reason: &str) -> CommandError {
    let what = format!(
        "the process that has the session open refused the decision about operation {operation}: {}",
        escape::text(reason)
    );
    CommandError::usage(
        what,
        "nothing was recorded; `foldlog pending STORE` lists the calls that wait, and `foldlog ledger SESSION` the outcome of each call",
    )
}

/// Reports that a decision was left, and that no process has taken it yet.
fn tell_left(decided: &Args, left: &LeftDecision, holder: &Holder, output: &mut Output<'_>) -> Result<u8> {
    let (operation, file) = (decided.operation, escape::path(left.path()));
    let document = document! { operation, sequence: None::<SequenceNumber>, left: &file };
    output.print(&document, |output| {
        output.line(format_args!(
            "the decision about operation {operation} is left for the process that has the session open ({holder}), which has not taken it yet"
        ))?;
        output.line(
            "  it is taken when that process waits for a decision, recovers the session or continues the conversation",
        )?;
        output.line(format_args!("  to take it back, remove {file}"))
    })?;
    Ok(HOLDS)
}

/// Converts the options of the command line into a decision.
fn settlement(decided: &Args, output: &mut Output<'_>) -> Result<Settlement> {
    let Args { decision, result, shown, arguments, until, .. } = decided;
    let decision = *decision;
    let result: Option<Value> = result.as_deref().map(serde_json::from_str).transpose().map_err(|error| {
        CommandError::usage(
            format!("the result is not JSON: {error}"),
            "give JSON, such as '{\"sent\": true}'",
        )
    })?;
    if result.is_some() && decision != Settled::Committed {
        let name = decision.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let what = format!("a call that is settled as `{name}` has no result");
        return Err(CommandError::usage(what, "leave out --result, or settle the call as `committed`"));
    }
    if (arguments.is_some() || until.is_some()) && decision != Settled::Approved {
        let what = "--arguments and --until apply only to an approval";
        return Err(CommandError::usage(what, "leave them out, or settle the call as `approved`"));
    }
    let settlement = match decision {
        Settled::Committed => Settlement::committed(result),
        Settled::Failed => Settlement::failed(),
        Settled::RunAgain => Settlement::run_again(),
        Settled::Approved => Settlement::approved(approved_digest(decided, output)?),
    };
    let settlement = shown.iter().fold(settlement, Settlement::showing);
    Ok((*until).into_iter().fold(settlement, Settlement::until))
}

/// Returns the digest of the approved arguments. The command line gives its first digits.
fn approved_digest(decided: &Args, output: &mut Output<'_>) -> Result<[u8; 32]> {
    let list = "`foldlog pending STORE` lists each question with the digest of its arguments";
    let Some(digits) = decided.arguments.as_deref().filter(|digits| digits.len() >= DIGEST_DIGITS) else {
        let what =
            format!("an approval needs --arguments, with at least {DIGEST_DIGITS} digits of the digest");
        return Err(CommandError::usage(what, list));
    };
    let pending = open_session(&decided.session, output)?.pending_questions(now())?;
    let Some(asked) = pending.iter().find(|one| one.operation == decided.operation) else {
        return Err(CommandError::usage(
            format!("operation {} has no open question", decided.operation),
            list,
        ));
    };
    let PendingQuestion { digest, .. } = asked;
    if !digest_text(digest).starts_with(&digits.to_ascii_lowercase()) {
        let what = format!(
            "the arguments of operation {} have another digest: {}",
            decided.operation,
            digest_text(digest)
        );
        return Err(CommandError::usage(what, list));
    }
    Ok(*digest)
}
