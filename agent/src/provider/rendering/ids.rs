//! Gives every call that is sent an id of its own.

use std::collections::HashMap;

use foldlog::conversation::{ConversationMessage, Role};

/// Holds the ids that calls and results are sent with.
pub(super) struct WireCallIds {
    /// For each message, the ids of its calls by ordinal.
    calls: Vec<Vec<String>>,
    /// For each message, the call that it answers, if it is a result.
    results: Vec<Option<ResultTarget>>,
}

/// Says which call a result answers.
#[derive(Clone)]
pub(super) struct ResultTarget {
    /// Id that the call is sent with.
    pub(super) id: String,
    /// Number of the call within its answer; of an orphan, beyond all of them.
    pub(super) ordinal: usize,
}

impl WireCallIds {
    /// Chooses the ids. `pinned` says of a message's id whether it stands in content blocks and can be sent as it is there;
    /// `clean` makes of an id what the provider takes.
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

    /// Returns the ids of a message's calls.
    pub(super) fn calls(&self, message: usize) -> &[String] {
        self.calls.get(message).map_or(&[], Vec::as_slice)
    }

    /// Returns which call a message answers; `None` if it is no result.
    pub(super) fn result_target(&self, message: usize) -> Option<&ResultTarget> {
        self.results.get(message)?.as_ref()
    }
}

/// Finds the call that each result answers.
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

/// Knows the ids that are in use.
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

    /// Takes an id, with the first free suffix if it is in use.
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
