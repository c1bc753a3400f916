//! Workspaces: the files that an agent's tools work on.
//!
//! | type | what it is |
//! |---|---|
//! | [`Filesystem`] | what a tool does with files, whichever filesystem it has |
//! | [`InMemoryFilesystem`] | files in memory, whose snapshot is a pointer |
//! | `HostFilesystem` | a real folder, whose snapshots are git objects (feature `host`) |
//!
//! A path is UTF-8, relative to the workspace's root, its parts separated by `/`; `.` is the root. `..`,
//! absolute paths, empty parts, NUL and paths that are too long are refused, never repaired.

mod error;
#[cfg(feature = "host")]
mod host;
mod identity;
mod memory;
mod path;
mod pattern;
pub mod sabotage;
mod system;

pub use error::{Error, Result, Unrestored};
#[cfg(feature = "host")]
pub use host::{
    FilesystemSnapshot, HostFilesystem, HostFilesystemOptions, Rebind, Restored, WorkspaceLease,
    WorkspaceMark, WorkspaceNotice,
};
pub use identity::FolderIdentity;
pub use memory::{InMemoryFilesystem, MemorySnapshot};
pub use system::{boot_id, is_out_of_space};

/// What a tool does with the files of its workspace.
///
/// Every call refuses a path that is not relative and plain with [`Error::Path`];
/// what the filesystem itself refuses is [`Error::Io`], a file that is not there having the
/// kind `NotFound`. Nothing is synced: what makes a workspace durable is a snapshot.
pub trait Filesystem: Send + Sync {
    /// The whole content of a file.
    ///
    /// # Errors
    ///
    /// Where there is no such file, or it is a folder.
    fn read(&self, path: &str) -> Result<Vec<u8>>;

    /// Makes a file hold these bytes, and makes it and the folders on its way where they are missing.
    ///
    /// # Errors
    ///
    /// Where a folder is in the way, or a file on the way.
    fn write(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Puts bytes behind a file's last, and makes it and the folders on its way where they are missing.
    ///
    /// # Errors
    ///
    /// As [`write`](Filesystem::write).
    fn append(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Removes a file, or a folder with all that is in it.
    ///
    /// # Errors
    ///
    /// Where there is nothing, or it is the root.
    fn delete(&self, path: &str) -> Result<()>;

    /// Gives a file or a folder another path, and makes the folders on its way where they are missing. A file
    /// takes the place of a file; nothing else is replaced.
    ///
    /// # Errors
    ///
    /// Where there is nothing at `from`, something else at `to`, or a folder would come into itself.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// What is in a folder, sorted by name. A name that is not UTF-8 is not among it, since no path can say it.
    ///
    /// # Errors
    ///
    /// Where there is no such folder.
    fn list(&self, folder: &str) -> Result<Vec<Entry>>;

    /// The paths of all files, folders and links that a pattern matches, sorted. `*` and `?` stand for
    /// characters of one name, `[a-z]` and `[!a-z]` for one of them, `**` for any number of folders, `\` takes a
    /// character as it is. Links are not followed, and `.git` folders are not looked into.
    ///
    /// # Errors
    ///
    /// Where the pattern is absolute or holds `..`.
    fn glob(&self, pattern: &str) -> Result<Vec<String>>;

    /// What a path names. A link at its end is not followed.
    ///
    /// # Errors
    ///
    /// Where there is nothing.
    fn stat(&self, path: &str) -> Result<FileStat>;

    /// Whether a path names anything. A link at its end is not followed: it exists, wherever it leads.
    ///
    /// # Errors
    ///
    /// Where the path is refused.
    fn exists(&self, path: &str) -> Result<bool>;
}

/// What a folder holds under one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Entry {
    /// The name, without its folder.
    pub name: String,
    /// What it names.
    pub kind: FileKind,
}

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Special,
}

/// What is known of a path without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// A file's length in bytes, and of a link that of its target's path. What a folder says depends on the
    /// filesystem.
    pub len: u64,
    /// The permission bits, `0o7777` of them.
    pub mode: u32,
    /// When it was changed last, in microseconds since 1970-01-01 UTC.
    pub modified_us: i64,
}
