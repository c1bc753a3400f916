//! Tests a host's events and reducers against the law of rollback: STATE after a rollback equals
//! that of a new fold. The test runs random histories of dispatches, snapshots, rollbacks,
//! reopenings, kills and forks. A failing history is shrunk to a few steps.
//!
//! A host adds this to its tests; `cargo run --bin property_test` runs it as a program.

use foldlog::testkit::proptest::prelude::*;
use foldlog::testkit::proptest::test_runner::TestRunner;
use foldlog::testkit::{assert_rollback_equivalence, dispatch, histories};
use foldlog::{Event, SessionTypes, Slice};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Debug, Clone)]
struct CardMoved {
    card: u8,
    column: String,
}

impl Event for CardMoved {
    const NAME: &'static str = "card_moved";
}

/// The place of each card, as STATE.
struct Board;

impl Slice for Board {
    const NAME: &'static str = "board";
    type Item = CardMoved;
}

fn types() -> foldlog::Result<SessionTypes> {
    SessionTypes::builder().slice::<Board>().upsert_by::<Board, _>(|moved| moved.card).build()
}

fn moves() -> impl Strategy<Value = CardMoved> {
    (0..5_u8, "[a-z]{1,6}").prop_map(|(card, column)| CardMoved { card, column })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let types = types()?;
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() });
    runner.run(&histories(moves().prop_map(dispatch)), |history| {
        assert_rollback_equivalence(&types, &history);
        Ok(())
    })?;
    println!("64 histories hold");
    Ok(())
}
