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

use super::callbacks::BridgedTool;

/// JSON-RPC code for an unknown method.
const NO_METHOD: i64 = -32601;

/// JSON-RPC code for invalid arguments.
const BAD_ARGUMENTS: i64 = -32602;

/// Describes the reaction to a message to a server.
#[derive(Debug, PartialEq)]
pub(super) enum BridgeAction {
    /// Answer at once.
    Answer(Value),
    /// Cancel the call with this JSON-RPC id, and answer at once.
    Cancel {
        /// JSON-RPC id of the call, as JSON text.
        id: String,
        /// The acknowledgement.
        answer: Value,
    },
    /// Call a tool.
    Call(BridgedCall),
}

#[derive(Debug, PartialEq)]
pub(super) struct BridgedCall {
    /// JSON-RPC id of the call.
    pub(super) id: Value,
    pub(super) name: String,
    pub(super) arguments: Value,
    /// Id of the model's call.
    pub(super) tool_use_id: Option<String>,
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

    /// Returns the reaction to a message to a server.
    pub(super) fn take(&self, server: &str, message: &Value) -> BridgeAction {
        let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
        let parameters = message.get("params").unwrap_or(&Value::Null);
        let Some(id) = message.get("id") else { return take_notification(method, parameters) };
        if !self.servers.iter().any(|name| name == server) {
            return BridgeAction::Answer(failure(id, NO_METHOD, &format!("there is no server `{server}`")));
        }
        match method {
            "initialize" => BridgeAction::Answer(success(id, initialize_result(server, parameters))),
            "ping" => BridgeAction::Answer(success(id, json!({}))),
            "tools/list" => BridgeAction::Answer(success(id, json!({ "tools": self.list_tools(server) }))),
            "tools/call" => self.take_call(server, id, parameters),
            _ => BridgeAction::Answer(failure(id, NO_METHOD, &format!("there is no method `{method}`"))),
        }
    }

    /// Returns the tools of a server in the program's form.
    fn list_tools(&self, server: &str) -> Vec<Value> {
        self.tools.iter().filter(|tool| tool.server == server).map(describe_tool).collect()
    }

    fn take_call(&self, server: &str, id: &Value, parameters: &Value) -> BridgeAction {
        let name = parameters.get("name").and_then(Value::as_str).unwrap_or_default();
        if !self.tools.iter().any(|tool| tool.server == server && tool.name == name) {
            return BridgeAction::Answer(failure(id, BAD_ARGUMENTS, &format!("there is no tool `{name}`")));
        }
        let meta = parameters.get("_meta").and_then(|meta| meta.get("claudecode/toolUseId"));
        let arguments = parameters.get("arguments").filter(|arguments| !arguments.is_null());
        BridgeAction::Call(BridgedCall {
            id: id.clone(),
            name: name.to_owned(),
            arguments: arguments.cloned().unwrap_or_else(|| json!({})),
            tool_use_id: meta.and_then(Value::as_str).map(str::to_owned),
        })
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

fn take_notification(method: &str, parameters: &Value) -> BridgeAction {
    let answer = json!({"jsonrpc": "2.0", "result": {}});
    match parameters.get("requestId") {
        Some(id) if method == "notifications/cancelled" => {
            BridgeAction::Cancel { id: id.to_string(), answer }
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
