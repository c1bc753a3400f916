//! The first append to a log that was not closed.
//!
//! # The new segment
//!
//! After its header, the new segment contains these frames, in this order:
//!
//! 1. A `Resumed` frame. It states that a recovery wrote the segment, the end of the recovered
//!    records, and the positions at which the processes began that had written these records; their
//!    own `Resumed` frames stay in the old segments.
//! 2. The declarations.
//! 3. The records that no frame had attested.
//! 4. A `Synced` frame that attests these records.
//!
//! All of this is synced under a temporary name, which a scan ignores, and only then gets its final
//! name. Under that name the records and the frame that attests them become durable together. No
//! later recovery therefore writes the same records again: a thousand crashes cost a thousand
//! tails.
//!
//! # Invariants
//!
//! 1. The records that the segment attests are durable if the segment's name is. As long as no
//!    frame follows the attesting one, a reader cannot determine whether the name is durable. Until
//!    then no record counts as durable because of it before the directory is synced again: by the
//!    next recovery, or by a writer that continues in the segment.
//! 2. If a recovery fails, the log is unchanged; its temporary file may stay.
//! 3. A recovery builds its segment in the space of the [spare](super::recovery_space), or of the
//!    temporary file of an unfinished earlier recovery, if one of them is large enough. It removes
//!    the other such files once it is done. These files contain only copies of records that are
//!    still in their original place.
//! 4. No byte changes in the segments after which the log is continued. Space after their last byte
//!    that was only allocated is given back to the disk: their writer is dead, the space reads as
//!    zeros before and after, and it would add up over many crashes. No file gets shorter.

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::Resumed;
use foldlog_codec::frame::HEADER_LEN as FRAME_HEADER_LEN;
use foldlog_codec::segment::Previous;
use foldlog_codec::{Record, RecordKind, SequenceNumber};

use super::rollover::{HEAD_BYTES, PAGE_BYTES, encode_declarations, write_header};
use super::{AppendBody, AppendContext, LogWriter};
use crate::error::{Error, Result};
use crate::log::chain::Segment;
use crate::log::compressed;
use crate::log::layout;
use crate::log::reader::RecordLocator;
use crate::log::window::Window;
use crate::storage::{Access, EntryKind};

impl LogWriter {
    /// Creates the new segment of a recovery, as described in the module docs.
    pub(super) fn recover(
        &mut self,
        attested: SequenceNumber,
        time_us: i64,
        context: &AppendContext<'_>,
    ) -> Result<()> {
        let Tail { records, bytes } = self.read_unattested(attested)?;
        let through = attested + records.len() as u64;
        let body = self.encode_resumed(time_us, Some(through), self.began_behind(attested)?);
        let cut = self.cut_at(attested)?;
        let ordinal = self.next_ordinal()?;
        let building = layout::building_segment_file(&self.dir, ordinal);
        let below = AppendContext { synced: attested, declared: context.declared };
        let declared = encode_declarations(&below);
        let wanted = HEAD_BYTES + (body.len() + declared.len() + FRAME_HEADER_LEN) as u64 + bytes;
        let space = self.space_for_recovery(&building, wanted)?;
        let (mut active, mut segment) =
            self.begin_segment(ordinal, building.clone(), space, cut.previous, attested, &below);
        write_header(&active, &segment)?;
        // Nothing has changed before this line, so that a disk without space leaves the log as it
        // was read.
        let left = self.places.segments.last().cloned();
        self.places = cut.places;
        self.last_crc = cut.last_crc;
        self.last_time_us = cut.last_time_us;
        let path = layout::segment_file(&self.dir, ordinal);
        active.path.clone_from(&path);
        segment.path.clone_from(&path);
        self.ordinal_max = Some(ordinal);
        self.follow_with(active, segment);
        self.epoch = Some(self.next_epoch());
        self.write_envelope(RecordKind::Resumed, &body, attested)?;
        self.declare_head(&declared, attested)?;
        for (kind, time_us, body) in records {
            self.write_record(kind, time_us, AppendBody::Alone(&body), attested)?;
        }
        self.write_envelope(RecordKind::Synced, &[], through)?;
        self.name_for_good(&building, &path)?;
        self.recovered = through;
        self.spare.note_recovered(self.written_bytes);
        self.used_bytes = self.count_used()?;
        self.clear_away(left.as_ref(), ordinal);
        Ok(())
    }

    /// Returns the records that no frame has attested, and syncs their objects again.
    fn read_unattested(&self, attested: SequenceNumber) -> Result<Tail> {
        let mut tail = Tail::default();
        self.places.read(&self.storage, attested, SequenceNumber::MAX, &mut |record: Record<'_>| {
            tail.bytes += FRAME_HEADER_LEN as u64 + record.body.len() as u64;
            record.objects().iter().try_for_each(|object| self.objects.sync_again(object))?;
            tail.records.push((record.kind, record.time_us, record.body.to_vec()));
            Ok(())
        })?;
        Ok(tail)
    }

    /// Returns the start positions of the processes with `Resumed` frames after the attested
    /// records, among the session's own records, in ascending order. The frame of an earlier
    /// recovery lists the processes before it.
    fn began_behind(&self, attested: SequenceNumber) -> Result<Vec<SequenceNumber>> {
        let mut began: Vec<SequenceNumber> = Vec::new();
        self.places.envelopes_behind(&self.storage, attested, &mut |segment, frame| {
            if frame.header.kind != RecordKind::Resumed || segment.header.session != self.session {
                return Ok(());
            }
            let at = frame.header.sequence;
            let resumed = Resumed::decode(frame.body).map_err(Error::unread(at))?;
            for at in resumed.began.into_iter().chain([resumed.recovered.unwrap_or(at)]) {
                if began.last().is_none_or(|last| *last < at) && at < self.places.next_sequence {
                    began.push(at);
                }
            }
            Ok(())
        })?;
        Ok(began)
    }

    /// Syncs the new segment, gives it its final name, and makes that name durable.
    fn name_for_good(&mut self, building: &Path, path: &Path) -> Result<()> {
        // Names that an earlier process created may not be durable either: those of segments, and
        // that of the session itself.
        self.unsynced_dirs.push(self.dir.clone());
        let store = layout::store_of(&self.dir);
        self.unsynced_dirs.extend(store.into_iter().flat_map(layout::directories_above_session));
        let plan = self.sync_plan();
        plan.run(self.storage.as_ref(), &|| ())?;
        self.storage.rename_to(building, path)?;
        self.storage.sync_directory(&self.dir)
    }

    /// Removes the half-built files of earlier recoveries, and gives back the space that the last
    /// writer had only allocated: in the segment where the log was `left`, and in preallocated
    /// ones. A failure only costs space.
    fn clear_away(&self, left: Option<&Segment>, ordinal: u32) {
        let ended = left.map(|segment| segment.header.ordinal);
        for entry in self.storage.list(&self.dir).unwrap_or_default() {
            let path = self.dir.join(&entry.name);
            if entry.kind != EntryKind::File {
                continue;
            }
            let half_built = layout::building_ordinal(&entry.name);
            if half_built.is_some_and(|half_built| half_built < ordinal)
                || path == layout::spare_file(&self.dir)
            {
                let _ = self.storage.remove_file(&path);
            }
            let found = layout::segment_ordinal(&entry.name);
            // The segment may be shared with the fork's parent, whose writer may be writing in it.
            let own = left.is_some_and(|segment| segment.header.session == self.session);
            if own && found.is_some_and(|found| Some(found) >= ended && found < ordinal) {
                let _ = self.give_back(&path, entry.len);
            }
        }
    }

    /// Gives back the whole pages of a file after its last byte that is not 0.
    fn give_back(&self, path: &Path, len: u64) -> Result<()> {
        let io = |error| Error::io("write", path, error);
        if compressed::is_compressed(self.storage.as_ref(), path).unwrap_or(true) {
            return Ok(());
        }
        let file = self.storage.open(path, Access::Write).map_err(io)?;
        let used = Window::new(path, Arc::clone(&file), None)?.used_end(0)?.next_multiple_of(PAGE_BYTES);
        if used < len { file.give_back(used, len).map_err(io) } else { Ok(()) }
    }

    /// Counts the bytes of the chain again: rewritten records count once.
    fn count_used(&self) -> Result<u64> {
        let mut used = self.active.as_ref().map_or(0, |active| active.offset);
        for segment in self.places.segments.iter() {
            used += segment.used_bytes(self.storage.as_ref())?;
        }
        Ok(used)
    }

    /// Returns the chain, cut so that record `attested - 1` is its last. Everything below is
    /// durable, including envelope frames: see invariant 3 of the parent module.
    fn cut_at(&self, attested: SequenceNumber) -> Result<TruncatedChain> {
        let mut places = self.places.clone();
        if attested == 0 {
            places = RecordLocator::default();
            return Ok(TruncatedChain { places, previous: None, last_crc: 0, last_time_us: 0 });
        }
        let last = places.locate(&self.storage, attested - 1)?;
        let next = places.segments.get(last.segment + 1);
        let next = next.filter(|next| next.header.first_sequence == attested);
        let compacted = places.segments.get(last.segment).and_then(|segment| segment.replaced_crc);
        // A compacted segment keeps the end of the segment that it replaces: a fork's first record
        // also names this end.
        let named = next.and_then(|next| next.header.previous.filter(|_| compacted.is_some()));
        Arc::make_mut(&mut places.segments).truncate(last.segment + 1);
        places.index.cut_at(attested);
        places.next_sequence = attested;
        let ordinal = places.segments.last().map_or(0, |segment| segment.header.ordinal);
        let previous = named.unwrap_or(Previous { ordinal, end: last.end, crc: last.crc });
        let last_crc = previous.crc;
        Ok(TruncatedChain { places, previous: Some(previous), last_crc, last_time_us: last.time_us })
    }
}

#[derive(Default)]
struct Tail {
    records: Vec<(RecordKind, i64, Vec<u8>)>,
    bytes: u64,
}

/// A chain without its unattested end.
struct TruncatedChain {
    places: RecordLocator,
    previous: Option<Previous>,
    last_crc: u32,
    last_time_us: i64,
}
