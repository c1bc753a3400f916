//! Reads the captures that a backup copied. Files that are damaged in the copy and intact in the
//! session are copied again. Without the feature `host-filesystem` the contents of captures are
//! unknown, and none is read.
//!
//! The *mark* is a file next to the copy's log. It contains a sequence number, and digits that
//! identify it as the mark of this session. Its meaning: captures named by the records from that
//! number on are not known to be intact. It is written before such records count. It is removed
//! once a backup has read their captures and found no damage. So neither a kill nor a later backup
//! makes the copy appear intact. A backup that finds a mark reads all captures that these records
//! name, in the copy and in the session. An unreadable mark counts for all records. The deletion of
//! a mark cannot be detected; a backup that reads all captures does not need one.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Parent;
use uuid::Uuid;

use super::{BackupRun, CopyTotals, DamagedCapture};
use crate::error::{Error, Result};
use crate::inspect::{NamedCaptures, captures_named};
use crate::log::layout;
use crate::storage::{Access, EntryKind, Storage};

pub(super) use reading::is_damaged;

pub(super) const MARK: &str = ".foldlog-backup.unread";

/// Longer files are not marks.
const MARK_BYTES_MAX: usize = 64;

/// Number of digits that identify a mark.
const MARK_DIGITS: usize = 16;

/// Maximum number of damaged files in a report.
const DAMAGED_MAX: usize = 100;

/// Reads the mark of a copy: the first record from which captures are not known to be intact. A
/// mark that is unreadable, or not from a backup of this session, counts for all records.
pub(super) fn mark_of(storage: &dyn Storage, copy: &Path, session: Uuid) -> Result<Option<SequenceNumber>> {
    let path = copy.join(MARK);
    let file = match storage.open(&path, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // It is not a file.
        Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(Some(SequenceNumber::MIN)),
        Err(error) => return Err(Error::open_failed(storage, &path, error)),
    };
    let mut bytes = [0; MARK_BYTES_MAX];
    let read = file.read_at(&mut bytes, 0).map_err(|error| Error::io("read", &path, error))?;
    let text = bytes.get(..read).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
    let number = text.split_once(' ').and_then(|(number, _)| number.parse::<u64>().ok());
    let is_ours = |from: &SequenceNumber| mark_text(session, *from) == text;
    let from = number.map(SequenceNumber::from).filter(is_ours);
    Ok(Some(from.unwrap_or(SequenceNumber::MIN)))
}

/// Returns the contents of the mark of a copy of this session.
fn mark_text(session: Uuid, from: SequenceNumber) -> String {
    let digits = blake3::hash(format!("{MARK} {session} {from}").as_bytes()).to_hex();
    format!("{from} {}\n", digits.get(..MARK_DIGITS).unwrap_or_default())
}

impl BackupRun<'_> {
    /// Writes the mark to `dir` if records from `from` on may name captures, unless an earlier mark
    /// exists. The mark is durable under its name when this returns.
    pub(super) fn leave_mark(&self, dir: &Path, from: SequenceNumber, copied: &CopyTotals) -> Result<()> {
        let storage = self.storage();
        let captures = layout::captures_dir(self.from);
        let entry = storage.look_up(&captures)?;
        let has_captures = entry.is_some_and(|entry| entry.kind == EntryKind::Directory)
            || copied.beside.iter().any(|path| super::other_files::is_git_object(path));
        match has_captures && self.mark.is_none() {
            true => self.write_mark(dir, from),
            false => Ok(()),
        }
    }

    fn write_mark(&self, dir: &Path, from: SequenceNumber) -> Result<()> {
        let (storage, path, building) = (self.storage(), dir.join(MARK), dir.join(super::COPIED));
        let text = mark_text(self.session, from);
        let _ = storage.remove_file(&building);
        storage.write_file(&building, &path, text.as_bytes())?;
        storage.sync_directory(dir)
    }

    fn remove_mark(&self) -> Result<()> {
        let path = self.to.join(MARK);
        match self.storage().remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("delete", &path, error)),
            _ => Ok(()),
        }
    }

    /// Reads the captures in the copy that its new records name: each copied file, and the
    /// existence of older files. If there is a mark, or all captures are to be read, it reads each
    /// file of the captures, in the session too.
    pub(super) fn read_captures(&self, copied: &mut CopyTotals) -> Result<()> {
        let before = copied.before;
        let is_new = self.source.next_sequence > before || !copied.beside.is_empty();
        let is_whole = self.options.check_captures || self.mark.is_some() || copied.found_damaged;
        if !(is_new || is_whole) {
            return Ok(());
        }
        if self.mark.is_some() {
            self.look_at_mark(copied)?;
        }
        let from = match self.options.check_captures || copied.found_damaged {
            true => SequenceNumber::MIN,
            false => self.mark.map_or(before, |mark| mark.min(before)),
        };
        let (named, parent) = captures_named(self.storage(), self.to, from)?;
        let is_read = reading::read(self, &named, parent, from, is_whole, copied)?;
        self.tell_irregular(copied);
        let CopyTotals { report, read_from, .. } = copied;
        if !is_read {
            return Ok(());
        }
        report.damaged.sort_by(|one, other| one.path.cmp(&other.path));
        match report.damaged.is_empty() {
            true => self.remove_mark(),
            false if self.mark.is_none_or(|mark| *read_from < mark) => self.write_mark(self.to, *read_from),
            false => Ok(()),
        }
    }

    /// Reports an entry with the name of the mark that is not a file.
    fn look_at_mark(&self, copied: &mut CopyTotals) -> Result<()> {
        let path = self.to.join(MARK);
        if let Some(found) = self.in_place_of(&path, EntryKind::File)? {
            let reason = format!("it is {}: remove it", found.in_place_of(EntryKind::File));
            copied.note(DamagedCapture { path, reason });
        }
        Ok(())
    }

    /// Adds the entries that prevented copying. They replace other findings about the same files.
    fn tell_irregular(&self, copied: &mut CopyTotals) {
        let irregular = std::mem::take(&mut copied.irregular);
        if irregular.is_empty() {
            return;
        }
        let place = |path: &Path| {
            let within = path.strip_prefix(self.to).or_else(|_| path.strip_prefix(self.from));
            within.unwrap_or(path).to_owned()
        };
        let places: BTreeSet<_> = irregular.iter().map(|one| place(&one.path)).collect();
        let report = &mut copied.report;
        report.damaged.retain(|one| !places.contains(&place(&one.path)));
        report.damaged.splice(..0, irregular);
        report.damaged_more += report.damaged.len().saturating_sub(DAMAGED_MAX) as u64;
        report.damaged.truncate(DAMAGED_MAX);
        copied.read_from = SequenceNumber::MIN;
    }

    /// Copies a file of a capture again that is damaged or missing in the copy. Returns whether the
    /// session has an intact one.
    #[cfg(feature = "host-filesystem")]
    fn heal(&self, path: &Path, copied: &mut CopyTotals) -> Result<bool> {
        let Some(from) = path.strip_prefix(self.to).ok().map(|path| self.from.join(path)) else {
            return Ok(false);
        };
        // Entries of a different kind, at its path or at that of a directory above it, must not be
        // replaced.
        for (root, path) in [(self.to, path), (self.from, &from)] {
            let mut places: Vec<&Path> =
                path.ancestors().take_while(|directory| *directory != root).collect();
            while let Some(place) = places.pop() {
                let wanted = if places.is_empty() { EntryKind::File } else { EntryKind::Directory };
                if self.in_place_of(place, wanted)?.is_some() {
                    return Ok(false);
                }
            }
        }
        let storage = self.storage();
        let entry = storage.look_up(&from)?;
        let Some(entry) = entry.filter(|entry| entry.kind == EntryKind::File) else { return Ok(false) };
        let directory = path.parent().filter(|_| super::other_files::is_git_object(path));
        let Some(directory) = directory.filter(|_| !is_damaged(&from)) else { return Ok(false) };
        storage.make_directory(directory)?;
        let _ = storage.remove_file(&directory.join(super::COPIED));
        let is_copied = self.replace_file(&entry, &from, path, copied)?;
        storage.sync_directory(directory)?;
        Ok(is_copied)
    }
}

#[cfg(feature = "host-filesystem")]
mod reading {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use foldlog_filesystem::{DamagedObject, FilesystemSnapshot, audit_snapshots, damage_of_object};

    use super::*;
    use crate::inspect::{directory_of, snapshots};
    use crate::store::backup::CapturesElsewhere;

    /// Snapshots of workspaces, by the directories that contain them.
    type Kept = BTreeMap<PathBuf, Vec<FilesystemSnapshot>>;

    /// Returns whether the bytes of an object's file do not match its name.
    pub(in crate::store::backup) fn is_damaged(object: &Path) -> bool {
        damage_of_object(object).is_some()
    }

    /// Reads captures that were copied. The directories are relative to the session's.
    pub(super) fn read(
        copying: &BackupRun<'_>,
        named: &NamedCaptures,
        parent: Option<Parent>,
        from: SequenceNumber,
        is_whole: bool,
        copied: &mut CopyTotals,
    ) -> Result<bool> {
        let kept = keep(copying, named, parent, from, copied)?;
        let mut tried = BTreeSet::new();
        let mut found = loop {
            let is_copied =
                |path: &Path| path.strip_prefix(copying.to).is_ok_and(|path| copied.beside.contains(path));
            let mut found = CaptureFindings::audit(&kept, copying.to, &|path| is_whole || is_copied(path));
            if !is_whole && from > SequenceNumber::MIN {
                found.add_others(copying, copied);
            }
            let mut healed = 0;
            for DamagedCapture { path, .. } in &found.damaged {
                if tried.insert(path.clone()) {
                    healed += u64::from(copying.heal(path, copied)?);
                }
            }
            // The entries of a directory are known only after the directory's object is intact.
            if healed == 0 {
                break found;
            }
            copied.report.captures_healed += healed;
        };
        if is_whole {
            let theirs = CaptureFindings::audit(&kept, copying.from, &|_| true);
            let is_told = |path: &Path| {
                let copy = path.strip_prefix(copying.from).map(|path| copying.to.join(path));
                copy.is_ok_and(|copy| found.damaged.iter().any(|one| one.path == copy))
            };
            // The session may have collected captures that the copy has.
            let damaged = theirs.damaged.into_iter().filter(|one| !theirs.absent.contains(&one.path));
            let damaged: Vec<DamagedCapture> = damaged.filter(|one| !is_told(&one.path)).collect();
            found.damaged.extend(damaged);
            found.damaged_more += theirs.damaged_more;
        }
        let over = found.damaged.len().saturating_sub(DAMAGED_MAX);
        found.damaged.truncate(DAMAGED_MAX);
        let report = &mut copied.report;
        report.captures = found.captures;
        report.captures_absent += found.collected;
        report.damaged = found.damaged;
        report.damaged_more = found.damaged_more + over as u64;
        copied.read_from = if found.is_older { SequenceNumber::MIN } else { from };
        Ok(true)
    }

    /// Sorts the snapshots by the directories in which the copy stores those of their workspaces.
    /// Reports the workspaces of which the copy has none.
    fn keep(
        copying: &BackupRun<'_>,
        named: &NamedCaptures,
        parent: Option<Parent>,
        from: SequenceNumber,
        copied: &mut CopyTotals,
    ) -> Result<Kept> {
        let mut kept = Kept::new();
        let mut all = None;
        for (name, recorded) in named {
            let taken = snapshots(recorded);
            if taken.is_empty() {
                continue;
            }
            let mut directory = directory_of(copying.to, name, &taken);
            if directory.is_none() && from > SequenceNumber::MIN {
                // Earlier captures of the workspace show in which directory they are.
                if all.is_none() {
                    all = Some(captures_named(copying.storage(), copying.to, SequenceNumber::MIN)?.0);
                }
                let earlier = all.as_ref().and_then(|all| all.get(name));
                directory = earlier.and_then(|earlier| directory_of(copying.to, name, &snapshots(earlier)));
            }
            match directory {
                Some(directory) => kept.entry(directory).or_default().extend(taken),
                None => {
                    let own = layout::captures_dir(copying.from);
                    if let Some(found) = copying.in_place_of(&own, EntryKind::Directory)? {
                        copied.note_irregular(&own, found, EntryKind::Directory);
                    }
                    let captures = taken.len() as u64;
                    copied.report.captures_absent += captures;
                    let parent = parent.map(|parent| parent.session());
                    let parent = parent.filter(|parent| {
                        let dirs = [copying.from.parent(), copying.to.parent()].into_iter().flatten();
                        dirs.map(|dir| dir.join(parent.to_string()))
                            .any(|dir| directory_of(&dir, name, &taken).is_some())
                    });
                    copied.report.elsewhere.push(CapturesElsewhere {
                        resource: name.clone(),
                        captures,
                        parent,
                    });
                }
            }
        }
        Ok(kept)
    }

    /// Findings about the captures in one of the session's two directories.
    #[derive(Default)]
    struct CaptureFindings {
        captures: u64,
        collected: u64,
        absent: BTreeSet<PathBuf>,
        damaged: Vec<DamagedCapture>,
        damaged_more: u64,
        /// Contents that captures need.
        looked_at: BTreeSet<PathBuf>,
        /// Whether damage may affect captures that earlier records name.
        is_older: bool,
    }

    impl CaptureFindings {
        fn audit(kept: &Kept, dir: &Path, is_to_be_read: &dyn Fn(&Path) -> bool) -> CaptureFindings {
            let mut found = CaptureFindings::default();
            let looked_at = RefCell::new(BTreeSet::new());
            for (directory, snapshots) in kept {
                let audited = audit_snapshots(&dir.join(directory), snapshots, &|path| {
                    looked_at.borrow_mut().insert(path.to_owned());
                    is_to_be_read(path)
                });
                found.captures += audited.snapshots;
                found.collected += audited.collected;
                found.damaged_more += audited.damaged_more;
                audited.damaged.into_iter().for_each(|one| found.tell(one));
                for path in audited.absent {
                    let reason = "the first file of a capture is missing".to_owned();
                    found.absent.insert(path.clone());
                    found.tell(DamagedObject { path, reason });
                }
            }
            found.looked_at = looked_at.into_inner();
            found
        }

        /// Reads copied files of captures that no new record names: the copy lacked them, or had
        /// files of a different length.
        fn add_others(&mut self, copying: &BackupRun<'_>, copied: &CopyTotals) {
            let objects = copied.beside.iter().filter(|path| super::super::other_files::is_git_object(path));
            let is_told = |path: &Path| self.damaged.iter().any(|one| one.path == path);
            let paths = objects.map(|path| copying.to.join(path));
            let others: Vec<_> =
                paths.filter(|path| !self.looked_at.contains(path) && !is_told(path)).collect();
            for damaged in others.iter().filter_map(|path| damage_of_object(path)) {
                self.tell(damaged);
                self.is_older = true;
            }
        }

        fn tell(&mut self, DamagedObject { path, reason }: DamagedObject) {
            self.damaged.push(DamagedCapture { path, reason });
        }
    }
}

#[cfg(not(feature = "host-filesystem"))]
mod reading {
    use super::*;

    /// Returns `false`: damage cannot be detected.
    pub(in crate::store::backup) fn is_damaged(_: &Path) -> bool {
        false
    }

    /// Reads nothing.
    pub(super) fn read(
        _: &BackupRun<'_>,
        _: &NamedCaptures,
        _: Option<Parent>,
        _: SequenceNumber,
        _: bool,
        _: &mut CopyTotals,
    ) -> Result<bool> {
        Ok(false)
    }
}
