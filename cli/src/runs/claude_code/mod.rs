//! Transcripts of Claude Code: `NAME.jsonl`, one JSON object per line, and its sub-agents in
//! `NAME/subagents/*.jsonl`.
//!
//! The format is undocumented and changes often. Every line is therefore stored unchanged, even if
//! it is not understood, and [`export`] writes the same files back. The lines that are understood
//! also become a conversation.
//!
//! | slice | policy | contains |
//! |---|---|---|
//! | `claude_code_files` | LOG | name of each file: `{file, name}` |
//! | `claude_code_lines` | LOG | each line, without its newline: `{file, line, raw, ended}` |
//! | `claude_code_backups` | LOG | each file in a snapshot of the file history: `{file, line, message, path, existed, backup}` |
//!
//! # Terms
//!
//! - A *node* is a line that has a `uuid`, or is a message without one. `file-history-snapshot`
//!   lines are not nodes: their `messageId` is an id of another kind, which may equal a `uuid`.
//! - A *message* is one node of type `user`, or all nodes of type `assistant` with one
//!   `message.id`.
//! - A *branch* is a child of a node with its descendants. One branch of each node is live: the one
//!   with the last line of the file (of several files, of the one that ends last), or else the
//!   latest.
//! - A *part* is a tree of nodes. All but the first part are loose.
//!
//! # Rules
//!
//! 1. The lines of one `message.id` become one answer, whose usage is that of its last line.
//!    Several calls may share an id: a call is identified by its answer and its place there. A call
//!    that repeats the id, name and arguments of one in an earlier line of the answer counts once,
//!    unless there are further results of the id. A result belongs to the open call of its id in
//!    the line that it names by `sourceToolAssistantUUID`. Without that field, it belongs to the
//!    call in the line that it follows, if each line has its own results, or else to the first
//!    call.
//! 2. `parentUuid` defines the graph. A parent that is in no file is reported, and its part is
//!    loose. A cycle is broken at its earliest node, and reported. A loose part is inserted by its
//!    time, before the first later message of the live branch that is not a tool result, and
//!    abandons nothing.
//! 3. Ids of file history snapshots are never matched with ids of nodes.
//! 4. Without a parent, a node follows its `logicalParentUuid`: a compaction does not split the
//!    conversation.
//! 5. Children of one node with different times are a rewind: each but the first is recorded after
//!    a rollback to the node's position, and the live one is the last. Children of the same time,
//!    and results of different calls, are siblings.
//! 6. A line whose `uuid`, type, time and `message.id` occurred before is replayed: it is stored,
//!    but adds nothing to the conversation. Files that replay each other's lines, or follow them,
//!    become one session.
//! 7. A torn last line, lines that are not JSON objects, unknown types and unknown fields are
//!    stored. The first two are reported.
//! 8. A sub-agent becomes a child session of the call that started it. That call is the one that a
//!    line of either names together with the agent. Of several calls with this id, it is that of
//!    the last preceding answer, with the agent's first text as its `prompt` if there is one. If no
//!    line names a call, it is the first call with the agent's first text as its `prompt`. Without
//!    such a call the sub-agent becomes a separate conversation in the same session, and is
//!    reported.
//! 9. A content of `null` is a message without content.
//! 10. In a snapshot of the file history, a `backupFileName` of `null` means that the file did not
//!     exist.
//!
//! A call with a result becomes an operation; it failed if its result has `is_error`. A call
//! without a result stays open in the conversation. If it started a sub-agent, however, it ends as
//! failed, and is reported.

mod agents;
mod export;
mod findings;
mod graph;
mod import;
mod line;
mod new_lines;
mod scan;
mod write;

pub use export::{ExportCounts, export, export_main};
pub use findings::{FindingKind, TranscriptFinding};
pub use import::{Imported, import};
pub(crate) use new_lines::import_new_lines;

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

/// A line of a transcript in its original form.
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

/// Entry of one file in a snapshot of the file history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackupSeen {
    /// Number of the transcript's file.
    pub file: u64,
    /// Number of the snapshot's line.
    pub line: u64,
    /// Id of the message to which the snapshot belongs. It is not a `uuid` of a line.
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

/// The names of the files.
#[derive(Debug)]
pub struct TranscriptFiles;

impl Slice for TranscriptFiles {
    const NAME: &'static str = "claude_code_files";
    type Item = TranscriptFile;
}

/// The lines of all files.
#[derive(Debug)]
pub struct RawTranscriptLines;

impl Slice for RawTranscriptLines {
    const NAME: &'static str = "claude_code_lines";
    type Item = RawTranscriptLine;
}

/// The entries of file history snapshots.
#[derive(Debug)]
pub struct Backups;

impl Slice for Backups {
    const NAME: &'static str = "claude_code_backups";
    type Item = BackupSeen;
}

/// Creates the declarations with which transcripts are imported.
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
