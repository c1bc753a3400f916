//! Runs the binary's verbs in the test's own process.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;

use foldlog_cli::Output;
use foldlog_cli::command::{Access, Target};

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

/// Returns the examples of all verbs that read a session or a store, without the program's name. If
/// an option would make a verb write, it is left out. `SESSION`, `STORE` and `report.html` are
/// placeholders.
pub fn reading_examples() -> Vec<String> {
    let listed = foldlog_cli::commands().into_iter().map(|listed| (listed.name, listed.metadata));
    let reads = listed.filter(|(_, verb)| {
        let reads = match verb.access {
            Access::Reads | Access::ChangesWith(_) => true,
            Access::ChangesUnless(option) => verb.example.contains(option),
            Access::Creates | Access::Changes => false,
        };
        reads && verb.target != Target::Nothing
    });
    let example = |(name, verb): (String, foldlog_cli::command::CommandMetadata)| {
        let mut words: Vec<&str> = verb.example.split(' ').skip(1).collect();
        if let Access::ChangesWith(option) = verb.access {
            words.retain(|word| *word != option);
        }
        if name == "view" {
            words.push("--no-open");
        }
        words.join(" ")
    };
    reads.map(example).collect()
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
