//! Processes: names them so that they are found again, and starts them so that none outlives this process.
//!
//! A process *identity* says which process is meant, in the log of a host that dies and in the process that comes after
//! it: its number alone does not, since the system uses numbers again.
//!
//! A process *group* has a *leader*: a shell that starts before the group's first program and names the group. Its input
//! is a pipe that this process alone holds the other end of. When this process is gone, however it ended, the leader
//! reads the end of that pipe and kills its group.
//!
//! # Invariants
//!
//! 1. A process is signalled only while boot, namespace and start time are those of its identity; a handle of it is held
//!    meanwhile, where the system has process handles.
//! 2. A program that makes a group of its own, or a session, leaves the group, and is not found by it.

pub(crate) mod cgroup;
mod mark;
pub(crate) mod programs;

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

/// Time that killed processes have to be gone.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Longest pause between two checks of [`poll`].
const POLL_MAX: Duration = Duration::from_millis(8);

/// Waits until `done` returns `true`. Checks first at once, then after pauses that double from 100 µs up to
/// [`POLL_MAX`].
pub(crate) fn poll(mut done: impl FnMut() -> bool) {
    let mut pause = Duration::from_micros(100);
    while !done() {
        thread::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// Returns the ids of the processes that `/proc` shows.
pub(crate) fn processes() -> impl Iterator<Item = i32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    listed.filter_map(|process| process.file_name().to_str()?.parse().ok())
}

/// Number of searches in a row that must find no process. One search is not enough: a process that is just
/// replacing its program shows no environment.
pub(crate) const QUIET_ROUNDS: u32 = 2;

/// Kills each process for which `is_it` holds, except this one. Returns whether there was any.
pub(crate) fn kill_each(is_it: &dyn Fn(i32) -> bool) -> bool {
    let own = i32::try_from(std::process::id()).ok();
    let mut found = false;
    for process in processes().filter(|process| Some(*process) != own && is_it(*process)) {
        found = true;
        signal_if(process, rustix::process::Signal::KILL, &|| is_it(process));
    }
    found
}

/// Sends a process a signal, unless `is_it` says that its number belongs to another process by now. Returns whether it was sent.
fn signal_if(process: i32, signal: rustix::process::Signal, is_it: &dyn Fn() -> bool) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(process.max(0)) else { return false };
    let handle: Option<OwnedFd> = pidfd_open(pid, PidfdFlags::empty()).ok();
    if !is_it() {
        return false;
    }
    match handle {
        Some(handle) => pidfd_send_signal(handle, signal).is_ok(),
        // The system has no process handles or denies them, so the last look and the signal are not atomic.
        None => kill_process(pid, signal).is_ok(),
    }
}

/// Holds a moment by which processes that were started before it are told from those that were started after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartMoment {
    /// Clock ticks since the machine was started.
    ticks: u64,
    /// Id that a thread was given then. Ids ascend, so that of processes of one tick the later ones have higher ones.
    id: i32,
}

impl StartMoment {
    /// Returns the present moment; `None` if the system does not tell.
    pub fn now() -> Option<StartMoment> {
        // A thread that starts now has the time in the system's own unit, where `/proc/uptime` may be that of a container.
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

/// Kills all processes, except this one, whose environment has this variable with this value, and, with `since`, that were
/// started after it. Waits up to ten seconds until none is left; returns `false` if one is. One that has cleared its environment,
/// or whose environment this process may not read, is not found.
pub fn end_all_with(variable: &str, value: &str, since: Option<StartMoment>) -> bool {
    let wanted = format!("{variable}={value}");
    let bears = |process: i32| {
        if since.is_some_and(|since| !since.is_before(process)) {
            return false;
        }
        let environment = fs::read(format!("/proc/{process}/environ"));
        environment.is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()))
    };
    let (until, mut quiet) = (clock::after(GONE_WITHIN), 0);
    poll(|| {
        quiet = if kill_each(&bears) { 0 } else { quiet + 1 };
        quiet == QUIET_ROUNDS || clock::is_past(until)
    });
    quiet == QUIET_ROUNDS
}

/// Returns the boot id of the machine, and the inode of this process's namespace of process ids. In another
/// boot or namespace, a process id belongs to another process.
pub(crate) fn boot_and_namespace() -> (Option<String>, Option<u64>) {
    let boot = FileStorage::new().boot_id().map(|boot| boot.to_string());
    let namespace = fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino());
    (boot, namespace)
}

/// Returns when a process was started, in clock ticks since the machine was started. `None` if there is no
/// such process.
pub(crate) fn start_time(process: i32) -> Option<u64> {
    field(process, 22)?.parse().ok()
}

/// Returns whether a process has ended, waited for or not.
fn is_over(process: i32) -> bool {
    field(process, 3).is_none_or(|state| matches!(state.as_str(), "Z" | "X"))
}

/// Returns whether a child that nobody has waited for has ended. Does not wait for the child, which so keeps
/// its process id.
pub(crate) fn has_ended(child: &Child) -> bool {
    let state = i32::try_from(child.id()).ok().and_then(|process| field(process, 3));
    matches!(state.as_deref(), Some("Z" | "X"))
}

/// Returns a field of a process's `stat` in `/proc`, by its number in the manual, which is 3 or more.
fn field(process: i32, number: usize) -> Option<String> {
    field_in(&format!("/proc/{process}/stat"), number)
}

/// Returns a field of a file `stat`, as [`field`] does.
fn field_in(stat: &str, number: usize) -> Option<String> {
    let stat = fs::read_to_string(stat).ok()?;
    // Field 2 is the name, in parentheses, and may hold any character.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// Kills a child by its process id, since it may have left its group, and waits for it. Returns `false` if it
/// still runs at `until`.
pub(crate) fn end_child(child: &mut Child, until: Instant) -> bool {
    let _ = child.kill();
    let mut is_gone = false;
    poll(|| {
        is_gone = !matches!(child.try_wait(), Ok(None));
        is_gone || clock::is_past(until)
    });
    is_gone
}

/// Returns whether a process of the group still runs. A process that has ended and that nobody has waited for
/// does not.
pub(crate) fn is_any_left(group: i32) -> bool {
    if !fs::exists("/proc/self/stat").unwrap_or_default() {
        return killpg(Pid::from_raw(group), None).is_ok();
    }
    processes().any(|process| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Behind the name, which is in parentheses and may hold any character, come state, parent and group.
        let mut fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default().split_whitespace();
        let (state, _, found) = (fields.next(), fields.next(), fields.next());
        found.and_then(|found| found.parse().ok()) == Some(group) && !matches!(state, Some("Z" | "X"))
    })
}

/// Script of the leader. It waits until this process is gone, and then kills the control group, whose
/// `cgroup.kill` is its first argument, and its own process group. It ignores the signals that a program may
/// send to its whole group.
const LEADER: &str = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM; read -r line; echo 1 > \"$1\"; kill -KILL 0";

/// Starts the leader of a process group, which also kills the control group of `kill_file` if there is one.
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

/// Names a process so that it is found again after its number may have been given to another one: what a host records
/// of a program that it starts, to end it after its own death.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// When the process was started, in clock ticks of the system since the machine was started: field 22 of
    /// `/proc/PID/stat`.
    pub start_time: u64,
    /// Boot id of the machine at that time.
    pub boot: Option<String>,
    /// Inode of the namespace of process ids in which `pid` is valid.
    pub namespace: Option<u64>,
}

impl ProcessIdentity {
    /// Returns the identity of a process that runs, or `None` if the system shows no such process.
    pub fn from_pid(pid: u32) -> Option<ProcessIdentity> {
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0)?;
        let (boot, namespace) = boot_and_namespace();
        Some(ProcessIdentity { pid, start_time: start_time(pid)?, boot, namespace })
    }

    /// Returns whether the process still runs. One that has ended and that nobody has waited for does not. A process of
    /// another boot or namespace does not run here, whatever its number.
    pub fn is_alive(&self) -> bool {
        self.is_of_here() && start_time(self.pid) == Some(self.start_time) && !is_over(self.pid)
    }

    /// Asks the process to end, with SIGTERM. Returns `false` if it does not run, or may not be signalled.
    pub fn terminate(&self) -> bool {
        self.signal(rustix::process::Signal::TERM)
    }

    /// Ends the process: asks it with SIGTERM, waits up to `grace`, kills it and the rest of its process group, and waits
    /// up to ten seconds until it is gone. The group is left alone where it is this process's own. Returns `true` once
    /// the process does not run, also if it did not before.
    ///
    /// A process that nobody waits for is a zombie afterwards, which does not run.
    pub fn end(&self, grace: Duration) -> bool {
        // Once the process is gone, its group can no longer be looked up.
        let group = self.is_alive().then(|| field(self.pid, 5)?.parse::<i32>().ok()).flatten();
        if self.terminate() {
            let until = clock::after(grace);
            poll(|| !self.is_alive() || clock::is_past(until));
        }
        let is_own = |group: i32| Pid::from_raw(group) == getpgrp();
        if self.is_alive()
            && let Some(group) = group.filter(|group| *group > 1 && !is_own(*group))
        {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        self.signal(rustix::process::Signal::KILL);
        let until = clock::after(GONE_WITHIN);
        poll(|| !self.is_alive() || clock::is_past(until));
        !self.is_alive()
    }

    /// Returns whether the identity was taken in this boot and in this namespace of process ids.
    fn is_of_here(&self) -> bool {
        let (boot, namespace) = boot_and_namespace();
        self.pid > 0 && self.boot == boot && self.namespace == namespace
    }

    /// Sends the process a signal, unless its number belongs to another process by now.
    fn signal(&self, signal: rustix::process::Signal) -> bool {
        signal_if(self.pid, signal, &|| self.is_alive())
    }
}

/// Holds a process group whose programs are killed when this is dropped, and when this process is gone.
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

    /// Kills the programs of the group, and waits up to ten seconds until they are gone. Returns `false` if one is not.
    /// The caller still waits for those that it started.
    pub fn kill(&mut self) -> bool {
        if matches!(self.leader.try_wait(), Ok(Some(_))) {
            // Somebody killed the leader, or it has killed its group. It was waited for, so the group's number may be
            // that of another group by now.
            return true;
        }
        // Until the leader is waited for, no other process can have its number, so the signal meets the right group.
        let _ = killpg(Pid::from_raw(self.id), Signal::SIGKILL);
        let until = clock::after(GONE_WITHIN);
        poll(|| !is_any_left(self.id) || clock::is_past(until));
        let is_gone = !is_any_left(self.id);
        end_child(&mut self.leader, until) && is_gone
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}
