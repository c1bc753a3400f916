//! Deadlines of evaluations.

use std::time::{Duration, Instant};

use foldlog::tools::ExecuteOptions;

/// Describes the moment at which an evaluation gives up, on the monotonic clock. It belongs to one
/// call: it is not recorded, and a resumed evaluation gets its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// `None` if the deadline never passes or the clock cannot represent it.
    at: Option<Instant>,
}

impl Deadline {
    /// Creates a deadline `duration` from now. If the clock cannot represent it, it never passes.
    pub fn after(duration: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(duration) }
    }

    /// Creates a deadline that passes at a moment.
    pub fn at(moment: Instant) -> Deadline {
        Deadline { at: Some(moment) }
    }

    /// Creates a deadline that never passes.
    pub fn never() -> Deadline {
        Deadline { at: None }
    }

    /// Returns the moment of the deadline; `None` if it never passes.
    pub fn instant(&self) -> Option<Instant> {
        self.at
    }

    /// Returns the remaining time: zero if the deadline has passed, [`Duration::MAX`] if it never
    /// does.
    pub fn remaining(&self) -> Duration {
        self.remaining_at(Instant::now())
    }

    /// Returns the time that remains at a moment: zero if the deadline has passed by then,
    /// [`Duration::MAX`] if it never does.
    pub fn remaining_at(&self, moment: Instant) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(moment))
    }

    /// Returns whether the deadline has passed.
    pub fn is_past(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns options that limit tools to the remaining time.
    pub fn for_tools(&self) -> ExecuteOptions {
        ExecuteOptions { deadline: self.at.map(|_| self.remaining()), ..ExecuteOptions::default() }
    }

    /// Returns the earlier of two deadlines.
    #[must_use]
    pub fn earlier(self, other: Deadline) -> Deadline {
        match (self.at, other.at) {
            (Some(this), Some(that)) => Deadline::at(this.min(that)),
            (at, None) | (None, at) => Deadline { at },
        }
    }
}
