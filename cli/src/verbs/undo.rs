//! `foldlog undo`, `redo` and `oops`: undoing calls of agents in the current directory.

use foldlog_timeline::{Step, Timeline, UndoPlan, UndoReport};
use foldlog_view::clock::now;
use foldlog_view::document;

use crate::command::{Access, Command, Group, Target};
use crate::consent::ask;
use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result};
use crate::output::Output;
use crate::timelines::elsewhere::{OtherRoots, lines_elsewhere, note_removed};
use crate::timelines::{RootArgs, call_around, text};

/// Describes `undo --json`.
const UNDO_JSON: &str = "\
Without a number, the last call with changes that are not undone is undone. Later changes of other calls and of
yours stay: if they are in the same file, both are separated line by line, and where that is not
possible, the file stays as it is. An undo never overwrites or removes bytes that are not captured,
and is itself a step, which `foldlog redo` reverses. Databases, network effects and files outside
of the directory are not undone.

Within a call of an agent, only a preview is printed: an agent cannot confirm.

The exit code is 1 if nothing was undone, or if a part stays because of later changes or because it
was not recorded.

With --json one object: steps, changed (paths), conflicts (path, reason), number of the undo's own
step; for a preview, number is null and changed contains the paths that would change.";

/// Undo calls of an agent in this directory.
///
/// `foldlog oops` is short for `foldlog undo --yes`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = UNDO_JSON)]
pub struct Undo {
    /// Call to undo [default: the last one that is not undone]
    #[arg(value_name = "N")]
    pub call: Option<u64>,
    /// Undo this call and all later ones
    #[arg(long, value_name = "N", conflicts_with = "call")]
    pub to: Option<u64>,
    /// Undo only changes of this file or directory, even if overlapping calls share them, or you may
    /// have made them while a permission dialog was open
    #[arg(long, value_name = "PATH")]
    pub file: Vec<String>,
    /// Times.
    #[command(flatten)]
    pub times: Times,
    /// Directory of the calls.
    #[command(flatten)]
    pub root: RootArgs,
    /// Confirmation.
    #[command(flatten)]
    pub confirmation: Confirmation,
}

/// Reverse the last undo.
#[derive(Clone, Debug, clap::Args)]
pub struct Redo {
    /// Times.
    #[command(flatten)]
    pub times: Times,
    /// Directory of the calls.
    #[command(flatten)]
    pub root: RootArgs,
    /// Confirmation.
    #[command(flatten)]
    pub confirmation: Confirmation,
}

/// Undo the last call of an agent in this directory at once.
///
/// Like `foldlog undo --yes`; `foldlog redo` reverses it.
#[derive(Clone, Debug, clap::Args)]
pub struct Oops {
    /// Times.
    #[command(flatten)]
    pub times: Times,
}

/// Times of undone changes.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Times {
    /// Restore times of the last change, too; without it, changed files get the present time, so that
    /// builds notice
    #[arg(long)]
    pub exact_times: bool,
}

/// Whether to ask before files are changed.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Confirmation {
    /// Change files without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Print the changes without making them
    #[arg(long, conflicts_with = "yes")]
    pub preview: bool,
}

impl Command for Undo {
    const GROUP: Group = Group::Run;
    const ACCESS: Access = Access::ChangesUnless("--preview");
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog undo";

    /// Undoes calls.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`](foldlog_view::Error::Usage) if no agent was recorded in this directory, if
    /// a call cannot be undone, or if an agent confirms.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let removed = self.root.removed_root()?;
        let code = self.undo(output);
        if let Some(root) = removed {
            // An undo that was not confirmed leaves no empty directory.
            let _ = std::fs::remove_dir(root);
        }
        code
    }
}

impl Command for Redo {
    const GROUP: Group = Group::Run;
    const ACCESS: Access = Access::ChangesUnless("--preview");
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog redo";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let mut timeline = self.root.open()?;
        let number = timeline.last_undo()?;
        let request = Request { root: &self.root, numbers: &[number], paths: &[], times: self.times };
        request.carry_out(timeline, self.confirmation, output)
    }
}

impl Command for Oops {
    const GROUP: Group = Group::Internal;
    const ACCESS: Access = Access::Changes;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog oops";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let confirmation = Confirmation { yes: true, preview: false };
        let root = RootArgs::default();
        Undo { call: None, to: None, file: Vec::new(), root, times: self.times, confirmation }.run(output)
    }
}

impl Undo {
    fn undo(&self, output: &mut Output<'_>) -> Result<u8> {
        let timeline = self.root.open()?;
        let numbers = match (self.call, self.to) {
            (Some(number), _) => vec![number],
            (None, None) => vec![last_call(&timeline, self.confirmation, output)?],
            (None, Some(first)) => calls_from(&timeline, first, output)?,
        };
        let paths = self.root.paths(&timeline, &self.file)?;
        let request = Request { root: &self.root, numbers: &numbers, paths: &paths, times: self.times };
        request.carry_out(timeline, self.confirmation, output)
    }
}

/// Returns the last call with changes, and reports later ones that are passed over.
fn last_call(timeline: &Timeline, confirmation: Confirmation, output: &mut Output<'_>) -> Result<u64> {
    let last = match timeline.last_call() {
        Err(error @ foldlog_timeline::Error::NothingToUndo(_)) => Err(error),
        last => Ok(last?),
    };
    let (steps, undone) = (timeline.steps()?, timeline.undone()?);
    let after = last.as_ref().ok().copied().unwrap_or_default();
    let is_passed =
        |step: &&Step| step.number > after && step.call().is_some() && !undone.wholly.contains(&step.number);
    let passed: Vec<&Step> = steps.iter().filter(is_passed).collect();
    let others = OtherRoots::of_steps(passed.iter().copied(), timeline.place())?;
    let (mut elsewhere, mut reader) = (others.reader(), timeline.changes_reader(&steps)?);
    let is_confirmed = confirmation.yes && call_around(timeline)?.is_none();
    for step in passed {
        let (number, title) = (step.number, text::step_title(step, &steps));
        if step.is_open() {
            let what = format!("call {number} ({title}) has not ended");
            let next = format!("if it was interrupted, `foldlog undo {number}` undoes it");
            if is_confirmed {
                return Err(CommandError::usage(what, format!("wait for it; {next}")));
            }
            output.note(format_args!("note: {what}; {next}"));
        } else if let Some(changes) = elsewhere.changes(step).first() {
            let what = format!("call {number} ({title}) {}", changes.text());
            if is_confirmed {
                return Err(CommandError::usage(what, "name the call to undo an earlier one here"));
            }
            output.note(format_args!("note: {what}"));
        } else {
            let reason = match undone.partly.contains(&number) {
                true => "is partly undone".to_owned(),
                false => text::passed_reason(step, &reader.changes(number)?),
            };
            output.note(format_args!("note: call {number} ({title}) {reason}"));
        }
    }
    if last.is_err() {
        note_removed(timeline, output)?;
    }
    Ok(last?)
}

/// Returns a call and all later steps that are not undone. Calls without captures are skipped, and
/// reported.
fn calls_from(timeline: &Timeline, first: u64, output: &mut Output<'_>) -> Result<Vec<u64>> {
    let (steps, undone) = (timeline.steps()?, timeline.undone()?);
    if !steps.iter().any(|step| step.number == first) {
        return Err(foldlog_timeline::Error::NoStep { number: first }.into());
    }
    let mut numbers = Vec::new();
    for step in steps.iter().filter(|step| step.number >= first && step.call().is_some()) {
        let (number, title) = (step.number, text::step_title(step, &steps));
        match &step.not_captured {
            _ if step.is_open() || undone.wholly.contains(&number) => {}
            Some(reason) => {
                output
                    .note(format_args!("note: call {number} ({title}) stays: it was not captured: {reason}"));
            }
            None => numbers.push(number),
        }
    }
    if numbers.is_empty() {
        let what = "nothing to undo: all of these calls are undone";
        return Err(foldlog_timeline::Error::NothingToUndo(what).into());
    }
    Ok(numbers)
}

/// An undo as the user asks for it.
struct Request<'a> {
    root: &'a RootArgs,
    numbers: &'a [u64],
    /// Paths to which the undo is limited; empty for all.
    paths: &'a [String],
    times: Times,
}

impl Request<'_> {
    fn plan(&self, timeline: &mut Timeline) -> Result<UndoPlan> {
        Ok(match self.times.exact_times {
            true => timeline.plan_undo_with_times(self.numbers, self.paths)?,
            false => timeline.plan_undo(self.numbers, self.paths)?,
        })
    }

    /// Shows what would change, and undoes it if the user confirms.
    fn carry_out(
        &self,
        mut timeline: Timeline,
        confirmation: Confirmation,
        output: &mut Output<'_>,
    ) -> Result<u8> {
        let mut plan = self.plan(&mut timeline)?;
        let steps = timeline.steps()?;
        let call = call_around(&timeline)?;
        if let Some(number) = call.filter(|_| confirmation.yes) {
            return Err(CommandError::usage(
                format!("this command runs within call {number} of an agent, which cannot confirm an undo"),
                "`foldlog undo` prints a preview; the user confirms in another terminal, or types `/undo`",
            ));
        }
        if !output.json() {
            for line in text::plan_lines(&plan, &steps) {
                output.line(line)?;
            }
            for line in lines_elsewhere(self.numbers, &timeline)? {
                output.note(line);
            }
        }
        let is_preview = confirmation.preview || call.is_some() || plan.is_empty();
        let word = text::undo_word(&plan.to_undo(), &steps);
        let mut is_confirmed = !is_preview && confirmation.yes;
        if !is_preview && !confirmation.yes {
            // Hooks wait for a timeline that is open.
            drop(timeline);
            let question = if word == "redo" { "Redo?" } else { "Undo?" };
            let question = format!("{}\n{question}", text::OUTSIDE);
            is_confirmed = ask(&question, "nothing was changed", output)?;
            timeline = self.root.open()?;
            if is_confirmed {
                let shown = std::mem::replace(&mut plan, self.plan(&mut timeline)?);
                if shown.files != plan.files || shown.empty_directories() != plan.empty_directories() {
                    let what = "nothing was changed: files have changed since the preview";
                    return Err(CommandError::usage(what, "repeat the command"));
                }
            }
        }
        let plan = &plan;
        let report = if is_confirmed { Some(timeline.apply_undo(plan, now())?) } else { None };
        let is_whole = |report: &UndoReport| report.conflicts.is_empty() && !plan.to_undo().has_conflicts;
        let is_done = report.as_ref().is_some_and(is_whole);
        let code = if is_done || is_preview && !plan.is_empty() { HOLDS } else { DOES_NOT_HOLD };
        if output.json() {
            let planned = || plan.files.iter().map(|file| file.path.clone()).collect();
            let conflicts = report.as_ref().map_or(&plan.conflicts, |report| &report.conflicts).iter();
            let conflicts = conflicts.map(|one| document! { path: &one.path, reason: &one.reason });
            output.value(&document! {
                steps: &plan.steps,
                number: report.as_ref().map(|report| report.number),
                changed: report.as_ref().map_or_else(planned, |report| report.changed.clone()),
                conflicts: conflicts.collect::<Vec<_>>(),
                shared: &plan.shared,
                possibly_yours: &plan.possibly_yours,
                not_kept: &plan.not_kept,
            })?;
            return Ok(code);
        }
        match report {
            Some(report) => {
                for line in text::report_lines(&report, plan, &steps, "foldlog ") {
                    output.line(line)?;
                }
            }
            None if plan.is_empty() && plan.conflicts.is_empty() => {}
            None if plan.is_empty() => {
                output.note("`foldlog log` lists earlier calls, which `foldlog undo N` undoes");
            }
            None => output.line("nothing was changed")?,
        }
        Ok(code)
    }
}
