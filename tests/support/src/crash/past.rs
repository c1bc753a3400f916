//! The live records, and the outcome of each operation: the expected ledger.

use std::rc::Rc;

use foldlog::SequenceNumber;
use foldlog::inspect::OperationStatus;

use super::calls::{Call, End};

/// The live records: the last one, and those before it.
pub struct Live {
    last: SequenceNumber,
    before: Option<Rc<Live>>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "live up to {}", self.last)
    }
}

impl Live {
    /// Returns the live records with one more.
    pub(super) fn behind(before: Option<&Rc<Live>>, last: SequenceNumber) -> Option<Rc<Live>> {
        Some(Rc::new(Live { last, before: before.cloned() }))
    }

    pub(super) fn last(&self) -> SequenceNumber {
        self.last
    }

    pub(super) fn holds(live: Option<&Rc<Live>>, sequence: SequenceNumber) -> bool {
        let mut next = live;
        while let Some(live) = next.filter(|live| live.last >= sequence) {
            if live.last == sequence {
                return true;
            }
            next = live.before.as_ref();
        }
        false
    }
}

/// The outcome of one operation.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The number of its starts.
    pub(super) runs: u64,
    /// The outcome of its last run, without rollbacks.
    pub(super) fate: OperationStatus,
    pub(super) end: Option<SequenceNumber>,
    /// Each of its ends that an answer requested.
    pub(super) ends: Vec<Ended>,
}

/// An end of an operation that an answer requested.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) call: Rc<Call>,
    pub(super) answer: SequenceNumber,
    pub(super) end: SequenceNumber,
    pub(super) fate: OperationStatus,
    /// The success with which someone closed a call that was still open then.
    pub(super) closed: Option<bool>,
}

impl Entry {
    pub(super) fn new() -> Entry {
        Entry { runs: 0, fate: OperationStatus::Open, end: None, ends: Vec::new() }
    }

    pub(super) fn begins(&mut self) {
        self.runs += 1;
        (self.fate, self.end) = (OperationStatus::Open, None);
    }

    pub(super) fn ends(&mut self, end: End, sequence: SequenceNumber, call: Option<&Call>) {
        self.fate = match end {
            End::Committed => OperationStatus::Committed,
            End::Failed => OperationStatus::Failed,
            End::Interrupted => OperationStatus::Interrupted,
            End::Asks | End::Awaits | End::Within(_) => OperationStatus::Suspended,
        };
        self.end = Some(sequence);
        if let Some((call, answer)) = call.and_then(|call| Some((call, call.answer?))) {
            let (call, fate, closed) = (Rc::new(call.clone()), self.fate, None);
            self.ends.push(Ended { call, answer, end: sequence, fate, closed });
        }
    }

    pub(super) fn closes(&mut self, success: bool) {
        self.fate = OperationStatus::Settled;
        if let Some(last) = self.ends.last_mut() {
            last.closed = Some(success);
        }
    }
}
