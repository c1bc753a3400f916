//! The command line of a hook: the program in it, and how one of foldlog's is recognised.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use foldlog_codec::escape;
use foldlog_view::shell::quote_word;

use crate::agents::AgentProgram;
use crate::failure::{CommandError, Result};

/// Name of the program; names of its copies begin with it.
const NAME: &str = "foldlog";

/// Returns the words after the program by which one of foldlog's hooks is recognised.
fn words(agent: &AgentProgram) -> [&'static str; 3] {
    ["hook", "event", agent.name]
}

/// Returns the command of the hooks in a file that people without foldlog use too.
pub(super) fn shared_command(agent: &AgentProgram) -> String {
    format!("command -v {NAME} >/dev/null || exit 0; {NAME} {}", words(agent).join(" "))
}

/// Returns the path by which this program was called, or the path of its file if that is not known.
///
/// A link is not resolved, since links to a program often outlive its file: a package manager
/// replaces the file at each upgrade.
///
/// # Errors
///
/// [`CommandError::usage`] if the path is unknown or its name does not begin with `foldlog`, by
/// which its hooks are recognised later.
pub(super) fn this_program() -> Result<PathBuf> {
    let gone = |reason: String| {
        CommandError::usage(format!("the path of this program is unknown: {reason}"), "call it by its path")
    };
    let file = std::env::current_exe().map_err(|error| gone(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| gone(format!("{}: {error}", escape::path(&file))))?;
    let called = std::env::args_os().next().and_then(path_called);
    let called = called.filter(|path| path.metadata().is_ok_and(|other| is_same(&metadata, &other)));
    let program = called.unwrap_or(file);
    if !is_named(&program) {
        let what = format!("the name of {} does not begin with `{NAME}`", escape::path(&program));
        return Err(CommandError::usage(what, format!("call it by a name that does, such as `{NAME}`")));
    }
    Ok(program)
}

/// Returns the absolute path of a program that was called by this name.
fn path_called(name: OsString) -> Option<PathBuf> {
    let path = Path::new(&name);
    if path.components().count() > 1 {
        return std::path::absolute(path).ok();
    }
    on_search_path(path)
}

fn on_search_path(name: &Path) -> Option<PathBuf> {
    let variable = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&variable).map(|directory| directory.join(name));
    paths.find(|path| is_executable(path)).and_then(|path| std::path::absolute(path).ok())
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn is_named(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(NAME.as_bytes()))
}

/// Returns the command of a hook that runs a program.
///
/// # Errors
///
/// [`CommandError::usage`] if the path contains characters that no shell quotes alike.
pub(super) fn hook_command(program: &Path, agent: &AgentProgram) -> Result<String> {
    let quoted = quote_word(program.as_os_str());
    if quoted.starts_with('$') {
        let what = format!("{} contains unprintable characters", escape::path(program));
        return Err(CommandError::usage(what, "install foldlog at another path"));
    }
    Ok(format!("{quoted} {}", words(agent).join(" ")))
}

/// Returns the program of a hook's command, if it is one of foldlog's.
pub(super) fn program_of(command: &str, agent: &AgentProgram) -> Option<PathBuf> {
    let own = words(agent);
    let words = shlex::split(command)?;
    let found = words.windows(4).find(|words| {
        words.iter().skip(1).map(String::as_str).eq(own) && words.first().is_some_and(is_program)
    });
    found?.first().map(PathBuf::from)
}

fn is_program(word: impl AsRef<Path>) -> bool {
    is_named(word.as_ref())
}

/// Returns the command that replaces an older one of foldlog's. Options at its end remain.
pub(super) fn replacement(command: &str, older: &str, agent: &AgentProgram) -> String {
    let words = words(agent).join(" ");
    let options = older.split_once(&words).map_or("", |(_, options)| options);
    format!("{command}{options}")
}

/// A program that hooks run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct ProgramState {
    /// Path, or name on the search path.
    pub(super) program: String,
    pub(super) exists: bool,
    pub(super) is_executable: bool,
    /// Whether it is the running program.
    pub(super) is_this: bool,
}

impl ProgramState {
    pub(super) fn of(program: &Path) -> ProgramState {
        let found = match program.components().count() {
            1 => on_search_path(program),
            _ => Some(program.to_owned()).filter(|path| path.exists()),
        };
        let this = std::env::current_exe().and_then(|path| path.metadata());
        let other = found.as_ref().and_then(|path| path.metadata().ok());
        ProgramState {
            program: escape::path(program),
            exists: found.is_some(),
            is_executable: found.as_deref().is_some_and(is_executable),
            is_this: this.is_ok_and(|this| other.is_some_and(|other| is_same(&this, &other))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Agent;

    #[test]
    fn foldlogs_hooks_are_recognised_by_their_command() {
        let claude = Agent::Claude.program();
        let program = |command: &str| program_of(command, claude).map(|path| path.display().to_string());
        for path in ["/usr/bin/foldlog", "/home/a da/it's/foldlog", "/opt/foldlog-0.2"] {
            assert_eq!(program(&hook_command(Path::new(path), claude).unwrap()).as_deref(), Some(path));
        }
        assert_eq!(program(&shared_command(claude)).as_deref(), Some("foldlog"));
        assert_eq!(program("foldlog hook event claude --strict").as_deref(), Some("foldlog"));
        for other in [
            "echo hook event claude",
            "/usr/bin/other hook event claude",
            "foldlog hook event codex",
            "foldlog stats",
            "'foldlog hook event claude",
            "",
        ] {
            assert_eq!(program(other), None, "{other}");
        }
    }

    #[test]
    fn a_path_that_shells_quote_differently_is_refused() {
        assert!(hook_command(Path::new("/a\nb/foldlog"), Agent::Claude.program()).is_err());
    }

    #[test]
    fn a_replaced_command_keeps_its_options() {
        assert_eq!(
            replacement(
                "/new/foldlog hook event claude",
                "/old/foldlog hook event claude --strict",
                Agent::Claude.program()
            ),
            "/new/foldlog hook event claude --strict"
        );
    }
}
