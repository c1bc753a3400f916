//! Shows workers survive links that go down, delay and lose packets, and a server that is killed
//! and restarted.

use crate::net::{Net, skip};
use crate::server::Server;
use crate::worker::{Worker, assert_holds, told};

/// Has a worker open its session again. One of its own puts from before the outage may arrive only
/// now, before its claim, and take the claim's number. The worker then has to read on, which it
/// does at the next attempt.
fn opens(worker: &mut Worker) {
    for _ in 0..20 {
        let said = worker.process.ask("open");
        if said == ["opened"] {
            return;
        }
        assert_eq!(said, ["refused fenced"]);
    }
    panic!("it is fenced by nobody");
}

/// Cuts a worker off during its work, brings back what it lacked, and has another one take over its
/// session.
fn works_through(net: &Net, mut outage: impl FnMut(bool)) {
    let (mut one, mut two) = (Worker::start(net, 0), Worker::start(net, 1));
    one.does("create");
    let mut said = one.does("rounds 2");
    for _ in 0..2 {
        // At a random moment of its work.
        one.process.tell("rounds 1000");
        said.extend(one.process.hear());
        outage(true);
        let mut until = one.process.hear_out();
        let refused = until.pop().unwrap();
        assert!(["refused unknown", "refused failed"].contains(&refused.as_str()), "{refused}");
        said.extend(until);
        // It starts nothing while the bucket is unreachable.
        assert_eq!(one.is_refused("rounds 1").1, Vec::<String>::new());
        outage(false);
        opens(&mut one);
        said.extend(one.does("rounds 1"));
        assert_holds(&told(&mut one), &said);
    }
    two.does("take-over");
    let (here, there) = (told(&mut one), told(&mut two));
    assert_holds(&there, &said);
    assert_eq!(here, there);
    let (reason, before) = one.is_refused("rounds 1");
    assert_eq!((reason.as_str(), before), ("fenced", Vec::new()));
    let said = two.does("rounds 2");
    assert_holds(&told(&mut two), &said);
}

#[test]
fn a_worker_whose_link_goes_down_acknowledges_nothing_until_it_is_up() {
    let Some(net) = Net::new(2) else { return };
    let _server = Server::start(&net);
    works_through(&net, |is_out| net.link(0, !is_out));
}

#[test]
fn a_server_that_is_killed_and_started_again_has_all_that_was_acknowledged() {
    let Some(net) = Net::new(2) else { return };
    let mut server = Server::start(&net);
    works_through(&net, |is_out| if is_out { server.kill() } else { server.start_again() });
}

#[test]
fn a_worker_that_is_cut_off_is_taken_over_and_refused_once_its_link_is_back() {
    let Some(net) = Net::new(2) else { return };
    let _server = Server::start(&net);
    let (mut one, mut two) = (Worker::start(&net, 0), Worker::start(&net, 1));
    one.does("create");
    let said = one.does("rounds 2");
    assert_eq!(two.does("wait 60000"), ["lives"]);
    net.link(0, false);
    assert_eq!(two.does("wait 60000"), ["ran-out"]);
    two.does("take-over");
    let taken = told(&mut two);
    assert_holds(&taken, &said);
    two.does("rounds 1");
    net.link(0, true);
    // It learns of the takeover from the bucket alone.
    let (reason, before) = one.is_refused("rounds 1");
    assert_eq!((reason.as_str(), before), ("fenced", Vec::new()));
    assert_eq!(one.is_refused("open").0, "superseded");
    assert_eq!(told(&mut two).notes.len(), taken.notes.len() + 1);
    two.does("rounds 1");
}

#[test]
fn a_link_that_delays_and_loses_costs_time() {
    let Some(net) = Net::new(2) else { return };
    for worker in 0..2 {
        if let Err(reason) = net.disturb(worker, "delay 20ms 10ms loss 5%") {
            return skip(&format!("the kernel delays and loses nothing: {reason}"));
        }
    }
    let _server = Server::start(&net);
    let (mut one, mut two) = (Worker::start(&net, 0), Worker::start(&net, 1));
    one.does("create");
    let said = one.does("rounds 10");
    two.does("take-over");
    assert_holds(&told(&mut two), &said);
    assert_eq!(one.is_refused("rounds 1").0, "fenced");
}
