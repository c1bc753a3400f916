//! The calls of agents that foldlog did not start, and their undos: the steps of a
//! [timeline](foldlog_timeline), as its session records them.
//!
//! The steps are shown like operations, and their captures like the captures of a workspace. Pages
//! contain no part of an ignored file (`files.rs`).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::SnapshotReader;
use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::storage::FileStorage;
use foldlog::{Event as _, OperationId, Record, RecordKind, SequenceNumber};
use foldlog_codec::body::{Action, AnswerBody, Dispatch, Input};
use foldlog_codec::msgpack;
use foldlog_timeline::{
    Edge, Intervals, Moment, Outcome, Step, StepChanged, StepKind, TimelinePlace, UndoneSteps,
};
use serde_json::{Value as Json, json};

use crate::Result;
use crate::files::{HiddenPaths, WORKSPACE_OF_STEPS, store_of};
use crate::text::shorten_text;

/// Number of characters of a call's title.
const TITLE_CHARS_MAX: usize = 120;

/// Number of steps with a list of changed files, the last ones, and of listed files of each.
const CHANGES_MAX: usize = 200;

/// Reads the steps in records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepReader<'a> {
    reader: &'a LogReader,
    /// Id of the event, if the log has it.
    event: Option<u32>,
}

impl<'a> StepReader<'a> {
    pub(crate) fn new(reader: &'a LogReader) -> StepReader<'a> {
        let names = reader.names();
        let mut events = names.events.iter();
        let event = events.find(|(_, (name, _))| name == StepChanged::NAME).map(|(event, _)| *event);
        StepReader { reader, event }
    }

    /// Returns the step that a record changes; `None` if it is another record.
    pub(crate) fn read(&self, record: &Record<'_>) -> Option<StepChanged> {
        let known = self.event.filter(|_| record.kind == RecordKind::Dispatch)?;
        match Dispatch::decode(record.body).ok()?.action {
            Action::Event { event, data } if event == known => {
                msgpack::from_slice(&self.reader.payload(data).ok()?).ok()
            }
            _ => None,
        }
    }
}

/// Returns the name of a step's tool.
pub(crate) fn tool(step: &Step) -> &str {
    step.call().map_or("undo", |call| &call.tool)
}

/// Returns the title of a record with a step. Without `payloads`, it omits the title of the call.
pub(crate) fn record_title(changed: &StepChanged, payloads: bool) -> String {
    let step = &changed.step;
    let title = match &step.kind {
        StepKind::Call(call) if payloads && !call.title.is_empty() => {
            format!("{} {}: {}", step.number, call.tool, short_title(&call.title))
        }
        _ => format!("{} {}", step.number, tool(step)),
    };
    match (&changed.moment, step.outcome) {
        (Some(moment), _) if moment.edge == Edge::Opened => format!("{title}, begins"),
        (Some(_), Some(outcome)) => format!("{title}, {}", outcome_name(Some(outcome))),
        _ => format!("{title}, changed"),
    }
}

fn short_title(title: &str) -> String {
    shorten_text(title.lines().next().unwrap_or_default(), TITLE_CHARS_MAX)
}

pub(crate) fn outcome_name(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        None => "open",
        Some(Outcome::Succeeded) => "succeeded",
        Some(Outcome::Failed) => "failed",
        Some(Outcome::Interrupted) => "interrupted",
    }
}

/// The steps of a log, with their records.
#[derive(Default)]
struct RecordedSteps {
    steps: BTreeMap<u64, Step>,
    /// Records of the beginnings and of the ends.
    begins: BTreeMap<u64, SequenceNumber>,
    ends: BTreeMap<u64, SequenceNumber>,
    moments: Vec<Moment>,
}

impl RecordedSteps {
    fn read(reader: &LogReader) -> Result<RecordedSteps> {
        let (steps, mut found) = (StepReader::new(reader), RecordedSteps::default());
        if steps.event.is_none() {
            return Ok(found);
        }
        reader.records(SequenceNumber::MIN, reader.last_position(), |record| {
            if let Some(changed) = steps.read(record) {
                found.take(record.sequence, changed);
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn take(&mut self, sequence: SequenceNumber, changed: StepChanged) {
        let number = changed.step.number;
        if let Some(moment) = changed.moment {
            match moment.edge {
                Edge::Opened => self.begins.insert(number, sequence),
                Edge::Closed => self.ends.insert(number, sequence),
            };
            self.moments.push(moment);
        }
        self.steps.insert(number, changed.step);
    }
}

/// Returns the directory of the session with the conversations of the agents whose steps a session
/// contains; `None` if there is none.
pub(crate) fn conversations_of(session: &Path) -> Option<PathBuf> {
    TimelinePlace::of_session(session).map(|place| place.conversations_dir()).filter(|dir| dir.is_dir())
}

/// Returns the messages that asked for calls, by the program's ids of the calls: the conversation,
/// and the message's place in it.
fn messages_of_calls(session: &Path) -> Result<HashMap<String, (String, u64)>> {
    let (mut asked, mut counts) = (HashMap::new(), HashMap::<String, u64>::new());
    let Some(dir) = conversations_of(session) else { return Ok(asked) };
    let reader = LogReader::open_sound(Arc::new(FileStorage::new()), dir, ReadOptions::default())?;
    reader.records(SequenceNumber::MIN, reader.last_position(), |record| {
        let (conversation, calls) = match record.kind {
            RecordKind::Input => match Input::decode(record.body) {
                Ok(input) => (input.scope.evaluation, Vec::new()),
                Err(_) => return Ok(()),
            },
            RecordKind::Answer => match AnswerBody::decode(record.body) {
                Ok(answer) => (answer.scope.evaluation, answer.calls),
                Err(_) => return Ok(()),
            },
            _ => return Ok(()),
        };
        let count = counts.entry(conversation.to_string()).or_default();
        for call in calls {
            asked.insert(call.id.into_owned(), (conversation.to_string(), *count));
        }
        *count += 1;
        Ok(())
    })?;
    Ok(asked)
}

/// Describes the steps of a log in the form of entries of the ledger, with further fields. Without
/// `payloads`, it omits the titles of calls. If captures cannot be read, it omits the changed files.
pub(crate) fn entries(reader: &LogReader, payloads: bool) -> Result<Vec<Json>> {
    let RecordedSteps { steps, begins, ends, moments } = RecordedSteps::read(reader)?;
    if steps.is_empty() {
        return Ok(Vec::new());
    }
    // Without the conversations, the steps are still shown.
    let asked = messages_of_calls(reader.dir()).unwrap_or_default();
    let steps: Vec<Step> = steps.into_values().collect();
    let undone = UndoneSteps::new(&steps);
    let mut store = SnapshotReader::open(store_of(reader.dir(), WORKSPACE_OF_STEPS));
    let mut hidden = HiddenPaths::default();
    for capture in moments.iter().filter_map(|moment| moment.capture.as_ref()) {
        hidden.add(WORKSPACE_OF_STEPS, capture, &mut store);
    }
    let intervals = Intervals::new(&steps, moments, &store);
    let first = steps.len().saturating_sub(CHANGES_MAX);
    let mut entries = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        let Some(begin) = begins.get(&step.number) else { continue };
        let call = step.call();
        let title = match &step.kind {
            StepKind::Call(call) => payloads.then(|| short_title(&call.title)),
            StepKind::Undo(undo) => {
                let of: Vec<String> = undo.of.iter().map(u64::to_string).collect();
                Some(format!("of {}", of.join(", ")))
            }
        };
        let is_redo = step.undo().is_some_and(|undo| undo.is_redo(&steps));
        let state = match undone.wholly.contains(&step.number) {
            true => Some("undone"),
            false => undone.partly.contains(&step.number).then_some("partly undone"),
        };
        let elapsed = step.closed_at.and_then(|closed| (closed - step.opened_at).num_microseconds());
        let asked_by = call.and_then(|call| asked.get(&call.id));
        let (conversation, message) = asked_by.map(|(of, place)| (of, place)).unzip();
        let mut entry = json!({
            "operation": OperationId::from(*begin), "parent": null, "undoes": null, "conversation": conversation, "message": message,
            "call_id": call.map(|call| &call.id), "tool": if is_redo { "redo" } else { tool(step) }, "outcome": outcome_name(step.outcome),
            "cause": null, "effects": "none", "begin": begin, "end": ends.get(&step.number),
            "elapsed_us": elapsed, "runs": 1, "settled": null, "step": step.number, "title": title,
            "undone": state,
        });
        if place >= first
            && let Ok(changes) = intervals.changes(step.number, &mut store)
        {
            let all = changes.files.iter().chain(&changes.shared);
            let shown: Vec<_> =
                all.filter(|change| !hidden.contains(WORKSPACE_OF_STEPS, &change.path)).collect();
            let hidden = changes.files.len() + changes.shared.len() - shown.len();
            let files = shown.iter().take(CHANGES_MAX);
            let files: Vec<Json> = files.map(|change| json!([change.kind, change.path])).collect();
            entry["files"] = json!({
                "total": shown.len(), "ignored": hidden, "unrecorded": changes.not_kept.len(), "listed": files,
            });
        }
        entries.push(entry);
    }
    Ok(entries)
}
