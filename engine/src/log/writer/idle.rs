//! Resting: a log that is not written to holds no file open.
//!
//! # Invariants
//!
//! 1. A file is closed only after a sync has covered everything that was written into it, including
//!    attesting frames: a file that is opened later does not report earlier failures.
//! 2. While a log rests, none of it is mapped or preallocated, and only its writer's lock is held.
//! 3. The next append opens the file again. If that fails, nothing was written, and the log still
//!    rests.

use std::io::{Error as IoError, ErrorKind};

use super::{Active, LogWriter, WriterPhase};
use crate::error::Result;

impl LogWriter {
    /// Closes every file of a log whose records are all durable. Returns `false` if the log has
    /// none open: it was not written to yet, or is already resting.
    ///
    /// If the error is [`Error::NoHandle`], everything is unchanged; after any other error the log
    /// must not be written to again.
    pub(crate) fn rest(&mut self) -> Result<bool> {
        if !self.is_writing() {
            return Ok(false);
        }
        self.discard_made_ahead()?;
        self.finish_seals()?;
        let plan = self.sync_plan();
        if let Err(error) = plan.run(self.storage.as_ref(), &|| ()) {
            self.put_back(plan);
            return Err(error);
        }
        let Some(Active { offset, capacity, .. }) = self.active.take() else { return Ok(false) };
        self.start = WriterPhase::Resting { offset, capacity };
        Ok(true)
    }

    /// Returns whether this writer has written, and then closed its files.
    pub(crate) fn is_resting(&self) -> bool {
        matches!(self.start, WriterPhase::Resting { .. })
    }

    /// Returns the number of bytes that this writer has written since opening.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    pub(super) fn wake(&mut self, offset: u64, capacity: u64) -> Result<()> {
        let Some(segment) = self.places.segments.last() else { return Ok(()) };
        let io = |error| self.write_error("open", &segment.path, error);
        let file = self.storage.open_segment(&segment.path).map_err(io)?;
        let len = file.len().map_err(io)?;
        if len < offset {
            let found = format!("it has {len} bytes, but {offset} were written");
            return Err(io(IoError::new(ErrorKind::UnexpectedEof, found)));
        }
        let active = Active::new(file, segment, offset, capacity.min(len));
        self.active = Some(Active { planned: offset, ..active });
        self.start = WriterPhase::Running;
        self.set_limit();
        Ok(())
    }
}
