//! Leftovers of crashes in a session's directory and next to the sessions of a store.

use std::collections::BTreeSet;
use std::path::Path;

use uuid::Uuid;

use super::{CollectOptions, CollectReport, FileSweeper, Store, check_removal};
use crate::error::{Error, Result};
use crate::log::{decisions, layout, lock};
use crate::session::LoadedSession;
use crate::storage::EntryKind;
use crate::store::backup;

impl FileSweeper<'_> {
    /// Collects unfinished files in a session's directory whose writers were killed.
    pub(super) fn leftovers_of(&mut self, dir: &Path, read: &LoadedSession) -> Result<()> {
        let may_have_open_calls = read.folded.projection.operations.open().next().is_some()
            || read.scan.durable < read.scan.next_sequence;
        let is_spare = |name: &str| dir.join(name) == layout::spare_file(dir);
        let is_building = |name: &str| layout::building_ordinal(name).is_some() || name == backup::COPIED;
        let is_segment = |name: &str| read.scan.leftovers.contains(&dir.join(name));
        let is_one = |name: &str| is_spare(name) || is_building(name) || is_segment(name);
        for entry in self.files(dir, is_one)? {
            let path = dir.join(&entry.name);
            // Without the file that a seal names, the log is damaged, even if that file is empty.
            let is_leftover = is_building(&entry.name)
                || is_spare(&entry.name) && !may_have_open_calls
                || is_segment(&entry.name)
                    && layout::segment_ordinal(&entry.name) != read.scan.sealed_next
                    && self.is_unwritten(&path);
            if is_leftover {
                self.remove(&path, entry.len)?;
                self.collected.leftovers += 1;
            }
        }
        let decisions = layout::decisions_dir(dir);
        for entry in self.list(&decisions)?.iter().filter(|entry| decisions::is_leftover(entry)) {
            self.remove(&decisions.join(&entry.name), entry.len)?;
            self.collected.leftovers += 1;
        }
        Ok(())
    }

    fn remove_directory(&mut self, directory: &Path) -> Result<()> {
        let mut directories = vec![directory.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in self.list(&directory)? {
                let path = directory.join(&entry.name);
                match entry.kind {
                    EntryKind::Directory => directories.push(path),
                    _ if self.storage().links(&path).is_ok_and(|names| names == 1) => {
                        self.collected.bytes += entry.len;
                    }
                    _ => {}
                }
            }
        }
        self.collected.leftovers += 1;
        if self.dry_run {
            return Ok(());
        }
        check_removal("remove", directory, self.storage().remove_dir_all(directory))
    }
}

impl Store {
    /// Collects sessions whose creation or deletion was cut short by a kill, directories without a
    /// record, and notes of writers that hold no lock.
    pub(super) fn collect_unfinished(
        &self,
        options: &CollectOptions,
        recordless: &BTreeSet<Uuid>,
        report: &mut CollectReport,
    ) -> Result<()> {
        let mut sweeping = FileSweeper::new(self, options.dry_run);
        let sessions = layout::sessions_dir(&self.inner.root);
        let mut is_synced = options.dry_run;
        for entry in sweeping.list(&sessions)? {
            let path = sessions.join(&entry.name);
            let unfinished = layout::unfinished_session(&entry.name);
            if entry.kind != EntryKind::Directory {
                if unfinished.is_some() {
                    sweeping.leave(path, entry.kind);
                }
                continue;
            }
            let Some(id) = unfinished.or_else(|| layout::session_of(&path)) else { continue };
            if unfinished.is_none() && !recordless.contains(&id) {
                continue;
            }
            let kept = match self.keep(id, options.dry_run) {
                // The session is being created, deleted or written.
                Err(Error::Locked { .. }) => continue,
                kept => kept?,
            };
            if unfinished.is_some() || self.is_without_record(id)? {
                // If a deletion failed before the rename was durable, a power cut may give the
                // session its name back. The sync prevents that.
                if !is_synced {
                    self.storage().sync_directory(&sessions)?;
                    is_synced = true;
                }
                sweeping.remove_directory(&path)?;
            }
            drop(kept);
        }
        self.collect_notes(&mut sweeping)?;
        sweeping.end(report);
        Ok(())
    }

    /// Returns whether a session's directory contains only what a crash left before the first
    /// record.
    fn is_without_record(&self, id: Uuid) -> Result<bool> {
        match self.partial_creation(id) {
            Err(Error::SessionExists { .. }) => Ok(false),
            found => found.map(|_| true),
        }
    }

    fn collect_notes(&self, sweeping: &mut FileSweeper<'_>) -> Result<()> {
        let directory = layout::writers_dir(&self.inner.root);
        let holder = |name: &str| Uuid::try_parse(name.strip_suffix(".json")?).ok();
        let notes: Vec<(Uuid, u64)> = sweeping
            .files(&directory, |name| holder(name).is_some())?
            .iter()
            .filter_map(|entry| Some((holder(&entry.name)?, entry.len)))
            .collect();
        let ids: Vec<Uuid> = notes.iter().map(|(id, _)| *id).collect();
        let held = lock::find_holders(self.storage(), &self.inner.root, &ids)?;
        for (id, len) in notes.into_iter().filter(|(id, _)| !held.contains_key(id)) {
            // No other process may take the lock, and leave a note, between the check and the
            // removal.
            let kept = match self.keep(id, true) {
                Err(Error::Locked { .. }) => continue,
                kept => kept?,
            };
            sweeping.remove(&layout::holder_file(&self.inner.root, id), len)?;
            sweeping.collected.leftovers += 1;
            drop(kept);
        }
        Ok(())
    }
}
