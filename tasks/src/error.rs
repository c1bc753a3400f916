//! Errors of the files, checkpoints and recoveries of long-running work.

use std::io;
use std::path::{Path, PathBuf};

use foldlog::{SequenceNumber, escape};

use super::files::is_manifest;
use super::{CheckpointId, CompressionAlgorithm, RecoveryStrategy, RemovalReason, StateComponent};

/// Contains a result, or an [`Error`] of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Describes an error of files, checkpoints or recoveries.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine reported an error.
    #[error(transparent)]
    Engine(#[from] foldlog::Error),
    /// The operating system reported an error.
    #[error("{} cannot be {op}: {source}", escape::path(path))]
    Io {
        /// Operation that failed, such as `read` or `written`.
        op: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A path does not lead to the expected file or directory. Links are not followed.
    #[error("{} is not a {wanted}: it is a {found}", escape::path(path))]
    OtherKind {
        /// The path.
        path: PathBuf,
        /// `file` or `directory`.
        wanted: &'static str,
        /// Its actual kind.
        found: &'static str,
    },
    /// A value has no JSON form, or a JSON text does not have the expected form.
    #[error("{what}: {source}")]
    Json {
        /// The value that was written or read.
        what: String,
        /// Error of the JSON library.
        source: serde_json::Error,
    },
    /// A value is not a valid part of a state.
    #[error("the value is not a valid {component}: {}", escape::text(reason))]
    NotAComponent {
        /// Expected part.
        component: StateComponent,
        /// Cause.
        reason: String,
    },
    /// Another process uses a tree for longer than a call waits.
    #[error("waited {} s for {}, which another process is using", waited.as_secs(), escape::path(path))]
    InUse {
        /// Directory of the tree.
        path: PathBuf,
        /// Time that the call waited.
        waited: std::time::Duration,
    },
    /// The tree does not contain a part of the state.
    #[error("the tree contains no {0}")]
    ComponentNotFound(StateComponent),
    /// There is no tree of a session, or its version is unknown.
    #[error("{} contains no tree of a session: {}", escape::path(path), escape::text(reason))]
    NoTree {
        /// Directory.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// Files of a tree do not match its manifest.
    #[error("the tree in {} is damaged: {}", escape::path(dir), list_damage(files))]
    Damaged {
        /// Directory of the session.
        dir: PathBuf,
        /// Each damaged file, and its damage.
        files: Vec<DamagedFile>,
    },
    /// The updates are not those that led to the state.
    #[error("the updates do not lead to the state: {0}")]
    OtherUpdates(&'static str),
    /// Data could not be compressed.
    #[error("data cannot be compressed with {algorithm}: {source}")]
    Compress {
        /// Algorithm.
        algorithm: CompressionAlgorithm,
        /// Error of the codec.
        source: io::Error,
    },
    /// Compressed data is damaged.
    #[error("data that was compressed with {algorithm} is damaged: {reason}")]
    Decompress {
        /// Algorithm.
        algorithm: CompressionAlgorithm,
        /// Cause.
        reason: String,
    },
    /// Data is to be stored plain, but its first bytes or control characters forbid that: a reader
    /// would not detect it as plain.
    #[error("data that is not JSON text cannot be stored without compression")]
    NotPlain,
    /// Data is neither compressed nor plain text that starts like JSON.
    #[error("data is neither compressed nor plain JSON")]
    UnknownCodec,
    /// Data would be longer than allowed.
    #[error("data has more than {bytes_max} bytes")]
    TooLong {
        /// Largest permitted number of bytes.
        bytes_max: u64,
    },
    /// The session has no such checkpoint.
    #[error("the session has no {id}: it has {known} in total")]
    NoSuchCheckpoint {
        /// Requested checkpoint.
        id: CheckpointId,
        /// Number of checkpoints of the session.
        known: usize,
    },
    /// The session has no checkpoint to return to.
    #[error("the session has no checkpoint to restore")]
    NoCheckpoint,
    /// Retention removed the checkpoint.
    #[error("{id} was removed because of a retention limit: {reason}")]
    CheckpointRemoved {
        /// Requested checkpoint.
        id: CheckpointId,
        /// Limit by which it was removed.
        reason: RemovalReason,
    },
    /// The records up to a checkpoint do not match its hash.
    #[error(
        "{id} does not match the log: the records through {position} have the hash {found}, expected {expected}"
    )]
    CheckpointMismatch {
        /// First checkpoint whose hash does not match.
        id: CheckpointId,
        /// Its position.
        position: SequenceNumber,
        /// Hash in the checkpoint.
        expected: String,
        /// Hash of the records.
        found: String,
    },
    /// A recovery cannot follow a strategy.
    #[error("cannot recover by `{strategy}`: {reason}")]
    Impossible {
        /// The strategy.
        strategy: RecoveryStrategy,
        /// Why it cannot be followed.
        reason: String,
    },
    /// The checkpoint has no captures of resources, or the manager has no run to restore them with.
    #[error("{id} cannot be restored with its resources: {reason}")]
    NoResources {
        /// Requested checkpoint.
        id: CheckpointId,
        /// The missing part.
        reason: &'static str,
    },
}

/// Names a file of a tree, and its damage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {damage}", escape::text(path))]
pub struct DamagedFile {
    /// Path within the session's directory, with `/` between names.
    pub path: String,
    /// The damage.
    pub damage: FileDamage,
}

impl DamagedFile {
    /// Returns whether the file is the tree's manifest. If so, the other files cannot be verified.
    pub fn is_manifest(&self) -> bool {
        is_manifest(&self.path)
    }
}

/// Describes the damage of a file of a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileDamage {
    /// The file is missing.
    #[error("is missing")]
    Missing,
    /// The file's content does not match its digest.
    #[error("has the digest {found}, not {expected}")]
    Differs {
        /// BLAKE3 in the manifest, in hexadecimal digits.
        expected: String,
        /// BLAKE3 of the file.
        found: String,
    },
    /// The file's length does not match the manifest. A longer file is not read.
    #[error("has {found} bytes, not {expected}")]
    Length {
        /// Length in the manifest, in bytes.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// The path is not a regular file.
    #[error("is not a file: it is a {0}")]
    OtherKind(&'static str),
    /// The manifest does not name it.
    #[error("is not in the manifest")]
    Extra,
    /// The file, decompressed, is longer than the reader allows.
    #[error("has more than {bytes_max} bytes")]
    TooLong {
        /// Largest permitted number of bytes.
        bytes_max: u64,
    },
    /// The file matches the manifest but does not contain a valid part, or the system cannot read
    /// it.
    #[error("cannot be read: {}", escape::text(.0))]
    Unreadable(String),
}

/// Number of damaged files that an error's text lists.
const LISTED_MAX: usize = 8;

fn list_damage(files: &[DamagedFile]) -> String {
    let listed: Vec<String> = files.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    match files.len().saturating_sub(LISTED_MAX) {
        0 => listed.join("; "),
        more => format!("{}; and {more} more", listed.join("; ")),
    }
}

impl Error {
    pub(crate) fn io(op: &'static str, path: impl AsRef<Path>) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |errno| Error::Io { op, path: path.as_ref().to_owned(), source: errno.into() }
    }
}
