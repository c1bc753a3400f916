//! The state of one running call, which its [`Operation`](super::Operation), its
//! [`ToolContext`](super::ToolContext) and its commands share.
//!
//! Ending the call takes what it [holds](CallEndState) exactly once: whoever finds nothing there comes too late.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::info::CallInfo;
use crate::process::programs::Programs;
use crate::session::operations::ActiveCall;
use crate::tools::captures::CaptureSet;
use crate::tools::execution::{Children, ExecutionState, Leases};
use crate::tools::resources::ResourceRegistry;

/// Holds the state of a call from its begin on. It outlives the call as long as the tool keeps its context.
pub(in crate::tools) struct RunningCall {
    pub(in crate::tools) state: ExecutionState,
    pub(in crate::tools) begun: ActiveCall,
    pub(in crate::tools) info: CallInfo,
    pub(in crate::tools) programs: Programs,
    /// What the call holds until it is over; `None` from then on.
    pub(in crate::tools) held: Mutex<Option<CallEndState>>,
    /// Whether the call belongs to a replay that takes its end from the log.
    pub(in crate::tools) from_log: bool,
    /// Child sessions that the call has opened; empty until it opens one.
    pub(in crate::tools) children: OnceLock<Arc<Mutex<Children>>>,
    /// Resources that are not captured; empty until a call that acts outside only asks for them.
    pub(in crate::tools) uncaptured: OnceLock<ResourceRegistry>,
}

/// Holds what a call needs for its end: the captures to restore and the leases to release.
#[derive(Default)]
pub(in crate::tools) struct CallEndState {
    /// Captures of the resources, from before the begin.
    pub(in crate::tools) before: CaptureSet,
    /// Leases of the resources; `None` within another call, which holds them.
    pub(in crate::tools) leases: Option<Arc<Leases>>,
    /// Encoded arguments, whose memory the end reuses for the encoded message.
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

    pub(in crate::tools) fn uncaptured_resources(&self) -> &ResourceRegistry {
        self.uncaptured.get_or_init(|| self.resources().without_captured())
    }

    pub(in crate::tools) fn children(&self) -> &Arc<Mutex<Children>> {
        self.children.get_or_init(Arc::default)
    }
}
