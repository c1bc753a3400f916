//! Walks the fields of a body.

use std::borrow::Cow;
use std::fmt;

use smol_str::SmolStr;
use uuid::Uuid;

use super::Payload;
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, OperationId, SequenceNumber};

/// Newest version of a body, for every kind: no kind has a second version yet.
const VERSION: u64 = 1;

/// Names the place of a value in a body, for errors.
#[derive(Clone, Copy)]
pub(crate) struct Place<'p> {
    /// Name of the body's kind.
    pub(crate) kind: &'static str,
    /// Field of the body with the map that contains `field`; empty if the body itself contains it.
    around: &'p str,
    pub(crate) field: &'p str,
}

impl Place<'_> {
    pub(crate) fn bad(self, reason: impl Into<String>) -> Error {
        bad(self.kind, reason)
    }

    /// Fails if a field of `required` is not in `seen`, which has a bit for each. Empty names are
    /// of fields that may be missing.
    fn check(self, required: &[&str], seen: u32) -> Result<(), Error> {
        let is_missing = |(at, name): &(usize, &&str)| !name.is_empty() && seen & 1 << at == 0;
        match required.iter().enumerate().find(is_missing) {
            Some((_, field)) => Err(missing_field(self.kind, &Place { field, ..self }.to_string())),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.around.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{}", self.around, self.field)
    }
}

/// Walks the fields of a body. The value of each field passes the pre-scan; then `read` is called
/// with the field's place and a reader over exactly that value. Bytes that `read` leaves unread are
/// skipped. Each field of `required` must occur.
pub(crate) fn walk<'a>(
    kind: &'static str,
    required: &[&str],
    bytes: &'a [u8],
    mut read: impl FnMut(Place<'_>, &mut MsgpackReader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut reader = MsgpackReader::new(bytes);
    let body = Place { kind, around: "", field: "" };
    let walked = walk_part(body, required, &mut reader, |place, value| match place.field {
        "v" => match value.unsigned()? {
            VERSION => Ok(()),
            newer => Err(bad(kind, format!("version {newer} is newer than {VERSION}"))),
        },
        _ => read(place, value),
    });
    walked.map_err(|error| match error {
        Error::Body { .. } => error,
        other => bad(kind, other.to_string()),
    })?;
    if reader.is_done() { Ok(()) } else { Err(bad(kind, "extra bytes after the value")) }
}

/// Walks the fields of the map at `around`, like [`walk`].
pub(crate) fn walk_part<'a>(
    around: Place<'_>,
    required: &[&str],
    reader: &mut MsgpackReader<'a>,
    mut read: impl FnMut(Place<'_>, &mut MsgpackReader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (around, mut seen) = (Place { around: around.field, ..around }, 0);
    walk_map(reader, |field, value| {
        seen |= required.iter().position(|name| *name == field).map_or(0, |at| 1 << at);
        read(Place { field, ..around }, value)
    })?;
    around.check(required, seen)
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

/// A map with fixed fields. [`map_fields`] implements it by a table.
pub(crate) trait MapFields<'a>: Sized {
    /// Names of the fields that must occur. A field that may be missing has an empty name here.
    const REQUIRED: &'static [&'static str];

    /// Returns the value whose fields are all missing.
    fn initial() -> Self;

    fn write_fields(&self, fields: &mut FieldWriter<'_>);

    /// Reads the field at `place`; skips one that the map does not have.
    fn read_field(&mut self, place: Place<'_>, value: &mut MsgpackReader<'a>) -> Result<(), Error>;
}

/// Implements [`MapFields`] by a table: the name of each field, and the member with its value, in
/// the order in which fields are written.
///
/// A field is omitted if it has the default of its type, and then has that default for a reader. A
/// `[required]` field is always written and must occur, and an `[always]` field is always written.
/// `[or VALUE]` states another default. `_ => check` names a function for fields that are not in
/// the table.
macro_rules! map_fields {
    (impl<$life:lifetime> $type:ty {
        $($name:literal => $($member:ident).+ $([$($mode:tt)+])?,)*
        $(_ => $others:path,)?
    }) => {
        impl<$life> $crate::body::fields::MapFields<$life> for $type {
            const REQUIRED: &'static [&'static str] = &[$(
                $crate::body::fields::map_fields!(@required $name $($($mode)+)?)
            ),*];

            fn initial() -> Self {
                #[allow(unused_mut)]
                let mut initial = Self::default();
                $($crate::body::fields::map_fields!(@initial initial.$($member).+, $($($mode)+)?);)*
                initial
            }

            fn write_fields(&self, fields: &mut $crate::body::fields::FieldWriter<'_>) {
                $($crate::body::fields::map_fields!(@write fields, $name, &self.$($member).+, $($($mode)+)?);)*
            }

            fn read_field(
                &mut self,
                place: $crate::body::fields::Place<'_>,
                value: &mut $crate::msgpack::MsgpackReader<$life>,
            ) -> Result<(), $crate::Error> {
                match place.field {
                    $($name => value.read_into(place, &mut self.$($member).+),)*
                    $(_ => $others(place, value),)?
                    #[allow(unreachable_patterns)]
                    _ => Ok(()),
                }
            }
        }
    };
    (@required $name:literal required) => { $name };
    (@required $name:literal $($mode:tt)*) => { "" };
    (@initial $($initial:ident).+, or $default:expr) => { $($initial).+ = $default };
    (@initial $($initial:ident).+, $($mode:tt)*) => {};
    (@write $fields:ident, $name:literal, $value:expr, or $default:expr) => {
        $fields.unless($name, $value, &$default)
    };
    (@write $fields:ident, $name:literal, $value:expr, $mode:ident) => { $fields.set($name, $value) };
    (@write $fields:ident, $name:literal, $value:expr,) => {
        $fields.unless($name, $value, &Default::default())
    };
}

pub(crate) use map_fields;

/// Decodes a body of this kind.
pub(crate) fn decode<'a, T: MapFields<'a>>(kind: &'static str, bytes: &'a [u8]) -> Result<T, Error> {
    let mut decoded = T::initial();
    walk(kind, T::REQUIRED, bytes, |place, value| decoded.read_field(place, value))?;
    Ok(decoded)
}

/// Encodes a map, with room for about `bytes` bytes.
pub(crate) fn encode<'a>(bytes: usize, map: &impl MapFields<'a>) -> Vec<u8> {
    encode_fields(bytes, |fields| map.write_fields(fields))
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
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Self, Error>;
}

impl<'a, T: MapFields<'a>> ReadField<'a> for T {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<T, Error> {
        let mut map = T::initial();
        walk_part(place, T::REQUIRED, reader, |place, value| map.read_field(place, value))?;
        Ok(map)
    }
}

macro_rules! read_by {
    ($($type:ty: $read:ident,)*) => {
        $(impl<'a> ReadField<'a> for $type {
            fn read(_: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<$type, Error> {
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
    SmolStr: str,
}

impl<'a> ReadField<'a> for i32 {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<i32, Error> {
        i32::try_from(reader.signed()?).map_err(|_| place.bad(format!("field `{place}` exceeds 32 bits")))
    }
}

impl<'a, const N: usize> ReadField<'a> for [u8; N] {
    fn read(_: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<[u8; N], Error> {
        let bytes = reader.bin()?;
        bytes.try_into().map_err(|_| Error::Malformed {
            offset: reader.offset(),
            reason: "the byte string has the wrong length",
        })
    }
}

impl<'a> ReadField<'a> for Uuid {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Uuid, Error> {
        <[u8; 16]>::read(place, reader).map(Uuid::from_bytes)
    }
}

impl<'a> ReadField<'a> for Payload<'a> {
    fn read(_: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Payload<'a>, Error> {
        Ok(Payload::new(reader.rest()))
    }
}

impl<'a, T: ReadField<'a>> ReadField<'a> for Option<T> {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Option<T>, Error> {
        T::read(place, reader).map(Some)
    }
}

impl<'a, T: ReadField<'a>> ReadField<'a> for Vec<T> {
    fn read(place: Place<'_>, reader: &mut MsgpackReader<'a>) -> Result<Vec<T>, Error> {
        list(reader, |reader| T::read(place, reader))
    }
}

impl<'a> MsgpackReader<'a> {
    /// Reads the value of a field into `slot`.
    pub(crate) fn read_into<T: ReadField<'a>>(
        &mut self,
        place: Place<'_>,
        slot: &mut T,
    ) -> Result<(), Error> {
        *slot = T::read(place, self)?;
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

impl<'a, T: MapFields<'a>> WriteField for T {
    fn write(&self, writer: &mut MsgpackWriter) {
        writer.fields(|fields| self.write_fields(fields));
    }
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
    SmolStr: |writer, text| writer.str(text),
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

impl<T: WriteField> WriteField for Vec<T> {
    fn write(&self, writer: &mut MsgpackWriter) {
        self.as_slice().write(writer);
    }
}

impl<T: WriteField> WriteField for Option<T> {
    fn write(&self, writer: &mut MsgpackWriter) {
        match self {
            Some(value) => value.write(writer),
            None => drop(writer.nil()),
        }
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

    pub(crate) fn set(&mut self, name: &str, value: &(impl WriteField + ?Sized)) {
        value.write(self.field(name));
    }

    /// Writes a field that differs from `default`, and no field for `default`.
    #[inline]
    pub(crate) fn unless<T: WriteField + PartialEq>(&mut self, name: &str, value: &T, default: &T) {
        if value != default {
            self.set(name, value);
        }
    }

    /// Writes a field that has a value, and no field for `None`.
    pub(crate) fn some<T: WriteField + PartialEq>(&mut self, name: &str, value: &Option<T>) {
        self.unless(name, value, &None);
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
