//! Short texts for a person: counts, digests, shortened values.

use std::fmt::Display;

use foldlog_codec::body::Replicated;
use foldlog_codec::escape;

/// States that a replica contains a session's records, and its place.
pub fn held_text(replicated: &Replicated) -> String {
    let (at, by) = (escape::text(&replicated.at), escape::text(&replicated.by));
    format!("this session is replicated ({at}, first claimed by `{by}`)")
}

/// Number of digits of a digest that a person is shown in a row and copies into a command, and the
/// minimum that identifies arguments.
pub const DIGEST_DIGITS: usize = 12;

/// Returns a digest in hexadecimal digits.
pub fn digest_text(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Shortens a text for a person to at most `max` characters, the last of which is then `…`.
/// `--json` prints it whole.
pub fn shorten_text(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let head: String = text.chars().take(max.saturating_sub(1)).collect();
    format!("{head}…")
}

/// Formats a value, or a dash if there is none.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Formats a count with its noun: `1 session`, `2 sessions`.
pub fn count_text(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
