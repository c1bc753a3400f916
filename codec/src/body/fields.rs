//! Walks the fields of a body.

use super::Payload;
use crate::msgpack::{MsgpackReader, MsgpackWriter};
use crate::{Error, SequenceNumber};

/// Newest version of a body, for every kind: no kind has a second version yet.
const VERSION: u64 = 1;

/// Walks the fields of a body. The value of each field passes the pre-scan; then `read` is called
/// with the field's name and a reader over exactly that value. Bytes that `read` leaves unread are
/// skipped.
pub(crate) fn walk<'a>(
    kind: &'static str,
    bytes: &'a [u8],
    mut read: impl FnMut(&str, &mut MsgpackReader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut reader = MsgpackReader::new(bytes);
    let walked = walk_map(&mut reader, |name, value| match name {
        "v" => match value.unsigned()? {
            VERSION => Ok(()),
            newer => Err(bad(kind, format!("version {newer} is newer than {VERSION}"))),
        },
        _ => read(name, value),
    });
    walked.map_err(|error| match error {
        Error::Body { .. } => error,
        other => bad(kind, other.to_string()),
    })?;
    if reader.is_done() { Ok(()) } else { Err(bad(kind, "extra bytes after the value")) }
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
    value.ok_or_else(|| bad(kind, format!("field `{field}` is missing")))
}

pub(crate) fn fixed<const N: usize>(reader: &mut MsgpackReader<'_>) -> Result<[u8; N], Error> {
    let bytes = reader.bin()?;
    bytes.try_into().map_err(|_| Error::Malformed {
        offset: reader.offset(),
        reason: "the byte string has the wrong length",
    })
}

/// Collects the fields of a body and counts them, because their number precedes them.
pub(crate) struct FieldWriter {
    count: usize,
    fields: MsgpackWriter,
}

impl FieldWriter {
    /// Starts a body without fields, with capacity for fields of about `bytes` bytes.
    pub(crate) fn with_capacity(bytes: usize) -> FieldWriter {
        FieldWriter { count: 0, fields: MsgpackWriter::with_capacity(bytes) }
    }

    /// Starts a field. The caller writes exactly one value.
    pub(crate) fn field(&mut self, name: &str) -> &mut MsgpackWriter {
        self.count += 1;
        self.fields.str(name)
    }

    pub(crate) fn text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.field(name).str(text);
        }
    }

    pub(crate) fn number(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.field(name).unsigned(number);
        }
    }

    pub(crate) fn sequence(&mut self, name: &str, sequence: Option<SequenceNumber>) {
        self.number(name, sequence.map(SequenceNumber::get));
    }

    /// Writes a field that is true, and no field for `false`.
    pub(crate) fn flag(&mut self, name: &str, flag: bool) {
        if flag {
            self.field(name).bool(true);
        }
    }

    pub(crate) fn bytes(&mut self, name: &str, bytes: Option<&[u8]>) {
        if let Some(bytes) = bytes {
            self.field(name).bin(bytes);
        }
    }

    pub(crate) fn payload(&mut self, name: &str, payload: Option<Payload<'_>>) {
        if let Some(payload) = payload {
            self.field(name).raw(payload.bytes());
        }
    }

    /// Writes the fields collected so far as a map within a body, after their number.
    pub(crate) fn into_map(self, writer: &mut MsgpackWriter) {
        writer.map(self.count).raw(&self.fields.finish());
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        let FieldWriter { count, fields } = self;
        let fields = fields.finish();
        let mut writer = MsgpackWriter::with_capacity(fields.len() + 5);
        writer.map(count).raw(&fields);
        writer.finish()
    }
}
