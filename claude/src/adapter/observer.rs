//! Reports about the program's own calls to an observer of the host.

use std::fmt::Debug;

use serde_json::Value;

use super::arrival::{POST_TOOL_USE, POST_TOOL_USE_FAILURE};

/// Observes the calls of the program's own tools, for records outside of the session.
///
/// A call is described by the JSON of the program's hooks. The thread of the evaluation reports each
/// call, and waits for the observer. A replay reports none.
pub trait CallObserver: Debug + Send + Sync {
    /// Reports a call whose start record is written, and which the program is about to run. `hook` is
    /// the input of `PreToolUse`.
    fn call_begins(&self, hook: &Value);

    /// Reports a call whose end record is written, and whose changes are rolled back if it failed.
    /// `hook` has the form of `PostToolUse` or `PostToolUseFailure`, without a duration.
    fn call_ended(&self, hook: &Value);

    /// Takes a text for the model, which reads it with the next result. The log contains it only in
    /// the program's transcript.
    fn take_text(&self) -> Option<String>;
}

/// Returns the hook after a call, from the one before it. `text` is the error of a failed call, and
/// `response` the result of any other one.
///
/// The duration is left out. Between the two reports, foldlog also captures the workspace, so the
/// time at which the tool started does not follow from the duration.
pub(super) fn hook_after(before: &Value, is_error: bool, text: &str, response: &Value) -> Value {
    let mut hook = before.clone();
    if let Value::Object(fields) = &mut hook {
        let (event, field, value) = match is_error {
            true => (POST_TOOL_USE_FAILURE, "error", text.into()),
            false => (POST_TOOL_USE, "tool_response", response.clone()),
        };
        fields.insert("hook_event_name".to_owned(), event.into());
        fields.insert(field.to_owned(), value);
    }
    hook
}
