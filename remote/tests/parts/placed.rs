//! Stores whose sessions a place holds.

use foldlog::replication::Replication;
use foldlog::{Store, StoreOptions};
use foldlog_remote::Place;

/// Opens the store of a worker of that name in a directory.
pub(crate) fn store(directory: &tempfile::TempDir, place: &dyn Place, name: &str) -> Store {
    let replication = Some(Replication::new(place.replicator(name).unwrap()));
    Store::open_with(directory.path(), StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}
