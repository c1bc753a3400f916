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

/// A step without what it is about.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Act,
    Snapshot,
    RollBack,
    RollBackToSnapshot,
    Reopen,
    Kill,
    Fork,
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
    // Steps are left out from the first to the last, and then each is made simpler. What could not be left out
    // at first may be once what stood behind it is gone, so that each is tried once more by `kept`. Its kind
    // does not shrink: nobody would try to leave out what it turned into.
    let kept = prop::bool::weighted(0.999);
    let kind = prop_oneof![
        8 => Just(Kind::Act),
        1 => Just(Kind::Snapshot),
        2 => Just(Kind::RollBack),
        1 => Just(Kind::RollBackToSnapshot),
        1 => Just(Kind::Reopen),
        1 => Just(Kind::Kill),
        1 => Just(Kind::Fork),
    ];
    let step = (kept, kind.no_shrink(), actions, any::<Index>()).prop_map(|(kept, kind, action, at)| {
        kept.then(|| match kind {
            Kind::Act => Step::Act(action),
            Kind::Snapshot => Step::Snapshot,
            Kind::RollBack => Step::RollBack(at),
            Kind::RollBackToSnapshot => Step::RollBackToSnapshot(at),
            Kind::Reopen => Step::Reopen,
            Kind::Kill => Step::Kill,
            Kind::Fork => Step::Fork(at),
        })
    });
    prop::collection::vec(step, steps)
        .prop_map(|steps| History { steps: steps.into_iter().flatten().collect() })
}
