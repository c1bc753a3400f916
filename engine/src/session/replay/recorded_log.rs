//! The recorded part of a log over which a host runs: the next records, their producers, and the
//! divergences.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{Decision, Declare, Lane, ObjectId, Observed, Settle, ToolBegin, ToolEnd};
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};

use super::comparison::RecordComparison;
use crate::divergence::{Divergence, LaneName, LeaveOut};
use crate::error::{Error, Result};
use crate::fold::record_kinds::{Author, RecordRules};
use crate::log::reader::RecordLocator;
use crate::log::scan::Location;
use crate::operation::ROLLBACK;
use crate::storage::Storage;

/// Number of records that are read ahead, to distinguish a missing record from a changed one.
const AHEAD: usize = 64;

/// Maximum number of lanes with a stored last record, to distinguish a repeated record from a
/// changed one.
const LANES_MAX: usize = 64;

/// Maximum number of divergences that are stored for one replay.
const FOUND_MAX: usize = 10_000;

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Whether the replay continues after a divergence.
    pub(crate) all: bool,
    /// Time without any record after which the next one counts as missing.
    pub(crate) patience: Duration,
    /// Whether tools run again that may.
    pub(crate) run_tools: bool,
    /// Values that are not compared.
    pub(crate) left_out: Arc<LeaveOut>,
    /// Whether the objects of the records are still to be checked.
    pub(crate) checks_objects: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RecordProducer {
    /// The engine, which reads the record from the log.
    Engine,
    /// The host, which writes through a handle of this lane.
    Lane(LaneName),
    /// The thread that ends the run with this start record.
    End(SequenceNumber),
}

impl RecordProducer {
    /// Returns the lane for a report.
    pub(super) fn lane(self) -> LaneName {
        match self {
            RecordProducer::Lane(lane) => lane,
            RecordProducer::End(begin) => LaneName { within: Some(begin), name: None },
            RecordProducer::Engine => LaneName::default(),
        }
    }
}

/// A record that was read ahead.
pub(in crate::session) struct ReplayRecord {
    pub(super) sequence: SequenceNumber,
    pub(in crate::session) kind: RecordKind,
    pub(super) time_us: i64,
    pub(in crate::session) body: Vec<u8>,
    role: Role,
}

/// Relation of a record to calls, as far as the record itself determines it.
enum Role {
    /// A record that no lane produces.
    Engines,
    /// The start of a run.
    Begin { operation: OperationId, parent: Option<OperationId>, lane: LaneName },
    /// The end of the run with this start record.
    End { begin: SequenceNumber, operation: OperationId },
    /// Any other record.
    Other(LaneName),
}

impl Role {
    fn decode(kind: RecordKind, sequence: SequenceNumber, body: &[u8]) -> Result<Role> {
        let bad = Error::unread(sequence);
        Ok(match RecordRules::of(kind).author {
            Author::Engine => Role::Engines,
            Author::RunStart => {
                let begin = ToolBegin::decode(body).map_err(bad)?;
                let operation = begin.again.unwrap_or(sequence.into());
                let lane = Lane::decode(kind, body).map_err(bad)?.into();
                Role::Begin { operation, parent: begin.parent, lane }
            }
            Author::RunEnd => {
                let end = ToolEnd::decode(body).map_err(bad)?;
                Role::End { begin: end.begin, operation: end.operation() }
            }
            Author::Host | Author::Settler => {
                let is_engines =
                    kind == RecordKind::Observed && Observed::decode(body).map_err(&bad)?.name == ROLLBACK;
                if is_engines {
                    Role::Engines
                } else {
                    Role::Other(Lane::decode(kind, body).map_err(bad)?.into())
                }
            }
        })
    }
}

impl ReplayRecord {
    pub(super) fn is(&self, kind: RecordKind, body: &[u8]) -> bool {
        self.kind == kind && self.body == body
    }

    pub(super) fn objects(&self) -> BTreeSet<ObjectId> {
        let (sequence, kind, time_us) = (self.sequence, self.kind, self.time_us);
        Record { sequence, kind, time_us, body: &self.body }.objects()
    }

    /// Returns whether this is an observation with the name of the produced one. A replay produces
    /// only the name of an observation, and no data.
    pub(super) fn is_observed_as(&self, kind: RecordKind, body: &[u8]) -> bool {
        let name = |body| Observed::decode(body).ok().map(|observed| observed.name);
        self.kind == kind && kind == RecordKind::Observed && name(&self.body) == name(body)
    }
}

/// State of a run with records from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FromLog {
    /// The host started it, and needs its end.
    Awaited,
    /// It is nested, or the host dropped it.
    Within,
}

/// The recorded part of a log over which a host runs.
pub(crate) struct ReplayLog {
    storage: Arc<dyn Storage>,
    places: RecordLocator,
    at: Option<(SequenceNumber, Location)>,
    pub(super) ahead: VecDeque<ReplayRecord>,
    read_through: SequenceNumber,
    /// Sequence number after the last record of this process.
    end: SequenceNumber,
    pub(super) rules: Rules,
    /// Runs with records from the log.
    pub(super) from_log: BTreeMap<SequenceNumber, FromLog>,
    /// Latest run of each operation that has not ended.
    runs: BTreeMap<OperationId, SequenceNumber>,
    /// Ends of the runs that came from the log and have not been requested yet.
    pub(super) ends: BTreeMap<SequenceNumber, SequenceNumber>,
    /// Last record of each lane, for the [`LANES_MAX`] lanes that wrote last.
    pub(super) last: BTreeMap<LaneName, ReplayRecord>,
    /// Whether any record of this process was applied.
    pub(super) begun: bool,
    /// Producers that timed out, and have not written since.
    pub(super) gone: BTreeSet<RecordProducer>,
    found: Vec<Divergence>,
    /// Whether the replay has stopped at a divergence.
    pub(super) stopped: bool,
    /// Whether the log attests that the process closed its session after its last record.
    closed: bool,
    /// Whether the host has returned.
    pub(super) returned: bool,
    /// Number of records that the host produced and that were compared.
    pub(super) compared: u64,
    /// Declaration that the host made for its next record, and that is not recorded here.
    pub(super) declared: Option<Declare>,
    /// Contents of the objects that the host's next record names.
    pub(super) produced_objects: BTreeMap<ObjectId, Vec<u8>>,
}

impl ReplayLog {
    /// Returns the records from `from` to before `end`, of a log with these places. `closed` states
    /// that the process closed its session there.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        places: RecordLocator,
        from: SequenceNumber,
        end: SequenceNumber,
        closed: bool,
        rules: Rules,
    ) -> ReplayLog {
        ReplayLog {
            storage,
            places,
            at: None,
            ahead: VecDeque::new(),
            read_through: from,
            end,
            rules,
            from_log: BTreeMap::new(),
            runs: BTreeMap::new(),
            ends: BTreeMap::new(),
            last: BTreeMap::new(),
            begun: false,
            gone: BTreeSet::new(),
            found: Vec::new(),
            stopped: false,
            closed,
            returned: false,
            compared: 0,
            declared: None,
            produced_objects: BTreeMap::new(),
        }
    }

    /// Reads ahead if few records are left.
    pub(super) fn fill(&mut self) -> Result<()> {
        let few = self.ahead.len() <= AHEAD / 2;
        if !few || self.read_through >= self.end {
            return Ok(());
        }
        let from = self.read_through;
        let through = (from + AHEAD as u64 - 1).min(self.end - 1);
        let ahead = &mut self.ahead;
        self.places.read_on(&self.storage, from, through, &mut self.at, &mut |record| {
            let Record { sequence, kind, time_us, body } = record;
            let role = Role::decode(kind, sequence, body)?;
            ahead.push_back(ReplayRecord { sequence, kind, time_us, body: body.to_vec(), role });
            Ok(())
        })?;
        self.read_through = through + 1;
        Ok(())
    }

    /// Passes the remaining records to `look`, including those of later processes, until it returns
    /// a value, and returns that.
    pub(super) fn look_ahead<T>(
        &self,
        mut look: impl FnMut(&Record<'_>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut next = self.ahead.front().map_or(self.read_through, |head| head.sequence);
        let (mut at, mut found) = (None, None);
        let end = self.places.next_sequence;
        while next < end && found.is_none() {
            let through = (next + AHEAD as u64 - 1).min(end - 1);
            self.places.read_on(&self.storage, next, through, &mut at, &mut |record| {
                if found.is_none() {
                    found = look(&record)?;
                }
                Ok(())
            })?;
            next = through + 1;
        }
        Ok(found)
    }

    /// Returns the next record and its producer; `None` after the last.
    pub(super) fn head(&mut self) -> Result<Option<(&ReplayRecord, RecordProducer)>> {
        self.fill()?;
        let Some(head) = self.ahead.front() else { return Ok(None) };
        let whose = self.find_producer(head);
        Ok(Some((head, whose)))
    }

    /// Returns whether the process closed its session after its last record, so that another record
    /// is extra. A log that ends within a call ends with its process, even if its last record was
    /// synced.
    pub(super) fn is_closed_behind(&self) -> bool {
        self.closed && self.runs.is_empty()
    }

    /// Returns the time of the next record if it is a settlement or the process starts there.
    pub(super) fn judging_us(&self) -> Option<i64> {
        let head = self.ahead.front().filter(|head| !self.begun || head.kind == RecordKind::Settle);
        head.map(|head| head.time_us)
    }

    pub(super) fn find_producer(&self, record: &ReplayRecord) -> RecordProducer {
        let (within, lane) = match &record.role {
            Role::Engines => return RecordProducer::Engine,
            Role::End { begin, .. } if self.from_log.contains_key(begin) => return RecordProducer::Engine,
            Role::End { begin, .. } => return RecordProducer::End(*begin),
            // A record that was read ahead may be within a call that has not started yet.
            Role::Begin { parent, lane, .. } => (parent.map(|parent| self.run_of(parent)), lane),
            Role::Other(lane) => (lane.within, lane),
        };
        match within {
            Some(run) if self.from_log.contains_key(&run) => RecordProducer::Engine,
            within => RecordProducer::Lane(LaneName { within, name: lane.name.clone() }),
        }
    }

    /// Returns whether this process has started an operation and not ended it.
    pub(super) fn is_running(&self, operation: OperationId) -> bool {
        self.runs.contains_key(&operation)
    }

    /// Returns the latest run of an operation, or its first if that has not started yet.
    fn run_of(&self, operation: OperationId) -> SequenceNumber {
        self.runs.get(&operation).copied().unwrap_or(operation.sequence())
    }

    /// Removes the next record from the queue, to be applied now.
    pub(super) fn take(&mut self, whose: &RecordProducer) -> Option<ReplayRecord> {
        let head = self.ahead.pop_front()?;
        self.begun = true;
        match head.role {
            Role::Begin { operation, .. } => {
                self.runs.insert(operation, head.sequence);
                if *whose == RecordProducer::Engine {
                    self.from_log.insert(head.sequence, FromLog::Within);
                }
            }
            Role::End { begin, operation } => {
                self.runs.remove(&operation);
                if self.from_log.remove(&begin) == Some(FromLog::Awaited) {
                    self.ends.insert(begin, head.sequence);
                }
                self.forget_run(begin);
            }
            Role::Engines | Role::Other(_) => {}
        }
        Some(head)
    }

    /// Stores the last record of a lane. Over the maximum, removes the lane with the oldest record.
    pub(super) fn remember(&mut self, whose: RecordProducer, record: ReplayRecord) {
        let RecordProducer::Lane(lane) = whose else { return };
        self.last.insert(lane, record);
        if self.last.len() > LANES_MAX {
            let oldest = self.last.iter().min_by_key(|(_, record)| record.sequence);
            if let Some(lane) = oldest.map(|(lane, _)| lane.clone()) {
                self.last.remove(&lane);
            }
        }
    }

    /// Removes the last records of the lanes of a run that has ended, and their timeouts.
    fn forget_run(&mut self, begin: SequenceNumber) {
        let of_run = |lane: &LaneName| lane.within == Some(begin);
        self.last.retain(|lane, _| !of_run(lane));
        self.gone.retain(|whose| match whose {
            RecordProducer::Lane(lane) => !of_run(lane),
            RecordProducer::End(of) => *of != begin,
            RecordProducer::Engine => false,
        });
    }

    /// Returns the time at which this lane's handle settles an operation that expired, if the
    /// lane's earlier records only resume calls.
    pub(super) fn expires_us(&self, lane: &LaneName, operation: OperationId) -> Option<i64> {
        let lanes = RecordProducer::Lane(lane.clone());
        for record in self.ahead.iter().filter(|record| self.find_producer(record) == lanes) {
            match record.kind {
                RecordKind::Settle => {
                    let settle = Settle::decode(&record.body).ok()?;
                    if settle.operation == operation && settle.decision == Decision::Failed {
                        return Some(record.time_us);
                    }
                }
                RecordKind::ToolBegin if ToolBegin::decode(&record.body).ok()?.again.is_some() => {}
                _ => return None,
            }
        }
        None
    }

    /// Searches the next records of this lane for the one that the host has produced. Returns the
    /// number of records before it, and the record; `None` if it was not read ahead.
    pub(super) fn equal_behind(
        &self,
        lane: &LaneName,
        produced: &RecordComparison<'_>,
    ) -> Option<(usize, &ReplayRecord)> {
        let lanes = RecordProducer::Lane(lane.clone());
        let mut own =
            self.ahead.iter().filter(|record| self.find_producer(record) == lanes).enumerate().skip(1);
        // A name is weak evidence, so only the observation directly after the next record counts.
        let is_it = |before: usize, record: &ReplayRecord| {
            produced.is_same(record) || before == 1 && record.is_observed_as(produced.kind, produced.produced)
        };
        own.find(|(before, record)| is_it(*before, record))
    }

    /// Returns the next record of a producer, if it was read ahead.
    pub(super) fn next_of(&self, whose: &RecordProducer) -> Option<&ReplayRecord> {
        self.ahead.iter().find(|record| self.find_producer(record) == *whose)
    }

    /// Returns the record after the next one of a lane, if it was read ahead.
    pub(super) fn behind_next(&self, lane: &RecordProducer) -> Option<&ReplayRecord> {
        self.ahead.iter().skip(1).find(|record| self.find_producer(record) == *lane)
    }

    pub(super) fn note(&mut self, divergence: Divergence) {
        if self.found.len() < FOUND_MAX {
            self.found.push(divergence);
        }
        self.stopped |= !self.rules.all;
    }

    /// Returns the error of a replay that cannot continue after its last divergence.
    pub(super) fn divergence_error(&self) -> Error {
        // A replay that stops reports its first divergence; one that continues reports its last to
        // the host.
        let found = if self.rules.all { self.found.last() } else { self.found.first() };
        match found {
            Some(divergence) => Error::Diverged(Box::new(divergence.clone())),
            None => Error::ReplayEnded { position: self.end.saturating_sub(1) },
        }
    }

    /// Removes the divergences, and returns them with the number of compared records.
    pub(super) fn take_found(&mut self) -> (Vec<Divergence>, u64) {
        (std::mem::take(&mut self.found), self.compared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::FileStorage;

    fn recording() -> ReplayLog {
        let rules = Rules {
            all: true,
            patience: Duration::ZERO,
            run_tools: true,
            left_out: Arc::default(),
            checks_objects: false,
        };
        let (storage, start) = (Arc::new(FileStorage::new()), SequenceNumber::MIN);
        ReplayLog::new(storage, RecordLocator::default(), start, start, false, rules)
    }

    fn remember(recording: &mut ReplayLog, sequence: u64, within: Option<u64>, name: Option<String>) {
        let lane = LaneName { within: within.map(Into::into), name };
        let role = Role::Other(lane.clone());
        let (kind, body) = (RecordKind::Dispatch, vec![0; 16]);
        let record = ReplayRecord { sequence: sequence.into(), kind, time_us: 0, body, role };
        recording.remember(RecordProducer::Lane(lane), record);
    }

    /// The last record of each run's lane and of each named lane used to be stored for the whole
    /// replay.
    #[test]
    fn the_last_records_of_lanes_are_let_go_of_with_their_runs_and_beyond_a_bound() {
        let mut recording = recording();
        for begin in 0..10_000 {
            remember(&mut recording, begin, Some(begin), None);
            recording.gone.insert(RecordProducer::End(begin.into()));
            recording.forget_run(begin.into());
        }
        assert!(recording.last.is_empty() && recording.gone.is_empty());
        for sequence in 0..10_000 {
            remember(&mut recording, sequence, None, Some(format!("request {sequence}")));
        }
        assert_eq!(recording.last.len(), LANES_MAX);
        assert!(recording.last.values().all(|record| record.sequence.get() >= 10_000 - LANES_MAX as u64));
    }
}
