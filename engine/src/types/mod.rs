//! The declarations of a host: events, slices, policies, reducers.
//!
//! | module | contents |
//! |---|---|
//! | `event` | [`Event`], and the only function that decodes recorded values |
//! | `slice` | [`Slice`], policies and their defaults |
//! | `reducer` | [`SliceOp`], views, type-erased reducers, and the resolution of a [`SliceOp`] to an effect |
//! | `tool_invoked` | the LOG slice that every session has |
//! | `values` | values of events and items without a Rust type |
//! | `registry`, `builder` | [`SessionTypes`], and their declaration by [`SessionTypesBuilder`] |
//! | `dynamic` | run-time declarations, and their agreement with those of Rust types |

mod builder;
mod dynamic;
mod event;
mod reducer;
mod registry;
mod slice;
mod tool_invoked;
mod values;

pub use builder::SessionTypesBuilder;
pub use dynamic::{BuiltInReducer, DynamicEvent, DynamicSlice};
pub use event::{Event, UpcastError};
pub use reducer::{Clear, Item, ReducerContext, SliceOp, View};
pub use registry::SessionTypes;
pub use slice::{EventSlice, Slice, default_policy};
pub use tool_invoked::{ToolInvocations, ToolInvoked};

pub(crate) use event::{
    Decoded, Decoder, RecordedBytes, check_payload, decode_item, encode, encode_into, read_event,
};
pub(crate) use reducer::{
    ItemCoding, NewItem, NewItems, Reduce, ReduceCall, SliceEffect, new_items, resolve_op,
};
pub(crate) use registry::{EventTypes, ItemType, SliceTypes, TAIL_ITEMS};
#[cfg(feature = "testkit")]
pub(crate) use values::decode_strict;
pub(crate) use values::{ValueDecoder, encode_value, read_value};
