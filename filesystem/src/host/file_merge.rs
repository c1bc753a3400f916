//! Removes one change from the present version of a file, and keeps later ones.
//!
//! An undo of a call removes the call's changes, and a rewind those of all later calls. Both keep
//! changes by others.

use super::changes::{FileFacts, SnapshotReader};
use super::manifest::{FileForm, FileKind};
use crate::error::Result;

/// Longest text that is merged, in bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// A file, link or missing entry, as it is captured or as a merge made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileVersion {
    /// There is no file or link.
    Missing,
    /// A file or link in a snapshot.
    Captured(FileFacts),
    /// A text that no snapshot contains.
    Merged {
        /// The content.
        bytes: Vec<u8>,
        /// Permission bits, those of `0o7777`.
        permissions: u32,
    },
}

impl From<Option<FileFacts>> for FileVersion {
    fn from(facts: Option<FileFacts>) -> FileVersion {
        facts.map_or(FileVersion::Missing, FileVersion::Captured)
    }
}

impl SnapshotReader {
    /// Removes the change from `before` to `after` from the present version of a file, and keeps
    /// later changes. Returns the new version, or the reason why this is not possible.
    ///
    /// | later change | result |
    /// |---|---|
    /// | none, or one back to `before` | `before` |
    /// | only of the permissions, or only of the content | content and permissions are treated separately |
    /// | of other lines, in texts of at most 1 MiB | the lines are merged |
    /// | of the same lines, or in other content; a file that was created or removed | a reason |
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if a content is missing or damaged.
    pub fn remove_change(
        &mut self,
        before: &FileVersion,
        after: &FileVersion,
        present: &FileVersion,
    ) -> Result<Result<FileVersion, &'static str>> {
        if present == after || present == before {
            return Ok(Ok(before.clone()));
        }
        if let Some(version) = merge_permissions(before, after, present) {
            return Ok(Ok(version));
        }
        let refused = |reason| Ok(Err(reason));
        match (before, after, present) {
            (_, _, FileVersion::Missing) => return refused("it was removed since"),
            (_, FileVersion::Missing, _) => return refused("it was created again since"),
            (FileVersion::Missing, _, _) => return refused("it was created by the call, and changed since"),
            _ => {}
        }
        let texts = (self.text_of(before)?, self.text_of(after)?, self.text_of(present)?);
        let (Some((was, before)), Some((is, after)), Some((now, text))) = texts else {
            return refused("it was changed since, and is no text that can be merged");
        };
        let permissions = if now == is { was } else { now };
        match diffy::merge_bytes(&after, &text, &before) {
            // A later change has removed this one, too.
            Ok(bytes) if bytes == text && permissions == now => Ok(Ok(present.clone())),
            Ok(bytes) => Ok(Ok(FileVersion::Merged { bytes, permissions })),
            Err(_) => refused("the same lines were changed since"),
        }
    }

    /// Returns the permissions and the content of a text that can be merged.
    fn text_of(&mut self, version: &FileVersion) -> Result<Option<(u32, Vec<u8>)>> {
        let (permissions, bytes) = match version {
            FileVersion::Missing => return Ok(None),
            FileVersion::Merged { bytes, permissions } => (*permissions, bytes.clone()),
            FileVersion::Captured(facts) => {
                let is_short = facts.form == FileForm::Whole && facts.len <= TEXT_BYTES_MAX;
                let Some(permissions) =
                    facts.permissions.filter(|_| is_short && facts.kind == FileKind::File)
                else {
                    return Ok(None);
                };
                (permissions, self.content(facts, TEXT_BYTES_MAX)?)
            }
        };
        Ok((!bytes.contains(&0)).then_some((permissions, bytes)))
    }
}

/// Merges content and permissions separately, if two of the three contents are equal.
fn merge_permissions(
    before: &FileVersion,
    after: &FileVersion,
    present: &FileVersion,
) -> Option<FileVersion> {
    let (FileVersion::Captured(before), FileVersion::Captured(after), FileVersion::Captured(present)) =
        (before, after, present)
    else {
        return None;
    };
    let is_same = |one: &FileFacts, other: &FileFacts| {
        (one.kind, &one.digest, one.form) == (other.kind, &other.digest, other.form)
    };
    let content = match (is_same(present, after), is_same(before, after)) {
        (true, _) => before,
        (false, true) => present,
        (false, false) if is_same(present, before) => before,
        (false, false) => return None,
    };
    let permissions =
        if present.permissions == after.permissions { before.permissions } else { present.permissions };
    let permissions = if content.kind == FileKind::Link { None } else { permissions.or(content.permissions) };
    Some(FileVersion::Captured(FileFacts { permissions, ..content.clone() }))
}
