//! Conversations whose processes end anywhere: the next process recovers the session and finishes
//! the conversation as if nothing had happened.
//!
//! A seed determines a conversation (`generated`). The tools and the provider of its host (`host`)
//! count their work in a file outside of any session. After each life:
//!
//! 1. no recorded answer is requested again, and each answer keeps its nonce;
//! 2. no closed call runs again, whether committed, failed or skipped;
//! 3. the sent messages pass the engine's validator and independent rules, for both providers;
//! 4. messages and STATE end as those of an uncut run.

use std::collections::BTreeMap;

use foldlog::conversation::{Conversation, ConversationMessage, EntryContent, Role, ToolCallRecord};
use foldlog::{Outcome, SequenceNumber};
use serde_json::Value;

use self::generated::Generated;
use self::host::Outside;

mod cuts;
mod generated;
mod host;
mod moved;
mod processes;
mod replayed;
#[path = "../../../../agent/tests/agent/rules/mod.rs"]
mod rules;
mod turned;

/// Returns the number of conversations, which an environment variable can set.
fn seeds(default: u64) -> u64 {
    std::env::var("FOLDLOG_CONVERSATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

/// A message without its time, its id and its answer's nonce.
type Said = (Role, Option<String>, Vec<ToolCallRecord>, Option<String>, Option<String>, bool);

fn said(conversation: &Conversation) -> Vec<Said> {
    let of = |message: ConversationMessage| {
        let content = message.content.map(|text| text.split(" nonce ").next().unwrap_or_default().to_owned());
        (message.role, content, message.tool_calls, message.tool_call_id, message.name, message.is_error)
    };
    conversation.sent_messages().into_iter().map(of).collect()
}

/// Returns the recorded outside effects of a call. `more` always has the same effect, and is not
/// counted.
fn effects(call: &ToolCallRecord) -> Vec<String> {
    let asked: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let Some(text) = asked["text"].as_str().filter(|_| call.name != "more") else { return Vec::new() };
    let mut effects = vec![format!("{} {text}", call.name)];
    if call.name == "delegate" {
        let inner = (0..asked["size"].as_u64().unwrap_or_default()).zip(["add", "break", "look"]);
        effects.extend(inner.map(|(number, tool)| format!("{tool} {text}/{number}")));
    }
    effects
}

/// Returns the closed calls of a conversation, and whether they committed, in the order of their
/// records.
fn closed(conversation: &Conversation) -> Vec<(ToolCallRecord, bool)> {
    let mut answers: BTreeMap<SequenceNumber, &ConversationMessage> = BTreeMap::new();
    let mut closed = Vec::new();
    for entry in conversation.entries() {
        match &entry.content {
            EntryContent::Answer { message, .. } => drop(answers.insert(entry.sequence, message)),
            EntryContent::CallEnded { origin, outcome, tool, .. } if *outcome != Outcome::Interrupted => {
                // The effects of a call that awaits its result remain; a call that asks has none
                // yet.
                let awaits = *outcome == Outcome::Suspended && tool == "hand";
                if *outcome != Outcome::Suspended || awaits {
                    let call = answers[&origin.answer].tool_calls[origin.ordinal as usize].clone();
                    closed.push((call, awaits || *outcome == Outcome::Committed));
                }
            }
            _ => {}
        }
    }
    closed
}

/// Returns the page's content after these calls: a model of STATE that shares no code with the
/// engine.
fn page_after(conversation: &Conversation) -> Vec<String> {
    let committed = closed(conversation).into_iter().filter(|(_, committed)| *committed);
    let lines = committed.flat_map(|(call, _)| {
        let own = effects(&call);
        let text = |effect: &String| effect.split_once(' ').map(|(_, text)| text.to_owned());
        let inner = own.iter().skip(1).filter(|effect| effect.starts_with("add ")).filter_map(text);
        let outer = own
            .first()
            .filter(|_| matches!(call.name.as_str(), "add" | "delegate" | "ask" | "hand"))
            .and_then(text);
        inner.chain(outer).collect::<Vec<_>>()
    });
    lines.collect()
}

/// The state at the start of a process, and the events that must not happen twice.
struct Held {
    nonces: Vec<String>,
    done: Vec<(String, usize)>,
    asked: usize,
}

impl Held {
    fn of(conversation: Option<&Conversation>, outside: &Outside) -> Held {
        let closed = conversation.map(closed).unwrap_or_default();
        let done =
            closed.iter().flat_map(|(call, _)| effects(call)).map(|effect| (outside.times(&effect), effect));
        Held {
            nonces: conversation.map(nonces).unwrap_or_default(),
            done: done.map(|(times, effect)| (effect, times)).collect(),
            asked: outside.asked().len(),
        }
    }

    /// Checks a process that started with this, whether it finished or not.
    fn check(&self, conversation: Option<&Conversation>, outside: &Outside, at: &str) {
        let asked = outside.asked().split_off(self.asked);
        let missing: Vec<usize> = (self.nonces.len()..).take(asked.len()).collect();
        assert_eq!(asked, missing, "{at}: answers were asked for that are there, or twice");
        let nonces = conversation.map(nonces).unwrap_or_default();
        assert!(nonces.starts_with(&self.nonces), "{at}: an answer is gone or was replaced");
        for (effect, times) in &self.done {
            assert_eq!(outside.times(effect), *times, "{at}: `{effect}` ran again");
        }
    }

    /// Checks the same for a process that finished the conversation.
    fn check_finished(&self, conversation: &Conversation, says: &Generated, outside: &Outside, at: &str) {
        self.check(Some(conversation), outside, at);
        let asked = outside.asked().len() - self.asked;
        assert_eq!(self.nonces.len() + asked, says.answers.len(), "{at}: an answer was not asked for");
    }
}

fn nonces(conversation: &Conversation) -> Vec<String> {
    let nonce = |content: &EntryContent| match content {
        EntryContent::Answer { request_id, .. } => request_id.clone(),
        _ => None,
    };
    conversation.entries().iter().filter_map(|entry| nonce(&entry.content)).collect()
}
