//! Histories: the steps of a host's session in a property test.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use foldlog_codec::msgpack::Value as Shape;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::error::Result;
use crate::session::Session;
use crate::types::{Event, decode_strict, encode};

type ActionFn = dyn Fn(&Session) -> Result<()> + Send + Sync;

/// An operation of a host on its session.
#[derive(Clone)]
pub struct Action {
    label: String,
    run: Arc<ActionFn>,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl Action {
    /// Creates an action, with the label that a failing history shows for it. The action must do
    /// the same each time: values that it draws or reads elsewhere are not part of the history.
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

/// Creates the action that dispatches an event.
///
/// The action panics if the event is not the same when read back from its bytes, for example
/// because serde skips a field: the session would then show a value that is in no log. Compares the
/// `Debug` forms of both, whose parts may come in any order.
pub fn dispatch<E: Event + Clone + fmt::Debug>(event: E) -> Action {
    let shown = format!("{event:?}");
    let label = format!("dispatch {} {shown}", E::NAME);
    Action::new(label, move |session| {
        session.dispatch(event.clone())?;
        let read: E = decode_strict(E::NAME, &encode(E::NAME, &event)?)?;
        let read = format!("{read:?}");
        let name = E::NAME;
        assert!(is_same_in_any_order(&shown, &read), "event `{name}`: {shown} is read back as {read}");
        Ok(())
    })
}

/// Returns whether two texts have the same characters: a hash map shows its parts in a different
/// order each time.
fn is_same_in_any_order(one: &str, other: &str) -> bool {
    let sorted = |text: &str| {
        let mut characters: Vec<char> = text.chars().collect();
        characters.sort_unstable();
        characters
    };
    one == other || sorted(one) == sorted(other)
}

/// Creates the action that dispatches an event by its name.
pub fn dispatch_value(event: impl Into<String>, value: impl Into<Shape>) -> Action {
    let (event, value) = (event.into(), value.into());
    let label = format!("dispatch {event} {value:?}");
    Action::new(label, move |session| session.dynamic().dispatch(&event, value.clone()).map(drop))
}

/// Describes one step of a history.
#[derive(Clone, Debug)]
pub enum HistoryStep {
    /// The host runs an action on its session.
    Act(Action),
    /// The host takes a snapshot.
    Snapshot,
    /// The session rolls STATE back to a position, which may be abandoned already.
    RollBack(Index),
    /// The session rolls STATE back to one of the snapshots, if there are any.
    RollBackToSnapshot(Index),
    /// The session is closed and opened again.
    Reopen,
    /// The process is killed, and another process opens the session.
    Kill,
    /// The session is forked at a position, and the history continues in the fork.
    Fork(Index),
}

/// Makes a step of one kind from an action and an index.
type StepMaker = fn(Action, Index) -> HistoryStep;

/// A list of steps of one session.
#[derive(Clone, Debug)]
pub struct History {
    /// Steps, in the order in which they happen.
    pub steps: Vec<HistoryStep>,
}

/// Generates histories of up to 32 steps, about half of which are one of these actions.
pub fn histories(actions: impl Strategy<Value = Action>) -> impl Strategy<Value = History> {
    histories_of(actions, 1..=32)
}

/// Generates histories whose number of steps lies in `steps`.
pub fn histories_of(
    actions: impl Strategy<Value = Action>,
    steps: RangeInclusive<usize>,
) -> impl Strategy<Value = History> {
    // Shrinking leaves steps out from the first to the last, and then makes each simpler. A step
    // that could not be left out at first may become superfluous once a later one is removed, so
    // `kept` tries each of them once more. The kind of a step does not shrink: no shrinking would
    // then leave out the simpler kind.
    let kept = prop::bool::weighted(0.999);
    let kind = prop_oneof![
        8 => Just((|action, _| HistoryStep::Act(action)) as StepMaker),
        1 => Just((|_, _| HistoryStep::Snapshot) as StepMaker),
        2 => Just((|_, at| HistoryStep::RollBack(at)) as StepMaker),
        1 => Just((|_, at| HistoryStep::RollBackToSnapshot(at)) as StepMaker),
        1 => Just((|_, _| HistoryStep::Reopen) as StepMaker),
        1 => Just((|_, _| HistoryStep::Kill) as StepMaker),
        1 => Just((|_, at| HistoryStep::Fork(at)) as StepMaker),
    ];
    let step = (kept, kind.no_shrink(), actions, any::<Index>())
        .prop_map(|(kept, make, action, at)| kept.then(|| make(action, at)));
    prop::collection::vec(step, steps)
        .prop_map(|steps| History { steps: steps.into_iter().flatten().collect() })
}
