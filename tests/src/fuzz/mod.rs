//! What must hold of any bytes at all, as functions of bytes: a fuzzer calls them (`tests/fuzz/`), and so does the
//! suite, over a kept corpus and over what chance makes of it (`suite/fuzz.rs`).
//!
//! | target | the bytes are | what holds |
//! |---|---|---|
//! | [`frames`] | a segment file | the scanner answers; what it takes for a frame is one, and is written again as the same |
//! | [`record`] | a kind and a body | what decodes encodes to what decodes to the same; its JSON is JSON |
//! | [`segments`] | a session's files, or the bodies of a log | opening, auditing, following and salvaging agree, and nothing is changed; what opens can be written on |
//! | [`snapshot_json`] | the JSON of a snapshot | what is read begins a session that exports the same |
//! | [`import`] | a file of another tool's runs | what is read becomes sessions that hold what the runs say |
//! | [`claude_code`] | a transcript and its sub-agents | what is read becomes sessions that hold, and comes out byte for byte |
//! | [`chunks`] | an object of a place of sessions: a chunk, a volume of chunks, or a compaction | what decodes is written again as the same |
//! | [`known_positions`] | where the slices of a compacted session are known, as a replica holds it | what decodes encodes to what decodes to the same, in order |
//!
//! Each answers any bytes, and panics where something does not hold.

mod bodies;
mod exports;
mod files;
mod held;
mod mutate;
mod sessions;
mod transcripts;

pub use bodies::{frames, known_positions, record};
pub use exports::{import, snapshot_json};
pub use files::{BUILT, FITTED, Set, UNPACKED, UNPADDED};
pub use held::chunks;
pub use mutate::mutated;
pub use sessions::segments;
pub use transcripts::claude_code;

/// A target: its name, which is also that of its directory of kept inputs, and what it calls.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 8] = [
    ("frames", frames),
    ("record", record),
    ("segments", segments),
    ("snapshot_json", snapshot_json),
    ("import", import),
    ("claude_code", claude_code),
    ("chunks", chunks),
    ("known_positions", known_positions),
];
