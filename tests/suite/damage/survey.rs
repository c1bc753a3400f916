//! The survey of a damaged log: all damaged places, the records before the first of them, and the
//! intact ones after it.

use std::sync::Arc;

use foldlog::inspect::{DamagedPlace, LogReader, ReadOptions, damaged_places_on};
use foldlog_test_support::crash::{Machine, OTHER_BOOT};
use uuid::Uuid;

use super::bytes::SEGMENT_HEADER;
use super::everything::everything;
use super::{corruption, flip, frame_at};

/// The step between damaged bytes: a prime, so that every part of a frame is damaged at some point.
const BYTES_BETWEEN: usize = 13;

fn places(machine: &Machine, id: Uuid) -> Vec<DamagedPlace> {
    damaged_places_on(&machine.disk, &machine.dir(id), &mut |_| Ok(())).unwrap()
}

fn sound(machine: &Machine, id: Uuid) -> foldlog::Result<LogReader> {
    LogReader::open_sound(Arc::new(machine.disk.clone()), machine.dir(id), ReadOptions::default())
}

/// One wrong byte is one place, the same that opening names. The records before it are unchanged,
/// and all later ones but the damaged one are found.
#[test]
fn one_wrong_byte_is_one_place_and_hides_one_record() {
    let (whole, id, _) = everything();
    let frames = whole.frames(id).unwrap();
    let audit = whole.audit(id).unwrap();
    let all = audit.records_len();
    let machine = whole.copied(OTHER_BOOT);
    let (mut of_frames, mut of_headers) = (0, 0);
    for path in whole.segments(id) {
        for at in (0..super::used(&whole, &path)).step_by(BYTES_BETWEEN) {
            flip(&machine, &path, at);
            let told = format!("byte {at} of {}", path.display());
            if let Err(error) = machine.audit(id) {
                let named = corruption(error);
                let found = places(&machine, id);
                assert_eq!(found.len(), 1, "{told}: {found:?}");
                assert_eq!(
                    (&found[0].segment, found[0].offset, found[0].sequence),
                    (&named.segment, Some(named.offset), Some(named.sequence)),
                    "{told}"
                );
                match named.sequence.checked_sub(1) {
                    None => assert!(sound(&machine, id).is_err(), "{told}: nothing is sound"),
                    Some(last) => {
                        let reader = sound(&machine, id).unwrap_or_else(|error| panic!("{told}: {error}"));
                        let end = reader.sound_end().unwrap();
                        assert_eq!((end.sequence, reader.last_position()), (named.sequence, last), "{told}");
                        assert_eq!(reader.state().unwrap(), audit.state_at(last).unwrap(), "{told}");
                        let mut behind = Vec::new();
                        reader
                            .beyond_damage(|frame| {
                                behind.push(frame.record.sequence.get());
                                Ok(())
                            })
                            .unwrap();
                        let damaged = frame_at(&frames, &path, at).filter(|frame| !frame.kind.is_envelope());
                        let lost = damaged.map(|frame| frame.sequence.get());
                        let mut expected: Vec<u64> =
                            (named.sequence.get()..all).filter(|sequence| Some(*sequence) != lost).collect();
                        if at < SEGMENT_HEADER {
                            // A recovery's segment does not directly follow the one before it:
                            // without its header, its records cannot be numbered.
                            expected.retain(|sequence| behind.contains(sequence));
                        }
                        assert_eq!(behind, expected, "{told}");
                    }
                }
                if at < SEGMENT_HEADER { of_headers += 1 } else { of_frames += 1 }
            } else {
                // Bytes that are torn, or outside the chain, end nothing.
                assert!(sound(&machine, id).unwrap().sound_end().is_none(), "{told}");
            }
            flip(&machine, &path, at);
        }
    }
    assert!(of_frames > 300 && of_headers > 10, "{of_frames} {of_headers}");
    assert_eq!(places(&machine, id), [], "a whole log has no damaged place");
}

/// Wrong bytes in several frames are as many places. Of adjacent damaged frames only the first is
/// recognized.
#[test]
fn several_wrong_bytes_are_as_many_places() {
    let (whole, id, _) = everything();
    let frames = whole.frames(id).unwrap();
    let machine = whole.copied(OTHER_BOOT);
    let last = frames.len() - 1;
    for (first, distance) in (1..last).zip([2, 3, 7, 20].into_iter().cycle()) {
        let wrong: Vec<_> = (first..last).step_by(distance).take(3).map(|at| &frames[at]).collect();
        wrong.iter().for_each(|frame| flip(&machine, &frame.segment, frame.end - 1));
        let found: Vec<_> =
            places(&machine, id).into_iter().map(|place| (place.segment, place.offset)).collect();
        let expected: Vec<_> =
            wrong.iter().map(|frame| (frame.segment.clone(), Some(frame.start as u64))).collect();
        assert_eq!(found, expected, "frame {first}, every {distance}");
        wrong.iter().for_each(|frame| flip(&machine, &frame.segment, frame.end - 1));
    }
}
