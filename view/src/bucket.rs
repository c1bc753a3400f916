//! A bucket in a local directory whose path is given in place of its URL.

use std::path::{Path, PathBuf};

/// Maximum number of a directory's entries that are examined.
const LOOKED_AT_MAX: usize = 1_000;

/// Returns the URL that corresponds to a path in a bucket in a local directory: that of a session,
/// or of a place with sessions. For a directory that contains places, returns the URL of the first.
/// Returns `None` for any other path, such as a store's directory.
pub fn bucket_at(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let is_among_sessions = path.parent().and_then(Path::file_name).is_some_and(|name| name == "sessions");
    let of = |place: &Path| Some(format!("file://{}", place.to_str()?));
    if is_among_sessions && holds_chunks(&path) || has_sessions(&path) {
        return of(&path);
    }
    directories(&path).find(|place| has_sessions(place)).and_then(|place| of(&place))
}

fn has_sessions(place: &Path) -> bool {
    directories(&place.join("sessions")).any(|session| holds_chunks(&session))
}

/// Returns whether a directory belongs to a session in a bucket. A store's session directory
/// contains segments instead.
fn holds_chunks(session: &Path) -> bool {
    ["log", "volumes"].iter().any(|name| session.join(name).is_dir())
}

fn directories(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().take(LOOKED_AT_MAX);
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}
