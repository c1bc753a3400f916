//! What the simulator does with tools: it calls them, ends, recovers and settles their calls.

use foldlog::tools::{ExecuteOptions, Recovery, ToolResult};
use foldlog::{Durability, Error, Settlement};
use foldlog_tests::crash::{Act, Call, End, Promise};
use uuid::Uuid;

use super::World;
use super::tools::as_called;

impl World {
    /// What a durability promises of a tool's begin and end, and of a decision.
    fn promise_of_call(&self, id: Uuid) -> Promise {
        if self.known[&id].durability == Durability::Process { Promise::Written } else { Promise::Durable }
    }

    /// Calls a tool, or goes on with a call of one that runs elsewhere.
    pub(super) fn call(&mut self, id: Uuid) {
        if self.known[&id].open.as_ref().expect("it is open").operation.is_some() {
            return self.end_call(id);
        }
        let is_elsewhere = self.chance.percent(40);
        let call = match is_elsewhere {
            true => Call::elsewhere(),
            false => Call::draw(&mut self.chance),
        };
        self.say(|| format!("   {id}: calls {call:?}"));
        let promise = self.promise_of_call(id);
        let known = self.known.get_mut(&id).expect("it is known");
        known.memory.pending.extend(call.acts());
        let opened = known.open.as_mut().expect("it is open");
        let done = match is_elsewhere {
            true => opened.runner.begin(&as_called(&call), &ExecuteOptions::default()).map(|operation| {
                let begin = operation.id().sequence();
                opened.operation = Some(operation);
                begin
            }),
            false => opened.runner.execute(&as_called(&call), &ExecuteOptions::default()).map(|report| {
                assert_eq!(Some(report.success), call.errand.as_ref().map(|errand| errand.succeeds));
                report.end
            }),
        };
        let is_done = done.is_ok();
        self.wrote(id, done.map(|sequence| Some((sequence, promise))));
        self.nothing_is_missing(id, is_done);
    }

    /// Ends the call of a tool that runs elsewhere, where there is one.
    pub(super) fn end_call(&mut self, id: Uuid) {
        let promise = self.promise_of_call(id);
        let known = self.known.get_mut(&id).expect("it is known");
        let Some(operation) = known.open.as_mut().and_then(|opened| opened.operation.take()) else { return };
        let succeeds = self.chance.percent(60);
        known.memory.pending.push_back(Act::End(if succeeds { End::Committed } else { End::Failed }));
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

    /// Ends what was interrupted, and runs again what may be.
    pub(super) fn recover(&mut self, id: Uuid) {
        let promise = self.promise_of_call(id);
        let known = self.known.get_mut(&id).expect("it is known");
        let now = known.memory.now();
        let opened = known.open.as_ref().expect("it is open");
        let acts = now.recovery();
        if !now.open.is_empty() {
            let refused = opened.session.reset().expect_err("nothing is written before it is recovered");
            if !matches!(refused, Error::Interrupted { .. }) {
                return self.failed(id, &refused);
            }
        }
        if acts.is_empty() {
            return;
        }
        if self.aloud {
            eprintln!("   {id}: recovers: {acts:?}");
        }
        known.memory.pending.extend(acts);
        let done = opened.runner.recover(&ExecuteOptions::default()).and_then(|recovered| {
            let failed = recovered.into_iter().find_map(|one| match one.recovery {
                Recovery::Failed(error) => Some(error),
                _ => None,
            });
            failed.map_or(Ok(()), Err)
        });
        let last = opened.session.position().unwrap_or_default();
        let is_done = done.is_ok();
        self.wrote(id, done.map(|_| Some((last, promise))));
        self.nothing_is_missing(id, is_done);
    }

    /// Decides about a call that nobody but a person can judge.
    pub(super) fn settle(&mut self, id: Uuid, operation: u64) {
        let promise = self.promise_of_call(id);
        let again = self.chance.percent(40);
        let settlement = match again {
            true => Settlement::run_again(),
            false if self.chance.percent(50) => Settlement::failed(),
            false => Settlement::committed(None),
        };
        self.say(|| format!("   {id}: settles {operation}: {settlement:?}"));
        let known = self.known.get_mut(&id).expect("it is known");
        known.memory.pending.push_back(Act::Settle(operation.into(), again));
        let done = known.session().settle(operation, &settlement, "the simulator", "chance");
        let is_done = done.is_ok();
        self.wrote(id, done.map(|sequence| Some((sequence, promise))));
        self.nothing_is_missing(id, is_done);
        // What is to run again waits for the call that runs.
        if self.known[&id].open.as_ref().is_some_and(|opened| opened.operation.is_none()) {
            self.recover(id);
        }
    }

    /// After a call that returned well everything that it was to write is there, and the purse is as the log says.
    fn nothing_is_missing(&mut self, id: Uuid, is_done: bool) {
        let known = self.known.get_mut(&id).expect("it is known");
        if !is_done || known.open.is_none() {
            return;
        }
        assert!(known.memory.pending.is_empty(), "{id}: missing: {:?}", known.memory.pending);
        let now = known.memory.now();
        if now.open.is_empty() {
            assert_eq!(*known.coins.lock().unwrap(), now.purse, "{id}: the coins that are left");
        }
    }
}
