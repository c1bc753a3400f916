//! A naive model of calls that wait for somebody: whom each waits for, when it may run, and what may be decided about it.

use std::rc::Rc;

use foldlog::inspect::OperationStatus;
use foldlog::{OperationId, SequenceNumber};

use super::calls::{Act, After, Call, End, Errand};
use super::past::{Ended, Live};

/// What somebody decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An interrupted call is to run again.
    RunAgain,
    /// What was asked is approved, until a time where there is one; whether the right arguments are named.
    Approved {
        /// From when on the approval does not count.
        until_us: Option<i64>,
        /// Whether it names the arguments of the call.
        knows: bool,
    },
    /// The call is over, with this success.
    Closed(bool),
}

/// An approval that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Approved {
    until_us: Option<i64>,
}

/// A call that waits for somebody, or for one within it that does.
#[derive(Clone, Debug)]
pub(super) struct WaitingCall {
    call: Call,
    parent: Option<OperationId>,
    form: End,
    end: SequenceNumber,
    expires_us: Option<i64>,
    decided: Option<Verdict>,
}

/// How a waiting call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// Somebody has to decide about this operation.
    Waits(OperationId),
    /// It goes on.
    MayRun,
    /// Nobody decided, or nobody ran it, in time.
    Expired,
}

/// What is heard when a call is made again for which an answer asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It runs as if it had never run.
    Anew,
    /// Somebody has to decide about it, for it was interrupted.
    Unsettled,
    /// It is over, with this success.
    Recorded(bool),
    /// It waits, or goes on.
    Waiting(OperationId),
}

/// What a question is to look like.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The operation that waits.
    pub operation: OperationId,
    /// Within which one it ran.
    pub parent: Option<OperationId>,
    /// Whether it awaits its result.
    pub awaits: bool,
    /// What it is to do.
    pub errand: Errand,
    /// Whether the question expires.
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
        // The engine looks at the clock a little earlier, which makes no difference to a time that is over at once, nor to
        // one of a day.
        let expires_us = own.and_then(|waits| waits.expires_us).map(|after| time_us + after as i64);
        WaitingCall { call, parent, form, end, expires_us, decided: None }
    }
}

impl After {
    /// The questions that wait for an answer at this time.
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

    /// All that waits, also what a rollback has withdrawn.
    pub fn waiting(&self) -> Vec<OperationId> {
        self.waiting.keys().copied().collect()
    }

    /// What an operation that waits was asked to do.
    pub fn call_of(&self, operation: OperationId) -> Option<&Call> {
        let waiting = self.waiting.get(&operation).map(|one| &one.call);
        waiting.or_else(|| self.unsettled.get(&operation).map(|one| &one.call))
    }

    /// What became of each operation, and how often it began.
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

    /// The records that passed for answers, each of which asked for a call.
    pub fn answers(&self) -> Vec<SequenceNumber> {
        let mut answers: Vec<_> =
            self.ledger.values().flat_map(|entry| &entry.ends).map(|ended| ended.answer).collect();
        answers.sort();
        answers.dedup();
        answers
    }

    /// The call for which this answer asked.
    pub fn call_for(&self, answer: SequenceNumber) -> Option<&Call> {
        let mut ends = self.ledger.values().flat_map(|entry| &entry.ends);
        ends.find(|ended| ended.answer == answer).map(|ended| &*ended.call)
    }

    /// What is known of the call for which this answer asked.
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

    /// Which operation last ended, with success or without, and whether it was closed by somebody.
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

    /// Whether the question of an operation counts: one within another does while that one does.
    fn is_asked(&self, operation: OperationId) -> bool {
        let one = &self.waiting[&operation];
        match one.parent {
            Some(parent) if self.waiting.contains_key(&parent) => self.is_asked(parent),
            Some(parent) => self.is_open(parent),
            None => self.counts(one.end),
        }
    }

    /// How an operation stands at a time, where it waits and was not withdrawn.
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

    /// What goes on without anybody's asking for it.
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

    /// What the innermost open call writes where it makes a call within it; so many equal ones it has made before in
    /// this run.
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

    /// Whether this may be decided about an operation.
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
            // The call within which it ran asks for the decision when it runs again.
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

    /// Withdraws what waits within an operation that is over.
    pub(super) fn withdraw_within(&mut self, outer: OperationId) {
        let inner: Vec<OperationId> =
            self.waiting.iter().filter(|(_, one)| one.parent == Some(outer)).map(|(it, _)| *it).collect();
        for operation in inner {
            Rc::make_mut(&mut self.waiting).remove(&operation);
            self.withdraw_within(operation);
        }
    }

    /// What another session has approved does not count in this one.
    pub(super) fn ask_anew(&mut self) {
        Rc::make_mut(&mut self.approvals).clear();
        for one in Rc::make_mut(&mut self.waiting).values_mut() {
            one.decided = one.decided.filter(|decided| matches!(decided, Verdict::Closed(_)));
        }
    }
}
