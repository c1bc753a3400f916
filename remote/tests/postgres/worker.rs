//! Helpers for replicators: records to append, and the stored log.

use foldlog::replication::{HeldPart, ReplicaError, ReplicaStatus, Replicator};
use foldlog::{Record, RecordKind};
use foldlog_remote::PostgresReplicator;
use uuid::Uuid;

/// Reads and claims a session. Returns the log's end and the claim's epoch.
pub(crate) fn claim(replicator: &PostgresReplicator, session: Uuid) -> Result<(u64, u64), ReplicaError> {
    let held = replicator.read(session, &mut |_| {})?;
    let epoch = replicator.claim(session, held.next)?;
    Ok((held.next.get(), epoch))
}

/// Appends one record for each text.
pub(crate) fn append(
    replicator: &PostgresReplicator,
    session: Uuid,
    epoch: u64,
    first: u64,
    texts: &[&str],
) -> Result<(), ReplicaError> {
    let records: Vec<Record<'_>> =
        (first..).zip(texts).map(|(sequence, text)| record(sequence, text)).collect();
    replicator.append(session, epoch, None, &records)
}

pub(crate) fn record(sequence: u64, text: &str) -> Record<'_> {
    Record { sequence: sequence.into(), kind: RecordKind::Observed, time_us: 7, body: text.as_bytes() }
}

/// Returns the end of a session's stored log and the texts of its records.
pub(crate) fn held(
    replicator: &PostgresReplicator,
    session: Uuid,
) -> Result<(ReplicaStatus, Vec<String>), ReplicaError> {
    let mut texts = Vec::new();
    let held = replicator.read(session, &mut |part| {
        let HeldPart::Record(record) = part else { return };
        assert_eq!(record.sequence.get(), texts.len() as u64);
        texts.push(String::from_utf8(record.body.to_vec()).unwrap());
    })?;
    assert_eq!(held.next.get(), texts.len() as u64);
    Ok((held, texts))
}

pub(crate) fn reason<T: std::fmt::Debug>(done: Result<T, ReplicaError>) -> String {
    match done {
        Err(ReplicaError::Failed { reason } | ReplicaError::Unknown { reason }) => reason,
        other => panic!("{other:?}"),
    }
}
