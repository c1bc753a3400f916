//! Rules that need the log: seals, the digests of updates, and the hashes of checkpoints.

use std::collections::BTreeMap;

use foldlog::inspect::LogReader;
use foldlog::{Result, SequenceNumber};

use super::validator::{CHECKPOINT_HASHES, SEALS, UPDATE_CHECKSUMS};
use super::{StateValidator, ValidationError, ValidationIssue, ValidationResult, ValidationRule};
use crate::{CheckpointHistory, Error, SessionState, StateUpdate, WorkspaceStores};

fn issue(rule: ValidationRule, error: ValidationError) -> ValidationIssue {
    ValidationIssue { rule, error, suggested_repair: None }
}

/// Verifies the hashes of a log's checkpoints at a position, including removed ones.
fn validate_checkpoints(log: &LogReader, position: SequenceNumber) -> Result<Vec<ValidationIssue>> {
    let read = CheckpointHistory::read(log).and_then(|history| history.mismatches(log, position));
    let mismatches = match read {
        Ok(mismatches) => mismatches,
        Err(Error::Engine(error)) => return Err(error),
        Err(error) => vec![error],
    };
    let issues = mismatches.into_iter().map(|error| {
        let (what, facts) = match error {
            Error::CheckpointMismatch { id, position, expected, found } => {
                (format!("{id} of record {position}"), format!("recorded {expected}, found {found}"))
            }
            other => ("a checkpoint".to_owned(), other.to_string()),
        };
        issue(CHECKPOINT_HASHES, ValidationError::DigestWrong { what, facts })
    });
    Ok(issues.collect())
}

impl StateValidator {
    /// Validates a log's state at a position by all rules.
    ///
    /// # Errors
    ///
    /// The errors of [`SessionState::at`]. A log with invalid frames cannot be opened at all.
    pub fn validate_log(
        &self,
        log: &LogReader,
        position: impl Into<SequenceNumber>,
        stores: &WorkspaceStores,
    ) -> Result<ValidationResult> {
        let position = position.into();
        let (state, updates) = SessionState::with_updates(log, position, stores)?;
        let mut of_log = Vec::new();
        match log.check_seals() {
            Ok(_) => {}
            Err(error) if error.is_damage() => {
                let (what, facts) = ("a segment of the log".to_owned(), error.to_string());
                of_log.push(issue(SEALS, ValidationError::DigestWrong { what, facts }));
            }
            Err(error) => return Err(error),
        }
        of_log.extend(self.validate_updates(log, &updates)?);
        of_log.extend(validate_checkpoints(log, position)?);
        Ok(self.result(&state, self.issues(&state), of_log))
    }

    /// Compares updates, which may come from an export, with the records of the log: numbers, order
    /// and digests.
    pub fn validate_updates(&self, log: &LogReader, updates: &[StateUpdate]) -> Result<Vec<ValidationIssue>> {
        let Some(last) = updates.iter().map(|update| update.position).max() else { return Ok(Vec::new()) };
        let mut issues = Vec::new();
        let mut checked: BTreeMap<SequenceNumber, Vec<&StateUpdate>> = BTreeMap::new();
        let mut before = SequenceNumber::MIN;
        for (expected, update) in (1..).zip(updates) {
            let (found, position) = (update.sequence_number, update.position);
            if found != expected || position < before {
                let error = ValidationError::UpdatesDisordered { found, expected, position };
                issues.push(issue(UPDATE_CHECKSUMS, error));
            }
            before = before.max(position);
            checked.entry(position).or_default().push(update);
        }
        let mut differs = |update: &StateUpdate, recorded: Option<&str>| {
            if Some(update.checksum.as_str()) != recorded {
                let what = format!("update {} of record {}", update.sequence_number, update.position);
                let facts = format!(
                    "the update has {}, the record {}",
                    update.checksum,
                    recorded.unwrap_or("does not exist")
                );
                issues.push(issue(UPDATE_CHECKSUMS, ValidationError::DigestWrong { what, facts }));
            }
        };
        let through = last.min(log.last_position());
        log.contents(SequenceNumber::MIN, through, |record| {
            if let Some(updates) = checked.remove(&record.sequence) {
                let digest = blake3::Hash::from_bytes(record.digest()).to_hex();
                updates.into_iter().for_each(|update| differs(update, Some(&digest)));
            }
            Ok(())
        })?;
        checked.into_values().flatten().for_each(|update| differs(update, None));
        Ok(issues)
    }
}
