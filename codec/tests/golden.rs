//! The bytes of format version 1, pinned.
//!
//! `golden/` holds a segment header and one whole frame for each shape of each kind that is built, and beside
//! each frame its JSON form, and two images. They are what files in the world look like: a change to one of them is a change
//! of the format, and is made on purpose or not at all. `FOLDLOG_BLESS=1` writes them anew.

// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use foldlog_codec::body::{
    Action, Added, Binding, BuiltIn, CallOrigin, Cause, Decision, Declare, Dispatch, Effect,
    EventDeclaration, ExternalEffects, Idempotency, Import, ImportedSlice, ItemId, NotUndone, ObjectId,
    Observed, Opened, Outcome, Parent, Payload, Policy, Removed, ResourceSnapshot, Resumed, Rollback, Seal,
    Settle, SliceDeclaration, Snapshot, ToolBegin, ToolEnd,
};
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::image::{
    BegunImage, BegunSlice, Image, Indexed, ItemImage, LastFrame, OpenOperation, SliceImage,
    UnsettledOperation,
};
use foldlog_codec::record::Names;
use foldlog_codec::segment::{Previous, SegmentHeader};
use foldlog_codec::{FORMAT_VERSION, Kind, Record, SequenceNumber};
use uuid::Uuid;

fn context() -> Context {
    Context::new(0x0123_4567_89ab_cdef, 1_000.into())
}
const PREDECESSOR_CRC: u32 = 0xcafe_f00d;
const SEQUENCE: SequenceNumber = SequenceNumber::new(1_042);
const WATERMARK: SequenceNumber = SequenceNumber::new(1_040);
/// 2026-01-02T03:04:05.678901 UTC.
const TIME_US: i64 = 1_767_323_045_678_901;

const SESSION: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
const OTHER: Uuid = Uuid::from_u128(0xfedc_ba98_7654_3210_0f1e_2d3c_4b5a_6978);

/// `{"step": 3, "text": "ship it"}`, as a host's event is recorded.
const EVENT: &[u8] = b"\x82\xa4step\x03\xa4text\xa7ship it";
const ITEM: &[u8] = b"\x81\xa4step\x07";

/// One frame of the world: its name, its kind and what its body says.
struct Golden {
    name: &'static str,
    kind: Kind,
    body: Body,
}

/// What a body says, of whichever kind.
enum Body {
    Opened(Opened),
    Declare(Declare),
    Dispatch(Dispatch<'static>),
    Snapshot(Snapshot),
    Rollback(Rollback),
    Import(Import<'static>),
    ToolBegin(ToolBegin<'static>),
    ToolEnd(ToolEnd<'static>),
    Settle(Settle<'static>),
    Observed(Observed<'static>),
    Resumed(Resumed),
    Seal(Seal),
    /// No struct of this crate stands for it: the bytes are all there is.
    Bytes(&'static [u8]),
}

impl Body {
    fn encode(&self) -> Vec<u8> {
        match self {
            Body::Opened(body) => body.encode(),
            Body::Declare(body) => body.encode(),
            Body::Dispatch(body) => body.encode(),
            Body::Snapshot(body) => body.encode(),
            Body::Rollback(body) => body.encode(),
            Body::Import(body) => body.encode(),
            Body::ToolBegin(body) => body.encode(),
            Body::ToolEnd(body) => body.encode(),
            Body::Settle(body) => body.encode(),
            Body::Observed(body) => body.encode(),
            Body::Resumed(body) => body.encode(),
            Body::Seal(body) => body.encode(),
            Body::Bytes(bytes) => bytes.to_vec(),
        }
    }

    fn assert_says(&self, name: &str, bytes: &[u8]) {
        fn same<T: PartialEq + Debug>(name: &str, found: Result<T, foldlog_codec::Error>, expected: &T) {
            let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(&found, expected, "{name} decodes to something else");
        }
        match self {
            Body::Opened(body) => same(name, Opened::decode(bytes), body),
            Body::Declare(body) => same(name, Declare::decode(bytes), body),
            Body::Dispatch(body) => same(name, Dispatch::decode(bytes), body),
            Body::Snapshot(body) => same(name, Snapshot::decode(bytes), body),
            Body::Rollback(body) => same(name, Rollback::decode(bytes), body),
            Body::Import(body) => same(name, Import::decode(bytes), body),
            Body::ToolBegin(body) => same(name, ToolBegin::decode(bytes), body),
            Body::ToolEnd(body) => same(name, ToolEnd::decode(bytes), body),
            Body::Settle(body) => same(name, Settle::decode(bytes), body),
            Body::Observed(body) => same(name, Observed::decode(bytes), body),
            Body::Resumed(body) => same(name, Resumed::decode(bytes), body),
            Body::Seal(body) => same(name, Seal::decode(bytes), body),
            Body::Bytes(body) => assert_eq!(&bytes, body, "{name}"),
        }
    }
}

fn tags<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn resources() -> Vec<ResourceSnapshot<'static>> {
    vec![
        ResourceSnapshot { resource: "budget".into(), snapshot: Some(Payload::new(ITEM)) },
        ResourceSnapshot { resource: "memory".into(), snapshot: None },
    ]
}

fn begin() -> ToolBegin<'static> {
    ToolBegin {
        tool: "write_file".into(),
        call_id: None,
        arguments: Payload::new(b"\xaf{\"path\": \"a.b\"}"),
        origin: None,
        parent: None,
        idempotency: Idempotency::Manual,
        reads_only: false,
        again: None,
        undoes: None,
        resources: vec![],
    }
}

fn end() -> ToolEnd<'static> {
    ToolEnd {
        begin: 1_005.into(),
        again: None,
        tool: "write_file".into(),
        call_id: None,
        origin: None,
        parent: None,
        undoes: None,
        outcome: Outcome::Committed,
        cause: None,
        rolls_back: false,
        outside: ExternalEffects::None,
        elapsed_us: 1_234,
        result: Some(Payload::new(EVENT)),
        shown: Some(Payload::new(b"\xa4done")),
        overrides: None,
        resources: resources(),
        not_undone: vec![],
        slice: 2,
    }
}

fn declaration() -> Declare {
    let plain = |id, name: &str, bindings| EventDeclaration {
        id,
        name: name.to_owned(),
        version: 1,
        bindings,
        implicit: false,
    };
    let slice = |id, name: &str, policy, item: &str| SliceDeclaration {
        id,
        name: name.to_owned(),
        policy,
        item: item.to_owned(),
    };
    Declare {
        events: vec![
            plain(
                0,
                "plan.step_added",
                vec![
                    Binding { slice: 0, built_in: BuiltIn::Append },
                    Binding { slice: 1, built_in: BuiltIn::Replace },
                    Binding { slice: 300, built_in: BuiltIn::Explicit },
                ],
            ),
            EventDeclaration { version: 4, ..plain(1, "plan.renamed", vec![]) },
            EventDeclaration {
                implicit: true,
                ..plain(70_000, "note", vec![Binding { slice: 2, built_in: BuiltIn::Append }])
            },
        ],
        slices: vec![
            slice(0, "plan", Policy::State, "plan"),
            slice(1, "title", Policy::State, "plan.title"),
            slice(2, "note", Policy::Log, "note"),
            slice(300, "seen", Policy::Cache, "seen.item"),
        ],
    }
}

/// The names that the JSON forms are shown with: those of [`declaration`].
fn names() -> Names {
    let mut names = Names::default();
    names.learn(&declaration());
    names
}

fn object_reference() -> &'static [u8] {
    static REFERENCE: OnceLock<Vec<u8>> = OnceLock::new();
    REFERENCE.get_or_init(|| ObjectId::of(&[0x5a; 100_000]).reference())
}

fn goldens() -> Vec<Golden> {
    let golden = |name, kind, body| Golden { name, kind, body };
    let opened = |name, tags, parent| {
        golden(
            name,
            Kind::OPENED,
            Body::Opened(Opened { session: SESSION, seed: 0xfeed_f00d_dead_beef, tags, parent }),
        )
    };
    let dispatch =
        |name, action, effects| golden(name, Kind::DISPATCH, Body::Dispatch(Dispatch { action, effects }));
    let event = |data| Action::Event { event: 0, data: Payload::new(data) };
    let id = |sequence, ordinal| ItemId { sequence, ordinal };
    let items = |items: Vec<Payload<'static>>, version| Added::Items { items, version };
    vec![
        opened("opened-plain", tags([]), None),
        opened("opened-tagged", tags([("team", "blue"), ("owner", "Zoë")]), None),
        opened(
            "opened-fork",
            tags([]),
            Some(Parent::Fork { session: OTHER, position: 77_777.into(), chain: 0xdead_beef }),
        ),
        opened(
            "opened-child",
            tags([("role", "helper")]),
            Some(Parent::Child { session: OTHER, operation: None }),
        ),
        opened(
            "opened-child-of-a-call",
            tags([]),
            Some(Parent::Child { session: OTHER, operation: Some(88_888.into()) }),
        ),
        golden("declare", Kind::DECLARE, Body::Declare(declaration())),
        golden(
            "declare-one-slice",
            Kind::DECLARE,
            Body::Declare(Declare { events: vec![], slices: declaration().slices.split_off(3) }),
        ),
        dispatch("dispatch-as-declared", event(EVENT), None),
        dispatch(
            "dispatch-built-in-effects",
            event(EVENT),
            Some(vec![Effect::append(0), Effect::replace(1), Effect::append(300)]),
        ),
        dispatch("dispatch-no-effect", event(EVENT), Some(vec![])),
        dispatch(
            "dispatch-edit",
            event(EVENT),
            Some(vec![Effect {
                slice: 0,
                removed: Removed::Items(vec![id(12.into(), 0), id(900.into(), 65_536)]),
                added: items(vec![Payload::new(ITEM), Payload::new(EVENT)], 3),
                before: Some(id(901.into(), 1)),
            }]),
        ),
        dispatch(
            "dispatch-event-inserted",
            event(EVENT),
            Some(vec![Effect { before: Some(id(3.into(), 0)), ..Effect::append(0) }]),
        ),
        dispatch(
            "dispatch-replaced-by-items",
            event(EVENT),
            Some(vec![Effect {
                slice: 1,
                removed: Removed::All,
                added: items(vec![Payload::new(ITEM)], 1),
                before: None,
            }]),
        ),
        dispatch("dispatch-object", event(object_reference()), None),
        dispatch(
            "dispatch-seed",
            Action::Seed,
            Some(vec![Effect {
                slice: 2,
                removed: Removed::None,
                added: items(vec![Payload::new(ITEM), Payload::new(b"\xa5hello")], 1),
                before: None,
            }]),
        ),
        dispatch(
            "dispatch-clear",
            Action::Clear,
            Some(vec![Effect {
                slice: 0,
                removed: Removed::Items(vec![id(0.into(), 0), id(1.into(), 2)]),
                added: items(vec![], 1),
                before: None,
            }]),
        ),
        dispatch(
            "dispatch-reset",
            Action::Reset,
            Some(
                [0, 300]
                    .into_iter()
                    .map(|slice| Effect { added: items(vec![], 1), ..Effect::replace(slice) })
                    .collect(),
            ),
        ),
        dispatch(
            "dispatch-tag-set",
            Action::Tag { key: "team".to_owned(), value: Some("red".to_owned()) },
            None,
        ),
        dispatch("dispatch-tag-removed", Action::Tag { key: "team".to_owned(), value: None }, None),
        golden(
            "snapshot-plain",
            Kind::SNAPSHOT,
            Body::Snapshot(Snapshot { tag: None, policies: vec![Policy::State] }),
        ),
        golden(
            "snapshot-tagged",
            Kind::SNAPSHOT,
            Body::Snapshot(Snapshot {
                tag: Some("before the refactoring".to_owned()),
                policies: vec![Policy::State, Policy::Log],
            }),
        ),
        golden(
            "rollback-keeping-logs",
            Kind::ROLLBACK,
            Body::Rollback(Rollback { to: 1_001.into(), preserve_logs: true }),
        ),
        golden(
            "rollback-of-everything",
            Kind::ROLLBACK,
            Body::Rollback(Rollback { to: 0.into(), preserve_logs: false }),
        ),
        golden("tool-begin", Kind::TOOL_BEGIN, Body::ToolBegin(begin())),
        golden(
            "tool-begin-nested-and-again",
            Kind::TOOL_BEGIN,
            Body::ToolBegin(ToolBegin {
                call_id: Some("call_7".into()),
                origin: Some(CallOrigin { answer: 1_001.into(), ordinal: 2 }),
                parent: Some(1_010.into()),
                idempotency: Idempotency::Keyed,
                reads_only: true,
                again: Some(1_005.into()),
                undoes: Some(1_004.into()),
                resources: resources(),
                ..begin()
            }),
        ),
        golden("tool-end-committed", Kind::TOOL_END, Body::ToolEnd(end())),
        golden(
            "tool-end-failed",
            Kind::TOOL_END,
            Body::ToolEnd(ToolEnd {
                outcome: Outcome::Failed,
                cause: Some(Cause::Expansion),
                rolls_back: true,
                outside: ExternalEffects::Unknown,
                result: None,
                overrides: Some(Payload::new(ITEM)),
                resources: vec![],
                ..end()
            }),
        ),
        golden(
            "tool-end-not-undone",
            Kind::TOOL_END,
            Body::ToolEnd(ToolEnd {
                outcome: Outcome::Failed,
                cause: Some(Cause::Error),
                rolls_back: true,
                result: None,
                resources: vec![],
                not_undone: vec![NotUndone {
                    resource: "workspace".into(),
                    path: ".git/hooks/pre-commit".into(),
                    reason: "it was made, and nothing named .git is restored".into(),
                }],
                ..end()
            }),
        ),
        golden(
            "tool-end-interrupted",
            Kind::TOOL_END,
            Body::ToolEnd(ToolEnd {
                again: Some(1_001.into()),
                call_id: Some("call_7".into()),
                origin: Some(CallOrigin { answer: 1_001.into(), ordinal: 2 }),
                parent: Some(1_003.into()),
                undoes: Some(1_002.into()),
                outcome: Outcome::Interrupted,
                rolls_back: true,
                elapsed_us: 0,
                result: None,
                shown: None,
                ..end()
            }),
        ),
        golden(
            "settle-committed",
            Kind::SETTLE,
            Body::Settle(Settle {
                operation: 1_005.into(),
                decision: Decision::Committed,
                result: Some(Payload::new(EVENT)),
                by: "a person".to_owned(),
                reason: "the mail was sent".to_owned(),
            }),
        ),
        golden(
            "settle-run-again",
            Kind::SETTLE,
            Body::Settle(Settle {
                operation: 1_005.into(),
                decision: Decision::RunAgain,
                result: None,
                by: "the host".to_owned(),
                reason: String::new(),
            }),
        ),
        golden(
            "observed",
            Kind::OBSERVED,
            Body::Observed(Observed { name: "host.mail".to_owned(), data: Payload::new(EVENT) }),
        ),
        golden(
            "import",
            Kind::IMPORT,
            Body::Import(Import {
                from: Some(OTHER),
                exported_at_us: Some(-1_234_567),
                tags: tags([("team", "blue")]),
                slices: vec![
                    ImportedSlice {
                        slice: 0,
                        items: vec![(Payload::new(ITEM), 1), (Payload::new(EVENT), 2)],
                    },
                    ImportedSlice { slice: 2, items: vec![(Payload::new(object_reference()), 1)] },
                    ImportedSlice { slice: 300, items: vec![] },
                ],
            }),
        ),
        golden(
            "import-bare",
            Kind::IMPORT,
            Body::Import(Import { from: None, exported_at_us: None, tags: tags([]), slices: vec![] }),
        ),
        golden("synced", Kind::SYNCED, Body::Bytes(b"")),
        golden(
            "seal",
            Kind::SEAL,
            Body::Seal(Seal { next: 8, records: 4_321, hash: ObjectId::of(b"records").hash }),
        ),
        golden(
            "resumed",
            Kind::RESUMED,
            Body::Resumed(Resumed { epoch: 5, boot_id: Some(OTHER), clock_us: TIME_US, recovered: None }),
        ),
        golden(
            "resumed-by-a-recovery",
            Kind::RESUMED,
            Body::Resumed(Resumed {
                epoch: 6,
                boot_id: Some(OTHER),
                clock_us: TIME_US,
                recovered: Some(4_321.into()),
            }),
        ),
        golden(
            "resumed-on-an-unknown-machine",
            Kind::RESUMED,
            Body::Resumed(Resumed { epoch: 0, boot_id: None, clock_us: -1, recovered: None }),
        ),
        golden("declared", Kind::DECLARED, Body::Declare(declaration())),
        // Kinds of a later version: a value, and bytes that are none.
        golden("unknown-content", later(77), Body::Bytes(b"\x82\xa1n\x2a\xa4list\x92\xc0\xc4\x02\x00\xff")),
        golden("unknown-envelope", later(200), Body::Bytes(b"\xc1 no MessagePack")),
    ]
}

fn later(byte: u8) -> Kind {
    Kind::from_byte(byte).expect("only 0 is no kind")
}

fn header(golden: &Golden) -> Header {
    Header {
        crc: 0,
        predecessor_crc: PREDECESSOR_CRC,
        body_len: 0,
        sequence: SEQUENCE,
        watermark: if golden.kind == Kind::OPENED { 0.into() } else { WATERMARK },
        kind: golden.kind,
        time_us: TIME_US,
    }
}

fn frame_of(golden: &Golden) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(context(), &header(golden), &golden.body.encode(), &mut bytes).unwrap();
    bytes
}

fn json_of(golden: &Golden, body: &[u8]) -> String {
    let record = Record { sequence: SEQUENCE, kind: golden.kind, time_us: TIME_US, body };
    let value = record.to_value(&names()).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
    serde_json::to_string_pretty(&value).unwrap() + "\n"
}

fn segment_headers() -> [(&'static str, SegmentHeader); 2] {
    let later = SegmentHeader {
        ordinal: 7,
        session: SESSION,
        first_sequence: 1_000.into(),
        watermark: 998.into(),
        salt: context().salt(),
        previous: Some(Previous { ordinal: 5, end: 8_388_608, crc: PREDECESSOR_CRC }),
    };
    let first =
        SegmentHeader { ordinal: 0, first_sequence: 0.into(), watermark: 0.into(), previous: None, ..later };
    [("segment-first", first), ("segment-later", later)]
}

/// Images: one of a session at rest, and one within a call, behind another that waits to be settled.
fn images() -> [(&'static str, Image<'static>); 2] {
    let item = |sequence, ordinal, bytes| ItemImage { id: ItemId { sequence, ordinal }, version: 2, bytes };
    let opened = Opened { session: SESSION, seed: 3, tags: BTreeMap::new(), parent: None };
    let slice = |id, name: &str, policy| SliceDeclaration {
        id,
        name: name.to_owned(),
        policy,
        item: format!("{name}.item"),
    };
    let at_rest = Image {
        next_sequence: 40.into(),
        last: LastFrame { ordinal: 2, salt: context().salt(), offset: 300, end: 340, crc: PREDECESSOR_CRC },
        time_us: 1_767_322_800_000_000,
        epoch: 1,
        boot_id: Some(Uuid::from_u128(9)),
        watermark: 40.into(),
        openings: vec![(0.into(), opened)],
        rollbacks: vec![(9.into(), Rollback { to: 3.into(), preserve_logs: true })],
        index: vec![Indexed { sequence: 0.into(), ordinal: 0, offset: 84 }],
        declared: Declare {
            events: Vec::new(),
            slices: vec![slice(0, "plan", Policy::State), slice(1, "notes", Policy::Log)],
        },
        tags: tags([("user", "ada")]),
        unsupported: None,
        open: Vec::new(),
        unsettled: Vec::new(),
        begun: Vec::new(),
        slices: vec![
            SliceImage::Held {
                len: 2,
                items: vec![item(5.into(), 0, b"\xa4done"), item(4.into(), 1, b"\xc0")],
            },
            SliceImage::InLog { len: 3, marks: vec![(0, 8.into())], undone: Vec::new() },
        ],
    };
    let open = OpenOperation {
        operation: 20.into(),
        begin: 33.into(),
        parent: Some(18.into()),
        tool: "write",
        call_id: Some("call_7"),
        idempotency: Idempotency::Keyed,
        reads_only: false,
        undoes: None,
        origin: Some(CallOrigin { answer: 17.into(), ordinal: 1 }),
        had_effects_within: true,
    };
    let unsettled = UnsettledOperation {
        operation: 11.into(),
        begin: 12.into(),
        tool: "send",
        call_id: None,
        idempotency: Idempotency::Manual,
        undone: false,
        run_again: true,
    };
    let begun = BegunSlice { slice: 0, kept: 1, len: 1, items: vec![item(2.into(), 0, b"\xa4todo")] };
    let within_a_call = Image {
        open: vec![open],
        unsettled: vec![unsettled],
        begun: vec![BegunImage { begin: 33.into(), slices: vec![begun] }],
        ..at_rest.clone()
    };
    [("image-at-rest", at_rest), ("image-within-a-call", within_a_call)]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn is_blessing() -> bool {
    std::env::var_os("FOLDLOG_BLESS").is_some_and(|value| value == "1")
}

/// The committed bytes of that name; where the files are to be written anew, `present` is written first.
fn committed(file: &str, present: &[u8]) -> Vec<u8> {
    let path = folder().join(file);
    // Only what is new, since another test may be reading the others at this moment.
    if is_blessing() && std::fs::read(&path).ok().as_deref() != Some(present) {
        std::fs::write(&path, present).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}. FOLDLOG_BLESS=1 writes golden files that are new.", path.display())
    })
}

/// Both byte strings in rows of 16, the rows that differ marked.
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
    // While the files are written anew, not all of them need be there yet.
    if !is_blessing() {
        let found: BTreeSet<String> = std::fs::read_dir(folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(found, expected);
    }
    let kinds: BTreeSet<Kind> = goldens().iter().map(|golden| golden.kind).collect();
    for kind in [
        Kind::OPENED,
        Kind::DECLARE,
        Kind::DISPATCH,
        Kind::SNAPSHOT,
        Kind::ROLLBACK,
        Kind::IMPORT,
        Kind::TOOL_BEGIN,
        Kind::TOOL_END,
        Kind::SETTLE,
        Kind::OBSERVED,
        Kind::SYNCED,
        Kind::SEAL,
        Kind::RESUMED,
        Kind::DECLARED,
    ] {
        assert!(kinds.contains(&kind), "{kind} has no golden file");
    }
}

/// Slices are compared and digested by these bytes, which no record holds.
#[test]
fn what_a_log_keeps_of_a_call_never_changes() {
    let shown = |end: ToolEnd<'_>| {
        let value = foldlog_codec::msgpack::Value::decode(&end.invoked()).unwrap();
        serde_json::to_string(&value).unwrap()
    };
    let least = r#"{"operation":1005,"begin":1005,"tool":"write_file","outcome":"committed","outside":"none","elapsed_us":1234}"#;
    assert_eq!(shown(end()), least);
    let digest = blake3_of(&end().invoked());
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

/// The digest under which an object of these bytes would be kept.
fn blake3_of(bytes: &[u8]) -> String {
    ObjectId::of(bytes).file_name()
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
        (18, "base"),
        (128, "synced"),
        (129, "seal"),
        (130, "resumed"),
        (131, "declared"),
    ];
    let known: Vec<(u8, &str)> = Kind::ALL.iter().map(|kind| (kind.byte(), kind.name())).collect();
    assert_eq!(known, table);
    for (byte, name) in table {
        let kind = Kind::from_byte(byte).unwrap();
        assert_eq!(Kind::from_name(name), Some(kind));
        assert_eq!(kind.to_string(), name);
        assert_eq!(kind.is_envelope(), byte >= 128);
    }
    assert_eq!(Kind::from_byte(0), None);
}

#[test]
fn a_kind_of_a_later_version_is_kept_byte_for_byte_and_says_so() {
    let body: &[u8] = b"\x81\xa1n\x2a";
    for byte in [19, 77, 127, 132, 200, 255] {
        let kind = later(byte);
        let golden = Golden { name: "later", kind, body: Body::Bytes(body) };
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
    // Bytes that hold no value are shown as digits, so that nothing of them is lost.
    let golden = Golden { name: "later", kind: later(200), body: Body::Bytes(b"\xc1\x00\xff") };
    let json: serde_json::Value = serde_json::from_str(&json_of(&golden, b"\xc1\x00\xff")).unwrap();
    assert_eq!(json["body"], "c100ff");
}
