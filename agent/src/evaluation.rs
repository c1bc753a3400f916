//! Functions with which an adapter in another crate of foldlog opens, records and ends an
//! evaluation. They are not part of the public API.

pub use crate::adapter::{
    ExecutionDetails, OpenConversation, Timing, last_incomplete, must_settle, new_id, open, record_execution,
    response, without_output,
};
pub use crate::adapter_state::{check_size, retire};
pub use crate::budget::{Used, track};
pub use crate::events::record_rendered;
#[cfg(feature = "async")]
pub use crate::inner_loop::detached_jobs::wait;
pub use crate::inner_loop::{
    Journal, Outcome, asked_call, left_by, not_undone, read_output, shorten_for_model,
};

/// Does nothing: without the feature `async` there are no dropped futures.
#[cfg(not(feature = "async"))]
pub fn wait(_: &foldlog::Session, _: crate::Deadline, _: &crate::provider::CancelToken) {}
