//! A model that was taught which tools to use for a prompt.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::api::{Answers, Api, call, text};

/// A prompt that the model answers without a call.
pub(crate) const NO_CALL: &str = "Make no call.";

/// The tools for a prompt, in order.
type Tools = Vec<(String, Value)>;

/// A model behind an API on loopback. It answers a prompt with the tools that it was taught, one
/// after the other, and then with a text. Sub-agents get their prompt from the call that starts
/// them, so that prompt can be taught too.
pub(crate) struct Model {
    api: Api,
    taught: Arc<Mutex<BTreeMap<String, Tools>>>,
}

impl Model {
    pub(crate) fn start() -> Model {
        let taught = Arc::new(Mutex::new(BTreeMap::from([(NO_CALL.to_owned(), Tools::new())])));
        let (of_api, calls) = (Arc::clone(&taught), AtomicUsize::new(1));
        let api = Api::start(move |request, _| {
            let next = next_tool(request, &of_api.lock().unwrap());
            let id = || format!("toolu_{:04}", calls.fetch_add(1, Ordering::SeqCst));
            Answers::With(vec![next.map_or_else(|| text("done"), |(tool, input)| call(&id(), &tool, &input))])
        });
        Model { api, taught }
    }

    /// Teaches the tools for a prompt, which is one line.
    pub(crate) fn teach(&self, prompt: &str, tools: Vec<(&str, Value)>) {
        let tools = tools.into_iter().map(|(tool, input)| (tool.to_owned(), input));
        self.taught.lock().unwrap().insert(prompt.to_owned(), tools.collect());
    }

    pub(crate) fn url(&self) -> String {
        self.api.url()
    }

    /// Returns true if a request contained a text.
    pub(crate) fn has_seen(&self, text: &str) -> bool {
        self.api.seen().iter().any(|request| request["messages"].to_string().contains(text))
    }
}

/// Returns the next tool for the last taught prompt in a request.
fn next_tool(request: &Value, taught: &BTreeMap<String, Tools>) -> Option<(String, Value)> {
    // The program also asks for titles and the like, without tools.
    if request["tools"].as_array().is_none_or(Vec::is_empty) {
        return None;
    }
    let mut last: Option<(&Tools, usize)> = None;
    for message in request["messages"].as_array()?.iter().filter(|message| message["role"] == "user") {
        let whole = vec![json!({"type": "text", "text": message["content"]})];
        let blocks = message["content"].as_array().unwrap_or(&whole);
        let mut texts = blocks.iter().rev().filter_map(|block| block["text"].as_str());
        // After an interrupt, the result of the call and the next prompt are one message.
        if let Some(tools) = texts.find_map(|text| taught.get(text.trim())) {
            last = Some((tools, 0));
        } else if let Some((_, results)) = &mut last {
            *results += blocks.iter().filter(|block| block["type"] == "tool_result").count();
        }
    }
    let (tools, results) = last?;
    tools.get(results).cloned()
}
