//! Who may read what a store keeps.

/// Who may read and write the folders and files that a store makes from now on, whatever the umask of the process is.
/// What is there already keeps its permissions; opening a session
/// [says](crate::RecoveryReport::exposed) where they are wider.
///
/// A log holds what an agent read, secrets with it, and keeps what was deleted since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreAccess {
    /// The process's user alone: folders 0700, files 0600.
    #[default]
    Private,
    /// The files' group may read: folders 0750, files 0640.
    GroupReads,
    /// The files' group may read and write: folders 0770, files 0660.
    GroupWrites,
    /// Everybody on the machine may read: folders 0755, files 0644.
    EverybodyReads,
}

impl StoreAccess {
    /// The permission bits of its files.
    pub fn file_mode(self) -> u32 {
        match self {
            StoreAccess::Private => 0o600,
            StoreAccess::GroupReads => 0o640,
            StoreAccess::GroupWrites => 0o660,
            StoreAccess::EverybodyReads => 0o644,
        }
    }

    /// The permission bits of its folders: whoever may read a file may also go to it.
    pub fn folder_mode(self) -> u32 {
        self.file_mode() | (self.file_mode() & 0o444) >> 2
    }
}
