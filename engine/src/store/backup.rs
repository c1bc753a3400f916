//! Backups: copies of sessions, taken while the sessions are written. The copies are sessions of
//! another store.
//!
//! The directory of a backup is a store. To restore a backup, open that store. The first backup of
//! a session copies its log and the objects that its records name into a directory with a temporary
//! name, checks them, and renames the directory. A later backup finds an *older copy* and copies
//! the rest: the records that were added to the copy's last segment, the segments after it, and the
//! objects that these records name.
//!
//! Copied data is checked while the next segment is copied: the checksum of each frame, its link to
//! the frame before, and each body. Seals are copied unchanged; `foldlog verify` checks them in the
//! copy, as in any session.
//!
//! An *end segment* is a segment without frames after the last segment of a copy. Its header names
//! the record at which the copy ends. While it exists, the bytes after that place are not part of
//! the copy's log, however many there are.
//!
//! # Invariants
//!
//! 1. The source session is only read, and none of its locks is taken.
//! 2. At most one process changes a copy: it holds the copy's writer lock, so no process writes a
//!    copy that is open.
//! 3. No byte of a copy's log is changed under its file's name. Two things are added after the end
//!    of a segment: its seal, which is not part of the log, and the session's next records, while
//!    an end segment states that the copy ends before them. Nothing is added to a compacted
//!    segment: a file with the seal replaces it. Any other file has a temporary name until its
//!    bytes are durable and checked.
//! 4. An object, and a file of a capture, has its name before records that name it count: before
//!    their segment has its name, or the end segment before them is removed. A segment has its name
//!    before its successor. The names of one step are durable before the next step begins,
//!    including names from an earlier backup that was killed.
//! 5. Captures that new records name are marked as unread before these records count, until they
//!    have been read and found intact (`captures.rs`).
//! 6. A copy is extended only if each of its records is also in the session, and no segment that it
//!    lacks is compacted. Otherwise the copy is rejected and unchanged.
//!
//! # After a kill or a power cut
//!
//! | interrupted step | leaves | a process that opens the store finds |
//! |---|---|---|
//! | first copy, before the directory is renamed | `sessions/.new-ID`, which the next backup removes | no such session |
//! | first copy, afterwards | the copy; until its captures are read, with the mark that has the next backup read them | the copy |
//! | the end segment is created | a file `*.seg.new`, which the next backup removes, or the end segment | the older copy |
//! | records are appended to the last segment and checked | the end segment, and bytes after the end, which the next backup overwrites | the older copy |
//! | segments are copied and checked | files `*.seg.new`, which the next backup removes | the older copy |
//! | objects and other files are copied | some more of them, complete; a file with a temporary name | the older copy |
//! | segments get their names, the first of them that of the end segment; or that is removed | some of the segments, from the first on; the mark, if the session has captures | the older copy with the records of those segments |
//! | seals are added, or compacted segments replaced by files with seals | some of the seals, from the first on, and a file `*.seg.new`; the next backup adds the others | the copy |

mod captures;
mod check;
mod extend;
mod other_files;

pub(super) use other_files::{COPIED, is_unfinished};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::segment::SegmentHeader;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Store;
use crate::error::{Error, Result};
use crate::log::chain::{self, Segment};
use crate::log::compressed;
use crate::log::copy::{Extent, copy_bytes, copy_plain, extent};
use crate::log::{image_files, layout, scan};
use crate::session::lock_to_write;
use crate::storage::{EntryKind, Storage, whole_path};
use check::SegmentPart;
use extend::Tip;

/// Options of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupOptions {
    /// Whether to copy the newest image too, so that the copy opens as fast as the session. Without
    /// it, opening the copy folds its records.
    pub images: bool,
    /// Whether to read and check all captures of the copy, in the copy and in the session.
    /// Otherwise a backup checks only captures that it copies, or that an earlier backup left
    /// unread or damaged. It then misses later disk damage to files that were copied before. It
    /// also misses captures left unread or damaged, if the file `.foldlog-backup.unread` next to
    /// the copy's log, which records that, was deleted.
    pub check_captures: bool,
}

/// Reports the results of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BackupReport {
    /// Id of the session.
    pub session: Uuid,
    /// Directory of the copy.
    #[serde(serialize_with = "foldlog_codec::escape::serialize_path")]
    pub dir: PathBuf,
    /// Number of records in the copy.
    pub records: u64,
    /// Number of records in the older copy; 0 without one.
    pub records_before: u64,
    /// Number of segments that were copied, completely or only their end.
    pub segments: u64,
    /// Number of objects that were copied.
    pub objects: u64,
    /// Number of other files that were copied, such as captures in the session's directory.
    pub files: u64,
    /// Number of bytes that were copied.
    pub bytes: u64,
    /// Number of records that were read back from the copy and checked: frames, bodies, the seals
    /// of their segments, and the objects that they name. Contradictions between records are not
    /// checked; a [`LogReader`](crate::inspect::LogReader) of the copy reports them.
    pub verified: u64,
    /// Number of captures of workspaces that the copied records name and the copy has. Copied files
    /// of captures were read back and checked. Older files were only checked for existence.
    #[serde(default)]
    pub captures: u64,
    /// Number of captures that the copied records name and the session's directory lacks: they were
    /// collected, or are stored [elsewhere](BackupReport::elsewhere).
    #[serde(default)]
    pub captures_absent: u64,
    /// Number of files of captures that were damaged or missing in the copy, and were copied again
    /// from intact files of the session.
    #[serde(default)]
    pub captures_healed: u64,
    /// Workspaces without captures in the session's directory. The copy has none of theirs either.
    #[serde(default)]
    pub elsewhere: Vec<CapturesElsewhere>,
    /// Damaged or missing files of captures, and entries next to the log of a different kind than
    /// their names indicate: the first 100. Such entries are left alone. The backup contains
    /// everything else. Each later backup reads these captures again and lists the remaining
    /// damage, until there is none.
    #[serde(default)]
    pub damaged: Vec<DamagedCapture>,
    /// Number of damaged or missing files of captures beyond `damaged`.
    #[serde(default)]
    pub damaged_more: u64,
}

/// Names a workspace whose captures are outside of the session's directory, and not part of its
/// copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CapturesElsewhere {
    /// Name of the workspace.
    pub resource: String,
    /// Number of its captures that the copied records name.
    pub captures: u64,
    /// Session with the captures in its directory: the parent, on whose workspace the session
    /// worked. A backup of the parent has them. `None` if they are in no known directory: the host
    /// stores them in one of its own, or they were lost.
    pub parent: Option<Uuid>,
}

/// Describes a damaged or missing file of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DamagedCapture {
    /// Path of the file in the copy, or in the session's directory if the file in the copy is
    /// intact. It has the same relative path in both directories.
    #[serde(serialize_with = "foldlog_codec::escape::serialize_path")]
    pub path: PathBuf,
    /// Description of the damage.
    pub reason: String,
}

impl Store {
    /// Copies a session into the store at `to`. Creates that store if it does not exist. If it has
    /// an older copy, only new data is copied. The session may be written at the same time. If it
    /// is open for writing in this store, it is synced first, so that after a power cut it is not
    /// older than its copy. The copy is durable and checked when this returns. To restore it, open
    /// the store at `to`.
    ///
    /// # Contents of a backup
    ///
    /// | part of a session | in a backup |
    /// |---|---|
    /// | records: events, slices, calls, conversations, tags, snapshots, the names of captures | up to the last one that was complete when the backup began |
    /// | objects: large payloads, and the files of workspaces in memory | those that the records name |
    /// | segments that a fork shares | copied too, or linked to the copy of the session that wrote them: the copy is complete without the parent |
    /// | other files in the session's directory, such as the captures of a workspace whose store is there (`files`, as with `foldlog run`) | copied unchanged, except for links and unfinished files; files of captures are read from the copy and checked, files damaged only in the copy are copied again, and remaining damage is [reported](BackupReport::damaged), by later backups too |
    /// | child sessions | with [`backup_all`](Store::backup_all), since they are sessions of the store |
    /// | images | with [`BackupOptions::images`]; without, opening creates them again |
    /// | captures of a workspace whose store is elsewhere, and the workspace itself | no: copy them like any directory. The records name the captures, and the report the [workspaces](BackupReport::elsewhere) |
    /// | locks, spare space | no |
    ///
    /// ```
    /// # use foldlog::{BackupOptions, SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().build()?;
    /// # let store = Store::open(directory.path().join("store"))?;
    /// let session = store.create(&types)?;
    /// let copied = store.backup(session.id(), directory.path().join("copy"), BackupOptions::default())?;
    /// assert_eq!(copied.records, 1);
    /// let restored = Store::open(directory.path().join("copy"))?;
    /// restored.open_session(session.id(), &types)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if this store has no such session, [`Error::WithinStore`] if `to`
    /// is this store or lies within it; otherwise the errors of
    /// [`backup_from`](Store::backup_from).
    pub fn backup(
        &self,
        session: Uuid,
        to: impl AsRef<Path>,
        options: BackupOptions,
    ) -> Result<BackupReport> {
        self.backup_into(session, &self.copies_at(to)?, options)
    }

    /// Copies each session of this store into the store at `to`, as [`backup`](Store::backup) does.
    /// Returns the results in ascending order of the ids. If one session cannot be copied, the
    /// others still are. Sessions that are created in the meantime are left out.
    ///
    /// # Errors
    ///
    /// [`Error::WithinStore`] if `to` is this store or lies within it, [`Error::Io`] if this
    /// store's directory cannot be read, or the other store cannot be created.
    pub fn backup_all(
        &self,
        to: impl AsRef<Path>,
        options: BackupOptions,
    ) -> Result<Vec<(Uuid, Result<BackupReport>)>> {
        let copies = self.copies_at(to)?;
        let sessions = self.session_ids()?.into_iter();
        Ok(sessions.map(|session| (session, self.backup_into(session, &copies, options))).collect())
    }

    /// Copies the session in the directory `dir`, which need not be in a store, into this store, as
    /// [`backup`](Store::backup) does. `dir` is only read.
    ///
    /// # Errors
    ///
    /// - [`Error::NotACopy`] if this store has a session of that id which is not an older copy: it
    ///   was written after the backup, or the original has lost records or was compacted since.
    ///   Nothing is changed.
    /// - [`Error::Locked`] if the copy is open for writing, or another backup of it is in progress;
    ///   [`Error::ReadOnly`] if this store is read-only; [`Error::Full`] if it has no space.
    /// - [`Error::WithinSession`] if this store is inside `dir`.
    /// - The errors of [`LogReader::open`](crate::inspect::LogReader::open) if the session is
    ///   damaged. [`salvage`](Store::salvage) copies its intact part.
    pub fn backup_from(&self, dir: impl AsRef<Path>, options: BackupOptions) -> Result<BackupReport> {
        let dir = dir.as_ref();
        let (root, whole_dir) = (whole_path(&self.inner.root), whole_path(dir));
        if root.starts_with(&whole_dir) {
            return Err(self.within_session(dir));
        }
        let headers = chain::discover(self.storage().as_ref(), dir)?.segments;
        let session = match headers.last() {
            Some(last) => last.header.session,
            // `extent` returns the right error for a session without a valid header.
            None => session_of(&extent(self.storage(), dir, None)?, dir)?,
        };
        let _lock = lock_to_write(&self.inner, session)?;
        scan::retry_if_replaced(|| self.back_up_once(dir, &whole_dir, session, options))
    }

    fn back_up_once(
        &self,
        dir: &Path,
        whole_dir: &Path,
        session: Uuid,
        options: BackupOptions,
    ) -> Result<BackupReport> {
        let to = self.session_dir(session);
        if whole_path(&to) == *whole_dir {
            return Err(self.within_session(dir));
        }
        let there = self.storage().look_up(&to)?;
        let is_directory = there.as_ref().is_some_and(|there| there.kind == EntryKind::Directory);
        let tip = if is_directory { Tip::read(self.storage().as_ref(), &to) } else { None };
        let source = extent(self.storage(), dir, tip.as_ref().map(Tip::end))?;
        let mark =
            if is_directory { captures::mark_of(self.storage().as_ref(), &to, session)? } else { None };
        let copying = BackupRun { store: self, from: dir, to: &to, session, source, options, mark };
        let copied = match there {
            None => copying.first(),
            Some(_) if is_directory => copying.update_copy(tip),
            Some(entry) => Err(copying.no_copy(format!("it is {}", entry.kind))),
        };
        if copied.as_ref().is_err_and(Error::is_damage) {
            // The damage may be in a segment that a compaction has replaced since.
            let segments = &copying.source.segments;
            segments.iter().try_for_each(|segment| segment.check_not_replaced(self.storage().as_ref()))?;
        }
        copied
    }

    pub(super) fn within_session(&self, dir: &Path) -> Error {
        Error::WithinSession { path: self.inner.root.clone(), session_dir: dir.to_owned() }
    }

    /// Opens the store of the copies, on the same storage.
    fn copies_at(&self, to: impl AsRef<Path>) -> Result<Store> {
        let (to, store) = (to.as_ref(), &self.inner.root);
        if layout::is_within_directory(to, store) {
            return Err(Error::WithinStore { path: to.to_owned(), store: store.clone() });
        }
        Store::open_with(to, self.inner.options.clone())
    }

    fn backup_into(&self, session: Uuid, copies: &Store, options: BackupOptions) -> Result<BackupReport> {
        let dir = self.find_session_dir(session)?;
        if let Some(writer) = self.handle(session) {
            // A session that cannot be synced needs a backup all the more.
            let _ = writer.sync();
        }
        copies.backup_from(dir, options)
    }
}

fn session_of(source: &Extent, dir: &Path) -> Result<Uuid> {
    let last = source.segments.last().map(|last| last.header.session);
    last.ok_or_else(|| Error::not_a_session(dir, "it contains no records"))
}

/// A backup in progress, from the directory `from` into the directory `to` of `store`.
struct BackupRun<'a> {
    store: &'a Store,
    from: &'a Path,
    to: &'a Path,
    session: Uuid,
    source: Extent,
    options: BackupOptions,
    /// First record from which earlier backups did not find the captures intact.
    mark: Option<SequenceNumber>,
}

#[derive(Default)]
struct CopyTotals {
    /// What was copied and verified, and the captures that were read.
    report: BackupReport,
    /// First record whose captures are not known to be intact, if one is damaged.
    read_from: SequenceNumber,
    /// Next sequence number of the older copy.
    before: SequenceNumber,
    /// Whether a file of a capture is damaged in the session, so that the copy keeps its own.
    found_damaged: bool,
    /// Entries next to the log, in the session or in the copy, of a different kind than their names
    /// indicate.
    irregular: Vec<DamagedCapture>,
    /// Files next to the log that were copied, by their paths in the session's directory.
    beside: BTreeSet<PathBuf>,
}

impl BackupRun<'_> {
    fn storage(&self) -> &Arc<dyn Storage> {
        self.store.storage()
    }

    fn no_copy(&self, reason: impl Into<String>) -> Error {
        Error::NotACopy { session: self.session, path: self.to.to_owned(), reason: reason.into() }
    }

    fn report(&self, mut copied: CopyTotals) -> Result<BackupReport> {
        self.read_captures(&mut copied)?;
        Ok(BackupReport {
            session: self.session,
            dir: self.to.to_owned(),
            records: self.source.next_sequence.get().max(copied.before.get()),
            records_before: copied.before.get(),
            ..copied.report
        })
    }

    /// Copies the whole session into a new directory.
    fn first(&self) -> Result<BackupReport> {
        let copied = self.store.build_session(self.session, |building| self.lay(building))?;
        self.report(copied)
    }

    fn lay(&self, building: &Path) -> Result<CopyTotals> {
        let storage = self.storage();
        let mut copied = CopyTotals::default();
        let checked = self.check_meanwhile(|hand_over| {
            for (place, segment) in self.source.segments.iter().enumerate() {
                let path = layout::segment_file(building, segment.header.ordinal);
                let has_successor = place + 1 < self.source.segments.len();
                if !self.link(segment, &path)? {
                    self.copy(segment, &path, &mut copied, has_successor)?;
                }
                hand_over(SegmentPart::whole(segment, path));
            }
            Ok(())
        })?;
        self.copy_objects(checked, building, &mut copied)?;
        self.copy_beside(building, &mut copied)?;
        self.copy_images(building, &mut copied);
        self.leave_mark(building, SequenceNumber::MIN, &copied)?;
        storage.sync_directory(building)?;
        storage.rename_to(building, self.to)?;
        self.store.sync_names_above()?;
        Ok(copied)
    }

    /// Returns whether the copy's file contains the whole segment.
    fn holds(&self, path: &Path, segment: &Segment) -> Result<bool> {
        if self.storage().look_up(path)?.is_none() {
            return Ok(false);
        }
        let len = compressed::open(self.storage().as_ref(), path)?.len();
        let len = len.map_err(|error| Error::io("look up", path, error))?;
        Ok(segment.end.is_some_and(|end| end <= len))
    }

    /// Copies a segment up to its end, or including its seal. With `sealed`, a compressed segment
    /// is copied unchanged, unless it is longer than that. Otherwise the copy is a plain segment.
    fn copy(&self, segment: &Segment, to: &Path, copied: &mut CopyTotals, sealed: bool) -> Result<()> {
        let storage = self.storage().as_ref();
        let end = segment.end.unwrap_or(0);
        let seal = if sealed { segment.seal_len(storage)? } else { 0 };
        let io = |error| Error::io("look up", &segment.path, error);
        let as_it_is = sealed
            && compressed::is_compressed(storage, &segment.path)?
            && segment.open(storage)?.len().map_err(io)? <= end + seal;
        copied.report.bytes += match as_it_is {
            true => {
                let len = storage.look_up(&segment.path)?.map_or(0, |entry| entry.len);
                copy_bytes(storage, &segment.path, to, len, &mut |_| {})?
            }
            false => copy_plain(storage, segment, to, end + seal)?,
        };
        copied.report.segments += 1;
        Ok(())
    }

    /// Links a segment that another session wrote to that session's copy, if there is one with the
    /// whole segment.
    fn link(&self, segment: &Segment, to: &Path) -> Result<bool> {
        let SegmentHeader { session, ordinal, .. } = segment.header;
        if session == self.session {
            return Ok(false);
        }
        let path = layout::segment_file(&layout::session_dir(&self.store.inner.root, session), ordinal);
        if !self.holds(&path, segment)? {
            return Ok(false);
        }
        let copy = segment.at(path);
        let storage = self.storage();
        let mut bytes = [0; foldlog_codec::segment::HEADER_LEN];
        let read = copy.open(storage.as_ref())?.read_at(&mut bytes, 0);
        let header = read.ok().and_then(|_| SegmentHeader::decode(&bytes).ok());
        // A segment that cannot be linked is copied.
        Ok(header == Some(segment.header) && storage.hard_link(&copy.path, to).is_ok())
    }

    /// With [`BackupOptions::images`], copies the newest image that covers no more than the copy,
    /// and removes images that the session no longer has. Errors are ignored: an image is a cache.
    fn copy_images(&self, dir: &Path, copied: &mut CopyTotals) {
        if !self.options.images {
            return;
        }
        let storage = self.storage().as_ref();
        let theirs = image_files::list(storage, self.from);
        for (next, path) in image_files::list(storage, dir) {
            if theirs.iter().all(|(their, _)| *their != next) {
                let _ = storage.remove_file(&path);
            }
        }
        let Some((next, from)) = theirs.iter().find(|(next, _)| *next <= self.source.next_sequence) else {
            return;
        };
        let path = layout::image_file(dir, *next);
        let there = |path: &Path| storage.entry(path).ok().flatten();
        let (None, Some(entry)) = (there(&path), there(from)) else { return };
        let building = path.with_extension("image.new");
        let _ = storage.remove_file(&building);
        let directory = layout::snapshots_dir(dir);
        let made = storage.make_directory(&directory);
        let made = made.and_then(|()| copy_bytes(storage, from, &building, entry.len, &mut |_| {}));
        if let Ok(bytes) = made
            && storage.rename(&building, &path).is_ok()
        {
            copied.report.bytes += bytes;
        } else {
            let _ = storage.remove_file(&building);
        }
    }
}
