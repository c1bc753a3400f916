//! The start of an evaluation: in a fresh session of the program, or in a resumed one.

use std::collections::BTreeMap;

use foldlog::conversation::{ConversationMessage, Role};
use foldlog::tools::ToolRunner;
use foldlog::{CallOrigin, Cause, SequenceNumber, Session};
use foldlog_codec::escape::MARK;
use uuid::Uuid;

use super::ClaudeAgentSDKAdapter;
use super::config::ProgramHome;
use super::transcript::{self, CallResult, Transcript, Transcripts};
use foldlog_agent::adapter_state::{
    AdapterResume, AdapterState, AdapterStateSnapshot, AdapterStateType, CaptureOccasion,
    ClaudeAgentSDKState, ResumeMode, StatefulAdapter,
};
use foldlog_agent::error::{Error, EvaluationPhase, Result};
use foldlog_agent::evaluation::{Journal, asked_call, new_id, retire};
use foldlog_agent::inner_loop::OpenTurn;

/// Prompt if the host gives none.
const BEGIN: &str = "Begin.";

/// Prompt if the host gives none, and the work was interrupted.
const GO_ON: &str = "Your work was interrupted. Go on where you stopped.";

/// Text of a call that had not started when its process ended.
const GONE: &str = "The process ended before this call began. The call did not run.";

/// Identifies the program's session that a run starts or resumes.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgramSession {
    /// Id that the host chose: of a fresh session, or of the copy of the resumed one.
    pub(super) begins: Option<String>,
    /// Id of the resumed session.
    pub(super) resumes: Option<String>,
    /// Entry after which it is resumed; `None` for its end.
    pub(super) at_entry: Option<String>,
}

impl ProgramSession {
    /// Identifies a fresh session.
    pub(super) fn fresh(id: String) -> ProgramSession {
        ProgramSession { begins: Some(id), ..ProgramSession::default() }
    }

    /// Identifies the session of a state, or its copy with the id `copy`.
    pub(super) fn from_resume(
        resume: &AdapterResume,
        state: &ClaudeAgentSDKState,
        copy: String,
    ) -> ProgramSession {
        let is_copy = resume.mode == ResumeMode::Fork || resume.at_entry.is_some();
        ProgramSession {
            begins: is_copy.then_some(copy),
            resumes: Some(state.session_id.clone()),
            at_entry: resume.at_entry.clone(),
        }
    }

    /// Returns the id of the session in which the run continues.
    pub(super) fn id(&self) -> &str {
        self.begins.as_deref().or(self.resumes.as_deref()).unwrap_or_default()
    }
}

/// Contains the session of the program in which a run starts or continues.
pub(super) struct RunOrigin {
    pub(super) provided: ProgramSession,
    /// Capture of the resumed session.
    pub(super) resumed: Option<AdapterStateSnapshot>,
    /// Transcripts in the log, if they were read.
    pub(super) transcripts: Option<Transcripts>,
}

impl RunOrigin {
    fn new(provided: ProgramSession) -> RunOrigin {
        RunOrigin { provided, resumed: None, transcripts: None }
    }
}

impl ClaudeAgentSDKAdapter {
    /// Chooses the session of the program for the run: the given one, that of a stateful adapter,
    /// or a fresh one.
    pub(super) fn choose_session(
        &self,
        given: Option<AdapterResume>,
        session: &Session,
        evaluation: &str,
        is_recorded: bool,
    ) -> Result<RunOrigin> {
        let kept = self.kept.lock().clone().filter(|kept| kept.session == session.id() && given.is_none());
        let fork = kept.as_ref().and_then(|kept| kept.fork.clone());
        let id = choose_id(session, evaluation, is_recorded, fork)?;
        if let Some(kept) = kept {
            let begins = kept.fork.map(|_| id);
            return Ok(RunOrigin::new(ProgramSession { begins, resumes: Some(kept.id), at_entry: None }));
        }
        let Some(resume) = given else { return Ok(RunOrigin::new(ProgramSession::fresh(id))) };
        let Some(state) = resume.snapshot.state.read::<ClaudeAgentSDKState>()? else {
            let name = foldlog::escape::text(resume.snapshot.state.adapter_type()).to_string();
            let reason = format!("the state of adapter `{name}` does not belong to this adapter");
            return Err(Error::evaluation(EvaluationPhase::Request, "", reason));
        };
        let transcripts = match self.home {
            ProgramHome::Users => None,
            _ => Some(transcript::transcripts(session)?),
        };
        let is_there = transcripts
            .as_ref()
            .is_none_or(|all| all.get(&state.session_id).is_some_and(Transcript::holds_messages))
            || self.kept_file_is_there(&state.session_id, session, is_recorded)?;
        // If the program was killed before it sent a message, there is nothing to resume.
        if !is_there {
            let adapter = self.adapter_type().to_owned();
            return Err(Error::SessionExpired { adapter, session_id: state.session_id });
        }
        let provided = ProgramSession::from_resume(&resume, &state, id);
        Ok(RunOrigin { provided, resumed: Some(resume.snapshot), transcripts })
    }

    /// Returns whether the host's directory contains the transcript of a session. A replay returns
    /// the recorded observation.
    fn kept_file_is_there(&self, id: &str, session: &Session, is_recorded: bool) -> Result<bool> {
        let ProgramHome::Kept(directory) = &self.home else { return Ok(false) };
        let is_there = || {
            let projects = std::fs::read_dir(directory.join("projects")).into_iter().flatten().flatten();
            projects.into_iter().any(|project| project.path().join(format!("{id}.jsonl")).is_file())
        };
        if is_recorded { Ok(session.inputs().observe(IS_THERE, is_there)?) } else { Ok(is_there()) }
    }

    /// Records that the session of the program no longer exists, so that the evaluation's next run
    /// starts a fresh one.
    pub(super) fn let_go(&self, session: &Session, evaluation: &str) -> Result<()> {
        self.reset_session();
        match latest(session, evaluation)? {
            Some(latest) => retire(session, evaluation, &latest, CaptureOccasion::Expired).map(drop),
            None => Ok(()),
        }
    }
}

/// Closes the calls of an answer whose process has ended, if they never started and do not wait for
/// a decision, and records its turn. `told` contains the texts of some calls for the model, by id.
pub(super) fn close_open(
    journal: &mut Journal,
    open: &OpenTurn,
    runner: &ToolRunner,
    told: &BTreeMap<String, String>,
) -> Result<()> {
    for (ordinal, call) in (0..).zip(&open.calls) {
        if let Some(answer) = open.answer.filter(|_| !open.closed.contains(&ordinal)) {
            let made = asked_call(call, Some(CallOrigin { answer, ordinal }));
            let shown = told.get(&call.call_id).map_or(GONE, String::as_str);
            runner.close(&made, Cause::Skipped, shown)?;
        }
    }
    journal.turn(false)?;
    Ok(())
}

/// Returns the prompt of a run: the host's messages since the last answer and, in a fresh session,
/// the conversation before them.
pub(super) fn to_say(messages: &[ConversationMessage], is_resumed: bool) -> String {
    let is_users = |message: &ConversationMessage| message.role == Role::User;
    let first = messages.iter().rposition(|message| !is_users(message)).map_or(0, |last| last + 1);
    let (before, now) = messages.split_at(first);
    let said = now.iter().filter_map(|one| one.content.as_deref()).collect::<Vec<_>>().join("\n\n");
    let earlier: Vec<_> = before.iter().filter(|message| message.role != Role::System).collect();
    match (is_resumed || earlier.is_empty(), said.is_empty()) {
        (true, false) => said,
        (true, true) if earlier.is_empty() => BEGIN.to_owned(),
        (true, true) => GO_ON.to_owned(),
        (false, is_silent) => {
            let told: Vec<String> = earlier.into_iter().map(render_message).collect();
            let now = if is_silent { GO_ON } else { &said };
            format!("This is the conversation so far:\n\n{}\n\n{now}", told.join("\n"))
        }
    }
}

/// Renders a message of a conversation for another session. Each line except the first starts with
/// a mark, so that the output of a tool cannot pass for another message.
fn render_message(message: &ConversationMessage) -> String {
    let text = message.content.as_deref().unwrap_or_default();
    let told = match message.role {
        Role::Tool => format!("result of {}: {text}", message.name.as_deref().unwrap_or("a tool")),
        role => {
            let calls = message
                .tool_calls
                .iter()
                .map(|call| format!("[calls {} with {}]", call.name, call.arguments));
            let parts: Vec<String> =
                Some(text.to_owned()).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
            let who = if role == Role::Assistant { "you" } else { "user" };
            format!("{who}: {}", parts.join(" "))
        }
    };
    told.lines().collect::<Vec<_>>().join(&format!("\n{MARK}"))
}

/// Returns the results of all calls of a conversation, for a transcript that may lack some.
pub(super) fn results(messages: &[ConversationMessage]) -> Vec<CallResult> {
    let of = |message: &ConversationMessage| {
        Some(CallResult {
            call_id: message.tool_call_id.clone()?,
            text: message.content.clone().unwrap_or_default(),
            is_error: message.is_error,
        })
    };
    messages.iter().filter(|message| message.role == Role::Tool).filter_map(of).collect()
}

/// Name of the observations whether the program's file of a session was found.
const IS_THERE: &str = "claude.file_is_there";

/// Name of the observations of ids chosen for the program's sessions.
const CHOSEN: &str = "claude.session_id";

/// Chooses an id for a session of the program: `chosen`, if the host has chosen one. A replay
/// chooses the same.
fn choose_id(
    session: &Session,
    evaluation: &str,
    is_recorded: bool,
    chosen: Option<String>,
) -> Result<String> {
    if !is_recorded {
        return chosen.map_or_else(|| new_id(session), Ok);
    }
    let derive = || derived_id(session.id(), session.log().position(), evaluation);
    Ok(session.inputs().observe(CHOSEN, || chosen.unwrap_or_else(derive))?)
}

/// Derives an id for a session of the program from its purpose and the log's position. The log
/// grows with each run of an evaluation, so the ids are unique.
pub(super) fn derived_id(session: Uuid, position: Option<SequenceNumber>, of: &str) -> String {
    let position = position.map_or(0, |position| position.get() + 1);
    let mut hasher = blake3::Hasher::new();
    hasher.update(CHOSEN.as_bytes()).update(session.as_bytes());
    hasher.update(&position.to_le_bytes()).update(of.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(hasher.finalize().as_bytes().split_at(16).0);
    // The program accepts ids of this version.
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// Finds the last capture of the program's session for an evaluation; `None` if a rollback left
/// none, or if that session expired.
fn latest(session: &Session, evaluation: &str) -> Result<Option<AdapterStateSnapshot>> {
    let mut captures = session.conversation().adapter_states()?.into_iter().map(AdapterStateSnapshot::from);
    let is_own = |one: &AdapterStateSnapshot| {
        let is_of_adapter = one.state.adapter_type() == ClaudeAgentSDKState::ADAPTER_TYPE;
        one.is_live && is_of_adapter && one.evaluation_id == evaluation
    };
    let last = captures.rfind(is_own);
    // Captures before the expiry belong to the expired session.
    Ok(last.filter(|last| last.occasion != CaptureOccasion::Expired.name()))
}
