//! The fold: from records to slices.
//!
//! | module | holds |
//! |---|---|
//! | `row` | one item, as it is held and as it is looked at |
//! | `rows` | the items of one slice, shared between views |
//! | `runs` | values that were put in at a stretch, in one piece of memory |
//! | `index` | which items have which key, for `upsert_by` |
//! | `log_items` | the items of a LOG slice, which stay in the log |
//! | `tree` | the persistent map behind `rows` and `index` |
//! | `names` | what the log has declared |
//! | `operations` | operations that are not done with |
//! | `content` | what a record says, decoded |
//! | `projection` | [`Projection::apply`], the only code that changes a projection |
//! | `history` | folding a stretch of a log |
//! | `pipeline` | folding a log while it is read, with a second thread where it is long |
//! | `restore` | from a projection to an image and back |
//! | `unread` | items whose bodies stay in the log |
//! | `memory` | how much memory a fold may take |
//! | `live` | what a log amounts to: projection, positions, rollbacks and live path, changed by one `apply` |
//! | `positions` | projections at earlier positions, for rollbacks |
//! | `path` | which records are live |
//!
//! # Invariants
//!
//! 1. Live dispatch, opening, rollback, fork, replay and audit all go through [`LiveState::apply`](live::LiveState::apply)
//!    and its short way for plain events, which alone call [`Projection::apply`].
//! 2. `apply` checks a record against the projection before it changes anything.
//! 3. The fold needs no host code: with the host's types it also decodes items, without them it does not.

pub(crate) mod history;
pub(crate) mod index;
pub(crate) mod live;
pub(crate) mod log_items;
pub(crate) mod memory;
pub(crate) mod names;
pub(crate) mod operations;
pub(crate) mod path;
pub(crate) mod pipeline;
pub(crate) mod positions;
pub(crate) mod projection;
pub(crate) mod record_body;
pub(crate) mod restore;
pub(crate) mod row;
pub(crate) mod rows;
pub(crate) mod runs;
pub(crate) mod tree;
pub(crate) mod unread;
