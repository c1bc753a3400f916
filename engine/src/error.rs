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
mod storage;
#[cfg(test)]
mod tests;
mod text;

pub use blocker::Blocker;
use blocker::seconds;
pub use corruption::Corruption;
pub use holder::Holder;
pub(crate) use holder::host_name;
pub(crate) use panics::{catch_panic, panic_message};
pub(crate) use text::operation_numbers;
use text::{
    also_restored, failures, last_text, operation_text, operations_text, or_nearest, unregistered_text,
    waiting_text,
};

/// Result of a call to the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Describes an error, with the facts.
///
/// A method that reads a log fails with [`Io`](Error::Io) if a file cannot be read, with
/// [`Corrupt`](Error::Corrupt) if one is damaged, and with [`Object`](Error::Object) if a large
/// payload is missing or damaged. The documentation of a method names the errors that have a
/// condition of their own there; a method that calls another one also returns its errors.
///
/// No message contains a control character: text from a log, a path or the system is
/// [escaped](foldlog_codec::escape). The fields contain the unescaped values.
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
        /// Error that the system returned.
        source: Arc<std::io::Error>,
    },
    /// The disk has no space for a new segment, object or session. No data was written, and the
    /// session continues once there is space.
    #[error("the disk has no space for {bytes} bytes at {}: {}", escape::path(path), escape::display(source))]
    Full {
        /// File that could not be created.
        path: PathBuf,
        /// Number of bytes requested.
        bytes: u64,
        /// Error that the system returned.
        source: Arc<std::io::Error>,
    },
    /// The process or the system has reached its limit of open files, and a file was to be created
    /// or written. No data was written, and the session continues once there are handles.
    #[error("no file handle is left to open {}: {}", escape::path(path), escape::display(source))]
    NoHandle {
        /// File that could not be opened or created.
        path: PathBuf,
        /// Error that the system returned.
        source: Arc<std::io::Error>,
    },
    /// Bytes of the log fail their check, although a frame attests them or they were written in the
    /// same boot. This is damage, not a torn tail. No changes were made.
    #[error("{0}")]
    Corrupt(Box<Corruption>),
    /// A segment is intact up to a place where it is older than the frames that follow. The
    /// directory was copied while the session was written, older files first, or the disk lost the
    /// bytes between.
    #[error(
        "{} contains no complete frame from byte {offset}, where record {sequence} is expected, to byte {end}, but {} \
         continues after that: the directory was copied while the session was written, or the disk lost these bytes",
        escape::path(segment),
        escape::path(successor)
    )]
    OlderThanSuccessor {
        /// Session that the segment belongs to.
        session: Uuid,
        /// Segment that is older.
        segment: PathBuf,
        /// Offset in bytes at which the intact part of the segment ends.
        offset: u64,
        /// Sequence number of the record that is expected there.
        sequence: SequenceNumber,
        /// Segment whose frames follow: the next segment, or the same segment.
        successor: PathBuf,
        /// Offset in bytes at which the missing part of the older segment ends: its end, as the
        /// header of the next segment states it, or the end of a page.
        end: u64,
    },
    /// A segment between or after others is missing.
    #[error("session {session}: segment {ordinal} is missing ({})", escape::path(path))]
    MissingSegment {
        /// Session that the segment belongs to.
        session: Uuid,
        /// Ordinal of the missing segment.
        ordinal: u32,
        /// Expected path of the segment.
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
    /// The directory contains no session.
    #[error("{} is not a session: {}", escape::path(path), escape::text(reason))]
    NotASession {
        /// Directory that was to be opened.
        path: PathBuf,
        /// Missing or unexpected contents of the directory.
        reason: String,
    },
    /// The path of a file of a session or store leads to something other than a regular file. It
    /// was not read, and no link was followed.
    #[error("{} is {found}, not a regular file", escape::path(path))]
    NotAFile {
        /// Path of the file.
        path: PathBuf,
        /// Kind of the entry at that path.
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
        "{} requires the codec {codec}, which this build of foldlog lacks: it was built without the feature `compression`",
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
        "{} is compressed in format version {version} with codec {codec}; this version of foldlog reads versions up to {supported} \
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
    /// The log contains a record of a kind that this version cannot fold. The session can be read,
    /// but not written.
    #[error(
        "record {sequence} has kind {kind}, which this version of foldlog does not support: open the session for reading only"
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
        /// Process that holds the lock, if known.
        holder: Holder,
    },
    /// The session was opened by the process that forked this one, and only that process may write
    /// it.
    #[error(
        "session {session} was opened by the parent process, and only that process may write it: open it here after the \
         parent process has closed it"
    )]
    Forked {
        /// Session that was to be written.
        session: Uuid,
    },
    /// Another writer has the session open too, because locks on this file system exclude no other
    /// process. Recent records of either writer may be lost. The session rejects writes until it is
    /// opened again.
    #[error(
        "session {session} has a second writer, because locks exclude no other process on this file system: {}",
        escape::text(found)
    )]
    SecondWriter {
        /// Session that both write.
        session: Uuid,
        /// Evidence of the other writer.
        found: String,
    },
    /// An earlier write or sync failed, so the session rejects writes until it is opened again.
    #[error("the session rejects writes after an earlier failure, until it is opened again: {cause}")]
    Poisoned {
        /// First failure of a write or sync.
        cause: Arc<Error>,
    },
    /// A sync failed after the record was written: after reopening, the session may or may not
    /// contain the record. If the cause is [`NoHandle`](Error::NoHandle), the session continues,
    /// and a later sync makes the record durable.
    #[error("record {sequence} may or may not be durable, because its sync failed: {cause}")]
    DurabilityUnknown {
        /// Sequence number of the record.
        sequence: SequenceNumber,
        /// Error of the sync.
        cause: Arc<Error>,
    },
    /// Another writer has claimed the session at the store's [replicator](crate::replication). No
    /// further record of this writer is acknowledged; its records remain readable.
    #[error(
        "another writer claimed session {session} (epoch {epoch}, `{}`), and this one must stop writing",
        escape::text(by)
    )]
    Fenced {
        /// Session that was to be written.
        session: Uuid,
        /// Epoch of the other writer.
        epoch: u64,
        /// Name of the other writer.
        by: String,
    },
    /// The local log differs from the records at the store's [replicator](crate::replication), or
    /// continues after another writer's claim. Its records can be read, and are never merged.
    #[error(
        "the records of session {session} from {sequence} on are superseded: another writer claimed the session before them. \
         They remain readable here. Leave the session to that writer, or delete it here (`Store::delete`) and take it over \
         (`Store::take_over`), which fences that writer"
    )]
    Superseded {
        /// Session that was to be opened.
        session: Uuid,
        /// Sequence number of the first such record.
        sequence: SequenceNumber,
    },
    /// The store's [replicator](crate::replication) has records that the local log lacks, and that
    /// another writer appended. Records of its own that the log has lost are fetched without an
    /// error.
    #[error(
        "the local log of session {session} ends before record {local}, but another writer has replicated records up to {}: \
         delete the session here (`Store::delete`) and take it over (`Store::take_over`) to continue",
        held.saturating_sub(1)
    )]
    ReplicaAhead {
        /// Session that was to be opened.
        session: Uuid,
        /// Sequence number after the last local record.
        local: SequenceNumber,
        /// Sequence number after the last replicated record.
        held: SequenceNumber,
    },
    /// The log records that the session is replicated, but the store's
    /// [replicator](crate::replication) does not know that claim: it looks in another place, or the
    /// place has lost its data. A writer here would not be fenced.
    #[error(
        "according to the log of session {session}, `{}` claimed it with epoch {epoch} in {}, but this store's replicator finds \
         epoch {held} in {}: open the store with the place that contains the session, or replicate the session to the present place \
         from now on with `StoreOptions::unreplicated`",
        escape::text(by),
        escape::text(at),
        escape::text(here)
    )]
    ReplicaElsewhere {
        /// Session that was to be opened for writing.
        session: Uuid,
        /// Place of the replica, according to the log.
        at: String,
        /// Name under which the session was first claimed there.
        by: String,
        /// Epoch of that claim.
        epoch: u64,
        /// Place where the store's replicator looks.
        here: String,
        /// Epoch of the last claim that it finds there; 0 if there is none.
        held: u64,
    },
    /// The session is replicated, and the store was opened without its
    /// [replicator](crate::replication). A writer here would not be fenced, and another worker may
    /// have continued the session.
    #[error(
        "session {session} is replicated ({}, first claimed by `{}`), and this store was opened without a replicator: another \
         worker may have continued the session. Open the store with `StoreOptions::replication`, read the session with \
         `open_read_only`, or allow writes without a replicator with `StoreOptions::unreplicated`",
        escape::text(at),
        escape::text(by)
    )]
    Replicated {
        /// Session that was to be opened for writing.
        session: Uuid,
        /// Place of the replica.
        at: String,
        /// Name under which the session was first claimed there, according to the log.
        by: String,
    },
    /// The store's [replicator](crate::replication) lags further than allowed, and the host chose
    /// to refuse writes in this case. No data was written; the write succeeds once the replicator
    /// has caught up.
    #[error(
        "the replicator is too far behind session {session}, by {records} records and {bytes} bytes, the oldest {} s old: \
         try again once it has caught up",
        time.as_secs()
    )]
    ReplicaBehind {
        /// Session that was to be written.
        session: Uuid,
        /// Number of records that are not replicated.
        records: u64,
        /// Approximate number of their bytes in the log.
        bytes: u64,
        /// Age of the oldest of them.
        time: Duration,
    },
    /// It is unknown whether the store's [replicator](crate::replication) has the last records.
    /// They are in the local log, and the next opening resolves the question.
    #[error(
        "it is unknown whether the last records of session {session} are replicated: {}",
        escape::display(reason)
    )]
    ReplicaUnknown {
        /// Session with the uncertain records.
        session: Uuid,
        /// Cause of the failure.
        reason: String,
    },
    /// The store's [replicator](crate::replication) could not be reached, or its data is unusable.
    #[error("the replicator failed for session {session}: {}", escape::display(reason))]
    ReplicaFailed {
        /// Session that was to be replicated.
        session: Uuid,
        /// Cause of the failure.
        reason: String,
    },
    /// The session was opened for reading, or is on a read-only disk.
    #[error("session {session} is open for reading only: {}", escape::text(reason))]
    ReadOnly {
        /// Session that was to be written.
        session: Uuid,
        /// Why the session rejects writes.
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
    /// The store contains no such session.
    #[error("there is no session {session} in {}", escape::path(path))]
    NoSuchSession {
        /// Requested session.
        session: Uuid,
        /// Directory of the store.
        path: PathBuf,
    },
    /// The store's data of the session is not an older copy of it, so a backup does not continue
    /// there. No changes were made.
    #[error("{} is not an older copy of session {session}: {}", escape::path(path), escape::text(reason))]
    NotACopy {
        /// Session that was to be copied.
        session: Uuid,
        /// Directory that should contain the older copy.
        path: PathBuf,
        /// Description of the difference.
        reason: String,
    },
    /// The store's directory is within the directory of the session that it was to import or
    /// salvage. This would change the directory that it reads.
    #[error(
        "the store {} is inside the session that it is to read: {}",
        escape::path(path),
        escape::path(session_dir)
    )]
    WithinSession {
        /// Directory of the store.
        path: PathBuf,
        /// Directory of the session.
        session_dir: PathBuf,
    },
    /// Sessions of a store were to be copied into that store, or into a directory within it.
    #[error(
        "the copies would be inside the store that they are copied from: {} is in {}",
        escape::path(path),
        escape::path(store)
    )]
    WithinStore {
        /// Directory for the copies.
        path: PathBuf,
        /// Directory of the store.
        store: PathBuf,
    },
    /// The store already contains a session with this id.
    #[error("session {session} already exists in this store")]
    SessionExists {
        /// Session that was to be created.
        session: Uuid,
    },
    /// The log binds events to reducers that the host did not declare; the error lists all of them.
    /// If a host has removed a reducer on purpose, it declares that with
    /// [`retired`](crate::SessionTypesBuilder::retired).
    #[error("{}", unregistered_text(.0))]
    NotRegistered(Vec<UnregisteredEvent>),
    /// An import contains slices that the host did not declare; the error lists their names.
    #[error("Slice types not registered: {}", escape::text(&.0.join(", ")))]
    SlicesNotRegistered(Vec<String>),
    /// A slice is declared with another policy than in its first declaration.
    #[error("slice `{}` is declared as {declared}, but was first declared as {recorded}", escape::text(slice), declared = .declared.name(), recorded = .recorded.name())]
    PolicyMismatch {
        /// Name of the slice.
        slice: String,
        /// Policy that the host declares now.
        declared: Policy,
        /// Policy of the first declaration.
        recorded: Policy,
    },
    /// The host declared one name twice, with contradictory declarations.
    #[error("`{}` is declared twice: {reason}", escape::text(name))]
    DeclaredTwice {
        /// Name of the slice or event.
        name: String,
        /// Description of the contradiction.
        reason: String,
    },
    /// The host declared a slice that no event changes. Its events would be appended to an implicit
    /// slice of another name.
    #[error(
        "slice `{}` is declared, but no event changes it: bind an event, for example with `append_all`, or declare the slice as `seeded`",
        escape::text(slice)
    )]
    SliceUnbound {
        /// Name of the slice.
        slice: String,
    },
    /// The run-time declaration of a slice contains an invalid path.
    #[error(
        "slice `{}`: `{}` is not a path of a value, such as `card.id` or `ids[0]`",
        escape::text(slice),
        escape::text(path)
    )]
    NotAPath {
        /// Name of the slice.
        slice: String,
        /// Invalid text.
        path: String,
    },
    /// A requested slice or event was never declared, or has another type.
    #[error("slice `{}`: {reason}", escape::text(slice))]
    NoSuchSlice {
        /// Name of the slice or event.
        slice: String,
        /// Reason why the slice is not available.
        reason: &'static str,
    },
    /// An event was dispatched under an undeclared name, and the store's
    /// [options](crate::StoreOptions::undeclared_events) refuse that.
    #[error("event `{}` is not declared{}", escape::text(event), or_nearest(nearest.as_deref()))]
    UndeclaredEvent {
        /// Name of the dispatched event.
        event: String,
        /// Most similar declared name; `None` if no event is declared.
        nearest: Option<String>,
    },
    /// A lookup in a slice used a key of a type that the slice is not keyed by.
    #[error("the slice has no keys of type `{key}`: declare it with `keyed_by` or `upsert_by`")]
    NotKeyed {
        /// Rust type of the key.
        key: &'static str,
    },
    /// A value was recorded at a later version than the host's code supports.
    #[error(
        "`{}` was recorded at version {stored}, which is newer than version {supported} of the host's code",
        escape::text(name)
    )]
    NewerVersion {
        /// Name of the event or item type.
        name: String,
        /// Version in the log.
        stored: u32,
        /// Newest version that the host's code supports.
        supported: u32,
    },
    /// A recorded value does not decode as the host's type.
    #[error("`{}` at record {sequence} cannot be decoded: {}", escape::text(name), escape::text(reason))]
    Decode {
        /// Name of the event or slice.
        name: String,
        /// Sequence number of the record that contains the value.
        sequence: SequenceNumber,
        /// Description of the mismatch.
        reason: String,
    },
    /// A host's value cannot be written into a record.
    #[error("`{}` cannot be recorded: {}", escape::text(name), escape::text(reason))]
    Encode {
        /// Name of the event or slice.
        name: String,
        /// Reason why the value cannot be encoded.
        reason: String,
    },
    /// Malformed input for a type of the log's format: the bytes of a [`Value`](crate::Value), or
    /// the body of a [`Record`](crate::Record).
    #[error(transparent)]
    Format(#[from] foldlog_codec::Error),
    /// A reducer refused the event. No record was written and the state is unchanged.
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
        /// Reason given by the reducer.
        reason: String,
    },
    /// A reducer panicked. No record was written and the state is unchanged.
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
    /// A reducer or a recorded effect was to change or remove items of a LOG slice, which accepts
    /// only new items.
    #[error("slice `{}` is a LOG slice, which only grows: {operation} is not allowed", escape::text(slice))]
    LogOnlyGrows {
        /// Name of the slice.
        slice: String,
        /// Operation that was refused.
        operation: &'static str,
    },
    /// The log contains no record at that position.
    #[error("there is no position {position}: {}", last_text(*last))]
    NoSuchPosition {
        /// Requested position.
        position: SequenceNumber,
        /// Position of the last record; `None` if the log is empty.
        last: Option<SequenceNumber>,
    },
    /// A compaction replaced a segment while it was read. Readers start again in this case, and
    /// report the error only if it happens repeatedly.
    #[error("segment {} was replaced by a compaction while it was read: read it again", escape::path(path))]
    CompactedMeanwhile {
        /// Path of the segment.
        path: PathBuf,
    },
    /// A compaction has dropped data of the requested position: the slices' contents there, or the
    /// body of that record.
    #[error(
        "position {position} cannot be read, because a compaction dropped bodies of records up to position {earliest}; the contents of \
         slices are known from position {earliest} on"
    )]
    Compacted {
        /// Requested position.
        position: SequenceNumber,
        /// Last position of the compacted range. The slices' contents are known there, and after it
        /// up to the next compacted range.
        earliest: SequenceNumber,
    },
    /// A capture of a workspace was [collected](crate::Store::collect), because it was no longer
    /// needed. No changes were made.
    #[error("the capture {} was removed from {} by a collection", escape::text(capture), escape::path(store))]
    Collected {
        /// Directory of the captures.
        store: PathBuf,
        /// Id of the capture's commit, or of its metadata, in hexadecimal.
        capture: String,
    },
    /// A large payload is missing from the object directory, or its bytes do not match its name.
    #[error("object {}: {}", escape::path(path), escape::text(reason))]
    Object {
        /// File of the object.
        path: PathBuf,
        /// Description of the fault.
        reason: String,
    },
    /// A record contradicts the records before it.
    #[error("record {sequence} contradicts the log: {}", escape::text(reason))]
    Inconsistent {
        /// Sequence number of the record.
        sequence: SequenceNumber,
        /// Description of the contradiction.
        reason: String,
    },
    /// A file or text is not a readable snapshot export; the error contains the reason.
    #[error("not a snapshot export: {}", escape::text(.0))]
    Export(String),
    /// The process that wrote the session ended while operations were open. The session rejects
    /// writes until they are recovered.
    #[error(
        "session {session} was interrupted during {}: recover the session before writing to it",
        operations_text(operations)
    )]
    Interrupted {
        /// Session that was to be written.
        session: Uuid,
        /// Open operations, in the order in which they started.
        operations: Vec<OpenOperation>,
    },
    /// The session cannot roll back to a position within an operation, because half of the
    /// operation's changes would remain.
    #[error("position {position} lies within operation {operation}, half of whose changes would remain")]
    InsideTransaction {
        /// Requested position.
        position: SequenceNumber,
        /// Operation that contains the position.
        operation: OperationId,
    },
    /// A tool's handle cannot roll back to a position before the tool's start, because that would
    /// roll back changes of others.
    #[error(
        "position {position} lies before operation {operation} began: its handle cannot roll back that far"
    )]
    OutsideTransaction {
        /// Requested position.
        position: SequenceNumber,
        /// Operation that the handle belongs to.
        operation: OperationId,
    },
    /// The call would wait for an operation that runs on the calling thread. The thread runs a
    /// tool, or has [started](crate::tools::ToolRunner::begin) an operation and not ended it. A
    /// tool writes through the session of its own context, and has its own conversations in a child
    /// session.
    #[error(
        "operation {operation} runs on this thread, so the call cannot wait for it: write through the session of its context, \
         end it first, hand it over if another thread ends it, or hold a conversation in a child session"
    )]
    InsideOperation {
        /// Operation that runs on the thread.
        operation: OperationId,
    },
    /// A call reached its [maximum wait](crate::StoreOptions::wait). No record was written.
    #[error("waited {} s for {blocker}", seconds(*waited))]
    WaitedTooLong {
        /// Time that the call waited.
        waited: Duration,
        /// Cause of the wait.
        blocker: Box<Blocker>,
    },
    /// A session has the id of an operation's child session, but was not created by that operation.
    #[error(
        "session {session} has the id of a child session of operation {operation} of session {parent}, but that operation did \
         not create it: delete session {session}, or give the child another number"
    )]
    WrongChild {
        /// Existing session.
        session: Uuid,
        /// Session of the operation.
        parent: Uuid,
        /// Operation that was to open its child session.
        operation: OperationId,
    },
    /// The handle of an operation was used after the operation had ended.
    #[error("the handle of operation {operation} is revoked: {reason}")]
    Revoked {
        /// Operation that the handle belongs to.
        operation: OperationId,
        /// Reason why the handle was revoked.
        reason: &'static str,
    },
    /// A tool that was declared to only read, or to act only outside, tried to change STATE, to run
    /// a tool that may change something, or to start a program.
    #[error("operation {operation} was declared to change neither STATE nor resources, but tried to {tried}")]
    ReadsOnly {
        /// Operation of the tool.
        operation: OperationId,
        /// Attempted action of the tool.
        tried: &'static str,
    },
    /// The deadline of a call passed: before the call started, or before its handle was used. In
    /// the second case the call's changes are rolled back when the call ends.
    #[error("the deadline of {} passed", operation_text(*operation))]
    DeadlineExceeded {
        /// Operation whose deadline passed; `None` if the deadline passed while the call waited for
        /// other calls.
        operation: Option<OperationId>,
    },
    /// A tool runs long after its deadline or its cancellation, so no other call can start.
    #[error("operation {operation} still runs long after its deadline or cancellation")]
    Stuck {
        /// Operation that is still running.
        operation: OperationId,
    },
    /// A tool requests more sections of the prompt. Its changes were rolled back; call the tool
    /// again with these sections shown.
    #[error(
        "operation {operation} asks for more sections of the prompt to be shown: {}",
        escape::text(reason)
    )]
    VisibilityExpansion {
        /// Operation of the tool.
        operation: OperationId,
        /// Requested sections, as JSON in the tool's own form.
        overrides: serde_json::Value,
        /// Reason for the request.
        reason: String,
    },
    /// A call is suspended: it asked before it changed anything, or its result comes later. Settle
    /// the operation, and run the call again or resume its conversation.
    #[error(
        "operation {operation} of session {session} waits for {}: {}",
        waiting_text(*form),
        escape::text(question)
    )]
    Suspended {
        /// Session of the suspended operation.
        session: Uuid,
        /// Suspended operation.
        operation: OperationId,
        /// Kind of the suspension.
        form: SuspensionForm,
        /// Text of the question.
        question: String,
    },
    /// An interrupted tool cannot safely run again. The operation has to be settled.
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
    /// The session contains no such operation, or the operation is not in a state that the call
    /// accepts.
    #[error("operation {operation}: {reason}")]
    NoSuchOperation {
        /// Requested operation.
        operation: OperationId,
        /// Reason why the call does not accept the operation.
        reason: &'static str,
    },
    /// The operation is already decided.
    #[error(
        "operation {operation} is already settled: `{}` by {}, in record {sequence}",
        decision.shown_name(arguments.is_some()),
        escape::text(by)
    )]
    AlreadySettled {
        /// Requested operation.
        operation: OperationId,
        /// Existing decision.
        decision: Decision,
        /// BLAKE3 of the arguments that were approved; `None` if the decision is no approval.
        arguments: Option<[u8; 32]>,
        /// Author of the decision.
        by: String,
        /// Record of the decision.
        sequence: SequenceNumber,
    },
    /// A decision names no author. No record was written.
    #[error("`{argument}` is blank: a decision requires the name of its author")]
    Blank {
        /// Name of the blank argument.
        argument: &'static str,
    },
    /// The session contains no such conversation, or the conversation is not in a state that the
    /// call accepts.
    #[error("evaluation `{}`: {reason}", escape::text(evaluation))]
    NoSuchConversation {
        /// Id of the requested evaluation.
        evaluation: String,
        /// Reason why the call does not accept the conversation.
        reason: &'static str,
    },
    /// The registry contains no tool of this name.
    #[error("there is no tool `{}`", escape::text(.0))]
    NoSuchTool(String),
    /// The session has no checkpoint for a tool call; the error contains the call's id.
    #[error("No checkpoint for tool call: {}", escape::text(.0))]
    NoCheckpoint(String),
    /// An undo has no target: the session's live path has no rewind, and no rollback of a call that
    /// replaced files and recorded their captures.
    #[error("session {0} has no rewind and no rollback to undo")]
    NoRewind(Uuid),
    /// A provider's id of a tool call belongs to several operations.
    #[error(
        "tool call `{}` belongs to several operations: {}",
        escape::text(call_id),
        operation_numbers(operations)
    )]
    AmbiguousCall {
        /// Provider's id of the call.
        call_id: String,
        /// Operations with this id.
        operations: Vec<OperationId>,
    },
    /// A snapshot belongs to another session or to other resources, or two compared snapshots
    /// differ; the error describes the difference.
    #[error("the snapshot does not match: {}", escape::text(.0))]
    SnapshotMismatch(String),
    /// Some resources could not be restored; all other resources were. If a call was to be rolled
    /// back, it is left open. The session then rejects writes until it is recovered, which restores
    /// the resources again.
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
        /// Message of the resource.
        reason: String,
    },
    /// A workspace could not be used, captured or restored. Lack of space is reported as
    /// [`Full`](Error::Full), and a passed deadline as
    /// [`DeadlineExceeded`](Error::DeadlineExceeded).
    #[error(transparent)]
    Filesystem(filesystem::Error),
    /// A call of another session was interrupted while it worked on the workspace. Recovering that
    /// session would roll back all changes there, including changes of this session. No changes
    /// were made.
    #[error(
        "operation {operation} (`{}`) of session {session} in {} was interrupted while it changed workspace {}: recover \
         that session first, or delete it; if neither is possible, remove the attribute `user.foldlog.work` of the \
         workspace's directory",
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
        /// Open operation of that session.
        operation: OperationId,
        /// Name of the interrupted tool.
        tool: String,
    },
    /// Another session worked on the workspace, and its log cannot be read. It is therefore unknown
    /// whether one of its calls was interrupted there. No changes were made.
    #[error(
        "a call of session {session} in {} may have been interrupted while it changed workspace {}, and the session's log \
         cannot be read: {cause}; make the log readable and recover the session, or delete it; if neither is possible, \
         remove the attribute `user.foldlog.work` of the workspace's directory",
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
        /// Error of reading the log.
        cause: Arc<Error>,
    },
    /// A rollback would replace or remove content that can neither be captured nor set aside. No
    /// content was changed, and the call is left open. A run [without
    /// captures](crate::tools::ExecutionStateBuilder::without_capture) continues, and loses that
    /// content.
    #[error(
        "nothing was rolled back: the present content can neither be captured ({capture}) nor moved aside ({aside})"
    )]
    Uncaptured {
        /// Error of the capture.
        capture: Arc<Error>,
        /// Error of setting the content aside.
        aside: Arc<Error>,
    },
    /// Reading a log would take more memory than the reader's budget. The default budget is 64 MiB
    /// for readers without STATE; for other readers it is larger by three times the bytes of the
    /// log.
    #[error(
        "reading {} takes {needed} bytes of memory up to record {sequence}, more than the budget of {budget} bytes",
        escape::path(session_dir)
    )]
    OverBudget {
        /// Directory of the session.
        session_dir: PathBuf,
        /// Sequence number of the record up to which the log was read.
        sequence: SequenceNumber,
        /// Approximate number of bytes in memory at that record.
        needed: u64,
        /// Number of bytes that the reader may use.
        budget: u64,
    },
    /// A replayed host differs from the log. The replay has stopped there.
    #[error("the replay diverged: {0}")]
    Diverged(Box<Divergence>),
    /// A replayed host has reached the end of its process's records, or of the replayed range. A
    /// live host would have continued; return from it as from a crash.
    #[error("the replay is over: record {position} is the last one")]
    ReplayEnded {
        /// Sequence number of the last record that was replayed.
        position: SequenceNumber,
    },
    /// A value exceeds a limit. No record was written.
    #[error("{what}: {found} exceeds the limit of {max}")]
    TooLarge {
        /// Name of the value.
        what: &'static str,
        /// Its size. If parts are counted one by one, the count at which counting stopped.
        found: u64,
        /// Largest accepted size.
        max: u64,
    },
}

impl Error {
    /// Returns whether the log itself is damaged or incomplete, as opposed to a misuse or a failing
    /// system.
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

/// Unboxes errors of decoders, which box them to keep their results small.
impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Error {
        *error
    }
}
