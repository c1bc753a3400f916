//! The programs of a call: how they are known, and how all of them are ended, by the process that started them or by the
//! one that recovers the call.
//!
//! | a program is known by | which is left by | and is ended by |
//! |---|---|---|
//! | the call's process group | a program that makes a group or a session of its own | a signal to the group |
//! | the call's control group, where one can be made (`cgroup`) | a program that may write into another one | `cgroup.kill` |
//! | [`VARIABLE`] in its environment | a program that is started with a cleared environment, or clears its own | a signal to each, until none is found |
//!
//! # Invariants
//!
//! 1. What bears a call's mark is ended before the call's resources are restored, and before a recovery restores them.
//! 2. A process is killed by what it is, and never by a number alone: its environment is read again once a handle of it
//!    is held. A process group that a log names is signalled only within the boot and the process namespace in which it
//!    was recorded, and only while its leader is the process that it was.
//! 3. Nothing of this process itself is changed for it: it adopts nobody's children, and is in no other group than before.
//!
//! # What is not ended
//!
//! A program that is in no control group of the call, because none can be made or because it left it, **and** does not show
//! the variable: its environment is cleared, or the system does not let this process read it. One that the system does not
//! end within ten seconds (it waits for a device) makes the call fail, and a recovery say that the operation is
//! [stuck](crate::Error::Stuck).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use foldlog_codec::SequenceNumber;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::answer::ToolError;
use super::cgroup::Cgroup;
use crate::clock;
use crate::error::{Error, Result as EngineResult};
use crate::generator::Generator;
use crate::sabotage::{self, Breakage};
use crate::session::Session;
use crate::session::operations::ActiveCall;
use crate::session::schedule::CallScope;
use crate::storage::{FileStorage, Storage};

/// The variable in the environment of every program of a call: the marks of the call and of those around it, of whichever
/// session and process, separated by commas.
pub(in crate::tools) const VARIABLE: &str = "FOLDLOG_CALL";

/// How long what was killed may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// So often in a row nothing must be found: a process that is just being replaced by another program shows no environment.
const QUIET_ROUNDS: u32 = 2;

const POLL_MAX: Duration = Duration::from_millis(8);

/// Asks again and again, ever more seldom, until the answer is yes.
pub(in crate::tools) fn poll(mut done: impl FnMut() -> bool) {
    let mut pause = Duration::from_micros(100);
    while !done() {
        thread::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// What the programs of one call have in common: session, begin and a number that was drawn, separated by colons. A call
/// that is run again has another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Mark(String);

impl Mark {
    fn draw(call: &ActiveCall) -> Mark {
        let drawn = Generator::from_entropy().next_u64();
        Mark(format!("{}:{}:{drawn:016x}", call.handle().id(), call.begin))
    }

    /// Whether it is of the form that [`draw`](Mark::draw) makes. One of a log that is not would be anything.
    fn is_sound(&self) -> bool {
        let parts: Vec<&str> = self.0.split(':').collect();
        let [session, begin, drawn] = parts[..] else { return false };
        Uuid::try_parse(session).is_ok()
            && begin.parse::<u64>().is_ok()
            && drawn.len() == 16
            && u64::from_str_radix(drawn, 16).is_ok()
    }

    /// What [`VARIABLE`] is to be: within a program of another call this process bears that one's mark, and hands it on.
    fn for_environment(&self) -> OsString {
        let Some(mut marks) = std::env::var_os(VARIABLE) else { return OsString::from(&self.0) };
        marks.push(",");
        marks.push(&self.0);
        marks
    }

    /// The name of the call's control group.
    fn group_name(&self) -> String {
        format!("foldlog-{}", self.0.replace(':', "-"))
    }

    /// Whether an environment holds it, as the system shows one: each variable ends with a NUL.
    fn is_in(&self, environment: &[u8]) -> bool {
        let variables = environment.split(|byte| *byte == 0);
        let own =
            variables.filter_map(|variable| variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
        own.flat_map(|marks| marks.split(|byte| *byte == b',')).any(|mark| mark == self.0.as_bytes())
    }

    /// Whether a process bears it. One that has ended bears none.
    fn is_borne_by(&self, process: i32) -> bool {
        fs::read(format!("/proc/{process}/environ")).is_ok_and(|environment| self.is_in(&environment))
    }

    /// Kills each process that bears it, but for this one. Whether there was any.
    fn kill_all(&self) -> bool {
        let own = i32::try_from(std::process::id()).ok();
        let mut found = false;
        for process in processes().filter(|process| Some(*process) != own) {
            if self.is_borne_by(process) {
                found = true;
                self.kill(process);
            }
        }
        found
    }

    /// Kills one that bears it, unless its number is another's by now.
    fn kill(&self, process: i32) {
        let Some(pid) = rustix::process::Pid::from_raw(process) else { return };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) if self.is_borne_by(process) => {
                let _ = pidfd_send_signal(handle, rustix::process::Signal::KILL);
            }
            Ok(_) | Err(Errno::SRCH) => {}
            // A system that has no such handles, or denies them: nothing better is to be had than to look last.
            Err(_) if self.is_borne_by(process) => {
                let _ = kill_process(pid, rustix::process::Signal::KILL);
            }
            Err(_) => {}
        }
    }
}

/// The numbers of the processes that run here.
fn processes() -> impl Iterator<Item = i32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    listed.filter_map(|process| process.file_name().to_str()?.parse().ok())
}

/// Ends what bears the mark or is in the control group, wherever it went, and waits until it is gone. False, where some
/// remains.
fn end_marked(mark: &Mark, cgroup: Option<&Cgroup>, until: Instant) -> bool {
    if sabotage::is(Breakage::ProgramsLeftBehind) {
        return true;
    }
    let mut quiet = 0;
    poll(|| {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        let found = mark.kill_all() || cgroup.is_some_and(Cgroup::is_populated);
        quiet = if found { 0 } else { quiet + 1 };
        quiet == QUIET_ROUNDS || clock::is_past(until)
    });
    if let Some(cgroup) = cgroup {
        cgroup.remove();
    }
    quiet == QUIET_ROUNDS
}

/// Which boot of the machine this is, and which numbers processes have: those of another are of other processes.
fn here() -> (Option<String>, Option<u64>) {
    let boot = FileStorage::new().boot_id().map(|boot| boot.to_string());
    let namespace = fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino());
    (boot, namespace)
}

/// What is recorded of a call's programs before the first of them starts, so that a process that recovers the session
/// knows what to end and to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::tools) struct Group {
    /// The process group, which is the leader's process id.
    group: i32,
    /// When the leader was started, as the system counts it: in ticks since the machine was.
    started: u64,
    /// The boot in which that was.
    #[serde(default)]
    boot: Option<String>,
    /// The inode of the namespace in which the process id is a process's.
    #[serde(default)]
    namespace: Option<u64>,
    #[serde(default)]
    mark: Option<Mark>,
    /// The folder of the control group.
    #[serde(default)]
    cgroup: Option<String>,
}

const GROUP: &str = "foldlog.programs";

/// What the leader does: nothing, until this process is gone. Then it ends the control group, whose file is its first
/// argument, and its own group. What a script sends to its whole group is not for it.
const LEADER: &str = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM; read -r line; echo 1 > \"$1\"; kill -KILL 0";

impl Group {
    /// The groups that calls of the session's log have started from a record on.
    pub(in crate::tools) fn recorded(session: &Session, from: SequenceNumber) -> EngineResult<Vec<Group>> {
        session.observed(GROUP, from)
    }

    fn of(leader: &Child, marked: &Marked) -> Option<Group> {
        let group = i32::try_from(leader.id()).ok()?;
        let (boot, namespace) = here();
        let mark = Some(marked.mark.clone());
        let cgroup = marked.cgroup.as_ref().and_then(|it| it.folder().to_str()).map(str::to_owned);
        Some(Group { group, started: started(group)?, boot, namespace, mark, cgroup })
    }

    /// Ends what was started, and waits until nothing of it runs any more. What has only the same number is left alone.
    /// False, where something does not end.
    pub(in crate::tools) fn is_gone(&self) -> bool {
        let (boot, namespace) = here();
        if self.boot.is_none() || self.boot != boot {
            // A machine that was started since runs nothing of it.
            return true;
        }
        let until = clock::after(GONE_WITHIN);
        // Elsewhere the numbers are others'; what can be seen from here bears its mark.
        let is_group_gone = self.namespace != namespace || self.is_group_gone(until);
        let Some(mark) = self.mark.as_ref().filter(|mark| mark.is_sound()) else { return is_group_gone };
        let cgroup = self.cgroup.as_deref().and_then(|path| Cgroup::recorded(path, &mark.group_name()));
        end_marked(mark, cgroup.as_ref(), until) && is_group_gone
    }

    /// Ends the process group, whose leader ends it too when the process that started it is gone.
    fn is_group_gone(&self, until: Instant) -> bool {
        let (group, since) = (self.group, self.started);
        if started(group) == Some(since) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        // Another process that bears the leader's number says that all of the group were gone before.
        let is_gone = || started(group).is_some_and(|now| now != since) || !is_any_left(group);
        poll(|| is_gone() || clock::is_past(until));
        is_gone()
    }
}

/// When a process was started, in ticks since the machine was; `None` where there is none.
fn started(process: i32) -> Option<u64> {
    field(process, 22)?.parse().ok()
}

/// Whether a child has ended that nobody has waited for yet. It is not waited for here either, so its number is its own.
fn has_ended(child: &Child) -> bool {
    let state = i32::try_from(child.id()).ok().and_then(|process| field(process, 3));
    matches!(state.as_deref(), Some("Z" | "X"))
}

/// A field of what the system says of a process, by its number, from 3 on.
fn field(process: i32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second is the name, in parentheses, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// Ends a child by its own number, which may have left its group. False, where it does not end.
fn end_child(child: &mut Child, until: Instant) -> bool {
    let _ = child.kill();
    let mut is_gone = false;
    poll(|| {
        is_gone = !matches!(child.try_wait(), Ok(None));
        is_gone || clock::is_past(until)
    });
    is_gone
}

/// Whether a process of the group still runs. One that has ended and that nobody has asked for yet does not.
fn is_any_left(group: i32) -> bool {
    if !fs::exists("/proc/self/stat").unwrap_or_default() {
        return killpg(Pid::from_raw(group), None).is_ok();
    }
    processes().any(|process| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Behind the name, which is in parentheses and may hold anything: state, parent, group.
        let mut fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default().split_whitespace();
        let (state, _, found) = (fields.next(), fields.next(), fields.next());
        found.and_then(|found| found.parse().ok()) == Some(group) && !matches!(state, Some("Z" | "X"))
    })
}

/// By what a call's programs are known once they have left its process group.
struct Marked {
    mark: Mark,
    cgroup: Option<Cgroup>,
}

impl Marked {
    fn of(call: &ActiveCall) -> Marked {
        let mark = Mark::draw(call);
        let cgroup = Cgroup::make(&mark.group_name());
        Marked { mark, cgroup }
    }
}

/// The programs of one call.
#[derive(Default)]
pub(in crate::tools) struct Programs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The process that the group is named by. It waits for the end of its input, which comes when this process is gone,
    /// and then ends the group.
    leader: Option<Child>,
    marked: Option<Marked>,
    beside: Vec<Child>,
    /// Whether something that was to end did not.
    remains: bool,
    over: bool,
}

impl State {
    /// Ends the programs, wherever they went, and waits until they are gone. False, where some are not.
    fn end(&mut self) -> bool {
        // Nearly every tool starts no program, and no clock is read.
        let Some(mut leader) = self.leader.take() else { return !self.remains };
        let until = clock::after(GONE_WITHIN);
        let Ok(group) = i32::try_from(leader.id()) else { return false };
        // The leader is not waited for before: until then nobody else can have its number.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        for mut child in self.beside.drain(..) {
            self.remains |= !end_child(&mut child, until);
        }
        if let Some(Marked { mark, cgroup }) = self.marked.take() {
            self.remains |= !end_marked(&mark, cgroup.as_ref(), until);
        }
        poll(|| !is_any_left(group) || clock::is_past(until));
        self.remains |= is_any_left(group);
        self.remains |= !end_child(&mut leader, until);
        !self.remains
    }

    /// Starts the leader, and records what the call's programs will be known by.
    fn lead(&mut self, call: &ActiveCall) -> Result<(), ToolError> {
        let marked = self.marked.insert(Marked::of(call));
        let mut leader = Command::new("/bin/sh");
        let kill_file = marked.cgroup.as_ref().map_or_else(|| "/dev/null".into(), Cgroup::kill_file);
        leader.args([OsStr::new("-c"), OsStr::new(LEADER), OsStr::new("foldlog"), kill_file.as_os_str()]);
        let leader =
            leader.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let leader = self.leader.insert(leader.spawn()?);
        if let Some(group) = Group::of(leader, marked) {
            call.handle().observe(GROUP, &group)?;
        }
        Ok(())
    }
}

/// Why a program is not run to its end.
fn stopped(call: &CallScope) -> ToolError {
    if call.is_late() {
        return ToolError::Engine(Error::DeadlineExceeded { operation: Some(call.operation()) });
    }
    ToolError::Cancelled
}

impl Programs {
    pub(in crate::tools) fn spawn(
        &self,
        call: &ActiveCall,
        command: &mut Command,
    ) -> Result<Child, ToolError> {
        let mut state = self.state.lock();
        if state.over || call.within.is_cancelled() {
            drop(state);
            return Err(stopped(&call.within));
        }
        // Without its leader a group would outlive this process. What is left of it ends before there is another.
        if state.leader.as_ref().is_some_and(has_ended) && !state.end() {
            return Err(ToolError::failed("a program that the tool started does not end"));
        }
        if state.leader.is_none() {
            state.lead(call)?;
        }
        let group = state.leader.as_ref().map_or(0, Child::id);
        let group = i32::try_from(group)
            .map_err(|_| ToolError::failed("the process id of the programs' group is over 31 bits"))?;
        if let Some(Marked { mark, .. }) = &state.marked {
            command.env(VARIABLE, mark.for_environment());
        }
        let child = command.process_group(group).spawn()?;
        if let Some(cgroup) = state.marked.as_ref().and_then(|marked| marked.cgroup.as_ref()) {
            cgroup.join(child.id());
        }
        Ok(child)
    }

    /// Has a program run beside the tool, until the call ends.
    pub(in crate::tools) fn start_beside(
        &self,
        call: &ActiveCall,
        command: &mut Command,
    ) -> Result<(), ToolError> {
        let child = self.spawn(call, command)?;
        self.state.lock().beside.push(child);
        Ok(())
    }

    pub(in crate::tools) fn wait(
        &self,
        call: &ActiveCall,
        child: &mut Child,
    ) -> Result<ExitStatus, ToolError> {
        let mut status = None;
        poll(|| {
            status = Some(child.try_wait());
            !matches!(status, Some(Ok(None))) || call.within.is_cancelled()
        });
        match status {
            Some(Ok(Some(status))) => Ok(status),
            Some(Err(error)) => Err(error.into()),
            _ => {
                self.end();
                if !end_child(child, clock::after(GONE_WITHIN)) {
                    self.state.lock().remains = true;
                }
                Err(stopped(&call.within))
            }
        }
    }

    /// Ends all of them, and waits until they are gone. False, where some are not.
    pub(in crate::tools) fn end(&self) -> bool {
        let mut state = self.state.lock();
        state.over = true;
        state.end()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.state.get_mut().end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use foldlog_codec::msgpack;

    fn mark() -> Mark {
        Mark(format!("{}:7:00000000000000ff", Uuid::from_u128(1)))
    }

    /// A process that runs until it is dropped.
    struct Sleeper(Child);

    impl Sleeper {
        fn start(variable: &str) -> Sleeper {
            let child = Command::new("sleep").arg("600").env(VARIABLE, variable).process_group(0).spawn();
            Sleeper(child.unwrap())
        }

        fn number(&self) -> i32 {
            i32::try_from(self.0.id()).unwrap()
        }

        fn runs(&mut self) -> bool {
            self.0.try_wait().unwrap().is_none()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn group_of(sleeper: &Sleeper) -> Group {
        let (boot, namespace) = here();
        let started = started(sleeper.number()).unwrap();
        Group { group: sleeper.number(), started, boot, namespace, mark: None, cgroup: None }
    }

    #[test]
    fn a_mark_is_found_among_others_and_not_in_part() {
        let mark = mark();
        assert!(mark.is_sound());
        let environment = |marks: &str| format!("PATH=/bin\0{VARIABLE}={marks}\0HOME=/\0").into_bytes();
        assert!(mark.is_in(&environment(&mark.0)));
        assert!(mark.is_in(&environment(&format!("another,{}", mark.0))));
        assert!(!mark.is_in(&environment(&format!("{}0", mark.0))));
        assert!(!mark.is_in(&environment("")));
        assert!(!mark.is_in(format!("X{VARIABLE}={}\0", mark.0).as_bytes()));
        for bad in ["", "::", "a:1:00000000000000ff", &mark.0[1..], &format!("{}0", mark.0)] {
            assert!(!Mark(bad.to_owned()).is_sound(), "{bad}");
        }
    }

    /// The numbers of a boot that is over, or of another container, are other processes' here.
    #[test]
    fn a_group_of_another_boot_or_namespace_is_not_killed_by_its_number() {
        let mut sleeper = Sleeper::start("");
        let of_here = group_of(&sleeper);
        let elsewhere = [
            Group { boot: Some(Uuid::from_u128(3).to_string()), ..of_here.clone() },
            Group { boot: None, ..of_here.clone() },
            Group { namespace: Some(3), ..of_here.clone() },
            Group { started: of_here.started + 1, ..of_here.clone() },
        ];
        for group in elsewhere {
            assert!(group.is_gone(), "{group:?}");
            assert!(sleeper.runs(), "{group:?}");
        }
        assert!(of_here.is_gone());
        assert!(!sleeper.runs());
    }

    #[test]
    fn what_bears_the_mark_is_ended_and_nothing_else() {
        let (own, other) = (mark(), Mark(format!("{}:7:00000000000000aa", Uuid::from_u128(1))));
        let (mut marked, mut within, mut others) = (
            Sleeper::start(&own.0),
            Sleeper::start(&format!("{},{}", own.0, other.0)),
            Sleeper::start(&other.0),
        );
        let group = Group { namespace: Some(3), mark: Some(own), ..group_of(&others) };
        assert!(group.is_gone());
        assert!(!marked.runs() && !within.runs() && others.runs());
    }

    /// What an earlier version recorded says neither boot nor mark.
    #[test]
    fn a_group_reads_as_it_was_written_and_as_it_was_written_before() {
        let (started, boot) = (70_000, Some(Uuid::from_u128(9).to_string()));
        let cgroup = Some("/sys/fs/cgroup/foldlog".to_owned());
        let group = Group { group: 12, started, boot, namespace: Some(4), mark: Some(mark()), cgroup };
        let mut bytes = Vec::new();
        msgpack::append(&group, &mut bytes).unwrap();
        assert_eq!(msgpack::from_slice::<Group>(&bytes).unwrap(), group);

        #[derive(Serialize)]
        struct Before {
            group: i32,
            started: u64,
        }
        bytes.clear();
        msgpack::append(&Before { group: 12, started }, &mut bytes).unwrap();
        let before = msgpack::from_slice::<Group>(&bytes).unwrap();
        assert_eq!((before.group, before.started, before.mark), (12, started, None));
    }
}
