//! Fills the directories of a run that replaced others: after a takeover, in a fork, after a move.
//!
//! A workspace *is to be filled* if the last call that captured it worked in another directory, and
//! neither a recovery of that call nor a rewind has worked in this one since. A rewind that left
//! the workspace unchanged does not count. A fill rewinds the session to its last position, which
//! abandons no records, and overwrites the directory's contents; its record is marked as a fill.
//!
//! | the process ends | the next fill |
//! |---|---|
//! | before the calls that were left open are ended | finds the directory empty, or with a part of its state before the first of them: then it needs `overwrite` |
//! | after that | finds that a recovery worked here, and does not fill |
//! | within the rewind | ends it, which empties the directory again, and fills it |
//! | after that | finds no workspace to fill |
//!
//! A replay does not read directories: it fills where the log contains a fill.

use std::collections::BTreeSet;

use foldlog_codec::body::Outcome;

use super::{ExecutionState, Goal, RewindOptions, RewindReport};
use crate::error::{Result, catch_panic};
use crate::operation::RESTORE;
use crate::session::operation_records::RecordedCaptures;
use crate::tools::restore::RestoreWait;
use crate::tools::{ToolRegistry, ToolRunner};

impl ExecutionState {
    /// Fills the workspaces of this run in which the session has not worked with their state after
    /// its last call: after a [takeover](crate::Store::take_over), in a [fork](crate::Store::fork),
    /// or after a workspace was moved. Calls that an earlier process left open are ended first, as
    /// by a [recovery](crate::tools::ToolRunner::recover) without tools: none runs again yet.
    /// Returns a report of the fill; `None` if no workspace had to be filled.
    ///
    /// A workspace in which the session has worked is unchanged, including changes by hand. Call
    /// this whenever a session is opened, before other work on it, and recover with the tools
    /// afterwards. The same steps continue after a process was killed within a fill.
    ///
    /// A workspace to be filled has to be empty, unless [`overwrite`](RewindOptions::overwrite) is
    /// set: then existing content is captured and removed.
    /// [`undo_rewind`](ExecutionState::undo_rewind) undoes a fill. A
    /// [rewind](ExecutionState::rewind) to before the fill, by this or a later process, restores
    /// the files of that time, which were in another directory. If one workspace of several is to
    /// be filled, changes by hand in the others are overwritten too.
    ///
    /// # Errors
    ///
    /// [`Error::Filesystem`](crate::Error::Filesystem) if a directory to be filled is not empty;
    /// [`Error::Collected`](crate::Error::Collected) if the capture after the last call was
    /// collected. Otherwise, the errors of [`recover`](crate::tools::ToolRunner::recover) and
    /// [`rewind`](ExecutionState::rewind).
    pub fn fill(&self, options: &RewindOptions) -> Result<Option<RewindReport>> {
        let session = self.session();
        let mut to_be_filled = BTreeSet::new();
        if session.calls().is_interrupted() {
            let captures = session.calls().open_captures()?;
            to_be_filled.extend(captures.into_iter().filter_map(|(name, recorded)| {
                let is_here = self.is_here(&name, recorded.as_deref()?)?;
                (!is_here).then_some(name)
            }));
            self.rebind(&to_be_filled, options.overwrite)?;
            ToolRunner::new(self.clone(), ToolRegistry::new()).end_left_open()?;
        }
        let Some(to) = session.log().position() else { return Ok(None) };
        let others = &self.find_unfilled()? - &to_be_filled;
        self.rebind(&others, options.overwrite)?;
        if others.is_empty() && to_be_filled.is_empty() && !session.is_next_a_fill()? {
            return Ok(None);
        }
        let options = RewindOptions { overwrite: true, ..options.clone() };
        let goal = Goal { to, undoes: None, files: None, fills: true };
        self.rewind_to(goal, &options, &RestoreWait::from_state(self)).map(Some)
    }

    /// Returns whether a recorded capture of a resource was taken of this run's place; `None` if
    /// the resource is not rolled back with a tool, or the capture cannot be decoded.
    fn is_here(&self, name: &str, recorded: &[u8]) -> Option<bool> {
        let resource = self.live_captured().get(name).filter(|resource| resource.rolls_back())?;
        catch_panic(name, || Ok(!resource.is_from_elsewhere(&resource.recall(recorded)?))).ok()
    }

    /// Returns the names of the resources to be filled, for a session that is not interrupted.
    fn find_unfilled(&self) -> Result<BTreeSet<String>> {
        let (session, mut unfilled) = (self.session(), BTreeSet::new());
        let mut open: BTreeSet<String> =
            self.live_captured().keys().map(|name| name.clone().into_owned()).collect();
        if open.is_empty() {
            return Ok(unfilled);
        }
        session.calls().calls_back(&mut |call| {
            let Some((end, _)) = call.position() else { return Ok(true) };
            if call.tool == RESTORE && call.outcome != Outcome::Committed {
                return Ok(true);
            }
            let rewound = self.rewind_of(call)?.map(|_| self.rewound_by(end)).transpose()?;
            let begun = session.calls().read_begin(call.begin)?.resources;
            let found = match call.outcome {
                Outcome::Interrupted => session.calls().read_end_resources(end)?,
                _ => RecordedCaptures::new(),
            };
            for (name, recorded) in begun {
                let is_left = rewound.as_ref().is_some_and(|rewound| !rewound.contains_key(&name));
                let Some(is_here) = recorded.and_then(|recorded| self.is_here(&name, &recorded)) else {
                    continue;
                };
                if is_left || !open.remove(&name) {
                    continue;
                }
                let found_here = found.get(&name).and_then(|found| self.is_here(&name, found.as_deref()?));
                if !is_here && found_here != Some(true) {
                    unfilled.insert(name);
                }
            }
            Ok(!open.is_empty())
        })?;
        Ok(unfilled)
    }

    /// Permits captures of other places to be restored into the directories that a fill has filled,
    /// also for fills by earlier processes.
    pub(super) fn rebind_filled(&self) -> Result<()> {
        let (session, mut filled) = (self.session(), BTreeSet::new());
        if self.live_captured().is_empty() {
            return Ok(());
        }
        session.calls().calls_back(&mut |call| {
            let Some((end, _)) = call.position() else { return Ok(true) };
            if self.rewind_of(call)?.is_none_or(|rewind| !rewind.fills) {
                return Ok(true);
            }
            let rewound = self.rewound_by(end)?;
            for (name, recorded) in session.calls().read_begin(call.begin)?.resources {
                let is_here = recorded.and_then(|recorded| self.is_here(&name, &recorded));
                if is_here == Some(true) && rewound.contains_key(&name) {
                    filled.insert(name);
                }
            }
            Ok(true)
        })?;
        self.rebind(&filled, true)
    }

    /// Permits captures of other places to be restored into these resources.
    fn rebind(&self, names: &BTreeSet<String>, overwrite: bool) -> Result<()> {
        let mut named = self.live_captured().iter().filter(|(name, _)| names.contains(&***name));
        named.try_for_each(|(name, resource)| catch_panic(name, || resource.rebind(overwrite)))
    }
}
