//! Escapes untrusted text for terminals, error messages and JSON.
//!
//! A log contains text that an agent read: names, tags, reasons, paths. If such a text is printed
//! raw, an escape sequence in it moves the cursor, rewrites the lines above or sets a window's
//! title, and a bidirectional mark displays one text as another. So all text from outside the
//! program passes through this module before it is printed. No other module decides which
//! characters are escaped.
//!
//! | escaped category | characters |
//! |---|---|
//! | Cc | control characters: ESC, BEL, CR, DEL, the C1 set |
//! | Cf | format characters: bidirectional marks and overrides, zero-width joiners, tags |
//! | Zl, Zp | the line and the paragraph separator |
//! | bytes that are not UTF-8 | in paths only: text is always UTF-8 |
//!
//! | for | form | newline |
//! |---|---|---|
//! | a person, within a line: [`text`], [`path`], [`display`] | `\n`, `\r`, `\t`, `\u{1b}`, `\xff` | `\n` |
//! | a person, a text of many lines: [`lines`] | `\r`, `\t`, `\u{1b}` | a new line that starts with [`MARK`], as no line of the program itself does |
//! | JSON: [`write_json`], [`write_json_pretty`], [`to_json`] | `\u001b`; a surrogate pair beyond U+FFFF | `\n` |
//!
//! # Invariants
//!
//! 1. The forms for a person contain none of the escaped characters, except the newlines of
//!    [`lines`]. Escaping such a form a second time changes nothing, so each layer that displays a
//!    message may escape it. A backslash is not escaped: the forms are for reading. Output that
//!    must be exact is printed as JSON.
//! 2. The JSON parses back to the value from which it was written.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Prefix of every line but the first in the form that [`lines`] gives an untrusted text.
pub const MARK: &str = "  | ";

/// Unicode's format characters (Cf) and separators of lines and paragraphs (Zl, Zp), as of Unicode
/// 16. Control characters (Cc) are those of [`char::is_control`]. A crate for all categories would
/// add a table of 3,000 lines for these few. A test compares the table with such a crate.
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

/// Returns whether a character is escaped: categories Cc, Cf, Zl and Zp of Unicode.
pub fn is_escaped(character: char) -> bool {
    if character < '\u{ad}' {
        return character.is_control();
    }
    let after = FORMAT.partition_point(|range| *range.start() <= character);
    let range = after.checked_sub(1).and_then(|at| FORMAT.get(at));
    range.is_some_and(|range| range.contains(&character))
}

/// Returns the first character that is escaped, and its position in bytes.
fn first_escaped(text: &str) -> Option<(usize, char)> {
    // Most text is plain ASCII, and a scan of its bytes takes a fraction of the time of a scan of
    // its characters.
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return None;
    }
    text.char_indices().find(|(_, character)| is_escaped(*character))
}

/// Escapes a text for display within one line. Borrows the text if nothing needs escaping.
///
/// ```
/// use foldlog_codec::escape;
///
/// assert_eq!(escape::text("plan.step_added"), "plan.step_added");
/// assert_eq!(escape::text("red\u{1b}[31m\nline"), r"red\u{1b}[31m\nline");
/// ```
pub fn text(text: &str) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(display(text).to_string())
}

/// Escapes the `Display` text of a value for display within one line, such as an error's message.
///
/// ```
/// use foldlog_codec::escape;
///
/// let reason = "no such file: a\tb";
/// assert_eq!(format!("failed: {}", escape::display(reason)), r"failed: no such file: a\tb");
/// ```
pub fn display<T: Display>(shown: T) -> EscapedDisplay<T> {
    EscapedDisplay { shown, newline: "\\n" }
}

/// Escapes the `Display` text of a value for display over several lines; each line but the first
/// begins with [`MARK`].
///
/// ```
/// use foldlog_codec::escape;
///
/// assert_eq!(escape::lines("one\ntwo\u{7}").to_string(), "one\n  | two\\u{7}");
/// ```
pub fn lines<T: Display>(shown: T) -> EscapedDisplay<T> {
    EscapedDisplay { shown, newline: "\n  | " }
}

/// Escapes a path for display within one line; a byte that is not UTF-8 becomes `\xNN`.
pub fn path(path: &Path) -> String {
    path_text(path, text)
}

/// Serializes a path as text, for use in `serde(serialize_with)`. A byte that is not UTF-8, which
/// JSON cannot express, becomes `\xNN`. Other characters are unchanged, since JSON has its own
/// escapes.
///
/// # Errors
///
/// Returns the serializer's own error if it rejects the text.
pub fn serialize_path<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path_text(path, |text| Cow::Borrowed(text)))
}

fn path_text(path: &Path, escape: fn(&str) -> Cow<'_, str>) -> String {
    let mut out = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        out.push_str(&escape(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing into a `String` never fails.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Displays a value with its untrusted characters escaped. Created by [`display`] and [`lines`].
#[derive(Clone, Copy, Debug)]
pub struct EscapedDisplay<T> {
    shown: T,
    newline: &'static str,
}

impl<T: Display> Display for EscapedDisplay<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapeWriter { out: f, newline: self.newline }, "{}", self.shown)
    }
}

struct EscapeWriter<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    newline: &'static str,
}

impl fmt::Write for EscapeWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, character)) = first_escaped(rest) {
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

/// Writes a value to `out` as JSON on one line, its untrusted characters escaped as `\uNNNN`.
///
/// # Errors
///
/// Returns an error if writing to `out` fails, or if the value's `Serialize` does.
pub fn write_json(out: impl Write, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Json(CompactFormatter)))
}

/// Writes a value to `out` as indented JSON over several lines, its untrusted characters escaped as
/// `\uNNNN`.
///
/// # Errors
///
/// Returns an error if writing to `out` fails, or if the value's `Serialize` does.
pub fn write_json_pretty(out: impl Write, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Json(PrettyFormatter::new())))
}

/// Returns a value's JSON on one line, its untrusted characters escaped as `\uNNNN`.
///
/// ```
/// use foldlog_codec::escape;
///
/// assert_eq!(escape::to_json("\u{202e}txt").unwrap(), r#""\u202etxt""#);
/// ```
///
/// # Errors
///
/// Returns an error if the value's `Serialize` fails.
pub fn to_json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    let mut out = Vec::new();
    write_json(&mut out, value)?;
    // serde_json writes valid UTF-8.
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

/// Returns the start of a value's JSON on one line, escaped. If the JSON has more than `chars`
/// characters, the result has over `chars` characters but not many more, regardless of the length
/// of the JSON. If the value's `Serialize` fails, the result ends there.
///
/// ```
/// use foldlog_codec::escape;
///
/// assert_eq!(escape::json_beginning("short", 10), r#""short""#);
/// assert!(escape::json_beginning(&vec!["long"; 1 << 20], 10).len() < 200);
/// ```
pub fn json_beginning(value: &(impl Serialize + ?Sized), chars: usize) -> String {
    // A character takes at most four bytes.
    let mut start = PrefixWriter { bytes: Vec::new(), max: 4 * chars + 64 };
    // An error only means that enough was written.
    let _ = write_json(&mut start, value);
    let mut json = start.bytes;
    if let Err(cut) = std::str::from_utf8(&json) {
        json.truncate(cut.valid_up_to());
    }
    String::from_utf8(json).unwrap_or_default()
}

/// Replaces each escape of a lone surrogate in JSON with that of U+FFFD, the replacement character.
/// Borrows JSON without any. Programs whose strings are UTF-16 write such escapes if they cut a
/// text between the two units of a character.
///
/// ```
/// use foldlog_codec::escape;
///
/// assert_eq!(escape::whole_surrogates(r#""cut \ud83d""#), r#""cut \ufffd""#);
/// assert_eq!(escape::whole_surrogates(r#""a pair \ud83d\ude00""#), r#""a pair \ud83d\ude00""#);
/// ```
pub fn whole_surrogates(json: &str) -> Cow<'_, str> {
    if !json.contains("\\ud") && !json.contains("\\uD") {
        return Cow::Borrowed(json);
    }
    let (mut whole, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(found) = json.get(at..).and_then(|rest| rest.find('\\')) {
        at += found;
        let Some(unit) = unit_at(json, at) else {
            // Another escape, of two characters.
            at += 1 + json.get(at + 1..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
            continue;
        };
        let is_pair = (0xd800..0xdc00).contains(&unit)
            && unit_at(json, at + 6).is_some_and(|low| (0xdc00..0xe000).contains(&low));
        if (0xd800..0xe000).contains(&unit) && !is_pair {
            whole.push_str(json.get(copied..at).unwrap_or_default());
            whole.push_str("\\ufffd");
            copied = at + 6;
        }
        at += if is_pair { 12 } else { 6 };
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    whole.push_str(json.get(copied..).unwrap_or_default());
    Cow::Owned(whole)
}

/// Returns the UTF-16 unit that a `\uXXXX` at a place encodes.
fn unit_at(json: &str, at: usize) -> Option<u16> {
    let digits = json.get(at..at.checked_add(6)?)?.strip_prefix("\\u")?;
    u16::from_str_radix(digits, 16).ok()
}

/// Reads a value from JSON that may contain [lone surrogates](whole_surrogates), which become
/// U+FFFD.
///
/// # Errors
///
/// Returns the error of the original JSON if it is invalid for a different reason.
///
/// ```
/// use foldlog_codec::escape;
///
/// assert_eq!(escape::read_json::<String>(r#""cut \ud83d""#).unwrap(), "cut \u{fffd}");
/// assert!(escape::read_json::<String>("7").is_err());
/// ```
pub fn read_json<T: DeserializeOwned>(json: &str) -> serde_json::Result<T> {
    serde_json::from_str(json).or_else(|error| match whole_surrogates(json) {
        Cow::Owned(whole) => serde_json::from_str(&whole),
        Cow::Borrowed(_) => Err(error),
    })
}

/// Keeps the first `max` bytes of the output, then rejects more.
struct PrefixWriter {
    bytes: Vec<u8>,
    max: usize,
}

impl Write for PrefixWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.max.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        if bytes.len() > room { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats JSON whose texts contain no raw character of the [escaped](is_escaped) categories.
/// `serde_json` itself escapes the characters below U+0020.
struct Json<F>(F);

macro_rules! forwarded {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(fn $name<W: ?Sized + Write>(&mut self, out: &mut W, $($argument: $type),*) -> io::Result<()> {
            self.0.$name(out, $($argument),*)
        })*
    };
}

impl<F: Formatter> Formatter for Json<F> {
    forwarded! {
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
        while let Some((at, character)) = first_escaped(rest) {
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
