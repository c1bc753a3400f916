//! The golden frames: one for each shape of each kind that version 1 writes.

use std::sync::OnceLock;

use foldlog_codec::RecordKind;
use foldlog_codec::body::{
    Action, AddedItems, Base, BaseSlice, Binding, BuiltIn, CallOrigin, Cause, ClosedCall, Compacted,
    Decision, Declare, Dispatch, Dropped, Effect, EventDeclaration, ExternalEffects, Idempotency, Import,
    ImportedSlice, InnerCall, ItemId, ItemRun, Lane, NotUndone, ObjectId, Observed, Outcome, Parent, Payload,
    Policy, RemovedItems, ReplacedParts, ResourceSnapshot, Resumed, Rollback, Seal, SessionOpening, Settle,
    SliceDeclaration, SnapshotBody, Suspension, SuspensionForm, ToolBegin, ToolEnd,
};

use super::conversations::{TEXT, adapter_states, conversations};
use super::{Body, EVENT, Golden, ITEM, OTHER, SESSION, TIME_US, tags};

pub(crate) fn goldens() -> Vec<Golden> {
    [
        opened_and_declared(),
        dispatches(),
        positions(),
        calls(),
        decisions_and_observations(),
        in_lanes(),
        imports(),
        conversations(),
        adapter_states(),
        envelopes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn golden(name: &'static str, kind: RecordKind, body: Body) -> Golden {
    Golden { name, kind, body, lane: Lane::default() }
}

/// Returns the lane of all records outside of the main lane.
pub(crate) fn lane() -> Lane<'static> {
    Lane { within: Some(1_005.into()), name: Some("helper".into()) }
}

/// Returns records of a lane, of a tool's handle without a lane, and of a lane outside of all
/// tools: one of each kind. Those of conversations have theirs among their own.
fn in_lanes() -> Vec<Golden> {
    let laned = |name, kind, body, lane| Golden { lane, ..golden(name, kind, body) };
    let event = Action::Event { event: 0, data: Payload::new(EVENT) };
    let dispatch = |action| Body::Dispatch(Dispatch { action, effects: None });
    let tag = Action::Tag { key: "team".to_owned(), value: Some("red".to_owned()) };
    let snapshot = SnapshotBody { tag: None, policies: vec![Policy::State], resources: Vec::new() };
    let settle = Settle::new(1_005.into(), Decision::Failed, "the host", "");
    let observed = Observed { name: "host.mail".to_owned(), data: Payload::new(EVENT) };
    let (within, named) = (Lane { name: None, ..lane() }, Lane { within: None, ..lane() });
    vec![
        laned("dispatch-within", RecordKind::Dispatch, dispatch(event.clone()), within.clone()),
        laned("dispatch-lane", RecordKind::Dispatch, dispatch(event), lane()),
        laned("dispatch-tag-lane", RecordKind::Dispatch, dispatch(tag), named.clone()),
        laned("snapshot-lane", RecordKind::Snapshot, Body::Snapshot(snapshot), lane()),
        laned(
            "rollback-within",
            RecordKind::Rollback,
            Body::Rollback(Rollback { to: 1_006.into(), preserve_logs: true }),
            within,
        ),
        laned("tool-begin-lane", RecordKind::ToolBegin, Body::ToolBegin(begin()), named.clone()),
        laned("settle-lane", RecordKind::Settle, Body::Settle(settle), named),
        laned("observed-lane", RecordKind::Observed, Body::Observed(observed), lane()),
    ]
}

fn opened_and_declared() -> Vec<Golden> {
    let opened = |name, tags, parent| {
        golden(
            name,
            RecordKind::Opened,
            Body::Opened(SessionOpening { session: SESSION, seed: 0xfeed_f00d_dead_beef, tags, parent }),
        )
    };
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
        golden("declare", RecordKind::Declare, Body::Declare(declaration())),
        golden(
            "declare-one-slice",
            RecordKind::Declare,
            Body::Declare(Declare { events: vec![], slices: declaration().slices.split_off(3) }),
        ),
    ]
}

/// Returns dispatches: effects as declared and written out, and actions of the engine.
fn dispatches() -> Vec<Golden> {
    let dispatch = |name, action, effects| {
        golden(name, RecordKind::Dispatch, Body::Dispatch(Dispatch { action, effects }))
    };
    let event = |data| Action::Event { event: 0, data: Payload::new(data) };
    let id = |sequence, ordinal| ItemId { sequence, ordinal };
    let items = |items: Vec<Payload<'static>>, version| AddedItems::Items { items, version };
    vec![
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
                removed: RemovedItems::Items(vec![id(12.into(), 0), id(900.into(), 65_536)]),
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
                removed: RemovedItems::All,
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
                removed: RemovedItems::None,
                added: items(vec![Payload::new(ITEM), Payload::new(b"\xa5hello")], 1),
                before: None,
            }]),
        ),
        dispatch(
            "dispatch-clear",
            Action::Clear,
            Some(vec![Effect {
                slice: 0,
                removed: RemovedItems::Items(vec![id(0.into(), 0), id(1.into(), 2)]),
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
    ]
}

fn positions() -> Vec<Golden> {
    vec![
        golden(
            "snapshot-plain",
            RecordKind::Snapshot,
            Body::Snapshot(SnapshotBody { tag: None, policies: vec![Policy::State], resources: Vec::new() }),
        ),
        golden(
            "snapshot-tagged",
            RecordKind::Snapshot,
            Body::Snapshot(SnapshotBody {
                tag: Some("before the refactoring".to_owned()),
                policies: vec![Policy::State, Policy::Log],
                resources: Vec::new(),
            }),
        ),
        golden(
            "snapshot-captured",
            RecordKind::Snapshot,
            Body::Snapshot(SnapshotBody {
                tag: Some("with the workspace".to_owned()),
                policies: vec![Policy::State],
                resources: vec![ResourceSnapshot {
                    resource: "workspace".into(),
                    snapshot: Some(Payload::new(ITEM)),
                }],
            }),
        ),
        golden(
            "rollback-keeping-logs",
            RecordKind::Rollback,
            Body::Rollback(Rollback { to: 1_001.into(), preserve_logs: true }),
        ),
        golden(
            "rollback-of-everything",
            RecordKind::Rollback,
            Body::Rollback(Rollback { to: 0.into(), preserve_logs: false }),
        ),
    ]
}

fn calls() -> Vec<Golden> {
    vec![
        golden("tool-begin", RecordKind::ToolBegin, Body::ToolBegin(begin())),
        golden(
            "tool-begin-nested-and-again",
            RecordKind::ToolBegin,
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
        golden(
            "tool-begin-closed",
            RecordKind::ToolBegin,
            Body::ToolBegin(ToolBegin {
                origin: Some(CallOrigin { answer: 1_001.into(), ordinal: 3 }),
                idempotency: Idempotency::Natural,
                reads_only: true,
                closed: Some(ClosedCall { cause: Cause::UnknownTool, shown: Payload::new(b"\xa7no tool") }),
                ..begin()
            }),
        ),
        golden(
            "tool-begin-outside",
            RecordKind::ToolBegin,
            Body::ToolBegin(ToolBegin { reads_only: true, outside_only: true, ..begin() }),
        ),
        golden(
            "tool-begin-verifying",
            RecordKind::ToolBegin,
            Body::ToolBegin(ToolBegin {
                idempotency: Idempotency::Verify,
                verifies: Some(1_004.into()),
                ..begin()
            }),
        ),
        golden(
            "tool-end-verifying",
            RecordKind::ToolEnd,
            Body::ToolEnd(ToolEnd { verifies: Some(1_004.into()), ..end() }),
        ),
        golden("tool-end-committed", RecordKind::ToolEnd, Body::ToolEnd(end())),
        golden(
            "tool-end-failed",
            RecordKind::ToolEnd,
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
            RecordKind::ToolEnd,
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
            "tool-end-replaced",
            RecordKind::ToolEnd,
            Body::ToolEnd(ToolEnd {
                outcome: Outcome::Failed,
                cause: Some(Cause::Error),
                rolls_back: true,
                result: None,
                replaced: vec![ReplacedParts {
                    resource: "workspace".into(),
                    changed: vec!["src/main.rs".into(), "src/lib.rs".into()],
                    removed: vec!["notes.txt".into()],
                    more: 3,
                }],
                ..end()
            }),
        ),
        golden(
            "tool-end-interrupted",
            RecordKind::ToolEnd,
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
            "tool-end-asks",
            RecordKind::ToolEnd,
            Body::ToolEnd(ToolEnd {
                outcome: Outcome::Suspended,
                rolls_back: true,
                result: None,
                suspension: Some(Suspension::new(SuspensionForm::Asks, [0xa5; 32])),
                resources: vec![],
                ..end()
            }),
        ),
        golden(
            "tool-end-exit-code",
            RecordKind::ToolEnd,
            Body::ToolEnd(ToolEnd { exit_code: Some(3), ..end() }),
        ),
        golden(
            "tool-end-awaits",
            RecordKind::ToolEnd,
            Body::ToolEnd(ToolEnd {
                outcome: Outcome::Suspended,
                result: None,
                suspension: Some(Suspension {
                    expires_us: Some(1_767_323_045_006_007),
                    ..Suspension::new(SuspensionForm::Awaits, [0xa5; 32])
                }),
                ..end()
            }),
        ),
        golden(
            "tool-end-suspended-within",
            RecordKind::ToolEnd,
            Body::ToolEnd(ToolEnd {
                outcome: Outcome::Suspended,
                rolls_back: true,
                result: None,
                suspension: Some(Suspension {
                    inner: Some(InnerCall { session: Some(OTHER), operation: 7.into() }),
                    ..Suspension::new(SuspensionForm::Within, [0xa5; 32])
                }),
                resources: vec![],
                ..end()
            }),
        ),
    ]
}

fn decisions_and_observations() -> Vec<Golden> {
    vec![
        golden(
            "settle-committed",
            RecordKind::Settle,
            Body::Settle(Settle {
                result: Some(Payload::new(EVENT)),
                ..Settle::new(1_005.into(), Decision::Committed, "a person", "the mail was sent")
            }),
        ),
        golden(
            "settle-run-again",
            RecordKind::Settle,
            Body::Settle(Settle::new(1_005.into(), Decision::RunAgain, "the host", "")),
        ),
        golden(
            "settle-approved",
            RecordKind::Settle,
            Body::Settle(Settle {
                arguments: Some([0xa5; 32]),
                until_us: Some(1_767_323_045_006_007),
                ..Settle::new(1_005.into(), Decision::RunAgain, "a person", "go on")
            }),
        ),
        golden(
            "settle-shown",
            RecordKind::Settle,
            Body::Settle(Settle {
                shown: Some(Payload::new(TEXT)),
                ..Settle::new(1_005.into(), Decision::Failed, "a person", "not now")
            }),
        ),
        golden(
            "observed",
            RecordKind::Observed,
            Body::Observed(Observed { name: "host.mail".to_owned(), data: Payload::new(EVENT) }),
        ),
        golden("replicated", RecordKind::Replicated, Body::Replicated(super::replicated())),
    ]
}

fn imports() -> Vec<Golden> {
    vec![
        golden(
            "import",
            RecordKind::Import,
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
            RecordKind::Import,
            Body::Import(Import { from: None, exported_at_us: None, tags: tags([]), slices: vec![] }),
        ),
    ]
}

/// Returns envelope frames, and frames of kinds of a later version.
fn envelopes() -> Vec<Golden> {
    vec![
        golden("synced", RecordKind::Synced, Body::Bytes(b"")),
        golden("closed", RecordKind::Closed, Body::Bytes(b"")),
        golden(
            "seal",
            RecordKind::Seal,
            Body::Seal(Seal { next: 8, records: 4_321, hash: ObjectId::from_content(b"records").hash }),
        ),
        golden(
            "dropped",
            RecordKind::Dropped,
            Body::Dropped(Dropped {
                kind: RecordKind::Dispatch,
                len: 300,
                hash: ObjectId::from_content(b"dropped").hash,
            }),
        ),
        golden(
            "compacted",
            RecordKind::Compacted,
            Body::Compacted(Compacted {
                through: 987.into(),
                end: 1_234,
                replaced_end: 65_500,
                replaced_crc: 0x0bad_cafe,
            }),
        ),
        golden(
            "base",
            RecordKind::Base,
            Body::Base(Base {
                position: 987.into(),
                goes_on: false,
                slices: vec![
                    BaseSlice { slice: 0, items: vec![run(12, 0, 1, 30), run(7, 2, 3, 1)] },
                    BaseSlice { slice: 2, items: Vec::new() },
                ],
            }),
        ),
        golden(
            "base-that-goes-on",
            RecordKind::Base,
            Body::Base(Base { position: 987.into(), goes_on: true, slices: Vec::new() }),
        ),
        golden(
            "resumed",
            RecordKind::Resumed,
            Body::Resumed(Resumed {
                epoch: 5,
                boot_id: Some(OTHER),
                clock_us: TIME_US,
                recovered: None,
                began: Vec::new(),
            }),
        ),
        golden(
            "resumed-by-a-recovery",
            RecordKind::Resumed,
            Body::Resumed(Resumed {
                epoch: 6,
                boot_id: Some(OTHER),
                clock_us: TIME_US,
                recovered: Some(4_321.into()),
                began: Vec::new(),
            }),
        ),
        golden(
            "resumed-behind-others",
            RecordKind::Resumed,
            Body::Resumed(Resumed {
                epoch: 7,
                boot_id: Some(OTHER),
                clock_us: TIME_US,
                recovered: Some(4_325.into()),
                began: vec![4_300.into(), 4_321.into()],
            }),
        ),
        golden(
            "resumed-on-an-unknown-machine",
            RecordKind::Resumed,
            Body::Resumed(Resumed {
                epoch: 0,
                boot_id: None,
                clock_us: -1,
                recovered: None,
                began: Vec::new(),
            }),
        ),
        golden("declared", RecordKind::Declared, Body::Declare(declaration())),
        // Kinds of a later version: a value, and bytes that are no value.
        golden("unknown-content", later(77), Body::Bytes(b"\x82\xa1n\x2a\xa4list\x92\xc0\xc4\x02\x00\xff")),
        golden("unknown-envelope", later(200), Body::Bytes(b"\xc1 no MessagePack")),
    ]
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
        outside_only: false,
        again: None,
        undoes: None,
        verifies: None,
        resources: vec![],
        closed: None,
    }
}

pub(crate) fn end() -> ToolEnd<'static> {
    ToolEnd {
        begin: 1_005.into(),
        again: None,
        tool: "write_file".into(),
        call_id: None,
        origin: None,
        parent: None,
        undoes: None,
        verifies: None,
        outcome: Outcome::Committed,
        cause: None,
        exit_code: None,
        rolls_back: false,
        outside: ExternalEffects::None,
        elapsed_us: 1_234,
        result: Some(Payload::new(EVENT)),
        shown: Some(Payload::new(b"\xa4done")),
        overrides: None,
        suspension: None,
        resources: resources(),
        not_undone: vec![],
        replaced: vec![],
        slice: 2,
    }
}

pub(crate) fn declaration() -> Declare {
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

pub(super) fn object_reference() -> &'static [u8] {
    static REFERENCE: OnceLock<Vec<u8>> = OnceLock::new();
    REFERENCE.get_or_init(|| ObjectId::from_content(&[0x5a; 100_000]).reference())
}
/// Returns the kind of a byte that only a later version can name.
pub(crate) fn later(byte: u8) -> RecordKind {
    RecordKind::from_byte(byte).expect("only 0 is no kind")
}

fn run(sequence: u64, ordinal: u32, version: u32, count: u32) -> ItemRun {
    ItemRun { first: ItemId { sequence: sequence.into(), ordinal }, version, count }
}
