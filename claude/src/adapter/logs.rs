//! Log lines about runs for a host's logger: lines of the crate `log` with named values, under the
//! target `claude_agent_sdk`.
//!
//! | `event` | level | message | further values |
//! |---|---|---|---|
//! | `sdk.resuming_session` | info | `claude_agent_sdk.resuming_session` | `session_id` |
//! | `sdk.invoke.start` | info | `claude_agent_sdk.invoke` | `prompt_name`, `model`, `stateful`, `tool_count` |
//! | `sdk.invoke.complete` | info | `claude_agent_sdk.complete` | `prompt_name`, `duration_ms`, `input_tokens`, `output_tokens`, `total_cost`, `session_id` |
//! | `sdk.call.unclear` | warn | `claude_agent_sdk.unclear` | `tool_use_id`, `error` |
//! | `sdk.invoke.failed` | warn | `claude_agent_sdk.failed` | `prompt_name`, `session_id`, `error` |
//!
//! Times are in milliseconds, costs in US dollars. Values that the program did not report are left
//! out. A replay, in which no program runs, logs nothing. Without a logger nothing is formatted.

use log::kv::{ToValue, Value};
use log::{Level, MetadataBuilder, Record};

use crate::TurnResult;
use foldlog_agent::error::Error;

const TARGET: &str = "claude_agent_sdk";

type Pair<'a> = (&'static str, Value<'a>);

fn tell(level: Level, message: &str, event: &'static str, values: &[Pair<'_>]) {
    let metadata = MetadataBuilder::new().level(level).target(TARGET).build();
    if level > log::max_level() || !log::logger().enabled(&metadata) {
        return;
    }
    let event: Pair<'_> = ("event", event.to_value());
    let pairs: &[Pair<'_>] = &[&[event], values].concat();
    log::logger().log(
        &Record::builder()
            .metadata(metadata)
            .module_path_static(Some(module_path!()))
            .key_values(&pairs)
            .args(format_args!("{message}"))
            .build(),
    );
}

/// Logs that it is unknown whether a command ended, and that its changes remain.
pub(super) fn unclear(call_id: &str, error: &str) {
    let values = [("tool_use_id", call_id.to_value()), ("error", error.to_value())];
    tell(Level::Warn, "claude_agent_sdk.unclear", "sdk.call.unclear", &values);
}

pub(super) fn report_resume(session_id: &str) {
    let values = [("session_id", session_id.to_value())];
    tell(Level::Info, "claude_agent_sdk.resuming_session", "sdk.resuming_session", &values);
}

/// Logs that the program is about to be started.
pub(super) fn start(prompt_name: &str, model: &str, is_stateful: bool, tool_count: usize) {
    let values = [
        ("prompt_name", prompt_name.to_value()),
        ("model", model.to_value()),
        ("stateful", is_stateful.to_value()),
        ("tool_count", tool_count.to_value()),
    ];
    tell(Level::Info, "claude_agent_sdk.invoke", "sdk.invoke.start", &values);
}

/// Logs that a run returned its output.
pub(super) fn complete(prompt_name: &str, session_id: &str, result: Option<&TurnResult>) {
    let usage = result.and_then(|result| result.usage.as_ref());
    let (input, output) = (usage.map(|usage| usage.input_tokens), usage.map(|usage| usage.output_tokens));
    let (duration, cost) =
        (result.and_then(|result| result.duration_ms), result.and_then(|result| result.total_cost_usd));
    let mut values = vec![("prompt_name", prompt_name.to_value())];
    values.extend(duration.as_ref().map(|duration| ("duration_ms", duration.to_value())));
    values.extend(input.as_ref().map(|tokens| ("input_tokens", tokens.to_value())));
    values.extend(output.as_ref().map(|tokens| ("output_tokens", tokens.to_value())));
    values.extend(cost.as_ref().map(|cost| ("total_cost", cost.to_value())));
    values.push(("session_id", session_id.to_value()));
    tell(Level::Info, "claude_agent_sdk.complete", "sdk.invoke.complete", &values);
}

pub(super) fn report_failure(prompt_name: &str, session_id: &str, error: &Error) {
    let error = error.to_string();
    let values = [
        ("prompt_name", prompt_name.to_value()),
        ("session_id", session_id.to_value()),
        ("error", error.to_value()),
    ];
    tell(Level::Warn, "claude_agent_sdk.failed", "sdk.invoke.failed", &values);
}
