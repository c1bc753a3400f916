//! A naive model of tool calls: the effect of each of their records on the slices, on the purse
//! that tools pay from, and on the open, unsettled and waiting calls.

use std::collections::BTreeMap;
use std::rc::Rc;

use foldlog::{Idempotency, OperationId, RecordKind, SequenceNumber};
use foldlog_codec::body::Observed;
use foldlog_codec::msgpack;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::past::{Entry, Live};
use super::waiting::{Approved, Verdict, WaitingCall};
use super::{Chance, Slices};
use crate::host::StepAdded;

/// The task of a call: it adds a number of steps to the plan, each of which costs one coin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Errand {
    /// Determines the content of the steps.
    pub seed: u64,
    /// The number of steps.
    pub steps: u8,
    /// Nested calls, made after its steps.
    pub within: Vec<Errand>,
    /// Whether and how it waits for a person.
    pub waits: Option<Waits>,
    /// Whether it succeeds.
    pub succeeds: bool,
}

/// How a call waits for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// When it waits, and for what.
    pub moment: Moment,
    /// The time for an answer; `None` means forever.
    pub expires_us: Option<u64>,
}

/// When a call starts to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Moment {
    /// Asks before it does anything.
    First,
    /// Asks after all its work, which is rolled back.
    Last,
    /// Awaits its result after all its work.
    Done,
}

/// A time that is over at the next reading of the clock.
pub const MOMENT_US: u64 = 1;
/// A time that is over only if the clock is set forward.
pub const DAY_US: u64 = 86_400_000_000;

impl Errand {
    /// Draws the task of a call, perhaps with nested ones.
    pub fn draw(chance: &mut Chance) -> Errand {
        Errand::draw_below(chance, 2)
    }

    fn draw_below(chance: &mut Chance, deeper: u8) -> Errand {
        let waits = chance.percent(30).then(|| Waits {
            moment: *chance.pick(&[Moment::First, Moment::First, Moment::Last, Moment::Done]),
            expires_us: *chance.pick(&[None, None, None, Some(DAY_US), Some(DAY_US), Some(MOMENT_US)]),
        });
        let mut within = Vec::new();
        if deeper > 0 && chance.percent(25) {
            within.push(Errand::draw_below(chance, deeper - 1));
            if chance.percent(40) {
                // Two equal calls are two calls.
                let second = within[0].clone();
                within.push(if chance.percent(50) { second } else { Errand::draw_below(chance, 0) });
            }
        }
        let (seed, steps) = (chance.number(), chance.below(4) as u8);
        Errand { seed, steps, within, waits, succeeds: chance.percent(60) }
    }

    pub fn steps(&self) -> Vec<StepAdded> {
        let mut chance = Chance::new(self.seed);
        let mut step = || {
            let len = if chance.percent(12) { 900 } else { 30 };
            StepAdded { title: chance.text(len), part: chance.below(4) as u8 }
        };
        (0..self.steps).map(|_| step()).collect()
    }

    pub fn waits_at(&self, moment: Moment) -> bool {
        self.waits.is_some_and(|waits| waits.moment == moment)
    }

    /// Returns what its tool can find out about an interrupted call.
    pub fn found(&self) -> Found {
        match self.seed % 6 {
            0 => Found::Done(true),
            1 => Found::Done(false),
            2 => Found::Nothing,
            _ => Found::Unknown,
        }
    }

    /// Returns its question, if it asks one.
    pub fn question(&self) -> String {
        format!("Is {} right?", self.seed)
    }
}

/// An open call.
#[derive(Clone, Debug)]
pub struct OpenCall {
    /// The sequence number of its start record.
    pub begin: SequenceNumber,
    pub(super) operation: OperationId,
    about: Option<About>,
    call: Call,
    /// The slices at its start.
    then: Rc<Slices>,
    live: Option<Rc<Live>>,
    purse: i64,
    /// Whether a record states what its rollback found.
    is_found: bool,
}

impl OpenCall {
    /// Whether it changes nothing, so that nothing is rolled back with it.
    pub fn only_asks(&self) -> bool {
        matches!(self.about, Some(About::Asks(_)))
    }
}

/// A call that was interrupted and is not settled.
#[derive(Clone, Debug)]
pub struct UnsettledCall {
    pub(super) call: Call,
    /// Whether its effects are undone.
    pub undone: bool,
    /// Whether someone decided that it runs again.
    pub run_again: bool,
    /// The start record of its last run.
    begin: SequenceNumber,
    /// The last decision to run it again, and whether the session went back to before the call
    /// since.
    decided: Option<(SequenceNumber, bool)>,
}

impl UnsettledCall {
    fn new(call: Call, begin: SequenceNumber) -> UnsettledCall {
        UnsettledCall { call, undone: false, run_again: false, begin, decided: None }
    }

    /// Records a decision to run it again.
    pub(super) fn is_to_run_again(&mut self, sequence: SequenceNumber) {
        (self.run_again, self.decided) = (true, Some((sequence, false)));
    }

    /// Whether a rollback to before the call also took back the decision about it.
    fn is_taken_back(&self, live: Option<&Rc<Live>>) -> bool {
        self.decided.is_some_and(|(decided, went_back)| went_back && !Live::holds(live, decided))
    }
}

/// The called tool and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The tool's idempotency, which determines its handling after an interruption; each value has
    /// its own tool.
    pub idempotency: Idempotency,
    /// Its task; `None` for a call of an external tool, whose work is unknown.
    pub errand: Option<Errand>,
    /// The record that serves as the answer that requested it, if any.
    pub answer: Option<SequenceNumber>,
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its effects stay.
    Committed,
    /// Its effects were rolled back.
    Failed,
    /// Its effects were rolled back when the session was recovered.
    Interrupted,
    /// Asks a person; its effects were rolled back.
    Asks,
    /// Awaits its result; its effects stay.
    Awaits,
    /// Waits for this nested call; its effects were rolled back.
    Within(OperationId),
}

impl End {
    pub(super) fn rolls_back(self) -> bool {
        !matches!(self, End::Committed | End::Awaits)
    }
}

/// The purpose of a call that concerns an interrupted one without being its next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// It undoes the effects of the other call.
    Undoes(OperationId),
    /// It asks for the outcome of the other call, and changes nothing.
    Asks(OperationId),
}

/// A tool's finding about its interrupted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It had done its work, with this success.
    Done(bool),
    /// It had done nothing.
    Nothing,
    /// The outcome is unknown.
    Unknown,
}

/// The content of a record about the findings of a rollback.
#[derive(Debug, Deserialize)]
struct RollbackFound {
    begin: SequenceNumber,
    resources: BTreeMap<String, i64>,
}

/// The effect of one record, known before it is written.
#[derive(Clone, Debug)]
pub enum Act {
    /// Sets the slices.
    Change(Rc<Slices>),
    /// Takes a snapshot of these slices, with a tag or without.
    Snapshot(Rc<Slices>, bool),
    /// A compaction records that it finished the last segment.
    Compacts,
    /// Sets the slices, and restores the records that were live then.
    Rollback(Rc<Slices>, Option<Rc<Live>>),
    /// Another session continues with these slices.
    Fork(Rc<Slices>),
    /// Adds a step within a call, and pays for it.
    Step(StepAdded),
    /// Starts a call: for the first time, again, or about another one.
    Begin(Call, Option<OperationId>, Option<About>),
    /// Ends the innermost open call.
    End(End),
    /// Decides about an interrupted or waiting call.
    Settle(OperationId, Verdict),
    /// Stands for the acts that follow from the state by then.
    Then(Next),
}

/// The next work; its records follow once all earlier ones are known.
#[derive(Clone, Debug)]
pub enum Next {
    /// Interrupted calls run again if allowed, and then calls continue that no longer wait.
    Recovery,
    /// Calls continue that no longer wait.
    Due,
    /// This waiting call continues, if allowed.
    GoesOn(OperationId),
    /// The innermost open call performs this task.
    Work(Errand),
    /// The innermost open call makes its nested calls from this one on, and ends.
    Inner(Errand, usize),
}

impl Act {
    /// Whether a record of that kind can result from this.
    pub fn is_of(&self, kind: RecordKind) -> bool {
        match self {
            Act::Change(_) | Act::Fork(_) => {
                ![RecordKind::ToolBegin, RecordKind::ToolEnd, RecordKind::Settle].contains(&kind)
            }
            Act::Snapshot(..) => kind == RecordKind::Snapshot,
            Act::Compacts => kind == RecordKind::Observed,
            Act::Rollback(..) => kind == RecordKind::Rollback,
            Act::Step(_) => kind == RecordKind::Dispatch,
            Act::Begin(..) => kind == RecordKind::ToolBegin,
            Act::End(_) => kind == RecordKind::ToolEnd,
            Act::Settle(..) => kind == RecordKind::Settle,
            Act::Then(_) => false,
        }
    }
}

/// The state after all records up to one.
#[derive(Clone, Debug, Default)]
pub struct After {
    /// The slices as if no call had been interrupted.
    pub slices: Rc<Slices>,
    pub purse: i64,
    /// The open calls, the outermost first.
    pub open: Vec<OpenCall>,
    /// The interrupted calls, by their operations.
    pub unsettled: BTreeMap<OperationId, UnsettledCall>,
    /// The calls that wait for a person or for a nested waiting call, including those that a
    /// rollback has withdrawn.
    pub(super) waiting: Rc<BTreeMap<OperationId, WaitingCall>>,
    /// The approved calls, and the times at which the approvals expire.
    pub(super) approvals: Rc<BTreeMap<OperationId, Approved>>,
    /// The call that the last record suspended.
    pub(super) just_suspended: Option<OperationId>,
    /// The outcome of each operation.
    pub(super) ledger: Rc<BTreeMap<OperationId, Entry>>,
    /// The live records.
    pub live: Option<Rc<Live>>,
}

impl After {
    /// Returns the slices as an opened session shows them: those before the open calls, if any of
    /// these may have changed something.
    pub fn shown(&self) -> Slices {
        match self.open.iter().find(|open| !open.only_asks()) {
            Some(open) => self.slices.back_to(&open.then),
            None => (*self.slices).clone(),
        }
    }

    /// Returns the purse after a rollback of the open calls.
    pub fn purse_shown(&self) -> i64 {
        self.open.first().map_or(self.purse, |open| open.purse)
    }

    /// Returns the sequence numbers of the open calls' start records.
    pub fn begins(&self) -> Vec<SequenceNumber> {
        self.open.iter().map(|open| open.begin).collect()
    }

    /// Returns the calls that need a person's decision.
    pub fn to_settle(&self) -> Vec<OperationId> {
        let manual =
            self.unsettled.iter().filter(|(_, one)| one.call.idempotency.needs_settling() && !one.run_again);
        manual.map(|(operation, _)| *operation).collect()
    }

    /// Returns the state after one more record, written at a time.
    #[must_use]
    pub fn after(&self, act: &Act, sequence: SequenceNumber, time_us: i64) -> After {
        let mut next = self.clone();
        next.just_suspended = None;
        next.live = Live::behind(self.live.as_ref(), sequence);
        match act {
            Act::Change(slices) | Act::Snapshot(slices, _) => next.slices = Rc::clone(slices),
            Act::Rollback(slices, live) => {
                next.slices = Rc::clone(slices);
                let to = live.as_ref().map(|live| live.last());
                for one in next.unsettled.values_mut().filter(|one| to < Some(one.begin)) {
                    one.decided = one.decided.map(|(decided, _)| (decided, true));
                }
                next.live = Live::behind(live.as_ref(), sequence);
            }
            Act::Fork(slices) => {
                next.slices = Rc::clone(slices);
                next.ask_anew();
            }
            Act::Step(step) => {
                next.slices = Rc::new(self.slices.after(&super::Change::Step(step.clone())));
                next.purse += 1;
            }
            Act::Begin(call, again, about) => next.begin(call, *again, *about, sequence),
            Act::End(end) => next.end(*end, sequence, time_us),
            Act::Settle(operation, verdict) => next.settle(*operation, *verdict, sequence),
            Act::Compacts | Act::Then(_) => {}
        }
        next
    }

    /// Returns the state after the record about the findings of an open call's rollback.
    ///
    /// # Panics
    ///
    /// If no such call is open, if this is its second such record, or if its content is impossible.
    #[must_use]
    pub(super) fn after_finding(&self, body: &[u8], sequence: SequenceNumber) -> After {
        let body = Observed::decode(body).expect("it is an observation");
        let found: RollbackFound =
            msgpack::from_slice(body.data.bytes()).expect("it says what a rollback found");
        let mut next = self.clone();
        next.just_suspended = None;
        next.live = Live::behind(self.live.as_ref(), sequence);
        let open = next.open.iter_mut().find(|open| open.begin == found.begin).expect("that call is open");
        assert!(!std::mem::replace(&mut open.is_found, true), "{found:?} is said twice");
        // The number of coins is undetermined: one may be paid for an unrecorded step, and the
        // interrupted rollback of a nested call may have returned some.
        assert!(found.resources.keys().eq(["purse"]), "{found:?}");
        next
    }

    fn begin(
        &mut self,
        call: &Call,
        again: Option<OperationId>,
        about: Option<About>,
        sequence: SequenceNumber,
    ) {
        let operation = again.unwrap_or(sequence.into());
        self.unsettled.remove(&operation);
        // A nested call keeps its question and its approval until the outer one is over.
        if self.open.is_empty() {
            Rc::make_mut(&mut self.waiting).remove(&operation);
        }
        Rc::make_mut(&mut self.ledger).entry(operation).or_insert_with(Entry::new).begins();
        self.open.push(OpenCall {
            begin: sequence,
            operation,
            about,
            call: call.clone(),
            then: Rc::clone(&self.slices),
            live: self.live.clone(),
            purse: self.purse,
            is_found: false,
        });
    }

    fn end(&mut self, end: End, sequence: SequenceNumber, time_us: i64) {
        let open = self.open.pop().expect("only what is open ends");
        // A read-only call rolls nothing back.
        if !open.only_asks() && end.rolls_back() {
            self.slices = Rc::new(self.slices.without_call(&open.then));
            self.purse = open.purse;
            self.live = Live::behind(open.live.as_ref(), sequence);
        }
        let call = Some(&open.call).filter(|_| open.about.is_none());
        let entry = Rc::make_mut(&mut self.ledger).get_mut(&open.operation).expect("it began");
        entry.ends(end, sequence, call);
        match open.about {
            Some(About::Undoes(undone)) if end == End::Committed => {
                self.unsettled.get_mut(&undone).expect("it was interrupted").undone = true;
            }
            _ => {}
        }
        if open.about.is_some() {
            return;
        }
        let parent = self.open.last().map(|outer| outer.operation);
        match end {
            End::Asks | End::Awaits | End::Within(_) => {
                self.just_suspended = Some(if let End::Within(inner) = end { inner } else { open.operation });
                let waiting = WaitingCall::new(open.call, parent, end, sequence, time_us);
                Rc::make_mut(&mut self.waiting).insert(open.operation, waiting);
            }
            // A nested call shares the fate of its outer call.
            End::Interrupted if parent.is_none() => {
                self.unsettled.insert(open.operation, UnsettledCall::new(open.call, open.begin));
            }
            End::Interrupted => {}
            End::Committed | End::Failed => self.withdraw_within(open.operation),
        }
    }

    /// Returns the acts of a recovery: the open calls end, inner ones first, and calls that may run
    /// again do.
    pub fn recovery(&self) -> Vec<Act> {
        let ends = self.open.iter().map(|_| Act::End(End::Interrupted));
        ends.chain([Act::Then(Next::Recovery)]).collect()
    }

    /// Returns the acts of the next work at this time, after everything before it.
    pub fn acts(&self, next: Next, now_us: i64) -> Vec<Act> {
        match next {
            Next::Recovery => self.runs_again().chain([Act::Then(Next::Due)]).collect(),
            Next::Due => self.due(now_us).into_iter().map(|one| Act::Then(Next::GoesOn(one))).collect(),
            Next::GoesOn(operation) => self.goes_on(operation, now_us),
            Next::Work(errand) => {
                if errand.waits_at(Moment::First) && !self.is_approved(now_us) {
                    return vec![Act::End(End::Asks)];
                }
                let steps = errand.steps().into_iter().map(Act::Step);
                steps.chain([Act::Then(Next::Inner(errand.clone(), 0))]).collect()
            }
            Next::Inner(errand, at) => self.inner(&errand, at, now_us),
        }
    }

    fn runs_again(&self) -> impl Iterator<Item = Act> {
        let mut acts = Vec::new();
        for (operation, one) in &self.unsettled {
            let UnsettledCall { call, undone, run_again, .. } = one;
            if one.is_taken_back(self.live.as_ref()) {
                continue;
            }
            match call.idempotency {
                Idempotency::Manual if !run_again => continue,
                Idempotency::Verify if !run_again => {
                    let Some(errand) = &call.errand else { continue };
                    acts.push(Act::Begin(call.clone(), None, Some(About::Asks(*operation))));
                    acts.push(Act::End(End::Committed));
                    match errand.found() {
                        Found::Done(success) => {
                            acts.push(Act::Settle(*operation, Verdict::Closed(success)));
                            continue;
                        }
                        Found::Nothing => {}
                        Found::Unknown => continue,
                    }
                }
                Idempotency::Compensate if !undone && !run_again => {
                    acts.push(Act::Begin(call.clone(), None, Some(About::Undoes(*operation))));
                    acts.push(Act::End(End::Committed));
                }
                _ => {}
            }
            // This process cannot run an external tool.
            if call.errand.is_some() {
                acts.extend(call.acts_of(Some(*operation)));
            }
        }
        acts.into_iter()
    }

    /// Returns the acts of the innermost open call from its nested call `at` on.
    fn inner(&self, errand: &Errand, at: usize, now_us: i64) -> Vec<Act> {
        if let Some(operation) = self.just_suspended.filter(|_| at > 0) {
            return vec![Act::End(End::Within(operation))];
        }
        let Some(inner) = errand.within.get(at) else {
            return vec![Act::End(match errand.succeeds {
                _ if errand.waits_at(Moment::Last) && !self.is_approved(now_us) => End::Asks,
                // The result of a nested call cannot be delivered.
                _ if errand.waits_at(Moment::Done) && self.open.len() > 1 => End::Failed,
                _ if errand.waits_at(Moment::Done) => End::Awaits,
                true => End::Committed,
                false => End::Failed,
            })];
        };
        let rest = Act::Then(Next::Inner(errand.clone(), at + 1));
        let equal_before = errand.within[..at].iter().filter(|other| *other == inner).count();
        match self.inner_goes_on(inner, equal_before, now_us) {
            ends if matches!(ends.as_slice(), [Act::End(_)]) => ends,
            acts => acts.into_iter().chain([rest]).collect(),
        }
    }
}

impl Call {
    /// Returns a call of an external tool.
    pub fn elsewhere() -> Call {
        Call { idempotency: Idempotency::Manual, errand: None, answer: None }
    }

    /// Draws a call of one of this process's tools, which `answer` requested.
    pub fn draw(chance: &mut Chance, answer: Option<SequenceNumber>) -> Call {
        let idempotency = *chance.pick(Idempotency::ALL);
        Call { idempotency, errand: Some(Errand::draw(chance)), answer }
    }

    /// Returns a nested call: it may run again without a decision, so that the outer one may too.
    pub fn within(errand: Errand) -> Call {
        Call { idempotency: Idempotency::Natural, errand: Some(errand), answer: None }
    }

    /// Returns the acts of its first run.
    pub fn acts(&self) -> Vec<Act> {
        self.acts_of(None)
    }

    pub(super) fn acts_of(&self, again: Option<OperationId>) -> Vec<Act> {
        let work = self.errand.iter().map(|errand| Act::Then(Next::Work(errand.clone())));
        std::iter::once(Act::Begin(self.clone(), again, None)).chain(work).collect()
    }
}
