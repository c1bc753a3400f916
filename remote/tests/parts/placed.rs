//! Opens stores whose sessions are replicated into a place.

use foldlog::replication::Replication;
use foldlog::{Store, StoreOptions};
use foldlog_remote::Place;

pub(crate) fn store(directory: &tempfile::TempDir, place: &dyn Place, name: &str) -> Store {
    let replication = Some(Replication::new(place.replicator(name).unwrap()));
    Store::open_with(directory.path(), StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}
