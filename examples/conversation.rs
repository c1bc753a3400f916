//! Runs a conversation whose process is killed within a tool call. The next process recovers the
//! call, and the conversation continues. No answer is requested twice, and the partial changes of
//! the killed call are rolled back before it runs again.
//!
//! `cargo run --bin conversation`

use std::path::Path;
use std::process::{Command, abort};
use std::sync::Arc;
use std::{env, fs};

use foldlog::conversation::Role;
use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
use foldlog::tools::{ExecuteOptions, Tool, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner};
use foldlog::{ExecutionState, Idempotency, ResourceRegistry, Session, SessionTypes, Store};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, ProviderAdapter, UserMessage};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

/// Writes two files. The process that is to be killed dies between them.
struct Write {
    dies: bool,
}

impl Tool for Write {
    const NAME: &'static str = "write";
    const DESCRIPTION: &'static str = "Writes the page and its index.";
    type Parameters = Nothing;
    type Output = ();

    /// Writing the same files twice has the same result, so an interrupted call may run again.
    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write("page", b"new")?;
        if self.dies {
            abort()
        }
        files.write("index", b"new")?;
        Ok(ToolResult::ok("page and index are written", ()))
    }
}

/// Answers as a model would. The answer depends only on the conversation.
fn model() -> ProviderAdapter<ScriptedProvider> {
    ProviderAdapter::new(ScriptedProvider::from_fn(|request| match request.messages.last() {
        Some(last) if last.role == Role::Tool => ScriptedReply::text("The page is written."),
        _ => ScriptedReply::calls([("call_1", "write", "{}")]),
    }))
}

/// Starts the conversation, or continues it where a process left it.
fn converse(
    directory: &Path,
    session: &Session,
    model: &ProviderAdapter<ScriptedProvider>,
    dies: bool,
) -> Result<String, Box<dyn std::error::Error>> {
    let files = session.open_workspace(directory.join("workspace"), HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let state = ExecutionState::new(session.clone(), resources);
    let prompt = Prompt::text("examples", "page")
        .with_section(MarkdownSection::new("task", "You write pages."))
        .with_tools(ToolRegistry::new().with(Write { dies }));
    // A call that was left open is rolled back and, since its tool allows it, run again.
    ToolRunner::new(state.clone(), prompt.tools().clone()).recover(&ExecuteOptions::default())?;
    let options = EvaluateOptions {
        evaluation_id: Some("page".to_owned()),
        messages: vec![UserMessage { id: "1".to_owned(), text: "Write the page.".to_owned() }],
        ..EvaluateOptions::default()
    };
    Ok(model.evaluate(&prompt, &state, options)?.text)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let types = SessionTypes::builder().build()?;
    if let Some(directory) = env::args_os().nth(1) {
        let directory = Path::new(&directory);
        let session = Store::open(directory.join("store"))?.create(&types)?;
        converse(directory, &session, &model(), true)?;
        return Ok(());
    }

    let directory = tempfile::tempdir()?;
    fs::create_dir(directory.path().join("workspace"))?;
    let ended = Command::new(env::current_exe()?).arg(directory.path()).status()?;
    println!("the first process ended by itself: {}", ended.success());

    let store = Store::open(directory.path().join("store"))?;
    let id = store.session_ids()?.into_iter().next().ok_or("there is no session")?;
    let session = store.open_session(id, &types)?;
    let model = model();
    let text = converse(directory.path(), &session, &model, false)?;
    println!("the model: {text}");
    println!("answers that the second process asked for: {}", model.provider().requests());
    println!("index: {}", fs::read_to_string(directory.path().join("workspace/index"))?);
    for message in session.conversation().read("page")?.into_iter().flat_map(|held| held.messages()) {
        println!("{:?}: {:?}", message.role, message.content.unwrap_or_default());
    }
    session.close()?;
    Ok(())
}
