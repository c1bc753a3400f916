//! The agent's program: its location and its leading arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use foldlog_codec::escape;

use super::Args;
use super::args::absolute;
use super::tools;
use crate::failure::{CommandError, Result};

/// Directories that are searched for a program if `PATH` is not set.
const SEARCHED: &str = "/bin:/usr/bin";

/// Interpreter of a program whose name ends in `.js`.
const INTERPRETER: &str = "node";

/// The words that start the program.
pub(super) struct Program {
    /// The executable: a path, or a name that is looked up in `PATH`.
    pub(super) file: PathBuf,
    /// Arguments before all others: the script, if an interpreter is started.
    pub(super) leading: Vec<OsString>,
}

/// Returns whether a name is looked up in `PATH`.
pub(super) fn is_looked_up(program: &Path) -> bool {
    !is_script(program)
        && program.components().count() <= 1
        && !program.as_os_str().as_encoded_bytes().contains(&b'/')
}

fn is_script(program: &Path) -> bool {
    program.extension().is_some_and(|extension| extension == "js")
}

impl Program {
    /// Returns the words that start a given program. The program runs in the workspace, so a
    /// relative path is resolved against this process's directory.
    pub(super) fn from_path(program: &Path) -> Program {
        if is_looked_up(program) {
            return Program { file: program.to_owned(), leading: Vec::new() };
        }
        let path = absolute(program);
        match is_script(program) {
            true => Program { file: INTERPRETER.into(), leading: vec![path.into_os_string()] },
            false => Program { file: path, leading: Vec::new() },
        }
    }
}

impl Args {
    /// Checks that the program offers the given tools, and runs as this user in the permission
    /// mode.
    pub(super) fn check_offered(&self) -> Result<()> {
        let adapter = self.claude()?;
        adapter.check_root().map_err(|_| {
            let what = "the program does not run as root with --permission-mode bypassPermissions";
            let next = "run it as another user, or leave out --permission-mode: the tools that --tool names run anyway; in a \
                        sandbox, add --env IS_SANDBOX=1";
            CommandError::usage(what, next)
        })?;
        tools::check_offered(&self.tools()?, &adapter)
    }

    /// Checks that the program exists and is executable.
    pub(super) fn check_program(&self) -> Result<()> {
        let install =
            "install it by `npm install -g @anthropic-ai/claude-code`, or give its path: --program PATH";
        let Program { file, leading } = Program::from_path(&self.program);
        if let Some(script) = leading.first() {
            let script = Path::new(script);
            if !script.is_file() {
                return Err(CommandError::usage(
                    format!("the program {} does not exist", escape::path(script)),
                    install,
                ));
            }
        }
        if is_looked_up(&file) {
            let path = self.search_path();
            let is_there = std::env::split_paths(&path).any(|directory| is_program(&directory.join(&file)));
            return match is_there {
                true => Ok(()),
                false if leading.is_empty() => {
                    let name = escape::path(&file);
                    Err(CommandError::usage(format!("the program `{name}` is not in PATH"), install))
                }
                false => {
                    let script = escape::path(&self.program);
                    let what = format!("`{INTERPRETER}`, which runs {script}, is not in PATH");
                    Err(CommandError::usage(what, "install Node.js, or add its directory to PATH"))
                }
            };
        }
        let shown = escape::path(&file);
        if !file.exists() {
            return Err(CommandError::usage(format!("the program {shown} does not exist"), install));
        }
        match is_program(&file) {
            true => Ok(()),
            false => {
                let what = format!("{shown} is not a program: it is a directory, or not executable");
                Err(CommandError::usage(what, "give the path of an executable file: --program PATH"))
            }
        }
    }

    /// Returns the directories in which the program is looked up: those of its own `PATH`.
    fn search_path(&self) -> OsString {
        let given = self.env.iter().rev().find_map(|one| one.strip_prefix("PATH="));
        given
            .map(OsString::from)
            .or_else(|| std::env::var_os("PATH"))
            .unwrap_or_else(|| OsStr::new(SEARCHED).to_owned())
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
