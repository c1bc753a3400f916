//! The validator's findings in a log, in addition to its state: seals, and the hashes of
//! checkpoints.

use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::storage::MemoryStorage;
use foldlog::{BackgroundSync, FixedClock, RecordKind, SequenceNumber, Session, Store, StoreOptions};
use foldlog_codec::body::Seal;
use foldlog_codec::frame::{self, Context};
use foldlog_codec::segment::{self, SegmentHeader};
use foldlog_tasks::{
    Checkpoint, CheckpointCreated, CheckpointId, CheckpointManager, DependencyAdded, DependencyType, NewTask,
    RepairObstacle, RetentionPolicy, StateValidator, TaskStatus, ValidationResult, WorkspaceStores,
};

use super::{BEGIN_US, change, create, id, refusal, store_on, task, types};

fn validate(disk: &MemoryStorage, session: &Session, position: SequenceNumber) -> ValidationResult {
    let log = LogReader::open_on(Arc::new(disk.clone()), session.dir()).unwrap();
    StateValidator::new().validate_log(&log, position, &WorkspaceStores::none()).unwrap()
}

fn lines(result: &ValidationResult) -> Vec<String> {
    result.issues.iter().map(ToString::to_string).collect()
}

/// Creates a session with three tasks, the second one with this title, and a manager of its
/// checkpoints. All such sessions have the same id.
fn session_with(disk: &MemoryStorage, title: &str) -> CheckpointManager {
    let (store, _) = store_on(disk, false);
    let session = store.create(&types()).unwrap();
    for (name, title) in [("a", "A"), ("b", title), ("c", "C")] {
        create(&session, NewTask { title: title.to_owned(), ..task(name) }).unwrap();
    }
    CheckpointManager::new(session)
}

/// A checkpoint determines its records. If its own record differs, that is reported at each later
/// position, and later checkpoints still match their records.
#[test]
fn a_checkpoint_whose_record_was_altered_is_critical_and_the_others_are_not() {
    let disk = MemoryStorage::new();
    let manager = session_with(&disk, "B");
    let session = manager.session().clone();
    let first = manager.create(None).unwrap();
    let sound = session.log().position().unwrap();
    let snapshot = session.snapshot(Default::default()).unwrap();
    let altered = Checkpoint { id: CheckpointId(2), position: snapshot.position, ..first.clone() };
    session.dispatch(CheckpointCreated { checkpoint: altered.clone() }).unwrap();
    // Later checkpoints depend on removed ones.
    let retention = RetentionPolicy { count: Some(1), ..RetentionPolicy::default() };
    let strict = CheckpointManager::new(session.clone()).with_retention(retention);
    strict.create(None).unwrap();
    assert_eq!(strict.list().unwrap().len(), 1);

    let result = validate(&disk, &session, sound);
    assert_eq!((result.is_valid, lines(&result)), (true, Vec::new()));
    let result = validate(&disk, &session, session.log().position().unwrap());
    let found = lines(&result);
    let begin = format!(
        "critical checkpoint-hashes: checkpoint_002 of record {} has a different digest than recorded: recorded {}, found ",
        altered.position, first.validation_hash
    );
    assert!(found.len() == 1 && found[0].starts_with(&begin), "{found:#?}");
    let plan = result.repair_plan;
    assert_eq!(
        (result.is_valid, plan.steps.len(), plan.unrepairable[0].why),
        (false, 0, RepairObstacle::Damaged)
    );
}

/// The altered record has a valid frame; the next checkpoint reveals it.
#[test]
fn a_checkpoint_tells_of_a_record_before_it_that_was_altered() {
    let [one, other] = [MemoryStorage::new(), MemoryStorage::new()];
    let told = session_with(&one, "B").create(None).unwrap();
    let altered = session_with(&other, "Another");
    let session = altered.session();
    assert_eq!(session.id(), told.session_id, "the same but for one title");
    session.snapshot(Default::default()).unwrap();
    session.dispatch(CheckpointCreated { checkpoint: told.clone() }).unwrap();
    let result = validate(&other, session, session.log().position().unwrap());
    let found = lines(&result);
    assert!(found.len() == 1 && found[0].contains("checkpoint_001 of record"), "{found:#?}");
    assert!(found[0].contains(&told.validation_hash) && !result.is_valid);
}

/// The digest of the seal is wrong, though each frame is intact.
#[test]
fn a_seal_with_another_digest_than_its_records_is_critical() {
    let disk = MemoryStorage::new();
    let segments = SegmentSizes { first_bytes: 1 << 10, max_bytes: 1 << 10, ahead_bytes_min: 1 << 10 };
    let options = StoreOptions {
        storage: Arc::new(disk.clone()),
        clock: Arc::new(FixedClock::new(BEGIN_US)),
        background: BackgroundSync::Inline,
        segments,
        ..StoreOptions::default()
    };
    let session = Store::open_with("/store", options).unwrap().create(&types()).unwrap();
    for name in ["a", "b", "c", "d", "e", "f"] {
        create(&session, NewTask { description: "x".repeat(2_000), ..task(name) }).unwrap();
    }
    let position = session.log().position().unwrap();
    session.clone().close().unwrap();
    assert_eq!(lines(&validate(&disk, &session, position)), [""; 0]);

    let mut files: Vec<_> =
        disk.files().into_iter().filter(|path| path.extension().is_some_and(|of| of == "seg")).collect();
    files.sort();
    disk.mutate_file(&files[0], |bytes| {
        let header = SegmentHeader::decode(bytes).unwrap();
        let context = Context::new(header.salt, header.first_sequence);
        let mut at = segment::HEADER_LEN;
        let (header, body) = loop {
            let frame = frame::decode(context, &bytes[at..]).unwrap();
            if frame.header.kind == RecordKind::Seal {
                let seal = Seal::decode(frame.body).unwrap();
                break (frame.header, Seal { hash: [7; 32], ..seal }.encode());
            }
            at += frame.len();
        };
        let mut forged = Vec::new();
        frame::encode(context, &header, &body, &mut forged).unwrap();
        bytes[at..at + forged.len()].copy_from_slice(&forged);
    })
    .unwrap();
    let result = validate(&disk, &session, position);
    let found = lines(&result);
    assert!(
        found.len() == 1 && found[0].starts_with("critical seals: a segment of the log has"),
        "{found:#?}"
    );
    assert!(!result.is_valid);
}

/// A session gave a task in progress a dependency on an unfinished one, and the validator reported
/// the resulting state as impossible.
#[test]
fn a_task_that_is_being_worked_on_requires_nothing_that_is_not_done_until_it_waits() {
    let disk = MemoryStorage::new();
    let manager = session_with(&disk, "B");
    let session = manager.session();
    let depends = |on: &str, dep_type| {
        session.dispatch(DependencyAdded { from: id("a"), to: id(on), dep_type }).map(drop)
    };
    change(session, "a", TaskStatus::Pending, TaskStatus::InProgress).unwrap();
    let position = session.log().position();
    let refused = refusal(depends("b", DependencyType::Requires));
    assert_eq!(refused, "task `a` is in_progress, and `b`, which it would require, is pending");
    assert_eq!(session.log().position(), position, "nothing is recorded");
    depends("c", DependencyType::Prefers).unwrap();
    change(session, "a", TaskStatus::InProgress, TaskStatus::Pending).unwrap();
    depends("b", DependencyType::Requires).unwrap();
    let result = validate(&disk, session, session.log().position().unwrap());
    assert_eq!(lines(&result), [""; 0]);
}
