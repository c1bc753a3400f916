//! Conversations: what is recorded, what counts after rollbacks and failures, and where a killed one goes on.

mod killed;
mod resuming;
