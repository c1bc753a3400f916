use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use foldlog::filesystem::FilesystemSnapshot;

use crate::Result;
use crate::step::{CapturesCollected, Step, StepChanged};
use crate::timeline::Timeline;

impl Timeline {
    /// Returns the captures at the beginnings and ends of steps that are kept, the earliest first.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](crate::Error::Engine) if the log cannot be read.
    pub fn captures(&self) -> Result<Vec<FilesystemSnapshot>> {
        Ok(self.moments()?.into_iter().filter_map(|moment| moment.capture).collect())
    }

    /// Removes captures, the earliest first, until they take at most `bytes_max` bytes on the disk.
    /// The steps whose captures are removed stay in the list, and cannot be undone any more. The
    /// latest capture is always kept. Returns whether any was removed.
    ///
    /// # Errors
    ///
    /// - [`Error::Engine`](crate::Error::Engine) if the log cannot be written.
    /// - [`Error::Filesystem`](crate::Error::Filesystem) if a capture is damaged, or an object cannot be
    ///   removed.
    pub fn collect(&mut self, bytes_max: u64) -> Result<bool> {
        let mut is_any = false;
        while bytes_on_disk(&self.place.captures()) > bytes_max {
            let moments = self.moments()?;
            let count = moments.len().saturating_sub(1).div_ceil(4);
            let (gone, kept) = moments.split_at(count);
            if gone.is_empty() {
                break;
            }
            let gone_steps: BTreeSet<u64> = gone.iter().map(|moment| moment.step).collect();
            for step in self.steps()?.into_iter().filter(|step| gone_steps.contains(&step.number)) {
                if step.not_captured.is_none() {
                    let reason = "its captures were removed to free space".to_owned();
                    let step = Step { not_captured: Some(reason), ..step };
                    self.session.dispatch(StepChanged { step, moment: None })?;
                }
            }
            let moments = self.collected()?.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            self.session.dispatch(CapturesCollected { moments })?;
            let keep: Vec<FilesystemSnapshot> =
                kept.iter().filter_map(|moment| moment.capture.clone()).collect();
            self.files()?.collect(&keep)?;
            is_any = true;
        }
        Ok(is_any)
    }
}

/// Returns the bytes that the files in a directory take on the disk.
fn bytes_on_disk(directory: &Path) -> u64 {
    let (mut bytes, mut left) = (0_u64, vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => left.push(entry.path()),
                Ok(found) => bytes = bytes.saturating_add(found.blocks().saturating_mul(512)),
                Err(_) => {}
            }
        }
    }
    bytes
}
