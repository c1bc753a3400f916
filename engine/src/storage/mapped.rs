//! Segments written through a memory mapping: appending a record costs a copy in memory and no
//! system call. This is the only file of the project that contains `unsafe`.
//!
//! Bytes copied into a shared mapping are in the system's page cache at once. Every other handle
//! reads them, they outlive the process, and a sync of the file makes them durable.
//!
//! # Invariants
//!
//! 1. A file is mapped over its present length. All of that length was allocated when the file was
//!    created, and the file is never shortened while it is mapped. A store beyond the end of the
//!    file, or into a hole on a full disk, would kill the process. On file systems where an
//!    allocation promises no space, no file is mapped ([`preallocation`](super::preallocation)).
//! 2. No Rust reference into the mapping ever exists: bytes are copied into it and, four at a time,
//!    out of it. Another process that writes the file can only corrupt its bytes, and their
//!    checksums detect that.
//! 3. Two stores through one mapping never run at once.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use nix::libc;

use super::StorageFile;
use super::file::PlainFile;

const PAGE_BYTES: usize = 4096;

/// A page of memory that the system zeroes in each copy of this process made by `fork`. `None` if
/// the system cannot do that.
static PROCESS_MARK: OnceLock<Option<ProcessMark>> = OnceLock::new();

struct ProcessMark(MmapRaw);

impl ProcessMark {
    fn new() -> Option<ProcessMark> {
        let map = MmapOptions::new().len(PAGE_BYTES).map_anon().ok().map(MmapRaw::from)?;
        // SAFETY: the range is a whole mapping of this process. No other code refers to it, and it
        // lives as long as the process. The advice changes the content in children only.
        #[allow(unsafe_code)]
        let advised = unsafe { libc::madvise(map.as_mut_ptr().cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
        (advised == 0).then_some(ProcessMark(map))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is aligned for it, lives as long as the process, and is accessed only
        // through this method.
        #[allow(unsafe_code)]
        unsafe {
            AtomicU32::from_ptr(self.0.as_mut_ptr().cast())
        }
    }
}

/// Returns a number that a copy of this process made by `fork` does not share: the copy gets
/// another number from this function. Costs two loads. Always 0 if the system does not zero pages
/// in copies.
#[inline]
pub(crate) fn process_mark() -> u32 {
    let Some(mark) = PROCESS_MARK.get_or_init(ProcessMark::new) else { return 0 };
    match mark.word().load(Ordering::Relaxed) {
        0 => new_process_mark(mark),
        mark => mark,
    }
}

/// Draws a number that differs from those of all ancestor processes: a copy knows the last number
/// that was drawn. The process id is not usable, since two namespaces have the same ids.
#[cold]
fn new_process_mark(mark: &ProcessMark) -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    match mark.word().compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(drawn) => drawn,
    }
}

/// Number of bytes brought into memory with one call. It is large enough to hide the cost of the
/// call, and small enough for a writer to make the call itself.
const PIECE_BYTES: usize = 256 << 10;

/// Minimum number of bytes for which unmapping pages before a sync is worth a call.
const LEAVE_BYTES_MIN: usize = 64 << 10;

/// File length in bytes below which pages are brought in by writing to them: a few pages are not
/// worth waking another thread.
const PREPARED_FILE_BYTES_MIN: u64 = 256 << 10;

#[derive(Debug)]
pub(super) struct MappedFile {
    map: MmapRaw,
    /// Set while bytes are copied into the mapping. A lock would cost twice as much, and there is
    /// no contention in correct use: a log has one writer.
    storing: AtomicBool,
    /// Offset up to which pages were brought in, or are about to be.
    prepared: AtomicUsize,
    file: PlainFile,
}

impl MappedFile {
    /// Maps a file over its present length. Returns the file as the error if it cannot be mapped.
    pub(super) fn new(file: PlainFile) -> Result<MappedFile, PlainFile> {
        let len = file.len().ok().and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
        match MmapOptions::new().len(len).map_raw(&file.file) {
            Ok(map) => {
                Ok(MappedFile { map, storing: AtomicBool::new(false), prepared: AtomicUsize::new(0), file })
            }
            Err(_) => Err(file),
        }
    }
}

impl MappedFile {
    /// Brings in the pages of `from..to` that no thread has claimed yet. The writer and the
    /// background thread claim one piece at a time, so neither waits for the other's piece.
    fn bring_in(&self, from: usize, to: usize) -> io::Result<()> {
        let to = to.min(self.map.len());
        let mut prepared = self.prepared.load(Ordering::Relaxed);
        loop {
            let start = prepared.max(from / PAGE_BYTES * PAGE_BYTES);
            if start >= to {
                return Ok(());
            }
            let end = (start / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(to);
            match self.prepared.compare_exchange_weak(prepared, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => prepared = end,
                Err(found) => {
                    prepared = found;
                    continue;
                }
            }
            self.map.advise_range(Advice::PopulateWrite, start, end - start)?;
        }
    }

    /// Removes the whole pages within `from..to` from the mapping; they stay in the page cache. A
    /// sync makes each mapped page read-only and notifies the writer's processor of each. Pages
    /// removed together cost one such notification.
    fn leave(&self, from: usize, to: usize) {
        let (from, to) = (from.next_multiple_of(PAGE_BYTES), to / PAGE_BYTES * PAGE_BYTES);
        let Some(len) = to.checked_sub(from).filter(|len| *len >= LEAVE_BYTES_MIN) else { return };
        // SAFETY: the range is within the mapping, which is shared and of a file. A removed page is
        // brought in again from the page cache, with all stored bytes, when it is touched. No
        // reference leads into it.
        #[allow(unsafe_code)]
        let left = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, len) };
        // A failure only makes the sync slower.
        drop(left);
    }
}

impl MappedFile {
    /// Returns the offset of `len` bytes in the mapping; `None` if they are not all within it.
    /// `offset` is their position in the file.
    fn start_of(&self, len: usize, offset: u64) -> Option<usize> {
        let start = usize::try_from(offset).ok()?;
        (start.checked_add(len)? <= self.map.len()).then_some(start)
    }

    /// Runs `act` while no other thread runs one.
    #[inline(always)]
    fn exclusively<T>(&self, act: impl FnOnce() -> T) -> T {
        while self.storing.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let done = act();
        self.storing.store(false, Ordering::Release);
        done
    }
}

impl StorageFile for MappedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.file.next_data(offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn peek(&self, offset: u64) -> Option<[u8; 4]> {
        let start = self.start_of(4, offset)?;
        // SAFETY: the four bytes are within the mapping, as was just checked, and it lives as long
        // as `self`. They are copied out by volatile loads through a raw pointer, since another
        // process may write them at any time. No other thread of this process stores at the same
        // time, because of `alone`. Invariant 1 guarantees that the mapped file keeps its length.
        #[allow(unsafe_code)]
        let bytes = self.exclusively(|| unsafe {
            let first: *const u8 = self.map.as_ptr().add(start);
            [0, 1, 2, 3].map(|at| first.add(at).read_volatile())
        });
        Some(bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Some(start) = self.start_of(bytes.len(), offset) else {
            return self.file.write_at(bytes, offset);
        };
        if start + bytes.len() > self.prepared.load(Ordering::Relaxed) {
            // If this fails, the pages come in one by one.
            let _ = self.bring_in(start, (start + bytes.len()).next_multiple_of(PIECE_BYTES));
        }
        // SAFETY: `start + bytes.len()` is within the mapping, as was just checked, and the mapping
        // is writable and lives as long as `self`. The source is a slice of this process's own
        // memory. It is not part of the mapping, since no reference ever leads into that. No other
        // thread stores at the same time, because of `alone`. Invariant 1 guarantees that the
        // mapped file keeps its length.
        #[allow(unsafe_code)]
        self.exclusively(|| unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(start), bytes.len());
        });
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        // Positions after the mapping are written with positioned writes.
        self.file.allocate(bytes)
    }

    fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        self.file.give_back(from, to)
    }

    fn is_worth_preparing(&self) -> bool {
        self.map.len() as u64 >= PREPARED_FILE_BYTES_MIN
    }

    fn prepare(&self, from: u64, to: u64) -> io::Result<()> {
        let (from, to) =
            (usize::try_from(from).unwrap_or(usize::MAX), usize::try_from(to).unwrap_or(usize::MAX));
        if from == 0 && to > PIECE_BYTES {
            // If a file is read from its start, the system reads ahead in growing units, at a
            // quarter of the cost of single pages. A page fault reads single pages and never
            // further ahead. If the read fails, single pages come in, which is only slower.
            let _ = self.file.read_at(&mut [0], 0);
        }
        self.bring_in(from, to)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Syncs through the mapping, which omits the pages that were brought in ahead. A sync of the
    /// whole file would write them empty, and the writer would have to wait for each of them again.
    fn sync_range(&self, from: u64, to: u64) -> io::Result<()> {
        let to = usize::try_from(to).unwrap_or(usize::MAX).min(self.map.len());
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let Some(len) = to.checked_sub(from).filter(|len| *len > 0) else { return Ok(()) };
        self.leave(from, to);
        loop {
            match self.map.flush_range(from, len) {
                // The standard library also retries a sync of the whole file in this case. A
                // failure of the disk is another error, and that one is final.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                answer => return answer,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tempfile::tempdir;

    use super::*;
    use crate::storage::{FileStorage, Storage};

    #[test]
    fn what_is_written_while_pages_are_brought_in_and_synced_is_all_there() {
        let dir = tempdir().unwrap();
        // Many pieces, a part of one, and half a page.
        let bytes = (4 << 20) + (300 << 10) + 2048;
        let file = FileStorage::new().create_segment(&dir.path().join("segment"), bytes).unwrap();
        let other = Arc::clone(&file);
        let background = std::thread::spawn(move || {
            other.prepare(0, bytes)?;
            other.prepare(2 << 20, u64::MAX)?;
            (0..4).try_for_each(|nth| other.sync_range(nth << 20, (nth + 1) << 20))
        });
        let record = |nth: u64| [nth.to_le_bytes(); 32].concat();
        let places = || (0..bytes / 256).map(|nth| (nth, nth * 256));
        for (nth, offset) in places() {
            file.write_at(&record(nth), offset).unwrap();
        }
        background.join().unwrap().unwrap();
        let mut found = vec![0; 256];
        for (nth, offset) in places() {
            file.read_at(&mut found, offset).unwrap();
            assert_eq!(found, record(nth), "at {offset}");
        }
    }

    #[test]
    fn a_writer_brings_in_what_nobody_else_did() {
        let dir = tempdir().unwrap();
        let file = FileStorage::new().create(&dir.path().join("segment"), 3 << 20).unwrap();
        drop(file);
        let file = std::fs::File::options().read(true).write(true).open(dir.path().join("segment")).unwrap();
        let mapped = MappedFile::new(PlainFile { file }).unwrap();
        let prepared = || mapped.prepared.load(Ordering::Relaxed);
        mapped.write_at(b"first", 0).unwrap();
        assert_eq!(prepared(), PIECE_BYTES);
        mapped.write_at(b"within", 5).unwrap();
        assert_eq!(prepared(), PIECE_BYTES);
        mapped.write_at(b"across", PIECE_BYTES as u64 - 3).unwrap();
        assert_eq!(prepared(), 2 * PIECE_BYTES);
        // A writer that continues far inside a file does not bring in the pages before that
        // position.
        mapped.write_at(b"last", (3 << 20) - 4).unwrap();
        assert_eq!(prepared(), 3 << 20);
        mapped.write_at(b"between", 1 << 20).unwrap();
        let mut found = [0; 7];
        mapped.read_at(&mut found, 1 << 20).unwrap();
        assert_eq!(&found, b"between");
    }

    /// A forked copy shares the locks of its parent's sessions, and once wrote into the same log at
    /// the same places.
    #[test]
    fn a_process_that_was_forked_writes_nothing_and_lets_go_of_nothing() {
        use nix::sys::wait::{WaitStatus, waitpid};
        use nix::unistd::{ForkResult, fork};

        use crate::{BackgroundSync, Durability, Error, SessionTypes, Store, StoreOptions};

        let dir = tempdir().unwrap();
        let options = || StoreOptions {
            durability: Durability::Process,
            background: BackgroundSync::Inline,
            ..StoreOptions::default()
        };
        let types = SessionTypes::builder().build().unwrap();
        let store = Store::open_with(dir.path(), options()).unwrap();
        let session = store.create(&types).unwrap();
        session.set_tag("by", "the one").unwrap();
        // SAFETY: the child calls the session, which refuses before it takes any lock. The child
        // ends without running this process's exit handlers. It allocates memory, which the C
        // library allows after a fork.
        #[allow(unsafe_code)]
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let refused = |answer| matches!(answer, Err(Error::Forked { .. }));
                let is_refused = refused(session.set_tag("by", "the copy").map(drop))
                    && refused(session.sync())
                    && refused(session.clone().close());
                drop(session);
                // Like any process, it can have sessions of its own.
                let own = store.create(&types).and_then(|own| own.set_tag("by", "the copy").map(|_| own));
                let own = own.and_then(|own| own.close()).is_ok();
                // SAFETY: nothing is left to be done here.
                unsafe { nix::libc::_exit(if is_refused && own { 0 } else { 1 }) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        session.set_tag("still", "here").unwrap();
        match Store::open_with(dir.path(), options()).unwrap().open_session(session.id(), &types) {
            Err(Error::Locked { holder, .. }) => assert_eq!(holder.pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        let id = session.id();
        session.close().unwrap();
        assert_eq!(store.summary(id).unwrap().tags.len(), 2);
        assert_eq!(store.session_ids().unwrap().len(), 2);
    }
}
