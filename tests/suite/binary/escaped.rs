//! Control characters, format characters and invalid text, in every place that a host or a file
//! system fills, through every verb.

mod conversation;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use foldlog::{RecordKind, Value};
use foldlog_codec::body::{
    Action, Binding, BuiltIn, Declare, Dispatch, EventDeclaration, Import, ImportedSlice, Lane, Observed,
    Outcome, Payload, Policy, Rollback, SessionOpening, Settle, SliceDeclaration, SnapshotBody, ToolBegin,
    ToolEnd,
};
use foldlog_tests::verbs::{Ran, foldlog, reading_examples};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};
use uuid::Uuid;

use super::damaged::{flip, forge, place, segment};

fn is_raw(character: char) -> bool {
    matches!(
        character.general_category(),
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
    )
}

/// Returns a text that contains every such character and the name of its place.
fn hostile(place: &str) -> String {
    // All million characters have to be checked, and the text is used hundreds of times.
    static ALL: LazyLock<String> =
        LazyLock::new(|| ('\0'..=char::MAX).filter(|character| is_raw(*character)).collect());
    format!("{place}{}end", *ALL)
}

fn payload(place: &str) -> Vec<u8> {
    let pair = |value| (Value::from(hostile(&format!("{place} key"))), value);
    let text = Value::from(hostile(&format!("{place} value")));
    Value::Map(vec![pair(Value::Array(vec![text.clone(), Value::Map(vec![pair(text)])]))]).encode()
}

fn tags(place: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(hostile(&format!("{place} key")), hostile(&format!("{place} value")))])
}

fn begin(place: &str, arguments: &[u8]) -> Vec<u8> {
    let begin = ToolBegin {
        call_id: Some(Cow::from(hostile(&format!("{place} call")))),
        ..ToolBegin::new(hostile(&format!("{place} tool")), Payload::new(arguments))
    };
    begin.encode()
}

fn end(begin: u64, result: &[u8]) -> Vec<u8> {
    let end = ToolEnd {
        call_id: Some(Cow::from(hostile("end call"))),
        rolls_back: true,
        elapsed_us: 1,
        result: Some(Payload::new(result)),
        ..ToolEnd::new(begin.into(), hostile("end tool"), Outcome::Interrupted)
    };
    end.encode()
}

/// Returns a session in which every name, tag, reason and payload contains every such character.
/// The last record takes LOG back, which only a replay finds wrong.
fn records() -> Vec<(RecordKind, Vec<u8>)> {
    let session = Uuid::from_u128(9);
    let slice = |id, policy| SliceDeclaration {
        id,
        name: hostile(&format!("slice {id}")),
        policy,
        item: hostile(&format!("item {id}")),
    };
    let bindings = (0..2).map(|slice| Binding { slice, built_in: BuiltIn::Append }).collect();
    let event = EventDeclaration { id: 0, name: hostile("event"), version: 1, bindings, implicit: false };
    let declare =
        Declare { events: vec![event], slices: vec![slice(0, Policy::Log), slice(1, Policy::State)] };
    let data = payload("event");
    let event = Action::Event { event: 0, data: Payload::new(&data) };
    let tag = Action::Tag { key: hostile("tag key"), value: Some(hostile("tag value")) };
    let dispatch = |action| (RecordKind::Dispatch, Dispatch { action, effects: None }.encode());
    let imported = payload("imported");
    let import = Import {
        from: None,
        exported_at_us: None,
        tags: tags("imported tag"),
        slices: vec![ImportedSlice { slice: 1, items: vec![(Payload::new(&imported), 1)] }],
    };
    let (arguments, observed, shown) = (payload("arguments"), payload("observed"), payload("shown"));
    let settle = Settle {
        operation: 6.into(),
        decision: foldlog::Decision::Failed,
        result: None,
        shown: Some(Payload::new(&shown)),
        arguments: None,
        until_us: None,
        by: hostile("by"),
        reason: hostile("reason"),
    };
    let observed = Observed { name: hostile("observed"), data: Payload::new(&observed) };
    let mut records = vec![
        (
            RecordKind::Opened,
            SessionOpening { session, seed: 1, tags: tags("opened"), parent: None }.encode(),
        ),
        (RecordKind::Declare, declare.encode()),
        dispatch(event.clone()),
        dispatch(tag),
        (
            RecordKind::Snapshot,
            SnapshotBody {
                tag: Some(hostile("snapshot")),
                policies: vec![Policy::State],
                resources: Vec::new(),
            }
            .encode(),
        ),
        (RecordKind::Import, import.encode()),
        (RecordKind::ToolBegin, begin("settled", &arguments)),
        (RecordKind::ToolEnd, end(6, &payload("result"))),
        (RecordKind::Settle, settle.encode()),
        (RecordKind::Observed, observed.encode()),
        (RecordKind::ToolBegin, begin("waiting", &arguments)),
        (RecordKind::ToolEnd, end(10, &payload("result"))),
        dispatch(event),
    ];
    records.extend(conversation::records(records.len() as u64));
    let (mut open, data) = (begin("open", &arguments), payload("event"));
    let event = Action::Event { event: 0, data: Payload::new(&data) };
    let mut laned = Dispatch { action: event, effects: None }.encode();
    for body in [&mut open, &mut laned] {
        Lane { within: None, name: Some(hostile("record lane").into()) }.add_to(body, 0);
    }
    records.push((RecordKind::Dispatch, laned));
    records.push((RecordKind::ToolBegin, open));
    records.push((RecordKind::Rollback, Rollback { to: 4.into(), preserve_logs: false }.encode()));
    records
}

struct World {
    _directory: tempfile::TempDir,
    store: PathBuf,
    session: PathBuf,
}

/// Creates a store whose own directory has such a name, with invalid text in it, and such files
/// next to the log.
fn world(records: &[(RecordKind, Vec<u8>)]) -> World {
    let directory = tempfile::tempdir().unwrap();
    let name = |place: &str| {
        let text: String = hostile(place).chars().filter(|character| *character != '\0').collect();
        // A name has at most 255 bytes.
        let mut name: Vec<u8> =
            text.char_indices().take_while(|(at, _)| *at < 200).map(|(_, c)| c).collect::<String>().into();
        name.extend_from_slice("\u{202e}\u{9b}".as_bytes());
        name.push(0xff);
        OsString::from_vec(name)
    };
    let store = directory.path().join(name("store"));
    let session = store.join("sessions").join(Uuid::from_u128(9).to_string());
    forge(&session, records);
    for dir in ["snapshots", "objects"] {
        fs::create_dir(session.join(dir)).unwrap();
        fs::write(session.join(dir).join(name(dir)), "file").unwrap();
    }
    fs::write(session.join(name("beside")), "file").unwrap();
    World { _directory: directory, store, session }
}

impl World {
    fn run(&self, words: &[&str]) -> Ran {
        foldlog(words.iter().map(|word| match *word {
            "STORE" => self.store.clone().into_os_string(),
            "SESSION" => self.session.clone().into_os_string(),
            "NOTHING" => self.store.join("nothing").into_os_string(),
            "SALVAGED" => self.store.join("salvaged").into_os_string(),
            "SLICE" => hostile("slice 1").into(),
            "report.html" => self.store.with_file_name("report.html").into(),
            "HOSTILE" => hostile("word").replace('\0', "").into(),
            word => word.into(),
        }))
    }
}

/// Checks that neither stream contains raw characters except newlines, and that no line that starts
/// within an external text can pass for a line of the program.
fn check(words: &[&str], ran: &Ran) {
    for text in [&ran.stdout, &ran.stderr] {
        let raw = text.chars().find(|character| *character != '\n' && is_raw(*character));
        assert_eq!(raw.map(u32::from), None, "{words:?}");
        for line in text.lines() {
            // In the hostile texts U+000B follows each newline.
            assert!(!line.starts_with(r"\u{b}"), "{words:?}");
        }
    }
}

fn texts(value: &serde_json::Value, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::String(text) => drop(into.insert(text.clone())),
        serde_json::Value::Array(items) => items.iter().for_each(|item| texts(item, into)),
        serde_json::Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            into.insert(key.clone());
            texts(value, into);
        }),
        _ => {}
    }
}

fn parsed(stdout: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for value in serde_json::Deserializer::from_str(stdout).into_iter::<serde_json::Value>() {
        texts(&value.unwrap(), &mut found);
    }
    found
}

/// An agent had read a page with an escape sequence, and named a step after it. `show`, `tail`,
/// `state`, `diff`, `stats`, `ledger`, `sessions` and the notes sent it to the terminal, and JSON
/// contained raw DEL, C1 and bidirectional marks.
#[test]
fn no_control_character_from_outside_reaches_the_terminal_by_any_verb() {
    let world = world(&records());
    let verbs: &[(&[&str], &[&str])] = &[
        (&["sessions", "STORE"], &["opened key", "opened value", "tag key", "tag value", "imported tag key"]),
        (&["sessions", "NOTHING"], &[]),
        (
            &["show", "SESSION"],
            &[
                "event",
                "slice 0",
                "slice 1",
                "item 1",
                "event key",
                "event value",
                "opened key",
                "tag key",
                "tag value",
                "snapshot",
                "imported tag value",
                "imported key",
                "settled tool",
                "settled call",
                "arguments key",
                "end tool",
                "end call",
                "result value",
                "by",
                "reason",
                "observed",
                "observed value",
                "open tool",
                "record lane",
            ],
        ),
        (&["show", "SESSION", "--from", "13", "--to", "23"], &conversation::PLACES),
        (&["show", "SESSION", "--kind", "HOSTILE"], &[]),
        (
            &["show", "SESSION", "--payload"],
            &["event value", "arguments key", "result value", "observed value"],
        ),
        (&["show", "STORE"], &[]),
        (&["tail", "SESSION", "-n", "99"], &["event", "snapshot", "reason", "open call"]),
        (&["state", "SESSION"], &["slice 0", "slice 1", "event key"]),
        (&["state", "SESSION", "--at", "12", "--slice", "SLICE"], &["slice 1", "event key", "event value"]),
        (&["state", "SESSION", "--slice", "HOSTILE"], &[]),
        (
            &["diff", "SESSION", "1", "12"],
            &["slice 0", "slice 1", "event key", "imported value", "tag value"],
        ),
        (
            &["transcript", "SESSION", "--at", "22", "--as-recorded"],
            &["user text", "speaker", "answer text", "answered id", "answered tool", "answered arguments"],
        ),
        (&["transcript", "SESSION", "--at", "22", "--format", "markdown", "--as-recorded"], &["answer text"]),
        (&["transcript", "SESSION", "--at", "22", "--format", "openai", "--as-recorded"], &[]),
        (&["transcript", "SESSION", "--at", "22", "--format", "anthropic"], &[]),
        (&["transcript", "SESSION", "--evaluation", "HOSTILE"], &[]),
        (&["diff", "SESSION", "12", "22"], &["evaluation", "answer text", "answered tool"]),
        (&["stats", "SESSION"], &["event", "slice 0", "slice 1"]),
        (&["ledger", "SESSION"], &["settled tool", "settled call", "by", "reason", "open tool"]),
        (&["ledger", "SESSION", "6"], &["settled tool", "settled call", "by", "reason"]),
        (&["ledger", "SESSION", "10"], &["waiting tool", "waiting call"]),
        (&["sessions", "STORE", "--tag", "HOSTILE"], &[]),
        (&["sessions", "STORE", "--since", "HOSTILE"], &[]),
        (&["verify", "STORE"], &[]),
        (&["verify", "NOTHING"], &[]),
        (&["replay", "SESSION", "--thorough"], &["slice 0"]),
        (&["export", "SESSION", "--format", "jsonl"], &["event", "event value", "reason", "snapshot"]),
        (
            &["export", "SESSION", "--at", "12", "--format", "snapshot-json"],
            &["slice 0", "item 1", "event key", "imported value", "tag key", "opened value"],
        ),
        (&["settle", "SESSION", "10", "failed", "--by", "me", "--reason", "HOSTILE"], &[]),
        (
            &["settle", "SESSION", "10", "committed", "--by", "me", "--reason", "x", "--result", "HOSTILE"],
            &[],
        ),
        (&["salvage", "SESSION", "--to", "SALVAGED"], &[]),
        (&["import", "sweagent", "HOSTILE"], &[]),
        (&["import", "swe-agent", "NOTHING", "--store", "SALVAGED"], &[]),
        (&["HOSTILE"], &[]),
        (&["completions", "HOSTILE"], &[]),
    ];
    let examples = reading_examples();
    let examples: Vec<Vec<&str>> = examples.iter().map(|line| line.split(' ').collect()).collect();
    let examples = examples.iter().map(|words| (&words[..], &[][..]));
    for (words, places) in verbs.iter().copied().chain(examples) {
        let ran = world.run(words);
        check(words, &ran);
        assert!(!ran.stdout.is_empty() || !ran.stderr.is_empty(), "{words:?}");
        let as_json: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let ran = world.run(&as_json);
        check(&as_json, &ran);
        let found = parsed(&ran.stdout);
        for place in places {
            assert!(found.contains(&hostile(place)), "{as_json:?} holds no {place}");
        }
    }
}

/// Like the test above, for reports of damage: files with such names, and records that contradict
/// the log in such slices.
#[test]
fn nor_by_what_is_said_of_damage() {
    let mut contradicting = records();
    contradicting.truncate(3);
    let removed = foldlog_codec::body::RemovedItems::Items(vec![foldlog_codec::body::ItemId {
        sequence: 77.into(),
        ordinal: 0,
    }]);
    let added = foldlog_codec::body::AddedItems::Items { items: Vec::new(), version: 1 };
    let effects = Some(vec![foldlog_codec::body::Effect { slice: 1, removed, added, before: None }]);
    contradicting.push((RecordKind::Dispatch, Dispatch { action: Action::Clear, effects }.encode()));
    let flipped = world(&records());
    let (offset, bytes) = place(&flipped.session, 3);
    flip(&segment(&flipped.session), offset + bytes - 1);
    let headless = world(&records());
    flip(&segment(&headless.session), 10);
    let missing = world(&records());
    fs::remove_file(segment(&missing.session)).unwrap();
    let dir = Path::new("SESSION");
    for world in [flipped, headless, missing, self::world(&contradicting)] {
        for verb in [
            "verify", "show", "state", "diff", "stats", "ledger", "replay", "tail", "salvage", "export",
            "sessions", "beyond",
        ] {
            let of = if verb == "sessions" { "STORE" } else { dir.to_str().unwrap() };
            let mut words = vec![if verb == "beyond" { "show" } else { verb }, of];
            words.extend_from_slice(match verb {
                "diff" => &["0", "1"],
                "salvage" => &["--to", "SALVAGED"],
                "export" => &["--format", "snapshot-json"],
                "beyond" => &["--beyond-damage", "--payload"],
                _ => &[],
            });
            check(&words, &world.run(&words));
            words.push("--json");
            let ran = world.run(&words);
            check(&words, &ran);
            parsed(&ran.stdout);
        }
    }
}
