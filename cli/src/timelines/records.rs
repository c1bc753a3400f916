//! The directory of all timelines, as people see it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::UserDirs;
use crate::failure::Result;

/// Size of a block in which Linux reports the size of files on the disk.
const BLOCK_BYTES: u64 = 512;

/// The directory with the records of all agents.
pub(crate) struct Records {
    pub(crate) directory: PathBuf,
    /// Size on the disk.
    pub(crate) bytes: u64,
}

impl Records {
    /// Returns the directory; `None` if nothing was recorded.
    pub(crate) fn find() -> Result<Option<Records>> {
        let directory = UserDirs::from_variables().timelines()?;
        if !directory.is_dir() {
            return Ok(None);
        }
        let (mut bytes, mut left) = (0_u64, vec![directory.clone()]);
        while let Some(path) = left.pop() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else { continue };
                bytes = bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK_BYTES));
                if metadata.is_dir() {
                    left.push(entry.path());
                }
            }
        }
        Ok(Some(Records { directory, bytes }))
    }
}

/// Returns a size in a decimal unit.
pub(crate) fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} bytes"),
    }
}
