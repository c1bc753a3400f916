//! The verbs during an incident: every damaged place, the readable rest, and which sessions run or
//! were interrupted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldlog::log::SegmentSizes;
use foldlog::tools::{ExecuteOptions, ToolCall, ToolRegistry, ToolRunner};
use foldlog::{ExecutionState, RecordKind, ResourceRegistry, Session, SessionOptions, Store, StoreOptions};
use foldlog_codec::body::Seal;
use foldlog_codec::frame::{self, Context};
use foldlog_codec::segment::{HEADER_LEN, SegmentHeader};
use foldlog_test_support::child;
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::{Ran, foldlog, foldlog_on};
use uuid::Uuid;

use super::damaged::flip;
use super::imports::run;
use super::{Fixture, noted, options, step, write};

/// Creates a session of several segments, whose last record names an object.
fn segmented() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let segments = SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 };
    let store =
        Store::open_with(directory.path(), StoreOptions { segments, object_bytes_min: 256, ..options() })
            .unwrap();
    let session = store.create(&types()).unwrap();
    for number in 0..100 {
        session.dispatch(step(&format!("step {number} {}", "x".repeat(100)), number)).unwrap();
    }
    session.dispatch(noted(&"large ".repeat(100))).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    Fixture { fork: dir.clone(), session: dir, directory }
}

/// Returns the file, offset and length of each record of a session.
fn places(session: &Path) -> BTreeMap<u64, (PathBuf, u64, u64)> {
    let mut places = BTreeMap::new();
    foldlog::inspect::walk(session, &mut |frame| {
        if !frame.record.kind.is_envelope() {
            let place = (frame.segment.to_owned(), frame.offset, frame.bytes);
            places.insert(frame.record.sequence.get(), place);
        }
        Ok(())
    })
    .unwrap();
    places
}

/// Flips a bit in the last byte of a record.
fn damage(places: &BTreeMap<u64, (PathBuf, u64, u64)>, sequence: u64) {
    let (path, offset, bytes) = &places[&sequence];
    flip(path, offset + bytes - 1);
}

fn number(of: &Json, field: &str) -> u64 {
    match of.get(field) {
        Some(Json::Scalar(number)) => number.as_u64().unwrap(),
        other => panic!("{field} is {other:?}"),
    }
}

/// `verify` ended at the first damage of a session: of two flipped bytes in two segments it named
/// one.
#[test]
fn verify_lists_every_damaged_place_once_and_says_what_follows() {
    let fixture = segmented();
    let places = places(&fixture.session);
    // Two records of one segment, one of another, and the object of the last record.
    let wrong = [5, 9, 40];
    assert_eq!(places[&5].0, places[&9].0);
    assert_ne!(places[&5].0, places[&40].0);
    wrong.iter().for_each(|sequence| damage(&places, *sequence));
    let object = fs::read_dir(fixture.session.join("objects")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&object).unwrap();

    let ran = fixture.run("verify SESSION --json");
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let verified = Json::parse(&ran.stdout);
    let found = verified.get("corrupt").unwrap().elements();
    assert_eq!(found.len(), 3, "{found:?}");
    for (place, sequence) in found.iter().zip(wrong) {
        let (path, offset, _) = &places[&sequence];
        assert_eq!(place.get("segment"), Some(&Json::text(path.to_str().unwrap())));
        assert_eq!((number(place, "offset"), number(place, "sequence")), (*offset, sequence), "{place:?}");
        let follows = place.get("follows").unwrap();
        assert_eq!(number(follows, "offset"), places[&(sequence + 1)].1, "the next record is sound");
        assert_eq!(follows.get("sequences").unwrap().elements()[0], Json::Scalar((sequence + 1).into()));
    }
    assert_eq!(number(found[0].get("follows").unwrap(), "records"), 3, "records 6 to 8");
    let last = *places.keys().next_back().unwrap();
    // No later object exists, so the directory may be a copy that is older than the record.
    let lacking = verified.get("incomplete").unwrap().elements();
    assert_eq!((lacking.len(), number(&lacking[0], "sequence")), (1, last), "{lacking:?}");
    let reason = lacking[0].get("reason").unwrap().as_str().unwrap();
    assert!(reason.contains(object.to_str().unwrap()), "{reason}");

    let text = fixture.run("verify SESSION").stdout;
    let of = |label: &str| text.lines().filter(|line| line.starts_with(label)).count();
    assert_eq!((of("corrupt "), of("incomplete ")), (3, 1), "{text}");
    assert!(text.contains("intact records 6 to 8 follow from byte "), "{text}");

    // A missing segment and a header with a wrong checksum are places too, each once.
    let files: Vec<PathBuf> =
        (0..3).map(|ordinal| fixture.session.join(format!("{ordinal:010}.seg"))).collect();
    fs::remove_file(&files[2]).unwrap();
    flip(&files[1], 20);
    let verified = Json::parse(&fixture.run("verify SESSION --json").stdout);
    let found = verified.get("corrupt").unwrap().elements();
    let of_file = |file: &Path| {
        let file = Json::text(file.to_str().unwrap());
        found.iter().filter(|place| place.get("segment") == Some(&file)).count()
    };
    assert_eq!((of_file(&files[0]), of_file(&files[2])), (2, 1), "{found:?}");
    assert!(of_file(&files[1]) >= 1, "{found:?}");
}

/// Writes another hash into the seal of a segment, like an attacker who exchanges records and
/// recomputes checksums.
fn forge_seal(segment: &Path) {
    let mut bytes = fs::read(segment).unwrap();
    let header = SegmentHeader::decode(&bytes).unwrap();
    let context = Context::new(header.salt, header.first_sequence);
    let mut at = HEADER_LEN;
    loop {
        let frame = frame::decode(context, &bytes[at..]).unwrap();
        if frame.header.kind == RecordKind::Seal {
            let seal = Seal { hash: [7; 32], ..Seal::decode(frame.body).unwrap() };
            let (header, mut forged) = (frame.header, Vec::new());
            frame::encode(context, &header, &seal.encode(), &mut forged).unwrap();
            bytes[at..at + forged.len()].copy_from_slice(&forged);
            return fs::write(segment, bytes).unwrap();
        }
        at += frame.len();
    }
}

/// Seals were checked only if the log could be folded: one wrong byte elsewhere hid that records
/// were exchanged.
#[test]
fn verify_checks_the_seals_of_a_log_that_is_damaged_elsewhere_too() {
    let fixture = segmented();
    let places = places(&fixture.session);
    forge_seal(&places[&5].0);
    let sealed = |stdout: &str| stdout.contains("before the seal do not match it");
    let alone = fixture.run("verify SESSION");
    assert!(alone.code == 1 && sealed(&alone.stdout), "{}", alone.stdout);
    // Such a log is not copied over an intact one either.
    let to = tempfile::tempdir().unwrap();
    let copied = fixture.run(&format!("backup SESSION --to {}", to.path().display()));
    assert!(copied.code == 1 && sealed(&copied.stderr), "{} {}", copied.stdout, copied.stderr);
    assert!(Store::open(to.path()).unwrap().session_ids().unwrap().is_empty(), "no copy is left");
    // A record, and the object of the last record: one log cannot be walked, the other cannot be
    // folded.
    let object = fs::read_dir(fixture.session.join("objects")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&object).unwrap();
    let unfolded = fixture.run("verify SESSION");
    assert!(
        sealed(&unfolded.stdout) && unfolded.stdout.contains(object.to_str().unwrap()),
        "{}",
        unfolded.stdout
    );
    damage(&places, 40);
    let unwalked = fixture.run("verify SESSION");
    assert!(sealed(&unwalked.stdout) && unwalked.stdout.contains("record 40"), "{}", unwalked.stdout);
    assert_eq!(unwalked.stdout.matches("before the seal do not match it").count(), 1, "{}", unwalked.stdout);
}

/// A path that did not exist kept `verify` from checking the other given paths.
#[test]
fn verify_checks_what_it_can_of_several_paths() {
    let fixture = segmented();
    let nothing = fixture.directory.path().join("nothing");
    let verify = |paths: &[&Path]| run(&[&["verify"], vec!["_"; paths.len()].as_slice()].concat(), paths);
    let ran = verify(&[&nothing, &fixture.session, fixture.directory.path()]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stdout.starts_with("2 sessions, ") && !ran.stdout.contains("holds"), "{ran:?}");
    let unread = format!("unread   {}: ", nothing.display());
    assert_eq!(ran.stdout.matches(&unread).count(), 1, "{ran:?}");
    // Damage outranks a missing path.
    damage(&places(&fixture.session), 40);
    let ran = verify(&[&nothing, &fixture.session]);
    assert!(ran.code == 1 && ran.stdout.contains(&unread) && ran.stdout.contains("record 40"), "{ran:?}");
    assert_eq!(verify(&[&nothing]).code, 2);
}

/// A wrong byte hid the whole session: every verb that reads refused it.
#[test]
fn damage_hides_only_what_is_damaged() {
    let fixture = segmented();
    let places = places(&fixture.session);
    let sound = foldlog::inspect::LogReader::open(&fixture.session).unwrap();
    let (before, last) = (sound.state_at(39).unwrap(), sound.last_position().get());
    damage(&places, 40);

    let ends = format!("before record 40, at byte {} of {}", places[&40].1, places[&40].0.display());
    let read = |command: &str| {
        let ran = fixture.run(command);
        assert_eq!(ran.code, 1, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains(&ends), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("next: "), "{command}: {}", ran.stderr);
        ran.stdout
    };
    let sequences = |stdout: &str| -> Vec<u64> {
        stdout.lines().map(|line| number(&Json::parse(line), "sequence")).collect()
    };
    let all: Vec<u64> = (0..40).collect();
    assert_eq!(sequences(&read("show SESSION --json")), all);
    assert_eq!(sequences(&read("export SESSION --format jsonl")), all);
    assert_eq!(sequences(&read("tail SESSION -n 3 --json")), [37, 38, 39]);
    assert_eq!(sequences(&read("tail SESSION --from 38 --follow --json")), [38, 39]);
    assert!(read("state SESSION").starts_with("position 39 of 39\n"));
    let export = foldlog::Export::from_json(&read("export SESSION --format snapshot-json")).unwrap();
    let plan = export.slices.iter().find(|slice| slice.slice_type == "plan").unwrap();
    assert_eq!(plan.items.len(), before.slices["plan"].items.len());
    assert!(read("state SESSION --at 7").starts_with("position 7 of 39\n"));
    assert!(read("diff SESSION 7 8").contains("+ "));
    assert_eq!(number(&Json::parse(&read("stats SESSION --json")), "records"), 40);
    assert!(read("ledger SESSION").contains("0 operations"));

    // Records lost to damage are reported as damaged, not as missing from the log.
    for command in
        ["state SESSION --at 40", "diff SESSION 1 45", "show SESSION --from 41", "tail SESSION --from 41"]
    {
        let ran = fixture.run(command);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{command}");
        assert!(ran.stderr.contains("checksum does not match"), "{command}: {}", ran.stderr);
    }

    // After the damage there are intact records, but their predecessor is unknown.
    let shown = fixture.run("show SESSION --beyond-damage --json");
    assert_eq!(shown.code, 1);
    // The hint recommended the command that had just run.
    assert!(shown.stderr.contains(&ends) && !shown.stderr.contains("beyond-damage"), "{}", shown.stderr);
    let expected: Vec<u64> = (0..=last).filter(|sequence| *sequence != 40).collect();
    assert_eq!(sequences(&shown.stdout), expected);
    for line in shown.stdout.lines() {
        let record = Json::parse(line);
        let sequence = number(&record, "sequence");
        let path = if sequence < 40 { "live" } else { "unattached" };
        assert_eq!(record.get("path").unwrap().as_str(), Some(path), "{line}");
        if sequence > 40 {
            let (file, offset, _) = &places[&sequence];
            assert_eq!(record.get("segment"), Some(&Json::text(file.to_str().unwrap())));
            assert_eq!(number(&record, "offset"), *offset);
        }
    }
    let one = fixture.run("show SESSION --beyond-damage --from 50 --to 50");
    assert!(one.stdout.lines().count() == 2 && one.stdout.ends_with("  unattached\n"), "{}", one.stdout);
}

/// A record without its object cannot be folded; the records before it can.
#[test]
fn an_object_that_is_missing_hides_no_state_before_it() {
    let fixture = segmented();
    let last = places(&fixture.session).len() as u64 - 1;
    fs::remove_dir_all(fixture.session.join("objects")).unwrap();
    let ran = fixture.run("state SESSION");
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.starts_with(&format!("position {0} of {0}\n", last - 1)), "{}", ran.stdout);
    assert!(ran.stderr.contains(&format!("before record {last}, at byte ")), "{}", ran.stderr);
    // The record itself is intact, and can be listed without the object.
    let ran = fixture.run("show SESSION");
    assert_eq!((ran.code, ran.stdout.lines().count() as u64), (0, last + 2), "{}", ran.stderr);
}

/// A header with a wrong checksum, or another segment in a segment's place, leaves the earlier
/// records readable.
#[test]
fn segments_that_are_lost_hide_only_what_follows() {
    for wrong in ["removed", "exchanged", "header"] {
        let fixture = segmented();
        let places = places(&fixture.session);
        let (first, second) =
            (fixture.session.join("0000000000.seg"), fixture.session.join("0000000001.seg"));
        match wrong {
            "removed" => fs::remove_file(&second).unwrap(),
            "exchanged" => fs::copy(&first, &second).map(drop).unwrap(),
            _ => flip(&second, 20),
        }
        let ran = fixture.run("show SESSION --json");
        assert_eq!(ran.code, 1, "{wrong}: {}", ran.stderr);
        let of_first = places.values().filter(|(path, ..)| *path == first).count();
        assert_eq!(ran.stdout.lines().count(), of_first, "{wrong}: {}", ran.stderr);
        let all = fixture.run("show SESSION --json --beyond-damage").stdout.lines().count();
        let of_second = places.values().filter(|(path, ..)| *path == second).count();
        // Without its header, the segment can be placed by its first frame.
        let lost = if wrong == "header" { 0 } else { of_second };
        assert_eq!(all, places.len() - lost, "{wrong}");
    }
}

/// A store in which nearly every session has a problem.
struct Night {
    directory: tempfile::TempDir,
    /// The purpose of each session.
    ids: BTreeMap<&'static str, Uuid>,
    /// The running session.
    running: Session,
}

/// Leaves a call open, as a killed process would.
fn cut_short(store: &Store, tag: &str) -> Uuid {
    let session = store.create_with(&types(), SessionOptions::default().tag("team", tag)).unwrap();
    let id = session.id();
    let runner = runner(&session);
    let call = ToolCall::new("send_mail", r#"{"to": "\u001b[31mall"}"#).with_id("call_1");
    let open = runner.begin(&call, &ExecuteOptions::default()).unwrap();
    open.context().session().dispatch(step("wrote", 1)).unwrap();
    session.close().unwrap();
    drop(open);
    id
}

fn runner(session: &Session) -> ToolRunner {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    ToolRunner::new(state, ToolRegistry::new())
}

impl Night {
    fn begin() -> Night {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open_with(directory.path(), options()).unwrap();
        let mut ids = BTreeMap::new();
        ids.insert("interrupted", cut_short(&store, "red"));
        let unsettled = cut_short(&store, "blue");
        let session = store.open_session(unsettled, &types()).unwrap();
        assert_eq!(runner(&session).recover(&ExecuteOptions::default()).unwrap().len(), 1);
        session.close().unwrap();
        ids.insert("unsettled", unsettled);
        let closed = store.create_with(&types(), SessionOptions::default().tag("team", "red")).unwrap();
        closed.dispatch(noted("done")).unwrap();
        ids.insert("closed", closed.id());
        closed.close().unwrap();
        let damaged = write(&store);
        let dir = damaged.dir().to_owned();
        ids.insert("damaged", damaged.id());
        damaged.close().unwrap();
        damage(&places(&dir), 9);
        let running = store.create(&types()).unwrap();
        running.dispatch(noted("at work")).unwrap();
        ids.insert("running", running.id());
        Night { directory, ids, running }
    }

    fn dir(&self, which: &str) -> PathBuf {
        self.directory.path().join("sessions").join(self.ids[which].to_string())
    }

    fn run(&self, words: &[&str]) -> Ran {
        let directory = |word: &&str| match *word {
            "STORE" => self.directory.path().to_owned(),
            word if self.ids.contains_key(word) && words[0] != "sessions" => self.dir(word),
            word => PathBuf::from(word),
        };
        foldlog(words.iter().map(directory))
    }

    /// Returns the rows of `sessions` with these options, by the purpose of the session.
    fn rows(&self, words: &[&str]) -> Vec<(&'static str, Json)> {
        let words: Vec<&str> = ["sessions", "STORE", "--json"].iter().chain(words).copied().collect();
        let named = |row: &Json| {
            let id = row.get("session").unwrap().as_str().unwrap();
            *self.ids.iter().find(|(_, known)| known.to_string() == id).unwrap().0
        };
        let rows = self.run(&words).stdout;
        rows.lines().map(Json::parse).map(|row| (named(&row), row)).collect()
    }

    fn listed(&self, words: &[&str]) -> Vec<&'static str> {
        let mut listed: Vec<&str> = self.rows(words).into_iter().map(|(which, _)| which).collect();
        listed.sort_unstable();
        listed
    }
}

/// `sessions` listed only ids and sizes: running, interrupted and damaged sessions looked the same.
#[test]
fn sessions_tells_how_each_session_stands() {
    let night = Night::begin();
    let ran = night.run(&["sessions", "STORE"]);
    assert_eq!(ran.code, 1, "one is damaged: {}", ran.stderr);
    assert!(!ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    let row = |which: &str| {
        let id = night.ids[which].to_string();
        ran.stdout.lines().find(|line| line.starts_with(&id)).unwrap().to_owned()
    };
    for which in night.ids.keys() {
        let row = row(which);
        assert_eq!(row.split_whitespace().nth(1), Some(*which), "{row}");
    }
    let pid = std::process::id();
    for (which, told) in [
        ("running", format!("pid {pid} on ")),
        ("interrupted", "`send_mail` (operation 2) since ".to_owned()),
        ("unsettled", "`send_mail` (operation 2) since ".to_owned()),
        ("damaged", "from record 9 on: ".to_owned()),
    ] {
        assert!(row(which).contains(&told), "{which}: {}", row(which));
    }

    // The same as JSON, including a damaged session.
    let rows: BTreeMap<&str, Json> = night.rows(&[]).into_iter().collect();
    for (which, row) in &rows {
        assert_eq!(row.get("status").unwrap().as_str(), Some(*which));
    }
    let damaged = &rows["damaged"];
    let (path, offset, _) = &places_below(&night.dir("damaged"), 9);
    assert_eq!(number(damaged, "records"), 9);
    let place = damaged.get("damage").unwrap();
    assert_eq!((number(place, "sequence"), number(place, "offset")), (9, *offset));
    assert_eq!(place.get("segment").unwrap().as_str(), path.to_str());
    assert!(damaged.get("error").is_some());
    let open = &rows["interrupted"].get("open").unwrap().elements()[0];
    assert_eq!((number(open, "operation"), open.get("tool").unwrap().as_str()), (2, Some("send_mail")));
    assert_eq!(number(rows["running"].get("running").unwrap(), "pid"), u64::from(pid));
    assert_eq!(rows["unsettled"].get("unsettled").unwrap().elements().len(), 1);

    // Filters and orders.
    assert_eq!(night.listed(&["--status", "running"]), ["running"]);
    assert_eq!(night.listed(&["--status", "unsettled", "--status", "damaged"]), ["damaged", "unsettled"]);
    // A session that is only partly known is never filtered out by its unknown part.
    assert_eq!(night.listed(&["--tag", "team=red"]), ["closed", "damaged", "interrupted"]);
    assert_eq!(night.listed(&["--tag", "team"]), ["closed", "damaged", "interrupted", "unsettled"]);
    let since = rows["running"].get("created_at").unwrap().as_str().unwrap();
    assert_eq!(night.listed(&["--since", since]), ["damaged", "running"]);
    assert_eq!(night.listed(&["--since", "1d"]), ["damaged"], "the clock of the test stands in the past");
    let sorted =
        |by: &str| night.rows(&["--sort", by]).into_iter().map(|(which, _)| which).collect::<Vec<_>>();
    assert_eq!(sorted("status")[..3], ["damaged", "running", "interrupted"]);
    assert_eq!(sorted("activity")[0], "running");
    assert_eq!(sorted("records")[0], "damaged");
    assert_eq!(night.run(&["sessions", "STORE", "--since", "soon"]).code, 2);
    assert_eq!(night.run(&["sessions", "STORE", "--status", "closed"]).code, 0, "what is listed holds");

    // A session that has ended is no longer running.
    let id = night.running.id().to_string();
    night.running.close().unwrap();
    let ran = foldlog(["sessions".as_ref(), night.directory.path().as_os_str()]);
    let row = ran.stdout.lines().find(|line| line.starts_with(&id)).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some("closed"), "{row}");
}

/// Returns the file, offset and length of the record `sequence` of a damaged session, before which
/// its intact part ends.
fn places_below(session: &Path, sequence: u64) -> (PathBuf, u64, u64) {
    let mut end = (PathBuf::new(), 0, 0);
    let _ = foldlog::inspect::walk(session, &mut |frame| {
        end = (frame.segment.to_owned(), frame.offset + frame.bytes, 0);
        Ok(())
    });
    assert!(sequence > 0);
    end
}

/// If an image covers the start of a session, the listing reads only the rest, with the same
/// result.
#[test]
fn sessions_begins_behind_an_image() {
    let directory = tempfile::tempdir().unwrap();
    let open = |image_bytes_min| {
        Store::open_with(directory.path(), StoreOptions { image_bytes_min, ..options() }).unwrap()
    };
    let store = open(1);
    let session = store.create_with(&types(), SessionOptions::default().tag("team", "red")).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    let call = ToolCall::new("send_mail", "{}");
    let call = runner(&session).begin(&call, &ExecuteOptions::default()).unwrap();
    for number in 0..50 {
        call.context().session().dispatch(step("step", number)).unwrap();
    }
    session.close().unwrap();
    drop(call);
    let image = fs::read_dir(dir.join("snapshots")).unwrap().next().unwrap().unwrap().path();
    let row = || foldlog(["sessions".as_ref(), directory.path().as_os_str(), "--json".as_ref()]).stdout;
    let behind = row();
    assert!(behind.contains(&id.to_string()) && behind.contains(r#""status":"interrupted""#), "{behind}");

    // A record that the image covers is not read: only then is its damage not noticed.
    let (path, offset, bytes) = places(&dir)[&20].clone();
    flip(&path, offset + bytes - 1);
    assert_eq!(row(), behind);
    flip(&path, offset + bytes - 1);
    // Without an image, and with an invalid one, the whole log gives the same result.
    fs::write(&image, "no image").unwrap();
    assert_eq!(row(), behind);
    fs::remove_dir_all(dir.join("snapshots")).unwrap();
    assert_eq!(row(), behind);
}

/// A person who had to decide about a call had to gather its facts from the records.
#[test]
fn the_ledger_of_an_operation_tells_what_a_person_needs_to_decide() {
    let night = Night::begin();
    let ran = night.run(&["ledger", "unsettled", "2"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(!ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    for told in [
        "operation 2: `send_mail`, interrupted\n",
        "call_1\n",
        "manual: a person must decide whether it may run again\n",
        r#"{"to": "\u001b[31mall"}"#,
        "run 1        started 2026-",
        ": interrupted\n",
        "may have had external effects; its changes of STATE and resources were rolled back\n",
    ] {
        assert!(ran.stdout.contains(told), "{told:?} is not in\n{}", ran.stdout);
    }
    let account = Json::parse(&night.run(&["ledger", "unsettled", "2", "--json"]).stdout);
    let choices = account.get("decide").unwrap().elements();
    assert_eq!(choices.len(), 3, "{account:?}");
    // Each of the commands works as printed.
    let failed = choices[1].get("command").unwrap().as_str().unwrap().replace("\"$USER\"", "me");
    assert!(ran.stdout.contains(&failed.replace("me", "\"$USER\"")), "{}", ran.stdout);
    let words: Vec<&str> = failed.split(' ').collect();
    assert_eq!(words[0], "foldlog");
    let settled = foldlog(&words[1..]);
    assert_eq!(settled.code, 0, "{}", settled.stderr);
    let after = night.run(&["ledger", "unsettled", "2"]).stdout;
    assert!(
        after.contains("settled      failed by me, record ") && !after.contains("\n  decide\n"),
        "{after}"
    );

    // An open call cannot be decided yet: its session has to be recovered, or waited for.
    let open = night.run(&["ledger", "interrupted", "2"]).stdout;
    assert!(open.contains("its process is gone") && open.contains("foldlog recover "), "{open}");
    assert!(!open.contains("foldlog settle"), "{open}");
    let missing = night.run(&["ledger", "unsettled", "7"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (2, ""));
    assert!(missing.stderr.contains("operation 7 does not exist"), "{}", missing.stderr);
}

/// The values of events could only be read as JSON, and an abandoned record looked as if none of
/// its data had remained.
#[test]
fn show_tells_payloads_and_which_abandoned_records_stay_in_a_log() {
    let directory = tempfile::tempdir().unwrap();
    let store =
        Store::open_with(directory.path(), StoreOptions { object_bytes_min: 256, ..options() }).unwrap();
    let session = store.create(&types()).unwrap();
    let before = session.dispatch(step("kept", 1)).unwrap();
    session.dispatch(step("\u{1b}[31mgone", 2)).unwrap();
    session.dispatch(noted("it stays")).unwrap();
    session.dispatch(noted(&"long ".repeat(1000))).unwrap();
    session.rollback_to(before).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let show = |words: &[&str]| {
        let ran =
            foldlog([OsStr::new("show"), dir.as_os_str()].into_iter().chain(words.iter().map(OsStr::new)));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(!ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
        ran.stdout
    };
    let shown = show(&["--kind", "dispatch", "--payload"]);
    let lines: Vec<&str> = shown.lines().skip(1).collect();
    let words: Vec<&str> =
        lines.iter().step_by(2).map(|line| line.split_whitespace().next_back().unwrap()).collect();
    assert_eq!(words, ["live", "abandoned", "log-only", "log-only"], "{shown}");
    let payloads: Vec<&str> = lines.iter().skip(1).step_by(2).map(|line| line.trim()).collect();
    assert_eq!(payloads[0], r#"data  {"title":"kept","part":1}"#);
    assert_eq!(payloads[1], r#"data  {"title":"\u001b[31mgone","part":2}"#);
    assert!(payloads[3].len() < 1100 && payloads[3].ends_with('…'), "{}", payloads[3]);
    // In JSON the value is whole, even if it is stored in an object.
    let last =
        show(&["--kind", "dispatch", "--payload", "--json"]).lines().next_back().map(Json::parse).unwrap();
    assert_eq!(last.get("path").unwrap().as_str(), Some("log-only"));
    let data = last.get("payload").unwrap().get("data").unwrap();
    assert_eq!(data.get("text").unwrap().as_str(), Some(&*"long ".repeat(1000)));
    assert!(!show(&[]).contains("data  "));
}

impl Night {
    /// Returns the path of the running session's note, the note's content with the process id of an
    /// ended writer, and that id.
    fn note_of_gone(&self) -> (PathBuf, String, u32) {
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let note = self.directory.path().join("writers").join(format!("{}.json", self.ids["running"]));
        let own = fs::read_to_string(&note).unwrap();
        let forged = own.replace(&std::process::id().to_string(), &gone.id().to_string());
        assert_ne!(forged, own);
        (note, forged, gone.id())
    }
}

/// A run that was killed while it started a program could not be resumed at once: its fork, just
/// before it became that program, still shared the lock.
#[test]
fn a_lock_that_outlives_its_process_for_a_moment_is_waited_for() {
    let night = Night::begin();
    let (note, forged, _) = night.note_of_gone();
    night.running.clone().close().unwrap();
    fs::write(note, forged).unwrap();
    let locks = child::lock_sessions(night.directory.path());
    let (store, id) = (Store::open_with(night.directory.path(), options()).unwrap(), night.ids["running"]);
    std::thread::scope(|scope| {
        let (opens, begun) = std::sync::mpsc::channel();
        let opened = scope.spawn(move || {
            opens.send(()).unwrap();
            store.open_session(id, &types()).map(drop)
        });
        begun.recv().unwrap();
        // On a busy machine each of them takes a few milliseconds.
        let begun = Instant::now();
        let is_soon = |_: &u32| begun.elapsed() < Duration::from_millis(50);
        (0..10_000).take_while(is_soon).for_each(|_| std::thread::yield_now());
        drop(locks);
        opened.join().unwrap().unwrap();
    });
}

/// An ended process was reported as running while a process that it had forked still held the lock.
#[test]
fn a_lock_that_outlives_its_process_is_told() {
    let night = Night::begin();
    let (note, forged, gone) = night.note_of_gone();
    fs::write(note, forged).unwrap();
    let store = night.directory.path().to_str().unwrap();
    let row = |columns| {
        let shown = foldlog_on(columns, ["sessions", store]).stdout;
        let id = night.ids["running"].to_string();
        shown.lines().find(|line| line.starts_with(&id)).unwrap_or(&shown).to_owned()
    };
    let expected = format!("pid {gone} ended, its fork has the lock");
    assert!(row(132).contains(&expected), "{}", row(132));
    let refused = foldlog(["recover", night.dir("running").to_str().unwrap()]);
    assert!(
        refused.code != 0 && refused.stderr.contains("which has ended: a process that it forked"),
        "{refused:?}"
    );
}

/// The rows were wider than any terminal, and each took three lines.
#[test]
fn sessions_fit_a_terminal_and_are_whole_in_pipes() {
    let night = Night::begin();
    let store = night.directory.path().to_str().unwrap();
    let piped = foldlog(["sessions", store]);
    for columns in [100, 132, 60] {
        let shown = foldlog_on(columns, ["sessions", store]);
        assert_eq!((shown.code, &shown.stderr), (piped.code, &piped.stderr));
        assert_eq!(shown.stdout.lines().count(), piped.stdout.lines().count());
        for line in shown.stdout.lines() {
            assert!(line.chars().count() <= usize::from(columns), "{columns}: {line}");
        }
        // The id is whole, since the next command needs it.
        for id in night.ids.values() {
            assert!(shown.stdout.contains(&id.to_string()), "{columns}: {}", shown.stdout);
        }
    }
    let shown = foldlog_on(132, ["sessions", store]).stdout;
    let row = |which: &str| {
        let id = night.ids[which].to_string();
        shown.lines().find(|line| line.starts_with(&id)).unwrap()
    };
    assert!(
        row("interrupted").contains("`send_mail` 2, ") && row("interrupted").ends_with("team=red"),
        "{shown}"
    );
    assert!(row("running").contains(&format!("pid {}", std::process::id())), "{shown}");
    assert!(row("damaged").ends_with('…'), "{shown}");
    // If the id does not fit next to the status, only its first digits are shown, and the important
    // facts remain.
    let shown = foldlog_on(40, ["sessions", store]).stdout;
    for (which, id) in &night.ids {
        let begin = format!("{}  {which}", &id.to_string()[..8]);
        assert!(shown.lines().any(|line| line.starts_with(&begin)), "{which}: {shown}");
    }
    assert!(shown.contains("`send_mail` 2,") && !shown.contains("records"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 40), "{shown}");
    assert!(piped.stdout.lines().all(|line| !line.contains('…')), "{}", piped.stdout);
    let json = foldlog(["sessions", store, "--json"]);
    assert_eq!(foldlog_on(60, ["sessions", store, "--json"]).stdout, json.stdout);
}

/// A tag in Chinese, or with pictures, made its row wider than the terminal.
#[test]
fn wide_characters_count_for_the_columns_that_they_take() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    for tag in [
        "漢字".repeat(40),
        "👩\u{200d}👩\u{200d}👧".repeat(30),
        "❤\u{fe0f}".repeat(60),
        "e\u{301}".repeat(90),
    ] {
        let session = store.create_with(&types(), SessionOptions::default().tag("t", tag)).unwrap();
        session.close().unwrap();
    }
    // A terminal without support for sequences draws each character.
    let columns_of = |line: &str| -> usize {
        let wide =
            |one: char| !matches!(one, '…' | '\u{2764}') && u32::from(one) > 0x2e80 && one != '\u{fe0f}';
        let own = |one: char| match one {
            '\u{301}' | '\u{200d}' => 0,
            '\u{fe0f}' => 1,
            one => 1 + usize::from(wide(one)),
        };
        line.chars().map(own).sum()
    };
    for columns in [40, 60, 80, 100, 133] {
        let shown = foldlog_on(columns, ["sessions", directory.path().to_str().unwrap()]).stdout;
        let widths: Vec<usize> = shown.lines().map(columns_of).collect();
        assert!(widths.iter().all(|width| *width <= usize::from(columns)), "{columns}: {widths:?}\n{shown}");
        assert!(shown.lines().skip(1).all(|line| line.ends_with('…')), "{shown}");
    }
}

/// A hint once contained an unquoted path, and a shell into which it was pasted ran parts of the
/// path.
#[test]
fn a_hint_holds_the_path_of_a_store_as_a_shell_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("$(touch it) `and` it's");
    drop(Store::open(&store).unwrap());
    for verb in ["show", "state", "ledger", "stats", "tail"] {
        let ran = foldlog([OsStr::new(verb), store.as_os_str()]);
        let quoted = store.to_str().unwrap().replace('\'', r"'\''");
        let hint = format!("`foldlog sessions '{quoted}'`");
        assert!(ran.stderr.contains(&hint), "{}", ran.stderr);
    }
}
