//! Stores an agent's state of a chat: a plan that a rollback restores, and notes that remain.
//!
//! `cargo run --bin chat_state [DIRECTORY]` writes the store to DIRECTORY, or to a temporary
//! directory.

use foldlog::{Event, Policy, SessionTypes, Slice, SnapshotOptions, Store};
use serde::{Deserialize, Serialize};

/// A step of the plan changed.
#[derive(Serialize, Deserialize)]
struct StepChanged {
    title: String,
    done: bool,
}

impl Event for StepChanged {
    const NAME: &'static str = "plan.step_changed";
}

/// The agent made a note.
#[derive(Serialize, Deserialize)]
struct Noted {
    text: String,
}

impl Event for Noted {
    const NAME: &'static str = "noted";
}

/// The latest event of each step, as STATE.
struct Plan;

impl Slice for Plan {
    const NAME: &'static str = "plan";
    type Item = StepChanged;
}

/// All notes, as LOG.
struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = Noted;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let directory = std::env::args_os().nth(1).map_or_else(|| temporary.path().to_owned(), Into::into);
    let types = SessionTypes::builder()
        .slice::<Plan>()
        .upsert_by::<Plan, _>(|step| step.title.clone())
        .slice_with::<Notes>(Policy::Log)
        .append_all::<Notes>()
        .build()?;
    let session = Store::open(&directory)?.create(&types)?;

    let step = |title: &str, done| StepChanged { title: title.to_owned(), done };
    session.dispatch(step("read the issue", false))?;
    session.dispatch(step("read the issue", true))?;
    let before = session.snapshot(SnapshotOptions::with_tag("before the attempt"))?;
    session.dispatch(step("rewrite everything", false))?;
    session.dispatch(Noted { text: "rewriting everything does not help".to_owned() })?;
    session.rollback(&before)?;

    for step in session.view::<Plan>()?.iter() {
        println!("[{}] {}", if step.done { "x" } else { " " }, step.title);
    }
    for note in session.log().slice::<Notes>()?.tail(10)? {
        println!("note: {}", note.text);
    }
    println!("session {} in {}", session.id(), session.dir().display());
    session.close()?;
    Ok(())
}
