//! A temporary copy of one replicated session, for a verb that needs random access to a log. It is
//! removed when the verb ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldlog::replication::{CapturePacks, HeldPart, ReplicaError, ReplicaStatus, Replication, Replicator};
use foldlog::{ObjectId, Record, SequenceNumber, Store, StoreOptions};
use foldlog_codec::escape;
use foldlog_remote::{Place, PlaceItem, SessionStanding};
use uuid::Uuid;

use super::HeldSession;
use super::rename::PathRewriter;
use super::temporary::TemporaryDirectory;
use crate::failure::{CommandError, Result};
use crate::hints::HintPaths;
use crate::output::Output;

/// Runs `verb` on a copy of a session in a place. In its output, the copy's path is replaced by the
/// session's URL.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if the place cannot be opened or reached, or a
///   temporary directory cannot be created.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the place does not contain the session, or
///   the session cannot be copied.
/// - Those of the verb.
pub(crate) fn with_copy(
    asked: &HeldSession,
    output: &mut Output<'_>,
    verb: impl FnOnce(&Path, &mut Output<'_>) -> Result<u8>,
) -> Result<u8> {
    let place = super::place(&asked.url)?;
    let Copy { directory, dir, standing } = Copy::pull(Arc::clone(&place), asked.session, output.is_process)?;
    output.note(format_args!(
        "note: {} is read from {}: epoch {}, claimed by `{}`",
        asked.session,
        place.url(),
        standing.epoch,
        escape::text(&standing.name)
    ));
    let places = HintPaths::of_held(&asked.url, &asked.to_string());
    let names = [(directory.path().to_owned(), asked.url.clone())];
    let (mut stdout, mut stderr) =
        (PathRewriter::new(&mut *output.stdout, &names), PathRewriter::new(&mut *output.stderr, &names));
    let mut within = Output {
        stdout: &mut stdout,
        stderr: &mut stderr,
        progress: output.progress,
        terminal: output.terminal,
        pager: None,
        child: output.child,
        pause: output.pause,
        is_process: output.is_process,
        is_held: true,
        json: output.json,
        color: output.color,
        places,
        columns: output.columns,
        memory_bytes: output.memory_bytes,
    };
    let done = verb(&dir, &mut within);
    // If standard error is closed, the notes have no reader.
    let _ = stderr.flush();
    let flushed = stdout.flush();
    let done = done.map_err(|failure| replace_path(failure, &names))?;
    flushed?;
    Ok(done)
}

/// Runs `check` on a copy of each session in a place, or of the one that the URL names. Each copy
/// is removed before the next is created. If a copy fails, `check` receives the error.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if the place cannot be opened or listed.
/// - Those of `check`.
pub(crate) fn with_each_copy(
    url: &str,
    output: &mut Output<'_>,
    check: &mut dyn FnMut(&HeldSession, Result<Copy>) -> Result<()>,
) -> Result<()> {
    let (place, sessions) = super::some_sessions_at(url)?;
    let mut progress = output.progress("verifying replicated sessions", sessions.len() as u64);
    for (done, held) in (1..).zip(&sessions) {
        check(held, Copy::pull(Arc::clone(&place), held.session, output.is_process))?;
        progress.at(done);
    }
    Ok(())
}

/// A copy of one session, in a directory that is removed on drop.
#[derive(Debug)]
pub(crate) struct Copy {
    directory: TemporaryDirectory,
    /// Directory of the session.
    pub(crate) dir: PathBuf,
    standing: SessionStanding,
}

impl Copy {
    /// Creates a copy. Signals are handled if this is a separate process.
    fn pull(place: Arc<dyn Place>, session: Uuid, is_process: bool) -> Result<Copy> {
        let directory = TemporaryDirectory::new(is_process)?;
        let source = Arc::new(CopyReplicator { place, standing: Mutex::default(), failed: Mutex::default() });
        let replication = Some(Replication::new(Arc::clone(&source) as Arc<dyn Replicator>));
        let store =
            Store::open_with(directory.path(), StoreOptions { replication, ..StoreOptions::default() })?;
        // The place's own error is more helpful than the engine's.
        store
            .pull(session)
            .map_err(|error| locked(&source.failed).take().map_or_else(|| error.into(), super::failure))?;
        let standing = locked(&source.standing).clone();
        Ok(Copy { dir: store.session_dir(session), directory, standing })
    }
}

/// Returns a failure with the copy's path in its texts replaced by the session's URL.
fn replace_path(failure: CommandError, names: &[(PathBuf, String); 1]) -> CommandError {
    let (text, next, code) = (failure.to_string(), failure.next(), failure.exit_code());
    let [(path, url)] = names;
    let path = path.display().to_string();
    if failure.is_closed_pipe() || !(text.contains(&path) || next.iter().any(|next| next.contains(&path))) {
        return failure;
    }
    let what = text.replace(&path, url);
    match code {
        crate::failure::DOES_NOT_HOLD => CommandError::Held(what),
        _ => CommandError::usage(what, next.unwrap_or_default().replace(&path, url)),
    }
}

/// Lets the engine read a place's sessions for a copy. It claims and replicates nothing.
#[derive(Debug)]
struct CopyReplicator {
    place: Arc<dyn Place>,
    standing: Mutex<SessionStanding>,
    /// Reason why the place could not be read.
    failed: Mutex<Option<foldlog_remote::Error>>,
}

impl CopyReplicator {
    fn note_failure(&self, error: foldlog_remote::Error) -> ReplicaError {
        let reason = error.to_string();
        *locked(&self.failed) = Some(error);
        ReplicaError::Failed { reason }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reads_only<T>() -> Result<T, ReplicaError> {
    Err(ReplicaError::Failed { reason: "it is only read here".to_owned() })
}

impl Replicator for CopyReplicator {
    fn place(&self) -> String {
        self.place.url().to_owned()
    }

    fn name(&self) -> String {
        String::new()
    }

    fn read(
        &self,
        session: Uuid,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<ReplicaStatus, ReplicaError> {
        let mut standing = SessionStanding::default();
        let mut reader = self.place.reader(session).map_err(|error| self.note_failure(error))?;
        reader
            .read_on(&mut |met| {
                standing.take(&met);
                if let PlaceItem::Record(record) = met {
                    visit(HeldPart::Record(record));
                }
            })
            .map_err(|error| self.note_failure(error))?;
        let (next, epoch) = (standing.next, standing.epoch);
        *locked(&self.standing) = standing;
        Ok(ReplicaStatus { next, epoch, is_ours: false, others_end: next })
    }

    fn claim(&self, _: Uuid, _: SequenceNumber) -> Result<u64, ReplicaError> {
        reads_only()
    }

    fn put_object(&self, _: Uuid, _: ObjectId, _: &[u8]) -> Result<(), ReplicaError> {
        reads_only()
    }

    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError> {
        let found = self.place.reader(session).and_then(|reader| reader.object(object));
        let found = found.map_err(|error| self.note_failure(error))?;
        let missing = || format!("the payload {} is missing", object.file_name());
        found.ok_or_else(|| ReplicaError::Failed { reason: missing() })
    }

    fn append(
        &self,
        _: Uuid,
        _: u64,
        _: Option<CapturePacks<'_>>,
        _: &[Record<'_>],
    ) -> Result<(), ReplicaError> {
        reads_only()
    }

    fn is_confirmed(&self, _: Uuid, _: u64) -> bool {
        false
    }

    fn confirm(&self, _: Uuid, _: u64) -> Result<(), ReplicaError> {
        reads_only()
    }

    fn release(&self, _: Uuid, _: u64) {}
}
