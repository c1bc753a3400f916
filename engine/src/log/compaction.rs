//! What compactions have left of a log: the ranges in which bodies are missing, and what the slices held at some positions.
//!
//! # A compacted segment
//!
//! A compaction writes a segment anew, under a temporary name, and gives it the name of the segment that it stands for. It has
//! the same ordinal and the same records, in the same order and with the same times; behind the header stand
//!
//! | frame | says |
//! |---|---|
//! | `compacted` | the position *through* which bodies may be missing; where this segment ends, and how the header of the next segment names that end |
//! | `declared` | the declarations before the segment, as in any other |
//! | `base`, any number | what STATE and CACHE slices held at a position, by the names of the items |
//! | `resumed` and records | those of the segment; a `dropped` record stands where a body is missing, and keeps its kind, length and BLAKE3 |
//!
//! A body is dropped if it is a dispatch that changes STATE and CACHE slices alone, and no base names an item of it. So what the
//! slices hold, at the end and at each base, stays where it was: in its records. A base is a list of names.
//!
//! # Reading
//!
//! A *compacted range* reaches from the first record of a compacted segment through the position that the segment names. In it,
//! STATE and CACHE are not folded; all that its records hold for them is gathered, and a base picks what its names say
//! ([`crate::fold::projection`]). Positions in the range are known where there is a base; its last position has one.
//!
//! # Invariants
//!
//! 1. The segment that holds the last position of a range is replaced first, and then the others, the later ones first: so
//!    whatever a kill leaves is a compacted log, whose range begins later.
//! 2. No record behind a range goes back into it, but to a base.
//! 3. No range ends within an operation.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::body::{Base, BaseSlice, KnownPositions};
use foldlog_codec::segment::HEADER_LEN;
use foldlog_codec::{RecordKind, SequenceNumber};

use super::chain::Segment;
use super::window::Window;
use crate::error::{Error, Result};
use crate::storage::Storage;

/// Number of item runs that one base frame names at most.
const RUNS_MAX: usize = 32 << 10;

/// Describes what compactions have left of a log.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// Records of compacted ranges, in ascending order.
    ranges: Vec<RangeInclusive<SequenceNumber>>,
    /// What the slices held, by the positions.
    bases: BTreeMap<SequenceNumber, Vec<BaseSlice>>,
    /// Bytes that the heads of compacted segments take beside those of others, by the segments' ordinals.
    heads: BTreeMap<u32, u64>,
}

impl Compaction {
    /// Reads what the heads of compacted segments say; `None` if no segment is compacted. Bases that cannot be read are left out:
    /// a walk over the segment says what is wrong with it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a segment cannot be read, [`Error::CompactedMeanwhile`] if it was replaced since its header was read.
    pub(crate) fn read(storage: &dyn Storage, segments: &[Segment]) -> Result<Option<Arc<Compaction>>> {
        let mut compaction = Compaction::default();
        for (segment, next) in segments.iter().zip(segments.iter().skip(1).map(Some).chain([None])) {
            let Some(compacted) = segment.compacted else { continue };
            let first = segment.header.first_sequence;
            let below = next.map(|next| next.header.first_sequence);
            let last =
                compacted.through.min(below.map_or(compacted.through, |below| below.saturating_sub(1)));
            // One that bears the mark only for how the next one names its end has lost nothing; and the first record of all has no
            // body of STATE.
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

    /// Reads the bases of a segment at positions in `records`. A fork that ends within a segment has its parent's head, which names
    /// later positions too.
    fn read_bases(
        &mut self,
        storage: &dyn Storage,
        segment: &Segment,
        records: RangeInclusive<SequenceNumber>,
    ) -> Result<()> {
        let io = |error| Error::io("read", &segment.path, error);
        let mut window = Window::new(segment.open(storage)?, segment.end).map_err(io)?;
        let (context, mut offset) = (segment.context(), HEADER_LEN as u64);
        let (mut going_on, mut head): (Option<(SequenceNumber, Vec<BaseSlice>)>, u64) = (None, 0);
        while let Ok(frame) = window.frame(context, offset).map_err(io)? {
            match frame.header.kind {
                RecordKind::COMPACTED | RecordKind::DECLARED => {}
                RecordKind::BASE => {
                    let Ok(Base { position, goes_on, slices }) = Base::decode(frame.body) else { break };
                    let mut all = match going_on.take() {
                        Some((at, all)) if at == position => all,
                        _ => Vec::new(),
                    };
                    go_on(&mut all, slices);
                    match goes_on {
                        true => going_on = Some((position, all)),
                        false if records.contains(&position) => drop(self.bases.insert(position, all)),
                        false => {}
                    }
                }
                _ => break,
            }
            offset += frame.len() as u64;
            if frame.header.kind != RecordKind::DECLARED {
                head += frame.len() as u64;
            }
        }
        self.heads.insert(segment.header.ordinal, head);
        // What was its head when the segments were listed may be that of another file by now.
        if head == 0 { segment.check_not_replaced(storage) } else { Ok(()) }
    }

    /// Returns what the records below `next` have of it, as in a fork that shares these alone; `None` if nothing.
    pub(crate) fn part_below(&self, next: SequenceNumber) -> Option<Arc<Compaction>> {
        let last = next.checked_sub(1)?;
        let ranges = self.ranges.iter().filter(|range| *range.start() <= last);
        let ranges: Vec<_> = ranges.map(|range| *range.start()..=last.min(*range.end())).collect();
        let bases = self.bases.range(..=last).map(|(position, base)| (*position, base.clone())).collect();
        (!ranges.is_empty()).then(|| Arc::new(Compaction { ranges, bases, heads: self.heads.clone() }))
    }

    /// Returns how many bytes of a segment say what a compaction has left in it.
    pub(crate) fn head_bytes(&self, segment: &Segment) -> u64 {
        self.heads.get(&segment.header.ordinal).copied().unwrap_or_default()
    }

    /// Returns whether the record `sequence` is in a compacted range.
    pub(crate) fn covers(&self, sequence: SequenceNumber) -> bool {
        self.range_of(sequence).is_some()
    }

    /// Returns whether a compacted range ends at or behind the record `sequence`.
    pub(crate) fn reaches(&self, sequence: SequenceNumber) -> bool {
        self.ranges.last().is_some_and(|last| sequence <= *last.end())
    }

    fn range_of(&self, sequence: SequenceNumber) -> Option<&RangeInclusive<SequenceNumber>> {
        let at = self.ranges.partition_point(|range| *range.end() < sequence);
        self.ranges.get(at).filter(|range| range.contains(&sequence))
    }

    /// Returns what the slices held at a position, if there is a base.
    pub(crate) fn base(&self, position: SequenceNumber) -> Option<&[BaseSlice]> {
        self.bases.get(&position).map(Vec::as_slice)
    }

    /// Returns whether the slices are known at a position.
    pub(crate) fn knows(&self, position: SequenceNumber) -> bool {
        !self.covers(position) || self.bases.contains_key(&position)
    }

    /// Fails with [`Error::Compacted`] unless the slices are known at a position.
    pub(crate) fn check(&self, position: SequenceNumber) -> Result<()> {
        if self.knows(position) { Ok(()) } else { Err(self.unknown(position)) }
    }

    /// Makes the error of a position at which something is not known, with the first one from which on all is.
    pub(crate) fn unknown(&self, position: SequenceNumber) -> Error {
        let earliest = self.range_of(position).map_or(position, |range| *range.end());
        Error::Compacted { position, earliest }
    }

    /// Fails with [`Error::Inconsistent`] if a log of the records below `next` ends where the slices are not known.
    pub(crate) fn check_end(&self, next: SequenceNumber) -> Result<()> {
        match next.checked_sub(1).filter(|last| !self.knows(*last)) {
            Some(sequence) => {
                let reason =
                    "the log ends in a compacted range, and no base says what the slices held".to_owned();
                Err(Error::Inconsistent { sequence, reason })
            }
            None => Ok(()),
        }
    }

    /// Returns the greatest number of first records, at most those below `end`, behind which the slices are known.
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

    /// Returns what is known of the records from `from` on.
    pub(crate) fn known_from(&self, from: SequenceNumber) -> KnownPositions {
        let ends = self.ranges.iter().map(|range| *range.end()).filter(|end| *end >= from);
        let bases = self.bases.range(from..).map(|(position, slices)| (*position, slices.as_slice()));
        KnownPositions { ends: ends.collect(), bases: split_bases(bases) }
    }

    /// Returns the compacted ranges, in ascending order.
    pub(crate) fn ranges(&self) -> &[RangeInclusive<SequenceNumber>] {
        &self.ranges
    }
}

/// Adds a further part of a base to what was read of it.
pub(crate) fn go_on(base: &mut Vec<BaseSlice>, part: Vec<BaseSlice>) {
    for slice in part {
        match base.last_mut() {
            Some(BaseSlice { slice: id, items }) if *id == slice.slice => items.extend(slice.items),
            _ => base.push(slice),
        }
    }
}

/// Returns the bases of positions, each in as many parts as frames take.
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
