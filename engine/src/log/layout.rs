//! Paths in a store and in a session's directory.
//!
//! ```text
//! <store>/
//!   writers.lock                  has one locked byte for each session that is open for writing
//!   writers/<session>.json        the holder of the lock; best effort
//!   writers/<session>.fenced      exists if its writer was fenced; best effort
//!   sessions.index                the last listing; a cache
//!   sessions.index.new            the next one, half-written
//!   pool/<blake3>                 further names of the sessions' objects
//!   pool/files/                   further names of the objects of captures
//!   sessions/<session>/
//!     0000000000.seg ...          segments, named by ordinal
//!     0000000007.seg.new          a segment that a crash left half-built
//!     recovery.spare              space for the next recovery, while calls are open
//!     objects/<blake3>            large payloads
//!     files/                      captures of the workspace, a store of git objects
//!     program/                    large outputs that an adapter's agent program has saved
//!     snapshots/<records>.image   images, named by the number of records that they cover
//!     decisions/                  decisions of people that the open host has not taken yet
//!   sessions/.new-<session>/      a fork that is being built
//!   sessions/.deleted-<session>/  a session that is being deleted
//! ```

use std::path::{Path, PathBuf};
use std::str::FromStr;

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use crate::storage::whole_path;

const SEGMENT_SUFFIX: &str = ".seg";
const IMAGE_SUFFIX: &str = ".image";
const BUILDING_SUFFIX: &str = ".seg.new";

pub(crate) fn sessions_dir(store: &Path) -> PathBuf {
    store.join("sessions")
}

pub(crate) fn session_dir(store: &Path, session: Uuid) -> PathBuf {
    sessions_dir(store).join(session.to_string())
}

/// Returns whether a directory is a store, that is, contains a directory `sessions`.
pub fn is_store(directory: &Path) -> bool {
    sessions_dir(directory).is_dir()
}

/// Returns whether a path leads to the store at `store`, or among its sessions, where no other
/// files may be created. A missing part of the path is resolved to its future location.
pub fn is_within_store(path: &Path, store: &Path) -> bool {
    let whole = whole_path(path);
    whole == whole_path(store) || whole.starts_with(whole_path(&sessions_dir(store)))
}

/// Returns whether a path leads to a directory or into it, through any links. A missing part of the
/// path is resolved to its future location.
pub fn is_within_directory(path: &Path, directory: &Path) -> bool {
    whole_path(path).starts_with(whole_path(directory))
}

/// Returns the store whose sessions include a directory, regardless of the directory's name.
/// Returns `None` if it is not in a store, or does not exist.
pub fn store_around(session: &Path) -> Option<PathBuf> {
    let session = session.canonicalize().ok()?;
    store_of(&session).filter(|store| session.parent() == Some(&sessions_dir(store))).map(Path::to_owned)
}

/// Returns the directory of a store in which objects have further names.
pub(crate) fn pool_dir(store: &Path) -> PathBuf {
    store.join("pool")
}

/// Returns the directory in which objects of captures have further names.
pub(crate) fn captures_pool(store: &Path) -> PathBuf {
    pool_dir(store).join("files")
}

/// Returns the pool of the store of a session's directory. Returns `None` if the directory is not
/// in a store.
pub(crate) fn pool_of(dir: &Path) -> Option<PathBuf> {
    store_of(dir).filter(|store| dir.parent() == Some(&sessions_dir(store))).map(pool_dir)
}

/// Returns the directories of a store with the names on the path to a session's directory, from
/// below.
pub(crate) fn directories_above_session(store: &Path) -> [PathBuf; 2] {
    [sessions_dir(store), path_through_link(store)]
}

pub(crate) fn store_of(dir: &Path) -> Option<&Path> {
    dir.parent()?.parent()
}

/// Returns a path to a directory that a host named, which may also lead through a link. The engine
/// follows no link in a directory in which it creates files, but a host may name its store by a
/// link.
pub(crate) fn path_through_link(directory: &Path) -> PathBuf {
    directory.join(".")
}

pub(crate) fn building_session_dir(store: &Path, session: Uuid) -> PathBuf {
    sessions_dir(store).join(format!(".new-{session}"))
}

/// Returns the directory to which a session is renamed before it is deleted.
pub(crate) fn dying_session_dir(store: &Path, session: Uuid) -> PathBuf {
    sessions_dir(store).join(format!(".deleted-{session}"))
}

/// Returns the session of a directory whose name marks it as being created or deleted.
pub(crate) fn unfinished_session(name: &str) -> Option<Uuid> {
    let id = name.strip_prefix(".new-").or_else(|| name.strip_prefix(".deleted-"))?;
    Uuid::try_parse(id).ok().filter(|parsed| parsed.to_string() == id)
}

pub(crate) fn lock_file(store: &Path) -> PathBuf {
    store.join("writers.lock")
}

pub(crate) fn writers_dir(store: &Path) -> PathBuf {
    store.join("writers")
}

pub(crate) fn holder_file(store: &Path, session: Uuid) -> PathBuf {
    writers_dir(store).join(format!("{session}.json"))
}

pub(crate) fn fenced_file(store: &Path, session: Uuid) -> PathBuf {
    writers_dir(store).join(format!("{session}.fenced"))
}

pub(crate) fn index_file(store: &Path) -> PathBuf {
    store.join("sessions.index")
}

/// Returns the path at which an index is written before it takes its name.
pub(crate) fn building_index_file(store: &Path) -> PathBuf {
    store.join("sessions.index.new")
}

pub(crate) fn segment_file(dir: &Path, ordinal: u32) -> PathBuf {
    dir.join(format!("{ordinal:010}{SEGMENT_SUFFIX}"))
}

pub(crate) fn building_segment_file(dir: &Path, ordinal: u32) -> PathBuf {
    dir.join(format!("{ordinal:010}{BUILDING_SUFFIX}"))
}

/// Returns the path of the space that is reserved for the next recovery.
pub(crate) fn spare_file(dir: &Path) -> PathBuf {
    dir.join("recovery.spare")
}

/// Returns the ordinal in a segment's file name. Returns `None` unless the name is exactly as
/// [`segment_file`] writes it.
pub(crate) fn segment_ordinal(name: &str) -> Option<u32> {
    number(name, 10, SEGMENT_SUFFIX)
}

pub(crate) fn building_ordinal(name: &str) -> Option<u32> {
    number(name, 10, BUILDING_SUFFIX)
}

/// Returns the number in a name of exactly so many digits and a suffix.
fn number<T: FromStr>(name: &str, digits: usize, suffix: &str) -> Option<T> {
    let number = name.strip_suffix(suffix).filter(|number| number.len() == digits)?;
    number.parse().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))
}

pub(crate) fn snapshots_dir(dir: &Path) -> PathBuf {
    dir.join("snapshots")
}

/// Returns the path of the image of all records below `next_sequence`.
pub(crate) fn image_file(dir: &Path, next_sequence: SequenceNumber) -> PathBuf {
    snapshots_dir(dir).join(format!("{next_sequence:020}{IMAGE_SUFFIX}"))
}

/// Returns the number of records that an image covers, from its file name.
pub(crate) fn image_position(name: &str) -> Option<SequenceNumber> {
    number(name, 20, IMAGE_SUFFIX)
}

/// Returns the directory in which other processes leave decisions for the one that has the session
/// open.
pub(crate) fn decisions_dir(dir: &Path) -> PathBuf {
    dir.join("decisions")
}

pub(crate) fn objects_dir(dir: &Path) -> PathBuf {
    dir.join("objects")
}

/// Returns the directory of a session for captures of its workspace; see
/// [`SessionLog::captures_dir`](crate::SessionLog::captures_dir).
pub fn captures_dir(dir: &Path) -> PathBuf {
    dir.join("files")
}

/// Returns the session id in a directory's name. Returns `None` if the name is not a session id.
pub(crate) fn session_of(dir: &Path) -> Option<Uuid> {
    let name = dir.file_name()?.to_str()?;
    Uuid::try_parse(name).ok().filter(|id| id.to_string() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_the_engine_writes_are_segments() {
        assert_eq!(segment_ordinal("0000000012.seg"), Some(12));
        assert_eq!(building_ordinal("0000000012.seg.new"), Some(12));
        for name in ["12.seg", "0000000012.seg.new", "000000001x.seg", "9999999999.seg", "+000000012.seg"] {
            assert_eq!(segment_ordinal(name), None, "{name}");
        }
    }
}
