//! The result of compactions of a log: the ranges with missing bodies, and the contents of the
//! slices at some positions.
//!
//! # A compacted segment
//!
//! A compaction rewrites a segment under a temporary name, and gives it the name of the segment
//! that it replaces. The new segment has the same ordinal and the same records, in the same order
//! and with the same times. After the header it contains
//!
//! | frame | content |
//! |---|---|
//! | `compacted` | the position *through* which bodies may be missing; the end of this segment, and the end that the header of the next segment names |
//! | `declared` | the declarations before the segment, as in any other |
//! | `base`, any number | the contents of STATE and CACHE slices at a position, by the names of the items |
//! | `resumed` and records | those of the segment; a `dropped` record replaces a missing body, with its kind, length and BLAKE3 |
//!
//! A body is dropped if it is a dispatch that changes only STATE and CACHE slices, and no base
//! names an item of it. The items of the slices, at the end and at each base, therefore stay in
//! their records. A base is a list of names.
//!
//! # Reading
//!
//! A *compacted range* reaches from the first record of a compacted segment through the position in
//! its `compacted` frame. In it, STATE and CACHE are not folded. Instead all of their items in its
//! records are gathered, and a base selects those that it names ([`crate::fold::projection`]). A
//! position in the range is known if it has a base; the last position has one.
//!
//! # Invariants
//!
//! 1. The segment with the last position of a range is replaced first, and then the others, the
//!    later ones first. The state after a kill is therefore a compacted log whose range begins
//!    later.
//! 2. A record after a range never rolls back into it, except to a base.
//! 3. No range ends within an operation.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::body::{Base, BaseSlice, KnownPositions};
use foldlog_codec::segment::HEADER_LEN;
use foldlog_codec::{RecordKind, SequenceNumber};

use super::chain::Segment;
use crate::error::{Error, Result};
use crate::storage::Storage;

const RUNS_MAX: usize = 32 << 10;

#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// Records of compacted ranges, in ascending order.
    ranges: Vec<RangeInclusive<SequenceNumber>>,
    /// Contents of the slices, by position.
    bases: BTreeMap<SequenceNumber, Vec<BaseSlice>>,
    /// Lengths in bytes of the heads of compacted segments, without declarations, by ordinal.
    heads: BTreeMap<u32, u64>,
}

impl Compaction {
    /// Reads the heads of compacted segments; `None` if no segment is compacted. Unreadable bases
    /// are skipped: a walk over the segment reports the damage.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a segment cannot be read, [`Error::CompactedMeanwhile`] if it was replaced
    /// since its header was read.
    pub(crate) fn read(storage: &dyn Storage, segments: &[Segment]) -> Result<Option<Arc<Compaction>>> {
        let mut compaction = Compaction::default();
        for (segment, next) in segments.iter().zip(segments.iter().skip(1).map(Some).chain([None])) {
            let Some(compacted) = segment.compacted else { continue };
            let first = segment.header.first_sequence;
            let below = next.map(|next| next.header.first_sequence);
            let last =
                compacted.through.min(below.map_or(compacted.through, |below| below.saturating_sub(1)));
            // A segment that has the mark only for the end that the next one names has lost
            // nothing. The first record of a log has no body with STATE.
            if last < first || last == SequenceNumber::MIN {
                continue;
            }
            match compaction.ranges.last_mut() {
                Some(before) if *before.end() + 1 == first => *before = *before.start()..=last,
                _ => compaction.ranges.push(first..=last),
            }
            compaction.read_bases(storage, segment, first..=last)?;
        }
        Ok((!compaction.ranges.is_empty()).then(|| Arc::new(compaction)))
    }

    /// Reads the bases of a segment at positions in `records`. A fork that ends within a segment
    /// has its parent's head, which also names later positions.
    fn read_bases(
        &mut self,
        storage: &dyn Storage,
        segment: &Segment,
        records: RangeInclusive<SequenceNumber>,
    ) -> Result<()> {
        let mut window = segment.window(storage)?;
        let (context, mut offset) = (segment.context(), HEADER_LEN as u64);
        let (mut going_on, mut head): (Option<(SequenceNumber, Vec<BaseSlice>)>, u64) = (None, 0);
        while let Ok(frame) = window.frame(context, offset)? {
            match frame.header.kind {
                RecordKind::Compacted | RecordKind::Declared => {}
                RecordKind::Base => {
                    let Ok(Base { position, goes_on, slices }) = Base::decode(frame.body) else { break };
                    let mut all = match going_on.take() {
                        Some((at, all)) if at == position => all,
                        _ => Vec::new(),
                    };
                    extend_base(&mut all, slices);
                    match goes_on {
                        true => going_on = Some((position, all)),
                        false if records.contains(&position) => drop(self.bases.insert(position, all)),
                        false => {}
                    }
                }
                _ => break,
            }
            offset += frame.len() as u64;
            if frame.header.kind != RecordKind::Declared {
                head += frame.len() as u64;
            }
        }
        self.heads.insert(segment.header.ordinal, head);
        // The file whose head was listed may have been replaced by now.
        if head == 0 { segment.check_not_replaced(storage) } else { Ok(()) }
    }

    /// Returns the part for the records below `next`, as in a fork that shares only these; `None`
    /// if it is empty.
    pub(crate) fn part_below(&self, next: SequenceNumber) -> Option<Arc<Compaction>> {
        let last = next.checked_sub(1)?;
        let ranges = self.ranges.iter().filter(|range| *range.start() <= last);
        let ranges: Vec<_> = ranges.map(|range| *range.start()..=last.min(*range.end())).collect();
        let bases = self.bases.range(..=last).map(|(position, base)| (*position, base.clone())).collect();
        (!ranges.is_empty()).then(|| Arc::new(Compaction { ranges, bases, heads: self.heads.clone() }))
    }

    /// Returns the length in bytes of a segment's compaction data.
    pub(crate) fn head_bytes(&self, segment: &Segment) -> u64 {
        self.heads.get(&segment.header.ordinal).copied().unwrap_or_default()
    }

    pub(crate) fn covers(&self, sequence: SequenceNumber) -> bool {
        self.range_of(sequence).is_some()
    }

    /// Returns whether a compacted range ends at or after the record `sequence`.
    pub(crate) fn reaches(&self, sequence: SequenceNumber) -> bool {
        self.ranges.last().is_some_and(|last| sequence <= *last.end())
    }

    fn range_of(&self, sequence: SequenceNumber) -> Option<&RangeInclusive<SequenceNumber>> {
        let at = self.ranges.partition_point(|range| *range.end() < sequence);
        self.ranges.get(at).filter(|range| range.contains(&sequence))
    }

    /// Returns the contents of the slices at a position, if there is a base.
    pub(crate) fn base(&self, position: SequenceNumber) -> Option<&[BaseSlice]> {
        self.bases.get(&position).map(Vec::as_slice)
    }

    pub(crate) fn knows(&self, position: SequenceNumber) -> bool {
        !self.covers(position) || self.bases.contains_key(&position)
    }

    /// Fails with [`Error::Compacted`] unless the slices are known at a position.
    pub(crate) fn check(&self, position: SequenceNumber) -> Result<()> {
        if self.knows(position) { Ok(()) } else { Err(self.unknown(position)) }
    }

    /// Creates the error for an unknown position, with the first position from which on all are
    /// known.
    pub(crate) fn unknown(&self, position: SequenceNumber) -> Error {
        let earliest = self.range_of(position).map_or(position, |range| *range.end());
        Error::Compacted { position, earliest }
    }

    /// Fails with [`Error::Inconsistent`] if the slices are not known at the end of a log of the
    /// records below `next`.
    pub(crate) fn check_end(&self, next: SequenceNumber) -> Result<()> {
        match next.checked_sub(1).filter(|last| !self.knows(*last)) {
            Some(sequence) => {
                let reason =
                    "the log ends in a compacted range without a base: the contents of its slices are unknown".to_owned();
                Err(Error::Inconsistent { sequence, reason })
            }
            None => Ok(()),
        }
    }

    /// Returns the greatest sequence number, at most `end`, for which the slices are known after
    /// all records below it.
    pub(crate) fn known_end(&self, end: SequenceNumber) -> SequenceNumber {
        let Some(last) = end.checked_sub(1) else { return end };
        match self.range_of(last) {
            Some(range) => {
                let base = self.bases.range(*range.start()..=last).next_back();
                base.map_or(*range.start(), |(position, _)| *position + 1)
            }
            None => end,
        }
    }

    /// Returns the positions in a range that have a base, in ascending order.
    pub(crate) fn bases_in(
        &self,
        range: RangeInclusive<SequenceNumber>,
    ) -> impl Iterator<Item = SequenceNumber> {
        self.bases.range(range).map(|(position, _)| *position)
    }

    /// Returns the known positions from `from` on.
    pub(crate) fn known_from(&self, from: SequenceNumber) -> KnownPositions {
        let ends = self.ranges.iter().map(|range| *range.end()).filter(|end| *end >= from);
        let bases = self.bases.range(from..).map(|(position, slices)| (*position, slices.as_slice()));
        KnownPositions { ends: ends.collect(), bases: split_bases(bases) }
    }

    pub(crate) fn ranges(&self) -> &[RangeInclusive<SequenceNumber>] {
        &self.ranges
    }
}

/// Adds a further part of a base to the parts read before.
pub(crate) fn extend_base(base: &mut Vec<BaseSlice>, part: Vec<BaseSlice>) {
    for slice in part {
        match base.last_mut() {
            Some(BaseSlice { slice: id, items }) if *id == slice.slice => items.extend(slice.items),
            _ => base.push(slice),
        }
    }
}

/// Returns the bases of positions, each split to fit into frames.
pub(crate) fn split_bases<'b>(bases: impl Iterator<Item = (SequenceNumber, &'b [BaseSlice])>) -> Vec<Base> {
    let mut head = Vec::new();
    for (position, slices) in bases {
        let mut parts: Vec<Vec<BaseSlice>> = vec![Vec::new()];
        let mut room = RUNS_MAX;
        for BaseSlice { slice, items } in slices {
            let mut rest = items.as_slice();
            loop {
                let (now, later) = rest.split_at(rest.len().min(room));
                room -= now.len();
                if let Some(part) = parts.last_mut() {
                    part.push(BaseSlice { slice: *slice, items: now.to_vec() });
                }
                rest = later;
                if rest.is_empty() {
                    break;
                }
                parts.push(Vec::new());
                room = RUNS_MAX;
            }
        }
        let count = parts.len();
        for (at, slices) in parts.into_iter().enumerate() {
            head.push(Base { position, goes_on: at + 1 < count, slices });
        }
    }
    head
}
