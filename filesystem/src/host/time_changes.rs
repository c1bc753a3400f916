//! Reads the times in snapshots, and their differences.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::changes::{CHANGE_BYTES, CHANGES_BYTES_MAX, SnapshotReader};
use super::manifest::{escape_path, join, unescape_path};
use super::objects::{ObjectId, len};
use super::plan::CapturedDirectory;
use super::snapshot::FilesystemSnapshot;
use super::times::{EntryTime, Times};
use crate::error::Result;

/// An entry whose time of the last change differs between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeChange {
    /// Path relative to the workspace's root, escaped like that of a
    /// [`FileChange`](super::FileChange); empty for the root.
    pub path: String,
    /// Whether it is a directory in one of the snapshots.
    pub is_directory: bool,
    /// Nanoseconds since 1970 in the earlier snapshot; `None` if there is no entry.
    pub before_ns: Option<i64>,
    /// Nanoseconds since 1970 in the later snapshot; `None` if there is no entry.
    pub after_ns: Option<i64>,
}

/// An entry of a snapshot with its time.
#[derive(Clone, Copy)]
enum TimedEntry {
    Leaf(i64),
    Directory(CapturedDirectory),
}

/// Entries of a directory by their names.
type TimedEntries = Vec<(Arc<[u8]>, TimedEntry)>;

impl SnapshotReader {
    /// Returns the time of the last change of an entry in a snapshot, in nanoseconds since 1970.
    /// The empty path is the root. Returns `None` if the snapshot does not contain the entry, or
    /// has no times.
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if an object that is needed is missing or damaged.
    pub fn modified_ns(&mut self, snapshot: &FilesystemSnapshot, path: &str) -> Result<Option<i64>> {
        let (Some(root), Some(path)) = (self.timed_root(snapshot)?, unescape_path(path)) else {
            return Ok(None);
        };
        let (mut directory, mut around) = (root, Vec::new());
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let (_, entries) = self.timed_entries(directory, &around)?;
            around = join(&around, name);
            match entries.into_iter().find(|(other, _)| **other == *name) {
                Some((_, TimedEntry::Leaf(ns))) => return Ok((around == path).then_some(ns)),
                Some((_, TimedEntry::Directory(inside))) => directory = inside,
                None => return Ok(None),
            }
        }
        Ok(Some(self.timed_entries(directory, &around)?.0))
    }

    /// Returns the entries whose times differ between two snapshots, each directory before its
    /// entries. Returns `None` if one of the two has no times.
    ///
    /// # Errors
    ///
    /// [`Error::Object`](crate::Error::Object) if an object that is needed is missing or damaged, or
    /// if the changes would take more than about 1 GiB.
    pub fn time_changes(
        &mut self,
        before: &FilesystemSnapshot,
        after: &FilesystemSnapshot,
    ) -> Result<Option<Vec<TimeChange>>> {
        let (Some(was), Some(is)) = (self.timed_root(before)?, self.timed_root(after)?) else {
            return Ok(None);
        };
        let (mut changes, mut bytes) = (Vec::new(), 0_u64);
        let directory = |directory| Some(TimedEntry::Directory(directory));
        let mut left = vec![(Vec::new(), [directory(was), directory(is)])];
        while let Some((path, sides)) = left.pop() {
            if let [Some(TimedEntry::Directory(was)), Some(TimedEntry::Directory(is))] = sides
                && (was.tree, was.times) == (is.tree, is.times)
            {
                continue;
            }
            let mut inside: BTreeMap<Vec<u8>, [Option<TimedEntry>; 2]> = BTreeMap::new();
            let mut own = [None; 2];
            for (side, (entry, own)) in sides.into_iter().zip(&mut own).enumerate() {
                *own = match entry {
                    None => None,
                    Some(TimedEntry::Leaf(ns)) => Some(ns),
                    Some(TimedEntry::Directory(directory)) => {
                        let (ns, entries) = self.timed_entries(directory, &path)?;
                        for (name, entry) in entries {
                            if let Some(place) = inside.entry(join(&path, &name)).or_default().get_mut(side) {
                                *place = Some(entry);
                            }
                        }
                        Some(ns)
                    }
                };
            }
            let [before_ns, after_ns] = own;
            if before_ns != after_ns {
                bytes = bytes.saturating_add(CHANGE_BYTES).saturating_add(len(&path));
                if bytes > CHANGES_BYTES_MAX {
                    return Err(self.objects.damaged(is.tree, "too many changes of times to list"));
                }
                let is_directory =
                    sides.iter().flatten().any(|side| matches!(side, TimedEntry::Directory(_)));
                changes.push(TimeChange { path: escape_path(&path), is_directory, before_ns, after_ns });
            }
            left.extend(inside.into_iter().rev());
        }
        Ok(Some(changes))
    }

    /// Returns the root of a snapshot; `None` if the snapshot has no times.
    fn timed_root(&self, snapshot: &FilesystemSnapshot) -> Result<Option<CapturedDirectory>> {
        let Some(metadata) = snapshot.read_metadata(&self.objects)? else { return Ok(None) };
        let tree = snapshot.read_commit(&self.objects)?.tree;
        Ok(metadata.times.map(|times| CapturedDirectory { tree, times: Some(times) }))
    }

    /// Returns a directory's own time, and its entries.
    fn timed_entries(&mut self, directory: CapturedDirectory, path: &[u8]) -> Result<(i64, TimedEntries)> {
        let lines = self.trees.get(&self.objects, directory.tree, path)?;
        let id = directory.times.unwrap_or(ObjectId::UNKNOWN);
        let times = Times::read(&self.objects, id, &lines)?;
        let entries = lines.iter().zip(times.lines).map(|(line, time)| {
            let entry = match time {
                EntryTime::Leaf(ns) => TimedEntry::Leaf(ns),
                EntryTime::Directory(times) => {
                    TimedEntry::Directory(CapturedDirectory { tree: line.id, times: Some(times) })
                }
            };
            (Arc::clone(&line.name), entry)
        });
        Ok((times.own_ns, entries.collect()))
    }
}
