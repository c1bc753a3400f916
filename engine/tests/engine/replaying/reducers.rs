//! Reducers run again over the events of a log, with a change planted in one of their calls at a
//! time.

use std::sync::Arc;

use foldlog::inspect::{LogReader, ReducersReplayed, ReplayReducers};
use foldlog::storage::MemoryStorage;
use foldlog::{
    BackgroundSync, Clear, Event, FixedClock, Item, LeaveOut, Policy, SequenceNumber, Session, SessionTypes,
    Slice, SliceOp, Store, StoreOptions, Value,
};
use foldlog_replay::assert_reducers_replay;
use foldlog_test_support::host::{self, assert_reduced_again};
use serde::{Deserialize, Serialize};

use super::panicked;

/// A measurement, with the names of its parts in order.
#[derive(Serialize, Deserialize, Debug, Clone)]
struct Measured {
    parts: Vec<(String, f64)>,
    took_us: u64,
}

impl Event for Measured {
    const NAME: &'static str = "measured";
}

/// STATE: the measurements, as maps and as texts.
struct Results;

impl Slice for Results {
    const NAME: &'static str = "results";
    type Item = Value;
}

/// LOG: the number of parts of each measurement.
struct Counts;

impl Slice for Counts {
    const NAME: &'static str = "counts";
    type Item = u64;
}

/// STATE: the last three measurements.
struct Recent;

impl Slice for Recent {
    const NAME: &'static str = "recent";
    type Item = Value;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    ItemChanged,
    OrderOfKeys,
    FloatAsText,
    FloatNarrow,
    IntegerAsFloat,
    OneMore,
    OneLess,
    RemovedAnother,
    InsertedElsewhere,
    NothingDone,
    Refused,
    Panicked,
    GeneratorSkipped,
}

const ALL: [Planted; 13] = [
    Planted::ItemChanged,
    Planted::OrderOfKeys,
    Planted::FloatAsText,
    Planted::FloatNarrow,
    Planted::IntegerAsFloat,
    Planted::OneMore,
    Planted::OneLess,
    Planted::RemovedAnother,
    Planted::InsertedElsewhere,
    Planted::NothingDone,
    Planted::Refused,
    Planted::Panicked,
    Planted::GeneratorSkipped,
];

/// Returns the host's types, with a change planted at one record, if any.
fn types(planted: Option<(Planted, u64)>) -> SessionTypes {
    let is = move |what: Planted, sequence: SequenceNumber| {
        planted.is_some_and(|(planted, at)| planted == what && sequence == at)
    };
    SessionTypes::builder()
        .slice::<Results>()
        .reducer::<Results, Measured>(move |_, measured, context| {
            let at = context.sequence();
            let mut pairs: Vec<(Value, Value)> = measured
                .parts
                .iter()
                .map(|(name, value)| (Value::from(name.as_str()), Value::F64(*value)))
                .collect();
            pairs.push((Value::from("parts"), Value::Unsigned(measured.parts.len() as u64)));
            if is(Planted::OrderOfKeys, at) {
                pairs.reverse();
            }
            for (_, value) in &mut pairs {
                match value {
                    Value::F64(float) if is(Planted::FloatAsText, at) => {
                        *value = Value::from(format!("{float:.1}"))
                    }
                    Value::F64(float) if is(Planted::FloatNarrow, at) => *value = Value::F32(*float as f32),
                    Value::Unsigned(count) if is(Planted::IntegerAsFloat, at) => {
                        *value = Value::F64(*count as f64)
                    }
                    Value::Unsigned(count) if is(Planted::ItemChanged, at) => *count += 1,
                    _ => {}
                }
            }
            let mut generator = context.generator();
            if is(Planted::GeneratorSkipped, at) {
                generator.next_u64();
            }
            let mut items = vec![Value::Map(pairs), Value::Unsigned(generator.next_u64())];
            if is(Planted::OneMore, at) {
                items.push(Value::Nil);
            }
            if is(Planted::OneLess, at) {
                items.pop();
            }
            Ok(if is(Planted::NothingDone, at) { SliceOp::nothing() } else { SliceOp::Extend(items) })
        })
        .slice_with::<Counts>(Policy::Log)
        .reducer::<Counts, Measured>(move |counts, measured, context| {
            match () {
                () if is(Planted::Refused, context.sequence()) => return Err("not today".to_owned()),
                () if is(Planted::Panicked, context.sequence()) => panic!("out of order"),
                () => {}
            }
            Ok(SliceOp::Append(counts.latest().copied().unwrap_or_default() + measured.parts.len() as u64))
        })
        .slice::<Recent>()
        .reducer::<Recent, Measured>(move |recent, measured, context| {
            let mut items: Vec<Item<Value>> = recent.items().collect();
            if items.len() > 2 {
                items.remove(if is(Planted::RemovedAnother, context.sequence()) { 1 } else { 0 });
            }
            let place = if is(Planted::InsertedElsewhere, context.sequence()) { 0 } else { items.len() };
            items.insert(place, Value::Unsigned(measured.took_us).into());
            Ok(SliceOp::Replace(items))
        })
        .build()
        .unwrap()
}

fn store(disk: &MemoryStorage) -> Store {
    let options = StoreOptions {
        storage: Arc::new(disk.clone()),
        clock: Arc::new(FixedClock::with_step(1_767_322_800_000_000, 1_000)) as _,
        seed: Some(1),
        object_bytes_min: 400,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with("/store", options).unwrap()
}

fn measured(number: u64) -> Measured {
    // Some are so long that their payloads and items become objects.
    let parts = if number % 5 == 4 { 60 } else { 1 + number % 3 };
    let part = |part| (format!("part {part}"), number as f64 + part as f64 / 8.0);
    Measured { parts: (0..parts).map(part).collect(), took_us: 100 + number }
}

fn measure(session: &Session, numbers: std::ops::Range<u64>) {
    for number in numbers {
        session.dispatch(measured(number)).unwrap();
    }
}

/// Returns a session with measurements, a rollback, removals, a fork and more measurements, and the
/// records of its measurements.
fn history(disk: &MemoryStorage) -> (Session, Vec<u64>) {
    let store = store(disk);
    let session = store.create(&types(None)).unwrap();
    measure(&session, 0..40);
    session.rollback_to(6).unwrap();
    measure(&session, 40..60);
    session.clear_where::<Recent>(|item| item.as_u64().is_some_and(|took| took % 2 == 0)).unwrap();
    let id = session.id();
    session.close().unwrap();
    let options = foldlog::SessionOptions { seed: Some(99), ..Default::default() };
    let fork = store.fork(id, 63, &types(None), options).unwrap();
    measure(&fork, 60..86);
    let mut events = Vec::new();
    fork.log()
        .records(0, u64::MAX, |record| {
            // An event contains its id and its payload.
            if record.kind == foldlog::RecordKind::Dispatch && record.body.get(1..3) == Some(b"\xa1e") {
                events.push(record.sequence.get());
            }
            Ok(())
        })
        .unwrap();
    (fork, events)
}

fn replay(disk: &MemoryStorage, session: &Session, planted: Planted, at: u64) -> ReducersReplayed {
    let reader = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap();
    let options = ReplayReducers { fold_produced: true, ..ReplayReducers::default() };
    reader.replay_reducers(&types(Some((planted, at))), &options).unwrap()
}

#[test]
fn each_planted_change_is_found_at_its_record_and_nowhere_else() {
    let disk = MemoryStorage::new();
    let (session, events) = history(&disk);
    let reader = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap();
    assert_reduced_again(&reader, &types(None));
    let (mut found, mut unshown) = (0, 0);
    for planted in ALL {
        for at in &events {
            let replayed = replay(&disk, &session, planted, *at);
            // With fewer than three items nothing is removed.
            if planted == Planted::RemovedAnother && replayed.diverged == 0 {
                unshown += 1;
                continue;
            }
            // In an empty slice, the start is also the end.
            if planted == Planted::InsertedElsewhere && *at == events[0] {
                assert_eq!(replayed.diverged, 0, "{replayed}");
                unshown += 1;
                continue;
            }
            let slice = match planted {
                Planted::Refused | Planted::Panicked => "counts",
                Planted::RemovedAnother | Planted::InsertedElsewhere => "recent",
                _ => "results",
            };
            assert_eq!(replayed.diverged, 1, "{planted:?} at {at}: {replayed}");
            let divergence = &replayed.divergences[0];
            assert_eq!(
                (divergence.sequence.get(), divergence.slice.as_deref()),
                (*at, Some(slice)),
                "{divergence}"
            );
            assert_eq!(divergence.record, "dispatch measured");
            let path = divergence.path.as_str();
            let leads = match planted {
                Planted::ItemChanged | Planted::IntegerAsFloat => path == "$.added[0].parts",
                Planted::OrderOfKeys => {
                    path == "$.added[0]" && divergence.note.as_deref() == Some("order of keys")
                }
                Planted::FloatAsText | Planted::FloatNarrow => path == r#"$.added[0]["part 0"]"#,
                Planted::OneMore => path == "$.added[2]" && divergence.recorded.is_none(),
                Planted::OneLess => path == "$.added[1]" && divergence.produced.is_none(),
                Planted::GeneratorSkipped => path == "$.added[1]",
                Planted::RemovedAnother | Planted::InsertedElsewhere => {
                    path == "$.before" || path == "$.removed" || path.starts_with("$.removed[")
                }
                Planted::NothingDone | Planted::Refused | Planted::Panicked => {
                    path == "$" && divergence.produced.is_none()
                }
            };
            assert!(leads, "{planted:?}: {divergence}");
            found += 1;
        }
    }
    assert_eq!((found, unshown), (1113, 5), "of {} changes in {} events", ALL.len(), events.len());
}

#[test]
fn a_difference_that_json_does_not_show_is_said_in_words() {
    let disk = MemoryStorage::new();
    let (session, events) = history(&disk);
    let line = |planted| replay(&disk, &session, planted, events[0]).divergences[0].to_string();
    assert_eq!(
        line(Planted::FloatNarrow),
        r#"record 2 (dispatch `measured`) differs in slice `results` at $.added[0]["part 0"] (64-bit float and 32-bit float): recorded 0.0, produced 0.0"#
    );
    assert_eq!(
        line(Planted::OrderOfKeys),
        r#"record 2 (dispatch `measured`) differs in slice `results` at $.added[0] (order of keys): recorded ["part 0","parts"], produced ["parts","part 0"]"#
    );
    assert_eq!(
        line(Planted::Refused),
        "record 2 (dispatch `measured`) differs in slice `counts` at $ (the reducer of `counts` refused `measured`: not \
         today): recorded {\"added\":[1]}, produced nothing"
    );
}

#[test]
fn what_reducers_produce_is_folded_to_say_from_which_record_on_a_slice_differs() {
    let disk = MemoryStorage::new();
    let store = store(&disk);
    let session = store.create(&types(None)).unwrap();
    measure(&session, 0..6);
    let differing = |planted, at| replay(&disk, &session, planted, at);
    // Records 2 to 7 are the measurements, and each adds two results.
    let replayed = differing(Planted::ItemChanged, 4);
    assert_eq!(replayed.slices.len(), 1, "{replayed}");
    assert_eq!(
        replayed.slices[0].to_string(),
        "slice `results` differs from record 4 on: 12 items recorded, 12 produced; first at $.items[4].parts: recorded 3, produced 4"
    );
    let replayed = differing(Planted::OneMore, 4);
    assert_eq!(
        (replayed.slices[0].recorded_items, replayed.slices[0].produced_items),
        (12, 13),
        "{replayed}"
    );
    // The last three measurements are independent of earlier ones.
    let replayed = differing(Planted::InsertedElsewhere, 3);
    assert_eq!((replayed.diverged, replayed.slices.len()), (1, 0), "{replayed}");

    // A rollback to before the change ends the difference, and one to after it brings it back.
    session.rollback_to(3).unwrap();
    session.dispatch(measured(7)).unwrap();
    let replayed = differing(Planted::ItemChanged, 4);
    assert_eq!((replayed.diverged, replayed.slices.len()), (1, 0), "{replayed}");
    let back = session.rollback_to(5).unwrap().sequence;
    let replayed = differing(Planted::ItemChanged, 4);
    assert_eq!((replayed.slices.len(), replayed.slices[0].since), (1, back), "{replayed}");
    // After all results are removed, nothing differs.
    session.clear::<Results>().unwrap();
    assert!(differing(Planted::ItemChanged, 4).slices.is_empty());
}

#[test]
fn a_change_on_purpose_is_counted_and_the_first_differences_are_listed() {
    let disk = MemoryStorage::new();
    let (session, events) = history(&disk);
    let types = SessionTypes::builder()
        .slice::<Results>()
        .reducer::<Results, Measured>(|_, _, _| Ok(SliceOp::Clear(Clear::All)))
        .slice_with::<Counts>(Policy::Log)
        .reducer::<Counts, Measured>(|_, measured, _| Ok(SliceOp::Append(measured.took_us)))
        .retired("measured", "recent")
        .build()
        .unwrap();
    let reader = LogReader::open_on(Arc::new(disk), session.dir()).unwrap();
    let options = ReplayReducers { fold_produced: true, divergences_max: 3, ..ReplayReducers::default() };
    let replayed = reader.replay_reducers(&types, &options).unwrap();
    assert_eq!(replayed.diverged, 2 * events.len() as u64, "{replayed}");
    assert_eq!((replayed.divergences.len(), replayed.divergences[0].sequence.get()), (3, events[0]));
    assert!(replayed.to_string().contains(&format!("… and {} more", replayed.diverged - 3)), "{replayed}");
    let slices: Vec<(&str, u64)> =
        replayed.slices.iter().map(|slice| (slice.slice.as_str(), slice.produced_items)).collect();
    assert_eq!(slices[0], ("results", 0), "{replayed}");
    assert_eq!(slices[1].0, "counts", "{replayed}");
    assert!(!replayed.holds());
    // The JSON object contains everything that the lines show.
    let json = serde_json::to_value(&replayed).unwrap();
    assert_eq!(json["divergences"][0]["divergence"], "changed");
    assert_eq!(json["divergences"][0]["record"], "dispatch measured");
}

/// A new slice was reported as having no items, recorded or produced, and blocked a release of the
/// host.
#[test]
fn slices_and_reducers_that_are_new_are_called_so_and_can_be_accepted_by_name() {
    let disk = MemoryStorage::new();
    let (session, events) = history(&disk);
    let count = events.len() as u64;
    let types = SessionTypes::builder()
        .slice::<host::Plan>()
        .reducer::<host::Plan, Measured>(|_, measured, _| {
            let title = format!("look at {} parts", measured.parts.len());
            Ok(SliceOp::Append(host::StepAdded { title, part: 0 }))
        })
        .retired("measured", "counts")
        .retired("measured", "results")
        .retired("measured", "recent")
        .build()
        .unwrap();
    let reader = LogReader::open_on(Arc::new(disk), session.dir()).unwrap();
    let replayed = |changed: &[&str]| {
        let changed_slices = changed.iter().map(|slice| (*slice).to_owned()).collect();
        let options = ReplayReducers { changed_slices, fold_produced: true, ..ReplayReducers::default() };
        reader.replay_reducers(&types, &options).unwrap()
    };
    let told = replayed(&[]);
    println!("{told}");
    assert_eq!((told.diverged, told.accepted, told.holds()), (count, 0, false));
    let text = told.to_string();
    assert!(
        text.contains(
            "in slice `plan` at $ (the slice is new: the log does not declare it): recorded nothing"
        ),
        "{text}"
    );
    let is_new = format!("slice `plan` is new: record {} is the first that would change it", events[0]);
    assert!(text.ends_with(&is_new), "{text}");
    assert!(!text.contains("0 items"), "{text}");
    let accepted = replayed(&["plan"]);
    assert_eq!((accepted.diverged, accepted.accepted, accepted.holds()), (0, count, true), "{accepted}");
    assert!(accepted.to_string().contains(&format!("{count} more do in slices that changed on purpose")));
    assert!(!replayed(&["results"]).holds(), "another slice's name accepts nothing");
}

#[test]
fn paths_that_are_left_out_and_reducers_of_equal_result_raise_no_alarm() {
    let disk = MemoryStorage::new();
    let (session, events) = history(&disk);
    let reader = LogReader::open_on(Arc::new(disk), session.dir()).unwrap();
    let leave_out = LeaveOut::new().path("measured", "$.added[*].parts");
    let options = ReplayReducers { leave_out, ..ReplayReducers::default() };
    let replayed = |planted| reader.replay_reducers(&types(Some((planted, events[3]))), &options).unwrap();
    assert!(replayed(Planted::ItemChanged).holds());
    assert_eq!(replayed(Planted::FloatAsText).diverged, 1);
}

#[test]
fn a_built_in_reducer_and_one_that_does_the_same_agree() {
    let directory = tempfile::tempdir().unwrap();
    let built_in = SessionTypes::builder().slice::<host::Plan>().append_all::<host::Plan>().build().unwrap();
    let own = SessionTypes::builder()
        .slice::<host::Plan>()
        .reducer::<host::Plan, host::StepAdded>(|_, step, _| Ok(SliceOp::Append(step.clone())))
        .build()
        .unwrap();
    let session = Store::open(directory.path()).unwrap().create(&built_in).unwrap();
    session.dispatch(host::StepAdded { title: "one".to_owned(), part: 1 }).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    assert_eq!(assert_reducers_replay(&dir, &built_in).compared, 0, "a built-in reducer resolves nothing");
    assert_eq!(assert_reducers_replay(&dir, &own).compared, 1);
}

#[test]
fn reducers_that_are_missing_are_named_all_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let session = Store::open(directory.path()).unwrap().create(&host::types()).unwrap();
    session.dispatch(host::StepAdded { title: "one".to_owned(), part: 1 }).unwrap();
    session.dispatch(host::Noted { text: "two".to_owned() }).unwrap();
    session.dispatch(host::Undeclared { value: 3 }).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let types = SessionTypes::builder().slice::<host::Plan>().append_all::<host::Plan>().build().unwrap();
    let message = panicked(|| drop(assert_reducers_replay(&dir, &types)));
    for line in [
        "event `noted` reduces into `notes`, `note_sizes` in this log, but the host declares no such reducer",
        "event `plan.step_added` reduces into `current_step`, `step_of_part`, `preview` in this log, but the host declares no \
         such reducer",
    ] {
        assert!(message.contains(line), "{message}");
    }
    assert!(!message.contains("undeclared"), "nobody has declared it, so nobody misses it: {message}");
    assert!(!assert_reducers_replay(&dir, &host::types()).to_string().contains("no such reducer"));
}

#[test]
fn a_failing_assertion_lists_the_divergences_by_record() {
    let directory = tempfile::tempdir().unwrap();
    let session = Store::open(directory.path()).unwrap().create(&types(None)).unwrap();
    measure(&session, 0..3);
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let _ = assert_reducers_replay(&dir, &types(None));
    let changed = types(Some((Planted::ItemChanged, 3)));
    let message = panicked(|| drop(assert_reducers_replay(&dir, &changed)));
    let lines: Vec<&str> = message.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "record 3 (dispatch `measured`) differs in slice `results` at $.added[0].parts: recorded 2, produced 3",
            "slice `results` differs from record 3 on: 6 items recorded, 6 produced; first at $.items[2].parts: recorded 2, produced 3",
        ]
    );
}
