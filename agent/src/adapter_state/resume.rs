use foldlog::Session;

use super::capture::retire;
use super::snapshot::{chain, heads};
use super::{
    AdapterState, AdapterStateOptions, AdapterStateSnapshot, CaptureOccasion, ResumeCheck, ResumeContext,
    ResumeMode, ResumeRefusal, ResumeValidation,
};
use crate::error::Result;

/// Identifies the provider's session in which an evaluation continues.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterResume {
    /// Capture that names the session.
    pub snapshot: AdapterStateSnapshot,
    /// Whether the session is copied or changed.
    pub mode: ResumeMode,
    /// Entry of the provider's session after which it is copied; `None` for its end.
    pub at_entry: Option<String>,
}

/// Describes where an evaluation continues.
#[derive(Clone, Debug, PartialEq)]
pub enum ResumePlan {
    /// In a session stored by the provider.
    Resume(Box<AdapterResume>),
    /// In a fresh session, which receives the messages in the log.
    Fresh {
        /// Reason why a capture is not resumed, which is also in the log; `None` if there is no
        /// capture to resume.
        refusal: Option<Box<ResumeRefusal>>,
    },
}

/// Returns all captures of a session in the order of their records.
///
/// # Errors
///
/// [`Error::Engine`](crate::Error::Engine) if they cannot be read.
pub(super) fn snapshots(session: &Session) -> Result<Vec<AdapterStateSnapshot>> {
    Ok(session.conversation().adapter_states()?.into_iter().map(AdapterStateSnapshot::from).collect())
}

/// Returns the latest capture of an adapter that can be resumed. Only captures that are not
/// superseded are considered, so a completed session is not resumed through an older capture.
///
/// # Errors
///
/// [`Error::Engine`](crate::Error::Engine) if the session's captures cannot be read.
pub fn find_resumable_state(session: &Session, adapter_type: &str) -> Result<Option<AdapterStateSnapshot>> {
    let snapshots = snapshots(session)?;
    let is_found =
        |head: &&AdapterStateSnapshot| head.state.adapter_type() == adapter_type && head.state.resumable();
    Ok(heads(&snapshots).rfind(is_found).cloned())
}

/// Returns the latest head to resume. If the evaluation has captured states, only these count,
/// because sessions of other evaluations contain other conversations.
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

/// Decides where an evaluation continues: in the session of the latest capture that can be resumed,
/// or in a fresh one. If the evaluation has captured states itself, only these are considered. With
/// [`ResumeValidation::None`], its session is then resumed even if it was completed.
///
/// If the session of a capture is too old, it counts as expired: the evaluation starts a fresh
/// session, and this is recorded. If a rollback abandoned the capture and the validation is not
/// strict, the provider's session is copied at the last entry captured before the abandoned part.
/// Without such an entry, the evaluation starts a fresh session, which is also recorded.
///
/// # Errors
///
/// [`Error::ResumeRefused`](crate::Error::ResumeRefused) if the capture fails another check. A
/// fresh session then starts only if the caller requests it.
/// [`Error::Engine`](crate::Error::Engine) if the session cannot be read, or refuses a record.
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
