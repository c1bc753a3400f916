use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{read_regular_file, unescape_path};
use uuid::Uuid;

use crate::working_tree::WorkingTree;
use crate::{Error, Result};

/// File in a timeline's directory with the path of its root.
const ROOT_FILE: &str = "root";

/// Longest path that is read from a file, in bytes.
const PATH_BYTES_MAX: u64 = 16 << 10;

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
        let root = fs::canonicalize(root).map_err(Error::io("find", root))?;
        Ok(TimelinePlace::of_canonical(timelines, root))
    }

    fn of_canonical(timelines: &Path, root: PathBuf) -> TimelinePlace {
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
        TimelinePlace { root, dir }
    }

    /// Returns the absolute path of an escaped path relative to the root, like that of a
    /// [`FileChange`](foldlog::filesystem::FileChange).
    pub fn absolute(&self, path: &str) -> PathBuf {
        let bytes = unescape_path(path).unwrap_or_else(|| path.as_bytes().to_vec());
        self.root.join(OsStr::from_bytes(&bytes))
    }

    /// Returns the place of the timeline with exactly this root, if there is one. The root may have
    /// been removed, or something else may be in its place.
    pub fn of_recorded_root(timelines: &Path, root: &Path) -> Option<TimelinePlace> {
        Some(TimelinePlace::of_canonical(timelines, root.to_owned())).filter(TimelinePlace::exists)
    }

    /// Finds the timeline whose root is a directory or the nearest one around it. The directory may
    /// have been removed.
    ///
    /// # Errors
    ///
    /// - [`Error::NoTimeline`] if there is none.
    /// - [`Error::Io`] if the path cannot be made absolute.
    pub fn around(timelines: &Path, directory: &Path) -> Result<TimelinePlace> {
        let absolute = std::path::absolute(directory).map_err(Error::io("find", directory))?;
        let mut present = absolute.ancestors().filter_map(|around| {
            let rest = absolute.strip_prefix(around).ok()?;
            // Joining an empty path would add a slash.
            fs::canonicalize(around).ok().map(|around| around.components().chain(rest.components()).collect())
        });
        let here: PathBuf = present.next().unwrap_or_else(|| absolute.clone());
        let places = here.ancestors().map(|root| TimelinePlace::of_canonical(timelines, root.to_owned()));
        places.into_iter().find(TimelinePlace::exists).ok_or(Error::NoTimeline { path: here })
    }

    /// Returns the roots of all timelines, in ascending order. Skips those that cannot be read.
    pub fn roots(timelines: &Path) -> Vec<PathBuf> {
        TimelinePlace::all(timelines).into_iter().map(|place| place.root).collect()
    }

    /// Returns the places of all timelines, in ascending order of their roots.
    pub(crate) fn all(timelines: &Path) -> Vec<TimelinePlace> {
        let dirs = fs::read_dir(timelines).into_iter().flatten().flatten().map(|dir| dir.path());
        let places = dirs.filter_map(|dir| {
            let root = recorded_path(&dir.join(ROOT_FILE))?;
            Some(TimelinePlace { root, dir })
        });
        let mut places: Vec<TimelinePlace> = places.collect();
        places.sort_by(|one, other| one.root.cmp(&other.root));
        places
    }

    /// Returns whether there is a timeline at this place.
    pub fn exists(&self) -> bool {
        self.dir.join(ROOT_FILE).is_file()
    }

    /// Creates the timeline's directory, for its owner only. It contains a timeline once the root is
    /// [recorded](TimelinePlace::record_root).
    pub(crate) fn create_dir(&self) -> Result<()> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        created.map_err(Error::io("create", &self.dir))
    }

    /// Records the path of the root. The caller has locked the timeline.
    pub(crate) fn record_root(&self) -> Result<()> {
        if self.exists() { Ok(()) } else { self.write_file(ROOT_FILE, self.root.as_os_str().as_bytes()) }
    }

    /// Writes a file of the timeline's directory as a whole. The caller has locked the timeline: two
    /// processes would use the same temporary name.
    pub(crate) fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (file, temporary) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &file));
        written.map_err(Error::io("write", &file))
    }

    /// Returns the directory of all timelines.
    pub(crate) fn timelines(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    /// Returns the captures of another working tree of the root's repository. The first capture
    /// links the objects that are there, since most files of working trees are alike. Later ones do
    /// not: a collection removes names from a pool, and this one is a store in use.
    pub(crate) fn captures_of_repository(&self) -> Option<PathBuf> {
        if self.captures().exists() {
            return None;
        }
        let tree = WorkingTree::around(&self.root).filter(WorkingTree::has_others)?;
        let is_main = |place: &TimelinePlace| Some(place.root.as_path()) == tree.main_top();
        let is_mate = |place: &TimelinePlace| {
            place.root != self.root
                && place.captures().exists()
                && (is_main(place) || place.repository().as_ref() == Some(&tree.common))
        };
        let mates = TimelinePlace::all(self.timelines()).into_iter().filter(is_mate);
        mates.max_by_key(is_main).map(|place| place.captures())
    }

    /// Returns the id of the timeline's session: a fixed one, so that a creation that was killed is
    /// completed.
    pub(crate) fn session_id(&self) -> Uuid {
        self.fixed_id(b"")
    }

    /// Returns the id of the session with the conversations.
    pub(crate) fn conversations_id(&self) -> Uuid {
        self.fixed_id(b"\0conversations")
    }

    fn fixed_id(&self, name: &[u8]) -> Uuid {
        let mut bytes = [0; 16];
        let hash = blake3::hash(&[self.root.as_os_str().as_bytes(), name].concat());
        bytes.iter_mut().zip(hash.as_bytes()).for_each(|(byte, from)| *byte = *from);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }

    /// Returns the place of the timeline whose session is in a directory; `None` if that is the
    /// session of something else.
    pub fn of_session(session_dir: &Path) -> Option<TimelinePlace> {
        let session_dir = fs::canonicalize(session_dir).ok()?;
        let dir = session_dir.ancestors().nth(3)?;
        let root = recorded_path(&dir.join(ROOT_FILE))?;
        let place = TimelinePlace { root, dir: dir.to_owned() };
        (place.session_dir() == session_dir).then_some(place)
    }

    /// Returns the directory of the timeline's session.
    pub fn session_dir(&self) -> PathBuf {
        self.store().join("sessions").join(self.session_id().to_string())
    }

    /// Returns the directory of the session with the conversations, which may not exist.
    pub fn conversations_dir(&self) -> PathBuf {
        self.store().join("sessions").join(self.conversations_id().to_string())
    }

    /// Returns the directory of the captures.
    pub fn captures(&self) -> PathBuf {
        self.dir.join("captures")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.dir.join("lock")
    }
}

/// Reads the path in a file of a timeline.
pub(crate) fn recorded_path(file: &Path) -> Option<PathBuf> {
    Some(PathBuf::from(OsString::from_vec(read_regular_file(file, PATH_BYTES_MAX).ok()?)))
}
