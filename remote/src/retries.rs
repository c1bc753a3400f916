//! Bounds requests to a store in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{self, Instant};

use crate::error::{Error, FailureDetails, Reason, RemoteFailure};

/// Bounds how long a request is tried. Each attempt waits twice as long as the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How long a request is tried again that the store did not answer, or did not let through for the moment; what an attempt takes that
    /// has begun by then comes on top.
    pub within: Duration,
    /// Number of attempts at least, the first included, and of those that the store refuses at most.
    pub attempts: u32,
    /// How long one attempt may take, and for what a bucket holds a second more for each MiB that it moves.
    pub request_timeout: Duration,
    /// How long to wait before the second attempt.
    pub first_wait: Duration,
    /// How long to wait before any attempt at most.
    pub longest_wait: Duration,
}

impl Default for Retries {
    /// Returns 60 s, and at least 6 attempts of up to 10 s, with 50 ms to 2 s between them.
    fn default() -> Retries {
        Retries {
            within: Duration::from_secs(60),
            attempts: 6,
            request_timeout: Duration::from_secs(10),
            first_wait: Duration::from_millis(50),
            longest_wait: Duration::from_secs(2),
        }
    }
}

impl Retries {
    /// Returns how long an attempt may take that moves so many bytes.
    #[cfg(feature = "object-store")]
    pub(crate) fn timeout_of(self, bytes: u64) -> Duration {
        self.request_timeout.saturating_add(Duration::from_secs(bytes >> 20))
    }

    /// Begins to count the attempts of one request to a place, as errors are to call it.
    pub(crate) fn begin(self, place: Option<&Arc<str>>) -> Attempts {
        let last = RemoteFailure::Unavailable.into();
        Attempts { retries: self, place: place.cloned(), began: Instant::now(), made: 0, last }
    }
}

/// Counts the attempts of one request.
#[derive(Debug)]
pub(crate) struct Attempts {
    retries: Retries,
    place: Option<Arc<str>>,
    began: Instant,
    made: u32,
    /// What the last one came to.
    last: Reason,
}

impl Attempts {
    /// Waits for the next attempt, the first of which begins at once. Returns `false` if there is none left.
    pub(crate) async fn wait_for_next(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        if let Some(doublings) = self.made.checked_sub(1) {
            let Retries { first_wait, longest_wait, .. } = self.retries;
            time::sleep(first_wait.saturating_mul(1 << doublings.min(20)).min(longest_wait)).await;
        }
        self.made += 1;
        true
    }

    /// Notes what the attempt came to. There is no other one where that stays so until somebody changes it.
    pub(crate) fn note_failure(&mut self, reason: impl Into<Reason>) {
        self.last = reason.into();
        if self.last.failure == RemoteFailure::NotAFile {
            self.made = u32::MAX;
        }
    }

    /// Begins anew, for another request.
    pub(crate) fn begin_anew(&mut self) {
        (self.began, self.made) = (Instant::now(), 0);
    }

    /// Returns whether none is left.
    pub(crate) fn is_over(&self) -> bool {
        let goes_on = self.last.failure.may_pass() && self.began.elapsed() < self.retries.within;
        self.made >= self.retries.attempts.max(1) && !goes_on
    }

    /// Returns what the last attempt came to.
    pub(crate) fn last(self) -> Reason {
        let Reason { failure, details } = self.last;
        Reason { failure, details: FailureDetails { place: self.place, ..details } }
    }

    /// Reports that the request failed for good.
    pub(crate) fn error(self, what: &'static str) -> Error {
        self.last().store(what)
    }

    /// Reports that the request failed for good, for this reason.
    pub(crate) fn end(mut self, what: &'static str, reason: impl Into<Reason>) -> Error {
        self.last = reason.into();
        self.error(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries a request that always fails so, and returns how often and how long.
    fn tried(failure: RemoteFailure) -> (u32, Duration) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let began = Instant::now();
            let mut attempts = Retries::default().begin(None);
            let mut made = 0;
            while attempts.wait_for_next().await {
                made += 1;
                attempts.note_failure(failure);
            }
            (made, began.elapsed())
        })
    }

    /// A server that refused connections for two seconds used up all attempts, while one that was silent for eight did not.
    #[test]
    fn what_may_pass_is_tried_for_a_minute_however_fast_it_fails() {
        for failure in [
            RemoteFailure::Unavailable,
            RemoteFailure::Conflict,
            RemoteFailure::TimedOut,
            RemoteFailure::Refused,
            RemoteFailure::Unresolved,
            RemoteFailure::Busy,
        ] {
            let (made, took) = tried(failure);
            assert!((58..=62).contains(&took.as_secs()) && made > 30, "{failure}: {made} in {took:?}");
        }
    }

    #[test]
    fn what_a_store_refuses_is_not_tried_for_long() {
        for failure in [
            RemoteFailure::Denied,
            RemoteFailure::Missing,
            RemoteFailure::NoCredentials,
            RemoteFailure::Untrusted,
        ] {
            let (made, took) = tried(failure);
            assert!(made == 6 && took < Duration::from_secs(4), "{failure}: {made} in {took:?}");
        }
        assert_eq!(tried(RemoteFailure::NotAFile).0, 1);
    }
}
