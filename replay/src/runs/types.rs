use foldlog::{Event, Policy, SessionTypes, Slice, Value};
use serde::{Deserialize, Serialize};

/// A message of a run: whatever object stands in its file, the order of its keys included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(pub Value);

impl Event for Message {
    const NAME: &'static str = "message";
}

/// A tool was called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCalled {
    /// The provider's id of the call, which may name other calls too.
    pub call: Option<String>,
    /// The tool's name.
    pub tool: String,
    /// Its arguments, as they stand in the file: JSON in a text, or a command.
    pub arguments: Value,
    /// What the tool answered.
    pub result: Value,
    /// Whether it failed.
    pub failed: bool,
}

impl Event for ToolCalled {
    const NAME: &'static str = "tool_called";
}

/// How often a tool was called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCounted {
    /// The tool's name.
    pub name: String,
    /// How often.
    pub count: u64,
}

impl Event for ToolCounted {
    const NAME: &'static str = "tool_counted";
}

/// STATE: the messages.
#[derive(Debug)]
pub struct Messages;

impl Slice for Messages {
    const NAME: &'static str = "messages";
    type Item = Message;
}

/// STATE: the last message.
#[derive(Debug)]
pub struct LastMessage;

impl Slice for LastMessage {
    const NAME: &'static str = "last_message";
    type Item = Message;
}

/// STATE: how often each tool was called.
#[derive(Debug)]
pub struct ToolCounts;

impl Slice for ToolCounts {
    const NAME: &'static str = "tool_counts";
    type Item = ToolCounted;
}

/// LOG: every call.
#[derive(Debug)]
pub struct ToolCalls;

impl Slice for ToolCalls {
    const NAME: &'static str = "tool_calls";
    type Item = ToolCalled;
}

/// The declarations under which runs are imported.
///
/// # Errors
///
/// Where the declarations contradict each other, which a test rules out.
pub fn types() -> foldlog::Result<SessionTypes> {
    SessionTypes::builder()
        .slice::<Messages>()
        .append_all::<Messages>()
        .slice::<LastMessage>()
        .replace_latest::<LastMessage>()
        .slice::<ToolCounts>()
        .upsert_by::<ToolCounts, _>(|counted| counted.name.clone())
        .slice_with::<ToolCalls>(Policy::Log)
        .append_all::<ToolCalls>()
        .build()
}
