//! Inspects the directory of a session without reading its log: its segments, the remains of a
//! crash, the store around it.

use std::io;
use std::path::{Path, PathBuf};

use foldlog::inspect;
use foldlog::storage::{Access, FileStorage, Storage};
use foldlog_codec::escape;
use foldlog_codec::segment::HEADER_LEN;
use uuid::Uuid;

/// Returns whether any segment in the directory `dir` may contain a record. This is true of a
/// segment that cannot be read, or whose bytes after the header are more than zeros and more than a
/// crash leaves before the first record.
pub fn holds_anything(dir: &Path) -> bool {
    if inspect::is_leftover(dir).unwrap_or_default() {
        return false;
    }
    segments(dir).is_none_or(|segments| segments.iter().any(|path| holds_data(path).unwrap_or(true)))
}

fn holds_data(path: &Path) -> io::Result<bool> {
    // As when a log is read, links are not followed, pipes do not block, and holes are skipped.
    let file = FileStorage::new().open(path, Access::Read)?;
    let mut bytes = vec![0; 64 << 10];
    let mut offset = HEADER_LEN as u64;
    loop {
        offset = file.next_data(offset)?;
        match file.read_at(&mut bytes, offset)? {
            0 => return Ok(false),
            read if bytes.iter().take(read).any(|byte| *byte != 0) => return Ok(true),
            read => offset += read as u64,
        }
    }
}

/// Returns the segment files of a directory in the order of their ordinals, or `None` if the
/// directory cannot be read.
pub fn segments(dir: &Path) -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut segments: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect();
    segments.sort();
    Some(segments)
}

/// Returns the paths in a session's directory that are not segments, and the file in which a writer
/// of the session names itself, in the order of their names.
pub fn leftovers(dir: &Path) -> Vec<PathBuf> {
    let segments = segments(dir).unwrap_or_default();
    let mut beside: Vec<PathBuf> = entries(dir).filter(|path| !segments.contains(path)).collect();
    // A writer names itself before it writes its first record, and removes that file when it
    // closes.
    beside.extend(word_of_writer(dir));
    beside.sort();
    beside
}

/// Returns the file in which a writer of the session names itself, if there is one.
fn word_of_writer(dir: &Path) -> Option<PathBuf> {
    let id = dir.file_name()?.to_str()?;
    let word = dir.parent()?.parent()?.join("writers").join(format!("{id}.json"));
    word.symlink_metadata().is_ok().then_some(word)
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// Returns a reason if the session in a directory has lost its segments; `None` if not. Such a
/// directory has no segment, but contains a file that is only created after a first record. A crash
/// during a session's creation leaves none of these:
///
/// | entry | created |
/// |---|---|
/// | `objects` | with the segment whose records name them |
/// | `recovery.spare` | while a tool call is open |
/// | `snapshots`, of images | from a log |
/// | any directory that contains a directory `objects` | with the first capture of a workspace |
///
/// A writer's file in the store's directory `writers` is created before any record, so it is no
/// sign of one.
pub fn lost_segments(dir: &Path) -> Option<String> {
    let id = dir.canonicalize().ok()?;
    Uuid::try_parse(id.file_name()?.to_str()?).ok()?;
    if !segments(dir)?.is_empty() {
        return None;
    }
    let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let is_sign = |path: &PathBuf| match path.file_name().and_then(|name| name.to_str()) {
        Some("recovery.spare") => path.symlink_metadata().is_ok_and(|found| found.is_file()),
        Some("objects" | "snapshots") => is_directory(path),
        _ => is_directory(path) && is_directory(&path.join("objects")),
    };
    let mut names: Vec<String> = entries(dir)
        .filter(is_sign)
        .filter_map(|path| Some(format!("`{}`", escape::path(path.file_name()?.as_ref()))))
        .collect();
    names.sort();
    (!names.is_empty()).then(|| {
        format!(
            "its segments are missing: it contains {}, which exist only if records were written",
            names.join(", ")
        )
    })
}

/// Returns the store that contains a session's directory, and the session's id; `None` if the
/// directory is in no store.
pub fn store_of(session: &Path) -> Option<(PathBuf, Uuid)> {
    let store = inspect::store_around(session)?;
    let session = session.canonicalize().ok()?;
    Some((store, Uuid::try_parse(session.file_name()?.to_str()?).ok()?))
}
