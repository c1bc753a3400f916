//! Runs the calls of tools as the engine's transactions.
//!
//! | the program | what becomes of it |
//! |---|---|
//! | calls a tool of the host (`mcp__wink__NAME`) | [`ToolRunner::execute`], and the result is its reply |
//! | is about to run a tool of its own (`PreToolUse`) | the call begins, with its resources captured, before the reply |
//! | ran it (`PostToolUse`) | the call ends, before the reply |
//! | ran it and it failed (`PostToolUseFailure`, an exit code, a result that is an error) | the call fails: its resources are restored, and the reply tells the model so |
//! | tells the result of a call that has not ended | the call ends as that says |
//! | runs `Task` | nothing: the calls of the sub-agent are calls of their own |
//!
//! A call that has to wait is held in its reply: calls run one after the other, but for those that only read, such as `Read`,
//! which capture nothing and run together.
//!
//! # Invariants
//!
//! 1. No tool runs that is not on the list, in any permission mode.
//! 2. While a call is open that may change something, no other one is.
//! 3. The run itself never waits for a call to end.

use std::collections::{BTreeMap, VecDeque};

use foldlog::conversation::{EXPANDED_TEXT, ToolCallRecord};
use foldlog::tools::{
    Operation, Tool, ToolContext, ToolError, ToolRegistry, ToolReport, ToolResult, ToolRunner,
};
use foldlog::{Cause, Idempotency};
use serde_json::Value;

use super::arrival::{Arrival, POST_TOOL_USE, POST_TOOL_USE_FAILURE, PRE_TOOL_USE, ReplyTo};
use super::config::RunOptions;
use super::conversation::Recorders;
use crate::claude::{HookReply, PermissionReply, ToolReply};
use crate::deadline::Deadline;
use crate::error::{Error, Phase, Result};
use crate::inner_loop::{asked_call, not_undone};
use crate::prompt::{VisibilityOverrides, overrides_from_json};

/// Server of the host's tools.
pub(super) const SERVER: &str = "wink";

/// Name of the tool by which the model gives a structured output.
pub(super) const RESPOND: &str = "respond";

/// Name of the program's own tool for structured outputs.
pub(super) const STRUCTURED_OUTPUT: &str = "StructuredOutput";

/// Names of the program's tools that begin sub-agents.
const SUB_AGENTS: [&str; 2] = ["Task", "Agent"];

/// Returns whether a tool that the program tells of is no call of its own: one of the host's, which is called apart, the output,
/// or a sub-agent, whose calls are.
fn is_no_call_of_its_own(tool: &str) -> bool {
    tool.starts_with("mcp__") || tool == STRUCTURED_OUTPUT || SUB_AGENTS.contains(&tool)
}

/// Returns the name by which the model calls a tool of the host.
pub(super) fn bridged(name: &str) -> String {
    format!("mcp__{SERVER}__{name}")
}

/// Text that the model reads of an interrupted call of a tool that only reads.
const READING_INTERRUPTED: &str = "The call was interrupted, and gave no result. Call the tool again.";

/// Declares tools of the program that only read, so that their calls capture nothing and run together.
macro_rules! reading_tools {
    ($($name:ident),* $(,)?) => {
        $(
            struct $name;

            impl Tool for $name {
                const NAME: &'static str = stringify!($name);
                const DESCRIPTION: &'static str = "A tool of the program, which the program runs.";
                type Parameters = Value;
                type Output = Value;

                fn reads_only(&self) -> bool {
                    true
                }

                fn idempotency(&self) -> Idempotency {
                    Idempotency::Natural
                }

                fn call(&self, _: Value, _: &ToolContext) -> Result<ToolResult<Value>, ToolError> {
                    // A recovery runs again what may run twice, and only the program can.
                    Err(ToolError::failed(READING_INTERRUPTED))
                }
            }
        )*

        /// Adds the tools of the program that only read to a registry that lacks them.
        fn with_reading_tools(registry: ToolRegistry) -> ToolRegistry {
            let names = registry.names();
            $(let registry = if names.contains(&$name::NAME) { registry } else { registry.with($name) };)*
            registry
        }
    };
}

reading_tools!(Read, Glob, Grep, LS, NotebookRead, WebFetch, WebSearch, TodoRead, TodoWrite);

/// Makes the runner of a run: of the host's tools, and of the program's own.
pub(super) fn runner(state: &foldlog::tools::ExecutionState, tools: &ToolRegistry) -> ToolRunner {
    ToolRunner::new(state.clone(), with_reading_tools(tools.clone()))
}

/// Holds a call of the program that waits for others to end.
type Waiting = (Arrival, ReplyTo);

/// Runs the calls of one run.
pub(super) struct Calls<'a> {
    pub(super) runner: ToolRunner,
    pub(super) options: &'a RunOptions,
    /// Names of the host's tools that the model may call now.
    pub(super) shown: Vec<String>,
    pub(super) deadline: Deadline,
    /// Whether the prompt asks for a structured output.
    pub(super) is_structured: bool,
    /// Calls of the program's own tools that are open, by their ids, and whether each only reads.
    open: BTreeMap<String, (Operation, bool)>,
    /// Calls that wait.
    waiting: VecDeque<Waiting>,
    /// Output that the model gave by the tool `respond`.
    pub(super) responded: Option<String>,
}

/// Says what the run does behind a call.
pub(super) enum Then {
    GoOn,
    /// End the run, whose conversation waits or cannot go on.
    Fail(Error),
    /// Tell the model the prompt with these parts shown, as the result of the call.
    Show(VisibilityOverrides, ReplyTo),
}

impl<'a> Calls<'a> {
    pub(super) fn new(
        runner: ToolRunner,
        options: &'a RunOptions,
        shown: Vec<String>,
        deadline: Deadline,
        is_structured: bool,
    ) -> Calls<'a> {
        Calls {
            runner,
            options,
            shown,
            deadline,
            is_structured,
            open: BTreeMap::new(),
            waiting: VecDeque::new(),
            responded: None,
        }
    }

    /// Returns why a tool must not run; `None` if it may.
    fn refusal(&self, tool: &str, input: &Value) -> Option<String> {
        if let Some(name) =
            tool.strip_prefix("mcp__").and_then(|rest| rest.strip_prefix(SERVER)?.strip_prefix("__"))
        {
            let is_shown = self.shown.iter().any(|shown| shown == name) || self.is_respond(name);
            return (!is_shown).then(|| format!("There is no tool `{name}`."));
        }
        if tool == STRUCTURED_OUTPUT && self.is_structured {
            return None;
        }
        if !self.options.native_tools.iter().any(|native| native == tool) {
            return Some(format!("The tool `{tool}` is not allowed here."));
        }
        let in_background = input.get("run_in_background").and_then(Value::as_bool).unwrap_or_default();
        in_background
            .then(|| "Commands do not run in the background here: run it in the foreground.".to_owned())
    }

    fn is_respond(&self, name: &str) -> bool {
        name == RESPOND && self.is_structured
    }

    /// Decides whether a tool may run of which the program asks.
    pub(super) fn permit(&self, tool: &str, input: &str) -> PermissionReply {
        let input = serde_json::from_str(input).unwrap_or_default();
        match self.refusal(tool, &input) {
            Some(message) => PermissionReply::Deny { message, interrupt: false },
            None => PermissionReply::Allow { updated_input: None },
        }
    }

    /// Takes a call of a tool, or what the program tells of one of its own. Returns what the run does then.
    pub(super) fn take(&mut self, arrived: Waiting, heard: &mut Recorders<'_>) -> Result<Then> {
        let (arrival, reply_to) = arrived;
        match arrival {
            arrival if self.must_wait(&arrival, heard) => {
                self.waiting.push_back((arrival, reply_to));
                Ok(Then::GoOn)
            }
            Arrival::Call { name, arguments, tool_use_id } => {
                self.call(&name, &arguments, tool_use_id, (reply_to, heard))
            }
            Arrival::Hook { event, tool, input, tool_use_id } => {
                let hook =
                    Hook { tool, input: serde_json::from_str(&input).unwrap_or_default(), tool_use_id };
                match event.as_str() {
                    PRE_TOOL_USE => self.before(&hook, reply_to, heard),
                    POST_TOOL_USE | POST_TOOL_USE_FAILURE => {
                        let has_failed = event == POST_TOOL_USE_FAILURE;
                        self.after(&hook, has_failed, reply_to, heard)
                    }
                    _ => {
                        reply_to.hook(HookReply::proceed());
                        Ok(Then::GoOn)
                    }
                }
            }
            _ => Ok(Then::GoOn),
        }
    }

    /// Returns whether a call has to wait: for one that is open, unless both only read, and for those of the answer before
    /// it, since their turn is recorded first. The engine would have the run itself wait, which could then take no end.
    fn must_wait(&self, arrival: &Arrival, heard: &Recorders<'_>) -> bool {
        let (tool, call_id) = match arrival {
            Arrival::Call { name, tool_use_id, .. } => (name, tool_use_id),
            Arrival::Hook { event, tool, tool_use_id, .. }
                if event == PRE_TOOL_USE && !is_no_call_of_its_own(tool) =>
            {
                (tool, tool_use_id)
            }
            _ => return false,
        };
        let reads_only = self.runner.reads_only(tool);
        let runs = |call_id: &str| self.open.contains_key(call_id);
        self.open.values().any(|(_, other_reads_only)| !(reads_only && *other_reads_only))
            || call_id.as_deref().is_some_and(|call_id| heard.is_behind(call_id, runs))
    }

    /// Runs a tool of the host.
    fn call(
        &mut self,
        name: &str,
        arguments: &str,
        tool_use_id: Option<String>,
        (reply_to, heard): (ReplyTo, &mut Recorders<'_>),
    ) -> Result<Then> {
        let call_id = tool_use_id.unwrap_or_default();
        let recorded = ToolCallRecord {
            call_id: call_id.clone(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        if let Some(reason) = self.refusal(&bridged(name), &Value::Null) {
            reply_to.call(ToolReply::error(reason));
            return Ok(Then::GoOn);
        }
        let recorder = heard.asking(&call_id);
        let origin = recorder.origin(&recorded, &self.runner)?;
        if self.is_respond(name) {
            self.responded = Some(arguments.to_owned());
            reply_to.call(ToolReply::text("The answer is taken."));
            return Ok(Then::GoOn);
        }
        match self.runner.execute(&asked_call(&recorded, origin), &self.deadline.for_tools()) {
            Ok(report) => {
                recorder.closed(&call_id);
                reply_to.call(reply_of(&report));
                Ok(Then::GoOn)
            }
            Err(foldlog::Error::VisibilityExpansion { overrides, .. }) => {
                recorder.closed(&call_id);
                match overrides_from_json(&overrides) {
                    Ok(overrides) => Ok(Then::Show(overrides, reply_to)),
                    Err(error) => {
                        reply_to.call(ToolReply::error(EXPANDED_TEXT));
                        Ok(Then::Fail(error.into()))
                    }
                }
            }
            Err(foldlog::Error::DeadlineExceeded { operation: Some(_) }) => {
                recorder.closed(&call_id);
                reply_to.call(ToolReply::error("Tool error: its deadline passed"));
                Ok(Then::GoOn)
            }
            Err(foldlog::Error::NoSuchTool(name)) => {
                reply_to.call(ToolReply::error(format!("There is no tool `{name}`.")));
                Ok(Then::GoOn)
            }
            Err(error) => {
                reply_to.call(ToolReply::error("Tool error: the run ends here"));
                Ok(Then::Fail(error.into()))
            }
        }
    }

    /// Begins a call of a tool of the program's own, before that runs it.
    fn before(&mut self, hook: &Hook, reply_to: ReplyTo, heard: &mut Recorders<'_>) -> Result<Then> {
        let Hook { tool, input: told, tool_use_id } = hook;
        if let Some(reason) = self.refusal(tool, told.get("tool_input").unwrap_or(&Value::Null)) {
            reply_to.hook(HookReply::deny(reason));
            return Ok(Then::GoOn);
        }
        if is_no_call_of_its_own(tool) {
            reply_to.hook(HookReply::proceed());
            return Ok(Then::GoOn);
        }
        let Some(call_id) = tool_use_id.clone() else {
            reply_to.hook(HookReply::deny("The program gave the call no id."));
            return Ok(Then::GoOn);
        };
        let arguments = told.get("tool_input").map(Value::to_string).unwrap_or_else(|| "{}".to_owned());
        let recorded = ToolCallRecord { call_id: call_id.clone(), name: tool.clone(), arguments };
        let origin = heard.asking(&call_id).origin(&recorded, &self.runner)?;
        match self.runner.begin_told(&asked_call(&recorded, origin), &self.deadline.for_tools()) {
            Ok(operation) => {
                self.open.insert(call_id, (operation, self.runner.reads_only(tool)));
                reply_to.hook(HookReply::proceed());
                Ok(Then::GoOn)
            }
            Err(error) => {
                reply_to.hook(HookReply::deny("The call cannot begin, and the run ends here."));
                Ok(Then::Fail(error.into()))
            }
        }
    }

    /// Ends a call of a tool of the program's own.
    fn after(
        &mut self,
        hook: &Hook,
        has_failed: bool,
        reply_to: ReplyTo,
        heard: &mut Recorders<'_>,
    ) -> Result<Then> {
        let Some(call_id) = &hook.tool_use_id else {
            reply_to.hook(HookReply::proceed());
            return Ok(Then::GoOn);
        };
        if !self.open.contains_key(call_id) {
            if is_no_call_of_its_own(&hook.tool) || heard.asking(call_id).asks_for(call_id) {
                reply_to.hook(HookReply::proceed());
                return Ok(Then::GoOn);
            }
            // A hook that timed out lets the call pass: what it did is in no transaction.
            reply_to.hook(HookReply::stop("a call ran that had not begun"));
            let reason = format!(
                "the program ran `{}` without waiting for the begin of the call: what it changed is not captured",
                hook.tool
            );
            return Ok(Then::Fail(Error::evaluation(Phase::Tool, "", reason)));
        }
        let response = hook.input.get("tool_response").unwrap_or(&Value::Null);
        let failure = if has_failed {
            Some(text_of(hook.input.get("error").unwrap_or(response)))
        } else {
            self.failure_in(response)
        };
        let shown = failure.clone().unwrap_or_else(|| text_of(response));
        let report = self.end(call_id, failure.is_some(), (&shown, response), heard)?;
        match report {
            Some(report) if !report.success => {
                let mut reply = HookReply::proceed();
                reply.additional_context = Some(ROLLED_BACK.to_owned());
                reply_to.hook(reply);
                Ok(not_undone(&report).map_or(Then::GoOn, Then::Fail))
            }
            _ => {
                reply_to.hook(HookReply::proceed());
                Ok(Then::GoOn)
            }
        }
    }

    /// Returns how a tool failed that says so in its answer.
    fn failure_in(&self, response: &Value) -> Option<String> {
        let code = ["exitCode", "exit_code", "code"]
            .into_iter()
            .find_map(|name| response.get(name)?.as_i64())
            .filter(|code| *code != 0 && self.options.exit_code_fails);
        let is_error = ["is_error", "isError", "interrupted"]
            .into_iter()
            .any(|name| response.get(name).and_then(Value::as_bool).unwrap_or_default());
        (code.is_some() || is_error).then(|| text_of(response))
    }

    /// Ends an open call. Returns its report; `None` if no such call is open.
    fn end(
        &mut self,
        call_id: &str,
        has_failed: bool,
        (shown, response): (&str, &Value),
        heard: &mut Recorders<'_>,
    ) -> Result<Option<ToolReport>> {
        let Some((operation, _)) = self.open.remove(call_id) else { return Ok(None) };
        let report = match has_failed {
            true => operation.fail(ToolError::failed(shown)),
            false => operation.end(ToolResult::ok(shown, response)),
        };
        let report = match report {
            Err(foldlog::Error::DeadlineExceeded { operation: Some(_) }) => None,
            report => Some(report?),
        };
        heard.asking(call_id).closed(call_id);
        Ok(report)
    }

    /// Takes the result that the program told the model of a call. A call that is open ends with it.
    pub(super) fn told(
        &mut self,
        call_id: &str,
        (content, is_error): (&Value, bool),
        heard: &mut Recorders<'_>,
    ) -> Result<Then> {
        let text = text_of(content);
        let report = self.end(call_id, is_error, (&text, content), heard)?;
        heard.child_ended(call_id, &self.runner)?;
        heard.asking(call_id).told(call_id, &text, is_error, &self.runner)?;
        Ok(report.as_ref().and_then(not_undone).map_or(Then::GoOn, Then::Fail))
    }

    /// Returns the next call that waited and need not wait any more.
    pub(super) fn next_waiting(&mut self, heard: &Recorders<'_>) -> Option<Waiting> {
        let place = self.waiting.iter().position(|(arrival, _)| !self.must_wait(arrival, heard))?;
        self.waiting.remove(place)
    }

    /// Ends all calls that are open, since the program is gone: what they changed is rolled back.
    pub(super) fn abort(&mut self, reason: &str, heard: &mut Recorders<'_>) -> Result<()> {
        self.waiting.clear();
        while let Some((call_id, (operation, _))) = self.open.pop_last() {
            operation.abort(reason)?;
            heard.asking(&call_id).closed(&call_id);
        }
        Ok(())
    }
}

/// Text that tells the model that a failed call left nothing behind.
const ROLLED_BACK: &str = "The call failed. What it changed in the workspace was rolled back.";

struct Hook {
    tool: String,
    input: Value,
    tool_use_id: Option<String>,
}

/// Returns the reply to a call of a tool of the host.
fn reply_of(report: &ToolReport) -> ToolReply {
    if report.success {
        return ToolReply::text(&report.message);
    }
    ToolReply::error(match report.cause {
        Some(Cause::InvalidArguments) => format!("Invalid parameters: {}", report.message),
        Some(Cause::Error | Cause::Panic) => format!("Tool error: {}", report.message),
        _ => report.message.clone(),
    })
}

/// Returns what a tool answered as a text: a text itself, the texts of blocks, the output of a command, or JSON.
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
