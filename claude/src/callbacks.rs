//! Requests of the program to its host: tools, hooks and permissions.

use serde_json::{Map, Value, json};

use super::bridge::success;

use foldlog_agent::named;
use foldlog_agent::provider::CancelToken;

/// Default limit for the characters of a tool's result that the program passes to the model
/// completely.
pub const MAX_RESULT_CHARS: u64 = 500_000;

/// Describes a tool of the host to the program.
#[derive(Clone, Debug, PartialEq)]
pub struct BridgedTool {
    /// Server of the tool, one of
    /// [`ClientOptions::bridged_servers`](super::ClientOptions::bridged_servers). The model sees
    /// `mcp__SERVER__NAME`.
    pub server: String,
    /// Name of the tool.
    pub name: String,
    /// Purpose of the tool.
    pub description: String,
    /// JSON schema of the arguments. An empty object becomes `{"type":"object"}`, without which the
    /// program drops all tools of the server.
    pub input_schema: Value,
    /// Whether the tool only reads, so that the program may run it concurrently with others.
    pub read_only: bool,
    /// Greatest number of characters of a result that the model sees completely;
    /// [`MAX_RESULT_CHARS`] by default. The program stores longer ones in a file.
    pub max_result_chars: u64,
}

impl BridgedTool {
    /// Creates the description of a tool that may make changes.
    pub fn new(
        server: impl Into<String>,
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Value,
    ) -> BridgedTool {
        BridgedTool {
            server: server.into(),
            name: name.into(),
            description: description.into(),
            input_schema,
            read_only: false,
            max_result_chars: MAX_RESULT_CHARS,
        }
    }

    /// Returns the name by which the model calls the tool, and which lists of permissions use:
    /// `mcp__SERVER__NAME`.
    pub fn full_name(&self) -> String {
        format!("mcp__{}__{}", self.server, self.name)
    }
}

/// Contains a call of a tool of the host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolCall {
    /// Server of the tool.
    pub server: String,
    /// Name of the tool, as in its description.
    pub name: String,
    /// Arguments. The program does not check them against a schema.
    pub arguments: Value,
    /// Id of the model's call.
    pub tool_use_id: Option<String>,
    /// Cancelled when the program stops waiting for the result, and when the client ends.
    pub cancel: CancelToken,
}

/// Converts a reply of the host into the program's form.
pub(super) trait ProgramReply {
    /// Returns the answer. `about` is the JSON-RPC id of a tool's call, the name of a hook's event, or
    /// the arguments of the call that needs a permission.
    fn to_json(&self, about: &Value) -> Value;
}

/// Returns an object of those fields that have a value.
pub(super) fn given<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Contains the result of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolReply {
    /// Content blocks, such as `{"type":"text","text":"..."}`.
    pub content: Vec<Value>,
    /// Whether the call failed.
    pub is_error: bool,
}

impl ToolReply {
    /// Creates a successful result with a text.
    pub fn text(text: impl Into<String>) -> ToolReply {
        ToolReply { content: vec![json!({"type": "text", "text": text.into()})], is_error: false }
    }

    /// Creates a failed result; the model sees the text.
    pub fn error(text: impl Into<String>) -> ToolReply {
        ToolReply { is_error: true, ..ToolReply::text(text) }
    }
}

impl ProgramReply for ToolReply {
    fn to_json(&self, about: &Value) -> Value {
        json!({ "mcp_response": success(about, json!({"content": self.content, "isError": self.is_error})) })
    }
}

/// Contains a call of a hook.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookCall {
    /// Id of the hook in the options.
    pub callback_id: String,
    /// Name of the event, such as `PreToolUse`.
    pub event: String,
    /// Data of the event: `session_id`, `cwd`, `tool_name`, `tool_input`, `tool_response` and
    /// others.
    pub input: Value,
    /// Id of the model's call, for events of tools.
    pub tool_use_id: Option<String>,
    /// Cancelled when the program stops waiting for the answer, and when the client ends.
    pub cancel: CancelToken,
}

impl HookCall {
    /// Returns the name of the tool, for events of tools.
    pub fn tool_name(&self) -> Option<&str> {
        self.input.get("tool_name")?.as_str()
    }

    /// Returns the arguments of the tool, or null.
    pub fn tool_input(&self) -> &Value {
        self.input.get("tool_input").unwrap_or(&Value::Null)
    }

    /// Returns the result of the tool, for `PostToolUse`, or null. `PostToolUseFailure` has the
    /// text `error` in `input`.
    pub fn tool_response(&self) -> &Value {
        self.input.get("tool_response").unwrap_or(&Value::Null)
    }
}

named! {
    /// Describes the decision of a hook about a call.
    HookPermission {
        /// The call runs without a request for permission.
        Allow = "allow",
        /// The call does not run.
        Deny = "deny",
        /// The program requests a permission.
        Ask = "ask",
    }
}

/// Contains the answer of a hook. The default lets the program continue as without a hook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookReply {
    /// Ends the turn, for this reason.
    pub stop: Option<String>,
    /// Blocks the subject of the event, for this reason, which the model sees.
    pub block: Option<String>,
    /// Shows a message to the person.
    pub system_message: Option<String>,
    /// Decides about a call, for a reason (`PreToolUse`).
    pub permission: Option<(HookPermission, String)>,
    /// Replaces the arguments of a call (`PreToolUse`).
    pub updated_input: Option<Value>,
    /// Adds context for the model.
    pub additional_context: Option<String>,
    /// Additional fields to send. They replace other fields of the same name.
    pub other: Map<String, Value>,
}

impl HookReply {
    /// Continues as without a hook.
    pub fn proceed() -> HookReply {
        HookReply::default()
    }

    /// Lets a call run without a request for permission.
    pub fn allow(reason: impl Into<String>) -> HookReply {
        HookReply { permission: Some((HookPermission::Allow, reason.into())), ..HookReply::default() }
    }

    /// Prevents a call; the model sees the reason.
    pub fn deny(reason: impl Into<String>) -> HookReply {
        HookReply { permission: Some((HookPermission::Deny, reason.into())), ..HookReply::default() }
    }

    /// Ends the turn.
    pub fn stop(reason: impl Into<String>) -> HookReply {
        HookReply { stop: Some(reason.into()), ..HookReply::default() }
    }

    /// Blocks the subject of the event; the model sees the reason.
    pub fn block(reason: impl Into<String>) -> HookReply {
        HookReply { block: Some(reason.into()), ..HookReply::default() }
    }
}

impl ProgramReply for HookReply {
    fn to_json(&self, about: &Value) -> Value {
        let text = |text: &Option<String>| text.clone().map(Value::from);
        let permission = self.permission.as_ref();
        let mut specific = given([
            ("permissionDecision", permission.map(|(decision, _)| decision.name().into())),
            ("permissionDecisionReason", permission.map(|(_, reason)| reason.clone().into())),
            ("updatedInput", self.updated_input.clone()),
            ("additionalContext", text(&self.additional_context)),
        ]);
        if !specific.is_empty() {
            specific.insert("hookEventName".into(), about.clone());
        }
        let mut reply = given([
            ("continue", self.stop.as_ref().map(|_| false.into())),
            ("stopReason", text(&self.stop)),
            ("decision", self.block.as_ref().map(|_| "block".into())),
            ("reason", text(&self.block)),
            ("systemMessage", text(&self.system_message)),
            ("hookSpecificOutput", (!specific.is_empty()).then_some(Value::Object(specific))),
        ]);
        reply.extend(self.other.clone());
        Value::Object(reply)
    }
}

/// Contains a request for the permission to run a tool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PermissionRequest {
    /// Name of the tool.
    pub tool_name: String,
    /// Arguments.
    pub input: Value,
    /// Id of the model's call.
    pub tool_use_id: Option<String>,
    /// The whole request, with `permission_suggestions` and other fields.
    pub request: Value,
    /// Cancelled when the program stops waiting for the answer, and when the client ends.
    pub cancel: CancelToken,
}

/// Contains the answer to a request for permission.
#[derive(Clone, Debug, PartialEq)]
pub enum PermissionReply {
    /// The tool runs.
    Allow {
        /// Replacement for the model's arguments.
        updated_input: Option<Value>,
    },
    /// The tool does not run.
    Deny {
        /// Reason, which the model sees.
        message: String,
        /// Whether the turn ends.
        interrupt: bool,
    },
}

impl ProgramReply for PermissionReply {
    fn to_json(&self, about: &Value) -> Value {
        match self {
            PermissionReply::Allow { updated_input } => {
                json!({"behavior": "allow", "updatedInput": updated_input.as_ref().unwrap_or(about)})
            }
            PermissionReply::Deny { message, interrupt: false } => {
                json!({"behavior": "deny", "message": message})
            }
            PermissionReply::Deny { message, interrupt: true } => {
                json!({"behavior": "deny", "message": message, "interrupt": true})
            }
        }
    }
}

/// Answers the program's requests to its host.
///
/// The client calls these functions on its own threads, several concurrently, and never on the
/// reading thread: a tool may take minutes. A call starts when
/// [`Client::next_message`](super::Client::next_message) finds it after the messages before it.
///
/// The answer of a cancelled call is dropped. A panic is answered as a failure: the model sees a
/// failed tool; for a hook `PreToolUse` or a permission, the call is refused.
pub trait Callbacks: Send + Sync {
    /// Returns the tools of the bridged servers. The client calls this once at its start, on the
    /// host's thread.
    fn tools(&self) -> Vec<BridgedTool> {
        Vec::new()
    }

    /// Runs a tool. Only tools that [`tools`](Callbacks::tools) returned are called.
    fn call_tool(&self, call: ToolCall) -> ToolReply {
        ToolReply::error(format!("Tool error: the host has no tool `{}`", call.name))
    }

    /// Answers an event that the options select.
    fn hook(&self, call: HookCall) -> HookReply {
        let _ = call;
        HookReply::proceed()
    }

    /// Decides whether a tool may run. The default refuses all.
    fn can_use_tool(&self, request: PermissionRequest) -> PermissionReply {
        let message = format!("the host permits no call of `{}`", request.tool_name);
        PermissionReply::Deny { message, interrupt: false }
    }
}

/// Callbacks of a host without tools, hooks and permissions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCallbacks;

impl Callbacks for NoCallbacks {}
