//! The bytes of format version 1 never change.
//!
//! `golden/` contains two segment headers, one whole frame for each shape of each kind that version
//! 1 writes, the JSON form of each frame, and six images. Users' files look like these: changing
//! one of them changes the format, which must be deliberate.
//!
//! `version_1/` describes the contents of each. To add one, describe it there and run
//! `FOLDLOG_BLESS=1 cargo test -p foldlog-codec --test golden`, which writes the files whose bytes
//! differ. Then check the `git diff` of the existing files. `FOLDLOG_BLESS=1 cargo test -p
//! foldlog-tests --test suite -- fuzz::kept_inputs` makes the inputs of the fuzz targets from them.

// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod version_1;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use foldlog_codec::body::{CallOrigin, Cause, ExternalEffects, Lane, ObjectId, Outcome, ToolEnd};
use foldlog_codec::frame::{self, Header};
use foldlog_codec::image::Image;
use foldlog_codec::segment::SegmentHeader;
use foldlog_codec::{FORMAT_VERSION, RecordKind};
use version_1::{
    Body, Golden, context, end, frame_of, goldens, header, images, json_of, lane as in_a_lane, later,
    segment_headers,
};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn is_blessing() -> bool {
    std::env::var_os("FOLDLOG_BLESS").is_some_and(|value| value == "1")
}

/// Returns the committed bytes of a golden file. With `FOLDLOG_BLESS=1`, writes `present` to the
/// file first.
fn committed(file: &str, present: &[u8]) -> Vec<u8> {
    let path = directory().join(file);
    // Writes only changed files, since another test may be reading the others at this moment.
    if is_blessing() && std::fs::read(&path).ok().as_deref() != Some(present) {
        std::fs::write(&path, present).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}. FOLDLOG_BLESS=1 writes golden files that are new.", path.display())
    })
}

/// Shows two byte strings in rows of 16, and marks the rows that differ.
fn hex_diff(expected: &[u8], found: &[u8]) -> String {
    let row = |bytes: &[u8], at: usize| -> Option<String> {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let hex: Vec<String> = rest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Some(hex.join(" "))
    };
    let mut diff = String::new();
    for at in (0..expected.len().max(found.len())).step_by(16) {
        let (was, is) = (row(expected, at), row(found, at));
        if was == is {
            diff += &format!("  {at:04x}  {}\n", was.unwrap_or_default());
        } else {
            diff += &format!("- {at:04x}  {}\n", was.unwrap_or_default());
            diff += &format!("+ {at:04x}  {}\n", is.unwrap_or_default());
        }
    }
    diff
}

#[test]
fn the_bytes_written_are_those_of_version_1() {
    assert_eq!(FORMAT_VERSION, 1, "a new format version has golden files of its own; these stay readable");
    let mut written: Vec<(String, Vec<u8>)> = segment_headers()
        .iter()
        .map(|(name, header)| (format!("{name}.bin"), header.encode().to_vec()))
        .collect();
    written.extend(goldens().iter().map(|golden| (format!("{}.bin", golden.name), frame_of(golden))));
    written.extend(images().iter().map(|(name, image)| (format!("{name}.bin"), image.encode())));
    let changed: Vec<String> = written
        .iter()
        .filter_map(|(file, bytes)| {
            let expected = committed(file, bytes);
            (expected != *bytes).then(|| format!("{file}\n{}", hex_diff(&expected, bytes)))
        })
        .collect();
    assert!(
        changed.is_empty(),
        "the format has changed (- committed, + written now):\n\n{}",
        changed.join("\n")
    );
}

#[test]
fn what_version_1_wrote_is_read_as_it_was_meant() {
    for (name, expected) in segment_headers() {
        let bytes = committed(&format!("{name}.bin"), &expected.encode());
        assert_eq!(SegmentHeader::decode(&bytes).as_ref(), Ok(&expected), "{name}");
    }
    for golden in goldens() {
        let bytes = committed(&format!("{}.bin", golden.name), &frame_of(&golden));
        let found =
            frame::decode(context(), &bytes).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert_eq!(found.len(), bytes.len(), "{}", golden.name);
        let (crc, body_len) = (found.header.crc, found.body.len() as u32);
        assert_eq!(found.header, Header { crc, body_len, ..header(&golden) }, "{}", golden.name);
        golden.body.assert_says(golden.name, found.body);
        let lane = Lane::decode(golden.kind, found.body).unwrap();
        // Records of a conversation have their lane among their own fields.
        assert!(lane == golden.lane || lane == in_a_lane() && golden.lane.is_main(), "{}", golden.name);
    }
}

#[test]
fn images_are_read_as_they_were_meant() {
    for (name, image) in images() {
        let bytes = committed(&format!("{name}.bin"), &image.encode());
        assert_eq!(Image::decode(&bytes).unwrap(), image, "{name}");
    }
}

#[test]
fn records_keep_their_json_form() {
    for golden in goldens() {
        let bytes = committed(&format!("{}.bin", golden.name), &frame_of(&golden));
        let json = json_of(&golden, frame::decode(context(), &bytes).unwrap().body);
        let expected = committed(&format!("{}.json", golden.name), json.as_bytes());
        assert_eq!(json, String::from_utf8(expected).unwrap(), "{} is shown otherwise", golden.name);
    }
}

#[test]
fn every_golden_file_is_looked_at_and_every_built_kind_has_one() {
    let headers = segment_headers().map(|(name, _)| format!("{name}.bin"));
    let images = images().map(|(name, _)| format!("{name}.bin"));
    let mut expected: BTreeSet<String> = headers.into_iter().chain(images).collect();
    for golden in goldens() {
        for extension in ["bin", "json"] {
            assert!(
                expected.insert(format!("{}.{extension}", golden.name)),
                "{} is there twice",
                golden.name
            );
        }
    }
    // While the files are being written, some may still be missing.
    if !is_blessing() {
        let found: BTreeSet<String> = std::fs::read_dir(directory())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(found, expected);
    }
    let kinds: BTreeSet<RecordKind> = goldens().iter().map(|golden| golden.kind).collect();
    for kind in RecordKind::ALL {
        assert!(kinds.contains(kind), "{kind} has no golden file");
    }
}

/// No record contains the bytes of this item, but slices are compared and digested by them.
#[test]
fn what_a_log_keeps_of_a_call_never_changes() {
    let shown = |end: ToolEnd<'_>| {
        let value = foldlog_codec::msgpack::Value::decode(&end.encode_invocation()).unwrap();
        serde_json::to_string(&value).unwrap()
    };
    let least = r#"{"operation":1005,"begin":1005,"tool":"write_file","outcome":"committed","outside":"none","elapsed_us":1234}"#;
    assert_eq!(shown(end()), least);
    let digest = blake3_of(&end().encode_invocation());
    assert_eq!(digest, "d5795e397c524d0e70eaf296daa9dc6875601f9cb0db611e6b9488ffd570852d");
    let whole = ToolEnd {
        again: Some(1_001.into()),
        call_id: Some("call_7".into()),
        origin: Some(CallOrigin { answer: 1_001.into(), ordinal: 2 }),
        parent: Some(1_003.into()),
        undoes: Some(1_002.into()),
        outcome: Outcome::Failed,
        cause: Some(Cause::Deadline),
        outside: ExternalEffects::Unknown,
        ..end()
    };
    let expected = r#"{"operation":1001,"begin":1005,"parent":1003,"undoes":1002,"asked_by":[1001,2],"tool":"write_file","call_id":"call_7","outcome":"failed","cause":"deadline","outside":"unknown","elapsed_us":1234}"#;
    assert_eq!(shown(whole), expected);
}

fn blake3_of(bytes: &[u8]) -> String {
    ObjectId::from_content(bytes).file_name()
}

#[test]
fn the_numbers_of_the_kinds_never_change() {
    let table = [
        (1, "opened"),
        (2, "declare"),
        (3, "dispatch"),
        (4, "observed"),
        (5, "tool_begin"),
        (6, "tool_end"),
        (7, "settle"),
        (8, "input"),
        (9, "request"),
        (10, "answer"),
        (11, "turn"),
        (12, "shortened"),
        (13, "prompt_accepted"),
        (14, "adapter_state"),
        (15, "snapshot"),
        (16, "rollback"),
        (17, "import"),
        (18, "dropped"),
        (19, "replicated"),
        (128, "synced"),
        (129, "seal"),
        (130, "resumed"),
        (131, "declared"),
        (132, "closed"),
        (133, "compacted"),
        (134, "base"),
    ];
    let known: Vec<(u8, &str)> = RecordKind::ALL.iter().map(|kind| (kind.byte(), kind.name())).collect();
    assert_eq!(known, table);
    for (byte, name) in table {
        let kind = RecordKind::from_byte(byte).unwrap();
        assert_eq!(RecordKind::from_name(name), Some(kind));
        assert_eq!(kind.to_string(), name);
        assert_eq!(kind.is_envelope(), byte >= 128);
    }
    assert_eq!(RecordKind::from_byte(0), None);
}

/// A later version may end a call with an outcome that this one does not know. Its logs stay
/// readable, and show the name.
#[test]
fn a_call_of_a_later_version_keeps_the_names_of_what_became_of_it() {
    let later = ToolEnd {
        outcome: Outcome::from_recorded("handed_over").unwrap(),
        cause: Cause::from_recorded("verified\u{1b}"),
        rolls_back: true,
        ..end()
    };
    let body = later.encode();
    let found = ToolEnd::decode(&body).unwrap();
    assert_eq!((found.outcome.name(), found.cause.unwrap().name()), ("handed_over", "verified\u{1b}"));
    assert_eq!(found.encode(), body, "a reader that writes it again writes the same record");
    let golden = Golden {
        name: "later",
        kind: RecordKind::ToolEnd,
        body: Body::ToolEnd(later),
        lane: Lane::default(),
    };
    let json: serde_json::Value = serde_json::from_str(&json_of(&golden, &body)).unwrap();
    assert_eq!((&json["outcome"], &json["cause"]), (&"handed_over".into(), &"verified\u{1b}".into()));
    assert_eq!(serde_json::to_value(found.outcome).unwrap(), "handed_over");
    assert_eq!(serde_json::from_str::<Outcome>("\"handed_over\"").unwrap(), found.outcome);
    assert_eq!(Outcome::from_recorded("failed"), Some(Outcome::Failed));
    assert_eq!((Outcome::from_name("handed_over"), Outcome::from_recorded(&"x".repeat(31))), (None, None));
}

#[test]
fn a_kind_of_a_later_version_is_kept_byte_for_byte_and_says_so() {
    let body: &[u8] = b"\x81\xa1n\x2a";
    let bytes_of = |is_envelope| {
        let free = move |kind: &RecordKind| !kind.is_known() && kind.is_envelope() == is_envelope;
        (1..=255).map(later).filter(free).map(RecordKind::byte)
    };
    let next = [false, true].map(|is_envelope| bytes_of(is_envelope).next().unwrap());
    for byte in next.into_iter().chain([77, 127, 200, 255]) {
        let kind = later(byte);
        let golden = Golden { name: "later", kind, body: Body::Bytes(body), lane: Lane::default() };
        let bytes = frame_of(&golden);
        let found = frame::decode(context(), &bytes).unwrap();
        assert_eq!(found.body, body);
        assert_eq!(found.header.kind, kind);
        let mut again = Vec::new();
        frame::encode(context(), &found.header, found.body, &mut again).unwrap();
        assert_eq!(again, bytes, "a reader that writes it again writes the same frame");

        let json: serde_json::Value = serde_json::from_str(&json_of(&golden, found.body)).unwrap();
        assert_eq!(json["kind"], format!("unknown-{byte}"));
        assert_eq!(json["bytes"], body.len());
        assert_eq!(json["body"], serde_json::json!({ "n": 42 }));
        assert_eq!(json.get("sequence").is_some(), byte < 128, "only content has a sequence number");
    }
    // Bytes that are no value are shown as digits, so that nothing is lost.
    let golden =
        Golden { name: "later", kind: later(200), body: Body::Bytes(b"\xc1\x00\xff"), lane: Lane::default() };
    let json: serde_json::Value = serde_json::from_str(&json_of(&golden, b"\xc1\x00\xff")).unwrap();
    assert_eq!(json["body"], "c100ff");
}
