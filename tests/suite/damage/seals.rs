//! Seals, and images at later positions: what opening trusts, what it checks again, and what only
//! an audit checks.

use std::path::{Path, PathBuf};

use foldlog::storage::{CrashKind, Storage};
use foldlog::{Durability, Error, RecordKind, Session};
use foldlog_test_support::crash::{BOOT, Machine, OTHER_BOOT};
use foldlog_test_support::host::{DraftEdited, Noted, Notes, types};
use foldlog_tests::verbs::foldlog;
use uuid::Uuid;

use super::{corruption, used};

/// Writes notes of one length, so that the same places in two logs contain frames of the same
/// length.
fn write_notes(session: &Session, letter: &str, notes: u64) {
    for n in 0..notes {
        session.dispatch(Noted { text: format!("{n:04} {}", letter.repeat(300)) }).unwrap();
    }
}

/// Returns a session of three segments, of which the first two are sealed, with an image after
/// them.
fn sealed() -> (Machine, Uuid) {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    write_notes(&session, "n", 28);
    session.close().unwrap();
    assert_eq!(machine.segments(id).len(), 3);
    (machine, id)
}

fn images(machine: &Machine, id: Uuid) -> Vec<PathBuf> {
    let directory = machine.dir(id).join("snapshots");
    machine.disk.files().into_iter().filter(|path| path.parent() == Some(&directory)).collect()
}

fn without_images(machine: &Machine, id: Uuid) -> Machine {
    let copy = machine.copied(machine.disk.boot_id().unwrap());
    for image in images(machine, id) {
        copy.disk.remove_file(&image).unwrap();
    }
    copy
}

/// Returns the byte range of a segment's seal.
fn seal_of(machine: &Machine, id: Uuid, segment: &Path) -> std::ops::Range<usize> {
    let frames = machine.frames(id).unwrap();
    let of_chain = |frame: &&_| {
        let frame: &foldlog_test_support::crash::FrameAt = frame;
        frame.segment == segment && frame.kind != RecordKind::Seal
    };
    let seal = frames.iter().rfind(of_chain).unwrap().end..used(machine, segment);
    assert!(!seal.is_empty(), "{} is sealed", segment.display());
    seal
}

fn notes(session: &Session) -> Vec<String> {
    session.log().slice::<Notes>().unwrap().iter().map(|note| note.unwrap().text.clone()).collect()
}

/// A change to a segment's bytes.
type Meddle<'a> = dyn Fn(&mut Vec<u8>) + 'a;

#[test]
fn a_seal_that_is_missing_damaged_or_of_another_segment_changes_no_answer() {
    let (whole, id) = sealed();
    let segments = whole.segments(id);
    let expected = whole.audit(id).unwrap().state().unwrap();
    let (first, second) = (seal_of(&whole, id, &segments[0]), seal_of(&whole, id, &segments[1]));
    let of_second = whole.disk.read_file(&segments[1]).unwrap()[second].to_vec();
    let meddle: [&Meddle<'_>; 4] = [
        // The crash occurred before the seal, or in the middle of it.
        &|bytes| bytes[first.start..].fill(0),
        &|bytes| bytes[first.start + 30..].fill(0),
        &|bytes| bytes[first.end - 1] ^= 1,
        &|bytes| bytes[first.start..first.start + of_second.len()].copy_from_slice(&of_second),
    ];
    for (way, meddle) in meddle.iter().enumerate() {
        for boot in [BOOT, OTHER_BOOT] {
            let with = whole.copied(boot);
            with.disk.mutate_file(&segments[0], |bytes| meddle(bytes)).unwrap();
            let without = without_images(&with, id);
            for (machine, imaged) in [(with, true), (without, false)] {
                let told = format!("way {way}, image: {imaged}");
                let session = machine.open(id, Durability::Boundary).unwrap();
                assert_eq!(session.log().recovery().from_image.is_some(), imaged, "{told}");
                assert_eq!(session.dynamic().state().unwrap(), expected, "{told}");
                write_notes(&session, "m", 14);
                let after = session.dynamic().state().unwrap();
                session.close().unwrap();
                let session = machine.open(id, Durability::Boundary).unwrap();
                assert_eq!(session.dynamic().state().unwrap(), after, "{told}");
                assert_eq!(machine.audit(id).unwrap().state().unwrap(), after, "{told}");
            }
        }
    }
}

/// A seal is written only once its successor's name is durable. An image does not replace a missing
/// segment.
#[test]
fn a_seal_whose_successor_is_gone_tells_of_a_missing_segment_with_images_and_without() {
    let (whole, id) = sealed();
    let last = whole.segments(id).pop().unwrap();
    for boot in [BOOT, OTHER_BOOT] {
        let with = whole.copied(boot);
        with.disk.remove_file(&last).unwrap();
        for machine in [without_images(&with, id), with] {
            match machine.open(id, Durability::Boundary) {
                Err(Error::MissingSegment { ordinal, path, .. }) => assert_eq!((ordinal, &path), (2, &last)),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Opening does not read the bodies that a seal and an image cover; an audit does.
#[test]
fn a_damaged_body_below_a_sound_seal_and_image_is_for_the_audit_and_for_opening_once_the_seal_is_gone() {
    let whole = Machine::default().with_images();
    let session = whole.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    for n in 0..28 {
        session.dispatch(DraftEdited { place: 0, line: format!("{n} {}", "x".repeat(300)) }).unwrap();
    }
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    let first = whole.segments(id).remove(0);
    let seal = seal_of(&whole, id, &first);
    let frames = whole.frames(id).unwrap();
    let bad =
        frames.iter().rfind(|frame| frame.segment == first && frame.kind == RecordKind::Dispatch).unwrap();
    whole.disk.mutate_file(&first, |bytes| bytes[bad.end - 1] ^= 1).unwrap();

    let session = whole.open(id, Durability::Boundary).unwrap();
    assert!(session.log().recovery().from_image.is_some());
    assert_eq!(session.dynamic().state().unwrap(), state);
    corruption(session.dynamic().state_at(bad.sequence).unwrap_err());
    corruption(session.rollback_to(bad.sequence).map(drop).unwrap_err());
    session.set_tag("after", "the damage").unwrap();
    session.close().unwrap();
    let found = corruption(whole.audit(id).map(drop).unwrap_err());
    assert_eq!((&found.segment, found.offset), (&first, bad.start as u64));
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join(id.to_string());
    std::fs::create_dir(&dir).unwrap();
    for segment in whole.segments(id) {
        let bytes = whole.disk.read_file(&segment).unwrap();
        std::fs::write(dir.join(segment.file_name().unwrap()), bytes).unwrap();
    }
    let verified = foldlog(["verify", dir.to_str().unwrap()]);
    assert_ne!(verified.code, 0);
    let said = verified.stdout + &verified.stderr;
    assert!(said.contains("corrupt") && said.contains(&format!("{:010}", 0)), "{said}");

    whole.disk.mutate_file(&first, |bytes| bytes[seal].fill(0)).unwrap();
    let with = whole.open(id, Durability::Boundary).unwrap_err();
    let without = without_images(&whole, id).open(id, Durability::Boundary).unwrap_err();
    assert_eq!(with.to_string(), without.to_string());
    assert_eq!(corruption(with).segment, first);
}

/// A seal named the next segment and counted the records of its own, and so did the seal of a
/// diverged copy. A session opened from its image with a segment of that copy before it, and showed
/// the copy's LOG items.
#[test]
fn a_segment_of_a_copy_that_went_its_own_way_is_found_behind_a_seal_of_its_own() {
    let base = Machine::default().with_images();
    let session = base.process(Durability::Boundary).create(&types()).unwrap();
    let id = session.id();
    session.close().unwrap();
    let [one, other] = ["a", "b"].map(|letter| {
        let machine = base.copied(BOOT);
        let session = machine.open(id, Durability::Boundary).unwrap();
        write_notes(&session, letter, 30);
        session.close().unwrap();
        machine
    });
    let segments = one.segments(id);
    assert_eq!(segments, other.segments(id));
    for segment in &segments[..segments.len() - 1] {
        let mixed = one.copied(BOOT);
        mixed.disk.write_file(segment, other.disk.read_file(segment).unwrap()).unwrap();
        let with = mixed.open(id, Durability::Boundary).map(|session| notes(&session)).unwrap_err();
        let without = without_images(&mixed, id).open(id, Durability::Boundary).unwrap_err();
        assert_eq!(with.to_string(), without.to_string());
        corruption(with);
    }
    // Without mixing, each copy opens from its own image, and not from the other's.
    for (machine, stranger, letter) in [(&one, &other, "a"), (&other, &one, "b")] {
        let mixed = without_images(machine, id);
        for image in images(stranger, id) {
            mixed.disk.write_file(&image, stranger.disk.read_file(&image).unwrap()).unwrap();
        }
        let session = mixed.open(id, Durability::Boundary).unwrap();
        assert_eq!(session.log().recovery().from_image, None);
        assert_eq!(session.log().recovery().dropped_images.len(), images(stranger, id).len());
        assert!(notes(&session).iter().all(|note| note.ends_with(letter)));
        assert!(machine.open(id, Durability::Boundary).unwrap().log().recovery().from_image.is_some());
    }
}

/// The frame that states whether the tail was written under this boot may come before an image's
/// position.
#[test]
fn a_bad_frame_behind_an_image_is_judged_as_without_it() {
    let whole = Machine::default().with_images();
    let session = whole.process(Durability::Process).create(&types()).unwrap();
    let id = session.id();
    while images(&whole, id).is_empty() {
        write_notes(&session, "n", 1);
    }
    write_notes(&session, "m", 4);
    whole.crash(CrashKind::Process);
    let covered = whole.open(id, Durability::Process).unwrap().log().recovery().from_image.unwrap();
    let frames = whole.frames(id).unwrap();
    let bad = frames.iter().find(|f| f.sequence == covered + 1 && f.kind == RecordKind::Dispatch).unwrap();
    for boot in [BOOT, OTHER_BOOT] {
        let with = whole.copied(boot);
        with.disk.mutate_file(&bad.segment, |bytes| bytes[bad.end - 1] ^= 1).unwrap();
        let judged = [without_images(&with, id), with].map(|machine| {
            let session = machine.open(id, Durability::Process).map_err(|error| error.to_string())?;
            let mut report = session.log().recovery().clone();
            (report.from_image, report.dropped_images) = (None, Vec::new());
            Ok::<_, String>((report, session.dynamic().state().unwrap()))
        });
        assert_eq!(judged[0], judged[1]);
        match &judged[1] {
            Err(error) => assert!(boot == BOOT && error.contains("restarted"), "{error}"),
            Ok((report, _)) => {
                assert_eq!((boot, report.torn.as_ref().unwrap().sequence), (OTHER_BOOT, bad.sequence));
            }
        }
    }
}

/// A power cut may take a name that no sync made durable, and everything after it. If a frame
/// attests the segment, or no power cut occurred, then it was removed.
#[test]
fn a_segment_whose_name_a_power_cut_took_is_a_tear_unless_something_attests_it() {
    for (durability, attested) in [(Durability::Process, false), (Durability::Every, true)] {
        let machine = Machine::default();
        let session = machine.process(durability).create(&types()).unwrap();
        let id = session.id();
        write_notes(&session, "n", 28);
        machine.crash(CrashKind::Process);
        let segments = machine.segments(id);
        assert!(segments.len() >= 3);
        // A segment is sealed only after the next segment's name is durable.
        let seal = attested.then(|| seal_of(&machine, id, &segments[0]));
        let second = machine.frames(id).unwrap().into_iter().find(|f| f.segment == segments[1]).unwrap();
        for (boot, sealed) in [(BOOT, true), (BOOT, false), (OTHER_BOOT, true), (OTHER_BOOT, false)] {
            if sealed && seal.is_none() {
                continue;
            }
            let machine = machine.copied(boot);
            machine.disk.remove_file(&segments[1]).unwrap();
            if let (false, Some(seal)) = (sealed, seal.clone()) {
                machine.disk.mutate_file(&segments[0], |bytes| bytes[seal].fill(0)).unwrap();
            }
            let told = format!("{durability:?}, sealed: {sealed}, same boot: {}", boot == BOOT);
            match machine.open(id, durability) {
                Err(Error::MissingSegment { ordinal, .. }) => {
                    assert!(ordinal == 1 && (attested || boot == BOOT), "{told}");
                }
                Ok(session) => {
                    assert!(!sealed && !attested && boot == OTHER_BOOT, "{told}");
                    assert_eq!(session.log().recovery().records, second.sequence, "{told}");
                    assert!(session.log().recovery().torn.is_some(), "{told}");
                }
                Err(other) => panic!("{told}: {other}"),
            }
        }
    }
}
