//! Bad input in the log's files: damage is either found and named, or it affects only
//! unacknowledged records, which are left out and reported. No other content than the written one
//! is ever accepted.

mod bytes;
pub(crate) mod everything;
mod frames;
mod images;
mod known_again;
mod noise;
mod objects;
mod salvage;
mod seals;
mod segments;
mod survey;

use std::path::Path;

use foldlog::storage::CrashKind;
use foldlog::{Corruption, Durability, Error};
use foldlog_test_support::crash::{FrameAt, Machine, write_steps};
use foldlog_test_support::host::types;
use uuid::Uuid;

/// Returns a closed session of three segments, all of them attested.
fn attested() -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_steps(&session, 8);
    session.snapshot(foldlog::SnapshotOptions::with_tag("here")).unwrap();
    write_steps(&session, 5);
    session.rollback_to(4).unwrap();
    write_steps(&session, 8);
    let id = session.id();
    session.close().unwrap();
    let session = machine.open(id, Durability::Boundary).unwrap();
    write_steps(&session, 1);
    session.sync().unwrap();
    write_steps(&session, 2);
    session.close().unwrap();
    assert_eq!(machine.segments(id).len(), 3);
    (machine, id)
}

/// Returns a session whose last segments a killed process wrote at the durability without syncs.
fn unattested() -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    write_steps(&session, 4);
    let id = session.id();
    session.close().unwrap();
    let session = machine.open(id, Durability::Process).unwrap();
    write_steps(&session, 10);
    machine.crash(CrashKind::Process);
    assert_eq!(machine.segments(id).len(), 2);
    (machine, id)
}

/// Returns the result of both opening and auditing, which must agree; neither changes a byte.
fn judge(machine: &Machine, id: Uuid) -> Result<u64, Error> {
    let dir = machine.dir(id);
    let files =
        || machine.disk.dump().into_iter().filter(|(path, _)| path.starts_with(&dir)).collect::<Vec<_>>();
    let before = files();
    let audit = machine.audit(id);
    let opened = machine.open(id, Durability::Boundary);
    assert!(before == files(), "opening changed what was there");
    match (audit, opened) {
        (Ok(audit), Ok(session)) => {
            assert_eq!(audit.state().unwrap(), session.dynamic().state().unwrap());
            assert_eq!(audit.report(), session.log().recovery());
            // Before 2024 no question of these logs expires.
            assert_eq!(
                audit.pending_questions(Default::default()).unwrap(),
                session.calls().pending_questions().unwrap()
            );
            Ok(audit.records_len())
        }
        (Err(audit), Err(opened)) => {
            assert_eq!(audit.to_string(), opened.to_string());
            Err(audit)
        }
        (audit, opened) => panic!("the auditor says {:?}, opening {opened:?}", audit.map(drop)),
    }
}

fn corruption(error: Error) -> Corruption {
    match error {
        Error::Corrupt(corruption) => *corruption,
        other => panic!("{other}"),
    }
}

fn flip(machine: &Machine, path: &Path, at: usize) {
    machine.disk.mutate_file(path, |bytes| bytes[at] = !bytes[at]).unwrap();
}

/// Returns the end of a file's used part.
fn used(machine: &Machine, path: &Path) -> usize {
    let bytes = machine.disk.read_file(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Returns the frame that contains a byte of a segment.
fn frame_at<'a>(frames: &'a [FrameAt], path: &Path, at: usize) -> Option<&'a FrameAt> {
    frames.iter().find(|frame| frame.segment == path && frame.start <= at && at < frame.end)
}
