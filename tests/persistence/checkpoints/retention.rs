//! Retention of checkpoints, compared with a naive model.

use std::collections::BTreeSet;
use std::time::Duration;

use foldlog_tasks::{
    Checkpoint, CheckpointId, CheckpointManager, CheckpointsRemoved, Occasion, RemovalReason, RestoreOptions,
    RetentionPolicy,
};
use proptest::prelude::*;
use proptest::sample::Index;

use super::stories::fork;
use crate::{create, store, task, types};

#[derive(Clone, Debug)]
enum Action {
    Create { named: bool, seconds: u32, large: bool },
    Fork(Index),
    Restore(Index),
    RollBack(Index),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        8 => (prop::bool::weighted(0.15), 0..50_u32, any::<bool>())
            .prop_map(|(named, seconds, large)| Action::Create { named, seconds, large }),
        1 => any::<Index>().prop_map(Action::Fork),
        1 => any::<Index>().prop_map(Action::Restore),
        1 => any::<Index>().prop_map(Action::RollBack),
    ];
    prop::collection::vec(action, 1..24)
}

fn policy() -> impl Strategy<Value = RetentionPolicy> {
    let (count, age, bytes) = (0..5_u64, 0..120_u64, 0..6_000_u64);
    let (count, age, bytes) = (prop::option::of(count), prop::option::of(age), prop::option::of(bytes));
    (count, age, bytes).prop_map(|(count, age, bytes)| RetentionPolicy {
        count,
        age: age.map(Duration::from_secs),
        bytes,
    })
}

/// The model of a session, in plain lists.
#[derive(Default)]
struct Model {
    kept: Vec<Checkpoint>,
    forks: Vec<u64>,
    /// Each rollback: its record and its target.
    rollbacks: Vec<(u64, u64)>,
}

impl Model {
    /// Returns whether a record is live at a position, by following the log back step by step.
    fn is_live(&self, record: u64, mut at: u64) -> bool {
        loop {
            if at == record {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = self.rollbacks.iter().find(|(own, _)| *own == at).map_or(at - 1, |(_, to)| *to);
        }
    }

    fn latest_at(&self, at: u64) -> Option<CheckpointId> {
        self.kept.iter().rev().find(|one| self.is_live(one.position.get(), at)).map(|one| one.id)
    }

    /// Removes the checkpoints that a policy does not keep.
    fn retain(&mut self, policy: &RetentionPolicy, at: u64) {
        let latest = self.kept.last().unwrap().clone();
        let mut undo = Vec::new();
        let mut needed: BTreeSet<CheckpointId> = BTreeSet::from([latest.id]);
        needed.extend(self.latest_at(at));
        needed.extend(self.forks.iter().filter_map(|fork| self.latest_at(*fork)));
        for one in &self.kept {
            if let Occasion::BeforeRestore(to) = one.occasion {
                undo = vec![one.id, to];
            }
        }
        needed.extend(undo);
        let len = self.kept.len() as u64;
        let mut place = 0;
        self.kept.retain(|one| {
            place += 1;
            let is_beyond = policy.count.is_some_and(|count| len - place >= count.max(1));
            let age = (latest.created_at - one.created_at).to_std().unwrap();
            let is_old = policy.age.is_some_and(|limit| age > limit);
            let grown = latest.manifest.storage_size_bytes - one.manifest.storage_size_bytes;
            let is_far = policy.bytes.is_some_and(|limit| grown > limit);
            needed.contains(&one.id) || one.name.is_some() || !(is_beyond || is_old || is_far)
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(128), ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_is_what_a_naive_model_keeps(actions in actions(), policy in policy()) {
        let (store, clock) = store(false);
        let manager = CheckpointManager::new(store.create(&types()).unwrap()).with_retention(policy.clone());
        let session = manager.session().clone();
        let mut model = Model::default();
        let now = || session.log().position().unwrap().get();
        for (number, action) in actions.iter().enumerate() {
            match action {
                Action::Create { named, seconds, large } => {
                    clock.advance_us(i64::from(*seconds) * 1_000_000);
                    let mut task = task(&format!("t{number}"));
                    task.description = "x".repeat(if *large { 2_000 } else { 1 });
                    create(&session, task).unwrap();
                    model.kept.push(manager.create(named.then_some("kept")).unwrap());
                    // A new checkpoint exists before any is removed.
                    if policy != RetentionPolicy::default() {
                        model.retain(&policy, now());
                    }
                }
                Action::Fork(index) => {
                    let at = index.index(now() as usize + 1) as u64;
                    drop(fork(&store, &manager, at));
                    model.forks.push(at);
                }
                Action::RollBack(index) => {
                    let to = index.index(now() as usize + 1) as u64;
                    let report = session.rollback_to(to).unwrap();
                    model.rollbacks.push((report.sequence.get(), to));
                }
                Action::Restore(index) => {
                    let Some(checkpoint) = model.kept.get(index.index(model.kept.len().max(1))).cloned() else {
                        continue;
                    };
                    let options = RestoreOptions { by: "ada".to_owned(), ..RestoreOptions::default() };
                    let report = manager.restore_from_checkpoint(checkpoint.id, &options).unwrap();
                    let undo = manager.get(report.undo).unwrap();
                    let at = undo.position.get();
                    model.kept.push(undo);
                    if policy != RetentionPolicy::default() {
                        model.retain(&policy, at);
                    }
                    model.rollbacks.push((report.rolled_back.sequence.get(), checkpoint.position.get()));
                }
            }
            let kept: Vec<CheckpointId> = manager.list().unwrap().iter().map(|one| one.id).collect();
            let expected: Vec<CheckpointId> = model.kept.iter().map(|one| one.id).collect();
            prop_assert_eq!(&kept, &expected, "after {:?}", action);
            for id in kept {
                manager.verify(id).unwrap();
            }
        }
    }
}

#[test]
fn the_only_checkpoint_and_what_a_name_a_fork_or_a_restore_needs_is_kept_by_the_strictest_limits() {
    let strict = RetentionPolicy { count: Some(0), age: Some(Duration::ZERO), bytes: Some(0) };
    let (store, clock) = store(false);
    let manager = CheckpointManager::new(store.create(&types()).unwrap()).with_retention(strict);
    let ids = || -> Vec<u64> { manager.list().unwrap().iter().map(|one| one.id.0).collect() };
    let next = |name| {
        clock.advance_us(1_000_000);
        manager.create(name).unwrap()
    };
    next(None);
    assert_eq!(ids(), [1], "the only one");
    next(None);
    assert_eq!(ids(), [2], "the latest one");
    let named = next(Some("release"));
    next(None);
    assert_eq!(ids(), [3, 4], "and one with a name");
    let forked = manager.session().log().position().unwrap();
    let fork = fork(&store, &manager, forked.get());
    next(None);
    assert_eq!(ids(), [3, 4, 5], "and one that a fork goes back to");
    drop(fork);
    let options = RestoreOptions { by: "ada".to_owned(), ..RestoreOptions::default() };
    manager.restore_from_checkpoint(named.id, &options).unwrap();
    next(None);
    assert_eq!(ids(), [3, 4, 6, 7], "and the ones of a restore");
    let latest = CheckpointId(7);
    let removal = |ids: &[u64], latest| CheckpointsRemoved {
        ids: ids.iter().copied().map(CheckpointId).collect(),
        reason: RemovalReason::Count,
        latest,
    };
    manager.session().dispatch(removal(&[7], latest)).unwrap_err();
    manager.session().dispatch(removal(&[4], CheckpointId(6))).unwrap_err();
    manager.session().dispatch(removal(&[4], latest)).unwrap();
    assert_eq!(ids(), [3, 6, 7]);
}

/// The docs claimed that named checkpoints replace others, but they never did.
#[test]
fn the_latest_are_counted_and_those_with_names_stay_beside_them() {
    let (store, _) = store(false);
    let retention = RetentionPolicy { count: Some(2), ..RetentionPolicy::default() };
    let manager = CheckpointManager::new(store.create(&types()).unwrap()).with_retention(retention);
    let kept = |name| {
        manager.create(name).unwrap();
        manager.list().unwrap().iter().map(|one| one.id.0).collect::<Vec<_>>()
    };
    assert_eq!(kept(Some("kept")), [1]);
    assert_eq!(kept(None), [1, 2]);
    assert_eq!(kept(None), [1, 2, 3], "the first stays beside the latest two");
    assert_eq!(kept(Some("kept too")), [1, 3, 4], "a name counts where it stands");
}
