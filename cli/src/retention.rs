//! Values of the options that limit what `compact` and `gc` remove.

use std::time::Duration;

use clap::ValueEnum;
use foldlog::KeptSnapshots;

/// Returns the time that this many days take.
pub(crate) fn days(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(24 * 60 * 60))
}

/// Names the snapshots whose positions are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum SnapshotRetention {
    /// Snapshots with a tag
    #[default]
    Tagged,
    /// All snapshots
    All,
    /// No snapshot
    None,
}

impl From<SnapshotRetention> for KeptSnapshots {
    fn from(kept: SnapshotRetention) -> KeptSnapshots {
        match kept {
            SnapshotRetention::Tagged => KeptSnapshots::Tagged,
            SnapshotRetention::All => KeptSnapshots::All,
            SnapshotRetention::None => KeptSnapshots::None,
        }
    }
}
