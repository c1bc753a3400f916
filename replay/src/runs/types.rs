use foldlog::{Event, SessionTypes, Slice, Value};
use serde::{Deserialize, Serialize};

/// A message of a run: whatever object stands in its file, the order of its keys included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(pub Value);

impl Event for Message {
    const NAME: &'static str = "message";
}

/// A tool was called: what a run says of it.
#[derive(Clone, Debug, PartialEq)]
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

impl ToolCalled {
    /// The arguments as text: the text itself, or the JSON of what else they are.
    pub fn arguments_text(&self) -> String {
        match self.arguments.as_str() {
            Some(text) => text.to_owned(),
            None => serde_json::to_string(&self.arguments).unwrap_or_default(),
        }
    }
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
        .build()
}
