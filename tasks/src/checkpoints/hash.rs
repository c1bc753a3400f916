//! Hashes of checkpoints, computed from the records.

use foldlog::SequenceNumber;
use foldlog::inspect::DecodedRecord;
use uuid::Uuid;

use super::Checkpoint;
use crate::error::{Error, Result};

/// Prefix of the input, before the session's id, from which the hash before the first checkpoint is
/// computed.
const BEGINNING: &[u8] = b"foldlog.checkpoint.1";

/// Passes the records of a session or a log between two positions on, in order, including those
/// whose bodies a compaction has dropped.
pub(super) type VisitRecords<'a> = &'a dyn Fn(
    SequenceNumber,
    SequenceNumber,
    &mut dyn FnMut(DecodedRecord<'_>) -> foldlog::Result<()>,
) -> foldlog::Result<()>;

/// Computes the hash of a checkpoint at `position`, in hexadecimal digits, from the previous one and
/// the records since. Also returns the length of all records through the position, in bytes.
pub(super) fn hash_at(
    visit: VisitRecords<'_>,
    session: Uuid,
    previous: Option<&Checkpoint>,
    position: SequenceNumber,
) -> Result<(String, u64)> {
    let mut log_bytes = previous.map_or(0, |previous| previous.manifest.storage_size_bytes);
    let mut hasher = blake3::Hasher::new();
    let from = match previous {
        Some(previous) => {
            hasher.update(&previous_bytes(&previous.validation_hash));
            previous.position + 1
        }
        None => {
            let beginning = blake3::Hasher::new().update(BEGINNING).update(session.as_bytes()).finalize();
            hasher.update(beginning.as_bytes());
            SequenceNumber::MIN
        }
    };
    visit(from, position, &mut |record| {
        hasher.update(&record.digest());
        log_bytes = log_bytes.saturating_add(record.len());
        Ok(())
    })?;
    Ok((hasher.finalize().to_hex().to_string(), log_bytes))
}

/// Returns the 32 bytes of a hash in hexadecimal digits. Any other text is replaced by its own
/// digest, so that no later checkpoint matches it.
fn previous_bytes(text: &str) -> [u8; 32] {
    let hash = blake3::Hash::from_hex(text).unwrap_or_else(|_| blake3::hash(text.as_bytes()));
    *hash.as_bytes()
}

/// Verifies the hashes of checkpoints in the order of their creation, including removed ones, and
/// returns an error for each mismatch. A checkpoint after a mismatch may still match, since its
/// hash is computed from the recorded hash of the previous one.
pub(super) fn mismatches(visit: VisitRecords<'_>, created: &[Checkpoint]) -> Result<Vec<Error>> {
    let mut found_all = Vec::new();
    let mut previous: Option<&Checkpoint> = None;
    for checkpoint in created {
        let (found, _) = hash_at(visit, checkpoint.session_id, previous, checkpoint.position)?;
        if found != checkpoint.validation_hash {
            let (id, position) = (checkpoint.id, checkpoint.position);
            let expected = foldlog::escape::text(&checkpoint.validation_hash).into_owned();
            found_all.push(Error::CheckpointMismatch { id, position, expected, found });
        }
        previous = Some(checkpoint);
    }
    Ok(found_all)
}
