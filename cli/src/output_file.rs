//! Files that receive their name once they are complete.
//!
//! Until then a file has no name if the file system supports this, so nothing remains of it however
//! its process ends. On other file systems it has a temporary name and is removed unless the
//! process is killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use foldlog_codec::escape;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use tempfile::NamedTempFile;

use crate::failure::{CommandError, Result};

/// Prefix of the names of incomplete files.
const PREFIX: &str = ".foldlog-report-";

const MODE: u32 = 0o600;

/// Checks that an existing entry at the path of a new file is a file or a link. The new file
/// replaces a link without following it.
///
/// # Errors
///
/// [`Error::File`](foldlog_view::Error::File) if one exists and `force` is not set,
/// [`Error::Usage`](foldlog_view::Error::Usage) if the entry is something else, such as a device.
pub(crate) fn check_replaced(path: &Path, force: bool) -> Result<()> {
    match path.symlink_metadata() {
        Ok(there) if !there.is_file() && !there.is_symlink() => {
            let what = format!("{} is not a regular file, and cannot be replaced", escape::path(path));
            Err(CommandError::usage(what, "give another file"))
        }
        Ok(_) if !force => {
            let source = io::Error::new(io::ErrorKind::AlreadyExists, "it already exists");
            Err(CommandError::file(path, source))
        }
        _ => Ok(()),
    }
}

#[derive(Debug)]
pub(crate) enum StagedFile {
    /// Without a name, in this directory.
    Unnamed(File, PathBuf),
    Named(NamedTempFile),
}

impl StagedFile {
    /// Creates an empty file in the directory of its final path.
    ///
    /// # Errors
    ///
    /// The system's error if no file can be created in that directory.
    pub(crate) fn create_for(path: &Path) -> io::Result<StagedFile> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let unnamed = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(MODE)
            .custom_flags(OFlag::O_TMPFILE.bits())
            .open(dir);
        match unnamed {
            Ok(file) => Ok(StagedFile::Unnamed(file, dir.to_owned())),
            // Not every file system supports unnamed files. The next call reports any other problem
            // of the directory.
            Err(_) => Ok(StagedFile::Named(named_in(dir)?)),
        }
    }

    pub(crate) fn file(&mut self) -> &mut File {
        match self {
            StagedFile::Unnamed(file, _) => file,
            StagedFile::Named(named) => named.as_file_mut(),
        }
    }

    /// Makes the file durable and gives it its name. With `force`, replaces an existing file of
    /// that name.
    ///
    /// # Errors
    ///
    /// The system's error if the file cannot be synced or named; `AlreadyExists` if a file of that
    /// name exists and `force` is not set.
    pub(crate) fn place(self, path: &Path, force: bool) -> io::Result<()> {
        match self {
            StagedFile::Named(named) => {
                named.as_file().sync_all()?;
                let kept = if force { named.persist(path) } else { named.persist_noclobber(path) };
                kept.map(drop).map_err(|error| error.error)
            }
            StagedFile::Unnamed(mut file, dir) => {
                file.sync_all()?;
                let failed = match link(&file, path) {
                    Ok(()) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !force => {
                        return Err(error);
                    }
                    Err(error) => error,
                };
                // A link cannot replace a file, but renaming a complete file next to it can.
                let beside = named_in(&dir)?.into_temp_path();
                let linked = if failed.kind() == io::ErrorKind::AlreadyExists {
                    std::fs::remove_file(&beside).and_then(|()| link(&file, &beside))
                } else {
                    Err(failed)
                };
                if linked.is_err() {
                    // Reached, for example, if `/proc` is not mounted.
                    file.rewind()?;
                    let mut copy = OpenOptions::new()
                        .write(true)
                        .create(true)
                        .truncate(true)
                        .mode(MODE)
                        .open(&beside)?;
                    io::copy(&mut file, &mut copy)?;
                    copy.set_permissions(file.metadata()?.permissions())?;
                    copy.sync_all()?;
                }
                let kept = if force { beside.persist(path) } else { beside.persist_noclobber(path) };
                kept.map_err(|error| error.error)
            }
        }
    }
}

fn named_in(dir: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(PREFIX).tempfile_in(dir)
}

/// Links an unnamed file under an unused name.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let unnamed = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok(linkat(AT_FDCWD, &unnamed, AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}
