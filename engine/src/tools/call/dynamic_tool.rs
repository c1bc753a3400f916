//! Tools that are created at run time, from a schema and closures. The registry keeps every tool in
//! this form.

use std::fmt;
#[cfg(feature = "async")]
use std::future::Future;
use std::sync::Arc;

use foldlog_codec::body::Idempotency;
use serde::Serialize;
use smol_str::SmolStr;

use super::answer::{EncodedToolResult, ToolError, ToolResult};
#[cfg(feature = "async")]
use super::async_tool::{ToolFuture, inside, wait_for_answer};
use super::context::ToolContext;
use super::interruption::InterruptedCall;
use super::tool::arguments_text;
use super::verify::CallVerification;

/// Defines a tool at run time, for example one that another process describes: a name, a JSON
/// schema of its arguments, and a closure that receives them as JSON. A
/// [`ToolRegistry`](crate::tools::ToolRegistry) contains it like tools of Rust types, and runs it
/// in the same way.
///
/// The arguments are checked only at the outermost level. They must be JSON; an object if the
/// schema contains `"type": "object"`; with all names in `required`, and without names that
/// `"additionalProperties": false` excludes. The rest of the schema is for the model; the closure
/// checks its own assumptions.
///
/// ```
/// use foldlog::tools::{DynTool, ToolRegistry, ToolResult};
/// use foldlog::Idempotency;
/// use serde_json::json;
///
/// let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
/// let shout = DynTool::new("shout", schema, |arguments, _| {
///     let text = arguments["text"].as_str().unwrap_or_default().to_uppercase();
///     Ok(ToolResult::ok(text.clone(), json!({ "text": text })))
/// });
/// let shout = shout.description("Says it louder.").idempotency(Idempotency::Natural).reads_only(true);
/// assert_eq!(ToolRegistry::new().with_dynamic(shout).names(), ["shout"]);
/// ```
#[derive(Clone)]
pub struct DynTool {
    pub(super) name: SmolStr,
    pub(super) description: String,
    pub(super) schema: Arc<serde_json::Value>,
    pub(in crate::tools) idempotency: Idempotency,
    pub(in crate::tools) reads_only: bool,
    pub(in crate::tools) outside_only: bool,
    /// Whether `verify` can verify calls.
    pub(in crate::tools) verifies: bool,
    pub(in crate::tools) call: Arc<CallFn>,
    /// Starts a call of an async tool; `None` for other tools.
    #[cfg(feature = "async")]
    pub(in crate::tools) start: Option<Arc<StartFn>>,
    pub(in crate::tools) undo: Arc<FollowUpFn>,
    pub(in crate::tools) verify: Arc<FollowUpFn>,
}

/// Runs a call with its arguments, which are JSON text.
pub(in crate::tools) type CallFn =
    dyn Fn(&str, &ToolContext) -> Result<EncodedToolResult, ToolError> + Send + Sync;
#[cfg(feature = "async")]
pub(in crate::tools) type StartFn = dyn Fn(&str, &ToolContext) -> ToolFuture + Send + Sync;
/// Undoes or verifies an interrupted call.
pub(in crate::tools) type FollowUpFn =
    dyn Fn(&InterruptedCall, &ToolContext) -> Result<EncodedToolResult, ToolError> + Send + Sync;

impl fmt::Debug for DynTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DynTool { name, idempotency, reads_only, .. } = self;
        let mut shown = f.debug_struct("DynTool");
        shown.field("name", name).field("idempotency", idempotency).field("reads_only", reads_only).finish()
    }
}

impl DynTool {
    /// Creates a tool from a name, the JSON schema of its arguments, and its function. It has no
    /// description, is [`Manual`](Idempotency::Manual), and may make changes.
    pub fn new<T: Serialize>(
        name: impl Into<SmolStr>,
        schema: serde_json::Value,
        call: impl Fn(serde_json::Value, &ToolContext) -> Result<ToolResult<T>, ToolError> + Send + Sync + 'static,
    ) -> DynTool {
        let (name, schema) = (name.into(), Arc::new(schema));
        let (of, expected) = (name.clone(), Arc::clone(&schema));
        let call = move |arguments: &str, context: &_| {
            call(checked_arguments(&expected, arguments)?, context)?.encode(&of)
        };
        DynTool::with_call(name, schema, Arc::new(call))
    }

    /// Creates a tool that can neither undo nor verify its calls.
    pub(super) fn with_call(
        name: SmolStr,
        schema: impl Into<Arc<serde_json::Value>>,
        call: Arc<CallFn>,
    ) -> DynTool {
        let (undone, verified) = (name.clone(), name.clone());
        DynTool {
            name,
            description: String::new(),
            schema: schema.into(),
            idempotency: Idempotency::Manual,
            reads_only: false,
            outside_only: false,
            verifies: false,
            call,
            #[cfg(feature = "async")]
            start: None,
            undo: Arc::new(move |_, _| {
                Err(ToolError::failed(format!("`{undone}` has no way to undo what it did")))
            }),
            verify: Arc::new(move |_, _| CallVerification::<()>::Unknown.encode(&verified)),
        }
    }

    /// Creates a tool whose calls are futures. A blocking call waits for its future.
    #[cfg(feature = "async")]
    pub(super) fn with_start(
        name: SmolStr,
        schema: impl Into<Arc<serde_json::Value>>,
        start: Arc<StartFn>,
    ) -> DynTool {
        let waited_for = Arc::clone(&start);
        let call = move |arguments: &str, context: &_| wait_for_answer(waited_for(arguments, context));
        DynTool { start: Some(start), ..DynTool::with_call(name, schema, Arc::new(call)) }
    }

    /// Creates a tool like [`new`](DynTool::new), from an async function, for async hosts. It runs
    /// like an [`AsyncTool`](super::AsyncTool).
    ///
    /// ```
    /// use foldlog::tools::{DynTool, ToolRegistry, ToolResult};
    /// use serde_json::json;
    ///
    /// let fetch = DynTool::new_async("fetch", json!({"type": "object"}), |arguments, _| async move {
    ///     let text = std::future::ready(arguments["address"].to_string()).await; // here: the host's own client
    ///     Ok(ToolResult::ok(text.clone(), text.len()))
    /// });
    /// assert_eq!(ToolRegistry::new().with_dynamic(fetch).names(), ["fetch"]);
    /// ```
    #[cfg(feature = "async")]
    pub fn new_async<T: Serialize, F>(
        name: impl Into<SmolStr>,
        schema: serde_json::Value,
        call: impl Fn(serde_json::Value, ToolContext) -> F + Send + Sync + 'static,
    ) -> DynTool
    where
        F: Future<Output = Result<ToolResult<T>, ToolError>> + Send + 'static,
    {
        let (name, schema) = (name.into(), Arc::new(schema));
        let (of, expected, call) = (name.clone(), Arc::clone(&schema), Arc::new(call));
        let start = move |arguments: &str, context: &ToolContext| {
            let (of, call, within) = (of.clone(), Arc::clone(&call), context.clone());
            let arguments = checked_arguments(&expected, arguments);
            inside(context, async move { call(arguments?, within).await?.encode(&of) })
        };
        DynTool::with_start(name, schema, Arc::new(start))
    }

    /// Sets the description of the tool for the model.
    #[must_use]
    pub fn description(self, description: impl Into<String>) -> DynTool {
        DynTool { description: description.into(), ..self }
    }

    /// Sets whether a recovery may run an interrupted call again; see
    /// [`Tool::idempotency`](super::Tool::idempotency).
    #[must_use]
    pub fn idempotency(self, idempotency: Idempotency) -> DynTool {
        DynTool { idempotency, ..self }
    }

    /// Sets whether the tool changes neither STATE nor resources; see
    /// [`Tool::reads_only`](super::Tool::reads_only).
    #[must_use]
    pub fn reads_only(self, reads_only: bool) -> DynTool {
        DynTool { reads_only, ..self }
    }

    /// Sets whether the tool acts only outside; see
    /// [`Tool::outside_only`](super::Tool::outside_only).
    #[must_use]
    pub fn outside_only(self, outside_only: bool) -> DynTool {
        DynTool { outside_only, ..self }
    }

    /// Sets the function that undoes the effects of an interrupted call, and makes the tool
    /// [`Compensate`](Idempotency::Compensate); see [`Tool::undo`](super::Tool::undo).
    #[must_use]
    pub fn undo<T: Serialize>(
        self,
        undo: impl Fn(serde_json::Value, &InterruptedCall, &ToolContext) -> Result<ToolResult<T>, ToolError>
        + Send
        + Sync
        + 'static,
    ) -> DynTool {
        let (of, expected) = (self.name.clone(), Arc::clone(&self.schema));
        let undo = move |undone: &InterruptedCall, context: &_| {
            undo(checked_arguments(&expected, &undone.arguments)?, undone, context)?.encode(&of)
        };
        DynTool { idempotency: Idempotency::Compensate, undo: Arc::new(undo), ..self }
    }

    /// Sets the function that verifies the effects of an interrupted call; see
    /// [`Tool::verify`](super::Tool::verify). A tool that is [`Manual`](Idempotency::Manual)
    /// becomes [`Verify`](Idempotency::Verify).
    #[must_use]
    pub fn verify<T: Serialize>(
        self,
        verify: impl Fn(
            serde_json::Value,
            &InterruptedCall,
            &ToolContext,
        ) -> Result<CallVerification<T>, ToolError>
        + Send
        + Sync
        + 'static,
    ) -> DynTool {
        let (of, expected) = (self.name.clone(), Arc::clone(&self.schema));
        let verify = move |interrupted: &InterruptedCall, context: &_| {
            verify(checked_arguments(&expected, &interrupted.arguments)?, interrupted, context)?.encode(&of)
        };
        let idempotency = match self.idempotency {
            Idempotency::Manual => Idempotency::Verify,
            own => own,
        };
        DynTool { idempotency, verifies: true, verify: Arc::new(verify), ..self }
    }

    /// Returns the name by which the model calls the tool.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Decodes the arguments of a call, and checks the outermost level of their schema.
fn checked_arguments(schema: &serde_json::Value, arguments: &str) -> Result<serde_json::Value, ToolError> {
    let arguments = serde_json::from_str(arguments_text(arguments))
        .map_err(|error| ToolError::InvalidArguments(error.to_string()))?;
    match misfit(schema, &arguments) {
        None => Ok(arguments),
        Some(misfit) => Err(ToolError::InvalidArguments(misfit)),
    }
}

/// Returns the first mismatch of the arguments with the outermost level of their schema.
fn misfit(schema: &serde_json::Value, arguments: &serde_json::Value) -> Option<String> {
    let wants_object = schema.get("type").is_some_and(|kind| kind == "object");
    let Some(given) = arguments.as_object() else {
        return wants_object.then(|| "the arguments are not a JSON object".to_owned());
    };
    let required = schema.get("required").and_then(serde_json::Value::as_array).into_iter().flatten();
    let missing: Vec<&str> =
        required.filter_map(serde_json::Value::as_str).filter(|name| !given.contains_key(*name)).collect();
    if !missing.is_empty() {
        return Some(format!("missing parameters: {}", missing.join(", ")));
    }
    let closed = schema.get("additionalProperties").is_some_and(|more| *more == false);
    if !closed || schema.get("patternProperties").is_some() {
        return None;
    }
    let known = schema.get("properties").and_then(serde_json::Value::as_object);
    let unknown: Vec<&str> = given
        .keys()
        .map(String::as_str)
        .filter(|name| !known.is_some_and(|known| known.contains_key(*name)))
        .collect();
    (!unknown.is_empty()).then(|| format!("unknown parameters: {}", unknown.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_checked_at_the_outermost_level_of_their_schema() {
        let object = |more: serde_json::Value| {
            let mut schema = json!({"type": "object", "properties": {"a": {}}});
            let more = more.as_object().cloned().unwrap_or_default();
            schema.as_object_mut().unwrap().extend(more);
            schema
        };
        let closed = object(json!({"additionalProperties": false, "required": ["a"]}));
        let refused = |schema: &serde_json::Value, arguments| misfit(schema, &arguments);
        assert_eq!(refused(&closed, json!({"a": 1})), None);
        assert_eq!(refused(&closed, json!({"b": 1, "a": 1})), Some("unknown parameters: b".to_owned()));
        assert_eq!(refused(&closed, json!({})), Some("missing parameters: a".to_owned()));
        assert_eq!(refused(&closed, json!([1])), Some("the arguments are not a JSON object".to_owned()));
        // Arguments that the schema might allow are left to the tool.
        assert_eq!(refused(&object(json!({})), json!({"b": 1})), None);
        assert_eq!(
            refused(&object(json!({"additionalProperties": {"type": "string"}})), json!({"b": 1})),
            None
        );
        let patterns = object(json!({"additionalProperties": false, "patternProperties": {"^b": {}}}));
        assert_eq!(refused(&patterns, json!({"b": 1})), None);
        assert_eq!(refused(&json!(true), json!([1])), None);
    }
}
