//! Ways to drive the program.

use rustix::process::Pid;

use crate::project::Project;

/// A running program with a session, which one user drives.
pub(crate) trait Driver: Sized {
    /// Whether the turn of a refused call goes on, so that it ends with `Stop`.
    const REFUSED_TURN_ENDS: bool;

    /// Starts the program with a new session, or resumes the session of a killed program. Returns
    /// once the program takes prompts.
    fn start(project: &Project, api: &str, resumes: bool) -> Self;

    /// Submits a prompt.
    fn prompt(&mut self, text: &str);

    /// Refuses the call that the program asks about. Returns once the program takes prompts or goes
    /// on.
    fn refuse(&mut self);

    /// Interrupts the running call. Returns once the program takes prompts.
    fn interrupt(&mut self);

    /// Kills the program and other processes at once, but not the rest of its hooks and shells.
    fn kill(self, others: &[Pid]);

    /// Ends the session as a user does.
    fn end(self);
}

/// Returns the arguments that choose the session, for every way.
pub(crate) fn session_arguments(resumes: bool) -> [String; 5] {
    let session = if resumes { "--resume" } else { "--session-id" };
    let session = format!("{session}={}", crate::program::SESSION);
    let [model, sonnet, mode, default] = ["--model", "sonnet", "--permission-mode", "default"];
    [session, model.to_owned(), sonnet.to_owned(), mode.to_owned(), default.to_owned()]
}
