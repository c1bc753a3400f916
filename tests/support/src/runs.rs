//! A plain fold of the recorded runs, which computes the result of their import without the engine.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

/// Finds the directory of recorded runs next to the checkout. Returns `None`, and reports the test
/// as skipped, if it is missing.
pub fn directory() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if directory.join("tau-bench").is_dir() {
        return Some(directory);
    }
    crate::skipped::skipped(format_args!(
        "there is no directory of recorded runs beside the checkout ({})",
        directory.display()
    ));
    None
}

/// JSON whose objects keep the order of their keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// Neither an array nor an object.
    Scalar(serde_json::Value),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub fn text(text: impl Into<String>) -> Json {
        Json::Scalar(serde_json::Value::String(text.into()))
    }

    pub fn parse(text: &str) -> Json {
        serde_json::from_str(text).expect("JSON")
    }

    pub fn get(&self, field: &str) -> Option<&Json> {
        let Json::Object(fields) = self else { return None };
        fields.iter().find(|(name, _)| name == field).map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, field: &str) -> Option<&mut Json> {
        let Json::Object(fields) = self else { return None };
        fields.iter_mut().find(|(name, _)| name == field).map(|(_, value)| value)
    }

    /// Returns the text, if this is a text.
    pub fn as_str(&self) -> Option<&str> {
        let Json::Scalar(serde_json::Value::String(text)) = self else { return None };
        Some(text)
    }

    /// Returns the elements; none if this is not an array.
    pub fn elements(&self) -> &[Json] {
        match self {
            Json::Array(elements) => elements,
            _ => &[],
        }
    }

    pub fn elements_mut(&mut self) -> &mut [Json] {
        match self {
            Json::Array(elements) => elements,
            _ => &mut [],
        }
    }

    fn shown(&self) -> String {
        self.as_str().map_or_else(|| serde_json::to_string(self).unwrap_or_default(), str::to_owned)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Scalar(value) => value.serialize(serializer),
            Json::Array(elements) => {
                let mut seq = serializer.serialize_seq(Some(elements.len()))?;
                elements.iter().try_for_each(|element| seq.serialize_element(element))?;
                seq.end()
            }
            Json::Object(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Ordered)
    }
}

struct Ordered;

impl<'de> Visitor<'de> for Ordered {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Scalar(serde_json::Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(Json::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}

/// The content of a message in a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub role: String,
    /// Text or null, as in the file.
    pub content: Json,
    /// Id, tool and arguments of each call.
    pub calls: Vec<(String, String, String)>,
    /// The id of the call whose result the message is.
    pub answers: Option<String>,
}

/// The expected import of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expected {
    /// The conversation: role, content, the calls of an answer, the id of a result's call.
    pub messages: Vec<Told>,
    /// STATE: each tool with its calls, in the order of the last call.
    pub tool_counts: Vec<(String, u64)>,
    /// LOG: call, tool, arguments, result, whether it failed.
    pub tool_calls: Vec<(Option<String>, String, Json, Json, bool)>,
    /// The number of failed calls.
    pub rollbacks: u64,
}

impl Expected {
    /// Returns the slices as `state --json` prints them, without the engine's own.
    pub fn slices(&self) -> Json {
        let object = |fields: Vec<(&str, Json)>| {
            Json::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
        };
        let slice = |policy: &str, items: Vec<Json>| {
            object(vec![("policy", Json::text(policy)), ("items", Json::Array(items))])
        };
        let counts = self.tool_counts.iter().map(|(name, count)| {
            object(vec![("name", Json::text(name)), ("count", Json::Scalar((*count).into()))])
        });
        let mut slices = Vec::new();
        if !self.tool_calls.is_empty() {
            slices.push(("tool_counts", slice("state", counts.collect())));
        }
        object(slices)
    }

    fn answer(&mut self, id: Option<String>, tool: String, arguments: Json, message: &Json) {
        let result = message.get("content").cloned().unwrap_or(Json::Scalar(serde_json::Value::Null));
        let failed = result.as_str().is_some_and(|text| text.starts_with("Error"));
        self.messages.push(Told {
            role: "tool".to_owned(),
            content: result.clone(),
            calls: Vec::new(),
            answers: Some(id.clone().unwrap_or_default()),
        });
        self.tool_calls.push((id, tool.clone(), arguments, result, failed));
        if failed {
            // The rollback undoes the count; the conversation and the LOG keep the call.
            self.rollbacks += 1;
            return;
        }
        let before = self.tool_counts.iter().position(|(name, _)| *name == tool);
        let count = before.map_or(0, |place| self.tool_counts.remove(place).1);
        self.tool_counts.push((tool, count + 1));
    }
}

/// Folds the runs of a file of tau-bench, by task and trial.
///
/// # Panics
///
/// If the file cannot be read, or has other content.
pub fn tau_bench(file: &Json) -> BTreeMap<(String, String), Expected> {
    let runs = file.elements().iter().map(|run| {
        let tag = |field| run.get(field).expect("a tag").shown();
        ((tag("task_id"), tag("trial")), fold(run.get("traj").expect("messages").elements(), false))
    });
    runs.collect()
}

/// Folds the run of a trajectory of SWE-agent.
///
/// # Panics
///
/// If the file cannot be read, or has other content.
pub fn swe_agent(file: &Json) -> Expected {
    fold(file.get("history").expect("messages").elements(), true)
}

/// Folds messages. If `actions` is set and a message names no call, an assistant's `action` is a
/// call, and the next observation is its result.
fn fold(messages: &[Json], actions: bool) -> Expected {
    let mut expected = Expected::default();
    let mut open: Vec<(Option<String>, String, Json)> = Vec::new();
    for message in messages {
        let text = |field: &str| message.get(field).and_then(Json::as_str);
        let observation = actions && text("message_type") == Some("observation") && !open.is_empty();
        if text("role") == Some("tool") || (text("role") != Some("assistant") && observation) {
            let (id, tool, arguments) = open.remove(0);
            expected.answer(id, tool, arguments, message);
            continue;
        }
        let mut calls = Vec::new();
        let named = message.get("tool_calls").map(Json::elements).unwrap_or_default();
        if !named.is_empty() {
            open = named.iter().map(named_call).collect();
            calls.clone_from(&open);
        } else if let Some(action) = text("action").filter(|_| actions) {
            let tool = action.split_whitespace().next().unwrap_or_default().to_owned();
            open = vec![(None, tool, Json::text(action))];
            calls.clone_from(&open);
        }
        let calls =
            calls.into_iter().map(|(id, tool, arguments)| (id.unwrap_or_default(), tool, arguments.shown()));
        expected.messages.push(Told {
            role: text("role").unwrap_or_default().to_owned(),
            content: message.get("content").cloned().unwrap_or(Json::Scalar(serde_json::Value::Null)),
            calls: calls.collect(),
            answers: None,
        });
    }
    expected
}

fn named_call(call: &Json) -> (Option<String>, String, Json) {
    let function = call.get("function").expect("a function");
    let name = function.get("name").and_then(Json::as_str).expect("a name").to_owned();
    let id = call.get("id").and_then(Json::as_str).map(str::to_owned);
    (id, name, function.get("arguments").expect("arguments").clone())
}
