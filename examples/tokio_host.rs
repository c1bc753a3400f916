//! Runs conversations on one thread of an async runtime. Model and tool are futures that use the
//! host's own client.
//!
//! - While a conversation waits for its model or its tool, it blocks no thread: the model answers
//!   only after all of them have sent a request.
//! - Dropping a conversation's future cancels it immediately. It can continue later at the end of
//!   its log.
//!
//! `cargo run --bin tokio_host`

use std::{sync::Arc, time::Duration};

use foldlog::conversation::{Role, ToolCallRecord};
use foldlog::tools::{AsyncTool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{ExecutionState, ResourceRegistry, Session, SessionTypes, Store};
use foldlog_agent::provider::*;
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter};
use tokio::{sync::Barrier, task::JoinSet, time};

type AnyError = Box<dyn std::error::Error + Send + Sync>;
type Answered = Result<ProviderAnswer, Box<ProviderError>>;

struct Weather;
impl AsyncTool for Weather {
    const NAME: &'static str = "weather";
    type Parameters = String;
    type Output = ();
    async fn call(&self, city: String, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let takes = if city == "the moon" { 3_600_000 } else { 5 };
        time::sleep(Duration::from_millis(takes)).await; // here: a request of the host's own client
        Ok(ToolResult::ok(format!("snow in {city}"), ()))
    }
}

/// Answers after three conversations have sent a request.
struct Model(Barrier);
impl AsyncProvider for Model {
    fn name(&self) -> &str {
        "model"
    }
    fn prepare(&self, asked: &ProviderRequest<'_>) -> Result<PreparedRequest, Box<ProviderError>> {
        let last = asked.messages.last().map(|last| (last.role == Role::Tool, last.content.clone()));
        let (body, parameters) = (serde_json::json!(last).to_string().into_bytes(), serde_json::json!({}));
        Ok(PreparedRequest { model: "model".to_owned(), parameters, body, stream: false })
    }
    async fn send(&self, asked: &PreparedRequest, _: &mut SendOptions<'_>) -> Answered {
        let (is_result, text): (bool, String) = serde_json::from_slice(&asked.body).unwrap_or_default();
        if is_result {
            return Ok(ProviderAnswer { content: Some(format!("I heard: {text}")), ..Default::default() });
        }
        self.0.wait().await; // here: a request of the host's own client
        let (call_id, name, arguments) = ("1".to_owned(), "weather".to_owned(), format!("{text:?}"));
        Ok(ProviderAnswer { calls: vec![ToolCallRecord { call_id, name, arguments }], ..Default::default() })
    }
}

/// Runs one conversation, which is cancelled if it takes too long, and then continues.
async fn talk(model: Arc<ProviderAdapter<Model>>, session: Session, city: &str) -> Result<String, AnyError> {
    let state = ExecutionState::new(session, ResourceRegistry::builder().build()?);
    let prompt = Prompt::text("examples", "weather").with_section(MarkdownSection::new("city", city));
    let prompt = Arc::new(prompt.with_tools(ToolRegistry::new().with_async(Weather)));
    let evaluate = || model.evaluate_async(&prompt, &state, EvaluateOptions::default());
    let first = time::timeout(Duration::from_secs(1), evaluate()).await;
    Ok(if let Ok(response) = first { response?.text } else { evaluate().await?.text })
}

fn main() -> Result<(), AnyError> {
    let (directory, mut runtime) = (tempfile::tempdir()?, tokio::runtime::Builder::new_current_thread());
    let store = Store::open(directory.path())?;
    runtime.enable_time().build()?.block_on(async {
        let (model, mut running) = (Arc::new(ProviderAdapter::new(Model(Barrier::new(3)))), JoinSet::new());
        for city in ["Oslo", "Rome", "the moon"] {
            running.spawn(talk(model.clone(), store.create(&SessionTypes::builder().build()?)?, city));
        }
        while let Some(ended) = running.join_next().await {
            println!("{}", ended??);
        }
        Ok(())
    })
}
