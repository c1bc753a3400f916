//! `foldlog hook event`: the command that a hook runs.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use foldlog_claude::RUN_VARIABLE;

use crate::agents::{Agent, AgentProgram, HookEvent, HookReply, PromptCommand};
use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result, UNUSABLE};
use crate::output::Output;
use crate::timelines::hook::record;
use crate::timelines::parent_of;

/// Longest input of a hook in bytes.
const INPUT_BYTES_MAX: u64 = 256 << 20;

/// Record one event of an agent, described on standard input.
///
/// The exit code is 0 whatever happens, so that a fault of foldlog never stops the agent. With
/// --strict, it is 2 if a tool was about to run and its files could not be captured: the agent then
/// refuses the tool.
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
        let mut bytes = Vec::new();
        let read = io::stdin().lock().take(INPUT_BYTES_MAX).read_to_end(&mut bytes);
        let agent = self.agent.program();
        let text = String::from_utf8_lossy(&bytes);
        let input = match read
            .map_err(|error| error.to_string())
            .and_then(|_| (agent.read)(&text, agent_process(agent)).map_err(|error| error.to_string()))
        {
            Ok(input) => input,
            Err(error) => {
                output.note(format_args!("foldlog: the input is not an event of a hook: {error}"));
                return Ok(if self.strict { UNUSABLE } else { HOLDS });
            }
        };
        let (name, root) = (input.name.clone(), project_directory(agent, &input.directory));
        let prompt = match &input.event {
            HookEvent::Prompted { text } => text.clone(),
            _ => None,
        };
        let is_call = matches!(input.event, HookEvent::CallBegins(_));
        let command = prompt.as_deref().and_then(PromptCommand::of);
        let reply = record(input, root, self.strict, command).unwrap_or_else(|error| HookReply {
            messages: vec![format!("foldlog could not record {name}: {error}")],
            refused: is_call.then(|| format!("foldlog could not record the call: {error}")),
            ..HookReply::default()
        });
        if let Some(reason) = reply.refused.as_ref().filter(|_| self.strict) {
            output.note(reason);
            return Ok(UNUSABLE);
        }
        let answer = (agent.write)(&reply, &name);
        if !answer.is_empty() {
            // An output that cannot be written must not stop the agent. A buffer would be written
            // again at the end of the process, and its error reported.
            let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
            let _ = stdout.and_then(|mut stdout| writeln!(stdout, "{answer}"));
        }
        Ok(HOLDS)
    }
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
