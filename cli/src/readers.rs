//! Opens a session or a store at a path, and notes facts that its reader should know.
//!
//! | function | a damaged session | contents of items |
//! |---|---|---|
//! | [`open_session`] | is an error | are read |
//! | [`open_outline`] | is an error | are not read |
//! | [`open_sound`] | is read until the damage; [`code_of`] reports it at the end | are read |
//! | [`open_sound_outline`] | the same | are not read |

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use foldlog::inspect::{self, LogReader, ReadOptions, SessionFence, SoundEnd};
use foldlog::log::TornTail;
use foldlog::storage::FileStorage;
use foldlog::{Error, FileExposure, OpenOperation, Store, StoreOptions, UnsettledOperation};
use foldlog_codec::body::Replicated;
use foldlog_codec::escape;
use foldlog_view::bucket::bucket_at;
use foldlog_view::session_dirs::{leftovers, store_of};
use foldlog_view::shell::quote_word;
use foldlog_view::text::held_text;
use uuid::Uuid;

use crate::failure::{CommandError, DOES_NOT_HOLD, HOLDS, Result};
use crate::output::Output;

/// Notes that a session's directory is skipped. A crash during a session's creation leaves a
/// directory that [contains no records](foldlog_view::session_dirs::holds_anything); such a session
/// was never acknowledged. The note names the directory's other entries, which neither prove nor
/// disprove that records existed.
pub(crate) fn pass_over(dir: &Path, output: &mut Output<'_>) {
    let names: Vec<String> = leftovers(dir).iter().map(|path| escape::path(path)).collect();
    let names = match names.is_empty() {
        true => String::new(),
        false => {
            format!("; the remaining entries do not show whether it ever contained any: {}", names.join(", "))
        }
    };
    output.note(format_args!("note: {} is skipped: it contains no records{names}", escape::path(dir)));
}

/// Opens the store at a path, without creating one.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if there is no store at `path`,
/// [`Error::Engine`](foldlog_view::Error::Engine) if it cannot be opened.
pub fn open_store(path: &Path, output: &Output<'_>) -> Result<Store> {
    check_store(path)?;
    Ok(Store::open_with(path, output.store_options())?)
}

/// Checks that there is a store at a path.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if there is none.
pub(crate) fn check_store(path: &Path) -> Result<()> {
    if let Some(url) = bucket_at(path) {
        let what = format!("{} is not a store: this directory contains a bucket", escape::path(path));
        return Err(CommandError::usage(what, format!("give its URL: {}", quote_word(url.as_ref()))));
    }
    if inspect::is_store(path) {
        return Ok(());
    }
    let what = format!("{} is not a store: it contains no directory `sessions`", escape::path(path));
    Err(CommandError::usage(what, "give the directory that contains the directory `sessions`"))
}

/// Says whether a replicated session is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct WriteArgs {
    /// Write although the session is replicated.
    ///
    /// The new records count only if no other worker has continued the session, which this machine
    /// cannot check.
    #[arg(long)]
    pub unreplicated: bool,
}

impl WriteArgs {
    /// Opens the store at a path in order to write one of its sessions.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](foldlog_view::Error::Engine) if it cannot be opened.
    pub(crate) fn open(self, store: &Path, output: &Output<'_>) -> Result<Store> {
        let WriteArgs { unreplicated } = self;
        Ok(Store::open_with(store, StoreOptions { unreplicated, ..output.store_options() })?)
    }
}

/// Returns the store that contains a session's directory, and the session's id.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if the directory is in no store.
pub fn in_store(session: &Path) -> Result<(PathBuf, Uuid)> {
    store_of(session).ok_or_else(|| {
        let what = format!("{} is not the directory of a session in a store", escape::path(session));
        CommandError::usage(what, "give the directory of a session: STORE/sessions/ID")
    })
}

/// Opens a session for reading. Notes on standard error if other users may read it, if its end is
/// torn, which calls are open or unsettled, and which records cannot be folded.
///
/// # Errors
///
/// [`Error::Engine`](foldlog_view::Error::Engine) if the directory contains no session, or its log
/// is corrupt or cannot be read.
pub fn open_session(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    open_as(path, false, output)
}

/// Opens a session like [`open_session`], for a verb that needs no slices: the contents of their
/// items are not read.
///
/// # Errors
///
/// [`Error::Engine`](foldlog_view::Error::Engine) if the directory contains no session, or its log
/// is corrupt or cannot be read.
pub fn open_outline(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    open_as(path, true, output)
}

/// Opens the intact part of a session like [`open_session`]: all of it, or the records before the
/// first damage. At the end, [`code_of`] reports the damage.
///
/// # Errors
///
/// [`Error::Engine`](foldlog_view::Error::Engine) if the directory contains no session, no part of
/// it is intact, or it cannot be read.
pub fn open_sound(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    let options = ReadOptions { outline: false, memory_bytes: output.memory_bytes };
    note_report(LogReader::open_sound(Arc::new(FileStorage::new()), path, options)?, output)
}

/// Opens the intact part of a session like [`open_outline`].
pub fn open_sound_outline(path: &Path, output: &mut Output<'_>) -> Result<LogReader> {
    let options = ReadOptions { outline: true, memory_bytes: output.memory_bytes };
    note_report(LogReader::open_sound(Arc::new(FileStorage::new()), path, options)?, output)
}

/// Returns the exit code of a verb that has printed its results. If damage ended the reading,
/// reports the damage and the end of the intact part, and how to list the records after it.
pub fn code_of(reader: &LogReader, output: &mut Output<'_>) -> u8 {
    let beyond = "; `foldlog show SESSION --beyond-damage` lists the intact records after the damage";
    code_with(reader, beyond, output)
}

/// Returns the exit code like [`code_of`]. `beyond` is added to the end of the intact part.
pub(crate) fn code_with(reader: &LogReader, beyond: &str, output: &mut Output<'_>) -> u8 {
    let Some(end) = reader.sound_end() else { return HOLDS };
    let SoundEnd { segment, offset, sequence, damage, .. } = end;
    let failure = CommandError::from(damage.clone());
    output.error(&failure);
    output.note(format_args!(
        "  reading ended before record {sequence}, at byte {offset} of {}{beyond}",
        escape::path(segment)
    ));
    if let Some(next) = failure.next() {
        output.note(format_args!("  next: {next}"));
    }
    DOES_NOT_HOLD
}

fn open_as(path: &Path, outline: bool, output: &mut Output<'_>) -> Result<LogReader> {
    let options = ReadOptions { outline, memory_bytes: output.memory_bytes };
    note_report(LogReader::open_with(Arc::new(FileStorage::new()), path, options)?, output)
}

fn note_report(reader: LogReader, output: &mut Output<'_>) -> Result<LogReader> {
    let report = reader.report();
    note_exposed(report.exposed.as_ref(), output);
    note_torn(report.torn.as_ref(), output);
    match reader.replicated_record() {
        None => note_interrupted(&report.interrupted, &report.unsettled, output),
        Some(replicated) => {
            // These warnings do not apply to a place's current contents.
            if !output.is_held {
                match inspect::read_fence(reader.dir()) {
                    Some(fenced) => note_fenced(&fenced, output),
                    None => note_replicated(replicated, output),
                }
            }
            note_held_calls(&report.interrupted, &report.unsettled, output);
        }
    }
    if let Some((sequence, kind)) = report.unsupported {
        output.note(format_args!(
            "note: record {sequence} is of kind {kind}, which this version of foldlog lists but cannot fold; use a newer \
             version"
        ));
    }
    Ok(reader)
}

/// Notes if other users may read a session's files.
pub(crate) fn note_exposed(exposed: Option<&FileExposure>, output: &mut Output<'_>) {
    if let Some(exposed) = exposed {
        output.note(format_args!("note: {exposed}; `chmod -R go= STORE` removes their access"));
    }
}

/// Notes which calls are open, and which wait to be settled.
pub(crate) fn note_interrupted(
    open: &[OpenOperation],
    unsettled: &[UnsettledOperation],
    output: &mut Output<'_>,
) {
    for open in open {
        output.note(format_args!(
            "note: operation {} (`{}`) has not ended: it is still running, or its process is gone and the session must be \
             recovered by its host or `foldlog recover`; STATE includes the changes of the call so far",
            open.operation,
            escape::text(&open.tool)
        ));
    }
    for unsettled in unsettled {
        output.note(format_args!(
            "note: operation {} (`{}`) was interrupted: its host runs it again if that is safe (`foldlog run --resume` settles it as failed); \
             otherwise decide with `foldlog settle`: `foldlog ledger` prints the commands",
            unsettled.operation,
            escape::text(&unsettled.tool)
        ));
    }
}

fn note_replicated(replicated: &Replicated, output: &mut Output<'_>) {
    output.note(format_args!(
        "note: {}; another worker may have continued the session, which this log does not show",
        held_text(replicated)
    ));
}

/// Notes the first record of a fenced session's log that does not count.
fn note_fenced(fenced: &SessionFence, output: &mut Output<'_>) {
    output.note(format_args!(
        "note: another worker ({}, epoch {}) has claimed this session and continues it: the records from {} on were never \
         acknowledged, and do not count, not even as the end of a call",
        escape::text(&fenced.by),
        fenced.epoch,
        fenced.from
    ));
}

/// Notes the open calls of a replicated session's log, which its writer has to handle.
fn note_held_calls(open: &[OpenOperation], unsettled: &[UnsettledOperation], output: &mut Output<'_>) {
    let open = open.iter().map(|open| (open.operation, &open.tool, "has not ended in this log"));
    let unsettled = unsettled.iter().map(|one| (one.operation, &one.tool, "was interrupted"));
    for (operation, tool, what) in open.chain(unsettled) {
        output.note(format_args!(
            "note: operation {operation} (`{}`) {what}: the host that has claimed the session ends or settles it",
            escape::text(tool)
        ));
    }
}

pub(crate) fn note_torn(torn: Option<&TornTail>, output: &mut Output<'_>) {
    if let Some(torn) = torn {
        output.note(format_args!(
            "note: the tail of the log is torn: the bytes from record {} on ({} B) were never acknowledged as durable, and \
             are left out",
            torn.sequence, torn.bytes
        ));
    }
}

/// Converts the result of an engine function that writes to the output. An error of the output
/// becomes [`Error::Output`](foldlog_view::Error::Output), since it does not concern the log.
///
/// # Errors
///
/// [`Error::Output`](foldlog_view::Error::Output) if the output cannot be written,
/// [`Error::Engine`](foldlog_view::Error::Engine) for any other error.
pub(crate) fn map_write_error(result: foldlog::Result<()>) -> Result<()> {
    result.map_err(|error| match error {
        Error::Io { op: "write", source, .. } => {
            CommandError::View(foldlog_view::Error::Output(io::Error::new(source.kind(), source.to_string())))
        }
        error => error.into(),
    })
}
