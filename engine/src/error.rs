use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{Decision, Policy, SuspensionForm};
use foldlog_codec::escape;
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use foldlog_filesystem as filesystem;
use uuid::Uuid;

use crate::divergence::Divergence;
use crate::names::UnregisteredEvent;
use crate::operation::OpenOperation;
use crate::storage::EntryKind;

mod blocker;
mod constructors;
mod corruption;
mod holder;
mod panics;
#[cfg(test)]
mod tests;
mod text;

pub use blocker::Blocker;
use blocker::seconds;
pub use corruption::Corruption;
pub use holder::Holder;
pub(crate) use holder::host_name;
pub(crate) use panics::{catch_panic, panic_message};
use text::{
    also_restored, failures, last_text, numbers, operation_text, operations_text, or_nearest,
    unregistered_text, waiting_text,
};

/// Holds the result of a call to the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reports what went wrong, with the facts.
///
/// No message holds a control character: whatever an error quotes of a log, a path or the system is
/// [escaped](foldlog_codec::escape). The fields hold the values as they were found, not escaped.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the file system failed.
    #[error("{op} {}: {}", escape::path(path), escape::display(source))]
    Io {
        /// Name of the call, as a verb.
        op: &'static str,
        /// File or directory that the call was made on.
        path: PathBuf,
        /// Error that the system answered.
        source: Arc<std::io::Error>,
    },
    /// The disk has no space for something that was to be made: a segment, an object, a session. Nothing was written,
    /// and the session goes on once there is space.
    #[error("the disk has no space for {bytes} bytes at {}: {}", escape::path(path), escape::display(source))]
    Full {
        /// File that could not be made.
        path: PathBuf,
        /// Number of bytes asked for.
        bytes: u64,
        /// Error that the system answered.
        source: Arc<std::io::Error>,
    },
    /// The process, or the system, has as many files open as it may, and something that was to be made or written needs one more.
    /// Nothing was written, and the session goes on once there are handles.
    #[error("no file handle is left to open {}: {}", escape::path(path), escape::display(source))]
    NoHandle {
        /// File that could not be opened or made.
        path: PathBuf,
        /// Error that the system answered.
        source: Arc<std::io::Error>,
    },
    /// Bytes that a frame attests, or that were written in the same boot, do not check: this is damage and no torn tail. Nothing
    /// was changed.
    #[error("{0}")]
    Corrupt(Box<Corruption>),
    /// A segment is older at one place than the frames that follow, and sound up to there: somebody copied the directory
    /// while the session was written, the older files first, or the disk lost the bytes between.
    #[error(
        "{} holds no whole frame from byte {offset}, where record {sequence} should begin, to byte {end}, although {} goes \
         on behind that: somebody copied the folder while the session was written, or the disk lost these bytes",
        escape::path(segment),
        escape::path(successor)
    )]
    OlderThanSuccessor {
        /// Session that the segment belongs to.
        session: Uuid,
        /// Segment that is older.
        segment: PathBuf,
        /// Offset in bytes at which the sound part of the segment ends.
        offset: u64,
        /// Sequence number of the record that should stand there.
        sequence: SequenceNumber,
        /// Segment whose frames follow: the next one, or the same one.
        successor: PathBuf,
        /// Offset in the older segment, in bytes, up to which its frames are not there: its end, as the header of the next
        /// segment has it, or the end of a page.
        end: u64,
    },
    /// A segment between or behind others is missing.
    #[error("session {session}: segment {ordinal} is missing ({})", escape::path(path))]
    MissingSegment {
        /// Session that the segment belongs to.
        session: Uuid,
        /// Ordinal of the missing segment.
        ordinal: u32,
        /// Path where the segment should be.
        path: PathBuf,
    },
    /// A segment belongs to another session.
    #[error("{} belongs to session {found}, not to {expected}", escape::path(path))]
    WrongSession {
        /// Segment, or directory of the session.
        path: PathBuf,
        /// Session that the caller expected.
        expected: Uuid,
        /// Session that the segment names.
        found: Uuid,
    },
    /// The directory holds no session.
    #[error("{} is not a session: {}", escape::path(path), escape::text(reason))]
    NotASession {
        /// Directory that was to be opened.
        path: PathBuf,
        /// What the directory lacks or holds instead.
        reason: String,
    },
    /// Something else stands where a session or its store should have a regular file. Nothing was read of it, and no
    /// link was followed.
    #[error("{} is {found}, where a regular file should be", escape::path(path))]
    NotAFile {
        /// Path of the file.
        path: PathBuf,
        /// Kind of what stands there.
        found: EntryKind,
    },
    /// The log was written in a later version of the format.
    #[error(
        "{} has format version {found}; this version of foldlog reads versions up to {supported}",
        escape::path(path)
    )]
    FutureFormat {
        /// Segment that states the version.
        path: PathBuf,
        /// Format version of the segment.
        found: u16,
        /// Newest format version that this version of foldlog reads.
        supported: u16,
    },
    /// A segment is compressed, or was to be, and this build of foldlog has no codecs.
    #[error(
        "{} takes {codec}, which this build of foldlog does not have: it was built without the feature `compression`",
        escape::path(path)
    )]
    CompressionUnavailable {
        /// File of the segment.
        path: PathBuf,
        /// Name of the codec.
        codec: &'static str,
    },
    /// A segment was compressed by a later version of foldlog.
    #[error(
        "{} is compressed in a way of version {version} with codec {codec}; this version of foldlog reads versions up to {supported} \
         with codecs 1 and 2",
        escape::path(path)
    )]
    FutureCompression {
        /// File of the segment.
        path: PathBuf,
        /// Version of the compressed segment.
        version: u16,
        /// Newest version that this version of foldlog reads.
        supported: u16,
        /// Number of the codec.
        codec: u8,
    },
    /// The log holds a record of a kind that this version cannot fold: the session can be read, but not written.
    #[error(
        "record {sequence} has kind {kind}, which this version of foldlog cannot fold: open the session for reading"
    )]
    UnsupportedKind {
        /// Sequence number of the record.
        sequence: SequenceNumber,
        /// Kind of the record.
        kind: RecordKind,
    },
    /// Another writer holds the lock of the session.
    #[error("session {session} is already open for writing ({holder})")]
    Locked {
        /// Session that was to be opened.
        session: Uuid,
        /// Process that holds the lock, as far as that is known.
        holder: Holder,
    },
    /// The session was opened by the process that forked this one, and only that process may write it.
    #[error(
        "session {session} was opened by the process that forked this one, and only that process may write it: open it \
         here once that process has closed it"
    )]
    Forked {
        /// Session that was to be written.
        session: Uuid,
    },
    /// Another writer has the session open too, since the locks of this file system keep nobody apart: records that either of
    /// them wrote since may be lost. The session takes no writes until it is opened again.
    #[error(
        "session {session} has a second writer, since locks exclude nobody on this file system: {}",
        escape::text(found)
    )]
    SecondWriter {
        /// Session that both write.
        session: Uuid,
        /// What the other one was found by.
        found: String,
    },
    /// An earlier write or sync failed, so the session takes no writes until it is opened again.
    #[error("the session takes no writes after an earlier failure, until it is opened again: {cause}")]
    Poisoned {
        /// First failure of a write or sync.
        cause: Arc<Error>,
    },
    /// A sync failed after the record was written: after reopening, the session may or may not hold the record. Where the
    /// cause is [`NoHandle`](Error::NoHandle), the session goes on, and a later sync makes the record durable.
    #[error("record {sequence} may or may not be durable, because its sync failed: {cause}")]
    DurabilityUnknown {
        /// Sequence number of the record.
        sequence: SequenceNumber,
        /// Error of the sync.
        cause: Arc<Error>,
    },
    /// Another writer has claimed the session at the store's [replicator](crate::replication). Nothing of this one is
    /// acknowledged any more; its records stay where they are, to be read.
    #[error(
        "another writer claimed session {session} (epoch {epoch}, `{}`), and this one must stop writing",
        escape::text(by)
    )]
    Fenced {
        /// Session that was to be written.
        session: Uuid,
        /// Epoch of the other writer.
        epoch: u64,
        /// Who it is.
        by: String,
    },
    /// The local log differs from what the store's [replicator](crate::replication) holds, or goes on behind another writer's claim.
    /// Its records can be read, and are never merged.
    #[error(
        "the records of session {session} from {sequence} on are superseded: another writer claimed the session in front of them. \
         They stay readable here; leave the session to that writer, or remove it here (`Store::delete`) and take it over (`Store::take_over`), which fences that \
         writer"
    )]
    Superseded {
        /// Session that was to be opened.
        session: Uuid,
        /// Sequence number of the first such record.
        sequence: SequenceNumber,
    },
    /// The store's [replicator](crate::replication) holds records that the local log does not have, and that are not its own: another
    /// writer appended them. What the log has lost of its own is fetched, and no error.
    #[error(
        "the local log of session {session} ends before record {local}, and the replicator holds records up to {} that it never had: \
         remove it here (`Store::delete`) and take it over (`Store::take_over`) to go on",
        held.saturating_sub(1)
    )]
    ReplicaAhead {
        /// Session that was to be opened.
        session: Uuid,
        /// Sequence number behind the last local record.
        local: SequenceNumber,
        /// Sequence number behind the last record that is held.
        held: SequenceNumber,
    },
    /// The log says that a replica holds the session, and the store's [replicator](crate::replication) never heard of that claim: it looks
    /// in another place, or the place has lost what it held. Written from here, the session would be fenced by nobody.
    #[error(
        "the log of session {session} says that `{}` claimed it with epoch {epoch} in {}, and this store's replicator finds epoch {held} \
         in {}: open the store with the place that holds the session, or say by `StoreOptions::unreplicated` that this one shall hold it \
         from now on",
        escape::text(by),
        escape::text(at),
        escape::text(here)
    )]
    ReplicaElsewhere {
        /// Session that was to be opened for writing.
        session: Uuid,
        /// Where the log says that the replica is.
        at: String,
        /// Who claimed the session there first.
        by: String,
        /// Epoch of that claim.
        epoch: u64,
        /// Where the store's replicator looks.
        here: String,
        /// Epoch of the last claim that it finds there; 0 if there is none.
        held: u64,
    },
    /// A replica holds the session's records, and the store was opened without its [replicator](crate::replication): whoever writes
    /// here is fenced by nobody, and another worker may have gone on with the session.
    #[error(
        "a replica holds session {session} ({}, first claimed by `{}`), and this store was opened without a replicator: another \
         worker may have gone on with it. Open the store with `StoreOptions::replication`, read the session by `open_read_only`, or say by \
         `StoreOptions::unreplicated` that it shall be written all the same",
        escape::text(at),
        escape::text(by)
    )]
    Replicated {
        /// Session that was to be opened for writing.
        session: Uuid,
        /// Where the replica is.
        at: String,
        /// Who claimed the session there first, as far as its log says.
        by: String,
    },
    /// The store's [replicator](crate::replication) is further behind than it may be, and the host has writes refused then. Nothing was
    /// written; the write succeeds once the replicator has caught up.
    #[error(
        "the replicator is too far behind session {session}, by {records} records and {bytes} bytes, the oldest {} s old: \
         try again once it has caught up",
        time.as_secs()
    )]
    ReplicaBehind {
        /// Session that was to be written.
        session: Uuid,
        /// Number of records that are not held.
        records: u64,
        /// Number of bytes of the log that these are, about.
        bytes: u64,
        /// How long the oldest of them has been written.
        time: Duration,
    },
    /// Nobody knows whether the store's [replicator](crate::replication) holds the last records. They are in the local log, and
    /// the next opening settles it.
    #[error(
        "it is unknown whether the replicator holds the last records of session {session}: {}",
        escape::display(reason)
    )]
    ReplicaUnknown {
        /// Session whose records are in doubt.
        session: Uuid,
        /// Why.
        reason: String,
    },
    /// The store's [replicator](crate::replication) could not be asked, or what it holds cannot be used.
    #[error("the replicator failed for session {session}: {}", escape::display(reason))]
    ReplicaFailed {
        /// Session that was to be replicated.
        session: Uuid,
        /// Why.
        reason: String,
    },
    /// The session was opened for reading, or lies on a disk that takes no writes.
    #[error("session {session} is open for reading only: {}", escape::text(reason))]
    ReadOnly {
        /// Session that was to be written.
        session: Uuid,
        /// Why the session takes no writes.
        reason: String,
    },
    /// The session was closed.
    #[error("session {session} is closed")]
    Closed {
        /// Session whose handle was used.
        session: Uuid,
    },
    /// The session was opened without types, so it cannot dispatch.
    #[error("session {session} was opened without types and cannot dispatch")]
    Untyped {
        /// Session that was to be written.
        session: Uuid,
    },
    /// The store holds no such session.
    #[error("there is no session {session} in {}", escape::path(path))]
    NoSuchSession {
        /// Session that was asked for.
        session: Uuid,
        /// Directory of the store.
        path: PathBuf,
    },
    /// What a store holds of a session is no older copy of it, so a backup does not go on there. Nothing was changed.
    #[error("{} is no older copy of session {session}: {}", escape::path(path), escape::text(reason))]
    NotACopy {
        /// Session that was to be copied.
        session: Uuid,
        /// Directory that should hold the older copy.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// A store whose directory lies within a session's directory was to import or salvage that session, which would change
    /// the directory that it reads.
    #[error(
        "the store {} lies within the session that it is to read: {}",
        escape::path(path),
        escape::path(session_dir)
    )]
    WithinSession {
        /// Directory of the store.
        path: PathBuf,
        /// Directory of the session.
        session_dir: PathBuf,
    },
    /// Sessions of a store were to be copied into that store, or among its sessions.
    #[error(
        "the copies would stand in the store that they are copied from: {} lies within {}",
        escape::path(path),
        escape::path(store)
    )]
    WithinStore {
        /// Directory for the copies.
        path: PathBuf,
        /// Directory of the store.
        store: PathBuf,
    },
    /// The store already holds a session with this id.
    #[error("session {session} already exists in this store")]
    SessionExists {
        /// Session that was to be created.
        session: Uuid,
    },
    /// The log binds events to reducers that the host did not declare; the error names all of them. Those that a host has removed
    /// on purpose it names with [`retired`](crate::SessionTypesBuilder::retired).
    #[error("{}", unregistered_text(.0))]
    NotRegistered(Vec<UnregisteredEvent>),
    /// An import holds slices that the host did not declare; the error lists their names.
    #[error("Slice types not registered: {}", escape::text(&.0.join(", ")))]
    SlicesNotRegistered(Vec<String>),
    /// A slice is declared with another policy than it was first declared with.
    #[error("slice `{}` is declared as {declared}, but was first declared as {recorded}", escape::text(slice), declared = .declared.name(), recorded = .recorded.name())]
    PolicyMismatch {
        /// Name of the slice.
        slice: String,
        /// Policy that the host declares now.
        declared: Policy,
        /// Policy that was declared first.
        recorded: Policy,
    },
    /// The host declared one name twice, in ways that do not agree.
    #[error("`{}` is declared twice: {reason}", escape::text(name))]
    DeclaredTwice {
        /// Name of the slice or event.
        name: String,
        /// What does not agree: what both declarations say.
        reason: String,
    },
    /// The host declared a slice that no event changes: what it dispatches would be appended to an implicit slice of another name.
    #[error(
        "slice `{}` is declared, and no event changes it: bind one, such as with `append_all`, or declare the slice as `seeded`",
        escape::text(slice)
    )]
    SliceUnbound {
        /// Name of the slice.
        slice: String,
    },
    /// A slice is declared at run time by a path that is none.
    #[error(
        "slice `{}`: `{}` is no path of a value, such as `card.id` or `ids[0]`",
        escape::text(slice),
        escape::text(path)
    )]
    NotAPath {
        /// Name of the slice.
        slice: String,
        /// Text that is no path.
        path: String,
    },
    /// A slice or event that the host asked for was never declared, or has another type.
    #[error("slice `{}`: {reason}", escape::text(slice))]
    NoSuchSlice {
        /// Name of the slice or event.
        slice: String,
        /// Why the host cannot have the slice.
        reason: &'static str,
    },
    /// An event was dispatched by a name that the host does not declare, and the store's
    /// [options](crate::StoreOptions::undeclared_events) refuse that.
    #[error("event `{}` is not declared{}", escape::text(event), or_nearest(nearest.as_deref()))]
    UndeclaredEvent {
        /// Name that was given.
        event: String,
        /// The declared name that is the most like it; `None` if no event is declared.
        nearest: Option<String>,
    },
    /// A slice has no keys of the type by which one of its items is looked for.
    #[error("the slice has no keys of type `{key}`: declare it with `keyed_by` or `upsert_by`")]
    NotKeyed {
        /// Rust type of the key.
        key: &'static str,
    },
    /// A value was recorded at a later version than the host's code knows.
    #[error(
        "`{}` was recorded at version {stored}, which is newer than version {supported} of the host's code",
        escape::text(name)
    )]
    NewerVersion {
        /// Name of the event or item type.
        name: String,
        /// Version that the log holds.
        stored: u32,
        /// Newest version that the host's code knows.
        supported: u32,
    },
    /// A recorded value does not read as the host's type.
    #[error("`{}` at record {sequence}: {}", escape::text(name), escape::text(reason))]
    Decode {
        /// Name of the event or slice.
        name: String,
        /// Sequence number of the record that holds the value.
        sequence: SequenceNumber,
        /// What is wrong with the value.
        reason: String,
    },
    /// A host's value cannot be written into a record.
    #[error("`{}` cannot be recorded: {}", escape::text(name), escape::text(reason))]
    Encode {
        /// Name of the event or slice.
        name: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// What a type of the log's format was to read is not well formed: the bytes of a [`Value`](crate::Value), or the body of a
    /// [`Record`](crate::Record).
    #[error(transparent)]
    Format(#[from] foldlog_codec::Error),
    /// A reducer refused the event. Nothing was recorded and nothing changed.
    #[error(
        "the reducer of `{}` refused `{}`: {}",
        escape::text(slice),
        escape::text(event),
        escape::text(reason)
    )]
    Refused {
        /// Name of the slice that the reducer belongs to.
        slice: String,
        /// Name of the event.
        event: String,
        /// Reason that the reducer gave.
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
        /// Name of the slice that the reducer belongs to.
        slice: String,
        /// Name of the event.
        event: String,
        /// Message of the panic.
        message: String,
    },
    /// A reducer or a recorded effect was to change or remove items of a LOG slice, which only takes new ones.
    #[error("slice `{}` is a LOG slice, which only grows: {operation} is refused", escape::text(slice))]
    LogOnlyGrows {
        /// Name of the slice.
        slice: String,
        /// Operation that was refused.
        operation: &'static str,
    },
    /// The log holds no record at that position.
    #[error("there is no position {position}: {}", last_text(*last))]
    NoSuchPosition {
        /// Position that the caller asked for.
        position: SequenceNumber,
        /// Position of the last record; `None` where the log holds no record.
        last: Option<SequenceNumber>,
    },
    /// A compaction replaced a segment while it was read. What reads a log begins anew then; it is an error only if that happens
    /// again and again.
    #[error("segment {} was replaced by a compaction while it was read; read it again", escape::path(path))]
    CompactedMeanwhile {
        /// Path of the segment.
        path: PathBuf,
    },
    /// A compaction has dropped what was to be read at a position: what the slices held there, or the body of that record.
    #[error(
        "position {position} cannot be read, since a compaction has dropped bodies of records up to position {earliest}; what the slices \
         held is known from position {earliest} on"
    )]
    Compacted {
        /// Position that was to be read.
        position: SequenceNumber,
        /// Last position of the compacted range. What the slices held is known there, and behind it up to the next compacted range.
        earliest: SequenceNumber,
    },
    /// A capture of a workspace was [collected](crate::Store::collect), since nobody was to need it any more. Nothing was changed.
    #[error("the capture {} was collected from {}", escape::text(capture), escape::path(store))]
    Collected {
        /// Directory that keeps the captures.
        store: PathBuf,
        /// Id of the capture's commit, or of its metadata, in hexadecimal.
        capture: String,
    },
    /// A large payload is missing from the object directory, or its bytes do not match its name.
    #[error("object {}: {}", escape::path(path), escape::text(reason))]
    Object {
        /// File of the object.
        path: PathBuf,
        /// What is wrong with the object.
        reason: String,
    },
    /// A record contradicts the records before it.
    #[error("record {sequence} contradicts the log: {}", escape::text(reason))]
    Inconsistent {
        /// Sequence number of the record.
        sequence: SequenceNumber,
        /// What contradicts what.
        reason: String,
    },
    /// A file or text is no readable snapshot export; the error says what is wrong with it.
    #[error("not a snapshot export: {}", escape::text(.0))]
    Export(String),
    /// The process that wrote the session ended while operations were open. The session takes no writes until they are
    /// recovered.
    #[error(
        "session {session} was interrupted during {}: recover the session before writing to it",
        operations_text(operations)
    )]
    Interrupted {
        /// Session that was to be written.
        session: Uuid,
        /// Open operations, in the order in which they began.
        operations: Vec<OpenOperation>,
    },
    /// The session cannot roll back to a position within an operation: half of what the operation did would stay.
    #[error("position {position} lies within operation {operation}, half of which would stay")]
    InsideTransaction {
        /// Position that the caller asked for.
        position: SequenceNumber,
        /// Operation that the position lies in.
        operation: OperationId,
    },
    /// A tool's handle cannot roll back to a position before the tool began: it would roll back changes that others
    /// made.
    #[error(
        "position {position} lies before operation {operation} began: its handle cannot roll back that far"
    )]
    OutsideTransaction {
        /// Position that the caller asked for.
        position: SequenceNumber,
        /// Operation that the handle belongs to.
        operation: OperationId,
    },
    /// A thread that runs a tool, or that [began](crate::tools::ToolRunner::begin) an operation and has not ended it, called the
    /// session, and the call would wait for that operation to end. A tool writes through the session of its own context, and
    /// holds conversations of its own in a child session.
    #[error(
        "operation {operation} runs on this thread: write through the session of its context, end it first, hand it over if \
         another thread ends it, or hold a conversation in a child session"
    )]
    InsideOperation {
        /// Operation that runs on the thread.
        operation: OperationId,
    },
    /// A call waited for something to end as long as it [may](crate::StoreOptions::wait). Nothing was recorded.
    #[error("waited {} s for {blocker}", seconds(*waited))]
    WaitedTooLong {
        /// Time that the call waited.
        waited: Duration,
        /// What it waited for.
        blocker: Box<Blocker>,
    },
    /// A session has the id of an operation's child session, but was not begun by that operation.
    #[error(
        "session {session} has the id of a child session of operation {operation} of session {parent}, which did not begin \
         it: delete that session, or give the child another number"
    )]
    WrongChild {
        /// Session that was found.
        session: Uuid,
        /// Session of the operation.
        parent: Uuid,
        /// Operation that was to open its child session.
        operation: OperationId,
    },
    /// Somebody used an operation's handle after the operation had ended.
    #[error("the handle of operation {operation} is revoked: {reason}")]
    Revoked {
        /// Operation that the handle belongs to.
        operation: OperationId,
        /// What ended the handle.
        reason: &'static str,
    },
    /// A tool that was declared to read only, or to act outside only, tried to change something here.
    #[error("operation {operation} was declared to change neither STATE nor resources, and tried to {tried}")]
    ReadsOnly {
        /// Operation of the tool.
        operation: OperationId,
        /// What the tool tried to do.
        tried: &'static str,
    },
    /// The deadline of a call passed: before the call began, or before the call's handle was used, whose changes are rolled back
    /// when the call ends.
    #[error("the deadline of {} passed", operation_text(*operation))]
    DeadlineExceeded {
        /// Operation whose deadline passed; `None` where it passed while the call waited for other calls to end.
        operation: Option<OperationId>,
    },
    /// A tool goes on running long after its deadline or its cancellation, so no other call can begin.
    #[error("operation {operation} still runs long after its deadline or cancellation")]
    Stuck {
        /// Operation that still runs.
        operation: OperationId,
    },
    /// A tool asks for more sections of the prompt to be shown. Its changes were rolled back; call the tool again with
    /// these sections shown.
    #[error(
        "operation {operation} asks for more sections of the prompt to be shown: {}",
        escape::text(reason)
    )]
    VisibilityExpansion {
        /// Operation of the tool.
        operation: OperationId,
        /// What is to be shown, as JSON in the tool's own form.
        overrides: serde_json::Value,
        /// Why the tool asks.
        reason: String,
    },
    /// A call waits for somebody: it asked before it did anything, or its result comes later. Settle the operation, and run
    /// the call again or resume its conversation.
    #[error(
        "operation {operation} of session {session} waits for {}: {}",
        waiting_text(*form),
        escape::text(question)
    )]
    Suspended {
        /// Session whose operation waits.
        session: Uuid,
        /// Operation that waits.
        operation: OperationId,
        /// What it waits for.
        form: SuspensionForm,
        /// Text of the question.
        question: String,
    },
    /// An interrupted tool cannot safely run again. Somebody has to settle the operation.
    #[error(
        "tool `{}` of operation {operation} was interrupted and may have done its work: settle the operation by hand",
        escape::text(tool)
    )]
    ToolIdempotency {
        /// Operation that was interrupted.
        operation: OperationId,
        /// Name of the tool.
        tool: String,
    },
    /// The session holds no such operation, or the operation is not in a state that the call accepts.
    #[error("operation {operation}: {reason}")]
    NoSuchOperation {
        /// Operation that was asked for.
        operation: OperationId,
        /// Why the call does not accept the operation.
        reason: &'static str,
    },
    /// Somebody has decided about the operation, so it waits for no decision.
    #[error(
        "operation {operation} is already settled: `{}` by {}, in record {sequence}",
        decision.shown_name(arguments.is_some()),
        escape::text(by)
    )]
    AlreadySettled {
        /// Operation that was asked for.
        operation: OperationId,
        /// What was decided.
        decision: Decision,
        /// BLAKE3 of the arguments that were approved; `None` if the decision is no approval.
        arguments: Option<[u8; 32]>,
        /// Who decided.
        by: String,
        /// Record of the decision.
        sequence: SequenceNumber,
    },
    /// A decision does not say who makes it. Nothing was recorded.
    #[error("`{argument}` is blank: a decision says who makes it")]
    Blank {
        /// Name of the argument that has no text.
        argument: &'static str,
    },
    /// The session holds no such conversation, or the conversation is not in a state that the call accepts.
    #[error("evaluation `{}`: {reason}", escape::text(evaluation))]
    NoSuchConversation {
        /// Id of the evaluation that was asked for.
        evaluation: String,
        /// Why the call does not accept the conversation.
        reason: &'static str,
    },
    /// The registry holds no tool of this name.
    #[error("there is no tool `{}`", escape::text(.0))]
    NoSuchTool(String),
    /// The session keeps no checkpoint for a tool call; the error holds the call's id.
    #[error("No checkpoint for tool call: {}", escape::text(.0))]
    NoCheckpoint(String),
    /// The session has no rewind on its live path, and no rollback of a call that replaced files, that could be undone.
    #[error("session {0} has no rewind and no rollback to be undone")]
    NoRewind(Uuid),
    /// A provider's id of a tool call stands for several operations.
    #[error("tool call `{}` stands for several operations: {}", escape::text(call_id), numbers(operations))]
    AmbiguousCall {
        /// Id that the provider gave the call.
        call_id: String,
        /// Operations with this id.
        operations: Vec<OperationId>,
    },
    /// A snapshot belongs to another session or to other resources, or two snapshots that a caller compares differ; the
    /// error says in what.
    #[error("the snapshot does not match: {}", escape::text(.0))]
    SnapshotMismatch(String),
    /// Some resources could not be restored; the others were. If a call was to be rolled back, it is left open, and the
    /// session takes no writes until it is recovered, which restores the resources again.
    #[error("resources not restored: {}{}", failures(failed), also_restored(restored))]
    RestoreFailed {
        /// Names of the resources that were restored.
        restored: Vec<String>,
        /// Names of the resources that were not restored, each with its error.
        failed: Vec<(String, Arc<Error>)>,
    },
    /// A resource reports a failure.
    #[error("resource `{}`: {}", escape::text(resource), escape::text(reason))]
    Resource {
        /// Name of the resource.
        resource: String,
        /// What the resource says.
        reason: String,
    },
    /// A workspace could not be used, captured or restored. A lack of space is [`Full`](Error::Full) instead, and a
    /// deadline that passed [`DeadlineExceeded`](Error::DeadlineExceeded).
    #[error(transparent)]
    Filesystem(filesystem::Error),
    /// A call of another session was interrupted while it worked on the workspace, and recovering that session would
    /// roll back whatever is done there before. Nothing was changed.
    #[error(
        "operation {operation} (`{}`) of session {session} in {} was interrupted while it changed workspace {}: recover \
         that session first, or delete it; if neither is possible, remove the attribute `user.foldlog.work` of the \
         workspace's folder",
        escape::text(tool),
        escape::path(session_dir),
        escape::path(workspace)
    )]
    ResourceDirty {
        /// Root of the workspace.
        workspace: PathBuf,
        /// Session that has to be recovered.
        session: Uuid,
        /// Directory of that session.
        session_dir: PathBuf,
        /// Operation of that session that is open.
        operation: OperationId,
        /// Name of the tool that was interrupted.
        tool: String,
    },
    /// Another session worked on the workspace, and its log cannot be read, so nobody can say whether a call of it was
    /// interrupted there. Nothing was changed.
    #[error(
        "a call of session {session} in {} may have been interrupted while it changed workspace {}, and the session's log \
         cannot be read: {cause}; make the log readable and recover the session, or delete it; if neither is possible, \
         remove the attribute `user.foldlog.work` of the workspace's folder",
        escape::path(session_dir),
        escape::path(workspace)
    )]
    ResourceMaybeDirty {
        /// Root of the workspace.
        workspace: PathBuf,
        /// Session that worked on the workspace.
        session: Uuid,
        /// Directory of that session.
        session_dir: PathBuf,
        /// Why the log cannot be read.
        cause: Arc<Error>,
    },
    /// What the rollback of a call would replace or remove can neither be captured nor set aside, so nothing was touched, and the call is
    /// left open. A run [without captures](crate::tools::ExecutionStateBuilder::without_capture) goes on, and loses what is there.
    #[error(
        "nothing was rolled back: what is there now cannot be captured ({capture}), nor be moved aside ({aside})"
    )]
    Uncaptured {
        /// Why it cannot be captured.
        capture: Arc<Error>,
        /// Why it cannot be moved aside.
        aside: Arc<Error>,
    },
    /// Reading a log would take more memory than the reader's budget. If the caller sets no budget, a reader that asks
    /// for no STATE has 64 MiB, and other readers three times the bytes of the log in addition.
    #[error(
        "reading {} takes {needed} bytes of memory up to record {sequence}, more than the budget of {budget} bytes",
        escape::path(session_dir)
    )]
    OverBudget {
        /// Directory of the session.
        session_dir: PathBuf,
        /// Sequence number of the record up to which the log was read.
        sequence: SequenceNumber,
        /// Number of bytes held there, approximately.
        needed: u64,
        /// Number of bytes that the reader may hold.
        budget: u64,
    },
    /// A replayed host produced something else than the log holds. The replay has stopped there.
    #[error("the replay diverged: {0}")]
    Diverged(Box<Divergence>),
    /// A replayed host has come to the end of what its process recorded, or of what was to be replayed. A live host
    /// would have gone on; return from it as from a crash.
    #[error("the replay is over: record {position} is the last one")]
    ReplayEnded {
        /// Sequence number of the last record that was replayed.
        position: SequenceNumber,
    },
    /// Something exceeds a limit. Nothing was recorded.
    #[error("{what}: {found} exceeds the limit of {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size; where parts are counted one by one, the count at which counting stopped.
        found: u64,
        /// Largest size that is accepted.
        max: u64,
    },
}

impl Error {
    /// Returns whether the log itself is damaged or incomplete, as opposed to a wrong use or a failing system.
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
            filesystem::Error::Collected { store, object } => Error::Collected { store, capture: object },
            error => Error::Filesystem(error),
        }
    }
}

/// Unboxes the errors of those who decode values, who box them to keep their results small.
impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Error {
        *error
    }
}
