//! Checkpoints: their counts, creation and retention, and restores of a session.

mod counts;
pub(crate) mod kills;
mod retention;
mod stories;
mod threads;
