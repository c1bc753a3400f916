use std::fmt;
use std::panic::Location;
use std::time::Duration;

use foldlog_codec::{OperationId, escape};

/// Describes the cause of a call's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocker {
    /// An operation of this process that has not ended.
    Operation {
        /// Id of the operation; `None` until its start is recorded.
        operation: Option<OperationId>,
        /// Name of its tool.
        tool: String,
        /// Time since it was admitted.
        open_for: Duration,
        /// Location in the host's code that started it.
        begun_at: &'static Location<'static>,
    },
    /// A recovery of the session by a different thread.
    Recovery,
    /// A resource in use by a different session, in any process.
    Resource {
        /// Name of the resource.
        resource: String,
        /// Current holder, if the resource reports it.
        holder: Option<String>,
    },
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocker::Operation { operation, tool, open_for, begun_at } => {
                match operation {
                    Some(operation) => write!(f, "operation {operation}")?,
                    None => f.write_str("a call that has not started")?,
                }
                let (tool, open_for) = (escape::text(tool), seconds(*open_for));
                write!(f, " (`{tool}`), open for {open_for} s, started at {begun_at}")
            }
            Blocker::Recovery => f.write_str("a recovery of the session by another thread"),
            Blocker::Resource { resource, holder } => {
                write!(f, "the resource `{}`", escape::text(resource))?;
                match holder {
                    Some(holder) => write!(f, ", held by {}", escape::text(holder)),
                    None => f.write_str(", held by another session"),
                }
            }
        }
    }
}

/// Formats a time in seconds, to the millisecond.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}
