//! Permissions of the files and directories of a store.

/// Specifies who may read and write the directories and files that a store creates from now on,
/// regardless of the process's umask. Existing files keep their permissions; opening a session
/// [reports](crate::RecoveryReport::exposed) wider ones.
///
/// A log contains everything that an agent read, secrets included, and retains data that was
/// deleted since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreAccess {
    /// Only the process's user may read and write: directories 0700, files 0600.
    #[default]
    Private,
    /// The files' group may read: directories 0750, files 0640.
    GroupReads,
    /// The files' group may read and write: directories 0770, files 0660.
    GroupWrites,
    /// All users of the machine may read: directories 0755, files 0644.
    EverybodyReads,
}

impl StoreAccess {
    /// Returns the permission bits of the store's files.
    pub fn file_mode(self) -> u32 {
        match self {
            StoreAccess::Private => 0o600,
            StoreAccess::GroupReads => 0o640,
            StoreAccess::GroupWrites => 0o660,
            StoreAccess::EverybodyReads => 0o644,
        }
    }

    /// Returns the permission bits of the store's directories. Read access to a file implies access
    /// to its directory.
    pub fn directory_mode(self) -> u32 {
        self.file_mode() | (self.file_mode() & 0o444) >> 2
    }
}
