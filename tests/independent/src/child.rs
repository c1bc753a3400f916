//! Runs parts of a harness in processes of this binary, to be killed, limited, or run as another
//! user.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::report::Result;

/// First argument of a process that runs a part of a harness.
pub(crate) const PART: &str = "part";

/// Names the variable with the file into which a process writes its peak memory, in KiB.
const PEAK: &str = "FOLDLOG_INDEPENDENT_PEAK";

/// A child that does nothing for this long has hung.
pub(crate) const HANGS: Duration = Duration::from_secs(120);

/// Limits of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Address space, in KiB.
    pub(crate) memory_kib: Option<u64>,
    pub(crate) files: Option<u64>,
    /// Length of a file that it writes, in KiB. The signal is ignored, so that the call fails.
    pub(crate) file_kib: Option<u64>,
}

/// Makes the command that runs a part of a harness in a process of its own.
pub(crate) fn part(name: &str, arguments: &[&dyn AsRef<OsStr>]) -> Result<Command> {
    let this = std::env::current_exe()?;
    // A concurrent build may replace the binary's file. Then `/proc` still has this process's own.
    let running = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let mut command = Command::new(if this.exists() { this } else { running });
    command.arg(PART).arg(name).args(arguments.iter().map(|argument| argument.as_ref()));
    Ok(command)
}

/// Returns the same command under limits, which the shell sets.
pub(crate) fn limited(limits: Limits, command: &Command) -> Command {
    let mut script = String::new();
    let mut set = |limit: &str, to: Option<u64>| {
        if let Some(to) = to {
            script.push_str(&format!("ulimit {limit} {to} && "));
        }
    };
    set("-v", limits.memory_kib);
    set("-n", limits.files);
    // POSIX counts in blocks of 512 bytes.
    set("-f", limits.file_kib.map(|kib| kib * 2));
    let ignore = if limits.file_kib.is_some() { "trap '' XFSZ; " } else { "" };
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{ignore}{script}exec \"$@\"")).arg("sh");
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// Has a command's process write its peak memory into this file.
pub(crate) fn tell_peak(command: &mut Command, file: &Path) {
    command.env(PEAK, file);
}

/// Writes this process's peak memory if it was requested.
pub(crate) fn write_peak() {
    let Some(file) = std::env::var_os(PEAK).map(PathBuf::from) else { return };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    // The parent reports a missing file.
    let _ = fs::write(file, peak.trim().trim_end_matches(" kB"));
}

/// A child whose lines are read as they arrive.
pub(crate) struct Heard {
    child: Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl Heard {
    pub(crate) fn start(mut command: Command) -> Result<Heard> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            let Some(stdout) = stdout else { return };
            // Ignores a line without an end, which a kill cut short.
            for line in BufReader::new(stdout).split(b'\n').map_while(std::result::Result::ok) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        let errors = thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(stderr) = stderr {
                let _ = stderr.take(1 << 20).read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Heard { child, lines, errors: Some(errors) })
    }

    /// Returns the next line, or `None` if the child has ended.
    pub(crate) fn line(&mut self) -> Result<Option<String>> {
        match self.lines.recv_timeout(HANGS) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                self.kill()?;
                Err(format!("a child said nothing for {HANGS:?}").into())
            }
        }
    }

    /// Returns the rest of the next line that begins with a word, or `None` if the child ended
    /// before.
    pub(crate) fn word(&mut self, word: &str) -> Result<Option<String>> {
        while let Some(line) = self.line()? {
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(Some(rest.trim().to_owned()));
            }
        }
        Ok(None)
    }

    /// Writes a line to its input.
    pub(crate) fn tell(&mut self, line: impl std::fmt::Display) -> Result<()> {
        let input = self.child.stdin.as_mut().ok_or("its input is closed")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Kills it with SIGKILL, and returns once it has ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        // Fails if it has ended by itself, which is as good.
        let _ = self.child.kill();
        self.child.wait()?;
        Ok(())
    }

    /// Returns the lines that have arrived and were not read yet.
    pub(crate) fn so_far(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Returns all remaining lines. The child must have ended.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        self.lines.iter().collect()
    }

    /// Closes its input and waits for its end. Returns its status and its standard error.
    pub(crate) fn ended(&mut self) -> Result<(ExitStatus, String)> {
        self.ended_within(HANGS)?.ok_or_else(|| format!("a child did not end within {HANGS:?}").into())
    }

    /// Does the same, but kills it and returns `None` if it does not end in time.
    pub(crate) fn ended_within(&mut self, within: Duration) -> Result<Option<(ExitStatus, String)>> {
        drop(self.child.stdin.take());
        let until = Instant::now() + within;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                self.kill()?;
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(1));
        };
        let errors = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        Ok(Some((status, errors)))
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Runs a part to its end. Returns its lines, or its standard error if it failed.
pub(crate) fn run(command: Command) -> Result<std::result::Result<Vec<String>, String>> {
    let mut heard = Heard::start(command)?;
    let (status, errors) = heard.ended()?;
    let lines = heard.rest();
    Ok(match status.success() {
        true => Ok(lines),
        false => Err(format!("{status}: {}", errors.trim())),
    })
}
