//! Permissions of what a store makes.

/// Says who may read and write the directories and files that a store makes from now on, whatever the umask of the process
/// is. Files that exist already keep their permissions; opening a session [reports](crate::RecoveryReport::exposed)
/// where those are wider.
///
/// A log holds what an agent read, secrets included, and keeps what was deleted since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreAccess {
    /// Only the process's user may read and write: directories 0700, files 0600.
    #[default]
    Private,
    /// The files' group may read: directories 0750, files 0640.
    GroupReads,
    /// The files' group may read and write: directories 0770, files 0660.
    GroupWrites,
    /// Everybody on the machine may read: directories 0755, files 0644.
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

    /// Returns the permission bits of the store's directories: whoever may read a file may also pass its directory.
    pub fn directory_mode(self) -> u32 {
        self.file_mode() | (self.file_mode() & 0o444) >> 2
    }
}
