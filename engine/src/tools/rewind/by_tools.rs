//! State of the resources as tools left them, according to the log. All other differences are
//! changes by hand.
//!
//! | last of the calls that have ended | state of the resources, except for changes by hand |
//! |---|---|
//! | a tool's, or a plain restore | the captures of its end record, or of its start record if its changes were rolled back |
//! | a rewind | the capture that it restored; content that it kept was changed by hand before |
//! | an undo of a rewind | the state before the call that is undone |
//! | an undo of the rollback of a call | the state before the undo; the content that it restored was changed by hand |
//! | a rewind, or an undo of one, that left the resource unchanged | the state before it |
//! | a restore or rewind that failed or was interrupted | the state before it |
//!
//! If a fork has its own directory, the calls that it shares with its parent have worked in the
//! parent's directory. Their captures are then of another place.
//!
//! A rewind may restore a capture of one directory into another one that replaced it. The capture
//! is then of the other directory, but still describes the state after the rewind in this one.

use std::collections::{BTreeMap, BTreeSet};

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Outcome;
use foldlog_codec::msgpack;

use super::{CaptureMoment, CaptureSet, CaptureTaken, ExecutionState, ResourceRewound, RewindRecord};
use crate::error::{Error, Result};
use crate::operation::{RESTORE, RestoreArguments, RewindArguments};
use crate::session::rewind::{LoggedCaptures, Sought, take};
use crate::types::ToolInvoked;

impl ExecutionState {
    /// Returns the state in which tools left these resources, as captures by resource name:
    /// differences from them are changes by hand. Also returns the names of the resources that a
    /// rewind restored to a capture of a different place.
    pub(super) fn captures_by_tools(
        &self,
        names: &BTreeSet<String>,
        present: &CaptureSet,
    ) -> Result<(LoggedCaptures, BTreeSet<String>)> {
        let mut found = BTreeMap::new();
        let mut left = vec![(SequenceNumber::MAX, names.clone())];
        while let Some((end, names)) = left.pop() {
            self.look_back(end, names, &mut found, &mut left)?;
        }
        let here = self.brought_here(&mut found, present)?;
        Ok((found, here))
    }

    /// Examines the last call on each resource whose capture is of another place than `present`. If
    /// it was a rewind in the resource's present place, its name is returned. If it was an undo
    /// there, the capture that the undo restored replaces the found one.
    fn brought_here(&self, found: &mut LoggedCaptures, present: &CaptureSet) -> Result<BTreeSet<String>> {
        let (session, mut here) = (self.session(), BTreeSet::new());
        let elsewhere = |name: &str, recorded: Option<&[u8]>| {
            recorded.is_some_and(|recorded| present.is_elsewhere(self.live_resources(), name, recorded))
        };
        let mut open: BTreeSet<String> = found
            .iter()
            .filter(|(name, found)| elsewhere(name, found.recorded.as_deref()))
            .map(|(name, _)| name.clone())
            .collect();
        if open.is_empty() {
            return Ok(here);
        }
        session.calls().calls_back(&mut |item| {
            if item.tool == RESTORE && item.outcome != Outcome::Committed {
                return Ok(true);
            }
            let begun = session.calls().read_begin(item.begin)?.resources;
            let rewind = self.rewind_of(item)?;
            if rewind.as_ref().is_some_and(|rewind| rewind.undoes_rollback) {
                return Ok(true);
            }
            let rewound = match (&rewind, item.position()) {
                (Some(_), Some((end, _))) => Some(self.rewound_by(end)?),
                _ => None,
            };
            let is_left = |name: &String| rewound.as_ref().is_some_and(|rewound| !rewound.contains_key(name));
            for (name, recorded) in begun {
                if is_left(&name) || !open.remove(&name) {
                    continue;
                }
                let Some(rewind) = rewind.as_ref().filter(|_| !elsewhere(&name, recorded.as_deref())) else {
                    continue;
                };
                match rewind.undoes.map(SequenceNumber::from) {
                    None => {
                        here.insert(name);
                    }
                    Some(undone) => {
                        let only = Sought::all(BTreeSet::from([name]));
                        found.extend(session.calls().captures_of_begin(undone, &only)?);
                    }
                }
            }
            Ok(!open.is_empty())
        })?;
        Ok(here)
    }

    /// Searches the calls that had ended before the record `limit` backwards for the captures of
    /// these resources. For captures that a rewind restored, adds a search to `sought` at the place
    /// where the rewind found them.
    fn look_back(
        &self,
        limit: SequenceNumber,
        names: BTreeSet<String>,
        found: &mut LoggedCaptures,
        sought: &mut Vec<(SequenceNumber, BTreeSet<String>)>,
    ) -> Result<()> {
        let session = self.session();
        let mut names = Sought::all(names);
        session.calls().calls_back(&mut |item| {
            let position = item.position().filter(|(end, _)| *end < limit);
            let Some((end, _)) = position else { return Ok(true) };
            let Some(rewind) = self.rewind_of(item)? else {
                take(found, &names, session.calls().captures_left_by(item, end)?);
                names.names.retain(|name| !found.contains_key(name));
                return Ok(!names.names.is_empty());
            };
            if rewind.undoes_rollback {
                return Ok(true);
            }
            for (name, CaptureTaken { record, of }) in self.rewound_by(end)? {
                if !names.names.remove(&name) {
                    continue;
                }
                let only = BTreeSet::from([name]);
                match (rewind.undoes, of) {
                    (Some(undone), _) => sought.push((undone.into(), only)),
                    (None, CaptureMoment::CallEnded) => sought.push((record + 1, only)),
                    (None, _) => {
                        take(found, &Sought::all(only), session.calls().logged_at_begin(record)?);
                    }
                }
            }
            Ok(!names.names.is_empty())
        })
    }

    /// Returns the arguments of a rewind that was carried out; `None` for other calls.
    pub(super) fn rewind_of(&self, call: &ToolInvoked) -> Result<Option<RewindArguments>> {
        if call.tool != RESTORE || call.outcome != Outcome::Committed {
            return Ok(None);
        }
        let arguments = self.session().calls().read_begin(call.begin)?.arguments;
        Ok(RestoreArguments::read(&arguments).and_then(|arguments| arguments.rewind))
    }

    /// Returns the captures that a rewind restored, by resource name, from its end record.
    pub(super) fn rewound_by(&self, end: SequenceNumber) -> Result<BTreeMap<String, CaptureTaken>> {
        let value = self.session().calls().result_at(end)?.0.unwrap_or_default().encode();
        let recorded: RewindRecord = msgpack::from_slice(&value).map_err(Error::unread(end))?;
        let of_each = recorded.resources.into_iter();
        Ok(of_each.map(|ResourceRewound { name, capture, .. }| (name, capture)).collect())
    }
}
