//! `foldlog stats`: its counts match the log, and add up.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use foldlog::conversation::NewAnswer;
use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::{RecordKind, Store, StoreOptions};
use foldlog_codec::body::{Import, ImportedSlice, ObjectId, Payload};
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::shown;
use foldlog_tests::verbs::foldlog;

use super::damaged::{flip, forged, place, segment, torn_copy};
use super::{fixture, noted, operations, options, step, write};

fn number(json: &Json, field: &str) -> u64 {
    match json.get(field) {
        Some(Json::Scalar(value)) => value.as_u64().unwrap(),
        other => panic!("{field}: {other:?}"),
    }
}

fn text(json: &Json, field: &str) -> String {
    json.get(field).and_then(Json::as_str).unwrap().to_owned()
}

fn sum(json: &Json, list: &str, field: &str) -> u64 {
    json.get(list).unwrap().elements().iter().map(|element| number(element, field)).sum()
}

/// Returns the numbers of one list by name.
fn by_name(json: &Json, list: &str, name: &str, field: &str) -> BTreeMap<String, u64> {
    let elements = json.get(list).unwrap().elements().iter();
    elements.map(|element| (text(element, name), number(element, field))).collect()
}

/// Returns the stats of a session, after a check that they add up and agree with other verbs.
fn stats(session: &Path) -> Json {
    let run = |verb: &str| {
        let ran = foldlog([verb.as_ref(), session.as_os_str(), "--json".as_ref()]);
        assert_eq!(ran.code, 0, "{verb}: {}", ran.stderr);
        ran.stdout
    };
    let stats = Json::parse(&run("stats"));
    let used = number(&stats, "used_bytes");
    assert_eq!(sum(&stats, "segments", "used_bytes"), used);
    assert_eq!(sum(&stats, "kinds", "bytes") + number(&stats, "segment_header_bytes"), used);
    assert_eq!(number(&Json::parse(&run("verify")), "bytes"), used);
    assert_eq!(sum(&stats, "segments", "allocated_bytes"), number(&stats, "allocated_bytes"));
    let records = number(&stats, "records");
    assert_eq!(number(&stats, "live_records") + number(&stats, "abandoned_records"), records);
    assert_eq!(sum(&stats, "segments", "records"), records);
    let mut next = 0;
    for segment in stats.get("segments").unwrap().elements() {
        assert_eq!(number(segment, "first_sequence"), next);
        next += number(segment, "records");
        assert!(number(segment, "used_bytes") <= number(segment, "allocated_bytes"));
    }
    // Counted from the timeline.
    let (mut kinds, mut events, mut live) = (BTreeMap::new(), BTreeMap::new(), 0);
    for line in run("show").lines() {
        let record = Json::parse(line);
        *kinds.entry(text(&record, "kind")).or_insert(0) += 1;
        if record.get("event").is_some() {
            *events.entry(text(&record, "event")).or_insert(0) += 1;
        }
        live += u64::from(record.get("live") == Some(&Json::Scalar(true.into())));
    }
    assert_eq!(number(&stats, "live_records"), live);
    for kind in ["snapshot", "rollback"] {
        assert_eq!(number(&stats, &format!("{kind}s")), kinds.get(kind).copied().unwrap_or(0));
    }
    let content = stats.get("kinds").unwrap().elements().iter();
    let content = content.filter(|kind| kind.get("envelope") == Some(&Json::Scalar(false.into())));
    assert_eq!(
        content.map(|kind| (text(kind, "kind"), number(kind, "frames"))).collect::<BTreeMap<_, _>>(),
        kinds
    );
    let mut counted = by_name(&stats, "events", "event", "records");
    counted.retain(|_, records| *records > 0);
    assert_eq!(counted, events);
    // Summed up from the slices.
    let state = LogReader::open(session).unwrap().state().unwrap();
    let items = state.slices.iter().map(|(name, slice)| (name.clone(), slice.items.len() as u64));
    assert_eq!(by_name(&stats, "slices", "slice", "live_items"), items.collect());
    let bytes = state
        .slices
        .iter()
        .map(|(name, slice)| (name.clone(), slice.items.iter().map(|item| item.bytes.len() as u64).sum()));
    assert_eq!(by_name(&stats, "slices", "slice", "live_bytes"), bytes.collect());
    for slice in stats.get("slices").unwrap().elements() {
        assert!(number(slice, "live_items") <= number(slice, "ever_items"), "{slice:?}");
        assert!(number(slice, "live_bytes") <= number(slice, "ever_bytes"), "{slice:?}");
        if text(slice, "policy") == "log" {
            assert_eq!(number(slice, "live_bytes"), number(slice, "ever_bytes"), "{slice:?}");
        }
    }
    // Counted from the ledger.
    let mut calls: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for line in run("ledger").lines() {
        let entry = Json::parse(line);
        let (all, failed) = calls.entry(text(&entry, "tool")).or_default();
        *all += 1;
        *failed += u64::from(entry.get("outcome").and_then(Json::as_str) == Some("failed"));
    }
    let tools = stats.get("tools").unwrap().elements().iter();
    let counted =
        tools.map(|tool| (text(tool, "tool"), (number(tool, "calls"), number(tool, "failed_calls"))));
    assert_eq!(counted.collect::<BTreeMap<_, _>>(), calls);
    stats
}

/// Returns the usage: tokens sent and answered, read from and written to the cache, and the cost if
/// there is one.
fn spent(json: &Json) -> (Vec<u64>, Option<u64>) {
    let fields = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"];
    let cost = json.get("cost_micros").map(|_| number(json, "cost_micros"));
    (fields.map(|field| number(json, field)).to_vec(), cost)
}

#[test]
fn what_a_session_has_spent_is_told_by_model_by_tool_and_over_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let session = shown::spending(&shown::store(directory.path()));
    let told = stats(&session);
    let list = |name: &str| told.get(name).unwrap().elements().to_vec();
    let models = list("models");
    let named = |model: &Json| model.get("model").and_then(Json::as_str).map(str::to_owned);
    let models: Vec<_> =
        models.iter().map(|model| (named(model), number(model, "requests"), spent(model))).collect();
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(
        models,
        [
            // The model of the answer that no record contains is unknown.
            (None, 0, (vec![30, 3, 0, 0], None)),
            (some("large"), 1, (vec![50, 0, 0, 0], None)),
            (some("large-2"), 1, (vec![200, 20, 0, 0], Some(12_500))),
            // The first answer names no model, but its request does.
            (some("small"), 3, (vec![1007, 103, 5, 1], None)),
        ]
    );
    let tools = list("tools");
    let of_tool = |name: &str| tools.iter().find(|tool| text(tool, "tool") == name).unwrap();
    assert_eq!(spent(of_tool("lookup")), (vec![7, 3, 0, 0], Some(700)));
    // The usage of a call also counts for the calls around it.
    assert_eq!(spent(of_tool("research")), (vec![907, 93, 0, 0], Some(3200)));
    assert_eq!(of_tool("read").get("input_tokens"), None, "nothing says that it spent anything");
    for (tool, calls) in [("lookup", 1), ("research", 2), ("read", 1)] {
        // The arguments are a text with a head of one byte; results are a small number and a text
        // of four letters.
        assert_eq!(number(of_tool(tool), "argument_bytes"), 13 * calls, "{tool}");
    }
    assert_eq!(number(of_tool("research"), "result_bytes"), 2 * (1 + 5));
    let over_time = list("spent");
    // Both answers and the tracker report the same tokens, and both the tracker and an event report
    // a cost: each counts once.
    assert_eq!(spent(over_time.last().unwrap()), (vec![1287, 126, 5, 1], Some(15_700)));
    assert_eq!(spent(&over_time[0]), (vec![100, 10, 5, 1], None), "nobody has said a cost yet");
    let records = show(&session);
    for pair in over_time.windows(2) {
        assert!(number(&pair[0], "sequence") < number(&pair[1], "sequence"));
        assert!(spent(&pair[0]) < spent(&pair[1]), "{pair:?}");
    }
    for at in &over_time {
        assert_eq!(at.get("time"), records[number(at, "sequence") as usize].get("time"));
    }
    let ran = foldlog(["stats".as_ref(), session.as_os_str()]);
    let (_, behind) = ran.stdout.split_once("\nmodel ").unwrap();
    insta::assert_snapshot!(format!("model {behind}"));
}

/// Returns the records of a session as `show` prints them.
fn show(session: &Path) -> Vec<Json> {
    let ran = foldlog(["show".as_ref(), session.as_os_str(), "--json".as_ref()]);
    ran.stdout.lines().map(Json::parse).collect()
}

#[test]
fn a_session_whose_cost_nobody_has_said_has_none_and_a_long_one_is_told_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let store = shown::store(directory.path());
    let session = store.create(&types()).unwrap();
    for turn in 1..=1000 {
        let usage = Some(foldlog_codec::body::TokenUsage { input: turn, output: 1, ..Default::default() });
        let answer = NewAnswer { evaluation_id: "talk".to_owned(), usage, ..NewAnswer::default() };
        session.conversation().record_answer(&answer).unwrap();
    }
    let (dir, last) = (session.dir().to_owned(), session.log().position().unwrap());
    session.close().unwrap();
    let told = stats(&dir);
    let over_time = told.get("spent").unwrap().elements();
    assert_eq!(over_time.len(), 200);
    assert_eq!(number(over_time.last().unwrap(), "sequence"), last.get());
    assert_eq!(spent(over_time.last().unwrap()), (vec![500_500, 1000, 0, 0], None));
    let ran = foldlog(["stats".as_ref(), dir.as_os_str()]);
    let (_, rows) = ran.stdout.split_once("\nspent through record").unwrap();
    assert_eq!(rows.lines().count(), 11, "{rows}");
    assert!(!ran.stdout.contains("cost"), "{}", ran.stdout);

    // Without any usage, the output does not mention it.
    let silent = shown::long(&store, 20);
    let ran = foldlog(["stats".as_ref(), silent.as_os_str()]);
    for word in ["cost", "spent", "answered", "model"] {
        assert!(!ran.stdout.contains(word), "{}", ran.stdout);
    }
    assert!(stats(&silent).get("spent").unwrap().elements().is_empty());
}

#[test]
fn stats_are_printed_for_people_and_programs() {
    let fixture = fixture();
    insta::assert_snapshot!(fixture.transcript(&[
        "stats SESSION",
        "stats FORK",
        "stats SESSION --json",
        "stats NOTHING",
        "stats STORE",
    ]));
    for session in [&fixture.session, &fixture.fork] {
        let stats = stats(session);
        // Both record every step, abandoned or not.
        let payloads = by_name(&stats, "events", "event", "payload_bytes");
        let ever = by_name(&stats, "slices", "slice", "ever_bytes");
        for slice in ["plan", "preview", "current_step", "step_of_part"] {
            assert_eq!(ever[slice], payloads["plan.step_added"], "{slice}");
        }
        assert_eq!(ever["notes"], payloads["noted"]);
    }
}

#[test]
fn the_numbers_of_a_long_session_with_rollbacks_objects_kills_and_a_fork_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let small = SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 };
    let options = || StoreOptions { segments: small, object_bytes_min: 256, ..options() };
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = write(&store);
    for number in 0..60_u8 {
        session.dispatch(step(&format!("step {number} {}", "x".repeat(100)), number)).unwrap();
        match number % 12 {
            3 => drop(session.rollback_to(u64::from(number)).unwrap()),
            7 => drop(session.dispatch(noted(&"large ".repeat(usize::from(number) + 50))).unwrap()),
            _ => {}
        }
    }
    // The same object twice.
    session.dispatch(noted(&"large ".repeat(57))).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    // As a kill leaves it, and as the next process continues.
    let copy = directory.path().join("copy/sessions").join(id.to_string());
    fs::create_dir_all(copy.join("objects")).unwrap();
    for entry in fs::read_dir(&dir).unwrap().chain(fs::read_dir(dir.join("objects")).unwrap()) {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, copy.join(path.strip_prefix(&dir).unwrap())).unwrap();
        }
    }
    stats(&copy);
    let killed = Store::open_with(directory.path().join("copy"), options()).unwrap();
    killed.open_session(id, &types()).unwrap().dispatch(step("after", 1)).unwrap();
    stats(&copy);

    session.close().unwrap();
    let whole = stats(&dir);
    let objects = whole.get("objects").unwrap();
    assert_eq!((number(objects, "count"), number(objects, "named_count")), (5, 5));
    assert_eq!(number(objects, "bytes"), number(objects, "named_bytes"));
    let on_disk = fs::read_dir(dir.join("objects")).unwrap();
    assert_eq!(
        number(objects, "bytes"),
        on_disk.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    );
    let segments = whole.get("segments").unwrap().elements();
    let (last, others) = segments.split_last().unwrap();
    let sealed = |segment: &Json| segment.get("sealed") == Some(&Json::Scalar(true.into()));
    assert!(others.len() > 2 && others.iter().all(sealed) && !sealed(last), "{segments:?}");
    assert_eq!(by_name(&whole, "kinds", "kind", "frames")["seal"], others.len() as u64);

    let fork = store.fork(id, 30, &types(), foldlog::SessionOptions::default()).unwrap();
    fork.dispatch(step("another way", 3)).unwrap();
    let fork_dir = fork.dir().to_owned();
    fork.clone().close().unwrap();
    let forked = stats(&fork_dir);
    assert_eq!(number(&forked, "records"), 33);
    let writers: Vec<String> =
        forked.get("segments").unwrap().elements().iter().map(|s| text(s, "session")).collect();
    assert_eq!(
        (writers.first().unwrap(), writers.last().unwrap()),
        (&id.to_string(), &fork.id().to_string())
    );

    fs::create_dir(fork_dir.join("snapshots")).unwrap();
    fs::write(fork_dir.join("snapshots/0000000030.img"), [7; 500]).unwrap();
    let images = stats(&fork_dir).get("images").unwrap().clone();
    assert_eq!(images, Json::parse(r#"[{"name": "0000000030.img", "bytes": 500}]"#));
}

/// The items that the ends of tool calls add are in no effect, and were not counted: a slice
/// contained more items than were ever added.
#[test]
fn what_the_ends_of_tools_put_into_a_slice_is_counted() {
    let fixture = operations::fixture();
    let counted = stats(&fixture.session);
    assert_eq!(by_name(&counted, "slices", "slice", "ever_items")["tool_invoked"], 3);
    assert_eq!(by_name(&counted, "kinds", "kind", "frames")["tool_end"], 3);
}

#[test]
fn a_torn_end_is_counted_apart_and_so_is_what_damage_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = write(&store);
    let (copy, last, (offset, bytes)) = torn_copy(&session, directory.path());
    let torn = stats(&copy);
    assert_eq!((number(&torn, "records"), number(&torn, "torn_bytes")), (last, bytes));
    assert_eq!(number(&torn, "used_bytes"), offset);

    session.clone().close().unwrap();
    let (offset, _) = place(session.dir(), 4);
    flip(&segment(session.dir()), offset + 30);
    let ran = foldlog(["stats".as_ref(), session.dir().as_os_str()]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("\n4 records: 4 live, 0 abandoned"), "{}", ran.stdout);
    assert!(ran.stderr.contains("is damaged at byte"), "{}", ran.stderr);
}

#[test]
fn forged_logs_are_counted_as_they_are_or_refused() {
    let later = forged(RecordKind::from_byte(99).unwrap(), foldlog::Value::from("later").encode());
    let ran = later.run("stats SESSION --json");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let counted = stats(&later.session);
    assert_eq!(by_name(&counted, "kinds", "kind", "frames")["unknown-99"], 1);
    // A record may claim any size for a missing object.
    let huge = ObjectId { hash: [7; 32], len: u64::MAX }.reference();
    let slices = vec![ImportedSlice { slice: 0, items: vec![(Payload::new(&huge), 1); 3] }];
    let import = Import { from: None, exported_at_us: None, tags: BTreeMap::new(), slices };
    let lying = forged(RecordKind::Import, import.encode());
    // The record is not attested, so it is left out together with its claim.
    let ran = lying.run("stats SESSION --json");
    assert!(ran.code == 0 && ran.stderr.contains("torn: the bytes from record 4"), "{}", ran.stderr);
    let counted = Json::parse(&ran.stdout);
    assert_eq!((number(&counted, "records"), number(&counted, "live_records")), (4, 4));
    assert_eq!(number(counted.get("objects").unwrap(), "named_bytes"), 0);
    let headers = number(&counted, "segment_header_bytes");
    assert_eq!(sum(&counted, "kinds", "bytes") + headers, number(&counted, "used_bytes"));
    // A rollback to a position that is not before it.
    let ahead = forged(
        RecordKind::Rollback,
        foldlog_codec::body::Rollback { to: 7.into(), preserve_logs: true }.encode(),
    );
    assert_eq!(ahead.run("stats SESSION").code, 1);
}
