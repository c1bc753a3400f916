//! What the first append does to a log that was not closed.

use std::sync::Arc;

use foldlog_codec::frame::HEADER_LEN as FRAME_HEADER_LEN;
use foldlog_codec::sabotage::{self, Breakage};
use foldlog_codec::segment::Previous;
use foldlog_codec::{Kind, Record};

use super::turning::{encoded, write_header};
use super::{AppendContext, Body, Log};
use crate::error::{Error, Result};
use crate::log::layout;
use crate::log::reader::Places;
use crate::log::scan::Location;

impl Log {
    /// Makes the fresh segment of a recovery, as the module above says.
    pub(super) fn recover(&mut self, attested: u64, time_us: i64, context: &AppendContext<'_>) -> Result<()> {
        let mut rewritten: Vec<(Kind, i64, Vec<u8>)> = Vec::new();
        let mut bytes = 0;
        self.places.read(&self.storage, attested, u64::MAX, &mut |record: Record<'_>| {
            bytes += FRAME_HEADER_LEN as u64 + record.body.len() as u64;
            if !sabotage::is(Breakage::RecoveredObjectUnsynced) {
                record.objects().iter().try_for_each(|object| self.objects.sync_again(object))?;
            }
            rewritten.push((record.kind, record.time_us, record.body.to_vec()));
            Ok(())
        })?;
        let cut = self.cut_at(attested)?;
        let ordinal = self.next_ordinal()?;
        let building = match sabotage::is(Breakage::RecoveryInPlace) {
            true => layout::segment_file(&self.dir, ordinal),
            false => layout::building_segment_file(&self.dir, ordinal),
        };
        let below = AppendContext { synced: attested, declared: context.declared };
        let declared = encoded(&below);
        let (mut active, mut segment) =
            self.create_segment(building.clone(), cut.previous, (attested, bytes), declared.len(), &below)?;
        write_header(&active, &segment)?;
        // Only now does anything change, so that a disk without space leaves the log as it was read.
        self.places = cut.places;
        self.last_crc = cut.last_crc;
        self.last_time_us = cut.last_time_us;
        let path = layout::segment_file(&self.dir, ordinal);
        active.path.clone_from(&path);
        segment.path.clone_from(&path);
        self.ordinal_max = Some(ordinal);
        self.follow_with(active, segment);
        let body = self.resumed(time_us);
        self.epoch = Some(self.next_epoch());
        let (sequence, last_time_us) = (self.places.next_sequence, self.last_time_us);
        self.write(Kind::RESUMED, sequence, last_time_us, Body::Alone(&body), attested)?;
        self.declare_head(&declared, attested)?;
        for (kind, time_us, body) in rewritten {
            let sequence = self.places.next_sequence;
            let offset = self.write(kind, sequence, time_us, Body::Alone(&body), attested)?;
            let segment = self.places.segments.len().saturating_sub(1);
            self.places.index.note(sequence, Location { segment, offset });
            self.places.next_sequence += 1;
            self.last_time_us = time_us;
        }
        // The names that an earlier process made may not be durable either: those of segments, and that of
        // the session itself.
        self.unsynced_dirs.push(self.dir.clone());
        if !sabotage::is(Breakage::RecoveryFoldersUnsynced) {
            let store = layout::store_of(&self.dir);
            self.unsynced_dirs.extend(store.into_iter().flat_map(layout::folders_above_session));
        }
        let plan = self.sync_plan();
        if !sabotage::is(Breakage::RecoveryNamedUnsynced) {
            plan.run(self.storage.as_ref(), &|| ())?;
        }
        self.storage.rename(&building, &path).map_err(|error| Error::io("rename", &path, error))?;
        if !sabotage::is(Breakage::RecoveryNameUnsynced) {
            self.storage.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error))?;
        }
        self.used_bytes = self.count_used()?;
        Ok(())
    }

    /// The bytes of the chain, counted anew: what was rewritten counts once.
    fn count_used(&self) -> Result<u64> {
        let mut used = self.active.as_ref().map_or(0, |active| active.offset);
        for segment in self.places.segments.iter() {
            let seal = segment.seal(self.storage.as_ref())?;
            used += segment.end.unwrap_or(0) + seal.map_or(0, |(_, len)| len);
        }
        Ok(used)
    }

    /// Where the chain is to be cut so that record `attested - 1` is its last. All below is durable, envelope frames
    /// too: see the module above.
    fn cut_at(&self, attested: u64) -> Result<Cut> {
        let mut places = self.places.clone();
        if attested == 0 {
            places = Places::default();
            return Ok(Cut { places, previous: None, last_crc: 0, last_time_us: 0 });
        }
        let last = places.locate(&self.storage, attested - 1)?;
        Arc::make_mut(&mut places.segments).truncate(last.segment + 1);
        places.index.cut_at(attested);
        places.next_sequence = attested;
        let ordinal = places.segments.last().map_or(0, |segment| segment.header.ordinal);
        let previous = Some(Previous { ordinal, end: last.end, crc: last.crc });
        Ok(Cut { places, previous, last_crc: last.crc, last_time_us: last.time_us })
    }
}

/// A chain without its unattested end.
struct Cut {
    places: Places,
    previous: Option<Previous>,
    last_crc: u32,
    last_time_us: i64,
}
