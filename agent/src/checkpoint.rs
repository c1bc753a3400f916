//! Checkpoints: small files that name the session in which a request is being worked on.
//!
//! A checkpoint only finds the session. The session's own log determines where the work continues,
//! which may be long after the checkpoint. Nothing is rolled back to a checkpoint, unless the host
//! does so with [`Session::rollback_to`] and [`Checkpoint::position`], and then pays again for the
//! answers after it.
//!
//! A checkpoint with a snapshot can resume even if the session is lost: [`import_session`] creates
//! a new session from it.
//!
//! | step of [`FileCheckpointHandler::save`] | state if the process ends after it |
//! |---|---|
//! | 1. write a temporary file next to the checkpoint, and sync it | the earlier checkpoint is in place; [`clear`](CheckpointHandler::clear) removes the temporary file |
//! | 2. rename it over the checkpoint | one of the two is in place, and each is complete |
//! | 3. sync the directory | the new checkpoint is in place |

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use foldlog::tools::{ExecutionState, ToolRunner};
use foldlog::{
    Export, ImportOptions, ResourceRegistry, SequenceNumber, Session, SessionTypes, Store, escape,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::adapter::{EvaluateOptions, PromptResponse, ProviderAdapter, ResumeFrom, check_prompt};
use crate::deadline::Deadline;
use crate::error::{Error, EvaluationPhase, Result};
use crate::prompt::Prompt;
use crate::provider::{CancelToken, Provider};

/// Version of the file format.
const VERSION: u32 = 1;
/// Longest file that is read, in bytes. Only a file with a whole snapshot is longer than a
/// kilobyte.
const LONGEST: u64 = 1 << 30;
/// Longest id of a request that can name a file, in bytes.
const LONGEST_ID: usize = 200;

/// Names the session in which a request is being worked on, and a position in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Session of the request.
    pub session: Uuid,
    /// Last record of the session when the checkpoint was created. The work may have continued
    /// since.
    pub position: SequenceNumber,
    /// BLAKE3 of the session's id and of the record at `position`: its number, kind, time and body.
    pub digest: [u8; 32],
    /// Snapshot of the session as JSON, if the host requested one.
    pub snapshot: Option<String>,
}

/// Stores the checkpoints of a host's requests.
pub trait CheckpointHandler<R: ?Sized>: Send + Sync {
    /// Returns the checkpoint of a request; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotRestore`] if the checkpoint cannot be read.
    fn load(&self, request: &R) -> Result<Option<Checkpoint>>;

    /// Stores a checkpoint, and replaces the request's earlier one. Called before the first turn,
    /// and after each turn.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] if the checkpoint cannot be stored.
    fn save(&self, request: &R, checkpoint: &Checkpoint) -> Result<()>;

    /// Removes the checkpoint of a request. Called only after the request has succeeded. Does
    /// nothing if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] if the checkpoint cannot be removed.
    fn clear(&self, request: &R) -> Result<()>;

    /// Returns whether checkpoints contain a snapshot of the whole session. The default is `false`.
    fn wants_snapshots(&self) -> bool {
        false
    }
}

impl Checkpoint {
    /// Creates a checkpoint of a session in its present state, with a snapshot of all slices if
    /// `with_snapshot`. The session's records are made durable first, because a checkpoint that
    /// outlives them would be refused.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the session's log cannot be read; [`Error::Checkpoint`] if the session
    /// is empty.
    pub fn from_session(session: &Session, with_snapshot: bool) -> Result<Checkpoint> {
        let position = session
            .log()
            .position()
            .ok_or_else(|| checkpoint_error("the session contains no records", None))?;
        session.sync()?;
        let snapshot = with_snapshot.then(|| session.log().export()?.to_json()).transpose()?;
        Ok(Checkpoint { session: session.id(), position, digest: digest(session, position)?, snapshot })
    }

    /// Checks that the checkpoint belongs to a session, and that the session contains its record.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotRestore`] if the session is another one, ends before the checkpoint, or has
    /// a different record at its position.
    pub fn check(&self, session: &Session) -> Result<()> {
        let refused = |reason: String| Err(Error::snapshot_restore(reason, None));
        if session.id() != self.session {
            return refused(format!("it belongs to session {}, not to {}", self.session, session.id()));
        }
        let last = session.log().position();
        if last.is_none_or(|last| last < self.position) {
            let last =
                last.map_or_else(|| "no records".to_owned(), |last| format!("{last} as its last record"));
            return refused(format!(
                "it was taken at record {}, but the session has {last}: the session is an older copy",
                self.position
            ));
        }
        if digest(session, self.position)? != self.digest {
            return refused(format!(
                "record {} of the session differs from the one in the checkpoint",
                self.position
            ));
        }
        Ok(())
    }

    /// Serializes the checkpoint as an indented JSON object.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] if the snapshot is not valid JSON.
    pub fn to_json(&self) -> Result<String> {
        let snapshot = self.snapshot.as_deref().map(serde_json::from_str).transpose();
        let snapshot = snapshot.map_err(|error| checkpoint_error("its snapshot is not valid JSON", error))?;
        let written = CheckpointDocument {
            version: VERSION,
            session: self.session,
            position: self.position,
            digest: blake3::Hash::from_bytes(self.digest).to_hex().to_string(),
            snapshot,
        };
        serde_json::to_string_pretty(&written)
            .map_err(|error| checkpoint_error("it cannot be written as JSON", error))
    }

    /// Parses a checkpoint from JSON.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotRestore`] if the text is truncated, malformed, or of a later version.
    pub fn from_json(text: &str) -> Result<Checkpoint> {
        let malformed = |error: serde_json::Error| {
            let what = if error.is_eof() { "it is truncated" } else { "it is not a checkpoint" };
            unrestored(what, error)
        };
        let version = serde_json::from_str::<FormatVersion>(text).map_err(malformed)?.version;
        if version > VERSION {
            let reason =
                format!("its format version is {version}, and this program reads versions up to {VERSION}");
            return Err(Error::snapshot_restore(reason, None));
        }
        let CheckpointDocument { session, position, digest, snapshot, .. } =
            serde_json::from_str(text).map_err(malformed)?;
        let digest = blake3::Hash::from_hex(digest)
            .map_err(|_| Error::snapshot_restore("its digest is not 64 hexadecimal digits", None))?;
        let snapshot = snapshot.map(|snapshot: serde_json::Value| snapshot.to_string());
        Ok(Checkpoint { session, position, digest: digest.into(), snapshot })
    }
}

#[derive(Serialize, Deserialize)]
struct CheckpointDocument {
    version: u32,
    session: Uuid,
    position: SequenceNumber,
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct FormatVersion {
    version: u32,
}

/// Returns the digest of a record, which also covers the session's id.
fn digest(session: &Session, position: SequenceNumber) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(session.id().as_bytes());
    session.log().records(position, position, |record| {
        hasher.update(&record.sequence.get().to_le_bytes());
        hasher.update(record.kind.name().as_bytes());
        hasher.update(&record.time_us.to_le_bytes());
        hasher.update(record.body);
        Ok(())
    })?;
    Ok(*hasher.finalize().as_bytes())
}

fn unrestored(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::snapshot_restore(format!("{what}: {error}"), Some(Box::new(error) as _))
}

fn checkpoint_error(reason: impl Into<String>, source: impl Into<Option<serde_json::Error>>) -> Error {
    let source = source.into().map(|error| Box::new(error) as _);
    Error::Checkpoint { reason: reason.into(), source }
}

/// Stores each request's checkpoint in a file `{id}.json` of one directory.
pub struct FileCheckpointHandler<R: ?Sized> {
    directory: PathBuf,
    id: Box<dyn Fn(&R) -> String + Send + Sync>,
    with_snapshots: bool,
}

impl<R: ?Sized> FileCheckpointHandler<R> {
    /// Creates a handler that stores checkpoints in a directory. The directory is created when the
    /// first checkpoint is saved. `id` names the request: 1 to 200 bytes, not starting with a dot,
    /// without `/`, `\` and control characters.
    pub fn new(
        directory: impl Into<PathBuf>,
        id: impl Fn(&R) -> String + Send + Sync + 'static,
    ) -> FileCheckpointHandler<R> {
        FileCheckpointHandler { directory: directory.into(), id: Box::new(id), with_snapshots: false }
    }

    /// Adds a snapshot of the whole session to each checkpoint.
    #[must_use]
    pub fn with_snapshots(self) -> FileCheckpointHandler<R> {
        FileCheckpointHandler { with_snapshots: true, ..self }
    }

    /// Returns the path of a request's checkpoint, whether or not the file exists.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] if the request's id is malformed, since the path could then be outside
    /// of the directory.
    pub fn path(&self, request: &R) -> Result<PathBuf> {
        let id = (self.id)(request);
        let refused = |c: char| c == '/' || c == '\\' || c.is_control();
        if id.is_empty() || id.len() > LONGEST_ID || id.starts_with('.') || id.contains(refused) {
            let id = escape::text(&id);
            let reason = format!(
                "`{id}` cannot be used as a file name: use 1 to {LONGEST_ID} bytes that do not begin with a \
                 dot, without `/`, `\\` or control characters"
            );
            return Err(Error::Checkpoint { reason, source: None });
        }
        Ok(self.directory.join(format!("{id}.json")))
    }
}

impl<R: ?Sized> CheckpointHandler<R> for FileCheckpointHandler<R> {
    fn load(&self, request: &R) -> Result<Option<Checkpoint>> {
        load_checkpoint(self.path(request)?)
    }

    fn save(&self, request: &R, checkpoint: &Checkpoint) -> Result<()> {
        let path = self.path(request)?;
        create_directory(&self.directory).map_err(|error| unusable("made", &self.directory, error))?;
        write_file(&path, checkpoint.to_json()?.as_bytes()).map_err(|error| unusable("written", &path, error))
    }

    fn clear(&self, request: &R) -> Result<()> {
        let path = self.path(request)?;
        clear_file(&path).map_err(|error| unusable("removed", &path, error))
    }

    fn wants_snapshots(&self) -> bool {
        self.with_snapshots
    }
}

fn unusable(verb: &str, path: &Path, error: io::Error) -> Error {
    let reason = format!("{} cannot be {verb}: {}", escape::path(path), escape::display(&error));
    Error::Checkpoint { reason, source: Some(Box::new(error)) }
}

/// Creates a directory with its parents, and makes the names of new directories durable.
fn create_directory(directory: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = directory.ancestors().take_while(|one| !one.exists()).collect();
    fs::create_dir_all(directory)?;
    for parent in missing.into_iter().filter_map(Path::parent) {
        sync_directory(parent)?;
    }
    Ok(())
}

/// Returns the common prefix of the names of temporary files for `path`.
fn temporary_prefix(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

/// Replaces a file atomically: readers find the old content or the new one. The new content is
/// durable when this returns.
fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    #[expect(clippy::disallowed_methods, reason = "it names a temporary file")]
    let temporary = directory.join(format!("{}{}", temporary_prefix(path), Uuid::new_v4()));
    let written = File::create_new(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    renamed?;
    sync_directory(directory)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    File::open(directory)?.sync_all()
}

/// Removes a file, and the temporary files that interrupted processes left behind.
fn clear_file(path: &Path) -> io::Result<()> {
    let missing_is_fine = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    missing_is_fine(fs::remove_file(path))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let prefix = temporary_prefix(path);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            missing_is_fine(fs::remove_file(entry.path()))?;
        }
    }
    sync_directory(directory)
}

/// Writes a checkpoint of a session to a file, with a snapshot of all slices. The file is durable
/// when this returns. Readers meanwhile find the earlier checkpoint or this one.
///
/// # Errors
///
/// [`Error::Engine`] if the session cannot be read; [`Error::Checkpoint`] if the file cannot be
/// written.
pub fn save_checkpoint(session: &Session, path: impl AsRef<Path>) -> Result<Checkpoint> {
    let (checkpoint, path) = (Checkpoint::from_session(session, true)?, path.as_ref());
    write_file(path, checkpoint.to_json()?.as_bytes()).map_err(|error| unusable("written", path, error))?;
    Ok(checkpoint)
}

/// Reads the checkpoint in a file; `None` if there is no file.
///
/// # Errors
///
/// [`Error::SnapshotRestore`] if the file cannot be read, or does not contain a complete checkpoint
/// of a supported version.
pub fn load_checkpoint(path: impl AsRef<Path>) -> Result<Option<Checkpoint>> {
    let path = path.as_ref();
    let unreadable = |error: io::Error| {
        let reason = format!("{} cannot be read: {}", escape::path(path), escape::display(&error));
        Error::snapshot_restore(reason, Some(Box::new(error) as _))
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(unreadable)?;
    Checkpoint::from_json(&text).map(Some)
}

/// Opens the session of a checkpoint for writing, at the end of its log.
///
/// # Errors
///
/// [`Error::SnapshotRestore`] if the session is not in the store, cannot be opened, or does not
/// match the checkpoint; [`Error::Engine`] with [`foldlog::Error::Locked`] if it is open for
/// writing elsewhere. No other session is created in its place.
pub fn recover_session(store: &Store, types: &SessionTypes, checkpoint: &Checkpoint) -> Result<Session> {
    let session = store.open_session(checkpoint.session, types).map_err(|error| {
        // The checkpoint is valid, and a restart would repeat the work of the other process.
        if matches!(error, foldlog::Error::Locked { .. }) {
            return error.into();
        }
        unrestored("its session cannot be opened", error)
    })?;
    checkpoint.check(&session)?;
    Ok(session)
}

/// Creates a new session from a checkpoint alone, for a host that has lost the checkpoint's
/// session. The new session contains the slices, complete turns and adapter states of the snapshot.
/// Its evaluation continues after the last of these turns. Later work is lost and done again, so
/// prefer [`recover_session`].
///
/// # Errors
///
/// [`Error::SnapshotRestore`] if the checkpoint has no snapshot, or the snapshot cannot be
/// imported.
pub fn import_session(store: &Store, types: &SessionTypes, checkpoint: &Checkpoint) -> Result<Session> {
    let Some(snapshot) = &checkpoint.snapshot else {
        let reason = "it contains no snapshot, and cannot be used without its session";
        return Err(Error::snapshot_restore(reason, None));
    };
    let imported =
        Export::from_json(snapshot).and_then(|export| store.import(&export, types, ImportOptions::default()));
    imported.map_err(|error| unrestored("its snapshot cannot be imported", error))
}

/// Resumes the evaluation of a checkpoint. Opens the session, checks that its conversation follows
/// the prompt, recovers open calls, and continues at the end of the log. The session is closed when
/// this returns.
///
/// # Errors
///
/// [`Error::NoConversationState`] if the session contains no conversation; else those of
/// [`recover_session`], of [`ToolRunner::recover`] and of [`ProviderAdapter::evaluate`].
pub fn resume_evaluation<P: Provider, O>(
    adapter: &ProviderAdapter<P>,
    prompt: &Prompt<O>,
    checkpoint: &Checkpoint,
    store: &Store,
    types: &SessionTypes,
    resources: ResourceRegistry,
    options: EvaluateOptions<'_>,
) -> Result<PromptResponse<O>> {
    let session = recover_session(store, types, checkpoint)?;
    let state = ExecutionState::new(session, resources);
    // With several evaluations, the one to continue is known only after the recovery.
    let evaluations = state.session().conversation().evaluations();
    let known = match evaluations.as_slice() {
        [only] => Some(only.as_str()),
        _ => None,
    };
    if let Some(evaluation) = options.evaluation_id.as_deref().or(known) {
        let conversation = state.session().conversation().read(evaluation)?;
        check_prompt(conversation.as_ref(), &prompt.identity(), options.accept_prompt.is_some())?;
    }
    recover_calls(&state, prompt, options.deadline, &options.cancel)?;
    let Some(last) = state.session().conversation().resume(None)?.evaluation_id else {
        return Err(Error::NoConversationState);
    };
    let evaluation_id = options.evaluation_id.or_else(|| Some(last.to_string()));
    let options = EvaluateOptions { evaluation_id, resume_from: ResumeFrom::Auto, ..options };
    adapter.evaluate(prompt, &state, options)
}

/// Recovers open calls, including those that run again. Recovers nothing if the evaluation was
/// cancelled or its deadline has passed. Operations that need a decision remain, and the evaluation
/// reports them.
pub(crate) fn recover_calls<O>(
    state: &ExecutionState,
    prompt: &Prompt<O>,
    deadline: Deadline,
    cancel: &CancelToken,
) -> Result<()> {
    if cancel.is_cancelled() {
        return Err(Error::Cancelled);
    }
    if deadline.is_past() {
        return Err(Error::DeadlineExceeded { phase: EvaluationPhase::Deadline });
    }
    let runner = ToolRunner::new(state.clone(), prompt.tools().clone());
    let recovered = runner.recover(&deadline.for_tools())?;
    for one in recovered {
        if let foldlog::tools::Recovery::Failed(error) = one.recovery
            && !matches!(
                error,
                foldlog::Error::VisibilityExpansion { .. }
                    | foldlog::Error::DeadlineExceeded { .. }
                    | foldlog::Error::Suspended { .. }
            )
        {
            return Err(error.into());
        }
    }
    Ok(())
}
