//! The objects that a restore needs, each read and checked before anything is changed.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::manifest::display_path;
use super::objects::{ObjectId, ObjectKind, Objects, len};
use super::parallel::in_parallel;
use super::plan::DirectoryPlan;
use crate::error::{Error, IoContext, Result};

/// Checked contents are buffered until they are written, up to this many bytes; further ones are
/// read twice.
const HELD_BYTES_MAX: u64 = 32 << 20;

pub(super) struct CheckedObjects<'a> {
    pub(super) objects: &'a Objects,
    pub(super) held: HashMap<ObjectId, Vec<u8>>,
}

impl<'a> CheckedObjects<'a> {
    /// Reads every object that a plan needs, before anything is changed. The error for a damaged
    /// object names a path that needs it.
    pub(super) fn new(objects: &'a Objects, plan: &DirectoryPlan) -> Result<CheckedObjects<'a>> {
        let mut blobs = Vec::new();
        plan.blobs(&mut blobs);
        // Several objects of one pack have the same path.
        let failed = Mutex::new(HashMap::new());
        let checked = CheckedObjects::check_each(objects, blobs, &|blob, error| {
            failed.lock().insert(error.to_string(), blob);
        });
        checked.map_err(|error| match error {
            Error::Object { path, reason } => {
                let text = Error::Object { path: path.clone(), reason: reason.clone() }.to_string();
                let failed = failed.lock().get(&text).copied();
                let file = failed.and_then(|failed| plan.path_of(&|blob| blob == failed));
                let without =
                    file.map(|file| format!("; without it {} cannot be restored", display_path(&file)));
                Error::Object { path, reason: reason + &without.unwrap_or_default() }
            }
            error => error,
        })
    }

    pub(super) fn check_blobs(objects: &'a Objects, blobs: Vec<ObjectId>) -> Result<CheckedObjects<'a>> {
        CheckedObjects::check_each(objects, blobs, &|_, _| {})
    }

    /// Checks objects, and passes those that are damaged to `failed`.
    fn check_each(
        objects: &'a Objects,
        mut blobs: Vec<ObjectId>,
        failed: &(dyn Fn(ObjectId, &Error) + Sync),
    ) -> Result<CheckedObjects<'a>> {
        blobs.sort();
        blobs.dedup();
        let held_bytes = AtomicU64::new(0);
        let checked = in_parallel(&blobs, &|blob| {
            let room = HELD_BYTES_MAX.saturating_sub(held_bytes.load(Ordering::Relaxed));
            let bytes =
                objects.check(*blob, ObjectKind::Blob, room).inspect_err(|error| failed(*blob, error))?;
            objects.learn_sound(*blob);
            held_bytes.fetch_add(bytes.as_deref().map_or(0, len), Ordering::Relaxed);
            Ok(bytes)
        })?;
        let held = blobs.into_iter().zip(checked).filter_map(|(blob, bytes)| Some((blob, bytes?))).collect();
        Ok(CheckedObjects { objects, held })
    }

    pub(super) fn copy(&self, blob: ObjectId, into: &mut dyn Write) -> Result<()> {
        match self.held.get(&blob) {
            Some(bytes) => into.write_all(bytes).during("write", "the workspace"),
            None => self.objects.copy(blob, ObjectKind::Blob, into).map(drop),
        }
    }
}
