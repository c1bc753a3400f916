//! Lets a process die within a tool call, and recovers its session in the next one. Files and STATE
//! are restored to before the call, and a person decides its outcome.
//!
//! `cargo run --bin crash_and_recover`

use std::path::Path;
use std::process::{Command, abort};
use std::sync::Arc;
use std::{env, fs};

use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{ExecutionState, ResourceRegistry, Session, SessionTypes, Settlement, Store};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

/// Writes half of its output, and ends its process.
struct Release;

impl Tool for Release {
    const NAME: &'static str = "release";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write("version", b"half done")?;
        abort()
    }
}

fn runner(directory: &Path, session: Session) -> Result<ToolRunner, Box<dyn std::error::Error>> {
    let files = session.open_workspace(directory.join("workspace"), HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    Ok(ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(Release)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let types = SessionTypes::builder().build()?;
    if let Some(directory) = env::args_os().nth(1) {
        let directory = Path::new(&directory);
        let session = Store::open(directory.join("store"))?.create(&types)?;
        runner(directory, session)?.execute(&ToolCall::new("release", "{}"), &ExecuteOptions::default())?;
        return Ok(());
    }

    let directory = tempfile::tempdir()?;
    let version = directory.path().join("workspace/version");
    fs::create_dir(directory.path().join("workspace"))?;
    fs::write(&version, "1.0")?;
    let ended = Command::new(env::current_exe()?).arg(directory.path()).status()?;
    println!("the host ended by itself: {}; version is: {}", ended.success(), fs::read_to_string(&version)?);

    let store = Store::open(directory.path().join("store"))?;
    let id = store.session_ids()?.into_iter().next().ok_or("there is no session")?;
    let session = store.open_session(id, &types)?;
    println!("interrupted: {}", session.calls().is_interrupted());
    let recovered = runner(directory.path(), session.clone())?.recover(&ExecuteOptions::default())?;
    println!("recovered {}; version is: {}", recovered.len(), fs::read_to_string(&version)?);
    for waiting in session.calls().unsettled_operations() {
        session.calls().settle(
            waiting.operation,
            &Settlement::failed(),
            "an example",
            "the registry has no such version",
        )?;
        println!("`{}` is settled as failed", waiting.tool); // the ledger says by whom, and why
    }
    session.close()?;
    Ok(())
}
