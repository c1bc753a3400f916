//! The client of the Claude Code program and the adapter, over a stand-in that plays the program
//! from a script.

pub(crate) mod adapter;
mod arguments;
mod asking;
mod faults;
mod framing;
mod real;
mod results;
mod sessions;
pub(crate) mod stand_in;
mod stopping;
