//! The moment at which an evaluation is given up.

use std::time::{Duration, Instant};

use foldlog::tools::ExecuteOptions;

/// Names the moment at which an evaluation is given up, on the monotonic clock. It belongs to one call: no log holds
/// it, and a resumed evaluation gets one of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// `None` if the moment lies beyond what the clock can name.
    at: Option<Instant>,
}

impl Deadline {
    /// Makes a deadline that passes after `duration` from now. One that the clock cannot name never passes.
    pub fn after(duration: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(duration) }
    }

    /// Makes a deadline that passes at a moment.
    pub fn at(moment: Instant) -> Deadline {
        Deadline { at: Some(moment) }
    }

    /// Makes a deadline that never passes.
    pub fn never() -> Deadline {
        Deadline { at: None }
    }

    /// Returns the moment at which the deadline passes; `None` if it never does.
    pub fn instant(&self) -> Option<Instant> {
        self.at
    }

    /// Returns the time that is left: zero if the deadline has passed, [`Duration::MAX`] if it never does.
    pub fn remaining(&self) -> Duration {
        self.remaining_at(Instant::now())
    }

    /// Returns the time that is left at a moment: zero if the deadline has passed by then, [`Duration::MAX`] if it
    /// never does.
    pub fn remaining_at(&self, moment: Instant) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(moment))
    }

    /// Returns whether the deadline has passed.
    pub fn is_past(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns options with which tools have as much time as is left.
    pub fn for_tools(&self) -> ExecuteOptions {
        ExecuteOptions { deadline: self.at.map(|_| self.remaining()), ..ExecuteOptions::default() }
    }

    /// Returns the deadline that passes first.
    #[must_use]
    pub fn earlier(self, other: Deadline) -> Deadline {
        match (self.at, other.at) {
            (Some(this), Some(that)) => Deadline::at(this.min(that)),
            (at, None) | (None, at) => Deadline { at },
        }
    }
}
