//! Damage to whole segments and directories: segments of other sessions, of a later format, without
//! headers, links, and far too large ones.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::storage::EntryKind;
use foldlog::{Durability, Error, Store};
use foldlog_test_support::crash::{BOOT, Machine, OTHER_BOOT, step, write_steps};
use foldlog_test_support::host::types;
use uuid::Uuid;

use super::{attested, corruption, judge};

fn copy(machine: &Machine, from: &Path, to: &Path) {
    machine.disk.write_file(to, machine.disk.read_file(from).unwrap()).unwrap();
}

#[test]
fn segments_that_changed_places_are_damage() {
    let (whole, id) = attested();
    let paths = whole.segments(id);
    for (left, right) in [(0, 1), (1, 2), (0, 2)] {
        let machine = whole.copied(BOOT);
        copy(&whole, &paths[left], &paths[0]);
        machine.disk.write_file(&paths[left], whole.disk.read_file(&paths[right]).unwrap()).unwrap();
        machine.disk.write_file(&paths[right], whole.disk.read_file(&paths[left]).unwrap()).unwrap();
        let found = corruption(judge(&machine, id).unwrap_err());
        assert!(found.segment == paths[left] || found.segment == paths[right], "{found}");
        assert_eq!(found.offset, 0, "{found}");
    }
}

/// The other session has as many segments, with the same ordinals and first records.
#[test]
fn a_segment_of_another_session_is_not_taken_in() {
    let (whole, id) = attested();
    let (other, other_id) = {
        let machine = Machine::default();
        let options = foldlog::SessionOptions { id: Some(Uuid::from_u128(5)), ..Default::default() };
        let session = machine.process(Durability::Boundary).create_with(&types(), options).unwrap();
        write_steps(&session, 20);
        session.clone().close().unwrap();
        (machine, session.id())
    };
    for place in 0..3 {
        for boot in [BOOT, OTHER_BOOT] {
            let machine = whole.copied(boot);
            let stranger = other.disk.read_file(&other.segments(other_id)[place]).unwrap();
            machine.disk.write_file(&whole.segments(id)[place], stranger).unwrap();
            match judge(&machine, id).unwrap_err() {
                Error::WrongSession { .. } => {}
                // If its header names another end of the segment before, the chain breaks there
                // already.
                Error::Corrupt(found) => assert!(whole.segments(id).contains(&found.segment), "{found}"),
                error => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_directory_of_another_sessions_name_says_whose_it_is() {
    let (whole, id) = attested();
    let other = Uuid::from_u128(5);
    for path in whole.segments(id) {
        copy(&whole, &path, &whole.dir(other).join(path.file_name().unwrap()));
    }
    match judge(&whole, other).unwrap_err() {
        Error::WrongSession { expected, found, .. } => assert_eq!((expected, found), (other, id)),
        error => panic!("{error}"),
    }
    // Copied out of a store, under a name that is no session's, the log can still be read.
    let path = Path::new("/mail/from the field");
    for segment in whole.segments(id) {
        copy(&whole, &segment, &path.join(segment.file_name().unwrap()));
    }
    let mailed = LogReader::open_on(std::sync::Arc::new(whole.disk.clone()), path).unwrap();
    assert_eq!(mailed.state().unwrap(), whole.audit(id).unwrap().state().unwrap());
}

/// A partial header of an attested segment is damage, and never a new creation.
#[test]
fn a_truncated_header_is_found() {
    let (whole, id) = attested();
    for path in whole.segments(id) {
        for len in [0, 1, 40, 83] {
            let machine = whole.copied(OTHER_BOOT);
            machine.disk.mutate_file(&path, |bytes| bytes.truncate(len)).unwrap();
            match judge(&machine, id) {
                Err(error) => {
                    let found = corruption(error);
                    assert_eq!((&found.segment, found.offset), (&path, 0), "{found}");
                }
                // A crash during the switch of segments leaves only the name of the last one.
                Ok(_) => {
                    assert_eq!(path, *whole.segments(id).last().unwrap(), "{len}");
                    let audit = machine.audit(id).unwrap();
                    assert_eq!(audit.report().leftovers, std::slice::from_ref(&path));
                }
            }
        }
    }
}

#[test]
fn a_segment_of_a_later_format_is_named_with_both_versions() {
    let (whole, id) = attested();
    for path in whole.segments(id) {
        let machine = whole.copied(BOOT);
        let later = |bytes: &mut Vec<u8>| {
            // A later format may have another header layout, and another checksum.
            bytes[8..10].copy_from_slice(&2_u16.to_le_bytes());
            bytes[10..84].iter_mut().for_each(|byte| *byte ^= 0x5a);
        };
        machine.disk.mutate_file(&path, later).unwrap();
        match judge(&machine, id).unwrap_err() {
            Error::FutureFormat { path: found, found: 2, supported: 1 } => assert_eq!(found, path),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn what_only_has_a_segments_name_is_no_session() {
    let (whole, id) = attested();
    for path in whole.segments(id) {
        let machine = whole.copied(BOOT);
        machine.disk.make_other(&path).unwrap();
        let error = judge(&machine, id).unwrap_err();
        assert!(
            matches!(&error, Error::NotAFile { path: found, found: EntryKind::Other } if *found == path),
            "{error}"
        );
    }
    let empty = Machine::default();
    empty.disk.write_file(empty.dir(id).join("notes.txt"), "no segment").unwrap();
    assert!(matches!(judge(&empty, id).unwrap_err(), Error::NotASession { .. }));
    empty.disk.write_file(empty.dir(id).join("0000000000.seg"), "").unwrap();
    assert!(matches!(judge(&empty, id).unwrap_err(), Error::NotASession { .. }));
}

/// A file's length is an unverified claim: a sparse file of a tebibyte costs neither its memory nor
/// the time to read it, nor its disk space when a writer continues it.
#[test]
fn a_file_of_a_tebibyte_of_nothing_is_not_read_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&types()).unwrap();
    session.dispatch(step(1)).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let path = dir.join("0000000000.seg");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let session = store.open_session(id, &types()).unwrap();
    assert_eq!(session.log().position(), Some(2.into()));
    assert!(session.log().recovery().torn.is_none());
    session.dispatch(step(2)).unwrap();
    assert!(512 * file.metadata().unwrap().blocks() <= SegmentSizes::default().max_bytes);
    session.close().unwrap();
    assert_eq!(LogReader::open(&dir).unwrap().records_len(), 4);
}
