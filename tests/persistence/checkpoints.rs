//! Checkpoints: what they count, when they are created, how long they are kept, and that a session is restored to one.

mod counts;
pub(crate) mod kills;
mod retention;
mod stories;
mod threads;
