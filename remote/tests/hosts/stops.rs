//! Shows that others take over the sessions of workers that are stopped or killed, once the lease
//! has expired.

use crate::net::Net;
use crate::server::Server;
use crate::worker::{Worker, assert_holds, told};

#[test]
fn a_worker_that_is_stopped_taken_over_and_continued_starts_no_further_handler() {
    let Some(net) = Net::new(2) else { return };
    let _server = Server::start(&net);
    let (mut one, mut two) = (Worker::start(&net, 0), Worker::start(&net, 1));
    one.does("create");
    let mut said = one.does("rounds 2");
    assert_eq!(two.does("wait 60000"), ["lives"]);
    // At a random moment of its work.
    one.process.tell("rounds 100000");
    said.extend(one.process.hear());
    one.process.stop();
    assert_eq!(two.does("wait 60000"), ["ran-out"]);
    two.does("take-over");
    let taken = told(&mut two);
    said.extend(two.does("rounds 1"));

    one.process.go_on();
    let mut after = one.process.hear_out();
    assert_eq!(after.pop().as_deref(), Some("refused fenced"), "{after:?}");
    // Its output from here on belongs to the work at which it was stopped. Either its start record
    // was replicated before the claim, or its handler does not run.
    assert_holds(&taken, &after);
    let (reason, before) = one.is_refused("rounds 1");
    assert_eq!((reason.as_str(), before), ("fenced", Vec::new()));
    said.extend(two.does("rounds 1"));
    let now = told(&mut two);
    assert_holds(&now, &said);
    assert_eq!(now.notes.len(), taken.notes.len() + 2);
    assert_eq!(now.begins.len(), taken.begins.len() + 2);
}

#[test]
fn a_session_goes_from_host_to_host_as_each_is_killed() {
    let Some(net) = Net::new(3) else { return };
    let _server = Server::start(&net);
    let mut said = Vec::new();
    let mut worker = Worker::start(&net, 0);
    worker.does("create");
    for next in [1, 2] {
        worker.process.tell("rounds 100000");
        // Some of the work is acknowledged, and the kill hits the next step.
        for _ in 0..7 {
            said.extend(worker.process.hear());
        }
        let mut other = Worker::start(&net, next);
        assert_eq!(other.does("wait 60000"), ["lives"]);
        worker.process.kill();
        assert_eq!(other.does("wait 60000"), ["ran-out"]);
        other.does("take-over");
        assert_holds(&told(&mut other), &said);
        worker = other;
    }
}
