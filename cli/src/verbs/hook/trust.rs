//! Whether a program runs the hooks that it has found.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use super::process;
use super::program::program_of;
use crate::agents::{AgentProgram, HookTrust, TRUST_ARGUMENTS, trust_answer, trust_request};

/// Longest time of the program's answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// The hooks that a program has found for a directory.
pub(super) struct FoundHooks(Vec<HookTrust>);

impl FoundHooks {
    /// Asks a program whose hooks have to be trusted for those of a directory; `None` for other
    /// programs.
    ///
    /// # Errors
    ///
    /// The reason if the program does not answer.
    pub(super) fn of(agent: &AgentProgram, directory: &Path) -> Option<Result<FoundHooks, String>> {
        agent.asks_for_trust.then(|| {
            let mut command = Process::new(agent.name);
            command.args(TRUST_ARGUMENTS).current_dir(directory);
            let words = format!("`{} {}`", agent.name, TRUST_ARGUMENTS.join(" "));
            match process::ask(command, &trust_request(directory), ANSWER_DEADLINE, trust_answer) {
                Ok(Some(hooks)) => Ok(FoundHooks(hooks)),
                Ok(None) => Err(format!("{words} does not list them")),
                Err(error) => Err(format!("{words} cannot be run: {error}")),
            }
        })
    }

    /// Returns the problems of foldlog's hooks in a settings file.
    pub(super) fn problems(&self, agent: &AgentProgram, file: &Path) -> Vec<String> {
        let is_own = |hook: &&HookTrust| {
            let is_foldlogs =
                hook.command.as_ref().is_some_and(|command| program_of(command, agent).is_some());
            is_foldlogs && is_same(&hook.source_path, file)
        };
        let own: Vec<&HookTrust> = self.0.iter().filter(is_own).collect();
        let (name, title) = (agent.name, agent.title);
        let mut problems = Vec::new();
        let untrusted = own.iter().filter(|hook| !hook.is_trusted()).count();
        if own.is_empty() {
            problems.push(format!(
                "{title} does not use this file: its hooks are disabled, or the project is not trusted"
            ));
        } else if untrusted > 0 {
            problems.push(format!(
                "not trusted yet: {title} runs none of {untrusted} hooks until you start {name}, and choose `Trust all and continue`"
            ));
        }
        let disabled: Vec<&str> =
            own.iter().filter(|hook| !hook.enabled).map(|hook| hook.event_name.as_str()).collect();
        if !disabled.is_empty() {
            problems.push(format!("disabled in {title}: {}", disabled.join(", ")));
        }
        problems
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| PathBuf::from(path));
    real(one) == real(other)
}
