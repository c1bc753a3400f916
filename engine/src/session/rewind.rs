//! Reads the log for a rewind: the captures at a position, the resulting changes, and the last
//! rewind.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Idempotency, Outcome, ToolBegin};

use super::operation_records::RecordedCaptures;
use super::{AbandonedCall, SessionCalls};
use crate::error::{Error, Result};
use crate::fold::log_source::LogSource;
use crate::fold::projection::Projection;
use crate::operation::RESTORE;
use crate::types::{Item, ToolInvocations, ToolInvoked};

/// Number of calls that are read at a time.
const CALLS: u64 = 64;

/// The capture of a resource as a record names it.
#[derive(Clone)]
pub(crate) struct LoggedCapture {
    /// Record that names the capture.
    pub(crate) record: SequenceNumber,
    /// Whether that is the end of a call; otherwise it is the start of one.
    pub(crate) is_end: bool,
    /// The capture in its recorded form; `None` if it was lost with its process.
    pub(crate) recorded: Option<Vec<u8>>,
}

/// Captures that a record names, by the names of the resources.
pub(crate) type LoggedCaptures = BTreeMap<String, LoggedCapture>;

fn logged(record: SequenceNumber, is_end: bool, captured: RecordedCaptures) -> LoggedCaptures {
    let logged = |recorded| LoggedCapture { record, is_end, recorded };
    captured.into_iter().map(|(name, recorded)| (name, logged(recorded))).collect()
}

/// Returns whether a recorded capture of the resource of this name belongs to a different place.
type IsElsewhere<'a> = Box<dyn Fn(&str, &[u8]) -> bool + 'a>;

/// Resources to find captures for. In a fork, captures in records that it shares with its parent
/// are skipped if they are of another place.
pub(crate) struct Sought<'a> {
    pub(crate) names: BTreeSet<String>,
    /// Last record that a fork shares with its parent.
    shared: Option<SequenceNumber>,
    is_elsewhere: IsElsewhere<'a>,
    passed_over: RefCell<BTreeSet<String>>,
}

impl<'a> Sought<'a> {
    pub(crate) fn new(
        names: BTreeSet<String>,
        shared: Option<SequenceNumber>,
        is_elsewhere: IsElsewhere<'a>,
    ) -> Sought<'a> {
        Sought { names, shared, is_elsewhere, passed_over: RefCell::default() }
    }

    /// Seeks all captures of these names.
    pub(crate) fn all(names: BTreeSet<String>) -> Sought<'static> {
        Sought::new(names, None, Box::new(|_, _| false))
    }

    /// Returns whether a capture of this name was skipped.
    pub(crate) fn has_passed_over(&self, name: &str) -> bool {
        self.passed_over.borrow().contains(name)
    }

    /// Leaves out captures that are not wanted.
    fn pick(&self, mut logged: LoggedCaptures) -> LoggedCaptures {
        logged.retain(|name, capture| self.wants(name, capture));
        logged
    }

    fn wants(&self, name: &str, capture: &LoggedCapture) -> bool {
        if !self.names.contains(name) {
            return false;
        }
        let is_shared = self.shared.is_some_and(|shared| capture.record <= shared);
        let recorded = capture.recorded.as_deref().filter(|_| is_shared);
        let passes = recorded.is_some_and(|recorded| (self.is_elsewhere)(name, recorded));
        if passes {
            self.passed_over.borrow_mut().insert(name.to_owned());
        }
        !passes
    }
}

/// The slices before and after a rollback, and the source of their items.
pub(crate) struct SlicesBeside {
    pub(crate) now: Projection,
    pub(crate) then: Projection,
    pub(crate) source: LogSource,
    /// Directory of the session, and the bytes of memory that differences may take.
    pub(crate) limit: Option<(Arc<Path>, u64)>,
}

impl SessionCalls<'_> {
    /// Returns the captures of these resources at a position: those left by the last call that had
    /// ended by then. For a resource without one, returns the first capture in a later start record
    /// that has the position on its live path.
    pub(crate) fn captures_at(&self, to: SequenceNumber, names: &Sought<'_>) -> Result<LoggedCaptures> {
        let path = self.session.log().live_path();
        let mut found = self.last_captures(names, &|end| end <= to && path.is_live(end, to))?;
        if found.len() == names.names.len() {
            return Ok(found);
        }
        let mut begins = BTreeSet::new();
        for item in self.session.log().slice::<ToolInvocations>()?.items_after(to) {
            let begin = item?.begin;
            if begin > to && path.is_live(to, begin) {
                begins.insert(begin);
            }
        }
        for begin in begins {
            take(&mut found, names, self.logged_at_begin(begin)?);
            if found.len() == names.names.len() {
                break;
            }
        }
        Ok(found)
    }

    pub(crate) fn captures_of_begin(
        &self,
        begin: SequenceNumber,
        names: &Sought<'_>,
    ) -> Result<LoggedCaptures> {
        Ok(names.pick(self.logged_at_begin(begin)?))
    }

    pub(crate) fn logged_at_begin(&self, begin: SequenceNumber) -> Result<LoggedCaptures> {
        Ok(logged(begin, false, self.read_begin(begin)?.resources))
    }

    pub(crate) fn captures_of_end(&self, end: SequenceNumber, names: &Sought<'_>) -> Result<LoggedCaptures> {
        Ok(names.pick(logged(end, true, self.read_end_resources(end)?)))
    }

    /// Returns the captures that the rollback of a call found, for those of these resources in
    /// which it replaced contents. If the log records what the first attempt found, returns that;
    /// otherwise the captures in the end record.
    pub(crate) fn captures_of_rollback(
        &self,
        begin: SequenceNumber,
        end: SequenceNumber,
        names: &Sought<'_>,
    ) -> Result<LoggedCaptures> {
        let mut replaced = self.captures_replaced_at(end)?;
        for (name, first) in self.captures_before_rollback(begin, end)? {
            replaced.entry(name).and_modify(|found| *found = first);
        }
        Ok(names.pick(logged(end, true, replaced)))
    }

    /// Returns the last capture of each resource that outlives its process, by the names of the
    /// resources and in their recorded form, regardless of rollbacks. A rewind without the host
    /// creates resources of these names.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log cannot be read, [`Error::Object`] if an object is missing or
    /// damaged.
    pub fn recorded_captures(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut names = BTreeSet::new();
        for item in self.session.log().slice::<ToolInvocations>()?.iter() {
            names.extend(self.read_begin(item?.begin)?.resources.into_keys());
        }
        let found = self.last_captures(&Sought::all(names), &|_| true)?.into_iter();
        Ok(found.filter_map(|(name, found)| Some((name, found.recorded?))).collect())
    }

    /// Searches backwards for the captures that calls with `wanted` ends left.
    fn last_captures(
        &self,
        names: &Sought<'_>,
        wanted: &dyn Fn(SequenceNumber) -> bool,
    ) -> Result<LoggedCaptures> {
        let mut found = BTreeMap::new();
        self.calls_back(&mut |item| {
            let Some((end, _)) = item.position().filter(|(end, _)| wanted(*end)) else { return Ok(true) };
            take(&mut found, names, self.captures_left_by(item, end)?);
            Ok(found.len() < names.names.len())
        })?;
        Ok(found)
    }

    /// Returns the captures that a call with the end record `end` left. A restore that failed or
    /// was interrupted left none: it may have worked on a different directory.
    pub(crate) fn captures_left_by(&self, call: &ToolInvoked, end: SequenceNumber) -> Result<LoggedCaptures> {
        if call.tool == RESTORE && call.outcome != Outcome::Committed {
            return Ok(LoggedCaptures::new());
        }
        // The changes of a failed or interrupted call were rolled back.
        let left = match call.outcome {
            Outcome::Committed | Outcome::Suspended => self.captures_kept_at(end)?,
            _ => RecordedCaptures::new(),
        };
        if !left.is_empty() || call.outcome == Outcome::Committed {
            return Ok(logged(end, true, left));
        }
        self.logged_at_begin(call.begin)
    }

    /// Passes the calls that have ended to `visit`, the last one first, until it returns `false`.
    pub(crate) fn calls_back(&self, visit: &mut dyn FnMut(&Item<ToolInvoked>) -> Result<bool>) -> Result<()> {
        let calls = self.session.log().slice::<ToolInvocations>()?;
        // The latest call is nearly always enough for those who search; earlier ones are read only if
        // it is not.
        let (mut end, mut count) = (calls.len(), 1);
        while end > 0 {
            let from = end.saturating_sub(count);
            let items: Vec<_> = calls.between(from, end).collect::<Result<_>>()?;
            for item in items.iter().rev() {
                if !visit(item)? {
                    return Ok(());
                }
            }
            (end, count) = (from, CALLS);
        }
        Ok(())
    }

    /// Checks that STATE can be rolled back to a position now.
    ///
    /// # Errors
    ///
    /// The errors of [`rollback_to`](crate::Session::rollback_to) that concern the position.
    pub(crate) fn check_target(&self, to: SequenceNumber) -> Result<()> {
        self.session.inner.target(&self.session.inner.state.lock(), to, None).map(drop)
    }

    /// Returns the error with which the live run of a replay refused to roll back to a position, so
    /// that it wrote no record; `None` if it did not, or the session is live.
    pub(crate) fn refused_before_turn(&self, to: SequenceNumber) -> Option<Error> {
        self.session.known_before_turn(|state| self.session.inner.target(state, to, None).err())
    }

    /// Checks that STATE can be rolled back to a position once the session is recovered, which ends
    /// all open calls.
    ///
    /// # Errors
    ///
    /// The errors of [`check_target`](crate::SessionCalls::check_target) then.
    pub(crate) fn check_target_recovered(&self, to: SequenceNumber) -> Result<()> {
        let state = self.session.inner.state.lock();
        let frozen = self.session.inner.frozen_at(&state, to)?;
        match frozen.projection.operations.all_changing().first() {
            Some(operation) => Err(Error::InsideTransaction { position: to, operation: *operation }),
            None => Ok(()),
        }
    }

    /// Returns the slices as they are now, and as they were at a position.
    pub(crate) fn slices_beside(&self, to: SequenceNumber) -> Result<SlicesBeside> {
        let state = self.session.inner.state.lock();
        let then = self.session.inner.frozen_at(&state, to)?.projection.clone();
        let source = self.session.inner.log_source(&state);
        let log_bytes = state.log.used_bytes();
        let budget = self.session.inner.store.options.memory.bytes(log_bytes);
        let limit = budget.map(|budget| (Arc::from(self.session.inner.dir.as_path()), budget));
        Ok(SlicesBeside { now: state.live.projection.clone(), then, source, limit })
    }

    /// Returns how often the tool of a call may run, according to its start record.
    pub(crate) fn idempotency_of(&self, call: &AbandonedCall) -> Result<Idempotency> {
        let begin = SequenceNumber::from(call.operation);
        let found = self.session.read_record(begin, |record, _| {
            Ok(ToolBegin::decode(record.body).map_err(Error::unread(begin))?.idempotency)
        })?;
        Ok(found.unwrap_or(Idempotency::Manual))
    }
}

/// Adds the wanted captures that are not found yet.
pub(crate) fn take(found: &mut LoggedCaptures, sought: &Sought<'_>, logged: LoggedCaptures) {
    for (name, capture) in sought.pick(logged) {
        found.entry(name).or_insert(capture);
    }
}
