//! Positions: snapshots, rollbacks to them, and their form for other tools.

use std::sync::Arc;

use foldlog::{
    Clock, Error, Export, ImportOptions, Policy, RecordKind, SequenceNumber, SessionOptions, SnapshotOptions,
    Store, StoreOptions, SystemClock,
};
use foldlog_test_support::host::*;
use serde_json::{Value, json};

use super::{BEGIN_US, Home, home, seeded, step, stored, titles};

fn names(export: &Export) -> Vec<&str> {
    export.slices.iter().map(|slice| slice.slice_type.as_str()).collect()
}

#[test]
fn a_snapshots_policies_say_which_slices_it_exports() {
    let home = home();
    let session = home.session();
    session.dispatch(step("read")).unwrap();
    session.dispatch(Noted { text: "began".to_owned() }).unwrap();
    let state = session.snapshot(SnapshotOptions::default()).unwrap();
    let all = session.snapshot(SnapshotOptions::with_tag("all").include_all()).unwrap();
    let logs = SnapshotOptions { tag: None, policies: [Policy::Log].into() };
    let logs = session.snapshot(logs).unwrap();
    // None of them contains later records.
    session.dispatch(step("write")).unwrap();
    session.dispatch(Noted { text: "ended".to_owned() }).unwrap();

    let state = session.log().export_snapshot(&state).unwrap();
    assert_eq!(names(&state), ["current_step", "plan", "step_of_part"]);
    assert_eq!(state.slices[1].items.len(), 1);
    let all = session.log().export_snapshot(&all).unwrap();
    assert_eq!(names(&all), ["current_step", "note_sizes", "notes", "plan", "preview", "step_of_part"]);
    assert_eq!(all.policies["preview"], "cache");
    let logs = session.log().export_snapshot(&logs).unwrap();
    assert_eq!(names(&logs), ["note_sizes", "notes"]);
    assert_eq!(logs.slices[1].items.len(), 1);
    // By default, an export contains the slices that cannot be recomputed.
    assert!(!names(&session.log().export().unwrap()).contains(&"preview"));
}

/// Field by field as in specification E.
#[test]
fn the_json_of_a_snapshot_has_the_fields_that_other_tools_expect() {
    let home = home();
    let root = home.session();
    let options = SessionOptions { parent: Some(root.id()), ..SessionOptions::default() };
    let session = home.store.create_with(&types(), options.tag("task", "7")).unwrap();
    let child = SessionOptions { parent: Some(session.id()), ..SessionOptions::default() };
    let child = home.store.create_with(&types(), child).unwrap();
    session.dispatch(step("read")).unwrap();
    session.dispatch(DraftEdited { place: 0, line: "first".to_owned() }).unwrap();
    home.clock.set_us(BEGIN_US + 1_000_005);
    let export = session.log().export().unwrap();
    assert_eq!(export.created_at_us().unwrap(), BEGIN_US + 1_000_005);

    let shown: Value = serde_json::from_str(&export.to_json().unwrap()).unwrap();

    let read = json!({"title": "read", "part": 0});
    let slice = |name| json!({"slice_type": name, "item_type": "plan.step_added", "items": [read]});
    let expected = json!({
        "version": "1",
        "created_at": "2026-01-02T03:00:01.000005+00:00",
        "values": "exact",
        "parent_id": root.id().to_string(),
        "children_ids": [child.id().to_string()],
        "tags": {"task": "7"},
        "policies": {"current_step": "state", "draft": "state", "plan": "state", "step_of_part": "state"},
        "slices": [
            slice("current_step"),
            // Items not recorded at version 1 name their version, or they could not be read again.
            {"slice_type": "draft", "item_type": "draft_line", "items": ["first"], "item_versions": [2]},
            slice("plan"),
            slice("step_of_part"),
        ],
    });
    assert_eq!(shown, expected);
}

#[test]
fn an_import_begins_a_session_of_its_own_and_names_what_it_cannot_take() {
    let home = home();
    let session = home.session();
    session.set_tag("task", "7").unwrap();
    session.set_tag("trial", "1").unwrap();
    session.dispatch(step("read")).unwrap();
    session.dispatch(Noted { text: "began".to_owned() }).unwrap();
    let export = session.log().export().unwrap();

    let options = || SessionOptions::default().tag("trial", "2").tag("own", "yes");
    let import = |session| ImportOptions { session, keep_unknown: false };
    let imported = home.store.import(&export, &types(), import(options())).unwrap();
    let tags: Vec<(String, String)> = imported.tags().into_iter().collect();
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(tags, [tag("own", "yes"), tag("task", "7"), tag("trial", "2")], "its own tags come last");
    assert_eq!(stored(&imported, "notes"), [json!({"text": "began"})], "LOG is taken in too");
    // The reducers continue from there.
    imported.dispatch(Noted { text: "went on".to_owned() }).unwrap();
    assert_eq!(stored(&imported, "note_sizes"), [json!([5, 5]), json!([7, 12])]);

    let sessions = home.store.session_ids().unwrap();
    let few = foldlog::SessionTypes::builder().slice::<Plan>().append_all::<Plan>().build().unwrap();
    let error = home.store.import(&export, &few, import(options())).unwrap_err();
    let named = "Slice types not registered: current_step, note_sizes, notes, step_of_part";
    assert_eq!(error.to_string(), named);
    assert_eq!(home.store.session_ids().unwrap(), sessions, "nothing is left behind");
    let kept = ImportOptions { session: options(), keep_unknown: true };
    let kept = home.store.import(&export, &few, kept).unwrap();
    assert_eq!(titles::<Plan>(&kept), ["read"]);
    assert_eq!(stored(&kept, "notes"), [json!({"text": "began"})]);
    let policies = |state: foldlog::State| state.slices.into_values().map(|s| s.policy).collect::<Vec<_>>();
    assert_eq!(
        kept.dynamic().state().unwrap().slices["notes"].policy,
        Policy::Log,
        "kept under the policy that it had"
    );
    assert_eq!(policies(home.reopened(kept, &few).dynamic().state().unwrap()).len(), 5);

    let other = foldlog::SessionTypes::builder()
        .slice_with::<Notes>(Policy::State)
        .append_all::<Notes>()
        .build()
        .unwrap();
    let kept = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
    assert!(matches!(home.store.import(&export, &other, kept), Err(Error::PolicyMismatch { .. })));
}

#[test]
fn what_is_no_export_is_refused_with_the_reason() {
    let good = json!({
        "version": "1", "created_at": "2026-01-02T03:00:00+02:00", "policies": {}, "slices": [],
        "future_field": "is passed over",
    });
    let read = |value: &Value| Export::from_json(&value.to_string());
    assert_eq!(read(&good).unwrap().created_at_us().unwrap(), BEGIN_US - 2 * 3_600_000_000);
    let slice = json!({"slice_type": "plan", "item_type": "x", "items": [1], "item_versions": [1, 1]});
    let twice = json!({"slice_type": "a", "item_type": "a", "items": []});
    let bad = [
        ("/version", json!("2")),
        ("/created_at", json!("2026-01-02T03:00:00")),
        ("/policies", json!({"plan": "forever"})),
        ("/slices", json!([slice])),
        ("/slices", json!([twice, twice])),
        ("/slices", json!("none")),
    ];
    for (place, value) in bad {
        let mut export = good.clone();
        *export.pointer_mut(place).unwrap() = value.clone();
        assert!(matches!(read(&export), Err(Error::Export(_))), "{place} {value}");
    }
}

#[test]
fn a_rollback_reaches_any_position_also_abandoned_ones_and_those_no_longer_kept_at_hand() {
    let home = home();
    let session = home.session();
    let mut snapshots = Vec::new();
    // More than the session keeps in memory.
    for n in 0..300 {
        session.dispatch(step(&n.to_string())).unwrap();
        snapshots.push(session.snapshot(SnapshotOptions::default()).unwrap());
    }
    for n in [299, 0, 150, 298, 0] {
        let done = session.rollback(&snapshots[n]).unwrap();
        let expected: Vec<String> = (0..=n).map(|n| n.to_string()).collect();
        assert_eq!(titles::<Plan>(&session), expected, "back to {n}");
        assert_eq!(done.to, snapshots[n].position);
    }
    // A rollback is a position like any other.
    let rollback = session.log().position().unwrap();
    session.dispatch(step("after")).unwrap();
    session.rollback_to(rollback).unwrap();
    assert_eq!(titles::<Plan>(&session), ["0"]);
    let live = session.dynamic().state().unwrap();
    let again = home.reopened(session, &types());
    assert_eq!(again.dynamic().state().unwrap(), live);
    again.rollback(&snapshots[2]).unwrap();
    assert_eq!(titles::<Plan>(&again), ["0", "1", "2"], "a snapshot outlives the process that took it");

    let beyond = again.log().position().unwrap() + 1;
    assert!(matches!(again.rollback_to(beyond), Err(Error::NoSuchPosition { .. })));
    let other = home.session();
    let error = other.rollback(&snapshots[0]).unwrap_err();
    assert!(matches!(error, Error::WrongSession { .. }), "positions of another session mean nothing here");
}

#[test]
fn a_view_stays_as_it_was_while_the_session_goes_on() {
    let session = home().session();
    session.dispatch(step("read")).unwrap();
    session.dispatch(Noted { text: "one".to_owned() }).unwrap();
    let (plan, notes) = (session.view::<Plan>().unwrap(), session.log().slice::<Notes>().unwrap());
    let position = session.log().position().unwrap();
    session.dispatch(step("write")).unwrap();
    session.dispatch(Noted { text: "two".to_owned() }).unwrap();
    session.clear::<Plan>().unwrap();
    session.rollback_to(position).unwrap();
    session.reset().unwrap();
    drop(session);
    assert_eq!(plan.iter().map(|step| step.title.as_str()).collect::<Vec<_>>(), ["read"]);
    assert_eq!((plan.len(), plan.get(0).unwrap().title.as_str(), plan.get(1)), (1, "read", None));
    assert_eq!(notes.len(), 1);
    assert_eq!(notes.get(0).unwrap().unwrap().text, "one");
    assert!(notes.get(1).unwrap().is_none());
}

fn times_of(session: &foldlog::Session) -> Vec<i64> {
    let mut times = Vec::new();
    let read = session.log().records(0, u64::MAX, |record| {
        times.push(record.time_us);
        Ok(())
    });
    read.unwrap();
    times
}

#[test]
fn the_clock_is_the_hosts() {
    let home = home();
    let session = home.session();
    for _ in 0..3 {
        home.clock.advance_us(17);
        session.dispatch(step("timed")).unwrap();
    }
    let times: Vec<i64> = times_of(&session).iter().map(|time_us| time_us - BEGIN_US).collect();
    assert_eq!(times, [0, 17, 17, 34, 51], "the declaration bears the time of the event that needs it");

    let directory = tempfile::tempdir().unwrap();
    let before = SystemClock.now_us();
    let session = Store::open(directory.path()).unwrap().create(&types()).unwrap();
    let created = times_of(&session)[0];
    assert!(before <= created && created <= SystemClock.now_us());
}

/// Two stores with one seed give their sessions the same ids, seeds, records and bytes.
#[test]
fn one_seed_gives_one_log() {
    let live = |seed: u64| {
        let home: Home = super::home_with(|options| options.seed = Some(seed));
        let session = home.session();
        session.dispatch(DraftEdited { place: 0, line: "drawn:".to_owned() }).unwrap();
        session.dispatch(DraftEdited { place: 0, line: "?".to_owned() }).unwrap();
        session.snapshot(SnapshotOptions::default()).unwrap();
        let drawn = stored(&session, "draft");
        let id = session.id();
        session.close().unwrap();
        (id, drawn, home.disk.dump())
    };
    assert_eq!(live(5), live(5));
    assert_ne!(live(5).0, live(6).0);
    assert_ne!(live(5).1, live(6).1, "reducers draw from the session's seed");
    // A session with its own seed does not depend on the store's.
    let drawn = |store_seed: u64| {
        let home = super::home_with(|options| options.seed = Some(store_seed));
        let session = home.store.create_with(&types(), seeded(9)).unwrap();
        session.dispatch(DraftEdited { place: 0, line: "drawn:".to_owned() }).unwrap();
        session.dispatch(DraftEdited { place: 0, line: "?".to_owned() }).unwrap();
        stored(&session, "draft")
    };
    assert_eq!(drawn(1), drawn(2));
}

/// A store in a real directory, to show that nothing depends on the storage in memory.
#[test]
fn a_directory_on_a_disk_serves_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(foldlog::FixedClock::new(BEGIN_US));
    let options = StoreOptions { clock, seed: Some(1), ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let session = store.create(&types()).unwrap();
    session.dispatch(step("read")).unwrap();
    let snapshot = session.snapshot(SnapshotOptions::default()).unwrap();
    session.dispatch(step(&"x".repeat(100_000))).unwrap();
    session.rollback(&snapshot).unwrap();
    let (id, live) = (session.id(), session.dynamic().state().unwrap());
    let fork = store.fork(id, snapshot.position + 1, &types(), SessionOptions::default()).unwrap();
    assert_eq!(fork.view::<Plan>().unwrap().len(), 2);
    drop((session, fork));
    assert_eq!(store.open_session(id, &types()).unwrap().dynamic().state().unwrap(), live);
}

/// Values that JSON writes in its own form come back as the host's type would have recorded them,
/// byte for byte.
#[test]
fn items_of_every_shape_come_in_again_as_they_went_out() {
    use std::collections::BTreeMap;

    #[derive(serde::Serialize, serde::Deserialize, Clone, PartialEq, Debug)]
    enum Shape {
        Unit,
        Newtype(Option<u8>),
        Tuple(f32, f64),
        Struct { bytes: Vec<u8>, names: BTreeMap<u32, String> },
    }
    struct Shapes;
    impl foldlog::Slice for Shapes {
        const NAME: &'static str = "shapes";
        type Item = (Shape, u64, i64, char, bool, ());
    }
    let shape = |shape: Shape| (shape, u64::MAX, i64::MIN, 'ü', true, ());
    let items = vec![
        shape(Shape::Unit),
        shape(Shape::Newtype(None)),
        shape(Shape::Newtype(Some(0))),
        shape(Shape::Tuple(0.1, 0.1)),
        shape(Shape::Tuple(f32::MIN_POSITIVE, -0.0)),
        shape(Shape::Tuple(f32::MAX, f64::MAX)),
        shape(Shape::Struct { bytes: vec![0, 127, 128, 255], names: [(7, "\u{0}\"".to_owned())].into() }),
    ];
    let types = foldlog::SessionTypes::builder().slice::<Shapes>().seeded::<Shapes>().build().unwrap();
    let home = home();
    let session = home.store.create(&types).unwrap();
    session.seed::<Shapes>(items.clone()).unwrap();
    let text = session.log().export().unwrap().to_json().unwrap();
    let export = Export::from_json(&text).unwrap();
    let import = home.store.import(&export, &types, ImportOptions::default()).unwrap();
    assert!(import.view::<Shapes>().unwrap().iter().eq(&items));
    let bytes = |session: &foldlog::Session| -> Vec<_> {
        session.dynamic().state().unwrap().slices["shapes"]
            .items
            .iter()
            .map(|item| item.bytes.clone())
            .collect()
    };
    assert_eq!(bytes(&import), bytes(&session));
}

/// All items of an export had to fit into one record: a session of a hundred thousand tasks could
/// be exported, and not imported.
#[test]
fn an_import_of_more_items_than_a_record_holds_is_one_of_several_records() {
    let home = home();
    let session = home.session();
    // A slice of 17.5 MB, of items that are no objects.
    for nth in 0..350 {
        session.dispatch(step(&format!("{nth} {}", "x".repeat(50_000)))).unwrap();
    }
    session.set_tag("task", "7").unwrap();
    let export = session.log().export().unwrap();
    let imported = home.store.import(&export, &types(), ImportOptions::default()).unwrap();
    let mut records = 0;
    imported
        .log()
        .records(SequenceNumber::MIN, SequenceNumber::MAX, |record| {
            records += usize::from(record.kind == RecordKind::Import);
            Ok(())
        })
        .unwrap();
    assert!(records > 4, "{records}");
    let imported = home.reopened(imported, &types());
    assert_eq!(imported.tags().get("task").map(String::as_str), Some("7"));
    for name in export.slices.iter().map(|slice| slice.slice_type.as_str()) {
        assert_eq!(stored(&imported, name), stored(&session, name), "{name}");
    }
    // Later items are counted on from there.
    imported.dispatch(step("on")).unwrap();
    assert_eq!(titles::<Plan>(&imported).len(), 351);
}

/// An import without space for a large item left its directory behind, which was not a session.
#[test]
fn an_import_that_does_not_fit_leaves_nothing() {
    let home = home();
    let session = home.session();
    session.dispatch(step(&"x".repeat(200_000))).unwrap();
    let (export, id) = (session.log().export().unwrap(), session.id());
    session.close().unwrap();
    // Otherwise the store already has the item, and its space.
    home.store.delete(id).unwrap();
    let before = home.store.session_ids().unwrap();
    let capacity_bytes = home.disk.used_bytes() + 50_000;
    home.disk.inject(foldlog::storage::Fault::DiskFull { capacity_bytes });
    let refused = home.store.import(&export, &types(), ImportOptions::default());
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    home.disk.clear_faults();
    assert_eq!(home.store.session_ids().unwrap(), before);
    home.store.import(&export, &types(), ImportOptions::default()).unwrap();
}

/// A clock beyond the range of a record gave reducers another time than the log.
#[test]
fn a_time_that_no_record_can_hold_is_the_nearest_one_for_everybody() {
    let home = home();
    let session = home.session();
    home.clock.set_us(i64::MAX);
    let snapshot = session.snapshot(SnapshotOptions::default()).unwrap();
    let mut recorded = 0;
    session
        .log()
        .records(snapshot.position, snapshot.position, |record| {
            recorded = record.time_us;
            Ok(())
        })
        .unwrap();
    assert_eq!(snapshot.time_us, recorded);
    assert!(recorded > 0);
}
