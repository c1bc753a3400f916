//! The names in one directory: the names that reads return, and the names that a power cut leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use super::chance::{Chance, PowerCutOutcome};
use super::disk::NodeId;

/// A change of names. A power cut preserves or loses it as a whole.
enum DirectoryChange {
    Added { name: OsString, node: NodeId },
    Removed { name: OsString },
    Renamed { from: OsString, to: OsString, node: NodeId },
}

impl DirectoryChange {
    fn names(&self) -> [&OsString; 2] {
        match self {
            Self::Added { name, .. } | Self::Removed { name } => [name, name],
            Self::Renamed { from, to, .. } => [from, to],
        }
    }

    fn apply(self, names: &mut BTreeMap<OsString, NodeId>) {
        match self {
            Self::Added { name, node } => {
                names.insert(name, node);
            }
            Self::Removed { name } => {
                names.remove(&name);
            }
            Self::Renamed { from, to, node } => {
                names.remove(&from);
                names.insert(to, node);
            }
        }
    }
}

#[derive(Default)]
pub(super) struct MemoryDirectory {
    current: BTreeMap<OsString, NodeId>,
    durable: BTreeMap<OsString, NodeId>,
    /// Changes since the last sync, oldest first.
    pending: Vec<DirectoryChange>,
}

impl MemoryDirectory {
    pub(super) fn get(&self, name: &OsStr) -> Option<NodeId> {
        self.current.get(name).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    /// Returns the names that reads return, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = (&OsString, NodeId)> {
        self.current.iter().map(|(name, node)| (name, *node))
    }

    pub(super) fn add(&mut self, name: &OsStr, node: NodeId) {
        self.current.insert(name.to_owned(), node);
        self.pending.push(DirectoryChange::Added { name: name.to_owned(), node });
    }

    pub(super) fn remove(&mut self, name: &OsStr) {
        self.current.remove(name);
        self.pending.push(DirectoryChange::Removed { name: name.to_owned() });
    }

    pub(super) fn rename(&mut self, from: &OsStr, to: &OsStr, node: NodeId) {
        self.current.remove(from);
        self.current.insert(to.to_owned(), node);
        self.pending.push(DirectoryChange::Renamed { from: from.to_owned(), to: to.to_owned(), node });
    }

    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Lets some changes reach the disk, as the kernel may at any time. Changes of one name reach
    /// the disk in their order. Otherwise a file could be lost whose name was renamed away and then
    /// created again.
    pub(super) fn write_back(&mut self, fate: PowerCutOutcome, chance: &mut Chance) {
        let mut waiting = BTreeSet::new();
        for change in std::mem::take(&mut self.pending) {
            let free = change.names().iter().all(|name| !waiting.contains(*name));
            if fate.draw_reached(chance) && free {
                change.apply(&mut self.durable);
            } else {
                waiting.extend(change.names().map(OsString::clone));
                self.pending.push(change);
            }
        }
    }

    /// Cuts the power: each unsynced change reached the disk or did not.
    pub(super) fn lose_power(&mut self, fate: PowerCutOutcome, chance: &mut Chance) {
        self.write_back(fate, chance);
        self.pending.clear();
        self.current = self.durable.clone();
    }
}
