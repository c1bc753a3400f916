//! Generators of histories: the steps that a session may go through, in any order.

use foldlog::{Durability, KeptSnapshots};
use foldlog_test_support::host::{Noted, StepAdded};
use foldlog_test_support::model::{Change, Cleared};
use proptest::prelude::*;
use proptest::sample::Index;

use super::ground::{Ground, grounds};

/// A history, its ground, and the durability of its sessions.
#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) ground: Ground,
    pub(super) durability: Durability,
    pub(super) hosts: Hosts,
    /// Whether the hosts await the futures of what they record.
    pub(super) awaits: bool,
    pub(super) actions: Vec<Action>,
}

/// The hosts of a history, one after the other: each opening has the next host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hosts {
    /// All declare Rust types.
    Typed,
    /// All declare names alone.
    Named,
    /// Both kinds take turns; the first host declares Rust types.
    InTurn,
}

impl Hosts {
    pub(super) fn is_named(self, opening: usize) -> bool {
        match self {
            Hosts::Typed => false,
            Hosts::Named => true,
            Hosts::InTurn => opening % 2 == 1,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    Change(Change),
    Snapshot,
    /// Rolls back to any position, including an abandoned one.
    RollBack(Index),
    RollBackToSnapshot(Index),
    /// Rolls LOG back too, which only tests can do.
    RollBackLogsToo(Index),
    Reopen(How),
    /// Forks at any position; the history continues with either the fork or its parent.
    Fork {
        at: Index,
        follow: bool,
    },
    /// Exports to JSON text and imports it again; the history continues with the new session.
    Import,
    /// Keeps the positions of these snapshots.
    Compact(KeptSnapshots),
}

/// How a session ends before it is opened again.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Closed,
    Dropped,
    Killed,
    /// The machine is lost, and another one takes the session over from its bucket.
    TakenOver,
}

/// Mostly short texts. Some fill several segments, and some are long enough to become objects.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-cü?]{0,3}",
        1 => "[ab]".prop_map(|text| text.repeat(500)),
        1 => "[ab]".prop_map(|text| text.repeat(700)),
    ]
}

fn step() -> impl Strategy<Value = StepAdded> {
    (text(), 0..4_u8).prop_map(|(title, part)| StepAdded { title, part })
}

fn few<S: Strategy>(items: S) -> impl Strategy<Value = Vec<S::Value>>
where
    S::Value: Clone,
{
    prop::collection::vec(items, 0..4)
}

fn change() -> impl Strategy<Value = Change> {
    let cleared = prop::sample::select(vec![
        Cleared::Plan,
        Cleared::StepOfPart,
        Cleared::Draft,
        Cleared::Preview,
        Cleared::Notes,
        Cleared::Undeclared,
    ]);
    prop_oneof![
        5 => step().prop_map(Change::Step),
        3 => text().prop_map(Change::Note),
        5 => (0..6_usize, text()).prop_map(|(place, line)| Change::Edit(place, line)),
        2 => (0..6_usize).prop_map(|place| Change::Edit(place, "?".to_owned())),
        3 => few(text()).prop_map(Change::Paste),
        2 => (0..4_usize).prop_map(Change::Turn),
        1 => "[a-c]".prop_map(Change::Strike),
        2 => any::<bool>().prop_map(Change::Doubt),
        2 => any::<i64>().prop_map(Change::Undeclared),
        1 => few(step()).prop_map(Change::SeedPlan),
        1 => few(text()).prop_map(Change::SeedDraft),
        1 => few(step()).prop_map(Change::SeedPreview),
        1 => few(text().prop_map(|text| Noted { text })).prop_map(Change::SeedNotes),
        2 => cleared.prop_map(Change::Clear),
        1 => (0..4_u8).prop_map(Change::ClearPart),
        1 => Just(Change::Reset),
        1 => ("[ab]", prop::option::of("[a-c]")).prop_map(|(key, value)| Change::Tag(key, value)),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let how = prop::sample::select(vec![How::Closed, How::Dropped, How::Killed]);
    prop_oneof![
        24 => change().prop_map(Action::Change),
        3 => Just(Action::Snapshot),
        4 => any::<Index>().prop_map(Action::RollBack),
        2 => any::<Index>().prop_map(Action::RollBackToSnapshot),
        3 => how.prop_map(Action::Reopen),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(at, follow)| Action::Fork { at, follow }),
        1 => Just(Action::Import),
    ]
}

fn actions_and_compactions(most: usize) -> impl Strategy<Value = Vec<Action>> {
    let kept = prop::sample::select(vec![KeptSnapshots::All, KeptSnapshots::None]);
    let compact = kept.prop_map(Action::Compact);
    let undone = any::<Index>().prop_map(Action::RollBackLogsToo);
    prop::collection::vec(prop_oneof![20 => action(), 2 => compact, 1 => undone], 0..most)
}

pub(super) fn actions_and_logs_undone(most: usize) -> impl Strategy<Value = Vec<Action>> {
    let undone = any::<Index>().prop_map(Action::RollBackLogsToo);
    prop::collection::vec(prop_oneof![20 => action(), 1 => undone], 0..most)
}

pub(super) fn histories() -> impl Strategy<Value = History> {
    histories_of(prop::collection::vec(action(), 1..40))
}

pub(super) fn compacted_histories() -> impl Strategy<Value = History> {
    histories_of(actions_and_compactions(60))
}

/// Any history of a replicated session that moves from machine to machine. It contains no fork,
/// import or compaction.
pub(super) fn moving_histories() -> impl Strategy<Value = History> {
    let how =
        prop::sample::select(vec![How::Closed, How::Dropped, How::Killed, How::TakenOver, How::TakenOver]);
    let stays = |action: &Action| !matches!(action, Action::Fork { .. } | Action::Import);
    let action = action().prop_filter("it stays one session", stays);
    histories_of(prop::collection::vec(prop_oneof![6 => action, 1 => how.prop_map(Action::Reopen)], 1..40))
}

fn histories_of(actions: impl Strategy<Value = Vec<Action>>) -> impl Strategy<Value = History> {
    let durability = prop::sample::select(vec![Durability::Process, Durability::Boundary, Durability::Every]);
    let hosts = prop::sample::select(vec![Hosts::Typed, Hosts::Named, Hosts::InTurn]);
    (grounds(), durability, hosts, any::<bool>(), actions).prop_map(
        |(ground, durability, hosts, awaits, actions)| History { ground, durability, hosts, awaits, actions },
    )
}
