use std::fmt;
use std::sync::Arc;

use foldlog_codec::{SequenceNumber, escape};
use uuid::Uuid;

use crate::chunk::{ChunkHash, Epoch, WriterId};

/// Contains a result, or an [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Describes why a store did not carry out a request, in this crate's own words. [`FailureDetails`]
/// add the host and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteFailure {
    /// No answer came in time. The request may still be carried out.
    #[error("no answer came in time")]
    TimedOut,
    /// The store, or the connection to it, failed: it reported an internal error, or the answer
    /// broke off. The request may have been carried out.
    #[error("the store, or the connection to it, failed")]
    Unavailable,
    /// Nothing listens at the store's address.
    #[error("the connection was refused: no server listens there")]
    Refused,
    /// The host's name has no known address.
    #[error("the name of the host does not resolve")]
    Unresolved,
    /// The server is busy, starting or stopping, or has no connection left.
    #[error("the server accepts no requests now: it is busy, starting or stopping")]
    Busy,
    /// The store does not permit this with these credentials, or no longer.
    #[error("the credentials do not permit this request, or have expired")]
    Denied,
    /// The store reported that the object exists, and then that it does not: it was busy with a
    /// concurrent write.
    #[error("the store is busy with another write of the same object")]
    Conflict,
    /// Another collection of the session was faster. The next one continues where both ended.
    #[error("another collection of the session was faster; run it again")]
    Overtaken,
    /// There is no such bucket or directory.
    #[error("the bucket or directory does not exist")]
    Missing,
    /// A path in a local directory is not a regular file, such as a pipe or a directory in place of
    /// an object.
    #[error("the entry with this name is not a regular file")]
    NotAFile,
    /// The bucket is in another region, or at another endpoint.
    #[error("the bucket is in another region, or at another endpoint, than the environment specifies")]
    Elsewhere,
    /// Neither the environment nor the machine's provider has credentials.
    #[error("there are no credentials in the environment, and the machine's provider supplies none")]
    NoCredentials,
    /// The store refuses requests of a machine whose clock is this wrong.
    #[error("this machine's clock differs too much from the store's")]
    ClockSkew,
    /// The store does not support this request at all.
    #[error("the store does not support this request")]
    Unsupported,
    /// The database server does not know the user, or the password is wrong or missing.
    #[error("the server refuses the user or the password, which comes from PGPASSWORD or a password file")]
    Password,
    /// The server has no database of that name.
    #[error("the database does not exist")]
    NoDatabase,
    /// The user lacks a right in the database.
    #[error("the user lacks the right to do this in the database")]
    NoRight,
    /// The database accepts no writes: its server is a standby, or it is set to read-only.
    #[error("the database is read-only")]
    ReadOnly,
    /// The server has no space left.
    #[error("the server's disk is full")]
    Full,
    /// The server does not support TLS.
    #[error("the server does not support TLS")]
    NoTls,
    /// The server's certificate is not from an authority that is trusted here, belongs to another
    /// host, or has expired.
    #[error("the server's certificate cannot be verified")]
    Untrusted,
    /// The server refused the request for a reason that has no variant here.
    #[error("the server refused the request")]
    Sql(SqlState),
}

impl RemoteFailure {
    /// Returns whether the same request may succeed a little later.
    pub(crate) fn may_pass(self) -> bool {
        matches!(
            self,
            RemoteFailure::TimedOut
                | RemoteFailure::Unavailable
                | RemoteFailure::Refused
                | RemoteFailure::Unresolved
                | RemoteFailure::Busy
                | RemoteFailure::Conflict
        )
    }
}

/// Describes where a request failed, and the answer. Contains no user, key, password or signature,
/// and no character that is unsafe for a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureDetails {
    /// Place of the sessions: the URL of a bucket, or the servers, database and schema. `None` for
    /// a store that the host created itself.
    pub place: Option<Arc<str>>,
    /// Host and port of the last HTTP request, which may have been for credentials.
    pub host: Option<String>,
    /// Answer of that host, or of the database's server; `None` if there was none.
    pub answer: Option<ServerAnswer>,
}

impl fmt::Display for FailureDetails {
    /// Formats the known details, after a space and in parentheses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = " (";
        if let Some(place) = &self.place {
            write!(f, "{before}{place}")?;
            before = " at ";
        }
        if let Some(host) = &self.host {
            write!(f, "{before}{host}")?;
            before = ": ";
        } else if self.place.is_some() {
            before = ": ";
        }
        if let Some(answer) = &self.answer {
            write!(f, "{before}{answer}")?;
        }
        let is_empty = self.place.is_none() && self.host.is_none() && self.answer.is_none();
        f.write_str(if is_empty { "" } else { ")" })
    }
}

/// Describes a server's answer to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerAnswer {
    /// An HTTP answer.
    #[non_exhaustive]
    Http {
        /// Its status.
        status: u16,
        /// The store's name of the error, such as `InvalidAccessKeyId`. The message is dropped,
        /// since S3 quotes keys in it.
        code: Option<String>,
        /// Region of the bucket, if the store names it.
        region: Option<String>,
    },
    /// An error of a database server.
    #[non_exhaustive]
    Sql {
        /// SQLSTATE of the error.
        state: SqlState,
        /// The server's message, escaped and truncated; `None` if it quotes the password.
        message: Option<String>,
    },
}

impl fmt::Display for ServerAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAnswer::Http { status, code, region } => {
                write!(f, "HTTP {status}")?;
                code.iter().try_for_each(|code| write!(f, " {code}"))?;
                region.iter().try_for_each(|region| write!(f, ", the bucket is in the region {region}"))
            }
            ServerAnswer::Sql { state, message } => {
                write!(f, "SQLSTATE {state}")?;
                message.iter().try_for_each(|message| write!(f, ": {message}"))
            }
        }
    }
}

/// Why one request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) failure: RemoteFailure,
    pub(crate) details: FailureDetails,
}

impl Reason {
    /// Reports that the request was not carried out.
    pub(crate) fn store(self, what: &'static str) -> Error {
        Error::Store { what, failure: self.failure, details: Box::new(self.details) }
    }

    /// Reports that it is unknown whether the records before `next` are replicated.
    pub(crate) fn unknown(self, next: SequenceNumber) -> Error {
        Error::Unknown { next, failure: self.failure, details: Box::new(self.details) }
    }
}

impl From<RemoteFailure> for Reason {
    fn from(failure: RemoteFailure) -> Reason {
        Reason { failure, details: FailureDetails::default() }
    }
}

/// Contains the five characters by which a database server identifies an error. The documentation
/// of PostgreSQL lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqlState(pub [u8; 5]);

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte) } else { '?' });
        shown.iter().try_for_each(|letter| write!(f, "{letter}"))
    }
}

/// Describes why a remote log could not be read or written.
///
/// No message contains a key, a password or a control character, whatever text comes from a store,
/// a chunk or a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another writer has claimed the session. The records of the append are not in the log and
    /// never will be; this writer stops appending.
    #[error(
        "another writer claimed the session: epoch {epoch}, writer {by}{}; this writer must stop, and open the session again",
        claimant(.note)
    )]
    Fenced {
        /// Epoch of the other writer.
        epoch: Epoch,
        /// The other writer.
        by: WriterId,
        /// Note of its claim; empty if the chunk that was found is no claim.
        note: String,
    },
    /// It is unknown whether the log contains the records: the store did not report it within the
    /// bounds of [`Retries`](crate::Retries). The writer keeps them, and its next call puts the
    /// same bytes again.
    #[error("it is unknown whether the records before {next} are replicated: {failure}{details}; try again")]
    Unknown {
        /// Sequence number after the last record in doubt; for a claim, after the log's last
        /// record.
        next: SequenceNumber,
        /// Failure of the last attempt.
        failure: RemoteFailure,
        /// The host and its answer.
        details: Box<FailureDetails>,
    },
    /// Other writers took every position at which the claim was put.
    #[error("the session could not be claimed: other writers were faster {rounds} times; try again")]
    Contended {
        /// Number of times that the claim was put.
        rounds: u32,
    },
    /// The local log contains records after another writer's claim. They can be read, and are never
    /// merged.
    #[error(
        "the local records from {sequence} on are superseded: another writer claimed the session before them; \
         they can still be read here; to continue, take the session over again"
    )]
    Superseded {
        /// Sequence number of the first such record.
        sequence: SequenceNumber,
    },
    /// The store does not prevent a second writer from overwriting an object, so no session is safe
    /// in it.
    #[error(
        "the store does not support conditional puts (it overwrote an existing object): no session is safe in \
         it; use a store that supports them"
    )]
    NoConditionalPuts,
    /// A later version of foldlog wrote the chunk.
    #[error(
        "chunk {chunk}: format version {found} is newer than {supported}, the newest that this version reads"
    )]
    NewerFormat {
        /// Number of the chunk.
        chunk: u64,
        /// Format version of the chunk.
        found: u16,
        /// Newest version that this crate reads.
        supported: u16,
    },
    /// The remote lacks acknowledged records: it was reset to an older state, or a chunk was
    /// removed.
    #[error(
        "chunk {chunk} is missing or differs, although the remote had acknowledged it: the remote went back \
         to an older state"
    )]
    RemoteWentBack {
        /// Number of the first chunk that differs or is missing.
        chunk: u64,
    },
    /// A chunk is missing, but later ones exist: the place has lost it. Nothing is claimed or
    /// appended there.
    #[error(
        "chunk {chunk} is missing, and no volume contains it, but {behind}: the place has lost acknowledged \
         records; nothing is claimed there"
    )]
    Missing {
        /// Number of the first chunk that is missing.
        chunk: u64,
        /// Object after the gap.
        behind: GapEnd,
    },
    /// The chunk belongs to another session.
    #[error("chunk {chunk} belongs to session {found}, not to {session}")]
    NotOurs {
        /// Number of the chunk.
        chunk: u64,
        /// Session that was to be read.
        session: Uuid,
        /// Session that the chunk names.
        found: Uuid,
    },
    /// The chunk's bytes are not those that were put.
    #[error("chunk {chunk} is damaged: its bytes have the hash {expected}, but {found} is stored with them")]
    Damaged {
        /// Number of the chunk.
        chunk: u64,
        /// Hash computed from the bytes.
        expected: ChunkHash,
        /// Hash stored at their end.
        found: ChunkHash,
    },
    /// The chunk's predecessor is not the chain's last chunk, although its writer must have known
    /// that one: an earlier chunk was exchanged.
    #[error(
        "chunk {chunk} does not follow the previous chunk: that one has the hash {expected}, but this one names {found}"
    )]
    Broken {
        /// Number of the chunk.
        chunk: u64,
        /// Hash of the chain's last chunk.
        expected: ChunkHash,
        /// Hash that the chunk names as its predecessor's.
        found: ChunkHash,
    },
    /// The chunk's bytes are intact, but their writer did not follow the protocol.
    #[error("chunk {chunk} is not a valid chunk: {reason}")]
    Malformed {
        /// Number of the chunk.
        chunk: u64,
        /// The defect.
        reason: &'static str,
    },
    /// A volume is damaged or missing, and its chunks were collected, so that no other copy exists.
    #[error("the volume of the removed chunks {first} to {last} cannot be used: {reason}")]
    Volume {
        /// Number of the first chunk.
        first: u64,
        /// Number of the last chunk.
        last: u64,
        /// The defect of the volume.
        reason: &'static str,
    },
    /// A compaction, which lists the compacted volumes, is damaged or invalid.
    #[error(
        "compaction {number} of the session, which lists its compacted volumes, cannot be used: {reason}"
    )]
    Compaction {
        /// Number of the compaction.
        number: u64,
        /// The defect.
        reason: &'static str,
    },
    /// A withdrawal, which lists the names of payloads that no writer uses any more, is damaged or
    /// invalid.
    #[error(
        "withdrawal {number} of the session, which lists withdrawn names of payloads, cannot be used: {reason}"
    )]
    Withdrawal {
        /// Number of the withdrawal.
        number: u64,
        /// The defect.
        reason: &'static str,
    },
    /// An object, a chunk, a record or a note is longer than permitted.
    #[error("the {what} has {len} bytes, and at most {max} are allowed")]
    TooLarge {
        /// Kind of the object.
        what: &'static str,
        /// Its length in bytes, as far as it is known.
        len: u64,
        /// Maximum length in bytes.
        max: u64,
    },
    /// An appended record does not follow the writer's last one.
    #[error("the next record is {expected}, not {found}")]
    OutOfOrder {
        /// Sequence number of the next record.
        expected: SequenceNumber,
        /// Sequence number of the appended record.
        found: SequenceNumber,
    },
    /// A record that is appended is an envelope frame, or has a time that is invalid in a log; or the
    /// body of a stored one is not what its kind requires.
    #[error("record {sequence} is not a valid record of a log")]
    NotContent {
        /// Its sequence number.
        sequence: SequenceNumber,
    },
    /// The bytes under a payload's name do not have the hash in that name.
    #[error("the bytes of the payload {object} do not match its name")]
    Payload {
        /// Name of the payload.
        object: String,
    },
    /// A payload is missing that a record or a chunk names, or was about to name.
    #[error("the payload {object} is missing")]
    MissingPayload {
        /// Name of the payload.
        object: String,
    },
    /// The prefix is not a valid path in every store.
    #[error("not a prefix: `{}`; use names with `/` between them", escape::text(.prefix))]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// A URL names no place for sessions, or none that this crate supports.
    #[error("not a place of sessions: {reason}")]
    Url {
        /// Cause. The URL is not quoted, since it may contain a password.
        reason: &'static str,
    },
    /// The crate was built without the feature for a kind of place.
    #[error("not a place of sessions: this program was built without support for {what}")]
    NotBuiltIn {
        /// The kind.
        what: &'static str,
    },
    /// The environment's settings for a place contradict each other, or are incomplete.
    #[error("the environment's settings for the store are not valid: {reason}")]
    Settings {
        /// The settings concerned. No value is quoted, since it may be a key.
        reason: &'static str,
    },
    /// The store could not be reached, or did not answer, within the bounds of
    /// [`Retries`](crate::Retries).
    #[error("could not {what}: {failure}{details}")]
    Store {
        /// The request.
        what: &'static str,
        /// Failure of the last attempt.
        failure: RemoteFailure,
        /// The host and its answer.
        details: Box<FailureDetails>,
    },
    /// A record, or a claim before it, differs from the one that was appended to the database, or
    /// is missing.
    #[error("record {sequence} of session {session} is damaged in the database: {reason}")]
    Row {
        /// The session.
        session: Uuid,
        /// Sequence number of the record.
        sequence: SequenceNumber,
        /// The defect.
        reason: &'static str,
    },
    /// The database lacks acknowledged records: a server that lagged took over, or the database was
    /// reset.
    #[error(
        "the database lacks acknowledged records of session {session}, from record {sequence} on or a claim \
         before it: it went back to an older state; continue with the server that has them"
    )]
    DatabaseWentBack {
        /// The session.
        session: Uuid,
        /// Sequence number from which on the database may lack records.
        sequence: SequenceNumber,
    },
    /// A later version of foldlog created the tables.
    #[error(
        "the database's tables have version {found}, newer than {supported}, the newest that this version of foldlog knows"
    )]
    NewerTables {
        /// Version of the tables.
        found: i32,
        /// Newest version that this crate supports.
        supported: i32,
    },
    /// The server would lose acknowledged writes.
    #[error(
        "the server's setting `{setting}` is off: acknowledged writes do not survive a power cut; turn it on"
    )]
    NotDurable {
        /// Name of the setting.
        setting: &'static str,
    },
    /// A worker cannot maintain a lease of that length.
    #[error("a lease of {length:?} is not possible: use 100 ms to one hour")]
    LeaseLength {
        /// Requested length.
        length: std::time::Duration,
    },
    /// The crate's thread has ended, could not be started, or does not exist in this process after
    /// a fork.
    #[error("the thread for remote stores is not running in this process")]
    NoRuntime,
}

/// Checks the length of an object, a chunk, a record or a note in bytes.
pub(crate) fn check_len(what: &'static str, len: usize, max: usize) -> Result<()> {
    if len > max { Err(Error::TooLarge { what, len: len as u64, max: max as u64 }) } else { Ok(()) }
}

/// Names the object after a missing chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GapEnd {
    /// Another chunk.
    Chunk {
        /// Its number.
        chunk: u64,
    },
    /// A volume.
    Volume {
        /// Number of its first chunk.
        first: u64,
        /// Number of its last chunk.
        last: u64,
    },
    /// The mark of a range of chunks that were collected.
    Mark {
        /// Number of the first chunk.
        first: u64,
        /// Number of the last chunk.
        last: u64,
    },
}

impl fmt::Display for GapEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GapEnd::Chunk { chunk } => write!(f, "chunk {chunk} exists"),
            GapEnd::Volume { first, last } => write!(f, "the volume of chunks {first} to {last} exists"),
            GapEnd::Mark { first, last } => write!(f, "chunks {first} to {last} were collected"),
        }
    }
}

fn claimant(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(" (`{}`)", escape::text(note)) }
}

/// Converts a store's error to an error of the engine.
pub(crate) fn replica_error(error: Error) -> foldlog::replication::ReplicaError {
    use foldlog::replication::ReplicaError;

    match error {
        Error::Fenced { epoch, by, note } => {
            let by = if note.is_empty() { by.to_string() } else { format!("{note}, writer {by}") };
            ReplicaError::Fenced { epoch: epoch.get(), by }
        }
        error @ Error::Unknown { .. } => ReplicaError::Unknown { reason: error.to_string() },
        error => ReplicaError::Failed { reason: error.to_string() },
    }
}
