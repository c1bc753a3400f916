//! Parsers of values on the command line.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use foldlog::KeptSnapshots;

/// Parses a number of bytes: digits, optionally followed by K, M, G, KiB, MiB or GiB, which are
/// powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err("give a number of bytes, such as 67108864, 64M or 1GiB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "the number is too large".to_owned())
}

/// Parses a text that must not be blank, such as the name of a decision's author.
pub(crate) fn parse_nonblank(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("it is blank: the log is to say who does this, and why".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Returns a parser of words, each given with its help and its value.
pub(crate) fn words<T, const COUNT: usize>(
    words: [(&'static str, &'static str, T); COUNT],
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let possible = words.map(|(word, help, _)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(possible).try_map(move |given| {
        words
            .iter()
            .find(|(word, ..)| *word == given)
            .map(|(.., value)| *value)
            .ok_or("there is no such word")
    })
}

/// Parses which snapshots keep their positions and captures.
pub(crate) fn kept_snapshots() -> impl TypedValueParser<Value = KeptSnapshots> {
    words([
        ("tagged", "Snapshots with a tag", KeptSnapshots::Tagged),
        ("all", "All snapshots", KeptSnapshots::All),
        ("none", "No snapshot", KeptSnapshots::None),
    ])
}

/// Returns the time that this many days take.
pub(crate) fn days(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(24 * 60 * 60))
}
