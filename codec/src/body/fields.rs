//! Walks the fields of a body.

use std::borrow::Cow;

use uuid::Uuid;

use super::Payload;
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, OperationId, SequenceNumber};

/// Newest version of a body, for every kind: no kind has a second version yet.
const VERSION: u64 = 1;

/// Walks the fields of a body. The value of each field passes the pre-scan; then `read` is called
/// with the field's name and a reader over exactly that value. Bytes that `read` leaves unread are
/// skipped. Each field of `required` must occur.
pub(crate) fn walk<'a>(
    kind: &'static str,
    required: &[&str],
    bytes: &'a [u8],
    mut read: impl FnMut(&str, &mut MsgpackReader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut reader, mut required) = (MsgpackReader::new(bytes), RequiredFields { kind, required, seen: 0 });
    let walked = walk_map(&mut reader, |name, value| {
        required.note(name);
        match name {
            "v" => match value.unsigned()? {
                VERSION => Ok(()),
                newer => Err(bad(kind, format!("version {newer} is newer than {VERSION}"))),
            },
            _ => read(name, value),
        }
    });
    walked.map_err(|error| match error {
        Error::Body { .. } => error,
        other => bad(kind, other.to_string()),
    })?;
    if reader.is_done() { required.check() } else { Err(bad(kind, "extra bytes after the value")) }
}

/// Fields without which a map is not decoded.
struct RequiredFields<'r> {
    kind: &'static str,
    /// The path of each field within the body, such as `events.id`.
    required: &'r [&'r str],
    seen: u32,
}

impl RequiredFields<'_> {
    fn note(&mut self, name: &str) {
        let is_last = |path: &str| path.is_empty() || path.ends_with('.');
        let at = self.required.iter().position(|path| path.strip_suffix(name).is_some_and(is_last));
        self.seen |= at.map_or(0, |at| 1 << at);
    }

    fn check(self) -> Result<(), Error> {
        match self.required.get(self.seen.trailing_ones() as usize) {
            Some(missing) => Err(missing_field(self.kind, missing)),
            None => Ok(()),
        }
    }
}

/// Walks the fields of a map within a body, like [`walk`]. `required` has their paths in the body.
pub(crate) fn walk_part<'a>(
    kind: &'static str,
    required: &[&str],
    reader: &mut MsgpackReader<'a>,
    mut read: impl FnMut(&str, &mut MsgpackReader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut required = RequiredFields { kind, required, seen: 0 };
    walk_map(reader, |name, value| {
        required.note(name);
        read(name, value)
    })?;
    required.check()
}

/// Walks the pairs of one map: calls `read` with each key and a reader over exactly its value.
pub(crate) fn walk_map<'a>(
    reader: &mut MsgpackReader<'a>,
    mut read: impl FnMut(&str, &mut MsgpackReader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    for _ in 0..reader.map()? {
        let name = reader.str()?;
        read(name, &mut reader.part()?)?;
    }
    Ok(())
}

/// Decodes an array that has passed the pre-scan.
pub(crate) fn list<'a, T>(
    reader: &mut MsgpackReader<'a>,
    mut read: impl FnMut(&mut MsgpackReader<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let len = reader.array()?;
    let mut items = Vec::new();
    // The pre-scan has verified that there are as many elements, each of at least one byte. The
    // length may decide how much memory is reserved at once only if an element is small in memory
    // too.
    if size_of::<T>() <= 32 {
        items.reserve_exact(len as usize);
    }
    for _ in 0..len {
        items.push(read(reader)?);
    }
    Ok(items)
}

pub(crate) fn bad(kind: &'static str, reason: impl Into<String>) -> Error {
    Error::Body { kind, reason: reason.into() }
}

pub(crate) fn require_field<T>(kind: &'static str, field: &str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| missing_field(kind, field))
}

fn missing_field(kind: &'static str, field: &str) -> Error {
    bad(kind, format!("field `{field}` is missing"))
}

/// Reads a value that is the whole of `reader`, such as that of a field.
pub(crate) trait ReadField<'a>: Sized {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<Self, Error>;
}

macro_rules! read_by {
    ($($type:ty: $read:ident,)*) => {
        $(impl<'a> ReadField<'a> for $type {
            fn read(reader: &mut MsgpackReader<'a>) -> Result<$type, Error> {
                Ok(reader.$read()?.into())
            }
        })*
    };
}

read_by! {
    bool: bool,
    u32: unsigned32,
    u64: unsigned,
    i64: signed,
    SequenceNumber: unsigned,
    OperationId: unsigned,
    &'a str: str,
    Cow<'a, str>: str,
    String: str,
}

impl<'a, const N: usize> ReadField<'a> for [u8; N] {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<[u8; N], Error> {
        let bytes = reader.bin()?;
        bytes.try_into().map_err(|_| Error::Malformed {
            offset: reader.offset(),
            reason: "the byte string has the wrong length",
        })
    }
}

impl<'a> ReadField<'a> for Uuid {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<Uuid, Error> {
        <[u8; 16]>::read(reader).map(Uuid::from_bytes)
    }
}

impl<'a> ReadField<'a> for Payload<'a> {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<Payload<'a>, Error> {
        Ok(Payload::new(reader.rest()))
    }
}

impl<'a, T: ReadField<'a>> ReadField<'a> for Option<T> {
    fn read(reader: &mut MsgpackReader<'a>) -> Result<Option<T>, Error> {
        T::read(reader).map(Some)
    }
}

impl<'a> MsgpackReader<'a> {
    /// Reads the value of a field into `slot`.
    pub(crate) fn read_into<T: ReadField<'a>>(&mut self, slot: &mut T) -> Result<(), Error> {
        *slot = T::read(self)?;
        Ok(())
    }
}

/// Stores a value that was read, for fields that need more than [`MsgpackReader::read_into`].
pub(crate) fn store<T, S: From<T>>(slot: &mut S, read: Result<T, Error>) -> Result<(), Error> {
    *slot = read?.into();
    Ok(())
}

pub(crate) trait WriteField {
    fn write(&self, writer: &mut MsgpackWriter);
}

macro_rules! write_by {
    ($($type:ty: |$writer:ident, $value:ident| $write:expr,)*) => {
        $(impl WriteField for $type {
            fn write(&self, $writer: &mut MsgpackWriter) {
                let $value = self;
                $write;
            }
        })*
    };
}

write_by! {
    bool: |writer, flag| writer.bool(*flag),
    u32: |writer, number| writer.unsigned(u64::from(*number)),
    u64: |writer, number| writer.unsigned(*number),
    i32: |writer, number| writer.signed(i64::from(*number)),
    i64: |writer, number| writer.signed(*number),
    SequenceNumber: |writer, number| writer.unsigned(number.get()),
    OperationId: |writer, number| writer.unsigned(number.get()),
    str: |writer, text| writer.str(text),
    String: |writer, text| writer.str(text),
    Cow<'_, str>: |writer, text| writer.str(text),
    Uuid: |writer, id| writer.bin(id.as_bytes()),
    Payload<'_>: |writer, payload| writer.raw(payload.bytes()),
}

impl<const N: usize> WriteField for [u8; N] {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.bin(self);
    }
}

impl<T: WriteField> WriteField for [T] {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.array(self.len());
        self.iter().for_each(|item| item.write(writer));
    }
}

impl<T: WriteField + ?Sized> WriteField for &T {
    fn write(&self, writer: &mut MsgpackWriter) {
        (*self).write(writer);
    }
}

/// Writes the fields of a map and counts them. Their number, which precedes them, is known last.
pub(crate) struct FieldWriter<'w> {
    pub(super) count: usize,
    pub(super) writer: &'w mut MsgpackWriter,
}

impl FieldWriter<'_> {
    /// Starts a field. The caller writes exactly one value.
    pub(crate) fn field(&mut self, name: &str) -> &mut MsgpackWriter {
        self.count += 1;
        self.writer.str(name)
    }

    pub(crate) fn set(&mut self, name: &str, value: impl WriteField) {
        value.write(self.field(name));
    }

    /// Writes a field that has a value, and no field for `None`.
    pub(crate) fn some(&mut self, name: &str, value: Option<impl WriteField>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Writes a field that is true, and no field for `false`.
    pub(crate) fn flag(&mut self, name: &str, flag: bool) {
        self.some(name, flag.then_some(true));
    }

    /// Writes an array that is not empty, and no field for an empty one.
    pub(crate) fn list<T: WriteField>(&mut self, name: &str, items: &[T]) {
        self.some(name, (!items.is_empty()).then_some(items));
    }
}

impl MsgpackWriter {
    /// Writes a map of the fields that `write` adds.
    pub(crate) fn fields(&mut self, write: impl FnOnce(&mut FieldWriter<'_>)) -> &mut Self {
        let start = self.len();
        let mut fields = FieldWriter { count: 0, writer: self.map(0) };
        write(&mut fields);
        let count = fields.count;
        self.set_map_len(start..start + 1, count);
        self
    }
}

/// Encodes a map of the fields that `write` adds, with room for about `bytes` bytes.
pub(crate) fn encode_fields(bytes: usize, write: impl FnOnce(&mut FieldWriter<'_>)) -> Vec<u8> {
    let mut writer = MsgpackWriter::with_capacity(bytes);
    writer.fields(write);
    writer.finish()
}
