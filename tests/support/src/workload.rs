//! Events that fill a log, for tests of its size: collections, compactions and compressions.

use foldlog::Session;

use crate::crash::{Chance, large_note, step};
use crate::host::{DraftEdited, LinesPasted, Noted, StepAdded};

/// Writes a draft repeatedly, as an object each time, and notes that are objects and remain.
pub fn write_objects(session: &Session, edits: u64) {
    for n in 0..edits {
        let line = format!("{n} of {}: {}", session.id(), "a long story ".repeat(80));
        session.dispatch(DraftEdited { place: 0, line }).unwrap();
        session.dispatch(large_note(n)).unwrap();
    }
}

/// Writes one line of the draft repeatedly, and other events now and then.
pub fn write_lines(session: &Session, edits: u64) {
    for n in 0..edits {
        let line = format!("line {n} of {}", "a long story ".repeat(8));
        session.dispatch(DraftEdited { place: (n % 3) as usize, line }).unwrap();
        if n % 10 == 0 {
            session.dispatch(step(n)).unwrap();
            session.dispatch(large_note(n)).unwrap();
            session.dispatch(LinesPasted { lines: vec!["one".to_owned(), "two".to_owned()] }).unwrap();
        }
    }
}

/// Dispatches partly repetitive text, as in conversations.
pub fn write_text(session: &Session, seed: u64, events: u64) {
    let mut chance = Chance::new(seed);
    for n in 0..events {
        let title =
            format!("step {n}: {} and {}", chance.text(60), "look at the same thing again, ".repeat(6));
        session.dispatch(StepAdded { title, part: (n % 3) as u8 }).unwrap();
        if n % 4 == 0 {
            let line = format!("line {n} of {}", chance.text(40));
            session.dispatch(DraftEdited { place: (n % 5) as usize, line }).unwrap();
            session.dispatch(Noted { text: format!("note {n}, {}", chance.text(30)) }).unwrap();
        }
        if n % 40 == 0 {
            session.dispatch(large_note(n)).unwrap();
            session.dispatch(LinesPasted { lines: vec!["one".to_owned(), "two".to_owned()] }).unwrap();
        }
    }
}
