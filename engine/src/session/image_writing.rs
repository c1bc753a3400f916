//! Writes images, so that opening need not fold every record.
//!
//! An image becomes due once the log has grown by
//! [`image_bytes_min`](crate::StoreOptions::image_bytes_min) since the last one, and by twice the
//! size of that one, so images never cost more than half as much as the log itself. It is written
//! at a segment's end, at closing, or with the first record after a writer that did not close the
//! session. An image is useless after a rollback to a position before it, and the next one is due
//! as if it were the first. Growth is counted over all openings of a session, so a session that is
//! opened and closed repeatedly gets its images too.
//!
//! The content is captured under the writer's lock, which costs little, since items are shared; the
//! background writes the image. After a writer that did not close the session, the thread with the
//! first record writes the image at once. Otherwise a session that is repeatedly killed before the
//! background runs would be folded from further back at each opening.
//!
//! Items of known types are not stored in their recorded form. They are read from the log, a few
//! megabytes or one record at a time, and written one after the other. The size of an image is
//! estimated first, from some of its items: an image that is too large for opening to read is not
//! written.
//!
//! # Invariants
//!
//! 1. An image is written only after the log is durable through its position, and names the frame
//!    of the record there. No sync makes later frames durable, such as those that attest the close:
//!    the opening walks over them.
//! 2. Once the session is closed, only closing itself writes an image.
//! 3. An image contains the operations that are open, unsettled or suspended, and STATE at the
//!    start of each open one that may make changes. No image is taken while the session has to be
//!    recovered: its STATE then differs from the log's.
//! 4. At most one image of a session is pending, so its past state is stored only once.
//! 5. The session does not depend on images: if one fails, it continues without.
//! 6. No image is started that would take over a quarter of the free space of the disk, so that
//!    space remains for records and objects. If a record or an object finds no space anyway, it
//!    reuses the space of the images, finished or not ([`crate::log::image_files`]).

use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ItemId;
use foldlog_codec::image::{BegunImage, IMAGE_BYTES_MAX, Image, ItemImage};

use super::load::Images;
use super::{SessionInner, WriterState};
use crate::background::{Background, Rank, RemainingWork};
use crate::error::{Error, Result};
use crate::fold::image_conversion;
use crate::fold::log_source::LogSource;
use crate::fold::projection::{FrozenProjection, Projection};
use crate::items::row::RowRef;
use crate::log::image_files::{Building, UnfinishedImage};

/// Number of items that are measured to estimate the size of an image.
const SAMPLE: usize = 64;

/// Approximate bytes of items that are read from the log at a time.
const STEP_BYTES: u64 = 4 << 20;

/// Maximum number of items that are read at a time.
const STEP_ITEMS: u64 = 4096;

/// State of the last image.
#[derive(Debug, Default)]
pub(super) struct ImageStatus {
    /// Length of the image in bytes; 0 if there is none.
    bytes: u64,
    /// Bytes of the log that the image covers.
    log_bytes: u64,
    /// Sequence number after the last record that the image covers.
    next_sequence: SequenceNumber,
    /// Bytes of the log that the last started image covers. It may not be written yet.
    taken_log_bytes: u64,
    /// Whether a segment ended since the last image was considered, so that one may be due.
    pub(super) rolled_over: bool,
    /// Whether the image that is due now should have been written by the last writer at closing.
    left_out: bool,
    /// Whether an image is pending.
    waits: bool,
    /// Ordinal of the last segment when the log was opened. This process seals no earlier segment.
    opened_at: u32,
}

impl ImageStatus {
    /// Describes the image that a session was opened with. `opened_at` is the last segment of the
    /// log; `closed` states whether the last writer closed it.
    pub(super) fn new(images: &Images, opened_at: u32, closed: bool) -> ImageStatus {
        let (bytes, log_bytes) = images.next_sequence.map_or((0, 0), |_| (images.bytes, images.log_bytes));
        ImageStatus {
            bytes,
            log_bytes,
            next_sequence: images.next_sequence.unwrap_or_default(),
            taken_log_bytes: log_bytes,
            rolled_over: !closed,
            left_out: !closed,
            opened_at,
            waits: false,
        }
    }

    /// Makes the next image due as if there were none, if the log is rolled back to a position
    /// before this one: no opening can continue from it.
    pub(super) fn rolled_back_to(&mut self, position: SequenceNumber) {
        if position + 1 < self.next_sequence {
            (self.bytes, self.log_bytes, self.taken_log_bytes) = (0, 0, 0);
        }
    }
}

struct ImageContent {
    /// Bytes of the log at that moment.
    log_bytes: u64,
    projection: Projection,
    /// STATE at the starts of open operations.
    begun: Vec<(SequenceNumber, Arc<FrozenProjection>)>,
    source: LogSource,
    /// The image, with the parts that the log knows.
    image: Image<'static>,
    /// Ordinal of the last segment when the log was opened.
    opened_at: u32,
    /// Place of the file that is being written.
    unfinished: Arc<UnfinishedImage>,
}

enum ImageOutcome {
    /// The image was written, with this length in bytes.
    Written(u64),
    /// The image would have this length in bytes, and was not started or not finished.
    TooLarge(u64),
    /// The image could not be written, or was given up.
    Not,
}

impl ImageContent {
    /// Returns the image without its items, which are written after it.
    fn head<'a>(&'a self, begun: Vec<BegunImage<'a>>, unsealed: Vec<(u32, u64)>) -> Image<'a> {
        let operations = &self.projection.operations;
        Image {
            next_sequence: self.projection.next_sequence(),
            index: self.source.places.indexed_locations(),
            compacted: self.source.places.compacted_segments(),
            unsealed,
            declared: self.projection.names.all(),
            tags: (*self.projection.tags).clone(),
            replicated: self.projection.replicated.as_deref().cloned(),
            unsupported: self.projection.unsupported,
            open: operations.open().cloned().collect(),
            unsettled: operations.unsettled().cloned().collect(),
            suspended: operations.suspended().cloned().collect(),
            begun,
            conversations: self.projection.conversations.image(),
            slices: image_conversion::slices(&self.projection),
            ..self.image.clone()
        }
    }

    /// Estimates the size of the items in bytes, by measuring some of them.
    fn items_estimated(&self, heads: &[BegunImage<'_>]) -> Result<u64> {
        let (mut bytes, mut unknown) = (0, 0_usize);
        for (_, rows) in image_conversion::items_apart(&self.projection, &self.begun, heads) {
            for row in rows {
                bytes += ItemImage::HEAD_LEN + row.bytes().map_or(0, |bytes| bytes.len() as u64);
                unknown += usize::from(row.bytes().is_none());
            }
        }
        // The size of the unknown items does not matter.
        if unknown == 0 || bytes > IMAGE_BYTES_MAX {
            return Ok(bytes);
        }
        let apart = unknown.div_ceil(SAMPLE);
        let mut some: Vec<(ItemId, u32)> = Vec::with_capacity(SAMPLE);
        let mut left = 0;
        for (slice, rows) in image_conversion::items_apart(&self.projection, &self.begun, heads) {
            for row in rows.filter(|row| row.bytes().is_none()) {
                if left == 0 {
                    some.push((row.id, slice));
                    left = apart;
                }
                left -= 1;
            }
        }
        // An item may occur twice: in the present state, and at the start of an operation.
        some.sort_unstable();
        some.dedup();
        let mean = self.source.len_of(some.clone())? / some.len().max(1) as u64;
        Ok(bytes + mean.saturating_mul(unknown as u64))
    }

    /// Writes the image. Calls `goes_on` between its parts, to let more urgent work pass; `false`
    /// gives the image up.
    fn make(&self, session: &Arc<SessionInner>, goes_on: &dyn Fn() -> bool) -> Result<ImageOutcome> {
        let next_sequence = self.projection.next_sequence();
        let heads = image_conversion::begun_images(&self.projection, &self.begun);
        let storage = &session.store.options.storage;
        let unsealed = self.source.places.unsealed_segments(storage.as_ref(), self.opened_at)?;
        let head = self.head(heads.clone(), unsealed).head();
        let estimated = head.len() as u64 + self.items_estimated(&heads)?;
        if estimated > IMAGE_BYTES_MAX {
            return Ok(ImageOutcome::TooLarge(estimated));
        }
        let failed = |error| Error::io("write", &session.dir, error);
        let free = storage.free_bytes(&session.dir).map_err(failed)?;
        if estimated > free / 4 {
            return Ok(ImageOutcome::Not);
        }
        session.sync_through(next_sequence)?;
        let mut building =
            Building::begin(storage, &session.dir, next_sequence, &self.unfinished).map_err(failed)?;
        building.write(|into| into.extend(head)).map_err(failed)?;
        for (slice, rows) in image_conversion::items_apart(&self.projection, &self.begun, &heads) {
            let mut rows = rows.peekable();
            let mut step = STEP_ITEMS / 64;
            while rows.peek().is_some() {
                let mut some: Vec<RowRef<'_>> = rows.by_ref().take(step as usize).collect();
                // A record with many items is read once. It fit into memory when it was recorded.
                let record = some.last().map(|row| row.id.sequence);
                some.extend(std::iter::from_fn(|| rows.next_if(|row| Some(row.id.sequence) == record)));
                let before = building.len();
                let recorded = self.source.recorded_of(slice, &some)?;
                for row in &some {
                    let bytes = recorded.bytes(slice, *row)?;
                    let item = ItemImage { id: row.id, version: row.version, bytes };
                    building.write(|into| item.write(into)).map_err(failed)?;
                }
                let mean = (building.len() - before) / some.len().max(1) as u64;
                step = (STEP_BYTES / mean.max(1)).clamp(1, STEP_ITEMS);
                if building.len() > IMAGE_BYTES_MAX {
                    return Ok(ImageOutcome::TooLarge(building.len().max(estimated)));
                }
                if !goes_on() {
                    return Ok(ImageOutcome::Not);
                }
            }
        }
        building.finish(&session.dir, next_sequence).map(ImageOutcome::Written).map_err(failed)
    }
}

impl SessionInner {
    /// Captures the content of an image, if one is due after an image of a log of `since` bytes.
    fn take_image(&self, state: &mut WriterState, since: u64) -> Option<ImageContent> {
        let log_bytes = state.log.used_bytes();
        let grown = log_bytes.saturating_sub(since);
        let due = self.store.options.image_bytes_min.max(2 * state.imaged.bytes);
        if grown < due || state.live.projection.unsupported.is_some() || state.interrupted {
            return None;
        }
        let (last, watermark) = state.log.last_record_frame()?;
        state.imaged.taken_log_bytes = log_bytes;
        let begun = state.live.positions.begun_positions(&state.live.projection);
        let image = Image {
            last,
            time_us: state.log.last_time_us(),
            epoch: state.log.epoch(),
            boot_id: self.store.options.storage.boot_id(),
            watermark,
            openings: state.openings.clone(),
            rollbacks: state.live.rollbacks.iter().map(|(at, rollback)| (*at, *rollback)).collect(),
            ..Image::default()
        };
        Some(ImageContent {
            projection: state.live.projection.clone(),
            begun,
            source: self.log_source(state),
            image,
            log_bytes,
            opened_at: state.imaged.opened_at,
            unfinished: state.log.unfinished_image(),
        })
    }

    /// Writes an image. A failure only makes the next opening slower.
    fn make_image(self: &Arc<Self>, taken: &ImageContent, goes_on: &dyn Fn() -> bool) {
        let made = taken.make(self, goes_on).unwrap_or(ImageOutcome::Not);
        let imaged = &mut self.state.lock().imaged;
        match made {
            ImageOutcome::Written(bytes) => {
                (imaged.bytes, imaged.log_bytes) = (bytes, taken.log_bytes);
                imaged.next_sequence = taken.projection.next_sequence();
            }
            // Counted as if it were written, to delay the next attempt until the log has grown
            // accordingly.
            ImageOutcome::TooLarge(bytes) => (imaged.bytes, imaged.log_bytes) = (bytes, taken.log_bytes),
            ImageOutcome::Not => {}
        }
    }

    /// Offers an image to the background, if a segment has ended and an image is due. If the last
    /// writer left out its image, the returned function writes it at once.
    pub(super) fn image_at_rollover(
        self: &Arc<Self>,
        state: &mut WriterState,
    ) -> Option<impl FnOnce() + use<>> {
        if !state.imaged.rolled_over || state.interrupted {
            return None;
        }
        // Considered again at the next rollover only.
        state.imaged.rolled_over = false;
        let at_once = std::mem::take(&mut state.imaged.left_out);
        if state.imaged.waits {
            return None;
        }
        let taken = self.take_image(state, state.imaged.taken_log_bytes)?;
        state.imaged.waits = true;
        let session = Arc::downgrade(self);
        let background = if at_once { Background::Inline } else { self.store.background.clone() };
        Some(move || {
            let urgent = background.clone();
            let mut taken = Some(taken);
            background.offer(Rank::Image, move || {
                let (Some(session), Some(taken)) = (session.upgrade(), taken.take()) else {
                    return RemainingWork::Nothing;
                };
                let _imaging = session.imaging.lock();
                // Once the session is closed, its directory may belong to a new writer, or be
                // removed.
                let is_open = || !session.state.lock().closed;
                if is_open() {
                    session.make_image(&taken, &|| {
                        urgent.let_pass(Rank::Image);
                        is_open()
                    });
                }
                drop(taken);
                session.state.lock().imaged.waits = false;
                RemainingWork::Nothing
            });
        })
    }

    /// Writes an image if one is due, now that everything is durable and the session is closed for
    /// all others.
    pub(super) fn image_at_closing(self: &Arc<Self>) {
        let _imaging = self.imaging.lock();
        let taken = {
            let mut state = self.state.lock();
            // An unfinished image is given up.
            let since = state.imaged.log_bytes;
            self.take_image(&mut state, since)
        };
        if let Some(taken) = taken {
            self.make_image(&taken, &|| true);
        }
    }
}
