//! Prints the facts that a person needs to decide about one operation.

use chrono::SecondsFormat;
use foldlog::inspect::{LedgerEntry, LogReader};
use foldlog::{Idempotency, NotUndone, OperationId};
use foldlog_codec::body::ExternalEffects;
use foldlog_codec::escape;
use foldlog_view::documents::ledger::{Account, OperationRun, RelatedOperation};
use foldlog_view::text::{digest_text, or_dash, shorten_text};

use super::replaced_text;
use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::readers::code_of;
use crate::style::PLAIN;

/// Maximum number of characters of a text that a person is shown.
const TEXT_CHARS_MAX: usize = 2000;

/// Prints the account of an operation. If it waits for a decision, prints also the commands that
/// decide.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if the ledger has no such operation.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the log cannot be read.
pub(super) fn run(
    reader: &LogReader,
    ledger: &[LedgerEntry],
    operation: OperationId,
    output: &mut Output<'_>,
) -> Result<u8> {
    let Some(entry) = ledger.iter().find(|entry| entry.operation == operation) else {
        let what = format!("operation {operation} does not exist");
        return Err(CommandError::usage(what, "`foldlog ledger SESSION` lists the operations"));
    };
    let place = output.places.store.as_deref().filter(|_| output.is_held);
    let account = Account::read(reader, ledger, entry, place)?;
    output.print(&account, |output| print(&account, output))?;
    Ok(code_of(reader, output))
}

fn print(account: &Account<'_>, output: &mut Output<'_>) -> Result<()> {
    let entry = account.entry;
    let (operation, tool) = (entry.operation, escape::text(&entry.tool));
    let (begin, outcome) = (format!("operation {operation}: `{tool}`, "), super::outcome(entry));
    output.pieces(&[(PLAIN, &begin), (super::style_of(entry), &outcome)])?;
    let mut fact = |name: &str, text: &str| output.line(format_args!("  {name:<12} {text}"));
    if let Some(call) = call(entry) {
        fact("call", &call)?;
    }
    let others = [("within", entry.parent), ("undoes", entry.undoes), ("verifies", entry.verifies)];
    for (what, other) in others {
        if let Some(other) = other {
            fact(what, &format!("operation {other}"))?;
        }
    }
    fact(
        "idempotency",
        &format!("{}: {}", escape::text(entry.idempotency.name()), rerun_advice(entry.idempotency)),
    )?;
    fact("arguments", &text_or_dash(account.arguments.as_deref()))?;
    if let Some(digest) = &account.digest {
        fact("digest", digest)?;
    }
    if let Some(question) = &account.question {
        fact("question", &text_or_dash(Some(question)))?;
    }
    for (number, run) in (1..).zip(&account.each_run) {
        for (what, text) in facts(run, number) {
            fact(&what, &text)?;
        }
    }
    for other in &account.undone_by {
        fact("undone by", &related_text(other))?;
    }
    for other in &account.calls {
        fact("called", &related_text(other))?;
    }
    for child in &entry.children {
        let (number, session, fate) = (child.ordinal, child.session, child.fate.name());
        fact("child", &format!("session {number}: {session}: {fate}"))?;
    }
    if let Some(settled) = &entry.settled {
        let (decision, sequence) = (settled.name(), settled.sequence);
        let (by, reason) = (escape::text(&settled.by), escape::text(&settled.reason));
        fact("settled", &format!("{decision} by {by}, record {sequence}: {reason}"))?;
        if let Some(arguments) = &settled.arguments {
            fact("approved", &format!("arguments with digest {}", digest_text(arguments)))?;
        }
        if let Some(until) = settled.until {
            fact("until", &until.to_rfc3339_opts(SecondsFormat::Micros, true))?;
        }
    }
    if let Some(before) = &account.before {
        fact("before", before)?;
    }
    if !account.decide.is_empty() {
        output.line("  decide")?;
    }
    for choice in &account.decide {
        output.line(format_args!("    # {}", choice.meaning))?;
        output.line(format_args!("    {}", choice.command))?;
    }
    Ok(())
}

/// Formats a text for a line.
fn text_or_dash(text: Option<&str>) -> String {
    or_dash(text.map(|text| shorten_text(&escape::text(text), TEXT_CHARS_MAX)))
}

/// Returns the facts about the run, each with its name.
fn facts(run: &OperationRun, number: u64) -> Vec<(String, String)> {
    let began = format!("started {} (record {})", run.begun_at, run.begin);
    let (Some(end), Some(ended_at), Some(outcome)) = (run.end, &run.ended_at, &run.outcome) else {
        let text = format!("{began}, and has not ended; its external effects are unknown");
        return vec![(format!("run {number}"), text)];
    };
    let cause = run.cause.as_deref().map(|cause| format!(": {}", escape::text(cause))).unwrap_or_default();
    let exit = run.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    let unknown = run.ended.map_or("", |_| ", whether its work ended is unknown");
    let elapsed = run.elapsed_us.unwrap_or(0);
    let ended = format!(
        "{began}, ended {ended_at} (record {end}) after {elapsed} us: {}{cause}{exit}{unknown}",
        escape::text(outcome)
    );
    let effects = match run.effects {
        Some(ExternalEffects::None) => "had no external effects",
        _ => "may have had external effects",
    };
    let undone = match (run.rolled_back, run.not_undone.is_empty()) {
        (true, true) => "its changes of STATE and resources were rolled back",
        (true, false) => "its changes were rolled back, except the following",
        (false, _) => "its changes of STATE and resources were kept",
    };
    let mut facts = vec![(format!("run {number}"), ended), (String::new(), format!("{effects}; {undone}"))];
    for NotUndone { resource, path, reason } in &run.not_undone {
        let (resource, path) = (escape::text(resource), escape::text(path));
        let text = format!("{resource} `{path}`: {}", escape::text(reason));
        facts.push(("not undone".to_owned(), text));
    }
    for one in &run.replaced {
        let text = format!("{}: {}", escape::text(&one.resource), replaced_text(one));
        facts.push(("rolled back".to_owned(), text));
    }
    let texts = [("message", &run.message), ("result", &run.result)];
    let texts = texts.into_iter().filter(|(_, text)| text.is_some());
    facts.extend(texts.map(|(what, text)| (what.to_owned(), text_or_dash(text.as_deref()))));
    facts
}

fn related_text(related: &RelatedOperation) -> String {
    let effects = match related.effects {
        Some(effects) => format!(", external effects: {}", effects.name()),
        None => String::new(),
    };
    format!(
        "operation {} (`{}`), {}{effects}",
        related.operation,
        escape::text(&related.tool),
        related.outcome
    )
}

fn call(entry: &LedgerEntry) -> Option<String> {
    let id = entry.call_id.as_deref().map(|id| escape::text(id).into_owned());
    let origin = entry.asked_by.map(|origin| format!("asked by {}, call {}", origin.answer, origin.ordinal));
    let parts: Vec<String> = id.into_iter().chain(origin).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Describes whether an interrupted operation may run again.
fn rerun_advice(idempotency: Idempotency) -> &'static str {
    match idempotency {
        Idempotency::Natural => "running it twice has the same effect as running it once",
        Idempotency::Keyed => "it may run again with its operation id, by which it finds its earlier work",
        Idempotency::Compensate => "it may run again once its effects are undone",
        Idempotency::Verify => "its tool can check whether it did its work",
        Idempotency::Manual => "a person must decide whether it may run again",
        Idempotency::Other(_) => "unknown to this version of foldlog; use a newer one",
    }
}
