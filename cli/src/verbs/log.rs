//! `foldlog log`: the calls of agents in the current directory.

use std::borrow::Cow;
use std::path::Path;

use chrono::{DateTime, Local, Utc};
use foldlog_timeline::{Step, StepChanges, StepKind, UndoneSteps};
use foldlog_view::document;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::command::{Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::style::{BAD, GONE, HEADING, PLAIN, Style};
use crate::timelines::elsewhere::{ChangesElsewhere, OtherRoots, note_removed};
use crate::timelines::{RootArgs, text};

/// Least width of the column of calls, if their titles are longer.
const TITLE_WIDTH_MIN: usize = 16;

/// Describes the fields of `log --json`.
const LOG_JSON: &str = "\
Calls of agents whose hooks were installed by `foldlog hook install`, the latest first. The column
`files` has the changes that belong to the call. `not kept`: files without captured bytes, such as
large ignored ones; `shared`: overlapping calls may have changed them; `possibly yours`: changed
while a permission dialog was open; `commit`: made by the call, and not undone; `git`: other changes
of a repository; `outside`: a path outside of all recorded directories that the call names, so that it
could have written there; `not undoable`: the files were not captured, or the captures were removed;
`pinned`: the captures are removed after all others. Calls of a session that was started elsewhere are
listed if they changed files here.

With --json one object a line:
  number, kind, opened_at, closed_at, outcome
               kind: call (lane, id, tool, arguments, title, result, exit_code, duration_ms, roots,
               outside) or undo (of)
  head_changes working_tree, commit and action of each commit and other change of HEAD
  pinned       true if the step is pinned
  not_captured why the step cannot be undone
  undone       whether the step is undone as a whole
  files        path, kind, before and after (len, permissions, digest)
  shared       the same, of overlapping calls
  not_kept     paths
  repository   whether a git repository was changed
  unreadable   why the changes cannot be read, if they cannot";

/// List the calls of agents in this directory.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = LOG_JSON)]
pub struct Args {
    /// List only calls that changed these files or directories
    #[arg(value_name = "PATH")]
    pub paths: Vec<String>,
    /// Number of steps [default: 20]
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, hide_default_value = true)]
    pub count: usize,
    /// List your own changes between the calls, too
    #[arg(long)]
    pub mine: bool,
    /// Directory of the calls.
    #[command(flatten)]
    pub root: RootArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Run;
    const TARGET: Target = Target::Nothing;
    const IS_PAGED: bool = true;
    const EXAMPLE: &'static str = "foldlog log";

    /// Prints the steps.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`](foldlog_view::Error::Usage) if no agent was recorded in this directory.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let timeline = self.root.open_read_only()?;
        let (steps, undone) = (timeline.steps()?, timeline.undone()?);
        let (mut rows, mut reader) = (Vec::new(), timeline.changes_reader(&steps)?);
        let (mut listed, mut hidden) = (0, 0);
        let paths = self.root.paths(&timeline, &self.paths)?;
        // JSON has no texts about other roots.
        let last = steps.iter().rev().take(self.count).filter(|_| !output.json());
        let others = OtherRoots::of_steps(last, timeline.place())?;
        let (mut elsewhere, mut damage) = (others.reader(), None);
        for step in steps.iter().rev() {
            if listed == self.count {
                break;
            }
            let (changes, unreadable) = match reader.changes(step.number) {
                Err(error @ foldlog_timeline::Error::Filesystem(_)) => {
                    (StepChanges::default(), Some(error.to_string()))
                }
                changes => (changes?, None),
            };
            if !output.json() && is_elsewhere(step, &changes, &timeline.place().root)
                || !paths.is_empty() && !changes_any(&changes, &paths)
            {
                hidden += 1;
                continue;
            }
            listed += 1;
            if output.json() {
                let not_kept = changes.not_kept.iter().map(|(_, entry)| &entry.path);
                output.value(&document! {
                    #[serde(flatten)] step,
                    undone: undone.wholly.contains(&step.number),
                    files: &changes.files,
                    shared: &changes.shared,
                    not_kept: not_kept.collect::<Vec<_>>(),
                    repository: changes.repository,
                    #[serde(flatten)] unreadable: unreadable.map(|unreadable| document! { unreadable }),
                })?;
                continue;
            }
            if self.mine {
                let mine = reader.users_changes_after(step.number)?;
                if !mine.is_empty() {
                    let paths: Vec<&str> = mine.iter().map(|change| change.path.as_str()).collect();
                    rows.push((
                        PLAIN,
                        Row::new("", "", "you", &paths.join(", "), &format!("{} changed", mine.len())),
                    ));
                }
            }
            let found = if changes.is_empty() { elsewhere.changes(step) } else { Vec::new() };
            rows.push(row(step, &steps, &changes, &found, &undone, unreadable.is_some()));
            damage = damage.or(unreadable);
        }
        if output.json() {
            return Ok(HOLDS);
        }
        note_removed(&timeline, output)?;
        if rows.is_empty() && self.count > 0 {
            let which =
                if paths.is_empty() { "no call is recorded yet" } else { "no call changed these paths" };
            output.line(which)?;
            return Ok(HOLDS);
        }
        print_table(&rows, output)?;
        if let Some(damage) = damage {
            output.note(format_args!("note: some calls cannot be read or undone: {damage}"));
        }
        if steps.len() > listed + hidden {
            output.note(format_args!(
                "note: {} earlier steps; `foldlog log -n {}` lists all",
                steps.len() - listed - hidden,
                steps.len()
            ));
        }
        Ok(HOLDS)
    }
}

fn print_table(rows: &[(Style, Row)], output: &mut Output<'_>) -> Result<()> {
    let header = Row::new("#", "when", "tool", "call", "files");
    let widths = widths(rows.iter().map(|(_, row)| row).chain([&header]), output.columns);
    output.styled_line(HEADING, header.text(&widths))?;
    rows.iter().try_for_each(|(style, row)| output.styled_line(*style, row.text(&widths)))
}

/// Returns whether a step is a call of a session with another root of its own, and changed nothing
/// here.
fn is_elsewhere(step: &Step, changes: &StepChanges, here: &Path) -> bool {
    let own = step.call().and_then(|call| call.roots.first());
    own.is_some_and(|own| Path::new(own) != here) && changes.is_empty() && !step.is_open()
}

/// Returns whether a step changed one of these paths, or a file in one.
fn changes_any(changes: &StepChanges, paths: &[String]) -> bool {
    let StepChanges { files, shared, not_kept, .. } = changes;
    let changed = files.iter().chain(shared).map(|change| &change.path);
    let mut changed = changed.chain(not_kept.iter().map(|(_, entry)| &entry.path));
    changed.any(|changed| paths.iter().any(|path| Path::new(changed).starts_with(path)))
}

/// Returns the line of a step.
fn row(
    step: &Step,
    steps: &[Step],
    changes: &StepChanges,
    elsewhere: &[ChangesElsewhere],
    undone: &UndoneSteps,
    is_unreadable: bool,
) -> (Style, Row) {
    let (tool, title) = match &step.kind {
        StepKind::Call(call) => (call.tool.as_str(), text::call_title("", &call.title)),
        StepKind::Undo(undo) => (text::undo_word(undo, steps), format!("of {}", text::numbers(&undo.of))),
    };
    // An undo of all later calls includes those with changes in other roots alone.
    let has_own = elsewhere.is_empty() || !changes.is_empty();
    let is_undone = has_own && undone.wholly.contains(&step.number);
    let state = match (is_undone, undone.partly.contains(&step.number)) {
        (true, _) => "undone",
        (false, true) => "partly undone",
        (false, false) => "",
    };
    let notes = [state, text::outcome_text(step), if step.pinned { "pinned" } else { "" }];
    let notes: Vec<&str> = notes.into_iter().filter(|note| !note.is_empty()).collect();
    let changes = match elsewhere {
        [] if is_unreadable => "unreadable".to_owned(),
        [] => text::changes_text(step, changes),
        elsewhere => elsewhere.iter().map(ChangesElsewhere::short_text).collect::<Vec<_>>().join(", "),
    };
    let files = [changes, notes.join(", ")];
    let files: Vec<&str> = files.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    let style = match () {
        () if is_undone => GONE,
        () if is_unreadable || step.not_captured.is_some() => BAD,
        () => PLAIN,
    };
    let (number, when) = (step.number.to_string(), time_text(step.opened_at));
    (style, Row::new(&number, &when, tool, title.trim_start_matches(": "), &files.join("; ")))
}

/// Returns the widths of all columns but the last. On a terminal with this many columns, the titles
/// of calls are shortened to fit.
fn widths<'a>(rows: impl Iterator<Item = &'a Row>, columns: Option<u16>) -> [usize; 4] {
    let (mut widths, mut last) = ([3, 0, 0, 0], 0);
    for Row([cells @ .., files]) in rows {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.width());
        }
        last = last.max(files.width());
    }
    let total = widths.iter().sum::<usize>() + last + 2 * widths.len();
    if let (Some(columns), [.., title]) = (columns, &mut widths) {
        let excess = total.saturating_sub(usize::from(columns));
        *title = title.saturating_sub(excess).max(TITLE_WIDTH_MIN.min(*title));
    }
    widths
}

/// Cells of a line.
struct Row([String; 5]);

impl Row {
    fn new(number: &str, when: &str, tool: &str, title: &str, files: &str) -> Row {
        Row([number, when, tool, title, files].map(str::to_owned))
    }

    fn text(&self, widths: &[usize; 4]) -> String {
        let Row([number, cells @ .., files]) = self;
        let [number_width, cell_widths @ ..] = widths;
        let mut line = format!("{number:>number_width$}");
        for (cell, width) in cells.iter().zip(cell_widths) {
            let cell = shortened(cell, *width);
            line.push_str("  ");
            line.push_str(&cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width())));
        }
        format!("{line}  {files}").trim_end().to_owned()
    }
}

/// Shortens a text to a width on a terminal.
fn shortened(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let mut short = String::new();
    for letter in text.chars() {
        if short.width() + letter.width().unwrap_or(0) >= width {
            break;
        }
        short.push(letter);
    }
    short.push('…');
    Cow::Owned(short)
}

/// Returns the time of today's steps, and the day of others.
fn time_text(at: DateTime<Utc>) -> String {
    let at = at.with_timezone(&Local);
    let today = foldlog_view::clock::now().with_timezone(&Local).date_naive();
    if at.date_naive() == today {
        at.format("%H:%M").to_string()
    } else {
        at.format("%m-%d %H:%M").to_string()
    }
}
