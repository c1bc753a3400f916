//! Opens, lists and examines the entry with one name in an open directory: never through a link,
//! never out of that directory, and never into a mount.
//!
//! One step is one `openat2` with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_XDEV`. A
//! system before Linux 5.6 returns `ENOSYS` for it, and one whose sandbox does not know it `ENOSYS`
//! or `EPERM`. There the step is an `openat` with `O_NOFOLLOW`, and the mount of the opened entry
//! is compared with the directory's. Mounts are distinguished by their ids and not by their
//! devices: a bind mount within one file system has the same device. Before Linux 5.8 there are no
//! ids, and such a mount is not detected.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags as NixAtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::{AtFlags, OFlags, ResolveFlags, StatxFlags, openat2, statx};

use super::manifest::Stat;

/// The system returns `EAGAIN` if something was renamed at the wrong moment.
const TRIES: usize = 64;

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// The error of a step onto a mount.
pub(super) const MOUNT: Errno = Errno::EXDEV;

/// The reason in the report if a mount is in the way.
pub(super) const A_MOUNT: &str = "a file system is mounted there, which is never entered";

pub(super) const OPEN_DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Creates a file, and fails if there is an entry.
pub(super) const NEW_FILE: OFlag = OFlag::O_WRONLY
    .union(OFlag::O_CREAT)
    .union(OFlag::O_EXCL)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Opens a file to read it; a pipe does not block.
pub(super) const OPEN_FILE: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOCTTY)
    .union(OFlag::O_CLOEXEC);

/// Opens the entry with a name; returns [`MOUNT`] if it is a mount.
pub(super) fn open_at<F: AsFd>(
    directory: F,
    name: &[u8],
    flags: OFlag,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    if name.contains(&b'/') {
        return Err(Errno::EINVAL);
    }
    let directory = directory.as_fd();
    let own_flags = OFlags::from_bits_retain(flags.bits().cast_unsigned());
    let own_mode = rustix::fs::Mode::from_raw_mode(mode.bits());
    for _ in 0..TRIES {
        match openat2(directory, name, own_flags, own_mode, BENEATH) {
            Ok(opened) => return Ok(opened),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                return open_and_compare(directory, name, flags, mode);
            }
            Err(errno) => return Err(nix_errno(errno)),
        }
    }
    Err(Errno::EAGAIN)
}

/// Opens the parent directory of a path beneath `root`, step by step, and returns the path's last
/// name.
pub(super) fn open_around(root: &OwnedFd, path: &[u8]) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let mut directory = open_at(root, b".", OPEN_DIRECTORY, Mode::empty())?;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            return Ok((directory, name.to_vec()));
        }
        directory = open_at(&directory, name, OPEN_DIRECTORY, Mode::empty())?;
    }
    Err(Errno::EINVAL)
}

/// Opens the entry with a name on a system without `openat2`, and compares its mount with the
/// directory's.
fn open_and_compare<F: AsFd>(directory: F, name: &[u8], flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
    if name == b".." {
        return Err(MOUNT);
    }
    let around = mount(&directory)?;
    let opened = openat(directory, name, flags | OFlag::O_NOFOLLOW, mode)?;
    if mount(&opened)? == around { Ok(opened) } else { Err(MOUNT) }
}

/// Returns the mount of an open entry: its id or, if the system provides none, its device.
pub(super) fn mount(opened: impl AsFd) -> Result<(u64, u32, u32), Errno> {
    let found = statx(opened, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    let found = found.map_err(nix_errno)?;
    let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    Ok((if told { found.stx_mnt_id } else { 0 }, found.stx_dev_major, found.stx_dev_minor))
}

pub(super) fn stat_at(directory: &OwnedFd, name: &[u8]) -> Result<Stat, Errno> {
    fstatat(directory, name, NixAtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| Stat::from(&stat))
}

pub(super) fn stat_of(opened: impl AsFd) -> Result<Stat, Errno> {
    fstat(opened).map(|stat| Stat::from(&stat))
}

/// Opens a file for reading, unless it is a mount. If it has become a pipe, this does not block.
pub(super) fn open_file(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    open_at(directory, name, OPEN_FILE, Mode::empty())
}

pub(super) fn read_link(directory: &OwnedFd, name: &[u8]) -> Result<Vec<u8>, Errno> {
    readlinkat(directory, name).map(OsString::into_vec)
}

/// Converts an error of a system call through `rustix`.
pub(super) fn nix_errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

pub(super) fn describe_errno(errno: Errno) -> String {
    errno.desc().to_owned()
}

pub(super) fn bits(permissions: u32) -> Mode {
    Mode::from_bits_truncate(permissions)
}

/// Sets the permissions of the entry with a name, unless it is a link or a mount.
pub(super) fn set_permissions(directory: impl AsFd, name: &[u8], permissions: u32) -> Result<(), Errno> {
    open_at(&directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    fchmodat(directory, name, bits(permissions), FchmodatFlags::NoFollowSymlink)
}

/// Tries to remove a file or link that nothing refers to.
pub(super) fn discard(directory: impl AsFd, name: impl AsRef<[u8]>) {
    let _ = unlinkat(directory, name.as_ref(), UnlinkatFlags::NoRemoveDir);
}

/// Returns the entries of a directory, except `.` and `..`.
pub(super) fn list(directory: &OwnedFd) -> Result<Vec<(Vec<u8>, Stat)>, Errno> {
    let mut listed = Dir::from_fd(openat(directory, c".", OPEN_DIRECTORY, Mode::empty())?)?;
    let mut entries = Vec::new();
    for entry in listed.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match stat_at(directory, name) {
            Ok(stat) => entries.push((name.to_vec(), stat)),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::fcntl::open;

    use super::*;

    /// Both implementations give the same results.
    #[test]
    fn a_step_leads_beneath_its_directory_with_openat2_and_without() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("root/inner")).unwrap();
        fs::create_dir(place.path().join("outside")).unwrap();
        symlink("../outside", place.path().join("root/link")).unwrap();
        let root = open(&place.path().join("root"), OPEN_DIRECTORY, Mode::empty()).unwrap();
        for step in [open_at::<&OwnedFd>, open_and_compare::<&OwnedFd>] {
            let step = |name: &[u8]| step(&root, name, OPEN_DIRECTORY, Mode::empty()).map(drop);
            assert_eq!(step(b"inner"), Ok(()));
            assert_eq!(step(b".."), Err(MOUNT));
            assert!(matches!(step(b"link"), Err(Errno::ELOOP | Errno::ENOTDIR)));
            assert_eq!(step(b"missing"), Err(Errno::ENOENT));
        }
        assert_eq!(open_at(&root, b"inner/.", OPEN_DIRECTORY, Mode::empty()).map(drop), Err(Errno::EINVAL));
        // The system's own files are another mount on any system that has them.
        let top = open(c"/", OPEN_DIRECTORY, Mode::empty()).unwrap();
        for step in [open_at::<&OwnedFd>, open_and_compare::<&OwnedFd>] {
            assert_eq!(step(&top, b"proc", OPEN_DIRECTORY, Mode::empty()).map(drop), Err(MOUNT));
        }
    }
}
