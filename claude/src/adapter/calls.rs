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

/// Identifies what the program sent about a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallEvent {
    /// It calls a tool of the host.
    Call,
    /// It is about to run a tool of its own.
    Before,
    /// It ran the tool.
    After { has_failed: bool },
    /// It asks whether a tool may run.
    Permission,
    /// Any other hook.
    Other,
}

/// Contains a request or report of the program about a call, and the receiver of the reply.
pub(super) struct CallArrival {
    event: CallEvent,
    /// Name by which the model calls the tool.
    pub(super) tool: String,
    pub(super) call_id: Option<String>,
    /// Contents of a hook, or arguments of the call.
    pub(super) json: Value,
    pub(super) reply_to: ReplyTo,
}

impl CallArrival {
    /// Parses an arrival.
    pub(super) fn read(arrival: Arrival, reply_to: ReplyTo) -> CallArrival {
        let (event, tool, json, call_id) = match arrival {
            Arrival::Call { name, arguments, tool_use_id } => {
                (CallEvent::Call, bridged_name(&name), arguments, Some(tool_use_id.unwrap_or_default()))
            }
            Arrival::Permission { tool, input, tool_use_id } => {
                (CallEvent::Permission, tool, input, tool_use_id)
            }
            Arrival::Hook { event, tool, input, tool_use_id } => {
                let event = match event.as_str() {
                    PRE_TOOL_USE => CallEvent::Before,
                    POST_TOOL_USE => CallEvent::After { has_failed: false },
                    POST_TOOL_USE_FAILURE => CallEvent::After { has_failed: true },
                    _ => CallEvent::Other,
                };
                (event, tool, input, tool_use_id)
            }
            _ => (CallEvent::Other, String::new(), String::new(), None),
        };
        let json = serde_json::from_str(&json).unwrap_or_default();
        CallArrival { event, tool, call_id, json, reply_to }
    }

    /// Returns the arguments of the call.
    pub(super) fn input(&self) -> &Value {
        match self.event {
            CallEvent::Call | CallEvent::Permission => &self.json,
            _ => self.json.get("tool_input").unwrap_or(&Value::Null),
        }
    }

    /// Returns the described call.
    pub(super) fn meant_call(&self) -> MeantCall<'_> {
        let id = self.call_id.as_deref().unwrap_or_default();
        MeantCall { id, tool: &self.tool, input: self.input() }
    }

    /// Returns the call in its recorded form, with the host's own name of its tool.
    pub(super) fn record(&self) -> ToolCallRecord {
        let input = self.input();
        ToolCallRecord {
            call_id: self.call_id.clone().unwrap_or_default(),
            name: hosts_tool(&self.tool).unwrap_or(&self.tool).to_owned(),
            arguments: if input.is_null() { "{}".to_owned() } else { input.to_string() },
        }
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
        if let (CallEvent::Before, Some(call_id)) = (asking.event, &asking.call_id) {
            heard.call_is_of(call_id, asking.json.get("agent_id").and_then(Value::as_str));
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
            let meant = asking.meant_call();
            let conversation = heard.parent_of(meant.id);
            let waits = passed.contains(&conversation)
                || heard.is_unannounced(meant.id)
                || heard.is_behind(meant, |number| self.open.contains_key(&number));
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
        heard.unannounced.extend(calls);
    }

    fn unannounced_ids(&self, heard: &Recorders<'_>) -> impl Iterator<Item = &str> {
        let waiting = self.waiting.iter().filter_map(|waiting| waiting.call_id.as_deref());
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
            let meant = waiting.meant_call();
            let is_it = meant.id == call_id && next(meant) == call && !(has_twin && is_dropped);
            is_dropped |= is_it;
            !is_it && heard.parent_of(meant.id).is_none_or(|parent| parent != call_id)
        });
    }

    /// Returns whether the call that an arrival starts may run concurrently with others; `None` if
    /// it starts none. A denied call is closed at once, and changes nothing.
    fn begins(&self, asking: &CallArrival) -> Option<bool> {
        let name = hosts_tool(&asking.tool).unwrap_or(&asking.tool);
        let begins = match asking.event {
            CallEvent::Call => !self.is_respond(name),
            CallEvent::Before => !is_no_call_of_its_own(&asking.tool),
            CallEvent::Permission => false,
            CallEvent::After { .. } | CallEvent::Other => return None,
        };
        let is_refused = self.refusal(&asking.tool, asking.input()).is_some();
        (is_refused || begins).then(|| is_refused || self.runner.runs_together(name))
    }

    fn take_now(&mut self, asking: CallArrival, heard: &mut Recorders<'_>) -> Result<RunAction> {
        let refused = match asking.event {
            CallEvent::After { .. } | CallEvent::Other => None,
            _ => self.refuse(&asking, heard)?,
        };
        Ok(match (asking.event, refused) {
            (CallEvent::Call, Some(reason)) => asking.reply_to.send(&ToolReply::error(reason)),
            (CallEvent::Call, None) => return self.call(asking, heard),
            (CallEvent::Permission, Some(message)) => {
                asking.reply_to.send(&PermissionReply::Deny { message, interrupt: false })
            }
            (CallEvent::Permission, None) => {
                asking.reply_to.send(&PermissionReply::Allow { updated_input: None })
            }
            (_, Some(reason)) => asking.reply_to.send(&HookReply::deny(reason)),
            (CallEvent::After { has_failed }, None) => return self.after(asking, has_failed, heard),
            (CallEvent::Before, None) if !is_no_call_of_its_own(&asking.tool) => {
                return self.before(asking, heard);
            }
            (CallEvent::Before | CallEvent::Other, None) => asking.reply_to.send(&HookReply::proceed()),
        })
    }

    /// Denies a call of a tool that must not run, and records why, unless this is recorded already:
    /// a hook and a permission may concern the same call. Returns the text for the model; `None` if
    /// the tool may run.
    fn refuse(&mut self, asking: &CallArrival, heard: &mut Recorders<'_>) -> Result<Option<String>> {
        let Some((cause, reason)) = self.refusal(&asking.tool, asking.input()) else { return Ok(None) };
        if let Some(call_id) = &asking.call_id {
            let recorder = heard.recorder_of_call(call_id);
            if recorder.asked.next(asking.meant_call()).is_some() || !recorder.asked.asks_for(call_id) {
                let call = asking.record();
                let begun = recorder.begin(&call, asking.input(), &self.runner)?;
                self.close_denied(&call, begun, cause, &reason, heard)?;
            }
        }
        Ok(Some(reason))
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
        heard.recorder_of_call(&call.call_id).asked.deny(begun.number);
        Ok(())
    }

    fn call(&mut self, asking: CallArrival, heard: &mut Recorders<'_>) -> Result<RunAction> {
        let recorded = asking.record();
        let recorder = heard.recorder_of_call(&recorded.call_id);
        let begun = recorder.begin(&recorded, asking.input(), &self.runner)?;
        let reply_to = asking.reply_to;
        if self.is_respond(&recorded.name) {
            self.responded = Some(recorded.arguments);
            return Ok(reply_to.send(&ToolReply::text("The answer is taken.")));
        }
        match self.runner.execute(&asked_call(&recorded, begun.origin), &self.deadline.for_tools()) {
            Ok(report) => {
                recorder.asked.close(begun.number);
                let then = reply_to.send(&reply_of(&report));
                Ok(self.leftover(&report).map_or(then, RunAction::Fail))
            }
            Err(foldlog::Error::VisibilityExpansion { overrides, .. }) => {
                recorder.asked.close(begun.number);
                match overrides_from_json(&overrides) {
                    Ok(overrides) => Ok(RunAction::Show(overrides, reply_to)),
                    Err(error) => {
                        reply_to.send(&ToolReply::error(EXPANDED_TEXT));
                        Ok(RunAction::Fail(error.into()))
                    }
                }
            }
            Err(foldlog::Error::NoSuchTool(_)) => {
                let reason = no_such_tool(&recorded.name);
                self.close_denied(&recorded, begun, Cause::UnknownTool, &reason, heard)?;
                Ok(reply_to.send(&ToolReply::error(reason)))
            }
            Err(error @ foldlog::Error::Suspended { .. }) => {
                Ok(RunAction::Ask { error: error.into(), call_id: recorded.call_id, reply_to })
            }
            Err(error) => {
                reply_to.send(&ToolReply::error("Tool error: the run ends here"));
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
