//! Runs the binary's verbs in the test's own process.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;

use foldlog_cli::Output;

/// The output of a verb, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub code: u8,
    /// Text on standard output: results.
    pub stdout: String,
    /// Text on standard error: notes and errors.
    pub stderr: String,
}

/// Runs `foldlog` with these arguments.
pub fn foldlog<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Ran {
    let child = |_: &Path, _| Err(std::io::Error::other("only the test of the demo runs a child"));
    foldlog_with(arguments, &child)
}

/// Runs `foldlog` with these arguments; the results are formatted for a terminal of this many
/// columns.
pub fn foldlog_on<A: Into<OsString>>(columns: u16, arguments: impl IntoIterator<Item = A>) -> Ran {
    let child = |_: &Path, _| Err(std::io::Error::other("only the test of the demo runs a child"));
    ran(arguments, &child, &|_| Ok(false), Some(columns))
}

/// Runs `foldlog` with these arguments, and with a child process for the demo.
pub fn foldlog_with<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    child: &foldlog_cli::output::ChildCommand<'_>,
) -> Ran {
    ran(arguments, child, &|_| Ok(false), None)
}

/// Runs a verb that has no end: `pause` is called when it waits, and returns whether to continue.
pub fn foldlog_following<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    pause: impl FnMut() -> bool,
) -> Ran {
    let child = |_: &Path, _| Err(std::io::Error::other("only the test of the demo runs a child"));
    let pause = RefCell::new(pause);
    ran(arguments, &child, &|_| Ok((pause.borrow_mut())()), None)
}

fn ran<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    child: &foldlog_cli::output::ChildCommand<'_>,
    pause: &foldlog_cli::output::Pause<'_>,
    columns: Option<u16>,
) -> Ran {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let arguments = std::iter::once("foldlog".into()).chain(arguments.into_iter().map(Into::into));
    let mut output = Output::new(&mut stdout, &mut stderr, child);
    output.pause = pause;
    output.columns = columns;
    let code = foldlog_cli::run(arguments, &mut output);
    let text = |bytes| String::from_utf8(bytes).expect("results are text");
    Ran { code, stdout: text(stdout), stderr: text(stderr) }
}
