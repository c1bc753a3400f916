//! The events and slices of the demo's scripted agent.

use foldlog::{Event, Policy, SessionTypes, Slice};
use serde::{Deserialize, Serialize};

/// A step was added to the plan.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PlanStep {
    pub(super) title: String,
}

impl Event for PlanStep {
    const NAME: &'static str = "plan.step_added";
}

/// The agent made a note.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DemoNote {
    pub(super) text: String,
}

impl Event for DemoNote {
    const NAME: &'static str = "noted";
}

/// State of a step.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StepState {
    pub(super) step: String,
    pub(super) status: String,
}

impl Event for StepState {
    const NAME: &'static str = "step.state";
}

/// The plan, as STATE.
pub(super) struct DemoPlan;

impl Slice for DemoPlan {
    const NAME: &'static str = "plan";
    type Item = PlanStep;
}

/// The agent's notes, as LOG.
pub(super) struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = DemoNote;
}

/// The state of each step, as STATE.
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
