//! The interactive program in a terminal of `tmux`.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use rustix::process::Pid;

use crate::driver::{Driver, session_arguments};
use crate::program::Program;
use crate::project::Project;
use crate::tmux::Tmux;
use crate::wait::wait_until;

/// Time between keys. The program takes keys that follow at once for a pasted text.
const KEY: Duration = Duration::from_millis(300);

/// A terminal with the program.
pub(crate) struct Terminal {
    pub(crate) tmux: Tmux,
    /// The last prompt.
    prompt: String,
}

/// Returns the part of a screen above the input box.
fn above_input(screen: &str) -> String {
    screen.rfind('❯').map_or_else(String::new, |input| screen[..input].to_owned())
}

impl Driver for Terminal {
    const REFUSED_TURN_ENDS: bool = false;

    fn start(project: &Project, api: &str, resumes: bool) -> Terminal {
        let mut command = Command::new("tmux");
        command.env_clear().envs(project.environment(api));
        let arguments = session_arguments(resumes).map(OsString::from);
        let words = Program::named().unwrap().words().into_iter().chain(arguments);
        let tmux = Tmux::start(command, project.path("tmux"), "50", &project.root(), words);
        tmux.wait_for("an input box", |screen| screen.contains('❯'));
        Terminal { tmux, prompt: String::new() }
    }

    fn prompt(&mut self, text: &str) {
        // A prompt that was interrupted early or blocked returns to the input box.
        let screen = self.tmux.screen();
        let input = screen.lines().rfind(|line| line.contains('❯')).unwrap_or_default();
        if !self.prompt.is_empty() && input.contains(&self.prompt) {
            self.tmux.press("C-u");
            std::thread::sleep(KEY);
        }
        self.tmux.type_prompt(text);
        std::thread::sleep(KEY);
        let before = above_input(&self.tmux.screen());
        // An ended program may leave the screen as it was.
        self.tmux.submit(|screen| above_input(screen) != before || self.tmux.has_ended());
        text.clone_into(&mut self.prompt);
    }

    fn refuse(&mut self) {
        self.tmux.wait_for("a question", |screen| screen.contains("Do you want to proceed?"));
        self.tmux.press("Escape");
        self.tmux.wait_for("the refusal", |screen| !screen.contains("Do you want to proceed?"));
    }

    fn interrupt(&mut self) {
        self.tmux.press("Escape");
        let prompt = self.prompt.clone();
        self.tmux.wait_for("the interruption", |screen| {
            screen
                .rfind("Interrupted")
                .is_some_and(|place| screen.rfind(&prompt).is_some_and(|at| at < place))
        });
    }

    fn kill(self, others: &[Pid]) {
        self.tmux.kill(others);
    }

    fn end(mut self) {
        self.prompt("/exit");
        // It closes its terminal before it has written all of its files.
        wait_until("the program has ended", || self.tmux.has_ended());
    }
}
