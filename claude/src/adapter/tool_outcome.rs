//! Decides from the program's report of a call of one of its own tools whether the tool ended.
//!
//! A command that exits with another code than 0 has ended. Its changes remain, regardless of the
//! code, because `grep` without a match, `diff` and a failing test suite are ordinary work.
//! Measured with 2.1.100 and 2.1.332:
//!
//! | event | hook | text | outcome |
//! |---|---|---|---|
//! | the command exited with 0, or `grep` found nothing | `PostToolUse` | its output | ended |
//! | the command exited with 3 | `PostToolUseFailure`, `is_interrupt: false` | `Exit code 3`, then its output | ended |
//! | the command was killed by a signal from elsewhere | the same | for example `Exit code 144` | ended |
//! | it timed out | the same | `Exit code 143`; 2.1.332 adds `Command timed out after 1s` | stopped |
//! | the run was interrupted | none | `[Request interrupted by user`, or `The user doesn't want to proceed` | stopped |
//! | a permission is missing | none | `Permission to use Bash has been denied` | stopped |
//! | the arguments are refused before the call starts | none | `<tool_use_error>` | stopped |
//! | `Edit`, `Write` or `Read` fails | `PostToolUseFailure`, `is_interrupt: false` | the error | failed |
//! | an error of `Bash` without an exit code | any | any other | unclear |
//!
//! The changes of calls with the outcomes ended and unclear remain; all others are rolled back.

use serde_json::{Value, json};

/// Tools of the program that run a command.
const COMMANDS: [&str; 2] = ["Bash", "PowerShell"];

/// Default timeout of a command, in milliseconds.
const COMMAND_TIMEOUT_MS: i64 = 120_000;

/// Longest timeout that a call may set, in milliseconds.
const COMMAND_TIMEOUT_MAX_MS: i64 = 600_000;

/// Exit code of a terminated command, for example after a timeout.
const TERMINATED: i32 = 143;

/// Exit code of a killed command, for example after an interrupt.
const KILLED: i32 = 137;

/// Parts of the text of a call that was stopped while it ran.
const INTERRUPTED: [&str; 2] =
    ["[Request interrupted by user", "The user doesn't want to proceed with this tool use"];

/// Prefixes of the text of a call that did not run.
const NOT_RUN: [&str; 3] = ["Permission to use ", "Claude requested permissions to use ", "<tool_use_error>"];

/// Describes the outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NativeToolOutcome {
    /// The tool ended, and its changes remain. Contains the exit code of its command, if it is
    /// known.
    Ended(Option<i32>),
    /// It is unknown whether the tool ended. Its changes remain.
    Unclear,
    /// The tool failed, or was stopped. Its changes are rolled back.
    Failed,
}

/// Field that marks the result of a call with an unclear outcome, and its value.
const UNCLEAR: (&str, &str) = ("ended", "unknown");

/// Longest error in such a result, in bytes. The model reads all of it. A longer result would be
/// stored in a separate file, which a list of a session's calls does not read.
const ERROR_BYTES_MAX: usize = 32 << 10;

/// Returns the result of a call with an unclear outcome.
pub(super) fn unclear_result(error: &Value) -> Value {
    let text = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
    let error = match text.get(..text.floor_char_boundary(ERROR_BYTES_MAX)) {
        Some(begin) if begin.len() < text.len() => format!("{begin} ...").into(),
        _ => error.clone(),
    };
    json!({"error": error, UNCLEAR.0: UNCLEAR.1})
}

/// Returns whether the result of a call of one of the program's own tools states that it is unknown
/// whether the tool ended. The changes of such a call remain.
pub fn is_unclear(result: &foldlog::Value) -> bool {
    result.get(UNCLEAR.0).and_then(foldlog::Value::as_str) == Some(UNCLEAR.1)
}

/// Contains the program's report of a failed call.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldError<'a> {
    pub(super) tool: &'a str,
    pub(super) text: &'a str,
    /// Whether the program reports an interruption.
    pub(super) is_interrupt: bool,
    /// Whether a hook reports the error. Otherwise it is the result that the model reads.
    pub(super) is_hook: bool,
    /// Whether the timeout of the call's command had passed.
    pub(super) is_late: bool,
    /// Whether the run was interrupted before.
    pub(super) is_over: bool,
}

impl NativeToolOutcome {
    /// Returns the outcome of a call for which the program reports an error.
    pub(super) fn of_error(told: ToldError<'_>) -> NativeToolOutcome {
        let ToldError { tool, text, is_interrupt, is_hook, is_late, is_over } = told;
        let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
        let did_not_run = !is_hook && NOT_RUN.iter().any(|begin| text.starts_with(begin));
        // 2.1.100 adds the text of an interrupt to each command that exits with 137; in that case a
        // hook reports it.
        let is_stopped = is_interrupt || (!is_hook && (is_over || did_not_run || says(&INTERRUPTED)));
        if is_stopped || !COMMANDS.contains(&tool) {
            return NativeToolOutcome::Failed;
        }
        match exit_code_in(text) {
            Some(TERMINATED) if is_late || says_timed_out(text) => NativeToolOutcome::Failed,
            Some(TERMINATED | KILLED) if is_over => NativeToolOutcome::Failed,
            None if says_timed_out(text) => NativeToolOutcome::Failed,
            Some(code) => NativeToolOutcome::Ended(Some(code)),
            None => NativeToolOutcome::Unclear,
        }
    }

    /// Returns the outcome of a call with a known response.
    pub(super) fn of_answer(response: &Value) -> NativeToolOutcome {
        let is_error = ["is_error", "isError", "interrupted"]
            .into_iter()
            .any(|name| response.get(name).and_then(Value::as_bool).unwrap_or_default());
        if is_error {
            return NativeToolOutcome::Failed;
        }
        let code =
            ["exitCode", "exit_code", "code"].into_iter().find_map(|name| response.get(name)?.as_i64());
        NativeToolOutcome::Ended(code.and_then(|code| i32::try_from(code).ok()))
    }

    /// Converts outcomes that are not a clear success into failures: exit codes other than 0, and
    /// unclear outcomes.
    pub(super) fn strict(self) -> NativeToolOutcome {
        match self {
            NativeToolOutcome::Ended(None | Some(0)) => self,
            _ => NativeToolOutcome::Failed,
        }
    }
}

/// Returns the exit code at the start of the text of a failed command.
fn exit_code_in(text: &str) -> Option<i32> {
    let rest = text.strip_prefix("Error: ").unwrap_or(text).strip_prefix("Exit code ")?;
    rest.lines().next()?.trim().parse().ok()
}

/// Returns whether the program reports a timeout of the command. The command's output follows that
/// line.
fn says_timed_out(text: &str) -> bool {
    text.lines().take(2).any(|line| line.starts_with("Command timed out after "))
}

/// Returns the timeout of a call's command, in microseconds; `None` if the tool runs no command.
pub(super) fn time_of_command(tool: &str, input: &Value) -> Option<i64> {
    let given = input.get("timeout").and_then(Value::as_i64).filter(|timeout| *timeout > 0);
    let ms = given.unwrap_or(COMMAND_TIMEOUT_MS).min(COMMAND_TIMEOUT_MAX_MS);
    COMMANDS.contains(&tool).then_some(ms * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: ToldError<'_> = ToldError {
        tool: "Bash",
        text: "",
        is_interrupt: false,
        is_hook: true,
        is_late: false,
        is_over: false,
    };

    /// The texts are those of the two versions.
    #[test]
    fn texts_of_the_program_tell_what_ended_from_what_was_stopped() {
        let of = |text| NativeToolOutcome::of_error(ToldError { text, ..TOLD });
        let ended = |code| NativeToolOutcome::Ended(Some(code));
        assert_eq!(of("Exit code 3\nout\nerr"), ended(3));
        assert_eq!(of("Exit code 137\n[Request interrupted by user for tool use]"), ended(137));
        assert_eq!(of("Exit code 3\nout\nCommand timed out after 2s"), ended(3));
        assert_eq!(of("Exit code 143"), ended(143));
        assert_eq!(of("Exit code 143\nCommand timed out after 1s\nearly"), NativeToolOutcome::Failed);
        assert_eq!(of("spawn ENOENT"), NativeToolOutcome::Unclear);
        let late = ToldError { is_late: true, ..TOLD };
        assert_eq!(
            NativeToolOutcome::of_error(ToldError { text: "Exit code 143\nearly", ..late }),
            NativeToolOutcome::Failed
        );
        assert_eq!(NativeToolOutcome::of_error(ToldError { text: "Exit code 3", ..late }), ended(3));
        let interrupt = ToldError { text: "Exit code 3", is_interrupt: true, ..TOLD };
        assert_eq!(NativeToolOutcome::of_error(interrupt), NativeToolOutcome::Failed);
        assert_eq!(
            NativeToolOutcome::of_error(ToldError { tool: "Edit", text: "no such text", ..TOLD }),
            NativeToolOutcome::Failed
        );
    }

    #[test]
    fn results_without_a_hook_tell_what_was_interrupted_or_did_not_run() {
        let of = |text| NativeToolOutcome::of_error(ToldError { text, is_hook: false, ..TOLD });
        assert_eq!(of("Exit code 3"), NativeToolOutcome::Ended(Some(3)));
        for text in [
            "Exit code 137\n[Request interrupted by user for tool use]\nhalf",
            "The user doesn't want to proceed with this tool use. The tool use was rejected",
            "Permission to use Bash has been denied because Claude Code is running in don't ask mode.",
            "<tool_use_error>File has not been read yet.</tool_use_error>",
        ] {
            assert_eq!(of(text), NativeToolOutcome::Failed, "{text}");
        }
        assert_eq!(of("something else"), NativeToolOutcome::Unclear);
        let over = ToldError { text: "something else", is_hook: false, is_over: true, ..TOLD };
        assert_eq!(NativeToolOutcome::of_error(over), NativeToolOutcome::Failed);
    }

    #[test]
    fn the_time_of_a_command_is_that_of_its_call() {
        let of = |tool, timeout: i64| time_of_command(tool, &serde_json::json!({"timeout": timeout}));
        assert_eq!((of("Bash", 1_500), of("Bash", 0)), (Some(1_500_000), Some(120_000_000)));
        assert_eq!((of("Bash", i64::MAX), of("Edit", 5)), (Some(600_000_000), None));
    }
}
