//! `foldlog hook event`: the command that a hook runs.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use foldlog_claude::RUN_VARIABLE;

use crate::agents::{Agent, AgentProgram, HookEvent, HookInput, HookReply, PromptCommand};
use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result, UNUSABLE};
use crate::output::Output;
use crate::timelines::hook::{failure_text, record};
use crate::timelines::parent_of;

/// Longest input of a hook in bytes.
const INPUT_BYTES_MAX: u64 = 256 << 20;

/// Time after which the hook ends without a record. Agents end it after 30 seconds, and report that as
/// a fault.
const DEADLINE: Duration = Duration::from_secs(20);

/// Size of a main thread's stack on Linux.
const STACK_BYTES: usize = 8 << 20;

/// Record one event of an agent, described on standard input.
///
/// The exit code is 0 whatever happens, so that a fault of foldlog never stops the agent. With
/// --strict, it is 2 if a tool was about to run and its files could not be captured: the agent then
/// refuses the tool. An event that cannot be recorded within 20 seconds is reported as not recorded.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Agent that reports the event
    pub agent: Agent,
    /// Refuse tools whose changes could not be undone
    #[arg(long)]
    pub strict: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Internal;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog hook event claude";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        if std::env::var_os(RUN_VARIABLE).is_some() {
            // `foldlog run` records the calls of its program, with their rollbacks.
            return Ok(HOLDS);
        }
        let (agent, until) = (self.agent.program(), Instant::now() + DEADLINE);
        let read = before(until, move || read_input(io::stdin().lock(), agent));
        let (name, reply) = match read.and_then(|input| input) {
            Ok(input) => record_event(input, agent, self.strict, until),
            Err(error) => {
                output.note(format_args!("foldlog: the input is not an event of a hook: {error}"));
                return Ok(if self.strict { UNUSABLE } else { HOLDS });
            }
        };
        if let Some(reason) = reply.refused.as_ref().filter(|_| self.strict) {
            output.note(reason);
            return Ok(UNUSABLE);
        }
        let answer = reply.text(&name, agent);
        if !answer.is_empty() {
            // An output that cannot be written must not stop the agent. A buffer would be written
            // again at the end of the process, and its error reported.
            let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
            let _ = stdout.and_then(|mut stdout| writeln!(stdout, "{answer}"));
        }
        Ok(HOLDS)
    }
}

/// Runs work in another thread, and returns its result, or the reason for which there is none. Work
/// that is not done in time ends with the process, as by a kill.
fn before<T: Send + 'static>(
    until: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::result::Result<T, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(move || sender.send(work())).map_err(|error| error.to_string())?;
    receiver.recv_timeout(until.saturating_duration_since(Instant::now())).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("it took longer than {} s", DEADLINE.as_secs()),
        RecvTimeoutError::Disconnected => "foldlog has a fault".to_owned(),
    })
}

fn read_input(stdin: impl io::Read, agent: &AgentProgram) -> std::result::Result<HookInput, String> {
    let mut bytes = Vec::new();
    stdin.take(INPUT_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&bytes);
    (agent.read)(&text, agent_process(agent)).map_err(|error| error.to_string())
}

/// Records an event. Returns its name, and the reply.
fn record_event(
    input: HookInput,
    agent: &'static AgentProgram,
    is_strict: bool,
    until: Instant,
) -> (String, HookReply) {
    let (name, root) = (input.name.clone(), project_directory(agent, &input.directory));
    let is_call = matches!(input.event, HookEvent::CallBegins(_));
    let recorded = before(until, move || {
        let prompt = match &input.event {
            HookEvent::Prompted { text } => text.clone(),
            _ => None,
        };
        let command = prompt.as_deref().and_then(PromptCommand::of);
        record(input, root.clone(), is_strict, command).map_err(|error| failure_text(&error, &root, is_call))
    });
    let reply = recorded.and_then(|reply| reply).unwrap_or_else(|error| HookReply {
        messages: vec![format!("foldlog could not record {name}: {error}")],
        refused: is_call.then(|| format!("foldlog could not record the call: {error}")),
        ..HookReply::default()
    });
    (name, reply)
}

/// Returns the agent's project directory: a `cd` of the agent changes only the current one.
fn project_directory(agent: &AgentProgram, current: &std::path::Path) -> PathBuf {
    let project = agent.project_variable.and_then(std::env::var_os).map(PathBuf::from);
    project.filter(|project| project.is_absolute()).unwrap_or_else(|| current.to_owned())
}

/// Returns the process of the agent. Versions that do not name it start hooks through a shell.
fn agent_process(agent: &AgentProgram) -> Option<u32> {
    let named = agent.process_variable.and_then(|name| std::env::var(name).ok());
    let named = named.and_then(|text| text.parse().ok());
    named.or_else(|| {
        let parent = parent_of(std::process::id())?;
        let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
        let is_shell = ["sh", "bash", "dash", "zsh"].contains(&name.trim_end());
        if is_shell { parent_of(parent) } else { Some(parent) }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn work_that_is_not_done_in_time_is_given_up() {
        let (stdin, mut agent) = UnixStream::pair().unwrap();
        // The input is whole, and its end never comes.
        agent.write_all(b"{}\n").unwrap();
        let until = Instant::now() + Duration::from_millis(50);
        let read = before(until, move || read_input(stdin, Agent::Claude.program()));
        assert_eq!(read.map(drop).unwrap_err(), "it took longer than 20 s");
        let late = Instant::now() + Duration::from_secs(20);
        assert_eq!(before(late, || 7), Ok(7));
        let fault = before::<()>(late, || panic!("a fault"));
        assert_eq!(fault.unwrap_err(), "foldlog has a fault", "it is not waited for");
    }
}
