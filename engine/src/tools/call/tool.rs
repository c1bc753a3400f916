use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use foldlog_codec::body::Idempotency;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::{Answered, ToolError, ToolResult};
use super::context::ToolContext;
use crate::error::{Error, Result};

/// What an agent can call.
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
    /// The tool's name, as the model calls it.
    const NAME: &'static str;
    /// What it does, for the model.
    const DESCRIPTION: &'static str = "";
    /// What it takes. Parameters that it does not name are refused.
    type Parameters: DeserializeOwned + JsonSchema;
    /// What it answers.
    type Output: Serialize;

    /// What may be done with a call that was interrupted. [`Idempotency::Manual`] where nothing is said: nobody but a
    /// person knows.
    fn idempotency(&self) -> Idempotency {
        Idempotency::Manual
    }

    /// Whether it changes nothing, so that it may run beside others that do not either.
    fn reads_only(&self) -> bool {
        false
    }

    /// Does what is asked for.
    ///
    /// # Errors
    ///
    /// Whatever the tool wants the model to see. A panic is caught, and is a failure too.
    fn call(
        &self,
        parameters: Self::Parameters,
        context: &ToolContext,
    ) -> Result<ToolResult<Self::Output>, ToolError>;

    /// Undoes what an interrupted call may have done outside, where it is declared [`Idempotency::Compensate`]. It may
    /// be called more than once, and for a call that had done nothing.
    ///
    /// # Errors
    ///
    /// Where it could not; it is tried again at the next recovery. So by default.
    fn undo(
        &self,
        parameters: Self::Parameters,
        context: &ToolContext,
    ) -> Result<ToolResult<Self::Output>, ToolError> {
        let _ = (parameters, context);
        Err(ToolError::failed(format!("`{}` has no way to undo what it did", Self::NAME)))
    }
}

/// A tool, its types erased.
pub(in crate::tools) trait AnyTool: Send + Sync {
    fn description(&self) -> &'static str;
    fn schema(&self) -> serde_json::Value;
    fn idempotency(&self) -> Idempotency;
    fn reads_only(&self) -> bool;
    fn call(&self, arguments: &str, context: &ToolContext) -> Result<Answered, ToolError>;
    fn undo(&self, arguments: &str, context: &ToolContext) -> Result<Answered, ToolError>;
}

impl<T: Tool> AnyTool for T {
    fn description(&self) -> &'static str {
        T::DESCRIPTION
    }

    fn schema(&self) -> serde_json::Value {
        let mut schema = schemars::schema_for!(T::Parameters);
        let is_object = schema.get("type").is_some_and(|kind| kind == "object");
        if is_object && schema.get("additionalProperties").is_none() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
        schema.to_value()
    }

    fn idempotency(&self) -> Idempotency {
        Tool::idempotency(self)
    }

    fn reads_only(&self) -> bool {
        Tool::reads_only(self)
    }

    fn call(&self, arguments: &str, context: &ToolContext) -> Result<Answered, ToolError> {
        Answered::of(T::NAME, Tool::call(self, parameters(arguments)?, context)?)
    }

    fn undo(&self, arguments: &str, context: &ToolContext) -> Result<Answered, ToolError> {
        Answered::of(T::NAME, Tool::undo(self, parameters(arguments)?, context)?)
    }
}

/// The parameters of a call, of which all must be known to the tool.
fn parameters<P: DeserializeOwned>(arguments: &str) -> Result<P, ToolError> {
    let mut unknown = Vec::new();
    let mut json = serde_json::Deserializer::from_str(arguments);
    let parameters = serde_ignored::deserialize(&mut json, |path| unknown.push(path.to_string()))
        .and_then(|parameters| json.end().map(|()| parameters))
        .map_err(|error| ToolError::InvalidArguments(error.to_string()))?;
    if unknown.is_empty() {
        return Ok(parameters);
    }
    Err(ToolError::InvalidArguments(format!("unknown parameters: {}", unknown.join(", "))))
}

/// Tools by their names. Cheap to clone.
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: Arc<BTreeMap<&'static str, Arc<dyn AnyTool>>>,
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

impl ToolRegistry {
    /// No tools.
    pub fn new() -> ToolRegistry {
        ToolRegistry::default()
    }

    /// The same with one more tool, in place of an earlier one of that name.
    #[must_use]
    pub fn with<T: Tool>(mut self, tool: T) -> ToolRegistry {
        Arc::make_mut(&mut self.tools).insert(T::NAME, Arc::new(tool));
        self
    }

    /// The names of the tools, in ascending order.
    pub fn names(&self) -> Vec<&'static str> {
        self.tools.keys().copied().collect()
    }

    /// What a tool does, and the JSON schema of what it takes.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTool`] where there is none of that name.
    pub fn describe(&self, name: &str) -> Result<(&'static str, serde_json::Value)> {
        let tool = self.get(name)?;
        Ok((tool.description(), tool.schema()))
    }

    pub(in crate::tools) fn get(&self, name: &str) -> Result<&Arc<dyn AnyTool>> {
        self.tools.get(name).ok_or_else(|| Error::NoSuchTool(name.to_owned()))
    }
}
