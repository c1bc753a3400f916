//! Conversations that are rolled back, forked or cancelled halfway, between two ends of their
//! processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::conversation::EntryContent;
use foldlog::{Error, Generator, Outcome, SequenceNumber, Session, SessionOptions};
use foldlog_agent::EvaluateOptions;
use foldlog_agent::provider::CancelToken;

use super::cuts::{Cut, Desk, LEVELS, uncut};
use super::generated::Generated;
use super::host::{EVALUATION, Host, types};
use super::{Held, said, seeds};

/// Draws a position in a conversation at which a rollback or a fork can start: any of its visible
/// records.
pub(super) fn place(session: &Session, draw: &mut Generator) -> Option<SequenceNumber> {
    let conversation = session.conversation().read(EVALUATION).unwrap()?;
    let entries = conversation.entries();
    let at = draw.next_below(entries.len() as u64);
    Some(entries[usize::try_from(at).unwrap()].sequence)
}

/// Rolls back to some position of the conversation. Positions within an operation are refused.
pub(super) fn roll_back(host: &Host, draw: &mut Generator, at: &str) {
    let Some(to) = place(host.session(), draw) else { return };
    match host.session().rollback_to(to) {
        Ok(_) => {
            // No rollback undoes the interruption of an operation, nor a decision about a call that
            // counts.
            let counts = |content: &EntryContent| match content {
                EntryContent::CallEnded { outcome, .. } => *outcome != Outcome::Interrupted,
                EntryContent::CallSettled { .. } => false,
                _ => true,
            };
            let rest = host.conversation().unwrap();
            let mut left = rest.entries().iter().filter(|entry| counts(&entry.content));
            assert!(left.all(|entry| entry.sequence <= to), "{at}: more is left than there was at {to}");
        }
        Err(Error::InsideTransaction { .. }) => {}
        Err(error) => panic!("{at}: {error}"),
    }
}

/// Evaluates, and cancels that once the session has `records` more records.
pub(super) fn cancel(host: &Host, records: u64) {
    let (token, left) = (CancelToken::new(), AtomicU64::new(records));
    let cancel = token.clone();
    let _ = host.session().log().subscribe(move |_| {
        if left.fetch_sub(1, Ordering::SeqCst) == 1 {
            cancel.cancel();
        }
    });
    let _ = host.evaluate(EvaluateOptions { cancel: token, ..EvaluateOptions::default() });
}

fn held(host: &Host) -> Held {
    Held::of(host.conversation().as_ref(), &host.outside)
}

/// After a rollback to before an answer, that answer is requested again; after one to a later
/// position, it is not. Calls that were rolled back run again, and no others.
#[test]
fn a_conversation_that_is_rolled_back_and_killed_anywhere_is_finished() {
    for seed in 200..200 + seeds(60) {
        let (says, mut draw) = (Arc::new(Generated::from_seed(seed)), Generator::from_seed(seed));
        let (whole, durability) = (uncut(&says), LEVELS[seed as usize % 3]);
        let mut desk = Desk::new(durability, &says);
        let mut at = format!("seed {seed}, {durability:?}");
        for _ in 0..3 {
            let records = 1 + draw.next_below(whole.records);
            at.push_str(&format!(", killed behind {records}, rolled back"));
            desk.end_behind(records, Cut::Behind);
            desk.evaluate();
            desk.open(Cut::Behind, &at);
            desk.recover(draw.next_below(2) == 0, &at);
            roll_back(&desk.host, &mut draw, &at);
        }
        desk.finish(&at);
        desk.check_equals(&whole, &at);
    }
}

/// A fork and its parent continue separately: each requests its missing answers, and both end
/// alike.
#[test]
fn a_conversation_that_is_forked_anywhere_is_finished_in_both_sessions() {
    let mut forks = 0;
    for seed in 300..300 + seeds(60) {
        let (says, mut draw) = (Arc::new(Generated::from_seed(seed)), Generator::from_seed(seed));
        let (whole, durability) = (uncut(&says), LEVELS[seed as usize % 3]);
        let mut desk = Desk::new(durability, &says);
        let records = 1 + draw.next_below(whole.records);
        let at = format!("seed {seed}, {durability:?}, killed behind {records}");
        desk.end_behind(records, Cut::Behind);
        desk.evaluate();
        desk.open(Cut::Behind, &at);
        desk.recover(true, &at);
        let fork = place(desk.host.session(), &mut draw)
            .map(|place| desk.store().fork(desk.id, place, &types(), SessionOptions::default()));
        if let Some(Ok(fork)) = fork {
            forks += 1;
            let parent = desk.host.session().clone();
            desk.turn_to(fork);
            let parent_id = parent.id();
            parent.close().unwrap();
            let (at, cut) = (format!("{at}, forked"), Cut::Within(8));
            desk.end_behind(1 + draw.next_below(whole.records), cut);
            desk.evaluate();
            desk.open(cut, &at);
            desk.recover(false, &at);
            desk.finish(&at);
            desk.check_equals(&whole, &at);
            desk.turn_to(desk.store().open_session(parent_id, &types()).unwrap());
        }
        desk.finish(&at);
        desk.check_equals(&whole, &at);
    }
    assert!(forks > 0);
}

/// The model is informed of cancelled calls, which do not run later; the conversation continues to
/// its end.
#[test]
fn a_conversation_that_is_cancelled_and_killed_anywhere_is_finished() {
    let mut cancelled = 0;
    for seed in 400..400 + seeds(60) {
        let (says, mut draw) = (Arc::new(Generated::from_seed(seed)), Generator::from_seed(seed));
        let (whole, durability) = (uncut(&says), LEVELS[seed as usize % 3]);
        let mut desk = Desk::new(durability, &says);
        let mut at = format!("seed {seed}, {durability:?}");
        for _ in 0..2 {
            let records = 1 + draw.next_below(whole.records);
            at.push_str(&format!(", cancelled behind {records}"));
            let before = held(&desk.host);
            cancel(&desk.host, records);
            before.check(desk.host.conversation().as_ref(), &desk.host.outside, &at);
            desk.end_behind(1 + draw.next_below(whole.records), Cut::Behind);
            desk.evaluate();
            desk.open(Cut::Behind, &at);
            desk.recover(draw.next_below(2) == 0, &at);
        }
        desk.finish(&at);
        let differs = said(&desk.host.conversation().unwrap()) != whole.said;
        cancelled += usize::from(differs);
    }
    assert!(cancelled > 0, "no call was ever skipped");
}
