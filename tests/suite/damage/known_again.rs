//! Frames that are not records: how a salvage reconstructs them, and where it ends if it cannot.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use foldlog::storage::CrashKind;
use foldlog::{Durability, RecordKind};
use foldlog_codec::body::{Observed, Payload, SessionOpening};
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::segment::SegmentHeader;
use foldlog_test_support::crash::{BOOT, FrameAt, Machine, OTHER_BOOT, write_steps};
use uuid::Uuid;

use super::everything::everything;
use super::salvage::{holds, salvage};
use super::{flip, unattested};

/// Writes a log of the given intact frames, each linked to the one before: kind, watermark, body.
fn forge(machine: &Machine, id: Uuid, frames: &[(RecordKind, u64, Vec<u8>)]) {
    let (salt, mut sequence, mut predecessor_crc) = (11, 0, 0);
    let header = SegmentHeader {
        ordinal: 0,
        session: id,
        first_sequence: 0.into(),
        watermark: 0.into(),
        salt,
        previous: None,
    };
    let mut bytes = header.encode().to_vec();
    for (kind, watermark, body) in frames {
        let (body_len, watermark, kind) = (body.len() as u32, *watermark, *kind);
        let header = Header {
            crc: 0,
            predecessor_crc,
            body_len,
            sequence: sequence.into(),
            watermark: watermark.into(),
            kind,
            time_us: 1_700_000_000,
        };
        predecessor_crc = frame::encode(Context::new(salt, 0.into()), &header, body, &mut bytes).unwrap();
        sequence += u64::from(!kind.is_envelope());
    }
    bytes.resize(8192, 0);
    machine.disk.write_file(machine.dir(id).join("0000000000.seg"), bytes).unwrap();
}

/// Returns a log in which a writer ahead of its syncs attested less than it had written, and the
/// place of that frame.
fn attesting_less() -> (Machine, Uuid, FrameAt) {
    let (machine, id) = (Machine::default(), Uuid::from_u128(9));
    let opened = SessionOpening { session: id, seed: 1, tags: BTreeMap::new(), parent: None }.encode();
    let data = foldlog::Value::from("rain").encode();
    let observed = || Observed { name: "weather".to_owned(), data: Payload::new(&data) }.encode();
    let frames = [
        (RecordKind::Opened, 0, opened),
        (RecordKind::Observed, 0, observed()),
        (RecordKind::Observed, 0, observed()),
        (RecordKind::Synced, 1, Vec::new()),
        (RecordKind::Observed, 1, observed()),
        (RecordKind::Synced, 4, Vec::new()),
    ];
    forge(&machine, id, &frames);
    let less = machine.frames(id).unwrap().remove(3);
    (machine, id, less)
}

/// Only the frame itself contains its watermark. One wrong byte of it is repaired by the checksum,
/// which the next frame names too. If that is lost as well, or more bytes are wrong, the frame is
/// not reconstructed.
#[test]
fn what_a_lost_frame_attested_is_known_only_as_long_as_something_says_it() {
    let (machine, id, less) = attesting_less();
    let whole = machine.audit(id).unwrap();
    let one = (0..28).map(|byte| (vec![byte], true));
    let more =
        [(vec![0, 16], false), (vec![16, 17], false), (vec![4, 19], false), (vec![0, 4, 8, 12, 20], true)];
    for (bytes, known) in one.chain(more) {
        let damaged = machine.copied(BOOT);
        bytes.iter().for_each(|byte| flip(&damaged, &less.segment, less.start + byte));
        let salvaged = salvage(&damaged, id).unwrap();
        holds(&damaged, &whole, &salvaged, if known { 4 } else { 3 }, &format!("bytes {bytes:?}"));
        assert_eq!(salvaged.mended.len(), usize::from(known), "bytes {bytes:?}");
        let left: u64 = salvaged.left.iter().map(|left| left.records).sum();
        assert_eq!(left, u64::from(!known), "bytes {bytes:?}: {salvaged:?}");
    }
}

/// The frames at the start of an opening and of a segment are not records. One with a wrong byte,
/// or without its header, used to cost all later records.
#[test]
fn a_frame_that_is_no_record_is_known_again_by_what_follows_it() {
    let (whole, id, _) = everything();
    let (frames, reader) = (whole.frames(id).unwrap(), whole.audit(id).unwrap());
    let all = reader.records_len();
    let mut tried = BTreeMap::<RecordKind, usize>::new();
    for kind in [RecordKind::Resumed, RecordKind::Declared] {
        let of_kind: Vec<&FrameAt> = frames.iter().filter(|frame| frame.kind == kind).collect();
        // Every byte of the last one, which follows records of all kinds, and the headers of the
        // others.
        for (frame, is_last) in of_kind.iter().map(|frame| (*frame, Some(frame) == of_kind.last())) {
            let lost: Vec<Range<usize>> = match is_last {
                true => (frame.start..frame.end).map(|at| at..at + 1).collect(),
                // All header fields except the time, which a fork's first frames share with the
                // record before.
                false => vec![frame.start..frame.start + 4, frame.start + 4..frame.start + 20],
            };
            for lost in lost {
                let machine = whole.copied(OTHER_BOOT);
                lost.clone().for_each(|at| flip(&machine, &frame.segment, at));
                let told = format!("{kind}, {lost:?} of {frame:?}");
                let salvaged = salvage(&machine, id).unwrap_or_else(|error| panic!("{told}: {error}"));
                holds(&machine, &reader, &salvaged, all, &told);
                assert_eq!(salvaged.mended, [(frame.segment.clone(), frame.start as u64)], "{told}");
                assert!(salvaged.left.is_empty() && salvaged.damage.is_some(), "{told}: {salvaged:?}");
                // The copy contains the frame as it was written.
                let copy = salvaged.dir.join(frame.segment.file_name().unwrap());
                let (copy, before) = (machine.disk.read_file(copy), whole.disk.read_file(&frame.segment));
                let frame = frame.start..frame.end;
                assert!(copy.unwrap()[frame.clone()] == before.unwrap()[frame], "{told}");
                *tried.entry(kind).or_default() += 1;
            }
        }
    }
    assert!(tried.len() == 2 && tried.values().all(|tried| *tried > 50), "{tried:?}");
}

/// A salvage ends before a frame that is too damaged for reconstruction, or whose next frame
/// belongs to another log or is not the next one.
#[test]
fn nothing_is_taken_behind_a_frame_that_cannot_be_known_again() {
    let (whole, id) = unattested();
    let reader = whole.audit(id).unwrap();
    let frames = whole.frames(id).unwrap();
    let place = frames.iter().rposition(|frame| frame.kind == RecordKind::Resumed).unwrap();
    let [resumed, next, second] = [&frames[place], &frames[place + 1], &frames[place + 2]];
    assert!(!next.kind.is_envelope() && next.end == second.start && second.sequence == next.sequence + 1);
    let ends = |told: &str, meddle: &dyn Fn(&mut Vec<u8>)| {
        let machine = whole.copied(OTHER_BOOT);
        machine.disk.mutate_file(&resumed.segment, |bytes| meddle(bytes)).unwrap();
        let salvaged = salvage(&machine, id).unwrap();
        holds(&machine, &reader, &salvaged, resumed.sequence.get(), told);
        assert!(salvaged.mended.is_empty(), "{told}: {salvaged:?}");
        assert_eq!(salvaged.left[0].offset, resumed.start as u64, "{told}");
    };
    let body = resumed.start + 28;
    for at in body..resumed.end - 1 {
        ends(&format!("two bytes at {at}"), &|bytes| {
            bytes[at..at + 2].iter_mut().for_each(|byte| *byte ^= 0x5a)
        });
        ends(&format!("byte {at} and its checksum"), &|bytes| {
            (bytes[at], bytes[resumed.start]) = (0xc1, 0xc1)
        });
    }
    // The next record is removed, and the one after it has moved up: it is intact, but not the next
    // one.
    ends("a hole", &|bytes| {
        bytes[body] ^= 1;
        drop(bytes.drain(next.start..next.end));
    });
    ends("a hole where it stood", &|bytes| {
        bytes[body] ^= 1;
        bytes[next.start..next.end].fill(0);
    });
    // Another life of the same session continued from the same record, in a file with the same
    // salt.
    let other = Machine::default();
    let later = |path: &PathBuf| path.extension() == resumed.segment.extension() && *path > resumed.segment;
    for (path, bytes) in whole.disk.dump().into_iter().filter(|(path, _)| !later(path)) {
        let cut = if path == resumed.segment { resumed.start } else { bytes.len() };
        let zeros = vec![0; bytes.len() - cut];
        other.disk.write_file(path, [&bytes[..cut], &zeros].concat()).unwrap();
    }
    let session = other.open(id, Durability::Process).unwrap();
    write_steps(&session, 3);
    other.crash(CrashKind::Process);
    let stranger = other.disk.read_file(&resumed.segment).unwrap();
    let resumed_bytes = resumed.start..resumed.end;
    assert!(
        stranger[resumed_bytes.clone()] != whole.disk.read_file(&resumed.segment).unwrap()[resumed_bytes]
    );
    let behind = other.frames(id).unwrap().into_iter().find(|frame| frame.start >= resumed.end).unwrap();
    assert_eq!((behind.start, behind.sequence), (next.start, next.sequence), "it fits where the other stood");
    for at in resumed.start..resumed.end {
        ends(&format!("another life's records behind byte {at}"), &|bytes| {
            let len = bytes.len();
            bytes[resumed.end..].copy_from_slice(&stranger[resumed.end..len]);
            bytes[at] = !bytes[at];
        });
    }
}
