//! Runs the calls of the program's own tools: they start before the program runs them, and end with
//! its report.
//!
//! # Invariants
//!
//! 1. A call that ran without a start record ends the run, because its changes are outside of any
//!    transaction. This happens if a hook times out, so the program's timeout for hooks is longer
//!    than any run.
//! 2. Processes that a failed call left running are ended before its resources are restored, as far
//!    as they can be identified by their environment.

use chrono::DateTime;
use foldlog::process::StartMoment;
use foldlog::tools::{
    DynTool, ExecutionState, ToolContext, ToolError, ToolRegistry, ToolReport, ToolResult, ToolRunner,
};
use foldlog::{Clock, Idempotency, ReplacedContent};
use serde_json::{Value, json};

use super::asked_calls::{CallNumber, MeantCall};
use super::calls::{
    CallArrival, CallRunner, OpenCall, RunAction, RunStopReason, begins_sub_agent, is_no_call_of_its_own,
};
use super::config::{OnLeftover, RunOptions};
use super::conversation::{BegunCall, Recorders};
use super::logs;
use super::observer::hook_after;
use super::recovery::end_left;
use super::tool_outcome::{NativeToolOutcome, ToldError, time_of_command, unclear_result};
use crate::HookReply;
use foldlog_agent::error::{Error, EvaluationPhase, Result};
use foldlog_agent::evaluation::{asked_call, left_by, not_undone};

/// Text for the model about an interrupted call of a tool that only reads.
const READING_INTERRUPTED: &str = "The call was interrupted, and gave no result. Call the tool again.";

/// Tools of the program that only read, so that their calls neither wait nor capture anything.
const READING: [&str; 9] =
    ["Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoRead", "TodoWrite"];

/// Creates the runner of a run: for the host's tools, and for those of the program that only read
/// and do not ask.
pub(super) fn runner(state: &ExecutionState, tools: &ToolRegistry, options: &RunOptions) -> ToolRunner {
    let hosts = tools.names();
    let is_used = |name: &&str| !hosts.contains(name) && !options.asks.contains_key(*name);
    let reading = READING.into_iter().filter(is_used).map(|name| {
        // A recovery repeats idempotent calls, but only the program can run this one.
        let call = |_, _: &ToolContext| -> Result<ToolResult<Value>, ToolError> {
            Err(ToolError::failed(READING_INTERRUPTED))
        };
        DynTool::new(name, json!({}), call).idempotency(Idempotency::Natural).reads_only(true)
    });
    ToolRunner::new(state.clone(), reading.fold(tools.clone(), ToolRegistry::with_dynamic))
}

/// Text for the model if a failed call left nothing behind.
const ROLLED_BACK: &str = "The call failed. What it changed in the workspace was rolled back.";

/// Text of a call that was running when its sub-agent ended.
const AGENT_ENDED: &str =
    "The sub-agent ended before this call did. What the call changed in the workspace was rolled back.";

/// Text for the model if it is unknown whether a command ended.
const KEPT: &str = "Whether the command ended is unknown. What it changed in the workspace was kept: look at it before you go on.";
/// Returns the text for the model about changes that a failed call left; empty if there are none.
pub(super) fn left_text(report: &ToolReport) -> String {
    match left_by(report) {
        left if left.is_empty() => String::new(),
        left => format!(" Not undone: {}", left.join("; ")),
    }
}

/// Returns the error of a call that ran without having started here.
fn unbegun(tool: &str) -> Error {
    let reason = format!(
        "the program ran `{}` without waiting for the start record of the call: its changes are not captured: \
         check the workspace before you resume",
        foldlog::escape::text(tool)
    );
    Error::evaluation(EvaluationPhase::Tool, "", reason)
}

impl CallRunner<'_> {
    /// Starts a call of one of the program's own tools, before the program runs it. A call that a
    /// person has to approve is suspended instead, and does not run.
    pub(super) fn before(&mut self, asking: CallArrival, heard: &mut Recorders<'_>) -> Result<RunAction> {
        if asking.call_id.is_none() {
            return Ok(asking.reply_to.send(&HookReply::deny("The program gave the call no id.")));
        }
        let recorded = asking.record();
        let recorder = heard.recorder_of_call(&recorded.call_id);
        let BegunCall { number, origin } = recorder.begin(&recorded, asking.input(), &self.runner)?;
        // The program may add arguments in the hook, so those of the answer are compared.
        let asked =
            recorder.asked.calls.get(&number).map_or(&recorded, |call| &call.record).arguments.clone();
        let time = time_of_command(&asking.tool, asking.input());
        let CallArrival { tool, json: hook, reply_to, .. } = asking;
        let operation =
            match self.runner.begin_told(&asked_call(&recorded, origin), &self.deadline.for_tools()) {
                Ok(operation) => operation,
                Err(error) => {
                    reply_to.send(&HookReply::deny("The call cannot begin, and the run ends here."));
                    return Ok(RunAction::Fail(error.into()));
                }
            };
        let now = DateTime::from_timestamp_micros(self.clock.now_us()).unwrap_or_default();
        let question = self.options.question(&tool).filter(|_| !self.approved.take(&tool, &asked, now));
        if let Some(question) = question {
            return match operation.fail(ToolError::Ask(question.clone())) {
                Err(error @ foldlog::Error::Suspended { .. }) => {
                    Ok(RunAction::Ask { error: error.into(), call_id: recorded.call_id, reply_to })
                }
                Err(error) => Err(error.into()),
                // A call whose deadline passed meanwhile has failed, and does not ask.
                Ok(report) => {
                    heard.recorder_of_call(&recorded.call_id).asked.deny(number);
                    self.denied.insert(recorded.call_id);
                    Ok(reply_to.send(&HookReply::deny(report.message)))
                }
            };
        }
        self.begun.insert(recorded.call_id.clone());
        let together = self.runner.runs_together(&tool);
        // A replay starts no processes.
        let since = if together || heard.session.replays() { None } else { StartMoment::now() };
        let times_out_us = time.map(|time| self.clock.now_us().saturating_add(time));
        if let Some(observer) = self.observer {
            observer.call_begins(&hook);
        }
        let open = OpenCall { call: recorded, operation, together, since, hook, times_out_us };
        self.open.insert(number, open);
        Ok(reply_to.send(&HookReply::proceed()))
    }

    /// Ends a call of one of the program's own tools.
    pub(super) fn after(
        &mut self,
        asking: CallArrival,
        has_failed: bool,
        heard: &mut Recorders<'_>,
    ) -> Result<RunAction> {
        let Some(call_id) = &asking.call_id else {
            return Ok(asking.reply_to.send(&HookReply::proceed()));
        };
        if begins_sub_agent(&asking.tool)
            && let Some(text) = last_text_in(&asking.json)
        {
            heard.last_texts.insert(call_id.clone(), text);
        }
        let meant = asking.meant_call();
        let Some(number) = self.find_open_call(meant) else {
            if is_no_call_of_its_own(&asking.tool) || self.is_over(meant, has_failed, heard) {
                return Ok(asking.reply_to.send(&HookReply::proceed()));
            }
            asking.reply_to.send(&HookReply::stop("a call ran that had not begun"));
            return Ok(RunAction::Fail(unbegun(&asking.tool)));
        };
        let CallArrival { tool, json: hook, reply_to, .. } = asking;
        let response = hook.get("tool_response").unwrap_or(&Value::Null);
        let error = hook.get("error").filter(|_| has_failed).unwrap_or(response);
        let shown = text_of(error);
        let ending = if has_failed {
            let is_interrupt = hook.get("is_interrupt").and_then(Value::as_bool).unwrap_or_default();
            self.error_outcome(Some(number), &tool, &shown, is_interrupt, true)
        } else {
            self.adjust_outcome(NativeToolOutcome::of_answer(response))
        };
        let report = self.end(number, ending, &shown, error, heard)?;
        let mut reply = HookReply::proceed();
        let mut then = RunAction::GoOn;
        match report {
            Some(report) if report.success && ending == NativeToolOutcome::Unclear => {
                reply.additional_context = Some(KEPT.to_owned());
            }
            Some(report) if !report.success => {
                let files =
                    ReplacedContent::text(&report.replaced).map(|files| format!(" Restored: {files}."));
                let files = files.unwrap_or_default();
                // A tool that only reads changes nothing.
                reply.additional_context = (!self.runner.reads_only(&tool))
                    .then(|| format!("{ROLLED_BACK}{files}{}", left_text(&report)));
                then = self.leftover(&report).map_or(RunAction::GoOn, RunAction::Fail);
            }
            _ => {}
        }
        if let Some(context) = &reply.additional_context {
            self.context_of.insert(number, context.clone());
        }
        // A replay has no observer, so the conversation in the log does not contain its texts.
        if let Some(more) = self.observer.and_then(|observer| observer.take_text()) {
            let text = reply.additional_context.map(|text| format!("{text}\n\n{more}"));
            reply.additional_context = Some(text.unwrap_or(more));
        }
        reply_to.send(&reply);
        Ok(then)
    }

    /// Returns the open call that the program reports on.
    fn find_open_call(&self, meant: MeantCall<'_>) -> Option<CallNumber> {
        let calls = self.open.iter().map(|(number, open)| (*number, &open.call));
        meant.first_of(calls.filter(|(_, call)| call.call_id == meant.id))
    }

    /// Returns whether this is a late report on a call that is closed.
    fn is_over(&self, meant: MeantCall<'_>, has_failed: bool, heard: &Recorders<'_>) -> bool {
        let asked = heard.asked_with(meant.id).map(|recorder| &recorder.asked);
        let is_denied = has_failed && self.denied.contains(meant.id);
        if asked.is_none_or(|asked| asked.next(meant).is_none()) {
            return is_denied || self.begun.contains(meant.id);
        }
        is_denied && asked.is_some_and(|asked| asked.has_denied(meant.id))
    }

    /// Returns the outcome of an open call for which the program reports an error.
    fn error_outcome(
        &self,
        call: Option<CallNumber>,
        tool: &str,
        text: &str,
        is_interrupt: bool,
        is_hook: bool,
    ) -> NativeToolOutcome {
        let times_out_us = call.and_then(|call| self.open.get(&call)?.times_out_us);
        let is_late = times_out_us.is_some_and(|at| at <= self.clock.now_us());
        let is_over = self.is_over;
        self.adjust_outcome(NativeToolOutcome::of_error(ToldError {
            tool,
            text,
            is_interrupt,
            is_hook,
            is_late,
            is_over,
        }))
    }

    /// Adjusts an outcome to the host's options.
    fn adjust_outcome(&self, ending: NativeToolOutcome) -> NativeToolOutcome {
        if self.options.roll_back_failed { ending.strict() } else { ending }
    }

    /// Ends an open call. Returns its report; `None` if no such call is open.
    fn end(
        &mut self,
        number: CallNumber,
        ending: NativeToolOutcome,
        shown: &str,
        response: &Value,
        heard: &mut Recorders<'_>,
    ) -> Result<Option<ToolReport>> {
        let has_failed = ending == NativeToolOutcome::Failed;
        let Some(OpenCall { call, operation, together, since, hook, .. }) = self.open.remove(&number) else {
            return Ok(None);
        };
        if let Some(since) = since.filter(|_| has_failed) {
            // A process that continued could change the restored resources.
            end_left(heard.session, Some(since));
        }
        let report = match (ending, self.stopped) {
            (NativeToolOutcome::Failed, Some(stopped)) => {
                operation.abort(&stopped.running_call_text(together))
            }
            (NativeToolOutcome::Failed, None) => operation.fail(ToolError::failed(shown)),
            (NativeToolOutcome::Unclear, _) => {
                if !heard.session.replays() {
                    logs::unclear(&call.call_id, shown);
                }
                operation.end(ToolResult::ok(shown, unclear_result(response)))
            }
            (NativeToolOutcome::Ended(code), _) => {
                operation.end(ToolResult::ok(shown, response.clone()).with_exit_code(code))
            }
        };
        let report = report?;
        let is_error = !report.success || matches!(ending, NativeToolOutcome::Ended(Some(code)) if code != 0);
        // For a call that the host stopped, the program reports that the user rejected it.
        if !(has_failed && self.stopped.is_some()) {
            self.shown_of.insert(number, (report.message.clone(), is_error));
        }
        self.observe_end(&hook, is_error || ending == NativeToolOutcome::Unclear, &report.message, response);
        let report = Some(report);
        heard.recorder_of_call(&call.call_id).asked.close(number);
        Ok(report)
    }

    /// Reports a call whose changes are rolled back, if they have to be, to the observer.
    fn observe_end(&self, before: &Value, is_error: bool, text: &str, response: &Value) {
        if let Some(observer) = self.observer {
            observer.call_ended(&hook_after(before, is_error, text, response));
        }
    }

    /// Processes the result that the program passed to the model. An open call ends with it.
    pub(super) fn take_result(
        &mut self,
        call_id: &str,
        content: &Value,
        is_error: bool,
        heard: &mut Recorders<'_>,
    ) -> Result<RunAction> {
        let mut text = text_of(content);
        let recorder = heard.recorder_of_call(call_id);
        let number = recorder.asked.result_of(call_id, is_error);
        let asked = number.and_then(|number| recorder.asked.calls.get(&number));
        let has_begun = asked.is_some_and(|asked| asked.has_begun);
        let tool = asked.map(|asked| asked.record.name.clone()).unwrap_or_default();
        if let Some(stopped) = self.stopped.filter(|_| is_error && !has_begun) {
            text = match begins_sub_agent(&tool) {
                // Its calls report their own outcomes.
                true => stopped.running_call_text(true),
                false => stopped.not_begun(),
            };
        }
        let left = self.end_calls_of(call_id, number, heard)?;
        let ending = match is_error {
            true => self.error_outcome(number, &tool, &text, false, false),
            false => NativeToolOutcome::Ended(None),
        };
        let report =
            number.map(|number| self.end(number, ending, &text, content, heard)).transpose()?.flatten();
        heard.child_ended(call_id, !self.open.is_empty(), &self.runner)?;
        let ran = number.is_some() && !is_error && !is_no_call_of_its_own(&tool);
        let unbegun = (ran && !has_begun).then(|| unbegun(&tool));
        if let Some(number) = number {
            let shown = self.shown_of.remove(&number);
            if let Some(context) = self.context_of.remove(&number) {
                text = format!("{text}\n\n{context}");
            }
            heard.recorder_of_call(call_id).take_result(number, &text, is_error, shown, &self.runner)?;
        }
        let leftover = report.as_ref().and_then(|report| self.leftover(report));
        Ok(leftover.or(left).or(unbegun).map_or(RunAction::GoOn, RunAction::Fail))
    }

    /// Drops the waiting requests of a call that has ended, and ends the calls of the sub-agent
    /// that it started. Running ones were given up with the sub-agent, and the program may not
    /// report on them again. Returns the error of changes that could not be rolled back.
    fn end_calls_of(
        &mut self,
        call_id: &str,
        call: Option<CallNumber>,
        heard: &mut Recorders<'_>,
    ) -> Result<Option<Error>> {
        self.drop_waiting(call_id, call, heard);
        let is_left =
            |open: &OpenCall| heard.parent_of(&open.call.call_id).is_some_and(|parent| parent == call_id);
        let open = self.open.iter().filter(|(_, open)| is_left(open));
        let left: Vec<CallNumber> = open.map(|(number, _)| *number).collect();
        let mut error = None;
        for number in left {
            let report = self.end(number, NativeToolOutcome::Failed, AGENT_ENDED, &Value::Null, heard)?;
            error = error.or(report.as_ref().and_then(|report| self.leftover(report)));
        }
        Ok(error)
    }

    /// Returns the error that ends the run because of changes that a failed call left; `None` if
    /// the run continues.
    pub(super) fn leftover(&self, report: &ToolReport) -> Option<Error> {
        not_undone(report).filter(|_| self.options.on_leftover == OnLeftover::Stop)
    }

    /// Ends all open calls after the program has ended, and rolls back their changes.
    pub(super) fn abort(&mut self, heard: &mut Recorders<'_>) -> Result<()> {
        self.let_go();
        while let Some((number, OpenCall { call, operation, together, hook, .. })) = self.open.pop_last() {
            let text = self.stopped.unwrap_or(RunStopReason::Ended).running_call_text(together);
            let report = operation.abort(&text)?;
            self.observe_end(&hook, true, &report.message, &Value::Null);
            heard.recorder_of_call(&call.call_id).asked.close(number);
        }
        Ok(())
    }
}

/// Returns the last text of a sub-agent from the hook after it.
fn last_text_in(input: &Value) -> Option<String> {
    let blocks = input.get("tool_response")?.get("content")?.as_array()?;
    blocks.last()?.get("text")?.as_str().map(str::to_owned)
}

/// Returns a tool's result as text: a text itself, the texts of blocks, the output of a command, or
/// JSON.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks)
            if !blocks.is_empty() && blocks.iter().all(|block| block.get("text").is_some()) =>
        {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block.get("text")?.as_str()).collect();
            texts.join("\n")
        }
        Value::Object(object) if object.contains_key("stdout") => {
            let part = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
            [part("stdout"), part("stderr")]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join("\n")
        }
        other => other.to_string(),
    }
}
