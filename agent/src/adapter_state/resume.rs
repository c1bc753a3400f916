use foldlog::Session;

use super::capture::retire;
use super::snapshot::{chain, heads};
use super::{
    AdapterState, AdapterStateOptions, AdapterStateSnapshot, CaptureOccasion, ResumeCheck, ResumeContext,
    ResumeMode, ResumeRefusal, ResumeValidation,
};
use crate::error::Result;

/// Names a session of a provider in which an evaluation goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterResume {
    /// Capture that names the session.
    pub snapshot: AdapterStateSnapshot,
    /// Whether the session is copied or changed.
    pub mode: ResumeMode,
    /// Entry of the provider's session behind which it is copied; `None` for its end.
    pub at_entry: Option<String>,
}

impl AdapterResume {
    /// Resumes a capture at the end of the provider's session, if it may be resumed here and now.
    ///
    /// # Errors
    ///
    /// [`Error::ResumeRefused`](crate::Error::ResumeRefused) if it may not.
    pub fn from_snapshot(
        snapshot: AdapterStateSnapshot,
        options: &AdapterStateOptions,
        context: &ResumeContext,
    ) -> Result<AdapterResume> {
        options.resume_validation.check(&snapshot, context, options.max_age).map_err(Box::new)?;
        Ok(AdapterResume { snapshot, mode: options.resume_mode, at_entry: None })
    }
}

/// Says where an evaluation goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum ResumePlan {
    /// In a session that the provider keeps.
    Resume(Box<AdapterResume>),
    /// In a fresh session, which gets the messages that the log holds.
    Fresh {
        /// Why a capture is not resumed, which the log says too; `None` if there is none to be resumed.
        refusal: Option<Box<ResumeRefusal>>,
    },
}

/// Returns all captures of a session in the order of their records.
///
/// # Errors
///
/// [`Error::Engine`](crate::Error::Engine) if they cannot be read.
pub(super) fn snapshots(session: &Session) -> Result<Vec<AdapterStateSnapshot>> {
    Ok(session.adapter_states()?.into_iter().map(AdapterStateSnapshot::from).collect())
}

/// Finds the latest capture of an adapter that can be resumed. Only captures that no other one supersedes are
/// considered, so a session that was completed is not resumed through an older capture of it.
///
/// # Errors
///
/// [`Error::Engine`](crate::Error::Engine) if the session's captures cannot be read.
pub fn find_resumable_state(session: &Session, adapter_type: &str) -> Result<Option<AdapterStateSnapshot>> {
    let snapshots = snapshots(session)?;
    Ok(resumable(&snapshots, adapter_type).cloned())
}

fn resumable<'a>(
    snapshots: &'a [AdapterStateSnapshot],
    adapter_type: &str,
) -> Option<&'a AdapterStateSnapshot> {
    heads(snapshots).rfind(|head| head.state.adapter_type() == adapter_type && head.state.resumable())
}

/// Returns the latest head that is to be resumed: of the evaluation itself, if that has captured a state, since the session of
/// another one holds another conversation.
fn to_resume<'a>(
    snapshots: &'a [AdapterStateSnapshot],
    evaluation_id: &str,
    adapter_type: &str,
    validation: ResumeValidation,
) -> Option<&'a AdapterStateSnapshot> {
    let is_own = |one: &AdapterStateSnapshot| one.evaluation_id == evaluation_id;
    let of_adapter = |one: &&AdapterStateSnapshot| one.state.adapter_type() == adapter_type;
    let has_own = snapshots.iter().filter(of_adapter).any(is_own);
    let retired = [CaptureOccasion::Expired.name(), CaptureOccasion::Abandoned.name()];
    heads(snapshots).filter(of_adapter).filter(|head| !has_own || is_own(head)).rfind(|head| {
        let is_tried = validation == ResumeValidation::None && !retired.contains(&head.occasion.as_str());
        head.state.resumable() || is_tried && has_own
    })
}

/// Decides where an evaluation goes on: in the session of the latest capture that can be resumed, or in a fresh one. If the
/// evaluation has captured states itself, only these are considered, and without any validation its session is resumed although
/// that was completed.
///
/// A capture whose session is too old counts as expired: the evaluation begins afresh, and a record says so. Where a
/// rollback abandoned the capture and the validation is not strict, the provider's session is copied at the last entry
/// that was captured before what was abandoned; without such an entry the evaluation begins afresh, and a record says
/// so too.
///
/// # Errors
///
/// [`Error::ResumeRefused`](crate::Error::ResumeRefused) if the capture fails another check: nothing begins afresh
/// then unless the caller decides so. [`Error::Engine`](crate::Error::Engine) if the session cannot be read, or takes
/// no record.
pub fn plan_resume(
    session: &Session,
    evaluation_id: &str,
    adapter_type: &str,
    options: &AdapterStateOptions,
    context: &ResumeContext,
) -> Result<ResumePlan> {
    let snapshots = snapshots(session)?;
    let Some(head) = to_resume(&snapshots, evaluation_id, adapter_type, options.resume_validation) else {
        return Ok(ResumePlan::Fresh { refusal: None });
    };
    let checked = options.resume_validation.check(head, context, options.max_age);
    match checked {
        Err(refusal) if refusal.check == ResumeCheck::Recency => {
            retire(session, evaluation_id, head, CaptureOccasion::Expired)?;
            return Ok(ResumePlan::Fresh { refusal: Some(refusal.into()) });
        }
        Err(refusal) => return Err(Box::new(refusal).into()),
        Ok(()) if head.is_live => {
            let (snapshot, mode) = (head.clone(), options.resume_mode);
            return Ok(ResumePlan::Resume(Box::new(AdapterResume { snapshot, mode, at_entry: None })));
        }
        Ok(()) => {}
    }
    let before = chain(&snapshots, head).find_map(|snapshot| {
        let entry = snapshot.entry.as_ref().filter(|_| snapshot.is_live)?;
        Some((snapshot, entry))
    });
    match before {
        Some((snapshot, entry)) => Ok(ResumePlan::Resume(Box::new(AdapterResume {
            snapshot: snapshot.clone(),
            mode: ResumeMode::Fork,
            at_entry: Some(entry.clone()),
        }))),
        None => {
            retire(session, evaluation_id, head, CaptureOccasion::Abandoned)?;
            let refusal = ResumeValidation::refuse_abandoned(head);
            Ok(ResumePlan::Fresh { refusal: Some(refusal.into()) })
        }
    }
}
