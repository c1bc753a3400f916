//! What a host says of a session, and whether somebody has to look at it.

use std::collections::BTreeMap;

use foldlog::{Event, Policy, SessionTypesBuilder, Slice};
use serde::{Deserialize, Serialize};

/// Holds what a host says of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfiguration {
    /// Name of the session for people.
    #[serde(default)]
    pub name: String,
    /// What the session is for.
    #[serde(default)]
    pub description: String,
    /// Whether a person or [`StateValidator`](crate::StateValidator) has to look at the state before anybody
    /// relies on it: a recovery could not bring back everything.
    #[serde(default)]
    pub requires_validation: bool,
    /// Why, where somebody said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_reason: Option<String>,
    /// What else the host keeps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// Says that a session has another configuration from now on. The event is the item of the slice [`Configurations`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfigured {
    /// The configuration.
    pub configuration: SessionConfiguration,
}

impl Event for SessionConfigured {
    const NAME: &'static str = "session_configured";
}

/// Marks the STATE slice of the session's configuration, `session_configuration`, which has at most one item.
#[derive(Debug)]
pub struct Configurations;

impl Slice for Configurations {
    const NAME: &'static str = "session_configuration";
    type Item = SessionConfigured;
}

pub(super) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types.slice_with::<Configurations>(Policy::State).replace_latest::<Configurations>()
}
