//! A naive model of tool calls: what each record of one does to the slices, to a purse that tools pay from, and to the
//! calls that are open, that wait to be settled, or that wait for somebody.

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

/// What a call is asked to do: so many steps are added to the plan, each of which costs one coin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Errand {
    /// Decides what the steps are.
    pub seed: u64,
    /// How many there are.
    pub steps: u8,
    /// Other calls, within this one and after its steps.
    pub within: Vec<Errand>,
    /// Whether it waits for somebody, and how.
    pub waits: Option<Waits>,
    /// Whether it has success.
    pub succeeds: bool,
}

/// How a call waits for somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// When, and for what.
    pub moment: Moment,
    /// How long somebody has to answer; for ever where there is none.
    pub expires_us: Option<u64>,
}

/// When a call begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Moment {
    /// Asks before it does anything.
    First,
    /// Asks when it has done everything, which is rolled back.
    Last,
    /// Awaits its result when it has done everything.
    Done,
}

/// A time that is over as soon as anybody looks at the clock again.
pub const MOMENT_US: u64 = 1;
/// A time that is over only where the clock is set forward.
pub const DAY_US: u64 = 86_400_000_000;

impl Errand {
    /// Draws what a call is to do, perhaps with others within it.
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

    /// The steps that it adds.
    pub fn steps(&self) -> Vec<StepAdded> {
        let mut chance = Chance::new(self.seed);
        let mut step = || {
            let len = if chance.percent(12) { 900 } else { 30 };
            StepAdded { title: chance.text(len), part: chance.below(4) as u8 }
        };
        (0..self.steps).map(|_| step()).collect()
    }

    /// Whether it waits at this moment.
    pub fn waits_at(&self, moment: Moment) -> bool {
        self.waits.is_some_and(|waits| waits.moment == moment)
    }

    /// What its tool finds out about it, should it be interrupted.
    pub fn found(&self) -> Found {
        match self.seed % 6 {
            0 => Found::Done(true),
            1 => Found::Done(false),
            2 => Found::Nothing,
            _ => Found::Unknown,
        }
    }

    /// What it asks, where it does.
    pub fn question(&self) -> String {
        format!("Is {} right?", self.seed)
    }
}

/// A call that has begun and not ended.
#[derive(Clone, Debug)]
pub struct OpenCall {
    /// The sequence number of its begin.
    pub begin: SequenceNumber,
    pub(super) operation: OperationId,
    about: Option<About>,
    call: Call,
    /// What was when it began.
    then: Rc<Slices>,
    live: Option<Rc<Live>>,
    purse: i64,
    /// Whether a record says what was there when its rollback began.
    is_found: bool,
}

impl OpenCall {
    /// Whether it changes nothing, and so nothing is rolled back with it.
    pub fn only_asks(&self) -> bool {
        matches!(self.about, Some(About::Asks(_)))
    }
}

/// A call that was interrupted and is not done with.
#[derive(Clone, Debug)]
pub struct UnsettledCall {
    pub(super) call: Call,
    /// Whether what it did is undone.
    pub undone: bool,
    /// Whether somebody decided that it is to be run again.
    pub run_again: bool,
    /// Begin of its last run.
    begin: SequenceNumber,
    /// The last decision to run it again, and whether the session went back to before the call since.
    decided: Option<(SequenceNumber, bool)>,
}

impl UnsettledCall {
    fn new(call: Call, begin: SequenceNumber) -> UnsettledCall {
        UnsettledCall { call, undone: false, run_again: false, begin, decided: None }
    }

    /// Notes a decision to run it again.
    pub(super) fn is_to_run_again(&mut self, sequence: SequenceNumber) {
        (self.run_again, self.decided) = (true, Some((sequence, false)));
    }

    /// Whether whoever went back to before the call took the decision about it back.
    fn is_taken_back(&self, live: Option<&Rc<Live>>) -> bool {
        self.decided.is_some_and(|(decided, went_back)| went_back && !Live::holds(live, decided))
    }
}

/// Which tool is called, and with what.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What may be done with it should it be interrupted; each has a tool of its own.
    pub idempotency: Idempotency,
    /// What it is to do; `None` for a call of a tool that runs elsewhere, of which nothing is known.
    pub errand: Option<Errand>,
    /// The record that passes for the answer that asked for it, where one did.
    pub answer: Option<SequenceNumber>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// What it did stays.
    Committed,
    /// What it did was rolled back.
    Failed,
    /// What it did was rolled back when the session was recovered.
    Interrupted,
    /// Asks somebody; what it did was rolled back.
    Asks,
    /// Awaits its result; what it did stays.
    Awaits,
    /// Waits for this call, which ran within it; what it did was rolled back.
    Within(OperationId),
}

impl End {
    /// Whether what the call did was rolled back.
    pub(super) fn rolls_back(self) -> bool {
        !matches!(self, End::Committed | End::Awaits)
    }
}

/// What a call does about an interrupted one, of which it is no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// It undoes what the other did.
    Undoes(OperationId),
    /// It asks what the other did, and changes nothing.
    Asks(OperationId),
}

/// What a tool finds out about its interrupted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It had done its work, with this success.
    Done(bool),
    /// It had done nothing.
    Nothing,
    /// Nobody can say.
    Unknown,
}

/// What a record says of what a rollback found.
#[derive(Debug, Deserialize)]
struct RollbackFound {
    begin: SequenceNumber,
    resources: BTreeMap<String, i64>,
}

/// What one record says, as it is known before it is written.
#[derive(Clone, Debug)]
pub enum Act {
    /// The slices are these from then on.
    Change(Rc<Slices>),
    /// A snapshot is taken of these slices, with a tag or without.
    Snapshot(Rc<Slices>, bool),
    /// A compaction notes that it finished the last segment.
    Compacts,
    /// The slices are these from then on, and what was live then is live again.
    Rollback(Rc<Slices>, Option<Rc<Live>>),
    /// Another session goes on with these slices.
    Fork(Rc<Slices>),
    /// A step is added within a call, and paid for.
    Step(StepAdded),
    /// A call begins, for the first time, again, or about another one.
    Begin(Call, Option<OperationId>, Option<About>),
    /// The innermost open call ends.
    End(End),
    /// An interrupted or waiting call is decided about.
    Settle(OperationId, Verdict),
    /// What follows from what is there by then.
    Then(Next),
}

/// What is to be done next, from which its records follow once all before it are known.
#[derive(Clone, Debug)]
pub enum Next {
    /// What was interrupted runs again where it may, and then what waits for nobody any more.
    Recovery,
    /// What waits for nobody any more goes on.
    Due,
    /// This waiting call goes on, where it may.
    GoesOn(OperationId),
    /// The innermost open call does this.
    Work(Errand),
    /// The innermost open call makes its inner calls from this one on, and ends.
    Inner(Errand, usize),
}

impl Act {
    /// Whether a record of that kind may be what this leaves.
    pub fn is_of(&self, kind: RecordKind) -> bool {
        match self {
            Act::Change(_) | Act::Fork(_) => {
                ![RecordKind::TOOL_BEGIN, RecordKind::TOOL_END, RecordKind::SETTLE].contains(&kind)
            }
            Act::Snapshot(..) => kind == RecordKind::SNAPSHOT,
            Act::Compacts => kind == RecordKind::OBSERVED,
            Act::Rollback(..) => kind == RecordKind::ROLLBACK,
            Act::Step(_) => kind == RecordKind::DISPATCH,
            Act::Begin(..) => kind == RecordKind::TOOL_BEGIN,
            Act::End(_) => kind == RecordKind::TOOL_END,
            Act::Settle(..) => kind == RecordKind::SETTLE,
            Act::Then(_) => false,
        }
    }
}

/// What all records up to one amount to.
#[derive(Clone, Debug, Default)]
pub struct After {
    /// The slices, had no call been interrupted.
    pub slices: Rc<Slices>,
    /// What is in the purse.
    pub purse: i64,
    /// The open calls, the outermost first.
    pub open: Vec<OpenCall>,
    /// The calls that were interrupted, by their operations' names.
    pub unsettled: BTreeMap<OperationId, UnsettledCall>,
    /// The calls that wait for somebody, or for a call within them that does; also those that a rollback has withdrawn.
    pub(super) waiting: Rc<BTreeMap<OperationId, WaitingCall>>,
    /// What was approved, until when.
    pub(super) approvals: Rc<BTreeMap<OperationId, Approved>>,
    /// The call that was suspended by the last record.
    pub(super) just_suspended: Option<OperationId>,
    /// What became of each operation.
    pub(super) ledger: Rc<BTreeMap<OperationId, Entry>>,
    /// The records that count.
    pub live: Option<Rc<Live>>,
}

impl After {
    /// The slices as an opened session shows them: those before the open calls, where there are any that may have changed something.
    pub fn shown(&self) -> Slices {
        match self.open.iter().find(|open| !open.only_asks()) {
            Some(open) => self.slices.back_to(&open.then),
            None => (*self.slices).clone(),
        }
    }

    /// What is in the purse once the open calls were rolled back.
    pub fn purse_shown(&self) -> i64 {
        self.open.first().map_or(self.purse, |open| open.purse)
    }

    /// The sequence numbers of the open calls' begins.
    pub fn begins(&self) -> Vec<SequenceNumber> {
        self.open.iter().map(|open| open.begin).collect()
    }

    /// The calls that somebody has to decide about.
    pub fn to_settle(&self) -> Vec<OperationId> {
        let manual =
            self.unsettled.iter().filter(|(_, one)| one.call.idempotency.needs_settling() && !one.run_again);
        manual.map(|(operation, _)| *operation).collect()
    }

    /// What everything amounts to after one more record, written at a time.
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

    /// What everything amounts to after the record that says what the rollback of an open call found.
    ///
    /// # Panics
    ///
    /// Where no such call is open, where it is said twice, and where it cannot be so.
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
        // How many coins are there is not known: one may be paid for a step that was not recorded, and the rollback of an inner call may have
        // given some back before it was cut short.
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
        // A call within another one keeps its question and its approval until that one is over.
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
        // What changes nothing rolls nothing back.
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
            // What ran within another shares its fate.
            End::Interrupted if parent.is_none() => {
                self.unsettled.insert(open.operation, UnsettledCall::new(open.call, open.begin));
            }
            End::Interrupted => {}
            End::Committed | End::Failed => self.withdraw_within(open.operation),
        }
    }

    /// What recovering writes: the open calls end, the inner ones first, and what may run again does.
    pub fn recovery(&self) -> Vec<Act> {
        let ends = self.open.iter().map(|_| Act::End(End::Interrupted));
        ends.chain([Act::Then(Next::Recovery)]).collect()
    }

    /// What the next thing to be done writes at this time, given everything before it.
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
            // A tool that is not this process's cannot be run by it.
            if call.errand.is_some() {
                acts.extend(call.acts_of(Some(*operation)));
            }
        }
        acts.into_iter()
    }

    /// What the innermost open call writes from its inner call `at` on.
    fn inner(&self, errand: &Errand, at: usize, now_us: i64) -> Vec<Act> {
        if let Some(operation) = self.just_suspended.filter(|_| at > 0) {
            return vec![Act::End(End::Within(operation))];
        }
        let Some(inner) = errand.within.get(at) else {
            return vec![Act::End(match errand.succeeds {
                _ if errand.waits_at(Moment::Last) && !self.is_approved(now_us) => End::Asks,
                // Nobody could bring the result of a call within another one.
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
    /// A call of a tool that runs elsewhere.
    pub fn elsewhere() -> Call {
        Call { idempotency: Idempotency::Manual, errand: None, answer: None }
    }

    /// A call of one of the tools of this process, for which `answer` asked.
    pub fn draw(chance: &mut Chance, answer: Option<SequenceNumber>) -> Call {
        let idempotency = *chance.pick(Idempotency::ALL);
        Call { idempotency, errand: Some(Errand::draw(chance)), answer }
    }

    /// A call within another one: it may run again by itself, so that the outer one may too.
    pub fn within(errand: Errand) -> Call {
        Call { idempotency: Idempotency::Natural, errand: Some(errand), answer: None }
    }

    /// What running it for the first time writes.
    pub fn acts(&self) -> Vec<Act> {
        self.acts_of(None)
    }

    pub(super) fn acts_of(&self, again: Option<OperationId>) -> Vec<Act> {
        let work = self.errand.iter().map(|errand| Act::Then(Next::Work(errand.clone())));
        std::iter::once(Act::Begin(self.clone(), again, None)).chain(work).collect()
    }
}
