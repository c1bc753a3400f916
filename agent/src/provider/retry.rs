//! Decides whether and when a failed request is retried, and limits the rate of requests.
//!
//! Nothing here waits or reads a clock. The caller does both, so tests take no time.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{ProviderError, ProviderErrorKind};

/// Configures the retries of failed requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Greatest number of times that a request is sent, including the first.
    pub attempts: u32,
    /// Delay before the second attempt. It doubles with each further attempt.
    pub base: Duration,
    /// Longest delay. If a provider requests a longer one, there is no retry.
    pub max: Duration,
    /// Whether a delay requested by the provider replaces a shorter one of the policy, and also
    /// delays other requests to the same provider.
    pub honour_retry_after: bool,
}

impl Default for RetryPolicy {
    /// Returns a policy of 4 attempts, with delays from 1 second to 60 seconds, that honours
    /// `retry-after`.
    fn default() -> RetryPolicy {
        RetryPolicy {
            attempts: 4,
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
            honour_retry_after: true,
        }
    }
}

impl RetryPolicy {
    /// Returns a policy without retries.
    pub fn never() -> RetryPolicy {
        RetryPolicy { attempts: 1, ..RetryPolicy::default() }
    }

    /// Returns the delay before a retry; `None` if there is no retry.
    ///
    /// `attempt` is the number of the failed attempt, counted from 1. Requests that were throttled,
    /// met an overloaded provider, timed out or were cut are retried. An exhausted quota, a
    /// refusal, an invalid request, a passed deadline and a cancellation are final.
    pub fn next_delay(&self, attempt: u32, error: &ProviderError) -> Option<Duration> {
        let asked = match &error.kind {
            ProviderErrorKind::Throttled(details) if details.retry_safe => details.retry_after,
            ProviderErrorKind::Cut => None,
            _ => return None,
        };
        if attempt >= self.attempts {
            return None;
        }
        let doublings = attempt.saturating_sub(1).min(31);
        let own = self.base.saturating_mul(1 << doublings).min(self.max);
        match asked.filter(|_| self.honour_retry_after) {
            Some(asked) if asked > self.max => None,
            Some(asked) => Some(asked.max(own)),
            None => Some(own),
        }
    }
}

/// Limits the rate of requests to each provider, by the name that it [is limited
/// as](super::Provider::limited_as). For the providers of this crate the name depends on address
/// and key.
#[derive(Default)]
pub struct RateLimiter {
    lanes: Mutex<HashMap<String, Lane>>,
}

/// Contains the state of one provider.
#[derive(Default)]
struct Lane {
    /// Least time between two requests.
    interval: Duration,
    /// Moment from which the next request may be sent.
    next: Option<Instant>,
    /// Moment until which the provider accepts no requests.
    blocked: Option<Instant>,
}

impl RateLimiter {
    /// Creates a limiter that lets every request pass until a provider is blocked.
    pub fn new() -> RateLimiter {
        RateLimiter::default()
    }

    /// Returns the limiter shared by all loops of this process.
    pub fn shared() -> &'static RateLimiter {
        static SHARED: OnceLock<RateLimiter> = OnceLock::new();
        SHARED.get_or_init(RateLimiter::new)
    }

    /// Sets the least time between two requests to a provider. Zero removes the limit.
    pub fn set_interval(&self, provider: &str, interval: Duration) {
        self.lane(provider, |lane| lane.interval = interval);
    }

    /// Reserves a slot for one request, and returns the time to wait from `now` before it is sent.
    ///
    /// Slots are assigned in the order of the calls. An unused slot is not returned.
    pub fn reserve(&self, provider: &str, now: Instant) -> Duration {
        self.lane(provider, |lane| {
            let start = lane.next.into_iter().chain(lane.blocked).fold(now, Instant::max);
            lane.next = start.checked_add(lane.interval).or(lane.next);
            start.saturating_duration_since(now)
        })
    }

    /// Notes that a provider accepts no requests for a time from `now`, according to its
    /// `retry-after`. A time of more than a minute counts as a minute. The provider repeats its
    /// wish if necessary, and a wrong clock cannot stop requests for long.
    pub fn block(&self, provider: &str, now: Instant, time: Duration) {
        const LONGEST: Duration = Duration::from_secs(60);
        self.lane(provider, |lane| {
            lane.blocked = now.checked_add(time.min(LONGEST)).into_iter().chain(lane.blocked).max();
        });
    }

    fn lane<T>(&self, provider: &str, act: impl FnOnce(&mut Lane) -> T) -> T {
        let mut lanes = self.lanes.lock();
        act(lanes.entry(provider.to_owned()).or_default())
    }
}
