//! Every difference between two records is found, and its path leads to it.

use foldlog_codec::body::{
    Action, AddedItems, AnswerBody, AnsweredCall, Binding, BuiltIn, ConversationScope, Declare, Dispatch,
    Effect, EventDeclaration, Input, ItemId, ObjectId, Observed, Outcome, Payload, Policy, RemovedItems,
    Role, Rollback, SliceDeclaration, ToolBegin, ToolEnd,
};
use foldlog_codec::frame::HEADER_LEN;
use foldlog_codec::msgpack::to_vec;

use super::*;
use crate::generator::Generator;

/// Offset of a frame's kind in its header.
const KIND_AT: usize = 20;

fn names() -> DeclaredNames {
    let slice = |id: u32, name: &str| SliceDeclaration {
        id,
        name: name.to_owned(),
        policy: Policy::State,
        item: name.to_owned(),
    };
    let to = |slice, built_in| Binding { slice, built_in };
    let mut names = DeclaredNames::default();
    names.learn(Declare {
        slices: vec![slice(0, "chat"), slice(1, "plan")],
        events: vec![EventDeclaration {
            id: 0,
            name: "chat.said".to_owned(),
            version: 1,
            bindings: vec![to(0, BuiltIn::Append), to(1, BuiltIn::Explicit)],
            implicit: false,
        }],
    });
    names
}

fn find_difference(kind: RecordKind, recorded: &[u8], produced: &[u8]) -> Option<Difference> {
    find_difference_without(kind, recorded, produced, &LeaveOut::new())
}

fn find_difference_without(
    kind: RecordKind,
    recorded: &[u8],
    produced: &[u8],
    leave_out: &LeaveOut,
) -> Option<Difference> {
    BodyComparison { kind, names: &names(), leave_out, contents: &|_| None }.difference(recorded, produced)
}

fn path(kind: RecordKind, recorded: &[u8], produced: &[u8]) -> String {
    find_difference(kind, recorded, produced).map_or_else(|| "none".to_owned(), |found| found.path)
}

/// Encodes an event with its effects; without effects it is appended to `chat`.
fn encode_dispatch(data: &Value, effects: Option<Vec<Effect<'_>>>) -> Vec<u8> {
    let data = data.encode();
    Dispatch { action: Action::Event { event: 0, data: Payload::new(&data) }, effects }.encode()
}

fn json(text: &str) -> Value {
    foldlog_codec::msgpack::from_json(text).unwrap()
}

/// Returns a value of any shape, at most `depth` deep.
fn any_value(generator: &mut Generator, depth: u64) -> Value {
    let number = generator.next_u64();
    let text = |number: u64| format!("t{number:x}");
    match number % if depth == 0 { 8 } else { 12 } {
        0 => Value::Nil,
        1 => Value::Bool(number & 64 > 0),
        2 => Value::Unsigned(number >> ((number >> 8) % 64)),
        3 => Value::Signed(-1 - ((number >> 1) >> ((number >> 8) % 63)) as i64),
        4 => Value::F32((number >> 7) as f32 / 8.0),
        5 => Value::F64((number >> 7) as f64 / 8.0),
        6 => Value::Str(text(number)),
        7 => Value::Bin(number.to_le_bytes().to_vec()),
        8 | 9 => Value::Array((0..number >> 8 & 3).map(|_| any_value(generator, depth - 1)).collect()),
        _ => {
            let key = |place: u64| if place == 2 { "odd key".to_owned() } else { text(place) };
            let pair = |place| (Value::Str(key(place)), any_value(generator, depth - 1));
            Value::Map((0..number >> 8 & 3).map(pair).collect())
        }
    }
}

/// Changes one value somewhere in a value, and returns the path to it.
fn flip(value: &mut Value, generator: &mut Generator, path: &mut String) {
    let number = generator.next_u64();
    match value {
        Value::Array(items) if !items.is_empty() && !number.is_multiple_of(8) => {
            let place = generator.next_u64() as usize % items.len();
            path.push_str(&format!("[{place}]"));
            flip(&mut items[place], generator, path);
        }
        Value::Map(pairs) if pairs.len() > 1 && number.is_multiple_of(8) => pairs.rotate_left(1),
        Value::Map(pairs) if !pairs.is_empty() => {
            let place = generator.next_u64() as usize % pairs.len();
            let (key, value) = &mut pairs[place];
            let key = key.as_str().unwrap();
            path.push_str(&if key.contains(' ') { format!("[\"{key}\"]") } else { format!(".{key}") });
            flip(value, generator, path);
        }
        Value::Array(items) => {
            path.push_str(&format!("[{}]", items.len()));
            items.push(Value::Nil);
        }
        Value::Map(pairs) => {
            path.push_str(".new");
            pairs.push((Value::from("new"), Value::Nil));
        }
        // Values with equal JSON are still different values.
        Value::F32(float) if number.is_multiple_of(2) => *value = Value::F64(f64::from(*float)),
        Value::F64(float) if number.is_multiple_of(4) => *float = f64::from_bits(float.to_bits() ^ 1),
        Value::Unsigned(number) if *number < 1 << 50 => *value = Value::F64(*number as f64),
        Value::Str(text) if number.is_multiple_of(2) => *value = Value::Bin(text.clone().into_bytes()),
        Value::Str(text) => text.push('.'),
        Value::Bool(bool) => *bool = !*bool,
        Value::Nil => *value = Value::Bool(false),
        _ => *value = Value::Nil,
    }
}

#[test]
fn one_value_that_is_flipped_anywhere_in_a_payload_is_found_at_its_path() {
    let mut generator = Generator::from_seed(24);
    for _ in 0..20_000 {
        let data = any_value(&mut generator, 4);
        let mut flipped = data.clone();
        let mut to = String::new();
        flip(&mut flipped, &mut generator, &mut to);
        if data.encode() == flipped.encode() {
            // An array of equal values was rotated.
            continue;
        }
        let (old, new) = (encode_dispatch(&data, None), encode_dispatch(&flipped, None));
        assert_eq!(
            path(RecordKind::Dispatch, &old, &new),
            format!("$.event{to}"),
            "{data:?} and {flipped:?}"
        );
        assert_eq!(find_difference(RecordKind::Dispatch, &old, &old), None);

        // The same value as an observation, and as the second item that a reducer added.
        let (old, new) = (data.encode(), flipped.encode());
        let observed = |data| Observed { name: "flag".to_owned(), data: Payload::new(data) }.encode();
        assert_eq!(path(RecordKind::Observed, &observed(&old), &observed(&new)), format!("$.data{to}"));
        let effect = |item| {
            let items = vec![Payload::new(b"\x01"), Payload::new(item)];
            let added = AddedItems::Items { items, version: 1 };
            encode_dispatch(&Value::Nil, Some(vec![Effect::append(0), Effect { added, ..Effect::append(1) }]))
        };
        let difference = find_difference(RecordKind::Dispatch, &effect(&old), &effect(&new)).unwrap();
        assert_eq!((difference.slice.as_deref(), difference.path), (Some("plan"), format!("$.added[1]{to}")));
    }
}

#[test]
fn a_difference_that_json_does_not_show_is_named() {
    let note = |old: Value, new: Value| {
        let (old, new) = (encode_dispatch(&old, None), encode_dispatch(&new, None));
        find_difference(RecordKind::Dispatch, &old, &new).and_then(|found| found.note)
    };
    let keys = note(json(r#"{"a":1,"b":2}"#), json(r#"{"b":2,"a":1}"#));
    assert_eq!(keys.as_deref(), Some("order of keys"));
    let number = note(Value::Unsigned(1), Value::F64(1.0));
    assert_eq!(number.as_deref(), Some("integer and 64-bit float"));
    let width = note(Value::F32(1.5), Value::F64(1.5));
    assert_eq!(width.as_deref(), Some("32-bit float and 64-bit float"));
    let bytes = note(Value::from("a"), Value::Bin(b"a".to_vec()));
    assert_eq!(bytes.as_deref(), Some("text and byte string"));
    let nan = note(Value::F64(f64::from_bits(0x7ff8 << 48)), Value::F64(f64::from_bits((0x7ff8 << 48) + 1)));
    assert_eq!(nan.as_deref(), Some("no numbers, with the bits 7ff8000000000000 and 7ff8000000000001"));
    assert_eq!(note(Value::from("a"), Value::from("b")), None);
}

#[test]
fn what_a_reducer_did_is_compared_slice_by_slice() {
    let id = |sequence: u64, ordinal| ItemId { sequence: sequence.into(), ordinal };
    let (one, two) = ([1], [2]);
    let items = |bytes: &'static [u8]| {
        let items = bytes.iter().map(std::slice::from_ref).map(Payload::new).collect();
        Effect { added: AddedItems::Items { items, version: 1 }, ..Effect::append(1) }
    };
    let at = |old: Vec<Effect<'_>>, new: Vec<Effect<'_>>| {
        let (old, new) = (encode_dispatch(&Value::Nil, Some(old)), encode_dispatch(&Value::Nil, Some(new)));
        let Some(found) = find_difference(RecordKind::Dispatch, &old, &new) else { return "none".to_owned() };
        format!("{} {}", found.slice.unwrap_or_default(), found.path)
    };
    let removed = |ids: Vec<ItemId>| Effect { removed: RemovedItems::Items(ids), ..items(b"\x01") };
    assert_eq!(at(vec![items(&[1, 2])], vec![items(&[1, 3])]), "plan $.added[1]");
    assert_eq!(at(vec![items(&[1, 2])], vec![items(&[1])]), "plan $.added[1]");
    assert_eq!(
        at(vec![removed(vec![id(3, 0), id(4, 1)])], vec![removed(vec![id(3, 0), id(4, 2)])]),
        "plan $.removed[1][1]"
    );
    assert_eq!(
        at(vec![removed(vec![id(3, 0)])], vec![Effect { removed: RemovedItems::All, ..items(b"\x01") }]),
        "plan $.removed"
    );
    assert_eq!(
        at(vec![items(b"\x01")], vec![Effect { before: Some(id(1, 0)), ..items(b"\x01") }]),
        "plan $.before"
    );
    assert_eq!(at(vec![Effect::append(0), items(b"\x01")], vec![Effect::append(0)]), "plan $");
    assert_eq!(at(vec![], vec![Effect::append(0)]), "chat $");
    assert_eq!(
        at(vec![Effect::append(0), Effect::append(1)], vec![Effect::append(1), Effect::append(0)]),
        " $.effects"
    );
    // Without explicit effects, the event was appended to `chat`.
    let (declared, replaced) =
        (encode_dispatch(&Value::Nil, None), encode_dispatch(&Value::Nil, Some(vec![Effect::replace(0)])));
    assert_eq!(path(RecordKind::Dispatch, &declared, &replaced), "$.removed");
    // An object and its bytes are the same item.
    let (large, other) = (ObjectId::from_content(&one).reference(), ObjectId::from_content(&two).reference());
    let of = |bytes| Effect {
        added: AddedItems::Items { items: vec![Payload::new(bytes)], version: 1 },
        ..Effect::append(1)
    };
    assert_eq!(at(vec![of(&large)], vec![of(&other)]), "plan $.added[0]");
    assert_eq!(at(vec![of(&large)], vec![of(&two)]), "plan $.added[0]");
}

#[test]
fn error_text_durations_and_addresses_are_not_compared() {
    let end = |outcome, elapsed_us, shown: &str, result: &str| {
        let (shown, result) = (to_vec(shown).unwrap(), to_vec(result).unwrap());
        let mut end = ToolEnd::new(3.into(), "read", outcome);
        (end.elapsed_us, end.shown, end.result) =
            (elapsed_us, Some(Payload::new(&shown)), Some(Payload::new(&result)));
        end.encode()
    };
    let failed = end(Outcome::Failed, 7, "no such file", "x");
    assert_eq!(find_difference(RecordKind::ToolEnd, &failed, &end(Outcome::Failed, 9, "gone", "x")), None);
    assert_eq!(path(RecordKind::ToolEnd, &failed, &end(Outcome::Failed, 9, "gone", "y")), "$.result");
    let done = end(Outcome::Committed, 7, "at 0x7ffd5e8a1b2c", "x");
    assert_eq!(
        find_difference(RecordKind::ToolEnd, &done, &end(Outcome::Committed, 9, "at 0x7ffc00000000", "x")),
        None
    );
    assert_eq!(path(RecordKind::ToolEnd, &done, &end(Outcome::Committed, 7, "on", "x")), "$.shown");
    assert_eq!(path(RecordKind::ToolEnd, &done, &failed), "$.outcome");

    let result = |content: &str, is_error| {
        let content = to_vec(content).unwrap();
        let scope = ConversationScope::new("e");
        let mut input = Input::new(scope, Role::Tool, Payload::new(&content));
        input.is_error = is_error;
        input.encode()
    };
    assert_eq!(find_difference(RecordKind::Input, &result("a", true), &result("b", true)), None);
    assert_eq!(path(RecordKind::Input, &result("a", true), &result("a", false)), "$.is_error");
    assert_eq!(path(RecordKind::Input, &result("a", false), &result("b", false)), "$.content");
}

#[test]
fn paths_of_an_event_that_are_left_out_are_not_compared() {
    let (old, new) =
        (json(r#"{"took":1,"steps":[{"ms":1}],"text":"a"}"#), json(r#"{"steps":[{"ms":2}],"text":"a"}"#));
    let leave_out = LeaveOut::new().path("chat.said", "$.event.took");
    let at = |old: &Value, new: &Value, leave_out: &LeaveOut| {
        let (old, new) = (encode_dispatch(old, None), encode_dispatch(new, None));
        find_difference_without(RecordKind::Dispatch, &old, &new, leave_out).map(|found| found.path)
    };
    assert_eq!(at(&old, &new, &leave_out).as_deref(), Some("$.event.steps[0].ms"));
    let leave_out = leave_out.path("chat.said", "$.event.steps[*].ms");
    assert_eq!(at(&old, &new, &leave_out), None);
    let other = json(r#"{"steps":[{"ms":2}],"text":"b"}"#);
    assert_eq!(at(&old, &other, &leave_out).as_deref(), Some("$.event.text"));
    assert!(at(&old, &new, &LeaveOut::new().path("other", "$.event.took")).is_some());
}

#[test]
fn text_that_is_json_is_compared_as_json() {
    let begin = |arguments: &str| {
        let arguments = to_vec(arguments).unwrap();
        ToolBegin::new("read", Payload::new(&arguments)).encode()
    };
    let old = begin(r#"{"path":"a","lines":[1,2]}"#);
    assert_eq!(
        path(RecordKind::ToolBegin, &old, &begin(r#"{"path":"a","lines":[1,3]}"#)),
        "$.arguments.lines[1]"
    );
    assert_eq!(path(RecordKind::ToolBegin, &old, &begin(r#"{"path": "a","lines":[1,2]}"#)), "$.arguments");
    assert_eq!(path(RecordKind::ToolBegin, &old, &begin("{")), "$.arguments");
    let answer = |arguments: &str| {
        let arguments = to_vec(arguments).unwrap();
        let call = |id: &'static str| AnsweredCall {
            id: id.into(),
            name: "read".into(),
            arguments: Payload::new(&arguments),
            incomplete: false,
        };
        let mut answer = AnswerBody::new(ConversationScope::new("e"), None);
        answer.calls = vec![call("1"), call("2")];
        answer.encode()
    };
    let (old, new) = (answer(r#"{"a":1}"#), answer(r#"{"a":2}"#));
    assert_eq!(path(RecordKind::Answer, &old, &new), "$.tool_calls[0].arguments.a");
}

#[test]
fn bodies_that_decoding_shows_alike_differ_at_a_byte_and_hostile_ones_too() {
    let rollback = Rollback { to: 5.into(), preserve_logs: true }.encode();
    let longer = [b"\x81\xa2to".as_slice(), b"\xcc\x05"].concat();
    assert_eq!(path(RecordKind::Rollback, &rollback, &longer), "$[byte 4]");
    let unknown = [b"\x82\xa2to\x05".as_slice(), b"\xa1?\x01"].concat();
    let difference = find_difference(RecordKind::Rollback, &rollback, &unknown).unwrap();
    assert_eq!((difference.path.as_str(), difference.note.is_some()), ("$[\"?\"]", true));
    for kind in [
        RecordKind::Dispatch,
        RecordKind::ToolBegin,
        RecordKind::ToolEnd,
        RecordKind::Answer,
        RecordKind::Observed,
        RecordKind::Rollback,
    ] {
        let mut generator = Generator::from_seed(7);
        let bodies = [
            rollback.clone(),
            encode_dispatch(&json(r#"{"a":[1,{"b":2}]}"#), Some(vec![Effect::replace(9)])),
            Vec::new(),
        ];
        for body in &bodies {
            for _ in 0..500 {
                let mut hostile = body.clone();
                hostile.resize(generator.next_u64() as usize % 40, 0x91);
                for _ in 0..3 {
                    let place = generator.next_u64() as usize % hostile.len().max(1);
                    if let Some(byte) = hostile.get_mut(place) {
                        *byte = generator.next_u64() as u8;
                    }
                }
                let alike = hostile == *body;
                assert_eq!(find_difference(kind, body, &hostile).is_none(), alike, "{body:?} {hostile:?}");
                let _ =
                    Divergence::extra(0.into(), LaneName::default(), kind, &hostile, &names()).to_string();
            }
        }
    }
}

#[test]
fn a_divergence_reads_as_one_line_and_serializes_as_one_object() {
    let (old, new) = (
        encode_dispatch(&json(r#"{"text":"a\u001b[2J"}"#), None),
        encode_dispatch(&json(r#"{"text":"b"}"#), None),
    );
    let lane = LaneName { within: None, name: Some("mail\u{7}box".to_owned()) };
    let record = shown_name(RecordKind::Dispatch, &old, &names());
    let difference = find_difference(RecordKind::Dispatch, &old, &new).unwrap();
    let changed = Divergence::changed(17.into(), lane, record, difference);
    assert_eq!(
        changed.to_string(),
        r#"record 17 (dispatch `chat.said`, lane `mail\u{7}box`) differs at $.event.text: recorded "a\u001b[2J", produced "b""#
    );
    assert_eq!(
        serde_json::to_string(&changed).unwrap(),
        concat!(
            r#"{"sequence":17,"lane":{"within":null,"name":"mail\u0007box"},"divergence":"changed","#,
            r#""record":"dispatch chat.said","slice":null,"path":"$.event.text","recorded":"a\u001b[2J","produced":"b"}"#
        )
    );
    let main = LaneName::default();
    let missing = Divergence::missing(3.into(), main.clone(), RecordKind::Dispatch, &old, &names());
    assert_eq!(missing.to_string(), "record 3 (dispatch `chat.said`) was not produced");
    assert!(missing.recorded.is_some() && missing.produced.is_none());
    let extra = Divergence::extra(4.into(), main.clone(), RecordKind::Rollback, b"\x81\xa2to\x05", &names());
    assert_eq!(extra.to_string(), "record 4 (rollback) was produced and is not recorded");
    assert!(extra.recorded.is_none() && extra.produced.is_some());

    // Two long texts are shown at their difference.
    let long = |last: &str| encode_dispatch(&Value::Str(format!("{}{last}", "a".repeat(5000))), None);
    let difference = find_difference(RecordKind::Dispatch, &long("x"), &long("y")).unwrap();
    let line = Divergence::changed(5.into(), main, "dispatch chat.said".to_owned(), difference).to_string();
    let (recorded, produced) = line.split_once(", produced ").unwrap();
    assert!(
        recorded.ends_with("aax\"") && produced.starts_with("…aa") && produced.ends_with("aay\""),
        "{line}"
    );
    assert!(line.len() < 600, "{line}");
}

/// Returns the bodies of all records that format version 1 writes, from the codec's golden files.
/// Each file is a frame with its header.
fn golden() -> Vec<(String, RecordKind, Vec<u8>)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../codec/tests/golden");
    let mut bodies = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap();
        let is_frame = path.extension().is_some_and(|end| end == "bin")
            && !name.starts_with("image")
            && !name.starts_with("segment");
        let (Some(kind), Some(body)) = (bytes.get(KIND_AT).copied(), bytes.get(HEADER_LEN..)) else {
            continue;
        };
        let Some(kind) = RecordKind::from_byte(kind).filter(|_| is_frame) else { continue };
        let decodes = foldlog_codec::body::check(kind, body).is_ok() && Value::decode(body).is_ok();
        if decodes && !kind.is_envelope() {
            bodies.push((name, kind, body.to_vec()));
        }
    }
    bodies.sort();
    bodies
}

/// Changes the leaf with this number, counted in the order of the body. Returns the rest of the
/// number if there is no such leaf.
fn flip_leaf(value: &mut Value, mut number: usize) -> Result<(), usize> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                match flip_leaf(item, number) {
                    Ok(()) => return Ok(()),
                    Err(left) => number = left,
                }
            }
            return Err(number);
        }
        Value::Map(pairs) if !pairs.is_empty() => {
            for (_, item) in pairs {
                match flip_leaf(item, number) {
                    Ok(()) => return Ok(()),
                    Err(left) => number = left,
                }
            }
            return Err(number);
        }
        _ if number > 0 => return Err(number - 1),
        Value::Str(text) => text.push('.'),
        Value::Unsigned(number) => *number ^= 1,
        Value::Signed(number) => *number ^= 1,
        Value::Bool(bool) => *bool = !*bool,
        Value::F64(float) => *float += 1.0,
        Value::Bin(bytes) | Value::Ext(_, bytes) if !bytes.is_empty() => bytes[0] ^= 1,
        value => *value = Value::from(true),
    }
    Ok(())
}

#[test]
fn one_value_that_is_flipped_anywhere_in_a_record_of_any_kind_is_found() {
    let (mut flipped, mut not_compared) = (0, std::collections::BTreeSet::new());
    let bodies = golden();
    let kinds: std::collections::BTreeSet<RecordKind> = bodies.iter().map(|(_, kind, _)| *kind).collect();
    assert!(kinds.len() >= 17, "{kinds:?}");
    for (name, kind, body) in &bodies {
        let value = Value::decode(body).unwrap();
        for leaf in 0.. {
            let mut other = value.clone();
            if flip_leaf(&mut other, leaf).is_err() {
                break;
            }
            flipped += 1;
            let found = find_difference(*kind, body, &other.encode());
            if found.is_none() {
                not_compared.insert(name.clone());
            }
        }
    }
    assert!(flipped > 400, "{flipped}");
    // An error's text, a duration and captures are shown, not compared.
    let named: Vec<&str> = not_compared.iter().map(String::as_str).collect();
    assert!(
        named.iter().all(|name| [
            "snapshot-captured",
            "tool-end",
            "tool-begin-closed",
            "tool-begin-nested-and-again",
            "request-failed",
            "input-failed"
        ]
        .iter()
        .any(|of| name.starts_with(of))),
        "{named:?}"
    );
}
