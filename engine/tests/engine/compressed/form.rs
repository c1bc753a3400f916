//! Which files of a session a compression replaces, and which it leaves alone.

use foldlog::storage::Storage;
use foldlog::{CompactOptions, Compression, Durability, Error, SessionOptions, SnapshotOptions};
use foldlog_test_support::crash::{BOOT, Machine, step};
use foldlog_test_support::host::{DraftEdited, types};
use foldlog_test_support::workload::write_text;

use super::decoder::{crc32, decoded, parts};
use super::{
    CODECS, compress, compressed, files, first_compressed, is_compressed, name_of, only, small, store,
    up_to_the_last, written,
};

#[test]
fn a_compressed_segment_is_the_plain_one_byte_for_byte() {
    let (plain, id) = written();
    let before = files(&plain, id);
    for codec in CODECS {
        let machine = compressed(&plain, id, codec);
        let after = files(&machine, id);
        let packed: Vec<_> = after.iter().filter(|(_, bytes)| is_compressed(bytes)).collect();
        assert!(packed.len() > 2, "{codec}: {} of {}", packed.len(), after.len());
        for (path, bytes) in &packed {
            let (decoded, before) = (decoded(bytes), &before[*path]);
            assert!(before.starts_with(&decoded), "{codec}: {}", name_of(path));
            assert!(decoded.len() >= up_to_the_last(before).len());
            assert!(parts(bytes).blocks.len() == 2 && bytes.len() < before.len() * 9 / 10);
        }
        let last = after.last_key_value().unwrap();
        assert!(!is_compressed(last.1), "the last segment is plain");

        // Nothing is left to compress.
        let again = compress(&machine, id, codec).unwrap().compressed.unwrap();
        assert_eq!((again.segments, again.bytes_before), (0, again.bytes_after));
        assert!(after == files(&machine, id));
        let written = compress(&machine, id, Compression::None).unwrap().compressed.unwrap();
        assert_eq!(written.segments as usize, packed.len());
        for (path, bytes) in files(&machine, id) {
            if let Some(before) = before.get(&path).filter(|_| path != *last.0) {
                assert!(up_to_the_last(&bytes) == up_to_the_last(before), "{codec}: plain again");
            }
        }
    }
}

#[test]
fn the_report_says_how_much_shorter_the_files_are_and_a_dry_run_says_it_before() {
    let (machine, id) = written();
    // The last segment is finished first, which a dry run does not do.
    let session = store(&machine, 128 << 10).open_session(id, &types()).unwrap();
    session.dispatch(step(1)).unwrap();
    session.close().unwrap();
    compress(&machine, id, Compression::None).unwrap();
    let dry = CompactOptions { dry_run: true, ..only(Compression::Zstd) };
    let before = files(&machine, id);
    let planned = store(&machine, 128 << 10).compact(id, &dry).unwrap().compressed.unwrap();
    assert!(before == files(&machine, id), "a dry run changes nothing");
    let report = compress(&machine, id, Compression::Zstd).unwrap().compressed.unwrap();
    assert!(planned.segments <= report.segments && planned.segments > 2, "{planned:?} {report:?}");
    let after = files(&machine, id);
    let lengths: usize = after
        .values()
        .rev()
        .skip(1)
        .map(|bytes| if is_compressed(bytes) { bytes.len() } else { up_to_the_last(bytes).len() })
        .sum();
    assert_eq!(report.bytes_after as usize, lengths, "{report:?}");
    assert!(report.bytes_after * 2 < report.bytes_before, "{report:?}");
}

/// A log whose last segment is long enough is finished first, so that a session of one segment is
/// compressed too.
#[test]
fn the_segment_that_was_written_last_is_finished_if_it_is_long_enough() {
    for (events, segments) in [(40, 0), (400, 1)] {
        let machine = Machine::default();
        let session = store(&machine, 1 << 20).create(&types()).unwrap();
        write_text(&session, 3, events);
        let (id, position) = (session.id(), session.log().position().unwrap());
        session.close().unwrap();
        let report = store(&machine, 1 << 20).compact(id, &only(Compression::Zstd)).unwrap();
        assert_eq!(report.compressed.unwrap().segments, segments, "{events} events");
        let session = store(&machine, 1 << 20).open_session(id, &types()).unwrap();
        assert_eq!(
            session.log().position().unwrap(),
            position + segments,
            "the record that says why it was finished"
        );
        session.dispatch(step(1)).unwrap();
    }
}

#[test]
fn short_segments_and_those_that_hardly_shrink_stay_plain() {
    let machine = Machine::default();
    let session = store(&machine, 32 << 10).create(&types()).unwrap();
    write_text(&session, 4, 200);
    let short = session.id();
    session.close().unwrap();
    let report = compress(&machine, short, Compression::Zstd).unwrap().compressed.unwrap();
    assert_eq!((report.segments, report.bytes_before), (0, report.bytes_after));
    assert!(report.finished > 1);

    let noise: String = {
        let mut chance = foldlog_test_support::crash::Chance::new(5);
        (0..550).map(|_| char::from_u32(0x80 + chance.below(0x700) as u32).unwrap()).collect()
    };
    let session = store(&machine, 128 << 10).create(&types()).unwrap();
    let mut chance = foldlog_test_support::crash::Chance::new(6);
    for n in 0..600 {
        let title: String = noise
            .chars()
            .map(|c| char::from_u32(c as u32 ^ chance.below(64) as u32).unwrap())
            .take(250)
            .collect();
        session.dispatch(foldlog_test_support::host::StepAdded { title, part: (n % 3) as u8 }).unwrap();
    }
    let id = session.id();
    session.close().unwrap();
    let report = compress(&machine, id, Compression::Lz4).unwrap().compressed.unwrap();
    assert_eq!((report.segments, report.bytes_before), (0, report.bytes_after), "{report:?}");
    assert!(report.finished > 1 && machine.disk.files().iter().all(|path| !name_of(path).ends_with(".new")));
}

/// A fork has its own links to its parent's files: rewriting one for the parent would save nothing.
#[test]
fn a_segment_that_a_fork_has_too_stays_plain_and_a_fork_has_compressed_ones_as_they_are() {
    let (machine, id) = written();
    let at = machine.frames(id).unwrap().into_iter().find(|frame| frame.sequence.get() > 600).unwrap();
    let fork = |machine: &Machine| {
        let fork =
            store(machine, 128 << 10).fork(id, at.sequence, &types(), SessionOptions::default()).unwrap();
        fork.dispatch(step(5)).unwrap();
        let state = fork.dynamic().state().unwrap();
        (fork.id(), state, fork.close().unwrap()).0
    };
    let before = machine.copied(BOOT);
    let shared = fork(&before);
    let report = compress(&before, id, Compression::Zstd).unwrap().compressed.unwrap();
    let linked = files(&before, shared).len() as u64 - 1;
    assert_eq!(report.segments, report.finished - linked, "{report:?}");
    assert_eq!(compress(&before, shared, Compression::Zstd).unwrap().compressed.unwrap().segments, 0);

    let behind = compressed(&machine, id, Compression::Zstd);
    let shared = fork(&behind);
    for (path, bytes) in files(&behind, shared) {
        let parent = behind.dir(id).join(name_of(&path));
        if is_compressed(&bytes) {
            assert_eq!(behind.disk.links(&path).unwrap(), 2, "{}", name_of(&path));
            assert!(bytes == behind.disk.read_file(parent).unwrap());
        }
    }
    assert!(is_compressed(&first_compressed(&behind, shared).1), "the fork ends within a compressed segment");
    let reader = behind.audit(shared).unwrap();
    assert_eq!(
        reader.state_at(at.sequence).unwrap().slices,
        machine.audit(id).unwrap().state_at(at.sequence).unwrap().slices
    );
    reader.check_seals().unwrap();

    // The same on a real file system.
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    std::fs::write(&one, "x").unwrap();
    let disk = foldlog::storage::FileStorage::new();
    assert_eq!(disk.links(&one).unwrap(), 1);
    std::fs::hard_link(&one, &two).unwrap();
    assert_eq!(disk.links(&one).unwrap(), 2);
}

#[test]
fn bodies_are_dropped_and_segments_compressed_in_one_go_and_stay_compressed() {
    let (machine, id) = written();
    let state = machine.audit(id).unwrap().state().unwrap();
    let options = CompactOptions { compression: Some(Compression::Zstd), ..CompactOptions::default() };
    let report = store(&machine, 128 << 10).compact(id, &options).unwrap();
    assert!(report.dropped > 100 && report.compressed.as_ref().unwrap().segments > 2, "{report:?}");
    let reader = machine.audit(id).unwrap();
    assert_eq!(reader.state().unwrap().slices, state.slices);
    assert!(!reader.compacted_ranges().is_empty());
    let packed = |machine: &Machine| files(machine, id).values().filter(|bytes| is_compressed(bytes)).count();
    let (first, seals) = (packed(&machine), reader.check_seals().unwrap());
    assert!(first > 2 && seals as usize >= first);

    // A later compaction that does not name a compression leaves segments compressed, also those
    // that it rewrites.
    let session = store(&machine, 128 << 10).open_session(id, &types()).unwrap();
    write_text(&session, 9, 300);
    session.snapshot(SnapshotOptions::with_tag("later")).unwrap();
    for n in 0..300 {
        session
            .dispatch(DraftEdited { place: 0, line: format!("{n} {}", "and so on, ".repeat(40)) })
            .unwrap();
    }
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    let report = store(&machine, 128 << 10).compact(id, &CompactOptions::default()).unwrap();
    assert!(report.dropped > 20 && report.compressed.is_none(), "{report:?}");
    assert!(packed(&machine) >= first, "{} of {first}", packed(&machine));
    assert_eq!(machine.audit(id).unwrap().state().unwrap().slices, state.slices);
}

/// A file of a later version, or with an unknown codec, is not damage.
#[test]
fn a_later_version_or_codec_says_so() {
    let (machine, id) = small(Compression::Zstd);
    let (path, sound) = first_compressed(&machine, id);
    for (at, value) in [(8, 2), (9, 1), (10, 9), (11, 20)] {
        let mut bytes = sound.clone();
        bytes[at] = value;
        let crc = crc32(&bytes[..28]).to_le_bytes();
        bytes[28..32].copy_from_slice(&crc);
        machine.disk.write_file(&path, &bytes).unwrap();
        let error = machine.audit(id).map(drop).unwrap_err();
        assert!(matches!(&error, Error::FutureCompression { path: found, .. } if *found == path), "{error}");
        assert!(!error.is_damage() && error.to_string().contains(name_of(&path)), "{error}");
        assert!(machine.open(id, Durability::Boundary).is_err());
        assert!(compress(&machine, id, Compression::None).is_err());
        assert!(bytes == machine.disk.read_file(&path).unwrap(), "nothing is changed");
    }
}

/// If its successor is lost, a compressed segment is the last one, and a writer must not append to
/// it.
#[test]
fn nobody_writes_into_a_compressed_segment() {
    let (machine, id) = small(Compression::Lz4);
    let (path, bytes) = first_compressed(&machine, id);
    let last = machine.segments(id).pop().unwrap();
    machine.disk.remove_file(&last).unwrap();
    let opened = machine.open(id, Durability::Boundary).and_then(|session| {
        session.dispatch(step(1))?;
        session.close()
    });
    assert!(matches!(opened, Err(Error::MissingSegment { .. })), "{opened:?}");
    assert!(bytes == machine.disk.read_file(&path).unwrap());
    assert!(matches!(machine.audit(id), Err(Error::MissingSegment { .. })));
}
