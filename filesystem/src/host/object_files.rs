//! Opens the entries of a store by name, and reads objects from files.
//!
//! An entry of a different kind in the place of a file or a directory is rejected and named in the
//! error. No link is followed, and no call blocks on a pipe.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use flate2::{Decompress, FlushDecompress, Status};
use nix::fcntl::OFlag;

use super::objects::{Hasher, ObjectId, ObjectKind, pump};
use super::regular_files::read_at_most;

/// Opens a regular file for reading.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`], which names the kind of the entry, if it is not a regular file.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    // The last two flags have no effect on a regular file.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| is_file(path).err().unwrap_or(error))?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(wrong_type_error(kind, "regular file")) }
}

/// Opens a directory.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`], which names the kind of the entry, if it is not a directory.
pub(super) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    opened.map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if !found.is_dir() => wrong_type_error(found.file_type(), "directory"),
        _ => error,
    })
}

/// Reads a regular file of at most `bytes_max` bytes.
///
/// # Errors
///
/// The errors of [`open_file`]; [`ErrorKind::FileTooLarge`].
pub(super) fn read_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_at_most(open_file(path)?, bytes_max)
}

/// Returns whether there is a regular file at a path.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`], which names the kind of the entry, if it is of a different kind.
pub(super) fn is_file(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(found) => Err(wrong_type_error(found.file_type(), "regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            let stands = path.ancestors().skip(1).find_map(|around| {
                fs::metadata(around).ok().filter(|found| !found.is_dir())?;
                let found = fs::symlink_metadata(around).ok()?;
                Some(refused_at(&around.display().to_string(), found.file_type(), "directory"))
            });
            Err(stands.unwrap_or(error))
        }
        Err(error) => Err(error),
    }
}

pub(super) fn wrong_type_error(kind: FileType, wanted: &str) -> io::Error {
    refused_at("it", kind, wanted)
}

fn refused_at(path: &str, kind: FileType, wanted: &str) -> io::Error {
    let found = match () {
        () if kind.is_file() => "a regular file",
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    io::Error::new(ErrorKind::InvalidInput, format!("{path} is {found}, not a {wanted}: move it away"))
}

/// Length of the longest head of an object: `commit `, a length, NUL.
const HEAD_BYTES_MAX: u64 = 32;

/// The file of an object, of which the head was read.
pub(super) struct OpenedObject {
    pub(super) kind: ObjectKind,
    content: ObjectContentReader,
    /// Length of the content according to the head.
    pub(super) len: u64,
    /// Whether the file contains other objects.
    is_packed: bool,
}

impl OpenedObject {
    /// Reads the head of an object's file. Returns the reason if it does not start with one.
    pub(super) fn read_head(file: File) -> Result<OpenedObject, String> {
        let mut content = BufReader::with_capacity(4096, Inflater::new(file));
        let mut head = Vec::new();
        let read = (&mut content).take(HEAD_BYTES_MAX).read_until(0, &mut head);
        read.map_err(|error| error.to_string())?;
        let said = head.strip_suffix(b"\0").and_then(|head| std::str::from_utf8(head).ok());
        let len = |kind: ObjectKind| said?.strip_prefix(kind.name())?.strip_prefix(' ')?.parse::<u64>().ok();
        let found = ObjectKind::ALL.into_iter().find_map(|kind| Some((kind, len(kind)?)));
        let (kind, len) = found.ok_or("it does not start with the head of an object")?;
        Ok(OpenedObject { kind, content, len, is_packed: false })
    }

    /// Creates the value for an entry of a pack whose header was read.
    pub(super) fn in_pack(file: BufReader<File>, kind: ObjectKind, len: u64) -> OpenedObject {
        let content = BufReader::with_capacity(4096, Inflater::after(file));
        OpenedObject { kind, content, len, is_packed: true }
    }

    /// Passes the content to `take`, and checks at the end whether it matches the object's name.
    /// Returns the reason if it is damaged.
    pub(super) fn drain(
        mut self,
        id: ObjectId,
        is_exact: bool,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, String> {
        let mut hash = Hasher::new(self.kind, self.len);
        // Bytes beyond the stated length would be read only to be rejected.
        let read = pump(&mut (&mut self.content).take(self.len.saturating_add(1)), &mut |bytes| {
            hash.update(bytes);
            take(bytes);
            Ok(())
        });
        let read = read.map_err(|error| error.to_string())?;
        if hash.finish().ok() != Some(id) || read != self.len {
            return Err("its content does not match its name".to_owned());
        }
        match is_exact
            && !self.is_packed
            && self.content.get_mut().has_more().map_err(|error| error.to_string())?
        {
            true => Err("the file contains extra bytes after its content".to_owned()),
            false => Ok(read),
        }
    }
}

/// Reads the file of an object of any kind, and returns the reason if it is damaged.
pub(super) fn verify_file(path: &Path, id: ObjectId) -> Result<(), String> {
    let file = open_file(path).map_err(|error| error.to_string())?;
    OpenedObject::read_head(file)?.drain(id, true, &mut |_| {}).map(drop)
}

/// Reads the content of an object, its head first.
pub(super) type ObjectContentReader = BufReader<Inflater>;

pub(super) struct Inflater {
    file: BufReader<File>,
    state: Decompress,
    /// Whether the end of the compressed data was reached.
    is_over: bool,
}

impl Inflater {
    pub(super) fn new(file: File) -> Inflater {
        Inflater::after(BufReader::new(file))
    }

    /// Creates a reader of the content that begins at the next byte of a file.
    pub(super) fn after(file: BufReader<File>) -> Inflater {
        Inflater { file, state: Decompress::new(true), is_over: false }
    }

    /// Returns whether other bytes follow the content in the file. The content has to be read to
    /// its end.
    pub(super) fn has_more(&mut self) -> io::Result<bool> {
        Ok(!self.file.fill_buf()?.is_empty())
    }
}

impl Read for Inflater {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !self.is_over && !into.is_empty() {
            let bytes = self.file.fill_buf()?;
            let is_end = bytes.is_empty();
            let flush = if is_end { FlushDecompress::Finish } else { FlushDecompress::None };
            let (taken, made) = (self.state.total_in(), self.state.total_out());
            let status = self.state.decompress(bytes, into, flush)?;
            let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            let (taken, made) = (count(self.state.total_in(), taken), count(self.state.total_out(), made));
            self.file.consume(taken);
            self.is_over = status == Status::StreamEnd;
            if made > 0 {
                return Ok(made);
            }
            if !self.is_over && (is_end || taken == 0) {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file ends within the object"));
            }
        }
        Ok(0)
    }
}
