//! Reserving room for records, in the active segment or else in the next one, in addition to the
//! room for the ends of open calls. Checks that the records are within the limits of readers.

use std::sync::Arc;

use foldlog_codec::Error as CodecError;
use foldlog_codec::body::ObjectId;
use foldlog_codec::frame::{self, BODY_LEN_MAX, HEADER_LEN as FRAME_HEADER_LEN};
use foldlog_codec::msgpack::{self, ValueLimits};
use foldlog_codec::segment::Previous;

use super::{AppendContext, END_BYTES, LogWriter, RESERVED_BYTES};

use crate::error::{Error, Result};
use crate::log::image_files::{self, UnfinishedImage};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReservationKind {
    Records,
    /// The start record of a call, and its end record. A recovery has space for both, if the
    /// process is killed in between.
    Call,
}

impl LogWriter {
    /// Makes room for records with these bodies, so that either all of them are appended or none.
    /// This call fails, before the first of them, under the conditions of
    /// [`append`](LogWriter::append).
    pub(crate) fn reserve<'b>(
        &mut self,
        time_us: i64,
        bodies: impl Iterator<Item = &'b [u8]>,
        room: ReservationKind,
        context: &AppendContext<'_>,
    ) -> Result<()> {
        let mut bytes = if room == ReservationKind::Call { END_BYTES } else { 0 };
        for body in bodies {
            check_body(body.len(), || body)?;
            bytes += (FRAME_HEADER_LEN + body.len()) as u64;
        }
        self.begin(time_us.clamp(frame::TIME_US_MIN, frame::TIME_US_MAX), context)?;
        self.make_room(bytes + self.reserved_bytes, context)?;
        match room {
            ReservationKind::Records => Ok(()),
            // Twice, since there may be declarations among them.
            ReservationKind::Call => self.keep_spare(2 * bytes + self.reserved_bytes, context),
        }
    }

    /// Stores the bytes as an object and returns its id, like
    /// [`Objects::put`](crate::log::objects::Objects::put). On a full disk the session gives up its
    /// caches first.
    pub(crate) fn put_object(&self, bytes: &[u8]) -> Result<ObjectId> {
        self.with_room(|| self.objects.put(bytes))
    }

    /// Calls `make`. If the disk has no room, gives up the session's caches and calls it again.
    pub(super) fn with_room<T>(&self, mut make: impl FnMut() -> Result<T>) -> Result<T> {
        match make() {
            Err(Error::Full { .. }) => {
                self.give_up_caches();
                make()
            }
            done => done,
        }
    }

    /// Frees the disk space of the session's caches: the preallocated segment, complete or not, and
    /// the images, including the one that is being written.
    pub(crate) fn give_up_caches(&self) {
        self.ahead.give_back();
        image_files::remove_all(self.storage.as_ref(), &self.dir, &self.unfinished_image);
    }

    /// Ends the background work for an unfinished log, whose directory is about to be removed.
    pub(crate) fn abandon(&self) {
        self.ahead.give_back();
    }

    /// Returns the slot of the image that is being written.
    pub(crate) fn unfinished_image(&self) -> Arc<UnfinishedImage> {
        Arc::clone(&self.unfinished_image)
    }

    /// Reserves room for the end of a call from now on.
    pub(crate) fn keep_room_for_end(&mut self) {
        self.reserved_bytes += END_BYTES;
        self.set_limit();
    }

    pub(crate) fn release_end(&mut self) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(END_BYTES);
        self.set_limit();
    }

    /// Makes room for a frame of `len` bytes, in the next segment if necessary.
    pub(super) fn make_room(&mut self, len: u64, context: &AppendContext<'_>) -> Result<()> {
        let Some(active) = &self.active else { return Ok(()) };
        if active.offset + len + RESERVED_BYTES <= active.limit {
            Ok(())
        } else {
            self.make_more_room(len, context)
        }
    }

    /// Makes room for a frame of `len` bytes that does not fit into the segment, or may not fit
    /// into the spare.
    #[cold]
    fn make_more_room(&mut self, len: u64, context: &AppendContext<'_>) -> Result<()> {
        if self.reserved_bytes > 0 {
            self.keep_spare(len, context)?;
        }
        let Some(active) = &self.active else { return Ok(()) };
        if active.offset + len + RESERVED_BYTES <= active.capacity {
            self.set_limit();
            return Ok(());
        }
        self.go_over(len, context)
    }

    /// Does the steps before the first append if necessary, and continues in a new segment with
    /// room for `len` bytes. Otherwise this segment is as short as a session's first one, since it
    /// is unknown whether much will be written soon.
    pub(crate) fn roll_over(&mut self, time_us: i64, len: u64, context: &AppendContext<'_>) -> Result<()> {
        self.begin(time_us.clamp(frame::TIME_US_MIN, frame::TIME_US_MAX), context)?;
        self.reopened_bytes = 0;
        if let Some(active) = &mut self.active {
            active.capacity = active.capacity.min(active.offset);
        }
        self.go_over(len, context)
    }

    fn go_over(&mut self, len: u64, context: &AppendContext<'_>) -> Result<()> {
        let Some(active) = &self.active else { return Ok(()) };
        let previous = Previous { ordinal: active.ordinal, end: active.offset, crc: self.last_crc };
        self.new_segment(Some(previous), len, context)?;
        self.set_limit();
        Ok(())
    }

    /// Sets the offset up to which records may be written without checking the spare again.
    pub(super) fn set_limit(&mut self) {
        let left = match self.reserved_bytes {
            0 => u64::MAX,
            _ => self.spare.bytes_left(self.written_bytes),
        };
        if let Some(active) = &mut self.active {
            active.limit = active.capacity.min(active.offset.saturating_add(left));
        }
    }
}

/// Checks that readers accept a record with this body: its length, and the number of its values.
/// Each value takes at least a byte, so only bodies longer than the limit on values are walked. The
/// depth of nesting needs no check: payloads are bounded so that the structure around them fits.
#[inline]
pub(super) fn check_body<'b>(len: usize, body: impl FnOnce() -> &'b [u8]) -> Result<()> {
    if len as u64 <= ValueLimits::default().items_max {
        return Ok(());
    }
    check_body_len(len)?;
    match msgpack::scan(body(), ValueLimits::default()) {
        Err(CodecError::Limit { limit, max, .. }) => {
            Err(Error::TooLarge { what: limit, found: max + 1, max })
        }
        _ => Ok(()),
    }
}

/// Checks that a body is not longer than a frame allows.
pub(crate) fn check_body_len(len: usize) -> Result<()> {
    if len <= BODY_LEN_MAX {
        return Ok(());
    }
    Err(Error::TooLarge { what: "record body", found: len as u64, max: BODY_LEN_MAX as u64 })
}
