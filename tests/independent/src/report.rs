//! What a harness counted, skipped and found broken.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

/// Why a harness could not go on, which says nothing of foldlog.
pub(crate) type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// A result of the harnesses' own work.
pub(crate) type Result<T> = std::result::Result<T, Trouble>;

/// So many broken promises of one harness are printed; the others are counted.
const PRINTED_MAX: usize = 12;

/// So much of each is printed.
const SHOWN_MAX: usize = 700;

/// What one harness came to.
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

    /// Counts `more` things of a name.
    pub(crate) fn count(&mut self, what: impl Into<String>, more: u64) {
        *self.counts.entry(what.into()).or_default() += more;
    }

    /// How many of a name were counted.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// Keeps the largest number of a name.
    pub(crate) fn largest(&mut self, what: impl Into<String>, found: u64) {
        let kept = self.counts.entry(what.into()).or_default();
        *kept = found.max(*kept);
    }

    /// Notes a line that is printed as it is.
    pub(crate) fn fact(&mut self, fact: impl Into<String>) {
        self.facts.push(fact.into());
    }

    /// Says what was not tried, and why.
    pub(crate) fn skip(&mut self, reason: impl Into<String>) {
        self.skipped.push(reason.into());
    }

    /// Says which promise was broken, and how.
    pub(crate) fn broken(&mut self, how: impl Into<String>) {
        let how = how.into();
        if self.broken.len() < PRINTED_MAX {
            let shown: String = how.escape_debug().take(SHOWN_MAX).collect();
            println!("  BROKEN {}: {shown}", self.name);
        }
        self.broken.push(how);
    }

    /// Says that a promise was broken unless it held.
    pub(crate) fn check(&mut self, holds: bool, how: impl FnOnce() -> String) {
        self.count("checks", 1);
        if !holds {
            self.broken(how());
        }
    }

    /// Says how the first promise was broken, if one was.
    pub(crate) fn first_broken(&self) -> Option<String> {
        self.broken.first().map(|how| how.escape_debug().take(SHOWN_MAX).collect())
    }

    /// Whether every promise that was tried held.
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
