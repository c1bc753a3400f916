//! Accounts of operations: the facts about a call, and the decisions that are possible.

use foldlog::inspect::{self, LedgerEntry, LogReader};
use foldlog::{
    Error, NotUndone, OperationId, PendingQuestion, Record, RecordKind, ReplacedContent, SequenceNumber,
    SuspensionForm, Value,
};
use foldlog_codec::body::{ExternalEffects, Payload, ToolBegin, ToolEnd};
use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use serde::Serialize;

use crate::Result;
use crate::clock::now;
use crate::payload;
use crate::session_dirs::store_of;
use crate::shell::quote_word;
use crate::text::{DIGEST_DIGITS, digest_text, held_text};

/// Account of one operation. The fields are those of `ledger SESSION OPERATION --json`.
#[derive(Debug, Serialize)]
pub struct Account<'a> {
    /// Its entry in the ledger.
    #[serde(flatten)]
    pub entry: &'a LedgerEntry,
    /// Arguments of the call, as they were received.
    pub arguments: Option<String>,
    /// BLAKE3 of the arguments.
    pub digest: Option<String>,
    /// Question that the call asks.
    pub question: Option<String>,
    /// Runs of the operation, in order.
    pub each_run: Vec<OperationRun>,
    /// Operations that undid this one.
    pub undone_by: Vec<RelatedOperation>,
    /// Operations that ran within this one.
    pub calls: Vec<RelatedOperation>,
    /// Step that must come before a decision.
    pub before: Option<String>,
    /// Possible decisions.
    pub decide: Vec<DecisionChoice>,
}

/// Describes one run of an operation.
#[derive(Debug, Default, Serialize)]
pub struct OperationRun {
    /// Its start record.
    pub begin: SequenceNumber,
    /// Time of its start.
    pub begun_at: String,
    /// Its end record; `None` if it has not ended.
    pub end: Option<SequenceNumber>,
    /// Time of its end.
    pub ended_at: Option<String>,
    /// Name of its outcome.
    pub outcome: Option<String>,
    /// Reason for its failure.
    pub cause: Option<String>,
    /// Exit code of the command that the tool ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// `unknown`, if it is unknown whether its work ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<&'static str>,
    /// Duration in microseconds.
    pub elapsed_us: Option<u64>,
    /// Whether its changes were rolled back.
    pub rolled_back: bool,
    /// Effects that a rollback cannot undo.
    pub effects: Option<ExternalEffects>,
    /// Changes of resources that its rollback did not undo.
    pub not_undone: Vec<NotUndone>,
    /// Contents that its rollback replaced or removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<ReplacedContent>,
    /// Message that was or will be shown to the model.
    pub message: Option<String>,
    /// Result of the call.
    pub result: Option<String>,
}

/// Names another operation.
#[derive(Debug, Serialize)]
pub struct RelatedOperation {
    /// Id of the operation.
    pub operation: OperationId,
    /// Name of its tool.
    pub tool: String,
    /// Name of its outcome.
    pub outcome: &'static str,
    /// Effects that a rollback cannot undo.
    pub effects: Option<ExternalEffects>,
}

/// A possible decision, with the command that makes it.
#[derive(Debug, Serialize)]
pub struct DecisionChoice {
    /// Meaning of the decision.
    pub meaning: &'static str,
    /// Command that makes it.
    pub command: String,
}

/// Returns an operation's account as JSON. Without `payloads`, it omits the texts of arguments,
/// question, messages and results. The fields are those of `ledger SESSION OPERATION --json`.
pub(crate) fn account(
    reader: &LogReader,
    ledger: &[LedgerEntry],
    entry: &LedgerEntry,
    payloads: bool,
) -> Result<serde_json::Value> {
    let mut account = Account::read(reader, ledger, entry, None)?;
    if !payloads {
        (account.arguments, account.question) = (None, None);
        account.each_run.iter_mut().for_each(|run| (run.message, run.result) = (None, None));
    }
    Ok(serde_json::to_value(&account).map_err(std::io::Error::from)?)
}

impl<'a> Account<'a> {
    /// Collects the facts about an operation. `place` is the place from which the session was read,
    /// if there is one.
    pub fn read(
        reader: &LogReader,
        ledger: &[LedgerEntry],
        entry: &'a LedgerEntry,
        place: Option<&str>,
    ) -> Result<Account<'a>> {
        let (arguments, each_run) = runs(reader, entry.operation)?;
        let pending = reader.pending_questions(now())?;
        let question = pending.iter().find(|one| one.operation == entry.operation);
        let others = |is_one: &dyn Fn(&LedgerEntry) -> bool| {
            ledger.iter().filter(|other| is_one(other)).map(RelatedOperation::from_entry).collect::<Vec<_>>()
        };
        let digest = question.map(|question| digest_text(&question.digest));
        let before = match place {
            Some(place) => before_in(place, reader, entry),
            None => before(reader, entry),
        };
        let decides = before.as_ref().is_none_or(|before| before.is_advice);
        let dir = place.map_or_else(|| quote_word(reader.dir().as_os_str()), |_| in_a_store(reader));
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
}

/// Reads the arguments of an operation and its runs.
fn runs(reader: &LogReader, operation: OperationId) -> Result<(Option<String>, Vec<OperationRun>)> {
    let (mut arguments, mut runs) = (None, Vec::new());
    reader.records(operation.sequence(), reader.last_position(), |record| {
        match record.kind {
            RecordKind::ToolBegin => {
                let begin = ToolBegin::decode(record.body).map_err(unread(record))?;
                if begin.again.unwrap_or(record.sequence.into()) == operation {
                    if arguments.is_none() {
                        arguments = Some(text_of(reader, begin.arguments));
                    }
                    runs.push(OperationRun::from_start_record(record));
                }
            }
            RecordKind::ToolEnd => {
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

impl OperationRun {
    fn from_start_record(record: &Record<'_>) -> OperationRun {
        OperationRun {
            begin: record.sequence,
            begun_at: time_text(record.time_us),
            ..OperationRun::default()
        }
    }

    fn end(&mut self, record: &Record<'_>, end: &ToolEnd<'_>, reader: &LogReader) {
        (self.end, self.ended_at) = (Some(record.sequence), Some(time_text(record.time_us)));
        self.outcome = Some(end.outcome.name().to_owned());
        self.cause = end.cause.map(|cause| cause.name().to_owned());
        (self.exit_code, self.elapsed_us) = (end.exit_code, Some(end.elapsed_us));
        self.ended = end.has_unknown_end().then_some("unknown");
        (self.rolled_back, self.effects) = (end.rolls_back, Some(end.outside));
        let left = end.not_undone.iter().map(|left| NotUndone {
            resource: left.resource.to_string(),
            path: left.path.to_string(),
            reason: left.reason.to_string(),
        });
        self.not_undone = left.collect();
        self.replaced = end.replaced.iter().map(ReplacedContent::from).collect();
        self.message = end.shown.map(|shown| text_of(reader, shown));
        self.result = end.result.map(|result| text_of(reader, result));
    }
}

impl RelatedOperation {
    fn from_entry(entry: &LedgerEntry) -> RelatedOperation {
        let (operation, tool) = (entry.operation, entry.tool.clone());
        RelatedOperation { operation, tool, outcome: entry.outcome.name(), effects: entry.effects }
    }
}

/// Wraps an error of the codec into the engine's, which names the record.
pub fn unread(record: &Record<'_>) -> impl Fn(foldlog_codec::Error) -> Error {
    let sequence = record.sequence;
    move |error| Error::Inconsistent { sequence, reason: error.to_string() }
}

/// Returns a payload's text, or its value as JSON. If the payload cannot be read, returns the
/// reason.
pub fn text_of(reader: &LogReader, payload: Payload<'_>) -> String {
    match payload::with_value(reader, payload, |value| value.to_value()) {
        Ok(Value::Str(text)) => text,
        Ok(value) => escape::to_json(&value.json_form()).unwrap_or_else(|error| format!("({error})")),
        Err(why) => why,
    }
}

/// Describes a step to take, or a fact to consider, before deciding about an operation.
struct DecisionPrerequisite {
    text: String,
    /// Whether a decision is possible without the step.
    is_advice: bool,
}

/// Returns the prerequisite of a decision about an operation; `None` if there is none.
fn before(reader: &LogReader, entry: &LedgerEntry) -> Option<DecisionPrerequisite> {
    let dir = quote_word(reader.dir().as_os_str());
    let must = |text: String| Some(DecisionPrerequisite { text, is_advice: false });
    // This check comes first: the damage may hide the end of a call that seems to run.
    if reader.sound_end().is_some() {
        return must(format!(
            "the log is damaged, and accepts no decisions: `foldlog salvage {dir} --to STORE` creates a \
             session that does"
        ));
    }
    let is_open = reader.report().interrupted.iter().any(|open| open.operation == entry.operation);
    // A call that was fenced before its handler ran has its start record in this log only.
    if let Some(replicated) = reader.replicated_record().filter(|_| waits(reader, entry)) {
        let recover =
            if is_open { format!("`foldlog recover {dir} --unreplicated` first; ") } else { String::new() };
        let text = format!(
            "{}, and this log does not show whether the start record of this call is replicated, nor the \
             outcome of the call since then: the host that has claimed the session decides. Without that \
             replica: {recover}records written with --unreplicated count only if no other worker has \
             continued the session",
            held_text(replicated)
        );
        return Some(DecisionPrerequisite { text, is_advice: !is_open });
    }
    if is_open {
        let holder = store_of(reader.dir())
            .and_then(|(store, id)| inspect::running_sessions(&store, &[id]).ok()?.remove(&id));
        return must(match holder {
            Some(holder) => format!("it is running: {holder}; wait for it, or end that process"),
            None => {
                format!(
                    "its process is gone: let its host recover the session, or run `foldlog recover {dir}` (with `--workspace` for each directory)"
                )
            }
        });
    }
    let unsettled = |operation| reader.report().unsettled.iter().any(|one| one.operation == operation);
    if let Some(parent) = entry.parent.filter(|parent| unsettled(*parent)) {
        return must(format!(
            "it ran within operation {parent}, which must be decided first: `foldlog ledger \
             {dir} {parent}`"
        ));
    }
    None
}

/// Returns the prerequisite of a decision about an operation of a session that was read from a
/// place.
fn before_in(place: &str, reader: &LogReader, entry: &LedgerEntry) -> Option<DecisionPrerequisite> {
    if !waits(reader, entry) {
        return None;
    }
    let (dir, session) = (in_a_store(reader), reader.opening_record().session);
    let is_open = reader.report().interrupted.iter().any(|open| open.operation == entry.operation);
    let recover = if is_open {
        format!("; run `foldlog recover {dir} --unreplicated` there first")
    } else {
        String::new()
    };
    let text = format!(
        "a decision cannot be made in a place: the host makes it, or a person in the worker's store, with \
         that worker stopped, where {dir} is the session's directory{recover}. If that store is gone, create \
         one: `foldlog takeover {place} --session {session} --to STORE --by \"$USER\" --reason WHY`"
    );
    Some(DecisionPrerequisite { text, is_advice: !is_open })
}

/// Returns the session's directory in a store that the user has yet to find or create.
fn in_a_store(reader: &LogReader) -> String {
    format!("STORE/sessions/{}", reader.opening_record().session)
}

/// Returns whether an operation could be decided or ended if the session were not replicated.
fn waits(reader: &LogReader, entry: &LedgerEntry) -> bool {
    let report = reader.report();
    report.interrupted.iter().any(|open| open.operation == entry.operation)
        || report.unsettled.iter().any(|one| one.operation == entry.operation)
        || entry.waits_for.is_some()
}

/// Returns the possible decisions about an operation.
pub fn choices(
    reader: &LogReader,
    operation: OperationId,
    question: Option<&PendingQuestion>,
    dir: &str,
) -> Vec<DecisionChoice> {
    let held = if reader.replicated_record().is_some() { " --unreplicated" } else { "" };
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
                choice("it did its work (--result JSON gives the model the result)", "committed"),
                choice("it did not do its work, and must not run again", "failed"),
            ];
            choices.extend((!unsettled.run_again).then_some(again));
            choices
        }
        (None, Some((SuspensionForm::Asks, digest))) => {
            let digits: String = digest_text(&digest).chars().take(DIGEST_DIGITS).collect();
            vec![
                choice("it may run, with these arguments", &format!("approved --arguments {digits}")),
                choice("it must not run", "failed"),
            ]
        }
        (None, Some((SuspensionForm::Awaits, _))) => vec![
            choice("this is the result that it waits for", "committed --result JSON"),
            choice("the result will not come", "failed"),
        ],
        _ => Vec::new(),
    }
}
