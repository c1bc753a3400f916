//! Drives an agent on foldlog: prompts, providers, and the loop between a model and its tools.
//!
//! | module | holds |
//! |---|---|
//! | [`provider`] | what a provider of a model is to the loop: requests, answers, failures |
//!
//! # Invariants
//!
//! 1. The crate uses the public API of `foldlog` alone.
//! 2. It starts no async runtime.
//! 3. Nothing is sent to a provider before the log says so, and no tool of an answer runs before the answer is recorded.

pub mod provider;
