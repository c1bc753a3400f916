//! Tests of timelines through the public API.

mod calls;
mod model;
mod undo;
mod world;
