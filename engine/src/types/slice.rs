use std::marker::PhantomData;

use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Event, UpcastError};

/// Declares a typed list of items of a session. Implement it for a marker type, so that several
/// slices can have items of one type.
///
/// ```
/// use foldlog::{Event, Slice};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct StepAdded {
///     title: String,
/// }
///
/// impl Event for StepAdded {
///     const NAME: &'static str = "plan.step_added";
/// }
///
/// struct Plan;
///
/// impl Slice for Plan {
///     const NAME: &'static str = "plan";
///     type Item = StepAdded;
/// }
/// ```
pub trait Slice: 'static {
    /// Name of the slice in logs.
    const NAME: &'static str;
    /// Type of the slice's items.
    type Item: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Name of the items' type in exports, for items that are not events.
    const ITEM_NAME: &'static str = Self::NAME;
    /// Version at which items are recorded, for items that are not events; 1 or more. Items of a
    /// slice with a built-in reducer are events and take the event's version.
    const ITEM_VERSION: u32 = 1;
    /// Whether the slice is an [`EventSlice`], which is created by the first dispatch of its event.
    #[doc(hidden)]
    const OF_EVENT: bool = false;

    /// Converts an item that was recorded at `version` to the present form. `version` is below
    /// `ITEM_VERSION`. Not called for items that are events.
    ///
    /// # Errors
    ///
    /// Fails if the item cannot be converted; the default implementation always fails. Reading the
    /// item then fails with [`Error::Decode`](crate::Error::Decode).
    fn upcast_item(version: u32, value: Value) -> Result<Value, UpcastError> {
        let _ = value;
        Err(UpcastError::new(format!("there is no upcast from version {version} to {}", Self::ITEM_VERSION)))
    }
}

/// Marks the implicit slice of an undeclared event. It is named `E::NAME`, has the [default
/// policy](default_policy) of that name, and contains every such event.
#[derive(Debug)]
pub struct EventSlice<E>(PhantomData<fn() -> E>);

impl<E: Event> Slice for EventSlice<E> {
    const NAME: &'static str = E::NAME;
    type Item = E;
    const ITEM_VERSION: u32 = E::VERSION;
    const OF_EVENT: bool = true;

    fn upcast_item(version: u32, value: Value) -> Result<Value, UpcastError> {
        E::upcast(version, value)
    }
}

/// Returns the policy of a slice that is declared without one, or of an undeclared event.
///
/// | slice | policy | why |
/// |---|---|---|
/// | `plan`, `visibility_overrides` | STATE | working state is rolled back with the rest |
/// | `workspace_digest` | CACHE | can be computed again |
/// | `tool_invoked`, `prompt_rendered`, `prompt_executed` | LOG | a record of what happened |
/// | any other | STATE | the safe choice |
///
/// Names are compared without regard to case, `_`, `-` and `.`, so `ToolInvoked` is `tool_invoked`.
pub fn default_policy(slice: &str) -> Policy {
    let folded: String =
        slice.chars().filter(|c| !matches!(c, '_' | '-' | '.')).flat_map(char::to_lowercase).collect();
    match folded.as_str() {
        "workspacedigest" => Policy::Cache,
        "toolinvoked" | "promptrendered" | "promptexecuted" => Policy::Log,
        _ => Policy::State,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policies_are_those_of_the_table() {
        for (name, policy) in [
            ("Plan", Policy::State),
            ("VisibilityOverrides", Policy::State),
            ("WorkspaceDigest", Policy::Cache),
            ("ToolInvoked", Policy::Log),
            ("prompt_rendered", Policy::Log),
            ("prompt.executed", Policy::Log),
            ("anything else", Policy::State),
        ] {
            assert_eq!(default_policy(name), policy, "{name}");
        }
    }
}
