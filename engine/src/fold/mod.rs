//! The fold: from records to slices, whose items are kept in [`items`](crate::items).
//!
//! | module | holds |
//! |---|---|
//! | `log_source` | items read from the log |
//! | `item_reading` | the bytes of unread items |
//! | `conversations` | where the records of conversations are, and which of them count |
//! | `conversation_reading` | the records of one conversation, read from the log |
//! | `conversation_resume` | where a conversation that was cut short continues |
//! | `declarations` | whether a declaration fits those before it |
//! | `operations` | open, unsettled and suspended operations |
//! | `record_body` | decoded record bodies |
//! | `projection` | [`Projection::apply`], the only code that changes a projection, and how it rolls back |
//! | `history` | folds of a part of a log |
//! | `pipeline` | folding a log while it is read, with a second thread if it is long |
//! | `restore` | from a projection to an image and back |
//! | `unread` | items whose bodies stay in the log |
//! | `memory` | how much memory a fold may take |
//! | `live` | projection, positions, rollbacks and live path, changed by one `apply` |
//! | `positions` | projections at earlier positions, for rollbacks |
//! | `path` | which records are live |
//!
//! # Invariants
//!
//! 1. Live dispatch, opening, rollback, fork, replay and audit all go through
//!    [`LiveState::apply`](live::LiveState::apply) and its fast path for plain events, which alone call
//!    [`Projection::apply`].
//! 2. `apply` checks a record against the projection before it changes anything.
//! 3. The fold needs no host code: with the host's types it also decodes items, without them it does not.

pub(crate) mod conversation_reading;
pub(crate) mod conversation_resume;
pub(crate) mod conversations;
mod declarations;
pub(crate) mod history;
pub(crate) mod item_reading;
pub(crate) mod live;
pub(crate) mod log_source;
pub(crate) mod memory;
pub(crate) mod operations;
pub(crate) mod path;
pub(crate) mod pipeline;
pub(crate) mod positions;
pub(crate) mod projection;
pub(crate) mod questions;
pub(crate) mod record_body;
pub(crate) mod restore;
pub(crate) mod suspensions;
pub(crate) mod unread;
