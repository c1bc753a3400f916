//! Runs a host again over the log of its earlier run, and reports the first record that differs.
//!
//! The host gets a [`Session`] like the live one. Its inputs come from the log: the time, random
//! numbers and [observations](crate::SessionInputs::observe), the answers of providers, and the results of
//! tools. Each record that the host writes is compared with the recorded one. The log is not
//! changed.
//!
//! # Processes
//!
//! A log contains the records of one or more *processes*: each opening of the session for writing
//! starts one. The replay calls the host once for each, under the conditions of that time. After a
//! crash, the host finds calls that were left open, recovers them, and resumes its conversations.
//! At the end of a process's records, the next write fails with [`Error::ReplayEnded`], as if the
//! process were killed there. The host returns, and is called for the next process.
//!
//! A process that only settled calls, or only ended calls of an earlier process, such as the
//! binary's `settle` and `recover`, is taken from the log. If a process wrote other records without
//! the host, such as the binary's `task restore`, the replay diverges there, since the host does
//! not produce them.
//!
//! The host's return value is ignored. If the host itself fails, for example because a directory
//! does not exist, the report shows only the missing records. To find the reason, print the host's
//! return value.
//!
//! If the session was closed after the last record of the log, by the process that wrote that
//! record, a further record counts as extra. The log's last frame records such a close. Otherwise
//! the process was killed, or the disk was too full for that frame. The host then gets
//! [`Error::ReplayEnded`], since its further records are unknown.
//!
//! # Requirements for a host
//!
//! A host is deterministic if its behavior follows only from its state and from inputs through its
//! session. Only the values of [`Session::inputs`] are recorded inputs.
//!
//! Threads whose records may interleave need separate [lanes](Session::lane): records of one lane
//! have one order, and across lanes the order of the log applies. A thread must not read records of
//! other lanes, unless it learns of them through a recorded input or has joined their threads. A
//! loop that waits for a record of another lane's thread never ends if that thread has ended at a
//! divergence or at the end of the records.
//!
//! The host joins its threads before it returns. Effects outside its session are repeated: on other
//! sessions, forks, files.
//!
//! A replay runs the host with the [`StoreOptions`] of the live run, if its size limit for payloads
//! is not the default.
//!
//! # Effects without a record
//!
//! Refused calls and reads leave no record. A replay derives them from its state:
//!
//! | live | in a replay |
//! |---|---|
//! | a write was refused because of the state, or of its handle's call | it is refused as well, without waiting for a turn, unless its lane's next record looks like it: then it waits for that record's turn, or until the [patience](Replay::patience) is over |
//! | a write was refused because of records of a different lane | it may be refused or not: a thread must not read the records of other lanes |
//! | a recovery or a call found that an operation had expired, or had not | the same, from the record that settles it |
//! | [`pending_questions`](crate::SessionCalls::pending_questions) was called | a question counts as expired by the time of the process's last record; by that of the next one if that settles something, or before the first. Expiry between two records is unknown |
//! | an observation was refused, since it could not be read again | unknown: it counts as an extra record |
//! | a call was refused before its start record, since a resource could not be captured or was [left dirty](crate::Error::ResourceDirty) | unknown: the replay captures nothing and starts the call, which counts as an extra record |
//! | a subscriber was notified of a record | it is notified before the call returns that led to the record; with several threads, the thread is undefined |
//!
//! # Resources
//!
//! The resources themselves are not touched: they are neither leased nor captured nor restored.
//! [`ExecutionState::resources`](crate::ExecutionState::resources) and the context of a tool show
//! [copies](crate::tools::resources::Snapshotable::scratch) of them, made from their recorded
//! captures. A workspace is a directory among the system's temporary files, which is removed with
//! its last handle. It lacks files that captures omit, such as `.git`.
//!
//! Between two captures a copy does not show changes of the resource by the host. Changes that a
//! host makes to a copy are lost with the next tool. A resource without recorded captures, such as
//! files in memory, is shown as the host made it, and so is a resource that no failed tool rolls
//! back, such as a budget. Reads that bypass the registry return present data. The captures of a
//! [composite snapshot](crate::tools::CompositeSnapshot) are in no record, so they are empty in a
//! replay, and its id differs.
//!
//! A replay needs only the session's directory, which [`Session::dir`] returns. A host that opens
//! its workspace there, with the captures in it, may pass any existing directory for the workspace.
//! It may be empty, and is not read. In a fork only the captures of its records count, not the
//! captures of its parent. The copy in the replay has a different path: a host that records
//! `HostFilesystem::root` diverges, and a link in the workspace to the workspace's path is broken.
//!
//! # After a divergence
//!
//! A replay of [all](Replay::all) divergences continues from the recorded state. An extra record is
//! not applied. If the host cannot continue without it, as with the start of a call or an
//! observation, the host gets [`Error::Diverged`]. If it stops there, its later records are listed
//! as missing.
//!
//! If a write moved to a different lane, its lane is known only after the
//! [patience](Replay::patience): a second thread might still write the record of the first lane. A
//! lane that timed out gets no second wait until it writes.
//!
//! A missing or damaged object of the log is no divergence. The replay fails with
//! [`Error::Object`], even if only the host read the object.
//!
//! # Memory
//!
//! Independent of the length of the log, a replay stores the state, as a session does, some records
//! that it has read ahead, and the last record of each of the 64 lanes that wrote last. With more
//! lanes, a record that a lane produces twice may count as changed instead of extra. A reader that
//! was opened with [`ReadOptions::outline`](crate::inspect::ReadOptions::outline) stores no names
//! of items in addition.
//!
//! # Start and end of a replay
//!
//! A replay starts after the session's first record that is not shared with a parent, or at a
//! position at which no call is open. The host must not have had state in variables there that it
//! cannot restore from its slices; a position after which the host was restarted is suitable. A
//! replay ends at the log's end as it was when the reader was opened, or earlier. So a log that is
//! being written can be replayed. With [`go_live`](Replay::go_live) the host continues in a fork at
//! that end, as it would after a crash.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{Outcome, Resumed, ToolEnd};
use foldlog_codec::{RecordKind, SequenceNumber};
use serde::Serialize;

use crate::divergence::{Divergence, LeaveOut};
use crate::error::{Error, Result};
use crate::fold::history::History;
use crate::fold::live::LiveState;
use crate::fold::projection::{LogSlices, Projection};
use crate::fold::record_kinds::{Author, RecordRules};
use crate::inspect::LogReader;
use crate::log::reader::RecordLocator;
use crate::options::{MemoryLimit, SessionOptions, StoreOptions};
use crate::session::replay::recorded_log::{ReplayLog, Rules};
use crate::session::{RecordedPart, Session, check_declared, open_recorded};
use crate::store::Store;
use crate::types::SessionTypes;

/// Default time without any record after which the next one counts as missing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Replays a host over a recorded log.
///
/// ```
/// use foldlog::inspect::LogReader;
/// use foldlog::replay::Replay;
/// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
/// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// # struct Said(String);
/// # impl Event for Said {
/// #     const NAME: &'static str = "chat.said";
/// # }
/// # struct Chat;
/// # impl Slice for Chat {
/// #     const NAME: &'static str = "chat";
/// #     type Item = Said;
/// # }
/// fn host(session: &Session, greeting: &str) -> foldlog::Result<()> {
///     let name: String = session.inputs().observe("user", || "Ada".to_owned())?;
///     session.dispatch(Said(format!("{greeting} {name}")))?;
///     Ok(())
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
/// let session = Store::open(directory.path())?.create(&types)?;
/// host(&session, "hello")?;
///
/// let log = LogReader::open(session.dir())?;
/// let report = Replay::new(&log, &types).run(|session| host(&session, "hello"))?;
/// assert_eq!(report.compared, 2);
///
/// let changed = Replay::new(&log, &types).run(|session| host(&session, "hi")).unwrap_err();
/// assert_eq!(
///     changed.to_string(),
///     "the replay diverged: record 3 (dispatch `chat.said`) differs at $.event: recorded \"hello Ada\", produced \"hi Ada\"",
/// );
/// # Ok(())
/// # }
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    log: &'a LogReader,
    types: SessionTypes,
    options: StoreOptions,
    rules: Rules,
    from: Option<SequenceNumber>,
    through: Option<SequenceNumber>,
}

/// Describes how a replay treats tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayMode {
    /// No tool runs: effects and results of calls come from the log.
    #[default]
    FromLog,
    /// Tools that only read or that are [`Natural`](crate::Idempotency::Natural) run again, on
    /// copies of the resources in their former state.
    ///
    /// The records and results of these tools are compared, and so is the resulting state of each
    /// resource. For a workspace that state consists of names, contents, links and executable bits.
    /// Calls come from the log in any case if they run together, opened child sessions, or have a
    /// resource without recorded captures. Calls of tools that [run
    /// elsewhere](crate::tools::ToolRunner::begin) can be started; their effects outside are
    /// repeated.
    RunTools,
}

/// Reports the results of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Number of records of the part that was replayed.
    pub records: u64,
    /// Number of records that the host wrote and that were compared. The others were taken from the
    /// log.
    pub compared: u64,
    /// Number of processes for which the host was called.
    pub processes: u64,
    /// Divergences, in the order of their discovery. Empty unless the replay continues after the
    /// first divergence, which is an error otherwise.
    pub divergences: Vec<Divergence>,
}

impl ReplayReport {
    /// Returns the first divergence as an error, if there is any.
    fn or_diverged(mut self) -> Result<ReplayReport> {
        match self.divergences.is_empty() {
            true => Ok(self),
            false => Err(Error::Diverged(Box::new(self.divergences.swap_remove(0)))),
        }
    }
}

/// Bounds of the processes whose records are replayed.
struct Processes {
    /// Sequence numbers of their first records, and the one after the last record.
    bounds: Vec<SequenceNumber>,
    /// Whether a frame after the last record attests that the process that wrote it closed the
    /// session.
    closed: bool,
}

impl<'a> Replay<'a> {
    /// Prepares a replay of the whole log that stops at the first divergence.
    pub fn new(log: &'a LogReader, types: &SessionTypes) -> Replay<'a> {
        let rules = Rules {
            all: false,
            patience: PATIENCE,
            run_tools: false,
            left_out: Arc::default(),
            checks_objects: log.is_outline(),
        };
        let (types, options) = (types.clone(), StoreOptions::default());
        Replay { log, types, options, rules, from: None, through: None }
    }

    /// Makes the replay continue after a divergence, from the recorded state, and list all
    /// divergences, at most 10,000 for each process. If the host gets an error for an extra call or
    /// observation and stops there, its later records are listed as missing.
    pub fn all(mut self) -> Replay<'a> {
        self.rules.all = true;
        self
    }

    /// Starts the replay after the record at `position`, such as a snapshot, or the record before a
    /// call's start. The host starts without earlier variables there: it has to restore its state
    /// from its slices.
    pub fn from(self, position: impl Into<SequenceNumber>) -> Replay<'a> {
        Replay { from: Some(position.into()), ..self }
    }

    /// Ends the replay after the record at `position`. At the starting position nothing is
    /// replayed, and the host [goes live](Replay::go_live) immediately.
    pub fn through(self, position: impl Into<SequenceNumber>) -> Replay<'a> {
        Replay { through: Some(position.into()), ..self }
    }

    /// Sets the treatment of tools; by default their results come from the log.
    pub fn mode(mut self, mode: ReplayMode) -> Replay<'a> {
        self.rules.run_tools = mode == ReplayMode::RunTools;
        self
    }

    /// Excludes values from the comparison, by the names of events and paths, in addition to those
    /// that the [events](crate::Event::NOT_COMPARED) name.
    pub fn leaving_out(mut self, left_out: LeaveOut) -> Replay<'a> {
        self.rules.left_out = Arc::new(left_out);
        self
    }

    /// Sets the time without any record after which the next one counts as missing; 10 seconds by
    /// default.
    ///
    /// It matters if a lane waits for records of other lanes that the host no longer writes: those
    /// then count as missing. A tool that [runs again](ReplayMode::RunTools) for longer than this
    /// while such a lane waits counts as missing too.
    pub fn patience(mut self, patience: Duration) -> Replay<'a> {
        self.rules.patience = patience;
        self
    }

    /// Sets the options with which the live run opened its store. The reader's storage is used in
    /// any case.
    pub fn store_options(self, options: StoreOptions) -> Replay<'a> {
        Replay { options, ..self }
    }

    /// Calls the host once for each recorded process, and compares its records with the log.
    ///
    /// The host's return value is ignored: it stops with an error at the end of a process.
    ///
    /// # Errors
    ///
    /// - [`Error::Diverged`] with the first divergence, unless the replay [continues](Replay::all).
    /// - [`Error::InsideTransaction`] if a call is open at the starting position.
    /// - [`Error::NoSuchPosition`] if the log does not contain the starting position, if that is in
    ///   the part that a fork shares with its parent, or if the end is before the start or after
    ///   the log's end.
    /// - [`Error::Compacted`] if the starting position is before the end of a compacted range: the
    ///   bodies of all later records are needed.
    /// - [`Error::NotRegistered`], [`Error::PolicyMismatch`] or [`Error::NewerVersion`] if the
    ///   host's types do not fit the log.
    /// - [`Error::Poisoned`] with the reason if a copy of a resource cannot be made.
    /// - [`Error::UnsupportedKind`] if the log contains a record of a later version.
    /// - [`Error::Io`] or [`Error::Object`] if the log or an object that it names cannot be read,
    ///   or is damaged.
    pub fn run<T>(&self, mut host: impl FnMut(Session) -> T) -> Result<ReplayReport> {
        let recorded = &self.log;
        check_declared(&self.types, &recorded.outline.names)?;
        let begin = self.begin()?;
        let end = self.end(begin)?;
        let mut live = self.state_behind(begin)?;
        let options = StoreOptions { storage: Arc::clone(&recorded.storage), ..self.options.clone() };
        let store = Store::standing_at(self.log.dir(), options);
        let left_out = self.types.not_compared();
        let left_out =
            left_out.fold((*self.rules.left_out).clone(), |list, (event, path)| list.path(event, path));
        let rules = Rules { left_out: Arc::new(left_out), ..self.rules.clone() };
        let mut report = ReplayReport { records: end.since(begin), ..ReplayReport::default() };
        let Processes { bounds, closed } = self.processes(begin, end)?;
        let closed = closed && self.log.report().closed;
        for (from, end) in bounds.iter().zip(bounds.iter().skip(1)) {
            let (from, end) = (*from, *end);
            let places = |next_sequence| RecordLocator { next_sequence, ..recorded.places.clone() };
            let closed = closed && end == recorded.places.next_sequence;
            let (storage, all_places) = (Arc::clone(&recorded.storage), recorded.places.clone());
            let recording = ReplayLog::new(storage, all_places, from, end, closed, rules.clone());
            if !self.is_hosts(from, end)? {
                live = self.continue_fold(live, end)?;
                continue;
            }
            let part =
                RecordedPart { live, openings: recorded.openings.clone(), recording, places: places(from) };
            let session = open_recorded(&store, self.log.dir(), self.types.clone(), part)?;
            report.processes += 1;
            drop(host(session.clone()));
            let (behind, found, compared) = session.end_replay()?;
            live = behind;
            report.compared += compared;
            report.divergences.extend(found);
            if !self.rules.all {
                report = report.or_diverged()?;
            }
        }
        Ok(report)
    }

    /// Replays the host as [`run`](Replay::run) does, forks the session at the end of the replay,
    /// and calls the host with the fork. There the host works for real, as after a crash, and
    /// resumes unfinished work. The replayed log is unchanged.
    ///
    /// Returns the host's return value of the call with the fork. The fork is in `store`, which
    /// contains the replayed session. The host is called once more than for a replay:
    /// [`Session::replays`] returns whether it works for real.
    ///
    /// The fork works on the workspaces as the host opens them now. They are not restored to the
    /// position. To use their former contents, pass the host other directories with these contents.
    ///
    /// ```
    /// use foldlog::inspect::LogReader;
    /// use foldlog::replay::Replay;
    /// # use foldlog::{Event, Policy, Session, SessionOptions, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Tried(u64);
    /// # impl Event for Tried {
    /// #     const NAME: &'static str = "attempt.tried";
    /// # }
    /// # struct Attempts;
    /// # impl Slice for Attempts {
    /// #     const NAME: &'static str = "attempts";
    /// #     type Item = Tried;
    /// # }
    /// /// Makes the attempts that are not made yet, and would make each fourth one otherwise today.
    /// fn host(session: &Session) -> foldlog::Result<u64> {
    ///     while session.view::<Attempts>()?.len() < 5 {
    ///         let made = session.view::<Attempts>()?.len();
    ///         session.dispatch(Tried(if made == 3 { 33 } else { made }))?;
    ///     }
    ///     Ok(session.view::<Attempts>()?.len())
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let types = SessionTypes::builder().slice::<Attempts>().append_all::<Attempts>().build()?;
    /// let store = Store::open(directory.path())?;
    /// let session = store.create(&types)?;
    /// for number in 0..5 {
    ///     session.dispatch(Tried(number))?;
    /// }
    /// let log = LogReader::open(session.dir())?;
    /// session.close()?;
    /// let third = log.opened_sequence() + 3;
    /// let replay = Replay::new(&log, &types).through(third); // the record before the fourth attempt
    /// let made = replay.go_live(&store, SessionOptions::default(), |session| {
    ///     let made = host(&session)?;
    ///     Ok::<_, foldlog::Error>((session, made))
    /// })?;
    /// let (fork, made) = made?;
    /// let tried: Vec<u64> = fork.view::<Attempts>()?.iter().map(|tried| tried.0).collect();
    /// assert_eq!((made, tried), (5, vec![0, 1, 2, 33, 4]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Replay::run), [`Error::Diverged`] with the first divergence also if
    /// the replay [continues](Replay::all), and the errors of [`Store::fork`]:
    /// [`Error::InsideTransaction`] if a call is open at the end.
    pub fn go_live<T>(
        &self,
        store: &Store,
        options: SessionOptions,
        mut host: impl FnMut(Session) -> T,
    ) -> Result<T> {
        self.run(&mut host)?.or_diverged()?;
        let last = self.end(self.begin()?)?.saturating_sub(1);
        let fork = store.fork(self.log.opening_record().session, last, &self.types, options)?;
        Ok(host(fork))
    }

    /// Returns the sequence number of the first record that is replayed.
    fn begin(&self) -> Result<SequenceNumber> {
        let first = self.log.opened_sequence() + 1;
        let Some(from) = self.from else { return Ok(first) };
        let last = SequenceNumber::from(self.log.records_len()).checked_sub(1);
        if from + 1 < first || last.is_none_or(|last| from > last) {
            return Err(Error::NoSuchPosition { position: from, last });
        }
        Ok(from + 1)
    }

    /// Returns the sequence number after the last record that is replayed.
    fn end(&self, begin: SequenceNumber) -> Result<SequenceNumber> {
        let next = SequenceNumber::from(self.log.records_len());
        let Some(through) = self.through else { return Ok(next.max(begin)) };
        if through >= next || through + 1 < begin {
            return Err(Error::NoSuchPosition { position: through, last: next.checked_sub(1) });
        }
        Ok(through + 1)
    }

    fn state_behind(&self, begin: SequenceNumber) -> Result<LiveState> {
        let recorded = &self.log;
        if let Some(range) = recorded.places.compaction.as_ref().and_then(|all| all.ranges().last())
            && begin <= *range.end()
        {
            // All records after the position are read, so a position before the range is of no use
            // either.
            let position = begin.saturating_sub(1).max(*range.start());
            return Err(Error::Compacted { position, earliest: *range.end() });
        }
        let projection = Projection::new(LogSlices::InLog).over(recorded.places.compaction.as_ref());
        let mut live = LiveState { projection, ..LiveState::default() };
        // Retained while the records pass; otherwise each of these rollbacks would fold the log
        // again.
        recorded.rollbacks.range(begin..).for_each(|(_, rollback)| live.positions.expect_target(rollback.to));
        let live = self.continue_fold(live, begin)?;
        let open = live.projection.operations.open().next().map(|open| open.operation);
        match open.filter(|_| self.from.is_some()) {
            Some(operation) => Err(Error::InsideTransaction { position: begin.saturating_sub(1), operation }),
            None => Ok(live),
        }
    }

    fn continue_fold(&self, live: LiveState, end: SequenceNumber) -> Result<LiveState> {
        let limit = (self.log.dir(), MemoryLimit::Unlimited);
        let history = History { limit, ..self.log.history() };
        history.fold_behind(live, end, Some(&self.types), &mut |_, _| Ok(()))
    }

    /// Finds the processes that wrote the records from `begin` to before `end`.
    fn processes(&self, begin: SequenceNumber, end: SequenceNumber) -> Result<Processes> {
        // The segments that a fork shares with its parent contain the parent's processes.
        let session = self.log.opening_record().session;
        let segments = self.log.places.segments.iter();
        let own: BTreeSet<&Path> = segments
            .filter(|segment| segment.header.session == session)
            .map(|segment| segment.path.as_path())
            .collect();
        let (mut bounds, mut closed, mut last_began) = (vec![begin], false, None);
        self.log.frames(|frame| {
            if !own.contains(frame.segment) {
                return Ok(());
            }
            // The close of a process that wrote no record does not concern the record before it.
            if frame.record.kind == RecordKind::Closed && frame.record.sequence == end {
                closed |= last_began < Some(end);
            }
            if frame.record.kind == RecordKind::Resumed {
                let at = frame.record.sequence;
                let resumed = Resumed::decode(frame.record.body).map_err(Error::unread(at))?;
                // A recovery rewrites records of earlier processes, and states where those began.
                for at in resumed.began.into_iter().chain([resumed.recovered.unwrap_or(at)]) {
                    last_began = last_began.max(Some(at));
                    if bounds.last().is_some_and(|last| *last < at) && at < end {
                        bounds.push(at);
                    }
                }
            }
            Ok(())
        })?;
        bounds.push(end);
        Ok(Processes { bounds, closed })
    }

    /// Returns whether the host wrote a process's records: whether there are any except settlements
    /// and the ends of calls that were left open.
    fn is_hosts(&self, from: SequenceNumber, end: SequenceNumber) -> Result<bool> {
        let mut is_hosts = false;
        let mut begun = false;
        self.log.records(from, end.saturating_sub(1), |record| {
            let author = RecordRules::of(record.kind).author;
            is_hosts |= match author {
                Author::Engine | Author::Settler => false,
                Author::RunEnd => {
                    let end = ToolEnd::decode(record.body).map_err(Error::unread(record.sequence))?;
                    begun || end.outcome != Outcome::Interrupted
                }
                Author::Host | Author::RunStart => true,
            };
            begun |= author == Author::RunStart;
            Ok(())
        })?;
        Ok(is_hosts)
    }
}
