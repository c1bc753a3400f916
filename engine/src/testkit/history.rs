//! Histories of a host's own actions.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::error::Result;
use crate::session::Session;
use crate::types::Event;

type Run = dyn Fn(&Session) -> Result<()> + Send + Sync;

/// Something that a host does with its session.
#[derive(Clone)]
pub struct Action {
    label: String,
    run: Arc<Run>,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl Action {
    /// An action with the name that a failing history shows it by. It must do the same each time: what it
    /// draws or reads elsewhere is no part of the history.
    pub fn new(
        label: impl Into<String>,
        run: impl Fn(&Session) -> Result<()> + Send + Sync + 'static,
    ) -> Action {
        Action { label: label.into(), run: Arc::new(run) }
    }

    pub(super) fn act(&self, session: &Session) -> Result<()> {
        (self.run)(session)
    }
}

/// The action of dispatching an event.
pub fn dispatch<E: Event + Clone + fmt::Debug>(event: E) -> Action {
    let label = format!("dispatch {} {event:?}", E::NAME);
    Action::new(label, move |session| session.dispatch(event.clone()).map(drop))
}

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Step {
    /// The host does something.
    Act(Action),
    /// A snapshot is taken.
    Snapshot,
    /// STATE goes back to a position, which may be abandoned already.
    RollBack(Index),
    /// STATE goes back to one of the snapshots, where there are any.
    RollBackToSnapshot(Index),
    /// The session is closed and opened again.
    Reopen,
    /// The process is killed and the session opened by another.
    Kill,
    /// The session is forked at a position, and the fork goes on.
    Fork(Index),
}

/// What happens to a session, step by step.
#[derive(Clone, Debug)]
pub struct History {
    /// The steps.
    pub steps: Vec<Step>,
}

/// Histories of up to 32 steps, of which about every second is one of these actions.
pub fn histories(actions: impl Strategy<Value = Action>) -> impl Strategy<Value = History> {
    histories_of(actions, 1..=32)
}

/// Histories of so many steps.
pub fn histories_of(
    actions: impl Strategy<Value = Action>,
    steps: RangeInclusive<usize>,
) -> impl Strategy<Value = History> {
    let step = prop_oneof![
        8 => actions.prop_map(Step::Act),
        1 => Just(Step::Snapshot),
        2 => any::<Index>().prop_map(Step::RollBack),
        1 => any::<Index>().prop_map(Step::RollBackToSnapshot),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        1 => any::<Index>().prop_map(Step::Fork),
    ];
    prop::collection::vec(step, steps).prop_map(|steps| History { steps })
}
