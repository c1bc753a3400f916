//! Conversations: what is recorded, and what counts after rollbacks and failures.

mod following;
mod resuming;
