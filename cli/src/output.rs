//! The streams for results, notes, errors and progress, and the process's services for a verb.

use std::cell::OnceCell;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use foldlog::{MemoryLimit, StoreOptions};
use foldlog_codec::escape;
use foldlog_tasks::TreeLimits;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{HOLDS, Result, UNUSABLE};
use crate::hints::HintPaths;
use crate::interrupts::Interrupts;
use crate::pager::Pager;
use crate::progress::{Progress, Status};
use crate::style::{BAD, ColorMode, ColorVariables, PLAIN, Style, Terminal};

/// Creates the command of the demo's child process, which is killed while it writes. That process
/// is [`demo-child`](crate::verbs::demo::ChildArguments), with the store and the session of the
/// arguments.
pub type ChildCommand<'a> = dyn Fn(&Path, Uuid) -> io::Result<Command> + 'a;

/// Waits for a time, or until the process should end (SIGINT, SIGTERM, SIGHUP) or its results have
/// no reader. Returns whether to continue. From the first call on, such a signal no longer kills
/// the process but is reported by the return value.
pub type Pause<'a> = dyn Fn(Duration) -> io::Result<bool> + 'a;

/// The streams and the process's services that a verb uses.
pub struct Output<'a> {
    /// Stream of results.
    pub stdout: &'a mut dyn Write,
    /// Stream of notes and errors.
    pub stderr: &'a mut dyn Write,
    /// Whether a progress bar may be drawn on the process's standard error.
    pub progress: bool,
    /// Which streams are terminals, and the colour settings of the process's variables.
    pub terminal: Terminal,
    /// Program through which long results are shown; `None` if results do not go to a terminal.
    pub pager: Option<Pager>,
    /// Creates the command of the demo's child process.
    pub child: &'a ChildCommand<'a>,
    /// Waits, for a verb that runs until it is interrupted.
    pub pause: &'a Pause<'a>,
    /// Whether this is a separate process, whose signals a verb may handle.
    pub(crate) is_process: bool,
    /// Whether the verb reads a copy of a place's current contents.
    pub(crate) is_held: bool,
    pub(crate) json: bool,
    pub(crate) color: ColorMode,
    /// Paths of the command line, as notes name them.
    pub(crate) places: HintPaths,
    /// Columns of the terminal for results; `None` if there is no terminal or its width is unknown.
    pub columns: Option<u16>,
    /// Memory limit of a log in bytes; `None` without a limit on the command line.
    pub(crate) memory_bytes: Option<u64>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("json", &self.json).field("progress", &self.progress).finish()
    }
}

impl<'a> Output<'a> {
    /// Creates an output from two writers, without progress or colour. A verb that waits ends at
    /// its first wait.
    pub fn new(
        stdout: &'a mut dyn Write,
        stderr: &'a mut dyn Write,
        child: &'a ChildCommand<'a>,
    ) -> Output<'a> {
        Output {
            stdout,
            stderr,
            progress: false,
            terminal: Terminal::default(),
            pager: None,
            child,
            pause: &|_| Ok(false),
            is_process: false,
            is_held: false,
            json: false,
            color: ColorMode::Auto,
            places: HintPaths::default(),
            columns: None,
            memory_bytes: None,
        }
    }

    /// Returns store options with the command line's memory limit for reading sessions.
    pub(crate) fn store_options(&self) -> StoreOptions {
        let memory = self.memory_bytes.map_or(MemoryLimit::OfLog, MemoryLimit::Bytes);
        StoreOptions { memory, ..StoreOptions::default() }
    }

    /// Returns the limits of a tree's files under the command line's memory limit. A file is in
    /// memory twice: decompressed, and decoded.
    pub(crate) fn tree_limits(&self) -> TreeLimits {
        self.memory_bytes.map_or_else(TreeLimits::default, |bytes| TreeLimits::of_bytes(bytes / 2))
    }

    /// Returns whether results are printed as JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Writes one line of the result. Control characters in `line` are
    /// [escaped](foldlog_codec::escape); a newline in it starts a line that is marked as a
    /// continuation.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        Ok(writeln!(self.stdout, "{}", escape::lines(line))?)
    }

    /// Writes one line of the result in one style, otherwise as [`line`](Output::line).
    pub(crate) fn styled_line(&mut self, style: Style, line: impl fmt::Display) -> Result<()> {
        self.pieces(&[(style, &line)])
    }

    /// Writes one line of the result from pieces, each escaped as by [`line`](Output::line) and
    /// then styled. A styled piece should not contain a newline, since pagers reset a style at the
    /// end of a line.
    pub(crate) fn pieces(&mut self, pieces: &[(Style, &dyn fmt::Display)]) -> Result<()> {
        let colors = self.colors_results();
        for (style, piece) in pieces {
            let style = if colors { *style } else { PLAIN };
            write!(self.stdout, "{style}{}{style:#}", escape::lines(piece))?;
        }
        Ok(writeln!(self.stdout)?)
    }

    pub(crate) fn colors_results(&self) -> bool {
        self.terminal.colors(self.color, self.terminal.stdout)
    }

    pub(crate) fn colors_notes(&self) -> bool {
        self.terminal.colors(self.color, self.terminal.stderr)
    }

    /// Writes one JSON value, escaped, on its own line.
    pub(crate) fn value(&mut self, value: &(impl Serialize + ?Sized)) -> Result<()> {
        escape::write_json(&mut *self.stdout, value).map_err(io::Error::from)?;
        Ok(writeln!(self.stdout)?)
    }

    /// Writes a document as JSON if results are printed as such, else as text by `text`.
    pub(crate) fn print(
        &mut self,
        document: &(impl Serialize + ?Sized),
        text: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.json { self.value(document) } else { text(self) }
    }

    /// Writes a line that is not part of the result to standard error, escaped as by
    /// [`line`](Output::line). In its commands, which are in backquotes, `SESSION` becomes the
    /// session of the command line.
    pub(crate) fn note(&mut self, note: impl fmt::Display) {
        self.flush_results();
        let note = self.places.put_into(&note.to_string());
        // If standard error is closed, the note has no reader.
        let _ = writeln!(self.stderr, "{}", escape::lines(note));
    }

    /// Writes an error to standard error, escaped as by [`line`](Output::line).
    pub(crate) fn error(&mut self, error: impl fmt::Display) {
        self.flush_results();
        let style = if self.colors_notes() { BAD } else { PLAIN };
        // As above.
        let _ = writeln!(self.stderr, "{style}error:{style:#} {}", escape::lines(error));
    }

    /// Writes the results so far, so that notes and errors follow them if both streams have one
    /// destination.
    fn flush_results(&mut self) {
        // The next write of results reports a failure.
        let _ = self.stdout.flush();
    }

    /// Starts to show the progress of work of `total` steps, named `what`.
    pub(crate) fn progress(&self, what: &'static str, total: u64) -> Progress {
        Progress::new(self.progress, what, total)
    }

    /// Starts to show the status of work of unknown length.
    pub(crate) fn status(&self) -> Status {
        Status::new(self.progress)
    }
}

/// Returns the number of columns of the terminal for results, if the terminal reports it.
fn columns() -> Option<u16> {
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(columns).filter(|columns| *columns > 0)
}

/// Runs `verb` with the process's own streams and returns its exit code. If a successful verb's
/// results cannot be written, returns [`UNUSABLE`].
pub fn with_process(verb: impl FnOnce(&mut Output<'_>) -> u8) -> u8 {
    let terminal = Terminal {
        stdout: io::stdout().is_terminal(),
        stderr: io::stderr().is_terminal(),
        variables: ColorVariables::read(|name| std::env::var_os(name)),
    };
    let mut stdout = BufWriter::new(io::stdout());
    let mut stderr = io::stderr();
    let child = |store: &Path, session: Uuid| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-child").arg(store).arg(session.to_string());
        Ok(command)
    };
    let interrupts = OnceCell::new();
    let pause = |wait| {
        // Signals are handled from the first wait on. Until then they end the process as usual.
        if interrupts.get().is_none() {
            let _ = interrupts.set(Interrupts::take_over()?);
        }
        interrupts.get().map_or(Ok(false), |interrupts: &Interrupts| interrupts.pause(wait))
    };
    let mut output = Output::new(&mut stdout, &mut stderr, &child);
    output.pause = &pause;
    output.is_process = true;
    output.progress = terminal.stderr;
    output.terminal = terminal;
    output.columns = if terminal.stdout { columns() } else { None };
    output.pager = if terminal.stdout { Pager::from_variables(|name| std::env::var_os(name)) } else { None };
    let code = verb(&mut output);
    match stdout.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe && code == HOLDS => {
            let _ = writeln!(io::stderr(), "error: the output cannot be written: {}", escape::display(error));
            UNUSABLE
        }
        _ => code,
    }
}
