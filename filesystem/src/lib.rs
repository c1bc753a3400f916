//! Workspaces: the files that an agent's tools work on, in memory or in a real directory, captured and restored as a
//! whole.
//!
//! | type | what it is |
//! |---|---|
//! | [`Filesystem`] | the operations of a tool on files, whichever filesystem carries them out |
//! | [`InMemoryFilesystem`] | files in memory; a snapshot is a pointer |
//! | `HostFilesystem` | a directory of the host; a snapshot is a git commit in a store beside the directory (feature `host`) |
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | workspace | a directory with all that is in it, in memory or on disk |
//! | root | the workspace's own directory; every path is relative to it, and `.` names it |
//! | snapshot | what a workspace held at one moment; a snapshot that a record of a log names is a capture |
//! | restore | makes a workspace what it was at a snapshot |
//! | store | the directory of a `HostFilesystem`'s snapshots, a bare git repository |
//! | left out | of a path: no snapshot holds it, and no restore touches it |
//! | change | of a file or link: what a `SnapshotReader` finds to differ between two snapshots |
//! | changed by hand | of a file or link: since the last capture, by whoever is no tool call |
//! | lease | holds a workspace for one holder among threads and processes |
//! | mark | an attribute of the root directory that says who worked there, should that process end |
//! | identity | what tells a directory from any other that stands at its path later ([`DirectoryIdentity`]) |
//!
//! # Invariants
//!
//! 1. A path is UTF-8 and relative, with parts separated by `/`; parts that are `.` are skipped. A path that is
//!    absolute or empty, has an empty part, `..` or NUL in it, more than 4,095 bytes or more than 256 parts is refused
//!    with [`Error::Path`], never repaired.
//! 2. No operation, snapshot or restore follows a link out of the workspace.
//! 3. A restore changes nothing before it has read every object that it needs. It can be run again until it succeeds,
//!    and names each path that it could not restore.
//! 4. No error's message holds a control character.
//!
//! # What this crate does not do
//!
//! It knows of no log and no session: `foldlog` decides when a workspace is captured and restored, and records it. It
//! makes no file durable but those of a snapshot, and, when asked, those that a restore changed. It keeps nobody from a
//! directory who does not ask for a lease.

mod error;
#[cfg(feature = "host")]
mod host;
mod identity;
mod memory;
mod path;
mod pattern;
mod rewound;
pub mod sabotage;
mod system;
#[cfg(feature = "host")]
mod unified_diff;

use serde::{Deserialize, Serialize};

pub use error::{Error, Result, UnrestoredPath};
#[cfg(feature = "host")]
pub use host::{
    CaptureCollectOptions, CaptureProgress, Collection, DamagedObject, FileChange, FileFacts, FileForm,
    FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, PACK_BYTES_MAX, PackReceiver, Rebind,
    RewindMerge, RewindMergeInputs, SnapshotPacker, SnapshotReader, SnapshotsAudited, Uncapturable,
    WorkspaceLease, WorkspaceMark, WorkspaceNotice, WorkspaceRestoreReport, audit_snapshots, collect_pool,
    collect_snapshots, damage_of_object, keeps_any, remember_collected, unpool,
};
pub use identity::DirectoryIdentity;
pub use memory::{InMemoryFilesystem, MemorySnapshot};
pub use rewound::{ChangeKind, ContentDiff, FileBrief, FileRewound, FileUnknown, KeptFile};
pub use system::{boot_id, is_out_of_handles, is_out_of_space};

/// Lists what a tool may do with the files of its workspace.
///
/// Each operation refuses with [`Error::Path`] a path that breaks the rules of [the crate](crate) or that a link leads
/// out of the workspace, and fails with [`Error::Io`] if the filesystem itself refuses; the error's kind is `NotFound`
/// if nothing stands at the path. No operation makes anything durable: a snapshot does. In a directory of the host no
/// operation writes into a directory named `.git`, or removes one.
///
/// ```
/// use foldlog_filesystem::{Error, Filesystem, InMemoryFilesystem};
///
/// fn count_lines(files: &dyn Filesystem) -> Result<usize, Error> {
///     let mut lines = 0;
///     for path in files.glob("src/**/*.rs")? {
///         lines += files.read(&path)?.iter().filter(|byte| **byte == b'\n').count();
///     }
///     Ok(lines)
/// }
///
/// let files = InMemoryFilesystem::new();
/// files.write("src/main.rs", b"fn main() {}\n")?;
/// files.append("src/parts/one.rs", b"//! One.\n")?;
/// assert_eq!(count_lines(&files)?, 2);
/// assert!(matches!(files.read("../outside"), Err(Error::Path { .. })));
/// # Ok::<(), Error>(())
/// ```
pub trait Filesystem: Send + Sync {
    /// Returns the whole content of the file at `path`. A link within the workspace is followed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if no file stands at `path` or the file cannot be read; [`Error::Path`] if the path is refused, or
    /// names neither a file nor a directory.
    fn read(&self, path: &str) -> Result<Vec<u8>>;

    /// Replaces the content of the file at `path` by `bytes`, and creates the file and the directories above it if they are
    /// missing. A link within the workspace is followed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a directory stands at `path`, a file stands where a directory is needed, or the file cannot be
    /// written; [`Error::Path`] if the path is refused, or names neither a file nor a directory.
    fn write(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Appends `bytes` to the file at `path`, and creates the file and the directories above it if they are missing. A link
    /// within the workspace is followed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a directory stands at `path`, a file stands where a directory is needed, or the file cannot be
    /// written; [`Error::Path`] if the path is refused, or names neither a file nor a directory.
    fn append(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Removes the file or link at `path`, or the directory at `path` with all that is in it. A link is not followed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if nothing stands at `path` or it cannot be removed; [`Error::Path`] if the path is refused, is
    /// the root, or names a directory of the host that holds a `.git` or a mount: then nothing was removed.
    fn delete(&self, path: &str) -> Result<()>;

    /// Moves the file, link or directory at `from` to `to`, and creates the directories above `to` if they are missing. A file
    /// or link replaces a file or link at `to`; a directory replaces nothing. A link is not followed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if nothing stands at `from`, or if what stands at `to` may not be replaced; [`Error::Path`] if one
    /// of the paths is refused or is the root, if a directory would be moved into itself, or if directories would stand in one
    /// another more than 256 deep.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Returns the entries of the directory at `directory`, sorted by name. A name that is not UTF-8 is missing from them,
    /// since no path can hold it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if no directory stands at `directory` or the directory cannot be read; [`Error::Path`] if the path is
    /// refused.
    fn list(&self, directory: &str) -> Result<Vec<FilesystemEntry>>;

    /// Returns the paths of all files, directories and links that match `pattern`, sorted. Links are not followed, and
    /// directories named `.git` are not searched.
    ///
    /// | in a pattern | matches |
    /// |---|---|
    /// | `*` | any number of characters of one name |
    /// | `?` | one character of one name |
    /// | `[a-z]`, `[!a-z]`, `[^a-z]` | one character that is, or is not, in the set |
    /// | `**` between `/` | any number of directories, none as well; at the end at least one name |
    /// | `\` | the character behind it as it is |
    ///
    /// A `[` without its `]` matches itself. Braces have no meaning. A leading `.` of a name needs no pattern of its
    /// own.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] if the pattern is refused as a path would be, or is the root; [`Error::Io`] if a directory cannot
    /// be read.
    fn glob(&self, pattern: &str) -> Result<Vec<String>>;

    /// Returns kind, length, permissions and time of what stands at `path`. A link at the end of `path` is not
    /// followed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if nothing stands at `path` or the system does not tell; [`Error::Path`] if the path is refused.
    fn stat(&self, path: &str) -> Result<FileStat>;

    /// Returns whether anything stands at `path`. A link at the end of `path` is not followed: it exists, wherever it
    /// leads.
    ///
    /// # Errors
    ///
    /// [`Error::Path`] if the path is refused; [`Error::Io`] if the system does not tell.
    fn exists(&self, path: &str) -> Result<bool>;
}

/// Describes one entry of a directory, as [`Filesystem::list`] returns it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct FilesystemEntry {
    /// Name of the entry within its directory.
    pub name: String,
    /// Kind of file that the name stands for. A link is not followed.
    pub kind: FileKind,
}

/// Names the kinds of files that a path can stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    #[serde(rename = "folder")]
    Directory,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Special,
}

/// Describes a file, directory or link without its content, as [`Filesystem::stat`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStat {
    /// Kind of file.
    pub kind: FileKind,
    /// Length in bytes: of a file its content's, of a link its target path's. The length of a directory has no meaning
    /// across filesystems.
    pub len: u64,
    /// Permission bits, those of `0o7777`.
    pub mode: u32,
    /// Time of the last change of content, in microseconds since 1970-01-01 UTC.
    pub modified_us: i64,
}
