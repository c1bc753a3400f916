//! Finds and audits the captures of workspaces that the records of a session name and that are in
//! the session's directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Parent;

use crate::error::Result;
use crate::log::objects::Objects;
use crate::log::scan;
use crate::session::captures_named_by;
use crate::storage::Storage;

#[cfg(feature = "host-filesystem")]
pub use reading::{CapturesAudited, audit_captures};
#[cfg(feature = "host-filesystem")]
pub(crate) use reading::{directory_of, snapshots};

/// Captures in their recorded form, by the names of their resources.
pub(crate) type NamedCaptures = BTreeMap<String, BTreeSet<Vec<u8>>>;

/// Returns the captures that the records from `from` on of the session in the directory `dir` name,
/// and the session's parent.
pub(crate) fn captures_named(
    storage: &Arc<dyn Storage>,
    dir: &Path,
    from: SequenceNumber,
) -> Result<(NamedCaptures, Option<Parent>)> {
    let objects = Arc::new(Objects::new(Arc::clone(storage), dir));
    let mut named = NamedCaptures::new();
    let scan = scan::scan(storage.as_ref(), dir, &mut |at| {
        let header = at.frame.header;
        if header.sequence < from || header.kind.is_envelope() {
            return Ok(());
        }
        for (name, recorded) in captures_named_by(&at.record(), &objects)? {
            named.entry(name).or_default().extend(recorded);
        }
        Ok(())
    })?;
    Ok((named, scan.opened.parent))
}

#[cfg(feature = "host-filesystem")]
mod reading {
    use std::path::PathBuf;

    use foldlog_codec::msgpack;
    use foldlog_filesystem::{DamagedObject, FilesystemSnapshot, audit_snapshots, keeps_any};
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::log::layout;
    use crate::storage::{EntryKind, FileStorage};

    /// Reports the results of an audit of a session's captures.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[non_exhaustive]
    pub struct CapturesAudited {
        /// Number of captures of workspaces that were read.
        pub captures: u64,
        /// Number of captures that were collected, so that there is nothing to read.
        pub collected: u64,
        /// Number of captures, by the names of their workspaces, without data in the session's
        /// directory: the host stores them in a directory of its own, or they were lost.
        pub elsewhere: BTreeMap<String, u64>,
        /// Files that are damaged or missing, each once: the first 100 of each directory of
        /// captures.
        pub damaged: Vec<DamagedObject>,
        /// Number of damaged or missing files beyond `damaged`.
        pub damaged_more: u64,
    }

    /// Reads all captures of workspaces that the records of the session in the directory `dir` name
    /// and that are stored in that directory. Reads each file completely, and checks its content
    /// and length. Takes no lock, and may run while the session is written. If a file is damaged,
    /// the next capture into that directory reads all files that it relies on, and rewrites the
    /// damaged ones that the workspace still has.
    ///
    /// # Errors
    ///
    /// The errors of [`LogReader::open`](crate::inspect::LogReader::open) if the log is damaged, or
    /// cannot be read.
    pub fn audit_captures(dir: impl AsRef<Path>) -> Result<CapturesAudited> {
        let dir = dir.as_ref();
        let storage: Arc<dyn Storage> = Arc::new(FileStorage::new());
        let (named, _) = captures_named(&storage, dir, SequenceNumber::MIN)?;
        let mut audited = CapturesAudited::default();
        for (name, recorded) in &named {
            let snapshots = snapshots(recorded);
            let Some(directory) = directory_of(dir, name, &snapshots) else {
                if !snapshots.is_empty() {
                    audited.elsewhere.insert(name.clone(), snapshots.len() as u64);
                }
                continue;
            };
            let found = audit_snapshots(&dir.join(directory), &snapshots, &|_| true);
            audited.captures += found.snapshots;
            audited.collected += found.collected;
            audited.damaged.extend(found.damaged);
            audited.damaged_more += found.damaged_more;
            let reason = "the first file of a capture is missing";
            let absent = found.absent.into_iter();
            audited.damaged.extend(absent.map(|path| DamagedObject { path, reason: reason.to_owned() }));
        }
        let own = layout::captures_dir(dir);
        let entry = storage.look_up(&own)?;
        let irregular = entry.map(|entry| entry.kind).filter(|kind| *kind != EntryKind::Directory);
        if let Some(found) = irregular.filter(|_| !audited.elsewhere.is_empty()) {
            let reason = format!("it is {}", found.in_place_of(EntryKind::Directory));
            audited.damaged.push(DamagedObject { path: own, reason });
        }
        audited.damaged.sort_by(|one, other| one.path.cmp(&other.path));
        audited.damaged.dedup_by(|one, other| one.path == other.path);
        Ok(audited)
    }

    pub(crate) fn snapshots(recorded: &BTreeSet<Vec<u8>>) -> Vec<FilesystemSnapshot> {
        recorded.iter().filter_map(|recorded| msgpack::from_slice(recorded).ok()).collect()
    }

    /// Returns a directory within a session's directory that contains any of the snapshots: the
    /// directory of captures if possible, otherwise another one.
    pub(crate) fn directory_of(dir: &Path, name: &str, snapshots: &[FilesystemSnapshot]) -> Option<PathBuf> {
        let listed = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let directories = listed.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut directories: Vec<PathBuf> = directories.map(|entry| entry.path()).collect();
        directories.sort_by_key(|path| {
            (*path != layout::captures_dir(dir), path.file_name() != Some(name.as_ref()))
        });
        let found = directories.into_iter().find(|directory| keeps_any(directory, snapshots))?;
        found.strip_prefix(dir).map(Path::to_owned).ok()
    }
}
