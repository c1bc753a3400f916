//! A naive model of waiting calls: for whom each waits, when it may run, and which decisions are
//! valid.

use std::rc::Rc;

use foldlog::inspect::OperationStatus;
use foldlog::{OperationId, SequenceNumber};

use super::calls::{Act, After, Call, End, Errand};
use super::past::{Ended, Live};

/// A person's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An interrupted call is to run again.
    RunAgain,
    /// The question is approved, perhaps with an expiry; the approval may name wrong arguments.
    Approved {
        /// The time from which the approval is no longer valid.
        until_us: Option<i64>,
        /// Whether it names the arguments of the call.
        knows: bool,
    },
    /// The call is over, with this success.
    Closed(bool),
}

/// A valid approval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Approved {
    until_us: Option<i64>,
}

/// A call that waits for a person, or for a nested call that does.
#[derive(Clone, Debug)]
pub(super) struct WaitingCall {
    call: Call,
    parent: Option<OperationId>,
    form: End,
    end: SequenceNumber,
    expires_us: Option<i64>,
    decided: Option<Verdict>,
}

/// The state of a waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// This operation needs a decision.
    Waits(OperationId),
    /// It continues.
    MayRun,
    /// No decision was made, or it did not run, in time.
    Expired,
}

/// The outcome of repeating a call that an answer requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It runs as if for the first time.
    Anew,
    /// It was interrupted, and needs a decision.
    Unsettled,
    /// It is over, with this success.
    Recorded(bool),
    /// It waits, or continues.
    Waiting(OperationId),
}

/// The expected form of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub operation: OperationId,
    /// The operation within which it ran.
    pub parent: Option<OperationId>,
    /// Whether it awaits its result.
    pub awaits: bool,
    /// Its task.
    pub errand: Errand,
    pub expires: bool,
}

impl WaitingCall {
    pub(super) fn new(
        call: Call,
        parent: Option<OperationId>,
        form: End,
        end: SequenceNumber,
        time_us: i64,
    ) -> WaitingCall {
        let waits = call.errand.as_ref().and_then(|errand| errand.waits);
        let own = waits.filter(|_| !matches!(form, End::Within(_)));
        // The engine reads the clock a little earlier, which matters neither for a time that is
        // over at once nor for one of a day.
        let expires_us = own.and_then(|waits| waits.expires_us).map(|after| time_us + after as i64);
        WaitingCall { call, parent, form, end, expires_us, decided: None }
    }
}

impl After {
    pub fn asked(&self, now_us: i64) -> Vec<Asked> {
        let waits = |(operation, one): (&OperationId, &WaitingCall)| {
            (self.stands(*operation, now_us) == Some(Stands::Waits(*operation))).then(|| Asked {
                operation: *operation,
                parent: one.parent,
                awaits: one.form == End::Awaits,
                errand: one.call.errand.clone().expect("what runs elsewhere never waits"),
                expires: one.expires_us.is_some(),
            })
        };
        self.waiting.iter().filter_map(waits).collect()
    }

    /// Returns all that waits, including operations that a rollback has withdrawn.
    pub fn waiting(&self) -> Vec<OperationId> {
        self.waiting.keys().copied().collect()
    }

    /// Returns the call of a waiting operation.
    pub fn call_of(&self, operation: OperationId) -> Option<&Call> {
        let waiting = self.waiting.get(&operation).map(|one| &one.call);
        waiting.or_else(|| self.unsettled.get(&operation).map(|one| &one.call))
    }

    /// Returns the outcome of each operation, and the number of its starts.
    pub fn fates(&self) -> Vec<(OperationId, OperationStatus, u64)> {
        let fate = |operation: OperationId| {
            let entry = &self.ledger[&operation];
            let is_live = entry.end.is_some_and(|end| self.counts(end));
            let waits = self.waiting.contains_key(&operation) && self.is_asked(operation);
            match entry.fate {
                OperationStatus::Committed if !is_live => OperationStatus::Abandoned,
                OperationStatus::Suspended if !waits => OperationStatus::Abandoned,
                fate => fate,
            }
        };
        self.ledger.iter().map(|(operation, entry)| (*operation, fate(*operation), entry.runs)).collect()
    }

    /// Returns the records that served as answers, each of which requested a call.
    pub fn answers(&self) -> Vec<SequenceNumber> {
        let mut answers: Vec<_> =
            self.ledger.values().flat_map(|entry| &entry.ends).map(|ended| ended.answer).collect();
        answers.sort();
        answers.dedup();
        answers
    }

    /// Returns the call that this answer requested.
    pub fn call_for(&self, answer: SequenceNumber) -> Option<&Call> {
        let mut ends = self.ledger.values().flat_map(|entry| &entry.ends);
        ends.find(|ended| ended.answer == answer).map(|ended| &*ended.call)
    }

    /// Returns the state of the call that this answer requested.
    pub fn again(&self, answer: SequenceNumber) -> Again {
        let of_answer = |(_, ended): &(OperationId, &Ended)| {
            ended.answer == answer && (ended.fate == OperationStatus::Interrupted || self.counts(ended.end))
        };
        let all = self
            .ledger
            .iter()
            .flat_map(|(operation, entry)| entry.ends.iter().map(|ended| (*operation, ended)));
        let Some((operation, ended)) = all.filter(of_answer).max_by_key(|(_, ended)| ended.end) else {
            return Again::Anew;
        };
        let waits = self.waiting.get(&operation).is_some_and(|one| one.end == ended.end);
        match (ended.fate, ended.closed) {
            (OperationStatus::Committed, _) => Again::Recorded(true),
            (OperationStatus::Failed, _) => Again::Recorded(false),
            (OperationStatus::Interrupted, _) if self.unsettled.contains_key(&operation) => Again::Unsettled,
            (OperationStatus::Suspended, _) if waits => Again::Waiting(operation),
            (_, Some(success)) => Again::Recorded(success),
            (_, None) => Again::Anew,
        }
    }

    /// Whether an operation last ended with success, including a close by a person.
    pub fn success_of(&self, operation: OperationId) -> Option<bool> {
        let entry = self.ledger.get(&operation)?;
        match entry.fate {
            OperationStatus::Committed => Some(true),
            OperationStatus::Failed => Some(false),
            OperationStatus::Settled => entry.ends.last().and_then(|ended| ended.closed),
            _ => None,
        }
    }

    fn counts(&self, sequence: SequenceNumber) -> bool {
        Live::holds(self.live.as_ref(), sequence)
    }

    fn is_open(&self, operation: OperationId) -> bool {
        self.open.iter().any(|open| open.operation == operation)
    }

    /// Whether the question of an operation counts: a nested one counts while its outer one does.
    fn is_asked(&self, operation: OperationId) -> bool {
        let one = &self.waiting[&operation];
        match one.parent {
            Some(parent) if self.waiting.contains_key(&parent) => self.is_asked(parent),
            Some(parent) => self.is_open(parent),
            None => self.counts(one.end),
        }
    }

    /// Returns the state of an operation at a time, if it waits and was not withdrawn.
    pub fn stands(&self, operation: OperationId, now_us: i64) -> Option<Stands> {
        self.waiting.get(&operation)?;
        self.is_asked(operation).then(|| self.standing(operation, now_us))
    }

    fn standing(&self, operation: OperationId, now_us: i64) -> Stands {
        let one = &self.waiting[&operation];
        let is_over = |until_us: Option<i64>| until_us.is_some_and(|until_us| until_us <= now_us);
        match (one.form, one.decided) {
            (End::Within(inner), _) if self.waiting.contains_key(&inner) => {
                match self.standing(inner, now_us) {
                    Stands::Waits(operation) => Stands::Waits(operation),
                    Stands::MayRun | Stands::Expired => Stands::MayRun,
                }
            }
            (End::Within(_), _) => Stands::MayRun,
            (_, Some(Verdict::Approved { until_us, .. })) if is_over(until_us) => Stands::Expired,
            (_, Some(_)) => Stands::MayRun,
            (_, None) if is_over(one.expires_us) => Stands::Expired,
            (_, None) => Stands::Waits(operation),
        }
    }

    /// Whether the innermost open call runs with an approval.
    pub(super) fn is_approved(&self, now_us: i64) -> bool {
        let operation = self.open.last().expect("it is open").operation;
        let approved = self.approvals.get(&operation);
        approved.is_some_and(|approved| approved.until_us.is_none_or(|until_us| until_us > now_us))
    }

    /// Returns the operations that continue without a request.
    pub(super) fn due(&self, now_us: i64) -> Vec<OperationId> {
        let is_due = |(operation, one): &(&OperationId, &WaitingCall)| {
            one.parent.is_none()
                && matches!(self.stands(**operation, now_us), Some(Stands::MayRun | Stands::Expired))
        };
        self.waiting.iter().filter(is_due).map(|(operation, _)| *operation).collect()
    }

    pub(super) fn goes_on(&self, operation: OperationId, now_us: i64) -> Vec<Act> {
        match self.stands(operation, now_us) {
            Some(Stands::Expired) => vec![Act::Settle(operation, Verdict::Closed(false))],
            Some(Stands::MayRun) => self.waiting[&operation].call.acts_of(Some(operation)),
            Some(Stands::Waits(_)) | None => Vec::new(),
        }
    }

    /// Returns the acts of the innermost open call when it makes a nested call, after
    /// `equal_before` equal ones in this run.
    pub(super) fn inner_goes_on(&self, errand: &Errand, equal_before: usize, now_us: i64) -> Vec<Act> {
        let parent = self.open.last().expect("it is open").operation;
        let same = |(_, one): &(&OperationId, &WaitingCall)| {
            one.parent == Some(parent) && one.call.errand.as_ref() == Some(errand)
        };
        let Some((operation, one)) = self.waiting.iter().filter(same).nth(equal_before) else {
            return Call::within(errand.clone()).acts();
        };
        match (self.standing(*operation, now_us), one.decided) {
            (Stands::Waits(operation), _) => vec![Act::End(End::Within(operation))],
            (Stands::Expired, _) => vec![Act::Settle(*operation, Verdict::Closed(false))],
            (Stands::MayRun, Some(Verdict::Closed(_))) => Vec::new(),
            (Stands::MayRun, _) => one.call.acts_of(Some(*operation)),
        }
    }

    /// Whether a decision about an operation is valid.
    pub fn may_settle(&self, operation: OperationId, verdict: Verdict, now_us: i64) -> bool {
        if self.is_open(operation) {
            return false;
        }
        let Some(one) = self.waiting.get(&operation) else {
            return self.unsettled.contains_key(&operation) && !matches!(verdict, Verdict::Approved { .. });
        };
        let refuses = verdict == Verdict::Closed(false);
        match (self.stands(operation, now_us), one.form, one.decided) {
            (None | Some(Stands::Expired), ..) => false,
            (_, End::Within(_), _) => refuses,
            // An approval can be taken back.
            (_, _, Some(Verdict::Approved { .. })) => refuses,
            (_, _, Some(_)) => false,
            (_, End::Asks, None) => {
                matches!(verdict, Verdict::Closed(_) | Verdict::Approved { knows: true, .. })
            }
            (_, _, None) => matches!(verdict, Verdict::Closed(_)),
        }
    }

    pub(super) fn settle(&mut self, operation: OperationId, verdict: Verdict, sequence: SequenceNumber) {
        let approvals = Rc::make_mut(&mut self.approvals);
        match verdict {
            Verdict::Approved { until_us, .. } => drop(approvals.insert(operation, Approved { until_us })),
            Verdict::Closed(success) => {
                approvals.remove(&operation);
                let entry = Rc::make_mut(&mut self.ledger).get_mut(&operation).expect("it began");
                entry.closes(success);
            }
            Verdict::RunAgain => {}
        }
        let is_over = matches!(verdict, Verdict::Closed(_));
        let waiting = Rc::make_mut(&mut self.waiting);
        match waiting.get_mut(&operation) {
            // The outer call looks up the decision when it runs again.
            Some(one) if !is_over || one.parent.is_some() => one.decided = Some(verdict),
            Some(_) => drop(waiting.remove(&operation)),
            None if is_over => drop(self.unsettled.remove(&operation)),
            None => {
                let unsettled = self.unsettled.get_mut(&operation).expect("it was interrupted");
                unsettled.is_to_run_again(sequence);
            }
        }
        if is_over {
            self.withdraw_within(operation);
        }
    }

    /// Withdraws waiting calls within an operation that is over.
    pub(super) fn withdraw_within(&mut self, outer: OperationId) {
        let inner: Vec<OperationId> =
            self.waiting.iter().filter(|(_, one)| one.parent == Some(outer)).map(|(it, _)| *it).collect();
        for operation in inner {
            Rc::make_mut(&mut self.waiting).remove(&operation);
            self.withdraw_within(operation);
        }
    }

    /// Drops approvals: those of another session do not count in this one.
    pub(super) fn ask_anew(&mut self) {
        Rc::make_mut(&mut self.approvals).clear();
        for one in Rc::make_mut(&mut self.waiting).values_mut() {
            one.decided = one.decided.filter(|decided| matches!(decided, Verdict::Closed(_)));
        }
    }
}
