//! Encodes and decodes the bytes of a withdrawal: which names of payloads no writer gives any more.
//!
//! A payload that no record names any more is removed in two steps, since a writer may be about to name it again ([`payloads`](crate)). First
//! its name is *withdrawn*: a small object says so, with the next number from 1 on. Byte offset, length in bytes, and field:
//!
//! ```text
//!   0  8  magic "FOLDWDN\n"
//!   8  2  format version
//!  10  2  length of the head in bytes (40), which is the offset of the first name
//!  12 16  session id
//!  28  8  number of the withdrawal, which its key also holds
//!  36  4  number of names
//!   …  …  of each, in ascending order: BLAKE3 of the payload (32), number of the name (4)
//! end-32 32  hash of the withdrawal: BLAKE3 of all bytes before it
//! ```
//!
//! All integers are little-endian.
//!
//! # Invariants
//!
//! 1. Decoding panics on no input, and takes memory in proportion to the bytes that there are.
//! 2. Every wrong byte is noticed.
//! 3. A withdrawal is put with create-if-absent, behind the one before, and never removed: a name that was withdrawn is given to nothing again.

use std::fmt;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::fields::Fields;

/// Newest format version of withdrawals, the only one that there is.
pub const FORMAT_VERSION: u16 = 1;

/// Greatest number of names that one withdrawal holds.
pub const NAMES_MAX: usize = 1 << 16;

/// Greatest length of a withdrawal in bytes.
pub const WITHDRAWAL_BYTES_MAX: usize = HEAD_LEN + NAMES_MAX * NAME_LEN + HASH_LEN;

const MAGIC: [u8; 8] = *b"FOLDWDN\n";
const HEAD_LEN: usize = 40;
const HASH_LEN: usize = 32;
const NAME_LEN: usize = HASH_LEN + 4;

/// Names a payload in a bucket. One that is put again after its name was withdrawn gets the next name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// BLAKE3 of the payload.
    pub hash: [u8; HASH_LEN],
    /// How many names it had before.
    pub before: u32,
}

impl Name {
    /// Reads a name in the form that [`Display`](fmt::Display) writes; `None` if it is none.
    pub fn parse(text: &str) -> Option<Name> {
        let (hash, before) = match text.split_once('.') {
            Some((hash, before)) => {
                (hash, before.parse().ok().filter(|before| (1..u32::MAX).contains(before))?)
            }
            None => (text, 0),
        };
        let name = Name { hash: *blake3::Hash::from_hex(hash).ok()?.as_bytes(), before };
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.hash).to_hex())?;
        if self.before == 0 { Ok(()) } else { write!(f, ".{}", self.before) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Says which names of payloads no writer gives any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// Session of the payloads.
    pub session: Uuid,
    /// Number of the withdrawal, from 1 on.
    pub number: u64,
    /// Names, in ascending order, up to [`NAMES_MAX`].
    pub names: Vec<Name>,
}

impl Withdrawal {
    /// Encodes the withdrawal.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if it holds more than [`NAMES_MAX`] names.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let len = HEAD_LEN + self.names.len() * NAME_LEN + HASH_LEN;
        if len > WITHDRAWAL_BYTES_MAX {
            let (len, max) = (len as u64, WITHDRAWAL_BYTES_MAX as u64);
            return Err(Error::TooLarge { what: "withdrawal", len, max });
        }
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(HEAD_LEN as u16).to_le_bytes());
        out.extend_from_slice(self.session.as_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&(self.names.len() as u32).to_le_bytes());
        for Name { hash, before } in &self.names {
            out.extend_from_slice(hash);
            out.extend_from_slice(&before.to_le_bytes());
        }
        let hash = *blake3::hash(&out).as_bytes();
        out.extend_from_slice(&hash);
        Ok(out)
    }

    /// Decodes and verifies the withdrawal with this number of a session.
    ///
    /// # Errors
    ///
    /// [`Error::Withdrawal`] if the bytes do not have the hash at their end, or are no withdrawal, or another one.
    pub fn decode(bytes: &[u8], session: Uuid, number: u64) -> Result<Withdrawal> {
        let error = |reason| Error::Withdrawal { number, reason };
        let Some((before, hash)) = bytes.split_last_chunk::<HASH_LEN>() else {
            return Err(error("it is damaged: it has too few bytes"));
        };
        if bytes.len() > WITHDRAWAL_BYTES_MAX {
            return Err(error("it is longer than any may be"));
        }
        if blake3::hash(before).as_bytes() != hash {
            return Err(error("it is damaged: its bytes do not have the hash at their end"));
        }
        let mut fields = Fields { bytes: before };
        if fields.take::<8>() != Some(MAGIC) {
            return Err(error("it does not begin as a withdrawal does"));
        }
        match fields.u16() {
            Some(version) if version > FORMAT_VERSION => {
                return Err(error("a later version of foldlog wrote it"));
            }
            Some(FORMAT_VERSION) => {}
            _ => return Err(error("its head does not decode")),
        }
        let withdrawal = fields.withdrawal().ok_or_else(|| error("its fields do not decode"))?;
        if withdrawal.session != session {
            return Err(error("it is of another session"));
        }
        if withdrawal.number != number {
            return Err(error("its key holds another number than its bytes"));
        }
        Ok(withdrawal)
    }
}

impl Fields<'_> {
    /// Takes what stands behind the format version.
    fn withdrawal(&mut self) -> Option<Withdrawal> {
        if usize::from(self.u16()?) != HEAD_LEN {
            return None;
        }
        let (session, number) = (Uuid::from_bytes(self.take()?), self.u64()?);
        let count = self.u32()? as usize;
        if count.checked_mul(NAME_LEN)? != self.bytes.len() {
            return None;
        }
        let mut names: Vec<Name> = Vec::with_capacity(count);
        for _ in 0..count {
            let name = Name { hash: self.take()?, before: self.u32()? };
            // Behind the last number there is no next name.
            (names.last().is_none_or(|last| *last < name) && name.before < u32::MAX).then_some(())?;
            names.push(name);
        }
        Some(Withdrawal { session, number, names })
    }
}
