//! Places of the captures of a session's calls: the session's own directory or, for a child
//! session, the directory of the session for which it works, since both share a workspace.
//!
//! A replica stores a child's captures with the child's records: the part that its ancestors'
//! replicated captures lack. A takeover, or a copy for reading, creates them in the child's own
//! directory, since child and parent may arrive in any order. The first opening for writing that
//! finds both moves them to their regular place. A kill in between leaves some of them in both
//! places, and the next opening continues.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use foldlog_codec::body::{Parent, SessionOpening};
use uuid::Uuid;

use super::open_store::OpenStore;
use crate::error::{Error, Result};
use crate::log::{layout, scan};
use crate::storage::EntryKind;

/// Maximum number of generations to follow. It ends the search if logs name each other in a circle.
const GENERATIONS_MAX: usize = 64;

/// Returns the sessions of this store that a session works for: its parent, the parent's parent,
/// and so on.
pub(super) fn ancestors(store: &OpenStore, opened: &SessionOpening) -> Vec<Uuid> {
    let mut ancestors = Vec::new();
    let mut parent = opened.parent;
    while let Some(Parent::Child { session, .. }) = parent {
        let dir = layout::session_dir(&store.root, session);
        let storage = store.options.storage.as_ref();
        if ancestors.len() >= GENERATIONS_MAX || !matches!(storage.entry(&dir), Ok(Some(_))) {
            break;
        }
        ancestors.push(session);
        parent = match store.writers.get(session) {
            Some(open) => open.opening_record().parent,
            // An unreadable parent is reported when it is opened.
            None => scan::scan(storage, &dir, &mut |_| Ok(())).ok().and_then(|scan| scan.opened.parent),
        };
    }
    ancestors
}

/// Returns the session directory that contains the captures of the session in `dir`.
pub(super) fn home(store: &OpenStore, dir: &Path, ancestors: &[Uuid]) -> PathBuf {
    ancestors.last().map_or_else(|| dir.to_owned(), |first| layout::session_dir(&store.root, *first))
}

/// Moves captures of a child session from its directory to their regular place.
pub(super) fn bring_home(store: &OpenStore, dir: &Path, opened: &SessionOpening) -> Result<()> {
    let (storage, own) = (store.options.storage.as_ref(), layout::captures_dir(dir));
    if !matches!(opened.parent, Some(Parent::Child { .. })) {
        return Ok(());
    }
    let io = |op, path: &Path, error| Error::io(op, path, error);
    let entry = storage.entry(&own).map_err(|error| io("look up", &own, error))?;
    if entry.is_none_or(|entry| entry.kind != EntryKind::Directory) {
        return Ok(());
    }
    let home = home(store, dir, &ancestors(store, opened));
    if home == dir {
        return Ok(());
    }
    let mut directories = vec![(own.clone(), layout::captures_dir(&home))];
    while let Some((from, to)) = directories.pop() {
        storage.create_dir_all(&to).map_err(|error| Error::unmade("create", &to, 0, error))?;
        for entry in storage.list(&from).map_err(|error| io("list", &from, error))? {
            let (from, to) = (from.join(&entry.name), to.join(&entry.name));
            match entry.kind {
                EntryKind::Directory => directories.push((from, to)),
                EntryKind::File => match storage.hard_link(&from, &to) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                        return Err(Error::unmade("link", &to, 0, error));
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        storage.sync_dir(&to).map_err(|error| io("sync", &to, error))?;
    }
    storage.sync_dir(&home).map_err(|error| io("sync", &home, error))?;
    storage.remove_dir_all(&own).map_err(|error| io("delete", &own, error))
}
