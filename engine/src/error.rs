use std::fmt;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::Policy;
use foldlog_codec::escape;
use foldlog_codec::{Kind, OperationId, SequenceNumber};
use foldlog_filesystem as filesystem;
use uuid::Uuid;

use crate::operation::OpenOperation;
use crate::storage::{Entry, EntryKind, Storage};

/// A result of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the facts.
///
/// No message holds a control character: whatever an error quotes of a log, a path or the system is
/// [escaped](foldlog_codec::escape). The fields are as they were found.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the file system failed.
    #[error("{op} {}: {}", escape::path(path), escape::shown(source))]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system answered.
        source: Arc<std::io::Error>,
    },
    /// There is no space for what was to be made: a segment, an object, a session. Nothing was written, and all goes on
    /// once there is.
    #[error("no space for {bytes} bytes at {}: {}", escape::path(path), escape::shown(source))]
    Full {
        /// The file that could not be made.
        path: PathBuf,
        /// How many bytes were asked for.
        bytes: u64,
        /// What the system answered.
        source: Arc<std::io::Error>,
    },
    /// Bytes that were known to be whole are not, so this is damage and no torn tail. Nothing was changed.
    #[error("{0}")]
    Corrupt(Box<Corruption>),
    /// A segment ends before the end that its successor names, and is sound as far as it goes: the folder was copied while
    /// the session was written, the older files first, or the disk lost the end of the segment.
    #[error(
        "{} ends at byte {offset}, before record {sequence}, and {} was begun behind byte {end} of it: the folder was copied \
         while the session was written, or the disk lost the end of the file",
        escape::path(segment),
        escape::path(successor)
    )]
    OlderThanSuccessor {
        /// The session.
        session: Uuid,
        /// The segment that is too short.
        segment: PathBuf,
        /// Where what is sound of it ends, in bytes.
        offset: u64,
        /// The record that should stand there.
        sequence: SequenceNumber,
        /// The segment that follows.
        successor: PathBuf,
        /// The byte of the first at which it was begun.
        end: u64,
    },
    /// A segment between, or behind, the others is not there.
    #[error("session {session}: segment {ordinal} is missing ({})", escape::path(path))]
    MissingSegment {
        /// The session.
        session: Uuid,
        /// The ordinal of the missing segment.
        ordinal: u32,
        /// Where it should be.
        path: PathBuf,
    },
    /// A segment belongs to another session.
    #[error("{} belongs to session {found}, not to {expected}", escape::path(path))]
    WrongSession {
        /// The segment, or the folder.
        path: PathBuf,
        /// The session that was expected.
        expected: Uuid,
        /// The session that it names.
        found: Uuid,
    },
    /// The folder holds no session.
    #[error("{} is not a session: {}", escape::path(path), escape::text(reason))]
    NotASession {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// What should be a file of a session or of its store is something else. Nothing was read of it, and no link was
    /// followed.
    #[error("{} is {found}, where a regular file should be", escape::path(path))]
    NotAFile {
        /// The file's path.
        path: PathBuf,
        /// What it is in place of a file.
        found: EntryKind,
    },
    /// The log was written by a later version of the format.
    #[error(
        "{} is of format version {found}; the newest that can be read is {supported}",
        escape::path(path)
    )]
    FutureFormat {
        /// The segment.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The newest version that can be read.
        supported: u16,
    },
    /// The log holds a record of a kind that this version cannot fold, so it may read but not go on writing.
    #[error("record {sequence} is of kind {kind}, which this version cannot fold: open it for reading")]
    UnsupportedKind {
        /// The record.
        sequence: SequenceNumber,
        /// Its kind.
        kind: Kind,
    },
    /// Another writer has the session.
    #[error("session {session} is open for writing elsewhere ({holder})")]
    Locked {
        /// The session.
        session: Uuid,
        /// Who has it, as far as that is known.
        holder: Holder,
    },
    /// The session was opened by the process that forked this one, and is that one's to write.
    #[error(
        "session {session} was opened by the process that forked this one, which alone writes it: open it here once it \
         is closed there"
    )]
    Forked {
        /// The session.
        session: Uuid,
    },
    /// An earlier write or sync failed, so nothing more is written until the session is opened again.
    #[error("the log takes no more writes since an earlier failure: {cause}")]
    Poisoned {
        /// The first failure.
        cause: Arc<Error>,
    },
    /// A sync failed after the record was written: after reopening, the record may be there or not.
    #[error("record {sequence} may or may not be kept, since the sync failed: {cause}")]
    DurabilityUnknown {
        /// The record.
        sequence: SequenceNumber,
        /// Why the sync failed.
        cause: Arc<Error>,
    },
    /// The session was opened for reading, or on a disk that takes no writes.
    #[error("session {session} is open for reading only: {}", escape::text(reason))]
    ReadOnly {
        /// The session.
        session: Uuid,
        /// Why.
        reason: String,
    },
    /// The session was closed.
    #[error("session {session} is closed")]
    Closed {
        /// The session.
        session: Uuid,
    },
    /// The session was opened without types, so it cannot dispatch.
    #[error("session {session} was opened without types and cannot dispatch")]
    Untyped {
        /// The session.
        session: Uuid,
    },
    /// There is no such session in the store.
    #[error("there is no session {session} in {}", escape::path(path))]
    NoSuchSession {
        /// The session.
        session: Uuid,
        /// The store.
        path: PathBuf,
    },
    /// A store that stands in a session's own folder takes in nothing of that session, which is not to be changed.
    #[error(
        "{} stands within the session that is to be read: {}",
        escape::path(path),
        escape::path(session_dir)
    )]
    WithinSession {
        /// The store.
        path: PathBuf,
        /// The session's folder.
        session_dir: PathBuf,
    },
    /// A session of that id is there already.
    #[error("session {session} exists already")]
    SessionExists {
        /// The session.
        session: Uuid,
    },
    /// The log binds an event to reducers that the host did not declare.
    #[error(
        "event `{}` reduces into {} in this log, but the host declares no such reducer",
        escape::text(event),
        list(slices)
    )]
    NotRegistered {
        /// The event's name.
        event: String,
        /// The slices whose reducers are missing.
        slices: Vec<String>,
    },
    /// An import holds slices that the host did not declare.
    #[error("Slice types not registered: {}", escape::text(&.0.join(", ")))]
    SlicesNotRegistered(Vec<String>),
    /// A slice's policy is not what was declared before.
    #[error("slice `{}` is declared {declared}, but was {recorded}", escape::text(slice), declared = .declared.name(), recorded = .recorded.name())]
    PolicyMismatch {
        /// The slice.
        slice: String,
        /// The policy declared now.
        declared: Policy,
        /// The policy declared first.
        recorded: Policy,
    },
    /// One name was declared twice in ways that do not agree.
    #[error("`{}` is declared twice: {reason}", escape::text(name))]
    DeclaredTwice {
        /// The slice or event.
        name: String,
        /// What does not agree.
        reason: &'static str,
    },
    /// A slice or event that the host asked for was never declared, or is of another type.
    #[error("slice `{}`: {reason}", escape::text(slice))]
    NoSuchSlice {
        /// The slice.
        slice: String,
        /// Why it cannot be had.
        reason: &'static str,
    },
    /// A value was recorded at a later version than the host's code knows.
    #[error(
        "`{}` was recorded at version {stored}, which is newer than the host's version {supported}",
        escape::text(name)
    )]
    NewerVersion {
        /// The event or item type.
        name: String,
        /// The version in the log.
        stored: u32,
        /// The version in the code.
        supported: u32,
    },
    /// A recorded value could not be read as the host's type.
    #[error("`{}` at record {sequence}: {}", escape::text(name), escape::text(reason))]
    Decode {
        /// The event or slice.
        name: String,
        /// The record that inserted it.
        sequence: SequenceNumber,
        /// What is wrong.
        reason: String,
    },
    /// A host's value could not be written.
    #[error("`{}` cannot be recorded: {}", escape::text(name), escape::text(reason))]
    Encode {
        /// The event or slice.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A reducer refused the event. Nothing was recorded and nothing changed.
    #[error(
        "the reducer of `{}` refused `{}`: {}",
        escape::text(slice),
        escape::text(event),
        escape::text(reason)
    )]
    Refused {
        /// The slice.
        slice: String,
        /// The event.
        event: String,
        /// What the reducer said.
        reason: String,
    },
    /// A reducer panicked. Nothing was recorded and nothing changed.
    #[error(
        "the reducer of `{}` panicked at `{}`: {}",
        escape::text(slice),
        escape::text(event),
        escape::text(message)
    )]
    ReducerPanicked {
        /// The slice.
        slice: String,
        /// The event.
        event: String,
        /// The panic's message.
        message: String,
    },
    /// A LOG slice only grows.
    #[error("`{}` is a LOG slice and only grows: {operation} is refused", escape::text(slice))]
    LogOnlyGrows {
        /// The slice.
        slice: String,
        /// What was tried.
        operation: &'static str,
    },
    /// There is no record at that position.
    #[error("there is no position {position}: {}", last_text(*last))]
    NoSuchPosition {
        /// The position asked for.
        position: SequenceNumber,
        /// The last record's.
        last: Option<SequenceNumber>,
    },
    /// A large payload is missing from the object folder, or is not what its name says.
    #[error("object {}: {}", escape::path(path), escape::text(reason))]
    Object {
        /// The object's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A record contradicts the records before it.
    #[error("record {sequence} contradicts the log: {}", escape::text(reason))]
    Inconsistent {
        /// The record.
        sequence: SequenceNumber,
        /// How.
        reason: String,
    },
    /// An export could not be read.
    #[error("not a snapshot export: {}", escape::text(.0))]
    Export(String),
    /// The process that wrote the session ended within operations. It takes no writes until they are recovered.
    #[error(
        "session {session} was interrupted within {}: recover it before it is written",
        operations_text(operations)
    )]
    Interrupted {
        /// The session.
        session: Uuid,
        /// The operations that are open, in the order in which they began.
        operations: Vec<OpenOperation>,
    },
    /// A position within an operation is no place to go back to: half of what it did would stay.
    #[error("position {position} is within operation {operation}")]
    InsideTransaction {
        /// The position.
        position: SequenceNumber,
        /// The operation.
        operation: OperationId,
    },
    /// A tool's own handle goes back to no position before the tool began: it would take back what is not its own.
    #[error("position {position} is before operation {operation} began, whose handle this is")]
    OutsideTransaction {
        /// The position.
        position: SequenceNumber,
        /// The operation.
        operation: OperationId,
    },
    /// A thread that runs a tool waits for that tool to end: what a tool writes goes through its own handle.
    #[error("operation {operation} runs on this thread; write through its context's session")]
    InsideOperation {
        /// The operation.
        operation: OperationId,
    },
    /// An operation's handle was used after the operation was over.
    #[error("the handle of operation {operation} is no longer good: {reason}")]
    Revoked {
        /// The operation.
        operation: OperationId,
        /// Why.
        reason: &'static str,
    },
    /// A tool that was declared to read only has tried to change something.
    #[error("operation {operation} reads only, and tried to {tried}")]
    ReadsOnly {
        /// The operation.
        operation: OperationId,
        /// What it tried.
        tried: &'static str,
    },
    /// A tool's time was over. What it did was taken back.
    #[error("the deadline of {} passed", operation_text(*operation))]
    DeadlineExceeded {
        /// The operation; `None` where it passed while the call waited for others to end.
        operation: Option<OperationId>,
    },
    /// A tool was to stop long ago, by its deadline or since it was cancelled, and still runs, so nothing else can.
    #[error("operation {operation} still runs although it was to stop long ago")]
    Stuck {
        /// The operation.
        operation: OperationId,
    },
    /// A tool asks for more of the prompt to be shown. What it did was taken back; call it again with these.
    #[error("operation {operation} asks for sections of the prompt to be shown: {}", escape::text(reason))]
    VisibilityExpansion {
        /// The operation.
        operation: OperationId,
        /// What is to be shown, as the tool says it: JSON.
        overrides: serde_json::Value,
        /// Why.
        reason: String,
    },
    /// An interrupted tool cannot safely run again. Somebody has to settle the operation.
    #[error(
        "`{}` of operation {operation} was interrupted and may have done its work: settle it by hand",
        escape::text(tool)
    )]
    ToolIdempotency {
        /// The operation.
        operation: OperationId,
        /// The tool.
        tool: String,
    },
    /// There is no such operation, or it is not in the state that the call is for.
    #[error("operation {operation}: {reason}")]
    NoSuchOperation {
        /// The operation.
        operation: OperationId,
        /// Why it cannot be had.
        reason: &'static str,
    },
    /// There is no tool of that name.
    #[error("there is no tool `{}`", escape::text(.0))]
    NoSuchTool(String),
    /// No checkpoint is kept for a call.
    #[error("No checkpoint for tool call: {}", escape::text(.0))]
    NoCheckpoint(String),
    /// A provider's name for a call stands for several operations.
    #[error("tool call `{}` names several operations: {}", escape::text(call_id), numbers(operations))]
    AmbiguousCall {
        /// The provider's name.
        call_id: String,
        /// The operations.
        operations: Vec<OperationId>,
    },
    /// A snapshot is of another session or of other resources.
    #[error("the snapshot does not fit: {}", escape::text(.0))]
    SnapshotMismatch(String),
    /// Some resources could not be restored. Those that could are as the error says. Where a call was to be rolled back it is
    /// left open, and the session takes no writes until it is recovered, which restores them again.
    #[error("not restored: {}{}", failures(failed), also_restored(restored))]
    RestoreFailed {
        /// The resources that are as they were in the snapshot.
        restored: Vec<String>,
        /// Those that are not, and why.
        failed: Vec<(String, Arc<Error>)>,
    },
    /// A resource says that something went wrong.
    #[error("resource `{}`: {}", escape::text(resource), escape::text(reason))]
    Resource {
        /// The resource's name.
        resource: String,
        /// What it says.
        reason: String,
    },
    /// A workspace could not be used, captured or restored. A lack of space is [`Full`](Error::Full), a deadline that passed
    /// [`DeadlineExceeded`](Error::DeadlineExceeded).
    #[error(transparent)]
    Filesystem(filesystem::Error),
    /// Another session's call on the workspace was cut short, and recovering that session takes back what is done there
    /// before. Nothing was changed.
    #[error(
        "workspace {} is left half done by operation {operation} (`{}`) of session {session} in {}: recover that session \
         first, or delete it where nobody will; the folder's attribute `user.foldlog.work` says so, and is to be removed \
         where that is not true",
        escape::path(workspace),
        escape::text(tool),
        escape::path(session_dir)
    )]
    ResourceDirty {
        /// The workspace's root.
        workspace: PathBuf,
        /// The session that is to be recovered.
        session: Uuid,
        /// Its folder.
        session_dir: PathBuf,
        /// Its operation that is open.
        operation: OperationId,
        /// The tool of that.
        tool: String,
    },
    /// Another session has worked on the workspace, and whether a call of its was cut short there cannot be known, since
    /// its log cannot be read. Nothing was changed.
    #[error(
        "workspace {} may be left half done by session {session}, whose log in {} cannot be read: {cause}; have it read \
         again and recover it, or delete it where nobody will; the folder's attribute `user.foldlog.work` says so, and is \
         to be removed where that is not true",
        escape::path(workspace),
        escape::path(session_dir)
    )]
    ResourceMaybeDirty {
        /// The workspace's root.
        workspace: PathBuf,
        /// The session.
        session: Uuid,
        /// Its folder.
        session_dir: PathBuf,
        /// Why it cannot be read.
        cause: Arc<Error>,
    },
    /// Reading a log takes more memory than it may: a reader that asks for no STATE takes 64 MiB, others three times the
    /// bytes of the log on top, if nothing else was said.
    #[error(
        "{}: reading it takes {needed} bytes of memory by record {sequence}, and {budget} are allowed",
        escape::path(session_dir)
    )]
    OverBudget {
        /// The session's folder.
        session_dir: PathBuf,
        /// The record up to which it was read.
        sequence: SequenceNumber,
        /// About how many bytes were held there.
        needed: u64,
        /// How many may be.
        budget: u64,
    },
    /// A limit was passed; nothing was recorded.
    #[error("{what}: {found} is over {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large; of what is counted one by one, how far it was counted.
        found: u64,
        /// How large it may be.
        max: u64,
    },
}

/// Where damage was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// The session.
    pub session: Option<Uuid>,
    /// The segment file.
    pub segment: PathBuf,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The sequence number of the record that should stand there.
    pub sequence: SequenceNumber,
    /// The checksum that the bytes there should carry, where one could be computed.
    pub expected_crc: Option<u32>,
    /// The checksum that they carry.
    pub found_crc: Option<u32>,
    /// What is wrong, and how it is known not to be a torn tail.
    pub reason: String,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segment = escape::path(&self.segment);
        write!(f, "{segment} is damaged at byte {}, record {}", self.offset, self.sequence)?;
        if let (Some(expected), Some(found)) = (self.expected_crc, self.found_crc) {
            write!(f, " (checksum {found:#010x}, expected {expected:#010x})")?;
        }
        write!(f, ": {}", escape::text(&self.reason))
    }
}

/// Who holds a session's lock, as far as it left word.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Holder {
    /// The holder's process id.
    pub pid: Option<u32>,
    /// The name of its machine.
    pub host: Option<String>,
    /// When it opened the session, ISO 8601.
    pub since: Option<String>,
    /// Whether that process has ended: one that it forked, and that runs no program of its own, holds the lock still.
    #[serde(skip)]
    pub ended: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pid, &self.host, &self.since) {
            (Some(pid), Some(host), Some(since)) => {
                let (host, since) = (escape::text(host), escape::text(since));
                let ended = match self.ended {
                    true => ", which has ended: a process that it forked holds the lock still",
                    false => "",
                };
                write!(f, "process {pid} on {host} since {since}{ended}")
            }
            _ => f.write_str("the holder left no word"),
        }
    }
}

fn numbers(operations: &[OperationId]) -> String {
    operations.iter().map(OperationId::to_string).collect::<Vec<_>>().join(", ")
}

fn last_text(last: Option<SequenceNumber>) -> String {
    last.map_or_else(
        || "the log holds no record".to_owned(),
        |last| format!("the log's last record is {last}"),
    )
}

fn operation_text(operation: Option<OperationId>) -> String {
    operation.map_or_else(|| "a call that waited".to_owned(), |operation| format!("operation {operation}"))
}

fn operations_text(operations: &[OpenOperation]) -> String {
    operations
        .iter()
        .map(|open| format!("{} (`{}`)", open.operation, escape::text(&open.tool)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn failures(failed: &[(String, Arc<Error>)]) -> String {
    failed
        .iter()
        .map(|(resource, error)| format!("`{}` ({error})", escape::text(resource)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", escape::text(name))).collect::<Vec<_>>().join(", ")
}

fn also_restored(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; restored: {}", list(names)) }
}

impl Error {
    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { op, path: path.into(), source: Arc::new(source) }
    }

    /// Makes the error of a call that takes regular files alone, and names what stands there in place of one.
    pub(crate) fn refused(
        op: &'static str,
        storage: &dyn Storage,
        path: &Path,
        source: std::io::Error,
    ) -> Error {
        if source.kind() == ErrorKind::InvalidInput
            && let Ok(Some(Entry { kind, .. })) = storage.entry(path)
            && kind != EntryKind::File
        {
            return Error::NotAFile { path: path.to_owned(), found: kind };
        }
        Error::io(op, path, source)
    }

    /// Makes the error of a file that could not be opened.
    pub(crate) fn unopened(storage: &dyn Storage, path: &Path, source: std::io::Error) -> Error {
        Error::refused("open", storage, path, source)
    }

    /// Of a record whose body does not read as its kind says.
    pub(crate) fn unread(sequence: SequenceNumber) -> impl Fn(foldlog_codec::Error) -> Error + Copy {
        move |error| Error::Inconsistent { sequence, reason: error.to_string() }
    }

    /// As [`io`](Error::io), of something that was to be made and is not there now: a lack of space is told by its own
    /// error.
    pub(crate) fn unmade(
        op: &'static str,
        path: impl Into<PathBuf>,
        bytes: u64,
        source: std::io::Error,
    ) -> Error {
        match filesystem::is_out_of_space(&source) {
            true => Error::Full { path: path.into(), bytes, source: Arc::new(source) },
            false => Error::io(op, path, source),
        }
    }

    /// Whether a lack of space is the reason.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::Io { source, .. } => filesystem::is_out_of_space(source),
            Error::Filesystem(error) => error.is_full(),
            Error::RestoreFailed { failed, .. } => failed.iter().any(|(_, error)| error.is_full()),
            _ => false,
        }
    }

    /// Whether the log itself is damaged or incomplete, as against a wrong use or a failing system.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::Corrupt(_)
                | Error::OlderThanSuccessor { .. }
                | Error::MissingSegment { .. }
                | Error::WrongSession { .. }
                | Error::Object { .. }
                | Error::Inconsistent { .. }
                | Error::Filesystem(filesystem::Error::Object { .. })
        )
    }
}

impl From<filesystem::Error> for Error {
    fn from(error: filesystem::Error) -> Error {
        match error {
            filesystem::Error::DeadlineExceeded => Error::DeadlineExceeded { operation: None },
            filesystem::Error::Full { path, bytes, source } => Error::Full { path, bytes, source },
            error => Error::Filesystem(error),
        }
    }
}

/// Those who decode values box their errors, so that what they mostly return is small.
impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Error {
        *error
    }
}

/// Runs what a host wrote: a panic is [`Error::Resource`], of what `what` names.
pub(crate) fn caught<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let reason = format!("panicked: {}", panic_message(&*panic));
        Err(Error::Resource { resource: what.to_owned(), reason })
    })
}

/// Returns what a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests;
