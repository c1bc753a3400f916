//! Fills the directories of a run that took the place of others: behind a takeover, in a fork, after a move.
//!
//! A workspace *is to be filled* if the last call that captured it worked in another directory, and no recovery of that call and no rewind
//! has worked in this one since; a rewind that left the workspace alone has not. A fill rewinds the session to its last position, which abandons nothing, with what the directory holds overwritten; its record
//! says that it was one.
//!
//! | the process ends | the next fill |
//! |---|---|
//! | before the calls that were left open are ended | finds the directory empty, or with a part of what was there before the first of them: then it needs `overwrite` |
//! | behind that | finds that a recovery worked here, and fills nothing more |
//! | within the rewind | ends it, by which the directory is empty again, and fills it |
//! | behind that | finds nothing to fill |
//!
//! In a replay nobody looks at directories: there was a fill where the log has one.

use std::collections::BTreeSet;

use foldlog_codec::body::Outcome;

use super::{ExecutionState, Goal, RewindOptions, RewindReport};
use crate::error::{Result, catch_panic};
use crate::operation::RESTORE;
use crate::session::operation_records::RecordedCaptures;
use crate::tools::restore::RestoreWait;
use crate::tools::{ToolRegistry, ToolRunner};

impl ExecutionState {
    /// Fills the workspaces of this run that the session has not worked in, with what its last call left: behind a
    /// [takeover](crate::Store::take_over), in a [fork](crate::Store::fork), or where a workspace was moved. Calls that an earlier process
    /// left open are ended before, as by a [recovery](crate::tools::ToolRunner::recover) that has no tools: none runs again yet. Returns
    /// what was filled; `None` if nothing was to be.
    ///
    /// A workspace that the session has worked in stays as it is, also what was changed in it by hand. Call this whenever a session is
    /// opened, before anything works on it, and recover with the tools behind it: also whoever was killed within a fill goes on so.
    ///
    /// A workspace that is to be filled has to be empty, unless [`overwrite`](RewindOptions::overwrite) is set: then what else is there is
    /// captured and removed. [`undo_rewind`](ExecutionState::undo_rewind) undoes a fill. A [rewind](ExecutionState::rewind) to before the fill, by this or
    /// a later process, brings the files of that time, which another directory held. If one workspace of several is to be filled,
    /// what was changed by hand in the others is overwritten too.
    ///
    /// # Errors
    ///
    /// [`Error::Filesystem`](crate::Error::Filesystem) if a directory that is to be filled is not empty; [`Error::Collected`](crate::Error::Collected)
    /// if what the last call left was collected. Else those of [`recover`](crate::tools::ToolRunner::recover) and
    /// [`rewind`](ExecutionState::rewind).
    pub fn fill(&self, options: &RewindOptions) -> Result<Option<RewindReport>> {
        let session = self.session();
        let is_replay = session.replays();
        let mut to_be_filled = BTreeSet::new();
        if session.is_interrupted() {
            if !is_replay {
                let captures = session.open_captures()?;
                to_be_filled.extend(captures.into_iter().filter_map(|(name, recorded)| {
                    let is_here = self.is_here(&name, recorded.as_deref()?)?;
                    (!is_here).then_some(name)
                }));
                self.rebind(&to_be_filled, options.overwrite)?;
            }
            ToolRunner::new(self.clone(), ToolRegistry::new()).end_left_open()?;
        }
        let Some(to) = session.position() else { return Ok(None) };
        let is_to_be_filled = match is_replay {
            true => session.is_next_a_fill()?,
            false => {
                let others = &self.find_unfilled()? - &to_be_filled;
                self.rebind(&others, options.overwrite)?;
                !(others.is_empty() && to_be_filled.is_empty())
            }
        };
        if !is_to_be_filled {
            return Ok(None);
        }
        let options = RewindOptions { overwrite: true, ..options.clone() };
        let goal = Goal { to, undoes: None, files: None, fills: true };
        self.rewind_to(goal, &options, &RestoreWait::from_state(self)).map(Some)
    }

    /// Returns whether a capture of a resource, as it is recorded, was taken of the place that this run has; `None` of one that is not rolled
    /// back with a tool, or cannot be decoded.
    fn is_here(&self, name: &str, recorded: &[u8]) -> Option<bool> {
        let resource = self
            .registered_resources()
            .captured_resources()
            .get(name)
            .filter(|resource| resource.rolls_back())?;
        catch_panic(name, || Ok(!resource.is_from_elsewhere(&resource.recall(recorded)?))).ok()
    }

    /// Returns the names of the resources that are to be filled, of a session that is not interrupted.
    fn find_unfilled(&self) -> Result<BTreeSet<String>> {
        let (session, mut unfilled) = (self.session(), BTreeSet::new());
        let mut open: BTreeSet<String> = self
            .registered_resources()
            .captured_resources()
            .keys()
            .map(|name| name.clone().into_owned())
            .collect();
        session.calls_back(&mut |call| {
            let Some((end, _)) = call.position() else { return Ok(true) };
            if call.tool == RESTORE && call.outcome != Outcome::Committed {
                return Ok(true);
            }
            let rewound = self.rewind_of(call)?.map(|_| self.rewound_by(end)).transpose()?;
            let begun = session.read_begin(call.begin, |begin| begin.resources)?;
            let found = match call.outcome {
                Outcome::Interrupted => session.read_end_resources(end)?,
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

    /// Lets captures of other places be restored into the directories that a fill has filled, also by a process that comes after the one that
    /// filled them.
    pub(super) fn rebind_filled(&self) -> Result<()> {
        let (session, mut filled) = (self.session(), BTreeSet::new());
        session.calls_back(&mut |call| {
            let Some((end, _)) = call.position() else { return Ok(true) };
            if self.rewind_of(call)?.is_none_or(|rewind| !rewind.fills) {
                return Ok(true);
            }
            let rewound = self.rewound_by(end)?;
            for (name, recorded) in session.read_begin(call.begin, |begin| begin.resources)? {
                let is_here = recorded.and_then(|recorded| self.is_here(&name, &recorded));
                if is_here == Some(true) && rewound.contains_key(&name) {
                    filled.insert(name);
                }
            }
            Ok(true)
        })?;
        self.rebind(&filled, true)
    }

    /// Lets captures of other places be restored into these resources.
    fn rebind(&self, names: &BTreeSet<String>, overwrite: bool) -> Result<()> {
        let mut named = self
            .registered_resources()
            .captured_resources()
            .iter()
            .filter(|(name, _)| names.contains(&***name));
        named.try_for_each(|(name, resource)| catch_panic(name, || resource.rebind(overwrite)))
    }
}
