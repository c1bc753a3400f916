//! A tool's finding about an interrupted call, and its form in the end record of the verifying
//! call.
//!
//! The end record's value is a map: `verdict` is `done`, `not_done` or `unknown`; with `done`,
//! `success` states whether the work succeeded, and `value` is its result, if any. The text of the
//! end record is that of the result.

use foldlog_codec::msgpack::Value;
use serde::Serialize;

use super::answer::{EncodedToolResult, ToolError, ToolResult};
use super::report::ToolReport;
use crate::types::encode;

/// Describes a tool's finding about an interrupted call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallVerification<T> {
    /// The call completed its work. This result becomes the operation's.
    Done(ToolResult<T>),
    /// The call had no effects outside of STATE and resources: it runs again.
    NotDone,
    /// The effects cannot be determined.
    Unknown,
}

impl<T: Serialize> CallVerification<T> {
    /// Encodes the finding of the tool named `tool`.
    ///
    /// # Errors
    ///
    /// [`ToolError::Failed`] if the result awaits an answer, [`ToolError::Engine`] if it cannot be
    /// encoded.
    pub(super) fn encode(self, tool: &str) -> Result<EncodedToolResult, ToolError> {
        let (verdict, message, result) = match self {
            CallVerification::Done(ToolResult { awaits: Some(_), .. }) => {
                return Err(ToolError::failed("what verifies a call cannot leave the result to somebody"));
            }
            CallVerification::Done(ToolResult { success, message, value, .. }) => {
                let value = value.map(|value| encode(tool, &value)).transpose()?;
                let value = value.as_deref().map(Value::decode).transpose();
                let value = value.map_err(|error| ToolError::failed(error.to_string()))?;
                ("done", message, Some((success, value)))
            }
            CallVerification::NotDone => ("not_done", "it had not done its work".to_owned(), None),
            CallVerification::Unknown => {
                ("unknown", "nobody can say whether it had done its work".to_owned(), None)
            }
        };
        let mut recorded = Value::Map(Vec::new());
        recorded.set("verdict", Value::Str(verdict.to_owned()));
        if let Some((success, value)) = result {
            recorded.set("success", Value::Bool(success));
            value.into_iter().for_each(|value| recorded.set("value", value));
        }
        Ok(ToolResult::ok(message, recorded.encode()).without_outside_effects())
    }
}

impl CallVerification<Value> {
    /// Reads the finding of a verifying call. A call that failed found nothing.
    pub(in crate::tools) fn from_report(report: &ToolReport) -> CallVerification<Value> {
        let recorded = report.value.as_ref().filter(|_| report.success);
        let of = |name: &str| recorded.and_then(|recorded| recorded.get(name));
        match of("verdict").and_then(Value::as_str) {
            Some("done") => {
                let (success, value) = (of("success") == Some(&Value::Bool(true)), of("value").cloned());
                let result = ToolResult::unsuccessful(report.message.clone());
                CallVerification::Done(ToolResult { success, value, ..result })
            }
            Some("not_done") => CallVerification::NotDone,
            _ => CallVerification::Unknown,
        }
    }
}
