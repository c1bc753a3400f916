//! Quotes words for a shell, for commands that a person is advised to run.

use std::ffi::OsStr;
use std::fmt::Write as _;

use foldlog_codec::escape;

/// Quotes a word for a shell, if necessary. Unprintable characters and bytes that are not UTF-8 are
/// written in the form `$'...'` of bash and zsh.
pub fn quote_word(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./,:=+@%".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.as_bytes().iter().all(is_plain) => text.to_owned(),
        Some(text) if !text.contains(escape::is_escaped) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => quote_escaped(word),
    }
}

/// Writes a word in the form `$'...'`.
fn quote_escaped(word: &OsStr) -> String {
    let mut out = "$'".to_owned();
    for chunk in word.as_encoded_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            // Writing into a `String` never fails.
            let _ = match character {
                '\'' | '\\' => write!(out, "\\{character}"),
                '\n' => write!(out, "\\n"),
                _ if !escape::is_escaped(character) => write!(out, "{character}"),
                _ if character.is_ascii() => write!(out, "\\x{:02x}", u32::from(character)),
                _ => write!(out, "\\U{:08x}", u32::from(character)),
            };
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('\'');
    out
}
