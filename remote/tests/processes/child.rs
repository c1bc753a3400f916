//! Starts another process of this test binary: a worker that reports its progress.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::worker::{ORDERS, Orders};

/// One line of a worker's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The note is acknowledged.
    Noted(String),
    /// The handler of the operation runs.
    Within(u64),
    /// The call is acknowledged.
    Called,
    /// The worker waits at the step that it was given.
    At,
    /// All work is done, in this number of steps.
    Done(u64),
    /// The work was refused, with the reason.
    Refused(String),
}

pub(crate) struct Worker {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(orders: &Orders) -> Worker {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::part_of_a_worker", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ORDERS, orders.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Worker { process, output }
    }

    /// Waits for the worker's next line. Returns `None` once it has ended.
    pub(crate) fn hear(&mut self) -> Option<Said> {
        loop {
            let mut line = String::new();
            // A line that a kill cut short is ignored.
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let Some((word, value)) =
                line.strip_prefix('@').and_then(|line| line.strip_suffix('\n')?.split_once(' '))
            else {
                continue;
            };
            return Some(match word {
                "noted" => Said::Noted(value.to_owned()),
                "within" => Said::Within(value.parse().unwrap()),
                "called" => Said::Called,
                "at" => Said::At,
                "done" => Said::Done(value.parse().unwrap()),
                "refused" => Said::Refused(value.to_owned()),
                other => panic!("{other}"),
            });
        }
    }

    /// Returns the worker's lines until it waits at its step (included) or ends.
    pub(crate) fn hear_until_it_waits(&mut self) -> Vec<Said> {
        let mut all = Vec::new();
        while let Some(said) = self.hear() {
            all.push(said);
            if all.last() == Some(&Said::At) {
                break;
            }
        }
        all
    }

    /// Returns the worker's lines until it ends.
    pub(crate) fn hear_out(mut self) -> Vec<Said> {
        let mut all = Vec::new();
        while let Some(said) = self.hear() {
            all.push(said);
        }
        self.process.wait().unwrap();
        all
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap())
    }

    /// Kills the worker, and returns its remaining lines.
    pub(crate) fn kill(mut self) -> Vec<Said> {
        self.process.kill().unwrap();
        self.hear_out()
    }

    /// Stops the worker, and returns once it has stopped.
    pub(crate) fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let stands = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(stands, WaitStatus::Stopped(..)), "{stands:?}");
    }

    /// Continues a stopped worker, also one that waits at its step.
    pub(crate) fn go_on(&mut self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
        self.process.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    }
}
