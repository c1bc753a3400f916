use foldlog::filesystem::{FileFacts, FileForm, FileKind, SnapshotReader, WantedEntry};

use crate::Result;

/// Longest text that is merged, in bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// A file, link or missing entry, as it is captured or as a merge made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Version {
    Missing,
    Captured(FileFacts),
    Merged { bytes: Vec<u8>, permissions: u32 },
}

impl Version {
    pub(crate) fn new(facts: Option<FileFacts>) -> Version {
        facts.map_or(Version::Missing, Version::Captured)
    }

    pub(crate) fn wanted(self) -> WantedEntry {
        match self {
            Version::Missing => WantedEntry::Nothing,
            Version::Captured(facts) => WantedEntry::Captured(facts),
            Version::Merged { bytes, permissions } => WantedEntry::Content { bytes, permissions },
        }
    }

    /// Returns the permissions and the content of a text that can be merged.
    fn text(&self, reader: &mut SnapshotReader) -> Result<Option<(u32, Vec<u8>)>> {
        let (permissions, bytes) = match self {
            Version::Missing => return Ok(None),
            Version::Merged { bytes, permissions } => (*permissions, bytes.clone()),
            Version::Captured(facts) => {
                let is_short = facts.form == FileForm::Whole && facts.len <= TEXT_BYTES_MAX;
                let Some(permissions) =
                    facts.permissions.filter(|_| is_short && facts.kind == FileKind::File)
                else {
                    return Ok(None);
                };
                (permissions, reader.content(facts, TEXT_BYTES_MAX)?)
            }
        };
        Ok((!bytes.contains(&0)).then_some((permissions, bytes)))
    }
}

/// Removes the change from `before` to `after` from the present version of a file, and keeps later
/// changes. Returns the new version, or the reason why this is not possible.
pub(crate) fn remove_change(
    before: &Version,
    after: &Version,
    present: &Version,
    reader: &mut SnapshotReader,
) -> Result<Result<Version, &'static str>> {
    if present == after || present == before {
        return Ok(Ok(before.clone()));
    }
    if let (Version::Captured(before), Version::Captured(after), Version::Captured(present)) =
        (before, after, present)
    {
        let is_same = |one: &FileFacts, other: &FileFacts| {
            (one.kind, &one.digest, one.form) == (other.kind, &other.digest, other.form)
        };
        // Only permissions differ, so content and permissions are merged one by one.
        let content = match (is_same(present, after), is_same(before, after)) {
            (true, _) => Some(before),
            (false, true) => Some(present),
            (false, false) => is_same(present, before).then_some(before),
        };
        if let Some(content) = content {
            let permissions = if present.permissions == after.permissions {
                before.permissions
            } else {
                present.permissions
            };
            let permissions =
                if content.kind == FileKind::Link { None } else { permissions.or(content.permissions) };
            return Ok(Ok(Version::Captured(FileFacts { permissions, ..content.clone() })));
        }
    }
    let refused = |reason| Ok(Err(reason));
    match (before, after, present) {
        (_, _, Version::Missing) => return refused("it was removed since"),
        (_, Version::Missing, _) => return refused("it was created again since"),
        (Version::Missing, _, _) => return refused("it was created by the call, and changed since"),
        _ => {}
    }
    let texts = (before.text(reader)?, after.text(reader)?, present.text(reader)?);
    let (Some((was, before)), Some((is, after)), Some((now, present))) = texts else {
        return refused("it was changed since, and is no text that can be merged");
    };
    let permissions = if now == is { was } else { now };
    match diffy::merge_bytes(&after, &present, &before) {
        Ok(bytes) => Ok(Ok(Version::Merged { bytes, permissions })),
        Err(_) => refused("the same lines were changed since"),
    }
}
