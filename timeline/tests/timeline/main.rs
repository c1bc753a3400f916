//! Tests of timelines through the public API.

mod calls;
mod undo;
mod world;
