//! Encodes and decodes the common parts of objects that a session numbers: compactions, withdrawals
//! and volumes, whose number is that of their first chunk.
//!
//! Byte offset, length in bytes, and field:
//!
//! ```text
//!   0  8  magic
//!   8  2  format version
//!  10  2  length of the head in bytes
//!  12 16  session id
//!  28  8  number of the object, also in its key
//!  36  …  content of the object
//! end-32 32  BLAKE3 of all bytes before it
//! ```
//!
//! All integers are little-endian.

use uuid::Uuid;

use crate::error::{Result, check_len};
use crate::fields::FieldReader;

/// Length of the fields before the content, in bytes.
const BEGIN_LEN: usize = 36;

const HASH_LEN: usize = 32;

/// Describes one kind of numbered objects.
pub(crate) struct NumberedObjectFormat {
    pub(crate) magic: [u8; 8],
    /// Newest format version, the only one so far.
    pub(crate) version: u16,
    pub(crate) head_len: usize,
    pub(crate) bytes_max: usize,
    /// Name of such an object in errors.
    pub(crate) what: &'static str,
    /// Error text for bytes with a different magic.
    pub(crate) begins_otherwise: &'static str,
    /// Error text for bytes with a different number than their key.
    pub(crate) other_number: &'static str,
}

impl NumberedObjectFormat {
    /// Returns the length of an object whose content has this length, in bytes.
    pub(crate) const fn encoded_len(content_len: usize) -> usize {
        BEGIN_LEN + content_len + HASH_LEN
    }

    /// Returns the fields before the content.
    pub(crate) fn begin(&self, session: Uuid, number: u64) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&(self.head_len as u16).to_le_bytes());
        out.extend_from_slice(session.as_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out
    }

    /// Encodes an object, to which `write_content` appends `content_len` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`](crate::Error::TooLarge) if it would be longer than permitted.
    pub(crate) fn encode(
        &self,
        session: Uuid,
        number: u64,
        content_len: usize,
        write_content: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<u8>> {
        let len = NumberedObjectFormat::encoded_len(content_len);
        check_len(self.what, len, self.bytes_max)?;
        let mut out = self.begin(session, number);
        out.reserve(len);
        write_content(&mut out);
        let hash = *blake3::hash(&out).as_bytes();
        out.extend_from_slice(&hash);
        Ok(out)
    }

    /// Decodes and verifies the object with this number of a session. `read_content` reads all of
    /// its content; it returns `None` if that does not decode.
    ///
    /// # Errors
    ///
    /// The defect of the bytes.
    pub(crate) fn decode<'a, T>(
        &self,
        bytes: &'a [u8],
        session: Uuid,
        number: u64,
        read_content: impl FnOnce(&mut FieldReader<'a>) -> Option<T>,
    ) -> Result<T, &'static str> {
        let (before, hash) =
            bytes.split_last_chunk::<HASH_LEN>().ok_or("it is damaged: it has too few bytes")?;
        if bytes.len() > self.bytes_max {
            return Err("it is longer than allowed");
        }
        if blake3::hash(before).as_bytes() != hash {
            return Err("it is damaged: its bytes do not match the hash at their end");
        }
        let mut fields = FieldReader { bytes: before };
        if fields.take::<8>() != Some(self.magic) {
            return Err(self.begins_otherwise);
        }
        match fields.u16() {
            Some(version) if version > self.version => return Err("a later version of foldlog wrote it"),
            Some(version) if version == self.version => {}
            _ => return Err("its head cannot be decoded"),
        }
        let rest = || {
            let head_len = usize::from(fields.u16()?);
            let names = (Uuid::from_bytes(fields.take()?), fields.u64()?);
            (head_len == self.head_len).then_some(())?;
            Some((names, read_content(&mut fields)?))
        };
        let ((found, at), content) = rest().ok_or("its fields cannot be decoded")?;
        if found != session {
            return Err("it belongs to another session");
        }
        if at != number {
            return Err(self.other_number);
        }
        Ok(content)
    }
}
