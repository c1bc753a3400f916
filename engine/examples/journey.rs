//! Does one kind of work a number of times in one session. `tests/journeys/run` compares the lines
//! that two such runs execute, to find those of one more dispatch or tool call.

use std::error::Error;
use std::sync::Arc;
use std::{env, fs};

use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Step {
    title: String,
    done: bool,
}

impl Event for Step {
    const NAME: &'static str = "step";
}

struct Plan;

impl Slice for Plan {
    const NAME: &'static str = "plan";
    type Item = Step;
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Text {
    text: String,
}

/// Writes a file.
struct Write;

impl Tool for Write {
    const NAME: &'static str = "write";
    const DESCRIPTION: &'static str = "Writes a file.";
    type Parameters = Text;
    type Output = ();

    fn call(&self, parameters: Text, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write("notes", parameters.text.as_bytes())?;
        Ok(ToolResult::ok("written", ()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let [journey, times] = <[String; 2]>::try_from(env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: journey dispatch|tool-call TIMES")?;
    let directory = tempfile::tempdir()?;
    let types =
        SessionTypes::builder().slice::<Plan>().upsert_by::<Plan, _>(|step| step.title.clone()).build()?;
    let session = Store::open(directory.path().join("store"))?.create(&types)?;
    let workspace = directory.path().join("workspace");
    fs::create_dir(&workspace)?;
    let files = session.open_workspace(&workspace, HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let runner =
        ToolRunner::new(ExecutionState::new(session.clone(), resources), ToolRegistry::new().with(Write));

    for number in 0..times.parse::<u32>()? {
        match journey.as_str() {
            "dispatch" => {
                session.dispatch(Step { title: format!("step {number}"), done: false })?;
            }
            "tool-call" => {
                let call = ToolCall::new("write", format!(r#"{{"text": "{number}"}}"#));
                let report =
                    runner.execute(&call.with_id(format!("call {number}")), &ExecuteOptions::default())?;
                if !report.success {
                    return Err(report.message.into());
                }
            }
            _ => return Err("the journey is dispatch or tool-call".into()),
        }
    }
    drop(runner);
    session.close()?;
    Ok(())
}
