//! Steps of the simulator with compactions: it compacts sessions, and reads the positions that they
//! dropped.

use foldlog::inspect::LogReader;
use foldlog::{Clock as _, CollectOptions, CompactOptions, Error};
use foldlog_test_support::crash::{Act, Slices, draw_options};
use uuid::Uuid;

use super::World;

/// The fewest records of a session that is compacted: short ones have little to drop.
const RECORDS_MIN: u64 = 12;

impl World {
    /// Compacts a closed session if it is long enough and none of its records is unknown. Otherwise
    /// opens it.
    pub(super) fn compact(&mut self, id: Uuid) {
        let memory = &self.known[&id].memory;
        if !memory.pending.is_empty() || memory.len() < RECORDS_MIN {
            return self.open(id);
        }
        let (since_us, now_us) = (memory.records[0].time_us, self.clock.now_us());
        let options = draw_options(&mut self.chance, memory.len(), since_us, now_us);
        // A limit by age moves until the second run. That run also rewrites records that are not
        // known to be durable.
        let may_plan = self.chance.percent(30) && options.younger_than.is_none();
        let is_attested = || {
            let audit = LogReader::open_on(self.for_reading(), self.store.session_dir(id));
            audit.is_ok_and(|audit| audit.report().unattested == 0)
        };
        let is_planned = may_plan && is_attested();
        let dry_run = CompactOptions { dry_run: true, ..options.clone() };
        let planned = is_planned.then(|| self.store.compact(id, &dry_run));
        self.say(|| format!("   {id}: compacted, {options:?}"));
        let memory = &mut self.known.get_mut(&id).expect("it is known").memory;
        memory.pending.push_back(Act::Compacts);
        let done = self.store.compact(id, &options);
        self.say(|| format!("   {id}: {done:?}"));
        let now_us = self.clock.now_us();
        let known = self.known.get_mut(&id).expect("it is known");
        known.memory.compacted(&options, now_us);
        let report = match done {
            Ok(report) => report,
            Err(Error::Interrupted { operations, .. }) => {
                let open = known.memory.now().begins();
                assert!(!open.is_empty() && operations.len() == open.len(), "{id}: {operations:?}, {open:?}");
                return;
            }
            Err(error) => return self.failed(id, &error),
        };
        assert!(known.memory.now().open.is_empty(), "{id}: it was compacted, and is to be recovered");
        if let Some(Ok(planned)) = planned {
            let facts = |of: &foldlog::CompactReport| (of.through, of.kept.clone(), of.dropped, of.bytes);
            assert_eq!(facts(&planned), facts(&report), "{id}: the dry run said otherwise");
        }
        let read = LogReader::open_on(self.for_reading(), self.store.session_dir(id)).and_then(|audit| {
            let known = self.known.get_mut(&id).expect("it is known");
            let len = known.memory.len();
            known.memory.learn_from(|from, visit| audit.records(from, u64::MAX, visit))?;
            known.memory.pending.clear();
            if known.memory.len() > len {
                known.memory.told_durable(known.memory.len());
            }
            known.memory.compacted_well(&report, &audit);
            known.memory.check_compacted(&audit, &mut self.chance)
        });
        read.unwrap_or_else(|error| panic!("{id}: {error}"));
        if self.chance.percent(50) {
            self.collect(id);
        }
    }

    /// Collects the store. No session may change; later checks of the sessions find anything
    /// missing.
    fn collect(&mut self, id: Uuid) {
        let done =
            self.store.collect(&CollectOptions { calls: self.chance.below(3), ..CollectOptions::default() });
        self.say(|| format!("   {id}: collected, {done:?}"));
        match done {
            Ok(report) => {
                for (skipped, reason) in report.skipped {
                    let is_open = self.known.get(&skipped).is_some_and(|known| known.open.is_some());
                    assert!(is_open || self.broken > 0, "{skipped}: {reason}");
                }
            }
            Err(error) => self.failed(id, &error),
        }
    }

    /// Tries to compact an open session: through its own handle, or through the store, which must
    /// refuse.
    pub(super) fn compact_an_open_one(&mut self, id: Uuid) {
        if self.chance.percent(20) {
            let refused = self.store.compact(id, &CompactOptions::default());
            let refused = refused.expect_err("what is written is compacted by its writer alone");
            if !matches!(refused, Error::Locked { .. }) {
                self.failed(id, &refused);
            }
            return;
        }
        let memory = &self.known[&id].memory;
        let (since_us, now_us) = (memory.records[0].time_us, self.clock.now_us());
        let options = draw_options(&mut self.chance, memory.len(), since_us, now_us);
        self.say(|| format!("   {id}: compacted while it is open, {options:?}"));
        let known = self.known.get_mut(&id).expect("it is known");
        let is_within = !known.memory.now().open.is_empty();
        known.memory.pending.push_back(Act::Compacts);
        let session = known.session().clone();
        let done = session.log().compact(&options);
        let now_us = self.clock.now_us();
        self.say(|| format!("   {id}: {done:?}"));
        let known = self.known.get_mut(&id).expect("it is known");
        known.memory.compacted(&options, now_us);
        let report = match done {
            Err(Error::InsideTransaction { .. }) if is_within => {
                known.memory.pending.clear();
                return;
            }
            done => done,
        };
        assert!(report.is_err() || !is_within, "{id}: it was compacted within a call");
        let told = report.as_ref().map(|_| None).map_err(Error::clone);
        self.wrote(id, told);
        let Ok(report) = report else { return };
        let position = self.chance.below(self.known[&id].memory.len());
        let read = LogReader::open_on(self.for_reading(), self.store.session_dir(id)).and_then(|audit| {
            let memory = &mut self.known.get_mut(&id).expect("it is known").memory;
            memory.pending.clear();
            memory.compacted_well(&report, &audit);
            memory.check_compacted(&audit, &mut self.chance)
        });
        read.unwrap_or_else(|error| panic!("{id}: {error}"));
        let memory = &self.known[&id].memory;
        let at = session.dynamic().state_at(position).map(|state| Some(state.slices));
        let at = at.or_else(|error| match error {
            Error::Compacted { .. } => Ok(None),
            error => Err(error),
        });
        match (Slices::of(&session), at) {
            (Ok(slices), Ok(at)) => {
                assert_eq!(slices, memory.now().shown(), "{id}: the slices behind a compaction");
                assert_eq!(at.is_none(), memory.compactions.took(position), "{id}: {position}");
            }
            (Err(error), _) | (_, Err(error)) => self.failed(id, &error),
        }
    }

    /// Checks that the slices at a position are reported as dropped, or that the read failed for
    /// another valid reason.
    pub(super) fn is_gone(&mut self, id: Uuid, position: u64, refused: &Error) {
        self.say(|| format!("   {id}: {position} is gone: {refused}"));
        match refused {
            Error::Compacted { position: at, earliest } => {
                assert!(*at == position && *earliest > *at, "{id}: {refused}");
            }
            refused => self.failed(id, refused),
        }
    }
}
