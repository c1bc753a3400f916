//! A naive model of tool calls: what each record of one does to the slices, to a purse that tools pay from, and to the
//! calls that are open or wait to be settled.

use std::collections::BTreeMap;
use std::rc::Rc;

use foldlog::{Idempotency, Kind, OperationId, SequenceNumber};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Chance, Slices};
use crate::host::StepAdded;

/// What a call is asked to do: so many steps are added to the plan, each of which costs one coin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Errand {
    /// Decides what the steps are.
    pub seed: u64,
    /// How many there are.
    pub steps: u8,
    /// Another call, within this one and after its steps.
    pub within: Option<Box<Errand>>,
    /// Whether it has success.
    pub succeeds: bool,
}

impl Errand {
    /// Draws what a call is to do, perhaps with another one within it.
    pub fn draw(chance: &mut Chance) -> Errand {
        let mut one = |within| Errand {
            seed: chance.number(),
            steps: chance.below(4) as u8,
            within,
            succeeds: chance.percent(60),
        };
        let inner = one(None);
        let outer = one(None);
        let within = chance.percent(25).then(|| Box::new(inner));
        Errand { within, ..outer }
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
}

/// A call that has begun and not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenCall {
    /// The sequence number of its begin.
    pub begin: SequenceNumber,
    operation: OperationId,
    undoes: Option<OperationId>,
    call: Call,
    /// What was when it began.
    then: Rc<Slices>,
    purse: i64,
}

/// A call that was interrupted and is not done with.
#[derive(Clone, Debug, PartialEq)]
pub struct UnsettledCall {
    call: Call,
    /// Whether what it did is undone.
    pub undone: bool,
    /// Whether somebody decided that it is to be run again.
    pub run_again: bool,
}

/// Which tool is called, and with what.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What may be done with it should it be interrupted; each has a tool of its own.
    pub idempotency: Idempotency,
    /// What it is to do; `None` for a call of a tool that runs elsewhere, of which nothing is known.
    pub errand: Option<Errand>,
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
}

/// What one record says, as it is known before it is written.
#[derive(Clone, Debug)]
pub enum Act {
    /// The slices are these from then on.
    Change(Rc<Slices>),
    /// A step is added within a call, and paid for.
    Step(StepAdded),
    /// A call begins, for the first time, again, or to undo what another did.
    Begin(Call, Option<OperationId>, Option<OperationId>),
    /// The innermost open call ends.
    End(End),
    /// An interrupted call is decided about; whether it is to be run again.
    Settle(OperationId, bool),
}

impl Act {
    /// Whether a record of that kind may be what this leaves.
    pub fn is_of(&self, kind: Kind) -> bool {
        match self {
            Act::Change(_) => ![Kind::TOOL_BEGIN, Kind::TOOL_END, Kind::SETTLE].contains(&kind),
            Act::Step(_) => kind == Kind::DISPATCH,
            Act::Begin(..) => kind == Kind::TOOL_BEGIN,
            Act::End(_) => kind == Kind::TOOL_END,
            Act::Settle(..) => kind == Kind::SETTLE,
        }
    }
}

/// What all records up to one amount to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct After {
    /// The slices, had no call been interrupted.
    pub slices: Rc<Slices>,
    /// What is in the purse.
    pub purse: i64,
    /// The open calls, the outermost first.
    pub open: Vec<OpenCall>,
    /// The calls that were interrupted, by their operations' names.
    pub unsettled: BTreeMap<OperationId, UnsettledCall>,
}

impl After {
    /// The slices as an opened session shows them: those before the open calls, where there are any.
    pub fn shown(&self) -> Slices {
        match self.open.first() {
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

    /// What everything amounts to after one more record.
    #[must_use]
    pub fn after(&self, act: &Act, sequence: SequenceNumber) -> After {
        let mut next = self.clone();
        match act {
            Act::Change(slices) => next.slices = Rc::clone(slices),
            Act::Step(step) => {
                next.slices = Rc::new(self.slices.after(&super::Change::Step(step.clone())));
                next.purse += 1;
            }
            Act::Begin(call, again, undoes) => {
                if let Some(again) = again {
                    next.unsettled.remove(again);
                }
                next.open.push(OpenCall {
                    begin: sequence,
                    operation: again.unwrap_or(sequence.into()),
                    undoes: *undoes,
                    call: call.clone(),
                    then: Rc::clone(&self.slices),
                    purse: self.purse,
                });
            }
            Act::End(end) => next.end(*end),
            Act::Settle(operation, true) => {
                next.unsettled.get_mut(operation).expect("it was interrupted").run_again = true;
            }
            Act::Settle(operation, false) => {
                next.unsettled.remove(operation);
            }
        }
        next
    }

    fn end(&mut self, end: End) {
        let open = self.open.pop().expect("only what is open ends");
        if end != End::Committed {
            self.slices = Rc::new(self.slices.without_call(&open.then));
            self.purse = open.purse;
        }
        match (end, open.undoes) {
            (End::Committed, Some(undone)) => {
                self.unsettled.get_mut(&undone).expect("it was interrupted").undone = true;
            }
            // What ran within another shares its fate.
            (End::Interrupted, None) if self.open.is_empty() => {
                let unsettled = UnsettledCall { call: open.call, undone: false, run_again: false };
                self.unsettled.insert(open.operation, unsettled);
            }
            _ => {}
        }
    }

    /// What recovering writes: the open calls end, the inner ones first, and what may run again does.
    pub fn recovery(&self) -> Vec<Act> {
        let mut acts: Vec<Act> = self.open.iter().map(|_| Act::End(End::Interrupted)).collect();
        let mut ended = self.clone();
        self.open.iter().for_each(|_| ended.end(End::Interrupted));
        for (operation, UnsettledCall { call, undone, run_again }) in ended.unsettled {
            match call.idempotency {
                Idempotency::Manual | Idempotency::Verify if !run_again => continue,
                Idempotency::Compensate if !undone && !run_again => {
                    acts.push(Act::Begin(call.clone(), None, Some(operation)));
                    acts.push(Act::End(End::Committed));
                }
                _ => {}
            }
            // A tool that is not this process's cannot be run by it.
            if let Some(errand) = call.errand.clone() {
                acts.push(Act::Begin(call, Some(operation), None));
                acts.extend(errand.acts());
            }
        }
        acts
    }
}

impl Call {
    /// A call of a tool that runs elsewhere.
    pub fn elsewhere() -> Call {
        Call { idempotency: Idempotency::Manual, errand: None }
    }

    /// A call of one of the tools of this process.
    pub fn draw(chance: &mut Chance) -> Call {
        let idempotency = *chance.pick(Idempotency::ALL);
        Call { idempotency, errand: Some(Errand::draw(chance)) }
    }

    /// What running it for the first time writes.
    pub fn acts(&self) -> Vec<Act> {
        let begin = Act::Begin(self.clone(), None, None);
        let errand = self.errand.iter().flat_map(Errand::acts);
        std::iter::once(begin).chain(errand).collect()
    }
}

impl Errand {
    /// What it writes from behind its begin on.
    fn acts(&self) -> Vec<Act> {
        let mut acts: Vec<Act> = self.steps().into_iter().map(Act::Step).collect();
        if let Some(within) = &self.within {
            // A call that may run again by itself, so that the outer one may too.
            acts.extend(Call { idempotency: Idempotency::Natural, errand: Some((**within).clone()) }.acts());
        }
        acts.push(Act::End(if self.succeeds { End::Committed } else { End::Failed }));
        acts
    }
}
