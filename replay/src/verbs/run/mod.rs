//! `foldlog run`: runs an agent's program over a workspace, as a session of a store.
//!
//! | module | holds |
//! |---|---|
//! | `asked` | the options, what the program is started with, and the command that resumes |
//! | `found` | the session: a new one, or the one that goes on, recovered |
//! | `watch` | waits for the run beside Ctrl-C, and shows how far it is |
//!
//! # Invariants
//!
//! 1. A run that was cut short, in whatever way, is resumed by the same command with `--resume`.
//! 2. A text of the user that the session holds is not said again, and a run that is complete is answered by the log.
//! 3. No value of an environment variable is recorded or printed.

mod asked;
mod found;
mod watch;

use std::sync::Arc;

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions, WorkspaceNotice};
use foldlog::{ExecutionState, ResourceRegistry, Session};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::claude::ClaudeAgentSDKAdapter;
use foldlog_agent::events::PromptExecuted;
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, PromptResponse, UserMessage};
use foldlog_codec::escape;
use serde::Serialize;
use uuid::Uuid;

pub use self::asked::{Adapter, Asked};

use self::found::Found;
use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::counted;

/// Id of the evaluation in a session of `foldlog run`.
pub(super) const EVALUATION: &str = "run";

/// Holds what a run gave.
#[derive(Serialize)]
struct Document {
    session: Uuid,
    /// Folder of the session.
    dir: String,
    /// Whether the log answered, and no program ran.
    recorded: bool,
    text: String,
    stop: Option<String>,
    requests: u64,
    tool_calls: u64,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cost_usd: Option<f64>,
}

/// Runs an agent's program over a workspace, and prints its answer.
///
/// # Errors
///
/// - [`Failure::Usage`] if a file or folder is missing, or the session cannot go on as it is asked to.
/// - [`Failure::Engine`] if another process has the session open, or its workspace cannot be restored.
/// - [`Failure::Run`] if the run gave no answer. It can be resumed.
pub fn run(asked: &Asked, output: &mut Output<'_>) -> Result<u8> {
    asked.check()?;
    let said = asked.prompt()?;
    let found = found::find(asked, output)?;
    output.note(format_args!("session {}", escape::path(found.session.dir())));
    let session = found.session.clone();
    let done = evaluate(asked, said, found, output);
    let closed = session.close();
    let document = done?;
    closed?;
    if output.json() {
        output.value(&document)?;
    } else {
        // Line by line, so that each is as the model wrote it but for control characters.
        document.text.lines().try_for_each(|line| output.line(line))?;
        output.stdout.flush()?;
        output.note(document.summary());
    }
    Ok(HOLDS)
}

/// Opens the workspace as the session's resource; what is captured of it lies in the session's folder.
fn resources(asked: &Asked, session: &Session) -> Result<(Arc<HostFilesystem>, ResourceRegistry)> {
    let mut options = HostFilesystemOptions::default().gitignore(asked.gitignore);
    options.leave_out.clone_from(&asked.leave_out);
    let files = Arc::new(HostFilesystem::open(&asked.workspace, session.dir().join("files"), options)?);
    let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build()?;
    Ok((files, resources))
}

/// Makes the prompt. The system prompt is a parameter of it, so that what it holds is no template.
fn prompt(system: &str) -> Prompt {
    let section = MarkdownSection::new("system", "${system}").with_parameter("system", system);
    Prompt::text("foldlog", EVALUATION).with_section(section)
}

fn evaluate(asked: &Asked, said: Option<String>, found: Found, output: &mut Output<'_>) -> Result<Document> {
    let session = found.session;
    let (files, resources) = resources(asked, &session)?;
    let state = ExecutionState::new(session.clone(), resources);
    let adapter = asked.claude();
    let failed = |error: foldlog_agent::Error| Failure::Run {
        error: Box::new(error),
        dir: session.dir().to_owned(),
        again: asked.again(session.id()),
    };
    if found.goes_on {
        // The recovery asks the prompt for its tools alone, and the system prompt stands in what is recovered.
        let report = adapter.recover(&prompt(""), &state).map_err(failed)?;
        found::note_recovery(&report, output);
    }
    let held = found::held(&session)?;
    let prompt = prompt(asked.system(held.system.as_deref())?.as_str());
    let new = said.filter(|said| !held.said.contains(said));
    if new.is_none() && held.said.is_empty() {
        return Err(Failure::usage(
            "the session was told nothing yet",
            "say what is to be done: --prompt FILE",
        ));
    }
    let before = session.position();
    let messages = new.map(|text| UserMessage { id: Uuid::new_v4().to_string(), text });
    let evaluated = watch::watch(&session, output, |cancel| {
        let options = EvaluateOptions {
            evaluation_id: Some(EVALUATION.to_owned()),
            messages: messages.into_iter().collect(),
            deadline: asked.deadline(),
            cancel,
            ..EvaluateOptions::default()
        };
        ClaudeAgentSDKAdapter::evaluate(&adapter, &prompt, &state, options)
    })?;
    note_workspace(&files, output);
    // What the log answers leaves no record.
    Document::of(&session, evaluated.map_err(failed)?, session.position() == before)
}

/// Notes what the captures of a workspace met that fails no call.
fn note_workspace(files: &HostFilesystem, output: &mut Output<'_>) {
    for notice in files.take_notices() {
        match notice {
            WorkspaceNotice::Replaced { .. } => output.note(
                "note: the workspace is another folder than at the last call: it was captured whole, as it is now",
            ),
            WorkspaceNotice::Mounted { paths } => output
                .note(format_args!("note: left as it is: file systems are mounted at {}", paths.join(", "))),
            WorkspaceNotice::ChangedSinceBoot { paths, more } => output.note(format_args!(
                "note: changed since the machine was rebooted: {}{}",
                paths.join(", "),
                if more == 0 { String::new() } else { format!(", and {more} more") }
            )),
            WorkspaceNotice::UnknownSinceBoot { reason } => output.note(format_args!(
                "note: whether a power cut changed the workspace is not known: {reason}"
            )),
            other => output.note(format_args!("note: {other:?}")),
        }
    }
}

impl Document {
    fn of(session: &Session, response: PromptResponse<String>, recorded: bool) -> Result<Document> {
        let runs = found::executions(session)?;
        let sum = |of: fn(&PromptExecuted) -> u64| runs.iter().map(of).fold(0, u64::saturating_add);
        let last = runs.last();
        let costs: Vec<u64> = runs.iter().filter_map(|run| run.cost_micros).collect();
        Ok(Document {
            session: session.id(),
            dir: escape::path(session.dir()),
            recorded,
            stop: response.stop,
            requests: last.map_or(0, |run| run.requests),
            tool_calls: last.map_or(0, |run| run.tool_calls),
            input_tokens: response.usage.input,
            output_tokens: response.usage.output,
            cache_read_tokens: response.usage.cache_read,
            cost_usd: (!costs.is_empty())
                .then(|| sum(|run| run.cost_micros.unwrap_or_default()) as f64 / 1e6),
            text: response.text,
        })
    }

    /// Returns what a person is told of the run.
    fn summary(&self) -> String {
        if self.recorded {
            return "the log holds this answer: no program ran".to_owned();
        }
        let cost = self.cost_usd.map_or_else(|| "cost not known".to_owned(), |usd| format!("${usd:.4}"));
        let (requests, calls) = (counted(self.requests, "request"), counted(self.tool_calls, "tool call"));
        let (input, output) = (self.input_tokens, self.output_tokens);
        format!("{requests}, {calls}, {input} tokens in, {output} tokens out, {cost}")
    }
}
