//! No error message contains a control character, whatever text it quotes.

use std::path::PathBuf;

use foldlog_codec::escape;

use super::*;

const HOSTILE: &str = "a\u{1b}[2J\u{7}\r\n\u{9b}\u{202e}\u{2028}\u{feff}z";

fn text() -> String {
    HOSTILE.to_owned()
}

fn path() -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec([HOSTILE.as_bytes(), b"\xff"].concat()).into()
}

fn io() -> Arc<std::io::Error> {
    Arc::new(std::io::Error::other(HOSTILE))
}

fn inner() -> Arc<Error> {
    Arc::new(Error::Export(text()))
}

/// Returns an error of each kind, with hostile text in every field.
fn all() -> Vec<Error> {
    let (session, operation, sequence) = (Uuid::nil(), 1, 1);
    let open = OpenOperation {
        operation: operation.into(),
        begin: 1.into(),
        parent: None,
        tool: HOSTILE.into(),
        call_id: Some(HOSTILE.into()),
        idempotency: foldlog_codec::body::Idempotency::Manual,
        reads_only: false,
        outside_only: false,
        undoes: None,
        verifies: None,
        origin: None,
        had_effects_within: false,
    };
    let holder = Holder { pid: Some(1), host: Some(text()), since: Some(text()), ended: false };
    let corruption = Corruption {
        session: None,
        segment: path(),
        offset: 1,
        sequence: sequence.into(),
        expected_crc: Some(1),
        found_crc: Some(2),
        reason: text(),
    };
    vec![
        Error::Io { op: "open", path: path(), source: io() },
        Error::Full { path: path(), bytes: 1, source: io() },
        Error::NoHandle { path: path(), source: io() },
        Error::Forked { session },
        Error::SecondWriter { session, found: text() },
        Error::Corrupt(Box::new(corruption)),
        Error::OlderThanSuccessor {
            session,
            segment: path(),
            offset: 1,
            sequence: sequence.into(),
            successor: path(),
            end: 2,
        },
        Error::MissingSegment { session, ordinal: 1, path: path() },
        Error::WrongSession { path: path(), expected: session, found: session },
        Error::NotASession { path: path(), reason: text() },
        Error::NotAFile { path: path(), found: EntryKind::Pipe },
        Error::FutureFormat { path: path(), found: 2, supported: 1 },
        Error::CompactedMeanwhile { path: path() },
        Error::Collected { store: path(), capture: text() },
        Error::CompressionUnavailable { path: path(), codec: "zstd" },
        Error::FutureCompression { path: path(), version: 2, supported: 1, codec: 3 },
        Error::Locked { session, holder },
        Error::Poisoned { cause: inner() },
        Error::DurabilityUnknown { sequence: sequence.into(), cause: inner() },
        Error::Fenced { session, epoch: 2, by: text() },
        Error::Superseded { session, sequence: sequence.into() },
        Error::ReplicaAhead { session, local: 1.into(), held: 2.into() },
        Error::Replicated { session, at: text(), by: text() },
        Error::ReplicaElsewhere { session, at: text(), by: text(), epoch: 2, here: text(), held: 1 },
        Error::ReplicaBehind { session, records: 1, bytes: 2, time: std::time::Duration::from_secs(3) },
        Error::ReplicaUnknown { session, reason: text() },
        Error::ReplicaFailed { session, reason: text() },
        Error::ReadOnly { session, reason: text() },
        Error::NoSuchSession { session, path: path() },
        Error::WithinSession { path: path(), session_dir: path() },
        Error::WithinStore { path: path(), store: path() },
        Error::NotRegistered(vec![UnregisteredEvent { event: text(), slices: vec![text()] }]),
        Error::SlicesNotRegistered(vec![text()]),
        Error::PolicyMismatch { slice: text(), declared: Policy::Log, recorded: Policy::State },
        Error::DeclaredTwice { name: text(), reason: String::new() },
        Error::SliceUnbound { slice: text() },
        Error::NotAPath { slice: text(), path: text() },
        Error::UndeclaredEvent { event: text(), nearest: Some(text()) },
        Error::AlreadySettled {
            operation: operation.into(),
            decision: foldlog_codec::body::Decision::Failed,
            arguments: None,
            by: text(),
            sequence: sequence.into(),
        },
        Error::Blank { argument: "by" },
        Error::NoSuchSlice { slice: text(), reason: "" },
        Error::NewerVersion { name: text(), stored: 2, supported: 1 },
        Error::Decode { name: text(), sequence: sequence.into(), reason: text() },
        Error::Encode { name: text(), reason: text() },
        Error::Refused { slice: text(), event: text(), reason: text() },
        Error::ReducerPanicked { slice: text(), event: text(), message: text() },
        Error::LogOnlyGrows { slice: text(), operation: "" },
        Error::Object { path: path(), reason: text() },
        Error::Inconsistent { sequence: sequence.into(), reason: text() },
        Error::Export(text()),
        Error::Interrupted { session, operations: vec![open] },
        Error::Suspended {
            session: Uuid::from_u128(5),
            operation: operation.into(),
            form: SuspensionForm::Asks,
            question: text(),
        },
        Error::VisibilityExpansion { operation: operation.into(), overrides: text().into(), reason: text() },
        Error::ToolIdempotency { operation: operation.into(), tool: text() },
        Error::NoSuchTool(text()),
        Error::NoCheckpoint(text()),
        Error::AmbiguousCall { call_id: text(), operations: vec![1.into()] },
        Error::SnapshotMismatch(text()),
        Error::RestoreFailed { restored: vec![text()], failed: vec![(text(), inner())] },
        Error::Resource { resource: text(), reason: text() },
        Error::Filesystem(filesystem::Error::Path { path: text(), reason: text() }),
        Error::ResourceDirty {
            workspace: path(),
            session,
            session_dir: path(),
            operation: operation.into(),
            tool: text(),
        },
        Error::Uncaptured { capture: inner(), aside: inner() },
        Error::OverBudget { session_dir: path(), sequence: sequence.into(), needed: 2, budget: 1 },
        Error::ResourceMaybeDirty { workspace: path(), session, session_dir: path(), cause: inner() },
    ]
}

#[test]
fn no_message_holds_a_control_character_from_outside() {
    for error in all() {
        let message = error.to_string();
        assert!(!message.contains(escape::is_escaped), "{error:?}");
    }
}
