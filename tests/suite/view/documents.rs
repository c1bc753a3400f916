//! Documents for the pages: they equal the output of the command line, at any position.

use std::collections::BTreeSet;

use foldlog::{Store, StoreOptions};
use foldlog_test_support::host::{Noted, types};
use foldlog_test_support::runs::Json;
use foldlog_tests::shown::{self, HOSTILE};
use foldlog_tests::verbs::foldlog;
use serde_json::Value;

use super::Fixture;
use super::client::Viewer;

/// Returns the documents that a verb prints of the session, one per line.
fn printed(fixture: &Fixture, words: &[&str]) -> Vec<Json> {
    let verb = [words[0], fixture.session.to_str().unwrap()];
    let ran = foldlog(verb.iter().chain(&words[1..]).chain(&["--json"]).copied());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().map(Json::parse).collect()
}

/// Returns the value in a document, after a check that it is whole.
fn value(told: &Json) -> Json {
    assert_eq!(told.get("whole"), Some(&Json::Scalar(true.into())));
    Json::parse(told.get("text").and_then(Json::as_str).unwrap())
}

fn number(json: &Json, field: &str) -> u64 {
    match json.get(field) {
        Some(Json::Scalar(value)) => value.as_u64().unwrap(),
        other => panic!("{field} is {other:?}"),
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Returns positions below `end`: the first, the last, and others that are the same in each run.
fn positions(end: u64, count: u64) -> Vec<u64> {
    let others = (1..count).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % end);
    [0, end - 1].into_iter().chain(others).collect()
}

#[test]
fn a_step_is_what_the_command_line_says_of_it() {
    // More records than a chunk and than the distance between two points, so that steps are folded
    // from points between.
    let fixture = Fixture::of_history(2500, 11);
    let viewer = Viewer::of(fixture.store());
    let of = |rest: String| viewer.json(&format!("session/{}/{rest}", fixture.id()));
    let last = number(&of("head".to_owned()), "last");
    for at in positions(last + 1, 25) {
        let position = at.to_string();
        let [state] = printed(&fixture, &["state", "--at", &position]).try_into().unwrap();
        let Some(Json::Object(slices)) = state.get("slices").cloned() else { panic!("no slices at {at}") };
        let step = of(format!("step?at={at}"));
        let told = step.get("slices").unwrap().elements();
        let names: Vec<&str> = told.iter().filter_map(|slice| slice.get("name")?.as_str()).collect();
        assert_eq!(names, slices.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), "at {at}");
        for (name, slice) in &slices {
            let window = of(format!("items?at={at}&slice={}&from=0&count=10000", encoded(name)));
            let items: Vec<Json> = window
                .get("items")
                .unwrap()
                .elements()
                .iter()
                .map(|item| value(item.get("value").unwrap()))
                .collect();
            assert_eq!(items, slice.get("items").unwrap().elements(), "{name} at {at}");
            assert_eq!(number(&window, "total"), items.len() as u64);
            // A window contains that part of the list.
            let (from, count) = (items.len() as u64 / 3, 5);
            let part = of(format!("items?at={at}&slice={}&from={from}&count={count}", encoded(name)));
            let part: Vec<Json> = part
                .get("items")
                .unwrap()
                .elements()
                .iter()
                .map(|item| value(item.get("value").unwrap()))
                .collect();
            assert_eq!(part, items.iter().skip(from as usize).take(5).cloned().collect::<Vec<_>>());
        }
        let [record] =
            printed(&fixture, &["show", "--from", &position, "--to", &position]).try_into().unwrap();
        assert_eq!(value(&of(format!("document?at={at}"))), record, "record {at}");
        let conversations = step.get("conversations").unwrap().elements();
        if let [talk] = conversations {
            let said = printed(&fixture, &["transcript", "--as-recorded", "--at", &position]);
            let window = of(format!("messages?at={at}&evaluation=talk&from=0&count=10000"));
            let messages: Vec<Json> = window
                .get("items")
                .unwrap()
                .elements()
                .iter()
                .map(|item| value(item.get("value").unwrap()))
                .collect();
            assert_eq!(messages, said, "messages at {at}");
            assert_eq!(number(talk, "total"), said.len() as u64);
        }
    }
}

#[test]
fn the_timeline_is_what_show_lists() {
    let fixture = Fixture::of_history(2500, 12);
    let viewer = Viewer::of(&fixture.session);
    let of = |rest: String| viewer.json(&format!("session/{}/{rest}", fixture.id()));
    let shown = printed(&fixture, &["show"]);
    let mut listed = Vec::new();
    // Out of order: a chunk does not depend on earlier ones.
    for chunk in [2, 0, 1] {
        let told = of(format!("records?chunk={chunk}"));
        let text = |column: &str, at: usize, list: &str, base: usize| {
            let Json::Scalar(place) = &told.get(column).unwrap().elements()[at] else { panic!("{column}") };
            let place = place.as_u64().unwrap() as usize;
            place
                .checked_sub(base)
                .map_or("", |place| told.get(list).unwrap().elements()[place].as_str().unwrap())
                .to_owned()
        };
        for at in 0..told.get("kind").unwrap().elements().len() {
            let sequence = chunk * 1024 + at as u64;
            let words =
                [text("kind", at, "kinds", 0), text("path", at, "paths", 0), text("name", at, "texts", 1)];
            listed.push((sequence, words));
        }
    }
    listed.sort();
    let expected: Vec<(u64, [String; 3])> = shown
        .iter()
        .map(|record| {
            let text = |field: &str| record.get(field).and_then(Json::as_str).unwrap().to_owned();
            (number(record, "sequence"), [text("kind"), text("path"), text("name")])
        })
        .collect();
    assert_eq!(listed, expected);
    let filtered = of("filter?kinds=rollback&kinds=snapshot".to_owned());
    let wanted: Vec<u64> = expected
        .iter()
        .filter(|(_, [kind, ..])| kind == "rollback" || kind == "snapshot")
        .map(|(sequence, _)| *sequence)
        .collect();
    let found: Vec<Json> = filtered.get("records").unwrap().elements().to_vec();
    assert_eq!(found, wanted.into_iter().map(|one| Json::Scalar(one.into())).collect::<Vec<_>>());
}

#[test]
fn a_diff_is_what_diff_prints() {
    let fixture = Fixture::of_history(1500, 13);
    let viewer = Viewer::of(fixture.store());
    let of = |rest: String| viewer.json(&format!("session/{}/{rest}", fixture.id()));
    let last = number(&of("head".to_owned()), "last");
    let all = positions(last + 1, 12);
    for (before, after) in all.iter().zip(all.iter().cycle().skip(1)) {
        let told = of(format!("diff?before={before}&after={after}"));
        let found: Vec<Json> = told
            .get("differences")
            .unwrap()
            .elements()
            .iter()
            .map(|one| Json::parse(one.as_str().unwrap()))
            .collect();
        assert_eq!(
            found,
            printed(&fixture, &["diff", &before.to_string(), &after.to_string()]),
            "{before} {after}"
        );
    }
}

#[test]
fn the_whole_is_what_the_other_verbs_print() {
    let fixture = Fixture::of_history(300, 14);
    let viewer = Viewer::of(fixture.store());
    // A page does not depend on the order of fields.
    let of = |rest: &str| -> Value { serde_json::from_str(&viewer.get(rest).body).unwrap() };
    let session = |rest: &str| of(&format!("session/{}/{rest}", fixture.id()));
    let printed = |words: &[&str]| -> Vec<Value> {
        let ran = foldlog(words.iter().chain(&["--json"]).copied());
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (dir, store) = (fixture.session.to_str().unwrap(), fixture.store().to_str().unwrap());
    assert_eq!(session("operations")["ledger"], Value::from(printed(&["ledger", dir])));
    assert_eq!(vec![session("statistics")], printed(&["stats", dir]));
    assert_eq!(vec![session("integrity")["found"].clone()], printed(&["verify", dir]));
    assert_eq!(of("sessions")["rows"], Value::from(printed(&["sessions", store])));
}

#[test]
fn the_files_of_a_workspace_are_those_of_the_last_capture() {
    let directory = tempfile::tempdir().unwrap();
    let store = shown::store(&directory.path().join("store"));
    let (session, held) = shown::edits(&store, &directory.path().join("work"));
    let viewer = Viewer::of(&session);
    let id = session.file_name().unwrap().to_str().unwrap();
    let of = |rest: String| viewer.json(&format!("session/{id}/{rest}"));
    let last = number(&of("head".to_owned()), "last");
    let held_at = |at: u64| held.range(..=at).next_back().map(|(_, files)| files.clone()).unwrap_or_default();
    for at in 0..=last {
        let workspaces = of(format!("workspaces?at={at}"));
        let mut told = shown::Files::new();
        for workspace in workspaces.elements() {
            assert_eq!(workspace.get("gap"), Some(&Json::Scalar(Value::Null)));
            let name = encoded(workspace.get("name").unwrap().as_str().unwrap());
            for file in of(format!("files?at={at}&workspace={name}")).elements() {
                let path = file.get("path").unwrap().as_str().unwrap();
                let content = of(format!("content?at={at}&workspace={name}&path={}", encoded(path)));
                told.insert(path.to_owned(), content.get("text").unwrap().as_str().unwrap().to_owned());
            }
        }
        assert_eq!(told, held_at(at), "at {at}");
        let before = at / 2;
        let changes = of(format!("file-changes?before={before}&after={at}"));
        let changed: BTreeSet<&str> =
            changes.elements().iter().map(|change| change.get("path").unwrap().as_str().unwrap()).collect();
        let (old, now) = (held_at(before), held_at(at));
        let expected: BTreeSet<&str> = old
            .keys()
            .chain(now.keys())
            .filter(|path| old.get(*path) != now.get(*path))
            .map(String::as_str)
            .collect();
        assert_eq!(changed, expected, "from {before} to {at}");
    }
}

#[test]
fn a_search_finds_records_items_and_messages() {
    let fixture = Fixture::of_history(1500, 15);
    let viewer = Viewer::of(fixture.store());
    let mut found = Vec::new();
    let (mut from, mut place) = (0, 0);
    loop {
        let told =
            viewer.json(&format!("session/{}/search?q=question+3:&from={from}&place={place}", fixture.id()));
        found.extend(told.get("found").unwrap().elements().to_vec());
        match told.get("next") {
            Some(Json::Scalar(next)) if !next.is_null() => from = next.as_u64().unwrap(),
            _ => break,
        }
        place = told.get("place").map_or(0, |_| number(&told, "place"));
    }
    let whats: Vec<&str> = found.iter().filter_map(|one| one.get("what")?.as_str()).collect();
    assert!(whats.contains(&"record") && whats.contains(&"message"), "{whats:?}");
    for one in &found {
        assert!(one.get("excerpt").unwrap().as_str().unwrap().to_lowercase().contains("question 3:"));
    }
}

#[test]
fn hostile_values_are_told_as_json_and_long_ones_are_cut() {
    let directory = tempfile::tempdir().unwrap();
    let session = shown::hostile(&shown::store(directory.path()));
    let fixture = Fixture { directory, session };
    let viewer = Viewer::of(fixture.store());
    let of = |rest: &str| viewer.get(&format!("session/{}/{rest}", fixture.id()));
    let last = number(&Json::parse(&of("head").body), "last");
    for at in 0..=last {
        for path in [format!("document?at={at}"), format!("step?at={at}")] {
            let answer = of(&path);
            assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"), "{path}");
            let unseen =
                |character: char| character.is_control() || ('\u{202a}'..='\u{202e}').contains(&character);
            assert!(!answer.body.contains(unseen), "{path}");
            assert!(answer.body.len() < 4 << 20, "{path}: {} bytes", answer.body.len());
        }
    }
    // A name from the log is only data in the query too.
    let name = encoded("</script><script>window.ran=3</script>");
    let items = Json::parse(&of(&format!("items?at={last}&slice={name}&count=10")).body);
    let said = value(items.get("items").unwrap().elements()[0].get("value").unwrap());
    assert_eq!(said.get("said").unwrap().get(HOSTILE).and_then(Json::as_str), Some(HOSTILE));
    let draft = Json::parse(&of(&format!("items?at={last}&slice=draft&count=10")).body);
    let line = draft.get("items").unwrap().elements()[0].get("value").unwrap();
    assert_eq!(line.get("whole"), Some(&Json::Scalar(false.into())));
    let stands = Json::parse(line.get("text").unwrap().as_str().unwrap());
    assert!(number(&stands, "bytes") > 10 << 20);
}

#[test]
fn a_session_beside_another_is_what_the_command_line_says_of_the_two() {
    let directory = tempfile::tempdir().unwrap();
    let store = shown::store(directory.path());
    let [session, other] =
        [(300, 11), (320, 12)].map(|(records, seed)| shown::history(&store, records, seed));
    let fixture = Fixture { directory, session };
    let id = other.file_name().unwrap().to_str().unwrap();
    let viewer = Viewer::of(fixture.store());
    let compared = |query: &str| viewer.json(&format!("session/{}/compare?with={query}", fixture.id()));
    let other_dir = other.to_str().unwrap();
    let of_both = |told: &Json, printed: &[Json]| {
        let (parting, differences) = printed.split_first().unwrap();
        assert_eq!(told.get("parting"), parting.get("parting"));
        let is_message =
            |line: &&Json| !matches!(line.get("conversation"), None | Some(Json::Scalar(Value::Null)));
        let (messages, rest): (Vec<&Json>, Vec<&Json>) = differences.iter().partition(is_message);
        let lines = told.get("differences").unwrap().elements();
        let lines: Vec<Json> = lines.iter().map(|line| Json::parse(line.as_str().unwrap())).collect();
        assert_eq!(lines.iter().collect::<Vec<_>>(), rest);
        // Each differing row is one message that the command line names.
        let rows = told
            .get("conversations")
            .unwrap()
            .elements()
            .iter()
            .flat_map(|one| one.get("rows").unwrap().elements());
        let unlike = rows.filter(|row| row.get("alike") == Some(&Json::Scalar(false.into()))).count();
        assert_eq!(unlike, messages.len());
    };
    of_both(&compared(id), &printed(&fixture, &["diff", "--with", other_dir]));
    let (last, there) = (number(compared(id).get("here").unwrap(), "at"), 100);
    assert_eq!(last, number(compared(id).get("here").unwrap(), "last"));
    for at in positions(last + 1, 8) {
        let (here, step) = (at.to_string(), there.to_string());
        let told = compared(&format!("{id}&here={at}&there={there}"));
        of_both(&told, &printed(&fixture, &["diff", &here, &step, "--with", other_dir]));
    }
    // Only sessions in the store and existing positions are compared.
    for query in ["", "..", "/etc", &"0".repeat(36), &format!("{id}&here=9999999")] {
        let answer = viewer.get(&format!("session/{}/compare?with={query}", fixture.id()));
        assert!(answer.status == 404 || answer.status == 400, "{query}: {}", answer.status);
    }
}

#[test]
fn what_was_spent_is_what_the_command_line_says() {
    let directory = tempfile::tempdir().unwrap();
    let session = shown::spending(&shown::store(directory.path()));
    let fixture = Fixture { directory, session };
    let viewer = Viewer::of(fixture.store());
    let of = |rest: &str| viewer.json(&format!("session/{}/{rest}", fixture.id()));
    let [printed] = printed(&fixture, &["stats"]).try_into().unwrap();
    assert_eq!(of("statistics"), printed);
    // At any step, the usage of its evaluations equals the command line's sum.
    let fields = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_micros"];
    let amount = |json: &Json, field: &str| json.get(field).map_or(0, |_| number(json, field));
    let sums = |rows: &[Json]| fields.map(|field| rows.iter().map(|row| amount(row, field)).sum::<u64>());
    let spent = printed.get("spent").unwrap().elements();
    assert!(spent.len() > 5, "{spent:?}");
    for at in 0..=number(&of("head"), "last") {
        let by_then = spent.iter().take_while(|row| number(row, "sequence") <= at).last();
        let told = of(&format!("usage?at={at}"));
        assert_eq!(sums(told.elements()), sums(by_then.map_or(&[], std::slice::from_ref)), "at {at}");
        // The cost of the unrecorded evaluation is unknown.
        let unsaid = |row: &&Json| row.get("evaluation_id").unwrap().as_str() == Some("unrecorded");
        assert!(told.elements().iter().filter(unsaid).all(|row| row.get("cost_micros").is_none()));
    }
}

#[test]
fn what_objects_hold_where_two_sessions_part_is_told_and_that_one_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { object_bytes_min: 256, ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let [session, other] = ["here", "there"].map(|end| {
        let session = store.create(&types()).unwrap();
        session.dispatch(Noted { text: format!("{}{HOSTILE}{end}", "said by both, ".repeat(40)) }).unwrap();
        let dir = session.dir().to_owned();
        session.close().unwrap();
        dir
    });
    let fixture = Fixture { directory, session };
    let viewer = Viewer::of(fixture.store());
    let id = other.file_name().unwrap().to_str().unwrap();
    let compared = || viewer.json(&format!("session/{}/compare?with={id}", fixture.id()));
    let told = compared();
    let [here, there] = told.get("values").unwrap().elements() else { panic!("{told:?}") };
    for (side, end) in [(here, "here"), (there, "there")] {
        assert!(value(side).as_str().unwrap().ends_with(&format!("{HOSTILE}{end}")));
    }
    assert_eq!(told.get("path").and_then(Json::as_str), Some("$.event.text"));
    let object = |side: &Json| side.get("object").unwrap().get("name").unwrap().as_str().unwrap().to_owned();
    assert!(other.join("objects").join(object(there)).is_file());
    assert_eq!(told.get("refused"), None);
    assert!(!told.get("differences").unwrap().elements().is_empty());
    // Unreadable parts are reported in their place, and all others are shown.
    let damaged = other.join("objects").join(object(there));
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[99] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let told = compared();
    let [here, there] = told.get("values").unwrap().elements() else { panic!("{told:?}") };
    assert!(value(here).get("text").is_some());
    assert!(there.get("error").unwrap().as_str().unwrap().contains("do not match its name"), "{there:?}");
    assert_eq!(object(there), damaged.file_name().unwrap().to_str().unwrap());
    assert!(told.get("refused").unwrap().as_str().unwrap().contains("do not match its name"));
    assert!(told.get("parting").unwrap().get("difference").is_some());
}
