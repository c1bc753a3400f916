//! Parts of tests that run in their own processes, which are killed at each system call that
//! changes something, one process per call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::child;

/// The system calls that change a file system, or make it durable. Calls that open a file are
/// missing, although some create one: kills at the neighbouring calls show the states before and
/// after.
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

/// A system call of a part: its name, its number among the thread's calls of that name, and the
/// tracer's output.
#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub nth: usize,
    pub text: String,
}

/// The end of a part that was to be killed at a call.
#[derive(Clone, Copy, Debug)]
pub struct Killed {
    /// Whether it was killed: a part with threads may not reach the call.
    pub was_killed: bool,
    /// Whether it had reported before that its work was done.
    pub was_done: bool,
}

/// Returns the step through a matrix: `FOLDLOG_MATRIX=all` tries everything, otherwise every
/// `by_default`-th case is tried.
pub fn step(by_default: usize) -> usize {
    if std::env::var("FOLDLOG_MATRIX").is_ok_and(|which| which == "all") { 1 } else { by_default }
}

/// Reports, in a part, that its work is done and must not be lost.
pub fn tell_done() {
    child::tell("done", "now");
}

/// Runs a part to its end, and lists the calls that change something below a directory, in order.
/// If several threads make a call with the same name and number, the first is listed: [`kill_at`]
/// kills at the first one that occurs.
///
/// # Panics
///
/// If the part fails, or its trace cannot be read.
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
        // An interrupted call is printed a second time, with another prefix.
        CALLS.contains(&name).then_some(())?;
        // Counted like the tracer does.
        let count = counts.entry((thread.to_owned(), name.to_owned())).or_default();
        *count += 1;
        // Writes of the test harness itself are not the part's. A sync of mapped bytes names no
        // file.
        let is_of_part = text.contains(beneath) || name == "msync";
        let call = Call { name: name.to_owned(), nth: *count, text: text.to_owned() };
        (is_of_part && listed.insert((call.name.clone(), call.nth))).then_some(call)
    });
    calls.collect()
}

/// Runs a part and kills it at a call.
pub fn kill_at(call: &Call, part: &str, argument: &str) -> Killed {
    let (trace, inject) =
        (format!("trace={}", call.name), format!("inject={}:signal=KILL:when={}", call.name, call.nth));
    let mut started = child::start_traced(&["-o", "/dev/null", "-e", &trace, "-e", &inject], part, argument);
    let was_done = started.hear("done").is_some();
    Killed { was_killed: !started.passed(), was_done }
}

/// Creates a temporary directory for processes that are killed but never lose power: in memory if
/// there is room, since such tests would mostly wait for syncs to a disk.
pub fn quick_directory() -> tempfile::TempDir {
    let memory = "/dev/shm";
    let free = rustix::fs::statvfs(memory).map_or(0, |told| told.f_bavail * told.f_frsize);
    let directory = if free > 2 << 30 { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    directory.or_else(|_| tempfile::tempdir()).unwrap()
}
