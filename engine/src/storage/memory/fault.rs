//! What a disk may refuse.

use std::io;

/// A call of the storage seam, for traces and for faults.
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
    /// `StorageFile::len`, traced, like all calls on a file, with the path that the file was opened by.
    Len,
    /// `StorageFile::read_at`.
    Read,
    /// `StorageFile::write_at`.
    Write,
    /// `StorageFile::sync_data`.
    SyncData,
}

/// Something that goes wrong with a disk. Several may be injected at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One later call fails and changes nothing, and then the fault is over.
    ///
    /// A `SyncData` that fails leaves the pages that it should have written looking clean, as Linux does: no
    /// later sync writes them unless they are written to again, and a power cut may lose them. Each other
    /// handle that is open on the file is told once, by its next sync.
    ///
    /// [`io::ErrorKind::Interrupted`] is what the system answers beneath the seam: where
    /// [`Op::is_made_again`] the call is made again, and its caller sees nothing of it.
    FailNth {
        /// Which calls are counted.
        op: Op,
        /// Which of them fails; 1 is the very next one.
        nth: u64,
        /// What it answers.
        error: io::ErrorKind,
    },
    /// Nothing may grow beyond a capacity: making a file or lengthening it answers
    /// [`io::ErrorKind::StorageFull`] where the lengths of all files would exceed it, and so does making a
    /// folder, an empty file or a lock file once nothing at all is left. A write that does not fit keeps the
    /// part of it that does. It lasts until the faults are cleared.
    DiskFull {
        /// How many bytes all files may have together.
        capacity_bytes: u64,
    },
    /// Each call that would change something, taking a lock and opening for writing included, answers
    /// [`io::ErrorKind::ReadOnlyFilesystem`]. It lasts until the faults are cleared.
    ReadOnly,
    /// One later write keeps only its first bytes and fails, and then the fault is over.
    ShortWrite {
        /// Which write it is; 1 is the very next one.
        nth: u64,
        /// How many of its bytes are written all the same.
        bytes: usize,
    },
    /// The process dies in the middle of one later call that changes or syncs something; calls that only
    /// look, and locks, are not counted. A write keeps its first bytes, any other call does nothing. Every
    /// file, lock and [`process`](super::MemoryStorage::process) is dead then, as after
    /// [`CrashKind::Process`](super::CrashKind::Process); the power may be cut next.
    Die {
        /// Which call it is; 1 is the very next one.
        nth: u64,
        /// How many bytes are written, where the call is a write.
        bytes: usize,
    },
}

impl Op {
    /// Whether the call changes a disk or makes a change durable. A lock is neither: it leaves nothing behind.
    pub fn changes(self) -> bool {
        !matches!(self, Op::List | Op::Entry | Op::Open | Op::TryLock | Op::Len | Op::Read)
    }

    /// Whether a backend makes the call again where a signal interrupts it: those that POSIX says a signal may
    /// interrupt, and that do the same when they are made twice.
    pub fn is_made_again(self) -> bool {
        matches!(
            self,
            Op::Create | Op::Open | Op::TryLock | Op::Read | Op::Write | Op::SyncData | Op::SyncDir
        )
    }
}

/// The faults that wait for their moment, and those that last.
#[derive(Default)]
pub(super) struct Faults {
    counted: Vec<Counted>,
    capacity: Option<u64>,
    read_only: bool,
}

struct Counted {
    /// Which calls are counted; `None` for all that change something.
    op: Option<Op>,
    left: u64,
    strike: Strike,
}

/// What a call suffers.
#[derive(Clone, Copy)]
pub(super) enum Strike {
    /// It fails and changes nothing.
    Fail(io::ErrorKind),
    /// It writes only so many bytes, and fails.
    Short(usize),
    /// It writes only so many bytes, and the process is dead.
    Die(usize),
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        match fault {
            Fault::FailNth { op, nth, error } => {
                self.counted.push(Counted { op: Some(op), left: nth, strike: Strike::Fail(error) });
            }
            Fault::ShortWrite { nth, bytes } => {
                self.counted.push(Counted { op: Some(Op::Write), left: nth, strike: Strike::Short(bytes) });
            }
            Fault::Die { nth, bytes } => {
                self.counted.push(Counted { op: None, left: nth, strike: Strike::Die(bytes) });
            }
            Fault::DiskFull { capacity_bytes } => self.capacity = Some(capacity_bytes),
            Fault::ReadOnly => self.read_only = true,
        }
    }

    /// Counts a call and tells what it suffers. Where two faults strike the same call, the one that was
    /// injected first is felt and both are over.
    pub(super) fn count(&mut self, op: Op) -> Option<Strike> {
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

    pub(super) fn read_only(&self) -> bool {
        self.read_only
    }
}
