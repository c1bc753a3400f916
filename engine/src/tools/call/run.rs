//! The state of one running call, shared by its [`Operation`](super::Operation), its
//! [`ToolContext`](super::ToolContext) and its commands.
//!
//! Ending the call takes its [`CallEndState`] exactly once. Later attempts to end it find none and
//! fail.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::info::CallInfo;
use crate::process::programs::Programs;
use crate::session::operations::ActiveCall;
use crate::tools::captures::CaptureSet;
use crate::tools::execution::{Children, ExecutionState, Leases};
use crate::tools::resources::ResourceRegistry;

/// Source of a call's effects and of its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::tools) enum CallSource {
    /// Its tool, in a live session.
    Live,
    /// Its tool, which runs again in a replay, on copies of the resources.
    RunAgain,
    /// The log of a replay.
    Log,
}

/// State of a call from its start on. It outlives the call as long as the tool keeps its context.
pub(in crate::tools) struct RunningCall {
    pub(in crate::tools) state: ExecutionState,
    pub(in crate::tools) begun: ActiveCall,
    pub(in crate::tools) info: CallInfo,
    pub(in crate::tools) programs: Programs,
    /// State for the call's end; `None` once the call is over.
    pub(in crate::tools) held: Mutex<Option<CallEndState>>,
    pub(in crate::tools) source: CallSource,
    /// Child sessions that the call has opened; uninitialized until the first.
    pub(in crate::tools) children: OnceLock<Arc<Mutex<Children>>>,
    /// Resources that are not captured; uninitialized until a call that acts only outside requests
    /// them.
    pub(in crate::tools) uncaptured: OnceLock<ResourceRegistry>,
}

/// State that a call needs for its end: the captures to restore and the leases to release.
#[derive(Default)]
pub(in crate::tools) struct CallEndState {
    /// Captures of the resources, from before the start record.
    pub(in crate::tools) before: CaptureSet,
    /// Leases of the resources; `None` for a nested call, whose enclosing call holds them.
    pub(in crate::tools) leases: Option<Arc<Leases>>,
    /// Encoded arguments, whose memory the end record reuses for the encoded message.
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
