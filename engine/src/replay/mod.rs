//! Runs a host again over the log of its earlier run, and names the first record in which it does something else.
//!
//! The host gets a [`Session`] that looks like the live one. What came from outside comes from the log: the time, random
//! numbers and [observations](Session::observe), the answers of providers, and the results of tools. Each record that the
//! host writes is compared with the recorded one. Nothing is written.
//!
//! # Processes
//!
//! A log holds what one or more *processes* wrote: each time that the session is opened for writing begins one. The host is
//! called once for each, as it was then: behind a crash it finds calls that were left open, recovers them, and resumes its
//! conversations. Where the records of a process end, the next write fails with [`Error::ReplayEnded`], as if the process
//! were killed there; the host returns, and is called for the next process. A process that only settled calls, or only
//! ended the calls that another one had left open, such as the binary's `settle` and `recover`, is taken from the log. One that
//! wrote other records without the host, such as the binary's `restore`, wrote what no host produces: the replay diverges there.
//!
//! What the host returns is not looked at. A host that fails by itself, such as over a directory that does not exist, shows only in
//! the records that it did not produce: whoever looks for the reason prints what the host returns.
//!
//! A record behind the last one of a log is one too many if the session was closed there, by the process that wrote that record:
//! the log's last frame says so. Where a process was killed, or closed on a disk so full that the frame found no room, the host
//! gets [`Error::ReplayEnded`] instead, since nobody knows what it would have written.
//!
//! # What has to be the same
//!
//! A host is deterministic if all that it does follows from its state and from what it was given through its session. Only
//! [`Session::now`], [`Session::draw`] and [`Session::observe`] are recorded inputs. Threads whose records may interleave
//! need [lanes](Session::lane) of their own: records of one lane come in one order, and between lanes the log's order
//! counts. A thread must not read what other lanes write, unless it learns of it through a recorded input or has joined their
//! threads: a loop that waits for what another lane's thread is to write never ends if that thread has ended at a divergence
//! or at the end of the records. The host joins its threads before it returns. What it does beside its session is done again: other sessions, forks, files.
//!
//! A replay runs the host with the [`StoreOptions`] of the live run, if its size limit for payloads is not the default.
//!
//! # What leaves no record
//!
//! What was refused left no record, and neither did what was only read. A replay knows of it what follows from its state:
//!
//! | live | in a replay |
//! |---|---|
//! | a write was refused because of the state, or of its handle's call | it is refused as well, without waiting for a turn, unless its lane's next record looks like it: then it waits for that one's turn, or until the [patience](Replay::patience) is over |
//! | a write was refused because of what another lane wrote | it may be refused or not: a thread must not read what other lanes write |
//! | a recovery or a call found that an operation had expired, or had not | the same: the record that settles it says so |
//! | [`pending`](Session::pending) was asked | a question counts as expired by the time of the process's last record; by that of the next one if that settles something, or before the first. What expired between two records is not known |
//! | an observation was refused, since it could not be read again | not known: it is one record too many |
//! | a call was refused before its begin, since a resource could not be captured or was [left dirty](crate::Error::ResourceDirty) | not known: the replay captures nothing, and begins the call, which is one record too many |
//! | a subscriber was told of a record | it is told of it before the call returns that led to it; on which of several threads is not known |
//!
//! # Resources
//!
//! The resources themselves are not touched: they are neither leased nor captured nor restored.
//! [`ExecutionState::resources`](crate::ExecutionState::resources) and the context of a tool show
//! [copies](crate::tools::resources::Snapshotable::scratch) of them, as their recorded captures say: a workspace is a directory
//! among the system's temporary files, which goes with the last handle of it, without what captures leave out, such as `.git`.
//! Between two captures a copy does not show what the host itself did to the resource, and what a host does to a copy is lost
//! with the next tool. A resource without recorded captures, such as files in memory, is
//! shown as the host made it, and so is one that no failed tool rolls back, such as a budget. What a host reads past the registry, it
//! reads as it is now. The captures of a [composite snapshot](crate::tools::CompositeSnapshot) are in no record, so a replay's
//! are empty, and its id is another one.
//!
//! All that a replay needs is in the session's directory. [`Session::dir`] is that directory, and a host that opens its workspace
//! there, with the captures in it, may give it any directory for the workspace: it has to exist, may be empty, and is not looked
//! into. In a fork only the captures of its own records count, not those of its parent.
//! The copy that the run shows has another path: a host that writes `HostFilesystem::root`
//! into a record diverges, and a link of the workspace that names the workspace's own path leads nowhere.
//!
//! # Behind a divergence
//!
//! A replay of [all](Replay::all) divergences goes on from the recorded state. A record that is not recorded is not applied; where
//! one cannot do without it, as the begin of a call or an observation, the host gets [`Error::Diverged`], and if it stops there,
//! what it would have written further on is listed as missing. The lane of a write moved to another one is known only once the
//! [patience](Replay::patience) is over: another thread might still bring the record of the first lane. A lane that did not come
//! is not waited for once more until it writes. An object of the log that is missing or damaged is no divergence: the replay fails
//! with [`Error::Object`], also where only the host came upon it.
//!
//! # Memory
//!
//! A replay holds the state, as a session does, some records that it has read ahead, and the last record of each of the 64 lanes that
//! wrote last, however long the log is. A record that another lane than those brings twice counts as changed. A reader that
//! was opened with [`ReadOptions::outline`](crate::inspect::ReadOptions::outline) holds no names of items beside it.
//!
//! # Where a replay can begin and end
//!
//! It begins behind the session's own first record, or at a position at which no call is open and at which the host held nothing
//! in variables that it does not find in its slices, such as one behind which it was started anew. It ends at the log's end as
//! it was when the reader was opened, or earlier. So a log that is being written can be replayed. With
//! [`go_live`](Replay::go_live) the host goes on in a fork at that end, as it would after a crash.

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
use crate::inspect::{LogReader, RecordedLog};
use crate::log::reader::RecordLocator;
use crate::options::{MemoryLimit, SessionOptions, StoreOptions};
use crate::sabotage::{self, Breakage};
use crate::session::recorded_log::{ReplayLog, Rules};
use crate::session::{RecordedPart, Session, check_declared, open_recorded};
use crate::store::Store;
use crate::types::SessionTypes;

/// Time without any record after which the next one counts as missing.
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
///     let name: String = session.observe("user", || "Ada".to_owned())?;
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
/// let report = Replay::of(&log, &types).run(|session| host(&session, "hello"))?;
/// assert_eq!(report.compared, 2);
///
/// let changed = Replay::of(&log, &types).run(|session| host(&session, "hi")).unwrap_err();
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

/// Says what becomes of tools in a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayMode {
    /// No tool runs: what a call did and answered comes from the log.
    #[default]
    FromLog,
    /// Tools that only read or that are [`Natural`](crate::Idempotency::Natural) run again, on copies of the resources as they were.
    /// What they write and answer is compared, and so is what they leave of each resource: of a workspace names, contents, links and
    /// which files may be executed. Calls that run together, that opened child sessions, or whose run has a resource without recorded captures come from the log in any case. Calls of tools that
    /// [run elsewhere](crate::tools::ToolRunner::begin) can be begun; what they do outside is done again.
    RunTools,
}

/// Reports what a replay found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Number of records of the part that was replayed.
    pub records: u64,
    /// Number of records that the host wrote and that were compared. The others were taken from the log.
    pub compared: u64,
    /// Number of processes for which the host was called.
    pub processes: u64,
    /// What diverged, in the order in which it was found. Empty unless the replay goes on behind the first divergence: that
    /// one is an error.
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

/// Says where the processes begin and end whose records are replayed.
struct Processes {
    /// Sequence numbers of their first records, and the one behind the last record.
    bounds: Vec<SequenceNumber>,
    /// Whether a frame behind the last record says that the process that wrote it closed the session.
    closed: bool,
}

impl<'a> Replay<'a> {
    /// Prepares a replay of the whole log, which stops at the first divergence.
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

    /// Makes the replay go on behind a divergence, from the recorded state, and list all, at most 10,000 for each process. A host
    /// that gets an error for a call or an observation too many and stops there goes no further.
    pub fn all(mut self) -> Replay<'a> {
        self.rules.all = true;
        self
    }

    /// Begins the replay behind the record at `position`, such as a snapshot, or the record before a call's begin. The host begins
    /// anew there: it has to find in its slices what it goes on with.
    pub fn from(self, position: impl Into<SequenceNumber>) -> Replay<'a> {
        Replay { from: Some(position.into()), ..self }
    }

    /// Ends the replay behind the record at `position`. At the position where it begins it replays nothing, and a host
    /// [goes live](Replay::go_live) right there.
    pub fn through(self, position: impl Into<SequenceNumber>) -> Replay<'a> {
        Replay { through: Some(position.into()), ..self }
    }

    /// Sets what becomes of tools; by default their results come from the log.
    pub fn mode(mut self, mode: ReplayMode) -> Replay<'a> {
        self.rules.run_tools = mode == ReplayMode::RunTools;
        self
    }

    /// Leaves values out of the comparison, by the names of events and paths, besides those that the
    /// [events](crate::Event::NOT_COMPARED) name.
    pub fn leaving_out(mut self, left_out: LeaveOut) -> Replay<'a> {
        self.rules.left_out = Arc::new(left_out);
        self
    }

    /// Sets the time without any record after which the next one counts as missing; 10 seconds by default. It matters where a
    /// lane waits for its turn behind records of other lanes, which the host writes no more: those are missing then. A tool that
    /// [runs again](ReplayMode::RunTools) for longer than this beside such a lane counts as missing too.
    pub fn patience(mut self, patience: Duration) -> Replay<'a> {
        self.rules.patience = patience;
        self
    }

    /// Sets the options with which the live run opened its store. The storage is the reader's in any case.
    pub fn store_options(self, options: StoreOptions) -> Replay<'a> {
        Replay { options, ..self }
    }

    /// Calls the host once for each recorded process, and compares what it does with the log.
    ///
    /// What the host returns is not looked at: it stops with an error where a process ends.
    ///
    /// # Errors
    ///
    /// [`Error::Diverged`] with the first divergence, unless the replay [goes on](Replay::all).
    /// [`Error::InsideTransaction`] if a call is open at the position where the replay is to begin;
    /// [`Error::NoSuchPosition`] if the log does not hold it, if it is in the part that a fork shares with its parent, or
    /// if the replay is to end before it begins or behind the log's end.
    /// [`Error::NotRegistered`], [`Error::PolicyMismatch`] or [`Error::NewerVersion`] if the host's types do not fit the
    /// log. [`Error::Poisoned`] with the reason if a copy of a resource cannot be made.
    /// [`Error::UnsupportedKind`] if the log holds a record of a later version. [`Error::Io`] or [`Error::Object`] if
    /// the log or an object that it names cannot be read, or is damaged.
    pub fn run<T>(&self, mut host: impl FnMut(Session) -> T) -> Result<ReplayReport> {
        let recorded = self.log.recorded_log();
        check_declared(&self.types, recorded.names)?;
        let begin = self.begin()?;
        let end = self.end(begin)?;
        let mut live = self.state_behind(&recorded, begin)?;
        let options = StoreOptions { storage: Arc::clone(recorded.storage), ..self.options.clone() };
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
            let (storage, all_places) = (Arc::clone(recorded.storage), recorded.places.clone());
            let recording = ReplayLog::new(storage, all_places, from, end, closed, rules.clone());
            if !self.is_hosts(from, end)? {
                live = self.continue_fold(live, &recorded, end)?;
                continue;
            }
            let part =
                RecordedPart { live, openings: recorded.openings.to_vec(), recording, places: places(from) };
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

    /// Replays the host as [`run`](Replay::run) does, makes a fork at the end of what was replayed, and calls the host with
    /// it: from there on it works for real, as after a crash, and resumes what was not over. The log that was replayed stays as it is.
    ///
    /// Returns what the host returned in the fork. The fork is in `store`, which holds the replayed session. The host is
    /// called once more than for a replay: [`Session::replays`] tells it whether it works for real.
    ///
    /// The fork works on the workspaces as the host opens them now. They are not brought to the position: whoever wants them as they
    /// were gives the host directories of its own, in which they are.
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
    /// let replay = Replay::of(&log, &types).through(third); // the record before the fourth attempt
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
    /// Those of [`run`](Replay::run), [`Error::Diverged`] with the first divergence also where the replay
    /// [goes on](Replay::all), and then those of [`Store::fork`]: [`Error::InsideTransaction`] if a call is open at
    /// the end.
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

    /// Returns the sequence number behind the last record that is replayed.
    fn end(&self, begin: SequenceNumber) -> Result<SequenceNumber> {
        let next = SequenceNumber::from(self.log.records_len());
        let Some(through) = self.through else { return Ok(next.max(begin)) };
        if through >= next || through + 1 < begin {
            return Err(Error::NoSuchPosition { position: through, last: next.checked_sub(1) });
        }
        Ok(through + 1)
    }

    fn state_behind(&self, recorded: &RecordedLog<'_>, begin: SequenceNumber) -> Result<LiveState> {
        if let Some(range) = recorded.places.compaction.as_ref().and_then(|all| all.ranges().last())
            && begin <= *range.end()
        {
            // All behind the position is read, so that one before the range is of no use either.
            let position = begin.saturating_sub(1).max(*range.start());
            return Err(Error::Compacted { position, earliest: *range.end() });
        }
        let projection = Projection::new(LogSlices::InLog).over(recorded.places.compaction.as_ref());
        let mut live = LiveState { projection, ..LiveState::default() };
        // Kept while the records pass, or each of these rollbacks would fold the log once more.
        recorded.rollbacks.range(begin..).for_each(|(_, rollback)| live.positions.expect_target(rollback.to));
        let live = self.continue_fold(live, recorded, begin)?;
        let open = live.projection.operations.open().next().map(|open| open.operation);
        match open.filter(|_| self.from.is_some()) {
            Some(operation) => Err(Error::InsideTransaction { position: begin.saturating_sub(1), operation }),
            None => Ok(live),
        }
    }

    /// Continues a fold through the records below `end`.
    fn continue_fold(
        &self,
        live: LiveState,
        recorded: &RecordedLog<'_>,
        end: SequenceNumber,
    ) -> Result<LiveState> {
        let RecordedLog { storage, places, objects, rollbacks, .. } = recorded;
        let limit = (self.log.dir(), MemoryLimit::Unlimited);
        let history = History { storage, places, objects, rollbacks, limit };
        history.fold_behind(live, end, Some(&self.types), &mut |_, _| Ok(()))
    }

    /// Finds the processes that wrote the records from `begin` to before `end`.
    fn processes(&self, begin: SequenceNumber, end: SequenceNumber) -> Result<Processes> {
        // In the segments that a fork shares with its parent stand the parent's processes.
        let session = self.log.opening_record().session;
        let segments = self.log.recorded_log().places.segments.iter();
        let own: BTreeSet<&Path> = segments
            .filter(|segment| segment.header.session == session)
            .map(|segment| segment.path.as_path())
            .collect();
        let (mut bounds, mut closed, mut last_began) = (vec![begin], false, None);
        self.log.frames(|frame| {
            if !own.contains(frame.segment) {
                return Ok(());
            }
            // Whoever wrote no record says nothing about the one before it.
            if frame.record.kind == RecordKind::CLOSED && frame.record.sequence == end {
                closed |= last_began < Some(end);
            }
            if frame.record.kind == RecordKind::RESUMED && !sabotage::is(Breakage::ReplayAsOneProcess) {
                let at = frame.record.sequence;
                let resumed = Resumed::decode(frame.record.body).map_err(Error::unread(at))?;
                // A recovery rewrites what earlier processes wrote, and says where those began.
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

    /// Returns whether a process's records are a host's: whether there are others than settlements and the ends of calls
    /// that were left open.
    fn is_hosts(&self, from: SequenceNumber, end: SequenceNumber) -> Result<bool> {
        let mut is_hosts = false;
        let mut begun = false;
        self.log.records(from, end.saturating_sub(1), |record| {
            is_hosts |= match record.kind {
                RecordKind::SETTLE
                | RecordKind::DECLARE
                | RecordKind::OPENED
                | RecordKind::IMPORT
                | RecordKind::REPLICATED => false,
                RecordKind::TOOL_END => {
                    let end = ToolEnd::decode(record.body).map_err(Error::unread(record.sequence))?;
                    begun || end.outcome != Outcome::Interrupted
                }
                _ => true,
            };
            begun |= record.kind == RecordKind::TOOL_BEGIN;
            Ok(())
        })?;
        Ok(is_hosts)
    }
}
