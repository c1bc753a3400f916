//! The servers of tools that the program reaches over the control channel, with JSON-RPC and four
//! methods of MCP.
//!
//! | method | answer |
//! |---|---|
//! | `initialize` | the requested protocol version, the capability `tools`, the server's name |
//! | `ping` | an empty result |
//! | any notification | an empty result without id, as an acknowledgement; `notifications/cancelled` names a call by its id |
//! | `tools/list` | the tools, each with the greatest length of a complete result |
//! | `tools/call` | the result of the host's tool, later |
//! | another one | error -32601; so is any method of a server that is not bridged |

use serde_json::{Map, Value, json};

use foldlog_agent::provider::CancelToken;

use super::callbacks::{BridgedTool, ToolCall};

/// JSON-RPC code for an unknown method.
const NO_METHOD: i64 = -32601;

/// JSON-RPC code for invalid arguments.
const BAD_ARGUMENTS: i64 = -32602;

/// Describes the reaction to a message to a server.
pub(super) enum BridgeAction {
    /// Answer at once.
    Answer(Value),
    /// Cancel the call, and answer at once.
    Cancel {
        /// Server and JSON-RPC id of the call, as JSON text.
        call: (String, String),
        /// The acknowledgement.
        answer: Value,
    },
    /// Call a tool.
    Call {
        /// JSON-RPC id of the call.
        id: Value,
        call: ToolCall,
    },
}

/// Contains the servers and their tools.
#[derive(Debug)]
pub(super) struct Bridge {
    servers: Vec<String>,
    tools: Vec<BridgedTool>,
}

impl Bridge {
    pub(super) fn new(servers: Vec<String>, tools: Vec<BridgedTool>) -> Bridge {
        Bridge { servers, tools }
    }

    /// Returns the reaction to a message to a server. `cancel` is cancelled with the message.
    pub(super) fn take(&self, server: String, message: &Value, cancel: &CancelToken) -> BridgeAction {
        let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
        let parameters = message.get("params").unwrap_or(&Value::Null);
        let Some(id) = message.get("id") else { return take_notification(server, method, parameters) };
        if !self.servers.contains(&server) {
            return BridgeAction::Answer(failure(id, NO_METHOD, &format!("there is no server `{server}`")));
        }
        BridgeAction::Answer(match method {
            "initialize" => success(id, initialize_result(&server, parameters)),
            "ping" => success(id, json!({})),
            "tools/list" => success(id, json!({ "tools": self.list_tools(&server) })),
            "tools/call" => return self.take_call(server, id, parameters, cancel),
            _ => failure(id, NO_METHOD, &format!("there is no method `{method}`")),
        })
    }

    /// Returns the tools of a server in the program's form.
    fn list_tools(&self, server: &str) -> Vec<Value> {
        self.tools.iter().filter(|tool| tool.server == server).map(describe_tool).collect()
    }

    fn take_call(
        &self,
        server: String,
        id: &Value,
        parameters: &Value,
        cancel: &CancelToken,
    ) -> BridgeAction {
        let name = parameters.get("name").and_then(Value::as_str).unwrap_or_default();
        if !self.tools.iter().any(|tool| tool.server == server && tool.name == name) {
            return BridgeAction::Answer(failure(id, BAD_ARGUMENTS, &format!("there is no tool `{name}`")));
        }
        let meta = parameters.get("_meta").and_then(|meta| meta.get("claudecode/toolUseId"));
        let arguments = parameters.get("arguments").filter(|arguments| !arguments.is_null());
        let call = ToolCall {
            server,
            name: name.to_owned(),
            arguments: arguments.cloned().unwrap_or_else(|| json!({})),
            tool_use_id: meta.and_then(Value::as_str).map(str::to_owned),
            cancel: cancel.clone(),
        };
        BridgeAction::Call { id: id.clone(), call }
    }
}

pub(super) fn success(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn failure(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

fn initialize_result(server: &str, parameters: &Value) -> Value {
    let version = parameters.get("protocolVersion").and_then(Value::as_str).unwrap_or("2025-11-25");
    json!({
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": server, "version": env!("CARGO_PKG_VERSION")},
    })
}

fn take_notification(server: String, method: &str, parameters: &Value) -> BridgeAction {
    let answer = json!({"jsonrpc": "2.0", "result": {}});
    match parameters.get("requestId") {
        Some(id) if method == "notifications/cancelled" => {
            BridgeAction::Cancel { call: (server, id.to_string()), answer }
        }
        _ => BridgeAction::Answer(answer),
    }
}

fn describe_tool(tool: &BridgedTool) -> Value {
    let mut schema = match &tool.input_schema {
        Value::Object(schema) => schema.clone(),
        _ => Map::new(),
    };
    schema.entry("type").or_insert_with(|| "object".into());
    json!({
        "name": tool.name,
        "description": tool.description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": tool.read_only},
        "_meta": {"anthropic/maxResultSizeChars": tool.max_result_chars},
    })
}
