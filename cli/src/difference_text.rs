//! Differences between two states, as lines for a person.

use foldlog::Value;
use foldlog::inspect::{Difference, DifferenceKind};
use foldlog_codec::escape;
use foldlog_view::first_difference;
use foldlog_view::text::shorten_text;

/// Maximum number of characters of a value that a person is shown.
pub(crate) const VALUE_CHARS_MAX: usize = 100;

/// Maximum number of characters of two values that are read to find their first difference.
const READ_CHARS_MAX: usize = 1 << 16;

/// Returns the line for a difference that a person reads.
pub(crate) fn difference_text(difference: &Difference) -> String {
    let path = escape::text(&difference.path);
    let (mut before, mut after) = (value_text(&difference.before), value_text(&difference.after));
    if difference.change == DifferenceKind::Changed {
        let read = [&difference.before, &difference.after]
            .map(|value| escape::json_beginning(&value.json_form(), READ_CHARS_MAX));
        [before, after] = first_difference::apart(read, VALUE_CHARS_MAX);
    }
    match difference.change {
        DifferenceKind::Added => format!("  + {path}  {after}"),
        DifferenceKind::Removed => format!("  - {path}  {before}"),
        DifferenceKind::Changed => format!("  ~ {path}  {before} -> {after}"),
    }
}

fn value_text(value: &Value) -> String {
    shorten_text(&escape::json_beginning(&value.json_form(), VALUE_CHARS_MAX), VALUE_CHARS_MAX)
}
