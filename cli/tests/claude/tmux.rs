//! A program in a terminal of `tmux`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{LONG, wait_until};

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

pub(crate) struct Tmux {
    socket: PathBuf,
    program: Pid,
}

impl Tmux {
    /// Starts a program in a directory. `tmux` has the environment of the program: a server of its
    /// own has that of its first session.
    pub(crate) fn start<Word: AsRef<OsStr>>(
        mut tmux: Command,
        socket: PathBuf,
        lines: &str,
        directory: &Path,
        program: impl IntoIterator<Item = Word>,
    ) -> Tmux {
        let started = tmux
            .arg("-S")
            .arg(&socket)
            .args(["-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", lines, "-c"])
            .arg(directory)
            .args(program)
            .args([";", "set-option", "remain-on-exit", "on"])
            .status();
        assert!(started.unwrap().success(), "tmux does not start");
        let process = run(&socket, &["display-message", "-p", "#{pane_pid}"]);
        let program = Pid::from_raw(process.trim().parse().unwrap()).unwrap();
        Tmux { socket, program }
    }

    /// Returns the text on the screen.
    pub(crate) fn screen(&self) -> String {
        run(&self.socket, &["capture-pane", "-p"])
    }

    /// Presses a key, by its name in `tmux`, such as `Escape`.
    pub(crate) fn press(&self, key: &str) {
        run(&self.socket, &["send-keys", key]);
    }

    /// Types a prompt, and waits until it is on the screen.
    pub(crate) fn type_prompt(&self, text: &str) {
        run(&self.socket, &["send-keys", "-l", text]);
        self.wait_for("the prompt", |screen| screen.contains(text));
    }

    /// Presses Enter until a condition shows that the prompt was submitted: a program that still
    /// starts loses keys.
    pub(crate) fn submit(&self, is_submitted: impl Fn(&str) -> bool) {
        let mut pressed: Option<Instant> = None;
        self.wait_for("the submission", |screen| {
            let is_submitted = pressed.is_some() && is_submitted(screen);
            if !is_submitted && pressed.is_none_or(|pressed| pressed.elapsed() > AGAIN) {
                self.press("Enter");
                pressed = Some(Instant::now());
            }
            is_submitted
        });
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

    /// Returns whether the program is gone or a zombie. `tmux` may leave it a zombie.
    pub(crate) fn has_ended(&self) -> bool {
        let stat = format!("/proc/{}/stat", self.program.as_raw_nonzero());
        let stat = fs::read_to_string(stat).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
    }

    /// Kills the program, and others at the same time.
    pub(crate) fn kill(&self, others: &[Pid]) {
        kill_process(self.program, Signal::KILL).unwrap();
        // One that has ended meanwhile is no failure.
        for other in others {
            let _ = kill_process(*other, Signal::KILL);
        }
        wait_until("the killed program is gone", || self.has_ended());
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // No server is left if the terminal could not be opened.
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

fn run(socket: &PathBuf, words: &[&str]) -> String {
    let mut command = Command::new("tmux");
    let output = command.arg("-S").arg(socket).args(["-f", "/dev/null"]).args(words).output().unwrap();
    assert!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
