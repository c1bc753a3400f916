//! The measured host.

use std::ops::Range;
use std::path::Path;

use foldlog::{Durability, Event, Policy, Result, Session, SessionTypes, Slice, Store, StoreOptions};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An event of five fields, which takes about 230 bytes in the log.
#[derive(Serialize, Deserialize, Clone)]
pub struct BenchStep {
    pub title: String,
    pub detail: String,
    pub number: u64,
    pub done: bool,
    pub cost: f64,
}

impl Event for BenchStep {
    const NAME: &'static str = "step";
}

/// Contains every step, as STATE.
pub struct Steps;

impl Slice for Steps {
    const NAME: &'static str = "steps";
    type Item = BenchStep;
}

/// Contains the latest step of each number, as STATE.
pub struct NumberedSteps;

impl Slice for NumberedSteps {
    const NAME: &'static str = "numbered";
    type Item = BenchStep;
}

/// Contains every step, as LOG.
pub struct Journal;

impl Slice for Journal {
    const NAME: &'static str = "journal";
    type Item = BenchStep;
}

pub fn step(number: u64) -> BenchStep {
    BenchStep {
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
    SessionTypes::builder().slice::<NumberedSteps>().upsert_by::<NumberedSteps, _>(|step| step.number).build()
}

/// Declares STATE by number, and LOG of all steps.
pub fn journal_types() -> Result<SessionTypes> {
    SessionTypes::builder()
        .slice::<NumberedSteps>()
        .upsert_by::<NumberedSteps, _>(|step| step.number)
        .slice_with::<Journal>(Policy::Log)
        .append_all::<Journal>()
        .build()
}

/// Opens a store whose dispatches do not wait for the disk: `Durability::Process`.
pub fn store(path: &Path) -> Result<Store> {
    Store::open_with(path, StoreOptions { durability: Durability::Process, ..StoreOptions::default() })
}

/// Opens a store that writes no images, so that opening a session folds every record.
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

/// Makes a closed session with the steps of these numbers.
pub fn closed(store: &Store, types: &SessionTypes, numbers: Range<u64>) -> Result<Uuid> {
    let session = store.create(types)?;
    fill(&session, numbers)?;
    let id = session.id();
    session.close()?;
    Ok(id)
}

/// Makes an open session with the steps of these numbers. Closing and reopening it leaves no work
/// in the background.
pub fn settled(store: &Store, types: &SessionTypes, numbers: Range<u64>) -> Result<Session> {
    let id = closed(store, types, numbers)?;
    store.open_session(id, types)
}
