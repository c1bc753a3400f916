//! A harness's counts, skipped parts and broken promises.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

/// Reason why a harness could not continue, which does not concern foldlog.
pub(crate) type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// Result of a harness's own work.
pub(crate) type Result<T> = std::result::Result<T, Trouble>;

/// Number of broken promises that are printed for one harness. Further ones are counted.
const PRINTED_MAX: usize = 12;

/// Number of characters that are printed of each.
const SHOWN_MAX: usize = 700;

/// Result of one harness.
#[derive(Debug)]
pub(crate) struct Report {
    name: &'static str,
    began: Instant,
    counts: BTreeMap<String, u64>,
    facts: Vec<String>,
    skipped: Vec<String>,
    broken: Vec<String>,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Report {
        let (counts, facts) = (BTreeMap::new(), Vec::new());
        Report { name, began: Instant::now(), counts, facts, skipped: Vec::new(), broken: Vec::new() }
    }

    /// Adds `more` to a named count.
    pub(crate) fn count(&mut self, what: impl Into<String>, more: u64) {
        *self.counts.entry(what.into()).or_default() += more;
    }

    /// Returns a named count.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// Keeps the largest value of a named number.
    pub(crate) fn largest(&mut self, what: impl Into<String>, found: u64) {
        let kept = self.counts.entry(what.into()).or_default();
        *kept = found.max(*kept);
    }

    /// Adds a line that is printed unchanged.
    pub(crate) fn fact(&mut self, fact: impl Into<String>) {
        self.facts.push(fact.into());
    }

    /// Records an untested part, and the reason.
    pub(crate) fn skip(&mut self, reason: impl Into<String>) {
        self.skipped.push(reason.into());
    }

    /// Records a broken promise.
    pub(crate) fn broken(&mut self, how: impl Into<String>) {
        let how = how.into();
        if self.broken.len() < PRINTED_MAX {
            let shown: String = how.escape_debug().take(SHOWN_MAX).collect();
            println!("  BROKEN {}: {shown}", self.name);
        }
        self.broken.push(how);
    }

    /// Records a broken promise unless `holds`.
    pub(crate) fn check(&mut self, holds: bool, how: impl FnOnce() -> String) {
        self.count("checks", 1);
        if !holds {
            self.broken(how());
        }
    }

    /// Returns the description of the first broken promise.
    pub(crate) fn first_broken(&self) -> Option<String> {
        self.broken.first().map(|how| how.escape_debug().take(SHOWN_MAX).collect())
    }

    /// Returns whether every tested promise was kept.
    pub(crate) fn holds(&self) -> bool {
        self.broken.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "holds" } else { "BROKEN" };
        write!(f, "{}: {verdict} in {:.1} s;", self.name, self.began.elapsed().as_secs_f64())?;
        for (what, count) in &self.counts {
            write!(f, " {what} {count},")?;
        }
        write!(f, " broken {}", self.broken.len())?;
        for fact in &self.facts {
            write!(f, "\n  {}", fact.escape_debug())?;
        }
        for reason in &self.skipped {
            write!(f, "\n  skipped: {reason}")?;
        }
        Ok(())
    }
}
