//! Workspaces: the files that an agent's tools work on, in memory or in a real directory, captured
//! and restored as a whole.
//!
//! | type | description |
//! |---|---|
//! | [`Filesystem`] | a tool's operations on files, independent of the implementation |
//! | [`InMemoryFilesystem`] | files in memory; a snapshot is a pointer |
//! | `HostFilesystem` | a directory of the host; a snapshot is a git commit in a store next to the directory (feature `host`) |
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | workspace | a directory with all of its contents, in memory or on disk |
//! | root | the workspace's own directory; every path is relative to it, and `.` names it |
//! | snapshot | the contents of a workspace at one moment; a snapshot that a record of a log names is a capture |
//! | restore | brings a workspace back to a snapshot |
//! | store | the directory of a `HostFilesystem`'s snapshots, a bare git repository |
//! | left out | of a path: no snapshot contains it, and no restore touches it |
//! | change | of a file or link: a difference between two snapshots that a `SnapshotReader` finds |
//! | changed by hand | of a file or link: changed since the last capture, but not by a tool call |
//! | lease | reserves a workspace for one holder among threads and processes |
//! | mark | an attribute of the root directory that names the worker, in case its process ends |
//! | identity | distinguishes a directory from any other that takes its path later ([`DirectoryIdentity`]) |
//!
//! # Invariants
//!
//! 1. A path is UTF-8 and relative, with parts separated by `/`; parts that are `.` are skipped. A
//!    path is rejected with [`Error::Path`], never repaired, if it is absolute or empty, has an
//!    empty part, `..` or NUL in it, more than 4,095 bytes or more than 256 parts.
//! 2. No operation, snapshot or restore follows a link out of the workspace.
//! 3. A restore reads every object that it needs before it changes anything. It can be run again
//!    until it succeeds, and names each path that it could not restore.
//! 4. No error's message contains a control character.
//!
//! # Limits
//!
//! This crate knows neither logs nor sessions: `foldlog` decides when a workspace is captured and
//! restored, and records it. The crate makes only the files of a snapshot durable and, on request,
//! the files that a restore changed. A lease excludes only holders of other leases.

mod error;
#[cfg(feature = "host")]
mod host;
mod identity;
mod memory;
mod path;
mod pattern;
mod rewound;
mod system;
#[cfg(feature = "host")]
mod unified_diff;

use serde::{Deserialize, Serialize};

pub use error::{Error, Result, UnrestoredPath};
#[cfg(feature = "host")]
pub use host::{
    CaptureCollectOptions, CaptureProgress, Collection, DamagedObject, DirectoryChange, FileChange,
    FileFacts, FileForm, FileVersion, FilesystemSnapshot, HostFilesystem, HostFilesystemOptions,
    IgnoredPaths, NotedEntry, PACK_BYTES_MAX, PackReceiver, PartialCapture, PathEdit, Rebind, RewindMerge,
    RewindMergeInputs, SnapshotPacker, SnapshotReader, SnapshotsAudited, TimeChange, Uncapturable,
    WantedEntry, WorkspaceLease, WorkspaceMark, WorkspaceNotice, WorkspaceRestoreReport, audit_snapshots,
    collect_pool, collect_snapshots, damage_of_object, escape_path, keeps_any, open_regular_file,
    read_regular_file, remember_collected, unescape_path, unpool,
};
pub use identity::DirectoryIdentity;
pub use memory::{InMemoryFilesystem, MemorySnapshot};
pub use rewound::{ChangeKind, ContentDiff, FileBrief, FileRewound, FileUnknown, KeptFile};
pub use system::{boot_id, is_out_of_handles, is_out_of_space};

/// Defines the operations of a tool on the files of its workspace.
///
/// Each operation returns [`Error::Path`] for a path that breaks the rules of [the crate](crate) or
/// that a link leads out of the workspace. It returns [`Error::Io`] if the filesystem itself
/// refuses; the kind is `NotFound` if the path does not exist. No operation makes anything durable;
/// a snapshot does. In a directory of the host, no operation writes into a directory named `.git`,
/// or removes one.
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
    /// Returns the whole content of the file at `path`. Follows a link within the workspace.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if there is no file at `path`, or if it cannot be read.
    /// - [`Error::Path`] if the path is rejected, or names neither a file nor a directory.
    fn read(&self, path: &str) -> Result<Vec<u8>>;

    /// Replaces the content of the file at `path` by `bytes`. Creates the file and its parent
    /// directories if they are missing. Follows a link within the workspace.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if `path` is a directory, if a file is in the place of a parent directory,
    ///   or if the file cannot be written.
    /// - [`Error::Path`] if the path is rejected, or names neither a file nor a directory.
    fn write(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Appends `bytes` to the file at `path`. Creates the file and its parent directories if they
    /// are missing. Follows a link within the workspace.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if `path` is a directory, if a file is in the place of a parent directory,
    ///   or if the file cannot be written.
    /// - [`Error::Path`] if the path is rejected, or names neither a file nor a directory.
    fn append(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Removes the file or link at `path`, or the directory at `path` with all of its contents.
    /// Does not follow a link.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if `path` does not exist or cannot be removed.
    /// - [`Error::Path`] if the path is rejected, is the root, or names a directory of the host
    ///   that contains a `.git` or a mount. Nothing was removed then.
    fn delete(&self, path: &str) -> Result<()>;

    /// Moves the file, link or directory at `from` to `to`. Creates the parent directories of `to`
    /// if they are missing. A file or link replaces a file or link at `to`; a directory replaces
    /// nothing. Does not follow a link.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if `from` does not exist, or if the entry at `to` may not be replaced.
    /// - [`Error::Path`] if one of the paths is rejected or is the root, if a directory would be
    ///   moved into itself, or if directories would be nested more than 256 deep.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Returns the entries of the directory at `directory`, sorted by name. Omits names that are
    /// not UTF-8, since no path can contain them.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if there is no directory at `directory`, or if it cannot be read.
    /// - [`Error::Path`] if the path is rejected.
    fn list(&self, directory: &str) -> Result<Vec<FilesystemEntry>>;

    /// Returns the paths of all files, directories and links that match `pattern`, sorted. Does not
    /// follow links, and does not search directories named `.git`.
    ///
    /// | in a pattern | matches |
    /// |---|---|
    /// | `*` | any number of characters of one name |
    /// | `?` | one character of one name |
    /// | `[a-z]`, `[!a-z]`, `[^a-z]` | one character that is, or is not, in the set |
    /// | `**` between `/` | any number of directories, including none; at the end at least one name |
    /// | `\` | the next character literally |
    ///
    /// A `[` without its `]` matches itself. Braces have no meaning. A leading `.` of a name is
    /// matched like any character.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] if the pattern would be rejected as a path, or is the root.
    /// - [`Error::Io`] if a directory cannot be read.
    fn glob(&self, pattern: &str) -> Result<Vec<String>>;

    /// Returns kind, length, permissions and time of the entry at `path`. Does not follow a link at
    /// the end of `path`.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`] if `path` does not exist, or if the system does not return its metadata.
    /// - [`Error::Path`] if the path is rejected.
    fn stat(&self, path: &str) -> Result<FileStat>;

    /// Returns whether `path` exists. Does not follow a link at the end of `path`: the link exists
    /// even if its target does not.
    ///
    /// # Errors
    ///
    /// - [`Error::Path`] if the path is rejected.
    /// - [`Error::Io`] if the system does not return the metadata.
    fn exists(&self, path: &str) -> Result<bool>;
}

/// Describes one entry of a directory, as [`Filesystem::list`] returns it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct FilesystemEntry {
    /// Name of the entry within its directory.
    pub name: String,
    /// Kind of the entry. A link is not followed.
    pub kind: FileKind,
}

/// Names the kinds of files.
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
    /// Length in bytes: for a file that of its content, for a link that of its target path. The
    /// length of a directory has no meaning across filesystems.
    pub len: u64,
    /// Permission bits, those of `0o7777`.
    pub mode: u32,
    /// Time of the last change of content, in microseconds since 1970-01-01 UTC.
    pub modified_us: i64,
}
