//! A tool asks before it buys a boat. The host waits until a person decides, and then continues
//! the conversation.
//!
//! `cargo run --bin approval DIRECTORY` waits for `foldlog settle` in another terminal;
//! `cargo run --bin approval` decides by itself.

use std::env;
use std::path::Path;
use std::time::Duration;

use foldlog::conversation::Role;
use foldlog::tools::{Question, Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Settlement, Store};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{Error, EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, UserMessage};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Order {
    what: String,
}

struct Buy;

impl Tool for Buy {
    const NAME: &'static str = "buys";
    type Parameters = Order;
    type Output = ();

    fn call(&self, order: Order, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        if context.approval().is_none() {
            return Err(ToolError::Ask(Question::new(format!("Buy {}?", order.what))));
        }
        Ok(ToolResult::ok("bought", ()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (temporary, directory) = (tempfile::tempdir()?, env::args_os().nth(1));
    let store = Store::open(directory.as_deref().map_or(temporary.path(), Path::new))?;
    let session = store.create(&SessionTypes::builder().build()?)?;
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let prompt = Prompt::text("guide", "shop")
        .with_section(MarkdownSection::new("task", "Buy what the user wants."))
        .with_tools(ToolRegistry::new().with(Buy));
    let model = ProviderAdapter::new(ScriptedProvider::from_fn(|request| match request.messages.last() {
        Some(last) if last.role == Role::Tool => ScriptedReply::text("You have a boat."),
        _ => ScriptedReply::calls([("call_1", "buys", r#"{"what":"a boat"}"#)]),
    }));
    loop {
        let messages = vec![UserMessage { id: "1".into(), text: "I want a boat.".into() }];
        let options = EvaluateOptions { evaluation_id: Some("shop".into()), messages, ..Default::default() };
        let operations = match model.evaluate(&prompt, &state, options) {
            Err(Error::Suspended { operations, .. }) => operations,
            answered => {
                println!("{}", answered?.text);
                return Ok(session.close()?);
            }
        };
        for pending in session.calls().pending_questions()? {
            println!("waits: {}", pending.question);
            if directory.is_none() {
                let approved = Settlement::approved(pending.digest);
                session.calls().settle(pending.operation, &approved, "ada", "it is cheap")?;
            }
        }
        session.calls().wait_for_decision(&operations, Duration::from_secs(3600))?;
    }
}
