//! Stands for resources that nobody has given.

use foldlog::tools::resources::{CaptureOptions, RestoreReport, Snapshotable};
use foldlog::{Result, UnrestoredPath};

/// Stands for a resource that nobody has given, so that a call which worked on it can be ended without it: the resource stays
/// as it is, and the recovery or restore tells so.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeftAlone;

impl Snapshotable for LeftAlone {
    const NAME: &'static str = "left_alone";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions<'_>) -> Result<()> {
        Ok(())
    }

    fn restore(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn restore_and_tell(&self, (): &()) -> Result<RestoreReport> {
        Ok(vec![UnrestoredPath::new(".", "it stays as it is, since nobody gave it")].into())
    }

    /// Takes any capture of the resource, which is not looked at.
    fn recall(_: &[u8]) -> Result<()> {
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }
}
