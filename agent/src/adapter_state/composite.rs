use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{AdapterState, AdapterStateType, CapturedState};

/// Contains the states of several adapters that worked on one evaluation, by names that the host
/// chooses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompositeAdapterState {
    /// States by name.
    pub states: BTreeMap<String, CapturedState>,
}

impl CompositeAdapterState {
    /// Creates a state without parts.
    pub fn new() -> CompositeAdapterState {
        CompositeAdapterState::default()
    }

    /// Adds a part, and replaces an earlier part of the same name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, state: CapturedState) -> CompositeAdapterState {
        self.states.insert(name.into(), state);
        self
    }
}

impl AdapterState for CompositeAdapterState {
    fn adapter_type(&self) -> &str {
        Self::ADAPTER_TYPE
    }

    /// Returns whether at least one part can be resumed. The other parts start again.
    fn resumable(&self) -> bool {
        self.states.values().any(AdapterState::resumable)
    }
}

impl AdapterStateType for CompositeAdapterState {
    const ADAPTER_TYPE: &'static str = "composite";
}
