//! Decoders survive hostile files: each returns, and takes a bounded amount of memory.
//!
//! The bound is 64 times the input and a mebibyte. The allocator of this binary counts for the
//! whole process, so each test holds the lock of [`alone`] while it runs.

// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod generated;
mod greedy;
mod measured;

use std::collections::BTreeMap;

use foldlog_codec::body::{
    Action, AdapterState, AnswerBody, Binding, BuiltIn, Declare, Dispatch, Effect, EventDeclaration, Import,
    Input, Lane, Observed, Payload, Policy, PromptAccepted, Replicated, Request, Resumed, Rollback,
    SLICES_MAX, Seal, SessionOpening, Settle, Shortened, SliceDeclaration, SnapshotBody, ToolBegin, ToolEnd,
    Turn,
};
use foldlog_codec::frame::{self, Context};
use foldlog_codec::msgpack::{self, MsgpackReader, Value, ValueLimits, scan};
use foldlog_codec::record::RecordNames;
use foldlog_codec::segment::SegmentHeader;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde::Deserialize;

use greedy::{field, greedy_bodies, greedy_values};
use measured::{alone, bound, excess, take};

/// A linked list, as a host may define one: the bytes decide its depth.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "read, never looked at")]
struct Link {
    next: Option<Box<Link>>,
}

/// A type that is an array of itself.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "read, never looked at")]
struct Nest(Vec<Nest>);

/// A tree with options and newtypes around each level, which the depth limit of rmp-serde does not
/// count.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "read, never looked at")]
enum Tree {
    Leaf,
    Node(Option<Box<Wrapped>>),
    Pair(Box<Tree>, Box<Tree>),
    Named { inner: Option<Box<Tree>> },
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "read, never looked at")]
struct Wrapped(Option<Tree>);

/// An untagged enum: serde buffers a copy of the content below each level of such a type, in any
/// format.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[allow(dead_code, reason = "read, never looked at")]
enum Untagged {
    Number(i64),
    Text(String),
    List(Vec<Untagged>),
    Map(BTreeMap<String, Untagged>),
}

type Decoder = (&'static str, fn(&[u8]));

fn context() -> Context {
    Context::new(7, 100.into())
}

const DECODERS: &[Decoder] = &[
    ("frame::peek", |bytes| take(frame::peek(context(), bytes))),
    ("frame::decode", |bytes| take(frame::decode(context(), bytes))),
    ("SegmentHeader::decode", |bytes| take(SegmentHeader::decode(bytes))),
    ("SegmentHeader::salvage_salts", |bytes| take(SegmentHeader::salvage_salts(bytes))),
    ("msgpack::scan", |bytes| take(scan(bytes, ValueLimits::default()))),
    ("msgpack::check", |bytes| take(msgpack::check(bytes))),
    ("Reader", |bytes| {
        let mut reader = MsgpackReader::new(bytes);
        while reader.token().is_ok() {}
        take(reader);
    }),
    ("Value::decode", |bytes| take(Value::decode(bytes))),
    ("Value::encode", |bytes| take(Value::decode(bytes).map(|value| value.encode()))),
    ("Payload::object", |bytes| take(Payload::new(bytes).object())),
    ("Opened::decode", |bytes| take(SessionOpening::decode(bytes))),
    ("Declare::decode", |bytes| take(Declare::decode(bytes))),
    ("Dispatch::decode", |bytes| take(Dispatch::decode(bytes))),
    ("Snapshot::decode", |bytes| take(SnapshotBody::decode(bytes))),
    ("Rollback::decode", |bytes| take(Rollback::decode(bytes))),
    ("Import::decode", |bytes| take(Import::decode(bytes))),
    ("Observed::decode", |bytes| take(Observed::decode(bytes))),
    ("ToolBegin::decode", |bytes| take(ToolBegin::decode(bytes))),
    ("ToolEnd::decode", |bytes| take(ToolEnd::decode(bytes))),
    ("Lane::of", |bytes| {
        kinds().for_each(|kind| take(Lane::decode(kind, bytes)));
        let mut body = bytes.to_vec();
        Lane { within: Some(7.into()), name: Some("helper".into()) }.add_to(&mut body, 0);
        take(body);
    }),
    ("Replicated::decode", |bytes| take(Replicated::decode(bytes))),
    ("Settle::decode", |bytes| take(Settle::decode(bytes))),
    ("Input::decode", |bytes| take(Input::decode(bytes))),
    ("Request::decode", |bytes| take(Request::decode(bytes))),
    ("Answer::decode", |bytes| take(AnswerBody::decode(bytes))),
    ("Turn::decode", |bytes| take(Turn::decode(bytes))),
    ("Shortened::decode", |bytes| take(Shortened::decode(bytes))),
    ("PromptAccepted::decode", |bytes| take(PromptAccepted::decode(bytes))),
    ("AdapterState::decode", |bytes| take(AdapterState::decode(bytes))),
    ("Resumed::decode", |bytes| take(Resumed::decode(bytes))),
    ("Seal::decode", |bytes| take(Seal::decode(bytes))),
    ("from_slice::<Value>", |bytes| take(msgpack::from_slice::<Value>(bytes))),
    ("from_slice::<Vec<u8>>", |bytes| take(msgpack::from_slice::<Vec<u8>>(bytes))),
    ("from_slice::<Vec<Option<u64>>>", |bytes| take(msgpack::from_slice::<Vec<Option<u64>>>(bytes))),
    ("from_slice::<Vec<String>>", |bytes| take(msgpack::from_slice::<Vec<String>>(bytes))),
    ("from_slice::<BTreeMap<..>>", |bytes| {
        take(msgpack::from_slice::<BTreeMap<String, Vec<i64>>>(bytes));
    }),
    ("from_slice::<Link>", |bytes| take(msgpack::from_slice::<Link>(bytes))),
    ("from_slice::<Nest>", |bytes| take(msgpack::from_slice::<Nest>(bytes))),
    ("from_slice::<Tree>", |bytes| take(msgpack::from_slice::<Tree>(bytes))),
    ("from_slice::<Vec<Tree>>", |bytes| take(msgpack::from_slice::<Vec<Tree>>(bytes))),
];

/// Bytes of two kinds of a later version: a content kind and an envelope kind.
const LATER: [u8; 2] = [77, 200];

/// Returns every kind, and kinds of a later version.
fn kinds() -> impl Iterator<Item = RecordKind> {
    RecordKind::ALL.iter().copied().chain(LATER.into_iter().filter_map(RecordKind::from_byte))
}

/// Returns names as a hostile declaration binds them: long and few, so that a small body can repeat
/// them often.
fn long_names() -> RecordNames {
    let mut names = RecordNames::default();
    for id in 0..4 {
        names.slices.insert(id, "s".repeat(1 << 16));
        names.events.insert(id, ("e".repeat(1 << 16), 1));
    }
    names
}

/// Passes the bytes to every decoder. The error names the one that took too much memory, and the
/// amount.
fn everyone_copes_with(bytes: &[u8], names: &[RecordNames]) -> Result<(), String> {
    let bound = bound(bytes.len());
    let judge = |who: &dyn std::fmt::Display, excess: usize| match excess {
        0 => Ok(()),
        _ => Err(format!("{who} took {} for {} bytes, {excess} over {bound}", bound + excess, bytes.len())),
    };
    for (name, decode) in DECODERS {
        judge(name, excess(bound, || decode(bytes)))?;
    }
    for kind in kinds() {
        for (which, names) in names.iter().enumerate() {
            // Tries the two extremes of the times that a caller can ask about.
            let time_us = if which == 0 { i64::MIN } else { i64::MAX };
            let record = Record { sequence: SequenceNumber::MAX, kind, time_us, body: bytes };
            let over = excess(bound, || take(record.to_value(names)));
            judge(&format_args!("Record::to_value of {kind} with names {which}"), over)?;
        }
    }
    Ok(())
}

/// Returns a configuration of more cases than usual, since a case takes less than a millisecond
/// here.
fn config() -> ProptestConfig {
    let config = generated::config();
    ProptestConfig { cases: config.cases.max(2_048), source_file: Some(file!()), ..config }
}

#[test]
fn any_bytes_are_answered_within_the_memory_that_they_are_worth() {
    let _alone = alone();
    let names = [RecordNames::default(), long_names()];
    let mut runner = TestRunner::new(config());
    let verdict = runner.run(&generated::hostile_bytes(), |bytes| {
        everyone_copes_with(&bytes, &names).map_err(TestCaseError::fail)
    });
    if let Err(error) = verdict {
        panic!("{error}");
    }
}

/// The input is a frame or segment header with arbitrary changes and a checksum that matches them.
#[test]
fn headers_that_lie_under_a_fitting_checksum_are_answered() {
    let _alone = alone();
    let strategy =
        (generated::segment_header(), generated::frame(), prop::collection::vec(any::<(u8, u8)>(), 1..6));
    let mut runner = TestRunner::new(config());
    let verdict = runner.run(&strategy, |(segment, (context, header), changes)| {
        let mut bytes = segment.encode();
        for (at, byte) in &changes {
            bytes[usize::from(*at) % 80] = *byte;
        }
        let crc = crc32fast::hash(&bytes[..80]);
        bytes[80..].copy_from_slice(&crc.to_le_bytes());
        prop_assert_eq!(excess(bound(bytes.len()), || take(SegmentHeader::decode(&bytes))), 0);

        let mut bytes = Vec::new();
        frame::encode(context, &header, b"a body", &mut bytes).unwrap();
        for (at, byte) in &changes {
            let at = 4 + usize::from(*at) % (bytes.len() - 4);
            bytes[at] = *byte;
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&context.salt().to_le_bytes());
        hasher.update(&bytes[4..]);
        let crc = hasher.finalize();
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        for context in [context, Context::new(context.salt(), SequenceNumber::MAX)] {
            prop_assert_eq!(excess(bound(bytes.len()), || take(frame::decode(context, &bytes))), 0);
        }
        Ok(())
    });
    if let Err(error) = verdict {
        panic!("{error}");
    }
}

/// Nearly every record is an event with its built-in effects, so decoding one must not allocate.
#[test]
fn an_event_as_declared_is_read_without_any_memory() {
    let _alone = alone();
    let data = msgpack::to_vec(&BTreeMap::from([("title", "a step"), ("state", "done")])).unwrap();
    let action = Action::Event { event: 7, data: Payload::new(&data) };
    let body = Dispatch { action, effects: None }.encode();
    // Allocations of the harness's own threads count too, so the test takes the least of several
    // measurements.
    let least = |read: &dyn Fn()| (0..8).map(|_| excess(0, read)).min();
    assert_eq!(least(&|| take(Dispatch::decode(&body))), Some(0));
    // Decoding by field names takes no more.
    let later = [b"\x83\xa1v\x01", &body[1..]].concat();
    let named = || take(Dispatch::decode(&later).map(|dispatch| dispatch.effects.is_some()));
    assert_eq!(least(&named), Some(0));
}

/// A vector that doubles has the most spare capacity just past a power of two, so the inputs have
/// such lengths.
#[test]
fn the_greediest_bytes_get_no_more_memory_than_any_others() {
    let _alone = alone();
    let names = [RecordNames::default(), long_names()];
    let mut verdicts = Vec::new();
    for count in [1, 100, (1 << 12) + 1, (1 << 15) + 1] {
        for (name, bytes) in greedy_values(count).into_iter().chain(greedy_bodies(count)) {
            if let Err(verdict) = everyone_copes_with(&bytes, &names) {
                verdicts.push(format!("{count} {name}: {verdict}"));
            }
        }
    }
    assert!(verdicts.is_empty(), "{}", verdicts.join("\n"));
}

/// The memory limit against hostile records must not refuse honest ones. Here an event edits as
/// many slices as a session may have, each with a name of realistic length.
#[test]
fn a_record_that_touches_every_slice_can_still_be_shown() {
    let _alone = alone();
    let slices = SLICES_MAX as u32;
    let effects =
        (0..slices).map(|slice| if slice % 2 == 0 { Effect::append(slice) } else { Effect::replace(slice) });
    let action = Action::Event { event: 0, data: Payload::new(&[0xc0]) };
    let dispatch = Dispatch { action, effects: Some(effects.collect()) }.encode();
    let declare = Declare {
        events: vec![EventDeclaration {
            id: 0,
            name: "everything.happened".to_owned(),
            version: 1,
            bindings: (0..slices).map(|slice| Binding { slice, built_in: BuiltIn::Explicit }).collect(),
            implicit: false,
        }],
        slices: (0..slices)
            .map(|id| SliceDeclaration {
                id,
                name: format!("workspace.slice.{id:04}"),
                policy: Policy::State,
                item: "item".to_owned(),
            })
            .collect(),
    };
    let mut names = RecordNames::default();
    names.learn(&declare);
    for (kind, body) in [(RecordKind::Dispatch, dispatch), (RecordKind::Declared, declare.encode())] {
        let record = Record { sequence: 0.into(), kind, time_us: 0, body: &body };
        assert!(record.to_value(&names).is_ok(), "{kind}");
        assert_eq!(excess(bound(body.len()), || take(record.to_value(&names))), 0, "{kind}");
    }
}

/// The input claims lengths of up to 4 GiB, before almost no bytes, at every place where a length
/// can be.
#[test]
fn a_claimed_length_is_never_allocated() {
    let _alone = alone();
    let names = [RecordNames::default()];
    let claims: [&[u8]; 5] = [
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
        &[0xdf, 0x7f, 0xff, 0xff, 0xff],
        &[0xdb, 0xff, 0xff, 0xff, 0xff],
        &[0xc6, 0xff, 0xff, 0xff, 0xf0],
        &[0xc9, 0xff, 0xff, 0xff, 0xf0, 1],
    ];
    for claim in claims {
        everyone_copes_with(claim, &names).unwrap();
        for name in
            ["v", "session", "tags", "events", "slices", "x", "d", "tag", "policies", "hash", "next", "inner"]
                .into_iter()
                .chain(["ev", "c", "calls", "blocks", "msgs", "rate", "use", "fail", "i", "was", "p", "sent"])
        {
            everyone_copes_with(&field(name, claim), &names).unwrap();
        }
    }
}

/// Recursive types are decoded from bytes as deep as the limit allows and far deeper. Decoding may
/// fail, but never overflows the stack. The thread of this test has a stack of 2 MiB, as the
/// threads of a host may have.
#[test]
fn no_nesting_overflows_the_stack() {
    let _alone = alone();
    let nested = |level: &[u8], levels: usize, end: &[u8]| [level.repeat(levels).as_slice(), end].concat();
    let levels: [(&str, &[u8], &[u8]); 8] = [
        ("arrays", b"\x91", b"\x90"),
        ("maps", b"\x81\xa1k", b"\xc0"),
        ("maps as keys", b"\x81", b"\xc0\xc0"),
        ("links", b"\x81\xa4next", b"\xc0"),
        ("nodes", b"\x81\xa4Node", b"\xa4Leaf"),
        ("nodes by number", b"\x81\x01", b"\xa4Leaf"),
        ("named nodes", b"\x81\xa5Named\x81\xa5inner", b"\xa4Leaf"),
        ("pairs", b"\x81\xa4Pair\x92\xa4Leaf", b"\xa4Leaf"),
    ];
    let names = [RecordNames::default()];
    for (name, level, end) in levels {
        for count in [1, 60, 64, 127, 128, 129, 1_000, 1 << 14] {
            let bytes = nested(level, count, end);
            everyone_copes_with(&bytes, &names).unwrap_or_else(|error| panic!("{count} {name}: {error}"));
            take(msgpack::from_slice::<Untagged>(&bytes));
            take(msgpack::from_slice::<Option<Option<Untagged>>>(&bytes));
            // JSON has a depth limit of its own.
            take(String::from_utf8(bytes).map(|text| msgpack::from_json(&text).is_ok()));
        }
    }
    assert!(msgpack::from_slice::<Nest>(&nested(b"\x91", 127, b"\x90")).is_ok());
    assert!(msgpack::from_slice::<Link>(&nested(b"\x81\xa4next", 128, b"\xc0")).is_ok());
    assert!(msgpack::from_slice::<Tree>(&nested(b"\x81\xa4Node", 128, b"\xa4Leaf")).is_ok());
    assert!(msgpack::from_slice::<Link>(&nested(b"\x81\xa4next", 129, b"\xc0")).is_err());
    assert!(msgpack::from_json(&("[".repeat(1 << 17) + &"]".repeat(1 << 17))).is_err());
}

/// The measurement itself reports a peak over the bound and none within it, however often it runs.
#[test]
fn the_measure_sees_a_peak_that_is_gone_again() {
    let _alone = alone();
    // The harness's own thread allocates and frees a little at any time.
    let about = |found: usize, wanted: usize| found.abs_diff(wanted) < 16 << 10;
    for _ in 0..3 {
        assert!(about(excess(1 << 20, || take(vec![0_u8; 1 << 20])), 0));
        assert!(about(excess(1 << 20, || take(vec![0_u8; (1 << 20) + (64 << 10)])), 64 << 10));
        let twice = || take((vec![0_u8; 1 << 20], Vec::<u8>::with_capacity(1 << 19)));
        assert!(about(excess(1 << 20, twice), 1 << 19));
    }
}
