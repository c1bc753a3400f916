//! Rows for a terminal, which are no wider than it is: times as ages, bytes in units, and what does not fit cut, with an ellipsis.

use escape::text;
use foldlog_codec::escape;

use super::{Operation, Row, STATUS_CHARS, Status};

/// Headings of the columns.
const HEADINGS: &str =
    "session                               status       last       records    bytes  what, tags, parent";

/// Digits of a parent's id that are shown.
const PARENT_DIGITS: usize = 8;

/// Returns the headings.
pub(super) fn headings(columns: u16) -> String {
    cut(HEADINGS, columns)
}

/// Returns a row in three pieces: the session, its status, and all else.
pub(super) fn pieces(row: &Row, columns: u16, now_us: i64) -> (String, &'static str, String) {
    let status = row.status.name();
    let session = format!("{}  ", row.session);
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let size = row.log_bytes.map(|bytes| size(bytes.saturating_add(row.object_bytes)));
    let last = row.times_us.map_or_else(|| "-".to_owned(), |(_, last)| age(now_us, last));
    let (pad, width) = ("", STATUS_CHARS.saturating_sub(status.len()));
    let rest = format!(
        "{pad:<width$}  {last:<8}  {:>8}  {:>7}  {}",
        number(row.records),
        size.as_deref().unwrap_or("-"),
        about(row, now_us)
    );
    let taken = u16::try_from(session.chars().count() + status.len()).unwrap_or(u16::MAX);
    let rest = cut(rest.trim_end(), columns.saturating_sub(taken));
    (session, status, rest)
}

/// Says all that has no column of its own: what is next to be known of the status, whether a replica holds it, then tags, then the parent.
fn about(row: &Row, now_us: i64) -> String {
    let mut about = Vec::new();
    about.extend(Some(detail(row, now_us)).filter(|detail| !detail.is_empty()));
    about.extend(row.held().map(str::to_owned));
    let tags: Vec<String> = row
        .tags
        .iter()
        .map(|(key, value)| match value.is_empty() || key == value {
            true => text(key).into_owned(),
            false => text(&format!("{key}={value}")).into_owned(),
        })
        .collect();
    about.extend(Some(tags.join(",")).filter(|tags| !tags.is_empty()));
    if let Some(parent) = &row.parent {
        let id: String = parent.session.to_string().chars().take(PARENT_DIGITS).collect();
        let position = parent.position.map(|position| format!("@{position}")).unwrap_or_default();
        about.push(format!("{} of {id}{position}", parent.how));
    }
    about.join("; ")
}

fn detail(row: &Row, now_us: i64) -> String {
    match row.status {
        Status::Running => {
            let pid = row.running.as_ref().and_then(|writer| writer.pid);
            let pid = pid.map_or_else(|| "pid unknown".to_owned(), |pid| format!("pid {pid}"));
            let within = named(&row.open, now_us);
            if within.is_empty() { pid } else { format!("{pid}, {within}") }
        }
        Status::Interrupted => named(&row.open, now_us),
        Status::Unsettled => named(&row.unsettled, now_us),
        Status::Suspended => named(&row.suspended, now_us),
        Status::Damaged | Status::Unreadable | Status::Unclosed | Status::Closed => row.detail(),
    }
}

/// Names operations: the first, and how many there are more.
fn named(operations: &[Operation], now_us: i64) -> String {
    let Some(first) = operations.first() else { return String::new() };
    let more = match operations.len() - 1 {
        0 => String::new(),
        more => format!(" +{more}"),
    };
    let age = age(now_us, first.since_us);
    format!("`{}` {}, {age}{more}", text(&first.tool), first.operation)
}

/// Returns how long ago a time was, in the greatest unit of which there is one.
fn age(now_us: i64, then_us: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let seconds = now_us.saturating_sub(then_us) / 1_000_000;
    if seconds < 0 {
        return "later".to_owned();
    }
    let unit = UNITS.into_iter().find(|(unit, _)| seconds >= *unit);
    unit.map_or_else(|| format!("{seconds}s ago"), |(unit, name)| format!("{}{name} ago", seconds / unit))
}

/// Returns a number of bytes in a unit of which there are less than 1024, with one digit behind the point below ten.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let (mut value, mut remainder, mut unit) = (bytes, 0, "");
    for name in UNITS {
        if value < 1024 {
            break;
        }
        (remainder, value, unit) = (value % 1024, value / 1024, name);
    }
    match value < 10 {
        true => format!("{value}.{}{unit}", remainder * 10 / 1024),
        false => format!("{value}{unit}"),
    }
}

/// Cuts a line to so many columns.
fn cut(line: &str, columns: u16) -> String {
    let columns = usize::from(columns);
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    let kept: String = line.chars().take(columns.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_sizes_and_lines_are_short() {
        let ages = [
            (0, "0s ago"),
            (59, "59s ago"),
            (61, "1m ago"),
            (7_300, "2h ago"),
            (90_000, "1d ago"),
            (-2, "later"),
        ];
        for (seconds, said) in ages {
            assert_eq!(age(seconds * 1_000_000, 0), said);
        }
        let sizes =
            [(0, "0"), (1023, "1023"), (1024, "1.0K"), (1536, "1.5K"), (20 << 20, "20M"), (u64::MAX, "15E")];
        for (bytes, said) in sizes {
            assert_eq!(size(bytes), said);
        }
        assert_eq!(cut("abc def", 7), "abc def");
        assert_eq!(cut("abc def", 5), "abc…");
        assert_eq!(cut("ééé", 2), "é…");
    }
}
