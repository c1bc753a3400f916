//! Rewinds: session, conversations and files return together to an earlier position, including
//! changes of files by others.
//!
//! A rewind is a restore ([`restore`](super::restore)), recorded as a separate operation
//! `foldlog.restore`. Its start record captures the present state, so that no content is lost, and
//! the restore's table describes the effects of a kill. A rewind adds the choice of the captures,
//! and the treatment of changes by hand.
//!
//! | resource | returns to |
//! |---|---|
//! | one that a call had captured by the position | the capture after the last of these calls, on the live path of the position: that of its end record, or of its start record if its changes were rolled back |
//! | one that was captured only later | the first capture in a start record after the position, on a live path through the position |
//! | a fork's own directory, if the capture that a call had taken by the position is of the parent's | the capture of the fork's first start record after the position; it is unchanged, and listed, if no call of the fork has captured it |
//! | one without a recorded capture that outlives its process, such as files in memory | unchanged, and listed |
//! | one that is not rolled back with a failed tool, such as a budget | unchanged, and listed |
//! | one that the last call captured and this run does not have | unchanged, and listed |
//!
//! # Changes by hand
//!
//! The last capture after any call, regardless of later rollbacks, shows the files as tools left
//! them: rolling back only STATE touches no file. Rewinds count as tools for the files that they
//! restore (`by_tools.rs`). Differences between this capture and the present one are changes by
//! hand. They are kept, by the rules of `HostFilesystem::merge_for_rewind`, unless the host chooses
//! to overwrite them. The rewind's start record captures them in any case.
//!
//! Changes after the start record's capture count as changes by hand too: the files are compared
//! once more before any is touched, and differences are captured. But content that is written into
//! a file between that comparison and its own restore is overwritten, and no undo restores it.
//! Other programs should not write into the workspace during a rewind.
//!
//! After a workspace is rebound, the last capture is of another directory. Until a call or a rewind
//! has worked in the present directory, changes by hand are unknown there: existing files are kept,
//! missing files remain missing, and both are listed as *unknown*. The same applies to a fork in
//! its own directory, until a call or a rewind of the fork has worked there.
//!
//! # Undo
//!
//! An undo is a rewind to the position before the last rewind on the live path, with the captures
//! of that rewind's start record. It restores everything that the rewind had overwritten, and can
//! itself be undone. Records since the rewind are abandoned, as by any rewind; files that were
//! changed by hand since are kept, and the preview lists the rest.
//!
//! The rollback of a call that failed or was recovered is undone the same way, if it replaced files
//! and is later than the last rewind. STATE is then unchanged, and the captures of the call's end
//! record are restored over the files: changes since the rollback, by hand or by later calls, are
//! kept. For later rewinds, the files that such an undo restores count as changed by hand.

mod by_tools;
mod differences;
mod filling;
mod report;

use std::collections::BTreeSet;
use std::panic::Location;

use foldlog_codec::body::{Cause, Outcome, Parent};
use foldlog_codec::msgpack;
use foldlog_codec::{OperationId, SequenceNumber};
use foldlog_filesystem::ChangeKind;
use serde::{Deserialize, Serialize};

pub use report::{
    CaptureMoment, CaptureTaken, ConversationRewound, OutsideCall, ResourcePreview, ResourceRewound,
    RewindOptions, RewindPreview, RewindReport, SkippedResource, SliceRewound, TagAbandoned,
};

use super::call::RestoreScope;
use super::captures::{CaptureSet, ResourceCapture};
use super::execution::ExecutionState;
use super::resources::{RewindRequest, Rewound};
use super::restore::{PreparedRestore, RestoreWait, WayBack};
use crate::error::{Error, Result, catch_panic};
use crate::fold::conversation_reading::TextBudget;
use crate::operation::{RESTORE, RestoreArguments, RewindArguments};
use crate::session::rewind::{LoggedCapture, Sought};
use crate::session::{Asker, Patience};
use crate::types::{ToolInvoked, encode};

/// Maximum number of kept files in the record of a rewind.
const KEPT_MAX: usize = 1_000;

/// Value of the end record of a rewind.
#[derive(Serialize, Deserialize)]
struct RewindRecord {
    resources: Vec<ResourceRewound>,
    left: Vec<SkippedResource>,
}

/// Identifies an undo of files only, by the end record of the undone operation.
#[derive(Clone, Copy)]
enum FilesUndo {
    /// Undo of the rollback of a call.
    Rollback(SequenceNumber),
    /// Undo of such an undo.
    Undo(SequenceNumber),
}

/// Target of a rewind.
#[derive(Clone, Copy)]
struct Goal {
    to: SequenceNumber,
    /// Start record of the rewind, or of the call, that is undone.
    undoes: Option<SequenceNumber>,
    /// Kind of undo of files only; `None` if STATE changes too.
    files: Option<FilesUndo>,
    /// Whether the rewind fills directories in which the session has not worked.
    fills: bool,
}

/// Treatment of changes by hand in a rewind.
#[derive(Clone, Copy)]
struct RewindPolicy {
    /// Whether the rewind overwrites them.
    overwrite: bool,
    /// Whether the restore is refused if the resource has changed since its present capture.
    unless_changed: bool,
}

/// Captures to restore, and the resulting changes.
struct RewindPlan {
    captures: CaptureSet,
    resources: Vec<ResourcePreview>,
    left: Vec<SkippedResource>,
}

impl ExecutionState {
    /// Describes the effect of a [`rewind`](ExecutionState::rewind) to a position. Does not write
    /// to the log; the resources are captured, and their stores keep the captures until they are
    /// collected.
    ///
    /// For an interrupted session, the preview describes the rewind after the session is
    /// [recovered](RewindPreview::recover_first), and takes no captures.
    ///
    /// May [wait](crate::Session#who-waits), like a call that changes something.
    ///
    /// # Errors
    ///
    /// Those of [`rewind`](ExecutionState::rewind); [`Error::ReadOnly`] in a replay, which does not
    /// read the resources.
    #[track_caller]
    pub fn preview_rewind(
        &self,
        to: impl Into<SequenceNumber>,
        options: &RewindOptions,
    ) -> Result<RewindPreview> {
        let patience = self.session().patience(None, None);
        self.preview(Some(to.into()), options, &patience, Location::caller())
    }

    /// Describes the effect of an [`undo`](ExecutionState::undo_rewind), like
    /// [`preview_rewind`](ExecutionState::preview_rewind).
    #[track_caller]
    pub fn preview_undo(&self, options: &RewindOptions) -> Result<RewindPreview> {
        let patience = self.session().patience(None, None);
        self.preview(None, options, &patience, Location::caller())
    }

    /// Rewinds session and resources to a position: STATE, conversations, and the files of
    /// workspaces, including changes by others. [`preview_rewind`](ExecutionState::preview_rewind)
    /// describes the effect in advance. LOG slices and the session's tags are unchanged. So are
    /// effects of calls outside, which the [report](crate::RollbackReport::outside) lists.
    ///
    /// A resource returns to its capture at the end of the last call that was over at the position,
    /// or, if there was none, at the start of the first call after it. A directory in which the
    /// session has not worked yet has to be [filled](ExecutionState::fill) before. Files in memory,
    /// budgets and other resources without such a capture are unchanged, and
    /// [listed](RewindReport::left).
    ///
    /// Files that were changed by hand since the last call are kept and
    /// [listed](ResourceRewound::kept), unless [`overwrite`](RewindOptions::overwrite) is set; so
    /// are those that an earlier rewind kept. Other programs should not write into a workspace
    /// during the rewind, because such content may be lost permanently.
    ///
    /// The rewind is recorded as a separate operation, `foldlog.restore`, whose start record
    /// captures the present state: [`undo_rewind`](ExecutionState::undo_rewind) restores it in one
    /// step. If anything fails, session and resources are returned to their previous state. If the
    /// process ends within the rewind, the session is interrupted, as with
    /// [`restore`](ExecutionState::restore).
    ///
    /// ```
    /// # use foldlog::tools::{RewindOptions, ToolRegistry, ToolRunner};
    /// # use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
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
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let session = Store::open(directory.path())?.create(&types)?;
    /// let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// let hello = session.dispatch(Said("hello".to_owned()))?;
    /// session.dispatch(Said("a mistake".to_owned()))?;
    /// let preview = state.preview_rewind(hello, &RewindOptions::default())?;
    /// assert_eq!((preview.slices[0].items_before, preview.slices[0].items_after), (2, 1));
    /// state.rewind(hello, &RewindOptions::default())?;
    /// assert_eq!(session.view::<Chat>()?.len(), 1);
    /// state.undo_rewind(&RewindOptions::default())?;
    /// assert_eq!(session.view::<Chat>()?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at the position,
    /// [`Error::InsideTransaction`] if an operation was open there that is over now: no record is
    /// written then. [`Error::Filesystem`] if a capture is of another directory, or the store lacks
    /// a needed object. Otherwise, the errors of [`restore`](ExecutionState::restore).
    pub fn rewind(&self, to: impl Into<SequenceNumber>, options: &RewindOptions) -> Result<RewindReport> {
        self.rewind_waiting(Some(to.into()), options, &RestoreWait::from_state(self))
    }

    /// Rewinds to a position, or undoes the last rewind. Waits for other work as `waiting` allows.
    pub(super) fn rewind_waiting(
        &self,
        to: Option<SequenceNumber>,
        options: &RewindOptions,
        waiting: &RestoreWait<'_>,
    ) -> Result<RewindReport> {
        self.rewind_to(self.goal(to, options)?, options, waiting)
    }

    /// Undoes the last rewind on the live path: returns session and resources to their state at its
    /// start, including everything that it had overwritten. The undo is a rewind too, which the
    /// next undo undoes.
    ///
    /// If the rollback of a failed or recovered call has replaced or removed files since, that
    /// rollback is undone instead: the files return to their state before the rollback, except
    /// those that were changed since. STATE is unchanged. With [`of`](RewindOptions::of), this
    /// applies to the rollback of any operation that is on the live path and whose captures were
    /// not collected.
    ///
    /// An undo also works after later work, which it abandons like any rewind. Files that were
    /// changed by hand since the last call are kept, unless [`overwrite`](RewindOptions::overwrite)
    /// is set.
    ///
    /// # Errors
    ///
    /// [`Error::NoRewind`] if there is no rewind, and no rollback of a call, to undo,
    /// [`Error::NoSuchOperation`] if a rewind returned to before the operation; otherwise, the
    /// errors of [`rewind`](ExecutionState::rewind).
    pub fn undo_rewind(&self, options: &RewindOptions) -> Result<RewindReport> {
        self.rewind_waiting(None, options, &RestoreWait::from_state(self))
    }

    /// Returns the goal of a rewind to a position; without a position, of an undo.
    fn goal(&self, to: Option<SequenceNumber>, options: &RewindOptions) -> Result<Goal> {
        match to {
            Some(to) => Ok(Goal { to, undoes: None, files: None, fills: false }),
            None => self.to_undo(options.of),
        }
    }

    /// Finds the rollback of an operation to undo; without an operation, the last rewind or the
    /// last rollback of a call.
    fn to_undo(&self, of: Option<OperationId>) -> Result<Goal> {
        let session = self.session();
        let (path, last) = (session.log().live_path(), session.log().position().unwrap_or_default());
        let (mut found, mut left_behind) = (None, None);
        session.calls().calls_back(&mut |call| {
            let end = call.position().map(|(end, _)| end).filter(|end| path.is_live(*end, last));
            let Some(end) = end else {
                left_behind = left_behind.or(of.filter(|of| *of == call.operation));
                return Ok(true);
            };
            let (begin, fills) = (call.begin, false);
            if of.is_some_and(|of| of != call.operation) {
                return Ok(true);
            }
            if call.outcome == Outcome::Committed {
                found = self.rewind_of(call)?.map(|rewind| match rewind.undoes_rollback {
                    true => Goal { to: last, undoes: Some(begin), files: Some(FilesUndo::Undo(end)), fills },
                    false => Goal { to: begin.saturating_sub(1), undoes: Some(begin), files: None, fills },
                });
            // A restore that failed is undone only if it is named, or if its process was killed:
            // others may have worked on the resources before its recovery. A killed undo of a
            // rollback is passed over, because the record of that rollback names all captures.
            } else if (call.tool != RESTORE || of.is_some() || self.is_worked_on_behind(call)?)
                && !session.calls().captures_replaced_at(end)?.is_empty()
            {
                let files = Some(FilesUndo::Rollback(end));
                found = Some(Goal { to: last, undoes: Some(begin), files, fills });
            }
            Ok(found.is_none())
        })?;
        let none = || match left_behind {
            Some(operation) => {
                let reason =
                    "a rewind went back to before it: undo that rewind first, without naming an operation";
                Error::NoSuchOperation { operation, reason }
            }
            None => Error::NoRewind(session.id()),
        };
        found.ok_or_else(none)
    }

    /// Returns whether a restore was killed, so that others may have worked on the resources since,
    /// and is no undo of a rollback.
    fn is_worked_on_behind(&self, restore: &ToolInvoked) -> Result<bool> {
        if restore.cause != Some(Cause::Dropped) {
            return Ok(false);
        }
        let arguments = self.session().calls().read_begin(restore.begin)?.arguments;
        let rewind = RestoreArguments::read(&arguments).and_then(|arguments| arguments.rewind);
        Ok(!rewind.is_some_and(|rewind| rewind.undoes_rollback))
    }

    fn rewind_to(
        &self,
        goal: Goal,
        options: &RewindOptions,
        waiting: &RestoreWait<'_>,
    ) -> Result<RewindReport> {
        let check = || self.session().calls().check_target(goal.to);
        if let Some(refused) = self.session().calls().refused_before_turn(goal.to) {
            return Err(refused);
        }
        self.rebind_filled()?;
        let RewindOptions { overwrite, by, reason, of: _ } = options.clone();
        let undoes = goal.undoes.map(OperationId::from);
        let (fills, undoes_rollback) = (goal.fills, goal.files.is_some());
        let rewind = Some(RewindArguments { overwrite, undoes, by, reason, fills, undoes_rollback });
        let arguments = RestoreArguments { position: goal.to, rewind };
        let arguments =
            serde_json::to_string(&arguments).map_err(|error| Error::Export(error.to_string()))?;
        let lacking = self.missing_resources()?;
        let prepare = |present: &CaptureSet, unless_changed: bool| {
            let policy = RewindPolicy { overwrite, unless_changed };
            let RewindPlan { captures, resources, mut left } =
                self.plan_rewind(goal, present, None, policy)?;
            left.extend(lacking.iter().cloned());
            let resources = resources.into_iter().map(rewound).collect();
            let value = encode(RESTORE, &RewindRecord { resources, left })?;
            Ok(PreparedRestore { captures, value: Some(value) })
        };
        let way = WayBack { position: goal.to, arguments, scope: RestoreScope::AsATool, waiting };
        let (rolled_back, report) = way.go(self, &check, &prepare)?;
        let unread = || Error::SnapshotMismatch("the record of the rewind cannot be read".to_owned());
        let recorded = report.value.map(|value| value.encode()).ok_or_else(unread)?;
        let RewindRecord { resources, left } = msgpack::from_slice(&recorded).map_err(|_| unread())?;
        let (operation, not_undone) = (report.operation, report.not_undone);
        Ok(RewindReport { operation, undoes, rolled_back, resources, left, not_undone })
    }

    /// Lists the resources that the last call captured and this run does not have.
    fn missing_resources(&self) -> Result<Vec<SkippedResource>> {
        let names = self.session().calls().captures_left()?.into_keys();
        let lacking = names.filter(|name| !self.live_captured().contains_key(name.as_str()));
        Ok(lacking
            .map(|name| SkippedResource { name, reason: "this run does not have it".to_owned() })
            .collect())
    }

    /// Captures the present state, and describes the effect of a rewind to a position, or of an
    /// undo. Waits for other work as long as `patience` allows.
    pub(super) fn preview(
        &self,
        to: Option<SequenceNumber>,
        options: &RewindOptions,
        patience: &Patience,
        at: &'static Location<'static>,
    ) -> Result<RewindPreview> {
        let session = self.session();
        if session.replays() {
            let reason = "a replay does not read the resources, so it cannot preview a rewind";
            return Err(Error::ReadOnly { session: session.id(), reason: reason.to_owned() });
        }
        self.rebind_filled()?;
        let asker = Asker::new("preview of a rewind", at);
        let left_open =
            if session.calls().is_interrupted() { session.calls().left_open() } else { Vec::new() };
        let is_recovered = left_open.is_empty();
        let _admission = match is_recovered && !session.is_for_previews() {
            true => Some(session.admit_live(false, patience, asker.clone())?),
            // An admission would be refused, as for every call. Only a recovery writes until the
            // session is recovered, and a session that was opened for previews is never written.
            false => None,
        };
        let _leases = self.lease(true, patience, &asker)?;
        let goal = self.goal(to, options)?;
        let present = match is_recovered {
            true => {
                session.calls().check_target(goal.to)?;
                self.capture(None)?
            }
            false => {
                session.calls().check_target_recovered(goal.to)?;
                CaptureSet::from_recorded(session.calls().open_captures()?)
                    .decode_recorded(self.live_resources(), true)?
            }
        };
        let open = left_open.iter().find(|open| !open.reads_only).map(|open| open.begin);
        let policy = RewindPolicy { overwrite: options.overwrite, unless_changed: false };
        let RewindPlan { resources, mut left, .. } = self.plan_rewind(goal, &present, open, policy)?;
        left.extend(self.missing_resources()?);
        let from = session.log().position().unwrap_or_default();
        let (abandoned, outside) = session.abandoned_by(from + 1, goal.to)?;
        let is_abandoned = |at: SequenceNumber| abandoned.iter().any(|range| range.contains(&at));
        let snapshots = session.log().snapshots()?.into_iter().filter(|taken| is_abandoned(taken.position));
        let tags =
            snapshots.filter_map(|taken| Some(TagAbandoned { tag: taken.tag?, position: taken.position }));
        let tags = tags.collect();
        let outside = outside.into_iter().map(|call| {
            let idempotency = session.calls().idempotency_of(&call)?;
            Ok(OutsideCall { operation: call.operation, tool: call.tool, call_id: call.call_id, idempotency })
        });
        let outside = outside.collect::<Result<_>>()?;
        let beside = session.calls().slices_beside(goal.to)?;
        let limit = beside.limit.clone();
        let budget = limit.as_ref().map(|(dir, budget)| TextBudget::new(dir, *budget));
        let (slices, mut differences) = differences::slices(beside, budget.as_ref())?;
        let (conversations, of_messages) = differences::conversations(session, goal.to, budget.as_ref())?;
        differences.extend(of_messages);
        Ok(RewindPreview {
            from,
            to: goal.to,
            undoes: goal.undoes.map(OperationId::from),
            recover_first: left_open.iter().map(|open| open.operation).collect(),
            resources,
            left,
            slices,
            conversations,
            differences,
            tags,
            abandoned,
            outside,
        })
    }

    /// Returns a search for captures of these resources. It skips those that a fork shares with its
    /// parent and that are not of its own place.
    fn sought(&self, names: BTreeSet<String>) -> Sought<'_> {
        let shared = match self.session().parent() {
            Some(Parent::Fork { position, .. }) => Some(position),
            _ => None,
        };
        let is_elsewhere = Box::new(|name: &str, recorded: &[u8]| {
            let resource = self.live_captured().get(name);
            resource.is_some_and(|resource| {
                resource.recall(recorded).is_ok_and(|capture| resource.is_of_other_place(&capture))
            })
        });
        Sought::new(names, shared, is_elsewhere)
    }

    /// Determines the captures that a rewind restores; `present` contains the present captures. If
    /// a recovery comes first, `open` is the start record of the call that it ends, and `present`
    /// the captures in that record, which then count as the last captures.
    fn plan_rewind(
        &self,
        goal: Goal,
        present: &CaptureSet,
        open: Option<SequenceNumber>,
        policy: RewindPolicy,
    ) -> Result<RewindPlan> {
        let (session, registered) = (self.session(), self.live_resources());
        let rolled_back =
            registered.captured_resources().iter().filter(|(_, resource)| resource.rolls_back());
        let names: BTreeSet<String> = rolled_back.map(|(name, _)| name.clone().into_owned()).collect();
        let sought = self.sought(names.clone());
        let mut targets = match (goal.undoes, goal.files) {
            (Some(begin), Some(FilesUndo::Rollback(end))) => {
                session.calls().captures_of_rollback(begin, end, &sought)?
            }
            (Some(begin), _) => session.calls().captures_of_begin(begin, &sought)?,
            (None, _) => session.calls().captures_at(goal.to, &sought)?,
        };
        // Differences from the state after the undone operation are later changes.
        let (mut last, mut here) = match (goal.undoes, goal.files) {
            (Some(begin), Some(FilesUndo::Rollback(_))) => {
                (session.calls().captures_of_begin(begin, &sought)?, BTreeSet::new())
            }
            (_, Some(FilesUndo::Undo(end))) => {
                (session.calls().captures_of_end(end, &sought)?, BTreeSet::new())
            }
            _ => self.captures_by_tools(&names, present)?,
        };
        if goal.files.is_some() {
            // The undone operation brought these captures here, if it worked in the resource's
            // present place.
            let is_here = |name: &String| {
                let recorded = targets.get(name).and_then(|target| target.recorded.as_deref());
                recorded.is_some_and(|recorded| !present.is_elsewhere(registered, name, recorded))
            };
            here.extend(names.iter().filter(|name| is_here(name)).cloned());
        }
        for (name, begin) in names.iter().filter_map(|name| Some((name, open?))) {
            let Some(recorded) = present.recorded_of(name) else { continue };
            let found = LoggedCapture { record: begin, is_end: false, recorded: Some(recorded.to_vec()) };
            if goal.undoes.is_none() && begin > goal.to {
                targets.entry(name.clone()).or_insert_with(|| found.clone());
            }
            last.insert(name.clone(), found);
        }
        let (mut captures, mut resources, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (name, resource) in registered.captured_resources() {
            let mut stays = |reason: &str| {
                left.push(SkippedResource { name: name.clone().into_owned(), reason: reason.to_owned() });
            };
            if !resource.rolls_back() {
                stays("it is not rolled back with a failed tool");
                continue;
            }
            let Some(target) = targets.get(&**name) else {
                stays(match sought.has_passed_over(name) {
                    true => {
                        "the captures until then are of the directory of the session that this one was forked from"
                    }
                    false if goal.files.is_some() => "the rollback replaced nothing of it",
                    false => "no call has captured it",
                });
                continue;
            };
            // If no call has captured it, differences from the target are changes by hand.
            let last = last.get(&**name).unwrap_or(target);
            let Some((to, last)) = target.recorded.as_deref().zip(last.recorded.as_deref()) else {
                stays("its captures end with the process that took them");
                continue;
            };
            let Some(present) = present.snapshot_of(name) else {
                stays("it is not captured now");
                continue;
            };
            let rewound = catch_panic(name, || {
                resource.rewind(&RewindRequest {
                    target: &resource.recall(to)?,
                    last: &resource.recall(last)?,
                    last_is_here: here.contains(&**name),
                    present,
                    overwrite: policy.overwrite,
                    unless_changed: policy.unless_changed,
                    after_restore: false,
                })
            });
            let Rewound { to, files, kept, unknown, left_out } = rewound?;
            captures.push(ResourceCapture::in_memory(name.clone(), to));
            let (name, capture) = (name.clone().into_owned(), goal.describe_capture(target));
            resources.push(ResourcePreview { name, capture, files, kept, unknown, left_out });
        }
        Ok(RewindPlan { captures: captures.into_iter().collect(), resources, left })
    }
}

impl Goal {
    fn describe_capture(self, found: &LoggedCapture) -> CaptureTaken {
        let of = match () {
            () if matches!(self.files, Some(FilesUndo::Rollback(_))) => CaptureMoment::RollbackBegan,
            () if self.undoes.is_some() => CaptureMoment::RewindBegan,
            () if found.record > self.to => CaptureMoment::CallBeganLater,
            () if found.is_end => CaptureMoment::CallEnded,
            () => CaptureMoment::CallBegan,
        };
        CaptureTaken { record: found.record, of }
    }
}

/// Converts a resource's preview to the form in the record of the rewind.
fn rewound(preview: ResourcePreview) -> ResourceRewound {
    let ResourcePreview { name, capture, files, mut kept, mut unknown, left_out } = preview;
    let count = |kind: ChangeKind| files.iter().filter(|file| file.change == kind).count() as u64;
    let kept_more = kept.len().saturating_sub(KEPT_MAX) as u64;
    kept.truncate(KEPT_MAX);
    let unknown_more = unknown.len().saturating_sub(KEPT_MAX) as u64;
    unknown.truncate(KEPT_MAX);
    let (created, modified) = (count(ChangeKind::Created), count(ChangeKind::Modified));
    let removed = count(ChangeKind::Removed);
    ResourceRewound {
        name,
        capture,
        created,
        modified,
        removed,
        kept,
        kept_more,
        unknown,
        unknown_more,
        left_out,
    }
}
