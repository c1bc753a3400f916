//! The JSON form of values, exact in both directions.
//!
//! JSON has fewer kinds of values than MessagePack. Other values are written as an object of one
//! field whose name is [reserved](RESERVED). A key that is not text is written as a text that
//! starts with [`KEY`]. A host's own key that looks like one of these is written in the form of a
//! key as well, so that the form of every value is unambiguous.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{JsonStream, Value, ValueLimits, from_json};
use crate::Error;

/// Field of a byte string: its hexadecimal digits.
pub(super) const BYTES: &str = "$bytes";
/// Field of a floating-point number of 32 bits.
pub(super) const F32: &str = "$f32";
/// Field of a floating-point number of 64 bits that is not finite.
pub(super) const F64: &str = "$f64";
/// Field of an extension: its type, and its hexadecimal digits.
pub(super) const EXT: &str = "$ext";
/// Field of a value that is written as its MessagePack, in hexadecimal digits.
pub(crate) const MSGPACK: &str = "$msgpack";
/// First field of a reference to an object of a record.
pub(crate) const OBJECT: &str = "$object";

/// Names of fields that mark values that JSON lacks.
const RESERVED: [&str; 6] = [BYTES, F32, F64, EXT, MSGPACK, OBJECT];

/// Prefix of a key in another form than its own text; the key's JSON form follows.
const KEY: &str = "$key:";

/// Returns whether a text key looks like a form, and has to be written as one itself.
pub(super) fn is_reserved(key: &str) -> bool {
    // Hardly any key of a host starts with this character.
    key.starts_with('$') && (RESERVED.contains(&key) || key.starts_with(KEY))
}

/// Returns the text of a key whose JSON form is not its text.
pub(super) fn key_text(key: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(key).map(|json| format!("{KEY}{json}"))
}

const HEX_PIECE: usize = 1_024;

pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A serializer escapes each piece that it receives. With long pieces, values of many
        // megabytes take a tenth of the time.
        let mut piece = String::with_capacity(2 * HEX_PIECE.min(self.0.len()));
        for bytes in self.0.chunks(HEX_PIECE) {
            piece.clear();
            for byte in bytes {
                let digits = [byte >> 4, byte & 0xf].map(|digit| char::from_digit(digit.into(), 16));
                piece.extend(digits.into_iter().flatten());
            }
            f.write_str(&piece)?;
        }
        Ok(())
    }
}

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Serializes an object of one field, which represents a value that JSON lacks.
pub(crate) fn serialize_tagged<S: Serializer>(
    serializer: S,
    name: &'static str,
    value: &(impl Serialize + ?Sized),
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(name, value)?;
    map.end()
}

pub(super) fn f32<S: Serializer>(serializer: S, value: f32) -> Result<S::Ok, S::Error> {
    let text = match value {
        // `Debug` writes the shortest decimal that parses back, with an exponent if that is
        // shorter.
        finite if finite.is_finite() => format!("{finite:?}"),
        other if other.is_nan() && other.to_bits() != f32::NAN.to_bits() => {
            format!("0x{:08x}", other.to_bits())
        }
        other => not_finite(other.is_nan(), other < 0.0).to_owned(),
    };
    serialize_tagged(serializer, F32, &text)
}

pub(super) fn f64<S: Serializer>(serializer: S, value: f64) -> Result<S::Ok, S::Error> {
    match value {
        finite if finite.is_finite() => serializer.serialize_f64(finite),
        other if other.is_nan() && other.to_bits() != f64::NAN.to_bits() => {
            serialize_tagged(serializer, F64, &format!("0x{:016x}", other.to_bits()))
        }
        other => serialize_tagged(serializer, F64, not_finite(other.is_nan(), other < 0.0)),
    }
}

fn not_finite(is_nan: bool, is_negative: bool) -> &'static str {
    match (is_nan, is_negative) {
        (true, _) => "NaN",
        (false, true) => "-Infinity",
        (false, false) => "Infinity",
    }
}

/// Serializes a value in its JSON form.
///
/// ```
/// use foldlog_codec::msgpack::{Value, from_json};
///
/// let value = Value::Map(vec![
///     (Value::from("id"), Value::Bin(vec![0, 255])),
///     (Value::Unsigned(7), Value::F64(f64::INFINITY)),
///     (Value::from("$bytes"), Value::Nil),
/// ]);
/// let json = serde_json::to_string(&value.json_form()).unwrap();
/// assert_eq!(json, r#"{"id":{"$bytes":"00ff"},"$key:7":{"$f64":"Infinity"},"$key:\"$bytes\"":null}"#);
/// assert_eq!(from_json(&json).unwrap().into_exact()?, value);
/// # Ok::<(), foldlog_codec::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct JsonForm(Vec<u8>);

impl Serialize for JsonForm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        JsonStream { bytes: &self.0 }.serialize(serializer)
    }
}

/// Describes a place in a JSON document that is not the JSON form of a value.
struct Unlike {
    /// Steps from the place up to the document's root.
    steps: Vec<String>,
    reason: String,
}

impl Unlike {
    fn new(reason: impl Into<String>) -> Unlike {
        Unlike { steps: Vec::new(), reason: reason.into() }
    }

    fn at(mut self, step: impl FnOnce() -> String) -> Unlike {
        self.steps.push(step());
        self
    }
}

impl Value {
    /// Returns the value's JSON form for serialization. [`into_exact`](Value::into_exact) converts
    /// the result back.
    pub fn json_form(&self) -> JsonForm {
        JsonForm(self.encode())
    }

    /// Converts this value, read from a JSON text, from its [JSON form](Value::json_form) back to
    /// the original value.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] with the path of an object that has a reserved field, or of a key that
    /// starts like the form of a key, and that is not a valid form.
    pub fn into_exact(self) -> Result<Value, Error> {
        exact(self).map_err(|Unlike { mut steps, reason }| {
            steps.push("$".to_owned());
            steps.reverse();
            Error::Value(format!("at {}: {reason}", steps.concat()))
        })
    }
}

/// Reads the JSON form of a value. The parser of the JSON has bounded its depth.
fn exact(json: Value) -> Result<Value, Unlike> {
    match json {
        Value::Array(items) => {
            let items = items.into_iter().enumerate();
            let items = items.map(|(place, item)| exact(item).map_err(|at| at.at(|| format!("[{place}]"))));
            items.collect::<Result<Vec<Value>, Unlike>>().map(Value::Array)
        }
        Value::Map(pairs) => {
            let reserved =
                pairs.iter().find_map(|(key, _)| key.as_str().filter(|key| RESERVED.contains(key)));
            match (reserved, pairs.as_slice()) {
                (Some(_), [(key, value)]) => parse_tagged(key.as_str().unwrap_or_default(), value),
                (Some(name), _) => Err(Unlike::new(format!("`{name}` is not the only field of its object"))),
                (None, _) => {
                    let pairs = pairs.into_iter().map(|(key, value)| {
                        let value = exact(value).map_err(|at| at.at(|| step(&key)))?;
                        Ok((exact_key(key)?, value))
                    });
                    pairs.collect::<Result<Vec<(Value, Value)>, Unlike>>().map(Value::Map)
                }
            }
        }
        plain => Ok(plain),
    }
}

fn step(key: &Value) -> String {
    format!("[{:?}]", key.as_str().unwrap_or_default())
}

fn exact_key(key: Value) -> Result<Value, Unlike> {
    match key.as_str().and_then(|text| text.strip_prefix(KEY)) {
        None => Ok(key),
        Some(form) => from_json(form)
            .map_err(|error| Unlike::new(format!("key {:?}: {error}", key.as_str().unwrap_or_default())))
            .and_then(exact),
    }
}

fn parse_tagged(name: &str, value: &Value) -> Result<Value, Unlike> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let read = match (name, value) {
        (BYTES, digits) => text(digits).and_then(|digits| from_hex(&digits)).map(Value::Bin),
        (F32, number) => text(number).and_then(|text| {
            float(&text, |bits| u32::try_from(bits).ok().map(f32::from_bits), f32::INFINITY).map(Value::F32)
        }),
        (F64, number) => text(number)
            .and_then(|text| float(&text, |bits| Some(f64::from_bits(bits)), f64::INFINITY).map(Value::F64)),
        (EXT, Value::Array(parts)) => match parts.as_slice() {
            [kind, Value::Str(digits)] => {
                kind.as_ext_kind().zip(from_hex(digits)).map(|(kind, it)| Value::Ext(kind, it))
            }
            _ => None,
        },
        (MSGPACK, Value::Str(digits)) => {
            from_hex(digits).and_then(|bytes| Value::decode_within(&bytes, ValueLimits::of_payload()).ok())
        }
        (OBJECT, _) => {
            return Err(Unlike::new("it refers to an object, whose bytes are not in this document"));
        }
        _ => None,
    };
    read.ok_or_else(|| Unlike::new(format!("the value of `{name}` is invalid")))
}

fn float<F: std::str::FromStr + std::ops::Neg<Output = F>>(
    text: &str,
    of_bits: impl Fn(u64) -> Option<F>,
    infinity: F,
) -> Option<F> {
    match text {
        "Infinity" => Some(infinity),
        "-Infinity" => Some(-infinity),
        // Also `NaN`, whose bits are those of the constant.
        text => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().and_then(of_bits),
            None => text.parse().ok(),
        },
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = digits.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    pairs.collect()
}
