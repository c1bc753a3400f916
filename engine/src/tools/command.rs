use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::operation::Core;
use super::tool::ToolError;
use crate::clock;
use crate::error::{Error, Result as EngineResult};
use crate::session::Session;
use crate::session::operations::Begun;
use crate::session::turns::Within;

/// How long what was killed may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// How long what a program printed is waited for once it has ended: what it started may hold its output open.
const PRINTED_WITHIN: Duration = Duration::from_millis(200);

const POLL_MAX: Duration = Duration::from_millis(8);

/// A program that a tool runs. It and all that it starts are one process group, which ends with the call, with its time,
/// and with this process, however that ends. A program that leaves the group ends with the call and its time still; what
/// it starts from then on is beyond that, and so is what becomes of it where this process is killed.
#[must_use]
pub struct ToolCommand {
    command: Command,
    call: Arc<Core>,
}

impl fmt::Debug for ToolCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}

impl ToolCommand {
    pub(super) fn new(program: &OsStr, call: Arc<Core>) -> ToolCommand {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        ToolCommand { command, call }
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// More arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The folder that it runs in.
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Runs it to its end, and answers with its status and what it printed.
    ///
    /// # Errors
    ///
    /// Where it cannot be started; [`ToolError::Cancelled`], or the deadline's error, where the call is to stop before
    /// it ends, and then it was ended.
    pub fn output(mut self) -> Result<Output, ToolError> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        let stdout = child.stdout.take().map(Printed::read);
        let stderr = child.stderr.take().map(Printed::read);
        let status = self.call.programs.wait(&self.call.begun, &mut child)?;
        let printed = |printed: Option<Printed>| printed.map(Printed::take).unwrap_or_default();
        Ok(Output { status, stdout: printed(stdout), stderr: printed(stderr) })
    }

    /// Runs it to its end without reading what it prints.
    ///
    /// # Errors
    ///
    /// As [`output`](ToolCommand::output).
    pub fn status(mut self) -> Result<ExitStatus, ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        self.call.programs.wait(&self.call.begun, &mut child)
    }

    /// Starts it and lets it run beside the tool, until the call ends.
    ///
    /// # Errors
    ///
    /// Where it cannot be started.
    pub fn start(mut self) -> Result<(), ToolError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = self.call.programs.spawn(&self.call.begun, &mut self.command)?;
        self.call.programs.state.lock().beside.push(child);
        Ok(())
    }
}

/// What a program prints, read by a thread of its own so that it never waits for its reader.
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Printed {
    fn read(mut from: impl Read + Send + 'static) -> Printed {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let read = move || {
            let mut piece = [0; 8192];
            while let Ok(len @ 1..) = from.read(&mut piece) {
                into.lock().extend_from_slice(piece.get(..len).unwrap_or_default());
            }
        };
        let thread = thread::Builder::new().name("foldlog-output".to_owned()).spawn(read).ok();
        Printed { bytes, thread }
    }

    fn take(self) -> Vec<u8> {
        let until = clock::after(PRINTED_WITHIN);
        if let Some(thread) = self.thread {
            poll(|| thread.is_finished() || clock::is_past(until));
        }
        std::mem::take(&mut *self.bytes.lock())
    }
}

/// Asks again and again, ever more seldom, until the answer is yes.
fn poll(mut done: impl FnMut() -> bool) {
    let mut pause = Duration::from_micros(100);
    while !done() {
        thread::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// The programs of one call.
#[derive(Default)]
pub(super) struct Programs {
    state: Mutex<State>,
}

/// What is recorded of a call's programs before the first of them starts, so that a process that recovers the session
/// knows what to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    /// The process group, which is the leader's process id.
    group: i32,
    /// When the leader was started, as the system counts it.
    started: u64,
}

const GROUP: &str = "foldlog.programs";

/// What the leader does: nothing, until this process is gone. What a script sends to its whole group is not for it.
const LEADER: &str = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM; read -r line; kill -KILL 0";

impl Group {
    /// The groups that calls of the session's log have started from a record on.
    pub(super) fn recorded(session: &Session, from: u64) -> EngineResult<Vec<Group>> {
        session.observed(GROUP, from)
    }

    fn of(leader: &Child) -> Option<Group> {
        let group = i32::try_from(leader.id()).ok()?;
        Some(Group { group, started: started(group)? })
    }

    /// Waits until nothing of the group runs any more: its leader ends it when the process that started it is gone. What
    /// still runs is ended; what has only the same number is left alone. False, where something does not end.
    pub(super) fn is_gone(self) -> bool {
        let Group { group, started: since } = self;
        if started(group) == Some(since) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let until = clock::after(GONE_WITHIN);
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
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
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

#[derive(Default)]
struct State {
    /// The process that the group is named by. It waits for the end of its input, which comes when this process is gone,
    /// and then ends the group.
    leader: Option<Child>,
    beside: Vec<Child>,
    /// Whether something that was to end did not.
    remains: bool,
    over: bool,
}

impl State {
    /// Ends the group and the programs beside the tool, and waits until they are gone. False, where some are not.
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
        poll(|| !is_any_left(group) || clock::is_past(until));
        self.remains |= is_any_left(group);
        self.remains |= !end_child(&mut leader, until);
        !self.remains
    }
}

/// Why a program is not run to its end.
fn stopped(call: &Within) -> ToolError {
    if call.is_late() {
        return ToolError::Engine(Error::DeadlineExceeded { operation: Some(call.operation()) });
    }
    ToolError::Cancelled
}

impl Programs {
    fn spawn(&self, call: &Begun, command: &mut Command) -> Result<Child, ToolError> {
        let mut state = self.state.lock();
        if state.over || call.within.is_cancelled() {
            drop(state);
            return Err(stopped(&call.within));
        }
        // Without its leader a group would outlive this process. What is left of it ends before there is another.
        if state.leader.as_ref().is_some_and(has_ended) && !state.end() {
            return Err(ToolError::failed("a program that it started does not end"));
        }
        if state.leader.is_none() {
            let mut leader = Command::new("/bin/sh");
            leader.args(["-c", LEADER]).process_group(0);
            let leader = leader.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            let leader = state.leader.insert(leader);
            if let Some(group) = Group::of(leader) {
                call.handle().observe(GROUP, &group)?;
            }
        }
        let group = state.leader.as_ref().map_or(0, Child::id);
        let group = i32::try_from(group).map_err(|_| ToolError::failed("a process id over 31 bits"))?;
        Ok(command.process_group(group).spawn()?)
    }

    fn wait(&self, call: &Begun, child: &mut Child) -> Result<ExitStatus, ToolError> {
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
    pub(super) fn end(&self) -> bool {
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

/// Whether a process of the group still runs. One that has ended and that nobody has asked for yet does not.
fn is_any_left(group: i32) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return killpg(Pid::from_raw(group), None).is_ok();
    };
    processes.flatten().any(|process| {
        let is_number =
            process.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
        let stat = is_number.then(|| std::fs::read_to_string(process.path().join("stat")).ok()).flatten();
        // Behind the name, which is in parentheses and may hold anything: state, parent, group.
        let fields = stat.as_deref().and_then(|stat| stat.rsplit_once(')')).map(|(_, rest)| rest);
        let mut fields = fields.unwrap_or_default().split_whitespace();
        let (state, _, found) = (fields.next(), fields.next(), fields.next());
        found.and_then(|found| found.parse().ok()) == Some(group) && !matches!(state, Some("Z" | "X"))
    })
}
