//! Findings that an import reports about a transcript.

use std::fmt;

use foldlog_codec::escape;
use foldlog_view::text::shorten_text;
use serde::Serialize;

/// Maximum number of characters of an id that a person is shown.
const ID_CHARS_MAX: usize = 80;

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// No file contains the line's `parentUuid`.
    DanglingParent,
    /// No file contains the line's `logicalParentUuid`.
    DanglingLogicalParent,
    /// The line's ancestors lead back to it.
    Cycle,
    /// A message starts another part, without a parent.
    SecondBeginning,
    /// The file's last line is incomplete.
    TornLine,
    /// A line is not a JSON object.
    MalformedLine,
    /// Lines repeat earlier ones.
    ReplayedLines,
    /// The line's `uuid` belongs to another line with different contents.
    RepeatedUuid,
    /// The call that started the sub-agent is unknown.
    AgentWithoutCall,
    /// A call that started a sub-agent has no result.
    CallWithoutResult,
}

/// A finding about a transcript.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TranscriptFinding {
    /// Kind of the finding.
    pub kind: FindingKind,
    /// Name of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Number of lines, for [`ReplayedLines`](FindingKind::ReplayedLines).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    /// Id that is missing, repeated or without a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl fmt::Display for TranscriptFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TranscriptFinding { kind, file, line, lines, id } = self;
        let id = shorten_text(id.as_deref().unwrap_or_default(), ID_CHARS_MAX);
        let id = escape::text(&id);
        write!(f, "{}, line {line}: ", escape::text(file))?;
        match kind {
            FindingKind::DanglingParent => {
                write!(f, "its parent `{id}` is in no file; it is placed by its time")
            }
            FindingKind::DanglingLogicalParent => {
                write!(f, "its logical parent `{id}` is in no file; it is placed by its time")
            }
            FindingKind::Cycle => {
                write!(f, "its ancestors lead back to it; it is placed by its time")
            }
            FindingKind::SecondBeginning => {
                write!(f, "it has no parent, and is not the first message; it is placed by its time")
            }
            FindingKind::TornLine => {
                write!(f, "the line is incomplete; it is stored, but not part of the conversation")
            }
            FindingKind::MalformedLine => {
                write!(f, "it is not a JSON object; it is stored, but not part of the conversation")
            }
            FindingKind::ReplayedLines => {
                let (lines, repeat) = match lines.unwrap_or_default() {
                    1 => ("1 line".to_owned(), "repeats"),
                    lines => (format!("{lines} lines"), "repeat"),
                };
                write!(f, "{lines} from here on {repeat} earlier ones; they are stored, and count once")
            }
            FindingKind::RepeatedUuid => {
                write!(f, "its uuid `{id}` belongs to another line too; it counts as a separate line")
            }
            FindingKind::AgentWithoutCall => {
                write!(f, "no call started the sub-agent `{id}`; it is a separate conversation")
            }
            FindingKind::CallWithoutResult => {
                write!(f, "the call `{id}` started a sub-agent and has no result; it ends as failed")
            }
        }
    }
}
