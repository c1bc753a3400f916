//! A host's description of a session, and whether the session needs a validation.

use std::collections::BTreeMap;

use foldlog::{Policy, SessionTypesBuilder};
use serde::{Deserialize, Serialize};

/// Contains a host's description of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfiguration {
    /// Name of the session for people.
    #[serde(default)]
    pub name: String,
    /// Purpose of the session.
    #[serde(default)]
    pub description: String,
    /// Whether a person or [`StateValidator`](crate::StateValidator) has to check the state before
    /// it is relied on, because a recovery could not restore everything.
    #[serde(default)]
    pub requires_validation: bool,
    /// Reason for that, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_reason: Option<String>,
    /// Other fields of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// Records a new configuration of a session. The event is the item of the slice [`Configurations`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfigured {
    /// The configuration.
    pub configuration: SessionConfiguration,
}

events! { SessionConfigured = "session_configured" }

slices! {
    /// Marks the STATE slice of the session's configuration, `session_configuration`, which has at most
    /// one item.
    Configurations = "session_configuration" of SessionConfigured,
}

pub(super) fn declare(types: SessionTypesBuilder) -> SessionTypesBuilder {
    types.slice_with::<Configurations>(Policy::State).replace_latest::<Configurations>()
}
