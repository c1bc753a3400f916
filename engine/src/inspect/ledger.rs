//! The ledger: each operation with its outcome, read from the log. For a child session, its
//! parent's log is read too, since the child's committed changes stay only if the operation for
//! which it works commits.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat, Utc};
use foldlog_codec::body::{
    CallOrigin, Cause, Decision, ExternalEffects, Idempotency, Observed, Outcome, Parent, Settle,
    SuspensionForm, ToolBegin, ToolEnd,
};
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber, msgpack};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::{LogReader, ReadOptions};
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::operation::{CHILD_SESSION, ChildAnnounced, NotUndone, ReplacedContent};

/// Describes the status of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationStatus {
    /// The operation has begun and not ended.
    Open,
    /// The operation succeeded, and its changes stay.
    Committed,
    /// The operation failed, and its changes were rolled back.
    Failed,
    /// The operation's process ended before it did, and it is not settled.
    Interrupted,
    /// The operation waits for an answer or a decision.
    Suspended,
    /// The operation was interrupted or suspended, and a decision about it was recorded.
    Settled,
    /// The operation was committed, and a later rollback undid its changes of STATE; or it was
    /// committed by a child session whose parent rolled back the operation for which the child
    /// worked; or it was suspended, and a rollback has withdrawn its question.
    Abandoned,
    /// The operation ended in a way that only a later version of foldlog knows.
    Unknown,
}

impl OperationStatus {
    /// Returns the name that listings and JSON use.
    pub fn name(self) -> &'static str {
        match self {
            OperationStatus::Open => "open",
            OperationStatus::Committed => "committed",
            OperationStatus::Failed => "failed",
            OperationStatus::Interrupted => "interrupted",
            OperationStatus::Suspended => "suspended",
            OperationStatus::Settled => "settled",
            OperationStatus::Abandoned => "abandoned",
            OperationStatus::Unknown => "unknown",
        }
    }
}

/// Describes a decision about an interrupted or suspended operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The decision.
    pub decision: Decision,
    /// Who decided.
    pub by: String,
    /// Given reason.
    pub reason: String,
    /// Sequence number of the decision's record.
    pub sequence: SequenceNumber,
    /// BLAKE3 hash of the arguments that an approval names; `None` if the decision is not an
    /// approval.
    pub arguments: Option<[u8; 32]>,
    /// Time from which on an approval is no longer valid; `None` if it never expires.
    pub until: Option<DateTime<Utc>>,
}

impl Settled {
    /// Returns the name that listings and JSON use: `approved` for an approval, otherwise that of
    /// the decision.
    pub fn name(&self) -> &'static str {
        self.decision.shown_name(self.arguments.is_some())
    }
}

impl Serialize for Settled {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Settled { by, reason, sequence, arguments, until, .. } = self;
        let mut fields = serializer.serialize_struct("Settled", 6)?;
        fields.serialize_field("decision", self.name())?;
        fields.serialize_field("by", by)?;
        fields.serialize_field("reason", reason)?;
        fields.serialize_field("sequence", sequence)?;
        match arguments {
            Some(arguments) => {
                fields.serialize_field("arguments", blake3::Hash::from(*arguments).to_hex().as_str())?;
            }
            None => fields.skip_field("arguments")?,
        }
        match until {
            Some(until) => {
                let until = until.to_rfc3339_opts(SecondsFormat::Micros, true);
                fields.serialize_field("until", &until)?;
            }
            None => fields.skip_field("until")?,
        }
        fields.end()
    }
}

/// Describes whether the work of a child session stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildFate {
    /// The operation for which the child works is open or suspended, or was interrupted and may run
    /// again.
    Undecided,
    /// The operation committed with the child's work.
    Kept,
    /// The operation was rolled back, or committed in a run without the child.
    Abandoned,
}

impl ChildFate {
    /// Returns the name that listings and JSON use.
    pub fn name(self) -> &'static str {
        match self {
            ChildFate::Undecided => "undecided",
            ChildFate::Kept => "kept",
            ChildFate::Abandoned => "abandoned",
        }
    }
}

/// Describes a child session of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerChild {
    /// Id of the child.
    pub session: Uuid,
    /// Number that the tool gave the child.
    pub ordinal: u32,
    /// Whether the child's work stays.
    pub fate: ChildFate,
    /// Sequence number of the last record that announces the child.
    #[serde(skip)]
    announced: SequenceNumber,
}

/// Describes the fate of a session's work according to the log of its parent.
#[derive(Clone, Debug)]
pub enum FateInParent {
    /// The session is not a child that works for an operation.
    NoChild,
    /// The session is a child, and its parent's log determines its fate.
    Child {
        /// Id of the parent.
        parent: Uuid,
        /// Operation for which the child works.
        operation: OperationId,
        /// Whether the child's work stays.
        fate: ChildFate,
    },
    /// The session is a child whose parent's log is not next to it, cannot be read, or does not
    /// announce the child, as the error states.
    Unknown {
        /// Id of the parent.
        parent: Uuid,
        /// Operation for which the child works.
        operation: OperationId,
        /// Error that prevents determining the fate.
        reason: Arc<Error>,
    },
}

/// Maximum number of ancestors whose logs are read for the fate of a session. Damaged logs may name
/// each other.
const ANCESTORS_MAX: u32 = 64;

/// Describes one operation, over all of its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerEntry {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Operation within which this one ran.
    pub parent: Option<OperationId>,
    /// Operation that this one undid.
    pub undoes: Option<OperationId>,
    /// Operation of which this one queried the outcome outside of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verifies: Option<OperationId>,
    /// Answer that requested the call, and the ordinal of the call in it. `None` if no answer did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<CallOrigin>,
    /// Call id from the model's provider.
    pub call_id: Option<String>,
    /// Name of the tool.
    pub tool: String,
    /// Permitted handling of the operation if it is interrupted.
    pub idempotency: Idempotency,
    /// Status of the operation.
    pub outcome: OperationStatus,
    /// Cause of the operation's failure, if it failed.
    pub cause: Option<Cause>,
    /// Exit code of the command that the tool ran, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether the operation was committed although its tool reports that it is unknown whether its
    /// work ended. In JSON, this is the field `ended` with the value `unknown`.
    #[serde(rename = "ended", serialize_with = "as_unknown", skip_serializing_if = "std::ops::Not::not")]
    pub has_unknown_end: bool,
    /// Form of the answer that the operation waits for, while it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<SuspensionForm>,
    /// Known effects that a rollback does not undo. `None` while the operation is open.
    pub effects: Option<ExternalEffects>,
    /// Changes of its resources that could not be undone when the operation was rolled back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_undone: Vec<NotUndone>,
    /// Contents of its resources that the rollback of the operation replaced or removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<ReplacedContent>,
    /// Sequence number of the operation's latest `tool_begin`.
    pub begin: SequenceNumber,
    /// Sequence number of the end record of that run. `None` while it is open.
    pub end: Option<SequenceNumber>,
    /// Duration of that run, in microseconds.
    pub elapsed_us: Option<u64>,
    /// Number of runs of the operation.
    pub runs: u64,
    /// Latest decision about the operation.
    pub settled: Option<Settled>,
    /// Child sessions of the operation, in the order of their numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<LedgerChild>,
}

fn as_unknown<S: Serializer>(_: &bool, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str("unknown")
}

#[derive(Default)]
struct Ledger {
    entries: BTreeMap<OperationId, LedgerEntry>,
    /// Operation ids of open operations, by the sequence numbers of their start records.
    open: BTreeMap<SequenceNumber, OperationId>,
}

impl Ledger {
    fn take(&mut self, record: &Record<'_>) -> Result<()> {
        let sequence = record.sequence;
        let bad = Error::unread(sequence);
        match record.kind {
            RecordKind::ToolBegin => self.begin(sequence, ToolBegin::decode(record.body).map_err(bad)?),
            RecordKind::ToolEnd => self.end(sequence, &ToolEnd::decode(record.body).map_err(bad)?),
            RecordKind::Observed => self.add_child(sequence, &Observed::decode(record.body).map_err(bad)?),
            RecordKind::Settle => {
                let Settle { operation, decision, by, reason, arguments, until_us, .. } =
                    Settle::decode(record.body).map_err(bad)?;
                let until = until_us.map(conversation_reading::time);
                if let Some(entry) = self.entries.get_mut(&operation) {
                    if decision != Decision::RunAgain {
                        (entry.outcome, entry.waits_for) = (OperationStatus::Settled, None);
                    }
                    entry.settled = Some(Settled { decision, by, reason, sequence, arguments, until });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, sequence: SequenceNumber, begin: ToolBegin<'_>) {
        let operation = begin.again.unwrap_or(sequence.into());
        self.open.insert(sequence, operation);
        let entry = self.entries.entry(operation).or_insert_with(|| LedgerEntry {
            operation,
            parent: begin.parent,
            undoes: begin.undoes,
            verifies: begin.verifies,
            asked_by: begin.origin,
            call_id: begin.call_id.map(Cow::into_owned),
            tool: begin.tool.into_owned(),
            idempotency: begin.idempotency,
            outcome: OperationStatus::Open,
            cause: None,
            exit_code: None,
            has_unknown_end: false,
            waits_for: None,
            effects: None,
            not_undone: Vec::new(),
            replaced: Vec::new(),
            begin: sequence,
            end: None,
            elapsed_us: None,
            runs: 0,
            settled: None,
            children: Vec::new(),
        });
        entry.runs += 1;
        entry.begin = sequence;
        (entry.outcome, entry.cause, entry.effects) = (OperationStatus::Open, None, None);
        (entry.waits_for, entry.exit_code, entry.has_unknown_end) = (None, None, false);
        (entry.end, entry.elapsed_us) = (None, None);
        entry.not_undone.clear();
        entry.replaced.clear();
    }

    /// Adds a child session that is announced. Ignores other observations, and announcements
    /// without a known operation.
    fn add_child(&mut self, sequence: SequenceNumber, observed: &Observed<'_>) {
        if observed.name != CHILD_SESSION || observed.data.object().is_some() {
            return;
        }
        let Ok(child) = msgpack::from_slice::<ChildAnnounced>(observed.data.bytes()) else { return };
        let (Some(entry), Some(session)) = (self.entries.get_mut(&child.operation), child.session()) else {
            return;
        };
        let (ordinal, fate, announced) = (child.ordinal, ChildFate::Undecided, sequence);
        let child = LedgerChild { session, ordinal, fate, announced };
        match entry.children.binary_search_by_key(&ordinal, |child| child.ordinal) {
            Ok(at) => entry.children.splice(at..=at, [child]).for_each(drop),
            Err(at) => entry.children.insert(at, child),
        }
    }

    fn end(&mut self, sequence: SequenceNumber, end: &ToolEnd<'_>) {
        let Some(operation) = self.open.remove(&end.begin) else { return };
        let Some(entry) = self.entries.get_mut(&operation) else { return };
        entry.outcome = match end.outcome {
            Outcome::Committed => OperationStatus::Committed,
            Outcome::Failed => OperationStatus::Failed,
            Outcome::Interrupted => OperationStatus::Interrupted,
            Outcome::Suspended => OperationStatus::Suspended,
            Outcome::Other(_) => OperationStatus::Unknown,
        };
        (entry.cause, entry.exit_code) = (end.cause, end.exit_code);
        entry.has_unknown_end = end.has_unknown_end();
        entry.waits_for = end.suspension.map(|suspension| suspension.form);
        entry.effects = Some(end.outside);
        entry.not_undone = end.not_undone.iter().map(NotUndone::of_record).collect();
        entry.replaced = end.replaced.iter().map(ReplacedContent::from).collect();
        entry.end = Some(sequence);
        entry.elapsed_us = Some(end.elapsed_us);
    }
}

impl LedgerEntry {
    /// Returns whether the operation is open, may run again, or ended in an unknown way, so that
    /// the fate of its children is undecided. An interrupted operation within another one never
    /// runs again.
    fn may_run(&self) -> bool {
        match self.outcome {
            OperationStatus::Open | OperationStatus::Suspended | OperationStatus::Unknown => true,
            OperationStatus::Interrupted => self.parent.is_none(),
            _ => false,
        }
    }
}

impl LogReader {
    /// Returns the ledger: each operation with its outcome, in the order of their first start
    /// records.
    ///
    /// For a child session, operations that its [parent](LogReader::fate_in_parent) has abandoned
    /// are [`OperationStatus::Abandoned`]. If the fate in the parent is unknown, only this log is
    /// used.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if a record's body cannot be decoded, [`Error::Io`] if a segment can
    /// no longer be read.
    pub fn ledger(&self) -> Result<Vec<LedgerEntry>> {
        self.ledger_within(ANCESTORS_MAX)
    }

    /// Returns the fate of this session's work according to the log of its parent, if it is a child
    /// that works for an operation. The parent's log is expected in the directory that contains
    /// this session's directory. Reading it may take as much memory as this reader.
    pub fn fate_in_parent(&self) -> FateInParent {
        self.fate_within(ANCESTORS_MAX)
    }

    fn fate_within(&self, ancestors: u32) -> FateInParent {
        let Some(Parent::Child { session: parent, operation: Some(operation) }) = self.opened.parent else {
            return FateInParent::NoChild;
        };
        match self.read_fate(parent, operation, ancestors) {
            Ok(fate) => FateInParent::Child { parent, operation, fate },
            Err(reason) => FateInParent::Unknown { parent, operation, reason: Arc::new(reason) },
        }
    }

    fn read_fate(&self, parent: Uuid, operation: OperationId, ancestors: u32) -> Result<ChildFate> {
        let unknown = |reason: &'static str| Error::NoSuchOperation { operation, reason };
        let ancestors =
            ancestors.checked_sub(1).ok_or(unknown("it has too many ancestor sessions to read"))?;
        let dir = self.dir.parent().unwrap_or(&self.dir).join(parent.to_string());
        let options = ReadOptions { outline: true, memory_bytes: self.options.memory_bytes };
        let reader = LogReader::open_with(Arc::clone(&self.storage), dir, options)?;
        if reader.opened.session != parent {
            let (path, found) = (reader.dir, reader.opened.session);
            return Err(Error::WrongSession { path, expected: parent, found });
        }
        let entries = reader.ledger_within(ancestors)?;
        let entry = entries.into_iter().find(|entry| entry.operation == operation);
        let mut children = entry.into_iter().flat_map(|entry| entry.children);
        let own = children.find(|child| child.session == self.opened.session);
        own.map(|own| own.fate).ok_or(unknown("the parent's log does not name this session as its child"))
    }

    fn ledger_within(&self, ancestors: u32) -> Result<Vec<LedgerEntry>> {
        let mut ledger = Ledger::default();
        let Some(last) = self.places.next_sequence.checked_sub(1) else { return Ok(Vec::new()) };
        self.records(SequenceNumber::MIN, last, |record| ledger.take(record))?;
        let live = self.live_path().live_at(last);
        let is_live = |sequence: SequenceNumber| {
            let at = live.partition_point(|range| *range.end() < sequence);
            live.get(at).is_some_and(|range| range.contains(&sequence))
        };
        // An operation that was suspended within another one was rolled back with it, and counts as
        // long as that one does.
        let standings = self.standings(i64::MIN);
        let withdrawn = |entry: &&LedgerEntry| {
            entry.outcome == OperationStatus::Suspended && !standings.counts(entry.operation)
        };
        let withdrawn: BTreeSet<OperationId> =
            ledger.entries.values().filter(withdrawn).map(|entry| entry.operation).collect();
        let mut entries: Vec<LedgerEntry> = ledger.entries.into_values().collect();
        let fate = self.fate_within(ancestors);
        let is_abandoned = matches!(fate, FateInParent::Child { fate: ChildFate::Abandoned, .. });
        for entry in &mut entries {
            let may_run = entry.may_run() && !withdrawn.contains(&entry.operation);
            let abandoned = match entry.outcome {
                OperationStatus::Committed => is_abandoned || !entry.end.is_some_and(is_live),
                OperationStatus::Suspended => is_abandoned || withdrawn.contains(&entry.operation),
                _ => false,
            };
            if abandoned {
                entry.outcome = OperationStatus::Abandoned;
            }
            for child in &mut entry.children {
                // If an earlier run announced the child, that record was rolled back with the run.
                child.fate = match entry.outcome {
                    _ if is_abandoned => ChildFate::Abandoned,
                    _ if may_run => ChildFate::Undecided,
                    OperationStatus::Committed if is_live(child.announced) => ChildFate::Kept,
                    _ => ChildFate::Abandoned,
                };
            }
        }
        Ok(entries)
    }
}
