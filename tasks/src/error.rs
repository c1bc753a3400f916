//! What may go wrong with the files, checkpoints and recoveries of long-running work.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use foldlog::{SequenceNumber, escape};

use super::files::is_manifest;
use super::{CheckpointId, CompressionAlgorithm, RecoveryStrategy, RemovalReason, StateComponent};

/// Holds a result of this part of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says what went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine reported an error.
    #[error(transparent)]
    Engine(#[from] foldlog::Error),
    /// The system refused something.
    #[error("{} cannot be {op}: {source}", escape::path(path))]
    Io {
        /// What was to be done with it, such as `read` or `written`.
        op: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Answer of the system.
        source: io::Error,
    },
    /// Something else stands where a file or a directory is to be. Links are not followed.
    #[error("{} is no {wanted}, but a {found}", escape::path(path))]
    OtherKind {
        /// What stands there.
        path: PathBuf,
        /// `file` or `directory`.
        wanted: &'static str,
        /// Its kind.
        found: &'static str,
    },
    /// A value has no JSON form, or a JSON text is none of the form that is wanted.
    #[error("{what}: {source}")]
    Json {
        /// What was written or read.
        what: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A value is no part of a state.
    #[error("the value is no {}: {}", component.name(), escape::text(reason))]
    NotAComponent {
        /// Part that it was to be.
        component: StateComponent,
        /// What is wrong.
        reason: String,
    },
    /// Another process reads or writes a tree for longer than anybody waits.
    #[error("waited {} s for {}, which another process reads or writes", waited.as_secs(), escape::path(path))]
    InUse {
        /// Directory of the tree.
        path: PathBuf,
        /// Time that the call waited.
        waited: std::time::Duration,
    },
    /// The tree does not hold a part of the state.
    #[error("the tree holds no {}", .0.name())]
    ComponentNotFound(StateComponent),
    /// There is no tree of a session, or none of a version that is known.
    #[error("{} holds no tree of a session: {}", escape::path(path), escape::text(reason))]
    NoTree {
        /// Directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Files of a tree are not what its manifest says.
    #[error("the tree in {} is damaged: {}", escape::path(dir), DamageList(files))]
    Damaged {
        /// Directory of the session.
        dir: PathBuf,
        /// Each file, and what is wrong with it.
        files: Vec<DamagedFile>,
    },
    /// The updates are not those that led to the state.
    #[error("the updates do not lead to the state: {0}")]
    OtherUpdates(&'static str),
    /// Data could not be compressed.
    #[error("data cannot be compressed by {}: {source}", algorithm.name())]
    Compress {
        /// Algorithm.
        algorithm: CompressionAlgorithm,
        /// What it reported.
        source: io::Error,
    },
    /// Compressed data is damaged.
    #[error("data that was compressed by {} is damaged: {reason}", algorithm.name())]
    Decompress {
        /// Algorithm.
        algorithm: CompressionAlgorithm,
        /// What is wrong.
        reason: String,
    },
    /// Data is not to be compressed, and its first bytes or control characters forbid to store it as it is: a reader could take
    /// it for something else.
    #[error("data that is not JSON text cannot be stored without compression")]
    NotPlain,
    /// Data is neither compressed nor plain text that begins as JSON does.
    #[error("data is neither compressed nor plain JSON")]
    UnknownCodec,
    /// Data would be longer than it may be.
    #[error("data has more than {bytes_max} bytes")]
    TooLong {
        /// Greatest number of bytes.
        bytes_max: u64,
    },
    /// The session has no such checkpoint.
    #[error("the session has no {id}: it has {known} checkpoints")]
    NoSuchCheckpoint {
        /// The checkpoint that was asked for.
        id: CheckpointId,
        /// Number of checkpoints that the session has.
        known: usize,
    },
    /// The session has no checkpoint to go back to.
    #[error("the session has no checkpoint to go back to")]
    NoCheckpoint,
    /// The checkpoint was removed by retention.
    #[error("{id} was removed, since it was kept no longer by {reason}")]
    CheckpointRemoved {
        /// The checkpoint that was asked for.
        id: CheckpointId,
        /// Limit by which it was removed.
        reason: RemovalReason,
    },
    /// The records up to a checkpoint are not those from which its hash was made.
    #[error(
        "{id} cannot be trusted: the records through {position} have the hash {found}, it says {expected}"
    )]
    CheckpointMismatch {
        /// First checkpoint whose hash does not fit.
        id: CheckpointId,
        /// Its position.
        position: SequenceNumber,
        /// Hash that the checkpoint says.
        expected: String,
        /// Hash that was made of the records.
        found: String,
    },
    /// A recovery cannot follow a strategy.
    #[error("nothing can be recovered by `{strategy}`: {reason}")]
    Impossible {
        /// The strategy.
        strategy: RecoveryStrategy,
        /// Why it cannot be followed.
        reason: String,
    },
    /// The checkpoint holds no captures of resources, or the manager has no run to restore them with.
    #[error("{id} cannot be restored with its resources: {reason}")]
    NoResources {
        /// The checkpoint that was asked for.
        id: CheckpointId,
        /// What is missing.
        reason: &'static str,
    },
}

/// Names a file of a tree, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedFile {
    /// Path within the session's directory, `/` between names.
    pub path: String,
    /// What is wrong.
    pub damage: FileDamage,
}

impl DamagedFile {
    /// Returns whether it is the tree's manifest, so that nothing vouches for the other files.
    pub fn is_manifest(&self) -> bool {
        is_manifest(&self.path)
    }
}

/// Says what is wrong with a file of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileDamage {
    /// The file is missing.
    Missing,
    /// The file's content is not that of its digest.
    Differs {
        /// BLAKE3 that the manifest says, in hexadecimal digits.
        expected: String,
        /// BLAKE3 of what is there.
        found: String,
    },
    /// The file's length is not that of the manifest. A longer file is not read.
    Length {
        /// Length in bytes that the manifest says.
        expected: u64,
        /// Length of what is there.
        found: u64,
    },
    /// The path stands for no regular file.
    OtherKind(&'static str),
    /// The manifest does not name it.
    Extra,
    /// The file, decompressed, is longer than the reader allows.
    TooLong {
        /// Greatest number of bytes.
        bytes_max: u64,
    },
    /// The file matches the manifest and yet holds no such part, or the system does not read it.
    Unreadable(String),
}

impl fmt::Display for DamagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = escape::text(&self.path);
        match &self.damage {
            FileDamage::Missing => write!(f, "{path} is missing"),
            FileDamage::Differs { expected, found } => {
                write!(f, "{path} has the digest {found}, not {expected}")
            }
            FileDamage::Length { expected, found } => write!(f, "{path} has {found} bytes, not {expected}"),
            FileDamage::OtherKind(kind) => write!(f, "{path} is no file, but a {kind}"),
            FileDamage::Extra => write!(f, "{path} is not named by the manifest"),
            FileDamage::TooLong { bytes_max } => write!(f, "{path} has more than {bytes_max} bytes"),
            FileDamage::Unreadable(reason) => write!(f, "{path} cannot be read: {}", escape::text(reason)),
        }
    }
}

/// Number of damaged files that an error's text lists.
const LISTED_MAX: usize = 8;

struct DamageList<'a>(&'a [DamagedFile]);

impl fmt::Display for DamageList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, file) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}{file}", if place > 0 { "; " } else { "" })?;
        }
        match self.0.len().saturating_sub(LISTED_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl Error {
    /// Makes an error of the system's answer.
    pub(crate) fn io(op: &'static str, path: impl AsRef<Path>) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |errno| Error::Io { op, path: path.as_ref().to_owned(), source: errno.into() }
    }
}
