//! Findings at the opening of a session, for hosts and the binary.

use std::path::PathBuf;

use foldlog_codec::{RecordKind, SequenceNumber};
use serde::{Deserialize, Serialize};

use super::load::LoadedSession;
use crate::fold::projection::Projection;
use crate::log::TornTail;
use crate::log::exposure::FileExposure;
use crate::log::scan::LogScan;
use crate::operation::{OpenOperation, UnsettledOperation};

/// Reports the findings at the opening of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Number of records that were read.
    pub records: u64,
    /// Torn tail: bytes at the end of the log that were left out. They remain in their file.
    pub torn: Option<TornTail>,
    /// Files that a crash left without any record of the log in them.
    pub leftovers: Vec<PathBuf>,
    /// Number of intact records at the end that are not attested as durable. They are retained; the
    /// first append writes them again, into a new segment.
    pub unattested: u64,
    /// Whether the last writer closed the session and left no operation open. A writer whose disk
    /// had no space to record the close counts as one that did not close it. A process that opened
    /// the session without writing does not change this.
    pub closed: bool,
    /// First record of a kind that this version cannot fold. With such a record, the session can be
    /// read but not written.
    pub unsupported: Option<(SequenceNumber, RecordKind)>,
    /// Number of records that were not folded because of an image. `None` if all were folded.
    pub from_image: Option<SequenceNumber>,
    /// Images that were damaged or belong to a different log. They are replaced in time.
    pub dropped_images: Vec<PathBuf>,
    /// Open operations, in the order of their starts. STATE is shown as it was before them, and the
    /// session accepts no writes until they are recovered.
    pub interrupted: Vec<OpenOperation>,
    /// Operations that were interrupted earlier and have neither run again nor been settled since.
    pub unsettled: Vec<UnsettledOperation>,
    /// Number of lost records that were fetched from the store's [replicator](crate::replication).
    /// They are durable locally now.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fetched: u64,
    /// File of the session that is readable by users outside of the store's
    /// [access](crate::StoreOptions::access), if there is one: an earlier version wrote it, or it
    /// was copied. A [`LogReader`](crate::inspect::LogReader), which has no such option, reports a
    /// file that users other than its owner can read.
    pub exposed: Option<FileExposure>,
}

impl RecoveryReport {
    pub(super) fn of_read(read: &LoadedSession) -> RecoveryReport {
        RecoveryReport {
            from_image: read.images.next_sequence,
            dropped_images: read.images.dropped.clone(),
            fetched: read.fetched,
            ..RecoveryReport::of_folded(&read.scan, &read.folded.projection)
        }
    }

    /// Reports on a log that was folded.
    pub(crate) fn of_folded(scan: &LogScan, projection: &Projection) -> RecoveryReport {
        RecoveryReport {
            interrupted: projection.operations.open().cloned().collect(),
            unsettled: projection.operations.unsettled().cloned().collect(),
            closed: scan.closed && projection.operations.open().next().is_none(),
            ..RecoveryReport::from_scan(scan, projection.unsupported)
        }
    }

    pub(crate) fn from_scan(
        scan: &LogScan,
        unsupported: Option<(SequenceNumber, RecordKind)>,
    ) -> RecoveryReport {
        RecoveryReport {
            records: scan.next_sequence.get(),
            torn: scan.torn.clone(),
            leftovers: scan.leftovers.clone(),
            unattested: scan.next_sequence.since(scan.watermark),
            closed: scan.closed,
            unsupported,
            ..RecoveryReport::default()
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
