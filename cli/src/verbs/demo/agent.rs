//! The events and slices of the demo's scripted agent.

use foldlog::{Event, Policy, SessionTypes, Slice};
use serde::{Deserialize, Serialize};

/// Says that a step was added to the plan.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PlanStep {
    pub(super) title: String,
}

impl Event for PlanStep {
    const NAME: &'static str = "plan.step_added";
}

/// Says that the agent noted something.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DemoNote {
    pub(super) text: String,
}

impl Event for DemoNote {
    const NAME: &'static str = "noted";
}

/// Says how far a step is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StepState {
    pub(super) step: String,
    pub(super) status: String,
}

impl Event for StepState {
    const NAME: &'static str = "step.state";
}

/// Holds the plan, as STATE.
pub(super) struct DemoPlan;

impl Slice for DemoPlan {
    const NAME: &'static str = "plan";
    type Item = PlanStep;
}

/// Holds what the agent noted, as LOG.
pub(super) struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = DemoNote;
}

/// Holds how far each step is, as STATE.
pub(super) struct Steps;

impl Slice for Steps {
    const NAME: &'static str = "steps";
    type Item = StepState;
}

pub(super) fn types() -> foldlog::Result<SessionTypes> {
    SessionTypes::builder()
        .slice::<DemoPlan>()
        .append_all::<DemoPlan>()
        .slice_with::<Notes>(Policy::Log)
        .append_all::<Notes>()
        .slice::<Steps>()
        .upsert_by::<Steps, _>(|state| state.step.clone())
        .build()
}
