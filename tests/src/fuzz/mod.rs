//! Properties of arbitrary bytes, as functions of bytes: a fuzzer calls them (`tests/fuzz/`), and
//! so does the suite, over a kept corpus and over its random mutations (`suite/fuzz.rs`).
//!
//! | target | the bytes are | property |
//! |---|---|---|
//! | [`frames`] | a segment file | the scanner returns; every accepted frame encodes to the same bytes |
//! | [`record`] | a kind and a body | a decoded body encodes to one that decodes to the same; its JSON is JSON |
//! | [`segments`] | a session's files, or the bodies of a log | opening, auditing, following and salvaging agree, and nothing is changed; a session that opens can be written |
//! | [`snapshot_json`] | the JSON of a snapshot | an accepted snapshot starts a session that exports the same |
//! | [`import`] | a file of another tool's runs | an accepted file becomes sessions with the content of the runs |
//! | [`claude_code`] | a transcript and its sub-agents | an accepted transcript becomes valid sessions, and is exported byte for byte |
//! | [`chunks`] | an object of a bucket of sessions: a chunk, a volume of chunks, or a compaction | a decoded object encodes to the same bytes |
//! | [`known_positions`] | the positions at which a compacted session's slices are known, as stored in a bucket | decoded positions encode to ones that decode to the same, in order |
//! | [`git_packs`] | the index and the pack of a capture | a restore writes the captured files or none, an audit agrees, and a collection loses nothing |
//!
//! Each target returns for any bytes, and panics if a property is violated.

mod bodies;
mod exports;
mod files;
mod git_packs;
mod held;
mod mutate;
mod sessions;
mod transcripts;

pub use bodies::{frames, known_positions, record};
pub use exports::{import, snapshot_json};
pub use files::{BUILT, FITTED, Set, UNPACKED, UNPADDED};
pub use git_packs::{git_packs, input_of_pack, sound_pack};
pub use held::chunks;
pub use mutate::mutated;
pub use sessions::segments;
pub use transcripts::claude_code;

/// A target: its name, which is also that of its directory of kept inputs, and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 9] = [
    ("frames", frames),
    ("record", record),
    ("segments", segments),
    ("snapshot_json", snapshot_json),
    ("import", import),
    ("claude_code", claude_code),
    ("chunks", chunks),
    ("known_positions", known_positions),
    ("git_packs", git_packs),
];
