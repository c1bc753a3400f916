//! Holds two conversations at once from an async runtime, without blocking its executor.
//!
//! `evaluate` blocks its thread while a model answers and while tools run, and it starts no runtime. So each conversation gets a
//! thread on which blocking is allowed (`spawn_blocking`), and what it owns moves there: session, prompt and adapter.
//!
//! - What streams is handed to the executor through an unbounded channel, whose sender never waits.
//! - To cancel a conversation, set the `CancelToken` of its options. Dropping the handle of `spawn_blocking` ends nothing.
//! - One session has one writer, so two conversations at once have two sessions. The store may be shared.
//!
//! The executor has one thread here. The model of each conversation answers only once the other one is asked too, and gives its
//! last answer only once the executor has heard of the first: if the conversations waited for one another, or blocked the
//! executor, the program would never end.
//!
//! `cargo run --bin tokio_host`

use std::sync::{Arc, Barrier, Mutex, mpsc};

use foldlog::conversation::Role;
use foldlog::tools::{Tool, ToolContext, ToolError, ToolRegistry, ToolResult};
use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::provider::{Delta, ProviderAnswer};
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, UserMessage};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct City {
    city: String,
}

struct Weather;

impl Tool for Weather {
    const NAME: &'static str = "weather";
    const DESCRIPTION: &'static str = "Says how the weather is.";
    type Parameters = City;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, at: City, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        Ok(ToolResult::ok(format!("snow in {}", at.city), ()))
    }
}

/// Makes the model of one conversation. It answers when the other one is asked too, and ends when the executor has heard of
/// its first answer.
fn model(city: &'static str, both: Arc<Barrier>, heard: mpsc::Receiver<()>) -> ScriptedProvider {
    let heard = Mutex::new(heard);
    ScriptedProvider::from_fn(move |request| {
        if request.messages.last().is_some_and(|last| last.role == Role::Tool) {
            if let Ok(heard) = heard.lock() {
                heard.recv().ok();
            }
            return ScriptedReply::text(format!("It snows in {city}."));
        }
        both.wait();
        let arguments = serde_json::json!({ "city": city }).to_string();
        match ScriptedReply::calls([("call_1", "weather", arguments.as_str())]) {
            ScriptedReply::Answer(answer) => {
                ScriptedReply::Answer(ProviderAnswer { content: Some("looking".to_owned()), ..answer })
            }
            failure => failure,
        }
    })
}

/// Holds one conversation, on a thread that may be blocked.
fn converse(
    store: &Store,
    city: &'static str,
    model: ScriptedProvider,
    shown: &UnboundedSender<(&'static str, String)>,
) -> Result<String, AnyError> {
    let session = store.create(&SessionTypes::builder().build()?)?;
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    let prompt = Prompt::text("examples", "weather")
        .with_section(MarkdownSection::new("task", "Say how the weather is."))
        .with_tools(ToolRegistry::new().with(Weather));
    let mut on_delta = |delta: Delta<'_>| {
        if let Delta::Text(text) = delta {
            shown.send((city, text.to_owned())).ok();
        }
    };
    let options = EvaluateOptions {
        messages: vec![UserMessage { id: "1".to_owned(), text: format!("{city}?") }],
        on_delta: Some(&mut on_delta),
        ..EvaluateOptions::default()
    };
    let response = ProviderAdapter::new(model).evaluate(&prompt, &state, options)?;
    drop(state);
    session.close()?;
    Ok(response.text)
}

async fn host() -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    // Opening a store reads files, so it is no work for the executor either.
    let path = folder.path().to_owned();
    let store = Arc::new(spawn_blocking(move || Store::open(path)).await??);
    let both = Arc::new(Barrier::new(2));
    let (shown, mut arriving) = unbounded_channel();
    let (mut tell, mut running) = (Vec::new(), Vec::new());
    for city in ["Oslo", "Rome"] {
        let (store, both, shown) = (store.clone(), both.clone(), shown.clone());
        let (told, heard) = mpsc::channel();
        tell.push((city, told));
        running.push(spawn_blocking(move || converse(&store, city, model(city, both, heard), &shown)));
    }
    drop(shown);
    // The executor is free: it reads what arrives while both conversations run, and tells their models.
    let mut words = 0;
    while let Some((city, _)) = arriving.recv().await {
        words += 1;
        for (_, told) in tell.iter().filter(|(of, _)| *of == city) {
            told.send(()).ok();
        }
    }
    for conversation in running {
        println!("{}", conversation.await??);
    }
    println!("{words} words arrived meanwhile");
    Ok(())
}

fn main() -> Result<(), AnyError> {
    tokio::runtime::Builder::new_current_thread().build()?.block_on(host())
}
