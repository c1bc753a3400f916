//! The present time.

use chrono::{DateTime, Utc};
use foldlog::{Clock, SystemClock};

/// Returns the present time.
pub fn now() -> DateTime<Utc> {
    DateTime::from_timestamp_micros(SystemClock.now_us()).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
