//! A small host over a bucket in a folder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog::audit::LogReader;
use foldlog::replication::Replication;
use foldlog::{Durability, Kind, Session, Store, StoreOptions};
use foldlog_remote::{ObjectReplicator, Retries};
use object_store::local::LocalFileSystem;
use uuid::Uuid;

use crate::notes::texts;
use crate::requests::Answered;
use crate::steps::Steps;

/// The session that all workers write, one after the other.
pub(crate) const SESSION: Uuid = Uuid::from_u128(0x5e55);

/// Opens the store of a worker of that name in a folder. `steps` are told of each request to the bucket.
pub(crate) fn store(folder: &Path, bucket: &Path, name: &str, steps: Steps) -> Store {
    let files = LocalFileSystem::new_with_prefix(bucket).unwrap().with_fsync(true);
    let retries = Retries {
        attempts: 3,
        // A process may be stopped for as long as another one works.
        request_timeout: Duration::from_secs(600),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(1),
    };
    let replicator =
        ObjectReplicator::new(Arc::new(Answered(steps.over(files))), "team", name, retries).unwrap();
    let options = StoreOptions {
        replication: Some(Replication::new(Arc::new(replicator))),
        durability: Durability::Every,
        ..StoreOptions::default()
    };
    Store::open_with(folder, options).unwrap()
}

/// What a log says: the notes, and the begins of calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) notes: Vec<String>,
    pub(crate) begins: Vec<u64>,
}

pub(crate) fn told(session: &Session) -> Told {
    let mut begins = Vec::new();
    let log = LogReader::open(session.dir()).unwrap();
    log.records(0, log.last_position(), |record| {
        begins.extend((record.kind == Kind::TOOL_BEGIN).then_some(record.sequence.get()));
        Ok(())
    })
    .unwrap();
    Told { notes: texts(session), begins }
}
