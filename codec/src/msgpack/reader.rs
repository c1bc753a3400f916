//! Reads MessagePack: tokens, the pre-scan, and a reader over bytes that passed it.

use rmp::Marker;

use crate::Error;

/// Bounds the depth of a value and the number of values in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueLimits {
    /// Greatest depth of nested arrays and maps; a limit over 128 counts as 128.
    pub depth_max: usize,
    /// Greatest number of values in all, including keys and the outermost value.
    pub items_max: u64,
}

impl Default for ValueLimits {
    /// Returns the limits of a reader: 128 levels and 4,194,304 values.
    fn default() -> Self {
        ValueLimits { depth_max: DEPTH_MAX, items_max: 1 << 22 }
    }
}

impl ValueLimits {
    /// Returns the limits of a value that a host passes in: 112 levels and 2,097,152 values. They
    /// are below a reader's limits, so that the record around the value stays within the reader's
    /// limits too.
    pub fn of_payload() -> ValueLimits {
        ValueLimits { depth_max: 112, items_max: 1 << 21 }
    }
}

const DEPTH_MAX: usize = 128;

/// Contains a scalar value, or the length of an array or map whose values follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MsgpackToken<'a> {
    /// Nil, the absence of a value.
    Nil,
    /// Boolean.
    Bool(bool),
    /// Integer of 0 or more, in any encoding.
    Unsigned(u64),
    /// Integer below 0.
    Signed(i64),
    /// Floating-point number of 32 bits.
    F32(f32),
    /// Floating-point number of 64 bits.
    F64(f64),
    /// Text, not yet checked to be UTF-8.
    Str(&'a [u8]),
    /// Byte string.
    Bin(&'a [u8]),
    /// Extension: its type and its bytes.
    Ext(i8, &'a [u8]),
    /// Start of an array: its number of values.
    Array(u32),
    /// Start of a map: its number of pairs.
    Map(u32),
}

/// Reads MessagePack from a byte slice, token by token. A copy of a reader can look ahead.
#[derive(Clone, Copy, Debug)]
pub struct MsgpackReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> MsgpackReader<'a> {
    /// Creates a reader at the start of the bytes.
    pub fn new(bytes: &'a [u8]) -> MsgpackReader<'a> {
        MsgpackReader { bytes, offset: 0 }
    }

    /// Returns the offset, in bytes, of the next token.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns whether all bytes have been read.
    pub fn is_done(&self) -> bool {
        self.offset >= self.bytes.len()
    }

    fn remaining_len(&self) -> usize {
        self.bytes.len().saturating_sub(self.offset)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let taken = usize::try_from(len)
            .ok()
            .and_then(|len| self.offset.checked_add(len))
            .and_then(|end| self.bytes.get(self.offset..end))
            .ok_or_else(|| self.truncated_error(len))?;
        self.offset += taken.len();
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let taken = self.bytes.get(self.offset..).and_then(<[u8]>::first_chunk);
        let taken = *taken.ok_or_else(|| self.truncated_error(N as u64))?;
        self.offset += N;
        Ok(taken)
    }

    #[cold]
    fn truncated_error(&self, needed: u64) -> Error {
        Error::Truncated { offset: self.offset, needed, available: self.remaining_len() as u64 }
    }

    /// Reads one token. The length that a token declares, in bytes or in values, never exceeds the
    /// number of bytes left.
    ///
    /// # Errors
    ///
    /// - [`Error::Truncated`] if the token ends early or declares more bytes or values than there
    ///   are bytes left.
    /// - [`Error::Malformed`] for the byte 0xc1, which MessagePack never uses.
    pub fn token(&mut self) -> Result<MsgpackToken<'a>, Error> {
        let start = self.offset;
        let [marker] = self.fixed()?;
        let token = match Marker::from_u8(marker) {
            Marker::FixPos(value) => MsgpackToken::Unsigned(u64::from(value)),
            Marker::FixNeg(value) => MsgpackToken::Signed(i64::from(value)),
            Marker::Null => MsgpackToken::Nil,
            Marker::True => MsgpackToken::Bool(true),
            Marker::False => MsgpackToken::Bool(false),
            Marker::U8 => MsgpackToken::Unsigned(u64::from(u8::from_be_bytes(self.fixed()?))),
            Marker::U16 => MsgpackToken::Unsigned(u64::from(u16::from_be_bytes(self.fixed()?))),
            Marker::U32 => MsgpackToken::Unsigned(u64::from(u32::from_be_bytes(self.fixed()?))),
            Marker::U64 => MsgpackToken::Unsigned(u64::from_be_bytes(self.fixed()?)),
            Marker::I8 => integer(i64::from(i8::from_be_bytes(self.fixed()?))),
            Marker::I16 => integer(i64::from(i16::from_be_bytes(self.fixed()?))),
            Marker::I32 => integer(i64::from(i32::from_be_bytes(self.fixed()?))),
            Marker::I64 => integer(i64::from_be_bytes(self.fixed()?)),
            Marker::F32 => MsgpackToken::F32(f32::from_be_bytes(self.fixed()?)),
            Marker::F64 => MsgpackToken::F64(f64::from_be_bytes(self.fixed()?)),
            Marker::FixStr(len) => MsgpackToken::Str(self.take(u64::from(len))?),
            Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let len = self.length(marker - 0xd9)?;
                MsgpackToken::Str(self.take(len)?)
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                let len = self.length(marker - 0xc4)?;
                MsgpackToken::Bin(self.take(len)?)
            }
            Marker::FixExt1 | Marker::FixExt2 | Marker::FixExt4 | Marker::FixExt8 | Marker::FixExt16 => {
                self.ext(1 << (marker - 0xd4))?
            }
            Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
                let len = self.length(marker - 0xc7)?;
                self.ext(len)?
            }
            Marker::FixArray(len) => MsgpackToken::Array(u32::from(len)),
            Marker::Array16 => MsgpackToken::Array(u32::from(u16::from_be_bytes(self.fixed()?))),
            Marker::Array32 => MsgpackToken::Array(u32::from_be_bytes(self.fixed()?)),
            Marker::FixMap(len) => MsgpackToken::Map(u32::from(len)),
            Marker::Map16 => MsgpackToken::Map(u32::from(u16::from_be_bytes(self.fixed()?))),
            Marker::Map32 => MsgpackToken::Map(u32::from_be_bytes(self.fixed()?)),
            Marker::Reserved => {
                return Err(Error::Malformed { offset: start, reason: "the byte 0xc1 is never used" });
            }
        };
        let needed = match token {
            MsgpackToken::Array(len) => u64::from(len),
            MsgpackToken::Map(len) => 2 * u64::from(len),
            _ => 0,
        };
        if needed > self.remaining_len() as u64 {
            return Err(Error::Truncated { offset: start, needed, available: self.remaining_len() as u64 });
        }
        Ok(token)
    }

    /// Reads a length of 1, 2 or 4 bytes, for a `width` of 0, 1 or 2.
    fn length(&mut self, width: u8) -> Result<u64, Error> {
        Ok(match width {
            0 => u64::from(u8::from_be_bytes(self.fixed()?)),
            1 => u64::from(u16::from_be_bytes(self.fixed()?)),
            _ => u64::from(u32::from_be_bytes(self.fixed()?)),
        })
    }

    fn ext(&mut self, len: u64) -> Result<MsgpackToken<'a>, Error> {
        let [kind] = self.fixed()?;
        Ok(MsgpackToken::Ext(kind as i8, self.take(len)?))
    }

    /// Skips one whole value within the default [`ValueLimits`] and returns its bytes.
    ///
    /// # Errors
    ///
    /// The offset of the error counts from the start of the value.
    ///
    /// - [`Error::Truncated`] if the value ends early.
    /// - [`Error::Malformed`] if it is not MessagePack.
    /// - [`Error::Limit`] if it is over the limits.
    pub fn value(&mut self) -> Result<&'a [u8], Error> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let len = scan(rest, ValueLimits::default())?;
        self.take(len as u64)
    }

    /// Skips one whole value within the default [`ValueLimits`] and returns a reader over exactly
    /// that value. The new reader continues to count offsets from this reader's start.
    ///
    /// # Errors
    ///
    /// The offset of the error counts from the start of the value.
    ///
    /// - [`Error::Truncated`] if the value ends early.
    /// - [`Error::Malformed`] if it is not MessagePack.
    /// - [`Error::Limit`] if it is over the limits.
    pub fn part(&mut self) -> Result<MsgpackReader<'a>, Error> {
        let start = self.offset;
        self.value()?;
        Ok(MsgpackReader { bytes: self.bytes.get(..self.offset).unwrap_or_default(), offset: start })
    }

    /// Reads all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        self.offset = self.bytes.len();
        rest
    }

    /// Reads the start of an array and returns its number of values.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not an array, [`Error::Truncated`] if it ends
    /// early.
    pub fn array(&mut self) -> Result<u32, Error> {
        match self.token()? {
            MsgpackToken::Array(len) => Ok(len),
            _ => Err(self.malformed_error("an array was expected")),
        }
    }

    /// Reads the start of a map and returns its number of pairs.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not a map, [`Error::Truncated`] if it ends early.
    pub fn map(&mut self) -> Result<u32, Error> {
        match self.token()? {
            MsgpackToken::Map(len) => Ok(len),
            _ => Err(self.malformed_error("a map was expected")),
        }
    }

    /// Reads text and checks that it is UTF-8.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not text or not UTF-8, [`Error::Truncated`] if it
    /// ends early.
    pub fn str(&mut self) -> Result<&'a str, Error> {
        match self.token()? {
            MsgpackToken::Str(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| self.malformed_error("text is not UTF-8"))
            }
            _ => Err(self.malformed_error("text was expected")),
        }
    }

    /// Reads a byte string.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not a byte string, [`Error::Truncated`] if it ends
    /// early.
    pub fn bin(&mut self) -> Result<&'a [u8], Error> {
        match self.token()? {
            MsgpackToken::Bin(bytes) => Ok(bytes),
            _ => Err(self.malformed_error("bytes were expected")),
        }
    }

    /// Reads an integer of 0 or more.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not an integer of 0 or more, [`Error::Truncated`]
    /// if it ends early.
    pub fn unsigned(&mut self) -> Result<u64, Error> {
        match self.token()? {
            MsgpackToken::Unsigned(value) => Ok(value),
            _ => Err(self.malformed_error("an integer of 0 or more was expected")),
        }
    }

    /// Reads an integer from 0 to `u32::MAX`.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not an integer in that range, [`Error::Truncated`]
    /// if it ends early.
    pub fn unsigned32(&mut self) -> Result<u32, Error> {
        u32::try_from(self.unsigned()?).map_err(|_| self.malformed_error("an integer exceeds 32 bits"))
    }

    /// Reads an integer from `i64::MIN` to `i64::MAX`.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not an integer in that range, [`Error::Truncated`]
    /// if it ends early.
    pub fn signed(&mut self) -> Result<i64, Error> {
        match self.token()? {
            MsgpackToken::Signed(value) => Ok(value),
            MsgpackToken::Unsigned(value) => {
                i64::try_from(value).map_err(|_| self.malformed_error("an integer exceeds 63 bits"))
            }
            _ => Err(self.malformed_error("an integer was expected")),
        }
    }

    /// Reads a boolean.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the next token is not a boolean, [`Error::Truncated`] if it ends
    /// early.
    pub fn bool(&mut self) -> Result<bool, Error> {
        match self.token()? {
            MsgpackToken::Bool(value) => Ok(value),
            _ => Err(self.malformed_error("true or false was expected")),
        }
    }

    fn malformed_error(&self, reason: &'static str) -> Error {
        Error::Malformed { offset: self.offset, reason }
    }
}

/// Returns the token of an integer that was encoded as signed. From 0 on, it equals the token of
/// the unsigned encoding.
fn integer<'a>(value: i64) -> MsgpackToken<'a> {
    u64::try_from(value).map_or(MsgpackToken::Signed(value), MsgpackToken::Unsigned)
}

/// Walks the value at the start of `bytes`, without recursion or allocation, and returns its length
/// in bytes. This is the pre-scan. It does not check that text is UTF-8, and ignores bytes after
/// the value.
///
/// # Errors
///
/// - [`Error::Truncated`] if the value ends early.
/// - [`Error::Malformed`] if it is not MessagePack.
/// - [`Error::Limit`] if it nests deeper or contains more values than `limits` allow.
pub fn scan(bytes: &[u8], limits: ValueLimits) -> Result<usize, Error> {
    // Nearly every value is valid and shallow. Only the others need a stack of all levels. Only
    // bytes that are not a valid value are walked token by token, to report the error and its
    // offset.
    match end_of_value::<SHALLOW>(bytes, limits).or_else(|| end_of_value::<DEPTH_MAX>(bytes, limits)) {
        Some(end) => Ok(end),
        None => walk(bytes, limits),
    }
}

const SHALLOW: usize = 16;

/// Returns the length of a value that is complete, within the limits and at most `LEVELS` deep.
/// `None` decides nothing: [`walk`] decides then. So this function may reject a valid value, but
/// must never accept an invalid one.
fn end_of_value<const LEVELS: usize>(bytes: &[u8], limits: ValueLimits) -> Option<usize> {
    // Number of values still missing on each enclosing level.
    let mut around = [0_u64; LEVELS];
    let (mut depth, mut at) = (0_usize, 0_usize);
    let (mut owed, mut items) = (1_u64, 1_u64);
    if items > limits.items_max {
        return None;
    }
    loop {
        while owed > 0 {
            let marker = *bytes.get(at)?;
            owed -= 1;
            // Each arm advances by its own step instead of one from a table. This lets the
            // processor predict the next marker's offset from the kinds of the previous values,
            // without waiting for a look-up.
            macro_rules! skip {
                ($step:expr) => {{
                    at += $step;
                    continue;
                }};
            }
            let (head, inner) = match marker {
                0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => skip!(1),
                0xa0..=0xbf => skip!(1 + usize::from(marker & 0x1f)),
                0xcc | 0xd0 => skip!(2),
                0xcd | 0xd1 | 0xd4 => skip!(3),
                0xd5 => skip!(4),
                0xca | 0xce | 0xd2 => skip!(5),
                0xd6 => skip!(6),
                0xcb | 0xcf | 0xd3 => skip!(9),
                0xd7 => skip!(10),
                0xd8 => skip!(18),
                0xc4 | 0xd9 => skip!(2 + length8(bytes, at)?),
                0xc5 | 0xda => skip!(3 + length16(bytes, at)?),
                0xc6 | 0xdb => {
                    at = (at + 5).checked_add(length32(bytes, at)?)?;
                    continue;
                }
                0xc7 => skip!(3 + length8(bytes, at)?),
                0xc8 => skip!(4 + length16(bytes, at)?),
                0xc9 => {
                    at = (at + 6).checked_add(length32(bytes, at)?)?;
                    continue;
                }
                0x80..=0x8f => (1, 2 * u64::from(marker & 0xf)),
                0x90..=0x9f => (1, u64::from(marker & 0xf)),
                0xdc => (3, length16(bytes, at)? as u64),
                0xdd => (5, length32(bytes, at)? as u64),
                0xde => (3, 2 * length16(bytes, at)? as u64),
                0xdf => (5, 2 * length32(bytes, at)? as u64),
                0xc1 => return None,
            };
            at += head;
            items += inner;
            if depth >= limits.depth_max || items > limits.items_max {
                return None;
            }
            *around.get_mut(depth)? = owed;
            depth += 1;
            owed = inner;
        }
        let Some(level) = depth.checked_sub(1) else {
            // The last bytes of a value are skipped without a check; this checks that they are
            // present.
            return (at <= bytes.len()).then_some(at);
        };
        depth = level;
        owed = *around.get(level)?;
    }
}

/// Reads the length of one byte after the marker at `at`.
#[inline(always)]
fn length8(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at + 1).map(|byte| usize::from(*byte))
}

/// Reads the length of two bytes after the marker at `at`.
#[inline(always)]
fn length16(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at + 1..)?.first_chunk().map(|bytes| usize::from(u16::from_be_bytes(*bytes)))
}

/// Reads the length of four bytes after the marker at `at`.
#[inline(always)]
fn length32(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*bytes.get(at + 1..)?.first_chunk()?)).ok()
}

/// Walks a value token by token. It is slower than [`end_of_value`], but reports the error and its
/// offset.
#[cold]
fn walk(bytes: &[u8], limits: ValueLimits) -> Result<usize, Error> {
    let mut reader = MsgpackReader::new(bytes);
    let depth_max = limits.depth_max.min(DEPTH_MAX);
    // Number of values still missing on each enclosing level; a map has two for each pair.
    let mut around = [0_u64; DEPTH_MAX];
    let (mut depth, mut owed, mut items) = (0_usize, 1_u64, 0_u64);
    loop {
        while owed == 0 {
            let Some(level) = depth.checked_sub(1) else { return Ok(reader.offset()) };
            depth = level;
            owed = around.get(level).copied().unwrap_or_default();
        }
        owed -= 1;
        items += 1;
        if items > limits.items_max {
            return Err(over("number of values", limits.items_max, reader.offset()));
        }
        let inner = match reader.token()? {
            MsgpackToken::Array(len) => u64::from(len),
            MsgpackToken::Map(len) => 2 * u64::from(len),
            _ => continue,
        };
        match around.get_mut(depth).filter(|_| depth < depth_max) {
            Some(slot) => *slot = owed,
            None => return Err(over("depth", depth_max as u64, reader.offset())),
        }
        depth += 1;
        owed = inner;
    }
}

fn over(limit: &'static str, max: u64, offset: usize) -> Error {
    Error::Limit { offset, limit, max }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_lie_are_refused_before_anything_is_allocated() {
        for bytes in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0x7f, 0xff, 0xff, 0xff, 0xc0],
            &[0xdb, 0xff, 0xff, 0xff, 0xff, b'a'],
            &[0xc9, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert!(
                matches!(scan(bytes, ValueLimits::default()), Err(Error::Truncated { .. })),
                "{bytes:02x?}"
            );
        }
    }

    #[test]
    fn depth_and_count_are_bounded() {
        let deep = |levels: usize| {
            let mut bytes = vec![0x91; levels];
            bytes.push(0xc0);
            bytes
        };
        assert!(scan(&deep(128), ValueLimits::default()).is_ok());
        assert!(matches!(scan(&deep(129), ValueLimits::default()), Err(Error::Limit { limit: "depth", .. })));
        assert!(scan(&deep(1_000_000), ValueLimits::default()).is_err());
        let few = ValueLimits { items_max: 3, ..ValueLimits::default() };
        assert!(scan(&[0x92, 0xc0, 0xc0], few).is_ok());
        assert!(scan(&[0x93, 0xc0, 0xc0, 0xc0], few).is_err());
    }

    #[test]
    fn a_value_ends_where_it_ends() {
        let bytes = [0x82, 0xa1, b'a', 0x92, 1, 2, 0xa1, b'b', 0xc7, 2, 5, 9, 9, 0xff];
        assert_eq!(scan(&bytes, ValueLimits::default()), Ok(13));
        assert!(super::super::check(&bytes).is_err());
    }
}
