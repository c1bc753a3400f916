//! A small host over a bucket in a directory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog::filesystem::{HostFilesystemOptions, Rebind};
use foldlog::inspect::{LogReader, audit_captures};
use foldlog::replication::Replication;
use foldlog::tools::{RewindOptions, ToolContext, ToolError, ToolRunner};
use foldlog::{Durability, RecordKind, ResourceRegistry, Session, Store, StoreOptions};
use foldlog_remote::{LEASE_LENGTH_MAX, ObjectReplicator, Retries};
use object_store::local::LocalFileSystem;
use uuid::Uuid;

use crate::notes::{runner_over, texts};
use crate::requests::Answered;
use crate::steps::Steps;

/// The session that all workers write, one after the other.
pub(crate) const SESSION: Uuid = Uuid::from_u128(0x5e55);

/// Opens the store of the named worker in a directory. `steps` counts each request to the bucket.
pub(crate) fn store(directory: &Path, bucket: &Path, name: &str, steps: Steps) -> Store {
    let files = LocalFileSystem::new_with_prefix(bucket).unwrap().with_fsync(true);
    let clock = steps.clone();
    let retries = Retries {
        within: Duration::ZERO,
        attempts: 3,
        // A process may be stopped for as long as another one works.
        request_timeout: Duration::from_secs(600),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(1),
    };
    let replicator =
        ObjectReplicator::new(Arc::new(Answered(steps.over(files))), "team", name, retries).unwrap();
    // No timer renews the lease: it would make the number of steps vary.
    let replicator = replicator.with_lease(LEASE_LENGTH_MAX).unwrap().with_clock(move || clock.read_clock());
    let options = StoreOptions {
        replication: Some(Replication::new(Arc::new(replicator))),
        durability: Durability::Every,
        ..StoreOptions::default()
    };
    Store::open_with(directory, options).unwrap()
}

/// Makes a runner of a session over the files of a directory. The directory replaces the session's
/// earlier one, and is empty in the tests that depend on it.
pub(crate) fn runner_in(
    session: &Session,
    directory: &Path,
    act: impl Fn(&ToolContext) -> Result<(), ToolError> + Send + Sync + 'static,
) -> ToolRunner {
    std::fs::create_dir_all(directory).unwrap();
    let files = session.open_workspace(directory, HostFilesystemOptions::default()).unwrap();
    files.rebind(Rebind::Overwrite).unwrap();
    runner_over(session, ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap(), act)
        .unwrap()
}

/// Restores the state that the last call left into a runner's directory. The session has no open
/// call.
pub(crate) fn rewind_to_last(runner: &ToolRunner) -> foldlog::Result<()> {
    let last = runner.state().session().log().position().unwrap();
    runner.state().rewind(last, &RewindOptions { overwrite: true, ..RewindOptions::default() }).map(drop)
}

/// Checks that all captures that a session's records name are complete and intact.
pub(crate) fn assert_captures_are_sound(session: &Session, what: &str) {
    let audited = audit_captures(session.dir()).unwrap();
    assert!(audited.damaged.is_empty() && audited.elsewhere.is_empty(), "{what}: {audited:?}");
}

/// Name of the file to which each call appends its operation's number.
pub(crate) const CALLS: &str = "calls";

/// Returns the operation numbers that calls left in a directory.
pub(crate) fn calls_in(directory: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(directory.join(CALLS)).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Contains the notes of a log, and the start records of its calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) notes: Vec<String>,
    pub(crate) begins: Vec<u64>,
}

pub(crate) fn told(session: &Session) -> Told {
    let mut begins = Vec::new();
    let log = LogReader::open(session.dir()).unwrap();
    log.records(0, log.last_position(), |record| {
        begins.extend((record.kind == RecordKind::ToolBegin).then_some(record.sequence.get()));
        Ok(())
    })
    .unwrap();
    Told { notes: texts(session), begins }
}
