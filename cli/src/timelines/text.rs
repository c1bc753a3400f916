//! Texts about the steps of a timeline.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use foldlog::filesystem::{ChangeKind, ContentDiff, DirectoryChange, FileChange, SnapshotReader};
use foldlog_codec::escape;
use foldlog_timeline::{
    ChangedRepository, Conflict, FileUndo, HeadChange, Outcome, Step, StepChanges, StepKind, Timeline, Undo,
    UndoPlan, UndoReport, undone_calls,
};
use foldlog_view::clock::now;
use foldlog_view::shell::quote_word;
use foldlog_view::text::count_text;

use super::elsewhere::lines_elsewhere;
use crate::agents::{CONSENT, PromptCommand};
use crate::failure::{CommandError, Result};

/// Longest title of a call in a line, in characters.
const TITLE_CHARS_MAX: usize = 120;

/// Greatest number of paths in a text for the model.
const PATHS_MAX: usize = 30;

/// Greatest number of commits and other changes of `HEAD` that a preview names.
const HEAD_CHANGES_MAX: usize = 10;

/// Hooks that are installed twice report a prompt within this time.
const REPORTED_TWICE: TimeDelta = TimeDelta::seconds(1);

/// Limits of an undo.
pub(crate) const OUTSIDE: &str =
    "Databases, network effects and files outside of this directory are not undone.";

/// Returns a call in one line: its tool, and its command or path.
pub(crate) fn call_title(tool: &str, title: &str) -> String {
    let mut line: String = title.lines().next().unwrap_or_default().chars().take(TITLE_CHARS_MAX).collect();
    if line.len() < title.trim_end().len() {
        line.push('…');
    }
    let line = escape::text(&line).into_owned();
    let tool = escape::text(tool);
    if line.is_empty() { tool.into_owned() } else { format!("{tool}: {line}") }
}

/// Returns a step in one line, without its number.
pub(crate) fn step_title(step: &Step, steps: &[Step]) -> String {
    match &step.kind {
        StepKind::Call(call) => call_title(&call.tool, &call.title),
        StepKind::Undo(undo) => format!("{} of {}", undo_word(undo, steps), numbers(&undo.of)),
    }
}

/// Returns the word for an undo: an undo of an undo is a redo.
pub(crate) fn undo_word(undo: &Undo, steps: &[Step]) -> &'static str {
    if undo.is_redo(steps) { "redo" } else { "undo" }
}

pub(crate) fn numbers(numbers: &[u64]) -> String {
    let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    match texts.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => texts.concat(),
    }
}

/// Returns the short ids of the commits that a step made.
fn commits(step: &Step) -> Vec<&str> {
    let commits = step.head_changes.iter().filter(|change| change.committed_subject().is_some());
    commits.map(|change| change.commit.get(..7).unwrap_or_default()).collect()
}

/// Returns the changes of a step in a few words.
pub(crate) fn changes_text(step: &Step, changes: &StepChanges) -> String {
    let mut parts = Vec::new();
    for (kind, word) in [
        (ChangeKind::Modified, "changed"),
        (ChangeKind::Created, "created"),
        (ChangeKind::Removed, "removed"),
    ] {
        let kept = changes.files.iter().filter(|change| change.kind == kind).count();
        let not_kept = changes.not_kept.iter().filter(|(other, _)| *other == kind).count();
        match (kept, not_kept) {
            (0, 0) => {}
            (kept, 0) => parts.push(format!("{kept} {word}")),
            (kept, not_kept) => parts.push(format!("{} {word} ({not_kept} not kept)", kept + not_kept)),
        }
    }
    if !changes.shared.is_empty() {
        parts.push(format!("{} shared with overlapping calls", changes.shared.len()));
    }
    let users = step.yours.len() + step.possibly_yours.len();
    if users > 0 {
        parts.push(format!("{users} possibly yours"));
    }
    match commits(step).as_slice() {
        [] if changes.repository => parts.push("git".to_owned()),
        [] => {}
        [commit] => parts.push(format!("commit {commit}")),
        commits @ [.., last] => parts.push(format!("{} commits to {last}", commits.len())),
    }
    if let Some(outside) = step.call().and_then(|call| call.outside.first()) {
        parts.push(format!("outside: {}", escape::text(outside)));
    }
    if step.not_captured.is_some() {
        parts.push("not undoable".to_owned());
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// Returns why an undo passes over a call without changes of files of its own.
pub(crate) fn passed_reason(step: &Step, changes: &StepChanges) -> String {
    match commits(step).as_slice() {
        _ if !changes.shared.is_empty() => "shares its changes with overlapping calls".to_owned(),
        [] if !changes.not_kept.is_empty() => "changed only files that are not recorded".to_owned(),
        [] if changes.repository => "changed only the repository, which stays".to_owned(),
        [] => "changed no file".to_owned(),
        [.., last] => format!("made a commit, which stays: {last}"),
    }
}

pub(crate) fn outcome_text(step: &Step) -> &'static str {
    match step.outcome {
        None => "running",
        Some(Outcome::Succeeded) => "",
        Some(Outcome::Failed) => "failed",
        Some(Outcome::Interrupted) => "interrupted",
    }
}

/// Returns the difference of a file's versions as a unified diff, or a note in its place.
pub(crate) fn unified_diff(change: &FileChange, reader: &mut SnapshotReader) -> Result<String> {
    Ok(match reader.content_diff(change)? {
        ContentDiff::Text { unified } => unified,
        ContentDiff::Binary => "binary".to_owned(),
        ContentDiff::TooLong => "too long to show".to_owned(),
        ContentDiff::Equal => "only permissions".to_owned(),
    })
}

/// Returns the lines of a preview.
pub(crate) fn plan_lines(plan: &UndoPlan, steps: &[Step]) -> Vec<String> {
    let mut lines = Vec::new();
    for step in steps.iter().filter(|step| plan.steps.contains(&step.number)) {
        lines.push(format!("{}  {}", step.number, step_title(step, steps)));
    }
    lines.extend(plan.files.iter().map(file_line));
    lines.extend(plan.empty_directories().into_iter().map(directory_line));
    lines.extend(plan.conflicts.iter().map(conflict_line));
    let mut staying = |paths: &[String], reason: &str| {
        lines.extend(paths.iter().map(|path| format!("  stays    {}: {reason}", escape::text(path))));
    };
    staying(
        &plan.shared,
        "overlapping calls may have changed it; --to undoes these together, --file this file alone",
    );
    staying(&plan.possibly_yours, "you may have changed it while a dialog was open; --file includes it");
    staying(&plan.not_kept, "created by the call; it was not recorded, so it is not removed");
    lines.extend(plan.head_changes.iter().take(HEAD_CHANGES_MAX).map(head_change_line));
    if plan.head_changes.len() > HEAD_CHANGES_MAX {
        lines.push(format!("  stays    {} more changes of HEAD", plan.head_changes.len() - HEAD_CHANGES_MAX));
    }
    for ChangedRepository { path, steps, is_lost } in &plan.repositories {
        let path = escape::text(path);
        if *is_lost {
            lines.push(format!(
                "  lost     {path}: it was removed and is not recorded, so its commits are not restored"
            ));
        } else if plan.head_changes.is_empty() {
            let steps = numbers(steps);
            lines.push(format!(
                "  stays    {path}: commits, branches, the index or configuration, changed by {steps}"
            ));
        }
    }
    if plan.is_empty() {
        lines.push(match plan.is_partial {
            true => "no change to undo is in the given paths".to_owned(),
            false => "no file would change".to_owned(),
        });
    }
    lines
}

/// Returns the command that undoes a call, in the current directory or in another root.
pub(crate) fn undo_command(number: u64, root: Option<&Path>) -> String {
    match root {
        Some(root) => format!("foldlog undo {number} --root {}", quote_word(root.as_os_str())),
        None => format!("foldlog undo {number}"),
    }
}

/// Returns the line about a commit, or another change of `HEAD`, that stays.
fn head_change_line(change: &HeadChange) -> String {
    let id = change.commit.get(..7).unwrap_or(&change.commit);
    let within = match change.working_tree.as_str() {
        "" => String::new(),
        path => format!(" in {}", escape::text(path)),
    };
    match change.committed_subject() {
        Some(subject) => format!("  stays    commit {id}{within}: {}", escape::text(subject)),
        None => format!("  stays    HEAD at {id}{within}: {}", escape::text(&change.action)),
    }
}

fn conflict_line(conflict: &Conflict) -> String {
    let word = if conflict.is_lost { "lost" } else { "stays" };
    format!("  {word:<8} {}: {}", escape::text(&conflict.path), escape::text(&conflict.reason))
}

fn file_line(file: &FileUndo) -> String {
    let word = match file.change {
        ChangeKind::Created => "restore",
        ChangeKind::Modified => "change",
        ChangeKind::Removed => "remove",
    };
    format!("  {word:<8} {}", escape::text(&file.path))
}

fn directory_line(change: &DirectoryChange) -> String {
    let word = if change.kind == ChangeKind::Created { "remove" } else { "restore" };
    format!("  {word:<8} {}/", escape::text(&change.path))
}

/// Returns the lines about an undo that was carried out.
pub(crate) fn report_lines(
    report: &UndoReport,
    plan: &UndoPlan,
    steps: &[Step],
    prefix: &str,
) -> Vec<String> {
    let later = report.conflicts.iter().skip(plan.conflicts.len());
    let mut lines: Vec<String> = later.map(conflict_line).collect();
    let is_partial = plan.is_partial || plan.to_undo().has_conflicts || !report.conflicts.is_empty();
    let (done, reverse) = match (undo_word(&plan.to_undo(), steps), is_partial) {
        ("redo", _) => ("redone", format!("undo {}", report.number)),
        (_, true) => ("partly undone", "redo".to_owned()),
        (_, false) => ("undone", "redo".to_owned()),
    };
    lines.push(format!(
        "{done} as step {}: {} changed; `{prefix}{reverse}` reverses it",
        report.number,
        count_text(u64::try_from(report.changed.len()).unwrap_or(u64::MAX), "file")
    ));
    lines
}

/// Returns the text about undos for the model that made the calls.
///
/// Paths in a further root are absolute.
pub(crate) fn undos_for_model(
    undos: &[Step],
    timeline: &Timeline,
    elsewhere: Option<&Path>,
) -> Result<String> {
    let (steps, undone) = (timeline.steps()?, timeline.undone()?);
    let affected = undone_calls(&steps, undos.iter().filter_map(Step::undo).flat_map(|undo| undo.of.clone()));
    let titles = |is_chosen: &dyn Fn(&u64) -> bool| -> Vec<String> {
        let calls = steps.iter().filter(|step| affected.contains(&step.number) && is_chosen(&step.number));
        calls.map(|step| step_title(step, &steps)).collect()
    };
    let is_undone = |number: &u64| undone.wholly.contains(number) || undone.partly.contains(number);
    let mut text = String::from("The user has used `foldlog undo`.");
    for (title, calls) in [
        ("Undone calls", titles(&is_undone)),
        ("Calls that are in effect again", titles(&|number| !is_undone(number))),
    ] {
        if !calls.is_empty() {
            let _ = write!(text, " {title}: {}.", calls.join("; "));
        }
    }
    let paths: BTreeSet<&String> = undos.iter().filter_map(|undo| undo.paths.as_ref()).flatten().collect();
    let (present, removed): (Vec<&String>, Vec<&String>) =
        paths.into_iter().partition(|path| timeline.place().absolute(path).exists());
    for (title, paths) in [("Changed files, to be read again", present), ("Removed files", removed)] {
        let full = |path: &&String| match elsewhere {
            Some(root) => root.join(path).to_string_lossy().into_owned(),
            None => (*path).clone(),
        };
        let shown: Vec<String> = paths.iter().take(PATHS_MAX).map(full).collect();
        let more = match paths.len() - shown.len() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        if !shown.is_empty() {
            let _ = write!(text, " {title}: {}{more}.", shown.join(", "));
        }
    }
    Ok(escape::text(&text).into_owned())
}

/// Carries out a command that the user has typed at an agent's prompt: `undo [N] [yes]` or
/// `redo [yes]`. Without `yes`, it is a preview.
pub(crate) fn answer(
    timeline: &mut Timeline,
    command: PromptCommand<'_>,
    arrived_at: DateTime<Utc>,
) -> Result<String> {
    let prefix = command.prefix;
    let mut words = command.words.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let (mut number, mut is_confirmed, mut with_times) = (None, false, false);
    for word in words {
        match (word, word.parse::<u64>()) {
            (word, _) if CONSENT.contains(&word) => is_confirmed = true,
            ("--exact-times", _) => with_times = true,
            (_, Ok(given)) if verb == "undo" => number = Some(given),
            _ => {
                return Ok(format!(
                    "{word:?} is not understood. Use {prefix}undo, {prefix}undo 4, {prefix}undo yes, {prefix}undo 4 yes, {prefix}redo or {prefix}redo yes; other options work in a terminal."
                ));
            }
        }
    }
    if is_confirmed
        && number.is_none()
        && let Some(number) = just_carried_out(timeline, verb, arrived_at)?
    {
        return Ok(format!("carried out as step {number}"));
    }
    let planned = (|| {
        let number = match (verb, number) {
            ("redo", _) => timeline.last_undo()?,
            (_, Some(number)) => number,
            (_, None) => timeline.last_call()?,
        };
        match with_times {
            true => timeline.plan_undo_with_times(&[number], &[]),
            false => timeline.plan_undo(&[number], &[]),
        }
    })();
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => return Ok(CommandError::from(error).to_string()),
    };
    let steps = timeline.steps()?;
    let mut lines = plan_lines(&plan, &steps);
    lines.extend(lines_elsewhere(&plan.steps, timeline)?);
    match is_confirmed && !plan.is_empty() {
        true => {
            let report = timeline.apply_undo(&plan, now())?;
            lines.extend(report_lines(&report, &plan, &steps, prefix));
        }
        false if plan.is_empty() => {}
        false => {
            lines.push(OUTSIDE.to_owned());
            let number = match verb {
                "undo" => plan.steps.iter().map(|number| format!(" {number}")).collect(),
                _ => String::new(),
            };
            let times = if with_times { " --exact-times" } else { "" };
            lines.push(format!("Type `{prefix}{verb}{number}{times} yes` to carry it out."));
        }
    }
    Ok(lines.join("\n"))
}

/// Returns the step of an undo or a redo that another hook has made for the same prompt.
fn just_carried_out(timeline: &Timeline, verb: &str, arrived_at: DateTime<Utc>) -> Result<Option<u64>> {
    let steps = timeline.steps()?;
    let is_same = |step: &&Step| {
        let closed = step.closed_at.is_some_and(|closed| arrived_at - closed < REPORTED_TWICE);
        closed && step.undo().is_some_and(|undo| undo_word(undo, &steps) == verb)
    };
    Ok(steps.last().filter(is_same).map(|step| step.number))
}
