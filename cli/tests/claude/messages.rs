//! A program that reads and writes lines of JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::wait::LONG;

pub(crate) struct Messages {
    process: Child,
    input: ChildStdin,
    pub(crate) received: Receiver<Value>,
}

impl Messages {
    /// Starts a program. Lines that are not JSON are skipped.
    pub(crate) fn start(command: &mut Command) -> Messages {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, received) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for message in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Messages { process, input, received }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    /// Skips messages until one fulfils a condition, and returns it.
    pub(crate) fn skip_to(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.received.recv_timeout(LONG).unwrap_or_else(|error| panic!("{what}: {error}"));
            if is_wanted(&message) {
                return message;
            }
        }
    }

    /// Kills the program, and others at the same time.
    pub(crate) fn kill(mut self, others: &[Pid]) {
        self.process.kill().unwrap();
        // One that has ended meanwhile is no failure.
        for other in others {
            let _ = kill_process(*other, Signal::KILL);
        }
        self.process.wait().unwrap();
    }

    /// Closes the input, at which the program has to end.
    pub(crate) fn end(mut self) {
        drop(self.input);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the program ended with {status}");
    }
}
