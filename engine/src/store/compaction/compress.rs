//! Compresses the finished segments of a session, or makes them plain again.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::log::chain;
use crate::log::compressed::{self, Compression, MIN_PLAIN_BYTES, SegmentCompression};
use crate::session::LoadedSession;
use crate::storage::Storage;

use super::CompactOptions;

/// Minimum length, in bytes, of a last segment to be finished: the segment after it takes a page of
/// the disk.
const FINISHED_BYTES_MIN: u64 = 4 * 4096;

/// Reports the results for the files of a session's finished segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CompressReport {
    /// Compression of the segments now, unless it would save too little.
    pub compression: Compression,
    /// Number of files that were rewritten, or would be.
    pub segments: u64,
    /// Number of finished segments.
    pub finished: u64,
    /// Total length of their files before, in bytes. A plain file counts up to its last byte that
    /// is not 0.
    pub bytes_before: u64,
    /// Total length of their files now, in bytes.
    pub bytes_after: u64,
}

/// Target form of the files of segments.
pub(super) enum TargetCompression {
    /// One compression for all.
    Alike(Compression),
    /// The original compression, by ordinal, of segments that a compaction may make plain.
    AsTheyWere(BTreeMap<u32, Compression>),
}

impl TargetCompression {
    /// Records the target form of the segments before any is rewritten.
    pub(super) fn from_session(
        storage: &dyn Storage,
        read: &LoadedSession,
        options: &CompactOptions,
    ) -> Result<TargetCompression> {
        if let Some(compression) = options.compression {
            return Ok(TargetCompression::Alike(compression));
        }
        let mut were = BTreeMap::new();
        for segment in read.scan.segments.iter() {
            match compressed::compression_of(storage, &segment.path)? {
                Compression::None => {}
                compression => drop(were.insert(segment.header.ordinal, compression)),
            }
        }
        Ok(TargetCompression::AsTheyWere(were))
    }

    /// Rewrites the files of finished segments that do not have their target form, the newest
    /// first. Returns a report if the options ask for a compression.
    pub(super) fn carry_out(
        &self,
        storage: &dyn Storage,
        dir: &Path,
        options: &CompactOptions,
    ) -> Result<Option<CompressReport>> {
        let (dry_run, bytes_min) = (options.dry_run, bytes_min(options));
        let chain = chain::discover(storage, dir)?;
        let finished = chain.segments.split_last().map(|(_, finished)| finished).unwrap_or_default();
        let compression = match self {
            TargetCompression::Alike(compression) => *compression,
            TargetCompression::AsTheyWere(_) => Compression::None,
        };
        let mut report = CompressReport {
            compression,
            segments: 0,
            finished: finished.len() as u64,
            bytes_before: 0,
            bytes_after: 0,
        };
        for segment in finished.iter().rev() {
            let ordinal = segment.header.ordinal;
            let compression = match self {
                TargetCompression::Alike(compression) => *compression,
                TargetCompression::AsTheyWere(were) => match were.get(&ordinal) {
                    Some(compression) => *compression,
                    None => continue,
                },
            };
            let kept = SegmentCompression { storage, dir, segment, compression, bytes_min, dry_run }.run()?;
            report.segments += u64::from(kept.written);
            report.bytes_before += kept.before;
            report.bytes_after += kept.after;
        }
        Ok(matches!(self, TargetCompression::Alike(_)).then_some(report))
    }
}

/// Returns whether the last segment with records is long enough to be finished and compressed, if
/// the options ask for a compression. Its minimum length is that of the options, and at least four
/// times the disk space of the next segment.
pub(super) fn is_worth_finishing(read: &LoadedSession, options: &CompactOptions) -> bool {
    let wanted = options.compression.is_some_and(|wanted| wanted != Compression::None);
    wanted && read.scan.end >= bytes_min(options).max(FINISHED_BYTES_MIN)
}

fn bytes_min(options: &CompactOptions) -> u64 {
    options.compress_bytes_min.unwrap_or(MIN_PLAIN_BYTES)
}
