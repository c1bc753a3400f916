//! Parts of tests that run in a process of their own, and are killed there, one after the other, at each system call by which they
//! change something.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::child;

/// The system calls that change a file system, or say that it is to be durable. Of those that open a file some make it: what is
/// there before and after that is what the calls around it are killed at.
const CALLS: [&str; 27] = [
    "write",
    "pwrite64",
    "writev",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "mkdirat",
    "symlink",
    "symlinkat",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fsetxattr",
    "ftruncate",
    "fallocate",
    "msync",
    "fsync",
    "fdatasync",
    "syncfs",
    "utimensat",
];

/// A system call of a part: its name, the how many-th of this name it is in its thread, and what the tracer printed of it.
#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub nth: usize,
    pub text: String,
}

/// How a part ended that was to be killed at a call.
#[derive(Clone, Copy, Debug)]
pub struct Killed {
    /// Whether it was killed: a part that has threads may get by without the call.
    pub was_killed: bool,
    /// Whether it had said before that what it was to do is done.
    pub was_done: bool,
}

/// By which step a matrix goes: `FOLDLOG_MATRIX=all` has everything tried, where by default every so-manieth is.
pub fn step(by_default: usize) -> usize {
    if std::env::var("FOLDLOG_MATRIX").is_ok_and(|which| which == "all") { 1 } else { by_default }
}

/// Says, in a part, that what it was to do is done, and nobody may lose it.
pub fn tell_done() {
    child::tell("done", "now");
}

/// Runs a part to its end, and lists the calls by which it changes something beneath a directory, in order. Of calls of several threads
/// that are the how many-th of one name in each, the first is listed: [`kill_at`] kills at whichever comes first.
///
/// # Panics
///
/// Where the part fails, or its trace cannot be read.
pub fn calls(part: &str, argument: &str, beneath: &Path) -> Vec<Call> {
    let told = tempfile::NamedTempFile::new().unwrap();
    let trace = format!("trace={}", CALLS.map(|call| format!("?{call}")).join(","));
    let mut started =
        child::start_traced(&["-y", "-o", told.path().to_str().unwrap(), "-e", &trace], part, argument);
    assert!(started.passed(), "{part}");
    let beneath = beneath.to_str().unwrap();
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut listed = BTreeSet::new();
    let traced = std::fs::read_to_string(told.path()).unwrap();
    let calls = traced.lines().filter_map(|line| {
        let (thread, rest) = line.split_once(' ')?;
        let (name, text) = rest.trim_start().split_once('(')?;
        // What another thread interrupted is told of a second time, by another beginning.
        CALLS.contains(&name).then_some(())?;
        // As the tracer counts them.
        let count = counts.entry((thread.to_owned(), name.to_owned())).or_default();
        *count += 1;
        // What the harness itself writes is none of the part's. A sync of mapped bytes names no file.
        let is_of_part = text.contains(beneath) || name == "msync";
        let call = Call { name: name.to_owned(), nth: *count, text: text.to_owned() };
        (is_of_part && listed.insert((call.name.clone(), call.nth))).then_some(call)
    });
    calls.collect()
}

/// Runs a part that is killed where it comes to a call.
///
/// # Panics
///
/// Where no process starts.
pub fn kill_at(call: &Call, part: &str, argument: &str) -> Killed {
    let (trace, inject) =
        (format!("trace={}", call.name), format!("inject={}:signal=KILL:when={}", call.name, call.nth));
    let mut started = child::start_traced(&["-o", "/dev/null", "-e", &trace, "-e", &inject], part, argument);
    let was_done = started.hear("done").is_some();
    Killed { was_killed: !started.passed(), was_done }
}

/// Makes a temporary directory for what is killed but never loses its power: in memory where there is room, since syncing to a disk
/// is what such tests would wait for most.
///
/// # Panics
///
/// Where none can be made.
pub fn quick_directory() -> tempfile::TempDir {
    let memory = "/dev/shm";
    let free = rustix::fs::statvfs(memory).map_or(0, |told| told.f_bavail * told.f_frsize);
    let directory = if free > 2 << 30 { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    directory.or_else(|_| tempfile::tempdir()).unwrap()
}
