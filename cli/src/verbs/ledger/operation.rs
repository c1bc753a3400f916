//! What a person needs to know of one operation to decide about it.

use chrono::SecondsFormat;
use foldlog::inspect::{self, LedgerEntry, LogReader};
use foldlog::{
    Error, Idempotency, OperationId, PendingQuestion, Record, RecordKind, ReplacedContent, SequenceNumber,
    SuspensionForm, Value,
};
use foldlog_codec::body::{ExternalEffects, Payload, ToolBegin, ToolEnd};
use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use serde::Serialize;

use super::replaced_text;
use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::payload;
use crate::readers::{DIGEST_DIGITS, code_of, digest_text, held_text, shortened, store_of};
use crate::style::PLAIN;
use crate::verbs::pending::now;
use crate::verbs::run::quoted;

/// Number of characters of a text that a person is shown.
const TEXT_CHARS_MAX: usize = 2000;

/// Tells all of one operation. The fields are those of `ledger SESSION OPERATION --json`.
#[derive(Debug, Serialize)]
struct Account<'a> {
    #[serde(flatten)]
    entry: &'a LedgerEntry,
    arguments: Option<String>,
    /// BLAKE3 of the arguments.
    digest: Option<String>,
    question: Option<String>,
    each_run: Vec<OperationRun>,
    undone_by: Vec<RelatedOperation>,
    calls: Vec<RelatedOperation>,
    /// What has to be done before somebody can decide.
    before: Option<String>,
    decide: Vec<DecisionChoice>,
}

/// Describes one run of an operation.
#[derive(Debug, Serialize)]
struct OperationRun {
    begin: SequenceNumber,
    begun_at: String,
    end: Option<SequenceNumber>,
    ended_at: Option<String>,
    outcome: Option<String>,
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// `unknown`, if it is unknown whether its work ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'static str>,
    elapsed_us: Option<u64>,
    rolled_back: bool,
    effects: Option<ExternalEffects>,
    not_undone: Vec<NotUndoneRow>,
    /// What its rollback replaced or removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<ReplacedContent>,
    /// What the model was shown, or is to be shown.
    message: Option<String>,
    result: Option<String>,
}

/// Names what of a run was not undone.
#[derive(Debug, Serialize)]
struct NotUndoneRow {
    resource: String,
    path: String,
    reason: String,
}

/// Names another operation.
#[derive(Debug, Serialize)]
struct RelatedOperation {
    operation: OperationId,
    tool: String,
    outcome: &'static str,
    effects: Option<ExternalEffects>,
}

/// Holds something that somebody can decide, and the command that does.
#[derive(Debug, Serialize)]
pub(crate) struct DecisionChoice {
    pub(crate) meaning: &'static str,
    pub(crate) command: String,
}

/// Prints all that is known of an operation, and the commands that decide about it if it waits for somebody.
///
/// # Errors
///
/// - [`CommandError::Usage`] if the ledger has no such operation.
/// - [`CommandError::Engine`] if the log cannot be read.
pub(super) fn run(
    reader: &LogReader,
    ledger: &[LedgerEntry],
    operation: OperationId,
    output: &mut Output<'_>,
) -> Result<u8> {
    let Some(entry) = ledger.iter().find(|entry| entry.operation == operation) else {
        let what = format!("there is no operation {operation}");
        return Err(CommandError::usage(what, "`foldlog ledger SESSION` lists the operations"));
    };
    let place = output.places.store().filter(|_| output.is_held);
    let account = Account::of(reader, ledger, entry, place)?;
    if output.json() {
        output.value(&account)?;
    } else {
        account.print(output)?;
    }
    Ok(code_of(reader, output))
}

/// Returns an operation's account as JSON; without the texts of arguments, question, messages and results unless `payloads` are
/// asked for.
pub(super) fn document(
    reader: &LogReader,
    ledger: &[LedgerEntry],
    entry: &LedgerEntry,
    payloads: bool,
) -> Result<serde_json::Value> {
    let mut account = Account::of(reader, ledger, entry, None)?;
    if !payloads {
        (account.arguments, account.question) = (None, None);
        account.each_run.iter_mut().for_each(|run| (run.message, run.result) = (None, None));
    }
    Ok(serde_json::to_value(&account).map_err(std::io::Error::from)?)
}

impl<'a> Account<'a> {
    /// Gathers what is known of an operation, of a session that was read in this place if it was.
    fn of(
        reader: &LogReader,
        ledger: &[LedgerEntry],
        entry: &'a LedgerEntry,
        place: Option<&str>,
    ) -> Result<Account<'a>> {
        let (arguments, each_run) = runs(reader, entry.operation)?;
        let pending = reader.pending(now())?;
        let question = pending.iter().find(|one| one.operation == entry.operation);
        let others = |is_one: &dyn Fn(&LedgerEntry) -> bool| {
            ledger.iter().filter(|other| is_one(other)).map(RelatedOperation::of).collect::<Vec<_>>()
        };
        let digest = question.map(|question| digest_text(&question.digest));
        let before = match place {
            Some(place) => before_in(place, reader, entry),
            None => before(reader, entry),
        };
        let decides = before.as_ref().is_none_or(|before| before.is_advice);
        let dir = place.map_or_else(|| quoted(reader.dir().as_os_str()), |_| in_a_store(reader));
        let decide = if decides { choices(reader, entry.operation, question, &dir) } else { Vec::new() };
        Ok(Account {
            entry,
            arguments,
            digest,
            question: question.map(|question| question.question.clone()),
            each_run,
            undone_by: others(&|other| other.undoes == Some(entry.operation)),
            calls: others(&|other| other.parent == Some(entry.operation)),
            before: before.map(|before| before.text),
            decide,
        })
    }

    fn print(&self, output: &mut Output<'_>) -> Result<()> {
        let entry = self.entry;
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
            &format!("{}: {}", escape::text(entry.idempotency.name()), again(entry.idempotency)),
        )?;
        fact("arguments", &told(self.arguments.as_deref()))?;
        if let Some(digest) = &self.digest {
            fact("digest", digest)?;
        }
        if let Some(question) = &self.question {
            fact("question", &told(Some(question)))?;
        }
        for (number, run) in (1..).zip(&self.each_run) {
            for (what, text) in run.facts(number) {
                fact(&what, &text)?;
            }
        }
        for other in &self.undone_by {
            fact("undone by", &other.text())?;
        }
        for other in &self.calls {
            fact("called", &other.text())?;
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
        if let Some(before) = &self.before {
            fact("before", before)?;
        }
        if !self.decide.is_empty() {
            output.line("  decide")?;
        }
        for choice in &self.decide {
            output.line(format_args!("    # {}", choice.meaning))?;
            output.line(format_args!("    {}", choice.command))?;
        }
        Ok(())
    }
}

/// Reads the arguments of an operation and its runs.
fn runs(reader: &LogReader, operation: OperationId) -> Result<(Option<String>, Vec<OperationRun>)> {
    let (mut arguments, mut runs) = (None, Vec::new());
    reader.records(operation.sequence(), reader.last_position(), |record| {
        match record.kind {
            RecordKind::TOOL_BEGIN => {
                let begin = ToolBegin::decode(record.body).map_err(unread(record))?;
                if begin.again.unwrap_or(record.sequence.into()) == operation {
                    if arguments.is_none() {
                        arguments = Some(text_of(reader, begin.arguments));
                    }
                    runs.push(OperationRun::begun(record));
                }
            }
            RecordKind::TOOL_END => {
                let end = ToolEnd::decode(record.body).map_err(unread(record))?;
                if let Some(run) = runs.iter_mut().find(|run| run.begin == end.begin) {
                    run.end(record, &end, reader);
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok((arguments, runs))
}

pub(crate) fn unread(record: &Record<'_>) -> impl Fn(foldlog_codec::Error) -> Error {
    let sequence = record.sequence;
    move |error| Error::Inconsistent { sequence, reason: error.to_string() }
}

/// Returns the text that a payload holds, or its value as JSON; or why it cannot be told.
pub(crate) fn text_of(reader: &LogReader, payload: Payload<'_>) -> String {
    match payload::with_value(reader, payload, |value| value.to_value()) {
        Ok(Value::Str(text)) => text,
        Ok(value) => escape::to_json(&value.json_form()).unwrap_or_else(|error| format!("({error})")),
        Err(why) => why,
    }
}

/// Makes a text fit for a line to a person.
fn told(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| shortened(&escape::text(text), TEXT_CHARS_MAX))
}

impl OperationRun {
    fn begun(record: &Record<'_>) -> OperationRun {
        OperationRun {
            begin: record.sequence,
            begun_at: time_text(record.time_us),
            end: None,
            ended_at: None,
            outcome: None,
            cause: None,
            exit_code: None,
            ended: None,
            elapsed_us: None,
            rolled_back: false,
            effects: None,
            not_undone: Vec::new(),
            replaced: Vec::new(),
            message: None,
            result: None,
        }
    }

    fn end(&mut self, record: &Record<'_>, end: &ToolEnd<'_>, reader: &LogReader) {
        (self.end, self.ended_at) = (Some(record.sequence), Some(time_text(record.time_us)));
        self.outcome = Some(end.outcome.name().to_owned());
        self.cause = end.cause.map(|cause| cause.name().to_owned());
        (self.exit_code, self.elapsed_us) = (end.exit_code, Some(end.elapsed_us));
        self.ended = end.has_unknown_end().then_some("unknown");
        (self.rolled_back, self.effects) = (end.rolls_back, Some(end.outside));
        let left = end.not_undone.iter().map(|left| NotUndoneRow {
            resource: left.resource.to_string(),
            path: left.path.to_string(),
            reason: left.reason.to_string(),
        });
        self.not_undone = left.collect();
        self.replaced = end.replaced.iter().map(ReplacedContent::from).collect();
        self.message = end.shown.map(|shown| text_of(reader, shown));
        self.result = end.result.map(|result| text_of(reader, result));
    }

    /// Returns what is known of the run, each fact with its name.
    fn facts(&self, number: u64) -> Vec<(String, String)> {
        let began = format!("began {} (record {})", self.begun_at, self.begin);
        let (Some(end), Some(ended_at), Some(outcome)) = (self.end, &self.ended_at, &self.outcome) else {
            let text = format!("{began}, and has not ended; effects outside are unknown");
            return vec![(format!("run {number}"), text)];
        };
        let cause =
            self.cause.as_deref().map(|cause| format!(": {}", escape::text(cause))).unwrap_or_default();
        let exit = self.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
        let unknown = self.ended.map_or("", |_| ", whether its work ended is unknown");
        let elapsed = self.elapsed_us.unwrap_or(0);
        let ended = format!(
            "{began}, ended {ended_at} (record {end}) after {elapsed} us: {}{cause}{exit}{unknown}",
            escape::text(outcome)
        );
        let effects = match self.effects {
            Some(ExternalEffects::None) => "had no effects outside",
            _ => "may have had effects outside",
        };
        let undone = match (self.rolled_back, self.not_undone.is_empty()) {
            (true, true) => "its changes of STATE and resources were rolled back",
            (true, false) => "its changes were rolled back, but for what follows",
            (false, _) => "its changes of STATE and resources stayed with its end",
        };
        let mut facts =
            vec![(format!("run {number}"), ended), (String::new(), format!("{effects}; {undone}"))];
        for NotUndoneRow { resource, path, reason } in &self.not_undone {
            let (resource, path) = (escape::text(resource), escape::text(path));
            let text = format!("{resource} `{path}`: {}", escape::text(reason));
            facts.push(("not undone".to_owned(), text));
        }
        for one in &self.replaced {
            let text = format!("{}: {}", escape::text(&one.resource), replaced_text(one));
            facts.push(("rolled back".to_owned(), text));
        }
        let texts = [("message", &self.message), ("result", &self.result)];
        let texts = texts.into_iter().filter(|(_, text)| text.is_some());
        facts.extend(texts.map(|(what, text)| (what.to_owned(), told(text.as_deref()))));
        facts
    }
}

impl RelatedOperation {
    fn of(entry: &LedgerEntry) -> RelatedOperation {
        let (operation, tool) = (entry.operation, entry.tool.clone());
        RelatedOperation { operation, tool, outcome: entry.outcome.name(), effects: entry.effects }
    }

    fn text(&self) -> String {
        let effects = match self.effects {
            Some(effects) => format!(", effects outside: {}", effects.name()),
            None => String::new(),
        };
        format!("operation {} (`{}`), {}{effects}", self.operation, escape::text(&self.tool), self.outcome)
    }
}

fn call(entry: &LedgerEntry) -> Option<String> {
    let id = entry.call_id.as_deref().map(|id| escape::text(id).into_owned());
    let origin = entry.asked_by.map(|origin| format!("asked by {}, call {}", origin.answer, origin.ordinal));
    let parts: Vec<String> = id.into_iter().chain(origin).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Says whether an interrupted operation may be run again.
fn again(idempotency: Idempotency) -> &'static str {
    match idempotency {
        Idempotency::Natural => "running it twice does what running it once does",
        Idempotency::Keyed => "it may run again under its operation id, by which it finds what it did",
        Idempotency::Compensate => "it may run again once its effects are undone",
        Idempotency::Verify => "its tool can ask the outside what came of it",
        Idempotency::Manual => "only a person can tell whether it may run again",
        Idempotency::Other(_) => "only a later version of foldlog knows whether it may run again",
    }
}

/// Says what has to be done, or thought of, before somebody decides about an operation.
struct DecisionPrerequisite {
    text: String,
    /// Whether it can be decided all the same.
    is_advice: bool,
}

/// Returns what comes before a decision about an operation; `None` if nothing does.
fn before(reader: &LogReader, entry: &LedgerEntry) -> Option<DecisionPrerequisite> {
    let dir = quoted(reader.dir().as_os_str());
    let must = |text: String| Some(DecisionPrerequisite { text, is_advice: false });
    // First: what the damage hides may be the end of a call that seems to run.
    if reader.sound_end().is_some() {
        return must(format!(
            "the log is damaged, and takes no decision: `foldlog salvage {dir} --to STORE` makes one that does"
        ));
    }
    let is_open = reader.report().interrupted.iter().any(|open| open.operation == entry.operation);
    // A call that was fenced before its handler ran has begun in this log alone.
    if let Some(replicated) = reader.replicated().filter(|_| waits(reader, entry)) {
        let recover =
            if is_open { format!("`foldlog recover {dir} --unreplicated` first; ") } else { String::new() };
        let text = format!(
            "{}, and this log does not tell whether it has this call's begin, nor what became of the call since: the host that has \
             claimed the session decides. Without that replica: {recover}what is written with --unreplicated counts only if no other \
             worker has gone on with the session",
            held_text(replicated)
        );
        return Some(DecisionPrerequisite { text, is_advice: !is_open });
    }
    if is_open {
        let holder =
            store_of(reader.dir()).and_then(|(store, id)| inspect::running(&store, &[id]).ok()?.remove(&id));
        return must(match holder {
            Some(holder) => format!("it runs: {holder}; wait for it, or end that process"),
            None => {
                format!(
                    "its process is gone: let its host recover the session, or `foldlog recover {dir}` (with `--workspace` for each folder)"
                )
            }
        });
    }
    let unsettled = |operation| reader.report().unsettled.iter().any(|one| one.operation == operation);
    if let Some(parent) = entry.parent.filter(|parent| unsettled(*parent)) {
        return must(format!("it ran within operation {parent}: `foldlog ledger {dir} {parent}`"));
    }
    None
}

/// Returns what comes before a decision about an operation of a session that was read in a place.
fn before_in(place: &str, reader: &LogReader, entry: &LedgerEntry) -> Option<DecisionPrerequisite> {
    if !waits(reader, entry) {
        return None;
    }
    let (dir, session) = (in_a_store(reader), reader.opened().session);
    let is_open = reader.report().interrupted.iter().any(|open| open.operation == entry.operation);
    let recover = if is_open {
        format!(", and there `foldlog recover {dir} --unreplicated` first")
    } else {
        String::new()
    };
    let text = format!(
        "nobody decides in a place: its host does, or somebody in its worker's store, with that worker stopped, where {dir} is the \
         session's folder{recover}. If that store is gone, make one: `foldlog takeover {place} --session {session} --to STORE --by \
         \"$USER\" --reason WHY`"
    );
    Some(DecisionPrerequisite { text, is_advice: !is_open })
}

/// Returns the session's folder in a store that is still to be found or made.
fn in_a_store(reader: &LogReader) -> String {
    format!("STORE/sessions/{}", reader.opened().session)
}

/// Returns whether somebody could decide about an operation, or end it, if no replica held the session.
fn waits(reader: &LogReader, entry: &LedgerEntry) -> bool {
    let report = reader.report();
    report.interrupted.iter().any(|open| open.operation == entry.operation)
        || report.unsettled.iter().any(|one| one.operation == entry.operation)
        || entry.waits_for.is_some()
}

/// Returns what can be decided about an operation.
pub(crate) fn choices(
    reader: &LogReader,
    operation: OperationId,
    question: Option<&PendingQuestion>,
    dir: &str,
) -> Vec<DecisionChoice> {
    let held = if reader.replicated().is_some() { " --unreplicated" } else { "" };
    let choice = |meaning, decision: &str| DecisionChoice {
        meaning,
        command: format!("foldlog settle {dir} {operation} {decision} --by \"$USER\" --reason WHY{held}"),
    };
    let unsettled = reader.report().unsettled.iter().find(|one| one.operation == operation);
    match (unsettled, question.map(|question| (question.form, question.digest))) {
        (Some(unsettled), _) => {
            let again =
                choice("it may run again: its host does so when it recovers the session", "run-again");
            let mut choices = vec![
                choice("it did its work (--result JSON tells the model which)", "committed"),
                choice("it did not do its work, and shall not run again", "failed"),
            ];
            choices.extend((!unsettled.run_again).then_some(again));
            choices
        }
        (None, Some((SuspensionForm::Asks, digest))) => {
            let digits: String = digest_text(&digest).chars().take(DIGEST_DIGITS).collect();
            vec![
                choice("it may run, with these arguments", &format!("approved --arguments {digits}")),
                choice("it may not run", "failed"),
            ]
        }
        (None, Some((SuspensionForm::Awaits, _))) => vec![
            choice("this is the result for which it waits", "committed --result JSON"),
            choice("the result will not come", "failed"),
        ],
        _ => Vec::new(),
    }
}
