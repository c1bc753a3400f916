//! Images, so that opening need not fold every record.
//!
//! An image is due at a segment's end and at closing, once the log has grown by
//! [`image_bytes_min`](crate::StoreOptions::image_bytes_min) since the last one, and by twice of what that one
//! took: so images never cost more than half of what the log itself costs. What is to be written is taken under
//! the writer's lock, which costs little, since items are shared; it is written in the background.
//!
//! # Invariants
//!
//! 1. An image is written only after the log is durable through its position.
//! 2. None is written once the session is closed, but by closing itself.
//! 3. None is taken while an operation is open or unsettled: an image says nothing of operations.
//! 4. Whatever becomes of an image, the session goes on as if there were none.

use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::body::{Opened, Rollback};
use foldlog_codec::image::{IMAGE_BYTES_MAX, Image, LastFrame};
use foldlog_codec::sabotage::{self, Breakage};
use uuid::Uuid;

use super::{Inner, WriterState};
use crate::background::{Left, Rank};
use crate::error::Result;
use crate::fold::log_items::{LogSource, RecordedItems};
use crate::fold::projection::Projection;
use crate::fold::restore;
use crate::log::images;

/// What is known of the last image.
#[derive(Debug, Default)]
pub(super) struct Imaged {
    /// How large it is, in bytes; 0 where there is none.
    pub(super) bytes: u64,
    /// Bytes that this writer had written when it was taken.
    pub(super) log_bytes: u64,
    /// The same for the last one that was begun, which may not be there yet.
    pub(super) taken_log_bytes: u64,
    /// Whether a segment ended since.
    pub(super) turned: bool,
}

/// What an image is made of, taken at one moment.
struct Taken {
    /// Bytes that this writer had written by then.
    log_bytes: u64,
    projection: Projection,
    source: LogSource,
    last: LastFrame,
    time_us: i64,
    epoch: u64,
    boot_id: Option<Uuid>,
    watermark: u64,
    openings: Vec<(u64, Opened)>,
    rollbacks: Vec<(u64, Rollback)>,
}

impl Taken {
    fn image<'a>(&'a self, recorded: &'a RecordedItems) -> Result<Image<'a>> {
        Ok(Image {
            next_sequence: self.projection.next_sequence(),
            last: self.last,
            time_us: self.time_us,
            epoch: self.epoch,
            boot_id: self.boot_id,
            watermark: self.watermark,
            openings: self.openings.clone(),
            rollbacks: self.rollbacks.clone(),
            index: self.source.places.indexed(),
            declared: self.projection.names.all(),
            tags: (*self.projection.tags).clone(),
            unsupported: self.projection.unsupported,
            slices: restore::slices(&self.projection, recorded)?,
        })
    }
}

/// An image that is being made, a step at a time: what is more urgent is not to wait for all of it.
struct Making {
    taken: Taken,
    /// Nothing before the first step, which is the background's too.
    recorded: Option<RecordedItems>,
    bytes: Option<Vec<u8>>,
}

impl Making {
    fn new(taken: Taken) -> Making {
        Making { taken, recorded: None, bytes: None }
    }

    /// One step: some items' bytes are read from the log, or all are encoded, or the file is written. An image
    /// that cannot be made costs the next opening time, and nothing else.
    fn step(&mut self, session: &Inner) -> Left {
        let next_sequence = self.taken.projection.next_sequence();
        let Some(bytes) = &self.bytes else {
            let recorded = self.recorded.get_or_insert_with(|| RecordedItems::of(&self.taken.projection));
            match recorded.find_more(&self.taken.source) {
                Ok(ControlFlow::Continue(())) => return Left::More,
                Ok(ControlFlow::Break(())) => {}
                Err(_) => return Left::Nothing,
            }
            let encoded = self.taken.image(recorded).map(|image| image.encode());
            self.bytes = encoded.ok().filter(|bytes| bytes.len() as u64 <= IMAGE_BYTES_MAX);
            return if self.bytes.is_some() { Left::More } else { Left::Nothing };
        };
        let written = (sabotage::is(Breakage::ImageBeforeLog) || session.sync_through(next_sequence).is_ok())
            && images::write(&session.store.options.storage, &session.dir, next_sequence, bytes).is_ok();
        if written {
            let imaged = &mut session.state.lock().imaged;
            (imaged.bytes, imaged.log_bytes) = (bytes.len() as u64, self.taken.log_bytes);
        }
        Left::Nothing
    }
}

impl Inner {
    /// Takes what an image is made of, where one is due after an image that was taken when `since` bytes had been
    /// written.
    fn take_image(&self, state: &mut WriterState, since: u64) -> Option<Taken> {
        let grown = state.log.written_bytes().saturating_sub(since);
        let due = self.store.options.image_bytes_min.max(2 * state.imaged.bytes);
        let open = !state.projection.operations.is_empty() && !sabotage::is(Breakage::ImageWithinCall);
        if grown < due || state.projection.unsupported.is_some() || open {
            return None;
        }
        let last = state.log.last_frame()?;
        state.imaged.taken_log_bytes = state.log.written_bytes();
        Some(Taken {
            projection: state.projection.clone(),
            source: self.log_source(state),
            last,
            time_us: state.log.last_time_us(),
            epoch: state.log.epoch(),
            boot_id: self.store.options.storage.boot_id(),
            watermark: state.log.watermark(),
            log_bytes: state.log.written_bytes(),
            openings: state.openings.clone(),
            rollbacks: state.rollbacks.iter().map(|(at, rollback)| (*at, *rollback)).collect(),
        })
    }

    /// Has an image written where a segment has ended and one is due.
    pub(super) fn image_at_turn(self: &Arc<Self>, state: &mut WriterState) -> Option<impl FnOnce() + use<>> {
        if !state.imaged.turned {
            return None;
        }
        let taken = self.take_image(state, state.imaged.taken_log_bytes);
        // Asked again at the next turn only.
        state.imaged.turned = false;
        let taken = taken?;
        let (background, session) = (self.store.background.clone(), Arc::downgrade(self));
        Some(move || {
            let mut making = Making::new(taken);
            background.offer(Rank::Image, move || {
                let Some(session) = session.upgrade() else { return Left::Nothing };
                let _imaging = session.imaging.lock();
                // Behind a closed session's back its folder may be another writer's, or gone.
                if session.state.lock().closed {
                    return Left::Nothing;
                }
                making.step(&session)
            });
        })
    }

    /// Writes an image where one is due, now that everything is durable and the session is closed for all others.
    pub(super) fn image_at_closing(&self) {
        let _imaging = self.imaging.lock();
        let taken = {
            let mut state = self.state.lock();
            // One that was being made is not made any more.
            let since = state.imaged.log_bytes;
            self.take_image(&mut state, since)
        };
        if let Some(mut making) = taken.map(Making::new) {
            while making.step(self) == Left::More {}
        }
    }
}
