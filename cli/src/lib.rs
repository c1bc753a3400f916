//! The binary `foldlog`: runs agents as sessions, and reads, checks and repairs logs without the
//! code of the host that wrote them.
//!
//! [`run`] takes arguments and an [`Output`] and returns the exit code, so that a test can run a
//! verb in its own process.
//!
//! | module | contains |
//! |---|---|
//! | [`cli`] | the command line, with the options that all verbs have |
//! | [`command`] | the trait by which each verb describes itself |
//! | [`verbs`] | the list of verbs, and one file for each: options, help, facts and implementation |
//! | [`runs`] | recorded runs of other tools' agents, and their conversion to sessions |
//! | [`readers`] | opening a session or a store at a path, with notes for its reader |
//! | [`output`] | the streams for results, notes and errors |
//! | [`style`] | colours, and the conditions for their use |
//! | [`pager`] | the program through which long results are shown on a terminal |
//! | [`progress`] | a progress bar, or a line of status, for long work |
//! | `remote` | reading sessions from the places that store them |
//! | `raw_json` | JSON that is printed as another program wrote it |
//! | [`replay_check`] | a fold that checks a log's rollbacks |
//! | `agents` | the programs whose hooks report their tool calls |
//! | `workspaces` | the directories of workspaces that commands restore |
//! | `checkpoint_text`, `difference_text` | lines about checkpoints and differences |
//! | `value_parsers` | values of options that several commands have |
//! | `run_failure` | errors of a run without an answer |
//! | `redact` | hiding passwords and keys of typed URLs in errors |
//! | `help` | the help of the binary, with its commands in groups |
//! | `hints` | the commands in errors and notes, with the paths of this command line |
//! | [`failure`] | the errors of verbs, with exit codes and next steps |
//!
//! The documents that verbs print, the HTML report and the live page are in the crate
//! `foldlog-view`.
//!
//! # Invariants
//!
//! 1. Results go to standard output; notes, progress and errors go to standard error.
//! 2. Only verbs whose [`Access`](command::Access) says so change existing sessions.
//! 3. The exit code is 0 on success, 1 if checked data does not hold (a log, captures or a tree of
//!    files are damaged or incomplete, a replay diverges, or a state is invalid), and 2 for wrong
//!    usage, for unreadable input and for a run without an answer.
//! 4. A reader that closes the pipe early is no error.
//! 5. Nothing from a log, a file name or the system reaches a terminal or JSON unescaped.
//! 6. No password and no key reaches a terminal or JSON, whether it comes from the environment, a
//!    typed URL or a server's answer.
//! 7. Colours do not change the printed characters, and JSON has no colours.

mod agents;
mod checkpoint_text;
pub mod cli;
pub mod command;
mod consent;
mod conversations;
mod difference_text;
pub mod failure;
mod help;
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
pub mod replay_check;
mod run_failure;
pub mod runs;
pub mod style;
mod timelines;
mod value_parsers;
pub mod verbs;
mod workspaces;

pub use cli::{commands, run};
pub use failure::CommandError;
pub use output::Output;
