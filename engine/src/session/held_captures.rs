//! Replicates the files that captures of workspaces need before the records that name them, and
//! fetches them back.
//!
//! Only captures in the directory [`captures_dir`](crate::SessionLog::captures_dir) are replicated;
//! for a child session, only those of the session that it works for
//! ([`child_captures`](super::child_captures)). A missing capture is skipped: the host stores it
//! elsewhere, or it was collected. A damaged capture fails the feed, so that no record is
//! acknowledged that a takeover could not restore.
//!
//! Because missing captures are skipped, the records of a replica may name captures that no pack
//! contains. When a new log is created from a replica, and packs contain other captures of the same
//! workspace, the worker that replicated them had collected the missing ones. The new directory of
//! captures therefore marks them as collected ([`Error::Collected`]), so that they do not count as
//! damaged. Captures that an existing log names are not marked, because they may have been lost
//! here; nor are those of a child session, because its parent's packs may contain them.
//!
//! The set of replicated files is cached in the process that put them. A process that opens the
//! session starts from the last replicated captures; files of older captures are put again if they
//! reappear.

use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ObjectId;

use super::SessionInner;
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::replication::HeldPart;
use crate::storage::Storage;

#[cfg(feature = "host-filesystem")]
pub(super) use holding::{CaptureReceiver, ReplicatedCaptures};
#[cfg(not(feature = "host-filesystem"))]
pub(super) use nothing::{CaptureReceiver, ReplicatedCaptures};

/// Tracks the record from which on all named captures are replicated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldFrom {
    /// Sequence number after the last record with replicated captures.
    next: SequenceNumber,
    from: SequenceNumber,
}

impl HeldFrom {
    pub(super) fn see(&mut self, part: &HeldPart<'_>) {
        match part {
            HeldPart::Captures { next, .. } => self.next = *next,
            HeldPart::Record(record) if record.sequence >= self.next => self.from = record.sequence + 1,
            HeldPart::Record(_) => {}
        }
    }

    /// Returns the sequence number from which on, to the end, all captures are replicated.
    pub(super) fn from(self) -> SequenceNumber {
        self.from
    }
}

/// Sources of the records, of their objects, and of their session.
#[derive(Clone, Copy)]
pub(super) struct CaptureSources<'a> {
    pub(super) storage: &'a Arc<dyn Storage>,
    pub(super) places: &'a RecordLocator,
    pub(super) objects: &'a Objects,
    pub(super) session: &'a SessionInner,
}

/// Packs with the objects that captures add, in the form that an append takes.
#[derive(Debug, Default)]
pub(super) struct AppendedPacks {
    pub(super) packs: Vec<ObjectId>,
    pub(super) inlined: Vec<u8>,
}

#[cfg(feature = "host-filesystem")]
mod holding {
    use std::collections::{BTreeMap, HashSet, VecDeque};
    use std::ops::{ControlFlow, Range};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use foldlog_codec::body::ObjectId;
    use foldlog_codec::{Record, SequenceNumber, msgpack};
    use foldlog_filesystem::{
        FilesystemSnapshot, PACK_BYTES_MAX, PackReceiver, SnapshotPacker, remember_collected,
    };
    use uuid::Uuid;

    use super::{AppendedPacks, CaptureSources};
    use crate::error::{Error, Result};
    use crate::log::layout;
    use crate::log::objects::Objects;
    use crate::log::reader::RecordLocator;
    use crate::replication::{CapturePacks, INLINED_BYTES_MAX, Replicator};
    use crate::session::child_captures;
    use crate::session::operation_records::captures_named_by;
    use crate::session::replica_feed::{read_object, replica_error};
    use crate::storage::Storage;

    /// Maximum number of captures that an opening reads.
    const NEWEST: usize = 64;

    /// Number of records among which it searches for them.
    const LOOKED_THROUGH: u64 = 65_536;

    /// The replicator's known captures of a session.
    #[derive(Debug)]
    pub(in crate::session) struct ReplicatedCaptures {
        dir: PathBuf,
        /// First record of the range with replicated captures at opening.
        from: SequenceNumber,
        packer: Option<SnapshotPacker>,
    }

    impl ReplicatedCaptures {
        /// Follows the captures of the session in the directory `dir`. Captures named by records
        /// from `from` on are replicated.
        pub(in crate::session) fn new(dir: &Path, from: SequenceNumber) -> ReplicatedCaptures {
            ReplicatedCaptures { dir: dir.to_owned(), from, packer: None }
        }

        /// Puts the files that the captures of these records need and that are not replicated;
        /// returns `None` if the replicator stores no captures. The captures of earlier records
        /// must have been put.
        pub(in crate::session) fn put(
            &mut self,
            session: Uuid,
            replicator: &dyn Replicator,
            sources: CaptureSources<'_>,
            records: &[Record<'_>],
        ) -> Result<Option<AppendedPacks>> {
            if !replicator.holds_captures() {
                return Ok(None);
            }
            let mut packed = AppendedPacks::default();
            let mut named = Vec::new();
            for record in records {
                named.extend(snapshots_named_by(record, sources.objects)?);
            }
            let Some(first) = records.first().filter(|_| !named.is_empty()) else { return Ok(Some(packed)) };
            let mut packer = match self.packer.take() {
                Some(packer) => packer,
                None => self.packer_behind(sources, first.sequence)?,
            };
            let AppendedPacks { packs, inlined } = &mut packed;
            let mut put = |pack: &[u8]| {
                let id = ObjectId::from_content(pack);
                replicator.put_object(session, id, pack).map_err(|error| replica_error(session, error))?;
                packs.push(id);
                Ok::<(), Error>(())
            };
            *inlined = packer.pack(&named, &mut put)?;
            if inlined.len() > INLINED_BYTES_MAX {
                put(inlined)?;
                inlined.clear();
            }
            // Not after an error: the packer counts files as replicated that it was about to pack.
            self.packer = Some(packer);
            Ok(Some(packed))
        }

        /// Returns a packer that skips the newest replicated captures of records before `end`, and
        /// of the sessions for which this one works.
        fn packer_behind(&self, sources: CaptureSources<'_>, end: SequenceNumber) -> Result<SnapshotPacker> {
            let CaptureSources { storage, places, objects, session } = sources;
            let store = &session.store;
            let ancestors = child_captures::ancestors(store, &session.opening_record());
            let home = child_captures::home(store, &self.dir, &ancestors);
            let mut packer = SnapshotPacker::new(&layout::captures_dir(&home));
            for ancestor in ancestors.iter().filter_map(|ancestor| store.writers.get(*ancestor)) {
                if let Some((places, objects, held)) = ancestor.held_with_captures() {
                    packer.note_held(&newest(storage, &places, &objects, held)?);
                }
            }
            packer.note_held(&newest(storage, places, objects, self.from..end)?);
            Ok(packer)
        }
    }

    /// Returns the newest captures that records name.
    fn newest(
        storage: &Arc<dyn Storage>,
        places: &RecordLocator,
        objects: &Objects,
        records: Range<SequenceNumber>,
    ) -> Result<VecDeque<FilesystemSnapshot>> {
        let Range { start, end } = records;
        let from = start.max(end.saturating_sub(LOOKED_THROUGH));
        let mut newest: VecDeque<FilesystemSnapshot> = VecDeque::new();
        if from < end {
            places.read_until(storage, from, end.saturating_sub(1), &mut |record| {
                for snapshot in snapshots_named_by(&record, objects)? {
                    newest.retain(|one| *one != snapshot);
                    newest.push_back(snapshot);
                }
                newest.drain(..newest.len().saturating_sub(NEWEST));
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(newest)
    }

    /// Returns the snapshots of workspaces among the captures that a record names.
    fn snapshots_named_by(record: &Record<'_>, objects: &Objects) -> Result<Vec<FilesystemSnapshot>> {
        let captures = captures_named_by(record, objects)?;
        Ok(captures
            .into_values()
            .flatten()
            .filter_map(|recorded| msgpack::from_slice(&recorded).ok())
            .collect())
    }

    /// Creates the objects of replicated packs in the directory of a session.
    #[derive(Debug)]
    pub(in crate::session) struct CaptureReceiver {
        dir: PathBuf,
        receiver: Option<PackReceiver>,
        /// Range of records with complete captures, up to the last ones received.
        received: Range<SequenceNumber>,
        unpacked: MissingCaptures,
    }

    /// Captures that records name and no pack contained.
    #[derive(Debug, Default)]
    struct MissingCaptures {
        /// Names of the resources with captures in packs.
        resources: HashSet<String>,
        snapshots: BTreeMap<String, Vec<FilesystemSnapshot>>,
    }

    impl CaptureReceiver {
        pub(in crate::session) fn new(dir: &Path) -> CaptureReceiver {
            let received = SequenceNumber::MIN..SequenceNumber::MIN;
            CaptureReceiver {
                dir: dir.to_owned(),
                receiver: None,
                received,
                unpacked: MissingCaptures::default(),
            }
        }

        /// Notes the captures of a new log's record that no pack contained.
        pub(in crate::session) fn see(&mut self, record: &Record<'_>, objects: &Objects) -> Result<()> {
            let Some(receiver) = self.receiver.as_ref().filter(|_| self.received.contains(&record.sequence))
            else {
                return Ok(());
            };
            for (resource, recorded) in captures_named_by(record, objects)? {
                let Some(Ok(snapshot)) = recorded.map(|recorded| msgpack::from_slice(&recorded)) else {
                    continue;
                };
                match receiver.lacks(&snapshot) {
                    true => self.unpacked.snapshots.entry(resource).or_default().push(snapshot),
                    false => drop(self.unpacked.resources.insert(resource)),
                }
            }
            Ok(())
        }

        /// Marks captures that no pack contained as collected in the directory of captures.
        pub(in crate::session) fn remember_collected(&mut self) -> Result<()> {
            let snapshots = std::mem::take(&mut self.unpacked.snapshots);
            let resources = &self.unpacked.resources;
            // The host stores all captures of the other resources elsewhere.
            let collected: Vec<FilesystemSnapshot> = snapshots
                .into_iter()
                .filter(|(resource, _)| resources.contains(resource))
                .flat_map(|(_, snapshots)| snapshots)
                .collect();
            match collected.is_empty() {
                true => Ok(()),
                false => Ok(remember_collected(&layout::captures_dir(&self.dir), &collected)?),
            }
        }

        /// Creates the objects that one append added for these records.
        pub(in crate::session) fn take(
            &mut self,
            session: Uuid,
            replicator: &dyn Replicator,
            Range { start, end: next }: Range<SequenceNumber>,
            CapturePacks { packs, inlined }: CapturePacks<'_>,
        ) -> Result<()> {
            let damaged = |pack: &str, reason: String| {
                let reason = format!("the captures of the records before {next}: {pack}: {reason}");
                Error::ReplicaFailed { session, reason }
            };
            if self.received.end < start {
                self.received.start = start;
            }
            self.received.end = next;
            let dir = layout::captures_dir(&self.dir);
            let receiver = || PackReceiver::new(&dir);
            for pack in packs {
                let name = format!("pack {}", pack.file_name());
                if pack.len > PACK_BYTES_MAX as u64 {
                    return Err(damaged(&name, "it is longer than a pack may be".to_owned()));
                }
                let bytes = read_object(replicator, session, *pack).map_err(|error| match error {
                    Error::ReplicaFailed { reason, .. } => damaged(&name, reason),
                    other => other,
                })?;
                map_pack_error(self.receiver.get_or_insert_with(receiver).take(&bytes), |reason| {
                    damaged(&name, reason)
                })?;
            }
            if !inlined.is_empty() {
                let took = self.receiver.get_or_insert_with(receiver).take(inlined);
                map_pack_error(took, |reason| damaged("the pack sent with these records", reason))?;
            }
            Ok(())
        }

        /// Makes the created objects durable.
        pub(in crate::session) fn sync(&mut self) -> Result<()> {
            Ok(self.receiver.take().map_or(Ok(()), PackReceiver::finish)?)
        }
    }

    /// Maps an error in a pack to damage, and returns errors of the disk unchanged.
    fn map_pack_error(
        took: foldlog_filesystem::Result<()>,
        damaged: impl FnOnce(String) -> Error,
    ) -> Result<()> {
        took.map_err(|error| match error {
            foldlog_filesystem::Error::Object { reason, .. } => damaged(reason),
            other => other.into(),
        })
    }
}

#[cfg(not(feature = "host-filesystem"))]
mod nothing {
    use std::ops::Range;
    use std::path::Path;

    use foldlog_codec::{Record, SequenceNumber};
    use uuid::Uuid;

    use super::{AppendedPacks, CaptureSources};
    use crate::error::Result;
    use crate::log::objects::Objects;
    use crate::replication::{CapturePacks, Replicator};

    /// A stub: without real directories as workspaces no capture outlives its process.
    #[derive(Debug)]
    pub(in crate::session) struct ReplicatedCaptures;

    impl ReplicatedCaptures {
        pub(in crate::session) fn new(_: &Path, _: SequenceNumber) -> ReplicatedCaptures {
            ReplicatedCaptures
        }

        pub(in crate::session) fn put(
            &mut self,
            _: Uuid,
            replicator: &dyn Replicator,
            CaptureSources { storage, places, objects, session }: CaptureSources<'_>,
            _: &[Record<'_>],
        ) -> Result<Option<AppendedPacks>> {
            let _ = (storage, places, objects, session);
            Ok(replicator.holds_captures().then(AppendedPacks::default))
        }
    }

    /// A stub that leaves captures in the replica.
    #[derive(Debug)]
    pub(in crate::session) struct CaptureReceiver;

    impl CaptureReceiver {
        pub(in crate::session) fn new(_: &Path) -> CaptureReceiver {
            CaptureReceiver
        }

        pub(in crate::session) fn take(
            &mut self,
            _: Uuid,
            _: &dyn Replicator,
            _: Range<SequenceNumber>,
            _: CapturePacks<'_>,
        ) -> Result<()> {
            Ok(())
        }

        pub(in crate::session) fn see(&mut self, _: &Record<'_>, _: &Objects) -> Result<()> {
            Ok(())
        }

        pub(in crate::session) fn remember_collected(&mut self) -> Result<()> {
            Ok(())
        }

        pub(in crate::session) fn sync(&mut self) -> Result<()> {
            Ok(())
        }
    }
}
