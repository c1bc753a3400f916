//! Bounds requests to a store in time and number.

use std::time::Duration;

use tokio::time;

use crate::error::{Error, Failure};

/// Bounds how often and how long a request is tried. Each attempt waits twice as long as the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Number of attempts, the first included.
    pub attempts: u32,
    /// How long one attempt may take, and for what a bucket holds a second more for each MiB that it moves.
    pub request_timeout: Duration,
    /// How long to wait before the second attempt.
    pub first_wait: Duration,
    /// How long to wait before any attempt at most.
    pub longest_wait: Duration,
}

impl Default for Retries {
    /// Returns 6 attempts of up to 10 s, with 50 ms to 2 s between them.
    fn default() -> Retries {
        Retries {
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

    /// Begins to count the attempts of one request.
    pub(crate) fn begin(self) -> Attempts {
        Attempts { retries: self, made: 0, last: Failure::Unavailable }
    }
}

/// Counts the attempts of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts {
    retries: Retries,
    made: u32,
    /// What the last one came to.
    last: Failure,
}

impl Attempts {
    /// Waits for the next attempt, the first of which begins at once. Returns `false` if there is none left.
    pub(crate) async fn another(&mut self) -> bool {
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
    pub(crate) fn failed(&mut self, failure: Failure) {
        self.last = failure;
        if failure == Failure::NotAFile {
            self.made = u32::MAX;
        }
    }

    /// Begins anew, for another request.
    pub(crate) fn begin_anew(&mut self) {
        self.made = 0;
    }

    /// Returns whether none is left.
    pub(crate) fn is_over(&self) -> bool {
        self.made >= self.retries.attempts.max(1)
    }

    /// Returns what the last attempt came to.
    pub(crate) fn last(&self) -> Failure {
        self.last
    }

    /// Reports that the request failed for good.
    pub(crate) fn error(&self, what: &'static str) -> Error {
        Error::Store { what, failure: self.last }
    }
}
