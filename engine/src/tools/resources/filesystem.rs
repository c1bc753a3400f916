//! Registration of the filesystem of a run, and files in memory as a resource.

use std::sync::Arc;

use super::{CaptureOptions, ResourceRegistryBuilder, Snapshotable};
use crate::error::Result;
use foldlog_filesystem::{Filesystem, InMemoryFilesystem, MemorySnapshot};

impl Snapshotable for InMemoryFilesystem {
    const NAME: &'static str = "filesystem";
    type Snapshot = MemorySnapshot;

    fn snapshot(&self, _: &CaptureOptions) -> Result<MemorySnapshot> {
        Ok(InMemoryFilesystem::snapshot(self))
    }

    fn restore(&self, snapshot: &MemorySnapshot) -> Result<()> {
        InMemoryFilesystem::restore(self, snapshot);
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn is_unchanged(&self, since: &MemorySnapshot) -> bool {
        self.is_at(since)
    }

    fn is_same(one: &MemorySnapshot, other: &MemorySnapshot) -> bool {
        one.is_same(other)
    }
}

impl ResourceRegistryBuilder {
    /// Registers a filesystem under its own type and as the run's [`Filesystem`]. The engine
    /// captures it before each call that may make changes, and restores it if the call fails.
    pub fn filesystem<F: Filesystem + Snapshotable>(self, filesystem: Arc<F>) -> Self {
        let shared: Arc<dyn Filesystem> = Arc::clone(&filesystem) as _;
        self.register_captured(F::NAME.into(), Arc::clone(&filesystem), |builder, copy| {
            builder.filesystem::<F>(copy)
        })
        .resource::<F>(filesystem)
        .resource::<dyn Filesystem>(shared)
    }
}
