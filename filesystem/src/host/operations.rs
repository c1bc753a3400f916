//! A tool's operations on the files of a real directory.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::HostFilesystem;
use super::manifest::{Stat, display_path, join};
use super::resolve::{Purpose, ResolvedPath, resolve};
use super::step::{A_MOUNT, MOUNT, OPEN_DIRECTORY, OPEN_FILE, list, open_at, stat_at, stat_of};
use crate::error::{Error, IoContext, Result};
use crate::path::{self, DEPTH_MAX};
use crate::pattern::Pattern;
use crate::{FileKind, FileStat, Filesystem, FilesystemEntry};

impl HostFilesystem {
    fn place(&self, path: &str, purpose: Purpose, follow_last: bool) -> Result<ResolvedPath> {
        let parts = path::parts(path)?;
        resolve(self.directory()?, &self.root, path, &parts, purpose, follow_last)
    }

    /// Opens a file for writing; leaves other kinds of entries unchanged.
    fn open_to_write(&self, path: &str, flags: OFlag) -> Result<File> {
        let place = self.place(path, Purpose::Make, true)?;
        let flags = flags
            | OFlag::O_WRONLY
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_NOCTTY
            | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o666);
        let file = openat(&*place.directory, &*place.name, flags, mode).during("write", path)?;
        match stat_of(&file).during("look at", path)?.kind() {
            FileKind::File => Ok(File::from(file)),
            _ => Err(Error::path(path, "it is not a file")),
        }
    }
}

impl Filesystem for HostFilesystem {
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let place = self.place(path, Purpose::Look, true)?;
        let file = openat(&*place.directory, &*place.name, OPEN_FILE, Mode::empty()).during("read", path)?;
        match stat_of(&file).during("look at", path)?.kind() {
            FileKind::File => {}
            FileKind::Directory => return Err(Error::io("read", path, Errno::EISDIR)),
            _ => return Err(Error::path(path, "it is not a file")),
        }
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes).during("read", path)?;
        Ok(bytes)
    }

    fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.open_to_write(path, OFlag::empty())?;
        file.set_len(0).and_then(|()| file.write_all(bytes)).during("write", path)
    }

    fn append(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.open_to_write(path, OFlag::O_APPEND)?;
        file.write_all(bytes).during("append to", path)
    }

    fn delete(&self, path: &str) -> Result<()> {
        let place = self.place(path, Purpose::Change, false)?;
        if place.name == b"." {
            return Err(Error::path(path, "the root cannot be deleted"));
        }
        let stat = stat_at(&place.directory, &place.name).during("delete", path)?;
        if stat.kind() == FileKind::Directory {
            if holds_git(&place.directory, &place.name, 0).map_err(|errno| match errno {
                MOUNT => Error::path(path, A_MOUNT),
                errno => Error::io("look through", path, errno),
            })? {
                return Err(Error::path(path, "it contains a `.git` directory, which is never deleted"));
            }
            return delete_directory(&place.directory, &place.name, 0).during("delete", path);
        }
        unlinkat(&*place.directory, &*place.name, UnlinkatFlags::NoRemoveDir).during("delete", path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let source = self.place(from, Purpose::Change, false)?;
        let found = stat_at(&source.directory, &source.name).during("rename", from)?.kind();
        if path::parts(to)?.starts_with(&path::parts(from)?) && found == FileKind::Directory {
            return match path::parts(to)?.len() == path::parts(from)?.len() {
                true => Ok(()),
                false => Err(Error::path(to, "a directory cannot be moved into itself")),
            };
        }
        let target = self.place(to, Purpose::Make, false)?;
        if source.name == b"." || target.name == b"." {
            return Err(Error::path(".", "the root cannot be renamed"));
        }
        match stat_at(&target.directory, &target.name).map(|stat| stat.kind()) {
            Err(Errno::ENOENT) => {}
            Ok(present) if found != FileKind::Directory && present != FileKind::Directory => {}
            Ok(_) => return Err(Error::io("rename to", to, Errno::EEXIST)),
            Err(errno) => return Err(Error::io("rename to", to, errno)),
        }
        renameat(&*source.directory, &*source.name, &*target.directory, &*target.name).during("rename to", to)
    }

    fn list(&self, directory: &str) -> Result<Vec<FilesystemEntry>> {
        let place = self.place(directory, Purpose::Look, true)?;
        let opened = openat(&*place.directory, &*place.name, OPEN_DIRECTORY, Mode::empty())
            .during("list", directory)?;
        let found = list(&opened).during("list", directory)?.into_iter();
        let entry = |(name, stat): (Vec<u8>, Stat)| {
            Some(FilesystemEntry { name: String::from_utf8(name).ok()?, kind: stat.kind() })
        };
        let mut entries: Vec<FilesystemEntry> = found.filter_map(entry).collect();
        entries.sort();
        Ok(entries)
    }

    fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        let matcher = Pattern::new(pattern)?;
        let root = self.directory()?;
        let mut found = Vec::new();
        let mut left = vec![(Vec::new(), root, b".".to_vec())];
        while let Some((path, around, name)) = left.pop() {
            let opened = match openat(&*around, &*name, OPEN_DIRECTORY, Mode::empty()) {
                // It was removed or replaced since its name was read.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue,
                opened => Arc::new(opened.map_err(|errno| Error::io("list", display_path(&path), errno))?),
            };
            for (name, stat) in list(&opened).during("list", pattern)? {
                let path = join(&path, &name);
                if path.len() > path::PATH_BYTES_MAX {
                    continue;
                }
                if let Ok(text) = str::from_utf8(&path)
                    && matcher.matches(&path)
                {
                    found.push(text.to_owned());
                }
                let depth = path.iter().filter(|byte| **byte == b'/').count();
                if stat.kind() == FileKind::Directory && name != b".git" && depth < DEPTH_MAX {
                    left.push((path, Arc::clone(&opened), name));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    fn stat(&self, path: &str) -> Result<FileStat> {
        let place = self.place(path, Purpose::Look, false)?;
        let stat = stat_at(&place.directory, &place.name).during("look at", path)?;
        let modified_us = stat.modified_ns.div_euclid(1000);
        Ok(FileStat { kind: stat.kind(), len: stat.len, mode: stat.permissions(), modified_us })
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let missing = |error: &Error| match error {
            Error::Io { source, .. } => {
                matches!(source.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
            }
            _ => false,
        };
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(error) if missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn holds_git(around: &OwnedFd, name: &[u8], depth: usize) -> Result<bool, Errno> {
    if depth > DEPTH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let directory = open_at(around, name, OPEN_DIRECTORY, Mode::empty())?;
    for (name, stat) in list(&directory)? {
        if name == b".git" || (stat.kind() == FileKind::Directory && holds_git(&directory, &name, depth + 1)?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn delete_directory(around: &OwnedFd, name: &[u8], depth: usize) -> Result<(), Errno> {
    if depth > DEPTH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let directory = open_at(around, name, OPEN_DIRECTORY, Mode::empty())?;
    for (name, stat) in list(&directory)? {
        match stat.kind() {
            FileKind::Directory => delete_directory(&directory, &name, depth + 1)?,
            _ => unlinkat(&directory, &*name, UnlinkatFlags::NoRemoveDir)?,
        }
    }
    unlinkat(around, name, UnlinkatFlags::RemoveDir)
}
