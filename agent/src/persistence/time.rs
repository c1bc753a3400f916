//! Writes times as chrono does, byte for byte, and reads them, without its formatting: a change of a task writes three.

use chrono::{DateTime, Datelike, NaiveDate, Timelike, Utc};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

/// Length of `2026-11-25T21:36:45`.
const SECONDS_LEN: usize = 19;
/// Length of that with a point, nanoseconds, and `Z`.
const TEXT_LEN_MAX: usize = SECONDS_LEN + 11;

pub(super) fn serialize<S: Serializer>(time: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = [0; TEXT_LEN_MAX];
    match written(time, &mut text) {
        Some(text) => serializer.serialize_str(text),
        None => time.serialize(serializer),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
    deserializer.deserialize_str(Reading)
}

struct Reading;

impl Visitor<'_> for Reading {
    type Value = DateTime<Utc>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a date and time of RFC 3339")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<DateTime<Utc>, E> {
        if let Some(time) = read(text.as_bytes()) {
            return Ok(time);
        }
        DateTime::deserialize(serde::de::value::StrDeserializer::new(text))
    }
}

/// Writes decimal digits, with zeros in front.
fn digits(out: &mut [u8], number: u32) {
    let mut rest = number;
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Writes a time into `out`; `None` if chrono writes it in another form: before year 0, behind 9999, or in a leap second.
fn written<'a>(time: &DateTime<Utc>, out: &'a mut [u8; TEXT_LEN_MAX]) -> Option<&'a str> {
    let (date, of_day) = (time.date_naive(), time.time());
    let year = u32::try_from(date.year()).ok().filter(|year| *year <= 9999)?;
    let seconds = of_day.num_seconds_from_midnight();
    out[..SECONDS_LEN].copy_from_slice(b"0000-00-00T00:00:00");
    digits(&mut out[..4], year);
    digits(&mut out[5..7], date.month());
    digits(&mut out[8..10], date.day());
    digits(&mut out[11..13], seconds / 3600);
    digits(&mut out[14..16], seconds / 60 % 60);
    digits(&mut out[17..19], seconds % 60);
    let (part, len) = match of_day.nanosecond() {
        0 => (0, 0),
        nanos if nanos % 1_000_000 == 0 => (nanos / 1_000_000, 3),
        nanos if nanos % 1_000 == 0 => (nanos / 1_000, 6),
        nanos => (nanos, 9),
    };
    let mut end = SECONDS_LEN;
    if len > 0 {
        out[end] = b'.';
        digits(&mut out[end + 1..=end + len], part);
        end += 1 + len;
    }
    out[end] = b'Z';
    let is_leap = of_day.nanosecond() >= 1_000_000_000;
    std::str::from_utf8(&out[..=end]).ok().filter(|_| !is_leap)
}

/// Reads decimal digits.
fn number(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + u32::from(digit - b'0')))
}

/// Reads a time in the form that it is written in; `None` of any other text.
fn read(text: &[u8]) -> Option<DateTime<Utc>> {
    let (seconds, rest) = text.split_at_checked(SECONDS_LEN)?;
    let part = rest.strip_suffix(b"Z")?;
    let nanos = match (part.strip_prefix(b"."), part.len()) {
        (None, 0) => 0,
        (Some(part), 4) => number(part)? * 1_000_000,
        (Some(part), 7) => number(part)? * 1_000,
        (Some(part), 10) => number(part)?,
        _ => return None,
    };
    let separators = [4, 7, 10, 13, 16].map(|at| seconds[at]);
    if separators != *b"--T::" {
        return None;
    }
    let at = |range: std::ops::Range<usize>| number(&seconds[range]);
    let date = NaiveDate::from_ymd_opt(at(0..4)? as i32, at(5..7)?, at(8..10)?)?;
    let time = date.and_hms_nano_opt(at(11..13)?, at(14..16)?, at(17..19)?, nanos)?;
    Some(time.and_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times at the ends of days, months, leap years and of what has four digits, and of all lengths.
    fn times() -> Vec<DateTime<Utc>> {
        let seconds = [
            -62_167_219_201,
            -62_167_219_200,
            -1,
            0,
            951_782_399,
            951_868_800,
            1_735_689_599,
            4_107_542_400,
            253_402_300_799,
            253_402_300_800,
        ];
        let nanos = [0, 1, 1_000, 999_999_000, 1_000_000, 120_000_000, 999_999_999, 1_500_000_000];
        let times = seconds.iter().flat_map(|at| nanos.map(|nanos| DateTime::from_timestamp(*at, nanos)));
        times.flatten().collect()
    }

    fn own(time: DateTime<Utc>) -> serde_json::Result<String> {
        let mut bytes = Vec::new();
        serialize(&time, &mut serde_json::Serializer::new(&mut bytes))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn times_are_written_and_read_as_chrono_does() -> serde_json::Result<()> {
        let times = times();
        assert!(times.len() > 70, "{}", times.len());
        for time in times {
            let text = own(time)?;
            assert_eq!(text, serde_json::to_string(&time)?);
            let read = deserialize(&mut serde_json::Deserializer::from_str(&text))?;
            assert_eq!(read, time, "{text}");
        }
        Ok(())
    }

    #[test]
    fn texts_of_other_forms_are_read_or_refused_as_by_chrono() {
        let texts = [
            "2026-11-25T21:36:45Z",
            "2026-11-25T21:36:45.5Z",
            "2026-11-25T21:36:45+02:00",
            "2026-11-25 21:36:45Z",
            "2026-11-31T21:36:45Z",
            "2026-11-25T24:00:00Z",
            "2026-11-25T23:59:60Z",
            "2026-11-25T21:36:45.+12Z",
            "2026/11/25T21:36:45Z",
            "2026-11-25T21:36:45z",
            "+026-11-25T21:36:45Z",
            "",
        ];
        for text in texts {
            let json = format!("\"{text}\"");
            let own = deserialize(&mut serde_json::Deserializer::from_str(&json)).ok();
            assert_eq!(own, serde_json::from_str::<DateTime<Utc>>(&json).ok(), "{text}");
        }
    }
}
