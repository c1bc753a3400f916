//! The names in one directory: the names that reads return, and the names that a power cut leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use super::chance::{Chance, PowerCutOutcome};
use super::disk::NodeId;

/// A change of names; a renamed file has both. A power cut preserves or loses it as a whole.
struct DirectoryChange {
    removed: Option<OsString>,
    added: Option<(OsString, NodeId)>,
}

impl DirectoryChange {
    fn names(&self) -> impl Iterator<Item = &OsString> {
        self.removed.iter().chain(self.added.iter().map(|(name, _)| name))
    }

    fn apply(&self, names: &mut BTreeMap<OsString, NodeId>) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        names.extend(self.added.clone());
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
        self.change(DirectoryChange { removed: None, added: Some((name.to_owned(), node)) });
    }

    pub(super) fn remove(&mut self, name: &OsStr) {
        self.change(DirectoryChange { removed: Some(name.to_owned()), added: None });
    }

    pub(super) fn rename(&mut self, from: &OsStr, to: &OsStr, node: NodeId) {
        let (removed, added) = (Some(from.to_owned()), Some((to.to_owned(), node)));
        self.change(DirectoryChange { removed, added });
    }

    fn change(&mut self, change: DirectoryChange) {
        change.apply(&mut self.current);
        self.pending.push(change);
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
            let free = change.names().all(|name| !waiting.contains(name));
            if fate.draw_reached(chance) && free {
                change.apply(&mut self.durable);
            } else {
                waiting.extend(change.names().cloned());
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
