//! Steps of the simulator with tools: it calls them, and ends and recovers their calls.

use foldlog::tools::{ExecuteOptions, Recovery, ToolReport, ToolResult};
use foldlog::{Clock as _, Durability, Error, OperationId, RecordKind, SequenceNumber};
use foldlog_test_support::crash::{Act, Call, End, Promise};
use uuid::Uuid;

use super::World;
use super::tools::as_called;

/// The outcome of a call as its caller receives it.
#[derive(Debug)]
pub(super) enum Heard {
    /// The call is over, with this success, and whether its result was only read from the log.
    Over(OperationId, bool, bool),
    /// The call waits until someone decides about this operation.
    Waits(OperationId),
}

impl Heard {
    /// Converts the report of a tool, or its refusal.
    pub(super) fn of(report: foldlog::Result<ToolReport>) -> foldlog::Result<Heard> {
        match report {
            Ok(report) => Ok(Heard::Over(report.operation, report.success, report.recorded)),
            Err(Error::Suspended { operation, .. }) => Ok(Heard::Waits(operation)),
            Err(error) => Err(error),
        }
    }
}

impl World {
    /// Returns the promise of a durability for a tool's start record and end record, and for a
    /// decision.
    pub(super) fn promise_of_call(&self, id: Uuid) -> Promise {
        if self.known[&id].durability == Durability::Process { Promise::Written } else { Promise::Durable }
    }

    /// Records the acts that are about to happen.
    pub(super) fn tries(&mut self, id: Uuid, acts: impl IntoIterator<Item = Act>) {
        let now_us = self.clock.steady_us();
        let memory = &mut self.known.get_mut(&id).expect("it is known").memory;
        memory.begins_at(now_us);
        memory.pending.extend(acts);
        memory.look_ahead();
    }

    /// Calls a tool, or continues a call of an external one.
    pub(super) fn call(&mut self, id: Uuid) {
        if self.known[&id].open.as_ref().expect("it is open").operation.is_some() {
            return self.end_call(id);
        }
        let is_elsewhere = self.chance.percent(40);
        let answer = self.new_answer(id);
        let call = match is_elsewhere {
            true => Call::elsewhere(),
            false => Call::draw(&mut self.chance, answer),
        };
        self.say(|| format!("   {id}: calls {call:?}"));
        if !is_elsewhere {
            return self.execute(id, &call, call.acts());
        }
        let promise = self.promise_of_call(id);
        self.tries(id, call.acts());
        let opened = self.known.get_mut(&id).and_then(|known| known.open.as_mut()).expect("it is open");
        let done = opened.runner.begin(&as_called(&call), &ExecuteOptions::default()).map(|operation| {
            let begin = operation.id().sequence();
            opened.operation = Some(operation);
            Some((begin, promise))
        });
        let is_done = done.is_ok();
        self.wrote(id, done);
        self.nothing_is_missing(id, is_done);
    }

    /// Returns a record that may serve as an answer that requests a call, and that no call has used
    /// yet.
    fn new_answer(&mut self, id: Uuid) -> Option<SequenceNumber> {
        let memory = &self.known[&id].memory;
        let last = memory.records.iter().rposition(|record| record.kind == RecordKind::Dispatch)?;
        let last = SequenceNumber::new(last as u64);
        (self.chance.percent(60) && !memory.now().answers().contains(&last)).then_some(last)
    }

    /// Runs a tool of this process, and checks the outcome.
    pub(super) fn execute(&mut self, id: Uuid, call: &Call, acts: Vec<Act>) {
        let promise = self.promise_of_call(id);
        self.tries(id, acts);
        let known = self.known.get_mut(&id).expect("it is known");
        let opened = known.open.as_ref().expect("it is open");
        let before = opened.session.log().position();
        let heard = Heard::of(opened.runner.execute(&as_called(call), &ExecuteOptions::default()));
        // A call that waits already, or has a result already, writes nothing and promises nothing.
        let last = opened.session.log().position().filter(|last| Some(*last) != before);
        self.say(|| format!("   {id}: hears {heard:?}"));
        let is_done = heard.is_ok();
        let heard = match heard {
            Ok(heard) => {
                self.wrote(id, Ok(last.map(|last| (last, promise))));
                heard
            }
            Err(error) => return self.wrote(id, Err(error)),
        };
        self.nothing_is_missing(id, is_done);
        let memory = &self.known[&id].memory;
        if self.known[&id].open.is_none() {
            return;
        }
        match heard {
            Heard::Over(operation, success, recorded) => {
                assert_eq!(memory.now().success_of(operation), Some(success), "{id}: {heard:?}");
                assert!(
                    !recorded
                        || last.is_none()
                        || memory.records.last().is_some_and(|it| it.kind == RecordKind::Settle)
                );
            }
            Heard::Waits(operation) => {
                let waits = memory.now().waiting();
                assert!(waits.contains(&operation), "{id}: {heard:?}, and not {waits:?}");
            }
        }
    }

    /// Ends the call of an external tool, if one is open.
    pub(super) fn end_call(&mut self, id: Uuid) {
        let promise = self.promise_of_call(id);
        let known = self.known.get_mut(&id).expect("it is known");
        let Some(operation) = known.open.as_mut().and_then(|opened| opened.operation.take()) else { return };
        let succeeds = self.chance.percent(60);
        self.tries(id, [Act::End(if succeeds { End::Committed } else { End::Failed })]);
        let done = match succeeds {
            true => operation.end(ToolResult::ok("done", 1)),
            false => operation.abort("it is told to stop"),
        };
        let done = done.map(|report| Some((report.end, promise)));
        self.say(|| format!("   {id}: ends its call, with success: {succeeds}"));
        let is_done = done.is_ok();
        self.wrote(id, done);
        self.nothing_is_missing(id, is_done);
    }

    /// Ends interrupted calls, and runs those again that may be. Writes nothing if there is nothing
    /// to do.
    pub(super) fn recover(&mut self, id: Uuid) {
        let opened = self.known[&id].open.as_ref().expect("it is open");
        if opened.operation.is_some() {
            return;
        }
        let promise = self.promise_of_call(id);
        let now = self.known[&id].memory.now();
        if !now.open.is_empty() {
            let refused = opened.session.reset().expect_err("nothing is written before it is recovered");
            if !matches!(refused, Error::Interrupted { .. }) {
                return self.failed(id, &refused);
            }
        }
        let acts = now.recovery();
        self.tries(id, acts);
        let known = &self.known[&id];
        let opened = known.open.as_ref().expect("it is open");
        if self.aloud && !known.memory.pending.is_empty() {
            eprintln!("   {id}: recovers: {:?}", known.memory.pending);
        }
        let before = opened.session.log().position();
        let done = opened.runner.recover(&ExecuteOptions::default()).and_then(|recovered| {
            let failed = recovered.into_iter().find_map(|one| match one.recovery {
                // A call that asks is no failure.
                Recovery::Failed(Error::Suspended { .. }) => None,
                Recovery::Failed(error) => Some(error),
                _ => None,
            });
            failed.map_or(Ok(()), Err)
        });
        let last = opened.session.log().position().filter(|last| Some(*last) != before);
        let is_done = done.is_ok();
        self.wrote(id, done.map(|()| last.map(|last| (last, promise))));
        self.nothing_is_missing(id, is_done);
    }

    /// After a successful call, checks that all its acts were recorded, and that the purse and the
    /// questions agree with the log.
    pub(super) fn nothing_is_missing(&mut self, id: Uuid, is_done: bool) {
        let known = self.known.get_mut(&id).expect("it is known");
        let Some(opened) = known.open.as_ref().filter(|_| is_done) else { return };
        assert!(known.memory.pending.is_empty(), "{id}: missing: {:?}", known.memory.pending);
        let now = known.memory.now();
        if now.open.is_empty() {
            assert_eq!(*known.coins.lock().unwrap(), now.purse, "{id}: the coins that are left");
        }
        if let Err(error) = known.memory.check_waiting(&opened.session) {
            self.failed(id, &error);
        }
    }
}
