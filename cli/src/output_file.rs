//! Files that take their name once they are whole.
//!
//! Until then a file has no name at all where the file system allows that, so that nothing is left of it however its process ends.
//! Elsewhere it has a name that nobody uses, which is removed unless the process is killed.

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

/// Beginning of the names of files that are not whole yet.
const PREFIX: &str = ".foldlog-report-";

/// Mode of the files.
const MODE: u32 = 0o600;

/// Checks that what stands at the place of a new file is a file, or a link, whose place the new one takes without following it.
///
/// # Errors
///
/// [`CommandError::File`] if there is one and no `force`, [`CommandError::Usage`] if something else is there, such as a device.
pub(crate) fn check_replaced(path: &Path, force: bool) -> Result<()> {
    match path.symlink_metadata() {
        Ok(there) if !there.is_file() && !there.is_symlink() => {
            let what = format!("{} is no file that could be replaced", escape::path(path));
            Err(CommandError::usage(what, "name another file"))
        }
        Ok(_) if !force => {
            Err(CommandError::File { path: path.to_owned(), source: io::ErrorKind::AlreadyExists.into() })
        }
        _ => Ok(()),
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) enum StagedFile {
    /// Without a name, in this directory.
    Unnamed(File, PathBuf),
    Named(NamedTempFile),
}

impl StagedFile {
    /// Makes an empty file beside its place.
    ///
    /// # Errors
    ///
    /// The system's error if no file can be made in that directory.
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
            // Not every file system has files without a name. What else is wrong with the directory is told by the next call too.
            Err(_) => Ok(StagedFile::Named(named_in(dir)?)),
        }
    }

    pub(crate) fn file(&mut self) -> &mut File {
        match self {
            StagedFile::Unnamed(file, _) => file,
            StagedFile::Named(named) => named.as_file_mut(),
        }
    }

    /// Makes the file durable, and gives it its name. A file of that name is replaced if `force`.
    ///
    /// # Errors
    ///
    /// The system's error if the file cannot be synced, or its name cannot be given; `AlreadyExists` if there is a file of that
    /// name, and no `force`.
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
                // No link replaces a file: a whole one beside it does.
                let beside = named_in(&dir)?.into_temp_path();
                let linked = if failed.kind() == io::ErrorKind::AlreadyExists {
                    std::fs::remove_file(&beside).and_then(|()| link(&file, &beside))
                } else {
                    Err(failed)
                };
                if linked.is_err() {
                    // As where `/proc` is not mounted.
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

/// Gives a file without a name one that nobody has.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let unnamed = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok(linkat(AT_FDCWD, &unnamed, AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}
