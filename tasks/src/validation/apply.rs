//! Repairs a session by a plan.

use foldlog::{Error, Event, Result, SequenceNumber, Session};
use serde::Serialize;

use super::{PlannedStep, RepairPlan, RepairStep, StateValidator, ValidationResult};
use crate::{RecoveryAction, SessionState};

/// Reports the results of a repair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepairReport {
    /// Steps that were applied.
    pub done: Vec<RepairedStep>,
    /// Step that the session refused, with the reason. Later steps were not applied: the session
    /// has changed since the plan was made.
    pub refused: Option<(PlannedStep, String)>,
    /// Validation result of the session after the repair.
    pub result: ValidationResult,
}

/// Contains a step that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairedStep {
    /// Step.
    #[serde(flatten)]
    pub step: PlannedStep,
    /// Record of its event; `None` if the step needs no event.
    pub record: Option<SequenceNumber>,
}

impl StateValidator {
    /// Dispatches the steps of a plan, and validates the state again, which `read` reads.
    ///
    /// A [`RecoveryAction`] named `repair_begun` first records the person and the reason; one named
    /// `repair` follows each step. A process that ends in between leaves the steps so far, and
    /// another plan repairs the rest.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::dispatch`] except refusals, which are
    /// [reported](RepairReport::refused), and the errors of `read`.
    pub fn apply(
        &self,
        session: &Session,
        plan: &RepairPlan,
        by: &str,
        reason: &str,
        read: impl FnOnce() -> Result<SessionState>,
    ) -> Result<RepairReport> {
        let action = |action: &str, subject: String, lost| RecoveryAction {
            action: action.to_owned(),
            by: by.to_owned(),
            reason: reason.to_owned(),
            subject: Some(subject),
            lost,
        };
        let (mut done, mut refused) = (Vec::new(), None);
        if !plan.steps.is_empty() {
            session.dispatch(action("repair_begun", format!("{} steps", plan.steps.len()), Vec::new()))?;
        }
        for planned in &plan.steps {
            let record = match dispatch(session, &planned.step) {
                Ok(record) => record,
                Err(Error::Refused { reason, .. }) => {
                    let subject = format!("{}: {}", planned.rule, planned.step);
                    session.dispatch(action("repair_refused", subject, vec![reason.clone()]))?;
                    refused = Some((planned.clone(), reason));
                    break;
                }
                Err(error) => return Err(error),
            };
            let lost = planned.step.loses().into_iter().collect();
            session.dispatch(action("repair", format!("{}: {}", planned.rule, planned.step), lost))?;
            done.push(RepairedStep { step: planned.clone(), record });
        }
        let result = self.validate(&read()?);
        Ok(RepairReport { done, refused, result })
    }
}

fn dispatch(session: &Session, step: &RepairStep) -> Result<Option<SequenceNumber>> {
    fn record<E: Event + Clone>(session: &Session, event: &E) -> Result<Option<SequenceNumber>> {
        session.dispatch(event.clone()).map(Some)
    }
    match step {
        RepairStep::TaskCreated(event) => record(session, event),
        RepairStep::TaskStatusChanged(event) => record(session, event),
        RepairStep::TaskModified(event) => record(session, event),
        RepairStep::DependencyAdded(event) => record(session, event),
        RepairStep::DependencyRemoved(event) => record(session, event),
        RepairStep::TaskRenumbered(event) => record(session, event),
        RepairStep::SessionConfigured(event) => record(session, event),
        RepairStep::Derive { .. } => Ok(None),
    }
}
