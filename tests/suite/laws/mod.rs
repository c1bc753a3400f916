//! The laws: properties that hold after any history.
//!
//! Each law is tried on every ground: in memory with and without images, and over mapped files with
//! images, where the background runs inline or in its own thread.
//!
//! The hosts of a history declare Rust types, or names alone, or take turns; they call blocking
//! methods or await futures.
//!
//! Each law is tried with 512 histories; `PROPTEST_CASES` sets another number. A history that
//! breaks a law is shrunk, and its seed stays in a file next to this one until someone deletes it.

mod actions;
mod agents;
mod ground;
mod hosts;
mod images;
mod images_within_calls;
mod stretches;
mod world;

use std::collections::BTreeMap;

use foldlog::{Error, Export, ImportOptions, RecordKind, SequenceNumber};
use proptest::prelude::*;
use proptest::sample::Index;

use actions::{History, Hosts, compacted_histories, histories, moving_histories};
use ground::Ground;
use world::{World, state_bytes, values};

fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig { cases: asked.cases.max(512), ..asked }
}

proptest! {
    #![proptest_config(config())]

    /// Law 1: the live projection equals a new fold, a fold without types, and a model of plain
    /// vectors. The same is true for the sessions that a fork or an import leaves, regardless of
    /// writes on the other side.
    #[test]
    fn any_history_amounts_to_what_the_model_says(history in histories()) {
        World::through(&history).check_whole();
    }

    /// Law 2: after a rollback, STATE equals a fold along the path that was live at the target.
    /// Every position can still be read as the live session showed it. LOG never shrinks.
    #[test]
    fn a_rollback_is_the_fold_along_the_path_of_its_target(
        history in histories(),
        targets in prop::collection::vec(any::<Index>(), 1..4),
    ) {
        let mut world = World::through(&history);
        check_positions(&world);
        check_logs_grow(&world);
        for target in targets {
            let to = target.index(world.model.past.len()) as u64;
            let logs = log_lengths(&world);
            world.roll_back(to);
            let along = world.reader().state_along(to).unwrap();
            prop_assert_eq!(state_bytes(&world.session().dynamic().state().unwrap()), state_bytes(&along));
            prop_assert_eq!(log_lengths(&world), logs, "LOG stays as it is");
        }
        world.check_whole();
    }

    /// Law 3: the same clock, seed and calls give the same records, and with inline syncs the same
    /// bytes.
    #[test]
    fn the_same_calls_give_the_same_bytes(history in histories()) {
        // The timing of a background thread varies.
        let ground = match history.ground {
            Ground::MappedInBackground => Ground::Mapped,
            ground => ground,
        };
        let history = History { ground, ..history };
        let (once, again) = (World::through(&history), World::through(&history));
        prop_assert_eq!(content(&once), content(&again));
        let (once_disk, again_disk) = (once.disk.clone(), again.disk.clone());
        prop_assert!(once_disk.dump() == again_disk.dump(), "while open");
        drop((once, again));
        prop_assert!(once_disk.dump() == again_disk.dump(), "once closed");
    }

    /// Law 7: a compaction leaves the session and each kept position unchanged. Any other position
    /// is refused, and later records are the same as without the compaction.
    #[test]
    fn a_compaction_changes_nothing_but_which_positions_are_known(history in compacted_histories()) {
        let world = World::through(&history);
        check_positions(&world);
        world.check_whole();
    }

    /// Law 6: an import of exported JSON has the same slices, and the import reports all that it
    /// cannot take.
    #[test]
    fn an_export_comes_in_again_as_it_went_out(history in histories()) {
        let world = World::through(&history);
        check_export(&world);
    }
}

proptest! {
    // The other laws try the same hosts.
    #![proptest_config(ProptestConfig { cases: config().cases / 4, ..config() })]

    /// Law 3, for hosts that declare names alone and hosts that await futures: they record the same
    /// bytes as hosts of Rust types that call blocking methods.
    #[test]
    fn the_same_calls_give_the_same_bytes_with_and_without_rust_types_and_by_futures(history in histories()) {
        let ground = match history.ground {
            Ground::MappedInBackground => Ground::Mapped,
            ground => ground,
        };
        let lived = |hosts, awaits| World::through(&History { ground, hosts, awaits, ..history.clone() });
        let typed = lived(Hosts::Typed, false);
        for other in [lived(Hosts::Named, false), lived(Hosts::Typed, true), lived(Hosts::Named, true)] {
            prop_assert_eq!(content(&typed), content(&other));
            prop_assert!(typed.disk.dump() == other.disk.dump());
        }
    }
}

proptest! {
    // Each opening reads a bucket, and other laws try most of the steps.
    #![proptest_config(ProptestConfig { cases: config().cases / 8, ..config() })]

    /// Laws 1 and 2, for a session whose machine is lost now and then, and which another machine
    /// takes over from its bucket. Each position stays the same, and a lost machine is refused when
    /// it returns.
    #[test]
    fn any_history_amounts_to_the_same_on_whatever_machine_it_goes_on(
        history in moving_histories(),
    ) {
        let world = World::moving_through(&history);
        check_positions(&world);
        check_logs_grow(&world);
        world.check_whole();
    }
}

/// Compares every position, as the auditor reads it, with the model and with the live session at
/// that time.
fn check_positions(world: &World) {
    let reader = world.reader();
    for (position, then) in (0..).zip(&world.model.past) {
        if world.gone.contains(&position) {
            continue;
        }
        let at = reader.state_at(position).unwrap();
        assert_eq!(values(&at), then.slices, "at {position}");
        assert_eq!(at.tags, then.tags, "at {position}");
        if let Some(shown) = world.shown.get(&position) {
            assert_eq!(&at, shown, "what the session showed at {position}");
        }
        assert_eq!(world.session().dynamic().state_at(position).unwrap(), at);
        let along = reader.state_along(position).unwrap();
        assert_eq!(state_bytes(&along), state_bytes(&at), "along the path of {position}");
        let live = reader.live_path().live_at(position);
        assert!(world::flat(&live).iter().eq(&then.live), "the path of {position}");
    }
}

/// Checks that LOG never shrinks from one record to the next.
fn check_logs_grow(world: &World) {
    for pair in world.model.past.windows(2) {
        for (name, (policy, items)) in &pair[0].slices {
            assert!(*policy != "log" || pair[1].slices[name].1.starts_with(items));
        }
    }
}

fn log_lengths(world: &World) -> BTreeMap<String, usize> {
    let state = world.session().dynamic().state().unwrap();
    let logs = state.slices.iter().filter(|(_, slice)| slice.policy == foldlog::Policy::Log);
    logs.map(|(name, slice)| (name.clone(), slice.items.len())).collect()
}

/// Returns the compared content of each record.
fn content(world: &World) -> Vec<(SequenceNumber, RecordKind, i64, Vec<u8>)> {
    let mut content = Vec::new();
    let read = world.session().log().records(0, u64::MAX, |record| {
        content.push((record.sequence, record.kind, record.time_us, record.body.to_vec()));
        Ok(())
    });
    read.unwrap();
    content
}

fn check_export(world: &World) {
    let (session, live) = (world.session(), world.session().dynamic().state().unwrap());
    let export = session.log().export().unwrap();
    let text = export.to_json().unwrap();
    let read = Export::from_json(&text).unwrap();
    assert_eq!(read, export);
    assert_eq!(read.to_json().unwrap(), text);
    let names: Vec<&String> = export.slices.iter().map(|slice| &slice.slice_type).collect();
    assert!(names.is_sorted() && names.iter().all(|name| export.policies.contains_key(*name)));
    assert!(export.slices.iter().all(|slice| !slice.items.is_empty()), "empty slices are left out");
    let store = foldlog::Store::open_with(world.disk.root().join("other"), world.options()).unwrap();
    if names.iter().any(|name| *name == "undeclared") {
        let error = store.import(&read, &world.types(), ImportOptions::default()).unwrap_err();
        assert_eq!(error.to_string(), "Slice types not registered: undeclared");
        assert!(store.session_ids().unwrap().is_empty(), "no session is left behind");
    }
    let options = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
    let import = store.import(&read, &world.types(), options).unwrap();
    let state = import.dynamic().state().unwrap();
    assert_eq!(state.tags, live.tags);
    let exported = live.slices.iter().filter(|(_, s)| s.policy.name() != "cache" && !s.items.is_empty());
    let exported: BTreeMap<_, _> = exported.collect();
    assert_eq!(state.slices.keys().collect::<Vec<_>>(), exported.keys().copied().collect::<Vec<_>>());
    for (name, was) in exported {
        let is = &state.slices[name];
        assert_eq!((is.policy, &is.item), (was.policy, &was.item));
        let bytes = |slice: &foldlog::SliceState| -> Vec<_> {
            slice.items.iter().map(|item| (item.version, item.bytes.clone())).collect()
        };
        assert_eq!(bytes(is), bytes(was), "the stored bytes of {name}");
    }
    // The session reads the same without types.
    let untyped = store.open_untyped(import.id()).unwrap();
    assert_eq!(untyped.dynamic().state().unwrap(), state);
    assert!(matches!(untyped.reset(), Err(Error::Untyped { .. })));
}
