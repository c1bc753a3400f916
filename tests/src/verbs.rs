//! The binary's verbs, run in the test's own process.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;

use foldlog_replay::Output;

/// What a verb said and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Its exit code.
    pub code: u8,
    /// Its results.
    pub stdout: String,
    /// Its notes and errors.
    pub stderr: String,
}

/// Runs `foldlog` with these arguments.
///
/// # Panics
///
/// Where it prints what is no text.
pub fn foldlog<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Ran {
    let child = |_: &Path, _| Err(std::io::Error::other("only the test of the demo runs a child"));
    foldlog_with(arguments, &child)
}

/// As `foldlog`, with a child for the demo.
///
/// # Panics
///
/// As `foldlog`.
pub fn foldlog_with<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    child: &foldlog_replay::output::ChildCommand<'_>,
) -> Ran {
    ran(arguments, child, &|_| Ok(false))
}

/// As `foldlog`, for a verb that goes on without end: `pause` is called where it waits, and says whether it is
/// to go on.
///
/// # Panics
///
/// As `foldlog`.
pub fn foldlog_following<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    pause: impl FnMut() -> bool,
) -> Ran {
    let child = |_: &Path, _| Err(std::io::Error::other("only the test of the demo runs a child"));
    let pause = RefCell::new(pause);
    ran(arguments, &child, &|_| Ok((pause.borrow_mut())()))
}

fn ran<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    child: &foldlog_replay::output::ChildCommand<'_>,
    pause: &foldlog_replay::output::Pause<'_>,
) -> Ran {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let arguments = std::iter::once("foldlog".into()).chain(arguments.into_iter().map(Into::into));
    let mut output = Output::new(&mut stdout, &mut stderr, child);
    output.pause = pause;
    let code = foldlog_replay::run(arguments, &mut output);
    let text = |bytes| String::from_utf8(bytes).expect("results are text");
    Ran { code, stdout: text(stdout), stderr: text(stderr) }
}
