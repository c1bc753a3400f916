use std::sync::Arc;

use foldlog::conversation::NewAdapterState;
use foldlog::{Clock, SequenceNumber, Session};
use serde::Serialize;

use super::{
    AdapterState, AdapterStateOptions, AdapterStateSnapshot, CaptureOccasion, CapturedState,
    CheckpointDecider, OversizedState, STATE_BYTES_MAX, resume,
};
use crate::error::{Error, Result};

/// Records the states of one adapter in one evaluation. Each state supersedes the one before.
pub struct StateCapture<'a> {
    session: &'a Session,
    evaluation_id: String,
    options: AdapterStateOptions,
    decider: CheckpointDecider,
    supersedes: Option<SequenceNumber>,
}

impl<'a> StateCapture<'a> {
    /// Starts to record states of the adapter `adapter_type`, after those that another process
    /// recorded for the same evaluation.
    /// [`CheckpointStrategy::Periodic`](super::CheckpointStrategy::Periodic) reads `clock`.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the session's captures cannot be read.
    pub fn begin(
        session: &'a Session,
        evaluation_id: impl Into<String>,
        adapter_type: &str,
        options: &AdapterStateOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<StateCapture<'a>> {
        let evaluation_id = evaluation_id.into();
        let snapshots = resume::snapshots(session)?;
        let earlier = super::snapshot::heads(&snapshots)
            .rfind(|head| head.evaluation_id == evaluation_id && head.state.adapter_type() == adapter_type);
        let decider = CheckpointDecider::new(options.checkpoint, clock);
        let capture =
            StateCapture { session, evaluation_id, options: options.clone(), decider, supersedes: None };
        Ok(match earlier {
            Some(earlier) => capture.resuming(earlier),
            None => capture,
        })
    }

    /// Makes the next state supersede the capture from which the evaluation resumes, even if that
    /// belongs to another evaluation.
    #[must_use]
    pub fn resuming(mut self, from: &AdapterStateSnapshot) -> StateCapture<'a> {
        self.supersedes = Some(from.sequence);
        self.decider.has_captured = true;
        self
    }

    /// Records a state if the host captures states at this occasion. `entry` is the provider's own
    /// id of the last entry that the state covers. Returns the number of the record; `None` if none
    /// was written. A failure concerns only the state: the evaluation can continue without it.
    ///
    /// # Errors
    ///
    /// [`Error::StateTooLarge`] or [`Error::AdapterState`] if the state cannot be recorded,
    /// [`Error::Engine`] if the session refuses the record.
    pub fn offer<S: AdapterState + Serialize>(
        &mut self,
        state: &S,
        entry: Option<&str>,
        occasion: CaptureOccasion,
    ) -> Result<Option<SequenceNumber>> {
        if !self.options.capture_state || !self.decider.is_due(occasion) {
            return Ok(None);
        }
        let state = CapturedState::from_state(state)?;
        check_size(&state, self.options.oversized)?;
        let sequence = record(self.session, &self.evaluation_id, &state, self.supersedes, entry, occasion)?;
        self.supersedes = Some(sequence);
        self.decider.note_capture();
        Ok(Some(sequence))
    }

    /// Records that the provider no longer has the session of a capture. The capture is then no
    /// longer resumed. This is recorded even if the host captures no states, because it explains
    /// the fresh session that follows.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the session refuses the record.
    pub fn record_expiry(&mut self, snapshot: &AdapterStateSnapshot) -> Result<SequenceNumber> {
        let sequence = retire(self.session, &self.evaluation_id, snapshot, CaptureOccasion::Expired)?;
        self.supersedes = None;
        Ok(sequence)
    }
}

/// Records that a capture must no longer be resumed, and why. The same is recorded for later
/// captures that a rollback abandoned and that lead back to this one. Returns the number of the
/// last record.
pub fn retire(
    session: &Session,
    evaluation_id: &str,
    snapshot: &AdapterStateSnapshot,
    occasion: CaptureOccasion,
) -> Result<SequenceNumber> {
    let retire = |head: &AdapterStateSnapshot| {
        let state = head.state.no_longer_resumable();
        record(session, evaluation_id, &state, Some(head.sequence), head.entry.as_deref(), occasion)
    };
    let snapshots = resume::snapshots(session)?;
    let leads_here = |head: &&AdapterStateSnapshot| {
        let mut chain = super::snapshot::chain(&snapshots, head);
        !head.is_live && head.state.resumable() && chain.any(|earlier| earlier.sequence == snapshot.sequence)
    };
    let abandoned = super::snapshot::heads(&snapshots).filter(leads_here);
    for head in abandoned.filter(|head| head.sequence != snapshot.sequence) {
        retire(head)?;
    }
    retire(snapshot)
}

/// Checks the size of a state to be recorded.
///
/// # Errors
///
/// [`Error::StateTooLarge`] if the state is too large and `oversized` is
/// [`OversizedState::Refuse`].
pub fn check_size(state: &CapturedState, oversized: OversizedState) -> Result<()> {
    let bytes = state.state().to_string().len();
    if bytes <= STATE_BYTES_MAX || oversized == OversizedState::Reference {
        return Ok(());
    }
    Err(Error::StateTooLarge { adapter: state.adapter_type().to_owned(), bytes, max: STATE_BYTES_MAX })
}

fn record(
    session: &Session,
    evaluation_id: &str,
    state: &CapturedState,
    supersedes: Option<SequenceNumber>,
    entry: Option<&str>,
    occasion: CaptureOccasion,
) -> Result<SequenceNumber> {
    let new = NewAdapterState {
        evaluation_id: evaluation_id.to_owned(),
        adapter: state.adapter_type().to_owned(),
        resumable: state.resumable(),
        state: state.state().clone(),
        supersedes,
        entry: entry.map(str::to_owned),
        occasion: occasion.name().to_owned(),
    };
    Ok(session.conversation().record_adapter_state(&new)?)
}
