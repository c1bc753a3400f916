//! Shows long results on a terminal through another program, the pager.
//!
//! The pager is started with the first byte of a result, so a verb that fails earlier starts none.
//! Notes and errors are held back until it has ended, since both would overwrite each other. The
//! pager reads the results from a pipe. Quitting it early closes that pipe, which ends the verb
//! like any closed pipe.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use foldlog_codec::escape;
use signal_hook::consts::SIGINT;
use signal_hook::{SigId, flag, low_level};

use crate::style::is_dumb;

/// Variables that name the pager; the first that is set counts.
const VARIABLES: [&str; 2] = ["FOLDLOG_PAGER", "PAGER"];

/// Pager if no variable names one.
const DEFAULT: &str = "less";

/// Options of `less` if the variable `LESS` is not set: exit immediately if everything fits on the
/// screen, show colours, and leave the text on the screen.
const LESS: &str = "FRX";

/// Names the program that shows results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pager {
    /// Value of the variable.
    command: String,
    /// Variable that names it; `None` for the default pager.
    variable: Option<&'static str>,
    /// Whether the pager receives the options of `less`.
    sets_less: bool,
}

impl Pager {
    /// Finds the pager named by the variables, which `get` reads. An empty value and `cat` mean no
    /// pager. Without a variable, the pager is `less`, unless the terminal is dumb.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Option<Pager> {
        let named = VARIABLES.iter().find_map(|variable| Some((*variable, get(variable)?)));
        let sets_less = get("LESS").is_none();
        match named {
            None if is_dumb(get) => None,
            None => Some(Pager { command: DEFAULT.to_owned(), variable: None, sets_less }),
            Some((variable, command)) => {
                let command = command.to_string_lossy().trim().to_owned();
                let is_one = !command.is_empty() && command != "cat";
                is_one.then_some(Pager { command, variable: Some(variable), sets_less })
            }
        }
    }

    /// Starts the program directly, without a shell.
    fn start(&self) -> io::Result<Child> {
        let words = shlex::split(&self.command)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it contains an unclosed quote"))?;
        let (program, arguments) =
            words.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        if self.sets_less {
            command.env("LESS", LESS);
        }
        command.spawn()
    }
}

/// Writes results into a pager, which the first write starts, or to standard output if the pager
/// cannot be started.
pub(crate) struct PagerWriter<'a> {
    pager: &'a Pager,
    stdout: &'a mut dyn Write,
    state: PagerState,
}

enum PagerState {
    Waiting,
    Running(PagerProcess),
    /// The pager could not be started, for this reason.
    Failed(io::Error),
}

struct PagerProcess {
    child: Child,
    stdin: BufWriter<ChildStdin>,
    ignored: Option<SigId>,
}

impl<'a> PagerWriter<'a> {
    pub(crate) fn new(pager: &'a Pager, stdout: &'a mut dyn Write) -> PagerWriter<'a> {
        PagerWriter { pager, stdout, state: PagerState::Waiting }
    }

    /// Returns the destination of results. Starts the pager if it is not running yet.
    fn sink(&mut self) -> &mut dyn Write {
        if matches!(self.state, PagerState::Waiting) {
            self.state = self.start();
        }
        match &mut self.state {
            PagerState::Running(running) => &mut running.stdin,
            PagerState::Waiting | PagerState::Failed(_) => self.stdout,
        }
    }

    fn start(&self) -> PagerState {
        let mut child = match self.pager.start() {
            Ok(child) => child,
            Err(error) => return PagerState::Failed(error),
        };
        let Some(stdin) = child.stdin.take() else { return PagerState::Waiting };
        // Ctrl-C belongs to the pager, like any other key: otherwise this process would end first
        // and leave the pager on a terminal that it shares with the shell. A pager that ends on
        // Ctrl-C closes the pipe.
        let ignored = flag::register(SIGINT, Arc::new(AtomicBool::new(false))).ok();
        PagerState::Running(PagerProcess { child, stdin: BufWriter::new(stdin), ignored })
    }

    /// Waits until the pager has ended. Returns a note if the pager could not be started.
    pub(crate) fn end(self) -> io::Result<Option<String>> {
        let running = match self.state {
            PagerState::Waiting => return Ok(None),
            PagerState::Running(running) => running,
            PagerState::Failed(error) => {
                let named = self.pager.variable.map(|variable| (variable, escape::text(&self.pager.command)));
                return Ok(named.map(|(variable, command)| {
                    format!(
                        "note: the pager `{command}` of {variable} cannot be started: {}",
                        escape::display(error)
                    )
                }));
            }
        };
        let PagerProcess { mut child, mut stdin, ignored } = running;
        let flushed = stdin.flush();
        // The remaining bytes have no reader. Closing the pipe lets the pager end.
        drop(stdin.into_parts());
        let waited = child.wait();
        ignored.map(low_level::unregister);
        flushed.and(waited).map(|_| None)
    }
}

impl Write for PagerWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sink().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.state {
            PagerState::Waiting => Ok(()),
            PagerState::Running(running) => running.stdin.flush(),
            PagerState::Failed(_) => self.stdout.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pager(set: &[(&str, &str)]) -> Option<Pager> {
        Pager::from_variables(|name| {
            let found = set.iter().find(|(set, _)| *set == name).map(|(_, value)| *value);
            found.or((name == "TERM").then_some("xterm")).map(OsString::from)
        })
    }

    #[test]
    fn the_first_variable_that_is_set_names_the_pager() {
        let command = |set: &[(&str, &str)]| pager(set).map(|pager| pager.command);
        assert_eq!(command(&[]).as_deref(), Some("less"));
        assert_eq!(command(&[("TERM", "dumb")]), None);
        assert_eq!(command(&[("PAGER", "more"), ("TERM", "dumb")]).as_deref(), Some("more"));
        assert_eq!(command(&[("PAGER", "more"), ("FOLDLOG_PAGER", "most -w")]).as_deref(), Some("most -w"));
        assert_eq!(command(&[("PAGER", "more"), ("FOLDLOG_PAGER", "")]), None);
        assert_eq!(command(&[("PAGER", " cat ")]), None);
        assert!(pager(&[]).is_some_and(|pager| pager.sets_less));
        assert!(pager(&[("LESS", "")]).is_some_and(|pager| !pager.sets_less));
    }
}
