//! Second processes for tests: this same test binary, which runs one test of it alone.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

const PART: &str = "FOLDLOG_TEST_CHILD";

/// Returns the argument that the parent handed to this process if it is a child, or `None` if somebody runs all ignored
/// tests, among which a child's part is.
pub fn argument() -> Option<String> {
    std::env::var(PART).ok()
}

/// Holds a child process that runs one test of this binary.
pub struct Started {
    process: Child,
    output: Option<BufReader<ChildStdout>>,
}

/// Starts the test `name` (its whole path, such as `bad_input::part_of_the_child`) in a child process with an
/// argument.
///
/// # Panics
///
/// If the system starts no process.
pub fn start(name: &str, argument: &str) -> Started {
    start_under(&[], name, argument)
}

/// Starts the test `name` in a child process under a program that runs another, such as a tracer with its arguments.
///
/// # Panics
///
/// If the system starts no process.
pub fn start_under(program: &[String], name: &str, argument: &str) -> Started {
    let mut process = command_under(program, name, argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process starts");
    let output = BufReader::new(process.stdout.take().expect("the child's output is piped"));
    Started { process, output: Some(output) }
}

/// Starts a part of a test traced by `strace`, which is told `tracing` beside that it follows threads. Not by a filter in the kernel:
/// what a filter stops at is sent no signal.
pub fn start_traced(tracing: &[&str], name: &str, argument: &str) -> Started {
    let tracer = ["strace", "-f", "-qq"].iter().chain(tracing);
    let tracer: Vec<String> = tracer.map(|word| (*word).to_owned()).collect();
    start_under(&tracer, name, argument)
}

/// Makes the command that runs the test `name` in a process of its own, with an argument.
///
/// # Panics
///
/// If the test does not know its binary.
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

/// Counts the processes in whose environment a variable begins so, such as `NAME=`.
///
/// # Panics
///
/// If the system tells of no processes.
pub fn with_variable(beginning: &str) -> usize {
    let is_given = |environment: Vec<u8>| {
        environment.split(|byte| *byte == 0).any(|one| one.starts_with(beginning.as_bytes()))
    };
    let processes = std::fs::read_dir("/proc").expect("a list of processes").flatten();
    processes.filter(|process| std::fs::read(process.path().join("environ")).is_ok_and(is_given)).count()
}

/// Prints something for the parent, on a line of its own.
pub fn tell(word: &str, value: impl std::fmt::Display) {
    println!("\n@{word} {value}");
}

impl Started {
    /// Returns the child's process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the child prints `word`, and returns the rest of that line; `None` if the child ends before.
    ///
    /// # Panics
    ///
    /// If the child's output cannot be read.
    pub fn hear(&mut self, word: &str) -> Option<String> {
        loop {
            let line = self.line()?;
            if let Some(value) = line.strip_prefix(&format!("@{word} ")) {
                return Some(value.to_owned());
            }
        }
    }

    /// Waits for the next line that the child prints, and returns it; `None` if the child ends before. A line that a kill cut
    /// short is empty.
    ///
    /// # Panics
    ///
    /// If the child's output cannot be read.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.as_mut()?.read_line(&mut line).expect("the child's output is text");
        (read > 0).then(|| line.strip_suffix('\n').unwrap_or_default().to_owned())
    }

    /// Ends the child's input, which it may wait for.
    pub fn go_on(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Closes the pipe that the child prints into.
    pub fn stop_reading(&mut self) {
        self.output = None;
    }

    /// Waits for the child's end.
    ///
    /// # Panics
    ///
    /// If the child cannot be waited for.
    pub fn ended(&mut self) {
        self.process.wait().expect("a child can be waited for");
    }

    /// Kills the child with SIGKILL and waits for its end. What it has printed can still be read.
    ///
    /// # Panics
    ///
    /// If the child cannot be waited for.
    pub fn kill(&mut self) {
        // One that has ended by itself cannot be killed, which is as good.
        let _ = self.process.kill();
        self.process.wait().expect("a child can be waited for");
    }

    /// Waits for the child's end, and returns whether its test passed.
    ///
    /// # Panics
    ///
    /// If the child cannot be waited for.
    pub fn passed(&mut self) -> bool {
        self.process.wait().expect("a child can be waited for").success()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Takes the locks of all sessions of a store. No test can fork: whoever is handed the file holds them on, as a forked process does.
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
