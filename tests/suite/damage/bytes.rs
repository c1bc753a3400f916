//! Damage to single bytes.

use std::path::PathBuf;

use foldlog::Error;
use foldlog_test_support::crash::{BOOT, FrameAt, Machine, OTHER_BOOT};
use foldlog_test_support::killed;
use uuid::Uuid;

use super::{attested, corruption, flip, frame_at, judge, unattested, used};

pub(super) const SEGMENT_HEADER: usize = 84;

/// Inverts each byte of the used part of each segment in turn, on a copy of the machine. By default,
/// each fifth byte of a segment is inverted; `FOLDLOG_MATRIX=all` inverts all.
pub(super) fn with_each_byte_inverted(
    whole: &Machine,
    id: Uuid,
    boot: Uuid,
    mut check: impl FnMut(&Machine, &PathBuf, usize),
) {
    let machine = whole.copied(boot);
    for path in whole.segments(id) {
        let sound = whole.disk.read_file(&path).unwrap();
        for at in (0..used(whole, &path)).step_by(killed::step(5)) {
            flip(&machine, &path, at);
            check(&machine, &path, at);
            machine.disk.write_file(&path, &sound).unwrap();
        }
    }
}

/// In a closed log every byte that matters is attested, except the frame that attests the last
/// records; without that frame, those are unattested. Damage is reported with its place, in this
/// boot and in any other.
#[test]
fn no_attested_byte_is_ever_wrong_unnoticed_or_taken_for_a_torn_tail() {
    let (whole, id) = attested();
    let frames = whole.frames(id).unwrap();
    let (all, state) = (whole.audit(id).unwrap().records_len(), whole.audit(id).unwrap().state().unwrap());
    let closing = frames.last().unwrap();
    let mut found = 0;
    for boot in [BOOT, OTHER_BOOT] {
        with_each_byte_inverted(&whole, id, boot, |machine, path, at| {
            let told = format!("byte {at} of {}", path.display());
            let judged = judge(machine, id);
            let frame = frame_at(&frames, path, at);
            let (offset, sequence) = match frame {
                Some(frame) => (frame.start, frame.sequence),
                None if at < SEGMENT_HEADER => {
                    (0, frames.iter().find(|frame| frame.segment == *path).unwrap().sequence)
                }
                // A seal is outside the chain, so nothing is lost with it.
                None => {
                    assert_eq!(judged.unwrap_or_else(|error| panic!("{told}: {error}")), all);
                    assert_eq!(machine.audit(id).unwrap().state().unwrap(), state, "{told}");
                    return;
                }
            };
            if frame == Some(closing) {
                assert_eq!(judged.unwrap_or_else(|error| panic!("{told}: {error}")), all);
                let torn = machine.audit(id).unwrap().report().torn.clone().unwrap();
                assert_eq!((torn.offset, torn.sequence), (offset as u64, all.into()), "{told}");
                return;
            }
            let error = judged.map(|records| panic!("{told}: {records} records are read")).unwrap_err();
            let corruption = corruption(error);
            assert_eq!(corruption.segment, *path, "{told}: {corruption}");
            assert_eq!(
                (corruption.offset, corruption.sequence),
                (offset as u64, sequence),
                "{told}: {corruption}"
            );
            found += 1;
        });
    }
    assert!(found > 8_000 / killed::step(5), "{found}");
}

/// A power cut may tear unacknowledged records in any way. After one, a wrong byte there loses the
/// records from that place on, which is reported. Within the same boot nothing can be torn out of
/// order.
#[test]
fn a_wrong_byte_of_the_unattested_tail_is_a_tear_after_a_power_cut_and_damage_in_the_same_boot() {
    let (whole, id) = unattested();
    let frames = whole.frames(id).unwrap();
    let audit = whole.audit(id).unwrap();
    let (all, attested) = (audit.records_len(), audit.records_len() - audit.report().unattested);
    let tail =
        frames.iter().position(|frame| frame.watermark == attested && frame.sequence == attested).unwrap();
    let tail: Vec<&FrameAt> = frames[tail..].iter().collect();
    let last = *tail.last().unwrap();
    let (mut torn_bytes, mut damaged_bytes) = (0, 0);
    for boot in [OTHER_BOOT, BOOT] {
        with_each_byte_inverted(&whole, id, boot, |machine, path, at| {
            let told = format!("byte {at} of {}", path.display());
            let frame = frame_at(&frames, path, at);
            let header = at < SEGMENT_HEADER && *path != frames[0].segment;
            let in_tail = frame.is_some_and(|frame| tail.contains(&frame)) || header;
            let start = frame.map_or(0, |frame| frame.start);
            match judge(machine, id) {
                Ok(records) if in_tail => {
                    let report = machine.audit(id).unwrap().report().clone();
                    let torn = report.torn.unwrap_or_else(|| panic!("{told}: nothing is reported"));
                    // The tail starts with the frame of the last close. If that frame is wrong, the
                    // tail starts there, and only its attestation is lost.
                    assert!(records >= attested && records < all, "{told}: {records}");
                    assert_eq!((torn.offset, torn.sequence), (start as u64, records.into()), "{told}");
                    assert_eq!(torn.segment, *path, "{told}");
                    assert!(boot == OTHER_BOOT || frame == Some(last), "{told}: sound frames follow");
                    torn_bytes += 1;
                }
                Ok(records) => {
                    // The seal of the first segment, outside the chain.
                    assert!(frame.is_none() && at >= SEGMENT_HEADER, "{told}: {records}");
                    assert_eq!(records, all, "{told}");
                }
                Err(error) => {
                    let found = corruption(error);
                    assert!(!in_tail || boot == BOOT && frame != Some(last), "{told}: {found}");
                    assert_eq!((&found.segment, found.offset), (path, start as u64), "{told}: {found}");
                    damaged_bytes += 1;
                }
            }
        });
    }
    let few = 1_500 / killed::step(5);
    assert!(torn_bytes > few && damaged_bytes > few, "{torn_bytes} torn, {damaged_bytes} damaged");
}

/// An object's bytes are checked against its name at every read.
#[test]
fn a_wrong_byte_of_an_object_is_found_and_the_object_named() {
    let machine = Machine::default();
    let session =
        machine.process(foldlog::Durability::Every).create(&foldlog_test_support::host::types()).unwrap();
    session.dispatch(foldlog_test_support::crash::large_note(1)).unwrap();
    let id = session.id();
    session.close().unwrap();
    let object =
        machine.disk.files().into_iter().find(|path| path.parent().unwrap().ends_with("objects")).unwrap();
    for at in (0..used(&machine, &object)).step_by(97) {
        flip(&machine, &object, at);
        match judge(&machine, id) {
            Err(Error::Object { path, .. }) => assert_eq!(path, object),
            other => panic!("{other:?}"),
        }
        flip(&machine, &object, at);
    }
    for len in [0, 5, 100_000] {
        let machine = machine.copied(BOOT);
        machine.disk.mutate_file(&object, |bytes| bytes.resize(len, 0)).unwrap();
        assert!(matches!(judge(&machine, id), Err(Error::Object { .. })));
    }
}
