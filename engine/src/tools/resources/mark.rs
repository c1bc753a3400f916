//! Word of who works on a workspace, which outlives their process: the [mark](WorkspaceMark) on its root folder.
//!
//! A process that is killed within a call leaves the workspace half done, and its lease is gone. What another session
//! did there before the first one is recovered would be taken back by that recovery. So a call that may change something
//! sets a mark under the lease, before its begin is recorded, and says in it that nothing is open before the lease is let
//! go. Whoever takes the lease and finds another session's mark looks into that session's log; one that only reads
//! leaves the mark as it is where that is plain without a log:
//!
//! | the mark of another session | then |
//! |---|---|
//! | says that nothing is open, and was written since the machine started | nothing is in the way |
//! | its session has no call open that may change something, or is gone | nothing is, and it is replaced |
//! | its session has one open | [`Error::ResourceDirty`] |
//! | its session's log cannot be read | [`Error::ResourceMaybeDirty`], but for a session that was salvaged from it |
//! | cannot be read itself | [`Error::Filesystem`], which says what to do |
//!
//! # Invariants
//!
//! 1. A mark says where to look, and the log alone says what was left open: a mark that says "open" and should not costs a
//!    reading, no more. Which workspace an open call works on is not asked.
//! 2. A mark that says "idle" is believed within one boot of the machine alone. A killed process takes no attribute with it;
//!    a power cut may, so after one the log is read.
//! 3. Where a session promises to outlast a power cut, the folder is synced before the first begin behind another session's
//!    mark, and not with each call: who holds the workspace is durable, whether a call is open is not, and by 2 need not be.
//! 4. A mark on another folder than the one it was set on counts for nothing: it was copied. Among other boots the inode
//!    alone is compared, since a device may have got another number.
//!
//! # A mark that is not true
//!
//! Whoever may write to the root folder may set its mark, a tool too. One that was forged keeps sessions away, also the one
//! whose call it was that forged it, if that ends with its process; it gives nobody leave that the log does not. No program
//! can tell such a mark from one that is true, so a person has to: [`HostFilesystem::remove_mark`], and the binary's
//! `recover --force`, remove it and tell what it said.
//!
//! # Where there is no mark
//!
//! A file system without extended attributes, or a root folder that may not be written, has none, and the lease alone
//! stands between sessions: there a host recovers a killed session before it lets another one work. The same goes for
//! sessions that do not find one another's folders by the same path, so that one seems to be gone that is not; for a root
//! folder that is replaced by another meanwhile; and for a session at the level [`Process`](crate::Durability::Process) whose
//! end a power cut took after another one had begun.
//!
//! The mark is text of one line: version, `open` or `idle`, `durable` or `fresh`, session, boot, device, inode, and the
//! session's folder, which is last since its name may be of any bytes.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_filesystem::{self as filesystem, WorkspaceLease, WorkspaceMark};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{LeaseHolder, Marked};
use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};
use crate::storage::{FileStorage, Storage};

const VERSION: &str = "1";

/// Which folder it was set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    device: u64,
    inode: u64,
}

impl Place {
    fn of(lease: &WorkspaceLease) -> Place {
        Place { device: lease.device(), inode: lease.inode() }
    }
}

/// Who works on a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    session: Uuid,
    folder: PathBuf,
    /// Nil where the machine does not tell.
    boot: Uuid,
    place: Place,
    /// Whether a call may be open.
    open: bool,
    /// Whether a power cut leaves it, though perhaps with another word on whether a call is open.
    durable: bool,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mark { session, boot, place: Place { device, inode }, open, durable, folder: _ } = self;
        let open = if *open { "open" } else { "idle" };
        let durable = if *durable { "durable" } else { "fresh" };
        write!(f, "{VERSION} {open} {durable} {session} {boot} {device} {inode} ")
    }
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let folder = self.folder.as_os_str().as_bytes();
        let mut bytes = Vec::with_capacity(200 + folder.len());
        // Writing into memory does not fail.
        let _ = write!(bytes, "{self}");
        bytes.extend_from_slice(folder);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Mark> {
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
        let place = Place { device: word()?.parse().ok()?, inode: word()?.parse().ok()? };
        let folder = PathBuf::from(OsStr::from_bytes(parts.next()?));
        folder.is_absolute().then_some(Mark { session, folder, boot, place, open, durable })
    }

    /// Whether it was set on this folder.
    fn is_of(&self, Place { device, inode }: Place, boot: Uuid) -> bool {
        self.place.inode == inode && (self.place.device == device || self.boot != boot)
    }

    fn is_by(&self, lessee: &LeaseHolder<'_>) -> bool {
        self.session == lessee.session()
            && (self.folder == lessee.folder() || is_one_folder(&self.folder, lessee.folder()))
    }

    /// Whether it says that nothing is open, and can be believed.
    fn is_at_rest(&self, boot: Uuid) -> bool {
        !self.open && (self.boot == boot && !boot.is_nil() || sabotage::is(Breakage::MarkOutlivesBoot))
    }

    /// Checks that its session, which is another one than the lessee, left nothing half done.
    fn check(&self, workspace: &Path, lessee: &LeaseHolder<'_>) -> Result<()> {
        let (workspace, session_dir, session) = (workspace.to_owned(), self.folder.clone(), self.session);
        match lessee.left_open(session, &session_dir) {
            Ok(None) => Ok(()),
            Ok(Some(open)) => {
                let (operation, tool) = (open.operation, open.tool.to_string());
                Err(Error::ResourceDirty { workspace, session, session_dir, operation, tool })
            }
            // What it left open is the lessee's to recover, and nobody else can.
            Err(_) if lessee.inherits(session) => Ok(()),
            Err(cause) => {
                Err(Error::ResourceMaybeDirty { workspace, session, session_dir, cause: Arc::new(cause) })
            }
        }
    }
}

/// A session may be found by several paths, such as a mount's.
fn is_one_folder(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

fn unreadable(path: &Path) -> Error {
    let reason = format!(
        "who worked on it last cannot be told: its attribute `{}` is of no form that this version reads. Where no \
         session is left that has to be recovered on it, remove the attribute, as `foldlog recover --force` does",
        WorkspaceLease::MARK
    );
    Error::Filesystem(filesystem::Error::Path { path: path.display().to_string(), reason })
}

/// A workspace, held, and the mark of whoever holds it.
pub(crate) struct MarkedLease {
    /// Whether the lessee was the last one that worked there, and the machine was started again since.
    was_before_boot: bool,
    own: Mutex<Option<Own>>,
    lease: WorkspaceLease,
}

/// The holder's mark; there is none where the folder takes no mark.
struct Own {
    mark: Mark,
    /// Whether the folder bears it as it is here.
    is_borne: bool,
    /// Whether the lease has a call open, or may have.
    is_open: bool,
    /// Whether it is to outlast a power cut.
    outlasts: bool,
}

impl MarkedLease {
    /// The lease, unless another session left the workspace half done.
    pub(crate) fn new(lease: WorkspaceLease, path: &Path, lessee: &LeaseHolder<'_>) -> Result<MarkedLease> {
        let unmarked = |lease| MarkedLease { was_before_boot: false, own: Mutex::new(None), lease };
        let (boot, place) = (FileStorage::new().boot_id().unwrap_or_default(), Place::of(&lease));
        let found = match lease.mark()? {
            WorkspaceMark::Bytes(bytes) => Some(Mark::decode(&bytes).ok_or_else(|| unreadable(path))?),
            WorkspaceMark::TooLong => return Err(unreadable(path)),
            WorkspaceMark::Absent => None,
            WorkspaceMark::Unsupported => return Ok(unmarked(lease)),
        };
        let found = found.filter(|mark| mark.is_of(place, boot));
        let (own, others) = match found {
            Some(mark) if mark.is_by(lessee) => (Some(mark), None),
            others => (None, others),
        };
        let asked = others.filter(|mark| !mark.is_at_rest(boot) && !sabotage::is(Breakage::HalfDoneWorkedOn));
        if let Some(mark) = &asked {
            mark.check(path, lessee)?;
        }
        let (session, folder) = (lessee.session(), lessee.folder().to_owned());
        let mut mark = Mark { session, folder, boot, place, open: false, durable: false };
        if let Some(own) = &own {
            (mark.open, mark.durable) = (own.open, own.durable);
        }
        let was_before_boot = own.as_ref().is_some_and(|own| own.boot != boot);
        let is_borne = own.is_some_and(|own| own == mark);
        let outlasts = lessee.is_durable() && !sabotage::is(Breakage::MarkNotDurable);
        let own = Own { mark, is_borne, is_open: false, outlasts };
        let marked = MarkedLease { was_before_boot, own: Mutex::new(Some(own)), ..unmarked(lease) };
        if asked.is_some() && !lessee.is_interrupted() {
            // The log said what it says once and for all, and is not to be read for each call that follows. A session
            // that is to be recovered marks nothing before it knows that this is the folder that it left half done.
            marked.open()?;
        }
        Ok(marked)
    }

    /// Whether the lessee was the last one that worked there, and the machine was started again since.
    pub(crate) fn was_before_boot(&self) -> bool {
        self.was_before_boot
    }
}

impl Marked for MarkedLease {
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
            // It is said with the word that nothing is open: a process that ends before has it synced once more.
            own.mark.durable = self.lease.sync()?;
        }
        own.is_open = true;
        Ok(())
    }

    /// Where this fails the mark goes on saying that a call may be open.
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
        /// Whatever stands in the attribute is a mark or is not, and a mark is read as it was written.
        #[test]
        fn a_mark_is_read_as_it_was_written(
            (session, boot, (device, inode)) in (any::<u128>(), any::<u128>(), any::<(u64, u64)>()),
            (open, durable) in any::<(bool, bool)>(),
            folder in proptest::collection::vec(1u8.., 0..64),
            anything in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (session, boot) = (Uuid::from_u128(session), Uuid::from_u128(boot));
            let folder = Path::new("/").join(OsStr::from_bytes(&folder));
            let mark = Mark { session, folder, boot, place: Place { device, inode }, open, durable };
            let bytes = mark.encode();
            prop_assert_eq!(Mark::decode(&bytes), Some(mark));
            prop_assert_eq!(Mark::decode(&anything), None);
            let _ = Mark::decode(&[&bytes[..bytes.len() / 2], &anything[..]].concat());
        }
    }
}
