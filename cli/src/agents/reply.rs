//! The output of a hook.

use serde_json::json;

use super::{AgentProgram, HookReply};

impl HookReply {
    /// Returns the text for the hook's standard output; empty for an empty reply.
    pub(crate) fn text(&self, event: &str, agent: &AgentProgram) -> String {
        let mut answer = json!({});
        if let Some(answered) = &self.answered_prompt {
            answer["decision"] = json!(agent.block_word);
            answer["reason"] = json!(answered);
            if agent.hides_prompt {
                let output = json!({"hookEventName": event, "suppressOriginalPrompt": true});
                answer["hookSpecificOutput"] = output;
            }
        } else if let Some(context) = &self.context {
            answer["hookSpecificOutput"] = json!({"hookEventName": event, "additionalContext": context});
        }
        if !self.messages.is_empty() {
            answer["systemMessage"] = json!(self.messages.join("\n"));
        }
        if answer == json!({}) { String::new() } else { answer.to_string() }
    }
}
