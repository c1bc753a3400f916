//! The output of a hook.

use serde_json::{Map, Value as Json, json};

use super::HookReply;

/// How a program is told that a prompt was answered.
pub(super) struct Blocking {
    /// Word of the decision.
    pub(super) decision: &'static str,
    /// Whether the program can be told to show the answer without the prompt.
    pub(super) hides_prompt: bool,
}

/// Returns the text for the hook's standard output; empty for an empty reply.
pub(super) fn text(reply: &HookReply, event: &str, blocking: &Blocking) -> String {
    let mut answer = Map::new();
    if let Some(answered) = &reply.answered_prompt {
        answer.insert("decision".to_owned(), json!(blocking.decision));
        answer.insert("reason".to_owned(), json!(answered));
        if blocking.hides_prompt {
            let output = json!({"hookEventName": event, "suppressOriginalPrompt": true});
            answer.insert("hookSpecificOutput".to_owned(), output);
        }
    } else if let Some(context) = &reply.context {
        let output = json!({"hookEventName": event, "additionalContext": context});
        answer.insert("hookSpecificOutput".to_owned(), output);
    }
    if !reply.messages.is_empty() {
        answer.insert("systemMessage".to_owned(), json!(reply.messages.join("\n")));
    }
    if answer.is_empty() { String::new() } else { Json::Object(answer).to_string() }
}
