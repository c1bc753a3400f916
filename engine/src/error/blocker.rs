use std::fmt;
use std::panic::Location;
use std::time::Duration;

use foldlog_codec::{OperationId, escape};

/// Names what a call waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocker {
    /// An operation of this process that has not ended.
    Operation {
        /// Id of the operation; `None` as long as its begin is not recorded.
        operation: Option<OperationId>,
        /// Name of its tool.
        tool: String,
        /// Time since it was admitted.
        open_for: Duration,
        /// Where the host began it.
        begun_at: &'static Location<'static>,
    },
    /// A recovery of the session by another thread.
    Recovery,
    /// A resource on which another session works, of this process or another.
    Resource {
        /// Name of the resource.
        resource: String,
        /// Who holds it, as far as the resource tells.
        holder: Option<String>,
    },
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocker::Operation { operation, tool, open_for, begun_at } => {
                match operation {
                    Some(operation) => write!(f, "operation {operation}")?,
                    None => f.write_str("a call that has not begun")?,
                }
                let (tool, open_for) = (escape::text(tool), seconds(*open_for));
                write!(f, " (`{tool}`), open for {open_for} s since {begun_at}")
            }
            Blocker::Recovery => f.write_str("a recovery of the session by another thread"),
            Blocker::Resource { resource, holder } => {
                write!(f, "the resource `{}`", escape::text(resource))?;
                match holder {
                    Some(holder) => write!(f, ", which {} holds", escape::text(holder)),
                    None => f.write_str(", which another session holds"),
                }
            }
        }
    }
}

/// Writes a time in seconds, to the millisecond.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}
