//! The timeline's columns: one line for each record, in chunks.

use std::collections::BTreeMap;
#[cfg(feature = "server")]
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use foldlog::inspect::{LogReader, record_title};
use foldlog::{OperationId, Outcome, Record, RecordKind, SequenceNumber};
use foldlog_codec::body::{Lane, Request, ToolBegin, ToolEnd};
use foldlog_timeline::{Edge, StepChanged};
use serde::Serialize;

use crate::RecordRange;
use crate::agent_steps::{self, StepReader};
use crate::documents::timeline::Timeline;
use crate::numbered::Numbered;

pub(crate) const CHUNK_RECORDS: usize = 1024;

/// Number of stretches into which the density strip divides a session.
const STRETCHES: u64 = 600;

/// Columns of consecutive records. Numbers in `name`, `tool` and `outcome` are indices into
/// `texts`, counted from 1; 0 means none. Numbers in `slices` are indices into `sets`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RecordColumns {
    texts: Numbered<String>,
    sets: Numbered<Vec<u32>>,
    kind: Vec<u32>,
    name: Vec<u32>,
    /// Microseconds since 1970-01-01 UTC.
    time: Vec<i64>,
    bytes: Vec<u64>,
    path: Vec<u32>,
    /// Number of rollbacks that return from after the record to one before it.
    depth: Vec<u32>,
    /// Operation to which the record belongs; -1 for none.
    operation: Vec<i64>,
    /// Number of operations around that one.
    nesting: Vec<u32>,
    tool: Vec<u32>,
    outcome: Vec<u32>,
    slices: Vec<u32>,
}

impl RecordColumns {
    pub(crate) fn len(&self) -> usize {
        self.kind.len()
    }

    fn text(&mut self, text: String) -> u32 {
        if text.is_empty() { 0 } else { self.texts.number(text) + 1 }
    }

    /// Returns the ids of the slices that the records changed.
    #[cfg(feature = "server")]
    pub(crate) fn slices(&self) -> BTreeSet<u32> {
        self.sets.values.iter().flatten().copied().collect()
    }

    /// Returns the tools and the outcomes that the records name.
    #[cfg(feature = "server")]
    pub(crate) fn tools_and_outcomes(&self) -> (BTreeSet<&str>, BTreeSet<&str>) {
        let named = |column: &[u32]| column.iter().filter_map(|place| self.text_at(*place)).collect();
        (named(&self.tool), named(&self.outcome))
    }

    #[cfg(feature = "server")]
    fn text_at(&self, place: u32) -> Option<&str> {
        self.texts.values.get(place.checked_sub(1)? as usize).map(String::as_str)
    }

    /// Returns the indices of the records that pass the filter. `kinds` are the names of the kinds
    /// by their numbers.
    #[cfg(feature = "server")]
    pub(crate) fn allowed(&self, facets: &RecordFilter, kinds: &[String]) -> Vec<usize> {
        let is_in = |wanted: &[String], text: Option<&str>| {
            wanted.is_empty() || text.is_some_and(|text| wanted.iter().any(|one| one == text))
        };
        let of = |column: &[u32], at: usize| column.get(at).and_then(|place| self.text_at(*place));
        let kind =
            |at: usize| self.kind.get(at).and_then(|kind| kinds.get(*kind as usize)).map(String::as_str);
        let changes = |at: usize| {
            let set = self.slices.get(at).and_then(|place| self.sets.values.get(*place as usize));
            facets.slices.is_empty() || set.is_some_and(|set| set.iter().any(|id| facets.slices.contains(id)))
        };
        (0..self.len())
            .filter(|at| {
                is_in(&facets.kinds, kind(*at))
                    && is_in(&facets.tools, of(&self.tool, *at))
                    && is_in(&facets.outcomes, of(&self.outcome, *at))
                    && changes(*at)
            })
            .collect()
    }
}

/// Filters records. An empty list allows everything.
#[cfg(feature = "server")]
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordFilter {
    pub(crate) kinds: Vec<String>,
    /// Ids of slices.
    pub(crate) slices: Vec<u32>,
    pub(crate) tools: Vec<String>,
    pub(crate) outcomes: Vec<String>,
}

/// Counts the records and events in each stretch of a session.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Density {
    /// Number of records of the session.
    records: u64,
    live: Vec<u32>,
    abandoned: Vec<u32>,
    failed: Vec<u32>,
    rollbacks: Vec<u32>,
}

impl Density {
    /// Counts the stretches of a range of records. `live` are the ranges of live records.
    pub(crate) fn new(
        range: &RecordRange,
        live: &[RangeInclusive<SequenceNumber>],
        failed: &[SequenceNumber],
        rollbacks: &[SequenceNumber],
    ) -> Density {
        let (start, records) = (range.from.get(), range.len());
        let stretches = records.min(STRETCHES);
        let at = |sequence: SequenceNumber| {
            (sequence.get().saturating_sub(start) * stretches / records.max(1)) as usize
        };
        let counted = |numbers: &[SequenceNumber]| {
            let mut counts = vec![0; stretches as usize];
            numbers.iter().for_each(|one| counts.get_mut(at(*one)).into_iter().for_each(|count| *count += 1));
            counts
        };
        // The first record of a stretch is the first one that `at` maps to the stretch's number.
        let first = |stretch: u64| start + (stretch * records).div_ceil(stretches.max(1));
        let within = |from: u64, end: u64| -> u64 {
            let overlap = |range: &RangeInclusive<SequenceNumber>| {
                (range.end().get() + 1).min(end).saturating_sub(range.start().get().max(from))
            };
            let begin = live.partition_point(|range| range.end().get() < from);
            let those = live.iter().skip(begin).take_while(|range| range.start().get() < end);
            those.map(overlap).sum()
        };
        let spans = || (0..stretches).map(|stretch| (first(stretch), first(stretch + 1)));
        Density {
            records,
            live: spans().map(|(from, end)| within(from, end) as u32).collect(),
            abandoned: spans().map(|(from, end)| (end - from - within(from, end)) as u32).collect(),
            failed: counted(failed),
            rollbacks: counted(rollbacks),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RunningOperation {
    operation: OperationId,
    tool: String,
    nesting: u32,
    /// Number of the step, if it is one of a timeline.
    step: Option<u64>,
}

/// Creates the columns of records that arrive in the order of the log.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    timeline: &'a Timeline,
    chunk: RecordColumns,
    kinds: Numbered<String>,
    paths: Numbered<&'static str>,
    /// Runs by their start records.
    begun: BTreeMap<SequenceNumber, RunningOperation>,
    nesting: BTreeMap<OperationId, u32>,
    /// Rollback records after the next record that return to a position before it.
    around: Vec<SequenceNumber>,
    /// Rollbacks whose target is still ahead: target and record, the first target last.
    ahead: Vec<(SequenceNumber, SequenceNumber)>,
    failures: Vec<SequenceNumber>,
    steps: StepReader<'a>,
    payloads: bool,
}

impl<'a> Columns<'a> {
    /// Starts at the first record. Without `payloads`, titles contain no values.
    pub(crate) fn new(reader: &'a LogReader, timeline: &'a Timeline, payloads: bool) -> Columns<'a> {
        let mut ahead: Vec<_> = reader.rollbacks().map(|(at, to)| (to, at)).collect();
        ahead.sort_by(|one, other| other.cmp(one));
        Columns {
            timeline,
            chunk: RecordColumns::default(),
            kinds: Numbered::default(),
            paths: Numbered::default(),
            begun: BTreeMap::new(),
            nesting: BTreeMap::new(),
            around: Vec::new(),
            ahead,
            failures: Vec::new(),
            steps: StepReader::new(reader),
            payloads,
        }
    }

    /// Continues at the record `from` in a log. `begun` are the operations that were
    /// [running](Columns::running_operations) before it; `nesting` is the value that
    /// [`into_parts`](Columns::into_parts) returned.
    #[cfg(feature = "server")]
    pub(crate) fn going_on(
        reader: &'a LogReader,
        timeline: &'a Timeline,
        from: SequenceNumber,
        begun: BTreeMap<SequenceNumber, RunningOperation>,
        nesting: BTreeMap<OperationId, u32>,
    ) -> Columns<'a> {
        let mut columns = Columns::new(reader, timeline, true);
        columns.around =
            reader.rollbacks().filter(|(at, to)| *to < from && *at >= from).map(|(at, _)| at).collect();
        columns.ahead.retain(|(to, _)| *to >= from);
        (columns.begun, columns.nesting) = (begun, nesting);
        columns
    }

    /// Returns the runs that have started and not ended, by their start records.
    #[cfg(feature = "server")]
    pub(crate) fn running_operations(&self) -> &BTreeMap<SequenceNumber, RunningOperation> {
        &self.begun
    }

    /// Returns the last chunk, the legend, and the nesting of each operation.
    #[cfg(feature = "server")]
    pub(crate) fn into_parts(mut self) -> (RecordColumns, ColumnLegend, BTreeMap<OperationId, u32>) {
        let nesting = std::mem::take(&mut self.nesting);
        let (chunk, gathered) = self.finish();
        (chunk, gathered, nesting)
    }

    /// Adds a record, with the ids of the slices that it changed. Returns a chunk once it is full.
    pub(crate) fn push(
        &mut self,
        record: &Record<'_>,
        slices: Vec<u32>,
        is_listed: bool,
    ) -> Option<RecordColumns> {
        let sequence = record.sequence;
        self.around.retain(|end| *end > sequence);
        let depth = self.around.len() as u32;
        while let Some((to, at)) = self.ahead.last().copied().filter(|(to, _)| *to <= sequence) {
            self.ahead.pop();
            if to < at {
                self.around.push(at);
            }
        }
        let step = self.steps.read(record);
        let (begun, outcome) = match &step {
            Some(changed) => self.step(record.sequence, changed),
            None => self.belongs(record),
        };
        if !is_listed {
            return None;
        }
        let path = self.timeline.standing.path_of(record);
        if outcome == Outcome::Failed.name() {
            self.failures.push(sequence);
        }
        let kind = self.kinds.number(record.kind.to_string());
        let path = self.paths.number(path);
        let name = match &step {
            Some(changed) => agent_steps::record_title(changed, self.payloads),
            None => record_title(record, &self.timeline.names),
        };
        let chunk = &mut self.chunk;
        chunk.kind.push(kind);
        chunk.path.push(path);
        let name = chunk.text(name);
        chunk.name.push(name);
        chunk.time.push(record.time_us);
        chunk.bytes.push(record.body.len() as u64);
        chunk.depth.push(depth);
        chunk.operation.push(begun.as_ref().map_or(-1, |begun| begun.operation.get() as i64));
        chunk.nesting.push(begun.as_ref().map_or(0, |begun| begun.nesting));
        let tool = chunk.text(begun.map(|begun| begun.tool).unwrap_or_default());
        chunk.tool.push(tool);
        let outcome = chunk.text(outcome);
        chunk.outcome.push(outcome);
        let set = chunk.sets.number(slices);
        chunk.slices.push(set);
        (chunk.len() >= CHUNK_RECORDS).then(|| std::mem::take(chunk))
    }

    /// Returns the same of a record with a step: the operation is its beginning.
    fn step(
        &mut self,
        sequence: SequenceNumber,
        changed: &StepChanged,
    ) -> (Option<RunningOperation>, String) {
        let number = Some(changed.step.number);
        let edge = changed.moment.as_ref().map(|moment| moment.edge);
        if edge == Some(Edge::Opened) {
            let tool = agent_steps::tool(&changed.step).to_owned();
            let begun = RunningOperation { operation: sequence.into(), tool, nesting: 0, step: number };
            self.begun.insert(sequence, begun.clone());
            return (Some(begun), String::new());
        }
        let begin = self.begun.iter().find(|(_, begun)| begun.step == number).map(|(begin, _)| *begin);
        let Some(begin) = begin else { return (None, String::new()) };
        if edge.is_none() {
            return (self.begun.get(&begin).cloned(), String::new());
        }
        (self.begun.remove(&begin), agent_steps::outcome_name(changed.step.outcome).to_owned())
    }

    /// Returns the operation to which a record belongs, and the outcome that the record states.
    fn belongs(&mut self, record: &Record<'_>) -> (Option<RunningOperation>, String) {
        let sequence = record.sequence;
        match record.kind {
            RecordKind::ToolBegin => {
                let Ok(begin) = ToolBegin::decode(record.body) else { return (None, String::new()) };
                let operation = begin.again.unwrap_or(sequence.into());
                let around = begin.parent.and_then(|parent| self.nesting.get(&parent));
                let nesting = around.map_or(0, |around| around + 1);
                let tool = begin.tool.into_owned();
                let begun = RunningOperation { operation, tool, nesting, step: None };
                self.nesting.insert(operation, nesting);
                self.begun.insert(sequence, begun.clone());
                (Some(begun), String::new())
            }
            RecordKind::ToolEnd => {
                let Ok(end) = ToolEnd::decode(record.body) else { return (None, String::new()) };
                (self.begun.remove(&end.begin), end.outcome.name().to_owned())
            }
            kind => {
                let within = Lane::decode(kind, record.body).ok().and_then(|lane| lane.within);
                let begun = within.and_then(|within| self.begun.get(&within)).cloned();
                let failed = kind == RecordKind::Request
                    && Request::decode(record.body).is_ok_and(|request| request.failure.is_some());
                (begun, if failed { Outcome::Failed.name().to_owned() } else { String::new() })
            }
        }
    }

    /// Returns the last chunk and the legend of all records.
    pub(crate) fn finish(self) -> (RecordColumns, ColumnLegend) {
        let Columns { chunk, kinds, paths, failures, .. } = self;
        (chunk, ColumnLegend { kinds: kinds.values, paths: paths.values, failures })
    }
}

/// Texts to which the columns refer, and facts about all records together.
#[derive(Debug, Serialize)]
pub(crate) struct ColumnLegend {
    /// Names of the kinds, by their numbers in the columns.
    pub(crate) kinds: Vec<String>,
    /// Path words, by their numbers in the columns.
    pub(crate) paths: Vec<&'static str>,
    /// Records that report a failure.
    pub(crate) failures: Vec<SequenceNumber>,
}
