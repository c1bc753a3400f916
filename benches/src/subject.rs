//! What is measured: a host such as many are.

use std::ops::Range;
use std::path::Path;

use foldlog::{Durability, Event, Policy, Result, Session, SessionTypes, Slice, Store, StoreOptions};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An event of five fields, about 230 bytes when recorded.
#[derive(Serialize, Deserialize, Clone)]
pub struct Step {
    pub title: String,
    pub detail: String,
    pub number: u64,
    pub done: bool,
    pub cost: f64,
}

impl Event for Step {
    const NAME: &'static str = "step";
}

/// Every step.
pub struct Steps;

impl Slice for Steps {
    const NAME: &'static str = "steps";
    type Item = Step;
}

/// The latest step of each number.
pub struct Numbered;

impl Slice for Numbered {
    const NAME: &'static str = "numbered";
    type Item = Step;
}

/// Every step there ever was.
pub struct Journal;

impl Slice for Journal {
    const NAME: &'static str = "journal";
    type Item = Step;
}

pub fn step(number: u64) -> Step {
    Step {
        title: format!("step number {number:08} of a long plan"),
        detail: "what is to be done is described here in a sentence or two, as agents like to do; \
                 it takes about as many bytes as this does"
            .to_owned(),
        number,
        done: number.is_multiple_of(2),
        cost: number as f64 * 0.25,
    }
}

pub fn append_types() -> Result<SessionTypes> {
    SessionTypes::builder().slice::<Steps>().append_all::<Steps>().build()
}

pub fn upsert_types() -> Result<SessionTypes> {
    SessionTypes::builder().slice::<Numbered>().upsert_by::<Numbered, _>(|step| step.number).build()
}

/// STATE by number, and a LOG of all.
pub fn journal_types() -> Result<SessionTypes> {
    SessionTypes::builder()
        .slice::<Numbered>()
        .upsert_by::<Numbered, _>(|step| step.number)
        .slice_with::<Journal>(Policy::Log)
        .append_all::<Journal>()
        .build()
}

/// A store at the level at which a dispatch waits for no disk.
pub fn store(path: &Path) -> Result<Store> {
    Store::open_with(path, StoreOptions { durability: Durability::Process, ..StoreOptions::default() })
}

/// One that writes no images: opening a session of it folds every record.
pub fn store_without_images(path: &Path) -> Result<Store> {
    let options = StoreOptions {
        durability: Durability::Process,
        image_bytes_min: u64::MAX,
        ..StoreOptions::default()
    };
    Store::open_with(path, options)
}

/// Dispatches steps of these numbers.
pub fn fill(session: &Session, mut numbers: impl Iterator<Item = u64>) -> Result<()> {
    numbers.try_for_each(|number| session.dispatch(step(number)).map(drop))
}

/// A closed session of so many steps.
pub fn closed(store: &Store, types: &SessionTypes, numbers: Range<u64>) -> Result<Uuid> {
    let session = store.create(types)?;
    fill(&session, numbers)?;
    let id = session.id();
    session.close()?;
    Ok(id)
}

/// An open session of so many steps, for which nothing is left to do in the background: it was closed since.
pub fn settled(store: &Store, types: &SessionTypes, numbers: Range<u64>) -> Result<Session> {
    let id = closed(store, types, numbers)?;
    store.open_session(id, types)
}
