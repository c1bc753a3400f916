//! Judging a bad spot: corrupt, torn, or a plain end.

use std::io::ErrorKind;
use std::path::Path;

use foldlog_codec::frame::{Context, Header};
use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;
use foldlog_codec::{Error as CodecError, SequenceNumber};
use uuid::Uuid;

use super::search::{SearchRange, search};
use super::{ChainWalk, READ_AGAIN_MAX, TornTail, stale};
use crate::error::{Error, Result};
use crate::log::chain::{self, Chain, Flaw};
use crate::log::compressed;
use crate::log::layout;
use crate::storage::Storage;

pub(in crate::log) struct BadSpot {
    /// Place of the segment in the chain.
    pub(in crate::log) segment: usize,
    pub(in crate::log) offset: u64,
    pub(in crate::log) flaw: Flaw,
}

/// Judges a bad spot of a walk other than a full scan, by the rules of a scan. The record
/// `next_sequence` is expected at the spot. The records before it were written under the boot
/// `boot_id`, if known.
pub(in crate::log) fn judge(
    storage: &dyn Storage,
    dir: &Path,
    chain: Chain,
    next_sequence: SequenceNumber,
    boot_id: Option<Uuid>,
    spot: &BadSpot,
) -> Result<Option<TornTail>> {
    let mut walk = ChainWalk::new(storage, dir, chain);
    (walk.scan.next_sequence, walk.scan.boot_id) = (next_sequence, boot_id);
    walk.scan.torn = walk.judge(spot)?;
    if walk.scan.torn.is_none() && !walk.chain.beyond.is_empty() {
        walk.judge_lost_headers()?;
    }
    Ok(walk.scan.torn)
}

/// The evidence of valid frames after a bad spot.
#[derive(Default)]
struct Evidence {
    /// Highest watermark of any of them.
    watermark: SequenceNumber,
    any: bool,
}

impl ChainWalk<'_> {
    /// Judges a bad spot. Corrupt bytes are an error; `None` is a plain end.
    pub(super) fn judge(&self, spot: &BadSpot) -> Result<Option<TornTail>> {
        let Some(segment) = self.chain.segments.get(spot.segment) else { return Ok(None) };
        let mut evidence = Evidence::default();
        let mut torn_bytes = 0;
        let q = self.scan.next_sequence;
        let range = SearchRange { path: &segment.path, from: spot.offset, end: segment.end };
        let used = self.gather(range, &[segment.context()], &mut evidence)?;
        torn_bytes += used - spot.offset;
        let later = self.chain.segments.get(spot.segment + 1..).unwrap_or_default();
        if torn_bytes == 0 && later.is_empty() {
            // The chain ends here without damage. A lost header after it is judged as a separate
            // spot, since the damage is there.
            return Ok(None);
        }
        for segment in later {
            evidence.any = true;
            evidence.watermark = evidence.watermark.max(segment.header.watermark);
            let from = SEGMENT_HEADER_LEN as u64;
            let range = SearchRange { path: &segment.path, from, end: segment.end };
            torn_bytes += self.gather(range, &[segment.context()], &mut evidence)?;
        }
        torn_bytes += self.gather_beyond(&mut evidence)?;
        if let Some(proof) = self.proof(&evidence) {
            if let Some(error) = stale::judge(self.storage, &self.chain.segments, spot, q)? {
                return Err(error);
            }
            let mut flaw = spot.flaw.clone();
            let reason = compressed::explained(self.storage, &segment.path, spot.offset, flaw.reason);
            flaw.reason = format!("{reason}; {proof}");
            return Err(self.corrupt(&segment.path, spot.offset, flaw));
        }
        let (segment, offset) = (segment.path.clone(), spot.offset);
        Ok(Some(TornTail { segment, offset, sequence: q, bytes: torn_bytes }))
    }

    fn gather_beyond(&self, evidence: &mut Evidence) -> Result<u64> {
        let mut bytes = 0;
        for file in &self.chain.beyond {
            if let Some(header) = file.header {
                evidence.any = true;
                evidence.watermark = evidence.watermark.max(header.watermark);
            }
            // As far as known, the segment of a lost header began at the next record.
            let contexts = file.contexts(self.scan.next_sequence);
            let range = SearchRange { path: &file.path, from: 0, end: None };
            bytes += match self.gather(range, &contexts, evidence) {
                // A writer removes a file that it preallocated and did not need when it closes the
                // session.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => 0,
                gathered => gathered?,
            };
        }
        Ok(bytes)
    }

    /// Returns the proof of damage in the evidence; `None` if there is none.
    fn proof(&self, evidence: &Evidence) -> Option<String> {
        let q = self.scan.next_sequence;
        if evidence.watermark > q {
            return Some(format!(
                "a later frame attests that records below {} were durable",
                evidence.watermark
            ));
        }
        (self.same_boot() && evidence.any)
            .then(|| "intact frames follow, and the machine has not been restarted since".to_owned())
    }

    pub(super) fn same_boot(&self) -> bool {
        self.scan.boot_id.is_some() && self.scan.boot_id == self.storage.boot_id()
    }

    /// Searches a part of a file for valid frames, adds them to the evidence, and returns the
    /// offset after the file's last byte that is not 0.
    fn gather(&self, range: SearchRange<'_>, contexts: &[Context], evidence: &mut Evidence) -> Result<u64> {
        search(self.storage, range, contexts, self.scan.next_sequence, &mut |_, frame| {
            evidence.any = true;
            evidence.watermark = evidence.watermark.max(frame.header.watermark);
        })
    }

    /// Returns whether the chain was cut off only by a segment that its writer had not yet finished
    /// when the directory was listed.
    fn is_overtaken(&self) -> Result<bool> {
        let missing = self.chain.missing.map(|ordinal| (layout::segment_file(self.dir, ordinal), ordinal));
        let unsound = self.chain.beyond.iter().filter(|file| file.header.is_none());
        for (path, ordinal) in missing.into_iter().chain(unsound.map(|file| (file.path.clone(), file.named)))
        {
            for _ in 0..READ_AGAIN_MAX {
                let found = chain::read_header(self.storage, path.clone(), ordinal)?;
                if found.is_some_and(|file| file.header.is_some()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Judges files without a valid header after a chain with a valid end.
    pub(super) fn judge_lost_headers(&mut self) -> Result<()> {
        let mut evidence = Evidence::default();
        let bytes = self.gather_beyond(&mut evidence)?;
        let proof = self.proof(&evidence);
        if (proof.is_some() || bytes > 0) && self.is_overtaken()? {
            self.chain.beyond.clear();
            // The log was not closed with its last frame, even if that frame says so.
            self.last_kind = None;
            return Ok(());
        }
        let Some(first) = self.chain.beyond.first() else { return Ok(()) };
        if let Some(proof) = proof {
            if let Some(ordinal) = self.chain.missing {
                return Err(self.missing_segment(ordinal));
            }
            if let Some(error) =
                stale::judge_header(self.storage, &self.chain.beyond, self.scan.next_sequence)?
            {
                return Err(error);
            }
            let reason = "the segment's header is damaged".to_owned();
            let reason = compressed::explained(self.storage, &first.path, 0, reason);
            let reason = format!("{reason}; {proof}");
            return Err(self.corrupt(&first.path, 0, reason));
        }
        if bytes > 0 {
            let (segment, sequence) = (first.path.clone(), self.scan.next_sequence);
            self.scan.torn = Some(TornTail { segment, offset: 0, sequence, bytes });
        }
        Ok(())
    }
}

/// Returns the reason why a frame with valid bytes does not follow the preceding frame, or `None`
/// if it does.
pub(in crate::log) fn out_of_chain(
    header: &Header,
    last_crc: u32,
    next_sequence: SequenceNumber,
) -> Option<Flaw> {
    if header.predecessor_crc != last_crc {
        let (expected_crc, found_crc) = (Some(last_crc), Some(header.predecessor_crc));
        let reason = "the frame names a predecessor other than the frame before it".to_owned();
        return Some(Flaw { expected_crc, found_crc, reason });
    }
    (header.sequence != next_sequence)
        .then(|| format!("the frame contains record {}", header.sequence).into())
}

pub(in crate::log) fn describe(error: &CodecError) -> Flaw {
    match error {
        CodecError::Checksum { expected, found } => {
            let reason = "the frame's checksum does not match".to_owned();
            Flaw { expected_crc: Some(*expected), found_crc: Some(*found), reason }
        }
        other => format!("there is no intact frame: {other}").into(),
    }
}
