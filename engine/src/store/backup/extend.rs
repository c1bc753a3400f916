//! Continues an older copy: checks that it is a prefix of the session, and adds the missing part.

use std::path::{Path, PathBuf};

use foldlog_codec::segment::{HEADER_LEN, Previous, SegmentHeader};

use super::check::{SegmentFindings, SegmentPart};
use super::{BackupReport, BackupRun, CopyTotals};
use crate::error::{Error, Result};
use crate::log::chain::{self, Segment};
use crate::log::compressed;
use crate::log::copy::{Extent, Spot, append_bytes, check, extent, first_difference, same_segments};
use crate::log::layout;
use crate::storage::{Access, Storage};

/// End of an older copy, as its files show without a full check.
pub(super) struct Tip {
    headers: Vec<SegmentHeader>,
    /// Its last segment, with the end of the copy.
    last: Segment,
    end: u64,
    /// Length of the last segment's file: greater than `end` if a backup was killed while appending
    /// to it.
    file_len: u64,
    /// End segment that such a backup left.
    ending: Option<Segment>,
}

impl Tip {
    /// Reads the end of the copy in the directory `dir`. Returns `None` if the copy has any
    /// irregularity.
    pub(super) fn read(storage: &dyn Storage, dir: &Path) -> Option<Tip> {
        let chain = chain::discover(storage, dir).ok()?;
        if chain.missing.is_some() || !chain.beyond.is_empty() {
            return None;
        }
        let len = |path: &Path| storage.entry(path).ok().flatten().map(|entry| entry.len);
        let mut segments = chain.segments;
        let mut last = segments.pop()?;
        let (mut ending, mut file_len) = (None, len(&last.path)?);
        let before_last = segments.last().filter(|before| is_end_segment(before, &last));
        if compressed::is_compressed(storage, &before_last.unwrap_or(&last).path).ok()? {
            // Nothing is added to a compressed segment.
            return None;
        }
        if file_len == HEADER_LEN as u64
            && let Some(before) = segments.pop_if(|before| is_end_segment(before, &last))
        {
            ending = Some(std::mem::replace(&mut last, before));
            file_len = len(&last.path)?;
        }
        let headers = segments.iter().chain([&last]).map(|segment| segment.header).collect();
        Some(Tip { headers, end: last.end.unwrap_or(file_len), file_len, last, ending })
    }

    /// Returns the last segment and the offset in it at which the copy ends.
    pub(super) fn end(&self) -> (SegmentHeader, u64) {
        (self.last.header, self.end)
    }
}

/// Returns the header of the end segment for a copy that ends at a place in the segment `last`.
fn end_segment(last: &SegmentHeader, at: Spot, ordinal: u32) -> SegmentHeader {
    SegmentHeader {
        ordinal,
        session: last.session,
        first_sequence: at.next_sequence,
        watermark: at.next_sequence,
        // No frame is checked with the salt.
        salt: last.salt ^ at.offset,
        previous: Some(Previous { ordinal: last.ordinal, end: at.offset, crc: at.last_crc }),
    }
}

fn is_end_segment(before: &Segment, last: &Segment) -> bool {
    last.header.previous.is_some_and(|previous| {
        let at =
            Spot { offset: previous.end, last_crc: previous.crc, next_sequence: last.header.first_sequence };
        last.header == end_segment(&before.header, at, last.header.ordinal)
    })
}

impl BackupRun<'_> {
    /// Copies the part that an older copy lacks.
    pub(super) fn update_copy(&self, tip: Option<Tip>) -> Result<BackupReport> {
        let mut copied = CopyTotals::default();
        let grown = match &tip {
            Some(tip) => self.grown_from(tip)?.map(|at| (tip, at)),
            None => None,
        };
        let added = match grown {
            Some((tip, at)) => {
                copied.before = at.next_sequence;
                self.check_uncompacted(tip.headers.len())?;
                self.remove_unfinished()?;
                self.extend(tip, at, &mut copied)
            }
            None => {
                let older = extent(self.storage(), self.to, None).map_err(|error| self.unreadable(error))?;
                let shared = self.shared(&older)?;
                copied.before = older.next_sequence;
                self.check_uncompacted(shared)?;
                self.remove_unfinished()?;
                let ending = tip.and_then(|tip| tip.ending).map(|ending| ending.path);
                self.add(&older, shared, ending, &mut copied)
            }
        };
        if added.is_err() {
            // Files that already have their names belong to the session, and stay.
            let _ = self.remove_unfinished();
        }
        added?;
        self.add_seals(&mut copied)?;
        self.copy_images(self.to, &mut copied);
        self.report(copied)
    }

    /// Fails with [`Error::NotACopy`] if a segment after the first `held`, which the copy has, is
    /// compacted. New segments get their names one after the other, and a log that ends within a
    /// compacted range cannot be opened.
    fn check_uncompacted(&self, held: usize) -> Result<()> {
        let mut lacking = self.source.segments.iter().skip(held);
        match lacking.any(|segment| segment.compacted.is_some()) {
            true => Err(self.no_copy("the session was compacted since the last copy")),
            false => Ok(()),
        }
    }

    /// Returns the place at which the session continues after the copy, if the copy is a prefix of
    /// the session byte by byte. That is the usual case.
    fn grown_from(&self, tip: &Tip) -> Result<Option<Spot>> {
        let ours = &self.source.segments;
        let count = tip.headers.len();
        let alike = ours.iter().zip(&tip.headers).all(|(our, their)| our.header == *their);
        let Some((our, end)) = ours.get(count - 1).and_then(|our| Some((our, our.end?))) else {
            return Ok(None);
        };
        let storage = self.storage().as_ref();
        if !alike
            || our.header.session != self.session
            || our.header.ordinal == u32::MAX
            || tip.file_len > end
            || !same_segments(storage, &our.path, &tip.last.path, tip.end)?
        {
            return Ok(None);
        }
        let at = match (self.source.sought, ours.get(count)) {
            (Some(at), _) => at,
            (None, Some(next)) if tip.end == end => Spot { offset: end, ..Spot::head_of(next) },
            _ => {
                let held = Segment { end: Some(tip.end), ..our.clone() };
                match check(storage, &held, Spot::head_of(&held), &mut |_| Ok(())) {
                    // The copy ends within a frame.
                    Err(Error::Corrupt(_)) => return Ok(None),
                    walked => walked?,
                }
            }
        };
        let is_here = |ending: &Segment| Spot { offset: at.offset, ..Spot::head_of(ending) } == at;
        Ok(tip.ending.as_ref().is_none_or(is_here).then_some(at))
    }

    /// Adds the part of the session after the place `at` to the copy, which ends there.
    fn extend(&self, tip: &Tip, at: Spot, copied: &mut CopyTotals) -> Result<()> {
        let (held, behind) = self.source.segments.split_at(tip.headers.len());
        let last = held.last().filter(|last| last.end.is_some_and(|end| at.offset < end));
        let ending = match &tip.ending {
            Some(ending) => Some(ending.path.clone()),
            None if last.is_some() => Some(self.end_here(tip, at, behind)?),
            None => None,
        };
        let mut new = Vec::new();
        let checked = match (last, behind) {
            (None, []) => SegmentFindings::default(),
            _ => self.check_meanwhile(|hand_over| {
                if let Some((last, end)) = last.and_then(|last| Some((last, last.end?))) {
                    let (storage, range) = (self.storage().as_ref(), at.offset..end);
                    copied.report.bytes += append_bytes(storage, &last.path, &tip.last.path, range)?;
                    copied.report.segments += 1;
                    hand_over(SegmentPart::from(last, tip.last.path.clone(), at));
                }
                self.copy_new(behind, &mut new, copied, hand_over)
            })?,
        };
        self.finish(checked, new, ending, copied)
    }

    /// Creates the end segment of a copy that ends at the place `at`, under the name of the copy's
    /// next segment.
    fn end_here(&self, tip: &Tip, at: Spot, behind: &[Segment]) -> Result<PathBuf> {
        let storage = self.storage();
        let next = tip.last.header.ordinal.saturating_add(1);
        let ordinal = behind.first().map_or(next, |next| next.header.ordinal);
        let header = end_segment(&tip.last.header, at, ordinal).encode();
        let building = layout::building_segment_file(self.to, ordinal);
        let path = layout::segment_file(self.to, ordinal);
        storage.write_file(&building, &path, &header)?;
        self.sync_copy()?;
        Ok(path)
    }

    /// Copies new segments under temporary names, and adds both names to `new`.
    fn copy_new(
        &self,
        segments: &[Segment],
        new: &mut Vec<(PathBuf, PathBuf)>,
        copied: &mut CopyTotals,
        hand_over: &mut dyn FnMut(SegmentPart),
    ) -> Result<()> {
        for segment in segments {
            let ordinal = segment.header.ordinal;
            let building = layout::building_segment_file(self.to, ordinal);
            self.copy(segment, &building, copied, false)?;
            hand_over(SegmentPart::whole(segment, building.clone()));
            new.push((building, layout::segment_file(self.to, ordinal)));
        }
        Ok(())
    }

    /// Moves copied and checked files to their places in the copy: first objects and other files,
    /// then the `new` segments one after the other. Removes the end segment at last, if no segment
    /// has replaced it.
    fn finish(
        &self,
        checked: SegmentFindings,
        new: Vec<(PathBuf, PathBuf)>,
        ending: Option<PathBuf>,
        copied: &mut CopyTotals,
    ) -> Result<()> {
        let storage = self.storage();
        let is_new = !checked.is_empty();
        self.copy_objects(checked, self.to, copied)?;
        // Syncs the copy's directory too. So each temporary name is durable before the file
        // replaces another one, and names from a killed backup become durable here.
        self.copy_beside(self.to, copied)?;
        if is_new {
            self.leave_mark(self.to, copied.before, copied)?;
        }
        self.store.sync_names_above()?;
        let mut ending = ending;
        for (building, path) in new {
            storage.rename_to(&building, &path)?;
            self.sync_copy()?;
            ending = ending.filter(|ending| *ending != path);
        }
        if let Some(ending) = ending {
            storage.remove_file(&ending).map_err(|error| Error::io("delete", &ending, error))?;
            self.sync_copy()?;
        }
        Ok(())
    }

    fn sync_copy(&self) -> Result<()> {
        self.storage().sync_directory(self.to)
    }

    /// Copies the missing part of a copy that is not a prefix of the session byte by byte: from the
    /// last shared segment on.
    fn add(
        &self,
        older: &Extent,
        shared: usize,
        ending: Option<PathBuf>,
        copied: &mut CopyTotals,
    ) -> Result<()> {
        let ours = &self.source.segments;
        let last = shared.saturating_sub(1);
        let is_held = match (ours.get(last), older.segments.get(last)) {
            (Some(our), Some(their)) if shared > 0 && their.end >= our.end => {
                let end = our.end.unwrap_or(0);
                same_segments(self.storage().as_ref(), &our.path, &their.path, end)?
            }
            _ => false,
        };
        let behind = ours.get(if is_held { shared } else { last }..).unwrap_or_default();
        let mut new = Vec::new();
        let checked = match behind {
            [] => SegmentFindings::default(),
            _ => self.check_meanwhile(|hand_over| self.copy_new(behind, &mut new, copied, hand_over))?,
        };
        self.finish(checked, new, ending, copied)
    }

    /// Converts the error of a directory that should be an older copy but cannot be read. Errors of
    /// the disk are passed on unchanged.
    fn unreadable(&self, error: Error) -> Error {
        match error {
            Error::Io { .. } | Error::Full { .. } => error,
            error => self.no_copy(error.to_string()),
        }
    }

    /// Checks that all records of the older copy are in the session, and returns the number of
    /// segments that they share. The last of these may be longer in one or the other.
    fn shared(&self, older: &Extent) -> Result<usize> {
        let (ours, theirs) = (self.source.segments.as_slice(), older.segments.as_slice());
        let common = ours.iter().zip(theirs).take_while(|(our, their)| our.header == their.header).count();
        let (ours_next, theirs_next) = (self.source.next_sequence, older.next_sequence);
        if ours_next < theirs_next {
            let through = theirs_next.saturating_sub(1);
            return Err(self.no_copy(format!(
                "it contains records {ours_next} through {through}, which the session does not contain"
            )));
        }
        // Usually the session has only grown.
        if let (true, Some(our), Some(their)) =
            (common == theirs.len(), ours.get(common.saturating_sub(1)), theirs.last())
            && let Some(end) = their.end.filter(|end| our.end.is_some_and(|our| *end <= our))
            && same_segments(self.storage().as_ref(), &our.path, &their.path, end)?
        {
            return Ok(common);
        }
        // A recovery may have written records again, in other segments: only their contents have to
        // match.
        let last = common.saturating_sub(1);
        let behind = ours.partition_point(|segment| segment.header.first_sequence < theirs_next).max(common);
        let unlike = first_difference(
            self.storage().as_ref(),
            theirs.get(last..).unwrap_or_default(),
            ours.get(last..behind).unwrap_or_default(),
            theirs_next,
        )?;
        if let Some(sequence) = unlike {
            return Err(self.no_copy(format!("its record {sequence} differs from the session's")));
        }
        for their in theirs {
            let ordinal = their.header.ordinal;
            if ours.iter().any(|our| our.header.ordinal == ordinal && our.header != their.header) {
                return Err(self.no_copy(format!("its segment {ordinal} differs from the session's")));
            }
        }
        // The chain is followed back from the highest ordinal, so the session's last segment needs
        // the highest ordinal.
        let highest = |segments: &[Segment]| segments.last().map(|last| last.header.ordinal);
        if theirs.len() > common && highest(ours) < highest(theirs) {
            return Err(self.no_copy("it was written since it was copied"));
        }
        Ok(common)
    }

    /// Removes the unfinished files of an interrupted backup from the copy.
    fn remove_unfinished(&self) -> Result<()> {
        let entries = self.storage().entries(self.to)?;
        for entry in entries.iter().filter(|entry| layout::building_ordinal(&entry.name).is_some()) {
            let path = self.to.join(&entry.name);
            self.storage().remove_file(&path).map_err(|error| Error::io("delete", &path, error))?;
        }
        Ok(())
    }

    /// Copies a compacted segment again, with its seal, in place of the copy without a seal. A
    /// compacted segment may end only in a complete seal: other bytes after its end are damage.
    fn replace_sealed(&self, ours: &Segment, path: &Path, copied: &mut CopyTotals) -> Result<()> {
        let building = layout::building_segment_file(self.to, ours.header.ordinal);
        let mut again = CopyTotals::default();
        self.copy(ours, &building, &mut again, true)?;
        copied.report.bytes += again.report.bytes;
        self.storage().rename_to(&building, path)?;
        self.sync_copy()
    }

    /// Adds the seals of the segments that have a successor in the copy. A sealed segment without a
    /// successor would count as a log that has lost one.
    fn add_seals(&self, copied: &mut CopyTotals) -> Result<()> {
        let storage = self.storage().as_ref();
        let copy_of = |ours: &Segment| ours.at(layout::segment_file(self.to, ours.header.ordinal));
        let Some((_, finished)) = self.source.segments.split_last() else { return Ok(()) };
        let mut unsealed = Vec::new();
        for ours in finished.iter().rev() {
            // The file may be shared with the copy of the session that wrote it. That session's own
            // backups seal it.
            if ours.header.session != self.session {
                break;
            }
            // The seals of earlier segments were added before this one's.
            if copy_of(ours).seal(storage)?.is_some() {
                break;
            }
            unsealed.push(ours);
        }
        for ours in unsealed.into_iter().rev() {
            let (Some(seal), Some(end), theirs) = (ours.seal(storage)?, ours.end, copy_of(ours)) else {
                continue;
            };
            if compressed::is_compressed(storage, &theirs.path)? {
                continue;
            }
            if ours.compacted.is_some() {
                self.replace_sealed(ours, &theirs.path, copied)?;
                continue;
            }
            let io = |op, error| Error::io(op, &theirs.path, error);
            let mut bytes = vec![0; usize::try_from(seal.len).unwrap_or(0)];
            let read = ours.open(storage)?.read_at(&mut bytes, end).map_err(|error| io("read", error))?;
            let file = storage.open(&theirs.path, Access::Write).map_err(|error| io("open", error))?;
            file.write_at(bytes.get(..read).unwrap_or_default(), end).map_err(|error| io("write", error))?;
            file.sync_data().map_err(|error| io("sync", error))?;
        }
        Ok(())
    }
}
