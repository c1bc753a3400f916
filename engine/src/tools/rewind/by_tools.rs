//! What the resources are if nobody but tools changed them, as the log knows it: what else is there was changed by hand.
//!
//! | last of the calls that have ended | the resources are, but for changes by hand |
//! |---|---|
//! | a tool's, or a plain restore | as its end captured them, or as its begin did if what it changed was rolled back |
//! | a rewind | as the capture that it went back to; what it kept beside that was changed by hand before |
//! | an undo of a rewind | as they were before the call that is undone |
//! | an undo of the rollback of a call | as they were before the undo; what it brought back was changed by hand |
//! | a rewind, or an undo of one, that left the resource alone | as they were before it |
//! | a restore or rewind that failed or was interrupted | as they were before it |
//!
//! In a fork, the calls that it shares with its parent have worked in the parent's directory, if it has one of its own: what they left is of
//! another place then.
//!
//! A rewind may bring what was captured in one directory into another one that took its place. Then the capture that it went back to is
//! of the other directory, and says all the same what it left in this one.

use std::collections::{BTreeMap, BTreeSet};

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Outcome;
use foldlog_codec::msgpack;

use super::{CaptureMoment, CaptureSet, CaptureTaken, ExecutionState, ResourceRewound, RewindRecord};
use crate::error::{Error, Result};
use crate::operation::{RESTORE, RestoreArguments, RewindArguments};
use crate::sabotage::{self, Breakage};
use crate::session::rewind::{LoggedCapture, LoggedCaptures, Sought, take};
use crate::types::ToolInvoked;

impl ExecutionState {
    /// Returns the captures by which changes by hand are told, by the names of these resources, and the names of those that a rewind
    /// brought to a capture of another place.
    pub(super) fn captures_by_tools(
        &self,
        names: &BTreeSet<String>,
        present: &CaptureSet,
    ) -> Result<(BTreeMap<String, LoggedCapture>, BTreeSet<String>)> {
        let mut found = BTreeMap::new();
        let mut left = vec![(SequenceNumber::MAX, names.clone())];
        while let Some((end, names)) = left.pop() {
            self.look_back(end, names, &mut found, &mut left)?;
        }
        let here = self.brought_here(&mut found, present)?;
        Ok((found, here))
    }

    /// Looks at the last call on each resource whose capture is of another place than what is `present`. If it was a rewind where the
    /// resource is now, returns its name. If that was undone there, puts what the undo brought back in the place of the capture.
    fn brought_here(
        &self,
        found: &mut BTreeMap<String, LoggedCapture>,
        present: &CaptureSet,
    ) -> Result<BTreeSet<String>> {
        let (session, mut here) = (self.session(), BTreeSet::new());
        let elsewhere = |name: &str, recorded: Option<&[u8]>| {
            recorded.is_some_and(|recorded| present.is_elsewhere(self.registered_resources(), name, recorded))
        };
        let mut open: BTreeSet<String> = found
            .iter()
            .filter(|(name, found)| elsewhere(name, found.recorded.as_deref()))
            .map(|(name, _)| name.clone())
            .collect();
        if open.is_empty() {
            return Ok(here);
        }
        session.calls_back(&mut |item| {
            if item.tool == RESTORE && item.outcome != Outcome::Committed {
                return Ok(true);
            }
            let begun = session.read_begin(item.begin, |begin| begin.resources)?;
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
                        found.extend(session.captures_of_begin(undone, &only)?);
                    }
                }
            }
            Ok(!open.is_empty())
        })?;
        Ok(here)
    }

    /// Looks back through the calls that had ended before the record `limit` for the captures of these resources. Those that a
    /// rewind went back to are `sought` where it found them.
    fn look_back(
        &self,
        limit: SequenceNumber,
        names: BTreeSet<String>,
        found: &mut BTreeMap<String, LoggedCapture>,
        sought: &mut Vec<(SequenceNumber, BTreeSet<String>)>,
    ) -> Result<()> {
        let session = self.session();
        let live_alone = sabotage::is(Breakage::HandChangesByLivePath)
            .then(|| (session.live_path(), session.position().unwrap_or_default()));
        let mut names = match sabotage::is(Breakage::RewindsPassedOver) {
            true => self.sought(names),
            false => Sought::all(names),
        };
        session.calls_back(&mut |item| {
            let is_live = |end| live_alone.as_ref().is_none_or(|(path, last)| path.is_live(end, *last));
            let position = item.position().filter(|(end, _)| *end < limit && is_live(*end));
            let Some((end, _)) = position else { return Ok(true) };
            let Some(rewind) = self.rewind_of(item)? else {
                take(found, &names, session.captures_left_by(item, end)?);
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
                        let captured = session.read_begin(record, |begin| begin.resources)?;
                        let logged = LoggedCaptures { record, is_end: false, captured };
                        take(found, &Sought::all(only), logged);
                    }
                }
            }
            Ok(!names.names.is_empty())
        })
    }

    /// Returns what tells a call from another one if it is a rewind that was carried out.
    pub(super) fn rewind_of(&self, call: &ToolInvoked) -> Result<Option<RewindArguments>> {
        if call.tool != RESTORE || call.outcome != Outcome::Committed {
            return Ok(None);
        }
        let arguments = self.session().read_begin(call.begin, |begin| begin.arguments)?;
        Ok(RestoreArguments::read(&arguments).and_then(|arguments| arguments.rewind))
    }

    /// Returns the captures that a rewind went back to, by the names of the resources, as the record of its end says.
    pub(super) fn rewound_by(&self, end: SequenceNumber) -> Result<BTreeMap<String, CaptureTaken>> {
        let value = self.session().result_at(end)?.0.unwrap_or_default().encode();
        let recorded: RewindRecord = msgpack::from_slice(&value).map_err(Error::unread(end))?;
        let of_each = recorded.resources.into_iter();
        Ok(of_each.map(|ResourceRewound { name, capture, .. }| (name, capture)).collect())
    }
}
