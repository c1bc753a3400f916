//! Shows that forks, salvaged and compacted sessions are complete on other machines.

use std::path::Path;
use std::sync::Arc;

use foldlog::replication::Replication;
use foldlog::{Store, StoreOptions};
use foldlog_remote::ObjectReplicator;

use crate::bucket::{Bucket, retries};
use crate::lineages::{LINEAGES, pull_and_fetch, take_over_and_go_on};

/// Opens the store of a worker. Without a name it has no replicator, and writes replicated sessions
/// nevertheless.
fn open(bucket: &Bucket, directory: &Path, name: Option<&str>) -> Store {
    let replicator =
        |name| Arc::new(ObjectReplicator::new(Arc::new(bucket.store()), "team", name, retries()).unwrap());
    let replication = name.map(|name| Replication::new(replicator(name)));
    let unreplicated = name.is_none();
    Store::open_with(directory, StoreOptions { replication, unreplicated, ..StoreOptions::default() })
        .unwrap()
}

#[test]
fn a_session_of_any_lineage_goes_on_on_another_machine() {
    for lineage in LINEAGES {
        let bucket = Bucket::default();
        take_over_and_go_on(lineage, &|directory, name| open(&bucket, directory, name));
    }
}

#[test]
fn a_session_of_any_lineage_is_copied_and_gets_back_what_it_lost() {
    for lineage in LINEAGES {
        let bucket = Bucket::default();
        pull_and_fetch(lineage, &|directory, name| open(&bucket, directory, name));
    }
}
