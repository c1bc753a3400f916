//! The JSON output of `foldlog run --json` for a run without an answer.

use foldlog::Session;
use foldlog_codec::escape;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{CommandError, UNUSABLE};

/// Describes why a run gave no answer.
#[derive(Debug, Serialize)]
pub struct RunFailure {
    /// The session; `None` if none was created or opened.
    session: Option<Uuid>,
    dir: Option<String>,
    error: String,
    /// Part of the run that failed; `None` if none ran, or the error belongs to no part.
    phase: Option<&'static str>,
    next: Option<String>,
    exit_code: u8,
}

impl RunFailure {
    pub(super) fn from_failure(failure: &CommandError, session: Option<&Session>) -> RunFailure {
        let phase = match failure {
            CommandError::Run { error, .. } => error.phase().map(foldlog_agent::EvaluationPhase::name),
            _ => None,
        };
        RunFailure {
            session: session.map(Session::id),
            dir: session.map(|session| escape::path(session.dir())),
            error: failure.to_string(),
            phase,
            next: failure.next(),
            exit_code: failure.exit_code(),
        }
    }

    /// Converts a message of the command line's parser about a run's options. Its first paragraph
    /// is the error.
    pub(crate) fn of_options(said: &str) -> RunFailure {
        let said = said.trim_start_matches("error: ");
        let (error, _) = said.split_once("\n\n").unwrap_or((said, ""));
        RunFailure {
            session: None,
            dir: None,
            error: error.lines().map(str::trim).collect::<Vec<_>>().join(" "),
            phase: None,
            next: Some("`foldlog run --help` lists the options".to_owned()),
            exit_code: UNUSABLE,
        }
    }
}
