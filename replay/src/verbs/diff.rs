//! `foldlog diff`: what changed between two positions.

use std::path::Path;

use foldlog_codec::escape;

use crate::diff::{Change, Difference, states};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::reading::{open_session, position, shortened};

/// How much of a value a person is shown.
const VALUE_CHARS_MAX: usize = 100;

/// Shows what changed from position `before` to position `after`.
///
/// # Errors
///
/// Where the session cannot be read, or there is no such position.
pub fn run(session: &Path, before: u64, after: u64, output: &mut Output<'_>) -> Result<u8> {
    let reader = open_session(session, output)?;
    let before = reader.state_at(position(&reader, Some(before))?)?;
    let after = reader.state_at(position(&reader, Some(after))?)?;
    let differences = states(&before, &after)?;
    if output.json() {
        differences.iter().try_for_each(|difference| output.value(difference))?;
        return Ok(HOLDS);
    }
    if differences.is_empty() {
        output.line("no difference")?;
    }
    let mut slice = None;
    for difference in &differences {
        if slice != Some(&difference.slice) {
            output.line(escape::text(difference.slice.as_deref().unwrap_or("(tags)")))?;
            slice = Some(&difference.slice);
        }
        output.line(text(difference)?)?;
    }
    Ok(HOLDS)
}

fn text(difference: &Difference) -> Result<String> {
    let json = |value| -> Result<String> {
        let text = escape::to_json(value).map_err(std::io::Error::from)?;
        Ok(shortened(&text, VALUE_CHARS_MAX))
    };
    let (path, before, after) =
        (escape::text(&difference.path), json(&difference.before)?, json(&difference.after)?);
    Ok(match difference.change {
        Change::Added => format!("  + {path}  {after}"),
        Change::Removed => format!("  - {path}  {before}"),
        Change::Changed => format!("  ~ {path}  {before} -> {after}"),
    })
}
