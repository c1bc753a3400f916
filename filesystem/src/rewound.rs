//! What a rewind of a workspace changes, and what it keeps of what somebody changed by hand.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names what became of a file or link between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Only the later snapshot has a file or link at the path.
    Created,
    /// Both have one, with different facts.
    Modified,
    /// Only the earlier snapshot has one.
    Removed,
}

impl ChangeKind {
    /// Returns the name of the kind, as JSON has it: `created`, `modified`, `removed`.
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Created => "created",
            ChangeKind::Modified => "modified",
            ChangeKind::Removed => "removed",
        }
    }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Describes a file or link that a rewind changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRewound {
    /// Path relative to the workspace's root. Backslashes, control characters and bytes that are not UTF-8 appear as `\xNN`.
    pub path: String,
    /// What the rewind does to it.
    pub change: ChangeKind,
    /// The file as it is; `None` if the rewind creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<FileBrief>,
    /// The file after the rewind; `None` if the rewind removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FileBrief>,
    /// How the contents differ.
    pub diff: ContentDiff,
}

/// Describes a file or link in a few words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileBrief {
    /// Length of the content in bytes; of a link, that of its target path.
    pub len: u64,
    /// Permission bits of a file; `None` of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<u32>,
}

/// Says how two contents differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum ContentDiff {
    /// Both are text.
    Text {
        /// The lines that differ, as a unified diff without the two lines of its head.
        unified: String,
    },
    /// One of them is no text.
    Binary,
    /// One of them is longer than what is compared, or all diffs together are.
    TooLong,
    /// They are equal: the permissions differ, or the way in which the content is held.
    Equal,
}

/// Describes a file or link that a rewind keeps as it is, since nobody knows whether a tool left it so: no call has worked in
/// the directory yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUnknown {
    /// Path relative to the workspace's root, as in [`FileRewound::path`]. A path at which nothing stands stays so.
    pub path: String,
    /// What the rewind would do to it otherwise.
    pub otherwise: ChangeKind,
}

/// Describes a file or link that a rewind keeps as it is, since somebody changed it by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// Path relative to the workspace's root, as in [`FileRewound::path`].
    pub path: String,
    /// What was done to it by hand. A file that was removed by hand stays removed.
    pub by_hand: ChangeKind,
    /// What the rewind would do to it otherwise.
    pub otherwise: ChangeKind,
    /// Path at which something else stood: the file above whose place a kept file needs a directory, or the directory, with a `/`
    /// behind it, in whose place the kept file stands. It is not brought back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_of: Option<String>,
}
