//! Histories: what may happen to a session, in any order.

use foldlog::{Durability, KeptSnapshots};
use foldlog_test_support::host::{Noted, StepAdded};
use foldlog_test_support::model::{Change, Cleared};
use proptest::prelude::*;
use proptest::sample::Index;

use super::ground::{Ground, grounds};

/// A history, what it stands on, and the durability at which it is lived.
#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) ground: Ground,
    pub(super) durability: Durability,
    pub(super) hosts: Hosts,
    /// Whether the hosts await the futures of what they record.
    pub(super) awaits: bool,
    pub(super) actions: Vec<Action>,
}

/// Which hosts live through a history, one after the other: each opening is the next one's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hosts {
    /// Each declares Rust types.
    Typed,
    /// Each declares names alone.
    Named,
    /// They take turns, and the first one declares Rust types.
    InTurn,
}

impl Hosts {
    /// Returns whether the host of the opening number `opening` declares names alone.
    pub(super) fn is_named(self, opening: usize) -> bool {
        match self {
            Hosts::Typed => false,
            Hosts::Named => true,
            Hosts::InTurn => opening % 2 == 1,
        }
    }
}

/// One step of a history.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Change(Change),
    Snapshot,
    /// To any position, also one that was abandoned.
    RollBack(Index),
    RollBackToSnapshot(Index),
    /// To any position, and LOG too, as only tests can have it.
    RollBackLogsToo(Index),
    Reopen(How),
    /// At any position; either the fork goes on, or the parent beside it.
    Fork {
        at: Index,
        follow: bool,
    },
    /// Out to JSON text and in again; the new session goes on.
    Import,
    /// Keeping the positions of these snapshots.
    Compact(KeptSnapshots),
}

/// How a session ends before it is opened again.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Closed,
    Dropped,
    Killed,
    /// Its machine is gone, and another one takes it over from the bucket that holds it.
    TakenOver,
}

/// Mostly short, now and then longer than fits many times into a segment, or so long that it becomes an
/// object of its own.
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

/// Any actions, among them compactions.
fn actions_and_compactions(most: usize) -> impl Strategy<Value = Vec<Action>> {
    let kept = prop::sample::select(vec![KeptSnapshots::All, KeptSnapshots::None]);
    let compact = kept.prop_map(Action::Compact);
    let undone = any::<Index>().prop_map(Action::RollBackLogsToo);
    prop::collection::vec(prop_oneof![20 => action(), 2 => compact, 1 => undone], 0..most)
}

/// Any actions, among them those that take LOG back.
pub(super) fn actions_and_logs_undone(most: usize) -> impl Strategy<Value = Vec<Action>> {
    let undone = any::<Index>().prop_map(Action::RollBackLogsToo);
    prop::collection::vec(prop_oneof![20 => action(), 1 => undone], 0..most)
}

/// Any history.
pub(super) fn histories() -> impl Strategy<Value = History> {
    histories_of(prop::collection::vec(action(), 1..40))
}

/// Any history, with compactions.
pub(super) fn compacted_histories() -> impl Strategy<Value = History> {
    histories_of(actions_and_compactions(60))
}

/// Any history of a session that a bucket holds, which goes from machine to machine. One that was forked, imported or compacted does not.
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
