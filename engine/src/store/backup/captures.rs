//! Reads the captures that a backup copied. Without the feature `host-filesystem` nobody knows what they consist of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;

use super::{Copied, Copying};
use crate::error::Result;
use crate::log::layout;
use crate::log::objects::Objects;
use crate::log::scan;
use crate::sabotage::{self, Breakage};
use crate::session::captures_named_by;

/// Says what a backup found of the captures that its records name.
#[derive(Default)]
pub(super) struct CapturesRead {
    pub(super) captures: u64,
    pub(super) absent: u64,
    pub(super) damaged: Vec<(PathBuf, String)>,
    pub(super) damaged_more: u64,
}

impl Copying<'_> {
    /// Reads what the copy has of the captures that its new records name: each file that was copied, and whether the others are
    /// there.
    pub(super) fn read_captures(&self, before: SequenceNumber, copied: &Copied) -> Result<CapturesRead> {
        if sabotage::is(Breakage::CapturesCopiedUnread) {
            return Ok(CapturesRead::default());
        }
        let objects = Arc::new(Objects::new(Arc::clone(self.storage()), self.to));
        let mut named: BTreeMap<String, BTreeSet<Vec<u8>>> = BTreeMap::new();
        scan::scan(self.storage().as_ref(), self.to, &mut |at| {
            let header = at.frame.header;
            if header.sequence < before || header.kind.is_envelope() {
                return Ok(());
            }
            let record = foldlog_codec::Record {
                sequence: header.sequence,
                kind: header.kind,
                time_us: header.time_us,
                body: at.frame.body,
            };
            for (name, recorded) in captures_named_by(&record, &objects)? {
                named.entry(name).or_default().extend(recorded);
            }
            Ok(())
        })?;
        Ok(audit(&layout::captures_dir(self.to), &named, &|path| {
            path.strip_prefix(self.to).is_ok_and(|path| copied.beside.contains(path))
        }))
    }
}

#[cfg(feature = "host-filesystem")]
fn audit(
    store: &Path,
    named: &BTreeMap<String, BTreeSet<Vec<u8>>>,
    is_copied: &dyn Fn(&Path) -> bool,
) -> CapturesRead {
    use foldlog_codec::msgpack;
    use foldlog_filesystem::{DamagedObject, FilesystemSnapshot, SnapshotsAudited, audit_snapshots};

    let of_files = |recorded: &Vec<u8>| msgpack::from_slice::<FilesystemSnapshot>(recorded).ok();
    let snapshots: Vec<FilesystemSnapshot> = named.values().flatten().filter_map(of_files).collect();
    let SnapshotsAudited { snapshots, absent, damaged, damaged_more, .. } =
        audit_snapshots(store, &snapshots, is_copied);
    let damaged = damaged.into_iter().map(|DamagedObject { path, reason }| (path, reason)).collect();
    CapturesRead { captures: snapshots, absent, damaged, damaged_more }
}

#[cfg(not(feature = "host-filesystem"))]
fn audit(_: &Path, _: &BTreeMap<String, BTreeSet<Vec<u8>>>, _: &dyn Fn(&Path) -> bool) -> CapturesRead {
    CapturesRead::default()
}
