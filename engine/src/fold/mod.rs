//! The fold: from records to slices. The slices' items are stored in [`items`](crate::items).
//!
//! | module | contents |
//! |---|---|
//! | `log_source` | items read from the log |
//! | `item_reading` | the bytes of unread items |
//! | `conversations` | the index of the records of conversations, with their liveness |
//! | `conversation_reading` | the records of one conversation, read from the log |
//! | `conversation_resume` | the point at which an interrupted conversation continues |
//! | `declarations` | checks of a declaration against earlier ones |
//! | `operations` | open, unsettled and suspended operations |
//! | `record_kinds` | rules for each kind of record, one file for each; decoded bodies |
//! | `projection` | [`Projection::apply`], the only code that changes a projection, and rollbacks |
//! | `history` | folds of a part of a log |
//! | `pipeline` | folding a log while it is read, with a second thread if it is long |
//! | `image_conversion` | from a projection to an image and back |
//! | `unread` | items whose bodies stay in the log |
//! | `memory` | the memory limit of a fold |
//! | `live` | projection, positions, rollbacks and live path, changed by one `apply` |
//! | `positions` | projections at earlier positions, for rollbacks |
//! | `live_path` | live records at a position |
//!
//! # Invariants
//!
//! 1. Live dispatch, opening, rollback, fork, replay and audit all use
//!    [`LiveState::apply`](live::LiveState::apply) and its fast path for plain events. Only these
//!    call [`Projection::apply`].
//! 2. `apply` checks a record against the projection before it makes any change.
//! 3. The fold needs no host code. With the host's types it also decodes items.

pub(crate) mod conversation_reading;
pub(crate) mod conversation_resume;
pub(crate) mod conversations;
mod declarations;
pub(crate) mod history;
pub(crate) mod image_conversion;
pub(crate) mod item_reading;
pub(crate) mod live;
pub(crate) mod live_path;
pub(crate) mod log_source;
pub(crate) mod memory;
pub(crate) mod operations;
pub(crate) mod pipeline;
pub(crate) mod positions;
pub(crate) mod projection;
pub(crate) mod questions;
pub(crate) mod record_kinds;
pub(crate) mod suspensions;
pub(crate) mod unread;
