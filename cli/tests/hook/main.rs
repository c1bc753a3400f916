//! `foldlog hook install`, `uninstall` and `status`, with stand-ins of `claude`.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod agents;
mod install;
mod place;
mod status;
