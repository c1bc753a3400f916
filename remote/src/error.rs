use std::fmt;
use std::sync::Arc;

use foldlog_codec::{SequenceNumber, escape};
use uuid::Uuid;

use crate::chunk::{ChunkHash, Epoch, WriterId};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says why a store did not do what it was asked for, in words that are this crate's own. [`FailureDetails`] say where that was, and what
/// was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteFailure {
    /// No answer came in time. What was asked for may happen yet.
    #[error("no answer came in time")]
    TimedOut,
    /// The store, or the way to it, failed: it reported an error of its own, or the answer broke off. What was asked for may have
    /// happened.
    #[error("the store, or the way to it, failed")]
    Unavailable,
    /// Nobody listens where the store should be.
    #[error("the connection was refused: nobody listens there")]
    Refused,
    /// No address is known of the host's name.
    #[error("the name of the host does not resolve")]
    Unresolved,
    /// The server is busy, starting or stopping, or has no connection left.
    #[error("the server takes no requests for now: it is busy, starting or stopping")]
    Busy,
    /// The store does not let these credentials do it, or no longer.
    #[error("the credentials do not allow it, or have expired")]
    Denied,
    /// The store says that the object exists, and then that it does not: it was busy with another write.
    #[error("the store is busy with another write of the same object")]
    Conflict,
    /// Another collection of the session was faster. The next one goes on where both ended.
    #[error("another collection of the session was faster; run it again")]
    Overtaken,
    /// There is no such bucket or directory.
    #[error("there is no such bucket or folder")]
    Missing,
    /// Something stands in the place of an object that is no regular file: a pipe or a directory, in a bucket that is in a local directory.
    #[error("what stands there is no regular file")]
    NotAFile,
    /// The bucket is not where it was looked for: it is in another region, or at another endpoint.
    #[error("the bucket is in another region, or at another endpoint, than the environment says")]
    Elsewhere,
    /// Neither the environment nor the machine's provider gives any credentials.
    #[error("there are no credentials in the environment, and the machine's provider gives none")]
    NoCredentials,
    /// The store refuses requests of a machine whose clock is this wrong.
    #[error("this machine's clock is too far from the store's")]
    ClockSkew,
    /// The store cannot do what it was asked for at all.
    #[error("the store cannot do that")]
    Unsupported,
    /// The database server does not know the user, or the password is another one, or none was given.
    #[error("the server refuses the user or the password, which comes from PGPASSWORD or a password file")]
    Password,
    /// The server has no database of that name.
    #[error("there is no such database")]
    NoDatabase,
    /// The user lacks a right in the database.
    #[error("the user has no right to do that in the database")]
    NoRight,
    /// The database takes no writes: its server is a standby, or somebody has set it so.
    #[error("the database is read-only")]
    ReadOnly,
    /// The server has no room left.
    #[error("the server's disk is full")]
    Full,
    /// The server does not speak TLS.
    #[error("the server does not speak TLS")]
    NoTls,
    /// The server's certificate is of no authority that is trusted here, of another host, or out of date.
    #[error("the server shows no certificate that verifies")]
    Untrusted,
    /// The server refused it for a reason that has no words here.
    #[error("the server refuses it")]
    Sql(SqlState),
}

#[cfg(any(feature = "object-store", feature = "postgres"))]
impl RemoteFailure {
    /// Returns whether the same request may well succeed a little later.
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

/// Says where a request failed, and what was answered there. Neither user, key, password nor signature stands in it, and no character
/// that is not fit for a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureDetails {
    /// Place of the sessions: the URL of a bucket, or the servers, database and schema. `None` of a store that the host made itself.
    pub place: Option<Arc<str>>,
    /// Host and port that were asked last, also for credentials, if that was by HTTP.
    pub host: Option<String>,
    /// What that host, or the database's server, answered; `None` if nothing came.
    pub answer: Option<ServerAnswer>,
}

impl fmt::Display for FailureDetails {
    /// Formats what is known, behind a space and in parentheses.
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

/// Holds what a server answered when it did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerAnswer {
    /// An answer by HTTP.
    #[non_exhaustive]
    Http {
        /// Its status.
        status: u16,
        /// How the store names the error, such as `InvalidAccessKeyId`. The message beside it is dropped: S3 quotes keys in it.
        code: Option<String>,
        /// Region of the bucket, if the store names it.
        region: Option<String>,
    },
    /// An error of a database server.
    #[non_exhaustive]
    Sql {
        /// Which error it is.
        state: SqlState,
        /// The server's message, escaped and cut off; `None` if it quotes the password.
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

/// Holds why one request failed.
#[cfg(any(feature = "object-store", feature = "postgres"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) failure: RemoteFailure,
    pub(crate) details: FailureDetails,
}

#[cfg(any(feature = "object-store", feature = "postgres"))]
impl Reason {
    /// Reports that what was asked for did not happen.
    pub(crate) fn store(self, what: &'static str) -> Error {
        Error::Store { what, failure: self.failure, details: Box::new(self.details) }
    }

    /// Reports that nobody knows whether the records up to `next` are held.
    pub(crate) fn unknown(self, next: SequenceNumber) -> Error {
        Error::Unknown { next, failure: self.failure, details: Box::new(self.details) }
    }
}

#[cfg(any(feature = "object-store", feature = "postgres"))]
impl From<RemoteFailure> for Reason {
    fn from(failure: RemoteFailure) -> Reason {
        Reason { failure, details: FailureDetails::default() }
    }
}

/// Holds the five characters by which a database server names an error. Documentation of PostgreSQL lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqlState(pub [u8; 5]);

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte) } else { '?' });
        shown.iter().try_for_each(|letter| write!(f, "{letter}"))
    }
}

/// Reports why a remote log could not be read or written.
///
/// No message holds a key, a password or a control character, whatever a store, a chunk or a host says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another writer has claimed the session. The records of the append are not in the log and will never be; this
    /// writer appends nothing any more.
    #[error(
        "another writer claimed the session: epoch {epoch}, writer {by}{}; this one must stop, and open the session anew",
        claimant(.note)
    )]
    Fenced {
        /// Epoch of the other writer.
        epoch: Epoch,
        /// The other writer.
        by: WriterId,
        /// What its claim says of it; empty where another chunk of it was met.
        note: String,
    },
    /// Nobody knows whether the log holds the records: the store did not say so within the bounds of
    /// [`Retries`](crate::Retries). The writer keeps them, and its next call puts the same bytes again.
    #[error("it is unknown whether the remote holds the records up to {next}: {failure}{details}; try again")]
    Unknown {
        /// Sequence number behind the last record in doubt; of a claim, behind the log's last record.
        next: SequenceNumber,
        /// What the last attempt came to.
        failure: RemoteFailure,
        /// Where that was, and what was answered.
        details: Box<FailureDetails>,
    },
    /// Other writers took every position that the claim was put at.
    #[error("the session could not be claimed: other writers were faster {rounds} times; try again")]
    Contended {
        /// How often the claim was put.
        rounds: u32,
    },
    /// The local log holds records that stand behind another writer's claim. They can be read, and are never merged.
    #[error(
        "the local records from {sequence} on are superseded: another writer claimed the session in front of them; \
         read them here, and take the session over anew to go on"
    )]
    Superseded {
        /// Sequence number of the first such record.
        sequence: SequenceNumber,
    },
    /// The store does not keep a second writer from overwriting an object, so that no session is safe in it.
    #[error(
        "the store has no conditional puts (it overwrote an object that was to be created): no session is safe in it; \
         take one that has"
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
    /// The remote lacks what it once acknowledged: it was reset to an older state, or a chunk was removed.
    #[error(
        "chunk {chunk} is gone or another one, although the remote had acknowledged it: it went back to an older state"
    )]
    RemoteWentBack {
        /// Number of the first chunk that is not as it was.
        chunk: u64,
    },
    /// A chunk is missing in front of what stands behind it: the place has lost it. Nothing is claimed or appended there.
    #[error(
        "chunk {chunk} is gone, and no volume holds it, but {behind}: the place has lost what it acknowledged; nothing is \
         claimed there"
    )]
    Missing {
        /// Number of the first chunk that is missing.
        chunk: u64,
        /// What stands behind it.
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
    #[error("chunk {chunk} is damaged: its bytes have the hash {expected}, and name {found}")]
    Damaged {
        /// Number of the chunk.
        chunk: u64,
        /// Hash computed from the bytes.
        expected: ChunkHash,
        /// Hash stored at their end.
        found: ChunkHash,
    },
    /// The chunk follows another one than the chain's last, although its writer must have known that one: a chunk in
    /// front of it was exchanged.
    #[error(
        "chunk {chunk} does not follow the chunk before it: that one has the hash {expected}, and it names {found}"
    )]
    Broken {
        /// Number of the chunk.
        chunk: u64,
        /// Hash of the chain's last chunk.
        expected: ChunkHash,
        /// Hash that the chunk names as its predecessor's.
        found: ChunkHash,
    },
    /// The chunk's bytes are those that were put, and nothing that keeps to the protocol puts them.
    #[error("chunk {chunk} is none of foldlog's: {reason}")]
    Malformed {
        /// Number of the chunk.
        chunk: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A volume is damaged or gone, and the chunks that it held were collected, so that nothing else has them.
    #[error(
        "the volume of chunks {first} to {last}, which held them when they were removed, cannot be used: {reason}"
    )]
    Volume {
        /// Number of the first chunk.
        first: u64,
        /// Number of the last chunk.
        last: u64,
        /// What is wrong with the volume.
        reason: &'static str,
    },
    /// What says which compacted volumes stand for chunks whose bodies were dropped is damaged, or none of foldlog's.
    #[error("compaction {number} of the session, which says where its chunks are, cannot be used: {reason}")]
    Compaction {
        /// Number of the compaction.
        number: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// What says which names of payloads no writer gives any more is damaged, or none of foldlog's.
    #[error(
        "withdrawal {number} of the session, which says under which names its payloads stand, cannot be used: {reason}"
    )]
    Withdrawal {
        /// Number of the withdrawal.
        number: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An object, a chunk, a record or a note is longer than any may be.
    #[error("the {what} has {len} bytes, and {max} are allowed")]
    TooLarge {
        /// What is too long.
        what: &'static str,
        /// Its length in bytes, as far as it is known.
        len: u64,
        /// Greatest length in bytes.
        max: u64,
    },
    /// A record was appended that does not follow the writer's last one.
    #[error("record {expected} is the next one, not {found}")]
    OutOfOrder {
        /// Sequence number of the next record.
        expected: SequenceNumber,
        /// Sequence number of the record that was handed in.
        found: SequenceNumber,
    },
    /// An envelope frame was handed in as a record, or a time that no log holds.
    #[error("what was handed in as record {sequence} is none that a log holds")]
    NotContent {
        /// Its sequence number.
        sequence: SequenceNumber,
    },
    /// Other bytes stand under a payload's name than those that the name is the hash of.
    #[error("the payload {object} has other bytes than its name says")]
    Payload {
        /// Name of the payload.
        object: String,
    },
    /// A payload is not there that a record or a chunk names, or was about to.
    #[error("the payload {object} is missing")]
    MissingPayload {
        /// Name of the payload.
        object: String,
    },
    /// The prefix is no path that every store can hold.
    #[error("not a prefix: `{}`; it is made of names with `/` between them", escape::text(.prefix))]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// A URL names no place of sessions, or none that this crate reaches.
    #[error("not a place of sessions: {reason}")]
    Url {
        /// Why. The URL is not quoted: it may hold a password.
        reason: &'static str,
    },
    /// The crate was built without the feature that speaks to a kind of place.
    #[error("not a place of sessions: this program was built without what speaks to {what}")]
    NotBuiltIn {
        /// Which kind.
        what: &'static str,
    },
    /// The environment's settings of what keeps the sessions do not fit together, or lack something.
    #[error("the environment's settings of the store are not usable: {reason}")]
    Settings {
        /// Which. No setting's value is quoted: it may be a key.
        reason: &'static str,
    },
    /// The store could not be asked, or did not answer, within the bounds of [`Retries`](crate::Retries).
    #[error("could not {what}: {failure}{details}")]
    Store {
        /// What was asked for.
        what: &'static str,
        /// What the last attempt came to.
        failure: RemoteFailure,
        /// Where that was, and what was answered.
        details: Box<FailureDetails>,
    },
    /// A record, or a claim in front of it, is not as it was appended to the database, or is gone from there.
    #[error("record {sequence} of session {session} is damaged in the database: {reason}")]
    Row {
        /// The session.
        session: Uuid,
        /// Sequence number of the record.
        sequence: SequenceNumber,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The database lacks what it once acknowledged: a server took over that was behind, or it was reset.
    #[error(
        "the database lacks what it acknowledged of session {session}, from record {sequence} on or a claim in front of it: \
         it went back to an older state; go on with the server that has it"
    )]
    DatabaseWentBack {
        /// The session.
        session: Uuid,
        /// Sequence number from which on the database may lack records.
        sequence: SequenceNumber,
    },
    /// A later version of foldlog made the tables.
    #[error(
        "the database's tables have version {found}, newer than {supported}, the newest that this version of foldlog knows"
    )]
    NewerTables {
        /// Version of the tables.
        found: i32,
        /// Newest version that this crate knows.
        supported: i32,
    },
    /// The server would lose what it acknowledges.
    #[error(
        "the server's setting `{setting}` is off: what it acknowledges does not survive a power cut; turn it on"
    )]
    NotDurable {
        /// Name of the setting.
        setting: &'static str,
    },
    /// A worker cannot keep a lease of that length.
    #[error("a lease of {length:?} is no lease: it lasts from 100 ms to an hour")]
    LeaseLength {
        /// Length that was asked for.
        length: std::time::Duration,
    },
    /// The crate's thread has ended, could not be started, or was left behind by a fork of the process.
    #[error("the thread that speaks to remote stores does not run in this process")]
    NoRuntime,
}

/// Names what stands behind a chunk that is missing.
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
        /// Number of the first chunk that it holds.
        first: u64,
        /// Number of the last chunk.
        last: u64,
    },
    /// The mark in front of chunks that were collected.
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
            GapEnd::Chunk { chunk } => write!(f, "chunk {chunk} is there"),
            GapEnd::Volume { first, last } => write!(f, "the volume of chunks {first} to {last} is there"),
            GapEnd::Mark { first, last } => write!(f, "chunks {first} to {last} were collected"),
        }
    }
}

/// Formats what a claim says of its writer.
fn claimant(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(" (`{}`)", escape::text(note)) }
}

/// Says to the engine what a store's error means.
#[cfg(any(feature = "object-store", feature = "postgres"))]
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
