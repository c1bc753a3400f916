//! The programs of a call: how the engine finds all of them and terminates them, in the process that started
//! them or in the one that recovers the call.
//!
//! A call's *leader* is a shell that starts before the call's first program and after which the process group
//! is named; it terminates the group when this process is gone. A call's *mark* is a string in the
//! environment of its programs.
//!
//! | a program is found by | a program escapes that if it | and is terminated by |
//! |---|---|---|
//! | the call's process group | makes a group or a session of its own | a signal to the group |
//! | the call's control group, if one can be made (`cgroup`) | may write into another one | `cgroup.kill` |
//! | the mark, in [`VARIABLE`] of its environment | is started with a cleared environment, or clears its own | a signal to each, until none is found |
//!
//! # Invariants
//!
//! 1. Every process with a call's mark is terminated before the call, or a recovery of it, restores its
//!    resources.
//! 2. No process is killed by its number alone, since the system uses numbers again: its environment is read
//!    again once a handle of it is held. A process group that a log names is signalled only within the boot
//!    and the process namespace in which it was recorded, and only while its leader is the process that was
//!    recorded.
//! 3. The engine changes nothing of this process itself: it adopts nobody's children and changes no group of
//!    its own.
//!
//! # What is not terminated
//!
//! A program is not found if it is in no control group of the call, because none can be made or the program
//! left it, **and** does not show the variable, because its environment is cleared or the system does not let
//! this process read it. If the system does not end a program within ten seconds, since it waits for a
//! device, the call fails, and a recovery says that the operation is [stuck](crate::Error::Stuck).

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use foldlog_codec::SequenceNumber;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::answer::ToolError;
use crate::clock;
use crate::error::{Error, Result as EngineResult};
use crate::generator::Generator;
use crate::operation::PROGRAMS;
use crate::process::cgroup::Cgroup;
use crate::process::{
    GONE_WITHIN, QUIET_ROUNDS, boot_and_namespace, end_child, has_ended, is_any_left, kill_each, poll,
    start_leader, start_time,
};
use crate::sabotage::{self, Breakage};
use crate::session::Session;
use crate::session::operations::ActiveCall;
use crate::session::schedule::CallScope;

/// Names the variable in the environment of every program of a call. Its value is the marks of the call and
/// of the calls around it, of whichever session and process, separated by commas.
pub(in crate::tools) const VARIABLE: &str = "FOLDLOG_CALL";

/// Marks the programs of one run of a call: the session's id, the sequence number of the begin and a random
/// number in 16 hexadecimal digits, separated by colons. A re-run of the call has another mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct ProgramMark(String);

impl ProgramMark {
    /// Draws a mark for a call.
    fn draw(call: &ActiveCall) -> ProgramMark {
        let drawn = Generator::from_entropy().next_u64();
        ProgramMark(format!("{}:{}:{drawn:016x}", call.handle().id(), call.begin))
    }

    /// Returns whether the mark has the form that [`draw`](ProgramMark::draw) gives it. Anybody may have written a
    /// log, and a mark of another form could match processes of anybody.
    fn is_sound(&self) -> bool {
        let parts: Vec<&str> = self.0.split(':').collect();
        let [session, begin, drawn] = parts[..] else { return false };
        Uuid::try_parse(session).is_ok()
            && begin.parse::<u64>().is_ok()
            && drawn.len() == 16
            && u64::from_str_radix(drawn, 16).is_ok()
    }

    /// Returns the value of [`VARIABLE`] for a program: the mark, after those that this process has itself
    /// because it is a program of another call.
    fn for_environment(&self) -> OsString {
        let Some(mut marks) = std::env::var_os(VARIABLE) else { return OsString::from(&self.0) };
        marks.push(",");
        marks.push(&self.0);
        marks
    }

    /// Returns the name of the call's control group.
    fn group_name(&self) -> String {
        format!("foldlog-{}", self.0.replace(':', "-"))
    }

    /// Returns whether an environment holds the mark. In the form of `/proc`, each variable ends with a NUL.
    fn is_in(&self, environment: &[u8]) -> bool {
        let variables = environment.split(|byte| *byte == 0);
        let own =
            variables.filter_map(|variable| variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
        own.flat_map(|marks| marks.split(|byte| *byte == b',')).any(|mark| mark == self.0.as_bytes())
    }

    /// Returns whether a process has the mark. A process that has ended has none.
    fn is_borne_by(&self, process: i32) -> bool {
        fs::read(format!("/proc/{process}/environ")).is_ok_and(|environment| self.is_in(&environment))
    }

    /// Kills each process that has the mark, except this one. Returns whether there was any.
    fn kill_all(&self) -> bool {
        kill_each(&|process| self.is_borne_by(process))
    }
}

/// Kills the processes that have the mark or are in the control group, and waits until they are gone or
/// `until` has passed. Returns `false` if one remains.
fn end_marked(mark: &ProgramMark, cgroup: Option<&Cgroup>, until: Instant) -> bool {
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

/// Describes the programs of a call, as the log records them before the first of them starts. From this
/// record, a process that recovers the session knows what to terminate and to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::tools) struct Group {
    /// Process group: the leader's process id.
    group: i32,
    /// When the leader was started, in clock ticks of the system since the machine was started.
    started: u64,
    /// Boot id of the machine at that time. `None` in logs of earlier versions.
    #[serde(default)]
    boot: Option<String>,
    /// Inode of the namespace of process ids in which `group` is valid.
    #[serde(default)]
    namespace: Option<u64>,
    /// Mark of the call's programs. `None` in logs of earlier versions.
    #[serde(default)]
    mark: Option<ProgramMark>,
    /// Directory of the control group, if the call has one.
    #[serde(default)]
    cgroup: Option<String>,
}

impl Group {
    /// Returns the groups that the session's log records from the sequence number `from` on.
    ///
    /// # Errors
    ///
    /// Those of reading the log.
    pub(in crate::tools) fn read_recorded(
        session: &Session,
        from: SequenceNumber,
    ) -> EngineResult<Vec<Group>> {
        session.observed_from(PROGRAMS, from)
    }

    /// Describes the group of a leader that runs. Returns `None` if the system does not say when the leader
    /// started.
    fn from_leader(leader: &Child, marked: &ProgramTracker) -> Option<Group> {
        let group = i32::try_from(leader.id()).ok()?;
        let (boot, namespace) = boot_and_namespace();
        let mark = Some(marked.mark.clone());
        let cgroup = marked.cgroup.as_ref().and_then(|it| it.directory().to_str()).map(str::to_owned);
        Some(Group { group, started: start_time(group)?, boot, namespace, mark, cgroup })
    }

    /// Terminates the programs, and waits up to [`GONE_WITHIN`] until none runs any more. A process that only
    /// has the same number is left alone. Returns `false` if a program does not end.
    pub(in crate::tools) fn is_gone(&self) -> bool {
        let (boot, namespace) = boot_and_namespace();
        if self.boot.is_none() || self.boot != boot {
            // The machine was started again since, so none of the programs runs.
            return true;
        }
        let until = clock::after(GONE_WITHIN);
        // In another namespace the process ids mean others; those programs that this one shows have the mark.
        let is_group_gone = self.namespace != namespace || self.is_group_gone(until);
        let Some(mark) = self.mark.as_ref().filter(|mark| mark.is_sound()) else { return is_group_gone };
        let cgroup =
            self.cgroup.as_deref().and_then(|path| Cgroup::from_recorded_path(path, &mark.group_name()));
        end_marked(mark, cgroup.as_ref(), until) && is_group_gone
    }

    /// Kills the process group, and returns whether it is gone by `until`. Its leader kills it too once the
    /// process that started it is gone.
    fn is_group_gone(&self, until: Instant) -> bool {
        let (group, since) = (self.group, self.started);
        if start_time(group) == Some(since) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        // If another process has the leader's number, the whole group is gone: the system keeps the number of
        // a group in use.
        let is_gone = || start_time(group).is_some_and(|now| now != since) || !is_any_left(group);
        poll(|| is_gone() || clock::is_past(until));
        is_gone()
    }
}

/// Holds what a call's programs are found by once they have left its process group.
struct ProgramTracker {
    mark: ProgramMark,
    cgroup: Option<Cgroup>,
}

impl ProgramTracker {
    /// Draws the mark of a call, and makes its control group if the system allows that.
    fn new(call: &ActiveCall) -> ProgramTracker {
        let mark = ProgramMark::draw(call);
        let cgroup = Cgroup::make(&mark.group_name());
        ProgramTracker { mark, cgroup }
    }
}

/// Holds the programs of one call, and terminates them when the call ends or this is dropped.
#[derive(Default)]
pub(in crate::tools) struct Programs {
    state: Mutex<State>,
}

/// Holds the programs that run and what they are found by.
#[derive(Default)]
struct State {
    /// Leader of the process group. It waits for the end of its input, which comes when this process is gone,
    /// and then kills the group.
    leader: Option<Child>,
    /// Mark and control group of the programs, once the leader starts.
    marked: Option<ProgramTracker>,
    /// Programs that run beside the tool.
    beside: Vec<Child>,
    /// Whether a program that was killed did not end in time.
    remains: bool,
    /// Whether the call is over, and starts no program any more.
    over: bool,
}

impl State {
    /// Terminates the programs, wherever they went, and waits up to [`GONE_WITHIN`] until they are gone.
    /// Returns `false` if one is not.
    fn end(&mut self) -> bool {
        // Nearly every tool starts no program, and then no clock is read.
        let Some(mut leader) = self.leader.take() else { return !self.remains };
        let until = clock::after(GONE_WITHIN);
        let Ok(group) = i32::try_from(leader.id()) else { return false };
        // Until the leader is waited for, no other process can have its number, so the signal meets the right
        // group.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        for mut child in self.beside.drain(..) {
            self.remains |= !end_child(&mut child, until);
        }
        if let Some(ProgramTracker { mark, cgroup }) = self.marked.take() {
            self.remains |= !end_marked(&mark, cgroup.as_ref(), until);
        }
        poll(|| !is_any_left(group) || clock::is_past(until));
        self.remains |= is_any_left(group);
        self.remains |= !end_child(&mut leader, until);
        !self.remains
    }

    /// Starts the leader, and records what the call's programs are found by.
    ///
    /// # Errors
    ///
    /// [`ToolError::Failed`] if the leader cannot be started, [`ToolError::Engine`] if the record cannot be
    /// written.
    fn lead(&mut self, call: &ActiveCall) -> Result<(), ToolError> {
        let marked = self.marked.insert(ProgramTracker::new(call));
        let kill_file = marked.cgroup.as_ref().map(Cgroup::kill_file);
        let leader = self.leader.insert(start_leader(kill_file.as_deref().map(Path::as_os_str))?);
        if let Some(group) = Group::from_leader(leader, marked) {
            call.handle().record_fact(PROGRAMS, &group)?;
        }
        Ok(())
    }
}

/// Returns the error for a program that does not run to its end: the call's deadline passed, or the call is
/// cancelled or over.
fn stop_error(call: &CallScope) -> ToolError {
    if call.is_late() {
        return ToolError::Engine(Error::DeadlineExceeded { operation: Some(call.operation()) });
    }
    ToolError::Cancelled
}

impl Programs {
    /// Returns whether the call has started a program.
    #[cfg(feature = "async")]
    pub(in crate::tools) fn were_started(&self) -> bool {
        self.state.lock().marked.is_some()
    }

    /// Starts a program of the call, with the call's mark, in its process group and its control group. Starts
    /// the leader before the first one.
    ///
    /// # Errors
    ///
    /// [`ToolError::Cancelled`] if the call is cancelled or over, or [`ToolError::Engine`] with
    /// [`Error::DeadlineExceeded`] if its deadline has passed. [`ToolError::Failed`] if the program or the
    /// leader cannot be started, or if what a dead leader left behind does not end. [`ToolError::Engine`] if
    /// the programs cannot be recorded.
    pub(in crate::tools) fn spawn(
        &self,
        call: &ActiveCall,
        command: &mut Command,
    ) -> Result<Child, ToolError> {
        let mut state = self.state.lock();
        if state.over || call.within.is_cancelled() {
            drop(state);
            return Err(stop_error(&call.within));
        }
        // Without its leader, the group would outlive this process. The old group ends before there is a new
        // one.
        if state.leader.as_ref().is_some_and(has_ended) && !state.end() {
            return Err(ToolError::failed("a program that the tool started does not end"));
        }
        if state.leader.is_none() {
            state.lead(call)?;
        }
        let group = state.leader.as_ref().map_or(0, Child::id);
        let group = i32::try_from(group)
            .map_err(|_| ToolError::failed("the process id of the programs' group is over 31 bits"))?;
        if let Some(ProgramTracker { mark, .. }) = &state.marked {
            command.env(VARIABLE, mark.for_environment());
        }
        let child = command.process_group(group).spawn()?;
        if let Some(cgroup) = state.marked.as_ref().and_then(|marked| marked.cgroup.as_ref()) {
            cgroup.join(child.id());
        }
        Ok(child)
    }

    /// Starts a program that runs beside the tool until the call ends.
    ///
    /// # Errors
    ///
    /// Those of [`spawn`](Programs::spawn).
    pub(in crate::tools) fn start_beside(
        &self,
        call: &ActiveCall,
        command: &mut Command,
    ) -> Result<(), ToolError> {
        let child = self.spawn(call, command)?;
        self.state.lock().beside.push(child);
        Ok(())
    }

    /// Waits for a program of the call, and calls `pause` between two looks at it. If the call is to stop before the program
    /// ends, terminates all programs of the call.
    ///
    /// # Errors
    ///
    /// [`ToolError::Cancelled`] if the call is cancelled or over, [`ToolError::Engine`] with
    /// [`Error::DeadlineExceeded`] if its deadline passes, [`ToolError::Failed`] if the system cannot tell
    /// the status.
    pub(in crate::tools) fn wait(
        &self,
        call: &ActiveCall,
        child: &mut Child,
        mut pause: impl FnMut(),
    ) -> Result<ExitStatus, ToolError> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if call.within.is_cancelled() {
                break;
            }
            pause();
        }
        self.end();
        if !end_child(child, clock::after(GONE_WITHIN)) {
            self.state.lock().remains = true;
        }
        Err(stop_error(&call.within))
    }

    /// Terminates all programs, lets no more start, and waits up to [`GONE_WITHIN`] until they are gone.
    /// Returns `false` if one is not.
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

    fn mark() -> ProgramMark {
        ProgramMark(format!("{}:7:00000000000000ff", Uuid::from_u128(1)))
    }

    /// Holds a process that runs until it is dropped.
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
        let (boot, namespace) = boot_and_namespace();
        let started = start_time(sleeper.number()).unwrap();
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
            assert!(!ProgramMark(bad.to_owned()).is_sound(), "{bad}");
        }
    }

    /// Process ids of an earlier boot, or of another container, belong to other processes here.
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
        let (own, other) = (mark(), ProgramMark(format!("{}:7:00000000000000aa", Uuid::from_u128(1))));
        let (mut marked, mut within, mut others) = (
            Sleeper::start(&own.0),
            Sleeper::start(&format!("{},{}", own.0, other.0)),
            Sleeper::start(&other.0),
        );
        let group = Group { namespace: Some(3), mark: Some(own), ..group_of(&others) };
        assert!(group.is_gone());
        assert!(!marked.runs() && !within.runs() && others.runs());
    }

    /// Shows that a record of an earlier version, with neither boot nor mark, still reads.
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
