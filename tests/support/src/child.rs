//! Child processes of tests: the same test binary, which runs only one of its tests.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

const PART: &str = "FOLDLOG_TEST_CHILD";

/// Returns the parent's argument if this process is a child. Returns `None` if someone runs all
/// ignored tests, which include the parts of children.
pub fn argument() -> Option<String> {
    std::env::var(PART).ok()
}

/// A child process that runs one test of this binary.
pub struct Started {
    process: Child,
    output: Option<BufReader<ChildStdout>>,
}

/// Starts the test `name` (its whole path, such as `bad_input::part_of_the_child`) in a child
/// process with an argument.
pub fn start(name: &str, argument: &str) -> Started {
    start_under(&[], name, argument)
}

/// Starts the test `name` in a child process under another program, such as a tracer with its
/// arguments.
pub fn start_under(program: &[String], name: &str, argument: &str) -> Started {
    let mut process = command_under(program, name, argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process starts");
    let output = BufReader::new(process.stdout.take().expect("the child's output is piped"));
    Started { process, output: Some(output) }
}

/// Starts a part of a test under `strace`, with the arguments `tracing` and with all threads
/// followed. A kernel filter is not used: a call that it stops receives no signal.
pub fn start_traced(tracing: &[&str], name: &str, argument: &str) -> Started {
    let tracer = ["strace", "-f", "-qq"].iter().chain(tracing);
    let tracer: Vec<String> = tracer.map(|word| (*word).to_owned()).collect();
    start_under(&tracer, name, argument)
}

/// Returns the command that runs the test `name` in a new process, with an argument.
pub fn command(name: &str, argument: &str) -> Command {
    command_under(&[], name, argument)
}

fn command_under(program: &[String], name: &str, argument: &str) -> Command {
    let this = std::env::current_exe().expect("a test knows its binary");
    let mut words = program.iter().map(OsString::from).chain([this.into_os_string()]);
    let mut command = Command::new(words.next().expect("the binary at least"));
    command.args(words).args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(PART, argument);
    command
}

/// Returns whether `strace` can trace a process here. If not, the test is reported as skipped.
pub fn is_traced_here() -> bool {
    let works = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    let works = works.is_ok_and(|output| output.status.success());
    if !works {
        crate::skipped::skipped("nothing can be traced here by `strace`");
    }
    works
}

/// Counts the processes with an environment variable that starts like this, such as `NAME=`.
pub fn with_variable(beginning: &str) -> usize {
    let is_given = |environment: Vec<u8>| {
        environment.split(|byte| *byte == 0).any(|one| one.starts_with(beginning.as_bytes()))
    };
    let processes = std::fs::read_dir("/proc").expect("a list of processes").flatten();
    processes.filter(|process| std::fs::read(process.path().join("environ")).is_ok_and(is_given)).count()
}

/// Prints a value for the parent, on its own line.
pub fn tell(word: &str, value: impl std::fmt::Display) {
    println!("\n@{word} {value}");
}

impl Started {
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the child prints `word`, and returns the rest of that line; `None` if the child
    /// ends before.
    pub fn hear(&mut self, word: &str) -> Option<String> {
        loop {
            let line = self.line()?;
            if let Some(value) = line.strip_prefix(&format!("@{word} ")) {
                return Some(value.to_owned());
            }
        }
    }

    /// Waits for the child's next line, and returns it; `None` if the child ends before. A line
    /// that a kill cut short is empty.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.as_mut()?.read_line(&mut line).expect("the child's output is text");
        (read > 0).then(|| line.strip_suffix('\n').unwrap_or_default().to_owned())
    }

    /// Closes the child's input, for which it may wait.
    pub fn go_on(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Closes the pipe that the child prints into.
    pub fn stop_reading(&mut self) {
        self.output = None;
    }

    pub fn ended(&mut self) {
        self.process.wait().expect("a child can be waited for");
    }

    /// Kills the child with SIGKILL and waits for its end. Its earlier output can still be read.
    pub fn kill(&mut self) {
        // This fails for a child that has already ended, which is fine.
        let _ = self.process.kill();
        self.process.wait().expect("a child can be waited for");
    }

    /// Waits for the child's end, and returns whether its test passed.
    pub fn passed(&mut self) -> bool {
        self.process.wait().expect("a child can be waited for").success()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Takes the locks of all sessions of a store. Tests cannot fork; instead, a process that inherits
/// the file keeps the locks, as a forked process does.
pub fn lock_sessions(store: &Path) -> File {
    let locks = File::options().read(true).write(true).open(store.join("writers.lock")).unwrap();
    let all = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&locks, FcntlArg::F_OFD_SETLK(&all)).unwrap();
    locks
}
