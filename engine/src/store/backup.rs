//! Backups: copies of sessions, taken while they are written, which are sessions of a store of their own.
//!
//! The folder of a backup is a store. To restore it is to open it. The first backup of a session copies its log and the
//! objects that its records name into a folder with a temporary name, checks them, and renames the folder. A later one
//! takes an *older copy* and copies what is new: the last segment that the copy holds, if it has grown, those behind it,
//! and the objects that records in these name. Segments that the copy holds whole are neither read nor written again.
//!
//! # Invariants
//!
//! 1. The session that is copied is only read, and no lock of it is taken.
//! 2. At most one process changes a copy: it holds the copy's writer lock, so nobody writes a copy that is open.
//! 3. No file of a copy is changed under its name, but for the seal that is added behind the end of a segment, which is
//!    no part of the log. A file has a temporary name until its bytes are durable and check.
//! 4. An object, and a file of a capture, has its name before a segment has its name whose records name it; a segment
//!    has its name before its successor. The names of one step are durable before the next step begins.
//! 5. A copy is extended only if each record that it holds is the session's too. Else it is refused, and nothing of it
//!    changes.
//!
//! # What a kill or a power cut leaves
//!
//! | step | left behind | found by whoever opens the store |
//! |---|---|---|
//! | first copy, before the folder is renamed | `sessions/.new-ID`, which the next backup removes | no such session |
//! | first copy, afterwards | the copy | the copy |
//! | segments are copied and checked | files `*.seg.new`, which the next backup removes | the older copy |
//! | objects and other files are copied | some of them more, whole; a file `*.new` | the older copy |
//! | segments get their names | some of the segments, from the first on | the older copy with the records of those segments |
//! | seals are added | some of the seals, from the first on; the next backup adds the others | the copy |

mod beside;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ObjectId;
use foldlog_codec::segment::SegmentHeader;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Store;
use crate::error::{Error, Result};
use crate::log::chain::Segment;
use crate::log::copying::{Extent, check, copy_bytes, extent, first_difference, record_of, same_bytes};
use crate::log::{images, layout};
use crate::session::lock_or_read_only;
use crate::storage::{Access, EntryKind, Storage, whole_path};

/// Holds the options of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupOptions {
    /// Whether the newest image is copied too, so that the copy opens as fast as the session does. Without it, whoever
    /// opens the copy folds its records.
    pub images: bool,
}

/// Reports what a backup copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BackupReport {
    /// Id of the session.
    pub session: Uuid,
    /// Folder of the copy.
    pub dir: PathBuf,
    /// Number of records that the copy holds.
    pub records: u64,
    /// Number of records that the older copy held; 0 if there was none.
    pub records_before: u64,
    /// Number of segments that were copied.
    pub segments: u64,
    /// Number of objects that were copied.
    pub objects: u64,
    /// Number of other files that were copied, such as those of captures that are kept in the session's folder.
    pub files: u64,
    /// Number of bytes that were copied.
    pub bytes: u64,
    /// Number of records that were read again from the copy and checked: frames, bodies, seals, and the objects that
    /// they name. Whether records contradict each other says a [`LogReader`](crate::audit::LogReader) of the copy.
    pub verified: u64,
}

impl Store {
    /// Copies a session into the store at `to`, which is made if there is none, or copies what is new if that store
    /// holds an older copy. The session may be written meanwhile. If it is open for writing in this store, it is synced
    /// first, so that no power cut leaves it behind its copy. What the copy holds is durable and checked when this
    /// returns. To restore it is to open the store at `to`.
    ///
    /// # What is in a backup
    ///
    /// | part of a session | in a backup |
    /// |---|---|
    /// | records: events, slices, calls, conversations, tags, snapshots, the names of captures | up to the last one that was whole when the backup began |
    /// | objects: large payloads, and the files of workspaces in memory | those that the records name |
    /// | segments that a fork shares | copied too, or linked to the copy of the session that wrote them: the copy stands alone |
    /// | other files in the session's folder, such as the captures of a workspace whose store is there (`files`, as `foldlog run` has it) | copied as they are, but for links and for files that are being made |
    /// | child sessions | with [`backup_all`](Store::backup_all), since they are sessions of the store |
    /// | images | with [`BackupOptions::images`]; without, opening makes them anew |
    /// | captures of a workspace whose store is elsewhere, and the workspace itself | not: they are copied like any folder. The records name the captures |
    /// | locks, spare space | not |
    ///
    /// ```
    /// # use foldlog::{BackupOptions, SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().build()?;
    /// # let store = Store::open(folder.path().join("store"))?;
    /// let session = store.create(&types)?;
    /// let copied = store.backup(session.id(), folder.path().join("copy"), BackupOptions::default())?;
    /// assert_eq!(copied.records, 1);
    /// let restored = Store::open(folder.path().join("copy"))?;
    /// restored.open_session(session.id(), &types)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if this store has no such session; else those of [`backup_from`](Store::backup_from).
    pub fn backup(
        &self,
        session: Uuid,
        to: impl AsRef<Path>,
        options: BackupOptions,
    ) -> Result<BackupReport> {
        self.backup_into(session, &self.copies_at(to)?, options)
    }

    /// Copies each session of this store into the store at `to`, as [`backup`](Store::backup) does, and returns what came
    /// of each, in ascending order of their ids. A session that cannot be copied stops no other. Sessions that are
    /// created meanwhile are left out.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if this store's folder cannot be read, or the other store cannot be made.
    pub fn backup_all(
        &self,
        to: impl AsRef<Path>,
        options: BackupOptions,
    ) -> Result<Vec<(Uuid, Result<BackupReport>)>> {
        let copies = self.copies_at(to)?;
        let sessions = self.session_ids()?.into_iter();
        Ok(sessions.map(|session| (session, self.backup_into(session, &copies, options))).collect())
    }

    /// Copies the session in the folder `dir`, which may be in no store, into this store, as [`backup`](Store::backup)
    /// does. `dir` is only read.
    ///
    /// # Errors
    ///
    /// - [`Error::NotACopy`] if this store holds a session of that id which is no older copy: another program went on
    ///   writing it, or the session has lost records since. Nothing is changed.
    /// - [`Error::Locked`] if the copy is open for writing, or another backup of it is being taken; [`Error::ReadOnly`]
    ///   if this store takes no writes; [`Error::Full`] if it has no space.
    /// - [`Error::WithinSession`] if this store is inside `dir`.
    /// - Those of [`LogReader::open`](crate::audit::LogReader::open) if the session is damaged. [`salvage`](Store::salvage) takes what is sound.
    pub fn backup_from(&self, dir: impl AsRef<Path>, options: BackupOptions) -> Result<BackupReport> {
        let dir = dir.as_ref();
        let (root, whole_dir) = (whole_path(&self.inner.root), whole_path(dir));
        if root.starts_with(&whole_dir) {
            let (path, session_dir) = (self.inner.root.clone(), dir.to_owned());
            return Err(Error::WithinSession { path, session_dir });
        }
        let source = extent(self.storage(), dir)?;
        let Some(session) = source.segments.last().map(|last| last.header.session) else {
            return Err(Error::NotASession { path: dir.to_owned(), reason: "it holds no record".to_owned() });
        };
        let (lock, read_only) = lock_or_read_only(&self.inner, session)?;
        let Some(_lock) = lock else {
            return Err(Error::ReadOnly { session, reason: read_only.unwrap_or_default() });
        };
        let to = self.session_dir(session);
        if whole_path(&to) == whole_dir {
            let (path, session_dir) = (self.inner.root.clone(), dir.to_owned());
            return Err(Error::WithinSession { path, session_dir });
        }
        let copying = Copying { store: self, from: dir, to: &to, session, source, options };
        match self.storage().entry(&to).map_err(|error| Error::io("look up", &to, error))? {
            None => copying.first(),
            Some(entry) if entry.kind == EntryKind::Folder => copying.again(),
            Some(entry) => Err(copying.no_copy(format!("it is {}", entry.kind))),
        }
    }

    /// Opens the store of the copies, on the same storage.
    fn copies_at(&self, to: impl AsRef<Path>) -> Result<Store> {
        Store::open_with(to, self.inner.options.clone())
    }

    fn backup_into(&self, session: Uuid, copies: &Store, options: BackupOptions) -> Result<BackupReport> {
        let dir = self.existing(session)?;
        if let Some(writer) = self.handle(session) {
            // A session that cannot be synced needs a backup all the more.
            let _ = writer.sync();
        }
        copies.backup_from(dir, options)
    }
}

/// Holds a backup in progress: from the folder `from` into the folder `to` of `store`.
struct Copying<'a> {
    store: &'a Store,
    from: &'a Path,
    to: &'a Path,
    session: Uuid,
    source: Extent,
    options: BackupOptions,
}

/// Counts what was copied.
#[derive(Default)]
struct Copied {
    segments: u64,
    objects: u64,
    files: u64,
    bytes: u64,
    verified: u64,
}

impl Copying<'_> {
    fn storage(&self) -> &Arc<dyn Storage> {
        self.store.storage()
    }

    fn no_copy(&self, reason: impl Into<String>) -> Error {
        Error::NotACopy { session: self.session, path: self.to.to_owned(), reason: reason.into() }
    }

    fn report(&self, copied: Copied, records_before: SequenceNumber) -> BackupReport {
        let Copied { segments, objects, files, bytes, verified } = copied;
        BackupReport {
            session: self.session,
            dir: self.to.to_owned(),
            records: self.source.next_sequence.get().max(records_before.get()),
            records_before: records_before.get(),
            segments,
            objects,
            files,
            bytes,
            verified,
        }
    }

    /// Copies the whole session into a folder of its own.
    fn first(&self) -> Result<BackupReport> {
        let building = layout::building_session_dir(&self.store.inner.root, self.session);
        let copied = self.lay(&building);
        if copied.is_err() {
            // Nobody was told of the copy, so nothing of it is to stay.
            let _ = self.storage().remove_dir_all(&building);
        }
        copied.map(|copied| self.report(copied, SequenceNumber::MIN))
    }

    fn lay(&self, building: &Path) -> Result<Copied> {
        let storage = self.storage();
        let io = |op, error| Error::io(op, building, error);
        if storage.entry(building).map_err(|error| io("look up", error))?.is_some() {
            storage.remove_dir_all(building).map_err(|error| io("delete", error))?;
        }
        storage.create_dir_all(building).map_err(|error| Error::unmade("create", building, 0, error))?;
        let mut copied = Copied::default();
        let mut segments = Vec::new();
        for (place, segment) in self.source.segments.iter().enumerate() {
            let path = layout::segment_file(building, segment.header.ordinal);
            let has_successor = place + 1 < self.source.segments.len();
            segments.push(match self.link(segment, &path)? {
                true => Segment { path, ..segment.clone() },
                false => self.copy(segment, path, &mut copied, has_successor)?,
            });
        }
        self.verify(0, &segments, building, &mut copied)?;
        self.copy_beside(building, &mut copied)?;
        self.copy_image(building, &mut copied);
        storage.sync_dir(building).map_err(|error| io("sync", error))?;
        storage.rename(building, self.to).map_err(|error| Error::io("rename", self.to, error))?;
        for above in layout::folders_above_session(&self.store.inner.root) {
            storage.sync_dir(&above).map_err(|error| Error::io("sync", &above, error))?;
        }
        Ok(copied)
    }

    /// Copies what an older copy lacks.
    fn again(&self) -> Result<BackupReport> {
        let storage = self.storage();
        let older = extent(storage, self.to).map_err(|error| self.unreadable(error))?;
        let shared = self.shared(&older)?;
        let mut copied = Copied::default();
        self.remove_unfinished()?;
        let added = self.add(shared, &mut copied);
        if added.is_err() {
            // What has its name by now is the session's, and stays.
            let _ = self.remove_unfinished();
        }
        added?;
        self.add_seals()?;
        self.copy_image(self.to, &mut copied);
        Ok(self.report(copied, older.next_sequence))
    }

    /// Makes the error of a folder that should hold an older copy and cannot be read. A disk that fails is another matter.
    fn unreadable(&self, error: Error) -> Error {
        match error {
            Error::Io { .. } | Error::Full { .. } => error,
            error => self.no_copy(error.to_string()),
        }
    }

    /// Returns how many segments the older copy shares with the session, once it is known that all of its records are the
    /// session's. The last of them may be longer in one or the other.
    fn shared(&self, older: &Extent) -> Result<usize> {
        let (ours, theirs) = (self.source.segments.as_slice(), older.segments.as_slice());
        let common = ours.iter().zip(theirs).take_while(|(our, their)| our.header == their.header).count();
        let (ours_next, theirs_next) = (self.source.next_sequence, older.next_sequence);
        if ours_next < theirs_next {
            let through = theirs_next.saturating_sub(1);
            return Err(self.no_copy(format!(
                "it holds records {ours_next} through {through}, which the session does not"
            )));
        }
        // Mostly the session has only grown.
        if let (true, Some(our), Some(their)) =
            (common == theirs.len(), ours.get(common.saturating_sub(1)), theirs.last())
            && let Some(end) = their.end.filter(|end| our.end.is_some_and(|our| *end <= our))
            && same_bytes(self.storage().as_ref(), (&our.path, &their.path), end)?
        {
            return Ok(common);
        }
        // A recovery may have written records again, in other segments: what counts is what they say.
        let last = common.saturating_sub(1);
        let behind = ours.partition_point(|segment| segment.header.first_sequence < theirs_next).max(common);
        let unlike = first_difference(
            self.storage().as_ref(),
            theirs.get(last..).unwrap_or_default(),
            ours.get(last..behind).unwrap_or_default(),
            theirs_next,
        )?;
        if let Some(sequence) = unlike {
            return Err(self.no_copy(format!("its record {sequence} is not the session's")));
        }
        for their in theirs {
            let ordinal = their.header.ordinal;
            if ours.iter().any(|our| our.header.ordinal == ordinal && our.header != their.header) {
                return Err(self.no_copy(format!("its segment {ordinal} is not the session's")));
            }
        }
        // The chain is followed from the highest ordinal back, so the session's last segment has to be the highest.
        let highest = |segments: &[Segment]| segments.last().map(|last| last.header.ordinal);
        if theirs.len() > common && highest(ours) < highest(theirs) {
            return Err(self.no_copy("it was written since it was copied"));
        }
        Ok(common)
    }

    /// Removes what a backup that did not end left in the copy.
    fn remove_unfinished(&self) -> Result<()> {
        let entries = self.storage().list(self.to).map_err(|error| Error::io("list", self.to, error))?;
        for entry in entries.iter().filter(|entry| layout::building_ordinal(&entry.name).is_some()) {
            let path = self.to.join(&entry.name);
            self.storage().remove_file(&path).map_err(|error| Error::io("delete", &path, error))?;
        }
        Ok(())
    }

    /// Adds the seals of the segments whose successors the copy has by now: a sealed segment without a successor would be
    /// taken for a log that has lost one.
    fn add_seals(&self) -> Result<()> {
        let storage = self.storage().as_ref();
        let copy_of = |ours: &Segment| Segment {
            path: layout::segment_file(self.to, ours.header.ordinal),
            ..ours.clone()
        };
        let Some((_, finished)) = self.source.segments.split_last() else { return Ok(()) };
        let mut unsealed = Vec::new();
        for ours in finished.iter().rev() {
            // A segment of another session may be the file of that one's copy, whose own backups seal it.
            if ours.header.session != self.session {
                break;
            }
            // The seals of earlier segments were added before this one's.
            if copy_of(ours).seal(storage)?.is_some() {
                break;
            }
            unsealed.push(ours);
        }
        for ours in unsealed.into_iter().rev() {
            let (Some((_, len)), Some(end), theirs) = (ours.seal(storage)?, ours.end, copy_of(ours)) else {
                continue;
            };
            let io = |op, error| Error::io(op, &theirs.path, error);
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            let read = ours.open(storage)?.read_at(&mut bytes, end).map_err(|error| io("read", error))?;
            let file = storage.open(&theirs.path, Access::Write).map_err(|error| io("open", error))?;
            file.write_at(bytes.get(..read).unwrap_or_default(), end).map_err(|error| io("write", error))?;
            file.sync_data().map_err(|error| io("sync", error))?;
        }
        Ok(())
    }

    /// Copies the segments from the last of those that are shared on, as far as the copy lacks them, and gives them their names one after
    /// the other, once all of them are whole.
    fn add(&self, shared: usize, copied: &mut Copied) -> Result<()> {
        let storage = self.storage();
        let (mut segments, mut new) = (Vec::new(), Vec::new());
        let from = shared.saturating_sub(1);
        for (place, segment) in self.source.segments.iter().enumerate().skip(from) {
            let path = layout::segment_file(self.to, segment.header.ordinal);
            if place < shared && self.holds(&path, segment)? {
                segments.push(Segment { path, ..segment.clone() });
                continue;
            }
            let building = layout::building_segment_file(self.to, segment.header.ordinal);
            segments.push(self.copy(segment, building.clone(), copied, false)?);
            new.push((building, path));
        }
        self.copy_beside(self.to, copied)?;
        if new.is_empty() {
            return Ok(());
        }
        self.verify(from, &segments, self.to, copied)?;
        // Each file has its temporary name durably before it takes another file's place.
        storage.sync_dir(self.to).map_err(|error| Error::io("sync", self.to, error))?;
        for (building, path) in new {
            storage.rename(&building, &path).map_err(|error| Error::io("rename", &path, error))?;
            storage.sync_dir(self.to).map_err(|error| Error::io("sync", self.to, error))?;
        }
        Ok(())
    }

    /// Returns whether the copy's file holds all of a segment.
    fn holds(&self, path: &Path, segment: &Segment) -> Result<bool> {
        let entry = self.storage().entry(path).map_err(|error| Error::io("look up", path, error))?;
        Ok(entry.is_some_and(|entry| segment.end.is_some_and(|end| end <= entry.len)))
    }

    /// Copies a segment up to its end, or with its seal.
    fn copy(&self, segment: &Segment, to: PathBuf, copied: &mut Copied, sealed: bool) -> Result<Segment> {
        let storage = self.storage().as_ref();
        let end = segment.end.unwrap_or(0);
        let seal = if sealed { segment.seal(storage)?.map_or(0, |(_, len)| len) } else { 0 };
        copied.bytes += copy_bytes(storage, (&segment.path, &to), end + seal, &mut |_| {})?;
        copied.segments += 1;
        Ok(Segment { path: to, ..segment.clone() })
    }

    /// Links a segment that another session wrote to that session's copy, if there is one that holds it.
    fn link(&self, segment: &Segment, to: &Path) -> Result<bool> {
        let SegmentHeader { session, ordinal, .. } = segment.header;
        if session == self.session {
            return Ok(false);
        }
        let path = layout::segment_file(&layout::session_dir(&self.store.inner.root, session), ordinal);
        if !self.holds(&path, segment)? {
            return Ok(false);
        }
        let copy = Segment { path, ..segment.clone() };
        let storage = self.storage();
        let mut bytes = [0; foldlog_codec::segment::HEADER_LEN];
        let read = copy.open(storage.as_ref())?.read_at(&mut bytes, 0);
        let header = read.ok().and_then(|_| SegmentHeader::decode(&bytes).ok());
        // Where it cannot be linked it is copied.
        Ok(header == Some(segment.header) && storage.hard_link(&copy.path, to).is_ok())
    }

    /// Reads the segments of the copy, which are those of the session from the place `from` on, checks them, and copies the
    /// objects that their records name into `dir`.
    fn verify(&self, from: usize, segments: &[Segment], dir: &Path, copied: &mut Copied) -> Result<()> {
        let storage = self.storage();
        let mut objects = BTreeSet::new();
        let mut verified = 0;
        let sealed = self.source.segments.get(from..).unwrap_or_default();
        check(storage.as_ref(), (segments, sealed), &mut |_, frame| {
            let header = frame.header;
            foldlog_codec::body::check(header.kind, frame.body).map_err(Error::unread(header.sequence))?;
            if let Some(record) = record_of(frame) {
                verified += 1;
                // Decoding the body once more takes longer than looking whether any reference can be in it.
                if may_refer(frame.body) {
                    objects.extend(record.objects());
                }
            }
            Ok(())
        })?;
        copied.verified += verified;
        if objects.is_empty() {
            return Ok(());
        }
        let folder = layout::objects_dir(dir);
        storage.create_dir_all(&folder).map_err(|error| Error::unmade("create", &folder, 0, error))?;
        for object in objects {
            self.copy_object(&object, &folder, copied)?;
        }
        storage.sync_dir(&folder).map_err(|error| Error::io("sync", &folder, error))?;
        storage.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))
    }

    /// Copies an object, unless the copy has it: an object has its name once its bytes are durable.
    fn copy_object(&self, object: &ObjectId, folder: &Path, copied: &mut Copied) -> Result<()> {
        let storage = self.storage();
        let path = folder.join(object.file_name());
        let entry = storage.entry(&path).map_err(|error| Error::io("look up", &path, error))?;
        if entry.is_some_and(|entry| entry.kind == EntryKind::File && entry.len == object.len) {
            return Ok(());
        }
        let from = layout::objects_dir(self.from).join(object.file_name());
        let bad = |reason: &str| Error::Object { path: from.clone(), reason: reason.to_owned() };
        if storage.entry(&from).map_err(|error| Error::io("look up", &from, error))?.is_none() {
            return Err(bad("it is missing"));
        }
        let building = folder.join(format!("{}.new", object.file_name()));
        // A file with this temporary name was left by an attempt that never ended.
        let _ = storage.remove_file(&building);
        let mut hasher = blake3::Hasher::new();
        let copy = copy_bytes(storage.as_ref(), (&from, &building), object.len, &mut |bytes| {
            hasher.update(bytes);
        });
        let sound =
            copy.and_then(|len| match (len == object.len, *hasher.finalize().as_bytes() == object.hash) {
                (true, true) => {
                    storage.rename(&building, &path).map_err(|error| Error::io("rename", &path, error))
                }
                _ => Err(bad("its bytes are not what its name says")),
            });
        if sound.is_err() {
            let _ = storage.remove_file(&building);
        }
        sound?;
        copied.objects += 1;
        copied.bytes += object.len;
        Ok(())
    }

    /// Copies the newest image that covers no more than the copy, if that is asked for. An image is a cache: one that
    /// cannot be copied is not missed.
    fn copy_image(&self, dir: &Path, copied: &mut Copied) {
        let storage = self.storage().as_ref();
        let newest = images::list(storage, self.from);
        let newest = newest.into_iter().find(|(next, _)| *next <= self.source.next_sequence);
        let Some((next, from)) = newest.filter(|_| self.options.images) else { return };
        let path = layout::image_file(dir, next);
        let there = |path: &Path| storage.entry(path).ok().flatten();
        let (None, Some(entry)) = (there(&path), there(&from)) else { return };
        let building = path.with_extension("image.new");
        let _ = storage.remove_file(&building);
        let folder = layout::snapshots_dir(dir);
        let made =
            storage.create_dir_all(&folder).map_err(|error| Error::unmade("create", &folder, 0, error));
        let made = made.and_then(|()| copy_bytes(storage, (&from, &building), entry.len, &mut |_| {}));
        if let Ok(bytes) = made
            && storage.rename(&building, &path).is_ok()
        {
            copied.bytes += bytes;
        } else {
            let _ = storage.remove_file(&building);
        }
    }
}

/// Returns whether a body may hold a reference to an object: one is an extension, which begins with one of three bytes.
fn may_refer(body: &[u8]) -> bool {
    body.chunks(64).any(|piece| piece.iter().fold(false, |any, byte| any | matches!(byte, 0xc7..=0xc9)))
}
