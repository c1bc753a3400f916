//! States of adapters whose providers keep sessions of their own: captured as records, kept whoever reads them, and
//! resumed only where that is right.

#![allow(clippy::unwrap_used, clippy::panic)]

mod capturing;
mod evaluating;
mod resuming;
mod states;
mod validating;
mod world;
