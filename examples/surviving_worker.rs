//! A worker's machine is lost within a tool call, and another worker continues with its records and
//! its files.
//!
//! `cargo run --bin surviving_worker`

use std::path::Path;
use std::process::{Command, abort};
use std::sync::Arc;
use std::{env, fs};

use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
use foldlog::replication::Replication;
use foldlog::tools::{
    ExecuteOptions, RewindOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult,
    ToolRunner,
};
use foldlog::{ExecutionState, Idempotency, ResourceRegistry, Session, SessionTypes, Store, StoreOptions};
use foldlog_remote::{Retries, open_place};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Version {
    version: String,
}

/// Writes the version into a file. On the machine that is about to be lost, dies half way.
struct Release {
    dies_at: &'static str,
}

impl Tool for Release {
    const NAME: &'static str = "release";
    type Parameters = Version;
    type Output = ();

    /// Running twice has the same result as running once, so a recovery runs it again.
    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, asked: Version, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write("version", b"half done")?;
        if asked.version == self.dies_at {
            abort();
        }
        files.write("version", asked.version.as_bytes())?;
        Ok(ToolResult::ok("released", ()))
    }
}

/// Opens the store of a worker in the directory of its machine. Its acknowledged records are in the
/// bucket.
fn store(machine: &Path, name: &str, bucket: &str) -> Result<Store> {
    let place = open_place(bucket, Retries::default())?; // s3://..., gs://..., az://... or postgres://... as well
    let replication = Some(Replication::new(place.replicator(name)?));
    Ok(Store::open_with(machine.join("store"), StoreOptions { replication, ..StoreOptions::default() })?)
}

/// Starts to work on a session, regardless of the previous worker and its machine.
fn begin(machine: &Path, session: Session, dies_at: &'static str) -> Result<ToolRunner> {
    let workspace = machine.join("workspace");
    fs::create_dir_all(&workspace)?;
    let files = session.open_workspace(&workspace, HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let state = ExecutionState::new(session, resources);
    if state.fill(&RewindOptions::default())?.is_some() {
        println!("filled, with version {}", fs::read_to_string(workspace.join("version"))?);
    }
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Release { dies_at }));
    for recovered in runner.recover(&ExecuteOptions::default())? {
        println!("recovered: `{}`", recovered.tool);
    }
    Ok(runner)
}

fn release(runner: &ToolRunner, version: &str) -> Result<()> {
    let call = ToolCall::new("release", format!("{{\"version\":\"{version}\"}}"));
    runner.execute(&call, &ExecuteOptions::default())?;
    Ok(())
}

/// The first worker, whose machine is lost with its second call.
fn first(machine: &Path, bucket: &str) -> Result<()> {
    let session = store(machine, "one", bucket)?.create(&SessionTypes::builder().build()?)?;
    let runner = begin(machine, session, "1.1")?;
    release(&runner, "1.0")?;
    release(&runner, "1.1")
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [machine, bucket] = arguments.as_slice() {
        return first(Path::new(machine), bucket);
    }
    let (one, two, bucket) = (tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?);
    let url = format!("file://{}", bucket.path().display());
    let ended = Command::new(env::current_exe()?).arg(one.path()).arg(&url).status()?;
    println!("the first worker ended by itself: {}", ended.success());
    one.close()?; // with all that was on it

    let listed = open_place(&url, Retries::default())?.sessions()?;
    let (id, types) = (*listed.first().ok_or("nothing is held")?, SessionTypes::builder().build()?);
    let session = store(two.path(), "two", &url)?.take_over(id, &types)?; // fences the first worker, should it live
    println!("interrupted: {}", session.calls().is_interrupted());
    let runner = begin(two.path(), session.clone(), "")?;
    let version = || fs::read_to_string(two.path().join("workspace/version"));
    println!("version: {}", version()?);
    release(&runner, "1.2")?;
    println!("version: {}", version()?);
    session.close()?;
    Ok(())
}
