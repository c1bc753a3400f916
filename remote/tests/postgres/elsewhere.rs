//! Shows that forks, salvaged and compacted sessions in a database can be continued on other
//! machines.

use std::path::Path;
use std::sync::Arc;

use foldlog::replication::Replication;
use foldlog::{Store, StoreOptions};

use crate::lineages::{LINEAGES, pull_and_fetch, take_over_and_go_on};
use crate::server::{replicator, retries, shared};

/// Opens the store of a worker. Without a name it has no replicator, and writes replicated sessions
/// nevertheless.
fn open(url: &str, directory: &Path, name: Option<&str>) -> Store {
    let replication = name.map(|name| Replication::new(Arc::new(replicator(url, name, retries()))));
    let unreplicated = name.is_none();
    Store::open_with(directory, StoreOptions { replication, unreplicated, ..StoreOptions::default() })
        .unwrap()
}

#[test]
fn a_session_of_any_lineage_goes_on_on_another_machine() {
    let Some(server) = shared() else { return };
    let url = server.url();
    for lineage in LINEAGES {
        take_over_and_go_on(lineage, &|directory, name| open(&url, directory, name));
    }
}

#[test]
fn a_session_of_any_lineage_is_copied_and_gets_back_what_it_lost() {
    let Some(server) = shared() else { return };
    let url = server.url();
    for lineage in LINEAGES {
        pull_and_fetch(lineage, &|directory, name| open(&url, directory, name));
    }
}
