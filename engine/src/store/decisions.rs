//! Decisions that are left for the process that has a session open.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::{OperationId, SequenceNumber};
use uuid::Uuid;

use super::Store;
use crate::clock;
use crate::error::{Error, Result};
use crate::inspect::{LogReader, ReadOptions};
use crate::log::decisions::{self, DecisionOutcome, LeftBody};
use crate::session::Settlement;
use crate::session::decisions::{Bell, look_again};
use crate::storage::Storage;

/// A decision that was left for the process that has a session open.
#[derive(Clone, Debug)]
pub struct LeftDecision {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    path: PathBuf,
}

/// Describes the state of a decision that was left for an open host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftFate {
    /// No process has taken it yet.
    Waits,
    /// A process took it and recorded it in this record.
    Taken(SequenceNumber),
    /// A process refused it and recorded nothing. The reason is the text of the engine's error.
    Refused(String),
}

impl Store {
    /// Leaves a decision about an operation for the process that has its session open. A session
    /// has one writer, so [`SessionCalls::settle`](crate::SessionCalls::settle) in this process
    /// would fail with [`Error::Locked`]. The other process takes the decision when it
    /// [waits](crate::SessionCalls::wait_for_decision) for one,
    /// [recovers](crate::tools::ToolRunner::recover) the session or continues the conversation. If
    /// it ends before that, the next process takes the decision. The decision is checked again
    /// then: it is refused if the operation has been settled or withdrawn, or has expired. The
    /// decision names the current arguments of the call, and is valid for no others.
    ///
    /// The decision is durable when this returns.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use foldlog::{SessionTypes, Settlement, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// let store = Store::open(directory.path())?; // in another process
    /// let left = store.leave_decision(session.id(), 7, &Settlement::failed(), "ada", "not now");
    /// assert!(left.is_err(), "there is no such operation");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Blank`] if `by` is blank.
    /// - [`Error::NoSuchOperation`] if the operation waits for no such decision according to the
    ///   log now; see [`SessionCalls::settle`](crate::SessionCalls::settle). Also if the decision
    ///   is longer than 1 MiB.
    /// - The errors of reading the log; [`Error::Io`] if the decision cannot be written.
    pub fn leave_decision(
        &self,
        session: Uuid,
        operation: impl Into<OperationId>,
        settlement: &Settlement,
        by: &str,
        reason: &str,
    ) -> Result<LeftDecision> {
        let operation = operation.into();
        if by.trim().is_empty() {
            return Err(Error::Blank { argument: "by" });
        }
        let (storage, dir) = (Arc::clone(self.storage()), self.session_dir(session));
        let options = ReadOptions { outline: true, memory_bytes: None };
        let reader = LogReader::open_with(Arc::clone(&storage), dir.clone(), options)?;
        let decided_us = self.inner.options.clock.now_us();
        let arguments = reader.waits_for_decision(operation, settlement, decided_us)?;
        let payloads = settlement.payloads()?;
        let settle = settlement.to_record(operation, by, reason, &payloads).encode();
        let left = LeftBody { session, decided_us, arguments, settle };
        if left.encode().len() as u64 > decisions::BYTES_MAX {
            let reason = "the decision is longer than 1 MiB: its host has to settle it";
            return Err(Error::NoSuchOperation { operation, reason });
        }
        #[expect(clippy::disallowed_methods, reason = "it names a file beside the log")]
        let path = decisions::leave(storage.as_ref(), &dir, &left, Uuid::new_v4())?;
        Ok(LeftDecision { storage, dir, path })
    }
}

impl LeftDecision {
    /// Returns the path of the file with the decision.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the current state of the decision.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the state cannot be determined.
    pub fn fate(&self) -> Result<LeftFate> {
        match decisions::read_answer(self.storage.as_ref(), &self.path) {
            Some(DecisionOutcome::Sequence(sequence)) => Ok(LeftFate::Taken(sequence)),
            Some(DecisionOutcome::Refused(reason)) => Ok(LeftFate::Refused(reason)),
            None => Ok(LeftFate::Waits),
        }
    }

    /// Blocks until a process has taken or refused the decision, for at most `limit`. An answer is
    /// returned once: its file is removed.
    pub fn wait(&self, limit: Duration) -> Result<LeftFate> {
        let (until, bell) = (clock::after(limit), Arc::<Bell>::default());
        let _watch = bell.watch(self.storage.as_ref(), &self.dir);
        loop {
            let fate = self.fate()?;
            if fate != LeftFate::Waits {
                decisions::forget_answer(self.storage.as_ref(), &self.path);
                return Ok(fate);
            }
            if clock::is_past(until) {
                return Ok(fate);
            }
            bell.wait_until(look_again(until));
        }
    }

    /// Withdraws the decision. Returns `false` if a process has taken or refused it, or is just
    /// taking it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be removed.
    pub fn withdraw(&self) -> Result<bool> {
        match self.storage.remove_file(&self.path) {
            Ok(()) => Ok(decisions::read_answer(self.storage.as_ref(), &self.path).is_none()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("remove", &self.path, error)),
        }
    }
}
