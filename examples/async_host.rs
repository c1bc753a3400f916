//! Runs a hundred agents on one thread of an async runtime, and on two. Each agent has a session
//! and a tool that waits for an external event.
//!
//! - A tool that is a future is polled where the host polls its call, so it uses the host's client
//!   and blocks no thread.
//! - Waiting for another call, a lease or the disk blocks no thread of the executor either.
//! - Dropping a call's future rolls the call back.
//!
//! `cargo run --bin async_host`

use std::time::Duration;

use foldlog::tools::{
    AsyncTool, ExecuteOptions, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{Event, EventSlice, ExecutionState, ResourceRegistry, Session, SessionTypes, Store};
use tokio::{runtime::Builder, task::JoinSet};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Visited {
    city: String,
    /// Milliseconds that the way there takes.
    takes: u64,
}

impl Event for Visited {
    const NAME: &'static str = "travel.visited";
}

struct Travel;

impl AsyncTool for Travel {
    const NAME: &'static str = "travel";
    type Parameters = Visited;
    type Output = ();

    async fn call(&self, there: Visited, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().dispatch_async(there.clone()).await?;
        tokio::time::sleep(Duration::from_millis(there.takes)).await;
        Ok(ToolResult::ok(format!("arrived in {}", there.city), ()))
    }
}

/// Lets one agent travel, and cancels a journey that takes too long.
async fn agent(session: Session) -> Result<u64, AnyError> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let runner = ToolRunner::new(state, ToolRegistry::new().with_async(Travel));
    for (city, takes) in [("Oslo", 5), ("Rome", 5), ("the moon", 3_600_000)] {
        let arguments = serde_json::json!({ "city": city, "takes": takes }).to_string();
        let journey = runner.execute_async(&ToolCall::new("travel", arguments), &ExecuteOptions::default());
        match tokio::time::timeout(Duration::from_secs(1), journey).await {
            Ok(report) => assert!(report?.success),
            Err(_) => session.sync_async().await?,
        }
    }
    // Waits until the cancelled journey is rolled back.
    session.dispatch_async(Visited { city: "home".to_owned(), takes: 0 }).await?;
    Ok(session.view::<EventSlice<Visited>>()?.len())
}

async fn host(threads: &str) -> Result<(), AnyError> {
    let directory = tempfile::tempdir()?;
    let store = Store::open(directory.path())?;
    let types = SessionTypes::builder().build()?;
    let mut agents = JoinSet::new();
    for _ in 0..100 {
        agents.spawn(agent(store.create(&types)?));
    }
    let visited: u64 = agents.join_all().await.into_iter().sum::<Result<u64, AnyError>>()?;
    println!("100 agents went to {visited} places, {threads}");
    Ok(())
}

fn main() -> Result<(), AnyError> {
    Builder::new_current_thread().enable_time().build()?.block_on(host("on one thread"))?;
    Builder::new_multi_thread().worker_threads(2).enable_time().build()?.block_on(host("on two"))
}
