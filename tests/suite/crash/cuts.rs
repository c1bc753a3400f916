//! Logs that end too early: cut at any byte, or missing whole segments.

use std::path::Path;

use foldlog::storage::CrashKind;
use foldlog::{Durability, Error};
use foldlog_test_support::crash::{BOOT, FrameAt, Machine, OTHER_BOOT, count, write_steps};
use foldlog_test_support::host::types;
use foldlog_test_support::killed;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Truncated,
    /// The bytes from there on are zeros.
    Zeroed,
}

impl Cut {
    fn make(self, machine: &Machine, path: &Path, at: usize) {
        let cut = |bytes: &mut Vec<u8>| match self {
            Cut::Truncated => bytes.truncate(at),
            Cut::Zeroed => bytes[at..].fill(0),
        };
        machine.disk.mutate_file(path, cut).unwrap();
    }
}

/// Creates a session of several segments. If closed, all of it is attested; otherwise a killed
/// process wrote its last records at the durability without syncs.
fn session_of_segments(closed: bool) -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = machine.process(Durability::Every).create(&types()).unwrap();
    let id = session.id();
    write_steps(&session, 25);
    session.close().unwrap();
    let durability = if closed { Durability::Every } else { Durability::Process };
    let session = machine.open(id, durability).unwrap();
    write_steps(&session, 3);
    if closed {
        session.close().unwrap();
    } else {
        machine.crash(CrashKind::Process);
    }
    assert!(machine.segments(id).len() >= 3);
    (machine, id)
}

fn records_below(frames: &[FrameAt], segment: &Path, at: usize) -> u64 {
    let before = |frame: &&FrameAt| frame.segment != segment || frame.end <= at;
    frames.iter().filter(before).filter(|frame| !frame.kind.is_envelope()).count() as u64
}

/// Nothing after the cut proves that more existed, so the intact records before it are the log.
#[test]
fn a_log_cut_at_any_byte_of_its_last_records_is_what_stands_before_the_cut() {
    for closed in [true, false] {
        let (whole, id) = session_of_segments(closed);
        let frames = whole.frames(id).unwrap();
        let last = frames.last().unwrap();
        let from = frames[frames.len() - 4].start;
        for (cut, boot) in
            [Cut::Truncated, Cut::Zeroed].iter().flat_map(|cut| [(cut, BOOT), (cut, OTHER_BOOT)])
        {
            let ends = frames.iter().map(|frame| frame.end).filter(|end| (from..=last.end).contains(end));
            for at in (from..=last.end).step_by(killed::step(3)).chain(ends) {
                let machine = whole.copied(boot);
                cut.make(&machine, &last.segment, at);
                let told = format!("closed: {closed}, {cut:?} at {at}");
                let left = records_below(&frames, &last.segment, at);
                let audit = machine.audit(id).unwrap_or_else(|error| panic!("{told}: {error}"));
                assert_eq!(audit.records_len(), left, "{told}");
                let mut here = frames.iter().filter(|frame| frame.segment == last.segment);
                let boundary = here.any(|frame| frame.start == at || frame.end == at);
                match &audit.report().torn {
                    None => assert!(boundary, "{told}"),
                    Some(torn) => {
                        assert!(!boundary, "{told}: {torn:?}");
                        assert_eq!((torn.sequence, &torn.segment), (left.into(), &last.segment), "{told}");
                        assert!(torn.bytes > 0 && torn.offset < at as u64, "{told}: {torn:?}");
                    }
                }
                let session = machine.open(id, Durability::Every).unwrap();
                assert_eq!(session.dynamic().state().unwrap(), audit.state().unwrap(), "{told}");
                assert_eq!(session.set_tag("after", "the cut").unwrap(), left, "{told}");
                machine.crash(CrashKind::PowerLosingAll);
                assert_eq!(count(&machine.open(id, Durability::Every).unwrap()), left + 1, "{told}");
            }
        }
    }
}

#[test]
fn a_log_short_of_whole_segments_is_missing_them_and_nothing_else() {
    let (whole, id) = session_of_segments(true);
    let paths = whole.segments(id);
    let last = paths.len() - 1;
    let ways: [(&[usize], usize); 5] =
        [(&[last], last), (&[last - 1, last], last - 1), (&[1], 1), (&[0], 0), (&[0, 1], 1)];
    for ((gone, missing), boot) in ways.iter().flat_map(|way| [(way, BOOT), (way, OTHER_BOOT)]) {
        let machine = Machine::booted(boot);
        for (path, bytes) in whole.disk.dump() {
            if !gone.iter().any(|gone| paths[*gone] == path) {
                machine.disk.write_file(path, bytes).unwrap();
            }
        }
        for error in [machine.open(id, Durability::Every).map(drop), machine.audit(id).map(drop)] {
            match error {
                Err(Error::MissingSegment { session, ordinal, path }) => {
                    assert_eq!((session, ordinal as usize, &path), (id, *missing, &paths[*missing]));
                }
                other => panic!("without {gone:?}: {other:?}"),
            }
        }
    }
}

/// A crash during the switch to a new segment leaves that segment empty or without a header: a
/// leftover, not damage.
#[test]
fn a_last_segment_that_a_crash_left_without_a_header_is_reported_and_left_alone() {
    let (whole, id) = session_of_segments(true);
    let all = whole.audit(id).unwrap().records_len();
    let leftover = whole.dir(id).join(format!("{:010}.seg", whole.segments(id).len()));
    for (bytes, boot) in [vec![], vec![0; 4096], vec![0; 3]].iter().flat_map(|b| [(b, BOOT), (b, OTHER_BOOT)])
    {
        let machine = whole.copied(boot);
        machine.disk.write_file(&leftover, bytes).unwrap();
        let audit = machine.audit(id).unwrap();
        assert_eq!(audit.report().leftovers, std::slice::from_ref(&leftover));
        assert!(audit.report().torn.is_none());
        let session = machine.open(id, Durability::Every).unwrap();
        assert_eq!(session.set_tag("after", "the crash").unwrap(), all);
        assert_eq!(machine.disk.read_file(&leftover).as_ref(), Some(bytes), "it stays for inspection");
        machine.crash(CrashKind::PowerLosingAll);
        assert_eq!(count(&machine.open(id, Durability::Every).unwrap()), all + 1);
    }
}
