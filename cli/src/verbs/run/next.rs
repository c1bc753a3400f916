//! Errors of a run without an answer, in the words of the command line, and the next step.

use std::fs;
use std::io::ErrorKind;
use std::iter;

use foldlog::{Session, filesystem};
use foldlog_agent::Error;
use foldlog_claude::{FailureKind, TurnFailure};
use foldlog_codec::escape;
use foldlog_view::error::next_after;

use super::{Args, or_leave_out};

impl Args {
    /// Returns the next step if a call could not capture an unreadable file of the workspace;
    /// `None` for any other error.
    fn next_unreadable(&self, error: &foldlog::Error) -> Option<String> {
        let foldlog::Error::Filesystem(filesystem::Error::Io { path, source, .. }) = error else {
            return None;
        };
        let workspace = fs::canonicalize(&self.workspace).ok()?;
        let below = path.strip_prefix(workspace).ok().filter(|below| !below.as_os_str().is_empty())?;
        (source.kind() == ErrorKind::PermissionDenied)
            .then(|| format!("make it readable{}", or_leave_out(iter::once(below))))
    }

    /// Returns the next step after a failed run: how to change the cause, and the command that
    /// resumes.
    pub(super) fn next(&self, error: &Error, session: &Session, message: Option<&str>, json: bool) -> String {
        let again = |without| self.resume_command(session, message, json, without);
        let resume = || format!("resume: {}", again(None));
        match error {
            Error::Engine(foldlog::Error::Uncaptured { .. }) => {
                return format!(
                    "free disk space, or correct the cause that the error names, and {}; or add --without-capture to this command: the \
                     changes since the start of the call are then lost",
                    resume()
                );
            }
            Error::Engine(error) => {
                let next = self.next_unreadable(error).map(|next| format!("{next}; {}", resume()));
                return next.or_else(|| next_after(error)).unwrap_or_else(resume);
            }
            Error::ToolIdempotency { .. } | Error::Suspended { .. } => {
                return format!(
                    "decide: `foldlog settle {} OPERATION failed --by WHO --reason WHY`, and {}",
                    escape::path(session.dir()),
                    resume()
                );
            }
            Error::DeadlineExceeded { .. } => {
                return format!(
                    "resume with a later --deadline, or without one: {}",
                    again(Some("--deadline"))
                );
            }
            _ => {}
        }
        match TurnFailure::kind_of(error) {
            Some(FailureKind::MaxTurns) => {
                format!("resume with a larger --max-turns, or without one: {}", again(Some("--max-turns")))
            }
            Some(FailureKind::MaxBudget) => format!(
                "resume with a larger --max-budget-usd, or without one: {}",
                again(Some("--max-budget-usd"))
            ),
            Some(FailureKind::ModelNotFound) if self.model.is_some() => format!(
                "name another --model, such as sonnet, or resume with the program's default: {}",
                again(Some("--model"))
            ),
            Some(FailureKind::ModelNotFound) => {
                format!("add --model with a model that the provider offers, and resume: {}", again(None))
            }
            Some(FailureKind::Authentication) => format!(
                "set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN to a key that the provider accepts, and {}",
                resume()
            ),
            Some(FailureKind::Refused) => format!(
                "the same conversation would be refused again: start a new run without --resume, or write another message into a file \
                 and add --prompt FILE to {}",
                again(None)
            ),
            Some(FailureKind::PromptTooLong) => {
                "the conversation is too long for the model: start a new run, without --resume".to_owned()
            }
            _ => resume(),
        }
    }
}
