//! Rows for a terminal, limited to its width: times as ages, bytes in units, and long texts
//! shortened with an ellipsis.
//!
//! If less than 16 columns remain for the description of a session, these columns are left out, in
//! this order, until it has them: the number of records, the bytes, the age of the last record. The
//! id remains complete, since the next command needs it. If the terminal is too narrow for the id
//! and the status, only the first eight digits are shown.

use escape::text;
use foldlog_codec::escape;
use foldlog_view::documents::sessions::{SessionListRow, SessionOperationRow, Status, Time};
use foldlog_view::text::or_dash;
use unicode_width::UnicodeWidthChar;

use super::{STATUS_CHARS, first_resumable_text, more, paths, replica_text};

/// Digits of a shortened id.
const DIGITS: usize = 8;

/// Columns of a complete id.
const ID_CHARS: usize = 36;

/// Minimum number of columns for the description of a session, unless all optional columns are
/// already left out.
const ABOUT_MIN: usize = 16;

/// Columns of a row in addition to the session, its status and its description.
#[derive(Clone, Copy)]
struct Layout {
    /// Digits of the session's id.
    id: usize,
    /// Number of optional columns: the age of the last record, the bytes, the number of records.
    optional: u8,
}

impl Layout {
    fn for_columns(columns: u16) -> Layout {
        let none = Layout { id: ID_CHARS, optional: 0 };
        let fits = |layout: &Layout| layout.columns_before() + ABOUT_MIN <= usize::from(columns);
        let narrowest = match none.columns_before() <= usize::from(columns) {
            true => none,
            false => Layout { id: DIGITS, ..none },
        };
        (1..=3).rev().map(|optional| Layout { optional, ..none }).find(fits).unwrap_or(narrowest)
    }

    /// Returns the number of columns before the description of a session.
    fn columns_before(self) -> usize {
        self.session("").chars().count() + STATUS_CHARS + self.middle("", "", "").chars().count()
    }

    /// Returns the column of the session.
    fn session(self, id: &str) -> String {
        let (id, width) = (id.get(..self.id).unwrap_or(id), self.id);
        format!("{id:<width$}  ")
    }

    /// Returns the columns between the status and the description.
    fn middle(self, last: &str, records: &str, bytes: &str) -> String {
        let column = |least: u8, column: String| if self.optional >= least { column } else { String::new() };
        let (last, records) = (column(1, format!("{last:<8}  ")), column(3, format!("{records:>8}  ")));
        format!("  {last}{records}{}", column(2, format!("{bytes:>7}  ")))
    }
}

pub(super) fn headings(columns: u16) -> String {
    let layout = Layout::for_columns(columns);
    let (session, middle) = (layout.session("session"), layout.middle("last", "records", "bytes"));
    cut(&format!("{session}{:<STATUS_CHARS$}{middle}what, tags, parent", "status"), usize::from(columns))
}

/// Returns a row in three pieces: the session, its status, and the rest.
pub(super) fn pieces(row: &SessionListRow, columns: u16, now_us: i64) -> (String, String, String) {
    let layout = Layout::for_columns(columns);
    let size = row.log_bytes.map(|bytes| size(bytes.saturating_add(row.object_bytes)));
    let last = or_dash(row.last_at.map(|Time(last)| age(now_us, last)));
    let middle = layout.middle(&last, &or_dash(row.records), &or_dash(size));
    let status = row.status.name();
    let (pad, width) = ("", STATUS_CHARS.saturating_sub(status.len()));
    let rest = format!("{pad:<width$}{middle}{}", about(row, now_us));
    let mut left = usize::from(columns);
    let mut fitted = |piece: &str| {
        let piece = cut(piece, left);
        left -= columns_of(&piece).min(left);
        piece
    };
    (fitted(&layout.session(&row.session.to_string())), fitted(status), fitted(rest.trim_end()))
}

/// Returns the description without a column of its own: details of the status, replication, tags,
/// and the parent.
fn about(row: &SessionListRow, now_us: i64) -> String {
    let mut about = Vec::new();
    about.extend(Some(detail(row, now_us)).filter(|detail| !detail.is_empty()));
    about.extend(replica_text(row));
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
        let id: String = parent.session.to_string().chars().take(DIGITS).collect();
        let position = parent.position.map(|position| format!("@{position}")).unwrap_or_default();
        about.push(format!("{} of {id}{position}", parent.how));
    }
    about.join("; ")
}

fn detail(row: &SessionListRow, now_us: i64) -> String {
    match row.status {
        Status::Running => {
            let writer = row.running.as_ref();
            let pid = writer.and_then(|writer| writer.pid);
            let mut pid = pid.map_or_else(|| "pid unknown".to_owned(), |pid| format!("pid {pid}"));
            if writer.is_some_and(|writer| writer.ended) {
                pid.push_str(" ended, its fork has the lock");
            }
            let within = operations_text(&row.open, now_us);
            if within.is_empty() { pid } else { format!("{pid}, {within}") }
        }
        Status::Interrupted => operations_text(&row.open, now_us),
        Status::Unsettled => operations_text(&row.unsettled, now_us),
        Status::Suspended => operations_text(&row.suspended, now_us),
        Status::Resumable => {
            let age = row.resumable.first().map(|first| age(now_us, first.since.0)).unwrap_or_default();
            format!("{}, {age}{}", first_resumable_text(row), more(row.resumable.len(), " +", ""))
        }
        Status::Damaged | Status::Unreadable | Status::Unclosed | Status::Closed => super::detail(row),
    }
}

/// Names the first operation, and the number of further ones.
fn operations_text(operations: &[SessionOperationRow], now_us: i64) -> String {
    let Some(first) = operations.first() else { return String::new() };
    let more = more(operations.len(), " +", "");
    let age = age(now_us, first.since.0);
    format!("`{}` {}, {age}{more}{}", text(&first.tool), first.operation, paths(first))
}

/// Returns the age of a time in the largest unit of which there is at least one.
fn age(now_us: i64, then_us: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let seconds = now_us.saturating_sub(then_us) / 1_000_000;
    if seconds < 0 {
        return "later".to_owned();
    }
    let unit = UNITS.into_iter().find(|(unit, _)| seconds >= *unit);
    unit.map_or_else(|| format!("{seconds}s ago"), |(unit, name)| format!("{}{name} ago", seconds / unit))
}

/// Returns a number of bytes in a unit that keeps it below 1024, with one decimal below ten.
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

/// Shortens a line to a number of terminal columns.
fn cut(line: &str, columns: usize) -> String {
    let end_before = |columns: usize| ends(line).find(|(_, width)| *width > columns);
    if columns == 0 || end_before(columns).is_none() {
        return if columns == 0 { String::new() } else { line.to_owned() };
    }
    let end = end_before(columns - 1).map_or(line.len(), |(at, _)| at);
    format!("{}…", line.get(..end).unwrap_or_default().trim_end())
}

/// Returns the number of terminal columns of a line.
fn columns_of(line: &str) -> usize {
    ends(line).last().map_or(0, |(_, width)| width)
}

/// Returns the start of each character, and the width of the line including it, in columns.
/// Characters that many terminals combine are counted one by one, so the result is an upper bound.
fn ends(line: &str) -> impl Iterator<Item = (usize, usize)> {
    /// Makes the preceding character an emoji, two columns wide.
    const AS_PICTURE: char = '\u{fe0f}';
    let (mut before, mut width) = (0, 0);
    line.char_indices().map(move |(at, character)| {
        let own = match character {
            AS_PICTURE if before == 1 => 1,
            _ => character.width().unwrap_or(0),
        };
        (before, width) = (own, width + own);
        (at, width)
    })
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
        assert_eq!((cut("abc", 0).as_str(), cut("abc", 1).as_str()), ("", "…"));
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(cut("漢字漢字", 8), "漢字漢字");
        assert_eq!(cut("漢字漢字", 7), "漢字漢…");
        assert_eq!(cut("漢字漢字", 6), "漢字…");
        assert_eq!(cut("a漢", 2), "a…");
        // A heart as an emoji, letters with accents, a family of three.
        for (line, columns) in
            [("\u{2764}\u{fe0f}", 2), ("e\u{301}e\u{301}", 2), ("👨\u{200d}👩\u{200d}👧", 6)]
        {
            assert_eq!((columns_of(line), cut(line, columns).as_str()), (columns, line));
            assert!(columns_of(&cut(line, columns - 1)) < columns);
        }
    }

    #[test]
    fn columns_go_in_the_order_that_is_said() {
        let headings = |columns| headings(columns).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (columns, gone) in [(96, 0), (95, 1), (86, 1), (85, 2), (77, 2), (76, 3), (40, 3)] {
            let gone = ["records", "bytes", "last"].get(..gone).unwrap();
            for column in ["last", "records", "bytes"] {
                let is_there = headings(columns).iter().any(|one| one == column);
                assert_eq!(is_there, !gone.contains(&column), "{column} at {columns}");
            }
        }
        assert_eq!((Layout::for_columns(51).id, Layout::for_columns(50).id), (ID_CHARS, DIGITS));
    }
}
