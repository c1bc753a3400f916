//! Runs another program with a deadline.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Bytes of each output that are read.
const OUTPUT_MAX: u64 = 64 * 1024;

/// Bytes of an answer that are read.
const ANSWER_MAX: u64 = 16 << 20;

/// A program that ended before its deadline.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) elapsed: Duration,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a program in a process group of its own, and returns its end; `None` if the deadline came
/// first, when the group is killed.
///
/// Streams are files: a process that outlives the program may keep them open.
///
/// # Errors
///
/// The system's error if the program cannot be started.
pub(super) fn run(mut command: Command, input: &str, deadline: Duration) -> io::Result<Option<Finished>> {
    let mut stdin = tempfile::tempfile()?;
    stdin.write_all(input.as_bytes())?;
    stdin.rewind()?;
    let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let started = Instant::now();
    let mut child = command.spawn()?;
    let group = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let status = child.wait();
        // After the deadline, the channel has no receiver.
        let _ = sender.send((status, started.elapsed()));
    });
    match receiver.recv_timeout(deadline) {
        Ok((status, elapsed)) => {
            let (stdout, stderr) = (text_of(stdout)?, text_of(stderr)?);
            Ok(Some(Finished { status: status?, elapsed, stdout, stderr }))
        }
        Err(_) => {
            kill_group(group);
            Ok(None)
        }
    }
}

/// Runs a program in a process group of its own that answers lines by lines. Returns what `read`
/// makes of the first line for which it returns something; `None` if the program ends or the
/// deadline comes before. Then the group is killed.
///
/// # Errors
///
/// The system's error if the program cannot be started.
pub(super) fn ask<T>(
    mut command: Command,
    lines: &str,
    deadline: Duration,
    read: impl Fn(&str) -> Option<T>,
) -> io::Result<Option<T>> {
    let until = Instant::now() + deadline;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = stdout.map(|stdout| BufReader::new(stdout.take(ANSWER_MAX)).lines());
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    // A program that has ended already reads nothing.
    let written = stdin.map(|mut stdin| stdin.write_all(lines.as_bytes()).map(|()| stdin));
    let mut found = None;
    while found.is_none()
        && let Ok(line) = receiver.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        found = read(&line);
    }
    drop(written);
    kill_group(child.id());
    child.wait()?;
    Ok(found)
}

/// Kills a process group, which may have ended meanwhile.
fn kill_group(group: u32) {
    if let Ok(group) = i32::try_from(group) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

fn text_of(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
