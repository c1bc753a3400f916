//! Reads password files in libpq's format: `host:port:database:user:password` per line, `*` for
//! any, `\` before `:` and `\`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum length of a password file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the file, if only its owner can read it.
pub(super) fn read(path: &Path) -> Option<String> {
    let file = fs::File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.mode() & 0o077 != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the password of the first line that matches this host, port, database and user.
pub(super) fn find(lines: &str, wanted: [&str; 4]) -> Option<Vec<u8>> {
    lines.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line;
        for wanted in wanted {
            let (field, behind) = field(rest, true);
            if field != "*" && unescape_field(field) != wanted {
                return None;
            }
            rest = behind?;
        }
        Some(unescape_field(field(rest, false).0).into_bytes())
    })
}

/// Splits the first field off; a field that is not `ended` takes the whole rest.
fn field(text: &str, ended: bool) -> (&str, Option<&str>) {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ':' if ended => {
                let (field, behind) = text.split_at(at);
                return (field, behind.strip_prefix(':'));
            }
            _ => {}
        }
    }
    (text, None)
}

fn unescape_field(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    let mut letters = field.chars();
    while let Some(letter) = letters.next() {
        text.push(if letter == '\\' { letters.next().unwrap_or(letter) } else { letter });
    }
    text
}
