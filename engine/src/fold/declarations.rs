//! Checks declarations against earlier ones.

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{Declare, SLICES_MAX};
use foldlog_codec::frame::BODY_LEN_MAX;

use crate::error::{Error, Result};
use crate::names::DeclaredNames;

impl DeclaredNames {
    /// Checks a declaration against earlier ones.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if the declaration contradicts an earlier one or itself, or exceeds
    /// a limit.
    pub(crate) fn check(&self, sequence: SequenceNumber, declare: &Declare) -> Result<()> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        self.check_len(declare).map_err(|error| bad(error.to_string()))?;
        let mut known = self.slices().len();
        for slice in &declare.slices {
            match self.slice(slice.id) {
                Some(before) if before == slice => {}
                Some(before) => {
                    return Err(bad(format!("slice {} was already declared as `{}`", slice.id, before.name)));
                }
                None if slice.id as usize == known => known += 1,
                None => return Err(bad(format!("slice id {} is not the next one", slice.id))),
            }
        }
        for event in &declare.events {
            if self.event(event.id).is_some_and(|before| before != event) {
                return Err(bad(format!("event {} is declared twice", event.id)));
            }
            if let Some(binding) = event.bindings.iter().find(|binding| binding.slice as usize >= known) {
                return Err(bad(format!("`{}` is bound to unknown slice {}", event.name, binding.slice)));
            }
        }
        Ok(())
    }

    /// Checks that the head of a segment, which is one frame, can also repeat this declaration, and
    /// that the number of slices is within its limit. Called before a declaration is written, and
    /// again when it is read.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the declarations exceed one of the limits.
    pub(crate) fn check_len(&self, declare: &Declare) -> Result<()> {
        let slices = declare.slices.last().map_or(0, |last| last.id as usize + 1);
        if slices > SLICES_MAX {
            let (found, max) = (slices as u64, SLICES_MAX as u64);
            return Err(Error::TooLarge { what: "number of slices", found, max });
        }
        let bytes = self.bytes_with(declare);
        if bytes > BODY_LEN_MAX {
            let (found, max) = (bytes as u64, BODY_LEN_MAX as u64);
            return Err(Error::TooLarge { what: "bytes of all declarations", found, max });
        }
        Ok(())
    }

    /// Returns the id of the next event to be declared.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if no id is left.
    pub(crate) fn next_event_id(&self) -> Result<u32> {
        let Some(last) = self.last_event_id() else { return Ok(0) };
        let (found, max) = (u64::from(last) + 1, u64::from(u32::MAX));
        last.checked_add(1).ok_or(Error::TooLarge { what: "event id", found, max })
    }
}
