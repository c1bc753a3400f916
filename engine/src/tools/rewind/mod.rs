//! Rewinds: session, conversations and files go back together to an earlier position, whoever changed the files.
//!
//! A rewind is a restore ([`restore`](super::restore)), an operation `foldlog.restore` of its own: its begin captures what
//! is there, so that nothing is lost, and its table says what a kill leaves. What a rewind adds is where the captures come
//! from, and what is kept.
//!
//! | resource | goes back to |
//! |---|---|
//! | one that a call had captured by the position | what the last of these calls left, on the live path of the position: the capture of its end, or of its begin if what it changed was rolled back |
//! | one that was captured later only | the capture of the first begin behind the position that follows on it |
//! | a fork's own directory, where the capture that a call had taken by the position is of the parent's | the capture of the fork's first begin behind the position; it stays as it is, and is named, where no call of the fork has captured it |
//! | one without a recorded capture that outlives its process, such as files in memory | stays as it is, and is named |
//! | one that is not rolled back with a failed tool, such as a budget | stays as it is, and is named |
//! | one that the last call captured and this run does not have | stays as it is, and is named |
//!
//! # What was changed by hand
//!
//! The last capture that any call left, whatever was rolled back since, says what the files are if nobody but tools changed
//! them: rolling back STATE alone touches no file. Rewinds change files by hand no less and no more than they go back
//! (`by_tools.rs`). What the present capture has otherwise was changed by hand, and is kept, by the rules of
//! `HostFilesystem::merged`, unless the host says to overwrite it. The rewind's begin holds it in any case.
//!
//! What somebody writes behind the begin's capture counts as changed by hand too: the files are looked at once more before any is
//! touched, and what differs is captured. But what is written into a file in the moments between that look and its turn is
//! overwritten, and no undo brings it back. Nobody else should write into the workspace meanwhile.
//!
//! Where a workspace was rebound, the last capture is of another directory, and no rewind has worked in this one since, nobody knows what
//! was changed by hand in it: what is there is kept, what is not there stays away, and both are named as *unknown*. The last capture of a
//! fork in a directory of its own is of another directory until a call or a rewind of its own has worked there.
//!
//! # Undo
//!
//! An undo is a rewind to the position before the last rewind on the live path, with the captures of that rewind's begin. So
//! it brings back whatever the rewind had overwritten, and can itself be undone. What happened since the rewind is abandoned
//! like everything that a rewind abandons: files that were changed by hand since are kept, and the preview tells the rest.
//!
//! The rollback of a call that failed or was recovered is undone the same way, if it replaced files and is later than the last
//! rewind. Then STATE stays as it is, and what the call's end captured is put over the files: what was changed since the
//! rollback, by hand or by later calls, is kept. To later rewinds, what such an undo brings back was changed by hand.

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
use super::captures::{CaptureSet, RecordedRewind, RewindPolicy, RewoundCaptures};
use super::execution::ExecutionState;
use super::restore::{PreparedRestore, RestoreWait, WayBack};
use crate::error::{Error, Result, catch_panic};
use crate::fold::conversation_reading::TextBudget;
use crate::operation::{RESTORE, RestoreArguments, RewindArguments};
use crate::session::rewind::{LoggedCapture, Sought};
use crate::session::{Asker, Patience};
use crate::types::{ToolInvoked, encode};

/// Number of kept files that the record of a rewind names.
const KEPT_MAX: usize = 1_000;

/// Holds what the record of a rewind's end says.
#[derive(Serialize, Deserialize)]
struct RewindRecord {
    resources: Vec<ResourceRewound>,
    left: Vec<SkippedResource>,
}

/// Names an undo of files alone by the end of what it undoes.
#[derive(Clone, Copy)]
enum FilesUndo {
    /// Of the rollback of a call.
    Rollback(SequenceNumber),
    /// Of such an undo.
    Undo(SequenceNumber),
}

/// Says where a rewind goes.
#[derive(Clone, Copy)]
struct Goal {
    to: SequenceNumber,
    /// Begin of the rewind, or of the call, that is undone.
    undoes: Option<SequenceNumber>,
    /// Which undo of files alone it is, if STATE stays as it is.
    files: Option<FilesUndo>,
    /// Whether it fills directories that the session has not worked in.
    fills: bool,
}

/// Holds what is to be restored, and what that changes.
struct RewindPlan {
    captures: CaptureSet,
    resources: Vec<ResourcePreview>,
    left: Vec<SkippedResource>,
}

impl ExecutionState {
    /// Tells what a [`rewind`](ExecutionState::rewind) to a position would do. Writes nothing into the log; the resources are
    /// captured, and their stores keep the captures until they are collected.
    ///
    /// Of a session that was interrupted, the preview tells what the rewind would do once the session is
    /// [recovered](RewindPreview::recover_first), and captures nothing.
    ///
    /// May [wait](crate::Session#who-waits), as a call that changes something does.
    ///
    /// # Errors
    ///
    /// Those of [`rewind`](ExecutionState::rewind); [`Error::ReadOnly`] in a replay, which does not look at the resources.
    #[track_caller]
    pub fn preview_rewind(
        &self,
        to: impl Into<SequenceNumber>,
        options: &RewindOptions,
    ) -> Result<RewindPreview> {
        let patience = self.session().patience(None, None);
        self.preview_to(to.into(), options, &patience, Location::caller())
    }

    /// Tells what a rewind to a position would do, after a wait for others that the patience allows.
    pub(super) fn preview_to(
        &self,
        to: SequenceNumber,
        options: &RewindOptions,
        patience: &Patience,
        at: &'static Location<'static>,
    ) -> Result<RewindPreview> {
        self.preview(&|| Ok(Goal { to, undoes: None, files: None, fills: false }), options, patience, at)
    }

    /// Tells what an [`undo`](ExecutionState::undo_rewind) would do now, as [`preview_rewind`](ExecutionState::preview_rewind)
    /// does of a rewind.
    ///
    /// # Errors
    ///
    /// Those of [`undo_rewind`](ExecutionState::undo_rewind) and [`preview_rewind`](ExecutionState::preview_rewind).
    #[track_caller]
    pub fn preview_undo(&self, options: &RewindOptions) -> Result<RewindPreview> {
        let patience = self.session().patience(None, None);
        self.preview_last(options, &patience, Location::caller())
    }

    /// Tells what an undo would do, after a wait for others that the patience allows.
    pub(super) fn preview_last(
        &self,
        options: &RewindOptions,
        patience: &Patience,
        at: &'static Location<'static>,
    ) -> Result<RewindPreview> {
        self.preview(&|| self.to_undo(options.of), options, patience, at)
    }

    /// Rewinds session and resources to a position: STATE, conversations, and the files of workspaces, whoever changed them.
    /// [`preview_rewind`](ExecutionState::preview_rewind) tells before what that does. LOG slices and the session's tags stay;
    /// so do effects that calls had outside, which the [report](crate::RollbackReport::outside) names.
    ///
    /// A resource goes back to its capture at the end of the last call that was over at the position, or at the begin of the
    /// first call behind it if there was none. A directory in which the session has not worked yet is [filled](ExecutionState::fill) before. Files in memory, budgets and whatever else has no such capture stay as they
    /// are, and are [named](RewindReport::left).
    ///
    /// Files that were changed by hand since the last call are kept as they are and [named](ResourceRewound::kept), unless
    /// [`overwrite`](RewindOptions::overwrite) is set; so are those that an earlier rewind kept. Nobody should write into a
    /// workspace while the rewind runs: what is written then may be overwritten for good.
    ///
    /// The log holds the rewind as an operation of its own, `foldlog.restore`, whose begin captures what is there:
    /// [`undo_rewind`](ExecutionState::undo_rewind) brings it back in one step. If anything fails, session and resources are
    /// brought back to what they were before, and a process that ends within it leaves the session interrupted, as
    /// [`restore`](ExecutionState::restore) does.
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
    /// [`Error::NoSuchPosition`] if the log has no record at the position, [`Error::InsideTransaction`] if an operation was
    /// open there that is over now: nothing is recorded then. [`Error::Filesystem`] if a capture is of another directory, or the
    /// store lacks an object that is needed. Else those of [`restore`](ExecutionState::restore).
    pub fn rewind(&self, to: impl Into<SequenceNumber>, options: &RewindOptions) -> Result<RewindReport> {
        self.rewind_waiting(to.into(), options, &RestoreWait::from_state(self))
    }

    /// Rewinds to a position, once the others allow that for which it may wait.
    pub(super) fn rewind_waiting(
        &self,
        to: SequenceNumber,
        options: &RewindOptions,
        waiting: &RestoreWait<'_>,
    ) -> Result<RewindReport> {
        self.rewind_to(Goal { to, undoes: None, files: None, fills: false }, options, waiting)
    }

    /// Undoes the last rewind on the live path: brings session and resources back to what they were when it began, with
    /// whatever it had overwritten. That is a rewind too, which the next undo undoes.
    ///
    /// If a failed or recovered call was rolled back since, and that replaced or removed files, its rollback is undone instead:
    /// the files come back as the rollback had found them, save what was changed since. STATE stays as it is. With
    /// [`of`](RewindOptions::of), that is done for the rollback of any operation that is on the live path and whose captures were not collected.
    ///
    /// It works also after later work, which it abandons as any rewind does. Files that were changed by hand since the last
    /// call are kept, unless [`overwrite`](RewindOptions::overwrite) is set.
    ///
    /// # Errors
    ///
    /// [`Error::NoRewind`] if there is no rewind, and no rollback of a call, to be undone, [`Error::NoSuchOperation`] if a rewind went
    /// back to before the operation; else those of [`rewind`](ExecutionState::rewind).
    pub fn undo_rewind(&self, options: &RewindOptions) -> Result<RewindReport> {
        self.undo_waiting(options, &RestoreWait::from_state(self))
    }

    /// Undoes the last rewind, once the others allow that for which it may wait.
    pub(super) fn undo_waiting(
        &self,
        options: &RewindOptions,
        waiting: &RestoreWait<'_>,
    ) -> Result<RewindReport> {
        self.rewind_to(self.to_undo(options.of)?, options, waiting)
    }

    /// Finds the rollback of an operation that is to be undone; without one, the last rewind or the last rollback of a call.
    fn to_undo(&self, of: Option<OperationId>) -> Result<Goal> {
        let session = self.session();
        let (path, last) = (session.live_path(), session.position().unwrap_or_default());
        let (mut found, mut left_behind) = (None, None);
        session.calls_back(&mut |call| {
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
            // What a restore had done when it failed is nobody's work, unless it was killed and others went on; but of an undo that was
            // killed the one before knows all.
            } else if (call.tool != RESTORE || of.is_some() || self.is_worked_on_behind(call)?)
                && !session.captures_replaced_at(end)?.is_empty()
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

    /// Returns whether others may have gone on where a restore was killed that is no undo of a rollback.
    fn is_worked_on_behind(&self, restore: &ToolInvoked) -> Result<bool> {
        if restore.cause != Some(Cause::Dropped) {
            return Ok(false);
        }
        let arguments = self.session().read_begin(restore.begin, |begin| begin.arguments)?;
        let rewind = RestoreArguments::read(&arguments).and_then(|arguments| arguments.rewind);
        Ok(!rewind.is_some_and(|rewind| rewind.undoes_rollback))
    }

    fn rewind_to(
        &self,
        goal: Goal,
        options: &RewindOptions,
        waiting: &RestoreWait<'_>,
    ) -> Result<RewindReport> {
        let check = || self.session().check_target(goal.to);
        match self.session().replays() {
            true => check()?,
            false => self.rebind_filled()?,
        }
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
        let unread =
            || Error::SnapshotMismatch("the record of the rewind does not say what it did".to_owned());
        let recorded = report.value.map(|value| value.encode()).ok_or_else(unread)?;
        let RewindRecord { resources, left } = msgpack::from_slice(&recorded).map_err(|_| unread())?;
        let (operation, not_undone) = (report.operation, report.not_undone);
        Ok(RewindReport { operation, undoes, rolled_back, resources, left, not_undone })
    }

    /// Names the resources that the last call captured and this run does not have.
    fn missing_resources(&self) -> Result<Vec<SkippedResource>> {
        let names = self.session().captures_left()?.into_keys();
        let lacking = names
            .filter(|name| !self.registered_resources().captured_resources().contains_key(name.as_str()));
        Ok(lacking
            .map(|name| SkippedResource { name, reason: "this run does not have it".to_owned() })
            .collect())
    }

    /// Captures what is there, and tells what a rewind would do.
    fn preview(
        &self,
        goal: &dyn Fn() -> Result<Goal>,
        options: &RewindOptions,
        patience: &Patience,
        at: &'static Location<'static>,
    ) -> Result<RewindPreview> {
        let session = self.session();
        if session.replays() {
            let reason = "a replay does not look at the resources, so it cannot tell what a rewind would do";
            return Err(Error::ReadOnly { session: session.id(), reason: reason.to_owned() });
        }
        self.rebind_filled()?;
        let asker = Asker::new("preview of a rewind", at);
        let left_open = if session.is_interrupted() { session.left_open() } else { Vec::new() };
        let is_recovered = left_open.is_empty();
        let _admission = match is_recovered && !session.is_for_previews() {
            true => Some(session.admit(false, patience, asker.clone())?),
            // It is refused, as every call is. Nobody but a recovery writes until the session is recovered, and nobody at all writes
            // one that was opened for previews.
            false => None,
        };
        let _leases = self.lease(true, patience, &asker)?;
        let goal = goal()?;
        let present = match is_recovered {
            true => {
                session.check_target(goal.to)?;
                self.capture(None, || None)?
            }
            false => {
                session.check_target_recovered(goal.to)?;
                CaptureSet::from_recorded(session.open_captures()?)
                    .decode_recorded(self.registered_resources(), true)?
            }
        };
        let open = left_open.iter().find(|open| !open.reads_only).map(|open| open.begin);
        let policy = RewindPolicy { overwrite: options.overwrite, unless_changed: false };
        let RewindPlan { resources, mut left, .. } = self.plan_rewind(goal, &present, open, policy)?;
        left.extend(self.missing_resources()?);
        let from = session.position().unwrap_or_default();
        let (abandoned, outside) = session.abandoned_by(from + 1, goal.to)?;
        let is_abandoned = |at: SequenceNumber| abandoned.iter().any(|range| range.contains(&at));
        let snapshots = session.snapshots()?.into_iter().filter(|taken| is_abandoned(taken.position));
        let tags =
            snapshots.filter_map(|taken| Some(TagAbandoned { tag: taken.tag?, position: taken.position }));
        let tags = tags.collect();
        let outside = outside.into_iter().map(|call| {
            let idempotency = session.idempotency_of(&call)?;
            Ok(OutsideCall { operation: call.operation, tool: call.tool, call_id: call.call_id, idempotency })
        });
        let outside = outside.collect::<Result<_>>()?;
        let beside = session.slices_beside(goal.to)?;
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

    /// Seeks captures of these resources, and passes over those that a fork shares with its parent and that are not of its own
    /// place.
    fn sought(&self, names: BTreeSet<String>) -> Sought<'_> {
        let shared = match self.session().parent() {
            Some(Parent::Fork { position, .. }) => Some(position),
            _ => None,
        };
        let is_elsewhere = Box::new(|name: &str, recorded: &[u8]| {
            let resource = self.registered_resources().captured_resources().get(name);
            resource.is_some_and(|resource| {
                resource.recall(recorded).is_ok_and(|capture| resource.is_of_other_place(&capture))
            })
        });
        Sought::new(names, shared, is_elsewhere)
    }

    /// Finds out what a rewind restores, now that the resources are as `present` says. If a recovery comes first, `open` is the
    /// begin of the call that it ends, and `present` what it captured: the last capture that any call left, then.
    fn plan_rewind(
        &self,
        goal: Goal,
        present: &CaptureSet,
        open: Option<SequenceNumber>,
        policy: RewindPolicy,
    ) -> Result<RewindPlan> {
        let (session, registered) = (self.session(), self.registered_resources());
        let rolled_back =
            registered.captured_resources().iter().filter(|(_, resource)| resource.rolls_back());
        let names: BTreeSet<String> = rolled_back.map(|(name, _)| name.clone().into_owned()).collect();
        let sought = self.sought(names.clone());
        let mut targets = match (goal.undoes, goal.files) {
            (Some(begin), Some(FilesUndo::Rollback(end))) => {
                session.captures_of_rollback(begin, end, &sought)?
            }
            (Some(begin), _) => session.captures_of_begin(begin, &sought)?,
            (None, _) => session.captures_at(goal.to, &sought)?,
        };
        // What differs from what the undone one left was changed since.
        let (mut last, mut here) = match (goal.undoes, goal.files) {
            (Some(begin), Some(FilesUndo::Rollback(_))) => {
                (session.captures_of_begin(begin, &sought)?, BTreeSet::new())
            }
            (_, Some(FilesUndo::Undo(end))) => (session.captures_of_end(end, &sought)?, BTreeSet::new()),
            _ => self.captures_by_tools(&names, present)?,
        };
        if goal.files.is_some() {
            // The undone one brought that here, if it worked where the resource is now.
            let is_here = |name: &String| {
                let recorded = targets.get(name).and_then(|target| target.recorded.as_deref());
                recorded.is_some_and(|recorded| !present.is_elsewhere(registered, name, recorded))
            };
            here.extend(names.iter().filter(|name| is_here(name)).cloned());
        }
        for (name, begin) in names.iter().filter_map(|name| Some((name, open?))) {
            let Some(recorded) = present.recorded_of(name) else { continue };
            let found = LoggedCapture { record: begin, is_end: false, recorded: Some(recorded) };
            if goal.undoes.is_none() && begin > goal.to {
                targets.entry(name.clone()).or_insert_with(|| found.clone());
            }
            last.insert(name.clone(), found);
        }
        let mut captures = RewoundCaptures::default();
        let (mut resources, mut left) = (Vec::new(), Vec::new());
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
                        "the captures until then are of the folder of the session that this one was forked from"
                    }
                    false if goal.files.is_some() => "the rollback replaced nothing of it",
                    false => "no call has captured it",
                });
                continue;
            };
            // Where no call has left it in any way, what differs from the target was changed by hand.
            let last = last.get(&**name).unwrap_or(target);
            let Some((to, last)) = target.recorded.clone().zip(last.recorded.clone()) else {
                stays("its captures end with the process that took them");
                continue;
            };
            let last_is_here = here.contains(&**name);
            let rewind = RecordedRewind { target: &to, last: &last, last_is_here, policy };
            let rewound = catch_panic(name, || captures.add(name, resource.as_ref(), present, &rewind))?;
            let Some((files, kept, unknown, left_out)) = rewound else {
                stays("it is not captured now");
                continue;
            };
            let capture = goal.describe_capture(target);
            let name = name.clone().into_owned();
            resources.push(ResourcePreview { name, capture, files, kept, unknown, left_out });
        }
        Ok(RewindPlan { captures: captures.into_captures(), resources, left })
    }
}

impl Goal {
    /// Says when a capture was taken.
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

/// Says of a resource what the record of the rewind says.
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
