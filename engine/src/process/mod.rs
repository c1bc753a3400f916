//! Processes: identifies them across restarts of a host, and starts them such that none outlives
//! this process.
//!
//! A process *identity* identifies a process in the log of a host, also for the successor of a dead
//! host. A process id is not sufficient, since the system reuses process ids.
//!
//! A process *group* has a *leader*: a shell that starts before the group's first program and names
//! the group. Its input is a pipe whose other end only this process holds. When this process ends,
//! for any reason, the leader reads the end of that pipe and kills its group.
//!
//! # Invariants
//!
//! 1. A process is signalled only while its boot, namespace and start time match its identity.
//!    Meanwhile a handle of the process is held, if the system has process handles.
//! 2. A program that creates a group or session leaves the group, and is not found by it.

pub(crate) mod cgroup;
pub(crate) mod mark;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgrp};
use rustix::process::{PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::storage::{FileStorage, Storage};

/// Longest time to wait until killed processes have ended.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Longest pause between two checks of [`poll`].
const POLL_MAX: Duration = Duration::from_millis(8);

/// Waits until `done` returns `true`, or `until` has passed. Returns `false` in the latter case.
/// Checks immediately, then after pauses that double from 100 µs up to [`POLL_MAX`].
pub(crate) fn poll(until: Instant, mut done: impl FnMut() -> bool) -> bool {
    let mut pause = Duration::from_micros(100);
    while !done() {
        if clock::is_past(until) {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
    true
}

/// Returns the ids of the processes in `/proc`.
pub(crate) fn processes() -> impl Iterator<Item = i32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    listed.filter_map(|process| process.file_name().to_str()?.parse().ok())
}

/// Number of consecutive searches that must find no process. One search is not enough: a process
/// that is just replacing its program shows no environment.
const QUIET_ROUNDS: u32 = 2;

/// Repeats a search until it finds nothing any more, or `until` has passed. Returns `false` in the
/// latter case.
fn search_until_quiet(until: Instant, search: impl Fn() -> bool) -> bool {
    let mut quiet = 0;
    poll(until, || {
        quiet = if search() { 0 } else { quiet + 1 };
        quiet == QUIET_ROUNDS
    })
}

/// Kills each process for which `is_it` returns `true`, except this one. Returns whether there was
/// any.
pub(crate) fn kill_each(is_it: &dyn Fn(i32) -> bool) -> bool {
    let own = i32::try_from(std::process::id()).ok();
    let mut found = false;
    for process in processes().filter(|process| Some(*process) != own && is_it(*process)) {
        found = true;
        signal_if(process, rustix::process::Signal::KILL, &|| is_it(process));
    }
    found
}

/// Sends a process a signal, unless `is_it` reports that its id now belongs to a new process.
/// Returns whether the signal was sent.
fn signal_if(process: i32, signal: rustix::process::Signal, is_it: &dyn Fn() -> bool) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(process.max(0)) else { return false };
    let handle: Option<OwnedFd> = pidfd_open(pid, PidfdFlags::empty()).ok();
    if !is_it() {
        return false;
    }
    match handle {
        Some(handle) => pidfd_send_signal(handle, signal).is_ok(),
        // The system has no process handles or denies them, so the last check and the signal are
        // not atomic.
        None => kill_process(pid, signal).is_ok(),
    }
}

/// A moment that separates processes by their start: before or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartMoment {
    /// Clock ticks since the machine was started.
    ticks: u64,
    /// Id that a thread was given at that moment. Ids ascend, so they order processes within one
    /// tick.
    id: i32,
}

impl StartMoment {
    /// Returns the present moment; `None` if the system does not report it.
    pub fn now() -> Option<StartMoment> {
        // The start time of a new thread has the unit of other start times. `/proc/uptime` may be
        // that of a container.
        let started = thread::Builder::new().spawn(|| {
            let ticks = field_in("/proc/thread-self/stat", 22)?.parse().ok()?;
            let path = fs::read_link("/proc/thread-self").ok()?;
            let id = path.file_name()?.to_str()?.parse().ok()?;
            Some(StartMoment { ticks, id })
        });
        started.ok()?.join().ok()?
    }

    /// Returns whether a process was started after this moment.
    fn is_before(&self, process: i32) -> bool {
        start_time(process).is_some_and(|ticks| (ticks, process) > (self.ticks, self.id))
    }
}

/// Kills all processes, except this one, whose environment contains this variable with this value.
/// With `since`, kills only those that were started after it.
///
/// Waits up to ten seconds until no such process is left, and returns `false` if one still is. A
/// process is not found if it has cleared its environment, or if this process may not read it.
pub fn end_all_with(variable: &str, value: &str, since: Option<StartMoment>) -> bool {
    let wanted = format!("{variable}={value}");
    let bears = |process: i32| {
        if since.is_some_and(|since| !since.is_before(process)) {
            return false;
        }
        let environment = fs::read(format!("/proc/{process}/environ"));
        environment.is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()))
    };
    search_until_quiet(clock::after(GONE_WITHIN), || kill_each(&bears))
}

/// Returns the boot id of the machine, and the inode of this process's namespace of process ids. A
/// process id is valid only within its boot and namespace.
pub(crate) fn boot_and_namespace() -> (Option<String>, Option<u64>) {
    let boot = FileStorage::new().boot_id().map(|boot| boot.to_string());
    let namespace = fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino());
    (boot, namespace)
}

/// Returns the start time of a process, in clock ticks since the machine was started. `None` if
/// there is no such process.
pub(crate) fn start_time(process: i32) -> Option<u64> {
    field(process, 22)?.parse().ok()
}

/// Returns whether a process has ended. A zombie has.
fn is_over(process: i32) -> bool {
    field(process, 3).is_none_or(|state| matches!(state.as_str(), "Z" | "X"))
}

/// Returns whether an unreaped child has ended. Does not reap the child, which thus retains its
/// process id.
pub(crate) fn has_ended(child: &Child) -> bool {
    let state = i32::try_from(child.id()).ok().and_then(|process| field(process, 3));
    matches!(state.as_deref(), Some("Z" | "X"))
}

/// Returns a field of a process's `stat` in `/proc`, by its number in the manual, which is 3 or
/// more.
fn field(process: i32, number: usize) -> Option<String> {
    field_in(&format!("/proc/{process}/stat"), number)
}

/// Returns a field of a file `stat`, as [`field`] does.
fn field_in(stat: &str, number: usize) -> Option<String> {
    let stat = fs::read_to_string(stat).ok()?;
    // Field 2 is the name, in parentheses, and may contain any character.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// Kills a child by its process id, since it may have left its group, and reaps it. Returns `false`
/// if it still runs at `until`.
pub(crate) fn end_child(child: &mut Child, until: Instant) -> bool {
    let _ = child.kill();
    poll(until, || !matches!(child.try_wait(), Ok(None)))
}

/// Returns whether a process of the group still runs. A zombie does not.
pub(crate) fn is_any_left(group: i32) -> bool {
    if !fs::exists("/proc/self/stat").unwrap_or_default() {
        return killpg(Pid::from_raw(group), None).is_ok();
    }
    let is_member = |process: &i32| field(*process, 5).and_then(|found| found.parse().ok()) == Some(group);
    processes().any(|process| is_member(&process) && !is_over(process))
}

/// Script of the leader. It waits until this process has ended, and then kills the control group,
/// whose `cgroup.kill` is its first argument, and its process group. It ignores the signals that a
/// program may send to its whole group.
const LEADER: &str = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM; read -r line; echo 1 > \"$1\"; kill -KILL 0";

/// Starts the leader of a process group. The leader also kills the control group of `kill_file` if
/// there is one.
///
/// # Errors
///
/// The system starts no process.
pub(crate) fn start_leader(kill_file: Option<&OsStr>) -> io::Result<Child> {
    let mut leader = Command::new("/bin/sh");
    let kill_file = kill_file.unwrap_or(OsStr::new("/dev/null"));
    leader.args([OsStr::new("-c"), OsStr::new(LEADER), OsStr::new("foldlog"), kill_file]);
    leader.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Identifies a process, even after the system has reused its process id.
///
/// A host records the identities of the programs that it starts, so that they can be ended after
/// the host's death.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Start time of the process, in clock ticks of the system since the machine was started: field
    /// 22 of `/proc/PID/stat`.
    pub start_time: u64,
    /// Boot id of the machine at that time.
    pub boot: Option<String>,
    /// Inode of the namespace of process ids in which `pid` is valid.
    pub namespace: Option<u64>,
}

impl ProcessIdentity {
    /// Returns the identity of a running process, or `None` if the system shows no such process.
    pub fn from_pid(pid: u32) -> Option<ProcessIdentity> {
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0)?;
        let (boot, namespace) = boot_and_namespace();
        Some(ProcessIdentity { pid, start_time: start_time(pid)?, boot, namespace })
    }

    /// Returns whether the process still runs. A zombie does not run, and neither does a process of
    /// a different boot or namespace, even if its process id is in use here.
    pub fn is_alive(&self) -> bool {
        self.is_of_here() && start_time(self.pid) == Some(self.start_time) && !is_over(self.pid)
    }

    /// Sends SIGTERM to the process. Returns `false` if it does not run, or may not be signalled.
    pub fn terminate(&self) -> bool {
        self.signal(rustix::process::Signal::TERM)
    }

    /// Ends the process. Returns `true` if the process does not run afterwards, also if it did not
    /// run before.
    ///
    /// Sends SIGTERM, waits up to `grace`, kills the process and the rest of its process group, and
    /// waits up to ten seconds until it has ended. The group is not killed if this process belongs
    /// to it.
    ///
    /// An unreaped process is a zombie afterwards. A zombie does not run.
    pub fn end(&self, grace: Duration) -> bool {
        // Once the process has ended, its group can no longer be looked up.
        let group = self.is_alive().then(|| field(self.pid, 5)?.parse::<i32>().ok()).flatten();
        if self.terminate() {
            poll(clock::after(grace), || !self.is_alive());
        }
        let is_own = |group: i32| Pid::from_raw(group) == getpgrp();
        if self.is_alive()
            && let Some(group) = group.filter(|group| *group > 1 && !is_own(*group))
        {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        self.signal(rustix::process::Signal::KILL);
        poll(clock::after(GONE_WITHIN), || !self.is_alive())
    }

    /// Returns whether the identity is from this boot and in this namespace of process ids.
    fn is_of_here(&self) -> bool {
        let (boot, namespace) = boot_and_namespace();
        self.pid > 0 && self.boot == boot && self.namespace == namespace
    }

    /// Sends the process a signal, unless its process id now belongs to a new process.
    fn signal(&self, signal: rustix::process::Signal) -> bool {
        signal_if(self.pid, signal, &|| self.is_alive())
    }
}

/// A process group whose programs are killed when this is dropped, and when this process ends.
#[derive(Debug)]
pub struct ProcessGroup {
    leader: Child,
    id: i32,
}

impl ProcessGroup {
    /// Starts the leader of a new process group.
    ///
    /// # Errors
    ///
    /// The system starts no process.
    pub fn start() -> io::Result<ProcessGroup> {
        let mut leader = start_leader(None)?;
        match i32::try_from(leader.id()) {
            Ok(id) => Ok(ProcessGroup { leader, id }),
            Err(_) => {
                end_child(&mut leader, clock::after(GONE_WITHIN));
                Err(io::Error::other("the process id of a group's leader is over 31 bits"))
            }
        }
    }

    /// Starts a program in the group.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or the group was killed.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.process_group(self.id).spawn()
    }

    /// Kills the programs of the group, and waits up to ten seconds until they have ended. Returns
    /// `false` if one has not. The caller must still reap the children that it started.
    pub fn kill(&mut self) -> bool {
        if matches!(self.leader.try_wait(), Ok(Some(_))) {
            // The leader was killed, or has killed its group. It was reaped, so the group's number
            // may now belong to a new group.
            return true;
        }
        // Until the leader is reaped, no other process can have its number, so the signal reaches
        // the right group.
        let _ = killpg(Pid::from_raw(self.id), Signal::SIGKILL);
        let until = clock::after(GONE_WITHIN);
        let is_gone = poll(until, || !is_any_left(self.id));
        end_child(&mut self.leader, until) && is_gone
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}
