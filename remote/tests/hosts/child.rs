//! Starts other processes of this test binary in network namespaces. Commands and answers are
//! single lines.

use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Starts each line that is meant for the test.
const MARK: char = '@';

/// Ends a worker's answer to a command.
pub(crate) const END: &str = "end";

pub(crate) struct Process {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Runs one ignored test of this binary in a network namespace. `within` is a command prefix.
    pub(crate) fn start(
        namespace: &str,
        within: &[&str],
        test: &str,
        variables: &[(&str, String)],
    ) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).args(within).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        for proxy in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy).env_remove(proxy.to_uppercase());
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Process { process, input, output }
    }

    /// Returns the next line, or `None` once the process has ended.
    pub(crate) fn hear(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // Ignores a line that a kill cut short.
            if let Some(said) = line.strip_prefix(MARK).and_then(|line| line.strip_suffix('\n')) {
                return Some(said.to_owned());
            }
        }
    }

    pub(crate) fn tell(&mut self, words: &str) {
        writeln!(self.input, "{words}").unwrap();
    }

    /// Sends a command, and returns all lines until its end.
    pub(crate) fn ask(&mut self, words: &str) -> Vec<String> {
        self.tell(words);
        self.hear_out()
    }

    /// Returns all lines until the current command is done or the process has ended.
    pub(crate) fn hear_out(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(word) = self.hear().filter(|word| word != END) {
            said.push(word);
        }
        said
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap())
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Stops the process, and returns once it has stopped.
    pub(crate) fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let stands = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(stands, WaitStatus::Stopped(..)), "{stands:?}");
    }

    pub(crate) fn go_on(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn say(words: &str) {
    let mut out = stdout().lock();
    // The test harness prints the test's name before the first line.
    writeln!(out, "\n{MARK}{words}").unwrap();
    out.flush().unwrap();
}
