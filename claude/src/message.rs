//! Messages of the program. Each message retains its whole line, including unknown fields.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::result::TurnResult;
use super::stream::{Frame, FrameContent};

/// Contains one message of the program.
#[derive(Clone, Debug)]
pub struct ClaudeMessage {
    /// Index of the message among all messages of the client, from 0. Control frames are not
    /// counted.
    pub index: u64,
    /// Contents of the message.
    pub body: ClaudeMessageBody,
    line: Box<str>,
}

/// Contains the contents of a message. Fields that the program omits are empty or `None`; unknown
/// fields are in [`ClaudeMessage::json`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClaudeMessageBody {
    /// `system/init`: a turn starts. The program sends it with every turn.
    Init(Init),
    /// A content block of an answer. An answer with several blocks is sent as several messages with
    /// the same id.
    Assistant(Assistant),
    /// A message to the model: mostly results of tools.
    User(User),
    /// A piece of a streamed answer.
    StreamEvent(Value),
    /// `system/session_state_changed`: `running`, `requires_action` or `idle`.
    SessionState(String),
    /// `system/api_retry`: the program retries a request to the model.
    ApiRetry(ApiRetry),
    /// `system/task_started`: a sub-agent starts.
    TaskStarted(TaskStarted),
    /// A turn ended.
    Result(Box<TurnResult>),
    /// The program added lines to a session's file.
    TranscriptMirror(TranscriptMirror),
    /// A message of another type, or of another subtype of `system`.
    Other {
        /// Type of the message; empty if it has none.
        kind: String,
        /// Subtype of the message.
        subtype: Option<String>,
    },
}

/// Describes the session at the start of a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Init {
    /// Id of the session.
    pub session_id: String,
    /// Working directory.
    pub cwd: Option<String>,
    /// Model in use.
    pub model: Option<String>,
    /// Names of the available tools; those of a bridged server as `mcp__SERVER__TOOL`.
    pub tools: Vec<String>,
    /// Servers, by name and status, such as `connected`.
    pub mcp_servers: Vec<(String, String)>,
    /// Permission mode of tools.
    pub permission_mode: Option<String>,
    /// Version of the program.
    pub version: Option<String>,
    /// Source of the program's key.
    pub api_key_source: Option<String>,
    /// Capabilities that the program reports.
    pub capabilities: Vec<String>,
}

/// Contains a content block of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assistant {
    /// Id of the answer, the same for all its blocks.
    pub id: Option<String>,
    /// Model of the answer; `<synthetic>` if the program itself generated it.
    pub model: Option<String>,
    /// Content blocks.
    pub content: Vec<ClaudeBlock>,
    /// Usage known to the program when it sent the block. Do not add these up.
    pub usage: Option<ClaudeUsage>,
    /// Name of an error that the answer represents, such as `authentication_failed` or
    /// `rate_limit`.
    pub error: Option<String>,
    /// Call of the sub-agent to which the answer belongs.
    pub parent_tool_use_id: Option<String>,
    /// Id of the session.
    pub session_id: Option<String>,
    /// Id of the message.
    pub uuid: Option<String>,
}

/// Contains a message to the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// Content blocks; a plain text is one block.
    pub content: Vec<ClaudeBlock>,
    /// Result of a tool in the program's own form.
    pub tool_use_result: Option<Value>,
    /// Call of the sub-agent to which the message belongs.
    pub parent_tool_use_id: Option<String>,
    /// Id of the session.
    pub session_id: Option<String>,
    /// Id of the message.
    pub uuid: Option<String>,
}

/// Describes a content block.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClaudeBlock {
    /// A text.
    Text(String),
    /// A thought of the model.
    Thinking {
        /// Text of the thought.
        thinking: String,
        /// Signature of the thought.
        signature: Option<String>,
    },
    /// A call of a tool.
    ToolUse {
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// Arguments.
        input: Value,
    },
    /// The result of a call.
    ToolResult {
        /// Id of the call.
        tool_use_id: String,
        /// The result: a text, or a list of blocks.
        content: Value,
        /// Whether the call failed.
        is_error: bool,
    },
    /// A block of another type, or one that lacks a required field; unchanged.
    Other(Value),
}

/// Counts tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaudeUsage {
    /// Input tokens neither read from the cache nor written into it.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens written into the cache.
    pub cache_creation_input_tokens: u64,
    /// Input tokens read from the cache.
    pub cache_read_input_tokens: u64,
}

/// Reports that the program retries a request to the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApiRetry {
    /// Number of this attempt.
    pub attempt: Option<u64>,
    /// Greatest number of attempts.
    pub max_retries: Option<u64>,
    /// Delay before this attempt, in milliseconds.
    pub retry_delay_ms: Option<f64>,
    /// Status of the failed attempt.
    pub error_status: Option<u64>,
    /// Name of the error.
    pub error: Option<String>,
}

/// Names the call that started a sub-agent. The program sends it before the first call of that
/// sub-agent; 2.1.100 does not send it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskStarted {
    /// Id of the sub-agent, which hooks have as `agent_id`.
    pub task_id: String,
    /// Call that started the sub-agent.
    pub tool_use_id: String,
}

/// Contains lines that the program added to a session's file.
#[derive(Clone, Debug)]
pub struct TranscriptMirror {
    /// Path of the file.
    pub file_path: String,
    /// Lines, each as the program wrote it, without its newline.
    pub entries: Vec<Box<RawValue>>,
}

impl ClaudeMessage {
    pub(super) fn new(index: u64, Frame { line, content }: Frame) -> ClaudeMessage {
        let body = match content {
            FrameContent::Object(object) => ClaudeMessageBody::from_object(&line, object),
            FrameContent::Mirror(mirror) => ClaudeMessageBody::TranscriptMirror(mirror),
        };
        ClaudeMessage { index, body, line }
    }

    /// Returns the line of the message as the program wrote it, without its newline.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Returns the whole message, parsed again from its line. An unpaired surrogate becomes U+FFFD.
    pub fn json(&self) -> Value {
        foldlog::escape::read_json(&self.line).unwrap_or_default()
    }

    /// Returns the result, if the message ends a turn.
    pub fn result(&self) -> Option<&TurnResult> {
        match &self.body {
            ClaudeMessageBody::Result(result) => Some(result),
            _ => None,
        }
    }
}

impl fmt::Display for ClaudeMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", foldlog::escape::text(&self.line))
    }
}

impl ClaudeMessageBody {
    /// Parses an object. `line` is the object's text, from which entries are copied unchanged.
    fn from_object(line: &str, mut object: Map<String, Value>) -> ClaudeMessageBody {
        let kind = text(&object, "type").unwrap_or_default();
        let subtype = text(&object, "subtype");
        match (kind.as_str(), subtype.as_deref()) {
            ("system", Some("init")) => ClaudeMessageBody::Init(Init::from_object(&object)),
            ("system", Some("session_state_changed")) => {
                ClaudeMessageBody::SessionState(text(&object, "state").unwrap_or_default())
            }
            ("system", Some("api_retry")) => ClaudeMessageBody::ApiRetry(ApiRetry::from_object(&object)),
            ("system", Some("task_started")) => match TaskStarted::from_object(&object) {
                Some(started) => ClaudeMessageBody::TaskStarted(started),
                None => ClaudeMessageBody::Other { kind, subtype },
            },
            ("assistant", _) => ClaudeMessageBody::Assistant(Assistant::from_object(object)),
            ("user", _) => ClaudeMessageBody::User(User::from_object(object)),
            ("stream_event", _) => ClaudeMessageBody::StreamEvent(object.remove("event").unwrap_or_default()),
            ("result", _) => ClaudeMessageBody::Result(Box::new(TurnResult::from_object(object))),
            ("transcript_mirror", _) => match TranscriptMirror::from_line(line) {
                Some(mirror) => ClaudeMessageBody::TranscriptMirror(mirror),
                None => ClaudeMessageBody::Other { kind, subtype },
            },
            _ => ClaudeMessageBody::Other { kind, subtype },
        }
    }
}

impl Init {
    fn from_object(object: &Map<String, Value>) -> Init {
        let servers = object.get("mcp_servers").and_then(Value::as_array).into_iter().flatten();
        let server = |server: &Value| {
            let server = server.as_object()?;
            Some((text(server, "name")?, text(server, "status").unwrap_or_default()))
        };
        Init {
            session_id: text(object, "session_id").unwrap_or_default(),
            cwd: text(object, "cwd"),
            model: text(object, "model"),
            tools: texts(object, "tools"),
            mcp_servers: servers.filter_map(server).collect(),
            permission_mode: text(object, "permissionMode"),
            version: text(object, "claude_code_version"),
            api_key_source: text(object, "apiKeySource"),
            capabilities: texts(object, "capabilities"),
        }
    }
}

impl Assistant {
    fn from_object(mut object: Map<String, Value>) -> Assistant {
        let mut message = inner(&mut object);
        Assistant {
            id: text(&message, "id"),
            model: text(&message, "model"),
            usage: message.get("usage").and_then(ClaudeUsage::from_value),
            content: ClaudeBlock::all(message.remove("content")),
            error: text(&object, "error"),
            parent_tool_use_id: text(&object, "parent_tool_use_id"),
            session_id: text(&object, "session_id"),
            uuid: text(&object, "uuid"),
        }
    }
}

impl User {
    fn from_object(mut object: Map<String, Value>) -> User {
        let mut message = inner(&mut object);
        User {
            content: ClaudeBlock::all(message.remove("content")),
            tool_use_result: object.remove("tool_use_result"),
            parent_tool_use_id: text(&object, "parent_tool_use_id"),
            session_id: text(&object, "session_id"),
            uuid: text(&object, "uuid"),
        }
    }
}

impl ClaudeBlock {
    /// Parses the blocks of a message; a plain text is one block.
    fn all(content: Option<Value>) -> Vec<ClaudeBlock> {
        match content {
            Some(Value::Array(blocks)) => blocks.into_iter().map(ClaudeBlock::from_value).collect(),
            Some(Value::String(text)) => vec![ClaudeBlock::Text(text)],
            Some(Value::Null) | None => Vec::new(),
            Some(other) => vec![ClaudeBlock::Other(other)],
        }
    }

    fn from_value(block: Value) -> ClaudeBlock {
        ClaudeBlock::parse_known(&block).unwrap_or(ClaudeBlock::Other(block))
    }

    /// Parses a block of a known type.
    fn parse_known(block: &Value) -> Option<ClaudeBlock> {
        let block = block.as_object()?;
        Some(match block.get("type")?.as_str()? {
            "text" => ClaudeBlock::Text(text(block, "text")?),
            "thinking" => ClaudeBlock::Thinking {
                thinking: text(block, "thinking")?,
                signature: text(block, "signature"),
            },
            "tool_use" => ClaudeBlock::ToolUse {
                id: text(block, "id")?,
                name: text(block, "name")?,
                input: block.get("input").cloned().unwrap_or_default(),
            },
            "tool_result" => ClaudeBlock::ToolResult {
                tool_use_id: text(block, "tool_use_id")?,
                content: block.get("content").cloned().unwrap_or_default(),
                is_error: flag(block, "is_error"),
            },
            _ => return None,
        })
    }
}

impl ClaudeUsage {
    pub(super) fn from_value(value: &Value) -> Option<ClaudeUsage> {
        let usage = value.as_object()?;
        Some(ClaudeUsage {
            input_tokens: count(usage, "input_tokens").unwrap_or_default(),
            output_tokens: count(usage, "output_tokens").unwrap_or_default(),
            cache_creation_input_tokens: count(usage, "cache_creation_input_tokens").unwrap_or_default(),
            cache_read_input_tokens: count(usage, "cache_read_input_tokens").unwrap_or_default(),
        })
    }
}

impl ApiRetry {
    fn from_object(object: &Map<String, Value>) -> ApiRetry {
        ApiRetry {
            attempt: count(object, "attempt"),
            max_retries: count(object, "max_retries"),
            retry_delay_ms: object.get("retry_delay_ms").and_then(Value::as_f64),
            error_status: count(object, "error_status"),
            error: text(object, "error"),
        }
    }
}

impl TaskStarted {
    fn from_object(object: &Map<String, Value>) -> Option<TaskStarted> {
        Some(TaskStarted { task_id: text(object, "task_id")?, tool_use_id: text(object, "tool_use_id")? })
    }
}

impl TranscriptMirror {
    /// Parses a line that starts like the program's mirror lines; `None` for any other line.
    pub(super) fn of_its_line(line: &str) -> Option<TranscriptMirror> {
        line.starts_with(r#"{"type":"transcript_mirror","#)
            .then(|| TranscriptMirror::from_line(line))
            .flatten()
    }

    fn from_line(line: &str) -> Option<TranscriptMirror> {
        #[derive(Deserialize)]
        struct Mirror {
            #[serde(rename = "filePath")]
            file_path: String,
            entries: Vec<Box<RawValue>>,
        }
        let Mirror { file_path, entries } = serde_json::from_str(line).ok()?;
        Some(TranscriptMirror { file_path, entries })
    }
}

/// Removes the object `message` from a message.
fn inner(object: &mut Map<String, Value>) -> Map<String, Value> {
    match object.remove("message") {
        Some(Value::Object(message)) => message,
        _ => Map::new(),
    }
}

pub(super) fn text(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.get(name)?.as_str().map(str::to_owned)
}

/// Returns the texts of a list field; other values are left out.
pub(super) fn texts(object: &Map<String, Value>, name: &str) -> Vec<String> {
    let list = object.get(name).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

pub(super) fn count(object: &Map<String, Value>, name: &str) -> Option<u64> {
    object.get(name)?.as_u64()
}

pub(super) fn flag(object: &Map<String, Value>, name: &str) -> bool {
    object.get(name).and_then(Value::as_bool).unwrap_or_default()
}
