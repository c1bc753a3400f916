//! What a disk in memory may refuse.

use std::io;

use nix::errno::Errno;

/// Names a call of [`Storage`](crate::storage::Storage) or [`StorageFile`](crate::storage::StorageFile), for traces and
/// for faults.
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
    /// `StorageFile::len`. A trace shows this and every other call on a file with the path by which the file was
    /// opened.
    Len,
    /// `StorageFile::read_at`.
    Read,
    /// `StorageFile::write_at`.
    Write,
    /// `StorageFile::sync_data`.
    SyncData,
}

/// Describes something that goes wrong with a disk. Several faults may be injected at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Lets one later call fail without changing anything; then the fault is over.
    ///
    /// A `SyncData` that fails leaves the pages that it should have written looking clean, as Linux does: no later sync
    /// writes them unless somebody writes to them again, and a power cut may lose them. Each other handle that is open
    /// on the file reports the failure once, by its next sync.
    ///
    /// [`io::ErrorKind::Interrupted`] is what the system answers beneath the seam: a backend makes the call again where
    /// [`Op::is_made_again`] says so, and its caller sees nothing of the failure.
    FailNth {
        /// Kind of the calls that are counted.
        op: Op,
        /// Number of the call that fails, counted from now on; 1 is the very next call.
        nth: u64,
        /// Error that the call answers.
        error: io::ErrorKind,
    },
    /// Limits what all files together may hold. Making or lengthening a file answers [`io::ErrorKind::StorageFull`]
    /// where the lengths of all files would exceed the capacity; making a directory, an empty file or a lock file does so
    /// once no byte is left. A write that does not fit keeps the part of it that does. The fault lasts until the faults
    /// are cleared.
    DiskFull {
        /// Number of bytes that all files may have together.
        capacity_bytes: u64,
    },
    /// Lets each call that would change something, taking a lock and opening for writing included, answer
    /// [`io::ErrorKind::ReadOnlyFilesystem`]. The fault lasts until the faults are cleared.
    ReadOnly,
    /// Lets each call that opens something answer `EMFILE`: making and opening a file, listing or syncing a directory, taking a
    /// lock. The fault lasts until the faults are cleared.
    NoHandles,
    /// Lets any number of holders have each lock at once, as on file systems that keep no locks. The fault lasts until the
    /// faults are cleared.
    LocksExcludeNobody,
    /// Lets one later write keep only its first bytes and fail; then the fault is over.
    ShortWrite {
        /// Number of the write that fails, counted from now on; 1 is the very next write.
        nth: u64,
        /// Number of bytes of it that are written all the same.
        bytes: usize,
    },
    /// Lets the process die in the middle of one later call that changes or syncs something; calls that only look, and
    /// locks, are not counted. A write keeps its first bytes, any other call does nothing. Every file, lock and
    /// [`process`](super::MemoryStorage::process) is dead then, as after
    /// [`CrashKind::Process`](super::CrashKind::Process); a test may cut the power next.
    Die {
        /// Number of the call in which the process dies, counted from now on; 1 is the very next call.
        nth: u64,
        /// Number of bytes that are written, if the call is a write.
        bytes: usize,
    },
}

impl Op {
    /// Returns whether the call changes a disk or makes a change durable. A lock is neither: it leaves nothing behind.
    pub fn changes(self) -> bool {
        !matches!(self, Op::List | Op::Entry | Op::Open | Op::TryLock | Op::Len | Op::Read)
    }

    /// Returns whether a backend makes the call again where a signal interrupts it: this holds for the calls that POSIX
    /// lets a signal interrupt and that do the same when made twice.
    pub fn is_made_again(self) -> bool {
        matches!(
            self,
            Op::Create | Op::Open | Op::TryLock | Op::Read | Op::Write | Op::SyncData | Op::SyncDir
        )
    }
}

/// Holds the faults that wait for their moment, and those that last.
#[derive(Default)]
pub(super) struct Faults {
    counted: Vec<ScheduledFault>,
    capacity: Option<u64>,
    read_only: bool,
    no_handles: bool,
    pub(super) locks_exclude_nobody: bool,
}

struct ScheduledFault {
    /// Kind of the calls that are counted; `None` for all calls that change something.
    op: Option<Op>,
    left: u64,
    strike: FaultEffect,
}

/// Says what a fault does to a call.
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
        match fault {
            Fault::FailNth { op, nth, error } => {
                self.counted.push(ScheduledFault {
                    op: Some(op),
                    left: nth,
                    strike: FaultEffect::Fail(error),
                });
            }
            Fault::ShortWrite { nth, bytes } => {
                self.counted.push(ScheduledFault {
                    op: Some(Op::Write),
                    left: nth,
                    strike: FaultEffect::Short(bytes),
                });
            }
            Fault::Die { nth, bytes } => {
                self.counted.push(ScheduledFault { op: None, left: nth, strike: FaultEffect::Die(bytes) });
            }
            Fault::DiskFull { capacity_bytes } => self.capacity = Some(capacity_bytes),
            Fault::ReadOnly => self.read_only = true,
            Fault::NoHandles => self.no_handles = true,
            Fault::LocksExcludeNobody => self.locks_exclude_nobody = true,
        }
    }

    /// Counts a call and returns what a fault does to it. Where two faults strike the same call, the one that was
    /// injected first takes effect and both are over.
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

    pub(super) fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    /// Refuses to open something where no handle is left.
    pub(super) fn may_open(&self) -> io::Result<()> {
        if self.no_handles { Err(Errno::EMFILE.into()) } else { Ok(()) }
    }

    pub(super) fn read_only(&self) -> bool {
        self.read_only
    }
}
