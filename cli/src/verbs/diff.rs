//! `foldlog diff`: the differences between two positions of a session, or between two sessions.

use std::path::{Path, PathBuf};

use foldlog::inspect::{Difference, DifferenceKind, LogDivergence, LogReader};
use foldlog::{Parent, SequenceNumber};
use foldlog_codec::escape;
use foldlog_replay::differences::{between_logs, conversations, states};
use foldlog_view::document;
use foldlog_view::first_difference::{self, DifferingValue, FirstDifference};
use foldlog_view::positions::{Position, position};
use foldlog_view::text::count_text;

use crate::command::{Argument, Command, Group, Urls};
use crate::difference_text::{VALUE_CHARS_MAX, difference_text};
use crate::failure::{CommandError, HOLDS, Result};
use crate::hints::HintPaths;
use crate::output::Output;
use crate::readers::{code_of, open_sound};
use crate::style::{BAD, CAUTION, GOOD, HEADING, PLAIN};
use crate::timelines::{RootArgs, text};

/// Describes the lines of `diff --json`.
const DIFF_JSON: &str = "\
Two sessions are compared record by record up to the first difference, and then by their slices,
tags and conversations, at position N of SESSION and M of the other session. Ids of providers,
durations of calls and captures of workspaces are not compared, since they differ in every run.
`foldlog rewind --preview` and `foldlog view` compare files.

With --json one object a line, for each difference:
  slice         name of the slice; null for tags and conversations
  conversation  id of the evaluation, only for a message
  path          items[3].status, messages[3], tags.KEY
  change        added, removed, changed
  before, after the values; null if there is none
With --with or --parent, the first line is another object:
  parting       alike: number of equal records at the start;
                here, there: sequence and record of the first different record of each session,
                null if its log ends;
                difference: path, recorded (here), produced (there), if both records are of one kind
  objects       only if a value of the difference is in an object: here, there: object, bytes,
                value; error instead of value if the object cannot be read or exceeds 1 MiB;
                null if the record itself contains the value";

/// Compare two positions, two sessions, or the files before and after a call.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = DIFF_JSON)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database; or the number of a call
    /// in `foldlog log` [default: the last call]
    #[arg(value_name = "SESSION|CALL")]
    pub session: Option<PathBuf>,
    /// First position [default with --with or --parent: the last one of SESSION]
    #[arg(value_name = "N", requires = "after")]
    pub before: Option<Position>,
    /// Second position [default with --with or --parent: the last one of the other session]
    #[arg(value_name = "M")]
    pub after: Option<Position>,
    /// Compare with another session, given by its directory
    #[arg(long, value_name = "OTHER", conflicts_with = "parent")]
    pub with: Option<PathBuf>,
    /// Compare a fork or a child session with its parent in the same store
    #[arg(long)]
    pub parent: bool,
    /// Directory of the call.
    #[command(flatten)]
    pub root: RootArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Copied;
    const IS_PAGED: bool = true;
    const ARGUMENT: Argument<Self> = |arguments| arguments.session.as_mut();
    const EXAMPLE: &'static str = "foldlog diff SESSION 10 42";

    /// Runs the verb, and returns the exit code.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if a log has no such position, or if the
    ///   session has no parent in its store.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if a position is not in the intact part of
    ///   its log, or a session cannot be read or exceeds the memory limit.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let is_of_session = self.before.is_some() || self.with.is_some() || self.parent;
        let session = match self.session {
            Some(session) if is_of_session => session,
            call => return call_diff(call, &self.root, output),
        };
        let reader = open_sound(&session, output)?;
        let at = position(&reader, self.before)?;
        let mut printed = DifferencePrinter::default();
        let other = match (self.with, self.parent) {
            (Some(other), _) => other,
            (None, true) => parent_of(&reader)?,
            (None, false) => {
                let after = position(&reader, self.after)?;
                compare_positions(&reader, at, after, &mut |difference| {
                    printed.difference(difference, output)
                })?;
                printed.end(output)?;
                return Ok(code_of(&reader, output));
            }
        };
        // Notes on the other session must contain that session's paths.
        let places = HintPaths::from_path(&other);
        let own = std::mem::replace(&mut output.places, places.clone());
        let other = open_sound(&other, output)?;
        output.places = own;
        let other_at = position(&other, self.after)?;
        let parting = reader.find_divergence(&other)?;
        let parted = first_difference::read_difference(&parting, &reader, &other);
        printed.print_divergence(&parting, parted.as_ref(), output)?;
        between_logs(&reader, at, &other, other_at, &mut |difference| {
            printed.difference(difference, output)
        })?;
        printed.end(output)?;
        let code = code_of(&reader, output);
        output.places = places;
        Ok(code.max(code_of(&other, output)))
    }
}

/// Prints the changes of files of one call of an agent in this directory.
fn call_diff(call: Option<PathBuf>, root: &RootArgs, output: &mut Output<'_>) -> Result<u8> {
    let number = match call.as_deref().map(|call| call.to_str().and_then(|text| text.parse().ok())) {
        Some(Some(number)) => Some(number),
        Some(None) => {
            return Err(CommandError::usage(
                "the positions to compare are missing",
                "the forms are `foldlog diff SESSION N M`, `foldlog diff SESSION --with OTHER`, and, for a call of \
                 an agent in this directory, `foldlog diff CALL`",
            ));
        }
        None => None,
    };
    let timeline = root.open_read_only()?;
    let number = number.map_or_else(|| timeline.last_call(), Ok)?;
    let changes = timeline.changes(number)?;
    if output.json() {
        let mut all = changes.files.iter().chain(&changes.shared);
        all.try_for_each(|change| output.value(change))?;
        return Ok(HOLDS);
    }
    let steps = timeline.steps()?;
    if let Some(step) = steps.iter().find(|step| step.number == number) {
        output.styled_line(HEADING, format_args!("{number}  {}", text::step_title(step, &steps)))?;
        if step.pinned {
            output.line("pinned")?;
        }
        if let Some(reason) = &step.not_captured {
            output.line(format_args!("not undoable: {}", escape::text(reason)))?;
        }
    }
    let mut reader = timeline.reader();
    for (changes, note) in [(&changes.files, ""), (&changes.shared, ", shared with overlapping calls")] {
        for change in changes {
            output.line(format_args!("{} {}{note}", change.kind, escape::text(&change.path)))?;
            for line in text::unified_diff(change, &mut reader)?.lines() {
                let style = match line.as_bytes().first() {
                    Some(b'+') => GOOD,
                    Some(b'-') => BAD,
                    _ => PLAIN,
                };
                output.styled_line(style, format_args!("  {}", escape::text(line)))?;
            }
        }
    }
    for (kind, entry) in &changes.not_kept {
        output.line(format_args!("{kind} {}, content not kept", escape::text(&entry.path)))?;
    }
    if changes.files.is_empty() && changes.shared.is_empty() && changes.not_kept.is_empty() {
        output.line("no file changes")?;
    }
    Ok(HOLDS)
}

/// Passes the differences of two positions of a session to `sink`.
fn compare_positions(
    reader: &LogReader,
    before: SequenceNumber,
    after: SequenceNumber,
    sink: &mut dyn FnMut(Difference) -> Result<()>,
) -> Result<()> {
    states(&reader.state_reader_at(before)?, &reader.state_reader_at(after)?, sink)?;
    conversations(reader, before, after, sink)
}

/// Returns the directory of the parent session, which is next to this session's directory.
fn parent_of(reader: &LogReader) -> Result<PathBuf> {
    let (Some(Parent::Fork { session, .. }) | Some(Parent::Child { session, .. })) =
        reader.opening_record().parent
    else {
        // The damaged part of the log may name the parent.
        if let Some(end) = reader.sound_end() {
            return Err(end.damage.clone().into());
        }
        let what = format!("{} has no parent session", escape::path(reader.dir()));
        return Err(CommandError::usage(what, "give another session: `--with OTHER`".to_owned()));
    };
    let beside = reader.dir().parent().unwrap_or(Path::new(".."));
    let parent = beside.join(session.to_string());
    if !parent.is_dir() {
        let what = format!("the parent session {session} is not next to {}", escape::path(reader.dir()));
        return Err(CommandError::usage(what, "give the directory of the parent: `--with OTHER`".to_owned()));
    }
    Ok(parent)
}

/// Prints differences. Remembers the last one for the headings.
#[derive(Default)]
struct DifferencePrinter {
    heading: Option<String>,
    parts: bool,
}

impl DifferencePrinter {
    fn difference(&mut self, difference: Difference, output: &mut Output<'_>) -> Result<()> {
        if output.json() {
            return output.value(&difference);
        }
        let heading = heading(&difference);
        if self.heading.as_ref() != Some(&heading) {
            output.styled_line(HEADING, &heading)?;
            self.heading = Some(heading);
        }
        let style = match difference.change {
            DifferenceKind::Added => GOOD,
            DifferenceKind::Removed => BAD,
            DifferenceKind::Changed => CAUTION,
        };
        output.styled_line(style, difference_text(&difference))
    }

    fn print_divergence(
        &mut self,
        parting: &LogDivergence,
        parted: Option<&FirstDifference>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        self.parts = !parting.is_none();
        if output.json() {
            let objects = parted.and_then(|parted| first_difference::objects_json(&parted.sides));
            let objects = objects.map(|objects| document! { objects });
            return output.value(&document! { parting, #[serde(flatten)] objects });
        }
        output.line(format_args!("both begin with the same {}", count_text(parting.alike, "record")))?;
        for (place, side) in [("here", &parting.here), ("there", &parting.there)] {
            match side {
                Some(one) => output.line(format_args!(
                    "  {place:<5}  {}  {}",
                    one.sequence,
                    escape::text(&one.record)
                ))?,
                None if self.parts => output.line(format_args!("  {place:<5}  the log ends"))?,
                None => {}
            }
        }
        if let (Some(difference), Some(FirstDifference { path, sides })) = (&parting.difference, parted) {
            let (path, slice) = (escape::text(path), difference.slice.as_deref().map(escape::text));
            let of = slice.map_or_else(String::new, |slice| format!(" of slice `{slice}`"));
            let [here, there] = first_difference::side_texts(sides, VALUE_CHARS_MAX);
            output.styled_line(CAUTION, format!("  ~ {path}{of}  {here} -> {there}"))?;
            for (place, side) in ["here", "there"].into_iter().zip(sides) {
                if let Some(object) = side.as_ref().and_then(DifferingValue::object_text) {
                    output.line(format_args!("    {place:<5}  {}", escape::text(&object)))?;
                }
            }
        }
        Ok(())
    }

    fn end(&self, output: &mut Output<'_>) -> Result<()> {
        if self.heading.is_none() && !output.json() {
            let what =
                if self.parts { "no difference in slices, tags and conversations" } else { "no difference" };
            output.line(what)?;
        }
        Ok(())
    }
}

fn heading(difference: &Difference) -> String {
    match (&difference.conversation, &difference.slice) {
        (Some(evaluation), _) => format!("conversation of `{}`", escape::text(evaluation)),
        (None, Some(slice)) => escape::text(slice).into_owned(),
        (None, None) => "(tags)".to_owned(),
    }
}
