//! The golden images: sessions at rest, within a call, with conversations, after a compaction, with
//! suspended calls, and replicated.

use std::collections::BTreeMap;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{
    CallOrigin, Decision, Declare, Idempotency, InnerCall, ItemId, Policy, Rollback, SessionOpening,
    SliceDeclaration, Suspension, SuspensionForm,
};
use foldlog_codec::image::{
    BegunImage, BegunSlice, ConversationEntry, ConversationsImage, EntryKind, Image, ItemImage, LastFrame,
    OpenOperation, RecordLocation, RunFate, SliceImage, SuspendedOperation, SuspensionDecision,
    UnsettledOperation,
};
use uuid::Uuid;

use super::{PREDECESSOR_CRC, SESSION, context, tags};

/// Returns images of a session at rest, within a call while an interrupted operation waits to be
/// settled, with conversations, after a compaction, with suspended calls, and of a replicated
/// session.
pub(crate) fn images() -> [(&'static str, Image<'static>); 6] {
    let item = |sequence, ordinal, bytes| ItemImage { id: ItemId { sequence, ordinal }, version: 2, bytes };
    let opened = SessionOpening { session: SESSION, seed: 3, tags: BTreeMap::new(), parent: None };
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
        index: vec![RecordLocation { sequence: 0.into(), ordinal: 0, offset: 84 }],
        compacted: Vec::new(),
        unsealed: Vec::new(),
        declared: Declare {
            events: Vec::new(),
            slices: vec![slice(0, "plan", Policy::State), slice(1, "notes", Policy::Log)],
        },
        tags: tags([("user", "ada")]),
        replicated: None,
        unsupported: None,
        open: Vec::new(),
        unsettled: Vec::new(),
        suspended: Vec::new(),
        begun: Vec::new(),
        conversations: ConversationsImage::default(),
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
        tool: "write".into(),
        call_id: Some("call_7".into()),
        idempotency: Idempotency::Keyed,
        reads_only: false,
        outside_only: false,
        undoes: None,
        verifies: None,
        origin: Some(CallOrigin { answer: 17.into(), ordinal: 1 }),
        had_effects_within: true,
    };
    let unsettled = UnsettledOperation {
        operation: 11.into(),
        begin: 12.into(),
        tool: "send".into(),
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
    let behind = Image {
        compacted: vec![(0, 77), (1, u64::MAX)],
        unsealed: vec![(2, 78), (u32::MAX, 0)],
        ..at_rest.clone()
    };
    let conversing = Image { conversations: conversations(), ..within_a_call.clone() };
    let waiting = Image {
        suspended: suspended(),
        conversations: ConversationsImage {
            entries: vec![of_suspended(21, EntryKind::Suspended), of_suspended(22, EntryKind::Decided)],
            ..conversations()
        },
        ..at_rest.clone()
    };
    let replicated = Image { replicated: Some(super::replicated()), ..at_rest.clone() };
    [
        ("image-at-rest", at_rest),
        ("image-within-a-call", within_a_call),
        ("image-with-conversations", conversing),
        ("image-behind-a-compaction", behind),
        ("image-with-suspended-calls", waiting),
        ("image-of-a-replicated-session", replicated),
    ]
}

fn of_suspended(sequence: u64, kind: EntryKind) -> (SequenceNumber, ConversationEntry) {
    let entry = ConversationEntry {
        kind,
        evaluation: 0,
        within: None,
        origin: Some(CallOrigin { answer: 17.into(), ordinal: 1 }),
        number: 20,
        flag: kind == EntryKind::Decided,
    };
    (sequence.into(), entry)
}

/// Returns a call that asks, and one that was approved and waits for a call in another session.
fn suspended() -> Vec<SuspendedOperation> {
    let asks = SuspendedOperation {
        operation: 11.into(),
        begin: 11.into(),
        end: 12.into(),
        parent: None,
        tool: "send".into(),
        call_id: None,
        origin: None,
        idempotency: Idempotency::Manual,
        suspension: Suspension::new(SuspensionForm::Asks, [0xa5; 32]),
        decided: None,
    };
    let within = SuspendedOperation {
        operation: 13.into(),
        begin: 15.into(),
        end: 19.into(),
        parent: Some(10.into()),
        tool: "delegate".into(),
        call_id: Some("call_7".into()),
        origin: Some(CallOrigin { answer: 17.into(), ordinal: 1 }),
        idempotency: Idempotency::Keyed,
        suspension: Suspension {
            form: SuspensionForm::Within,
            expires_us: Some(1_767_323_045_006_007),
            inner: Some(InnerCall { session: Some(SESSION), operation: 7.into() }),
            ..Suspension::new(SuspensionForm::Within, [0x5a; 32])
        },
        decided: Some(SuspensionDecision {
            sequence: 20.into(),
            decision: Decision::RunAgain,
            until_us: Some(1_767_323_045_006_007),
        }),
    };
    vec![asks, within]
}

/// Returns an entry of every kind, in two conversations, and the outcomes of runs within which some
/// were written.
fn conversations() -> ConversationsImage<'static> {
    let kinds = [
        EntryKind::Input,
        EntryKind::Request,
        EntryKind::RequestFailed,
        EntryKind::Answer,
        EntryKind::Result,
        EntryKind::Committed,
        EntryKind::Failed,
        EntryKind::Interrupted,
        EntryKind::Settled,
        EntryKind::Turn,
        EntryKind::Shortened,
        EntryKind::PromptAccepted,
        EntryKind::AdapterState,
    ];
    let of_call = |kind| {
        let calls = [
            EntryKind::Result,
            EntryKind::Committed,
            EntryKind::Failed,
            EntryKind::Interrupted,
            EntryKind::Settled,
        ];
        calls.contains(&kind).then_some(CallOrigin { answer: 24.into(), ordinal: 2 })
    };
    let entry = |(sequence, kind): (u64, EntryKind)| {
        let entry = ConversationEntry {
            kind,
            evaluation: u32::from(kind == EntryKind::AdapterState),
            within: (kind == EntryKind::Input).then_some(SequenceNumber::new(20)),
            origin: of_call(kind),
            number: if kind == EntryKind::Answer { 3 } else { 0 },
            flag: kind == EntryKind::Turn,
        };
        (sequence.into(), entry)
    };
    ConversationsImage {
        evaluations: vec!["evaluation 1", "evaluation 2"],
        entries: (21..).zip(kinds).map(entry).collect(),
        runs: vec![
            (18.into(), RunFate { parent: None, ended: None }),
            (20.into(), RunFate { parent: Some(18.into()), ended: Some((35.into(), true)) }),
        ],
        rollbacks: vec![(9.into(), 3.into())],
    }
}
