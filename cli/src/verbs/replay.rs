//! `foldlog replay`: [checks](crate::replay_check) a session by a new fold, and its lineage.

use std::path::PathBuf;
use std::sync::Arc;

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::storage::FileStorage;
use foldlog::{Parent, Store};
use foldlog_view::session_dirs::store_of;
use foldlog_view::text::count_text;

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::open_session;
use crate::replay_check::{ReplayCheckReport, replay};

/// Fold a session again, and check its rollbacks.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// Check every rollback, not only 16 of them
    #[arg(long)]
    pub thorough: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Keep;
    const URLS: Urls = Urls::Copied;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog replay SESSION --thorough";

    /// Replays a session, and prints the result.
    ///
    /// # Errors
    ///
    /// - [`Error::DoesNotHold`](foldlog_view::Error::DoesNotHold) if the log diverges, with the
    ///   first difference.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the session is corrupt or cannot be
    ///   read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let reader = open_session(&self.session, output)?;
        let progress = output.progress("replaying records", reader.records_len());
        let mut replayed = replay(&reader, self.thorough, progress)?;
        replayed.lineage = lineage(&reader, output)?;
        output.print(&replayed, |output| print(&replayed, output))?;
        let Some(difference) = replayed.difference else { return Ok(HOLDS) };
        Err(CommandError::View(foldlog_view::Error::DoesNotHold(difference.to_string())))
    }
}

fn print(replayed: &ReplayCheckReport, output: &mut Output<'_>) -> Result<()> {
    let (records, rollbacks) =
        (count_text(replayed.records, "record"), count_text(replayed.rollbacks, "rollback"));
    output.line(format_args!("session {}: {records} folded", replayed.session))?;
    let compacted = match replayed.compacted {
        0 => String::new(),
        some => format!("; {some} cannot be checked: a compaction has dropped the slices' contents there"),
    };
    output.line(format_args!("{} of {rollbacks} checked{compacted}", replayed.checked))?;
    if replayed.lineage {
        output.line("the records that the session shares with its parent are equal")?;
    }
    output.line(format_args!("digest {}", replayed.digest))?;
    if replayed.difference.is_none() {
        output.line("the log is valid: a fold from its first record contradicts nothing in it")?;
    }
    Ok(())
}

/// Compares a fork with its parent, and returns whether the parent could be read.
fn lineage(reader: &LogReader, output: &mut Output<'_>) -> Result<bool> {
    let Some(Parent::Fork { session, .. }) = reader.opening_record().parent else { return Ok(false) };
    let Some((store, _)) = store_of(reader.dir()) else { return Ok(false) };
    let dir = Store::open(store)?.session_dir(session);
    let options = ReadOptions { outline: true, memory_bytes: output.memory_bytes };
    match LogReader::open_with(Arc::new(FileStorage::new()), &dir, options) {
        Ok(parent) => {
            reader.check_lineage(&parent)?;
            Ok(true)
        }
        // A fork is complete without its parent, which may be deleted or damaged.
        Err(error) => {
            output.note(format_args!("note: the fork was not compared with its parent: {error}"));
            Ok(false)
        }
    }
}
