//! Resolves a path to the directory of its last part, without ever leaving the workspace.
//!
//! Each part is opened through the previous one, and the system never follows a link: links are
//! read, and their targets are walked in the same way. `..` in a link goes back along the
//! directories of the walk, and never above the root.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};

use super::manifest::FileKind;
use super::step::{read_link, stat_at};
use crate::error::{Error, Result};

/// As many links as Linux follows in one path.
const LINKS_MAX: usize = 40;

const PASS_THROUGH: OFlag =
    OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Read access; `.git` directories are allowed.
    Look,
    /// Write access; nothing in a `.git` directory is allowed.
    Change,
    /// Write access that creates missing directories on the way; nothing in a `.git` directory is
    /// allowed.
    Make,
}

/// The directory of a path's last part, and that part. It is `.` for a directory that was reached
/// by a link, and for the root.
pub(super) struct ResolvedPath {
    pub(super) directory: Arc<OwnedFd>,
    pub(super) name: Vec<u8>,
}

/// Walks a path. The caller decides whether a link at its end is followed. A missing entry at the
/// end is not an error.
pub(super) fn resolve(
    root: Arc<OwnedFd>,
    root_path: &Path,
    path: &str,
    parts: &[&str],
    purpose: Purpose,
    follow_last: bool,
) -> Result<ResolvedPath> {
    let failed = |errno: Errno| Error::io("open", path, errno);
    let leaves = || Error::path(path, "a link leads out of the workspace");
    let mut opened = vec![root];
    let mut todo: Vec<Vec<u8>> = parts.iter().rev().map(|part| part.as_bytes().to_vec()).collect();
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let directory = opened.last().map(Arc::clone).ok_or_else(leaves)?;
        match name.as_slice() {
            b"" | b"." => continue,
            b".." => {
                opened.pop();
                if opened.is_empty() {
                    return Err(leaves());
                }
                continue;
            }
            b".git" if purpose != Purpose::Look => {
                return Err(Error::path(path, "a `.git` directory is never changed"));
            }
            _ => {}
        }
        let is_last = todo.is_empty();
        if is_last && !follow_last {
            return Ok(ResolvedPath { directory, name });
        }
        let kind = match stat_at(&directory, &name) {
            Ok(stat) => stat.kind(),
            Err(Errno::ENOENT) if is_last => return Ok(ResolvedPath { directory, name }),
            Err(Errno::ENOENT) if purpose == Purpose::Make => {
                let all = Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO;
                match mkdirat(&*directory, &*name, all) {
                    Ok(()) | Err(Errno::EEXIST) => FileKind::Directory,
                    Err(errno) => return Err(Error::io("create a directory for", path, errno)),
                }
            }
            Err(errno) => return Err(failed(errno)),
        };
        match kind {
            FileKind::Link => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::path(path, "too many levels of symbolic links"));
                }
                let target = read_link(&directory, &name).map_err(failed)?;
                let mut target = target.as_slice();
                if target.starts_with(b"/") {
                    let below = target.strip_prefix(root_path.as_os_str().as_bytes());
                    target = below.filter(|below| matches!(below, [] | [b'/', ..])).ok_or_else(leaves)?;
                    opened.truncate(1);
                }
                todo.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
            }
            _ if is_last => return Ok(ResolvedPath { directory, name }),
            // For any other kind, the system reports that it is not a directory.
            _ => {
                let next = openat(&*directory, &*name, PASS_THROUGH, Mode::empty()).map_err(failed)?;
                opened.push(Arc::new(next));
            }
        }
    }
    let directory = opened.pop().ok_or_else(leaves)?;
    Ok(ResolvedPath { directory, name: b".".to_vec() })
}
