//! Errors of a run without an answer: their text in the words of the command line, and the output
//! of `foldlog run --json`.

use foldlog::Session;
use foldlog_agent::{Error, EvaluationPhase};
use foldlog_claude::{FailureKind, TurnFailure};
use foldlog_codec::escape;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::{CommandError, UNUSABLE};

/// Describes why a run gave no answer.
#[derive(Debug, Serialize)]
pub(crate) struct RunFailure {
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
    pub(crate) fn from_failure(failure: &CommandError, session: Option<&Session>) -> RunFailure {
        let phase = match failure {
            CommandError::Run { error, .. } => error.phase().map(EvaluationPhase::name),
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

/// Prefixes of texts that already name the failed part.
const NAMED: [&str; 5] =
    ["spawn failed: ", "initialize failed: ", "request failed: ", "response failed: ", "stop failed: "];

/// Formats the error of a run. If an option ended it, names the option; otherwise, the failed part
/// of the run comes first and is named once.
pub(crate) fn failure_text(error: &Error) -> String {
    let text = match error {
        Error::TooManyRequests { max } => {
            return format!("the run ended after {max} of the model's answers: --max-turns allows no more");
        }
        Error::DeadlineExceeded { phase } => {
            return format!("the time limit of --deadline was reached {}", while_phase(*phase));
        }
        Error::Cancelled => return "the run was interrupted".to_owned(),
        Error::PromptEvaluation { .. } if TurnFailure::kind_of(error) == Some(FailureKind::MaxBudget) => {
            return "the run reached the cost limit of --max-budget-usd".to_owned();
        }
        // The next step follows on the next line.
        Error::Refused(text) => format!("the model refused to answer: {}", lines(text)),
        // The prompt is one of foldlog's own. The program's own output is in lines that are marked
        // when they are printed.
        Error::PromptEvaluation { reason, .. } => lines(reason),
        error => error.to_string(),
    };
    match error.phase().filter(|_| !NAMED.iter().any(|named| text.starts_with(named))) {
        Some(phase) => format!("{phase} failed: {text}"),
        None => text,
    }
}

/// Escapes a text line by line.
fn lines(text: &str) -> String {
    let lines = text.split('\n').map(|line| escape::text(line.strip_prefix(escape::MARK).unwrap_or(line)));
    lines.collect::<Vec<_>>().join("\n")
}

fn while_phase(phase: EvaluationPhase) -> &'static str {
    match phase {
        EvaluationPhase::PromptRender => "while the prompt was rendered",
        EvaluationPhase::Request => "while the model was asked",
        EvaluationPhase::Response => "while the answer was read",
        EvaluationPhase::Tool => "while a tool ran",
        _ => "before the next step",
    }
}
