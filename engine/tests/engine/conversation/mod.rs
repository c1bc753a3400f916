//! Conversations: which entries are recorded, and which are valid after rollbacks and failures.

mod following;
mod resuming;
