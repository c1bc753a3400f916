//! Tests of timelines through the public API.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod calls;
mod collections;
mod kills;
mod large_files;
mod model;
mod opening;
mod times;
mod undo;
mod working_trees;
mod world;
