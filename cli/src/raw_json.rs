//! JSON that is printed as another program wrote it.

use std::borrow::Cow;

use foldlog_codec::escape;

/// Escapes JSON for a terminal without changing its meaning. Apart from white space between tokens,
/// untrusted characters occur only in strings.
pub(crate) fn escape_json(json: &str) -> Cow<'_, str> {
    if !json.contains(escape::is_escaped) {
        return json.into();
    }
    let mut out = String::with_capacity(json.len() + 64);
    for character in json.chars() {
        match character {
            '\n' | '\r' | '\t' => out.push(' '),
            character if escape::is_escaped(character) => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            character => out.push(character),
        }
    }
    out.into()
}
