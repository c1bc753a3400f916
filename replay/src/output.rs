//! Where results, notes and progress go.

use std::cell::OnceCell;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use foldlog_codec::escape;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{HOLDS, Result, UNUSABLE};
use crate::interrupts::Interrupts;
use crate::progress::Progress;

/// Makes the command that runs the demo's child, which is to be killed while it writes: it has to call
/// [`write_until_killed`](crate::verbs::demo::write_until_killed) with this store and this session.
pub type ChildCommand<'a> = dyn Fn(&Path, Uuid) -> io::Result<Command> + 'a;

/// Waits for so long, or until the process is asked to end or nobody reads its results any more; whether to go
/// on. From the first call on, a request to end is answered by it.
pub type Pause<'a> = dyn Fn(Duration) -> io::Result<bool> + 'a;

/// Where results, notes and progress go.
pub struct Output<'a> {
    /// Results.
    pub stdout: &'a mut dyn Write,
    /// Notes and errors.
    pub stderr: &'a mut dyn Write,
    /// Whether the process's standard error is a terminal that may show a progress bar.
    pub progress: bool,
    /// Whether messages may be coloured.
    pub color: bool,
    /// How the demo runs its child.
    pub child: &'a ChildCommand<'a>,
    /// How a verb that goes on without end waits.
    pub pause: &'a Pause<'a>,
    pub(crate) json: bool,
    /// How much memory what is known of a log may take, where it was said.
    pub(crate) memory_bytes: Option<u64>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("json", &self.json).field("progress", &self.progress).finish()
    }
}

impl<'a> Output<'a> {
    /// Output into two writers, without progress or colour. A verb that would go on without end ends where it
    /// would first wait.
    pub fn new(
        stdout: &'a mut dyn Write,
        stderr: &'a mut dyn Write,
        child: &'a ChildCommand<'a>,
    ) -> Output<'a> {
        Output {
            stdout,
            stderr,
            progress: false,
            color: false,
            child,
            pause: &|_| Ok(false),
            json: false,
            memory_bytes: None,
        }
    }

    /// Whether results are to be JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Writes one line of the result. Whatever in it did not come from the program is [escaped](foldlog_codec::escape);
    /// a newline in it goes on with a marked line.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        Ok(writeln!(self.stdout, "{}", escape::lines(line))?)
    }

    /// Writes one JSON value on a line of its own.
    pub(crate) fn value(&mut self, value: &(impl Serialize + ?Sized)) -> Result<()> {
        escape::write_json(&mut *self.stdout, value).map_err(io::Error::from)?;
        Ok(writeln!(self.stdout)?)
    }

    /// Tells a person something that is not part of the result, escaped as by [`line`](Output::line).
    pub(crate) fn note(&mut self, note: impl fmt::Display) {
        // Where standard error is gone there is nobody left to be told.
        let _ = writeln!(self.stderr, "{}", escape::lines(note));
    }

    /// Shows how far a long piece of work is.
    pub(crate) fn progress(&self, what: &'static str, total: u64) -> Progress {
        Progress::new(self.progress, what, total)
    }
}

/// Runs `verb` with the process's own streams, and returns its exit code.
pub fn with_process(verb: impl FnOnce(&mut Output<'_>) -> u8) -> u8 {
    let terminal = io::stderr().is_terminal();
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut stdout = BufWriter::new(io::stdout());
    let mut stderr = io::stderr();
    let child = |store: &Path, session: Uuid| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-child").arg(store).arg(session.to_string());
        Ok(command)
    };
    let interrupts = OnceCell::new();
    let pause = |wait| {
        // Only now: a verb that comes to an end by itself is ended by signals as any process is.
        if interrupts.get().is_none() {
            let _ = interrupts.set(Interrupts::take_over()?);
        }
        interrupts.get().map_or(Ok(false), |interrupts: &Interrupts| interrupts.pause(wait))
    };
    let mut output = Output::new(&mut stdout, &mut stderr, &child);
    output.pause = &pause;
    output.progress = terminal;
    output.color = terminal && !plain;
    let code = verb(&mut output);
    match stdout.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && code == HOLDS => {
            let _ =
                writeln!(io::stderr(), "error: the output could not be written: {}", escape::shown(error));
            UNUSABLE
        }
        _ => code,
    }
}
