//! Decides whether and when a failed request is sent again, and how fast requests may follow each other.
//!
//! Nothing here waits or reads a clock: the caller does, so that a test needs no time.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{ProviderError, ProviderErrorKind};

/// Says how often and how soon a failed request is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Number of times that a request is sent at most, the first time included.
    pub attempts: u32,
    /// Delay before the second attempt. It doubles with each further one.
    pub base: Duration,
    /// Longest delay. A provider that asks for a longer one is not asked again.
    pub max: Duration,
    /// Whether a delay that the provider asks for replaces a shorter one of the policy, and holds other requests to the
    /// same provider back too.
    pub honour_retry_after: bool,
}

impl Default for RetryPolicy {
    /// Returns a policy of 4 attempts, 1 second apart at first and 60 seconds at most, that honours `retry-after`.
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
    /// Returns a policy that sends no request twice.
    pub fn never() -> RetryPolicy {
        RetryPolicy { attempts: 1, ..RetryPolicy::default() }
    }

    /// Returns how long to wait before a request is sent again; `None` if it is not.
    ///
    /// `attempt` is the number of the attempt that failed, counted from 1. Requests that were throttled, found the
    /// provider overloaded, timed out or were cut are sent again. A quota that is used up, a refusal, a request that the
    /// provider does not accept, a passed deadline and a cancellation are final.
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

/// Limits how fast requests follow each other, for each provider by the name that it
/// [is limited as](super::Provider::limited_as): its address and its key tell the providers of this crate apart.
pub struct RateLimiter {
    lanes: Mutex<HashMap<String, Lane>>,
}

/// Holds what is known of one provider.
#[derive(Default)]
struct Lane {
    /// Least time between two requests.
    interval: Duration,
    /// Moment from which the next request may be sent.
    next: Option<Instant>,
    /// Moment until which the provider wants to be left alone.
    blocked: Option<Instant>,
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("providers", &self.lanes.lock().len()).finish()
    }
}

impl Default for RateLimiter {
    fn default() -> RateLimiter {
        RateLimiter::new()
    }
}

impl RateLimiter {
    /// Makes a limiter that lets every request pass until a provider is blocked.
    pub fn new() -> RateLimiter {
        RateLimiter { lanes: Mutex::new(HashMap::new()) }
    }

    /// Returns the limiter that all loops of this process share.
    pub fn shared() -> &'static RateLimiter {
        static SHARED: OnceLock<RateLimiter> = OnceLock::new();
        SHARED.get_or_init(RateLimiter::new)
    }

    /// Sets the least time between two requests to a provider. Zero lifts the limit.
    pub fn set_interval(&self, provider: &str, interval: Duration) {
        self.lane(provider, |lane| lane.interval = interval);
    }

    /// Takes a place for one request, and returns how long to wait from `now` before it is sent.
    ///
    /// Places are given in the order of the calls; a place that is not used is not given back.
    pub fn reserve(&self, provider: &str, now: Instant) -> Duration {
        self.lane(provider, |lane| {
            let start = lane.next.into_iter().chain(lane.blocked).fold(now, Instant::max);
            lane.next = start.checked_add(lane.interval).or(lane.next);
            start.saturating_duration_since(now)
        })
    }

    /// Notes that a provider wants no request for a time from `now`, as its `retry-after` says. A time of more than a
    /// minute counts as a minute: the provider says again what it wants, and nobody waits for a wrong clock.
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
