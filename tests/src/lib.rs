//! Parts of the tests that need more than the engine: verbs of the binary, fuzz targets, and
//! sessions to look at.

/// Runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

pub mod forge;
pub mod fuzz;
pub mod held;
pub mod shown;
pub mod verbs;
