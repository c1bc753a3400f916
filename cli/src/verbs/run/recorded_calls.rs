//! The calls of a run in the timeline of its workspace, for `foldlog log` and `foldlog undo`. The code
//! of the hooks records them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldlog::Session;
use foldlog_claude::{CallObserver, ClaudeAgentSDKAdapter};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Args;
use super::args::absolute;
use crate::agents::{Agent, HookEvent, HookReply};
use crate::output::Output;
use crate::timelines::UserDirs;
use crate::timelines::hook::{collect, record, refusal};

/// Records the calls of a run. An error does not end the run.
#[derive(Debug)]
pub(super) struct CallRecorder {
    workspace: PathBuf,
    /// Session of the run. The program's own session changes with each resume, and its model would
    /// not be informed about undos between two runs.
    session: Uuid,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Whether the workspace may be recorded; `None` before the first call.
    is_allowed: Option<bool>,
    has_calls: bool,
    /// Texts that the model has not received.
    texts: Vec<String>,
    /// First reason for which a call cannot be undone.
    problem: Option<String>,
}

impl CallRecorder {
    /// Makes an adapter report its calls to a recorder; `None` if no directory for timelines is known.
    pub(super) fn attach(
        adapter: ClaudeAgentSDKAdapter,
        args: &Args,
        session: &Session,
        output: &Output<'_>,
    ) -> (ClaudeAgentSDKAdapter, Option<Arc<CallRecorder>>) {
        // A command within another program, such as a test, has no user.
        if !output.is_process || UserDirs::from_variables().timelines().is_err() {
            return (adapter, None);
        }
        let workspace = absolute(&args.workspace);
        let recorder =
            Arc::new(CallRecorder { workspace, session: session.id(), progress: Mutex::default() });
        (adapter.with_call_observer(Arc::<CallRecorder>::clone(&recorder)), Some(recorder))
    }

    /// Closes the calls that are open at the end of the run.
    pub(super) fn finish(&self, output: &mut Output<'_>) {
        let mut notes = Vec::new();
        if self.progress().has_calls {
            notes = self.record(&json!({"hook_event_name": "SessionEnd"})).messages;
            // If it fails, the next run repeats it.
            let _ = collect(&self.workspace);
        }
        notes.extend(self.progress().problem.take());
        for note in notes {
            output.note(format_args!("note: {}", note.trim_start_matches("foldlog: ")));
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, problem: String) {
        self.progress().problem.get_or_insert(problem);
    }

    /// Records an event, which is described as for a hook.
    fn record(&self, hook: &Value) -> HookReply {
        let mut hook = hook.clone();
        if let Value::Object(fields) = &mut hook {
            fields.insert("session_id".to_owned(), json!(self.session));
            fields.entry("cwd").or_insert_with(|| json!(self.workspace));
        }
        // Once this process was killed, its calls have ended.
        let process = Some(std::process::id());
        let recorded = match (Agent::Claude.program().read)(&hook.to_string(), process) {
            Ok(input) if matches!(input.event, HookEvent::Other) || !self.is_allowed() => {
                return HookReply::default();
            }
            Ok(input) => {
                record(input, self.workspace.clone(), false, None).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        recorded.unwrap_or_else(|error| {
            self.note(format!("`foldlog undo` cannot undo calls that could not be recorded: {error}"));
            HookReply::default()
        })
    }

    /// Returns whether the workspace may be recorded.
    fn is_allowed(&self) -> bool {
        if let Some(is_allowed) = self.progress().is_allowed {
            return is_allowed;
        }
        let refusal = refusal(&self.workspace);
        let is_allowed = refusal.is_none();
        self.progress().is_allowed = Some(is_allowed);
        refusal.into_iter().for_each(|refusal| self.note(refusal));
        is_allowed
    }
}

impl CallObserver for CallRecorder {
    fn call_begins(&self, hook: &Value) {
        let reply = self.record(hook);
        reply.messages.into_iter().for_each(|message| self.note(message));
        self.progress().has_calls = true;
    }

    fn call_ended(&self, hook: &Value) {
        let reply = self.record(hook);
        self.progress().texts.extend(reply.context);
    }

    fn take_text(&self) -> Option<String> {
        let texts = std::mem::take(&mut self.progress().texts);
        (!texts.is_empty()).then(|| texts.join("\n"))
    }
}
