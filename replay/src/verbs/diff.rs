//! `foldlog diff`: the differences of the slices and tags at two positions.

use std::path::Path;

use foldlog::audit::LogReader;
use foldlog::{Error, State, Value};
use foldlog_codec::escape;
use foldlog_codec::msgpack::Reader;

use crate::conversations::differences;
use crate::diff::{Change, Difference, states, unlike};
use crate::failure::Result;
use crate::output::Output;
use crate::reading::{Position, code_of, open_sound, position, shortened};

/// Number of characters of a value that a person is shown.
const VALUE_CHARS_MAX: usize = 100;

/// Prints what changed from position `before` to position `after`.
///
/// # Errors
///
/// - [`Failure::Usage`](crate::Failure::Usage) if the log has no such position.
/// - [`Failure::Engine`](crate::Failure::Engine) if one of them is not in its sound part, or the session cannot
///   be read or takes more memory than it may.
pub fn run(session: &Path, before: Position, after: Position, output: &mut Output<'_>) -> Result<u8> {
    let reader = open_sound(session, output)?;
    let positions = (position(&reader, Some(before))?, position(&reader, Some(after))?);
    let (before, after) = (reader.state_reader_at(positions.0)?, reader.state_reader_at(positions.1)?);
    let (before, after) = unlike(&before, &after)?;
    check_decoded(&reader, &before, &after)?;
    if output.json() {
        let mut print = |difference: Difference| output.value(&difference);
        states(&before, &after, &mut print)?;
        differences(&reader, positions, &mut print)?;
        return Ok(code_of(&reader, output));
    }
    // Heading of what was printed last.
    let mut last: Option<String> = None;
    let mut print = |difference: Difference| {
        let heading = heading(&difference);
        if last.as_ref() != Some(&heading) {
            output.line(&heading)?;
            last = Some(heading);
        }
        output.line(text(&difference))
    };
    states(&before, &after, &mut print)?;
    differences(&reader, positions, &mut print)?;
    if last.is_none() {
        output.line("no difference")?;
    }
    Ok(code_of(&reader, output))
}

/// Checks that a pair of changed items takes no more memory than the reader may when it is decoded: an item of many small
/// values takes many times its bytes.
pub(crate) fn check_decoded(reader: &LogReader, before: &State, after: &State) -> Result<()> {
    let budget = reader.memory_bytes();
    let slices = [before, after].into_iter().flat_map(|state| state.slices.values());
    for item in slices.flat_map(|slice| &slice.items) {
        let most = |values: u64| values.saturating_mul(2 * size_of::<Value>() as u64);
        if most(item.bytes.len() as u64) <= budget {
            continue;
        }
        let mut tokens = Reader::new(&item.bytes);
        let mut values = 0;
        while tokens.token().is_ok() {
            values += 1;
        }
        let needed = most(values);
        if needed > budget {
            let (session_dir, sequence) = (reader.dir().to_owned(), item.sequence);
            return Err(Error::OverBudget { session_dir, sequence, needed, budget }.into());
        }
    }
    Ok(())
}

fn heading(difference: &Difference) -> String {
    match (&difference.conversation, &difference.slice) {
        (Some(evaluation), _) => format!("conversation of `{}`", escape::text(evaluation)),
        (None, Some(slice)) => escape::text(slice).into_owned(),
        (None, None) => "(tags)".to_owned(),
    }
}

/// Returns the line that a person reads of a difference.
pub(super) fn text(difference: &Difference) -> String {
    let json = |value: &Value| {
        shortened(&escape::json_beginning(&value.json_form(), VALUE_CHARS_MAX), VALUE_CHARS_MAX)
    };
    let path = escape::text(&difference.path);
    let (before, after) = (json(&difference.before), json(&difference.after));
    match difference.change {
        Change::Added => format!("  + {path}  {after}"),
        Change::Removed => format!("  - {path}  {before}"),
        Change::Changed => format!("  ~ {path}  {before} -> {after}"),
    }
}
