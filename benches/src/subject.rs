//! What is measured: a host such as many are.

use std::path::Path;

use foldlog::{Event, Level, Result, SessionTypes, Slice, Store, StoreOptions};
use serde::{Deserialize, Serialize};

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

pub fn store(path: &Path, level: Level) -> Result<Store> {
    Store::open_with(path, StoreOptions { level, ..StoreOptions::default() })
}
