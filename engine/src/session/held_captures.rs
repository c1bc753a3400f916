//! What captures of workspaces need, fed to the store's replicator before the records that name them, and brought back from there.
//!
//! Captures are held of the directory [`captures_dir`](crate::Session::captures_dir) alone, and of a child session of that of the session
//! which it works for ([`child_captures`](super::child_captures)). A capture that is not there, since the host
//! keeps it elsewhere or it was collected, is passed over; one that is there and damaged fails the feeding, so that nothing is
//! acknowledged that no takeover could restore.
//!
//! A new log that is made of what is held may name captures that no pack holds for that reason. Those of a workspace of which packs hold others were
//! collected by the worker that held them: the new directory of captures remembers them as collected ([`Error::Collected`]), and not as
//! damaged. Of a log that goes on nobody does, since what it names may have been lost here; nor of a child session, whose captures may
//! be held with its parent's.
//!
//! What is held is known to the process that put it. A process that opens the session knows what the last captures need that are held;
//! what only older ones had is put again where it comes back.

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

/// Follows from which record on the captures are held that records name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldFrom {
    /// Sequence number behind the records of which it is known.
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

    /// Returns the sequence number of the first record of those at the end whose captures are all held.
    pub(super) fn from(self) -> SequenceNumber {
        self.from
    }
}

/// Names where records stand, what they name, and the session that they are of.
#[derive(Clone, Copy)]
pub(super) struct CaptureSources<'a> {
    pub(super) storage: &'a Arc<dyn Storage>,
    pub(super) places: &'a RecordLocator,
    pub(super) objects: &'a Objects,
    pub(super) session: &'a SessionInner,
}

/// Holds packs of what captures add, as they are appended.
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
    use crate::sabotage::{self, Breakage};
    use crate::session::child_captures;
    use crate::session::operation_records::captures_named_by;
    use crate::session::replica::replica_error;
    use crate::storage::Storage;

    /// Number of captures that an opening looks at.
    const NEWEST: usize = 64;

    /// Number of records among which it looks for them.
    const LOOKED_THROUGH: u64 = 65_536;

    /// Holds what the replicator is known to have of a session's captures.
    #[derive(Debug)]
    pub(in crate::session) struct ReplicatedCaptures {
        dir: PathBuf,
        /// Sequence number of the first record of those whose captures were held when the session was opened.
        from: SequenceNumber,
        packer: Option<SnapshotPacker>,
    }

    impl ReplicatedCaptures {
        /// Follows the captures of the session in the directory `dir`, which are held that records from `from` on name.
        pub(in crate::session) fn new(dir: &Path, from: SequenceNumber) -> ReplicatedCaptures {
            ReplicatedCaptures { dir: dir.to_owned(), from, packer: None }
        }

        /// Puts what the captures need that these records name, and is not held; `None` if the replicator holds no captures. The records
        /// before these are held.
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
            if sabotage::is(Breakage::CapturesUnheld) {
                return Ok(Some(packed));
            }
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
            // Not after an error: it takes for held what was to be packed.
            self.packer = Some(packer);
            Ok(Some(packed))
        }

        /// Returns a packer that knows of the newest captures that records before `end` name, and of those of the sessions that this one works
        /// for, as far as they are held.
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

    /// Makes the objects of packs that are held, in the directory of a session.
    #[derive(Debug)]
    pub(in crate::session) struct CaptureReceiver {
        dir: PathBuf,
        receiver: Option<PackReceiver>,
        /// Records whose captures were all received, up to the last ones that were.
        received: Range<SequenceNumber>,
        unpacked: MissingCaptures,
    }

    /// Holds the captures that records name and no pack had.
    #[derive(Debug, Default)]
    struct MissingCaptures {
        /// Names of the resources of which packs had captures.
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

        /// Notes which captures a record of a new log names that no pack had.
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

        /// Has the directory of captures remember as collected what no pack had.
        pub(in crate::session) fn remember_collected(&mut self) -> Result<()> {
            let snapshots = std::mem::take(&mut self.unpacked.snapshots);
            let resources = &self.unpacked.resources;
            // Of the others the host keeps all captures elsewhere.
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

        /// Makes the objects that one append added, whose records have these numbers.
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
                    return Err(damaged(&name, "it is longer than any may be".to_owned()));
                }
                let bytes = replicator.get_object(session, *pack);
                let bytes = bytes.map_err(|error| match replica_error(session, error) {
                    Error::ReplicaFailed { reason, .. } => damaged(&name, reason),
                    other => other,
                })?;
                if ObjectId::from_content(&bytes) != *pack {
                    return Err(damaged(&name, "it has other bytes than its name says".to_owned()));
                }
                map_pack_error(self.receiver.get_or_insert_with(receiver).take(&bytes), |reason| {
                    damaged(&name, reason)
                })?;
            }
            if !inlined.is_empty() {
                let took = self.receiver.get_or_insert_with(receiver).take(inlined);
                map_pack_error(took, |reason| damaged("the pack beside these records", reason))?;
            }
            Ok(())
        }

        /// Makes durable what was made.
        pub(in crate::session) fn sync(&mut self) -> Result<()> {
            Ok(self.receiver.take().map_or(Ok(()), PackReceiver::finish)?)
        }
    }

    /// Says of a pack that it is damaged, and of the disk what it says itself.
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

    /// Holds nothing: without real directories as workspaces no capture outlives its process.
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

    /// Leaves captures where they are held.
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
