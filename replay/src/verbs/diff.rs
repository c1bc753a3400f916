//! `foldlog diff`: the differences of the slices and tags at two positions.

use std::path::{Path, PathBuf};

use clap::Args;
use foldlog::Value;
use foldlog::audit::{Difference, DifferenceKind};
use foldlog_codec::escape;

use crate::diff::{conversations, states};
use crate::failure::Result;
use crate::output::Output;
use crate::reading::{Position, code_of, open_sound, position, shortened};
use crate::style::{BAD, CAUTION, GOOD, HEADING};

/// Holds what the command line asks of `foldlog diff`.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// The session's folder.
    pub session: PathBuf,
    /// The position before.
    pub before: Position,
    /// The position after.
    pub after: Position,
}

impl Arguments {
    /// Runs the verb, and returns the exit code.
    ///
    /// # Errors
    ///
    /// As [`run`].
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        run(&self.session, self.before, self.after, output)
    }
}

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
    if output.json() {
        let mut print = |difference: Difference| output.value(&difference);
        states(&before, &after, &mut print)?;
        conversations(&reader, positions, &mut print)?;
        return Ok(code_of(&reader, output));
    }
    // Heading of what was printed last.
    let mut last: Option<String> = None;
    let mut print = |difference: Difference| {
        let heading = heading(&difference);
        if last.as_ref() != Some(&heading) {
            output.styled(HEADING, &heading)?;
            last = Some(heading);
        }
        let style = match difference.change {
            DifferenceKind::Added => GOOD,
            DifferenceKind::Removed => BAD,
            DifferenceKind::Changed => CAUTION,
        };
        output.styled(style, text(&difference))
    };
    states(&before, &after, &mut print)?;
    conversations(&reader, positions, &mut print)?;
    if last.is_none() {
        output.line("no difference")?;
    }
    Ok(code_of(&reader, output))
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
        DifferenceKind::Added => format!("  + {path}  {after}"),
        DifferenceKind::Removed => format!("  - {path}  {before}"),
        DifferenceKind::Changed => format!("  ~ {path}  {before} -> {after}"),
    }
}
