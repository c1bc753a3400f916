//! The steps of an evaluation, from the rendered prompt to its response.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use chrono::DateTime;
use foldlog::conversation::{ConversationMessage, PromptIdentity};
use foldlog::tools::{ExecutionState, ToolRunner};
use foldlog::{FixedClock, Session};
use serde_json::json;

use super::approvals::{self, ApprovedCalls};
use super::arrival::{Arrival, Arrivals, ClientFailure};
use super::calls::{CallRunner, RESPOND};
use super::config::OutputBy;
use super::conversation::{Recorder, Recorders};
use super::failure;
use super::home::Directories;
use super::logs;
use super::own_tools;
use super::recovery::{self, RUN_VARIABLE, end_left};
use super::run::ProgramRun;
use super::start_or_resume::{self, ProgramSession, RunOrigin, close_open};
use super::sub_agents::SubAgentCleanup;
use super::transcript::{self, Lineage};
use super::{ClaudeAgentSDKAdapter, StatefulSession};
use crate::{BridgedTool, Client, ClientOptions, ErrorKind, TurnResult};
use foldlog_agent::adapter::{EvaluateOptions, PromptResponse, ResumeFrom};
use foldlog_agent::adapter_state::{
    AdapterStateOptions, AdapterStateType, CaptureOccasion, CapturedState, ClaudeAgentSDKState, StateCapture,
    StatefulAdapter,
};
use foldlog_agent::error::{Error, EvaluationPhase, Result};
use foldlog_agent::evaluation::{
    ExecutionDetails, Journal, OpenConversation, Timing, check_size, last_incomplete, open, read_output,
    record_execution, record_rendered, response, track, without_output,
};
use foldlog_agent::inner_loop::{FinalText, LoopStart};
use foldlog_agent::prompt::{Prompt, RenderedPrompt};

/// Contains the state of an evaluation before its run.
struct Ready<'a> {
    session: &'a Session,
    runner: ToolRunner,
    evaluation: String,
    identity: PromptIdentity,
    rendered: RenderedPrompt,
    is_recorded: bool,
    is_resume: bool,
    /// Whether the host named the session of the program.
    is_given: bool,
    origin: RunOrigin,
    /// Origins of the resumed session, according to the conversation.
    lineage: Lineage,
    messages: Vec<ConversationMessage>,
    approved: ApprovedCalls,
    began_us: i64,
    timing: Timing,
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

    /// Evaluates a prompt with the program. If a process ended while a tool ran,
    /// [recover](ClaudeAgentSDKAdapter::recover) the session first.
    ///
    /// # Errors
    ///
    /// [`Error::SessionExpired`] if the program does not know the session that `options` name, or
    /// its transcript is lost; [`Error::OutputInvalid`] and [`Error::OutputMissing`] if the run
    /// succeeded without a valid output, except that the response has no output if the tool
    /// [`respond`](OutputBy::RespondTool) was never called; [`Error::Suspended`] if a tool asks a
    /// person; [`Error::PromptEvaluation`] and [`Error::Throttled`] if the program or its provider
    /// failed; [`Error::ConversationStateMismatch`], [`Error::ToolIdempotency`],
    /// [`Error::DeadlineExceeded`], [`Error::BudgetExceeded`], [`Error::Cancelled`] and
    /// [`Error::NotUndone`] as for
    /// [`ProviderAdapter::evaluate`](foldlog_agent::ProviderAdapter::evaluate). After each of them
    /// the evaluation can be resumed.
    fn evaluate_with_state<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        mut options: EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        let is_strict = matches!(options.resume_from, ResumeFrom::Adapter(_));
        match self.evaluate_once(prompt, state, options.reborrow()) {
            // The log now records that the stateful adapter's session no longer exists, so the
            // evaluation starts a fresh one.
            Err(Error::SessionExpired { .. }) if !is_strict => {
                options.resume_from = ResumeFrom::Auto;
                self.evaluate_once(prompt, state, options)
            }
            evaluated => evaluated,
        }
    }
}

impl ClaudeAgentSDKAdapter {
    /// Evaluates a prompt in one session of the program.
    fn evaluate_once<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        mut options: EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        let (session, timing) = (state.session(), Timing::begin(state));
        self.model.check(&prompt.name())?;
        self.options.check(&prompt.name(), &prompt.tools().names())?;
        if options.on_delta.is_some() {
            let reason =
                "this adapter does not stream answers: leave out `on_delta`, or use another provider";
            return Err(Error::evaluation(EvaluationPhase::Request, prompt.name(), reason));
        }
        if options.deadline.is_past() {
            return Err(Error::DeadlineExceeded { phase: EvaluationPhase::Deadline });
        }
        let given = match std::mem::take(&mut options.resume_from) {
            ResumeFrom::Adapter(resume) => Some(*resume),
            other => {
                options.resume_from = other;
                None
            }
        };
        let is_given = given.is_some();
        foldlog_agent::evaluation::wait(session, options.deadline, &options.cancel);
        let runner = own_tools::runner(state, prompt.tools(), &self.options);
        if options.record {
            self.record_received(prompt, session, &runner, &options)?;
        }
        let OpenConversation { mut journal, mut start, identity, is_resume } =
            open(prompt, session, &mut options)?;
        if let Some(last) = start.complete.clone() {
            if self.takes_response(prompt) && last_response(&mut journal)?.is_none() {
                return Ok((without_output(prompt, &journal, last), None));
            }
            return Ok((response(prompt, &journal, last, start.refused)?, None));
        }
        if let Some(open) = &mut start.open {
            // The last answer of a process that ended before it recorded the turn.
            let last = FinalText { text: open.content.clone().unwrap_or_default(), stop: open.stop.clone() };
            if open.calls.is_empty() && read_output(prompt, &last).is_ok() {
                journal.turn(true)?;
                return Ok((response(prompt, &journal, last, start.refused)?, None));
            }
            let told = match journal.session() {
                Some(session) => {
                    let (evaluation, prompt, deadline) = (journal.evaluation(), &identity, options.deadline);
                    SubAgentCleanup { session, evaluation, prompt, runner: &runner, deadline }
                        .sub_agents(open)?
                }
                None => BTreeMap::new(),
            };
            let mut expansion = approvals::continue_decided(open, &runner, options.deadline)?;
            close_open(&mut journal, open, &runner, &told)?;
            expansion.extend(open.expansion.take().unwrap_or_default());
            if !expansion.is_empty() {
                start.overrides.extend(expansion);
                start.expansions += 1;
                start.is_rendered = false;
            }
        }
        if let Some(budget) = options.budget {
            budget.check(&journal.estimate_usage()?)?;
        }
        let rendered = prompt.render(&start.overrides)?;
        if !start.is_rendered {
            let input = journal.system(&rendered.text, identity.clone(), None)?;
            let (evaluation, adapter) = (journal.evaluation(), self.adapter_type());
            let overrides = start.overrides.clone();
            record_rendered(session, evaluation, adapter, &identity, &rendered, input, overrides)?;
        }
        let is_recorded = options.record;
        let origin = self.choose_session(given, session, journal.evaluation(), is_recorded)?;
        let lineage = match origin.provided.resumes {
            Some(_) => lineage(prompt, &mut journal)?,
            None => Lineage::default(),
        };
        let ready = Ready {
            session,
            runner,
            evaluation: journal.evaluation().to_owned(),
            identity,
            rendered,
            is_recorded,
            is_resume: is_resume || origin.resumed.is_some(),
            is_given,
            origin,
            lineage,
            messages: journal.messages()?,
            approved: match is_recorded {
                true => ApprovedCalls::from_session(session, journal.evaluation(), &self.options)?,
                false => ApprovedCalls::default(),
            },
            began_us: self.now_us(state, is_recorded)?,
            timing,
        };
        self.run(prompt, state, journal, start, ready, &options)
    }

    /// Records an answer that an earlier process of the evaluation received but did not record.
    fn record_received<O>(
        &self,
        prompt: &Prompt<O>,
        session: &Session,
        runner: &ToolRunner,
        options: &EvaluateOptions<'_>,
    ) -> Result<()> {
        let evaluation = match &options.evaluation_id {
            Some(given) => Some(given.clone()),
            None => last_incomplete(session)?,
        };
        let Some(evaluation) = evaluation else { return Ok(()) };
        let (identity, deadline) = (prompt.identity(), options.deadline);
        let ending =
            SubAgentCleanup { session, evaluation: &evaluation, prompt: &identity, runner, deadline };
        ending.record_received(self.model.name())
    }

    fn now_us(&self, state: &ExecutionState, is_recorded: bool) -> Result<i64> {
        if is_recorded {
            return Ok(state.session().inputs().now()?.timestamp_micros());
        }
        Ok(state.clock().now_us())
    }

    /// Runs the program, or replays its run.
    fn run<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        journal: Journal,
        start: LoopStart,
        mut ready: Ready<'_>,
        options: &EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        let session = ready.session;
        // Set to the time of the last arrival, so that a replay gets the same times.
        let clock = Arc::new(FixedClock::new(ready.began_us));
        let mut capture = StateCapture::begin(
            session,
            &ready.evaluation,
            self.adapter_type(),
            &self.states,
            Arc::<FixedClock>::clone(&clock),
        )?;
        if let Some(resumed) = &ready.origin.resumed {
            capture = capture.resuming(resumed);
        }
        let began = DateTime::from_timestamp_micros(ready.began_us).unwrap_or_default();
        let provider_state = ClaudeAgentSDKState {
            workspace_path: self.workspace.clone(),
            ..ClaudeAgentSDKState::new(ready.origin.provided.id(), prompt.name(), began)
        };
        let tools = self.bridged_tools(prompt, &ready.runner);
        let shown: Vec<String> = ready.rendered.tools.iter().map(|tool| tool.name.clone()).collect();
        let is_structured = prompt.output_spec().is_some();
        let mut recorder = Recorder::new(journal, ready.identity.clone(), self.model.name());
        recorder.ask(start.attempts + 1, parameters(&ready.origin.provided))?;
        let mut run = ProgramRun {
            prompt,
            arrivals: Arrivals {
                session,
                is_recorded: ready.is_recorded,
                first: None,
                from: None,
                cancel: options.cancel.clone(),
                clock: state.clock(),
                told: &clock,
            },
            client: None,
            calls: CallRunner::new(
                ready.runner.clone(),
                &self.options,
                shown,
                std::mem::take(&mut ready.approved),
                options.deadline,
                &clock,
                is_structured,
            )
            .observed_by(self.observer.as_deref().filter(|_| !session.replays())),
            heard: Recorders::new(session, recorder),
            capture,
            state: provider_state,
            overrides: start.overrides.clone(),
            expansions: start.expansions,
            deadline: options.deadline,
            options: &self.options,
            version: &self.version,
            entry: None,
            failing: None,
            interrupted: None,
            answer_until: None,
            mirrored: BTreeSet::new(),
            unmirrored: None,
            answers: BTreeSet::new(),
            result: None,
            ended: None,
        };
        run.capture_state(CaptureOccasion::Init)?;
        let is_resumed = ready.origin.provided.resumes.is_some();
        let ran = match session.replays() {
            true => {
                run.arrivals.record_start(|| None)?;
                run.run()
            }
            false => match self.prepare(&mut ready, prompt) {
                Ok((directories, _lock)) => {
                    let mut with = self.client_options(
                        prompt,
                        &ready.rendered,
                        &ready.origin.provided,
                        &directories,
                        &tools,
                        options.deadline,
                    );
                    with.variables.set(RUN_VARIABLE, recovery::mark(session));
                    ready.origin.provided.resumes.iter().for_each(|id| logs::report_resume(id));
                    logs::start(&prompt.name(), self.model.name(), self.is_stateful, tools.len());
                    self.drive(&mut run, &with, tools, &start_or_resume::to_say(&ready.messages, is_resumed))
                }
                Err(Error::PromptEvaluation { reason: text, .. }) => {
                    run.arrivals.record_start(|| None)?;
                    let failure = ClientFailure { text, ..ClientFailure::default() };
                    run.arrivals.first = Some(Arrival::Ended(Some(failure)));
                    run.run()
                }
                Err(error) => return Err(error),
            },
        };
        ran?;
        self.end(run, ready, options)
    }

    /// Prepares the run: ends another program of the session, creates the directories, writes the
    /// transcript, and locks the program's session.
    fn prepare<O>(&self, ready: &mut Ready<'_>, prompt: &Prompt<O>) -> Result<(Directories, File)> {
        self.searched.end_orphan(ready.session)?;
        let directories = Directories::make(
            &self.home,
            self.client.cwd.as_deref(),
            Some(ready.session.dir()),
            &recovery::mark(ready.session),
            &prompt.name(),
        )?;
        self.write_transcript(ready, &directories, prompt)?;
        let lock = directories.lock(&ready.origin.provided, &prompt.name())?;
        Ok((directories, lock))
    }

    /// Writes the transcript of the resumed session to the place where the program looks for it.
    fn write_transcript<O>(
        &self,
        ready: &mut Ready<'_>,
        directories: &Directories,
        prompt: &Prompt<O>,
    ) -> Result<()> {
        let (Some(id), Some(config)) = (&ready.origin.provided.resumes, &directories.config) else {
            return Ok(());
        };
        let all = match ready.origin.transcripts.take() {
            Some(all) => all,
            None => transcript::transcripts(ready.session)?,
        };
        let results = start_or_resume::results(&ready.messages);
        let file = transcript::file_of(config, &directories.cwd, id);
        transcript::write_back(&file, all, id, &ready.lineage, &results, &prompt.name())
    }

    /// Records the end of a run. Returns its response, and its last state.
    fn end<O>(
        &self,
        mut run: ProgramRun<'_, O>,
        ready: Ready<'_>,
        options: &EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        let mut failed = run.failure();
        run.calls.abort(&mut run.heard)?;
        let responded = match run.calls.responded.take() {
            None if self.takes_response(run.prompt) => last_response(&mut run.heard.own.journal)?,
            responded => responded,
        };
        let output = self.output(run.prompt, run.result.as_deref(), responded.as_deref());
        run.heard.leave_children(&ready.runner)?;
        match &failed {
            Some(error) => {
                run.heard.own.fail(failure::recorded_form(error, run.usage()), &ready.runner)?;
            }
            None => {
                let stop = run.result.as_ref().and_then(|result| result.terminal_reason.clone());
                run.heard.own.end(run.usage(), stop, output.clone(), &ready.runner)?;
            }
        }
        run.state.is_complete = failed.is_none();
        let occasion = if failed.is_none() { CaptureOccasion::Complete } else { CaptureOccasion::Failed };
        if let Err(error) = run.capture_state(occasion) {
            failed.get_or_insert(error);
        }
        let (session, journal, id) = (ready.session, &run.heard.own.journal, &run.state.session_id);
        self.keep(session, id);
        if let Some(Error::SessionExpired { .. }) = failed.as_ref().filter(|_| !ready.is_given) {
            self.let_go(session, journal.evaluation())?;
        }
        if let Some(tracker) = &options.tracker {
            track(tracker, journal.evaluation(), journal.spent());
        }
        let finished = failed.map_or_else(|| self.finish(&mut run, output, ready, options), Err);
        let (name, id) = (run.prompt.name(), &run.state.session_id);
        match &finished {
            _ if session.replays() => {}
            Ok(_) => logs::complete(&name, id, run.result.as_deref()),
            Err(error) => logs::report_failure(&name, id, error),
        }
        // A state that the log refuses is not returned to the caller either.
        let captured = CapturedState::from_state(&run.state);
        let captured = captured.and_then(|state| check_size(&state, self.states.oversized).map(|()| state));
        Ok((finished?, captured.ok().filter(|_| self.states.capture_state)))
    }

    /// Stores the program's session, if the adapter is stateful.
    fn keep(&self, session: &Session, id: &str) {
        if self.is_stateful {
            let (session, position) = (session.id(), session.log().position());
            *self.kept.lock() = Some(StatefulSession { session, position, id: id.to_owned(), fork: None });
        }
    }

    /// Returns whether a prompt's output is the argument of the tool `respond`.
    fn takes_response<O>(&self, prompt: &Prompt<O>) -> bool {
        self.options.output_by == OutputBy::RespondTool && prompt.output_spec().is_some()
    }

    /// Returns the text that is parsed as the output: the one that the program checked, the
    /// argument of the tool `respond`, or else the last text of the model.
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
            // The program checks no schema here, and additional fields are no reason to refuse the
            // output.
            OutputBy::RespondTool => responded.map(|json| prompt.without_unknown_fields(json)),
            OutputBy::JsonSchema => {
                result.and_then(|result| Some(result.structured_output.as_ref()?.to_string()))
            }
        }
    }

    /// Parses the output, and records for people that the prompt was executed.
    fn finish<O>(
        &self,
        run: &mut ProgramRun<'_, O>,
        output: Option<String>,
        ready: Ready<'_>,
        options: &EvaluateOptions<'_>,
    ) -> Result<PromptResponse<O>> {
        let (prompt, session, is_resume) = (run.prompt, ready.session, ready.is_resume);
        let Recorder { journal, outcome, .. } = &mut run.heard.own;
        if is_late(session, options)? {
            return Err(Error::DeadlineExceeded { phase: EvaluationPhase::Response });
        }
        let is_missing = output.is_none() && prompt.output_spec().is_some();
        if let Some(spec) = prompt.output_spec().filter(|_| is_missing && !self.takes_response(prompt)) {
            return Err(Error::OutputMissing { output: spec.name.clone() });
        }
        let text = output.unwrap_or_else(|| outcome.last.text.clone());
        let (adapter, cost_micros) = (self.adapter_type(), run.result.as_deref().and_then(cost_micros));
        let execution = ExecutionDetails { adapter, timing: ready.timing, is_resume, cost_micros };
        record_execution(prompt, session, journal, outcome, execution)?;
        let stop = run.result.as_ref().and_then(|result| result.terminal_reason.clone());
        let answer = FinalText { text, stop };
        match is_missing {
            true => Ok(without_output(prompt, journal, answer)),
            false => response(prompt, journal, answer, 0),
        }
    }

    /// Runs the program, and processes its arrivals until the run is over.
    fn drive<O>(
        &self,
        run: &mut ProgramRun<'_, O>,
        options: &ClientOptions,
        tools: Vec<BridgedTool>,
        say: &str,
    ) -> Result<()> {
        let client = Client::start_in_turn(options, tools, &run.arrivals.cancel).map(Arc::new);
        run.arrivals.record_start(|| client.as_ref().ok().map(|client| client.identity().clone()))?;
        let asked = client.and_then(|client| client.query(say).map(|()| client));
        let client = match asked {
            Ok(client) => client,
            Err(error) => {
                run.arrivals.first = Some(match error.kind() {
                    ErrorKind::Cancelled => Arrival::Cancelled,
                    _ => Arrival::Ended(Some(ClientFailure::from_error(&error))),
                });
                return run.run();
            }
        };
        run.client = Some(Arc::clone(&client));
        run.arrivals.from = Some(Arc::clone(&client));
        let ran = run.run();
        run.client = None;
        run.arrivals.from = None;
        // A reply must not be sent unless the log contains its arrival.
        client.kill();
        // Such a command could change the resources while open calls are rolled back.
        end_left(run.arrivals.session, None);
        ran
    }
}

/// Reads the history of the program's sessions from a conversation.
fn lineage<O>(prompt: &Prompt<O>, journal: &mut Journal) -> Result<Lineage> {
    let hosts = prompt.tools().names();
    let bridged =
        |name: &str| if hosts.contains(&name) { super::calls::bridged_name(name) } else { name.to_owned() };
    Ok(Lineage::from_conversation(journal.conversation()?, bridged))
}

/// Returns the last argument of the tool `respond`, according to the log.
fn last_response(journal: &mut Journal) -> Result<Option<String>> {
    journal.last_call([RESPOND, &super::calls::bridged_name(RESPOND)])
}

/// Name of the observations whether a successful run ended after its deadline.
const LATE: &str = "claude.is_late";

/// Returns whether a run ended after its deadline. A replay has another deadline, and returns the
/// recorded observation.
fn is_late(session: &Session, options: &EvaluateOptions<'_>) -> Result<bool> {
    let is_past = || options.deadline.is_past();
    match options.deadline.instant() {
        Some(_) if options.record => Ok(session.inputs().observe(LATE, is_past)?),
        _ => Ok(is_past()),
    }
}

/// Returns the cost of a run, in millionths of a US dollar; `None` if the program did not report
/// it. Versions that continue the sum of a resumed session (2.1.330) also report the difference.
/// Versions that report no difference (2.1.100) start at zero in each process, so that the sum is
/// the cost of this run.
fn cost_micros(result: &TurnResult) -> Option<u64> {
    let since = result.model_usage_since_last_result.as_ref().and_then(|models| {
        let costs = models.as_object()?.values().filter_map(|model| model.get("costUSD")?.as_f64());
        Some(costs.sum::<f64>())
    });
    let usd = since.or(result.total_cost_usd)?;
    // A negative or infinite cost is invalid.
    (usd.is_finite() && usd >= 0.0).then(|| (usd * 1e6).round() as u64)
}

/// Returns the parameters in the record of a request that identify the program's session.
fn parameters(provided: &ProgramSession) -> serde_json::Value {
    json!({
        "session_id": provided.begins,
        "resume": provided.resumes,
        "resume_session_at": provided.at_entry,
    })
}
