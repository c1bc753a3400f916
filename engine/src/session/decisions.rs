//! Decisions that other processes leave for the host that has the session open: taking them, and
//! waiting for them.
//!
//! [`crate::log::decisions`] defines the files. A decision is recorded in a separate lane,
//! [`LANE`], since it comes from outside: if the host took it from a file, a replay takes it from
//! the log.

#[cfg(feature = "async")]
use std::future::Future;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use foldlog_codec::body::Settle;
use foldlog_codec::msgpack::{MsgpackReader, Value};
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::Mutex;

use super::settle::{RecordedSettlement, Settlement, waits_for};
use super::subscribers::SubscriptionGuard;
use super::{Session, SessionCalls, SessionInner};
use crate::clock;
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::log::decisions::{self, DecisionOutcome, LeftBody};
use crate::log::layout;
use crate::storage::{DirectoryWatch, Storage};
use crate::wakeups::ChangeNotifier;

/// Lane of the records of decisions that other processes left.
const LANE: &str = "foldlog.decisions";

/// Longest time between checks for a decision: not every file system reports changes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Reports the outcomes of the decisions that other processes left for this session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionsTaken {
    /// Decisions that are now in the log, in the order in which they were left.
    pub taken: Vec<TakenDecision>,
    /// Rejected decisions, which had no effect.
    pub refused: Vec<RefusedDecision>,
}

/// A decision of another process that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenDecision {
    /// Operation that the decision concerns.
    pub operation: OperationId,
    /// Name of the decider.
    pub by: String,
    /// Time of the decision. The time of its record is later: it is recorded when this process
    /// takes it.
    pub decided_at: DateTime<Utc>,
    /// Sequence number of the decision's record.
    pub sequence: SequenceNumber,
}

/// A decision of another process that was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedDecision {
    /// File of the decision, which is removed.
    pub file: PathBuf,
    /// Operation that the decision concerns; `None` if the file does not name it.
    pub operation: Option<OperationId>,
    /// Name of the decider; `None` if the file does not name it.
    pub by: Option<String>,
    /// Reason for the refusal.
    pub reason: String,
}

/// Reports how a wait for decisions ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionWait {
    /// Operations that no longer wait for a decision: they were decided, or have expired. Empty if
    /// the wait itself timed out.
    pub decided: Vec<OperationId>,
    /// Rejected decisions that other processes left during the wait.
    pub refused: Vec<RefusedDecision>,
}

/// Wakes threads that wait for a decision.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changes: ChangeNotifier,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.rung.lock() = true;
        self.changes.notify_all();
    }

    /// Blocks this thread until the bell rings, or has rung since the last wait, but at most until
    /// that moment.
    pub(crate) fn wait_until(&self, until: Instant) {
        let mut rung = self.rung.lock();
        while !*rung {
            if self.changes.wait_until(&mut rung, until).timed_out() {
                break;
            }
        }
        *rung = false;
    }

    /// Rings whenever a decision or an answer is left in the directory. Returns `None` if the
    /// system cannot report it.
    pub(crate) fn watch(
        self: &Arc<Bell>,
        storage: &dyn Storage,
        dir: &Path,
    ) -> Option<Box<dyn DirectoryWatch>> {
        let directory = layout::decisions_dir(dir);
        storage.create_dir_all(&directory).ok()?;
        let bell = Arc::clone(self);
        storage.watch(&directory, Box::new(move || bell.ring())).ok()?
    }
}

/// Returns the moment at which a wait until `until` checks again without a notification.
pub(crate) fn look_again(until: Instant) -> Instant {
    clock::after(LOOK_AGAIN).min(until)
}

/// Rings a bell whenever a decision may have come, until it is dropped.
struct Rings {
    bell: Arc<Bell>,
    _files: Option<Box<dyn DirectoryWatch>>,
    _records: Option<SubscriptionGuard>,
}

impl SessionCalls<'_> {
    /// Records the decisions that other processes left for this session, with
    /// [`Store::leave_decision`](crate::Store::leave_decision) or `foldlog settle`. The session
    /// must be open in this process. This does not block.
    ///
    /// A decision is valid if its operation still needs it, if the call has the arguments that the
    /// decider saw, and if an approval has not expired. Any other decision is refused: it leaves no
    /// record, and its sender gets the reason. [`recover`](crate::tools::ToolRunner::recover) calls
    /// this first, and so do evaluations of `foldlog-agent`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory of decisions cannot be read. The errors of
    /// [`settle`](crate::SessionCalls::settle) if nothing can be recorded; the decisions then
    /// remain in the directory.
    pub fn take_decisions(&self) -> Result<DecisionsTaken> {
        if let Some(replay) = self.session.inner.replay() {
            return self.take_replayed(replay);
        }
        drop(self.session.inner.settleable()?);
        let (storage, dir) = (&self.session.inner.store.options.storage, &self.session.inner.dir);
        let mut report = DecisionsTaken::default();
        // Two threads that find the same file would each answer it. `try_lock`, because a
        // subscriber may run on this thread while it takes decisions.
        let Some(_taking) = self.session.inner.taking.try_lock() else { return Ok(report) };
        for entry in decisions::list(storage.as_ref(), dir)? {
            let path = layout::decisions_dir(dir).join(&entry.name);
            let access = self.session.inner.store.options.access.file_mode();
            let exposed = entry.mode.is_some_and(|mode| mode & !access & 0o022 != 0);
            let left = match exposed {
                true => Err("its permissions allow others to write it"),
                false => decisions::read(storage.as_ref(), &path),
            };
            let answer = match left {
                Ok(left) => self.take(&left, &path, &mut report)?,
                Err(reason) => report.refuse(&path, None, reason),
            };
            decisions::answer(storage.as_ref(), &path, &answer);
        }
        Ok(report)
    }

    /// Blocks until one of these operations needs no decision, for at most `limit`. During that
    /// time it records the [decisions](crate::SessionCalls::take_decisions) of other processes;
    /// decisions of this process also end the wait. Returns at once if one of the operations needs
    /// no decision now. Afterwards recover the session, and evaluate again.
    ///
    /// The thread sleeps until a decision comes. A [replay](crate::replay) does not wait for time:
    /// it takes the recorded decisions from the log.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = foldlog::Store::open(directory.path())?.create(&foldlog::SessionTypes::builder().build()?)?;
    /// let waiting: Vec<_> = session.calls().pending_questions()?.iter().map(|question| question.operation).collect();
    /// if !waiting.is_empty() {
    ///     let wait = session.calls().wait_for_decision(&waiting, Duration::from_secs(3600))?;
    ///     println!("decided: {:?}", wait.decided);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`take_decisions`](crate::SessionCalls::take_decisions), also
    /// [`Error::Closed`] soon after the session is closed.
    pub fn wait_for_decision(&self, operations: &[OperationId], limit: Duration) -> Result<DecisionWait> {
        let until = clock::after(limit);
        let rings = match self.begin_wait(operations, until)? {
            ControlFlow::Continue(rings) => rings,
            ControlFlow::Break(waited) => return Ok(waited),
        };
        let mut so_far = DecisionWait::default();
        loop {
            so_far = match self.look_for_decision(operations, until, so_far)? {
                ControlFlow::Continue(so_far) => so_far,
                ControlFlow::Break(waited) => return Ok(waited),
            };
            rings.bell.wait_until(look_again(until));
        }
    }

    /// Waits as [`wait_for_decision`](crate::SessionCalls::wait_for_decision) does, without
    /// blocking a thread of the executor. Dropping the future ends the wait.
    #[cfg(feature = "async")]
    pub fn wait_for_decision_async(
        &self,
        operations: &[OperationId],
        limit: Duration,
    ) -> impl Future<Output = Result<DecisionWait>> + Send + use<> {
        use crate::offload::{offload, wait_for_any};
        let (session, operations) = (self.session.clone(), operations.to_vec());
        async move {
            let until = clock::after(limit);
            let (waiting, asked) = (session.clone(), operations.clone());
            let begun = offload(move || waiting.calls().begin_wait(&asked, until)).await?;
            let rings = match begun {
                ControlFlow::Continue(rings) => rings,
                ControlFlow::Break(waited) => return Ok(waited),
            };
            let mut so_far = DecisionWait::default();
            loop {
                let heard = rings.bell.changes.listen();
                let (looking, asked) = (session.clone(), operations.clone());
                let look = move || looking.calls().look_for_decision(&asked, until, so_far);
                so_far = match offload(look).await? {
                    ControlFlow::Continue(so_far) => so_far,
                    ControlFlow::Break(waited) => return Ok(waited),
                };
                wait_for_any([heard], Some(look_again(until))).await;
            }
        }
    }

    /// Returns a bell that rings whenever a file is left, or this process writes a record that may
    /// end an operation's wait. In a replay, returns the outcome of the wait, from the log.
    fn begin_wait(
        &self,
        operations: &[OperationId],
        until: Instant,
    ) -> Result<ControlFlow<DecisionWait, Rings>> {
        if let Some(replay) = self.session.inner.replay() {
            return self.wait_replayed(replay, operations, until).map(ControlFlow::Break);
        }
        let bell: Arc<Bell> = Arc::default();
        let files = bell.watch(self.session.inner.store.options.storage.as_ref(), &self.session.inner.dir);
        let heard = Arc::clone(&bell);
        let records = self.session.log().listen(move |record| {
            if matches!(
                record.kind(),
                RecordKind::Settle | RecordKind::Rollback | RecordKind::ToolBegin | RecordKind::ToolEnd
            ) {
                heard.ring();
            }
        });
        Ok(ControlFlow::Continue(Rings { bell, _files: files, _records: records }))
    }

    /// Records pending decisions, and adds the outcome to that of the wait so far. Breaks if the wait
    /// is over.
    fn look_for_decision(
        &self,
        operations: &[OperationId],
        until: Instant,
        mut waited: DecisionWait,
    ) -> Result<ControlFlow<DecisionWait, DecisionWait>> {
        waited.refused.extend(self.take_decisions()?.refused);
        waited.decided = self.session.inner.filter_decided(operations);
        let is_over = !waited.decided.is_empty() || operations.is_empty() || clock::is_past(until);
        Ok(if is_over { ControlFlow::Break(waited) } else { ControlFlow::Continue(waited) })
    }

    /// Records a decision that was left, if it fits, and returns the answer.
    fn take(&self, left: &LeftBody, path: &Path, report: &mut DecisionsTaken) -> Result<DecisionOutcome> {
        let Ok(settle) = Settle::decode(&left.settle) else {
            return Ok(report.refuse(path, None, "it contains no decision"));
        };
        let (operation, by) = (settle.operation, settle.by.clone());
        let settlement = Settlement::of_record(&settle, |payload| match payload.object() {
            Some(_) => Err(Error::NoSuchOperation { operation, reason: "it does not contain its result" }),
            None => value(operation, payload.bytes()),
        });
        let recorded = settlement.and_then(|settlement| {
            self.check_left(left, &settle)?;
            self.of_decisions().calls().settle(operation, &settlement, &settle.by, &settle.reason)
        });
        match recorded {
            Ok(sequence) => Ok(report.take(left, operation, by, sequence)),
            Err(
                error @ (Error::NoSuchOperation { .. } | Error::AlreadySettled { .. } | Error::Blank { .. }),
            ) => match self.recorded_before(&settle)? {
                Some(sequence) => Ok(report.take(left, operation, by, sequence)),
                None => Ok(report.refuse(path, Some((operation, by)), &error.to_string())),
            },
            Err(error) => Err(error),
        }
    }

    /// Fails if a decision is for a different session or call, or is an approval that has expired.
    fn check_left(&self, left: &LeftBody, settle: &Settle<'_>) -> Result<()> {
        let operation = settle.operation;
        let refused = |reason| Err(Error::NoSuchOperation { operation, reason });
        if left.session != self.session.inner.id {
            return refused("the decision was left for another session");
        }
        if settle.until_us.is_some_and(|until_us| until_us <= self.session.inner.now_us()) {
            return refused("the approval had expired before it was taken");
        }
        match self.digest_of(operation)? {
            Some(digest) if digest != left.arguments => {
                refused("the decision was about a call with other arguments")
            }
            _ => Ok(()),
        }
    }

    /// Returns the BLAKE3 of the arguments of a waiting operation; `None` for other operations.
    fn digest_of(&self, operation: OperationId) -> Result<Option<[u8; 32]>> {
        let begin = {
            let state = self.session.inner.state.lock();
            let operations = &state.live.projection.operations;
            if let Some(suspended) = operations.suspended_one(operation) {
                return Ok(Some(suspended.suspension.arguments));
            }
            operations.unsettled_one(operation).map(|unsettled| unsettled.begin)
        };
        let Some(begin) = begin else { return Ok(None) };
        let arguments = self.read_begin(begin)?.arguments;
        let text = MsgpackReader::new(&arguments).str().map_err(Error::unread(begin))?;
        Ok(Some(*blake3::hash(text.as_bytes()).as_bytes()))
    }

    /// Returns the record of a decision if a process was killed after it took the decision and
    /// before it removed the file.
    fn recorded_before(&self, settle: &Settle<'_>) -> Result<Option<SequenceNumber>> {
        let until = settle.until_us.map(conversation_reading::time);
        let is_same = |one: &RecordedSettlement| {
            let Settlement { decision, arguments, until: one_until, .. } = one.settlement;
            (decision, arguments, one_until) == (settle.decision, settle.arguments, until)
                && (&one.by, &one.reason) == (&settle.by, &settle.reason)
        };
        let recorded = self.settlements_of(settle.operation, settle.operation.into(), false)?;
        Ok(recorded.into_iter().rfind(is_same).map(|one| one.sequence))
    }

    /// Returns the handle that records decisions from outside.
    pub(super) fn of_decisions(&self) -> Session {
        Session { within: None, ..self.session.lane(LANE) }
    }
}

pub(super) fn value(operation: OperationId, bytes: &[u8]) -> Result<Value> {
    let unread = |_| Error::NoSuchOperation { operation, reason: "its result is not a value" };
    Value::decode(bytes).map_err(unread)
}

impl SessionInner {
    /// Returns the operations that do not wait for a decision.
    pub(super) fn filter_decided(&self, operations: &[OperationId]) -> Vec<OperationId> {
        let state = self.state.lock();
        let standings = self.standings(&state);
        operations.iter().copied().filter(|one| waits_for(&standings, *one).is_none()).collect()
    }
}

impl DecisionsTaken {
    fn take(
        &mut self,
        left: &LeftBody,
        operation: OperationId,
        by: String,
        sequence: SequenceNumber,
    ) -> DecisionOutcome {
        let decided_at = conversation_reading::time(left.decided_us);
        self.taken.push(TakenDecision { operation, by, decided_at, sequence });
        DecisionOutcome::Sequence(sequence)
    }

    fn refuse(&mut self, file: &Path, of: Option<(OperationId, String)>, reason: &str) -> DecisionOutcome {
        let (operation, by) = of.unzip();
        let (file, reason) = (file.to_owned(), reason.to_owned());
        self.refused.push(RefusedDecision { file, operation, by, reason: reason.clone() });
        DecisionOutcome::Refused(reason)
    }
}
