//! Signals that request the process to end, for a verb that would otherwise run forever.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Handles the signals that request the process to end: SIGINT, SIGTERM, and SIGHUP, which a closed
/// terminal sends.
#[derive(Debug)]
pub(crate) struct Interrupts {
    asked: Arc<AtomicBool>,
    /// Socket that becomes readable when a signal arrives, which ends a wait.
    wake: UnixStream,
}

impl Interrupts {
    /// Handles the signals from now on. The first signal requests the process to end. A second one
    /// ends it immediately, since it may be stuck writing into a pipe without a reader. SIGHUP is
    /// always only a request, since a closed terminal sends it twice. A process that was started
    /// with SIGHUP ignored, as by `nohup`, continues.
    pub(crate) fn take_over() -> io::Result<Interrupts> {
        let asked = Arc::new(AtomicBool::new(false));
        let (wake, waker) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            match signal {
                SIGHUP if ignores(SIGHUP) => continue,
                SIGHUP => {}
                _ => drop(flag::register_conditional_default(signal, Arc::clone(&asked))?),
            }
            flag::register(signal, Arc::clone(&asked))?;
            low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Interrupts { asked, wake })
    }

    /// Waits for `wait`, or until the process should end or its output has no reader. Returns
    /// whether to continue.
    pub(crate) fn pause(&self, wait: Duration) -> io::Result<bool> {
        let stdout = io::stdout();
        // A pipe without a reader always reports an error; no other event is of interest.
        let mut fds = [
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(stdout.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut fds, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [_, stdout] = fds;
        let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
        let unread = stdout.revents().is_some_and(|events| events.intersects(gone));
        Ok(!unread && !self.asked.load(Ordering::SeqCst))
    }
}

/// Returns whether this process ignores a signal. Returns false if the system does not report it.
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or_default() & 1 == 1)
}
