use foldlog::conversation::ToolCallRecord;
use foldlog::{Event, SessionTypes, Slice, Value};
use serde::{Deserialize, Serialize};

/// A tool call, as recorded in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCalled {
    /// Provider's id of the call, which may name other calls too.
    pub call: Option<String>,
    /// Name of the tool.
    pub tool: String,
    /// Arguments as they are in the file: JSON in a text, or a command.
    pub arguments: Value,
    /// Result of the tool; nil until it is known.
    pub result: Value,
    /// Whether the call failed.
    pub failed: bool,
    /// Place of the call among those of its answer, from 0.
    pub ordinal: u32,
}

impl ToolCalled {
    pub(super) fn record(&self) -> ToolCallRecord {
        ToolCallRecord {
            call_id: self.call.clone().unwrap_or_default(),
            name: self.tool.clone(),
            arguments: self.arguments_text(),
        }
    }

    /// Returns the arguments as text: the text itself, or the JSON of any other value.
    pub fn arguments_text(&self) -> String {
        super::arguments_text(&self.arguments)
    }
}

/// Number of calls of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCounted {
    /// Name of the tool.
    pub name: String,
    /// Number of calls so far.
    pub count: u64,
}

impl Event for ToolCounted {
    const NAME: &'static str = "tool_counted";
}

/// The number of calls of each tool, as STATE.
#[derive(Debug)]
pub struct ToolCounts;

impl Slice for ToolCounts {
    const NAME: &'static str = "tool_counts";
    type Item = ToolCounted;
}

/// Creates the declarations with which runs are imported.
///
/// # Errors
///
/// An error if the declarations contradict each other, which a test rules out.
pub fn types() -> foldlog::Result<SessionTypes> {
    SessionTypes::builder()
        .slice::<ToolCounts>()
        .upsert_by::<ToolCounts, _>(|counted| counted.name.clone())
        .build()
}
