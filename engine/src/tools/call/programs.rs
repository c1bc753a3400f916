//! The programs of a call: starts them so that all can be found, and terminates them, in the
//! process that started them or in the one that recovers the call.
//!
//! A call's *leader* is a shell that starts before the call's first program and names the process
//! group; it terminates the group when this process ends. A call's *mark* is a string in the
//! environment of its programs.
//!
//! | a program is found by | a program escapes if it | and is terminated by |
//! |---|---|---|
//! | the call's process group | creates a process group or a session | a signal to the group |
//! | the call's control group, if one can be created (`cgroup`) | may write into another control group | `cgroup.kill` |
//! | the mark, in [`VARIABLE`] of its environment | is started with a cleared environment, or clears its own | a signal to each, until none is found |
//!
//! # Invariants
//!
//! 1. Every process with a call's mark is terminated before the call, or a recovery of it, restores
//!    its resources.
//! 2. No process is killed by its number alone, since the system reuses numbers: after a handle of
//!    the process is opened, its environment is read again. A process group that a log names is
//!    signalled only within the boot and the process namespace in which it was recorded, and only
//!    while its leader is the recorded process.
//! 3. The engine changes nothing of this process itself: it adopts no children and leaves its own
//!    groups alone.
//!
//! # Limits
//!
//! A program is not found if it is in no control group of the call, because none can be created or
//! the program left it, **and** does not show the variable, because its environment is cleared or
//! the system does not let this process read it. If the system does not end a program within ten
//! seconds, because it waits for a device, the call fails, and a recovery reports the operation as
//! [stuck](crate::Error::Stuck).

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use foldlog_codec::SequenceNumber;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::answer::ToolError;
use crate::clock;
use crate::error::{Error, Result as EngineResult};
use crate::operation::PROGRAMS;
use crate::process::cgroup::Cgroup;
use crate::process::mark::{ProgramMark, VARIABLE, end_marked};
use crate::process::{
    GONE_WITHIN, boot_and_namespace, end_child, has_ended, is_any_left, poll, start_leader, start_time,
};
use crate::session::Session;
use crate::session::operations::ActiveCall;

/// Describes the programs of a call, as the log records them before the first one starts. From this
/// record, a process that recovers the session learns what to terminate and wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::tools) struct ProgramGroup {
    /// Process group: the leader's process id.
    group: i32,
    /// Start time of the leader, in clock ticks since the machine started.
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

impl ProgramGroup {
    /// Describes the group of a running leader. Returns `None` if the system does not report its
    /// start time.
    fn from_leader(leader: &Child, tracker: &ProgramTracker) -> Option<ProgramGroup> {
        let group = i32::try_from(leader.id()).ok()?;
        let (boot, namespace) = boot_and_namespace();
        let mark = Some(tracker.mark.clone());
        let cgroup = tracker.cgroup.as_ref().and_then(|it| it.directory().to_str()).map(str::to_owned);
        Some(ProgramGroup { group, started: start_time(group)?, boot, namespace, mark, cgroup })
    }

    /// Terminates the programs, and waits up to [`GONE_WITHIN`] until none runs any more. A process
    /// that only has the same number is left alone. Returns `false` if a program does not end.
    pub(in crate::tools) fn end(&self) -> bool {
        let (boot, namespace) = boot_and_namespace();
        if self.boot.is_none() || self.boot != boot {
            // The machine has started again since, so none of the programs runs.
            return true;
        }
        let until = clock::after(GONE_WITHIN);
        // In another namespace the process ids mean other processes; programs that this namespace
        // shows have the mark.
        let is_group_gone = self.namespace != namespace || self.end_group(until);
        let Some(mark) = self.mark.as_ref().filter(|mark| mark.is_valid()) else { return is_group_gone };
        let cgroup =
            self.cgroup.as_deref().and_then(|path| Cgroup::from_recorded_path(path, &mark.group_name()));
        end_marked(mark, cgroup.as_ref(), until) && is_group_gone
    }

    /// Kills the process group, and returns whether it has ended by `until`. Its leader kills it
    /// too once the process that started it has ended.
    fn end_group(&self, until: Instant) -> bool {
        let (group, since) = (self.group, self.started);
        if start_time(group) == Some(since) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        // If another process has the leader's number, the whole group has ended: the system does
        // not reuse the number of a group that has members.
        poll(until, || start_time(group).is_some_and(|now| now != since) || !is_any_left(group))
    }
}

/// Finds a call's programs that have left its process group.
struct ProgramTracker {
    mark: ProgramMark,
    cgroup: Option<Cgroup>,
}

impl ProgramTracker {
    /// Draws the mark of a call, and creates its control group if the system allows that.
    fn new(call: &str) -> ProgramTracker {
        let mark = ProgramMark::draw(call);
        let cgroup = Cgroup::make(&mark.group_name());
        ProgramTracker { mark, cgroup }
    }
}

/// The programs of one call. Terminates them when the call ends or this is dropped.
#[derive(Default)]
pub(in crate::tools) struct Programs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Leader of the process group. It waits for the end of its input, which comes when this
    /// process ends, and then kills the group.
    leader: Option<Child>,
    /// Set once the leader starts.
    tracker: Option<ProgramTracker>,
    /// Programs that run while the tool continues.
    background: Vec<Child>,
    /// Whether a program that was killed did not end in time.
    remains: bool,
    /// Whether the call is over and starts no further program.
    over: bool,
}

impl State {
    /// Terminates the programs, and waits up to [`GONE_WITHIN`] until all have ended. Returns
    /// `false` if one has not.
    fn end(&mut self) -> bool {
        // Nearly every tool starts no program; no clock is read then.
        let Some(mut leader) = self.leader.take() else { return !self.remains };
        let until = clock::after(GONE_WITHIN);
        let Ok(group) = i32::try_from(leader.id()) else { return false };
        // Until the leader is waited for, no other process can have its number, so the signal
        // reaches the right group.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        for mut child in self.background.drain(..) {
            self.remains |= !end_child(&mut child, until);
        }
        if let Some(ProgramTracker { mark, cgroup }) = self.tracker.take() {
            self.remains |= !end_marked(&mark, cgroup.as_ref(), until);
        }
        self.remains |= !poll(until, || !is_any_left(group));
        self.remains |= !end_child(&mut leader, until);
        !self.remains
    }

    /// Starts the leader, and records how the call's programs are found.
    fn lead(&mut self, call: &ActiveCall) -> Result<(), ToolError> {
        let session = call.handle();
        let label = format!("{}:{}", session.id(), call.begin);
        let tracker = self.tracker.insert(ProgramTracker::new(&label));
        let kill_file = tracker.cgroup.as_ref().map(Cgroup::kill_file);
        let leader = self.leader.insert(start_leader(kill_file.as_deref().map(Path::as_os_str))?);
        if let Some(group) = ProgramGroup::from_leader(leader, tracker) {
            let recorded = session.calls().record_fact(PROGRAMS, &group);
            if recorded.is_err() {
                // After a kill, a recovery would not find the programs of this leader.
                self.end();
            }
            recorded?;
        }
        Ok(())
    }
}

impl Programs {
    /// Returns whether the call has started a program.
    #[cfg(feature = "async")]
    pub(in crate::tools) fn were_started(&self) -> bool {
        self.state.lock().tracker.is_some()
    }

    /// Starts a program of the call, with the call's mark, in its process group and its control
    /// group. Starts the leader before the first program.
    ///
    /// # Errors
    ///
    /// - [`ToolError::Cancelled`] if the call is cancelled or over.
    /// - [`ToolError::Engine`] with [`Error::DeadlineExceeded`] if its deadline has passed; with
    ///   the log's error if the programs cannot be recorded.
    /// - [`ToolError::Failed`] if the program or its leader cannot be started, or if a program of a
    ///   leader that has died does not end.
    pub(super) fn spawn(&self, call: &ActiveCall, command: &mut Command) -> Result<Child, ToolError> {
        let mut state = self.state.lock();
        if state.over || call.within.is_cancelled() {
            return Err(stopped(call));
        }
        // Without its leader, the group would outlive this process. The old group ends before there
        // is a new one.
        if state.leader.as_ref().is_some_and(has_ended) && !state.end() {
            return Err(ToolError::failed("a program that the tool started does not end"));
        }
        if state.leader.is_none() {
            state.lead(call)?;
        }
        let group = state.leader.as_ref().map_or(0, Child::id);
        let group = i32::try_from(group)
            .map_err(|_| ToolError::failed("the process id of the programs' group is over 31 bits"))?;
        if let Some(ProgramTracker { mark, .. }) = &state.tracker {
            command.env(VARIABLE, mark.for_environment());
        }
        let child = command.process_group(group).spawn()?;
        if let Some(cgroup) = state.tracker.as_ref().and_then(|tracker| tracker.cgroup.as_ref()) {
            cgroup.join(child.id());
        }
        Ok(child)
    }

    /// Starts a program that runs in the background until the call ends.
    pub(super) fn start_in_background(
        &self,
        call: &ActiveCall,
        command: &mut Command,
    ) -> Result<(), ToolError> {
        let child = self.spawn(call, command)?;
        self.state.lock().background.push(child);
        Ok(())
    }

    /// Waits for a program of the call, and calls `pause` between two checks of its status. If the
    /// call is cancelled or late before the program ends, terminates all programs of the call.
    ///
    /// # Errors
    ///
    /// - [`ToolError::Cancelled`] if the call is cancelled or over.
    /// - [`ToolError::Engine`] with [`Error::DeadlineExceeded`] if its deadline passes.
    /// - [`ToolError::Failed`] if the system does not report the status.
    pub(super) fn wait(
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
        Err(stopped(call))
    }

    /// Terminates all programs, lets no more start, and waits up to [`GONE_WITHIN`] until they have
    /// ended. Returns `false` if one has not.
    pub(in crate::tools) fn end(&self) -> bool {
        let mut state = self.state.lock();
        state.over = true;
        state.end()
    }
}

/// Returns the reason why a call that should stop starts no program and waits for none.
fn stopped(call: &ActiveCall) -> ToolError {
    match call.within.is_late() {
        true => ToolError::Engine(Error::DeadlineExceeded { operation: Some(call.within.operation()) }),
        false => ToolError::Cancelled,
    }
}

/// Returns the program groups that the session's log records from the sequence number `from` on.
pub(in crate::tools) fn recorded_groups(
    session: &Session,
    from: SequenceNumber,
) -> EngineResult<Vec<ProgramGroup>> {
    session.calls().observed_within(PROGRAMS, from, SequenceNumber::MAX)
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
    use uuid::Uuid;

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

    fn group_of(sleeper: &Sleeper) -> ProgramGroup {
        let (boot, namespace) = boot_and_namespace();
        let started = start_time(sleeper.number()).unwrap();
        ProgramGroup { group: sleeper.number(), started, boot, namespace, mark: None, cgroup: None }
    }

    /// Process ids of an earlier boot, or of another container, belong to other processes here.
    #[test]
    fn a_group_of_another_boot_or_namespace_is_not_killed_by_its_number() {
        let mut sleeper = Sleeper::start("");
        let of_here = group_of(&sleeper);
        let elsewhere = [
            ProgramGroup { boot: Some(Uuid::from_u128(3).to_string()), ..of_here.clone() },
            ProgramGroup { boot: None, ..of_here.clone() },
            ProgramGroup { namespace: Some(3), ..of_here.clone() },
            ProgramGroup { started: of_here.started + 1, ..of_here.clone() },
        ];
        for group in elsewhere {
            assert!(group.end(), "{group:?}");
            assert!(sleeper.runs(), "{group:?}");
        }
        assert!(of_here.end());
        assert!(!sleeper.runs());
    }

    #[test]
    fn what_bears_the_mark_is_ended_and_nothing_else() {
        let (own, other) = (ProgramMark::for_tests(255), ProgramMark::for_tests(170));
        let (mut marked, mut within, mut others) = (
            Sleeper::start(own.text()),
            Sleeper::start(&format!("{},{}", own.text(), other.text())),
            Sleeper::start(other.text()),
        );
        let group = ProgramGroup { namespace: Some(3), mark: Some(own), ..group_of(&others) };
        assert!(group.end());
        assert!(!marked.runs() && !within.runs() && others.runs());
    }

    /// Shows that a record of an earlier version, with neither boot nor mark, still reads.
    #[test]
    fn a_group_reads_as_it_was_written_and_as_it_was_written_before() {
        let (started, boot) = (70_000, Some(Uuid::from_u128(9).to_string()));
        let cgroup = Some("/sys/fs/cgroup/foldlog".to_owned());
        let group = ProgramGroup {
            group: 12,
            started,
            boot,
            namespace: Some(4),
            mark: Some(ProgramMark::for_tests(255)),
            cgroup,
        };
        let mut bytes = Vec::new();
        msgpack::append(&group, &mut bytes).unwrap();
        assert_eq!(msgpack::from_slice::<ProgramGroup>(&bytes).unwrap(), group);

        #[derive(Serialize)]
        struct Before {
            group: i32,
            started: u64,
        }
        bytes.clear();
        msgpack::append(&Before { group: 12, started }, &mut bytes).unwrap();
        let before = msgpack::from_slice::<ProgramGroup>(&bytes).unwrap();
        assert_eq!((before.group, before.started, before.mark), (12, started, None));
    }
}
