//! Replacements for values that are omitted from a document.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Hex, MsgpackReader, MsgpackToken};

/// Name of the field that marks an omitted value; the field's value is the type.
const LEFT_OUT: &str = "$left_out";

/// Number of bytes of a digest in a document: enough to distinguish any two values.
const DIGEST_BYTES: usize = 16;

/// Greatest number of bytes of a value without a digest. A digest of a short value would allow
/// readers to guess the value.
const GUESSED_BYTES: usize = 16;

/// Replaces MessagePack that is omitted from a document. It serializes to the type, the length and
/// the first 16 bytes of the BLAKE3, without any content. Values of up to 16 bytes have no digest,
/// because a digest would confirm a correct guess.
///
/// ```
/// use foldlog_codec::msgpack::LeftOut;
///
/// let json = serde_json::to_value(LeftOut(b"\xb1a long enough one")).unwrap();
/// assert_eq!(json["$left_out"], "text");
/// assert_eq!(json["bytes"], 18);
/// assert_eq!(json["blake3"].as_str().unwrap().len(), 32);
/// assert_eq!(serde_json::to_value(LeftOut(b"\xa6secret")).unwrap()["blake3"], serde_json::Value::Null);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LeftOut<'a>(pub &'a [u8]);

impl LeftOut<'_> {
    /// Returns the name of the value's type: `nil`, `bool`, `number`, `text`, `bytes`, `extension`,
    /// `array` or `map`; `unknown` if the bytes are not MessagePack.
    pub fn type_name(&self) -> &'static str {
        match MsgpackReader::new(self.0).token() {
            Ok(MsgpackToken::Nil) => "nil",
            Ok(MsgpackToken::Bool(_)) => "bool",
            Ok(MsgpackToken::Str(_)) => "text",
            Ok(MsgpackToken::Bin(_)) => "bytes",
            Ok(MsgpackToken::Ext(..)) => "extension",
            Ok(MsgpackToken::Array(_)) => "array",
            Ok(MsgpackToken::Map(_)) => "map",
            Ok(_) => "number",
            Err(_) => "unknown",
        }
    }
}

/// Returns the digest of omitted bytes for a document, or `None` if they are so few that they could
/// be guessed.
pub fn left_out_digest(bytes: &[u8]) -> Option<[u8; DIGEST_BYTES]> {
    let digest = (bytes.len() > GUESSED_BYTES).then(|| blake3::hash(bytes))?;
    digest.as_bytes().first_chunk().copied()
}

impl Serialize for LeftOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(LEFT_OUT, self.type_name())?;
        map.serialize_entry("bytes", &self.0.len())?;
        if let Some(digest) = left_out_digest(self.0) {
            map.serialize_entry("blake3", &Hex(&digest))?;
        }
        map.end()
    }
}
