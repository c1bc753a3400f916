//! Strategies for the property tests: values, bodies, frames and headers that a writer can write,
//! and hostile bytes.

pub(crate) mod conversation;

use std::collections::BTreeMap;

use foldlog_codec::RecordKind;
use foldlog_codec::body::{
    Action, AddedItems, Binding, BuiltIn, CallOrigin, Cause, ClosedCall, Decision, Declare, Dispatch, Effect,
    EventDeclaration, ExternalEffects, Idempotency, Import, ImportedSlice, InnerCall, ItemId, Lane,
    NotUndone, ObjectId, Observed, Outcome, Parent, Payload, Policy, RemovedItems, ReplacedParts, Replicated,
    ResourceSnapshot, Resumed, Rollback, Seal, SessionOpening, Settle, SliceDeclaration, SnapshotBody,
    Suspension, SuspensionForm, ToolBegin, ToolEnd,
};
use foldlog_codec::frame::{Context, Header, TIME_US_MAX, TIME_US_MIN};
use foldlog_codec::msgpack::Value;
use foldlog_codec::segment::{Previous, SegmentHeader};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use uuid::Uuid;

/// Returns a configuration of at least 256 cases. `PROPTEST_CASES` asks for more.
pub(crate) fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(256),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..default
    }
}

/// Draws integers of every width that MessagePack has.
fn unsigned() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift)
}

fn unsigned32() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0..32_u32).prop_map(|(value, shift)| value >> shift)
}

fn signed() -> impl Strategy<Value = i64> {
    (any::<i64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift)
}

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![8 => ".{0,12}", 1 => "[a-z]{32,40}", 1 => "[a-zü]{200,300}"]
}

fn tags() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(text(), text(), 0..4)
}

/// Draws values of every type. Floating-point numbers have any bits, including NaNs.
pub(crate) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        unsigned().prop_map(Value::from),
        signed().prop_map(Value::from),
        any::<u32>().prop_map(|bits| Value::F32(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| Value::F64(f64::from_bits(bits))),
        text().prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bin),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(kind, bytes)| Value::Ext(kind, bytes)),
    ];
    leaf.prop_recursive(6, 64, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..18).prop_map(Value::Map),
        ]
    })
}

/// Draws the bytes of values in every form that MessagePack has, including longer forms than
/// necessary.
fn any_form() -> impl Strategy<Value = Vec<u8>> {
    // Encodes a length after the marker for 8, 16 or 32 bits.
    fn head(marker: u8, width: usize, len: usize) -> Vec<u8> {
        let len = (len as u32).to_be_bytes();
        [&[marker][..], &len[4 - width..]].concat()
    }
    let fixed = prop::sample::select(vec![(0xc0, 0), (0xca, 4), (0xcb, 8), (0xcc, 1), (0xcd, 2), (0xce, 4)]);
    let signed = prop::sample::select(vec![(0xcf, 8), (0xd0, 1), (0xd1, 2), (0xd2, 4), (0xd3, 8)]);
    let ext = prop::sample::select(vec![(0xd4, 2), (0xd5, 3), (0xd6, 5), (0xd7, 9), (0xd8, 17)]);
    let sized = prop::sample::select(vec![
        (0xc4, 1, 0),
        (0xc5, 2, 0),
        (0xc6, 4, 0),
        (0xc7, 1, 1),
        (0xc8, 2, 1),
        (0xc9, 4, 1),
        (0xd9, 1, 0),
        (0xda, 2, 0),
        (0xdb, 4, 0),
    ]);
    let scalar = prop_oneof![
        prop_oneof![fixed, signed, ext].prop_map(|(marker, len)| [&[marker][..], &vec![0x91; len]].concat()),
        (sized, 0..5_usize).prop_map(|((marker, width, more), len)| {
            [head(marker, width, len), vec![0xdf; len + more]].concat()
        }),
        value().prop_map(|value| value.encode()),
    ];
    let group = prop::sample::select(vec![
        (0x90, 0, 1),
        (0xdc, 2, 1),
        (0xdd, 4, 1),
        (0x80, 0, 2),
        (0xde, 2, 2),
        (0xdf, 4, 2),
    ]);
    scalar.prop_recursive(8, 64, 6, move |inner| {
        (group.clone(), prop::collection::vec(inner, 0..6)).prop_map(|((marker, width, per), inner)| {
            let len = inner.len() / per;
            let head = if width == 0 { vec![marker | len as u8] } else { head(marker, width, len) };
            [head, inner[..len * per].concat()].concat()
        })
    })
}

/// Draws a value nested in arrays and maps, at depths on both sides of the limit.
fn deep() -> impl Strategy<Value = Vec<u8>> {
    let level = prop::sample::select(vec![&[0x91_u8][..], &[0x92, 0xc0], &[0x81, 0x01], &[0xdc, 0, 1]]);
    let levels = prop_oneof![0..20_usize, 100..135_usize];
    (level, levels, value())
        .prop_map(|(level, levels, value)| [level.repeat(levels), value.encode()].concat())
}

/// Returns whether a value contains a NaN, and so is not equal to itself.
#[allow(dead_code, reason = "only the round trips compare values")]
pub(crate) fn holds_nan(value: &Value) -> bool {
    match value {
        Value::F32(number) => number.is_nan(),
        Value::F64(number) => number.is_nan(),
        Value::Array(items) => items.iter().any(holds_nan),
        Value::Map(pairs) => pairs.iter().any(|(key, value)| holds_nan(key) || holds_nan(value)),
        _ => false,
    }
}

/// Draws payloads. Their bytes are leaked, since a payload borrows them.
fn payload() -> impl Strategy<Value = Payload<'static>> {
    prop_oneof![
        3 => value().prop_map(|value| value.encode()),
        1 => (any::<[u8; 32]>(), any::<u64>()).prop_map(|(hash, len)| ObjectId { hash, len }.reference()),
    ]
    .prop_map(|bytes| Payload::new(bytes.leak()))
}

pub(crate) fn opened() -> impl Strategy<Value = SessionOpening> {
    let parent = prop_oneof![
        Just(None),
        (uuid(), unsigned(), unsigned32()).prop_map(|(session, position, chain)| Some(Parent::Fork {
            session,
            position: position.into(),
            chain
        })),
        (uuid(), proptest::option::of(unsigned())).prop_map(|(session, operation)| Some(Parent::Child {
            session,
            operation: operation.map(Into::into)
        })),
    ];
    (uuid(), unsigned(), tags(), parent).prop_map(|(session, seed, tags, parent)| SessionOpening {
        session,
        seed,
        tags,
        parent,
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(Policy::ALL.to_vec())
}

pub(crate) fn declare() -> impl Strategy<Value = Declare> {
    let built_in = prop::sample::select(vec![BuiltIn::Append, BuiltIn::Replace, BuiltIn::Explicit]);
    let binding = (unsigned32(), built_in).prop_map(|(slice, built_in)| Binding { slice, built_in });
    let version = prop_oneof![Just(1), unsigned32()];
    let event = (unsigned32(), text(), version, prop::collection::vec(binding, 0..20), any::<bool>())
        .prop_map(|(id, name, version, bindings, implicit)| EventDeclaration {
            id,
            name,
            version,
            bindings,
            implicit,
        });
    let slice =
        (unsigned32(), text(), policy(), prop::option::of(text())).prop_map(|(id, name, policy, item)| {
            SliceDeclaration { id, item: item.unwrap_or_else(|| name.clone()), name, policy }
        });
    (prop::collection::vec(event, 0..5), prop::collection::vec(slice, 0..5))
        .prop_map(|(events, slices)| Declare { events, slices })
}

fn item_id() -> impl Strategy<Value = ItemId> {
    (unsigned(), unsigned32()).prop_map(|(sequence, ordinal)| ItemId { sequence: sequence.into(), ordinal })
}

fn effect(adds_event: bool) -> impl Strategy<Value = Effect<'static>> {
    let removed = prop_oneof![
        Just(RemovedItems::None),
        Just(RemovedItems::All),
        prop::collection::vec(item_id(), 0..20).prop_map(RemovedItems::Items),
    ];
    let items = (prop::collection::vec(payload(), 0..4), prop_oneof![Just(1), unsigned32()])
        .prop_map(|(items, version)| AddedItems::Items { items, version });
    let added = if adds_event { prop_oneof![Just(AddedItems::Event), items].boxed() } else { items.boxed() };
    (unsigned32(), removed, added, prop::option::of(item_id()))
        .prop_map(|(slice, removed, added, before)| Effect { slice, removed, added, before })
}

fn dispatch_of(
    action: impl Strategy<Value = Action<'static>>,
    adds_event: bool,
) -> impl Strategy<Value = Dispatch<'static>> {
    let effects = prop::option::of(prop::collection::vec(effect(adds_event), 0..4));
    (action, effects).prop_map(|(action, effects)| Dispatch { action, effects })
}

pub(crate) fn dispatch() -> impl Strategy<Value = Dispatch<'static>> {
    let event = (unsigned32(), payload()).prop_map(|(event, data)| Action::Event { event, data });
    let own = prop_oneof![
        Just(Action::Seed),
        Just(Action::Clear),
        Just(Action::Reset),
        (text(), prop::option::of(text())).prop_map(|(key, value)| Action::Tag { key, value }),
    ];
    // An action of the engine's own has no event that an effect could add.
    prop_oneof![dispatch_of(event, true), dispatch_of(own, false)]
}

pub(crate) fn snapshot() -> impl Strategy<Value = SnapshotBody<'static>> {
    (prop::option::of(text()), prop::collection::vec(policy(), 0..4), resources())
        .prop_map(|(tag, policies, resources)| SnapshotBody { tag, policies, resources })
}

pub(crate) fn rollback() -> impl Strategy<Value = Rollback> {
    (unsigned(), any::<bool>()).prop_map(|(to, preserve_logs)| Rollback { to: to.into(), preserve_logs })
}

pub(crate) fn import() -> impl Strategy<Value = Import<'static>> {
    let item = (payload(), prop_oneof![3 => Just(1), 1 => unsigned32()]);
    let slice = (unsigned32(), prop::collection::vec(item, 0..4))
        .prop_map(|(slice, items)| ImportedSlice { slice, items });
    (prop::option::of(uuid()), prop::option::of(signed()), tags(), prop::collection::vec(slice, 0..4))
        .prop_map(|(from, exported_at_us, tags, slices)| Import { from, exported_at_us, tags, slices })
}

fn resources() -> impl Strategy<Value = Vec<ResourceSnapshot<'static>>> {
    let resource = (text(), prop::option::of(payload()))
        .prop_map(|(resource, snapshot)| ResourceSnapshot { resource: resource.into(), snapshot });
    prop::collection::vec(resource, 0..3)
}

/// Draws a name of an enum, or one that only a later version knows.
fn known_or_later<T: Copy + std::fmt::Debug + 'static>(
    known: &'static [T],
    recorded: fn(&str) -> Option<T>,
) -> impl Strategy<Value = T> {
    let later = "[a-zü]{0,15}".prop_filter_map("a short name is kept", move |name| recorded(&name));
    prop_oneof![4 => prop::sample::select(known), 1 => later]
}

fn cause() -> impl Strategy<Value = Cause> {
    known_or_later(Cause::ALL, Cause::from_recorded)
}

pub(crate) fn tool_begin() -> impl Strategy<Value = ToolBegin<'static>> {
    let origin = prop::option::of((unsigned(), unsigned32()));
    let others = [(); 4].map(|()| prop::option::of(unsigned()));
    let idempotency = known_or_later(Idempotency::ALL, Idempotency::from_recorded);
    let closed =
        prop::option::of((cause(), payload()).prop_map(|(cause, shown)| ClosedCall { cause, shown }));
    let named = (text(), prop::option::of(text()), payload());
    (named, origin, others, idempotency, any::<(bool, bool)>(), resources(), closed).prop_map(
        |(
            (tool, call_id, arguments),
            origin,
            [parent, again, undoes, verifies],
            idempotency,
            (reads_only, outside_only),
            resources,
            closed,
        )| {
            ToolBegin {
                tool: tool.into(),
                call_id: call_id.map(Into::into),
                arguments,
                origin: origin.map(|(answer, ordinal)| CallOrigin::new(answer, ordinal)),
                parent: parent.map(Into::into),
                idempotency,
                reads_only: reads_only || outside_only,
                outside_only,
                again: again.map(Into::into),
                undoes: undoes.map(Into::into),
                verifies: verifies.map(Into::into),
                resources,
                closed,
            }
        },
    )
}

pub(crate) fn tool_end() -> impl Strategy<Value = ToolEnd<'static>> {
    let outcome = (known_or_later(Outcome::ALL, Outcome::from_recorded), any::<bool>());
    let why = (
        prop::option::of(cause()),
        prop::option::of(any::<i32>()),
        prop::sample::select(ExternalEffects::ALL),
    );
    let named = (text(), prop::option::of(text()), prop::option::of((unsigned(), unsigned32())));
    let others = [(); 4].map(|()| prop::option::of(unsigned()));
    let payloads = [(); 3].map(|()| prop::option::of(payload()));
    let not_undone = prop::collection::vec((text(), text(), text()), 0..3).prop_map(|all| {
        let one = |(resource, path, reason): (String, String, String)| NotUndone {
            resource: resource.into(),
            path: path.into(),
            reason: reason.into(),
        };
        all.into_iter().map(one).collect::<Vec<_>>()
    });
    let paths = || prop::collection::vec(text().prop_map(Into::into), 0..3);
    let replaced = (text(), paths(), paths(), unsigned()).prop_map(|(resource, changed, removed, more)| {
        ReplacedParts { resource: resource.into(), changed, removed, more }
    });
    let replaced = prop::collection::vec(replaced, 0..3);
    let values = (payloads, resources(), not_undone, replaced, suspension());
    (named, others, outcome, why, (unsigned(), unsigned()), values, unsigned32()).prop_map(
        |(
            named,
            others,
            (outcome, back),
            (cause, exit_code, outside),
            (begin, elapsed_us),
            (payloads, resources, not_undone, replaced, suspension),
            slice,
        )| {
            let (tool, call_id, origin) = named;
            let [again, parent, undoes, verifies] = others;
            let [result, shown, overrides] = payloads;
            let rolls_back = back && outcome != Outcome::Committed;
            ToolEnd {
                begin: begin.into(),
                again: again.map(Into::into),
                tool: tool.into(),
                call_id: call_id.map(Into::into),
                origin: origin.map(|(answer, ordinal)| CallOrigin::new(answer, ordinal)),
                parent: parent.map(Into::into),
                undoes: undoes.map(Into::into),
                verifies: verifies.map(Into::into),
                outcome,
                cause,
                exit_code,
                rolls_back,
                outside,
                elapsed_us,
                result,
                shown,
                overrides,
                suspension: (outcome == Outcome::Suspended).then_some(suspension),
                resources,
                not_undone,
                replaced,
                slice,
            }
        },
    )
}

pub(crate) fn settle() -> impl Strategy<Value = Settle<'static>> {
    let decision = prop::sample::select(Decision::ALL);
    let payloads = [(); 2].map(|()| prop::option::of(payload()));
    let approval = (prop::option::of(any::<[u8; 32]>()), prop::option::of(any::<i64>()));
    (unsigned(), decision, payloads, approval, text(), text()).prop_map(
        |(operation, decision, [result, shown], (arguments, until_us), by, reason)| Settle {
            operation: operation.into(),
            decision,
            result,
            shown,
            arguments,
            until_us,
            by,
            reason,
        },
    )
}

fn suspension() -> impl Strategy<Value = Suspension> {
    let form = known_or_later(SuspensionForm::ALL, SuspensionForm::from_recorded);
    let inner = (prop::option::of(any::<u128>().prop_map(Uuid::from_u128)), unsigned())
        .prop_map(|(session, operation)| InnerCall { session, operation: operation.into() });
    let (expires_us, inner) = (prop::option::of(any::<i64>()), prop::option::of(inner));
    (form, any::<[u8; 32]>(), expires_us, inner).prop_map(|(form, arguments, expires_us, inner)| Suspension {
        form,
        arguments,
        expires_us,
        inner,
    })
}

pub(crate) fn observed() -> impl Strategy<Value = Observed<'static>> {
    (text(), payload()).prop_map(|(name, data)| Observed { name, data })
}

pub(crate) fn replicated() -> impl Strategy<Value = Replicated> {
    (text(), text(), unsigned()).prop_map(|(at, by, epoch)| Replicated { at, by, epoch })
}

pub(crate) fn resumed() -> impl Strategy<Value = Resumed> {
    let began = prop::collection::vec(unsigned(), 0..3);
    let fields = (unsigned(), prop::option::of(uuid()), signed(), prop::option::of(unsigned()), began);
    fields.prop_map(|(epoch, boot_id, clock_us, recovered, began)| Resumed {
        epoch,
        boot_id,
        clock_us,
        recovered: recovered.map(Into::into),
        began: began.into_iter().map(Into::into).collect(),
    })
}

pub(crate) fn seal() -> impl Strategy<Value = Seal> {
    (unsigned32(), unsigned(), any::<[u8; 32]>()).prop_map(|(next, records, hash)| Seal {
        next,
        records,
        hash,
    })
}

/// Returns a kind that only a later version can name.
fn later() -> RecordKind {
    RecordKind::from_byte(77).expect("only 0 is no kind")
}

/// Draws the main lane, or one that is named, within a tool, or both.
fn lane() -> impl Strategy<Value = Lane<'static>> {
    (prop::option::of(unsigned()), prop::option::of(text()))
        .prop_map(|(within, name)| Lane { within: within.map(Into::into), name: name.map(Into::into) })
}

/// Draws a kind whose bodies can have a lane, the bytes of such a body in the main lane, and a
/// lane.
pub(crate) fn body_and_lane() -> impl Strategy<Value = (RecordKind, Vec<u8>, Lane<'static>)> {
    let body = prop_oneof![
        3 => dispatch().prop_map(|body| (RecordKind::Dispatch, body.encode())),
        1 => snapshot().prop_map(|body| (RecordKind::Snapshot, body.encode())),
        1 => rollback().prop_map(|body| (RecordKind::Rollback, body.encode())),
        1 => tool_begin().prop_map(|body| (RecordKind::ToolBegin, body.encode())),
        1 => observed().prop_map(|body| (RecordKind::Observed, body.encode())),
        1 => settle().prop_map(|body| (RecordKind::Settle, body.encode())),
    ];
    (body, lane()).prop_map(|((kind, body), lane)| {
        // The start record of a tool names its parent in a field of its own.
        let within = lane.within.filter(|_| kind != RecordKind::ToolBegin);
        (kind, body, Lane { within, ..lane })
    })
}

/// Draws a kind and the bytes of a body of that kind.
pub(crate) fn body() -> impl Strategy<Value = (RecordKind, Vec<u8>)> {
    prop_oneof![
        1 => opened().prop_map(|body| (RecordKind::Opened, body.encode())),
        1 => declare().prop_map(|body| (RecordKind::Declare, body.encode())),
        1 => declare().prop_map(|body| (RecordKind::Declared, body.encode())),
        6 => body_and_lane().prop_map(|(kind, mut body, lane)| {
            lane.add_to(&mut body, 0);
            (kind, body)
        }),
        1 => import().prop_map(|body| (RecordKind::Import, body.encode())),
        1 => replicated().prop_map(|body| (RecordKind::Replicated, body.encode())),
        1 => tool_end().prop_map(|body| (RecordKind::ToolEnd, body.encode())),
        1 => resumed().prop_map(|body| (RecordKind::Resumed, body.encode())),
        1 => seal().prop_map(|body| (RecordKind::Seal, body.encode())),
        1 => Just((RecordKind::Synced, Vec::new())),
        1 => Just((RecordKind::Closed, Vec::new())),
        7 => conversation::body(),
        1 => value().prop_map(|body| (later(), body.encode())),
    ]
}

/// Draws a valid frame: its watermark is not above the record's sequence number, and less than 2^32
/// - 1 below it.
pub(crate) fn frame() -> impl Strategy<Value = (Context, Header)> {
    let kind = (1..=u8::MAX).prop_filter_map("0 is no kind", RecordKind::from_byte);
    let time = prop_oneof![Just(TIME_US_MIN), Just(TIME_US_MAX), TIME_US_MIN..=TIME_US_MAX, -2_i64..=2];
    (any::<u64>(), unsigned(), unsigned32(), unsigned32(), any::<u32>(), kind, time).prop_map(
        |(salt, first_sequence, relative, lag, predecessor_crc, kind, time_us)| {
            let first_sequence = first_sequence.min(u64::MAX - u64::from(u32::MAX));
            let sequence = first_sequence + u64::from(relative);
            let watermark = sequence.saturating_sub(u64::from(lag.min(u32::MAX - 1)));
            let header = Header {
                crc: 0,
                predecessor_crc,
                body_len: 0,
                sequence: sequence.into(),
                watermark: watermark.into(),
                kind,
                time_us,
            };
            (Context::new(salt, first_sequence.into()), header)
        },
    )
}

pub(crate) fn segment_header() -> impl Strategy<Value = SegmentHeader> {
    // `u32::MAX` means "no segment", so it is never the ordinal of one.
    let previous = (unsigned32(), any::<u64>(), any::<u32>()).prop_map(|(ordinal, end, crc)| Previous {
        ordinal: ordinal.min(u32::MAX - 1),
        end,
        crc,
    });
    (unsigned32(), uuid(), any::<u64>(), any::<u64>(), any::<u64>(), prop::option::of(previous)).prop_map(
        |(ordinal, session, first_sequence, watermark, salt, previous)| SegmentHeader {
            ordinal,
            session,
            first_sequence: first_sequence.into(),
            watermark: watermark.into(),
            salt,
            previous,
        },
    )
}

/// Describes a change that corrupts well-formed bytes.
#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Truncate(Index),
    Insert(Index, Vec<u8>),
    Repeat(Index, Index),
    /// Replaces the bytes at the position with a token whose length exceeds the remaining bytes.
    Lie(Index, u8, u32),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            _ if bytes.is_empty() => {}
            Damage::Flip(at, bit) => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << (bit % 8);
            }
            Damage::Truncate(at) => bytes.truncate(at.index(bytes.len())),
            Damage::Insert(at, inserted) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, inserted.iter().copied());
            }
            Damage::Repeat(a, b) => {
                let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
                let copy = bytes[a.min(b)..=a.max(b)].to_vec();
                bytes.splice(a.min(b)..a.min(b), copy);
            }
            Damage::Lie(at, marker, len) => {
                let at = at.index(bytes.len());
                let lie = [&[*marker][..], &len.to_be_bytes()].concat();
                bytes.splice(at..=at, lie);
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let lying = prop::sample::select(vec![0xdd, 0xdf, 0xdb, 0xc6, 0xc9]);
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        any::<Index>().prop_map(Damage::Truncate),
        (any::<Index>(), prop::collection::vec(any::<u8>(), 1..6))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Damage::Repeat(a, b)),
        (any::<Index>(), lying, prop_oneof![Just(u32::MAX), unsigned32()])
            .prop_map(|(at, marker, len)| Damage::Lie(at, marker, len)),
    ]
}

/// Names of fields, of several kinds of body.
const NAMES: &[&str] = &[
    "v", "e", "d", "o", "x", "s", "r", "a", "b", "to", "id", "ver", "tags", "ev", "c", "calls", "blocks",
    "f", "j", "rate", "use", "n", "msgs", "fail", "of", "ns", "key", "t", "st", "i", "in", "lane", "at",
    "by", "epoch",
];

/// Draws tokens in any order: they are well-formed more often than random bytes are.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        prop::sample::select(vec![0xc0, 0xc2, 0xc3, 0x00, 0x7f, 0xff, 0x80, 0x90, 0x81, 0x91, 0x92, 0xa0])
            .prop_map(|byte| vec![byte]),
        prop::sample::select(NAMES).prop_map(|name| Value::from(name).encode()),
        any::<u8>().prop_map(|byte| vec![byte]),
        value().prop_map(|value| value.encode()),
    ];
    prop::collection::vec(fragment, 0..40).prop_map(|fragments| fragments.concat())
}

/// Draws hostile bytes: random ones, corrupted bodies, values, frames and headers, and bytes that
/// are nearly MessagePack.
pub(crate) fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let well_formed = prop_oneof![
        6 => body().prop_map(|(_, bytes)| bytes),
        2 => value().prop_map(|value| value.encode()),
        2 => any_form(),
        1 => deep(),
        1 => segment_header().prop_map(|header| header.encode().to_vec()),
        2 => (frame(), body()).prop_map(|((context, header), (_, body))| {
            let mut bytes = Vec::new();
            // A frame that cannot be encoded leaves no bytes, which is a hostile input too.
            let _ = foldlog_codec::frame::encode(context, &header, &body, &mut bytes);
            bytes
        }),
    ];
    let damaged = (well_formed, prop::collection::vec(damage(), 0..4)).prop_map(|(mut bytes, damage)| {
        damage.iter().for_each(|damage| damage.apply(&mut bytes));
        bytes
    });
    prop_oneof![
        4 => damaged,
        1 => prop::collection::vec(any::<u8>(), 0..300),
        1 => fragments(),
    ]
}
