//! Connects to a server of tools, like an MCP server. The tools, their parameters and their
//! recorded events become known only at run time, from the server. No Rust type belongs to the
//! server.
//!
//! `cargo run --bin dynamic_tool`

use foldlog::tools::{DynTool, ExecuteOptions, ToolCall, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{
    BuiltInReducer, DynamicEvent, ExecutionState, Idempotency, Policy, ResourceRegistry, SessionTypes, Store,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// The server's description and answers. A real server is another process.
fn ask_server(method: &str, arguments: &Value) -> Result<Value, String> {
    match method {
        "describe" => Ok(json!({
            "slices": {"cards": "state", "history": "log"},
            "events": {"card.put": {"cards": {"upsert": "id"}, "history": "append"}},
            "tools": [
                {"name": "put_card", "description": "Puts a card.", "event": "card.put", "idempotent": true,
                 "schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}},
                {"name": "burn_card", "description": "Burns a card.", "event": "card.put",
                 "schema": {"type": "object", "required": ["id"]}},
            ],
        })),
        "put_card" => Ok(json!({"text": format!("card {} is put", arguments["id"])})),
        other => Err(format!("`{other}` is out of matches")),
    }
}

fn types(said: &Value) -> Result<SessionTypes, Box<dyn std::error::Error>> {
    let mut types = SessionTypes::builder();
    for (name, policy) in said["slices"].as_object().into_iter().flatten() {
        let policy = if policy == "log" { Policy::Log } else { Policy::State };
        types = types.dynamic_slice(name.as_str(), policy);
    }
    for (name, bindings) in said["events"].as_object().into_iter().flatten() {
        let mut event = DynamicEvent::new(name.as_str());
        for (slice, reducer) in bindings.as_object().into_iter().flatten() {
            event = event.bind(slice.as_str(), BuiltInReducer::deserialize(reducer)?);
        }
        types = types.dynamic_event(event);
    }
    Ok(types.build()?)
}

fn tool(said: &Value) -> DynTool {
    let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
    let (name, event) = (text("name"), text("event"));
    let tool = DynTool::new(text("name"), said["schema"].clone(), move |arguments, context| {
        // If the server fails, the event of the call is rolled back.
        context.session().dynamic().dispatch(&event, arguments.clone())?;
        let answer = ask_server(&name, &arguments).map_err(ToolError::failed)?;
        Ok(ToolResult::ok(answer["text"].as_str().unwrap_or_default(), answer.clone()))
    });
    let again = if said["idempotent"] == true { Idempotency::Natural } else { Idempotency::Manual };
    tool.description(text("description")).idempotency(again)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let said = ask_server("describe", &Value::Null)?;
    let session = Store::open(directory.path())?.create(&types(&said)?)?;
    let tools = said["tools"].as_array().into_iter().flatten().map(tool);
    let tools = tools.fold(ToolRegistry::new(), ToolRegistry::with_dynamic);
    println!("tools: {}", tools.names().join(", "));
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let runner = ToolRunner::new(state, tools);
    for (name, arguments) in [("put_card", r#"{"id": 7}"#), ("burn_card", r#"{"id": 8}"#), ("put_card", "")] {
        let report = runner.execute(&ToolCall::new(name, arguments), &ExecuteOptions::default())?;
        println!("{name}: {}: {}", report.outcome.name(), report.message);
    }
    let cards =
        session.dynamic().view("cards")?.iter().map(|card| card.to_json()).collect::<Result<Vec<_>, _>>()?;
    println!("cards: {}; history: {}", Value::from(cards), session.dynamic().log("history")?.len());
    Ok(())
}
