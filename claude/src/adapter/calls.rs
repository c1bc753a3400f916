//! Runs the calls of tools as transactions of the engine: decides which may run, and when.
//! [`own_tools`](super::own_tools) runs those of the program's own tools.
//!
//! | event of the program | action |
//! |---|---|
//! | calls a tool of the host (`mcp__wink__NAME`) | [`ToolRunner::execute`], whose result is the reply |
//! | is about to run a tool of its own (`PreToolUse`) | the call starts, with its resources captured, before the reply |
//! | ran it (`PostToolUse`) | the call ends, before the reply |
//! | ran a command that exited with another code than 0 | the same: the call ends, with the [exit code](super::tool_outcome) |
//! | ran it and it [failed or was stopped](super::tool_outcome) | the call fails: its resources are restored, and the reply informs the model |
//! | sends the result of a call that has not ended | the call ends with that result |
//! | requests a tool that is not on the list, or a form of it that is not allowed | the call is closed as [denied](Cause::Denied), and does not run |
//! | is about to run a tool that [asks a person](super::approvals), or a tool of the host asks | the call is suspended, and the run ends without a reply to it |
//! | runs `Agent`, `Task` in old versions | none: the calls of the sub-agent are separate calls |
//!
//! A call that has to wait gets its reply later. Calls run one after the other, in the order of
//! their arrival, except that calls which only read, such as `Read`, run concurrently and capture
//! nothing. So the calls of several sub-agents, and of the run itself, take turns. A call may have
//! to wait for its own conversation: for its answer, which arrives shortly after the call, or for
//! the calls of the answer before. It then lets calls of other conversations pass. If the program
//! gives up a waiting call, the call never starts.
//!
//! # Invariants
//!
//! 1. Only tools on the list run, in every permission mode.
//! 2. While a call that may change something is open, no other call is.
//! 3. After the run is over nothing starts, and further requests get no reply.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldlog::conversation::{EXPANDED_TEXT, ToolCallRecord};
use foldlog::process::StartMoment;
use foldlog::tools::{Operation, ToolReport, ToolRunner};
use foldlog::{Cause, FixedClock};
use serde_json::Value;

use super::approvals::ApprovedCalls;
use super::arrival::{Arrival, POST_TOOL_USE, POST_TOOL_USE_FAILURE, PRE_TOOL_USE, ReplyTo};
use super::asked_calls::{CallNumber, MeantCall};
use super::config::RunOptions;
use super::conversation::{BegunCall, Recorders};
use super::observer::CallObserver;
use super::own_tools::left_text;
use crate::{HookReply, PermissionReply, ToolReply};
use foldlog_agent::deadline::Deadline;
use foldlog_agent::error::{Error, Result};
use foldlog_agent::evaluation::{asked_call, shorten_for_model};
use foldlog_agent::prompt::{VisibilityOverrides, overrides_from_json};

/// Server of the host's tools.
pub(super) const SERVER: &str = "wink";

/// Name of the tool by which the model returns a structured output.
pub(super) const RESPOND: &str = "respond";

/// Name of the program's own tool for structured outputs.
pub(super) const STRUCTURED_OUTPUT: &str = "StructuredOutput";

/// Names of the program's tools that start sub-agents.
const SUB_AGENTS: [&str; 2] = ["Task", "Agent"];

/// Returns whether a tool starts a sub-agent.
pub(super) fn begins_sub_agent(tool: &str) -> bool {
    SUB_AGENTS.contains(&tool)
}

/// Returns whether a tool in a hook is not a call to run here: a tool of the host, which is called
/// separately, the output, or a sub-agent, whose calls are separate.
pub(super) fn is_no_call_of_its_own(tool: &str) -> bool {
    hosts_tool(tool).is_some() || tool == STRUCTURED_OUTPUT || begins_sub_agent(tool)
}

/// Returns the host's own name of a tool that the model calls; `None` if it does not belong to the
/// host.
pub(super) fn hosts_tool(tool: &str) -> Option<&str> {
    tool.strip_prefix("mcp__")?.strip_prefix(SERVER)?.strip_prefix("__")
}

/// Returns the name by which the model calls a tool of the host.
pub(super) fn bridged_name(name: &str) -> String {
    format!("mcp__{SERVER}__{name}")
}

/// Text for the model about a command that was to run in the background.
const IN_FOREGROUND: &str = "Commands do not run in the background here: run it in the foreground.";

/// Returns the text for the model about a tool that it may not call.
fn no_such_tool(name: &str) -> String {
    format!("There is no tool `{}`.", shorten_for_model(name))
}

/// Contains a request or report of the program about a call, and the receiver of the reply.
pub(super) struct CallArrival {
    arrival: Arrival,
    /// JSON of a hook or of a permission, or the arguments of a call.
    input: Value,
    reply_to: ReplyTo,
}

impl CallArrival {
    /// Parses an arrival.
    pub(super) fn read(arrival: Arrival, reply_to: ReplyTo) -> CallArrival {
        let input = match &arrival {
            Arrival::Hook { input, .. }
            | Arrival::Permission { input, .. }
            | Arrival::Call { arguments: input, .. } => serde_json::from_str(input).unwrap_or_default(),
            _ => Value::Null,
        };
        CallArrival { arrival, input, reply_to }
    }

    fn call_id(&self) -> Option<&str> {
        match &self.arrival {
            Arrival::Call { tool_use_id, .. }
            | Arrival::Hook { tool_use_id, .. }
            | Arrival::Permission { tool_use_id, .. } => tool_use_id.as_deref(),
            _ => None,
        }
    }

    /// Returns the described call.
    fn meant_call(&self) -> Option<MeantCall<'_>> {
        let (tool, input) = match &self.arrival {
            Arrival::Hook { tool, .. } => (tool, arguments_in(&self.input)),
            Arrival::Call { name: tool, .. } | Arrival::Permission { tool, .. } => (tool, &self.input),
            _ => return None,
        };
        Some(MeantCall { id: self.call_id().unwrap_or_default(), tool, input })
    }

    fn is_before(&self) -> bool {
        matches!(&self.arrival, Arrival::Hook { event, .. } if event == PRE_TOOL_USE)
    }
}

/// Runs the calls of one run.
pub(super) struct CallRunner<'a> {
    pub(super) runner: ToolRunner,
    pub(super) options: &'a RunOptions,
    /// Names of the host's tools that the model may call now.
    pub(super) shown: Vec<String>,
    pub(super) deadline: Deadline,
    /// Whether the prompt expects a structured output.
    pub(super) is_structured: bool,
    /// Clock that is set to the time of the last arrival.
    pub(super) clock: &'a FixedClock,
    /// Open calls of the program's own tools.
    pub(super) open: BTreeMap<CallNumber, OpenCall>,
    /// Ids of all calls of the program's own tools that have started.
    pub(super) begun: BTreeSet<String>,
    /// Ids of denied calls.
    pub(super) denied: BTreeSet<String>,
    /// Text for the model of ended calls of the program's own tools according to the log, and
    /// whether it is an error.
    pub(super) shown_of: BTreeMap<CallNumber, (String, bool)>,
    /// Additional text for the model about such calls.
    pub(super) context_of: BTreeMap<CallNumber, String>,
    pub(super) observer: Option<&'a dyn CallObserver>,
    /// Approved calls of the program's own tools that have not run.
    pub(super) approved: ApprovedCalls,
    /// Waiting calls.
    waiting: VecDeque<CallArrival>,
    /// Replies of calls that wait for a decision.
    held: Vec<ReplyTo>,
    /// Whether the run is over, so that nothing starts any more.
    pub(super) is_over: bool,
    /// Reason why the host stopped the run, if it did.
    pub(super) stopped: Option<RunStopReason>,
    /// Output that the model passed to the tool `respond`.
    pub(super) responded: Option<String>,
}

/// Contains an open call of one of the program's own tools.
pub(super) struct OpenCall {
    /// The call in its form before it ran.
    pub(super) call: ToolCallRecord,
    pub(super) operation: Operation,
    /// Whether it may run concurrently with others.
    pub(super) together: bool,
    /// Start of the call; `None` if it leaves no processes that have to be ended.
    pub(super) since: Option<StartMoment>,
    /// Input of the hook before the call.
    pub(super) hook: Value,
    /// Time at which its command times out, in microseconds since 1970-01-01 UTC; `None` if it runs
    /// no command.
    pub(super) times_out_us: Option<i64>,
}

/// Reason why a run stopped. If the host stopped it, the program tells the model for each ended
/// call that the user rejected it.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunStopReason {
    /// The deadline is near.
    Deadline,
    /// The run was cancelled.
    Cancelled,
    /// The model reached the limit of answers.
    Answers,
    /// The program ended.
    Ended,
}

impl RunStopReason {
    fn description(self) -> &'static str {
        match self {
            RunStopReason::Deadline => "The run reached its deadline",
            RunStopReason::Cancelled => "The run was interrupted",
            RunStopReason::Answers | RunStopReason::Ended => "The run ended",
        }
    }

    /// Returns the text for the model about a call that was stopped while it ran.
    pub(super) fn running_call_text(self, reads_only: bool) -> String {
        let undone = if reads_only { "" } else { " What it changed in the workspace was rolled back." };
        format!(
            "{} before this call ended.{undone} Call the tool again if it is still needed.",
            self.description()
        )
    }

    /// Returns the text for the model about a call that had not started.
    pub(super) fn not_begun(self) -> String {
        format!("{} before this call began. Call the tool again if it is still needed.", self.description())
    }
}

/// Next action of the run after a call.
pub(super) enum RunAction {
    GoOn,
    /// End the run, whose conversation waits or cannot continue.
    Fail(Error),
    /// End the run, whose conversation waits for a person, without a reply to the call.
    Ask {
        error: Error,
        call_id: String,
        reply_to: ReplyTo,
    },
    /// Reply to the call with the prompt in which these parts are shown.
    Show(VisibilityOverrides, ReplyTo),
}

/// Contains the data of a hook about a call.
pub(super) struct Hook {
    pub(super) tool: String,
    pub(super) input: Value,
    pub(super) tool_use_id: Option<String>,
}

/// Returns the arguments of the call in a hook.
pub(super) fn arguments_in(input: &Value) -> &Value {
    input.get("tool_input").unwrap_or(&Value::Null)
}

impl<'a> CallRunner<'a> {
    pub(super) fn new(
        runner: ToolRunner,
        options: &'a RunOptions,
        shown: Vec<String>,
        approved: ApprovedCalls,
        deadline: Deadline,
        clock: &'a FixedClock,
        is_structured: bool,
    ) -> CallRunner<'a> {
        CallRunner {
            runner,
            options,
            shown,
            deadline,
            clock,
            is_structured,
            open: BTreeMap::new(),
            begun: BTreeSet::new(),
            denied: BTreeSet::new(),
            shown_of: BTreeMap::new(),
            context_of: BTreeMap::new(),
            observer: None,
            approved,
            waiting: VecDeque::new(),
            held: Vec::new(),
            is_over: false,
            stopped: None,
            responded: None,
        }
    }

    pub(super) fn observed_by(self, observer: Option<&'a dyn CallObserver>) -> CallRunner<'a> {
        CallRunner { observer, ..self }
    }

    /// Returns the cause and the text for the model if a tool must not run; `None` if it may.
    fn refusal(&self, tool: &str, input: &Value) -> Option<(Cause, String)> {
        if let Some(name) = hosts_tool(tool) {
            let is_shown = self.shown.iter().any(|shown| shown == name) || self.is_respond(name);
            return (!is_shown).then(|| (Cause::UnknownTool, no_such_tool(name)));
        }
        if tool == STRUCTURED_OUTPUT && self.is_structured {
            return None;
        }
        if !self.options.allows(tool) {
            let reason = format!("The tool `{}` is not allowed here.", shorten_for_model(tool));
            return Some((Cause::Denied, reason));
        }
        let in_background = input.get("run_in_background").and_then(Value::as_bool).unwrap_or_default();
        in_background.then(|| (Cause::Denied, IN_FOREGROUND.to_owned()))
    }

    fn is_respond(&self, name: &str) -> bool {
        name == RESPOND && self.is_structured
    }

    /// Processes a call of a tool, a permission request, or a hook, and returns the next action. An
    /// arrival that starts a call waits until [`take_waiting`](CallRunner::take_waiting) takes it.
    pub(super) fn take(&mut self, asking: CallArrival, heard: &mut Recorders<'_>) -> Result<RunAction> {
        if let Some(call_id) = asking.call_id().filter(|_| asking.is_before()) {
            heard.call_is_of(call_id, asking.input.get("agent_id").and_then(Value::as_str));
        }
        if self.begins(&asking).is_some() {
            self.waiting.push_back(asking);
            return Ok(RunAction::GoOn);
        }
        self.take_now(asking, heard)
    }

    /// Takes the next call that need not wait; `None` if there is none.
    pub(super) fn take_waiting(&mut self, heard: &mut Recorders<'_>) -> Result<Option<RunAction>> {
        if self.open.is_empty() {
            heard.end_children(&self.runner)?;
        }
        if self.is_over {
            return Ok(None);
        }
        let next = self.next_waiting(heard).and_then(|place| self.waiting.remove(place));
        next.map(|waiting| self.take_now(waiting, heard)).transpose()
    }

    /// Returns the index of the call to start next. Calls of one conversation start in order. A
    /// call that waits for its own conversation lets others pass. A call that waits for an open
    /// call does not, so that each gets its turn.
    fn next_waiting(&self, heard: &Recorders<'_>) -> Option<usize> {
        let mut passed = BTreeSet::new();
        for (place, asking) in self.waiting.iter().enumerate() {
            let call_id = asking.call_id().unwrap_or_default();
            let conversation = heard.parent_of(call_id);
            let is_behind = |meant| heard.is_behind(meant, |number| self.open.contains_key(&number));
            let waits = passed.contains(&conversation)
                || heard.is_unannounced(call_id)
                || asking.meant_call().is_some_and(is_behind);
            if waits {
                passed.insert(conversation);
                continue;
            }
            let is_alone = |together| !self.open.values().any(|other| !(together && other.together));
            return self.begins(asking).is_none_or(is_alone).then_some(place);
        }
        None
    }

    /// Returns whether a call waits for its answer to arrive.
    pub(super) fn awaits_answer(&self, heard: &Recorders<'_>) -> bool {
        !self.is_over && self.unannounced_ids(heard).next().is_some()
    }

    /// Lets all calls start that wait for their answers.
    pub(super) fn await_no_answer(&self, heard: &mut Recorders<'_>) {
        let calls: Vec<String> = self.unannounced_ids(heard).map(str::to_owned).collect();
        calls.iter().for_each(|call_id| heard.not_announced(call_id));
    }

    fn unannounced_ids(&self, heard: &Recorders<'_>) -> impl Iterator<Item = &str> {
        let waiting = self.waiting.iter().filter_map(CallArrival::call_id);
        waiting.filter(|call_id| heard.is_unannounced(call_id))
    }

    /// Drops the waiting hooks and permissions of a call that the program has given up, and those
    /// of the sub-agent that it started. `call` is `None` if no block has named the call.
    pub(super) fn drop_waiting(&mut self, call_id: &str, call: Option<CallNumber>, heard: &Recorders<'_>) {
        let recorder = heard.asked_with(call_id);
        let next = |meant: MeantCall<'_>| recorder.and_then(|recorder| recorder.asked.next(meant));
        // If several calls are alike, each has its own hook.
        let has_twin = recorder.is_some_and(|recorder| recorder.asked.count_waiting(call_id) > 1);
        let mut is_dropped = false;
        self.waiting.retain(|waiting| {
            let id = waiting.call_id().unwrap_or_default();
            let is_it =
                id == call_id && waiting.meant_call().and_then(next) == call && !(has_twin && is_dropped);
            is_dropped |= is_it;
            !is_it && heard.parent_of(id).is_none_or(|parent| parent != call_id)
        });
    }

    /// Returns whether the call that an arrival starts may run concurrently with others; `None` if
    /// it starts none. A denied call is closed at once, and changes nothing.
    fn begins(&self, CallArrival { arrival, input, .. }: &CallArrival) -> Option<bool> {
        match arrival {
            Arrival::Call { name, .. } => match self.refusal(&bridged_name(name), &Value::Null) {
                None if self.is_respond(name) => None,
                refusal => Some(refusal.is_some() || self.runner.runs_together(name)),
            },
            Arrival::Hook { event, tool, .. } if event == PRE_TOOL_USE => {
                match self.refusal(tool, arguments_in(input)) {
                    None if is_no_call_of_its_own(tool) => None,
                    refusal => Some(refusal.is_some() || self.runner.runs_together(tool)),
                }
            }
            Arrival::Permission { tool, .. } => self.refusal(tool, input).map(|_| true),
            _ => None,
        }
    }

    fn take_now(
        &mut self,
        CallArrival { arrival, input, reply_to }: CallArrival,
        heard: &mut Recorders<'_>,
    ) -> Result<RunAction> {
        match arrival {
            Arrival::Call { name, arguments, tool_use_id } => {
                let call_id = tool_use_id.unwrap_or_default();
                let call = ToolCallRecord { call_id, name, arguments };
                if let Some((cause, reason)) = self.refusal(&bridged_name(&call.name), &Value::Null) {
                    self.deny(&call, &input, cause, &reason, heard)?;
                    reply_to.call(ToolReply::error(reason));
                    return Ok(RunAction::GoOn);
                }
                self.call(call, &input, reply_to, heard)
            }
            Arrival::Hook { event, tool, tool_use_id, .. } => {
                let hook = Hook { tool, input, tool_use_id };
                match event.as_str() {
                    PRE_TOOL_USE => {
                        let input = arguments_in(&hook.input);
                        match self.refuse(&hook.tool, input, &hook.tool_use_id, heard)? {
                            Some(reason) => reply_to.hook(HookReply::deny(reason)),
                            None if is_no_call_of_its_own(&hook.tool) => {
                                reply_to.hook(HookReply::proceed());
                            }
                            None => return self.before(&hook, reply_to, heard),
                        }
                    }
                    POST_TOOL_USE | POST_TOOL_USE_FAILURE => {
                        return self.after(&hook, event == POST_TOOL_USE_FAILURE, reply_to, heard);
                    }
                    _ => reply_to.hook(HookReply::proceed()),
                }
                Ok(RunAction::GoOn)
            }
            Arrival::Permission { tool, tool_use_id, .. } => {
                reply_to.permission(match self.refuse(&tool, &input, &tool_use_id, heard)? {
                    Some(message) => PermissionReply::Deny { message, interrupt: false },
                    None => PermissionReply::Allow { updated_input: None },
                });
                Ok(RunAction::GoOn)
            }
            _ => Ok(RunAction::GoOn),
        }
    }

    /// Denies a call of a tool that must not run. Returns the text for the model; `None` if the
    /// tool may run.
    fn refuse(
        &mut self,
        tool: &str,
        input: &Value,
        tool_use_id: &Option<String>,
        heard: &mut Recorders<'_>,
    ) -> Result<Option<String>> {
        let Some((cause, reason)) = self.refusal(tool, input) else { return Ok(None) };
        if let Some(call_id) = tool_use_id.clone() {
            let name = hosts_tool(tool).unwrap_or(tool).to_owned();
            let call = ToolCallRecord { call_id, name, arguments: input.to_string() };
            self.deny(&call, input, cause, &reason, heard)?;
        }
        Ok(Some(reason))
    }

    /// Records that a call does not run, and why, unless this is recorded already: a hook and a
    /// permission may concern the same call.
    fn deny(
        &mut self,
        call: &ToolCallRecord,
        input: &Value,
        cause: Cause,
        reason: &str,
        heard: &mut Recorders<'_>,
    ) -> Result<()> {
        let recorder = heard.recorder_of_call(&call.call_id);
        let meant = MeantCall { id: &call.call_id, tool: &call.name, input };
        if recorder.asked.next(meant).is_none() && recorder.asked.asks_for(&call.call_id) {
            return Ok(());
        }
        let begun = recorder.begin(call, input, &self.runner)?;
        self.close_denied(call, begun, cause, reason, heard)
    }

    /// Closes a call that does not run.
    fn close_denied(
        &mut self,
        call: &ToolCallRecord,
        begun: BegunCall,
        cause: Cause,
        reason: &str,
        heard: &mut Recorders<'_>,
    ) -> Result<()> {
        self.denied.insert(call.call_id.clone());
        self.runner.close(&asked_call(call, begun.origin), cause, reason)?;
        heard.recorder_of_call(&call.call_id).note_denied(begun.number);
        Ok(())
    }

    fn call(
        &mut self,
        recorded: ToolCallRecord,
        input: &Value,
        reply_to: ReplyTo,
        heard: &mut Recorders<'_>,
    ) -> Result<RunAction> {
        let recorder = heard.recorder_of_call(&recorded.call_id);
        let begun = recorder.begin(&recorded, input, &self.runner)?;
        if self.is_respond(&recorded.name) {
            self.responded = Some(recorded.arguments);
            reply_to.call(ToolReply::text("The answer is taken."));
            return Ok(RunAction::GoOn);
        }
        match self.runner.execute(&asked_call(&recorded, begun.origin), &self.deadline.for_tools()) {
            Ok(report) => {
                recorder.note_closed(begun.number);
                reply_to.call(reply_of(&report));
                Ok(self.leftover(&report).map_or(RunAction::GoOn, RunAction::Fail))
            }
            Err(foldlog::Error::VisibilityExpansion { overrides, .. }) => {
                recorder.note_closed(begun.number);
                match overrides_from_json(&overrides) {
                    Ok(overrides) => Ok(RunAction::Show(overrides, reply_to)),
                    Err(error) => {
                        reply_to.call(ToolReply::error(EXPANDED_TEXT));
                        Ok(RunAction::Fail(error.into()))
                    }
                }
            }
            Err(foldlog::Error::NoSuchTool(_)) => {
                let reason = no_such_tool(&recorded.name);
                self.close_denied(&recorded, begun, Cause::UnknownTool, &reason, heard)?;
                reply_to.call(ToolReply::error(reason));
                Ok(RunAction::GoOn)
            }
            Err(error @ foldlog::Error::Suspended { .. }) => {
                Ok(RunAction::Ask { error: error.into(), call_id: recorded.call_id, reply_to })
            }
            Err(error) => {
                reply_to.call(ToolReply::error("Tool error: the run ends here"));
                Ok(RunAction::Fail(error.into()))
            }
        }
    }

    /// Ends the run for a call that gets no reply while the program runs.
    pub(super) fn hold(&mut self, reply_to: ReplyTo) {
        self.is_over = true;
        self.held.push(reply_to);
    }

    /// Drops the calls that wait for a reply.
    pub(super) fn let_go(&mut self) {
        self.waiting.clear();
        self.held.clear();
    }
}

fn reply_of(report: &ToolReport) -> ToolReply {
    if report.success {
        return ToolReply::text(&report.message);
    }
    let text = match report.cause {
        Some(Cause::InvalidArguments) => format!("Invalid parameters: {}", report.message),
        Some(Cause::Error | Cause::Panic) => format!("Tool error: {}", report.message),
        _ => report.message.clone(),
    };
    ToolReply::error(format!("{text}{}", left_text(report)))
}
