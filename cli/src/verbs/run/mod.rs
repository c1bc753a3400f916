//! `foldlog run`: runs an agent's program over a workspace, as a session of a store.
//!
//! | module | contains |
//! |---|---|
//! | `args` | the options, and their effect on the program |
//! | `tools` | the names of the program's own tools |
//! | `program` | the location of the program |
//! | `recorded_calls` | the calls for `foldlog log` and `foldlog undo` |
//! | `run_session` | the session: a new one, or a recovered one that continues |
//! | `watch` | waiting for the run and for Ctrl-C, and the status line |
//! | `resume_command` | the command that resumes |
//! | `next` | the error of a run without an answer, and the next step |
//!
//! # Invariants
//!
//! 1. An interrupted run is resumed by the same command with `--resume`, however it was
//!    interrupted.
//! 2. A text of the user that the session contains is not sent again, and a complete run is
//!    answered from the log.
//! 3. No value of an environment variable is recorded or printed.
//! 4. Errors that can be detected before a session is created are reported before: no session is
//!    left.

mod args;
mod next;
mod program;
mod recorded_calls;
mod resume_command;
mod run_session;
mod tools;
mod watch;

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use foldlog::filesystem::{
    HostFilesystem, HostFilesystemOptions, Uncapturable, UnrestoredPath, WorkspaceNotice,
};
use foldlog::inspect::captures_dir;
use foldlog::{ExecutionState, ResourceRegistry, Session};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::events::PromptExecuted;
use foldlog_agent::{EvaluateOptions, MarkdownSection, Prompt, PromptResponse, UserMessage};
use foldlog_claude::{ClaudeAgentSDKAdapter, ClaudeVersion, ProgramRuns};
use foldlog_codec::escape;
use foldlog_view::shell::quote_word;
use foldlog_view::text::count_text;
use serde::Serialize;
use uuid::Uuid;

pub use self::args::{Adapter, Args};

use self::recorded_calls::CallRecorder;
use self::run_session::RunSession;
use crate::command::{Access, Argument, Command, Group, Target};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::run_failure::RunFailure;

/// Newest version of the program that was tested.
const TESTED: &str = "2.1.332";

pub(super) const EVALUATION: &str = "run";

impl Command for Args {
    const GROUP: Group = Group::Run;
    const ACCESS: Access = Access::Changes;
    const TARGET: Target = Target::Store;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.store);
    const EXAMPLE: &'static str =
        "foldlog run --adapter claude --prompt task.md --workspace DIR --store STORE";

    /// Runs an agent's program over a workspace and prints its answer. Without an answer, prints
    /// the reason as JSON with `--json`.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if a file, a directory or the program is
    ///   missing, an entry of the workspace cannot be captured, another process has the session
    ///   open, or the session cannot continue with these options.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the session cannot be created or read,
    ///   or its workspace cannot be restored.
    /// - [`CommandError::Run`] if the run gave no answer. It can be resumed.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let mut session = None;
        let answered = answer(&self, &mut session, output);
        if let Err(failure) = &answered
            && output.json()
            && !failure.is_closed_pipe()
        {
            output.value(&RunFailure::from_failure(failure, session.as_ref()))?;
        }
        answered
    }
}

/// Result of a run.
#[derive(Serialize)]
struct Document {
    session: Uuid,
    dir: String,
    /// Whether the answer came from the log, without running the program.
    recorded: bool,
    text: String,
    stop: Option<String>,
    requests: u64,
    tool_calls: u64,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    /// Whether a run of the program ended without reporting its tokens.
    usage_partial: bool,
    cost_usd: Option<f64>,
    /// Whether a run of the program ended without reporting its cost.
    cost_partial: bool,
}

/// Runs the program and prints its answer. Sets `of_run` to the session.
fn answer(asked: &Args, of_run: &mut Option<Session>, output: &mut Output<'_>) -> Result<u8> {
    asked.check()?;
    let said = asked.prompt()?;
    let system = asked.given_system()?;
    if asked.resume.is_none() {
        asked.check_program()?;
        asked.check_offered()?;
        // Nothing is written into this directory, which does not exist.
        check_workspace(asked, &captures_dir(&asked.store))?;
    }
    let found = run_session::find(asked, said.as_deref(), output)?;
    let session = of_run.insert(found.session.clone()).clone();
    output.note(format_args!("session {}", escape::path(session.dir())));
    let done = evaluate(asked, said, system, found, output);
    let closed = session.close();
    let document = done?;
    closed?;
    output.print(&document, |output| {
        // Printed line by line, so that each line is unchanged except for control characters.
        document.text.lines().try_for_each(|line| output.line(line))?;
        output.stdout.flush()?;
        output.note(document.summary());
        Ok(())
    })?;
    Ok(HOLDS)
}

/// Opens the workspace. `captures` is the directory for its captures.
fn open_workspace(asked: &Args, captures: &Path) -> Result<HostFilesystem> {
    Ok(HostFilesystem::open(&asked.workspace, captures, options(asked))?)
}

fn options(asked: &Args) -> HostFilesystemOptions {
    let mut options = HostFilesystemOptions::default().gitignore(asked.gitignore);
    options.leave_out.clone_from(&asked.leave_out);
    options
}

/// Checks that the calls of a run can capture the workspace: it must contain no pipe, socket or
/// device, and nothing unreadable.
fn check_workspace(asked: &Args, captures: &Path) -> Result<()> {
    if !tools::may_change(&asked.tools()?) {
        return Ok(());
    }
    let workspace = open_workspace(asked, captures)?;
    let found = workspace.uncapturable()?;
    let Some((first, why)) = found.first() else { return Ok(()) };
    let path = workspace.root().join(first);
    let kind = match path.symlink_metadata().map(|found| found.file_type()) {
        _ if *why == Uncapturable::Unreadable => "is not readable for this user, and",
        Ok(kind) if kind.is_fifo() => "is a pipe, which",
        Ok(kind) if kind.is_socket() => "is a socket, which",
        _ => "is a device, which",
    };
    let others = match found.len() - 1 {
        0 => String::new(),
        others => format!(", nor can {}", count_text(others as u64, "other file")),
    };
    let what = format!("{} in the workspace {kind} cannot be captured{others}", escape::path(&path));
    let otherwise = if *why == Uncapturable::Unreadable { "make it readable" } else { "remove it" };
    let paths = found.iter().map(|(path, _)| path.as_path());
    Err(CommandError::usage(what, format!("{otherwise}{}", or_leave_out(paths.take(LEFT_OUT_MAX)))))
}

/// Maximum number of paths for which an error lists the options that leave them out.
const LEFT_OUT_MAX: usize = 20;

/// Returns a clause with the options that leave exactly these paths below the workspace's root out
/// of captures. A name that is not text cannot become a pattern of an option.
fn or_leave_out<'a>(paths: impl Iterator<Item = &'a Path>) -> String {
    let option = |path: &Path| {
        let mut pattern = String::from("/");
        for character in path.to_str()?.chars() {
            if matches!(character, '\\' | '*' | '?' | '[') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        if pattern.ends_with(' ') {
            pattern.insert(pattern.len() - 1, '\\');
        }
        Some(format!(" --leave-out {}", quote_word(OsStr::new(&pattern))))
    };
    match paths.filter_map(option).collect::<String>() {
        none if none.is_empty() => String::new(),
        options => format!(", or leave it out of captures and rollbacks by{options}"),
    }
}

/// Opens the workspace as the session's resource; its captures are in the session's directory.
fn resources(asked: &Args, session: &Session) -> Result<(Arc<HostFilesystem>, ResourceRegistry)> {
    let files = Arc::new(session.open_workspace(&asked.workspace, options(asked))?);
    let resources = ResourceRegistry::builder().filesystem(Arc::clone(&files)).build()?;
    Ok((files, resources))
}

/// Creates the prompt. The system prompt is a parameter of it, so that its text is not a template.
fn prompt(system: &str) -> Prompt {
    let section = MarkdownSection::new("system", "${system}").with_parameter("system", system);
    Prompt::text("foldlog", EVALUATION).with_section(section)
}

fn evaluate(
    args: &Args,
    message: Option<String>,
    system: Option<String>,
    found: RunSession,
    output: &mut Output<'_>,
) -> Result<Document> {
    let session = found.session;
    let (files, resources) = resources(args, &session)?;
    let state = ExecutionState::builder(session.clone(), resources);
    let state = state.without_capture(args.without_capture).build();
    let (adapter, recorder) = CallRecorder::attach(args.claude()?, args, &session, output);
    let json = output.json();
    let failed = |error: foldlog_agent::Error| {
        let next = args.next(&error, &session, message.as_deref(), json);
        CommandError::Run { error: Box::new(error), next }
    };
    if found.goes_on {
        // The recovery needs the prompt only for its tools; the system prompt is in the recovered
        // session.
        let report = adapter.recover(&prompt(""), &state).map_err(failed)?;
        run_session::note_recovery(&session, &args.workspace, &report, output);
        // The recovery's report has already named the changes that it did not undo.
        let notices = files.take_notices().into_iter();
        note_workspace(notices.filter(|one| !matches!(one, WorkspaceNotice::NotUndone { .. })), output);
    }
    let held = run_session::read_recorded_prompts(&session)?;
    let prompt = prompt(held.system(system)?.as_str());
    let new = message.clone().filter(|message| !held.holds(message));
    if new.is_none() && held.said.is_empty() {
        return Err(CommandError::usage(
            "the session contains no message of the user yet",
            "give the message: --prompt FILE",
        ));
    }
    if found.goes_on && (new.is_some() || !run_session::is_complete(&session)?) {
        args.check_program()?;
        args.check_offered()?;
        check_workspace(args, &session.log().captures_dir())?;
    }
    let before = session.log().position();
    // The log grows with each message, so this id is unique.
    let behind = before.map_or(0, |before| before.get() + 1);
    let messages = new.map(|text| UserMessage { id: format!("said-{behind}"), text });
    let older = || older(&adapter);
    let evaluated = watch::watch(&session, output, older, |cancel| {
        let options = EvaluateOptions {
            evaluation_id: Some(EVALUATION.to_owned()),
            messages: messages.into_iter().collect(),
            deadline: args.deadline(),
            cancel,
            ..EvaluateOptions::default()
        };
        ClaudeAgentSDKAdapter::evaluate(&adapter, &prompt, &state, options)
    })?;
    recorder.iter().for_each(|recorder| recorder.finish(output));
    note_workspace(files.take_notices(), output);
    run_session::note_calls(&session, &args.workspace, before, output)?;
    // An answer from the log leaves no new record.
    Document::from_response(&session, evaluated.map_err(failed)?, session.log().position() == before)
}

/// Returns a warning if the program's version is older than those with which all of foldlog works.
fn older(adapter: &ClaudeAgentSDKAdapter) -> Option<String> {
    let version = ClaudeVersion::parse(&adapter.program_version()?)?;
    (version < ClaudeVersion::KNOWS_COMPOSED).then(|| {
        format!(
            "warning: Claude Code {version} is older than {}: it replaces `@path` in a prompt with the contents of that file; `npm install -g \
             @anthropic-ai/claude-code@{TESTED}` installs a tested version under Node.js 22",
            ClaudeVersion::KNOWS_COMPOSED
        )
    })
}

/// Prints the notices of a workspace's captures that fail no call.
fn note_workspace(notices: impl IntoIterator<Item = WorkspaceNotice>, output: &mut Output<'_>) {
    let listed = |paths: &[String], more| {
        let more = if more == 0 { String::new() } else { format!(", and {more} more") };
        format!("{}{more}", paths.join(", "))
    };
    for notice in notices {
        match notice {
            WorkspaceNotice::NotUndone { left } => left.into_iter().for_each(|UnrestoredPath { path, reason, .. }| {
                output.note(format_args!("note: not undone: {path}: {}", escape::text(&reason)));
            }),
            WorkspaceNotice::Replaced { .. } => output.note(
                "note: the workspace is not the directory of the last call; all its present contents were captured",
            ),
            WorkspaceNotice::Mounted { paths } => output
                .note(format_args!("note: not captured and unchanged: the file systems mounted at {}", paths.join(", "))),
            WorkspaceNotice::Changed { paths, more } => {
                output.note(format_args!("note: changed since the last call: {}", listed(&paths, more)));
            }
            WorkspaceNotice::CapturesNotHeld { store, .. } => output.note(format_args!(
                "note: the captures of the workspace are not replicated; they exist only on this machine, in {}",
                escape::path(&store)
            )),
            WorkspaceNotice::Unknown { reason } => output.note(format_args!(
                "note: it is unknown whether the workspace has changed since the last call: {reason}"
            )),
            WorkspaceNotice::ChangedSinceBoot { paths, more } => output
                .note(format_args!("note: changed since the machine was rebooted: {}", listed(&paths, more))),
            WorkspaceNotice::UnknownSinceBoot { reason } => output.note(format_args!(
                "note: it is unknown whether a power cut changed the workspace: {reason}"
            )),
            other => output.note(format_args!("note: {other:?}")),
        }
    }
}

impl Document {
    fn from_response(
        session: &Session,
        response: PromptResponse<String>,
        recorded: bool,
    ) -> Result<Document> {
        let runs = run_session::executions(session)?;
        let sum = |of: fn(&PromptExecuted) -> u64| runs.iter().map(of).fold(0, u64::saturating_add);
        let last = runs.last();
        let costs: Vec<u64> = runs.iter().filter_map(|run| run.cost_micros).collect();
        let ProgramRuns { started, told } = ProgramRuns::from_session(session)?;
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
            usage_partial: told < started,
            cost_partial: (costs.len() as u64) < started,
            cost_usd: (!costs.is_empty())
                .then(|| sum(|run| run.cost_micros.unwrap_or_default()) as f64 / 1e6),
            text: response.text,
        })
    }

    /// Returns the summary of the run for a person.
    fn summary(&self) -> String {
        if self.recorded {
            return "the answer is from the log; no program ran".to_owned();
        }
        let least = |is_partial: bool| if is_partial { "at least " } else { "" };
        let cost = self.cost_usd.map_or_else(
            || "cost unknown".to_owned(),
            |usd| format!("{}${usd:.4}", least(self.cost_partial)),
        );
        let (requests, calls) =
            (count_text(self.requests, "request"), count_text(self.tool_calls, "tool call"));
        let (input, output) = (self.input_tokens, self.output_tokens);
        let tokens = format!("{}{input} tokens in, {output} tokens out", least(self.usage_partial));
        format!("{requests}, {calls}, {tokens}, {cost}")
    }
}
