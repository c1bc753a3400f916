//! Builds a request from parameters, which its record contains, and from messages and tools, which
//! are recorded elsewhere.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::unsupported_error;
use crate::provider::{PreparedRequest, ProviderError, Result, ToolSpec};

/// Collects the parts of a request.
#[derive(Debug, Default)]
pub struct Parameters {
    set: Map<String, Value>,
    parts: Vec<(&'static str, Box<RawValue>)>,
}

impl Parameters {
    /// Adds a parameter, if it is set.
    pub(in crate::provider) fn set<T: Into<Value>>(&mut self, name: &str, value: Option<T>) {
        if let Some(value) = value {
            self.set.insert(name.to_owned(), value.into());
        }
    }

    /// Adds the parameters that the host chose by name, and replaces others of the same name.
    pub(super) fn extend(&mut self, chosen: &[(String, Value)]) {
        self.set.extend(chosen.iter().cloned());
    }

    /// Adds a part that is left out of the request's record.
    pub(in crate::provider) fn part(&mut self, name: &'static str, value: &impl Serialize) -> Result<()> {
        self.parts.push((name, to_raw_value(value).map_err(no_json)?));
        Ok(())
    }

    /// Encodes the request.
    pub(super) fn prepare(self, model: &str, stream: bool) -> Result<PreparedRequest> {
        let mut body = format!("{{\"model\":{}", serde_json::to_string(model).map_err(no_json)?);
        let mut add = |name: &str, value: &str| -> serde_json::Result<()> {
            body.push(',');
            body.push_str(&serde_json::to_string(name)?);
            body.push(':');
            body.push_str(value);
            Ok(())
        };
        for (name, value) in &self.set {
            add(name, &value.to_string()).map_err(no_json)?;
        }
        for (name, value) in &self.parts {
            add(name, value.get()).map_err(no_json)?;
        }
        body.push('}');
        let parameters = Value::Object(self.set);
        Ok(PreparedRequest { model: model.to_owned(), parameters, body: body.into_bytes(), stream })
    }
}

fn no_json(error: serde_json::Error) -> Box<ProviderError> {
    unsupported_error(format!("the request has no JSON: {error}"))
}

/// Returns the names of tools. Calls in messages use these names unchanged.
pub(in crate::provider) fn names(tools: &[ToolSpec]) -> Vec<&str> {
    tools.iter().map(|tool| tool.name.as_str()).collect()
}
