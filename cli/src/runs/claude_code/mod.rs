//! Transcripts of Claude Code: `NAME.jsonl`, one JSON object a line, and its sub-agents in `NAME/subagents/*.jsonl`.
//!
//! The form is not documented and changes often, so every line is kept as it is, whether or not it is understood, and
//! [`export`] writes the same files again. What is understood becomes a conversation as well.
//!
//! | slice | policy | holds |
//! |---|---|---|
//! | `claude_code_files` | LOG | name of each file: `{file, name}` |
//! | `claude_code_lines` | LOG | each line, without its newline: `{file, line, raw, ended}` |
//! | `claude_code_backups` | LOG | each file in a snapshot of the file history: `{file, line, message, path, existed, backup}` |
//!
//! # Terms
//!
//! - A *node* is a line that has a `uuid`, or is a message without one. `file-history-snapshot` lines are no nodes: their
//!   `messageId` is an id of another kind, which may equal a `uuid`.
//! - A *message* is one node of type `user`, or all nodes of type `assistant` with one `message.id`.
//! - A *branch* is what follows one child of a node. Of the branches of a node one is live: the one that holds the last line
//!   of the file, of several files that of the one that ends last; or else the latest.
//! - A *part* is a tree of nodes. All but the first part are loose.
//!
//! # Rules
//!
//! 1. The lines of one `message.id` become one answer, whose usage is that of its last line.
//!    An id may be that of several calls: a call is known by its answer and its place there. A call that repeats the id, name
//!    and arguments of one in an earlier line of the answer counts once, unless there are further results of the id. A result
//!    belongs to the open call of its id in the line that it names by `sourceToolAssistantUUID`, or follows where each line
//!    has results of its own; or else to the first one.
//! 2. `parentUuid` makes the graph. A parent that no file has is reported, and its part is loose. A cycle is broken at its
//!    earliest node, and reported. A loose part is put where its time says, in front of the first later message of the live
//!    branch that is no tool result, and abandons nothing.
//! 3. Ids of file history snapshots and of nodes never meet.
//! 4. Without a parent, a node follows its `logicalParentUuid`: a compaction does not cut the conversation.
//! 5. Children of one node are a rewind if their times differ: each but the first is recorded behind a rollback to where the
//!    node was, and the live one is the last. Children of the same time, and results of different calls, stand side by side.
//! 6. A line whose `uuid`, type, time and `message.id` were there before is replayed: it is kept, and says nothing twice.
//!    Files that replay each other's lines, or follow them, become one session.
//! 7. A torn last line, lines that are no JSON objects, unknown types and unknown fields are kept. The first two are
//!    reported.
//! 8. A sub-agent becomes a child session of the call that started it. That call is the one that a line of either names
//!    together with the agent (of several with one id, the one of the last answer before, with the agent's first text as its
//!    `prompt` if there is one), or else the first one with the agent's first text as its `prompt`. Without such a call the
//!    sub-agent becomes a conversation of its own in the same session, and is reported.
//! 9. A content of `null` is a message without content.
//! 10. In a snapshot of the file history, a `backupFileName` of `null` says that the file did not exist.
//!
//! A call with a result becomes an operation; one whose result has `is_error` failed. A call without a result stays open in
//! the conversation, but if it started a sub-agent: then it ends as failed, and is reported.

mod agents;
mod export;
mod findings;
mod graph;
mod import;
mod line;
mod scan;
mod write;

pub use export::{ExportCounts, export, export_main};
pub use findings::{FindingKind, TranscriptFinding};
pub use import::{Imported, import};

use foldlog::{Event, Policy, SessionTypes, Slice, Value};
use serde::{Deserialize, Serialize};

/// Names a file of a transcript.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TranscriptFile {
    /// Number of the file, from 0.
    pub file: u64,
    /// Path of the file: its name, or `NAME/subagents/NAME` for a sub-agent.
    pub name: String,
}

impl Event for TranscriptFile {
    const NAME: &'static str = "claude_code.file";
}

/// Holds a line of a transcript as it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RawTranscriptLine {
    /// Number of the file.
    pub file: u64,
    /// Number of the line, from 1.
    pub line: u64,
    /// The line without its newline: a text, or bytes if it is not UTF-8.
    pub raw: Value,
    /// Whether the line ends with a newline.
    pub ended: bool,
}

impl Event for RawTranscriptLine {
    const NAME: &'static str = "claude_code.line";
}

/// Says what a snapshot of the file history holds of one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackupSeen {
    /// Number of the transcript's file.
    pub file: u64,
    /// Number of the snapshot's line.
    pub line: u64,
    /// Id of the message that the snapshot belongs to, which is no `uuid` of a line.
    pub message: Option<String>,
    /// Path of the file that was backed up.
    pub path: String,
    /// Whether the file existed.
    pub existed: bool,
    /// Name of the backup, if the file existed.
    pub backup: Option<String>,
}

impl Event for BackupSeen {
    const NAME: &'static str = "claude_code.backup";
}

/// Holds the names of the files.
#[derive(Debug)]
pub struct TranscriptFiles;

impl Slice for TranscriptFiles {
    const NAME: &'static str = "claude_code_files";
    type Item = TranscriptFile;
}

/// Holds the lines of all files.
#[derive(Debug)]
pub struct RawTranscriptLines;

impl Slice for RawTranscriptLines {
    const NAME: &'static str = "claude_code_lines";
    type Item = RawTranscriptLine;
}

/// Holds what snapshots of the file history say.
#[derive(Debug)]
pub struct Backups;

impl Slice for Backups {
    const NAME: &'static str = "claude_code_backups";
    type Item = BackupSeen;
}

/// Makes the declarations with which transcripts are imported.
///
/// # Errors
///
/// An error if the declarations contradict each other, which a test rules out.
pub fn types() -> foldlog::Result<SessionTypes> {
    SessionTypes::builder()
        .slice_with::<TranscriptFiles>(Policy::Log)
        .append_all::<TranscriptFiles>()
        .slice_with::<RawTranscriptLines>(Policy::Log)
        .append_all::<RawTranscriptLines>()
        .slice_with::<Backups>(Policy::Log)
        .append_all::<Backups>()
        .build()
}
