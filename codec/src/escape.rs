//! Text from outside, made fit for a terminal.
//!
//! A log holds what an agent read: names, tags, reasons, paths. Printed raw, an escape sequence among them moves the
//! cursor, rewrites what stands above or sets a window's title, and a bidirectional mark shows one text for another. So
//! whatever did not come from the program itself passes through here before it is printed, and nothing else decides what
//! is escaped.
//!
//! | escaped | what that is |
//! |---|---|
//! | Cc | control characters: ESC, BEL, CR, DEL, the C1 set |
//! | Cf | format characters: bidirectional marks and overrides, zero-width joiners, tags |
//! | Zl, Zp | the line and the paragraph separator |
//! | bytes that are no UTF-8 | of paths alone: text is UTF-8 |
//!
//! | for | form | newline |
//! |---|---|---|
//! | a person, within a line: [`text`], [`path`], [`shown`] | `\n`, `\r`, `\t`, `\u{1b}`, `\xff` | `\n` |
//! | a person, a text of many lines: [`lines`] | the same | a new line that begins with [`MARK`], as no line of the program's does |
//! | JSON: [`write_json`], [`write_json_pretty`], [`to_json`] | `\u001b`; two of them beyond U+FFFF | `\n` |
//!
//! # Invariants
//!
//! 1. What comes out of the forms for a person holds none of these characters but the newlines of [`lines`]. To escape it
//!    once more changes nothing, so a message may pass through each layer that it is shown by. A backslash stays as it is:
//!    the forms are to be read, and what is to be exact is printed as JSON.
//! 2. JSON parses back to what it was made of.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use crate::sabotage::{self, Breakage};

/// What a line begins with that goes on with a text from outside.
pub const MARK: &str = "  | ";

/// Unicode's format characters (Cf) and separators of lines and paragraphs (Zl, Zp), as of version 16. Its control
/// characters (Cc) are what [`char::is_control`] says. A crate for all categories would bring a table of 3,000 lines for
/// these; a test compares them with one.
const FORMAT: [RangeInclusive<char>; 21] = [
    '\u{ad}'..='\u{ad}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{2064}',
    '\u{2066}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0001}'..='\u{e0001}',
    '\u{e0020}'..='\u{e007f}',
];

/// Whether a character is never printed raw.
pub fn is_escaped(character: char) -> bool {
    if character < '\u{ad}' || sabotage::is(Breakage::ControlsRaw) {
        return character.is_control() && !sabotage::is(Breakage::ControlsRaw);
    }
    let after = FORMAT.partition_point(|range| *range.start() <= character);
    let range = after.checked_sub(1).and_then(|at| FORMAT.get(at));
    range.is_some_and(|range| range.contains(&character))
}

/// The text within a line.
pub fn text(text: &str) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(shown(text).to_string())
}

/// The text of something that shows itself, within a line: the message of an error, a name.
pub fn shown<T: Display>(shown: T) -> Shown<T> {
    Shown { shown, newline: "\\n" }
}

/// A text that may be of many lines. Each but the first begins with [`MARK`].
pub fn lines<T: Display>(shown: T) -> Shown<T> {
    Shown { shown, newline: "\n  | " }
}

/// A path within a line; bytes that are no UTF-8 are shown as `\xNN`.
pub fn path(path: &Path) -> String {
    let mut out = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        out.push_str(&text(chunk.valid()));
        push_bytes(&mut out, chunk.invalid());
    }
    out
}

/// Serializes a path as text: for `serde(serialize_with)`. Bytes that are no UTF-8, which no JSON can hold, become `\xNN`;
/// all else is as it is, since JSON has escapes of its own.
///
/// # Errors
///
/// What the serializer says.
pub fn serialize_path<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    let mut out = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        out.push_str(chunk.valid());
        push_bytes(&mut out, chunk.invalid());
    }
    serializer.serialize_str(&out)
}

fn push_bytes(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing into a `String` never fails.
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// What shows itself, escaped: see [`shown`] and [`lines`].
#[derive(Clone, Copy, Debug)]
pub struct Shown<T> {
    shown: T,
    newline: &'static str,
}

impl<T: Display> Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { out: f, newline: self.newline }, "{}", self.shown)
    }
}

struct Escaping<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    newline: &'static str,
}

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, character)) = rest.char_indices().find(|(_, character)| is_escaped(*character)) {
            let (plain, from) = rest.split_at(at);
            self.out.write_str(plain)?;
            match character {
                '\n' => self.out.write_str(self.newline)?,
                '\r' => self.out.write_str("\\r")?,
                '\t' => self.out.write_str("\\t")?,
                other => write!(self.out, "\\u{{{:x}}}", u32::from(other))?,
            }
            rest = from.get(character.len_utf8()..).unwrap_or_default();
        }
        self.out.write_str(rest)
    }
}

/// Writes a value as JSON on one line.
///
/// # Errors
///
/// What `out` or the value's `Serialize` says.
pub fn write_json(out: impl Write, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Json(CompactFormatter)))
}

/// Writes a value as JSON on many lines.
///
/// # Errors
///
/// As [`write_json`].
pub fn write_json_pretty(out: impl Write, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Json(PrettyFormatter::new())))
}

/// A value's JSON on one line.
///
/// # Errors
///
/// What the value's `Serialize` says.
pub fn to_json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    let mut out = Vec::new();
    write_json(&mut out, value)?;
    // What serde_json writes is UTF-8.
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

/// A form of JSON whose texts hold no character that is [escaped](is_escaped): what is below U+0020 `serde_json` sees to.
struct Json<F>(F);

macro_rules! as_before {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(fn $name<W: ?Sized + Write>(&mut self, out: &mut W, $($argument: $type),*) -> io::Result<()> {
            self.0.$name(out, $($argument),*)
        })*
    };
}

impl<F: Formatter> Formatter for Json<F> {
    as_before! {
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, character)) = rest.char_indices().find(|(_, character)| is_escaped(*character)) {
            let (plain, from) = rest.split_at(at);
            out.write_all(plain.as_bytes())?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = from.get(character.len_utf8()..).unwrap_or_default();
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

    use super::*;

    fn all() -> String {
        ('\0'..=char::MAX).filter(|character| is_escaped(*character)).collect()
    }

    #[test]
    fn the_table_is_unicodes() {
        for character in '\0'..=char::MAX {
            let wanted = matches!(
                character.general_category(),
                GeneralCategory::Control
                    | GeneralCategory::Format
                    | GeneralCategory::LineSeparator
                    | GeneralCategory::ParagraphSeparator
            );
            assert_eq!(is_escaped(character), wanted, "{:x}", u32::from(character));
        }
    }

    #[test]
    fn a_person_sees_what_stood_there_and_escaping_it_again_changes_nothing() {
        let escaped = text("a\u{1b}[2Jb\r\n\u{202e}c\tü\u{9b}\u{e0041}");
        assert_eq!(escaped, r"a\u{1b}[2Jb\r\n\u{202e}c\tü\u{9b}\u{e0041}");
        assert!(matches!(text("nothing \\ to do"), Cow::Borrowed(_)));
        let (all, escaped) = (all(), text(&all()).into_owned());
        assert!(!escaped.contains(is_escaped));
        assert_eq!(text(&escaped), escaped);
        assert_eq!(lines("one\ntwo\u{7}").to_string(), "one\n  | two\\u{7}");
        assert_eq!(lines(&all).to_string().matches(is_escaped).collect::<String>(), "\n");
        let named = Path::new(std::ffi::OsStr::from_bytes(b"a\xff\x1b/b"));
        assert_eq!(path(named), r"a\xff\u{1b}/b");
    }

    #[test]
    fn json_parses_back_to_what_it_was_made_of() {
        let value = serde_json::json!({ all(): [all(), "\"\\", {"a": all()}], "plain": 1.5 });
        let mut pretty = Vec::new();
        write_json_pretty(&mut pretty, &value).unwrap();
        for json in [to_json(&value).unwrap(), String::from_utf8(pretty).unwrap()] {
            assert!(!json.contains(|character| character != '\n' && is_escaped(character)));
            assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        }
        assert!(to_json("\u{e0001}\u{7f}").unwrap().contains(r"\udb40\udc01\u007f"));
    }
}
