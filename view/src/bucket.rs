//! A bucket in a local directory whose path is given in place of its URL.

use std::path::{Path, PathBuf};

/// How many entries of a directory are looked at.
const LOOKED_AT_MAX: usize = 1_000;

/// Returns the URL of what a path names in a bucket that is in a local directory: a session, the place of some, or the first place beneath
/// it. `None` if it names nothing of one, as a store's directories do.
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

/// Returns whether a directory is that of a session in a bucket. A store's has segments, and no directory of this name.
fn holds_chunks(session: &Path) -> bool {
    ["log", "volumes"].iter().any(|name| session.join(name).is_dir())
}

fn directories(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().take(LOOKED_AT_MAX);
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}
