//! Replays and compares the logs of foldlog's sessions.
//!
//! A host's tests assert that its new version reproduces a stored log:
//!
//! | assertion | checks |
//! |---|---|
//! | [`assert_host_replays`] | the host produces the recorded records |
//! | [`assert_reducers_replay`] | its reducers resolve each edit as recorded |
//! | [`assert_versions_replay`] | its types decode each event and item of a store |
//!
//! [`differences`] visits the differences between two positions of a log, or between two logs.
//!
//! The replay itself is [`foldlog::replay`]: a session in replay mode compares each record where it
//! is written, which needs the engine's inner state (`docs/decisions/replay-in-the-engine.md`).

mod assertions;
pub mod differences;

pub use assertions::{assert_host_replays, assert_reducers_replay, assert_versions_replay};
