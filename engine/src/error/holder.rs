use std::fmt;

use foldlog_codec::escape;

/// Describes the process that holds a session's lock, from its lock note. Fields that the note
/// lacks are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Holder {
    /// Process id of the holder.
    pub pid: Option<u32>,
    /// Name of the holder's machine.
    pub host: Option<String>,
    /// Time at which the holder opened the session, in ISO 8601.
    pub since: Option<String>,
    /// Whether that process has ended. The lock is then held by a process that it forked and that
    /// runs no other program.
    #[serde(skip)]
    pub ended: bool,
}

pub(crate) fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pid, &self.host, &self.since) {
            (Some(pid), Some(host), Some(since)) => {
                let is_here = *pid == std::process::id() && host_name().as_deref() == Some(host);
                let (host, since) = (escape::text(host), escape::text(since));
                if is_here {
                    return write!(
                        f,
                        "by this process since {since}: `Store::handle` returns another handle of it"
                    );
                }
                let ended = match self.ended {
                    true => ", which has ended: a process that it forked still holds the lock",
                    false => "",
                };
                write!(f, "process {pid} on {host} since {since}{ended}")
            }
            _ => f.write_str("its holder is unknown"),
        }
    }
}
