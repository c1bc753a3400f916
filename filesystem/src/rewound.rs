//! The changes of a workspace by a rewind, and the changes by hand that a rewind preserves.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names the change of a file or link between two snapshots.
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

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Describes a file or link that a rewind changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRewound {
    /// Path relative to the workspace's root. Backslashes, control characters and bytes that are
    /// not UTF-8 appear as `\xNN`.
    pub path: String,
    /// The effect of the rewind on it.
    pub change: ChangeKind,
    /// The present file; `None` if the rewind creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<FileBrief>,
    /// The file after the rewind; `None` if the rewind removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FileBrief>,
    /// How the contents differ.
    pub diff: ContentDiff,
}

/// Describes a file or link briefly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileBrief {
    /// Length of the content in bytes; of a link, that of its target path.
    pub len: u64,
    /// Permission bits of a file; `None` for a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<u32>,
}

/// Describes how two contents differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum ContentDiff {
    /// Both are text.
    Text {
        /// The lines that differ, as a unified diff without the two header lines.
        unified: String,
    },
    /// At least one of them is not text.
    Binary,
    /// One of them is too long to be compared, or the limit on all diffs together is reached.
    TooLong,
    /// They are equal: only the permissions or the storage form of the content differ.
    Equal,
}

/// Describes a file or link that a rewind leaves unchanged because it is unknown whether a tool
/// wrote it: no call has worked in the directory yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUnknown {
    /// Path relative to the workspace's root, as in [`FileRewound::path`]. If the path does not
    /// exist, it is not created.
    pub path: String,
    /// The effect that the rewind would otherwise have on it.
    pub otherwise: ChangeKind,
}

/// Describes a file or link of which a rewind keeps the changes by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// Path relative to the workspace's root, as in [`FileRewound::path`].
    pub path: String,
    /// The change by hand. A file that was removed by hand stays removed.
    pub by_hand: ChangeKind,
    /// The effect that the rewind would otherwise have on it.
    pub otherwise: ChangeKind,
    /// Path of an entry that is not brought back because the kept file conflicts with it: a file in
    /// the place of one of the kept file's directories, or a directory, with a trailing `/`, in the
    /// place of the kept file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_of: Option<String>,
    /// Whether the changes by tools are removed from the file, and those by hand stay. Otherwise the
    /// file is unchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
}
