//! The steps of an evaluation, from the rendered prompt to its response.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use chrono::DateTime;
use foldlog::conversation::{ConversationMessage, PromptIdentity};
use foldlog::process::ProcessIdentity;
use foldlog::tools::ExecutionState;
use foldlog::{Clock, SequenceNumber, Session};
use serde_json::json;

use super::arrival::{Arrivals, Arrived, Failure, Forward, pump};
use super::begin::{self, Provided, close_open};
use super::calls::{self, Calls};
use super::config::{OutputBy, ProgramHome};
use super::conversation::{Recorder, Recorders};
use super::failure;
use super::home::Folders;
use super::run::Run;
use super::transcript;
use super::{ClaudeAgentSDKAdapter, Kept};
use crate::adapter::{EvaluateOptions, Opened, PromptResponse, ResumeFrom, open, response};
use crate::adapter_state::{
    AdapterResume, AdapterState, AdapterStateOptions, AdapterStateSnapshot, AdapterStateType,
    CaptureOccasion, CapturedState, ClaudeAgentSDKState, StateCapture, StatefulAdapter,
};
use crate::budget::track;
use crate::claude::{BridgedTool, Client, ClientOptions, TurnResult};
use crate::error::{Error, Phase, Result};
use crate::events::{PromptExecuted, PromptExecutions, PromptRendered, PromptRenderings};
use crate::inner_loop::{FinalText, Journal, LoopStart, read_output};
use crate::prompt::{Prompt, RenderedPrompt, VisibilityOverrides};

/// What an evaluation has found before its run.
struct Ready<'a> {
    session: &'a foldlog::Session,
    evaluation: String,
    identity: PromptIdentity,
    is_recorded: bool,
    is_resume: bool,
    provided: Provided,
    /// Capture that the run's own supersede.
    resumed: Option<AdapterStateSnapshot>,
    messages: Vec<ConversationMessage>,
    began_us: i64,
}

impl StatefulAdapter for ClaudeAgentSDKAdapter {
    fn adapter_type(&self) -> &str {
        ClaudeAgentSDKState::ADAPTER_TYPE
    }

    fn state_options(&self) -> Option<&AdapterStateOptions> {
        Some(&self.states)
    }

    fn workspace_path(&self) -> Option<&str> {
        self.workspace.as_deref()
    }

    /// Evaluates a prompt with the program. The session must be [recovered](foldlog::tools::ToolRunner::recover) first if a
    /// process ended while a tool ran.
    ///
    /// # Errors
    ///
    /// [`Error::SessionExpired`] if the program does not know the session that is resumed, or its transcript is lost;
    /// [`Error::OutputInvalid`] and [`Error::OutputMissing`] if the run ended well and gave no such output;
    /// [`Error::Suspended`] if a tool asks a person; [`Error::PromptEvaluation`] and [`Error::Throttled`] if the program or
    /// its provider failed; [`Error::ConversationStateMismatch`], [`Error::ToolIdempotency`],
    /// [`Error::DeadlineExceeded`], [`Error::BudgetExceeded`], [`Error::Cancelled`] and [`Error::NotUndone`] as
    /// [`ProviderAdapter::evaluate`](crate::ProviderAdapter::evaluate) has them. After each of them the evaluation can be
    /// resumed.
    fn evaluate_with_state<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        mut options: EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        let (session, began) = (state.session(), Instant::now());
        self.model.check(&prompt.name())?;
        if options.deadline.is_past() {
            return Err(Error::DeadlineExceeded { phase: Phase::Deadline });
        }
        let is_fresh = matches!(options.resume_from, ResumeFrom::Fresh);
        let given = match std::mem::take(&mut options.resume_from) {
            ResumeFrom::Adapter(resume) => Some(*resume),
            other => {
                options.resume_from = other;
                None
            }
        };
        let Opened { mut journal, start, identity, is_resume } = open(prompt, session, &mut options)?;
        if let Some(last) = start.complete.clone() {
            return Ok((response(prompt, &journal, last, start.refused)?, None));
        }
        let runner = calls::runner(state, prompt.tools());
        if let Some(open) = &start.open {
            // The last answer of a process that ended before it recorded the turn.
            let last = FinalText { text: open.content.clone().unwrap_or_default(), stop: open.stop.clone() };
            if open.calls.is_empty() && read_output(prompt, &last).is_ok() {
                journal.turn(true)?;
                return Ok((response(prompt, &journal, last, start.refused)?, None));
            }
            close_open(&mut journal, open, &runner)?;
        }
        if let Some(budget) = options.budget {
            budget.check(&journal.estimated()?)?;
        }
        let rendered = prompt.render(&start.overrides)?;
        if !start.is_rendered {
            let input = journal.system(&rendered.text, identity.clone())?;
            self.rendered(&rendered, &journal, (input, &identity, &start.overrides), session)?;
        }
        let is_recorded = options.record;
        let (provided, resumed) =
            self.provided(given, is_fresh, journal.evaluation(), (session, is_recorded))?;
        let ready = Ready {
            session,
            evaluation: journal.evaluation().to_owned(),
            identity,
            is_recorded,
            is_resume: is_resume || resumed.is_some(),
            provided,
            resumed,
            messages: journal.messages()?,
            began_us: self.now_us(state, is_recorded)?,
        };
        let outcome = self.run((prompt, &rendered), state, (journal, start), ready, &options)?;
        self.finish(prompt, outcome, &options, began)
    }
}

/// Name of the observations that say which process a program was.
const PROCESS: &str = "claude.process";

/// Time that a program has to end that outlived its host.
const ORPHAN_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Ends the program of an earlier process of this session, should it have outlived its host: it would go on to call the
/// model, and to change the workspace.
fn end_orphan(session: &Session) -> Result<()> {
    let mut last: Option<ProcessIdentity> = None;
    session.observations(PROCESS, &mut |_, identity| {
        last = Some(identity);
        Ok(())
    })?;
    match last.filter(|last| last.is_alive() && !last.end(ORPHAN_ENDS_WITHIN)) {
        Some(last) => {
            let reason =
                format!("the program of an earlier process does not end: {last:?}: end it, and resume");
            Err(Error::evaluation(Phase::Request, "", reason))
        }
        None => Ok(()),
    }
}

/// Tells the time of the last arrival, so that what depends on it is the same in a replay.
#[derive(Debug, Default)]
pub(super) struct ArrivalClock(AtomicI64);

impl ArrivalClock {
    pub(super) fn set(&self, now_us: i64) {
        self.0.store(now_us, Ordering::Relaxed);
    }
}

impl Clock for ArrivalClock {
    fn now_us(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    fn steady_us(&self) -> i64 {
        self.now_us()
    }
}

/// What a run gave.
struct Outcome {
    journal: Journal,
    result: Option<Box<TurnResult>>,
    last: super::conversation::Last,
    responded: Option<String>,
    failed: Option<Error>,
    captured: CapturedState,
    is_resume: bool,
    session: Session,
}

impl ClaudeAgentSDKAdapter {
    fn now_us(&self, state: &ExecutionState, is_recorded: bool) -> Result<i64> {
        if is_recorded {
            return Ok(state.session().now()?.timestamp_micros());
        }
        Ok(state.clock().now_us())
    }

    /// Records for people that the prompt was rendered, if the session's types declare the event.
    fn rendered(
        &self,
        rendered: &RenderedPrompt,
        journal: &Journal,
        (input, identity, overrides): (Option<SequenceNumber>, &PromptIdentity, &VisibilityOverrides),
        session: &Session,
    ) -> Result<()> {
        if session.log::<PromptRenderings>().is_err() {
            return Ok(());
        }
        session.dispatch(PromptRendered {
            evaluation_id: journal.evaluation().to_owned(),
            prompt_ns: identity.namespace.clone(),
            prompt_key: identity.key.clone(),
            prompt_digest: identity.digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            adapter: self.adapter_type().to_owned(),
            input,
            text: input.is_none().then(|| rendered.text.clone()),
            tools: rendered.tools.iter().map(|tool| tool.name.clone()).collect(),
            output: rendered.output.as_ref().map(|output| output.name.clone()),
            visibility_overrides: overrides.clone(),
        })?;
        Ok(())
    }

    /// Chooses the session of the program in which the run begins or goes on. Returns the capture of the one that goes on.
    fn provided(
        &self,
        given: Option<AdapterResume>,
        is_fresh: bool,
        evaluation: &str,
        (session, is_recorded): (&Session, bool),
    ) -> Result<(Provided, Option<AdapterStateSnapshot>)> {
        let id = begin::choose_id(session, is_recorded)?;
        if let Some(kept) =
            self.kept.lock().clone().filter(|kept| kept.session == session.id() && given.is_none())
        {
            let is_copy = kept.fork.is_some();
            let provided = Provided { begins: kept.fork, resumes: Some(kept.id), at_entry: None };
            return Ok((Provided { begins: provided.begins.filter(|_| is_copy), ..provided }, None));
        }
        let latest = match given {
            Some(given) => Some((given, true)),
            None if is_fresh => None,
            None => begin::latest(session, evaluation)?
                .map(|latest| (AdapterResume { mode: self.states.resume_mode, ..latest }, false)),
        };
        let Some((resume, is_given)) = latest else { return Ok((Provided::fresh(id), None)) };
        let Some(state) = resume.snapshot.state.read::<ClaudeAgentSDKState>()? else {
            let name = foldlog::escape::text(resume.snapshot.state.adapter_type()).to_string();
            let reason = format!("the state of adapter `{name}` is none of this one");
            return Err(Error::evaluation(Phase::Request, "", reason));
        };
        let is_there = self.home == ProgramHome::Users
            || transcript::transcripts(session)?.contains_key(&state.session_id)
            || self.kept_file_is_there(&state.session_id);
        match (is_there, is_given) {
            (true, _) => Ok((Provided::resuming(&resume, &state, id), Some(resume.snapshot))),
            // The program was killed before it told a line: there is nothing to resume.
            (false, false) => Ok((Provided::fresh(id), Some(resume.snapshot))),
            (false, true) => {
                let adapter = self.adapter_type().to_owned();
                Err(Error::SessionExpired { adapter, session_id: state.session_id })
            }
        }
    }

    /// Returns whether a folder that the host keeps has the transcript of a session.
    fn kept_file_is_there(&self, id: &str) -> bool {
        let ProgramHome::Kept(folder) = &self.home else { return false };
        let projects = std::fs::read_dir(folder.join("projects")).into_iter().flatten().flatten();
        projects.into_iter().any(|project| project.path().join(format!("{id}.jsonl")).is_file())
    }

    /// Runs the program, or replays its run.
    fn run<O>(
        &self,
        (prompt, rendered): (&Prompt<O>, &RenderedPrompt),
        state: &ExecutionState,
        (journal, start): (Journal, LoopStart),
        ready: Ready<'_>,
        options: &EvaluateOptions<'_>,
    ) -> Result<Outcome> {
        let session = ready.session;
        let clock = Arc::new(ArrivalClock::default());
        clock.set(ready.began_us);
        let mut capture = StateCapture::begin(
            session,
            &ready.evaluation,
            self.adapter_type(),
            &self.states,
            Arc::<ArrivalClock>::clone(&clock),
        )?;
        if let Some(resumed) = &ready.resumed {
            capture = capture.resuming(resumed);
        }
        let began = DateTime::from_timestamp_micros(ready.began_us).unwrap_or_default();
        let provider_state = ClaudeAgentSDKState {
            workspace_path: self.workspace.clone(),
            ..ClaudeAgentSDKState::new(ready.provided.id(), prompt.name(), began)
        };
        let runner = calls::runner(state, prompt.tools());
        let tools = self.bridged_tools(prompt, &runner);
        let shown = rendered.tools.iter().map(|tool| tool.name.clone()).collect();
        let is_structured = prompt.output_spec().is_some();
        let mut recorder = Recorder::new(journal, ready.identity.clone(), &self.model.model);
        recorder.ask(start.attempts + 1, parameters(&ready.provided))?;
        let mut run = Run {
            prompt,
            arrivals: Arrivals {
                session,
                is_recorded: ready.is_recorded,
                from: None,
                cancel: options.cancel.clone(),
                clock: state.clock(),
                told: &clock,
            },
            client: None,
            calls: Calls::new(runner, &self.options, shown, options.deadline, is_structured),
            heard: Recorders::new(session, recorder),
            capture,
            state: provider_state,
            overrides: start.overrides.clone(),
            expansions: start.expansions,
            deadline: options.deadline,
            options: &self.options,
            entry: None,
            failing: None,
            result: None,
            ended: None,
        };
        run.captured(CaptureOccasion::Init)?;
        let is_resumed = ready.provided.resumes.is_some();
        let ran = match session.replays() {
            true => run.run(),
            false => {
                end_orphan(session)?;
                let folders = Folders::make(&self.home, self.client.cwd.as_deref(), &prompt.name())?;
                self.write_transcript(&ready, &folders, prompt)?;
                let _lock = folders.lock(&ready.provided, &prompt.name())?;
                let with = self.client_options(
                    (prompt, rendered),
                    &ready.provided,
                    &folders,
                    (&tools, options.deadline),
                );
                self.drive(&mut run, &with, tools, &begin::to_say(&ready.messages, is_resumed))
            }
        };
        ran?;
        self.end(run, &ready)
    }

    /// Writes the transcript of the session that is resumed to where the program looks for it.
    fn write_transcript<O>(&self, ready: &Ready<'_>, folders: &Folders, prompt: &Prompt<O>) -> Result<()> {
        let (Some(id), Some(config)) = (&ready.provided.resumes, &folders.config) else { return Ok(()) };
        let all = transcript::transcripts(ready.session)?;
        let results = begin::results(&ready.messages);
        match transcript::whole(&all, id, &results) {
            Some(lines) => {
                transcript::write(&transcript::file_of(config, &folders.cwd, id), &lines, &prompt.name())
            }
            None => Ok(()),
        }
    }

    /// Records how a run ended.
    fn end<O>(&self, mut run: Run<'_, O>, ready: &Ready<'_>) -> Result<Outcome> {
        let mut failed = run.failure();
        let why = match &failed {
            Some(_) => "the run was given up",
            None => "the program told no end of the call",
        };
        run.calls.abort(why, &mut run.heard)?;
        let output = self.output(run.prompt, run.result.as_deref(), run.calls.responded.as_deref());
        let runner = run.calls.runner.clone();
        match &failed {
            Some(error) => {
                run.heard.own.fail(failure::recorded(error, run.usage()), &runner)?;
            }
            None => {
                let stop = run.result.as_ref().and_then(|result| result.terminal_reason.clone());
                run.heard.own.end(run.usage(), (stop, output), &runner)?;
            }
        }
        run.state.is_complete = failed.is_none();
        run.state.last_activity_at =
            DateTime::from_timestamp_micros(run.arrivals.told.now_us()).unwrap_or_default();
        let occasion = if failed.is_none() { CaptureOccasion::Complete } else { CaptureOccasion::Failed };
        if let Err(error) = run.captured(occasion) {
            failed.get_or_insert(error);
        }
        let captured = CapturedState::of(&run.state)?;
        self.keep(ready, &run.state.session_id);
        let last = run.heard.own.last().clone();
        Ok(Outcome {
            last,
            result: run.result,
            responded: run.calls.responded,
            failed,
            captured,
            is_resume: ready.is_resume,
            session: ready.session.clone(),
            journal: run.heard.own.journal,
        })
    }

    /// Remembers the program's session, if the adapter is stateful.
    fn keep(&self, ready: &Ready<'_>, id: &str) {
        if self.is_stateful {
            *self.kept.lock() = Some(Kept { session: ready.session.id(), id: id.to_owned(), fork: None });
        }
    }

    /// Returns the text that is read as the output: what the program checked, what the tool `respond` was given, or else the
    /// last text of the model.
    fn output<O>(
        &self,
        prompt: &Prompt<O>,
        result: Option<&TurnResult>,
        responded: Option<&str>,
    ) -> Option<String> {
        let text = || result.and_then(|result| result.result.clone());
        if prompt.output_spec().is_none() {
            return text();
        }
        match self.options.output_by {
            OutputBy::RespondTool => responded.map(str::to_owned),
            OutputBy::JsonSchema => {
                result.and_then(|result| Some(result.structured_output.as_ref()?.to_string()))
            }
        }
    }

    /// Reads the output, and says for people that the prompt was executed.
    fn finish<O>(
        &self,
        prompt: &Prompt<O>,
        outcome: Outcome,
        options: &EvaluateOptions<'_>,
        began: Instant,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        let Outcome { mut journal, result, last, responded, failed, captured, is_resume, session } = outcome;
        if let Some(tracker) = &options.tracker {
            track(tracker, journal.evaluation(), journal.spent());
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if options.deadline.is_past() {
            return Err(Error::DeadlineExceeded { phase: Phase::Response });
        }
        let output = self.output(prompt, result.as_deref(), responded.as_deref());
        let text = match (output, prompt.output_spec()) {
            (None, Some(spec)) => return Err(Error::OutputMissing { output: spec.name.clone() }),
            (output, _) => output.unwrap_or_else(|| last.text.clone()),
        };
        self.executed(prompt, (&mut journal, &last), result.as_deref(), (&session, began, is_resume))?;
        let answer = FinalText { text, stop: result.and_then(|result| result.terminal_reason) };
        let response = response(prompt, &journal, answer, 0)?;
        Ok((response, self.states.capture_state.then_some(captured)))
    }

    fn executed<O>(
        &self,
        prompt: &Prompt<O>,
        (journal, last): (&mut Journal, &super::conversation::Last),
        result: Option<&TurnResult>,
        (session, began, is_resume): (&Session, Instant, bool),
    ) -> Result<()> {
        if session.log::<PromptExecutions>().is_err() {
            return Ok(());
        }
        let usage = journal.used();
        let (requests, tool_calls) = journal.counts()?.unwrap_or((last.answers, last.calls));
        session.dispatch(PromptExecuted {
            evaluation_id: journal.evaluation().to_owned(),
            prompt_ns: prompt.namespace().to_owned(),
            prompt_key: prompt.key().to_owned(),
            adapter: self.adapter_type().to_owned(),
            model: last.model.clone(),
            answer: last.answer,
            text: last.answer.is_none().then(|| last.text.clone()),
            requests,
            tool_calls,
            input_tokens: usage.input,
            output_tokens: usage.output,
            cache_read_tokens: usage.cache_read,
            cost_micros: result.and_then(|result| cost_micros(result, is_resume)),
            elapsed_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
            is_resume,
        })?;
        Ok(())
    }

    /// Runs the program, and takes its arrivals until the run is over.
    fn drive<O>(
        &self,
        run: &mut Run<'_, O>,
        options: &ClientOptions,
        tools: Vec<BridgedTool>,
        say: &str,
    ) -> Result<()> {
        let (to, from) = sync_channel::<Arrived>(1);
        let forward = Arc::new(Forward { tools, to: to.clone() });
        let client = match Client::start(options, forward) {
            Ok(client) => Arc::new(client),
            Err(error) => {
                run.ended = Some(Failure::of(&error));
                return Ok(());
            }
        };
        if run.arrivals.is_recorded {
            run.arrivals.session.observe(PROCESS, || client.identity().clone())?;
        }
        if let Err(error) = client.query(say) {
            run.ended = Some(Failure::of(&error));
            client.kill();
            return Ok(());
        }
        std::thread::scope(|scope| {
            let pumped = Arc::clone(&client);
            scope.spawn(move || pump(&pumped, &to));
            run.client = Some(Arc::clone(&client));
            run.arrivals.from = Some(from);
            let ran = run.run();
            run.client = None;
            // Whoever waits for a reply is told that the run is over.
            drop(run.arrivals.from.take());
            client.kill();
            ran
        })
    }
}

/// Returns what a run cost, in millionths of a US dollar; `None` if the program did not tell. What it tells of a session is the
/// sum over all runs of it, so of one that was resumed only the difference counts.
fn cost_micros(result: &TurnResult, is_resume: bool) -> Option<u64> {
    let since = result.model_usage_since_last_result.as_ref().and_then(|models| {
        let costs = models.as_object()?.values().filter_map(|model| model.get("costUSD")?.as_f64());
        Some(costs.sum::<f64>())
    });
    let usd = since.or_else(|| result.total_cost_usd.filter(|_| !is_resume))?;
    // A negative or endless cost is none.
    (usd.is_finite() && usd >= 0.0).then(|| (usd * 1e6).round() as u64)
}

/// Returns what the record of a request says of the program's session.
fn parameters(provided: &Provided) -> serde_json::Value {
    json!({
        "session_id": provided.begins,
        "resume": provided.resumes,
        "resume_session_at": provided.at_entry,
    })
}
