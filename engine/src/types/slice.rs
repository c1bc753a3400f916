use std::marker::PhantomData;

use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Event, UpcastError};

/// A typed sequence of a session, named by a marker type, so that two slices may hold items of one type.
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
    /// The slice's name in logs.
    const NAME: &'static str;
    /// What it holds.
    type Item: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// The name of the items' type in exports, where the items are no events.
    const ITEM_NAME: &'static str = Self::NAME;
    /// The version that items are recorded at, where they are no events; 1 or more. The items of a slice with
    /// a built-in reducer are events, whose own version counts.
    const ITEM_VERSION: u32 = 1;
    /// Whether this is [`EventSlice`] an event, whose slice comes into being with the first such event.
    #[doc(hidden)]
    const OF_EVENT: bool = false;

    /// Brings an item recorded at `version`, which is below `ITEM_VERSION`, to the present form. Not called
    /// for items that are events.
    ///
    /// # Errors
    ///
    /// Where there is no way; the default has none.
    fn upcast_item(version: u32, value: Value) -> Result<Value, UpcastError> {
        let _ = value;
        Err(UpcastError::new(format!("there is no way from version {version} to {}", Self::ITEM_VERSION)))
    }
}

/// The slice of an event that was never declared: it bears the event's name and holds every such event.
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

/// The policy of a slice that is declared without one.
///
/// | slice | policy | why |
/// |---|---|---|
/// | `plan`, `visibility_overrides` | STATE | working state goes back with the rest |
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
