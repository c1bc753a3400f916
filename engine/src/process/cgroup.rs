//! A control group (cgroup v2) for the programs of one call, if the system lets this process create
//! one below its current group.
//!
//! A process in a control group stays there, and so does each process that it starts. Changing its
//! process group, its session or its environment does not remove it; only write access to another
//! control group does. The engine does not depend on control groups: without one, it finds the
//! programs of a call by their environment.
//!
//! A program joins the control group after it was started. Processes that it starts earlier are not
//! in the group, and are found by their environment alone.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::statfs;

/// File system type by which the kernel identifies control groups.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// Maximum depth of subgroups that are removed below the group of a call.
const DEPTH_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// Creates a group of this name below the group of this process. Returns `None` if the system
    /// does not allow that, or if a group's members cannot be killed together.
    pub(crate) fn make(name: &str) -> Option<Cgroup> {
        let directory = own_group()?.join(name);
        fs::create_dir(&directory).ok()?;
        let made = Cgroup { directory };
        if !made.kill_file().is_file() {
            made.remove();
            return None;
        }
        Some(made)
    }

    /// Returns the group at a path that a log recorded. The log may be hostile, so this returns
    /// `None` unless the path is absolute and plain, ends with `name`, and is a control group.
    pub(crate) fn from_recorded_path(path: &str, name: &str) -> Option<Cgroup> {
        let directory = PathBuf::from(path);
        let is_plain = directory.is_absolute()
            && directory.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let is_named = directory.file_name().is_some_and(|last| last.as_bytes() == name.as_bytes());
        let is_group = || statfs(&directory).is_ok_and(|found| found.f_type as u64 == CGROUP2_MAGIC);
        (is_plain && is_named && is_group()).then_some(Cgroup { directory })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the file that kills all members when `1` is written to it.
    pub(crate) fn kill_file(&self) -> PathBuf {
        self.directory.join("cgroup.kill")
    }

    /// Puts a process into the group. Errors are ignored, such as a refusal by the system or a
    /// process that has ended.
    pub(crate) fn join(&self, process: u32) {
        let _ = fs::write(self.directory.join("cgroup.procs"), process.to_string());
    }

    /// Kills all members of the group, unless this process is one of them. A process that a call
    /// started may be the one that recovers the call, and must not kill itself.
    pub(crate) fn kill(&self) {
        if !own_group().is_some_and(|own| own.starts_with(&self.directory)) {
            let _ = fs::write(self.kill_file(), "1");
        }
    }

    /// Returns whether a process runs in the group. A zombie does not count. Returns `false` if
    /// this process is a member.
    pub(crate) fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.directory.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
            && !own_group().is_some_and(|own| own.starts_with(&self.directory))
    }

    /// Removes the group, and the subgroups that a program made. A group in which a process runs
    /// remains.
    pub(crate) fn remove(&self) {
        remove(&self.directory, 0);
    }
}

/// Removes the group in `directory`, which is `depth` groups below that of the call. Subgroups are
/// removed first.
fn remove(directory: &Path, depth: usize) {
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if depth < DEPTH_MAX {
            remove(&entry.path(), depth + 1);
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Returns the directory of this process's group.
fn own_group() -> Option<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let own = fs::read("/proc/self/cgroup").ok()?;
    found_in(&mounts, &own)
}

/// Returns the directory of a process's group, from the contents of its `mountinfo` and its
/// `cgroup` in `/proc`.
fn found_in(mounts: &[u8], groups: &[u8]) -> Option<PathBuf> {
    let lines = |bytes: &'_ [u8]| bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let own = lines(groups).into_iter().find_map(|line| line.strip_prefix(b"0::").map(<[u8]>::to_vec))?;
    let own = PathBuf::from(std::ffi::OsStr::from_bytes(&own));
    lines(mounts).into_iter().find_map(|line| {
        // The fields: mount, parent, device, root, mount point, options, any more, `-`, type.
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let kind = words.iter().skip_while(|word| **word != b"-").nth(1)?;
        let (root, mounted) = (unescape_path(words.get(3)?), unescape_path(words.get(4)?));
        if *kind != b"cgroup2" {
            return None;
        }
        Some(mounted.join(own.strip_prefix(root).ok()?))
    })
}

/// Decodes a path of `mountinfo`, in which `\` and three octal digits encode a space and the like.
fn unescape_path(listed: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(listed.len());
    let mut rest = listed;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(digits.unwrap_or(*first));
        rest = if digits.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_where_it_is_mounted() {
        let mounts = b"25 1 0:22 / /proc rw - proc proc rw\n41 31 0:38 / /sys/fs/cgroup\\040two rw,relatime - cgroup2 cgroup2 rw\n";
        let own = b"9:name=systemd:/old\n0::/user.slice/one\n";
        assert_eq!(found_in(mounts, own), Some(PathBuf::from("/sys/fs/cgroup two/user.slice/one")));
        // If only a part is mounted, only groups below that part are found.
        let part = b"41 31 0:38 /user.slice /groups rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(found_in(part, own), Some(PathBuf::from("/groups/one")));
        assert_eq!(found_in(part, b"0::/system.slice/two\n"), None);
        assert_eq!(found_in(b"", own), None);
        assert_eq!(found_in(mounts, b"9:name=systemd:/old\n"), None);
    }

    #[test]
    fn a_directory_that_a_log_names_is_no_group_unless_the_system_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("foldlog-call");
        fs::create_dir(&path).unwrap();
        let path = path.to_str().unwrap();
        assert!(Cgroup::from_recorded_path(path, "foldlog-call").is_none());
        assert!(Cgroup::from_recorded_path("/sys/fs/cgroup/../foldlog-call", "foldlog-call").is_none());
        assert!(Cgroup::from_recorded_path("foldlog-call", "foldlog-call").is_none());
    }
}
