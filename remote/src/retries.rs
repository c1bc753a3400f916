//! Bounds the time of requests to a store.

use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::SequenceNumber;
use tokio::time::{self, Instant};

use crate::error::{Error, FailureDetails, Reason, RemoteFailure};

/// Bounds the retries of a request. The wait doubles after each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Time during which a request is retried that got no answer, or was temporarily refused. An
    /// attempt that has already started may exceed it.
    pub within: Duration,
    /// Minimum number of attempts, including the first; for attempts that the store refuses, the
    /// maximum.
    pub attempts: u32,
    /// Time limit of one attempt. Transfers from and to a bucket get a second more for each MiB.
    pub request_timeout: Duration,
    /// Wait before the second attempt.
    pub first_wait: Duration,
    /// Maximum wait before any attempt.
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
    /// Returns the time limit of an attempt that transfers `bytes` bytes.
    #[cfg(feature = "object-store")]
    pub(crate) fn timeout_of(self, bytes: u64) -> Duration {
        self.request_timeout.saturating_add(Duration::from_secs(bytes >> 20))
    }

    /// Starts to count the attempts of one request to a place, which errors name.
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
    /// Failure of the last attempt.
    last: Reason,
}

impl Attempts {
    /// Waits for the next attempt; the first one starts at once. Returns `false` if there is none
    /// left.
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

    /// Records the failure of an attempt. After [`RemoteFailure::NotAFile`] no attempt is left: a
    /// retry cannot succeed before a person removes the entry in place of the object.
    pub(crate) fn note_failure(&mut self, reason: impl Into<Reason>) {
        self.last = reason.into();
        if self.last.failure == RemoteFailure::NotAFile {
            self.made = u32::MAX;
        }
    }

    /// Resets the counts, for a new request.
    pub(crate) fn begin_anew(&mut self) {
        (self.began, self.made) = (Instant::now(), 0);
    }

    /// Returns whether no attempt is left.
    pub(crate) fn is_over(&self) -> bool {
        let goes_on = self.last.failure.may_pass() && self.began.elapsed() < self.retries.within;
        self.made >= self.retries.attempts.max(1) && !goes_on
    }

    /// Returns the failure of the last attempt.
    pub(crate) fn last(&self) -> Reason {
        let Reason { failure, details } = self.last.clone();
        Reason { failure, details: FailureDetails { place: self.place.clone(), ..details } }
    }

    /// Returns the error for records that cannot be appended while those before `next` are in
    /// doubt.
    pub(crate) fn in_doubt(mut self, next: SequenceNumber) -> Error {
        self.last = RemoteFailure::TimedOut.into();
        self.last().unknown(next)
    }

    /// Returns the error of a request that failed finally.
    pub(crate) fn error(&self, what: &'static str) -> Error {
        self.last().store(what)
    }

    /// Returns the error of a request that failed finally for this reason.
    pub(crate) fn end(&mut self, what: &'static str, reason: impl Into<Reason>) -> Error {
        self.last = reason.into();
        self.error(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries a request that always fails in this way, and returns the number of attempts and the
    /// time.
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

    /// A server that refused connections for two seconds used up all attempts, while one that was
    /// silent for eight did not.
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
