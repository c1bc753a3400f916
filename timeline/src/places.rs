use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::{Error, Result};

/// File in a timeline's directory with the path of its root.
const ROOT_FILE: &str = "root";

/// Where the timeline of a root is.
///
/// All timelines of a user are in one directory, usually `$XDG_STATE_HOME/foldlog/timelines`. The
/// name of a timeline's directory is made of the root's name and of a hash of its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelinePlace {
    /// Root of the timeline, with all links resolved.
    pub root: PathBuf,
    /// Directory of the timeline.
    pub dir: PathBuf,
}

impl TimelinePlace {
    /// Returns the place of the timeline of a root, which may not exist yet.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the root does not exist.
    pub fn of_root(timelines: &Path, root: &Path) -> Result<TimelinePlace> {
        let canonical = fs::canonicalize(root);
        let root = canonical.map_err(|source| Error::Io { action: "find", path: root.to_owned(), source })?;
        let hash = blake3::hash(root.as_os_str().as_bytes()).to_hex();
        let name: String = root
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .chars()
            .map(|letter| if letter.is_alphanumeric() { letter } else { '-' })
            .take(32)
            .collect();
        let dir = timelines.join(format!("{name}-{}", hash.get(..16).unwrap_or_default()));
        Ok(TimelinePlace { root, dir })
    }

    /// Finds the timeline whose root is a directory or the nearest one around it.
    ///
    /// # Errors
    ///
    /// - [`Error::NoTimeline`] if there is none.
    /// - [`Error::Io`] if the directory does not exist.
    pub fn around(timelines: &Path, directory: &Path) -> Result<TimelinePlace> {
        let here = TimelinePlace::of_root(timelines, directory)?;
        for root in here.root.ancestors() {
            let place = TimelinePlace::of_root(timelines, root)?;
            if place.exists() {
                return Ok(place);
            }
        }
        Err(Error::NoTimeline { path: here.root })
    }

    /// Returns the roots of all timelines, in ascending order. Skips those that cannot be read.
    pub fn roots(timelines: &Path) -> Vec<PathBuf> {
        let dirs = fs::read_dir(timelines).into_iter().flatten().flatten();
        let roots = dirs.filter_map(|dir| fs::read(dir.path().join(ROOT_FILE)).ok());
        let mut roots: Vec<PathBuf> = roots.map(|root| PathBuf::from(OsString::from_vec(root))).collect();
        roots.sort();
        roots
    }

    /// Returns whether there is a timeline at this place.
    pub fn exists(&self) -> bool {
        self.dir.join(ROOT_FILE).is_file()
    }

    /// Creates the timeline's directory, for its owner only.
    pub(crate) fn create(&self) -> Result<()> {
        if self.exists() {
            return Ok(());
        }
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { action, path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(io("create", &self.dir))?;
        let (file, temporary) = (self.dir.join(ROOT_FILE), self.dir.join("root.new"));
        fs::write(&temporary, self.root.as_os_str().as_bytes()).map_err(io("write", &temporary))?;
        fs::rename(&temporary, &file).map_err(io("write", &file))
    }

    /// Returns the id of the timeline's session: a fixed one, so that a creation that was killed is
    /// completed.
    pub(crate) fn session_id(&self) -> Uuid {
        let mut bytes = [0; 16];
        let hash = blake3::hash(self.root.as_os_str().as_bytes());
        bytes.iter_mut().zip(hash.as_bytes()).for_each(|(byte, from)| *byte = *from);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    pub(crate) fn captures(&self) -> PathBuf {
        self.dir.join("captures")
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.dir.join("lock")
    }
}
