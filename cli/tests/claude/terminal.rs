//! The interactive program in a terminal of `tmux`.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::driver::{Driver, session_arguments};
use crate::program::Program;
use crate::project::{Project, wait_until};

/// Longest time until an expected text is on the screen.
const LONG: Duration = Duration::from_secs(60);

/// Time between keys. The program takes keys that follow at once for a pasted text.
const KEY: Duration = Duration::from_millis(300);

/// Time after which a key without an effect is pressed again.
const AGAIN: Duration = Duration::from_secs(3);

/// Returns whether `tmux` runs here. If it does not, reports that the test is skipped.
pub(crate) fn has_tmux() -> bool {
    let has = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has {
        foldlog_test_support::skipped("there is no tmux");
    }
    has
}

/// A terminal with the program.
pub(crate) struct Terminal {
    socket: PathBuf,
    program: Pid,
    /// The last prompt.
    prompt: String,
}

impl Terminal {
    fn tmux(&self, words: &[&str]) -> String {
        tmux(&self.socket, words)
    }

    /// Returns the text on the screen.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Presses a key, by its name in `tmux`, such as `Escape`.
    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Waits until the screen fulfils a condition.
    pub(crate) fn wait_for(&self, what: &str, mut is_shown: impl FnMut(&str) -> bool) {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if is_shown(&screen) {
                return;
            }
            assert!(begun.elapsed() < LONG, "waited in vain for {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // No server is left if the terminal could not be opened.
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

fn tmux<Word: AsRef<OsStr>>(socket: &PathBuf, words: &[Word]) -> String {
    let mut command = Command::new("tmux");
    let output = command.arg("-S").arg(socket).args(["-f", "/dev/null"]).args(words).output().unwrap();
    assert!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns true for a process that is gone or a zombie. `tmux` may leave it a zombie.
fn has_ended(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
}

/// Returns the part of a screen above the input box.
fn above_input(screen: &str) -> String {
    screen.rfind('❯').map_or_else(String::new, |input| screen[..input].to_owned())
}

impl Driver for Terminal {
    const REFUSED_TURN_ENDS: bool = false;

    fn start(project: &Project, api: &str, resumes: bool) -> Terminal {
        let socket = project.path("tmux");
        let words = ["-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", "50", "-c"];
        // A server of its own has the environment of the first session.
        let started = Command::new("tmux")
            .arg("-S")
            .arg(&socket)
            .args(words)
            .arg(project.root())
            .args(Program::named().unwrap().words())
            .args(session_arguments(resumes))
            .args([";", "set-option", "remain-on-exit", "on"])
            .env_clear()
            .envs(project.environment(api))
            .status();
        assert!(started.unwrap().success(), "tmux does not start");
        let process = tmux(&socket, &["display-message", "-p", "#{pane_pid}"]);
        let program = Pid::from_raw(process.trim().parse().unwrap()).unwrap();
        let terminal = Terminal { socket, program, prompt: String::new() };
        terminal.wait_for("an input box", |screen| screen.contains('❯'));
        terminal
    }

    fn prompt(&mut self, text: &str) {
        // A prompt that was interrupted early or blocked returns to the input box.
        let screen = self.screen();
        let input = screen.lines().rfind(|line| line.contains('❯')).unwrap_or_default();
        if !self.prompt.is_empty() && input.contains(&self.prompt) {
            self.press("C-u");
            std::thread::sleep(KEY);
        }
        self.tmux(&["send-keys", "-l", text]);
        self.wait_for("the prompt", |screen| screen.contains(text));
        std::thread::sleep(KEY);
        // A program that still starts loses keys.
        let before = above_input(&self.screen());
        let mut pressed: Option<Instant> = None;
        self.wait_for("the submission", |screen| {
            // An ended program may leave the screen as it was.
            let is_changed = above_input(screen) != before || has_ended(self.program);
            let is_submitted = pressed.is_some() && is_changed;
            if !is_submitted && pressed.is_none_or(|pressed| pressed.elapsed() > AGAIN) {
                self.press("Enter");
                pressed = Some(Instant::now());
            }
            is_submitted
        });
        text.clone_into(&mut self.prompt);
    }

    fn refuse(&mut self) {
        self.wait_for("a question", |screen| screen.contains("Do you want to proceed?"));
        self.press("Escape");
        self.wait_for("the refusal", |screen| !screen.contains("Do you want to proceed?"));
    }

    fn interrupt(&mut self) {
        self.press("Escape");
        let prompt = self.prompt.clone();
        self.wait_for("the interruption", |screen| {
            screen
                .rfind("Interrupted")
                .is_some_and(|place| screen.rfind(&prompt).is_some_and(|at| at < place))
        });
    }

    fn kill(self, others: &[Pid]) {
        kill_process(self.program, Signal::KILL).unwrap();
        // One that has ended meanwhile is no failure.
        for other in others {
            let _ = kill_process(*other, Signal::KILL);
        }
        wait_until("the killed program is gone", || has_ended(self.program));
    }

    fn end(mut self) {
        self.prompt("/exit");
        // It closes its terminal before it has written all of its files.
        wait_until("the program has ended", || has_ended(self.program));
    }
}
