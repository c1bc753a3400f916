//! Tests for a host's own events and reducers (feature `testkit`).
//!
//! A *history* is a list of steps of one session. A host provides the actions. [`histories`] mixes
//! in snapshots, rollbacks to any position, reopenings, kills and forks.
//! [`assert_rollback_equivalence`] checks the engine's guarantees after each step. `proptest`
//! shrinks a failing history to a few steps.
//!
//! ```
//! use foldlog::testkit::proptest::prelude::*;
//! use foldlog::testkit::{assert_rollback_equivalence, dispatch, histories};
//! use foldlog::{Event, SessionTypes, Slice};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Debug, Clone)]
//! struct StepAdded {
//!     title: String,
//! }
//!
//! impl Event for StepAdded {
//!     const NAME: &'static str = "plan.step_added";
//! }
//!
//! struct Plan;
//!
//! impl Slice for Plan {
//!     const NAME: &'static str = "plan";
//!     type Item = StepAdded;
//! }
//!
//! fn types() -> SessionTypes {
//!     SessionTypes::builder().slice::<Plan>().append_all::<Plan>().build().unwrap()
//! }
//!
//! fn steps() -> impl Strategy<Value = StepAdded> {
//!     "[a-z]{0,8}".prop_map(|title| StepAdded { title })
//! }
//!
//! proptest! {
//!     # #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
//!     # /*
//!     #[test]
//!     # */
//!     fn the_plan_survives_any_history(history in histories(steps().prop_map(dispatch))) {
//!         assert_rollback_equivalence(&types(), &history);
//!     }
//! }
//! # the_plan_survives_any_history();
//! ```
//!
//! To dispatch events of several types, combine them: `prop_oneof![a().prop_map(dispatch),
//! b().prop_map(dispatch)]`. [`Action::new`] creates any other action. Histories run on a disk in
//! memory ([`MemoryStorage`](crate::storage::MemoryStorage)), which a host's other tests may use
//! too.
//!
//! Assertions over stored logs are in the crate `foldlog-replay`.
//!
//! A [`RawLog`] is a log without events and slices, to measure the time that a disk and the log
//! itself take.

mod assertions;
mod equivalence;
mod history;
mod raw_log;

pub use assertions::{assert_deterministic, assert_rollback_equivalence};
pub use equivalence::{runs_equivalent, snapshots_equivalent};
pub use history::{Action, History, HistoryStep, dispatch, dispatch_value, histories, histories_of};
pub use proptest;
pub use raw_log::RawLog;

use foldlog_codec::SequenceNumber;

use crate::error::Result;
use crate::session::{RollbackReport, Session};

/// Rolls a session back to a position, including LOG slices (`preserve_logs = false`): for tests
/// that run one session many times from one position. This is not a method of [`Session`], since a
/// host's LOG slices must never shrink.
pub fn rollback_discarding_logs(
    session: &Session,
    position: impl Into<SequenceNumber>,
) -> Result<RollbackReport> {
    session.roll_back(position.into(), false, None)
}
