//! Replicated conversations whose machines are lost one after the other, within a call or between
//! two.

use std::sync::Arc;

use foldlog::Generator;

use super::cuts::{Cut, Desk, LEVELS, uncut};
use super::generated::Generated;
use super::turned::roll_back;
use super::{Held, seeds};

/// The four rules apply to the state on the next machine: no answer in the bucket is requested
/// again, no call whose end it contains runs again, and the conversation ends like an uncut one. At
/// `Process` writes do not wait for the bucket, which may lack answers whose tools have run.
#[test]
fn a_conversation_whose_machine_is_gone_anywhere_is_finished_on_others() {
    let mut machines = 0;
    for seed in 500..500 + seeds(60).div_ceil(3) {
        let (says, mut draw) = (Arc::new(Generated::from_seed(seed)), Generator::from_seed(seed));
        let whole = uncut(&says);
        for durability in &LEVELS[1..] {
            let mut desk = Desk::held(*durability, &says);
            let mut at = format!("seed {seed}, {durability:?}");
            for life in 0..1 + draw.next_below(4) {
                let records = 1 + draw.next_below(whole.records);
                let held = Held::of(desk.host.conversation().as_ref(), &desk.host.outside);
                // The machine is lost after that record, or stops once its host has failed or
                // finished.
                if draw.next_below(3) > 0 {
                    desk.end_behind(records, Cut::Behind);
                }
                at.push_str(&format!(", moved behind {records}"));
                let has_tools = draw.next_below(2) == 0;
                if life == 0 || desk.host.recover(has_tools) {
                    desk.evaluate();
                }
                desk.move_on(&at);
                machines += 1;
                held.check(desk.host.conversation().as_ref(), &desk.host.outside, &at);
                if draw.next_below(3) == 0 {
                    desk.recover(has_tools, &at);
                    roll_back(&desk.host, &mut draw, &at);
                }
            }
            desk.recover(seed % 2 == 0, &at);
            desk.finish(&at);
            desk.check_equals(&whole, &at);
        }
    }
    assert!(machines > seeds(60) / 3, "{machines}");
}
