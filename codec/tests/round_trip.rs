//! Every value decodes to the encoded one, and encodes to the same bytes again.

// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod generated;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use foldlog_codec::body::{
    Action, AdapterState, AnswerBody, Declare, Dispatch, Import, Input, Lane, ObjectId, Observed, Payload,
    PromptAccepted, Replicated, Request, Resumed, Rollback, Seal, SessionOpening, Settle, Shortened,
    SnapshotBody, ToolBegin, ToolEnd, Turn,
};
use foldlog_codec::frame::{self, Header};
use foldlog_codec::msgpack::{self, MsgpackReader, MsgpackToken, MsgpackWriter, Value, ValueLimits, scan};
use foldlog_codec::record::RecordNames;
use foldlog_codec::segment::SegmentHeader;
use foldlog_codec::{Error, Record, RecordKind};
use proptest::prelude::*;
use serde::ser::SerializeSeq;

/// Checks that a body decodes to the encoded one, and has exactly one encoding.
macro_rules! body_laws {
    ($($(#[$doc:meta])* $test:ident: $strategy:expr, $body:ident;)*) => {
        proptest! {
            #![proptest_config(generated::config())]
            $(
                $(#[$doc])*
                #[test]
                fn $test(body in $strategy) {
                    let bytes = body.encode();
                    prop_assert_eq!(msgpack::check(&bytes), Ok(()));
                    let found = $body::decode(&bytes).unwrap();
                    prop_assert_eq!(&found, &body);
                    prop_assert_eq!(found.encode(), bytes);
                }
            )*
        }
    };
}

body_laws! {
    an_opened_body_comes_back: generated::opened(), SessionOpening;
    a_declaration_comes_back: generated::declare(), Declare;
    a_dispatch_comes_back: generated::dispatch(), Dispatch;
    a_snapshot_comes_back: generated::snapshot(), SnapshotBody;
    a_rollback_comes_back: generated::rollback(), Rollback;
    an_import_comes_back: generated::import(), Import;
    a_begin_of_a_tool_comes_back: generated::tool_begin(), ToolBegin;
    an_end_of_a_tool_comes_back: generated::tool_end(), ToolEnd;
    an_observation_comes_back: generated::observed(), Observed;
    a_note_of_a_replica_comes_back: generated::replicated(), Replicated;
    a_settlement_comes_back: generated::settle(), Settle;
    an_input_comes_back: generated::conversation::input(), Input;
    a_request_comes_back: generated::conversation::request(), Request;
    an_answer_comes_back: generated::conversation::answer(), AnswerBody;
    a_turn_comes_back: generated::conversation::turn(), Turn;
    a_shortening_comes_back: generated::conversation::shortened(), Shortened;
    an_accepted_prompt_comes_back: generated::conversation::prompt_accepted(), PromptAccepted;
    a_state_of_an_adapter_comes_back: generated::conversation::adapter_state(), AdapterState;
    a_resumption_comes_back: generated::resumed(), Resumed;
    a_seal_comes_back: generated::seal(), Seal;
}

/// Does the same as [`scan`] in the simplest way: by recursion, token by token.
struct Walk<'a> {
    reader: MsgpackReader<'a>,
    limits: ValueLimits,
    items: u64,
}

impl Walk<'_> {
    fn value(&mut self, depth: usize) -> Result<(), Error> {
        self.items += 1;
        if self.items > self.limits.items_max {
            return Err(self.over("number of values", self.limits.items_max));
        }
        let inner = match self.reader.token()? {
            MsgpackToken::Array(len) => u64::from(len),
            MsgpackToken::Map(len) => 2 * u64::from(len),
            _ => return Ok(()),
        };
        if depth >= self.limits.depth_max {
            return Err(self.over("depth", self.limits.depth_max as u64));
        }
        (0..inner).try_for_each(|_| self.value(depth + 1))
    }

    fn over(&self, limit: &'static str, max: u64) -> Error {
        Error::Limit { offset: self.reader.offset(), limit, max }
    }
}

proptest! {
    #![proptest_config(generated::config())]

    /// The values are compared as bytes, since a NaN is not equal to itself and must keep all its
    /// bits.
    #[test]
    fn a_value_comes_back(value in generated::value()) {
        let bytes = value.encode();
        let found = Value::decode(&bytes).unwrap();
        prop_assert_eq!(found.encode(), bytes);
        if !generated::holds_nan(&value) {
            prop_assert_eq!(found, value);
        }
    }

    /// `scan` finds the end of a value whatever bytes follow it, and accepts no prefix of the
    /// value.
    #[test]
    fn scan_and_decode_agree_about_where_a_value_ends(
        value in generated::value(),
        behind in prop::collection::vec(any::<u8>(), 1..9),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = value.encode();
        prop_assert_eq!(scan(&whole, ValueLimits::default()), Ok(whole.len()));

        let longer = [whole.as_slice(), &behind].concat();
        prop_assert_eq!(scan(&longer, ValueLimits::default()), Ok(whole.len()));
        let follows = matches!(Value::decode(&longer), Err(Error::Malformed { offset, .. }) if offset == whole.len());
        prop_assert!(follows);

        let shorter = &whole[..cut.index(whole.len())];
        let truncated = matches!(scan(shorter, ValueLimits::default()), Err(Error::Truncated { .. }));
        prop_assert!(truncated);
        prop_assert!(Value::decode(shorter).is_err());
    }

    /// The pre-scan accepts exactly the bytes that a walk of every token accepts.
    #[test]
    fn scan_says_what_a_walk_of_every_token_says(
        bytes in generated::hostile_bytes(),
        depth_max in prop_oneof![0..6_usize, Just(ValueLimits::of_payload().depth_max), Just(128)],
        items_max in prop_oneof![0..40_u64, Just(ValueLimits::default().items_max)],
    ) {
        let limits = ValueLimits { depth_max, items_max };
        let mut walk = Walk { reader: MsgpackReader::new(&bytes), limits, items: 0 };
        let walked = walk.value(0).map(|()| walk.reader.offset());
        prop_assert_eq!(scan(&bytes, limits), walked);
    }

    /// On hostile bytes, the pre-scan and the decoder end a value at the same offset, except if
    /// text is not UTF-8.
    #[test]
    fn scan_and_decode_agree_on_any_bytes(bytes in generated::hostile_bytes()) {
        match scan(&bytes, ValueLimits::default()) {
            Ok(end) => {
                let is_text_the_reason =
                    |error: &Error| matches!(error, Error::Malformed { reason: "text is not UTF-8", .. });
                match Value::decode(&bytes[..end]) {
                    Ok(value) => {
                        let shortest = value.encode();
                        prop_assert!(shortest.len() <= end, "the shortest form is longer");
                        prop_assert_eq!(Value::decode(&shortest).unwrap().encode(), shortest);
                    }
                    Err(error) => prop_assert!(is_text_the_reason(&error), "{}", error),
                }
                prop_assert_eq!(Value::decode(&bytes).is_ok(), end == bytes.len() && Value::decode(&bytes[..end]).is_ok());
            }
            Err(error) => prop_assert_eq!(Value::decode(&bytes).unwrap_err(), error),
        }
    }

    /// A lane can be read from any body to which it was added, at any place in a buffer, and the
    /// body's other fields are unchanged.
    #[test]
    fn a_lane_comes_back_and_leaves_the_body_as_it_is(
        (kind, body, lane) in generated::body_and_lane(),
        before in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        prop_assert_eq!(Lane::decode(kind, &body), Ok(Lane::default()));
        let mut bytes = [before.as_slice(), &body].concat();
        lane.add_to(&mut bytes, before.len());
        let laned = &bytes[before.len()..];
        prop_assert_eq!(&bytes[..before.len()], &before);
        prop_assert_eq!(msgpack::check(laned), Ok(()));
        prop_assert_eq!(Lane::decode(kind, laned), Ok(lane.clone()));
        prop_assert_eq!(lane.is_main(), laned == body);
        match kind {
            RecordKind::Dispatch => {
                prop_assert_eq!(Dispatch::decode(laned), Dispatch::decode(&body));
                let plain = Dispatch::plain_event(&body);
                prop_assert_eq!(Dispatch::plain_event(laned), plain);
            }
            RecordKind::Snapshot => prop_assert_eq!(SnapshotBody::decode(laned), SnapshotBody::decode(&body)),
            RecordKind::Rollback => prop_assert_eq!(Rollback::decode(laned), Rollback::decode(&body)),
            RecordKind::Observed => prop_assert_eq!(Observed::decode(laned), Observed::decode(&body)),
            RecordKind::Settle => prop_assert_eq!(Settle::decode(laned), Settle::decode(&body)),
            _ => prop_assert_eq!(ToolBegin::decode(laned), ToolBegin::decode(&body)),
        }
    }

    #[test]
    fn a_frame_comes_back(
        (context, header) in generated::frame(),
        body in prop::collection::vec(any::<u8>(), 0..300),
        before in prop::collection::vec(any::<u8>(), 0..9),
        behind in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        // A frame is appended to existing bytes, and read before later ones.
        let mut bytes = before.clone();
        let crc = frame::encode(context, &header, &body, &mut bytes).unwrap();
        prop_assert_eq!(&bytes[..before.len()], &before);
        let whole = bytes.split_off(before.len());
        let followed = [whole.as_slice(), &behind].concat();

        let expected = Header { crc, body_len: body.len() as u32, ..header };
        prop_assert_eq!(frame::peek(context, &followed), Ok(expected));
        let found = frame::decode(context, &followed).unwrap();
        prop_assert_eq!(found.header, expected);
        prop_assert_eq!(found.body, &body);
        prop_assert_eq!(found.len(), whole.len());

        let mut again = Vec::new();
        prop_assert_eq!(frame::encode(context, &found.header, found.body, &mut again), Ok(crc));
        prop_assert_eq!(again, whole);
    }

    #[test]
    fn no_cut_of_a_frame_passes(
        (context, header) in generated::frame(),
        body in prop::collection::vec(any::<u8>(), 0..100),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        frame::encode(context, &header, &body, &mut bytes).unwrap();
        let cut = cut.index(bytes.len());
        let truncated = matches!(frame::decode(context, &bytes[..cut]), Err(Error::Truncated { .. }));
        prop_assert!(truncated);
    }

    #[test]
    fn a_segment_header_comes_back(header in generated::segment_header()) {
        let bytes = header.encode();
        let found = SegmentHeader::decode(&bytes).unwrap();
        prop_assert_eq!(found, header);
        prop_assert_eq!(found.encode(), bytes);
    }

    #[test]
    fn a_reference_names_its_object(hash in any::<[u8; 32]>(), len in any::<u64>()) {
        let object = ObjectId { hash, len };
        let reference = object.reference();
        prop_assert_eq!(msgpack::check(&reference), Ok(()));
        prop_assert_eq!(Payload::new(&reference).object(), Some(object));
        prop_assert_eq!(ObjectId::from_file_name(&object.file_name(), len), Some(object));
    }

    /// Every record that the engine can write has a JSON form that parses.
    #[test]
    fn a_body_that_was_written_can_be_shown((kind, body) in generated::body()) {
        let record = Record { sequence: 9.into(), kind, time_us: 0, body: &body };
        let value = record.to_value(&Default::default()).unwrap();
        let text = serde_json::to_string(&record.to_json(&Default::default()).unwrap()).unwrap();
        let read = msgpack::from_json(&text).unwrap();
        prop_assert_eq!(value.get("bytes"), Some(&Value::from(body.len() as u64)));
        prop_assert_eq!(read.get("bytes"), value.get("bytes"));
    }
}

/// A header without a value must not be dropped, since the provider's answer would be lost
/// silently.
#[test]
fn headers_in_which_a_name_lacks_its_value_are_refused() {
    let mut writer = MsgpackWriter::new();
    writer.map(2).str("ev").str("e").str("rate").array(3).str("retry-after").str("2").str("x");
    let refused = AnswerBody::decode(&writer.finish()).map(drop).unwrap_err();
    assert_eq!(refused.to_string(), "answer body: `rate` contains a name without a value");
    let mut writer = MsgpackWriter::new();
    writer.map(2).str("ev").str("e").str("fail").map(2).str("of").unsigned(1).str("rate").array(1).str("x");
    let refused = Request::decode(&writer.finish()).map(drop).unwrap_err();
    assert_eq!(refused.to_string(), "request body: `rate` contains a name without a value");
}

/// The fast path for events and the decoder by field names return the same dispatch.
#[test]
fn an_event_is_the_same_event_in_whatever_order_its_fields_stand() {
    let body = |fields: &[&str], behind: &[u8]| {
        let mut writer = MsgpackWriter::new();
        writer.map(fields.len());
        for field in fields {
            match *field {
                "e" => writer.str("e").unsigned(300),
                "d" => writer.str("d").array(1).str("data"),
                other => writer.str(other).unsigned(1),
            };
        }
        [writer.finish().as_slice(), behind].concat()
    };
    let plain = body(&["e", "d"], b"");
    let event = Dispatch::decode(&plain).unwrap();
    assert_eq!(event.encode(), plain);
    for fields in [&["d", "e"][..], &["v", "e", "d"], &["e", "d", "later"], &["later", "d", "e"]] {
        assert_eq!(Dispatch::decode(&body(fields, b"")), Ok(event.clone()), "{fields:?}");
    }
    for fields in [&["e", "d"][..], &["d", "e"]] {
        let followed = Dispatch::decode(&body(fields, b"\xc0")).unwrap_err();
        assert_eq!(followed.to_string(), "dispatch body: extra bytes after the value", "{fields:?}");
    }
    let cut = Dispatch::decode(&plain[..plain.len() - 1]).unwrap_err();
    assert!(matches!(cut, Error::Body { .. }), "{cut}");
}

/// A body that exceeds the count of a map's short head gets a longer one.
#[test]
fn a_lane_is_added_to_a_map_of_any_size() {
    for others in [0_usize, 13, 14, 15, 16, 65_534, 65_535] {
        let mut writer = MsgpackWriter::new();
        writer.map(others);
        for field in 0..others {
            writer.unsigned(field as u64).nil();
        }
        let mut body = writer.finish();
        let lane = Lane { within: Some(7.into()), name: Some("helper".into()) };
        lane.add_to(&mut body, 0);
        let Value::Map(fields) = Value::decode(&body).unwrap() else { panic!("a map stays one") };
        let last = [("in", Value::from(7_u64)), ("lane", Value::from("helper"))];
        assert_eq!(fields.len(), others + 2);
        assert_eq!(fields[others..], last.map(|(name, value)| (Value::from(name), value)));
    }
    let mut none = b"\x91\x07".to_vec();
    Lane { within: None, name: Some("helper".into()) }.add_to(&mut none, 0);
    assert_eq!(none, b"\x91\x07");
}

/// A lane that cannot be compared is refused when the record is read, not when its lane is.
#[test]
fn a_malformed_lane_is_refused_with_its_record() {
    let rollback = |name: &str, value: Value| {
        let mut writer = MsgpackWriter::new();
        writer.map(2).str("to").unsigned(1).str(name).raw(&value.encode());
        writer.finish()
    };
    for (name, value) in [("lane", Value::from(5_u64)), ("lane", Value::Nil), ("in", Value::from("5"))] {
        let body = rollback(name, value);
        assert!(matches!(Rollback::decode(&body), Err(Error::Body { .. })), "{name}");
        assert!(matches!(Lane::decode(RecordKind::Rollback, &body), Err(Error::Body { .. })), "{name}");
    }
    assert_eq!(Rollback::decode(&rollback("later", Value::Nil)).map(|it| it.to), Ok(1.into()));
}

/// rmp-serde trusts the length that a type announces; a log must not.
#[test]
fn a_type_that_announces_more_or_less_than_it_writes_is_refused() {
    struct Liar {
        announced: usize,
        written: u8,
    }

    impl serde::Serialize for Liar {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut seq = serializer.serialize_seq(Some(self.announced))?;
            (0..self.written).try_for_each(|item| seq.serialize_element(&item))?;
            seq.end()
        }
    }

    let encoded = |announced, written| msgpack::to_vec(&Liar { announced, written });
    assert_eq!(encoded(2, 2), Ok(vec![0x92, 0, 1]));
    assert!(matches!(encoded(3, 2), Err(Error::Truncated { .. })));
    assert!(matches!(encoded(1, 2), Err(Error::Malformed { offset: 2, .. })));
}

#[test]
fn values_are_appended_one_behind_the_other_and_what_is_refused_leaves_nothing() {
    let mut out = b"before".to_vec();
    msgpack::append("one", &mut out).unwrap();
    msgpack::append(&vec![1_u8, 200], &mut out).unwrap();
    assert_eq!(out, b"before\xa3one\x92\x01\xcc\xc8");

    let nested = (0..112).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
    assert!(msgpack::to_vec(&nested).is_ok());
    let too_deep = Value::Array(vec![nested]);
    let refused = msgpack::append(&too_deep, &mut out);
    assert!(matches!(refused, Err(Error::Limit { limit: "depth", max: 112, .. })));
    assert_eq!(out, b"before\xa3one\x92\x01\xcc\xc8");
}

#[test]
fn a_kind_is_its_byte_in_comparisons_hashes_and_serde() {
    let hash = |value: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        value(&mut hasher);
        hasher.finish()
    };
    let kinds: Vec<(u8, RecordKind)> =
        (0..=u8::MAX).filter_map(|byte| Some((byte, RecordKind::from_byte(byte)?))).collect();
    assert_eq!(kinds.len(), 255, "0 is no kind");
    assert!(serde_json::from_str::<RecordKind>("0").is_err());
    for (byte, kind) in &kinds {
        assert_eq!(kind.byte(), *byte);
        assert_eq!(kind.is_known(), RecordKind::ALL.contains(kind));
        assert_eq!(kind.is_known(), !matches!(kind, RecordKind::Unknown(_)));
        assert_eq!(kind.is_envelope(), *byte >= 128);
        assert_eq!(RecordKind::from_name(kind.name()), kind.is_known().then_some(*kind));
        assert_eq!(hash(&|hasher| kind.hash(hasher)), hash(&|hasher| byte.hash(hasher)));
        assert_eq!(serde_json::to_string(kind).unwrap(), byte.to_string());
        assert_eq!(serde_json::from_str::<RecordKind>(&byte.to_string()).unwrap(), *kind);
        for (other_byte, other) in &kinds {
            assert_eq!(kind == other, byte == other_byte);
            assert_eq!(kind.cmp(other), byte.cmp(other_byte));
            assert_eq!(kind.partial_cmp(other), byte.partial_cmp(other_byte));
        }
    }
    let names: BTreeSet<&str> = RecordKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), RecordKind::ALL.len());
}

/// The JSON form of a record never nests deeper than readers of JSON accept, including the engine's
/// own. This applies to a body of an unknown kind with the greatest depth of a log, and to a
/// payload deeper than a host can pass.
#[test]
fn however_deep_a_body_is_its_json_form_can_be_read() {
    let deep = |levels: usize| [vec![0x91; levels], vec![0xc0]].concat();
    for levels in 1..=128 {
        let data = deep(levels);
        let action = Action::Event { event: 0, data: Payload::new(&data) };
        let dispatch = Dispatch { action, effects: None }.encode();
        for (kind, body) in [(RecordKind::Dispatch, &dispatch), (RecordKind::from_byte(100).unwrap(), &data)]
        {
            let record = Record { sequence: 0.into(), kind, time_us: 0, body };
            let Ok(shown) = record.to_json(&RecordNames::default()) else { continue };
            let text = serde_json::to_string(&shown).unwrap();
            assert!(msgpack::from_json(&text).is_ok(), "{kind}, {levels} levels");
            assert_eq!(text.contains("[[["), (3..=112).contains(&levels), "{kind}, {levels} levels");
        }
    }
}
