//! A directory of the host as a resource: capture, restore, lease, and the mark of the working
//! session. The [mark](WorkspaceMark) is an extended attribute of the root directory, and outlives
//! the process.
//!
//! # Marks
//!
//! A process that is killed within a call leaves the workspace half changed, and its lease ends. If
//! another session then changed the workspace, the recovery of the first session would roll these
//! changes back too. So a call that may make changes sets the mark to *open* under the lease,
//! before its start record is written, and the lease sets the mark to *idle* before it is released.
//! A session that takes the lease and finds the mark of another session reads that session's log,
//! unless the first row applies:
//!
//! | the mark of another session | the session that takes the lease |
//! |---|---|
//! | is idle, and was written since the machine started | gets it; a call that only reads does not change the mark |
//! | names a session that has no open call that may make changes, or that no longer exists | gets it, and replaces the mark |
//! | names a session that has such an open call | is refused with [`Error::ResourceDirty`] |
//! | names a session whose log cannot be read | is refused with [`Error::ResourceMaybeDirty`], unless it was salvaged from that session |
//! | cannot be read itself | is refused with [`Error::Filesystem`], which contains the remedy |
//!
//! # Invariants
//!
//! 1. A mark names the log to read; only that log shows whether a call was left open. An
//!    unnecessarily open mark costs one reading of a log. Which workspace the open call works on is
//!    not considered.
//! 2. An idle mark is trusted only within the boot of the machine that wrote it. A killed process
//!    leaves the attribute unchanged, but a power cut may lose a write to it, so after a reboot the
//!    log is read.
//! 3. If a session's records must survive a power cut, the session syncs the directory before its
//!    first start record after another session's mark, and not with each call. The name of the
//!    working session is therefore durable; whether a call is open is not, and need not be, by 2.
//! 4. A mark that was set on another directory was copied here, and is ignored. If the mark is of
//!    another boot, only the inode is compared, because the device may have another number now.
//!
//! # A false mark
//!
//! Every user who may write to the root directory may set its mark, and so may a tool. A forged
//! mark excludes sessions, even the session whose call forged it if the process ends within that
//! call; it permits nothing that the log does not permit. No program can distinguish a forged mark
//! from a true one, so a person has to decide:
//! [`HostFilesystem::remove_mark`](foldlog_filesystem::HostFilesystem::remove_mark), and the
//! binary's `recover --force`, remove a mark and report its content.
//!
//! # Cases without protection by a mark
//!
//! In these cases only the lease separates sessions, and a host has to recover a killed session
//! before another one works:
//!
//! - The file system has no extended attributes, or the root directory is not writable.
//! - The sessions do not find each other's directories by the same path, so that a session seems
//!   not to exist.
//! - The root directory is replaced by another during the work.
//! - With [`Durability::Process`](crate::Durability::Process), a power cut removes the end of the
//!   marked session's log after another session has started to work.
//!
//! # Form
//!
//! A mark is one line of text: version, `open` or `idle`, `durable` or `fresh`, session, boot,
//! device, inode, and the session's directory. The directory is last because its name may contain
//! any bytes.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use foldlog_codec::OperationId;
use foldlog_filesystem::{
    self as filesystem, FilesystemSnapshot, HostFilesystem, Rebind, RewindMerge, RewindMergeInputs,
    UnrestoredPath, WorkspaceLease, WorkspaceMark, WorkspaceRestoreReport,
};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{
    CaptureOptions, LeaseHolder, LeaseMark, ResourceLease, RestoreReport, RewindRequest, Rewound,
    Snapshotable, decode_capture, encode_capture,
};
use crate::clock;
use crate::error::{Blocker, Error, Result};
use crate::storage::{FileStorage, Storage};

impl Snapshotable for HostFilesystem {
    const NAME: &'static str = "workspace";
    type Snapshot = FilesystemSnapshot;

    /// Captures the workspace without the tag of `options`, so that equal content has equal
    /// snapshots, and a snapshot of an unchanged workspace writes nothing.
    fn snapshot(&self, options: &CaptureOptions) -> Result<FilesystemSnapshot> {
        self.keep_unsynced();
        Ok(HostFilesystem::snapshot_until(self, None, options.durable, options.until)?)
    }

    fn sync_captures(&self, earlier: &[FilesystemSnapshot]) -> Result<()> {
        Ok(HostFilesystem::sync_captures(self, earlier)?)
    }

    fn restore(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        Ok(HostFilesystem::restore(self, snapshot).map(drop)?)
    }

    fn restore_and_tell(&self, snapshot: &FilesystemSnapshot) -> Result<RestoreReport> {
        Ok(report_of(HostFilesystem::restore(self, snapshot)?))
    }

    fn roll_back(&self, snapshot: &FilesystemSnapshot, operation: OperationId) -> Result<RestoreReport> {
        Ok(report_of(HostFilesystem::roll_back(self, snapshot, &operation.to_string())?))
    }

    fn set_aside(&self, snapshot: &FilesystemSnapshot, operation: OperationId) -> Result<()> {
        Ok(HostFilesystem::set_aside(self, snapshot, &operation.to_string())?)
    }

    fn check(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        self.check_kept(snapshot)?;
        Ok(self.check_directory(snapshot)?)
    }

    fn sync_restored(&self) -> Result<()> {
        Ok(HostFilesystem::sync_restored(self)?)
    }

    /// Compares the files, but neither the directories of the snapshots nor the repositories in
    /// them, whose indexes contain times.
    fn is_same(one: &FilesystemSnapshot, other: &FilesystemSnapshot) -> bool {
        let own = |snapshot: &FilesystemSnapshot| FilesystemSnapshot {
            repositories: None,
            directory: None,
            path: None,
            ..snapshot.clone()
        };
        own(one) == own(other)
    }

    fn record(snapshot: &FilesystemSnapshot) -> Result<Option<Vec<u8>>> {
        encode_capture::<Self>(snapshot).map(Some)
    }

    fn recall(recorded: &[u8]) -> Result<FilesystemSnapshot> {
        decode_capture::<Self>(recorded)
    }

    fn scratch(&self, snapshot: &FilesystemSnapshot) -> Result<Option<HostFilesystem>> {
        Ok(Some(HostFilesystem::scratch(self, snapshot)?))
    }

    fn rewind(&self, asked: &RewindRequest<'_, FilesystemSnapshot>) -> Result<Rewound<FilesystemSnapshot>> {
        let RewindRequest { target, last, last_is_here, present, overwrite, unless_changed, after_restore } =
            *asked;
        self.check_directory(target)?;
        let here = last_is_here.then(|| FilesystemSnapshot { directory: present.directory, ..last.clone() });
        let last = here.as_ref().unwrap_or(last);
        let RewindMerge { snapshot, kept, unknown, left_out } =
            self.merge_for_rewind(&RewindMergeInputs { target, last, present, overwrite, after_restore })?;
        let files = self.rewound(present, &snapshot)?;
        let to = FilesystemSnapshot { unless_changed, ..snapshot };
        Ok(Rewound { to, files, kept, unknown, left_out })
    }

    fn is_of_other_place(&self, snapshot: &FilesystemSnapshot) -> bool {
        matches!(self.check_directory(snapshot), Err(filesystem::Error::Replaced { .. }))
    }

    fn is_from_elsewhere(&self, snapshot: &FilesystemSnapshot) -> bool {
        HostFilesystem::is_from_elsewhere(self, snapshot)
    }

    fn rebind(&self, overwrite: bool) -> Result<()> {
        let rebind = if overwrite { Rebind::Overwrite } else { Rebind::IfEmpty };
        Ok(HostFilesystem::rebind(self, rebind)?)
    }

    fn is_of_place_of(snapshot: &FilesystemSnapshot, present: &FilesystemSnapshot) -> bool {
        snapshot.is_of_directory_of(present)
    }

    fn differences(&self, snapshot: &FilesystemSnapshot) -> Result<Vec<String>> {
        Ok(HostFilesystem::differences(self, snapshot)?)
    }

    fn tell_of_changes(
        &self,
        left: &FilesystemSnapshot,
        found: Option<&FilesystemSnapshot>,
        now: &FilesystemSnapshot,
    ) {
        HostFilesystem::tell_of_changes(self, left, found, now);
    }

    fn check_apart(&self, snapshot: &FilesystemSnapshot) -> Result<()> {
        Ok(HostFilesystem::check_apart(self, snapshot)?)
    }

    fn free_caches(&self) {
        HostFilesystem::free_caches(self);
    }

    fn holds(&self, directory: &Path) -> bool {
        HostFilesystem::holds(self, directory)
    }

    /// Takes the lease of the workspace, whose root directory is marked while a call may change
    /// its contents. Refuses a `holder` that finds the mark of another session which left the
    /// workspace half changed.
    fn lease(&self, holder: &LeaseHolder<'_>, until: Instant) -> Result<Option<ResourceLease>> {
        let began = clock::now();
        let mut may_open_up = holder.is_interrupted();
        loop {
            let leased = match self.lease_for(until, || holder.draw_token()) {
                // The interrupted call may have revoked all permissions to open the directory.
                Err(filesystem::Error::Io { source, .. })
                    if may_open_up && source.kind() == ErrorKind::PermissionDenied =>
                {
                    may_open_up = false;
                    if let Some(Some(recorded)) = holder.session.calls().open_captures()?.remove(Self::NAME) {
                        self.make_openable(&Self::recall(&recorded)?)?;
                    }
                    continue;
                }
                leased => leased?,
            };
            match leased {
                Some(lease) => {
                    if let Some(held) = holder.session.held_captures_dir() {
                        self.tell_unless_held(&held);
                    }
                    let marked = MarkedLease::new(lease, self.root(), holder)?;
                    self.adopt(|| {
                        let last = match holder.is_interrupted() {
                            true => {
                                let captures = holder.session.calls().open_captures();
                                captures.map(|mut captures| captures.remove(Self::NAME).flatten())
                            }
                            // A refused call's capture is not work of the session.
                            false => holder.session.calls().last_captured(Self::NAME, true),
                        };
                        Self::recall(&last.ok()??).ok()
                    })?;
                    // An interrupted session is about to restore the workspace anyway.
                    if marked.was_before_boot && !holder.is_interrupted() {
                        self.tell_of_boot(|| {
                            let recorded = holder.last_captured(Self::NAME)?;
                            recorded.map(|recorded| Self::recall(&recorded)).transpose()
                        });
                    }
                    return Ok(Some(ResourceLease::new(marked)));
                }
                None => {
                    let (resource, holder) =
                        (Self::NAME.to_owned(), self.mark_now().ok().and_then(marked_by));
                    let blocker = Box::new(Blocker::Resource { resource, holder });
                    return Err(Error::WaitedTooLong { waited: began.elapsed(), blocker });
                }
            }
        }
    }
}

fn report_of(restored: WorkspaceRestoreReport) -> RestoreReport {
    let WorkspaceRestoreReport { inexact, mounts, changed_paths, removed_paths, .. } = restored;
    let reason = "something is mounted there, and was left alone with all that is in it";
    let mounts = mounts.into_iter().map(|path| UnrestoredPath::new(path, reason));
    let inexact = inexact.into_iter().chain(mounts).collect();
    RestoreReport { inexact, changed: changed_paths, removed: removed_paths }
}

const VERSION: &str = "1";

/// Identifies the directory on which a mark was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirectoryId {
    device: u64,
    inode: u64,
}

impl DirectoryId {
    fn from_lease(lease: &WorkspaceLease) -> DirectoryId {
        DirectoryId { device: lease.device(), inode: lease.inode() }
    }
}

/// Content of a mark: the session that works on the workspace, and whether a call may be open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HolderMark {
    session: Uuid,
    directory: PathBuf,
    /// Boot id of the machine that wrote the mark; nil if the machine has none.
    boot: Uuid,
    place: DirectoryId,
    /// Whether a call may be open.
    open: bool,
    /// Whether the mark survives a power cut, though `open` may then be an older value.
    durable: bool,
}

impl fmt::Display for HolderMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HolderMark { session, boot, place: DirectoryId { device, inode }, open, durable, directory: _ } =
            self;
        let open = if *open { "open" } else { "idle" };
        let durable = if *durable { "durable" } else { "fresh" };
        write!(f, "{VERSION} {open} {durable} {session} {boot} {device} {inode} ")
    }
}

impl HolderMark {
    fn encode(&self) -> Vec<u8> {
        let directory = self.directory.as_os_str().as_bytes();
        let mut bytes = Vec::with_capacity(200 + directory.len());
        // A write into memory does not fail.
        let _ = write!(bytes, "{self}");
        bytes.extend_from_slice(directory);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<HolderMark> {
        let mut parts = bytes.splitn(8, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        if word()? != VERSION {
            return None;
        }
        let one_of = |word: &str, yes: &str, no: &str| match word {
            word if word == yes => Some(true),
            word if word == no => Some(false),
            _ => None,
        };
        let open = one_of(word()?, "open", "idle")?;
        let durable = one_of(word()?, "durable", "fresh")?;
        let (session, boot) = (word()?.parse().ok()?, word()?.parse().ok()?);
        let place = DirectoryId { device: word()?.parse().ok()?, inode: word()?.parse().ok()? };
        let directory = PathBuf::from(OsStr::from_bytes(parts.next()?));
        directory.is_absolute().then_some(HolderMark { session, directory, boot, place, open, durable })
    }

    /// Returns whether the mark was set on the directory at `place`, if the present boot is `boot`.
    fn is_of(&self, DirectoryId { device, inode }: DirectoryId, boot: Uuid) -> bool {
        self.place.inode == inode && (self.place.device == device || self.boot != boot)
    }

    fn is_by(&self, holder: &LeaseHolder<'_>) -> bool {
        self.session == holder.session()
            && (self.directory == holder.directory() || is_one_directory(&self.directory, holder.directory()))
    }

    /// Returns whether the mark is idle and was written in the boot `boot`, so that no log need be
    /// read.
    fn is_at_rest(&self, boot: Uuid) -> bool {
        !self.open && self.boot == boot && !boot.is_nil()
    }

    /// Checks that the session of the mark, which differs from `holder`, left nothing half changed.
    fn check(&self, workspace: &Path, holder: &LeaseHolder<'_>) -> Result<()> {
        let (workspace, session_dir, session) = (workspace.to_owned(), self.directory.clone(), self.session);
        match holder.left_open(session, &session_dir) {
            Ok(None) => Ok(()),
            Ok(Some(open)) => {
                let (operation, tool) = (open.operation, open.tool.to_string());
                Err(Error::ResourceDirty { workspace, session, session_dir, operation, tool })
            }
            // Only the holder can recover calls that the salvaged session left open.
            Err(_) if holder.inherits(session) => Ok(()),
            Err(cause) => {
                Err(Error::ResourceMaybeDirty { workspace, session, session_dir, cause: Arc::new(cause) })
            }
        }
    }
}

/// Returns the session that has an open call on the workspace, according to its mark; `None` if the
/// mark shows none.
fn marked_by(mark: WorkspaceMark) -> Option<String> {
    let WorkspaceMark::Bytes(bytes) = mark else { return None };
    let HolderMark { session, directory, open, .. } = HolderMark::decode(&bytes)?;
    open.then(|| format!("session {session} in {}", directory.display()))
}

/// Returns whether both paths lead to one directory: several paths, such as those of mounts, may
/// lead to a session.
fn is_one_directory(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Returns the error for a mark that this version cannot read.
fn unreadable(path: &Path) -> Error {
    let reason = format!(
        "this version of foldlog cannot read its attribute `{}`, which names the session that worked on it last. If no \
         session has to be recovered there, remove the attribute, as `foldlog recover --force` does",
        WorkspaceLease::MARK
    );
    Error::Filesystem(filesystem::Error::Path { path: path.display().to_string(), reason })
}

/// Lease of a workspace, and the mark of its holder.
struct MarkedLease {
    /// Whether the holder was the last to work there, and the machine was rebooted since.
    was_before_boot: bool,
    /// `None` if the directory supports no mark.
    own: Mutex<Option<Own>>,
    lease: WorkspaceLease,
}

/// Mark of the lease's holder.
struct Own {
    mark: HolderMark,
    /// Whether the directory has exactly this mark.
    is_borne: bool,
    /// Whether a call of the holder may be open under this lease.
    is_open: bool,
    /// Whether the mark must survive a power cut.
    outlasts: bool,
}

impl MarkedLease {
    /// Reads the mark of the workspace at `path` and stores the lease for `holder`. Fails if
    /// another session left the workspace half changed, or if that is unknown.
    fn new(lease: WorkspaceLease, path: &Path, holder: &LeaseHolder<'_>) -> Result<MarkedLease> {
        let unmarked = |lease| MarkedLease { was_before_boot: false, own: Mutex::new(None), lease };
        let (boot, place) =
            (FileStorage::new().boot_id().unwrap_or_default(), DirectoryId::from_lease(&lease));
        let found = match lease.mark()? {
            WorkspaceMark::Bytes(bytes) => Some(HolderMark::decode(&bytes).ok_or_else(|| unreadable(path))?),
            WorkspaceMark::TooLong => return Err(unreadable(path)),
            WorkspaceMark::Absent => None,
            WorkspaceMark::Unsupported => return Ok(unmarked(lease)),
        };
        let found = found.filter(|mark| mark.is_of(place, boot));
        let (own, others) = match found {
            Some(mark) if mark.is_by(holder) => (Some(mark), None),
            others => (None, others),
        };
        let asked = others.filter(|mark| !mark.is_at_rest(boot));
        if let Some(mark) = &asked {
            mark.check(path, holder)?;
        }
        let (session, directory) = (holder.session(), holder.directory().to_owned());
        let mut mark = HolderMark { session, directory, boot, place, open: false, durable: false };
        if let Some(own) = &own {
            (mark.open, mark.durable) = (own.open, own.durable);
        }
        let was_before_boot = own.as_ref().is_some_and(|own| own.boot != boot);
        let is_borne = own.is_some_and(|own| own == mark);
        let outlasts = holder.is_durable();
        let own = Own { mark, is_borne, is_open: false, outlasts };
        let marked = MarkedLease { was_before_boot, own: Mutex::new(Some(own)), ..unmarked(lease) };
        if asked.is_some() && !holder.is_interrupted() {
            // The own mark avoids reading the other session's log again for each later call. An
            // interrupted session sets no mark before it knows that this is the directory that it
            // left half changed.
            marked.open()?;
        }
        Ok(marked)
    }
}

impl LeaseMark for MarkedLease {
    fn open(&self) -> Result<()> {
        let mut marking = self.own.lock();
        let Some(own) = marking.as_mut().filter(|own| !own.is_open) else { return Ok(()) };
        if !own.is_borne || !own.mark.open {
            own.mark.open = true;
            own.is_borne = self.lease.set_mark(&own.mark.encode())?;
            if !own.is_borne {
                *marking = None;
                return Ok(());
            }
        }
        if own.outlasts && !own.mark.durable {
            // Only the idle mark contains `durable`: if the process ends before, the next one syncs
            // the directory once more.
            own.mark.durable = self.lease.sync()?;
        }
        own.is_open = true;
        Ok(())
    }

    /// Sets the mark to idle. If that fails, the mark stays open, and the next session has to read
    /// the log.
    fn rest(&self) {
        if let Some(own) = self.own.lock().as_mut().filter(|own| own.is_open) {
            own.mark.open = false;
            own.is_borne = self.lease.set_mark(&own.mark.encode()).unwrap_or(false);
            own.is_open = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        /// Decodes any bytes without a panic, and decodes a mark to the encoded value.
        #[test]
        fn a_mark_is_read_as_it_was_written(
            (session, boot, (device, inode)) in (any::<u128>(), any::<u128>(), any::<(u64, u64)>()),
            (open, durable) in any::<(bool, bool)>(),
            directory in proptest::collection::vec(1u8.., 0..64),
            anything in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (session, boot) = (Uuid::from_u128(session), Uuid::from_u128(boot));
            let directory = Path::new("/").join(OsStr::from_bytes(&directory));
            let mark = HolderMark { session, directory, boot, place: DirectoryId { device, inode }, open, durable };
            let bytes = mark.encode();
            prop_assert_eq!(HolderMark::decode(&bytes), Some(mark));
            prop_assert_eq!(HolderMark::decode(&anything), None);
            let _ = HolderMark::decode(&[&bytes[..bytes.len() / 2], &anything[..]].concat());
        }
    }
}
