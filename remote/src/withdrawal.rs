//! Encodes and decodes the bytes of a withdrawal: names of payloads that no writer uses any more.
//!
//! A payload that no record names any more is removed in two steps, since a writer may be about to
//! name it again (`objects/payloads.rs`). First its name is *withdrawn*: a small object records
//! that, with the next number from 1 on. Byte offset, length in bytes, and field:
//!
//! ```text
//!   0  8  magic "FOLDWDN\n"
//!   8  2  format version
//!  10  2  length of the head in bytes (40), which is the offset of the first name
//!  12 16  session id
//!  28  8  number of the withdrawal, also in its key
//!  36  4  number of names
//!   …  …  of each, in ascending order: BLAKE3 of the payload (32), number of the name (4)
//! end-32 32  hash of the withdrawal: BLAKE3 of all bytes before it
//! ```
//!
//! All integers are little-endian.
//!
//! # Invariants
//!
//! 1. Decoding panics on no input, and takes memory in proportion to the actual bytes.
//! 2. Every wrong byte is detected.
//! 3. A withdrawal is put with create-if-absent, after the previous one, and never removed: a
//!    withdrawn name is never used again.

use std::fmt;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::fields::FieldReader;
use crate::numbered_objects::NumberedObjectFormat;

/// Newest format version of withdrawals, the only one so far.
pub const FORMAT_VERSION: u16 = 1;

/// Maximum number of names in one withdrawal.
pub const NAMES_MAX: usize = 1 << 16;

/// Maximum length of a withdrawal in bytes.
pub const WITHDRAWAL_BYTES_MAX: usize = NumberedObjectFormat::encoded_len(said_len(NAMES_MAX));

const FORM: NumberedObjectFormat = NumberedObjectFormat {
    magic: *b"FOLDWDN\n",
    version: FORMAT_VERSION,
    head_len: 40,
    bytes_max: WITHDRAWAL_BYTES_MAX,
    what: "withdrawal",
    begins_otherwise: "it does not start like a withdrawal",
    other_number: "its key and its bytes name different numbers",
};
const HASH_LEN: usize = 32;
const NAME_LEN: usize = HASH_LEN + 4;

const fn said_len(names: usize) -> usize {
    4 + names * NAME_LEN
}

/// Names a payload in a bucket. A payload that is put again after its name was withdrawn gets the
/// next name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// BLAKE3 of the payload.
    pub hash: [u8; HASH_LEN],
    /// Number of its earlier names.
    pub before: u32,
}

impl Name {
    /// Parses a name in the form that [`Display`](fmt::Display) writes; returns `None` for any
    /// other text.
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

/// Lists names of payloads that no writer uses any more.
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
    /// [`Error::TooLarge`] if it has more than [`NAMES_MAX`] names.
    pub fn encode(&self) -> Result<Vec<u8>> {
        FORM.encode(self.session, self.number, said_len(self.names.len()), |out| {
            out.extend_from_slice(&(self.names.len() as u32).to_le_bytes());
            for Name { hash, before } in &self.names {
                out.extend_from_slice(hash);
                out.extend_from_slice(&before.to_le_bytes());
            }
        })
    }

    /// Decodes and verifies the withdrawal with this number of a session.
    ///
    /// # Errors
    ///
    /// [`Error::Withdrawal`] if the bytes do not have the hash at their end, are no withdrawal, or
    /// are a different one.
    pub fn decode(bytes: &[u8], session: Uuid, number: u64) -> Result<Withdrawal> {
        let names = FORM.decode(bytes, session, number, |fields| fields.names());
        let names = names.map_err(|reason| Error::Withdrawal { number, reason })?;
        Ok(Withdrawal { session, number, names })
    }
}

impl FieldReader<'_> {
    /// Takes the names, which must be all remaining bytes.
    fn names(&mut self) -> Option<Vec<Name>> {
        let count = self.u32()? as usize;
        if count.checked_mul(NAME_LEN)? != self.bytes.len() {
            return None;
        }
        let mut names: Vec<Name> = Vec::with_capacity(count);
        for _ in 0..count {
            let name = Name { hash: self.take()?, before: self.u32()? };
            // After the last number there is no next name.
            (names.last().is_none_or(|last| *last < name) && name.before < u32::MAX).then_some(())?;
            names.push(name);
        }
        Some(names)
    }
}
