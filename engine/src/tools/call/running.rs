//! A call that runs: what its operation, its context and its programs share.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::info::CallInfo;
use super::programs::Programs;
use crate::session::operations::ActiveCall;
use crate::tools::captures::Captures;
use crate::tools::execution::{ExecutionState, Leases};
use crate::tools::resources::ResourceRegistry;

/// A call that runs: what its operation and its tool share.
pub(in crate::tools) struct RunningCall {
    pub(in crate::tools) state: ExecutionState,
    pub(in crate::tools) begun: ActiveCall,
    pub(in crate::tools) info: CallInfo,
    pub(in crate::tools) programs: Programs,
    /// Nothing, once the call is over.
    pub(in crate::tools) held: Mutex<Option<Held>>,
}

/// What a call holds until it is over.
pub(in crate::tools) struct Held {
    pub(in crate::tools) before: Captures,
    pub(in crate::tools) leases: Option<Arc<Leases>>,
    /// The arguments as they were recorded; kept for its memory.
    pub(in crate::tools) text: Vec<u8>,
}

impl fmt::Debug for RunningCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningCall")
            .field("begin", &self.begun.begin)
            .field("tool", &self.info.tool)
            .finish_non_exhaustive()
    }
}

impl RunningCall {
    pub(in crate::tools) fn resources(&self) -> &ResourceRegistry {
        self.state.resources()
    }
}
