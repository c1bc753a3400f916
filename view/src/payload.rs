//! The payloads of records: values of hosts and tools, decoded without their types.

use foldlog::inspect::{LogReader, shown_payloads};
use foldlog::{Record, Value};
use foldlog_codec::body::Payload;
use foldlog_codec::escape;
use foldlog_codec::msgpack::{JsonStream, ValueLimits};

use crate::text::shorten_text;

/// Maximum number of characters of a payload that a person is shown.
const CHARS_MAX: usize = 1000;

/// Maximum size of an object that is read for a payload, in bytes. For a larger object, only the
/// length is shown.
pub(crate) const OBJECT_BYTES_MAX: u64 = 1 << 20;

/// Passes the value of a payload to `read`, or returns the reason why it cannot be read.
pub(crate) fn with_value<T>(
    reader: &LogReader,
    payload: Payload<'_>,
    read: impl FnOnce(JsonStream<'_>) -> T,
) -> Result<T, String> {
    if let Some(object) = payload.object().filter(|object| object.len > OBJECT_BYTES_MAX) {
        return Err(format!("({} bytes in the object {})", object.len, object.file_name()));
    }
    let bytes = reader.payload(payload).map_err(|error| format!("({error})"))?;
    let value = JsonStream::new(&bytes, ValueLimits::of_payload()).map_err(|error| format!("({error})"))?;
    Ok(read(value))
}

/// Formats the payloads of a record as lines for a person, each shortened.
pub fn lines(reader: &LogReader, record: &Record<'_>) -> Vec<String> {
    let line = |(name, payload): (&str, Payload<'_>)| {
        let text = with_value(reader, payload, |value| escape::json_beginning(&value, CHARS_MAX));
        format!("          {name}  {}", shorten_text(&text.unwrap_or_else(|why| why), CHARS_MAX))
    };
    shown_payloads(record).into_iter().map(line).collect()
}

/// Returns the payloads of a record as one value, each under its name.
pub fn value(reader: &LogReader, record: &Record<'_>) -> Value {
    let pair = |(name, payload): (&str, Payload<'_>)| {
        // This form is exact, as everywhere else.
        let form = |value: JsonStream<'_>| serde_json::to_value(value).map(Value::from);
        let value = with_value(reader, payload, form);
        let value = value.and_then(|form| form.map_err(|error| format!("({error})")));
        (Value::from(name), value.unwrap_or_else(Value::from))
    };
    Value::Map(shown_payloads(record).into_iter().map(pair).collect())
}
