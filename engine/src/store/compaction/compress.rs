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

/// Returns the compression, by ordinal, of the segments that a compaction may make plain and that
/// have to get it back. Empty if the options ask for one compression of all.
pub(super) fn original_compressions(
    storage: &dyn Storage,
    read: &LoadedSession,
    options: &CompactOptions,
) -> Result<BTreeMap<u32, Compression>> {
    let mut originals = BTreeMap::new();
    for segment in read.scan.segments.iter().filter(|_| options.compression.is_none()) {
        match compressed::compression_of(storage, &segment.path)? {
            Compression::None => {}
            compression => drop(originals.insert(segment.header.ordinal, compression)),
        }
    }
    Ok(originals)
}

/// Rewrites the files of finished segments that do not have the compression that the options ask
/// for, or else their original one, the newest first. Returns a report if the options ask for a
/// compression.
pub(super) fn compress(
    storage: &dyn Storage,
    dir: &Path,
    options: &CompactOptions,
    originals: &BTreeMap<u32, Compression>,
) -> Result<Option<CompressReport>> {
    let (dry_run, bytes_min) = (options.dry_run, bytes_min(options));
    let chain = chain::discover(storage, dir)?;
    let finished = chain.segments.split_last().map(|(_, finished)| finished).unwrap_or_default();
    let (mut segments, mut bytes_before, mut bytes_after) = (0, 0, 0);
    for segment in finished.iter().rev() {
        let original = originals.get(&segment.header.ordinal).copied();
        let Some(compression) = options.compression.or(original) else { continue };
        let kept = SegmentCompression { storage, dir, segment, compression, bytes_min, dry_run }.run()?;
        segments += u64::from(kept.written);
        bytes_before += kept.before;
        bytes_after += kept.after;
    }
    let finished = finished.len() as u64;
    let report = |compression| CompressReport { compression, segments, finished, bytes_before, bytes_after };
    Ok(options.compression.map(report))
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
