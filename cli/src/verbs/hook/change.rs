//! Shows the change of a settings file, asks for it, and writes it.

use std::time::Duration;

use foldlog_codec::escape;
use similar::TextDiff;

use super::settings_file::SettingsFile;
use crate::consent::ask;
use crate::failure::Result;
use crate::output::Output;
use crate::style::{BAD, GOOD, HEADING, PLAIN, Style};

/// Number of equal lines shown around those that differ.
const CONTEXT: usize = 3;

/// Longest time of the search for the shortest diff. After that, a longer one is shown.
const DIFF_TIME_MAX: Duration = Duration::from_millis(200);

/// How a change is confirmed.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct ConfirmArgs {
    /// Show the whole change as a diff, and write nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Write the change without asking
    #[arg(long)]
    pub yes: bool,
}

/// The change of a settings file.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) file: &'a SettingsFile,
    after: Option<String>,
    /// Lines about the change in words.
    summary: Vec<String>,
    /// Unified diff; empty if nothing changes.
    pub(super) diff: String,
}

/// What was done about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There was none.
    Unchanged,
    /// It was shown only.
    Shown,
    /// A person declined it.
    Declined,
    Written,
}

impl<'a> Change<'a> {
    pub(super) fn new(file: &'a SettingsFile, after: Option<String>, summary: Vec<String>) -> Change<'a> {
        let (before, text) = (file.text.as_deref().unwrap_or_default(), after.as_deref().unwrap_or_default());
        let path = escape::path(&file.path);
        let name = |is_there: bool| if is_there { path.as_str() } else { "/dev/null" };
        let names = (name(file.text.is_some()), name(after.is_some()));
        let diff = TextDiff::configure().timeout(DIFF_TIME_MAX).diff_lines(before, text);
        let diff = diff.unified_diff().context_radius(CONTEXT).header(names.0, names.1).to_string();
        Change { file, after, summary, diff }
    }

    fn summarize(&self, output: &mut Output<'_>) -> Result<()> {
        let kind = match (&self.file.text, &self.after) {
            (None, _) => " (new file)",
            (Some(_), None) => " (is removed)",
            (Some(_), Some(_)) => "",
        };
        output.styled_line(HEADING, format_args!("{}{kind}", escape::path(&self.file.path)))?;
        self.summary.iter().try_for_each(|line| output.line(format_args!("  {line}")))
    }

    fn show(&self, output: &mut Output<'_>) -> Result<()> {
        for line in self.diff.lines() {
            output.styled_line(style_of(line), line.trim_end_matches('\r'))?;
        }
        Ok(())
    }
}

/// Summarizes changes, unless results are printed as JSON, and writes them if that is wanted. A dry
/// run shows them whole.
///
/// # Errors
///
/// [`CommandError::usage`](crate::failure::CommandError::usage) if no terminal can ask for consent; and as of [`SettingsFile::write`].
pub(super) fn apply(
    changes: &[Change<'_>],
    confirm: ConfirmArgs,
    output: &mut Output<'_>,
) -> Result<Outcome> {
    let changes: Vec<&Change<'_>> = changes.iter().filter(|change| !change.diff.is_empty()).collect();
    if changes.is_empty() {
        return Ok(Outcome::Unchanged);
    }
    if !output.json() {
        changes.iter().try_for_each(|change| match confirm.dry_run {
            true => change.show(output),
            false => change.summarize(output),
        })?;
    }
    if confirm.dry_run {
        return Ok(Outcome::Shown);
    }
    if !confirm.yes
        && !ask(
            "`--dry-run` shows the lines that change.\nWrite this change?",
            "nothing was written",
            output,
        )?
    {
        return Ok(Outcome::Declined);
    }
    for change in changes {
        match &change.after {
            Some(text) => change.file.write(text)?,
            None => change.file.remove()?,
        }
    }
    Ok(Outcome::Written)
}

fn style_of(line: &str) -> Style {
    match line.as_bytes() {
        [b'-', b'-', b'-', ..] | [b'+', b'+', b'+', ..] | [b'@', ..] => HEADING,
        [b'-', ..] => BAD,
        [b'+', ..] => GOOD,
        _ => PLAIN,
    }
}
