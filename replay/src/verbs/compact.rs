//! `foldlog compact`: drops the bodies of STATE that nothing needs any more.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use foldlog::{CompactOptions, CompactReport, KeptSnapshots, SequenceNumber, Store};

use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::reading::{counted, in_store};

/// Seconds of a day.
pub(super) const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Names the snapshots whose positions are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Kept {
    /// Those with a tag.
    #[default]
    Tagged,
    /// All.
    All,
    /// None.
    None,
}

impl From<Kept> for KeptSnapshots {
    fn from(kept: Kept) -> KeptSnapshots {
        match kept {
            Kept::Tagged => KeptSnapshots::Tagged,
            Kept::All => KeptSnapshots::All,
            Kept::None => KeptSnapshots::None,
        }
    }
}

/// Says what is to be kept.
#[derive(Debug)]
pub struct Asked {
    /// Snapshots whose positions are kept.
    pub keep: Kept,
    /// Further positions.
    pub positions: Vec<u64>,
    /// Age in days up to which bodies are kept.
    pub days: Option<u64>,
    /// Whether nothing is changed.
    pub dry_run: bool,
}

/// Compacts a session of a store, and prints what was dropped.
///
/// # Errors
///
/// [`Failure::Usage`](crate::failure::Failure::Usage) if `session` is in no store;
/// [`Failure::Engine`](crate::failure::Failure::Engine) if the session is open for writing, was interrupted or is damaged, or the
/// disk has no room.
pub fn run(session: &Path, asked: &Asked, output: &mut Output<'_>) -> Result<u8> {
    let (root, id) = in_store(session)?;
    let positions: BTreeSet<SequenceNumber> =
        asked.positions.iter().map(|position| (*position).into()).collect();
    let younger_than = asked.days.map(|days| Duration::from_secs(days.saturating_mul(DAY_SECONDS)));
    let options =
        CompactOptions { snapshots: asked.keep.into(), positions, younger_than, dry_run: asked.dry_run };
    let report = Store::open(root)?.compact(id, &options)?;
    if output.json() {
        output.value(&report)?;
        return Ok(HOLDS);
    }
    let CompactReport { through, kept, dropped, segments, bytes, .. } = report;
    let Some(through) = through else {
        output.line(format_args!("session {id}: nothing to drop"))?;
        return Ok(HOLDS);
    };
    let (verb, written) = match asked.dry_run {
        true => ("would drop", String::new()),
        false => ("dropped", format!("; {} written anew", counted(segments, "segment"))),
    };
    output.line(format_args!(
        "session {id}: {verb} the bodies of {} up to position {through}, {bytes} bytes{written}",
        counted(dropped, "record")
    ))?;
    let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
    output.line(format_args!("  known up to there: {}", kept.join(", ")))?;
    Ok(HOLDS)
}
