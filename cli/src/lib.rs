//! The binary `foldlog`: runs agents as sessions, and reads, checks and repairs logs without the code of the host that wrote
//! them.
//!
//! [`run`] takes arguments and an [`Output`] and returns the exit code, so that a test runs a verb in its own process.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | the list of verbs, and the options that all have |
//! | [`verbs`] | what each verb does, its options and help, in one file a verb |
//! | [`runs`] | recorded runs of other tools' agents, and how they become sessions |
//! | [`readers`] | opening a session or a store at a path, with notes of what a reader should know |
//! | [`output`] | the streams for results, notes and errors |
//! | [`style`] | colours, and when they are used |
//! | [`pager`] | the program through which long results are shown on a terminal |
//! | [`progress`] | a progress bar, or a line of status, for long work |
//! | `remote` | sessions in the places that hold them, read there |
//! | `raw_json` | JSON that is printed as another program wrote it |
//! | `redact` | passwords and keys in URLs that were typed, hidden where an error quotes them |
//! | `hints` | the commands that errors and notes tell a person to run, with the paths of this command line |
//! | [`failure`] | why a verb ends early, its exit code, and what to do next |
//!
//! The documents that verbs print, the HTML report and the live page are in the crate `foldlog-view`.
//!
//! # Invariants
//!
//! 1. Results go to standard output; notes, progress and errors go to standard error.
//! 2. Only `run`, `recover`, `restore`, `rewind`, `settle`, `compact`, `push`, `takeover` and `validate --repair` write into a session
//!    that exists; `run`, `import`, `salvage` and `demo` write new ones, and `backup` and `pull` write copies.
//! 3. The exit code is 0 if what was asked holds, 1 if a log does not hold, 2 for wrong usage, for what cannot be read and for
//!    a run without an answer.
//! 4. A reader that closes the pipe early is no error.
//! 5. Nothing from a log, a file name or the system reaches a terminal or JSON unescaped.
//! 6. No password and no key reaches a terminal or JSON, whether it stands in the environment, in a URL that was typed or in what a
//!    server answers.
//! 7. Colours change no character of what is printed otherwise, and JSON has none.

pub mod cli;
mod conversations;
pub mod failure;
mod hints;
mod interrupts;
pub mod output;
mod output_file;
pub mod pager;
pub mod progress;
mod raw_json;
pub mod readers;
mod redact;
mod remote;
pub mod runs;
pub mod style;
pub mod verbs;

pub use cli::run;
pub use failure::CommandError;
pub use output::Output;
