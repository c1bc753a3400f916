//! Results of turns, and reasons of failures.

use serde_json::{Map, Value};

use super::message::{ClaudeUsage, count, flag, text, texts};

/// Contains the end of a turn: the program's message `result`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnResult {
    /// `success`, `error_during_execution`, `error_max_turns`, `error_max_budget_usd`, or another
    /// one. A failure of the model's provider is also `success`, with `is_error` set.
    pub subtype: String,
    /// Whether the turn failed.
    pub is_error: bool,
    /// Last text of the model, or the text of the failure.
    pub result: Option<String>,
    /// Errors, in the program's words.
    pub errors: Vec<String>,
    /// Output that matches the JSON schema. A turn may succeed without it.
    pub structured_output: Option<Value>,
    /// HTTP status of the provider's failure.
    pub api_error_status: Option<u64>,
    /// Reason for the end of the turn, such as `completed`, `max_turns` or `aborted_tools`.
    pub terminal_reason: Option<String>,
    /// Reason of the model for ending its last answer, such as `end_turn` or `refusal`; `None` if
    /// the program does not report it, or the stream ended early.
    pub stop_reason: Option<String>,
    /// Whether the program reports that the stream of the last answer ended before the answer did.
    pub is_cut: bool,
    /// Number of answers of the model.
    pub num_turns: Option<u64>,
    /// Id of the session.
    pub session_id: Option<String>,
    /// Usage of this turn.
    pub usage: Option<ClaudeUsage>,
    /// Cost of the whole session so far, including resumed parts, in US dollars.
    pub total_cost_usd: Option<f64>,
    /// Usage and cost per model, over the whole session so far.
    pub model_usage: Option<Value>,
    /// Usage and cost per model since the last result; older versions of the program do not report
    /// it.
    pub model_usage_since_last_result: Option<Value>,
    /// Refused calls.
    pub permission_denials: Vec<Value>,
    /// Duration of the turn, in milliseconds.
    pub duration_ms: Option<u64>,
}

/// Classifies the failure of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The provider limits the rate (429).
    RateLimited,
    /// The provider is overloaded (529).
    Overloaded,
    /// The provider had an internal failure (5xx).
    ProviderFailed,
    /// The provider cannot be reached.
    Unreachable,
    /// The provider refuses the key (401, 403).
    Authentication,
    /// The provider does not know the model (404).
    ModelNotFound,
    /// The provider refuses the request (any other 4xx).
    InvalidRequest,
    /// The conversation is too long for the model.
    PromptTooLong,
    /// The model reached the limit of answers.
    MaxTurns,
    /// The turn reached the limit of cost.
    MaxBudget,
    /// The turn was interrupted.
    Aborted,
    /// The program does not know the session to be resumed.
    SessionNotFound,
    /// The model or its safeguards refuse to answer.
    Refused,
    /// The stream of the last answer ended before the answer did. Versions before 2.1.330 treat the
    /// received part as the answer.
    Cut,
    /// Anything else.
    Other,
}

impl FailureKind {
    /// Returns whether the same turn may succeed later: the provider limits the rate, is
    /// overloaded, failed or cannot be reached, or its answer was cut.
    pub fn is_retryable(self) -> bool {
        use FailureKind::{Cut, Overloaded, ProviderFailed, RateLimited, Unreachable};
        matches!(self, Cut | RateLimited | Overloaded | ProviderFailed | Unreachable)
    }
}

/// Start of the program's error for an unknown session.
const NO_CONVERSATION: &str = "No conversation found with session ID";

/// Names of the errors of a provider that cannot be reached.
const UNREACHABLE: [&str; 5] = ["ECONNREFUSED", "ECONNRESET", "ENOTFOUND", "ETIMEDOUT", "ConnectionRefused"];

impl TurnResult {
    pub(super) fn from_object(mut object: Map<String, Value>) -> TurnResult {
        let denials = object.remove("permission_denials");
        let num_turns = count(&object, "num_turns");
        let has_answer =
            object.get("result").and_then(Value::as_str).is_some_and(|answer| !answer.is_empty());
        // A turn ended by a hook, or a command of the program, has no reason either.
        let is_cut = object.get("stop_reason").is_some_and(Value::is_null)
            && text(&object, "terminal_reason").as_deref() == Some("completed")
            && num_turns.is_some_and(|turns| turns > 0)
            && object.get("structured_output").is_none_or(Value::is_null)
            && has_answer;
        TurnResult {
            subtype: text(&object, "subtype").unwrap_or_default(),
            is_error: flag(&object, "is_error"),
            result: text(&object, "result"),
            errors: texts(&object, "errors"),
            structured_output: object.remove("structured_output").filter(|output| !output.is_null()),
            api_error_status: count(&object, "api_error_status"),
            terminal_reason: text(&object, "terminal_reason"),
            stop_reason: text(&object, "stop_reason"),
            is_cut,
            num_turns,
            session_id: text(&object, "session_id"),
            usage: object.get("usage").and_then(ClaudeUsage::from_value),
            total_cost_usd: object.get("total_cost_usd").and_then(Value::as_f64),
            model_usage: object.remove("modelUsage"),
            model_usage_since_last_result: object.remove("model_usage_since_last_result"),
            permission_denials: match denials {
                Some(Value::Array(denials)) => denials,
                _ => Vec::new(),
            },
            duration_ms: count(&object, "duration_ms"),
        }
    }

    /// Returns the reason of a failure, or `None` if the turn did not fail. A turn that a hook
    /// ended did not fail.
    pub fn failure(&self) -> Option<FailureKind> {
        let reason = self.terminal_reason.as_deref().unwrap_or_default();
        if reason.starts_with("aborted_") {
            return Some(FailureKind::Aborted);
        }
        if !self.is_error && !self.subtype.starts_with("error_") {
            return self.is_cut.then_some(FailureKind::Cut);
        }
        Some(match (self.subtype.as_str(), reason) {
            ("error_max_turns", _) | (_, "max_turns") => FailureKind::MaxTurns,
            ("error_max_budget_usd", _) | (_, "budget_exhausted") => FailureKind::MaxBudget,
            (_, "prompt_too_long") => FailureKind::PromptTooLong,
            _ if self.stop_reason.as_deref() == Some("refusal") => FailureKind::Refused,
            _ if self.errors.iter().any(|error| error.contains(NO_CONVERSATION)) => {
                FailureKind::SessionNotFound
            }
            _ => self.provider_failure(),
        })
    }

    /// Returns the program's description of a failure, unescaped: its text, or its errors.
    pub fn failure_text(&self) -> String {
        match &self.result {
            Some(result) if !result.is_empty() => result.clone(),
            _ => self.errors.join("; "),
        }
    }

    /// Classifies a failure of the provider by its status, or by its text, because older versions
    /// of the program report no status.
    fn provider_failure(&self) -> FailureKind {
        let text = self.failure_text();
        let contains = |names: &[&str]| names.iter().any(|name| text.contains(name));
        match self.api_error_status.or_else(|| status_in(&text)) {
            Some(429) => FailureKind::RateLimited,
            Some(529) => FailureKind::Overloaded,
            Some(500..600) => FailureKind::ProviderFailed,
            Some(401 | 403) => FailureKind::Authentication,
            Some(404) => FailureKind::ModelNotFound,
            Some(400..500) => FailureKind::InvalidRequest,
            _ if contains(&UNREACHABLE) => FailureKind::Unreachable,
            _ if contains(&["authentication_failed", "/login", "Invalid API key"]) => {
                FailureKind::Authentication
            }
            _ if contains(&["issue with the selected model"]) => FailureKind::ModelNotFound,
            _ => FailureKind::Other,
        }
    }
}

/// Returns the status in the text of a failure, as in `API Error: 529 {...}`.
fn status_in(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("API Error: ")?;
    let digits = rest.get(..3)?;
    let is_status = rest.get(3..).is_none_or(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()));
    digits.parse().ok().filter(|status| is_status && (400..600).contains(status))
}
