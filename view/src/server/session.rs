//! One session that is open for its pages: the facts about its log, and the points from which its
//! slices are folded.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use foldlog::inspect::{CompactedRange, FoldPoint, Follower, LogReader, LogUpdate, ReadOptions, StateReader};
use foldlog::storage::FileStorage;
use foldlog::{Error, OperationId, RecordKind, SequenceNumber, SmolStr};

use super::messages::{Conversations, MessageListHistory};
use super::points::{CachedPoint, Points};
use super::workspaces::CaptureHistory;
use crate::Payloads;
use crate::Result;
use crate::after_damage::RecordsAfterDamage;
use crate::agent_steps::conversations_of;
use crate::documents::timeline::Timeline;
use crate::positions::position_of;
use crate::records::{CHUNK_RECORDS, ColumnLegend, Columns, RecordColumns};
use crate::spend::SpendReader;
use crate::visits::each_record;
use crate::walk::{self, UsageLog};

/// Maximum length of a value that a page receives whole, in bytes.
const PAYLOAD_BYTES: u64 = 1 << 20;

/// A growing log is read again only after this multiple of the time that its last reading took.
const REST: u32 = 3;

/// A log as it was when it was opened.
#[derive(Debug)]
pub(crate) struct OpenedLog {
    pub(crate) reader: LogReader,
    pub(crate) timeline: Timeline,
    /// Ranges of positions at which the slices are unknown.
    pub(crate) unknown: Vec<(SequenceNumber, SequenceNumber)>,
    compacted: Vec<CompactedRange>,
}

impl OpenedLog {
    fn open(dir: &Path, memory_bytes: Option<u64>) -> Result<OpenedLog> {
        let options = ReadOptions { outline: false, memory_bytes };
        let opened = LogReader::open_sound(Arc::new(FileStorage::new()), dir, options);
        let reader = opened.map_err(|error| match dir.exists() {
            true => crate::Error::from(error),
            false => crate::Error::Deleted { path: dir.to_owned() },
        })?;
        let (timeline, compacted) = (Timeline::from_reader(&reader), reader.compacted_ranges());
        Ok(OpenedLog { unknown: walk::unknown(&compacted), reader, timeline, compacted })
    }

    pub(crate) fn is_known(&self, position: SequenceNumber) -> bool {
        !self.unknown.iter().any(|(first, last)| (*first..=*last).contains(&position))
    }
}

/// Opens the log with the conversations of agents, if a session has one. If it cannot be read, the
/// session is shown without it.
fn open_agents(session: &Path, memory_bytes: Option<u64>) -> Option<(LogReader, Conversations)> {
    let log = OpenedLog::open(&conversations_of(session)?, memory_bytes).ok()?;
    Some((log.reader, Conversations::default()))
}

/// Facts about all records through the last one.
#[derive(Debug, Default)]
pub(crate) struct RecordIndex {
    pub(crate) failures: Vec<SequenceNumber>,
    /// Records of kind `rollback`.
    pub(crate) rollbacks: Vec<SequenceNumber>,
    pub(crate) kinds: BTreeSet<String>,
    pub(crate) tools: BTreeSet<String>,
    pub(crate) outcomes: BTreeSet<String>,
    /// Spending of evaluations, record by record.
    pub(crate) usage: UsageLog,
    nesting: BTreeMap<OperationId, u32>,
    /// The last record: its number, its time and its contents' digest.
    mark: Option<(SequenceNumber, i64, u64)>,
}

/// The messages of a conversation, and the position in its log at which they are shown.
pub(crate) struct ShownConversation<'a> {
    pub(crate) messages: &'a MessageListHistory,
    pub(crate) position: SequenceNumber,
    /// Whether the log is that of the agents, so that its records are not those of the session.
    pub(crate) is_agents: bool,
}

/// An open session.
#[derive(Debug)]
pub(crate) struct Session {
    dir: PathBuf,
    memory_bytes: Option<u64>,
    pub(crate) log: Arc<OpenedLog>,
    pub(crate) known: RecordIndex,
    /// Increases whenever facts about an earlier record change.
    pub(crate) epoch: u64,
    points: Points,
    conversations: Conversations,
    /// The conversations of the agents whose steps the session contains, with their log.
    agents: Option<(LogReader, Conversations)>,
    /// Captures of workspaces, after their first request.
    captures: Option<CaptureHistory>,
    /// Records after damage, after their first request.
    beyond: Option<Arc<RecordsAfterDamage>>,
    /// Follows the log from its end on; `None` if the end is damaged.
    follower: Option<Follower>,
    /// Whether the follower has found records that `log` lacks.
    has_grown: bool,
    /// Time from which the log may be read again.
    rest_until: Instant,
}

impl Session {
    /// Opens the session in a directory.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Deleted`] if it was deleted, or the engine's error if no part of it is
    /// intact or it exceeds the memory limit.
    pub(crate) fn open(dir: &Path, memory_bytes: Option<u64>) -> Result<Session> {
        let begun = Instant::now();
        let log = Arc::new(OpenedLog::open(dir, memory_bytes)?);
        let mut session = Session {
            dir: dir.to_owned(),
            memory_bytes,
            log,
            known: RecordIndex::default(),
            epoch: 0,
            points: Points::new(),
            conversations: Conversations::default(),
            agents: open_agents(dir, memory_bytes),
            captures: None,
            beyond: None,
            follower: None,
            has_grown: false,
            rest_until: begun,
        };
        session.follow();
        session.gather()?;
        session.rest_until = Instant::now() + begun.elapsed() * REST;
        Ok(session)
    }

    /// Returns the values that a page receives whole.
    pub(crate) fn payloads() -> Payloads {
        Payloads::up_to(Some(PAYLOAD_BYTES))
    }

    /// Checks that the log has a position.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Usage`] if the log does not have it.
    pub(crate) fn position(&self, asked: SequenceNumber) -> Result<SequenceNumber> {
        position_of(self.log.reader.last_position(), Some(asked))
    }

    /// Calls `answer`. If a compaction has replaced the log's files meanwhile, reads the log again
    /// and repeats the call once.
    ///
    /// # Errors
    ///
    /// Those of `answer`; [`crate::Error::Deleted`] if the session was deleted.
    pub(crate) fn answer<T>(&mut self, answer: impl Fn(&mut Session) -> Result<T>) -> Result<T> {
        let answered = match answer(self) {
            Err(crate::Error::Engine(Error::CompactedMeanwhile { .. })) => {
                self.refresh(true)?;
                answer(self)
            }
            answered => answered,
        };
        answered.map_err(|failure| self.map_deleted(failure))
    }

    fn map_deleted(&self, failure: crate::Error) -> crate::Error {
        match failure {
            // Any error of a deleted session has the same cause.
            crate::Error::Engine(_) if !self.dir.exists() => crate::Error::Deleted { path: self.dir.clone() },
            failure => failure,
        }
    }

    /// Follows the log from its end on.
    fn follow(&mut self) {
        let reader = &self.log.reader;
        let is_sound = reader.sound_end().is_none();
        self.follower =
            is_sound.then(|| Follower::open(&self.dir, reader.last_position() + 1).ok()).flatten();
        self.has_grown = false;
    }

    /// Checks whether the log has grown. If so, reads it again, unless that happened a moment ago.
    /// Returns whether the log can grow at all.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Deleted`] if the session was deleted, or the engine's error if it cannot be
    /// read again.
    pub(crate) fn look(&mut self) -> Result<bool> {
        if !self.dir.exists() {
            return Err(crate::Error::Deleted { path: self.dir.clone() });
        }
        let Some(follower) = &mut self.follower else { return Ok(false) };
        let mut grown = self.has_grown;
        let polled = follower.poll(|met| {
            grown |= matches!(met, LogUpdate::Record { .. } | LogUpdate::Replaced { .. });
            Ok(())
        });
        // Only a reader reports damage, since it knows which part is intact.
        self.has_grown = grown || polled.is_err();
        if self.has_grown && Instant::now() >= self.rest_until {
            self.refresh(false)?;
        }
        Ok(true)
    }

    /// Reads the log again. Facts are reused as far as they are still valid, but never if `anew`.
    fn refresh(&mut self, anew: bool) -> Result<()> {
        let begun = Instant::now();
        let log = OpenedLog::open(&self.dir, self.memory_bytes)?;
        let is_same = !anew && log.compacted == self.log.compacted && self.holds_mark(&log.reader)?;
        let before = self.log.reader.records_len();
        let goes_back = log.reader.rollbacks().any(|(at, _)| at.get() >= before);
        if !is_same {
            (self.known, self.points) = (RecordIndex::default(), Points::new());
        }
        if !is_same || goes_back {
            self.epoch += 1;
        }
        self.log = Arc::new(log);
        self.conversations = Conversations::default();
        self.agents = open_agents(&self.dir, self.memory_bytes);
        self.captures = None;
        self.beyond = None;
        self.follow();
        self.gather()?;
        self.rest_until = Instant::now() + begun.elapsed() * REST;
        Ok(())
    }

    /// Returns whether the log contains the last indexed record.
    fn holds_mark(&self, reader: &LogReader) -> Result<bool> {
        let Some((sequence, ..)) = self.known.mark else { return Ok(false) };
        if sequence > reader.last_position() {
            return Ok(false);
        }
        Ok(mark_of(reader, sequence)? == self.known.mark)
    }

    /// Reads the records after the last point, and indexes them.
    fn gather(&mut self) -> Result<()> {
        let log = Arc::clone(&self.log);
        let reader = &log.reader;
        self.points.retain_reaching(reader);
        let last = reader.last_position();
        let from = self
            .points
            .last()
            .and_then(|kept| kept.point.position())
            .map_or(SequenceNumber::MIN, |at| at + 1);
        for list in [&mut self.known.failures, &mut self.known.rollbacks] {
            list.truncate(list.partition_point(|sequence| *sequence < from));
        }
        let begun = self.points.last().map(|kept| kept.begun.clone()).unwrap_or_default();
        let nesting = std::mem::take(&mut self.known.nesting);
        let mut columns = Columns::going_on(reader, &log.timeline, from, begun, nesting);
        let mut rollbacks = Vec::new();
        let (mut usage, mut sources) = (std::mem::take(&mut self.known.usage), SpendReader::new(reader));
        let taken = self.known.mark.map(|(sequence, ..)| sequence);
        let mut point = self.points.last().map(|kept| kept.point.clone());
        while point.as_ref().and_then(|point| point.position()) < Some(last) {
            let next = self.points.next_position();
            let mut chunks = Vec::new();
            let folded = reader.fold_on(point.as_ref(), next.min(last), |record, _| {
                if record.kind == RecordKind::Rollback {
                    rollbacks.push(record.sequence);
                }
                // Records after the last point are read again; their spending must not count twice.
                if Some(record.sequence) > taken {
                    usage.take(record, &mut sources);
                }
                chunks.extend(columns.push(record, Vec::new(), true));
                Ok(())
            })?;
            chunks.iter().for_each(|chunk| self.known.note(chunk));
            if next <= last {
                self.points
                    .keep(CachedPoint { point: folded.clone(), begun: columns.running_operations().clone() });
            }
            point = Some(folded);
        }
        let (chunk, gathered, nesting) = columns.into_parts();
        self.known.note(&chunk);
        self.known.nesting = nesting;
        self.known.kinds.extend(gathered.kinds);
        self.known.failures.extend(gathered.failures);
        self.known.rollbacks.extend(rollbacks);
        self.known.usage = usage;
        self.known.mark = mark_of(reader, last)?;
        Ok(())
    }

    /// Returns the slices at a position.
    ///
    /// # Errors
    ///
    /// The engine's error if the log cannot be read, exceeds the memory limit, or no longer
    /// contains the slices of this position.
    pub(crate) fn state(&mut self, position: SequenceNumber) -> Result<StateReader> {
        let point = self.points.at(&self.log.reader, position)?;
        Ok(self.log.reader.state_reader_of(&point)?)
    }

    /// Returns the evaluations with a conversation at a position: those of the session, and all of
    /// the agents whose steps it contains.
    pub(crate) fn evaluations_at(&self, position: SequenceNumber) -> Vec<SmolStr> {
        let mut all = self.log.reader.evaluations_at(position);
        let agents = self.agents.iter().flat_map(|(reader, _)| reader.evaluations_at(reader.last_position()));
        all.extend(agents);
        all
    }

    /// Returns a conversation, and the position in its log; `None` if the evaluation has none. The
    /// conversation of an agent is another log's, so it is shown as a whole, at every position.
    ///
    /// # Errors
    ///
    /// The engine's error if the log cannot be read, or the messages exceed the memory limit;
    /// [`crate::Error::File`] if the system provides no temporary files.
    pub(crate) fn conversation(
        &mut self,
        evaluation: &str,
        position: SequenceNumber,
    ) -> Result<Option<ShownConversation<'_>>> {
        let (reader, conversations, position, is_agents) = match &mut self.agents {
            Some((reader, conversations))
                if !reader.evaluations_at(reader.last_position()).iter().all(|one| one != evaluation) =>
            {
                let last = reader.last_position();
                (&*reader, conversations, last, true)
            }
            _ => (&self.log.reader, &mut self.conversations, position, false),
        };
        let messages = conversations.get(reader, evaluation, Session::payloads())?;
        Ok(messages.map(|messages| ShownConversation { messages, position, is_agents }))
    }

    /// Returns the captures of the session's workspaces.
    pub(crate) fn captures(&mut self) -> Result<&mut CaptureHistory> {
        let captures = match self.captures.take() {
            Some(captures) => captures,
            None => CaptureHistory::read(&self.log.reader)?,
        };
        Ok(self.captures.insert(captures))
    }

    /// Returns the records after damage; none if the log has no damage.
    pub(crate) fn records_after_damage(&mut self) -> Result<Arc<RecordsAfterDamage>> {
        if let Some(beyond) = &self.beyond {
            return Ok(Arc::clone(beyond));
        }
        let read = Arc::new(RecordsAfterDamage::read(&self.log.reader, &self.log.timeline)?);
        Ok(Arc::clone(self.beyond.insert(read)))
    }

    /// Returns the columns of a chunk of records, and the names to which they refer.
    pub(crate) fn chunk(&mut self, number: u64) -> Result<(RecordColumns, ColumnLegend)> {
        let log = Arc::clone(&self.log);
        let reader = &log.reader;
        let from = SequenceNumber::new(number.saturating_mul(CHUNK_RECORDS as u64));
        let last = self.position(from)?.saturating_add(CHUNK_RECORDS as u64 - 1).min(reader.last_position());
        // Changes of a record are relative to the last earlier position at which the slices are
        // known.
        let known = from.checked_sub(1).and_then(|before| {
            let within = log.unknown.iter().find(|(first, last)| (*first..=*last).contains(&before));
            within.map_or(Some(before), |(first, _)| first.checked_sub(1))
        });
        let kept = self.points.even_through(known).filter(|kept| kept.point.reaches(reader, last)).cloned();
        let begin =
            kept.as_ref().and_then(|kept| kept.point.position()).map_or(SequenceNumber::MIN, |at| at + 1);
        let begun = kept.as_ref().map(|kept| kept.begun.clone()).unwrap_or_default();
        let nesting = std::mem::take(&mut self.known.nesting);
        let mut columns = Columns::going_on(reader, &log.timeline, begin, begun, nesting);
        let listed = list(&log, kept.map(|kept| kept.point), known, from, last, &mut columns);
        let (rest, gathered, nesting) = columns.into_parts();
        self.known.nesting = nesting;
        Ok((listed?.unwrap_or(rest), gathered))
    }
}

/// Folds from a point to the position `known`, and lists the records from `from` through `last`
/// after it. Returns the chunk if it is full.
fn list(
    log: &OpenedLog,
    mut point: Option<FoldPoint>,
    known: Option<SequenceNumber>,
    from: SequenceNumber,
    last: SequenceNumber,
    columns: &mut Columns<'_>,
) -> Result<Option<RecordColumns>> {
    let reader = &log.reader;
    if let Some(known) =
        known.filter(|known| point.as_ref().and_then(|point| point.position()) != Some(*known))
    {
        let passed = reader.fold_on(point.as_ref(), known, |record, _| {
            columns.push(record, Vec::new(), false);
            Ok(())
        });
        point = Some(passed?);
    }
    let mut state = point.as_ref().map(|point| reader.state_reader_of(point)).transpose()?;
    let mut full = None;
    reader.fold_on(point.as_ref(), last, |record, now| {
        let is_listed = record.sequence >= from;
        let mut changed = Vec::new();
        if is_listed && log.is_known(record.sequence) {
            let now = now();
            changed = now.changes_since(state.as_ref()).iter().map(|changes| changes.slice).collect();
            state = Some(now);
        }
        full = columns.push(record, changed, is_listed).or(full.take());
        Ok(())
    })?;
    Ok(full)
}

impl RecordIndex {
    fn note(&mut self, chunk: &RecordColumns) {
        let (tools, outcomes) = chunk.tools_and_outcomes();
        self.tools.extend(tools.into_iter().map(str::to_owned));
        self.outcomes.extend(outcomes.into_iter().map(str::to_owned));
    }
}

/// Returns a mark that distinguishes a record from another one with the same number.
fn mark_of(reader: &LogReader, sequence: SequenceNumber) -> Result<Option<(SequenceNumber, i64, u64)>> {
    let mut mark = None;
    each_record(reader, sequence..=sequence, |record| {
        let mut hasher = DefaultHasher::new();
        (record.kind.to_string(), record.body).hash(&mut hasher);
        mark = Some((record.sequence, record.time_us, hasher.finish()));
        Ok::<_, crate::Error>(())
    })?;
    Ok(mark)
}
