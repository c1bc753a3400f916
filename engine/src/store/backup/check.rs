//! Checks copied segments, one while the next is copied. Also copies the objects that the checked
//! records name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use foldlog_codec::body::ObjectId;
use parking_lot::Mutex;

use super::{BackupRun, CopyTotals};
use crate::error::{Error, Result};
use crate::log::chain::Segment;
use crate::log::copy::{Spot, check, copy_bytes, record_of};
use crate::log::layout;
use crate::log::seal_check::SealVerifier;
use crate::storage::EntryKind;

/// A part of a copied segment that is to be checked.
pub(super) struct SegmentPart {
    /// The session's own segment.
    source: Segment,
    /// Current path of the copied segment.
    copy: PathBuf,
    /// Place of the first frame to check.
    from: Spot,
}

impl SegmentPart {
    /// Returns the whole of a segment that was copied to `copy`.
    pub(super) fn whole(source: &Segment, copy: PathBuf) -> SegmentPart {
        SegmentPart::from(source, copy, Spot::head_of(source))
    }

    /// Returns the part from a place on of a segment that was copied to `copy`.
    pub(super) fn from(source: &Segment, copy: PathBuf, from: Spot) -> SegmentPart {
        SegmentPart { source: source.clone(), copy, from }
    }
}

#[derive(Default)]
pub(super) struct SegmentFindings {
    verified: u64,
    objects: BTreeSet<ObjectId>,
}

impl SegmentFindings {
    /// Returns whether there were no records.
    pub(super) fn is_empty(&self) -> bool {
        self.verified == 0
    }
}

impl BackupRun<'_> {
    /// Runs `copy`, which passes on parts of the copy in the order of the log, and checks them at
    /// the same time.
    ///
    /// # Errors
    ///
    /// The errors of `copy`; [`Error::Corrupt`] or [`Error::Inconsistent`] for the first place that
    /// fails the check. It names the session's own file if the session is damaged there, otherwise
    /// the file's path in the copy.
    pub(super) fn check_meanwhile(
        &self,
        copy: impl FnOnce(&mut dyn FnMut(SegmentPart)) -> Result<()>,
    ) -> Result<SegmentFindings> {
        let (given, taken) = mpsc::channel();
        let taken = Mutex::new(taken);
        let work = || {
            let mut checked = Vec::new();
            loop {
                let next: Result<(usize, SegmentPart), _> = taken.lock().recv();
                let Ok((place, part)) = next else { return checked };
                let found = self.check_part(&part);
                checked.push((place, part, found));
            }
        };
        let mut all = thread::scope(|scope| {
            let helper = thread::Builder::new().spawn_scoped(scope, work);
            let mut place = 0;
            let copied = copy(&mut |part| {
                // Cannot fail: the receiver lives as long as anything is sent.
                let _ = given.send((place, part));
                place += 1;
            });
            drop(given);
            // Shares the rest with the helper, or does all of it if no thread could be started.
            let mut all = work();
            if let Ok(helper) = helper {
                all.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            copied.map(|()| all)
        })?;
        all.sort_by_key(|(place, ..)| *place);
        let (mut checked, mut before) = (SegmentFindings::default(), None::<Spot>);
        for (_, part, found) in all {
            let (found, end) = found?;
            if let Some(before) = before {
                before.followed_by(&part.source).map_err(|flaw| {
                    self.told_of(&part, part.source.corrupt(0, before.next_sequence, flaw))
                })?;
            }
            before = Some(end);
            checked.verified += found.verified;
            checked.objects.extend(found.objects);
        }
        Ok(checked)
    }

    fn check_part(&self, part: &SegmentPart) -> Result<(SegmentFindings, Spot)> {
        let copy = part.source.at(part.copy.clone());
        match self.check_frames(part, &copy) {
            Err(error) if error.is_damage() => {
                // Usually the session itself is damaged. The error then has to name its own file.
                self.check_frames(part, &part.source)?;
                Err(self.told_of(part, error))
            }
            found => found,
        }
    }

    /// Checks a part in one of the two files of its segment. A seal covers the whole segment.
    fn check_frames(&self, part: &SegmentPart, segment: &Segment) -> Result<(SegmentFindings, Spot)> {
        let mut checked = SegmentFindings::default();
        let mut sealed = SealVerifier::from_segment(self.storage().as_ref(), &part.source)?;
        let from = if sealed.is_some() { Spot::head_of(&part.source) } else { part.from };
        let end = check(self.storage().as_ref(), segment, from, &mut |frame| {
            let header = frame.header;
            sealed.iter_mut().for_each(|sealed| sealed.add(frame));
            if header.sequence < part.from.next_sequence {
                return Ok(());
            }
            foldlog_codec::body::check(header.kind, frame.body).map_err(Error::unread(header.sequence))?;
            if let Some(record) = record_of(frame) {
                checked.verified += 1;
                // Decoding the body again is slower than checking whether it may contain a
                // reference.
                if may_refer(frame.body) {
                    checked.objects.extend(record.objects());
                }
            }
            Ok(())
        })?;
        if let Some(sealed) = sealed {
            sealed.check(segment, end)?;
        }
        Ok((checked, end))
    }

    /// Makes an error of a copied segment name the path that the segment has, or will have, in the
    /// copy.
    fn told_of(&self, part: &SegmentPart, error: Error) -> Error {
        match error {
            Error::Corrupt(mut corruption) => {
                corruption.segment = layout::segment_file(self.to, part.source.header.ordinal);
                Error::Corrupt(corruption)
            }
            error => error,
        }
    }

    /// Copies the objects that the checked records name into `dir`.
    pub(super) fn copy_objects(
        &self,
        checked: SegmentFindings,
        dir: &Path,
        copied: &mut CopyTotals,
    ) -> Result<()> {
        let storage = self.storage();
        copied.report.verified += checked.verified;
        if checked.objects.is_empty() {
            return Ok(());
        }
        let directory = layout::objects_dir(dir);
        storage.make_directory(&directory)?;
        for object in checked.objects {
            self.copy_object(&object, &directory, copied)?;
        }
        storage.sync_directory(&directory)?;
        storage.sync_directory(dir)
    }

    /// Copies an object, unless the copy has it: an object gets its name only once its bytes are
    /// durable.
    fn copy_object(&self, object: &ObjectId, directory: &Path, copied: &mut CopyTotals) -> Result<()> {
        let storage = self.storage();
        let path = directory.join(object.file_name());
        let entry = storage.look_up(&path)?;
        if entry.is_some_and(|entry| entry.kind == EntryKind::File && entry.len == object.len) {
            return Ok(());
        }
        let from = layout::objects_dir(self.from).join(object.file_name());
        let bad = |reason: &str| Error::Object { path: from.clone(), reason: reason.to_owned() };
        if storage.look_up(&from)?.is_none() {
            return Err(bad("it is missing"));
        }
        let building = directory.join(format!("{}.new", object.file_name()));
        // An earlier attempt that was cut short may have left a file with this temporary name.
        let _ = storage.remove_file(&building);
        let mut hasher = blake3::Hasher::new();
        let copy = copy_bytes(storage.as_ref(), &from, &building, object.len, &mut |bytes| {
            hasher.update(bytes);
        });
        let sound =
            copy.and_then(|len| match (len == object.len, *hasher.finalize().as_bytes() == object.hash) {
                (true, true) => storage.rename_to(&building, &path),
                _ => Err(bad("its bytes do not match its name")),
            });
        if sound.is_err() {
            let _ = storage.remove_file(&building);
        }
        sound?;
        copied.report.objects += 1;
        copied.report.bytes += object.len;
        Ok(())
    }
}

/// Returns whether a body may contain a reference to an object: a reference is an extension, which
/// starts with one of three bytes.
fn may_refer(body: &[u8]) -> bool {
    body.chunks(64).any(|piece| piece.iter().fold(false, |any, byte| any | matches!(byte, 0xc7..=0xc9)))
}
