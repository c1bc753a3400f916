//! An embedded, event-sourced state engine for AI agents.

pub mod log;
