//! What stands for a value that is left out of a document.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Hex, Reader, Token};

/// Name of the field that says that a value is left out, and of which type the value is.
const LEFT_OUT: &str = "$left_out";

/// Stands for MessagePack that is left out of a document: serializes to its type, its length and its BLAKE3, and to none of
/// its contents.
///
/// ```
/// use foldlog_codec::msgpack::LeftOut;
///
/// let json = serde_json::to_value(LeftOut(b"\xa6secret")).unwrap();
/// assert_eq!(json["$left_out"], "text");
/// assert_eq!(json["bytes"], 7);
/// assert_eq!(json["blake3"].as_str().unwrap().len(), 64);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LeftOut<'a>(pub &'a [u8]);

impl LeftOut<'_> {
    /// Returns the name of the value's type: `nil`, `bool`, `number`, `text`, `bytes`, `extension`, `array` or `map`;
    /// `unknown` if the bytes are not MessagePack.
    pub fn type_name(&self) -> &'static str {
        match Reader::new(self.0).token() {
            Ok(Token::Nil) => "nil",
            Ok(Token::Bool(_)) => "bool",
            Ok(Token::Unsigned(_) | Token::Signed(_) | Token::F32(_) | Token::F64(_)) => "number",
            Ok(Token::Str(_)) => "text",
            Ok(Token::Bin(_)) => "bytes",
            Ok(Token::Ext(..)) => "extension",
            Ok(Token::Array(_)) => "array",
            Ok(Token::Map(_)) => "map",
            Err(_) => "unknown",
        }
    }
}

impl Serialize for LeftOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry(LEFT_OUT, self.type_name())?;
        map.serialize_entry("bytes", &self.0.len())?;
        map.serialize_entry("blake3", &Hex(blake3::hash(self.0).as_bytes()))?;
        map.end()
    }
}
