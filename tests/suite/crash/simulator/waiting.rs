//! Steps of the simulator with waiting calls: it decides about them, with valid and invalid
//! decisions, and makes them again.

use foldlog::{Clock as _, Error, Settlement, Value};
use foldlog_test_support::crash::{Act, Again, Call, DAY_US, Next, Stands, Verdict};
use uuid::Uuid;

use super::World;
use super::tools::as_called;

impl World {
    /// Decides about an interrupted or waiting call. `false` if there is none.
    pub(super) fn decide(&mut self, id: Uuid) -> bool {
        let now = self.known[&id].memory.now();
        let mut open = now.to_settle();
        open.extend(now.waiting());
        if open.is_empty() {
            return false;
        }
        let operation = *self.chance.pick(&open);
        let call = now.call_of(operation).expect("it waits").clone();
        let verdict = self.verdict(now.to_settle().contains(&operation));
        let settlement = self.settlement(&call, verdict);
        self.say(|| format!("   {id}: settles {operation}: {settlement:?}"));
        let promise = self.promise_of_call(id);
        self.tries(id, []);
        let known = self.known.get_mut(&id).expect("it is known");
        let may = now.may_settle(operation, verdict, known.memory.now_us());
        if may {
            known.memory.pending.push_back(Act::Settle(operation, verdict));
        }
        let done = known.session().calls().settle(operation, &settlement, "the simulator", "chance");
        match done {
            Ok(_) => assert!(may, "{id}: {verdict:?} is taken for {operation}"),
            Err(Error::NoSuchOperation { reason, .. }) => {
                assert!(!may, "{id}: {verdict:?} is refused for {operation}: {reason}");
                return true;
            }
            Err(Error::AlreadySettled { sequence, .. }) => {
                assert!(
                    !may,
                    "{id}: {verdict:?} is refused for {operation}, which record {sequence} settles"
                );
                return true;
            }
            Err(error) => {
                self.wrote(id, Err(error));
                return true;
            }
        }
        self.wrote(id, done.map(|sequence| Some((sequence, promise))));
        self.nothing_is_missing(id, true);
        // A call that is to run again waits for the running call, or for the next recovery.
        if self.known[&id].open.is_some() && self.chance.percent(50) {
            self.recover(id);
        }
        true
    }

    fn verdict(&mut self, was_interrupted: bool) -> Verdict {
        let approval = if was_interrupted { 5 } else { 60 };
        match self.chance.below(100) {
            drawn if drawn < approval => {
                let now_us = self.clock.steady_us();
                let until = [None, None, None, Some(now_us), Some(now_us + DAY_US as i64)];
                let (until_us, knows) = (*self.chance.pick(&until), self.chance.percent(90));
                Verdict::Approved { until_us, knows }
            }
            drawn if drawn < approval + if was_interrupted { 40 } else { 5 } => Verdict::RunAgain,
            _ => Verdict::Closed(self.chance.percent(50)),
        }
    }

    fn settlement(&mut self, call: &Call, verdict: Verdict) -> Settlement {
        let settlement = match verdict {
            Verdict::RunAgain => Settlement::run_again(),
            Verdict::Approved { until_us, knows } => {
                let arguments = if knows { as_called(call).arguments } else { "{}".to_owned() };
                let approved = Settlement::approved(*blake3::hash(arguments.as_bytes()).as_bytes());
                let until =
                    until_us.map(|until_us| std::time::Duration::from_micros(until_us.unsigned_abs()));
                until.into_iter().fold(approved, |approved, until| {
                    approved.until(std::time::SystemTime::UNIX_EPOCH.checked_add(until).expect("soon").into())
                })
            }
            Verdict::Closed(false) => Settlement::failed(),
            Verdict::Closed(true) if self.chance.percent(50) => Settlement::committed(None),
            // A value too large for a record becomes an object.
            Verdict::Closed(true) => Settlement::committed(Some(Value::from("x".repeat(900)))),
        };
        if self.chance.percent(30) { settlement.showing("Be it so.") } else { settlement }
    }

    /// Makes the call of an answer again. `false` if there is none.
    pub(super) fn call_again(&mut self, id: Uuid) -> bool {
        let known = &self.known[&id];
        let now = known.memory.now();
        let answers = now.answers();
        if answers.is_empty() || known.open.as_ref().expect("it is open").operation.is_some() {
            return false;
        }
        let answer = *self.chance.pick(&answers);
        let Some(call) = now.call_for(answer).cloned() else { return false };
        let again = now.again(answer);
        self.say(|| format!("   {id}: calls again, for {answer}, which is {again:?}: {call:?}"));
        let acts = match again {
            Again::Unsettled => return false,
            Again::Anew => call.acts(),
            Again::Recorded(_) => Vec::new(),
            Again::Waiting(operation) => {
                // Time may have passed since the last record.
                self.tries(id, []);
                let now_us = self.known[&id].memory.now_us();
                match now.stands(operation, now_us) {
                    Some(Stands::Waits(_)) | None => Vec::new(),
                    Some(_) => vec![Act::Then(Next::GoesOn(operation))],
                }
            }
        };
        self.execute(id, &call, acts);
        true
    }
}
