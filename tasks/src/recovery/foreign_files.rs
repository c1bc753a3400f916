//! A placeholder for resources that were not supplied.

use foldlog::tools::resources::{CaptureOptions, RestoreReport, Snapshotable};
use foldlog::{Result, UnrestoredPath};

/// Replaces a resource that was not supplied, so that a call that worked on it can be ended without
/// it. The resource is unchanged, and the recovery or restore reports that.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeftAlone;

impl Snapshotable for LeftAlone {
    const NAME: &'static str = "left_alone";
    type Snapshot = ();

    fn snapshot(&self, _: &CaptureOptions) -> Result<()> {
        Ok(())
    }

    fn restore(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn restore_and_tell(&self, (): &()) -> Result<RestoreReport> {
        Ok(vec![UnrestoredPath::new(".", "it stays as it is, since nobody gave it")].into())
    }

    /// Accepts any capture of the resource without reading it.
    fn recall(_: &[u8]) -> Result<()> {
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }
}
