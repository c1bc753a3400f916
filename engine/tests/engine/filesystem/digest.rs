//! The content of a directory, read with the standard library alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// By path: kind, permissions, content, and times if requested.
pub(crate) type Digest = BTreeMap<PathBuf, (char, u32, Vec<u8>, i64, i64)>;

pub(crate) fn of(root: &Path) -> Digest {
    let mut digest = Digest::new();
    add(root, Path::new("."), false, &mut digest);
    digest
}

pub(super) fn with_times(root: &Path) -> Digest {
    let mut digest = Digest::new();
    if root.exists() {
        add(root, Path::new("."), true, &mut digest);
    }
    digest
}

fn add(path: &Path, name: &Path, times: bool, digest: &mut Digest) {
    let found = fs::symlink_metadata(path).unwrap();
    let kind = found.file_type();
    let permissions = found.mode() & 0o7777;
    let (kind, permissions, content) = if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != ".git" {
                add(&entry.path(), &name.join(entry.file_name()), times, digest);
            }
        }
        ('d', permissions, Vec::new())
    } else if kind.is_symlink() {
        ('l', 0, OsString::from(fs::read_link(path).unwrap()).into_vec())
    } else if kind.is_fifo() {
        ('p', permissions, Vec::new())
    } else {
        ('f', permissions, fs::read(path).unwrap())
    };
    let (modified, changed) = match times {
        true => (found.mtime() * 1_000_000_000 + found.mtime_nsec(), found.ctime_nsec()),
        false => (0, 0),
    };
    digest.insert(name.to_owned(), (kind, permissions, content, modified, changed));
}
