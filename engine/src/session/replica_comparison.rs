//! Compares a local log with the replicator's records, before a claim.

use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::body::DroppedBodies;
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::compaction_notice::SaidDropped;
use super::fetch::ReplicaExtent;
use super::held_captures::HeldFrom;
use super::replica_feed::replica_error;
use crate::error::{Error, Result};
use crate::log::reader::RecordLocator;
use crate::replication::{HeldPart, ReplicaStatus, Replication};
use crate::storage::Storage;

/// Number of record hashes that are compared at a time.
const COMPARED_RECORDS: usize = 4_096;

/// Result of comparing a local log with the replica.
#[derive(Clone, Debug)]
pub(super) struct ComparedReplica {
    pub(super) held: ReplicaStatus,
    pub(super) extent: ReplicaExtent,
    /// Whether the replica has bodies that the local log has dropped, and no replicated record
    /// lists them.
    pub(super) is_to_say: bool,
}

/// Compares the replicator's records with the local log, and returns their extent. Either may
/// continue after the end of the other.
///
/// # Errors
///
/// [`Error::Superseded`] if a local record differs from the replicated one.
pub(super) fn compare(
    replication: &Replication,
    session: Uuid,
    storage: &Arc<dyn Storage>,
    places: &RecordLocator,
) -> Result<ComparedReplica> {
    let mut comparison = ReplicaComparison {
        storage,
        places,
        records: Vec::new(),
        next: 0.into(),
        verdict: Ok(None),
        dropped_here: DroppedBodies::default(),
    };
    let (mut from, mut said) = (HeldFrom::default(), SaidDropped::default());
    let read = replication.replicator.read(session, &mut |part| {
        from.see(&part);
        if let HeldPart::Record(record) = part {
            said.see(&record);
            comparison.take(&record);
        }
    });
    let held = read.map_err(|error| replica_error(session, error))?;
    comparison.compare();
    if let Some(sequence) = comparison.verdict? {
        return Err(Error::Superseded { session, sequence });
    }
    let said_dropped = said.read(session, replication.replicator.as_ref())?;
    let mut dropped_here = comparison.dropped_here.sequences();
    let is_to_say =
        dropped_here.any(|sequence| said_dropped.as_ref().is_none_or(|said| !said.holds(sequence)));
    let extent = ReplicaExtent { next: held.next, captures_from: from.from(), said_dropped };
    Ok(ComparedReplica { held, extent, is_to_say })
}

/// Compares as [`compare`] does, for a log that is about to be written.
///
/// # Errors
///
/// The errors of [`compare`], and [`Error::Superseded`] if a local record follows the claim of a
/// different writer.
pub(super) fn compare_to_write(
    replication: &Replication,
    session: Uuid,
    storage: &Arc<dyn Storage>,
    places: &RecordLocator,
) -> Result<ComparedReplica> {
    let compared = compare(replication, session, storage, places)?;
    let held = &compared.held;
    if held.next < places.next_sequence && held.epoch > 0 && !held.is_ours {
        return Err(Error::Superseded { session, sequence: held.next });
    }
    Ok(compared)
}

/// Compares the content of records that arrive in order with the local log.
struct ReplicaComparison<'a> {
    storage: &'a Arc<dyn Storage>,
    places: &'a RecordLocator,
    /// Content of records that were not compared yet, and whether their bodies are replicated.
    records: Vec<([u8; 32], bool)>,
    /// First of them.
    next: SequenceNumber,
    /// First record that differs, if one does.
    verdict: Result<Option<SequenceNumber>>,
    /// Records with replicated bodies that the local log has dropped.
    dropped_here: DroppedBodies,
}

impl ReplicaComparison<'_> {
    fn take(&mut self, record: &Record<'_>) {
        self.records.push((content(record), record.kind != RecordKind::Dropped));
        if self.records.len() >= COMPARED_RECORDS {
            self.compare();
        }
    }

    /// Compares the records received so far. Records that the local log lacks are ignored.
    fn compare(&mut self) {
        let first = self.next;
        let mut records = std::mem::take(&mut self.records).into_iter();
        self.next += records.len() as u64;
        let last = self.next.min(self.places.next_sequence);
        if first >= last || !matches!(self.verdict, Ok(None)) {
            return;
        }
        let (mut differs, dropped_here) = (None, &mut self.dropped_here);
        let read = self.places.read_until(self.storage, first, last.saturating_sub(1), &mut |record| {
            if let Some((hash, is_whole)) = records.next()
                && hash == content(&record)
            {
                if is_whole && record.kind == RecordKind::Dropped {
                    dropped_here.push(record.sequence);
                }
                return Ok(ControlFlow::Continue(()));
            }
            differs = Some(record.sequence);
            Ok(ControlFlow::Break(()))
        });
        self.verdict = read.map(|()| differs);
    }
}

/// Returns a digest of one record's content, which a compaction does not change.
fn content(record: &Record<'_>) -> [u8; 32] {
    let mut digest = SegmentDigest::new();
    digest.update(record);
    digest.finish()
}
