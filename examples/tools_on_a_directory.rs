//! Runs tools as transactions over a real directory: the files that a failing tool has written are
//! rolled back.
//!
//! `cargo run --bin tools_on_a_directory`

use std::fs;
use std::sync::Arc;

use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Edit {
    path: String,
    text: String,
}

/// Writes a file, and then checks it. If the check fails, the tool fails, and the file is rolled
/// back.
struct Write;

impl Tool for Write {
    const NAME: &'static str = "write";
    const DESCRIPTION: &'static str = "Writes a JSON file.";
    type Parameters = Edit;
    type Output = ();

    fn call(&self, edit: Edit, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write(&edit.path, edit.text.as_bytes())?;
        if let Err(error) = serde_json::from_str::<serde_json::Value>(&edit.text) {
            return Err(ToolError::failed(format!("{} is no JSON: {error}", edit.path)));
        }
        Ok(ToolResult::ok(format!("wrote {}", edit.path), ()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let workspace = directory.path().join("workspace");
    fs::create_dir(&workspace)?;
    fs::write(workspace.join("settings.json"), "{}")?;

    let session = Store::open(directory.path().join("store"))?.create(&SessionTypes::builder().build()?)?;
    let files = session.open_workspace(&workspace, HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let state = ExecutionState::new(session.clone(), resources);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Write));

    let calls = [
        r#"{"path": "settings.json", "text": "{\"dark\": true}"}"#,
        r#"{"path": "settings.json", "text": "{"}"#,
    ];
    for (number, arguments) in calls.into_iter().enumerate() {
        let call = ToolCall::new("write", arguments).with_id(format!("call_{number}"));
        let report = runner.execute(&call, &ExecuteOptions::default())?;
        println!("success: {}, the model sees: {}", report.success, report.message);
        println!("settings.json: {}", fs::read_to_string(workspace.join("settings.json"))?);
    }
    drop(runner);
    session.close()?;
    Ok(())
}
