//! `foldlog rewind`: returns a session and its workspaces to an earlier position, without its host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use foldlog::filesystem::{self, ChangeKind, ContentDiff, FileBrief, FileRewound, FileUnknown, KeptFile};
use foldlog::inspect::{Difference, LedgerEntry, LogReader};
use foldlog::tools::{
    CaptureMoment, CaptureTaken, ResourcePreview, ResourceRewound, RewindOptions, RewindPreview,
    RewindReport, SkippedResource,
};
use foldlog::{Error, ExecutionState, OperationId, ResourceRegistry, SequenceNumber, Session};
use foldlog_codec::escape;
use foldlog_tasks::open_without_host;
use foldlog_view::positions::{Position, position};
use foldlog_view::shell::quote_word;
use foldlog_view::text::count_text;

use crate::command::{Access, Argument, Command, Group};
use crate::difference_text::difference_text;
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::{in_store, open_session};
use crate::workspaces::{WorkspaceArgs, named_part, places};

/// Describes a rewind, and the fields of `rewind --json`.
const REWIND_JSON: &str = "\
A workspace returns to its state after the last call before TO. Without such a call, it returns to
its state before the first call after TO. Changes by hand since the last call are kept: if calls
have changed other lines of the file, or only its permissions, their changes are removed from it, or
else the file stays whole; files that were removed by hand stay removed. Files that captures leave
out, and resources that are not directories, remain unchanged.

--undo returns to the state before the last rewind, and abandons later work. If a later rollback of
a failed or recovered call replaced or removed files, --undo brings these files back instead; later
changes, and STATE, remain. --of does this for the rollback of any call.
--preview prints what a rewind or an undo would do.

With --json one object:
  operation    operation of the rewind, as in `foldlog ledger`; undoes: rewind or call that it undid
  rolled_back  sequence, to, abandoned; outside: calls that may have had external effects, which
               remain
  resources    name, capture (record, of), created, modified, removed,
               kept (path, by_hand, otherwise, in_place_of, merged), kept_more,
               unknown (path, otherwise): kept files that a tool may or may not have written,
               unknown_more, left_out
  left         name, reason of each unchanged resource
  not_undone   resource, path, reason of each part that was not restored exactly
With --preview one object:
  from, to, undoes, left, abandoned
  resources    name, capture, kept, unknown, left_out, files: path, change, before, after (len,
               permissions), diff (form: text, binary, too_long, equal; unified)
  slices, conversations
               items, messages and turns, before and after; turns_removed: their records
  differences  as in `foldlog diff --json`
  tags         tag, position of snapshots that would be abandoned
  outside      operation, tool, call_id, idempotency
  recover_first
               operations of an interrupted session, which must be recovered first; the preview
               shows the rewind after that";

/// Forms of the command, with the options that most sessions need.
const USAGE: &str = "\
foldlog rewind [OPTIONS] <SESSION> <TO> --workspace <NAME=DIR> --by <WHO> --reason <WHY>
       foldlog rewind [OPTIONS] <SESSION> --undo --workspace <NAME=DIR> --by <WHO> --reason <WHY>
       foldlog rewind [OPTIONS] <SESSION> <TO> --preview --workspace <NAME=DIR>";

/// Take a session and its files back to a position.
///
/// Works without the host's code. The present state is captured first, and `--undo` brings it back.
/// Changes by hand since the last call are kept. Do not write into the directories meanwhile.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = REWIND_JSON, override_usage = USAGE)]
pub struct Args {
    /// Directory of the session
    pub session: PathBuf,
    /// Position to go back to, or the tag of a snapshot
    #[arg(required_unless_present = "undo", conflicts_with = "undo")]
    pub to: Option<Position>,
    /// Undo the last rewind, or the last rollback of a call that replaced or removed files
    #[arg(long)]
    pub undo: bool,
    /// Undo the rollback of this operation instead of the last one
    ///
    /// `foldlog ledger SESSION` lists what each rollback has replaced.
    #[arg(long, value_name = "OPERATION", requires = "undo")]
    pub of: Option<u64>,
    /// Print what would change, with diffs, without writing into the session's log
    #[arg(long)]
    pub preview: bool,
    /// Revert changes by hand too
    #[arg(long)]
    pub overwrite: bool,
    /// Name of the person who rewinds the session
    #[arg(long, value_name = "WHO", value_parser = crate::value_parsers::parse_nonblank, required_unless_present = "preview")]
    pub by: Option<String>,
    /// Reason for the rewind
    #[arg(long, value_name = "WHY", value_parser = crate::value_parsers::parse_nonblank, required_unless_present = "preview")]
    pub reason: Option<String>,
    /// Directories, and whether a replicated session is written.
    #[command(flatten)]
    pub directories: WorkspaceArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Run;
    const ACCESS: Access = Access::ChangesUnless("--preview");
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog rewind SESSION 42 --workspace DIR --by NAME --reason TEXT";

    /// Rewinds a session and its workspaces, or reports the effects of that.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the session is in no store, has no such
    ///   position or tag, or the directory of a workspace is not given.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if another process has the session open for
    ///   writing, if it must be recovered first, or if it is corrupt; if there is no rewind to
    ///   undo; or if a workspace cannot be restored.
    fn run(mut self, output: &mut Output<'_>) -> Result<u8> {
        let (root, id) = in_store(&self.session)?;
        let log = open_session(&self.session, output)?;
        let to = self.to.clone().map(|to| position(&log, Some(to))).transpose()?;
        // A preview writes nothing.
        self.directories.writing.unreplicated |= self.preview;
        let store = self.directories.writing.open(&root, output)?;
        let session = match self.preview {
            true => store.open_to_preview(id)?,
            false => open_without_host(&store, id)?.0,
        };
        let at = At { asked: &self, is_held: log.replicated_record().is_some() };
        let done = rewind(&session, at, to, output);
        let closed = session.close();
        done.map_err(|failure| explain_failure(failure, &log, at))?;
        closed?;
        Ok(HOLDS)
    }
}

/// The command line, from which commands are printed, and whether its session is replicated.
#[derive(Clone, Copy)]
struct At<'a> {
    asked: &'a Args,
    is_held: bool,
}

impl At<'_> {
    /// Returns the option that a verb needs to write the session.
    fn option(self) -> &'static str {
        if self.is_held { " --unreplicated" } else { "" }
    }

    /// Returns the session's directory, quoted for a shell.
    fn dir(self) -> String {
        quote_word(self.asked.session.as_os_str())
    }
}

/// Adds the next step to errors about an interrupted session, a position within a call, or a file
/// that cannot be restored.
fn explain_failure(failure: CommandError, log: &LogReader, at: At<'_>) -> CommandError {
    let CommandError::View(foldlog_view::Error::Engine(error)) = failure else { return failure };
    let next = match &error {
        Error::InsideTransaction { position, .. } => outside(log, *position),
        Error::Interrupted { .. } => Some(format!("let its host recover it, or run `{}`", recovery(at))),
        Error::Filesystem(filesystem::Error::NotRestored { .. }) => Some(
            "the session and the other files are unchanged; remove what is in the way, and rewind again"
                .to_owned(),
        ),
        _ => None,
    };
    match next {
        Some(next) => CommandError::usage(error.to_string(), next),
        None => error.into(),
    }
}

/// Names the nearest positions outside of the call that contains a position; `None` if the log
/// contains no such call.
fn outside(log: &LogReader, position: SequenceNumber) -> Option<String> {
    let ledger = log.ledger().ok()?;
    let holds = |entry: &&LedgerEntry| entry.begin <= position && entry.end.is_none_or(|end| position < end);
    // Nested calls start later.
    let call = ledger.iter().filter(holds).min_by_key(|entry| entry.begin)?;
    let before = call.begin.checked_sub(1)?;
    Some(match call.end {
        Some(end) => format!("rewind to {before}, before that call, or to {end}, after it"),
        None => format!("rewind to {before}, before that call"),
    })
}

/// Returns the command that recovers the session with the given directories.
fn recovery(at: At<'_>) -> String {
    let mut command = format!("foldlog recover {}{}", at.dir(), at.option());
    let WorkspaceArgs { workspaces, snapshots, rebind, .. } = &at.asked.directories;
    let given = [("--workspace", workspaces), ("--rebind", rebind), ("--snapshots", snapshots)];
    for (option, directories) in given {
        for directory in directories {
            command.push_str(&format!(" {option} {}", quote_word(directory.as_ref())));
        }
    }
    command
}

fn rewind(session: &Session, at: At<'_>, to: Option<SequenceNumber>, output: &mut Output<'_>) -> Result<()> {
    let asked = at.asked;
    let (state, roots) = run_of(session, asked)?;
    let options = RewindOptions {
        overwrite: asked.overwrite,
        of: asked.of.map(OperationId::new),
        by: asked.by.clone(),
        reason: asked.reason.clone(),
    };
    if asked.preview {
        let preview = match to {
            Some(to) => state.preview_rewind(to, &options)?,
            None => state.preview_undo(&options)?,
        };
        if output.json() {
            return output.value(&preview);
        }
        if !preview.recover_first.is_empty() {
            let calls: Vec<String> = preview.recover_first.iter().map(ToString::to_string).collect();
            output.line(format_args!(
                "the session was interrupted within operation {}: it must be recovered before a rewind",
                calls.join(", ")
            ))?;
            output.line(format_args!(
                "  let its host recover it, or run `{}`; a rewind then does the following",
                recovery(at)
            ))?;
        }
        return print_preview(&preview, &roots, output);
    }
    let report = match to {
        Some(to) => state.rewind(to, &options)?,
        None => state.undo_rewind(&options)?,
    };
    output.print(&report, |output| print_report(&report, at, &roots, output))
}

/// Creates the execution state of the session with the given directories. Returns also their paths,
/// by the names of the workspaces.
fn run_of(session: &Session, asked: &Args) -> Result<(ExecutionState, BTreeMap<String, PathBuf>)> {
    let captured = session.calls().recorded_captures()?.into_iter();
    let mut captured: BTreeMap<_, _> = captured.map(|(name, recorded)| (name, Some(recorded))).collect();
    // If the session was interrupted within the first call on a workspace, only that call has
    // captured it.
    for (name, recorded) in session.calls().open_captures()? {
        captured.entry(name).or_insert(recorded);
    }
    let directories = &asked.directories;
    let places = places(captured, &asked.session, directories)?;
    if places.is_empty() && !(directories.workspaces.is_empty() && directories.rebind.is_empty()) {
        return Err(CommandError::usage(
            "the session has no captures of a workspace",
            "leave out --workspace and --rebind",
        ));
    }
    let (mut roots, mut resources) = (BTreeMap::new(), ResourceRegistry::builder());
    for place in places {
        // The contents of a replacement directory are captured before they are changed.
        let files = Arc::new(place.open(true)?);
        roots.insert(place.name.clone(), files.root().to_owned());
        resources = resources.named(place.name, files);
    }
    Ok((ExecutionState::new(session.clone(), resources.build()?), roots))
}

fn print_preview(
    preview: &RewindPreview,
    roots: &BTreeMap<String, PathBuf>,
    output: &mut Output<'_>,
) -> Result<()> {
    let RewindPreview { from, to, undoes, .. } = preview;
    let is_rollback = preview.resources.iter().any(|one| one.capture.of == CaptureMoment::RollbackBegan);
    match undoes {
        Some(undoes) if is_rollback => output.line(format_args!(
            "would bring back the files that the rollback of operation {undoes} replaced"
        ))?,
        undoes => {
            let undo = undoes.map(|undoes| format!(", which undoes the rewind {undoes}")).unwrap_or_default();
            output.line(format_args!("would go back from position {from} to {to}{undo}"))?;
        }
    }
    for ResourcePreview { name, capture, files, kept, unknown, left_out } in &preview.resources {
        print_place(name, *capture, !(kept.is_empty() && unknown.is_empty()), roots, output)?;
        for file in files {
            print_file(file, output)?;
        }
        print_kept(kept, *left_out, output)?;
        print_unknown(unknown, 0, output)?;
        if files.is_empty() && kept.is_empty() && unknown.is_empty() {
            output.line("  no file changes")?;
        }
    }
    print_left(&preview.left, output);
    for slice in &preview.slices {
        let (name, after) = (escape::text(&slice.name), count_text(slice.items_after, "item"));
        output.line(format_args!(
            "slice {name}: {} to {after}; {} removed, {} added",
            slice.items_before, slice.removed, slice.added
        ))?;
        for difference in preview.differences.iter().filter(|one| one.slice.as_ref() == Some(&slice.name)) {
            output.line(difference_text(difference))?;
        }
    }
    for conversation in &preview.conversations {
        let (evaluation, turns) =
            (escape::text(&conversation.evaluation_id), count_text(conversation.turns_after, "turn"));
        output.line(format_args!(
            "conversation of `{evaluation}`: {} to {}, {} to {turns}",
            conversation.messages_before,
            count_text(conversation.messages_after, "message"),
            conversation.turns_before
        ))?;
        for turn in &conversation.turns_removed {
            output.line(format_args!("  - turn at {turn}"))?;
        }
        let of_it = |one: &&Difference| one.conversation.as_ref() == Some(&conversation.evaluation_id);
        for difference in preview.differences.iter().filter(of_it) {
            output.line(difference_text(difference))?;
        }
    }
    for tag in &preview.tags {
        let text = escape::text(&tag.tag);
        output.line(format_args!("tag `{text}` at {} would be abandoned", tag.position))?;
    }
    for call in &preview.outside {
        let call_id = call.call_id.as_ref().map(|id| format!(", {}", escape::text(id))).unwrap_or_default();
        output.line(format_args!(
            "operation {} (`{}`{call_id}, {}) may have had external effects, which remain",
            call.operation,
            escape::text(&call.tool),
            call.idempotency.name()
        ))?;
    }
    Ok(())
}

fn print_report(
    report: &RewindReport,
    at: At<'_>,
    roots: &BTreeMap<String, PathBuf>,
    output: &mut Output<'_>,
) -> Result<()> {
    let (to, operation) = (report.rolled_back.to, report.operation);
    let is_rollback = report.resources.iter().any(|one| one.capture.of == CaptureMoment::RollbackBegan);
    match report.undoes.filter(|_| is_rollback) {
        Some(undone) => output.line(format_args!(
            "brought back the files that the rollback of operation {undone} had replaced; recorded as operation {operation}"
        ))?,
        None => output.line(format_args!(
            "the session is back at position {to}; recorded as operation {operation}"
        ))?,
    }
    for resource in &report.resources {
        let ResourceRewound { name, created, modified, removed, kept_more, .. } = resource;
        let kept_any = !resource.kept.is_empty() || *kept_more > 0 || !resource.unknown.is_empty();
        print_place(name, resource.capture, kept_any, roots, output)?;
        output.line(format_args!(
            "  {} created, {modified} modified, {removed} removed",
            count_text(*created, "file")
        ))?;
        print_kept(&resource.kept, resource.left_out, output)?;
        if *kept_more > 0 {
            output.line(format_args!("  and {kept_more} more kept"))?;
        }
        print_unknown(&resource.unknown, resource.unknown_more, output)?;
    }
    print_left(&report.left, output);
    for left in &report.not_undone {
        let (named, reason) = (named_part(left), escape::text(&left.reason));
        output.note(format_args!("note: not undone: {}{reason}", escape::text(&named)));
    }
    for call in &report.rolled_back.outside {
        let tool = escape::text(&call.tool);
        output.note(format_args!(
            "note: operation {} (`{tool}`) may have had external effects, which remain",
            call.operation
        ));
    }
    output.line("to undo this:")?;
    let (dir, option) = (at.dir(), at.option());
    let mut command = format!("foldlog rewind {dir} --undo --by \"$USER\" --reason WHY{option}");
    for (name, root) in roots {
        let mut directory = OsString::from(format!("{name}="));
        directory.push(root);
        command.push_str(" --workspace ");
        command.push_str(&quote_word(&directory));
    }
    output.line(format_args!("    {command}"))
}

fn print_place(
    name: &str,
    capture: CaptureTaken,
    kept_any: bool,
    roots: &BTreeMap<String, PathBuf>,
    output: &mut Output<'_>,
) -> Result<()> {
    let when = match capture.of {
        CaptureMoment::CallEnded => "after the call that ended",
        CaptureMoment::CallBegan => "before the call that started",
        CaptureMoment::CallBeganLater => "before the first later call, which started",
        CaptureMoment::RewindBegan => "before the rewind that started",
        CaptureMoment::RollbackBegan => "before the rollback of the call that ended",
    };
    let root = roots.get(name).map(|root| escape::path(root)).unwrap_or_default();
    let name = escape::text(name);
    let but = if kept_any { ", except for kept files" } else { "" };
    output.line(format_args!("workspace `{name}`, {root}: as {when} at {}{but}", capture.record))
}

fn print_file(file: &FileRewound, output: &mut Output<'_>) -> Result<()> {
    let FileRewound { path, change, before, after, diff } = file;
    let len = |brief: &Option<FileBrief>| brief.map_or(0, |brief| brief.len);
    let sizes = match change {
        ChangeKind::Created => count_text(len(after), "byte"),
        ChangeKind::Modified => format!("{} to {}", len(before), count_text(len(after), "byte")),
        ChangeKind::Removed => count_text(len(before), "byte"),
    };
    let permissions = |brief: &Option<FileBrief>| brief.and_then(|brief| brief.permissions);
    let modes = match (permissions(before), permissions(after)) {
        (Some(was), Some(is)) if was != is => format!(", mode {was:o} to {is:o}"),
        _ => String::new(),
    };
    let form = match diff {
        ContentDiff::Binary => ", binary",
        ContentDiff::TooLong => ", too long to show",
        ContentDiff::Text { .. } | ContentDiff::Equal => "",
    };
    output.line(format_args!("  {change} {}: {sizes}{modes}{form}", escape::text(path)))?;
    if let ContentDiff::Text { unified } = diff {
        for line in unified.lines() {
            output.line(format_args!("    {}", escape::text(line)))?;
        }
    }
    Ok(())
}

fn print_kept(kept: &[KeptFile], left_out: u64, output: &mut Output<'_>) -> Result<()> {
    for KeptFile { path, by_hand, in_place_of, merged, .. } in kept {
        let instead = in_place_of.as_ref().map(|other| format!(", in place of {}", escape::text(other)));
        let path = escape::text(path);
        if *merged {
            output.line(format_args!("  merged {path}: changes by hand stay, others are taken back"))?;
            continue;
        }
        output.line(format_args!("  kept {path}: {by_hand} by hand{}", instead.unwrap_or_default()))?;
    }
    match left_out {
        0 => Ok(()),
        _ => output.line(format_args!("  {} left out of captures, unchanged", count_text(left_out, "file"))),
    }
}

fn print_unknown(unknown: &[FileUnknown], more: u64, output: &mut Output<'_>) -> Result<()> {
    for FileUnknown { path, otherwise } in unknown {
        let path = escape::text(path);
        output.line(format_args!(
            "  kept {path}: unknown whether a tool wrote it; {otherwise} with --overwrite"
        ))?;
    }
    match more {
        0 => Ok(()),
        _ => output.line(format_args!("  and {more} more of unknown origin")),
    }
}

fn print_left(left: &[SkippedResource], output: &mut Output<'_>) {
    for SkippedResource { name, reason } in left {
        let (name, reason) = (escape::text(name), escape::text(reason));
        output.note(format_args!("note: `{name}` is unchanged: {reason}"));
    }
}
