//! Reads a file or a link into the object of its content.
//!
//! A file that changes while it is read is read again, a few times. If it only grew in that time,
//! another process appends to it, and its initial part is stored, as its [`FileForm::Prefix`]
//! states. So a log that is being written does not prevent every tool from running. Such a file is
//! in the snapshot for viewing; a restore leaves it unchanged.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::stat::fstat;
use parking_lot::Mutex;

use super::attributes;
use super::manifest::{Attributes, FileForm, FileKind, Leaf, Stat, display_path};
use super::new_objects::NewObjects;
use super::objects::{Hasher, ObjectId, ObjectKind, len};
use super::options::{CaptureProgress, OnProgress};
use super::sparse::Sparse;
use super::step::{MOUNT, open_file, read_link, stat_at, stat_of};
use crate::error::{Error, Result};

pub(super) const READ_TRIES: usize = 5;

/// Files up to this length are read into memory.
const READ_WHOLE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct CaptureLimits {
    pub(super) until: Option<Instant>,
    /// Half of the time until then.
    half: Option<Instant>,
    /// Greatest number of bytes of contents to read, without holes.
    pub(super) bytes_max: Option<u64>,
    pub(super) progress: Option<OnProgress>,
    bytes: AtomicU64,
    files: Mutex<u64>,
    passed: Mutex<Option<ExceededLimit>>,
}

#[derive(Clone, Copy, Debug)]
enum ExceededLimit {
    Deadline,
    Budget(u64),
}

impl CaptureLimits {
    pub(super) fn new(until: Option<Instant>, bytes_max: Option<u64>) -> CaptureLimits {
        let half =
            until.and_then(|until| until.checked_sub(until.saturating_duration_since(Instant::now()) / 2));
        CaptureLimits { until, half, bytes_max, ..CaptureLimits::default() }
    }

    /// Returns the rest of the first half of the time.
    pub(super) fn half_left(&self) -> Option<Duration> {
        self.half.map(|half| half.saturating_duration_since(Instant::now()))
    }

    pub(super) fn take(&self, bytes: u64) -> io::Result<()> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.passed.lock().get_or_insert(ExceededLimit::Deadline);
            return Err(io::Error::other("the deadline has passed"));
        }
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let Some(bytes_max) = self.bytes_max else {
            return Ok(());
        };
        if total > bytes_max {
            self.passed.lock().get_or_insert(ExceededLimit::Budget(bytes_max));
            return Err(io::Error::other("the budget is spent"));
        }
        Ok(())
    }

    pub(super) fn read_files(&self, count: usize) {
        let Some(OnProgress(told)) = &self.progress else { return };
        let mut files = self.files.lock();
        *files = files.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        told(CaptureProgress { files: *files, bytes: self.bytes.load(Ordering::Relaxed) });
    }

    pub(super) fn check(&self, path: &[u8]) -> Result<()> {
        self.take(0).map_err(|error| {
            self.limit_error(path).unwrap_or_else(|| Error::io("read", display_path(path), error))
        })
    }

    /// Returns the reason why the capture stops, if it is a limit.
    fn limit_error(&self, path: &[u8]) -> Option<Error> {
        (*self.passed.lock()).map(|passed| match passed {
            ExceededLimit::Deadline => Error::DeadlineExceeded,
            ExceededLimit::Budget(bytes_max) => {
                Error::CaptureTooLarge { path: display_path(path), bytes_max }
            }
        })
    }
}

struct MeteredReader<'a, R> {
    source: R,
    limits: &'a CaptureLimits,
}

impl<R: Read> Read for MeteredReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.limits.take(len(buffer.get(..read).unwrap_or_default()))?;
        Ok(read)
    }
}

struct FileContent {
    blob: ObjectId,
    attributes: Attributes,
    form: FileForm,
}

pub(super) struct ContentReader<'a> {
    pub(super) objects: &'a NewObjects<'a>,
    pub(super) limits: &'a CaptureLimits,
    pub(super) directory: &'a OwnedFd,
    pub(super) name: &'a [u8],
    pub(super) path: &'a dyn Fn() -> Vec<u8>,
    /// Set if it is a mount, which is not read.
    pub(super) mounted: &'a Cell<bool>,
    /// Whether a file may be written once more without a new time.
    pub(super) is_racy: &'a dyn Fn(&Stat) -> bool,
}

impl ContentReader<'_> {
    /// Reads a file or a link into an object. Returns `None` if it no longer exists, or is a mount.
    pub(super) fn keep(&self, first: Stat) -> Result<Option<Leaf>> {
        let mut stat = first;
        let mut never_shrank = true;
        for _ in 0..READ_TRIES {
            let content = match stat.kind() {
                FileKind::Link => match read_link(self.directory, self.name) {
                    Ok(target) => {
                        let blob = self.objects.write(ObjectKind::Blob, &target)?;
                        Some(FileContent { blob, attributes: None, form: FileForm::Whole })
                    }
                    Err(Errno::ENOENT) => return Ok(None),
                    // It is no longer a link.
                    Err(Errno::EINVAL) => None,
                    Err(errno) => return Err(self.io("read", errno)),
                },
                FileKind::File => match open_file(self.directory, self.name) {
                    Ok(file) => self.file(file, &mut stat)?,
                    Err(Errno::ENOENT) => return Ok(None),
                    Err(Errno::ELOOP) => None,
                    Err(MOUNT) => {
                        self.mounted.set(true);
                        return Ok(None);
                    }
                    Err(errno) => return Err(self.io("read", errno)),
                },
                FileKind::Directory | FileKind::Special => break,
            };
            let after = match stat_at(self.directory, self.name) {
                Err(Errno::ENOENT) => return Ok(None),
                after => after.map_err(|errno| self.io("look at", errno))?,
            };
            if let Some(FileContent { blob, attributes, form }) = content.filter(|_| after == stat) {
                let racy = (self.is_racy)(&stat);
                return Ok(Some(Leaf { stat, attributes, form, blob, racy }));
            }
            let is_one =
                (after.device, after.inode, after.kind()) == (stat.device, stat.inode, FileKind::File);
            // A write sets a file's time before its length: in between, only the time is new.
            never_shrank &= is_one && after.len >= stat.len;
            stat = after;
        }
        if never_shrank
            && stat.len > first.len
            && let Some(leaf) = self.prefix(first)?
        {
            return Ok(Some(leaf));
        }
        Err(Error::path(display_path(&(self.path)()), "it changed again and again while it was read"))
    }

    pub(super) fn io(&self, op: &'static str, error: impl Into<io::Error>) -> Error {
        Error::io(op, OsStr::from_bytes(&(self.path)()), error)
    }

    /// An exceeded limit is more informative than the resulting read error.
    pub(super) fn prefer_limit_error<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.limits.limit_error(&(self.path)()).unwrap_or(error))
    }

    /// Reads a file into an object, and updates `stat` to its state at opening, which may be newer.
    /// Returns `None` if it is not a file, or if its length changed while it was read.
    fn file(&self, file: OwnedFd, stat: &mut Stat) -> Result<Option<FileContent>> {
        let opened = fstat(file.as_fd()).map_err(|errno| self.io("look at", errno))?;
        *stat = Stat::from(&opened);
        if stat.kind() != FileKind::File {
            return Ok(None);
        }
        let attributes = attributes::read(&file).map_err(|errno| self.io("read the attributes of", errno))?;
        let file = File::from(file);
        let sparse = Sparse::detect(&file, stat.len, opened.st_blocks);
        let (blob, form) = if let Some(sparse) = sparse.map_err(|error| self.io("read", error))? {
            let data = self.stream(sparse.data(&file), sparse.data_len())?;
            let listed = |data| self.objects.write(ObjectKind::Blob, sparse.encode(data).as_bytes());
            (data.map(listed).transpose()?, FileForm::Sparse)
        } else if stat.len > READ_WHOLE_BYTES_MAX {
            (self.stream(&file, stat.len)?, FileForm::Whole)
        } else {
            (self.read_whole(&file, stat.len)?, FileForm::Whole)
        };
        Ok(blob.map(|blob| FileContent { blob, attributes, form }))
    }

    fn read_whole(&self, file: &File, length: u64) -> Result<Option<ObjectId>> {
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(1));
        let mut counted = MeteredReader { source: file, limits: self.limits };
        let read = (&mut counted).take(length.saturating_add(1)).read_to_end(&mut bytes);
        self.prefer_limit_error(read.map_err(|error| self.io("read", error)))?;
        (len(&bytes) == length).then(|| self.objects.write(ObjectKind::Blob, &bytes)).transpose()
    }

    fn stream(&self, source: impl Read, len: u64) -> Result<Option<ObjectId>> {
        let mut counted = MeteredReader { source, limits: self.limits };
        self.prefer_limit_error(self.objects.objects.write_from(&mut counted, len))
    }

    /// Stores the initial part of a growing file. Returns `None` if that part changes too.
    fn prefix(&self, first: Stat) -> Result<Option<Leaf>> {
        let Ok(file) = open_file(self.directory, self.name) else { return Ok(None) };
        let attributes = attributes::read(&file).map_err(|errno| self.io("read the attributes of", errno))?;
        let file = File::from(file);
        let Some(blob) = self.stream((&file).take(first.len), first.len)? else { return Ok(None) };
        let again = io::Seek::rewind(&mut &file).and_then(|()| {
            let source = (&file).take(first.len);
            Hasher::hash_blob(&mut MeteredReader { source, limits: self.limits }, first.len)
        });
        let again = self.prefer_limit_error(again.map_err(|error| self.io("read", error)))?;
        let after = stat_of(&file).map_err(|errno| self.io("look at", errno))?;
        let is_one = (after.device, after.inode) == (first.device, first.inode);
        let stays = again == Some(blob) && is_one && after.len >= first.len;
        Ok(stays.then_some(Leaf { stat: after, attributes, form: FileForm::Prefix, blob, racy: true }))
    }
}
