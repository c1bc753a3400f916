//! `foldlog backup`: copies a session, or all sessions of a store, into another store. A repeated
//! backup copies only the new parts.

use std::path::PathBuf;

use foldlog::inspect;
use foldlog::{BackupOptions, BackupReport, CapturesElsewhere, DamagedCapture, Error, Store};
use foldlog_view::session_dirs::{holds_anything, lost_segments};
use foldlog_view::shell::quote_word;
use foldlog_view::text::count_text;
use serde::Serialize;
use uuid::Uuid;

use foldlog_codec::escape;

use crate::command::{Access, Argument, Command, Group, Target};
use crate::failure::{CommandError, HOLDS, Result, UNUSABLE};
use crate::output::Output;
use crate::readers::{open_store, pass_over};

/// Describes the fields of `backup --json`.
const BACKUP_JSON: &str = "\
With --json one object:
  copied       one object for each session:
    session, dir      id of the session, directory of the copy
    records           number of records in the copy; records_before: number in the older copy
    segments, objects, files, bytes
                      copied now; files: other files, such as captures of workspaces
    verified          number of records that were read from the copy and checked
    captures          number of captures of workspaces that the copy contains
    captures_absent   number of captures that the session's directory lacks
    captures_healed   number of damaged files of captures in the copy that were copied again
    elsewhere         workspaces whose captures are not in the session's directory: resource,
                      captures, parent (the session that has them, or null)
    damaged           damaged files of captures: path, reason; later backups report them again
    damaged_more      number of further damaged files of captures
  failed       sessions of a store that could not be copied: session, reason
  passed_over  number of directories of a store that contain no records";

/// Copy sessions while they are written.
///
/// The copy is a store: to restore it, open it. A later backup into the same directory
/// copies only what is new, if the copy is the beginning of the session; otherwise nothing
/// is changed, and the difference is reported. Copied bytes are checked before they count,
/// and a kill at any moment leaves the older copy intact. Captures of workspaces are copied
/// if they are in the session's directory, as `foldlog run` keeps them. Workspaces are not
/// copied.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = BACKUP_JSON)]
pub struct Args {
    /// Directory of the session or store
    #[arg(value_name = "SESSION|STORE")]
    pub from: PathBuf,
    /// Directory of the store for the copies, created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Copy the newest image too, so that the copy opens as fast as the session
    #[arg(long)]
    pub images: bool,
    /// Check all captures in the session and in the copy, not only newly copied ones
    #[arg(long)]
    pub check_captures: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Keep;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::SessionOrStore;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.from);
    const EXAMPLE: &'static str = "foldlog backup STORE --to COPY";

    /// Copies the session or the store at `from` into the store at `to`, and prints a summary.
    /// Returns the exit code 2 if a session of a store cannot be copied and none is damaged.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if `to` is `from` or the store that contains
    ///   it, or is inside either.
    /// - [`Error::DoesNotHold`](foldlog_view::Error::DoesNotHold) if a session of a store is
    ///   damaged, after the result is printed.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if `from` is neither a session nor a store,
    ///   if a session that was named cannot be copied, or if the other store cannot be created.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let options = BackupOptions { images: self.images, check_captures: self.check_captures };
        let (from, to) = (self.from.as_path(), self.to.as_path());
        // A session that was copied by hand may be in no store.
        let around = if inspect::is_store(from) { None } else { inspect::store_around(from) };
        let (itself, its_store) = ("which is to be copied", "the store of the session to be copied");
        for (directory, what) in [(Some(from), itself), (around.as_deref(), its_store)] {
            let Some(directory) = directory.filter(|directory| inspect::is_within_directory(to, directory))
            else {
                continue;
            };
            let (to, directory) = (escape::path(to), escape::path(directory));
            let what = format!("{to} is the same as or inside {directory}, {what}");
            return Err(CommandError::usage(what, "give a directory outside of it: `--to DIR`"));
        }
        let mut document = Document::default();
        let mut damaged = 0;
        if inspect::is_store(from) {
            let store = open_store(from, output)?;
            let copies = Store::open_with(to, output.store_options())?;
            let sessions = store.session_ids()?;
            let mut progress = output.progress("copying sessions", sessions.len() as u64);
            for (done, session) in (1..).zip(sessions) {
                let dir = store.session_dir(session);
                if !holds_anything(&dir) && lost_segments(&dir).is_none() {
                    document.passed_over += 1;
                    pass_over(&dir, output);
                    continue;
                }
                match copies.backup_from(&dir, options) {
                    Ok(report) => document.copied.push(report),
                    Err(error) => {
                        damaged += usize::from(error.is_damage() || lost_segments(&dir).is_some());
                        document.failed.push(BackupFailure { session, reason: error.to_string() });
                    }
                }
                progress.at(done);
            }
        } else {
            // Checked first, so that no store is created for a directory without a session.
            if !from.is_dir() {
                let reason = if from.exists() { "it is not a directory" } else { "it does not exist" };
                let reason = reason.to_owned();
                return Err(Error::NotASession { path: from.to_owned(), reason }.into());
            }
            document.copied.push(Store::open_with(to, output.store_options())?.backup_from(from, options)?);
        }
        output.print(&document, |output| print(&document, output))?;
        let of_captures = |copied: &&BackupReport| !copied.damaged.is_empty();
        let damaged_captures = document.copied.iter().filter(of_captures).count() as u64;
        match (damaged, document.failed.is_empty()) {
            (0, is_all) if damaged_captures > 0 => {
                let sessions = count_text(damaged_captures, "session");
                let rest =
                    if is_all { "everything else was copied" } else { "other sessions could not be copied" };
                Err(CommandError::DamagedCaptures(format!("captures of {sessions} are damaged; {rest}")))
            }
            (0, true) => Ok(HOLDS),
            (0, false) => Ok(UNUSABLE),
            (damaged, _) => {
                let sessions = count_text(damaged as u64, "session");
                Err(CommandError::View(foldlog_view::Error::DoesNotHold(format!(
                    "{sessions} could not be copied because of a damaged log"
                ))))
            }
        }
    }
}

/// Result of a backup. The fields are those of `backup --json`.
#[derive(Debug, Default, Serialize)]
struct Document {
    copied: Vec<BackupReport>,
    failed: Vec<BackupFailure>,
    passed_over: u64,
}

#[derive(Debug, Serialize)]
struct BackupFailure {
    session: Uuid,
    reason: String,
}

fn print_elsewhere(elsewhere: &CapturesElsewhere, output: &mut Output<'_>) -> Result<()> {
    let (captures, name) = (count_text(elsewhere.captures, "capture"), escape::text(&elsewhere.resource));
    output.line(format_args!(
        "  not copied (outside the session's directory): {captures} of the workspace `{name}`"
    ))?;
    match elsewhere.parent {
        Some(parent) => output.line(format_args!(
            "    they are in the directory of its parent, session {parent}: back up that session too"
        ))?,
        None => output.line(format_args!(
            "    also copy the directory in which the host keeps them, with any tool; `foldlog rewind` and `foldlog recover` \
             read it with `--snapshots {}`",
            quote_word(format!("{}=DIRECTORY", elsewhere.resource).as_ref()),
        ))?,
    }
    Ok(())
}

fn print(document: &Document, output: &mut Output<'_>) -> Result<()> {
    for copied in &document.copied {
        let (session, new) = (copied.session, copied.records - copied.records_before);
        output.line(format_args!(
            "session {session}: {} ({new} new); copied {}, {}, {}, {} bytes; {} verified",
            count_text(copied.records, "record"),
            count_text(copied.segments, "segment"),
            count_text(copied.objects, "object"),
            count_text(copied.files, "other file"),
            copied.bytes,
            count_text(copied.verified, "record"),
        ))?;
        if copied.captures > 0 {
            output.line(format_args!("  {} read", count_text(copied.captures, "capture")))?;
        }
        if copied.captures_healed > 0 {
            let files = count_text(copied.captures_healed, "file");
            output.line(format_args!("  damaged in the copy, copied again: {files} of captures"))?;
        }
        for elsewhere in &copied.elsewhere {
            print_elsewhere(elsewhere, output)?;
        }
        for DamagedCapture { path, reason, .. } in &copied.damaged {
            let (path, reason) = (escape::path(path), escape::text(reason));
            output.line(format_args!("  damaged capture: {path}: {reason}"))?;
        }
        if copied.damaged_more > 0 {
            let more = count_text(copied.damaged_more, "more damaged file");
            output.line(format_args!("  and {more} of captures"))?;
        }
    }
    for failed in &document.failed {
        output.line(format_args!("session {}: not copied: {}", failed.session, failed.reason))?;
    }
    Ok(())
}
