//! Faults of a disk in memory.

use std::io;

use nix::errno::Errno;

/// Identifies a call of [`Storage`](crate::storage::Storage) or
/// [`StorageFile`](crate::storage::StorageFile), for traces and for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// `Storage::create_dir_all`.
    CreateDirAll,
    /// `Storage::list`.
    List,
    /// `Storage::entry`.
    Entry,
    /// `Storage::create`, and `StorageFile::allocate`.
    Create,
    /// `Storage::open`.
    Open,
    /// `Storage::rename`, traced with the new name.
    Rename,
    /// `Storage::hard_link`, traced with the new name.
    HardLink,
    /// `Storage::remove_file`.
    RemoveFile,
    /// `Storage::remove_dir_all`.
    RemoveDirAll,
    /// `Storage::sync_dir`.
    SyncDir,
    /// `Storage::try_lock`.
    TryLock,
    /// `StorageFile::len`. A trace shows every call on a file with the path by which the file was
    /// opened.
    Len,
    /// `StorageFile::read_at`.
    Read,
    /// `StorageFile::write_at`.
    Write,
    /// `StorageFile::sync_data`.
    SyncData,
}

/// Describes a failure of a disk. Several faults may be injected at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Makes one later call fail without any change; then the fault is over.
    ///
    /// A failed `SyncData` marks the pages that it should have written as clean, like Linux. No
    /// later sync writes them unless they are written to again, and a power cut may lose them. Each
    /// other handle that is open on the file reports the failure once, by its next sync.
    ///
    /// [`io::ErrorKind::Interrupted`] is an error of the system below the backend. If
    /// [`Op::is_made_again`] returns `true`, the backend repeats the call and its caller does not
    /// see the failure.
    FailNth {
        /// Kind of the calls that are counted.
        op: Op,
        /// Number of the call that fails, counted from now on; 1 is the very next call.
        nth: u64,
        /// Error that the call returns.
        error: io::ErrorKind,
    },
    /// Limits the total length of all files. Creating or lengthening a file fails with
    /// [`io::ErrorKind::StorageFull`] if the lengths of all files would exceed the capacity.
    /// Creating a directory, an empty file or a lock file fails so if no byte is left. A write that
    /// does not fit writes the part that does. The fault lasts until the faults are cleared.
    DiskFull {
        /// Maximum number of bytes of all files together.
        capacity_bytes: u64,
    },
    /// Makes each call that would change something fail with [`io::ErrorKind::ReadOnlyFilesystem`].
    /// This includes taking a lock and opening for writing. The fault lasts until the faults are
    /// cleared.
    ReadOnly,
    /// Makes each call that opens something fail with `EMFILE`: creating and opening a file,
    /// listing or syncing a directory, taking a lock. The fault lasts until the faults are cleared.
    NoHandles,
    /// Lets any number of holders have each lock at once, as on file systems without locks. The
    /// fault lasts until the faults are cleared.
    LocksExcludeNobody,
    /// Makes one later write fail after its first bytes; then the fault is over.
    ShortWrite {
        /// Number of the write that fails, counted from now on; 1 is the very next write.
        nth: u64,
        /// Number of its bytes that are written nevertheless.
        bytes: usize,
    },
    /// Kills the process during one later call that changes or syncs something. Calls that only
    /// read, and locks, are not counted. A write writes its first bytes; any other call does
    /// nothing. Afterwards every file, lock and [`process`](super::MemoryStorage::process) is dead,
    /// as after [`CrashKind::Process`](super::CrashKind::Process); a test may cut the power next.
    Die {
        /// Number of the call in which the process dies, counted from now on; 1 is the very next
        /// call.
        nth: u64,
        /// Number of bytes that are written, if the call is a write.
        bytes: usize,
    },
}

impl Op {
    /// Returns whether the call changes a disk or makes a change durable. A lock is neither: it
    /// leaves nothing on the disk.
    pub fn changes(self) -> bool {
        !matches!(self, Op::List | Op::Entry | Op::Open | Op::TryLock | Op::Len | Op::Read)
    }

    /// Returns whether a backend repeats the call if a signal interrupts it. This is `true` for the
    /// calls that POSIX lets a signal interrupt and that are idempotent.
    pub fn is_made_again(self) -> bool {
        matches!(
            self,
            Op::Create | Op::Open | Op::TryLock | Op::Read | Op::Write | Op::SyncData | Op::SyncDir
        )
    }
}

/// Faults that are scheduled for a call, and faults that last.
#[derive(Default)]
pub(super) struct Faults {
    counted: Vec<ScheduledFault>,
    pub(super) capacity: Option<u64>,
    pub(super) read_only: bool,
    no_handles: bool,
    pub(super) locks_exclude_nobody: bool,
}

struct ScheduledFault {
    /// Kind of the calls that are counted; `None` for all calls that change something.
    op: Option<Op>,
    left: u64,
    strike: FaultEffect,
}

#[derive(Clone, Copy)]
pub(super) enum FaultEffect {
    /// The call fails and changes nothing.
    Fail(io::ErrorKind),
    /// The call writes only this many bytes, and fails.
    Short(usize),
    /// The call writes only this many bytes, and the process is dead.
    Die(usize),
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        let mut count = |op, left, strike| self.counted.push(ScheduledFault { op, left, strike });
        match fault {
            Fault::FailNth { op, nth, error } => count(Some(op), nth, FaultEffect::Fail(error)),
            Fault::ShortWrite { nth, bytes } => count(Some(Op::Write), nth, FaultEffect::Short(bytes)),
            Fault::Die { nth, bytes } => count(None, nth, FaultEffect::Die(bytes)),
            Fault::DiskFull { capacity_bytes } => self.capacity = Some(capacity_bytes),
            Fault::ReadOnly => self.read_only = true,
            Fault::NoHandles => self.no_handles = true,
            Fault::LocksExcludeNobody => self.locks_exclude_nobody = true,
        }
    }

    /// Counts a call and returns the effect of a fault on it. If two faults apply to the same call,
    /// the one that was injected first takes effect and both are over.
    pub(super) fn count(&mut self, op: Op) -> Option<FaultEffect> {
        let mut felt = None;
        self.counted.retain_mut(|fault| {
            if !fault.op.map_or(op.changes(), |counted| counted == op) {
                return true;
            }
            fault.left = fault.left.saturating_sub(1);
            if fault.left == 0 {
                felt = felt.or(Some(fault.strike));
            }
            fault.left > 0
        });
        felt
    }

    pub(super) fn may_open(&self) -> io::Result<()> {
        if self.no_handles { Err(Errno::EMFILE.into()) } else { Ok(()) }
    }
}
