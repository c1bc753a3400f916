//! Damage to whole frames: swapped, repeated, removed, and stale ones after a tear.

use foldlog::Durability;
use foldlog::SequenceNumber;
use foldlog::storage::CrashKind;
use foldlog_test_support::crash::{BOOT, FrameAt, Machine, OTHER_BOOT, count, write_steps};
use foldlog_test_support::host::{StepAdded, types};
use uuid::Uuid;

use super::{attested, corruption, judge, unattested};

fn neighbours(machine: &Machine, id: Uuid) -> Vec<(FrameAt, FrameAt)> {
    let frames = machine.frames(id).unwrap();
    let pairs = frames.windows(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    let records =
        |(a, b): &(FrameAt, FrameAt)| !a.kind.is_envelope() && !b.kind.is_envelope() && a.end == b.start;
    pairs.filter(records).collect()
}

#[test]
fn two_frames_that_changed_places_are_damage() {
    let (whole, id) = attested();
    let pairs = neighbours(&whole, id);
    assert!(pairs.len() > 5);
    for (first, second) in pairs {
        for boot in [BOOT, OTHER_BOOT] {
            let machine = whole.copied(boot);
            let len = second.end - second.start;
            machine
                .disk
                .mutate_file(&first.segment, |bytes| bytes[first.start..second.end].rotate_right(len))
                .unwrap();
            let found = corruption(judge(&machine, id).unwrap_err());
            assert_eq!((found.offset, found.sequence), (first.start as u64, first.sequence), "{found}");
        }
    }
}

#[test]
fn a_frame_that_is_repeated_or_removed_is_damage() {
    let (whole, id) = attested();
    for (first, second) in neighbours(&whole, id) {
        for boot in [BOOT, OTHER_BOOT] {
            let machine = whole.copied(boot);
            let repeat = |bytes: &mut Vec<u8>| {
                let frame = bytes[first.start..first.end].to_vec();
                bytes.splice(second.start..second.start, frame);
            };
            machine.disk.mutate_file(&first.segment, repeat).unwrap();
            let found = corruption(judge(&machine, id).unwrap_err());
            assert_eq!((found.offset, found.sequence), (second.start as u64, second.sequence), "{found}");

            let machine = whole.copied(boot);
            machine
                .disk
                .mutate_file(&first.segment, |bytes| drop(bytes.drain(first.start..first.end)))
                .unwrap();
            let found = corruption(judge(&machine, id).unwrap_err());
            assert_eq!((found.offset, found.sequence), (first.start as u64, first.sequence), "{found}");
        }
    }
}

/// Two lives of one log wrote records of the same numbers and lengths into the same segment; the
/// disk kept one frame of each. Each frame is intact in itself; only its predecessor's checksum
/// shows that it does not follow.
#[test]
fn a_stale_frame_of_another_life_never_follows_a_new_one() {
    let (before, id) = attested();
    let live = |title: &str| {
        let machine = before.copied(BOOT);
        let session = machine.open(id, Durability::Process).unwrap();
        for _ in 0..3 {
            session.dispatch(StepAdded { title: title.to_owned(), part: 1 }).unwrap();
        }
        machine.crash(CrashKind::Process);
        machine
    };
    let (old, new) = (live("old"), live("new"));
    let frames = new.frames(id).unwrap();
    assert_eq!(frames, old.frames(id).unwrap(), "they stand at the same places");
    let [.., second, third] = frames.as_slice() else { panic!("there are three records") };
    let stale = old.disk.read_file(&second.segment).unwrap();
    for (boot, patched) in [(BOOT, second), (OTHER_BOOT, second), (BOOT, third), (OTHER_BOOT, third)] {
        let machine = new.copied(boot);
        let patch = |bytes: &mut Vec<u8>| {
            bytes[patched.start..].fill(0);
            bytes[patched.start..patched.end].copy_from_slice(&stale[patched.start..patched.end]);
        };
        machine.disk.mutate_file(&patched.segment, patch).unwrap();
        match judge(&machine, id) {
            // The frame is intact in any case, and no power cut occurred.
            Err(error) => {
                let found = corruption(error);
                assert!(boot == BOOT && found.reason.contains("predecessor"), "{found}");
                assert_eq!((found.offset, found.sequence), (patched.start as u64, patched.sequence));
            }
            Ok(records) => {
                assert_eq!((boot, records), (OTHER_BOOT, patched.sequence.get()));
                let torn = machine.audit(id).unwrap().report().torn.clone().unwrap();
                assert_eq!((torn.offset, torn.sequence), (patched.start as u64, patched.sequence));
            }
        }
    }
}

/// After a tear the disk showed a frame of another segment. If it passed for a frame of this
/// segment, its watermark would attest the torn records.
#[test]
fn a_frame_of_another_segment_says_nothing() {
    let whole = Machine::default();
    let session = whole.process(Durability::Every).create(&types()).unwrap();
    let id = session.id();
    // The file of the next segment may exist before its turn.
    let first = whole.segments(id)[0].clone();
    while whole.frames(id).unwrap().last().unwrap().segment == first {
        write_steps(&session, 1);
    }
    session.close().unwrap();
    write_steps(&whole.open(id, Durability::Process).unwrap(), 2);
    whole.crash(CrashKind::Process);
    let frames = whole.frames(id).unwrap();
    let last = frames.last().unwrap();
    let first = frames.iter().find(|frame| frame.segment == last.segment).unwrap();
    // Its distance from its segment's first record would put it after the torn record here.
    let stale = frames
        .iter()
        .find(|frame| frame.sequence > SequenceNumber::new(last.sequence - first.sequence + 1))
        .unwrap();
    assert!(stale.segment != last.segment && stale.watermark > 0.into());
    let stale = whole.disk.read_file(&stale.segment).unwrap()[stale.start..stale.end].to_vec();
    for boot in [BOOT, OTHER_BOOT] {
        let machine = whole.copied(boot);
        let meddle = |bytes: &mut Vec<u8>| {
            bytes[last.end - 1] ^= 1;
            bytes[last.end..last.end + stale.len()].copy_from_slice(&stale);
        };
        machine.disk.mutate_file(&last.segment, meddle).unwrap();
        assert_eq!(judge(&machine, id).unwrap(), last.sequence);
        let torn = machine.audit(id).unwrap().report().torn.clone().unwrap();
        assert_eq!((torn.offset, torn.sequence), (last.start as u64, last.sequence));
    }
}

/// After an unclean end old segments are never written again. Torn bytes stay there for inspection,
/// and the intact records of the tail are rewritten.
#[test]
fn recovery_leaves_every_old_byte_and_rewrites_what_nobody_had_attested() {
    let (whole, id) = unattested();
    let machine = whole.copied(OTHER_BOOT);
    let unsound = machine.segments(id);
    let last = unsound.last().unwrap();
    let torn_at = machine.frames(id).unwrap().last().unwrap().start;
    machine.disk.mutate_file(last, |bytes| bytes[torn_at + 3] ^= 1).unwrap();
    let before = machine.disk.dump();
    let session = machine.open(id, Durability::Process).unwrap();
    let (sound, unattested) = (count(&session), session.log().recovery().unattested);
    assert!(session.log().recovery().torn.is_some() && unattested > 2, "{:?}", session.log().recovery());
    session.set_tag("after", "the tear").unwrap();
    for path in &unsound {
        assert_eq!(machine.disk.read_file(path).as_ref(), before.get(path), "{}", path.display());
    }
    let frames = machine.frames(id).unwrap();
    let fresh = frames.last().unwrap().segment.clone();
    let rewritten = frames.iter().filter(|frame| frame.segment == fresh && !frame.kind.is_envelope());
    let sequences: Vec<u64> = rewritten.map(|frame| frame.sequence.get()).collect();
    assert_eq!(sequences, (sound - unattested..=sound).collect::<Vec<_>>());
    assert!(!unsound.contains(&fresh));
    // The rewritten records are durable although this durability promises nothing: only the new
    // record may be lost.
    machine.crash(CrashKind::PowerLosingAll);
    assert!(judge(&machine, id).unwrap() >= sound);
}

/// A torn tail that was judged once must not be reported as damage after the log has continued.
#[test]
fn a_log_that_went_on_behind_a_tear_is_sound_in_this_boot_and_the_next() {
    let (machine, id) = unattested();
    let last = machine.frames(id).unwrap().last().unwrap().clone();
    machine.disk.mutate_file(&last.segment, |bytes| bytes[last.start + 3] ^= 1).unwrap();
    for round in 0..3 {
        machine.crash(CrashKind::PowerLosingAll);
        let session = machine.process(Durability::Every).open_session(id, &types()).unwrap();
        write_steps(&session, 3);
        machine.crash(CrashKind::Process);
        let records = judge(&machine, id).unwrap();
        let session = machine.open(id, Durability::Process).unwrap();
        write_steps(&session, 2);
        machine.crash(CrashKind::Process);
        assert_eq!(judge(&machine, id).unwrap(), records + 2, "round {round}");
    }
}
