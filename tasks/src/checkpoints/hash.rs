//! Hashes of checkpoints, made of the records.

use foldlog::SequenceNumber;
use uuid::Uuid;

use super::Checkpoint;
use super::records::RecordSource;
use crate::error::{Error, Result};
use crate::sabotage::{self, Breakage};

/// What the hash before the first checkpoint is made of, in front of the session's id.
const BEGINNING: &[u8] = b"foldlog.checkpoint.1";

/// Holds what follows from the records through a position.
pub(super) struct LogPrefixHash {
    /// Hash of the records, in hexadecimal digits.
    pub(super) hash: String,
    /// Length of what they hold, in bytes.
    pub(super) log_bytes: u64,
}

/// Makes the hash of a checkpoint at `position` from the one before it, and the records since.
pub(super) fn hash_at(
    records: &impl RecordSource,
    session: Uuid,
    previous: Option<&Checkpoint>,
    position: SequenceNumber,
) -> Result<LogPrefixHash> {
    let mut log_bytes = previous.map_or(0, |previous| previous.manifest.storage_size_bytes);
    let mut hasher = blake3::Hasher::new();
    let from = match previous {
        Some(previous) => {
            if !sabotage::is(Breakage::CheckpointUnchained) {
                hasher.update(&previous_bytes(&previous.validation_hash));
            }
            previous.position + 1
        }
        None => {
            let beginning = blake3::Hasher::new().update(BEGINNING).update(session.as_bytes()).finalize();
            hasher.update(beginning.as_bytes());
            SequenceNumber::MIN
        }
    };
    records.visit(from, position, &mut |record| {
        hasher.update(&record.digest());
        log_bytes = log_bytes.saturating_add(record.len());
        Ok(())
    })?;
    Ok(LogPrefixHash { hash: hasher.finalize().to_hex().to_string(), log_bytes })
}

/// Returns the 32 bytes of a hash in hexadecimal digits. Any other text stands for the digest of itself, so that a checkpoint
/// behind it fits no other one.
fn previous_bytes(text: &str) -> [u8; 32] {
    let hash = blake3::Hash::from_hex(text).unwrap_or_else(|_| blake3::hash(text.as_bytes()));
    *hash.as_bytes()
}

/// Checks the hashes of checkpoints in the order of their creation, those that were removed included, and returns the error of
/// each whose hash does not fit: a checkpoint behind one of these may fit all the same, since the hash that the record says is
/// what the next one is made of.
pub(super) fn mismatches(records: &impl RecordSource, created: &[Checkpoint]) -> Result<Vec<Error>> {
    let mut found_all = Vec::new();
    let mut previous: Option<&Checkpoint> = None;
    for checkpoint in created {
        let found = hash_at(records, checkpoint.session_id, previous, checkpoint.position)?.hash;
        if found != checkpoint.validation_hash {
            let (id, position) = (checkpoint.id, checkpoint.position);
            let expected = foldlog::escape::text(&checkpoint.validation_hash).into_owned();
            found_all.push(Error::CheckpointMismatch { id, position, expected, found });
        }
        previous = Some(checkpoint);
    }
    Ok(found_all)
}
