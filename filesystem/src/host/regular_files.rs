//! Opens and reads regular files by a path that somebody else determines. A pipe there would block
//! the caller, and a device might never end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

use super::object_files::wrong_type_error;

/// Opens a regular file for reading. Links are followed.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`], which names the kind of the entry, if it is not a regular file.
pub fn open_regular_file(path: &Path) -> io::Result<File> {
    let check = |found: fs::Metadata| match found.is_file() {
        true => Ok(()),
        false => Err(wrong_type_error(found.file_type(), "regular file")),
    };
    // Even the opening of a device can have effects.
    check(fs::metadata(path)?)?;
    // The entry may be replaced by a pipe now. Reads of some files in `/proc` block without the flag.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    check(file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `bytes_max` bytes. Links are followed.
///
/// # Errors
///
/// The errors of [`open_regular_file`]; [`ErrorKind::FileTooLarge`].
pub fn read_regular_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_at_most(open_regular_file(path)?, bytes_max)
}

/// Reads a file up to its end.
///
/// # Errors
///
/// [`ErrorKind::FileTooLarge`] if it has more than `bytes_max` bytes.
pub(super) fn read_at_most(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match u64::try_from(read).is_ok_and(|read| read <= bytes_max) {
        true => Ok(bytes),
        false => Err(ErrorKind::FileTooLarge.into()),
    }
}
