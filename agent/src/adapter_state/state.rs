use std::fmt;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// Describes the data with which an adapter resumes its provider's session.
pub trait AdapterState: fmt::Debug + Send + Sync {
    /// Returns the name of the adapter's type, such as `claude_agent_sdk`. Records identify the
    /// state by it.
    fn adapter_type(&self) -> &str;

    /// Returns whether the provider's session can be resumed from this state.
    fn resumable(&self) -> bool;
}

/// Gives the states of one adapter a Rust type. Records contain its JSON.
pub trait AdapterStateType: AdapterState + Serialize + DeserializeOwned {
    /// Name of the adapter's type; the same as [`AdapterState::adapter_type`].
    const ADAPTER_TYPE: &'static str;
}

/// Contains the recorded state of any adapter, whether or not this program has a type for it. In
/// JSON it is an object with the fields `adapter_type`, `resumable` and `state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapturedState {
    adapter_type: String,
    resumable: bool,
    state: Value,
}

impl AdapterState for CapturedState {
    fn adapter_type(&self) -> &str {
        &self.adapter_type
    }

    fn resumable(&self) -> bool {
        self.resumable
    }
}

impl CapturedState {
    /// Captures an adapter's state.
    ///
    /// # Errors
    ///
    /// [`Error::AdapterState`] if the state cannot be written as JSON.
    pub fn from_state<S: AdapterState + Serialize>(state: &S) -> Result<CapturedState> {
        let (adapter_type, resumable) = (state.adapter_type().to_owned(), state.resumable());
        match serde_json::to_value(state) {
            Ok(state) => Ok(CapturedState { adapter_type, resumable, state }),
            Err(error) => Err(Error::AdapterState {
                adapter: adapter_type,
                reason: format!("it cannot be written as JSON: {error}"),
            }),
        }
    }

    /// Creates a captured state from JSON, for a state without a type in this program.
    pub fn from_json(adapter_type: impl Into<String>, resumable: bool, state: Value) -> CapturedState {
        CapturedState { adapter_type: adapter_type.into(), resumable, state }
    }

    /// Returns the state in the adapter's own form.
    pub fn state(&self) -> &Value {
        &self.state
    }

    /// Parses the state as its adapter's type; `None` if it is the state of another adapter.
    ///
    /// # Errors
    ///
    /// [`Error::AdapterState`] if the state belongs to this adapter but has another form than the
    /// type.
    pub fn read<S: AdapterStateType>(&self) -> Result<Option<S>> {
        if self.adapter_type != S::ADAPTER_TYPE {
            return Ok(None);
        }
        match S::deserialize(&self.state) {
            Ok(state) => Ok(Some(state)),
            Err(error) => Err(Error::AdapterState {
                adapter: self.adapter_type.clone(),
                reason: format!("this program does not know its form: {error}"),
            }),
        }
    }

    /// Returns a non-empty text field of the state.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.state.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    pub(super) fn time(&self, field: &str) -> Option<DateTime<Utc>> {
        DateTime::<Utc>::deserialize(self.state.get(field)?).ok()
    }

    /// Returns the same state, marked as not resumable.
    pub(super) fn no_longer_resumable(&self) -> CapturedState {
        CapturedState { resumable: false, ..self.clone() }
    }
}
