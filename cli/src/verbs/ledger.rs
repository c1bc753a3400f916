//! `foldlog ledger`: the outcome of each tool call, and the facts that a person needs to decide
//! about one.

mod operation;

use std::path::PathBuf;

use foldlog::inspect::{ChildFate, FateInParent, LedgerEntry, OperationStatus, Settled};
use foldlog::{OperationId, ReplacedContent};
use foldlog_codec::escape;
use foldlog_view::text::{DIGEST_DIGITS, count_text, digest_text, or_dash};

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::Result;
use crate::output::Output;
use crate::readers::{code_of, open_sound_outline};
use crate::style::{BAD, CAUTION, GONE, GOOD, HEADING, PLAIN, Style};

/// Describes the fields of `ledger --json`.
const LEDGER_JSON: &str = "\
With --json one object a line, for each operation:
  operation    its id: the sequence number of its first start record
  parent       operation within which it ran; undoes: operation that it undid
  verifies     operation whose outcome it checked, if it did
  asked_by     answer that asked for it: its sequence number, and the number of the call in it
  call_id      the provider's id of the call, which several operations may share
  tool         name of the tool; idempotency: whether the call may run again
  outcome      open, committed, failed, interrupted, suspended, settled, abandoned (committed or
               suspended, then rolled back)
  cause        reason for its failure
  exit_code    exit code of the command that the tool ran, if it is known
  ended        unknown, if the tool cannot determine whether its work ended; its changes were kept
  waits_for    what a suspended operation waits for: asks, awaits, within
  effects      effects that a rollback cannot undo: none, unknown
  not_undone   changes of its resources that its rollback did not undo: resource, path, reason
  replaced     what its rollback replaced or removed, even if another program had changed it:
               resource, changed, removed, more
  begin, end   sequence numbers of its latest run; elapsed_us: duration of that run; runs: number
               of runs
  settled      decision (committed, failed, run-again, approved), by, reason, sequence; of an
               approval also arguments (digest of the approved arguments), and until, if it expires
With OPERATION and --json one object: these fields, and
  arguments    as received; digest, question: of a call that asks
  each_run     begin, begun_at, end, ended_at, outcome, cause, exit_code, ended, elapsed_us,
               rolled_back, effects, not_undone, replaced, message, result
  undone_by    operations that undid it; calls: operations within it: operation, tool, outcome,
               effects
  before       what must be done before a decision, or null
  decide       possible decisions: meaning, command";

/// List tool calls with their outcomes.
///
/// With an operation, everything that is known of one call, and the commands that decide
/// about it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = LEDGER_JSON)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// Print the details of the operation with this id, and the commands that decide about it
    pub operation: Option<OperationId>,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Copied;
    const IS_PAGED: bool = true;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog ledger SESSION";

    /// Prints the account of one operation, or lists the operations of a session with their
    /// outcomes, in the order of their starts. If a parent rolled back its own operation, the
    /// operations of the child session are listed as abandoned.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](foldlog_view::Error::Engine) if no part of the session is intact,
    /// or it cannot be read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let reader = open_sound_outline(&self.session, output)?;
        let ledger = reader.ledger()?;
        let fate = reader.fate_in_parent();
        if let FateInParent::Unknown { parent, operation, reason } = &fate {
            output.note(format_args!(
                "note: this session works for operation {operation} of session {parent}; whether that operation kept its work is \
                 unknown: {reason}"
            ));
        }
        if let Some(operation) = self.operation {
            return operation::run(&reader, &ledger, operation, output);
        }
        if output.json() {
            ledger.iter().try_for_each(|entry| output.value(entry))?;
            return Ok(code_of(&reader, output));
        }
        if !ledger.is_empty() {
            output.styled_line(
                HEADING,
                format_args!(
                    "{:>9}  {:<24}  {:<28}  {:<24}  {:<7}  {:>8}  {:>8}  {:>12}",
                    "operation", "tool", "call", "outcome", "effects", "begin", "end", "elapsed_us"
                ),
            )?;
        }
        for entry in &ledger {
            row(entry, output)?;
            for left in &entry.not_undone {
                let (resource, path) = (left.resource.escape_debug(), left.path.escape_debug());
                let reason = left.reason.escape_debug();
                match left.is_uncaptured() {
                    true => output.styled_line(BAD, format_args!("{:>9}  {reason}", ""))?,
                    false => {
                        let left = format_args!("{:>9}  not undone: {resource} `{path}`: {reason}", "");
                        output.styled_line(BAD, left)?;
                    }
                }
            }
            for one in &entry.replaced {
                let (resource, paths) = (escape::text(&one.resource), replaced_text(one));
                output.line(format_args!("{:>9}  rolled back in {resource}: {paths}", ""))?;
            }
            for child in &entry.children {
                let (number, session, fate) = (child.ordinal, child.session, child.fate.name());
                output.line(format_args!("{:>9}  child session {number}: {session}: {fate}", ""))?;
            }
        }
        if let FateInParent::Child { parent, operation, fate } = fate {
            let fate = match fate {
                ChildFate::Undecided => "has neither kept nor abandoned this work yet",
                ChildFate::Kept => "has kept this work",
                ChildFate::Abandoned => "has abandoned this work",
            };
            output.line(format_args!("operation {operation} of the parent session {parent} {fate}"))?;
        }
        output.line(totals(&ledger))?;
        Ok(code_of(&reader, output))
    }
}

/// Returns the number of operations, and how many have each outcome.
fn totals(ledger: &[LedgerEntry]) -> String {
    let of = |fate: OperationStatus| ledger.iter().filter(|entry| entry.outcome == fate).count() as u64;
    let fates = [
        OperationStatus::Committed,
        OperationStatus::Failed,
        OperationStatus::Interrupted,
        OperationStatus::Suspended,
        OperationStatus::Settled,
        OperationStatus::Abandoned,
        OperationStatus::Unknown,
        OperationStatus::Open,
    ];
    let fates = fates.into_iter().filter(|fate| of(*fate) > 0);
    let fates: Vec<String> = fates.map(|fate| format!("{} {}", of(fate), fate.name())).collect();
    let total = count_text(ledger.len() as u64, "operation");
    let fates = if fates.is_empty() { String::new() } else { format!(": {}", fates.join(", ")) };
    format!("{total}{fates}")
}

/// Describes an object that a rollback replaced or removed in a resource, in one line.
fn replaced_text(one: &ReplacedContent) -> String {
    escape::text(&ReplacedContent::text(std::slice::from_ref(one)).unwrap_or_default()).into_owned()
}

/// Describes the outcome of an operation, with its reason.
fn outcome(entry: &LedgerEntry) -> String {
    let outcome = entry.outcome.name();
    match (entry.cause, &entry.settled) {
        (None, None) if entry.waits_for.is_some() => {
            let form = entry.waits_for.map(|form| form.name().to_owned()).unwrap_or_default();
            format!("{outcome}: {}", escape::text(&form))
        }
        (Some(cause), _) => format!("{outcome}: {}", escape::text(cause.name())),
        (None, Some(settled)) => format!("{outcome}: {}", settled.name()),
        (None, None) => match entry.exit_code {
            Some(code) if code != 0 => format!("{outcome}: exit code {code}"),
            _ if entry.has_unknown_end => format!("{outcome}: ended unknown"),
            _ => outcome.to_owned(),
        },
    }
}

/// Names the arguments that a decision approves, as text before the approver's name; `None` if it
/// is no approval.
fn approval_text(settled: &Settled) -> Option<String> {
    let digest = settled.arguments.as_ref().map(digest_text)?;
    let digits: String = digest.chars().take(DIGEST_DIGITS).collect();
    Some(format!("arguments {digits} approved by"))
}

/// Returns the style of an outcome: green for success, red for failure, yellow for operations that
/// wait or need attention.
fn style_of(entry: &LedgerEntry) -> Style {
    match entry.outcome {
        OperationStatus::Committed if entry.has_unknown_end => CAUTION,
        OperationStatus::Committed => GOOD,
        OperationStatus::Failed | OperationStatus::Unknown => BAD,
        OperationStatus::Interrupted | OperationStatus::Suspended | OperationStatus::Open => CAUTION,
        OperationStatus::Abandoned => GONE,
        _ => PLAIN,
    }
}

fn row(entry: &LedgerEntry, output: &mut Output<'_>) -> Result<()> {
    let begin = format!(
        "{:>9}  {:<24}  {:<28}  ",
        entry.operation,
        escape::text(&entry.tool),
        or_dash(entry.call_id.as_deref().map(escape::text)),
    );
    let mut end = format!(
        "  {:<7}  {:>8}  {:>8}  {:>12}",
        or_dash(entry.effects.map(|effects| effects.name())),
        entry.begin,
        or_dash(entry.end),
        or_dash(entry.elapsed_us),
    );
    if let Some(origin) = entry.asked_by {
        end.push_str(&format!("  asked by {}, call {}", origin.answer, origin.ordinal));
    }
    for (what, operation) in
        [("within", entry.parent), ("undoes", entry.undoes), ("verifies", entry.verifies)]
    {
        if let Some(operation) = operation {
            end.push_str(&format!("  {what} {operation}"));
        }
    }
    if let Some(settled) = &entry.settled {
        let approved = approval_text(settled).unwrap_or_else(|| "by".to_owned());
        end.push_str(&format!(
            "  {approved} {}: {}",
            escape::text(&settled.by),
            escape::text(&settled.reason)
        ));
    }
    let outcome_text = format!("{:<24}", outcome(entry));
    output.pieces(&[(PLAIN, &begin), (style_of(entry), &outcome_text), (PLAIN, &end)])
}
