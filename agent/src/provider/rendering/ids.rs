//! Assigns a unique id to every call that is sent.

use std::collections::HashMap;

use foldlog::conversation::{ConversationMessage, Role};

/// Contains the ids with which calls and results are sent.
pub(super) struct WireCallIds {
    /// For each message, the ids of its calls by ordinal.
    calls: Vec<Vec<String>>,
    /// For each message that is a result, its call.
    results: Vec<Option<ResultTarget>>,
}

/// Identifies the call of a result.
#[derive(Clone)]
pub(super) struct ResultTarget {
    /// Id with which the call is sent.
    pub(super) id: String,
    /// Index of the call within its answer; for an orphan, larger than all of them.
    pub(super) ordinal: usize,
}

impl WireCallIds {
    /// Chooses the ids. `pinned` returns whether a message's id is part of content blocks and can
    /// be sent unchanged; `clean` adapts an id to the provider.
    pub(super) fn new(
        messages: &[ConversationMessage],
        pinned: impl Fn(&ConversationMessage, &str) -> bool,
        clean: impl Fn(&str) -> String,
    ) -> WireCallIds {
        let mut taken = UsedIds::default();
        let mut calls: Vec<Vec<Option<String>>> = Vec::with_capacity(messages.len());
        for message in messages {
            let keep = |id: &str, taken: &mut UsedIds| {
                (pinned(message, id) && taken.take(id)).then(|| id.to_owned())
            };
            calls.push(message.tool_calls.iter().map(|call| keep(&call.call_id, &mut taken)).collect());
        }
        let mut chosen = Vec::with_capacity(messages.len());
        for (message, kept) in messages.iter().zip(calls) {
            let ids = message.tool_calls.iter().zip(kept);
            chosen.push(
                ids.map(|(call, kept)| kept.unwrap_or_else(|| taken.unique(clean(&call.call_id)))).collect(),
            );
        }
        let results = pair(messages, &chosen, clean);
        WireCallIds { calls: chosen, results }
    }

    pub(super) fn calls(&self, message: usize) -> &[String] {
        self.calls.get(message).map_or(&[], Vec::as_slice)
    }

    /// Returns the call of a result; `None` if the message is not a result.
    pub(super) fn result_target(&self, message: usize) -> Option<&ResultTarget> {
        self.results.get(message)?.as_ref()
    }
}

/// Finds the call of each result.
fn pair(
    messages: &[ConversationMessage],
    chosen: &[Vec<String>],
    clean: impl Fn(&str) -> String,
) -> Vec<Option<ResultTarget>> {
    let mut open: Vec<(&str, ResultTarget)> = Vec::new();
    let mut results = Vec::with_capacity(messages.len());
    for (message, ids) in messages.iter().zip(chosen) {
        if message.role == Role::Assistant {
            let calls = message.tool_calls.iter().zip(ids).enumerate();
            open = calls
                .map(|(ordinal, (call, id))| {
                    (call.call_id.as_str(), ResultTarget { id: id.clone(), ordinal })
                })
                .collect();
        }
        results.push((message.role == Role::Tool).then(|| {
            let named = message.tool_call_id.as_deref().unwrap_or_default();
            match open.iter().position(|(id, _)| *id == named) {
                Some(found) => open.remove(found).1,
                None => ResultTarget { id: clean(named), ordinal: usize::MAX },
            }
        }));
    }
    results
}

/// Contains the ids in use, each with its last suffix.
#[derive(Default)]
struct UsedIds(HashMap<String, u32>);

impl UsedIds {
    /// Takes an id, and returns whether it was free.
    fn take(&mut self, id: &str) -> bool {
        if self.0.contains_key(id) {
            return false;
        }
        self.0.insert(id.to_owned(), 1);
        true
    }

    /// Takes an id, and appends the first free suffix if it is in use.
    fn unique(&mut self, id: String) -> String {
        if self.take(&id) {
            return id;
        }
        loop {
            let number = self.0.entry(id.clone()).or_insert(1);
            *number = number.saturating_add(1);
            let suffixed = format!("{id}_{number}");
            if self.take(&suffixed) {
                return suffixed;
            }
        }
    }
}
