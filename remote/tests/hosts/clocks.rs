//! Shows takeovers between hosts whose clocks disagree: a worker's time of day leaps, and steady
//! clocks differ by 100 days.
//!
//! A steady clock cannot be set while a process runs, not even in a time namespace, and the tests
//! must not set the machine's time of day. So one worker gets a leaping clock of its own, and
//! another one a namespace whose steady clocks are a hundred days ahead.

use std::process::Command;

use crate::net::{Net, skip};
use crate::server::Server;
use crate::worker::{Worker, assert_holds, told};

/// Runs a process in a time namespace of its own.
const AHEAD: [&str; 4] = ["unshare", "-T", "--monotonic=8640000", "--boottime=8640000"];

#[test]
fn hosts_whose_clocks_agree_in_nothing_take_over_from_each_other() {
    let Some(net) = Net::new(3) else { return };
    let _server = Server::start(&net);
    let mut one = Worker::start_with(&net, 0, &[], true);
    one.does("create");
    let mut said = one.does("rounds 5");
    let within: &[&str] = match Command::new(AHEAD[0]).args(&AHEAD[1..]).arg("true").output() {
        Ok(done) if done.status.success() => &AHEAD,
        other => {
            skip(&format!("no namespace of time: {other:?}"));
            &[]
        }
    };
    let mut two = Worker::start_with(&net, 1, within, true);
    assert_eq!(two.does("wait 60000"), ["lives"]);
    one.process.stop();
    assert_eq!(two.does("wait 60000"), ["ran-out"]);
    two.does("take-over");
    assert_holds(&told(&mut two), &said);
    said.extend(two.does("rounds 3"));
    one.process.go_on();
    assert_eq!(one.is_refused("rounds 1").0, "fenced");

    // From the host that is ahead to one whose clock is unchanged.
    let mut three = Worker::start(&net, 2);
    assert_eq!(three.does("wait 60000"), ["lives"]);
    two.process.kill();
    assert_eq!(three.does("wait 60000"), ["ran-out"]);
    three.does("take-over");
    said.extend(three.does("rounds 1"));
    assert_holds(&told(&mut three), &said);
}
