//! Tools that run in this process, and the registry that finds them by name.
//!
//! A [`Tool`] has types for its parameters and its output. The registry contains tools of any type
//! as a [`DynTool`], and passes arguments as JSON and results as MessagePack.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use foldlog_codec::body::Idempotency;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smol_str::SmolStr;

use super::answer::{ToolError, ToolResult};
#[cfg(feature = "async")]
use super::async_tool::AsyncTool;
use super::context::ToolContext;
use super::dynamic_tool::{CallFn, DynTool};
use super::interruption::InterruptedCall;
use super::verify::CallVerification;
use crate::error::{Error, Result};

/// Defines a tool that an agent can call: its name and schema for the model, and the code that
/// runs.
///
/// A [`ToolRunner`](crate::tools::ToolRunner) runs each call of the tool as a transaction: if the
/// call fails, STATE and resources are rolled back.
///
/// ```
/// use foldlog::tools::{Tool, ToolContext, ToolError, ToolResult};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Sum {
///     left: i64,
///     right: i64,
/// }
///
/// struct Add;
///
/// impl Tool for Add {
///     const NAME: &'static str = "add";
///     const DESCRIPTION: &'static str = "Adds two numbers.";
///     type Parameters = Sum;
///     type Output = i64;
///
///     fn call(&self, sum: Sum, _: &ToolContext) -> Result<ToolResult<i64>, ToolError> {
///         let total = sum.left.checked_add(sum.right).ok_or_else(|| ToolError::failed("too large"))?;
///         Ok(ToolResult::ok(total.to_string(), total))
///     }
/// }
/// ```
pub trait Tool: Send + Sync + 'static {
    /// Name by which the model calls the tool. A [`ToolRegistry`] contains one tool of each name.
    const NAME: &'static str;
    /// Description of the tool for the model.
    const DESCRIPTION: &'static str = "";
    /// Parameters of the tool, read from the JSON of a call. A call with an unknown parameter fails
    /// with [`Cause::InvalidArguments`](crate::Cause::InvalidArguments). Empty arguments count as
    /// `{}`.
    type Parameters: DeserializeOwned + JsonSchema;
    /// Value of the tool's answer.
    type Output: Serialize;

    /// Returns whether a recovery may run an interrupted call of the tool again; the start record
    /// of each call contains it. By default [`Idempotency::Manual`]: a person or the host decides.
    /// An interrupted call that only reads counts as [`Idempotency::Natural`].
    fn idempotency(&self) -> Idempotency {
        Idempotency::Manual
    }

    /// Returns whether the tool changes neither STATE nor resources. Calls of such tools may run in
    /// parallel, and no captures are taken for them. Their handle refuses changes of STATE and
    /// calls of tools that make changes, with [`Error::ReadsOnly`]. By default `false`.
    fn reads_only(&self) -> bool {
        false
    }

    /// Returns whether the tool acts only outside, for example by a request to a server: it changes
    /// neither STATE nor resources. Its calls run in parallel with each other and with calls of
    /// tools that [only read](Tool::reads_only), and no captures are taken for them. Unlike a
    /// reading call, an interrupted call runs again only as the tool's
    /// [idempotency](Tool::idempotency) allows. Its handle refuses changes of STATE, calls of tools
    /// that make changes, and programs, with [`Error::ReadsOnly`], and it gets no captured
    /// resource. By default `false`.
    fn outside_only(&self) -> bool {
        false
    }

    /// Runs the tool with the parameters of one call. The engine holds none of its locks during
    /// this time.
    ///
    /// # Errors
    ///
    /// A [`ToolError`] if the tool has no answer: the call fails, its changes are rolled back, and
    /// the model sees the error's text. The engine catches panics and treats them as failures.
    fn call(
        &self,
        parameters: Self::Parameters,
        context: &ToolContext,
    ) -> Result<ToolResult<Self::Output>, ToolError>;

    /// Undoes the effects of an interrupted call outside of STATE and resources. Only a recovery
    /// calls it, and only for a tool that declares [`Idempotency::Compensate`]: possibly more than
    /// once for one call, and possibly for a call that had no effects. `parameters` belong to the
    /// interrupted call, and `undone` identifies that call.
    /// [`InterruptedCall::operation`](super::InterruptedCall::operation) is the id under which the
    /// call acted.
    ///
    /// # Errors
    ///
    /// A [`ToolError`] if the effects could not be undone; the next recovery tries again. The
    /// default implementation always fails with [`ToolError::Failed`].
    fn undo(
        &self,
        parameters: Self::Parameters,
        undone: &InterruptedCall,
        context: &ToolContext,
    ) -> Result<ToolResult<Self::Output>, ToolError> {
        let _ = (parameters, undone, context);
        Err(ToolError::failed(format!("`{}` has no way to undo what it did", Self::NAME)))
    }

    /// Returns whether the tool can [verify](Tool::verify) the effects of an interrupted call. By
    /// default `true` for [`Idempotency::Verify`]; a [`Keyed`](Idempotency::Keyed) or
    /// [`Compensate`](Idempotency::Compensate) tool may return `true` too.
    fn verifies(&self) -> bool {
        self.idempotency() == Idempotency::Verify
    }

    /// Determines the effects of an interrupted call outside of STATE and resources, by a query
    /// there. Only a recovery calls it, for a tool that [verifies](Tool::verifies), before any
    /// other step for the call; possibly more than once for one call. Its handle refuses changes of
    /// STATE. `parameters` belong to the interrupted call, and `interrupted` identifies that call.
    ///
    /// | answer | consequence |
    /// |---|---|
    /// | done | that result becomes the operation's, and the tool does not run again |
    /// | not done | the tool runs again, as the same operation |
    /// | unknown, or an error | the [idempotency](Tool::idempotency) decides: a [`Keyed`](Idempotency::Keyed) tool runs again, a [`Compensate`](Idempotency::Compensate) tool undoes first, and with [`Verify`](Idempotency::Verify) the operation has to be settled |
    ///
    /// # Errors
    ///
    /// A [`ToolError`] if the query fails. The default implementation returns
    /// [`CallVerification::Unknown`].
    fn verify(
        &self,
        parameters: Self::Parameters,
        interrupted: &InterruptedCall,
        context: &ToolContext,
    ) -> Result<CallVerification<Self::Output>, ToolError> {
        let _ = (parameters, interrupted, context);
        Ok(CallVerification::Unknown)
    }
}

impl DynTool {
    /// Erases the types of a [`Tool`] for the registry: arguments are JSON text, and answers are
    /// encoded.
    fn of_tool<T: Tool>(tool: T) -> DynTool {
        let tool = Arc::new(tool);
        let (called, undoing, verifying) = (Arc::clone(&tool), Arc::clone(&tool), Arc::clone(&tool));
        let call: Arc<CallFn> =
            Arc::new(move |arguments, context| called.call(parameters(arguments)?, context)?.encode(T::NAME));
        DynTool {
            description: T::DESCRIPTION.to_owned(),
            idempotency: tool.idempotency(),
            reads_only: tool.reads_only(),
            outside_only: tool.outside_only(),
            verifies: tool.verifies(),
            undo: Arc::new(move |undone, context| {
                undoing.undo(parameters(&undone.arguments)?, undone, context)?.encode(T::NAME)
            }),
            verify: Arc::new(move |interrupted, context| {
                let parameters = parameters(&interrupted.arguments)?;
                verifying.verify(parameters, interrupted, context)?.encode(T::NAME)
            }),
            ..DynTool::with_call(SmolStr::new_static(T::NAME), schema_of::<T::Parameters>(), call)
        }
    }
}

/// Returns the JSON schema of parameters. It forbids additional properties, unless the type
/// specifies otherwise.
pub(super) fn schema_of<P: JsonSchema>() -> serde_json::Value {
    let mut schema = schemars::schema_for!(P);
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    if is_object && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    schema.to_value()
}

/// Returns the JSON of a call's arguments. A provider may send an empty text for a call without
/// arguments.
pub(super) fn arguments_text(arguments: &str) -> &str {
    if arguments.trim().is_empty() { "{}" } else { arguments }
}

/// Decodes the parameters of a call from JSON.
///
/// # Errors
///
/// [`ToolError::InvalidArguments`] if `arguments` is not JSON of that type, or contains a parameter
/// that the type lacks.
pub(super) fn parameters<P: DeserializeOwned>(arguments: &str) -> Result<P, ToolError> {
    let mut unknown = Vec::new();
    let mut json = serde_json::Deserializer::from_str(arguments_text(arguments));
    let parameters = serde_ignored::deserialize(&mut json, |path| unknown.push(path.to_string()))
        .and_then(|parameters| json.end().map(|()| parameters))
        .map_err(|error| ToolError::InvalidArguments(error.to_string()))?;
    if unknown.is_empty() {
        return Ok(parameters);
    }
    Err(ToolError::InvalidArguments(format!("unknown parameters: {}", unknown.join(", "))))
}

/// Contains tools by name. Clones share the tools and are cheap.
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: Arc<BTreeMap<SmolStr, Arc<DynTool>>>,
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

impl ToolRegistry {
    /// Creates an empty registry.
    pub fn new() -> ToolRegistry {
        ToolRegistry::default()
    }

    /// Adds a tool to the registry. It replaces an earlier tool of the same name. The registry asks
    /// the tool for its declarations, such as [`Tool::reads_only`], only here.
    #[must_use]
    pub fn with<T: Tool>(self, tool: T) -> ToolRegistry {
        self.with_dynamic(DynTool::of_tool(tool))
    }

    /// Adds a tool that was created at run time. It replaces an earlier tool of the same name.
    #[must_use]
    pub fn with_dynamic(mut self, tool: DynTool) -> ToolRegistry {
        Arc::make_mut(&mut self.tools).insert(tool.name.clone(), Arc::new(tool));
        self
    }

    /// Adds a tool that is a future. It replaces an earlier tool of the same name.
    #[cfg(feature = "async")]
    #[must_use]
    pub fn with_async<T: AsyncTool>(self, tool: T) -> ToolRegistry {
        self.with_dynamic(DynTool::of_async(tool))
    }

    /// Returns the names of the tools, in ascending order.
    pub fn names(&self) -> Vec<&str> {
        self.tools.keys().map(SmolStr::as_str).collect()
    }

    /// Returns a tool's description and the JSON schema of its parameters, for a model. The schema
    /// of a tool with a Rust type forbids additional properties, unless the type of the parameters
    /// specifies otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTool`] if the registry has no tool of that name.
    pub fn describe(&self, name: &str) -> Result<(&str, serde_json::Value)> {
        let tool = self.get(name)?;
        Ok((&tool.description, serde_json::Value::clone(&tool.schema)))
    }

    pub(in crate::tools) fn get(&self, name: &str) -> Result<&Arc<DynTool>> {
        self.tools.get(name).ok_or_else(|| Error::NoSuchTool(name.to_owned()))
    }
}
