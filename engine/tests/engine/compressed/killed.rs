//! Compressions that are killed, fail, or run while readers are open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::inspect::{Follower, LogReader, LogUpdate};
use foldlog::log::SegmentSizes;
use foldlog::storage::{CrashKind, Fault, Op};
use foldlog::{CompactOptions, CompactReport, Compression, Durability, Error, Store, StoreOptions};
use foldlog_test_support::crash::{BOOT, CHANGES, Machine, step};
use foldlog_test_support::host::types;
use foldlog_test_support::workload::write_text;

use uuid::Uuid;

use super::{compress, compressed, files, is_compressed, name_of, only, store, written};

/// Returns a closed session of few and short segments.
fn short() -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = store(&machine, 12 << 10).create(&types()).unwrap();
    write_text(&session, 1, 100);
    let id = session.id();
    session.close().unwrap();
    (machine.copied(BOOT), id)
}

fn compress_short(machine: &Machine, id: Uuid, compression: Compression) -> foldlog::Result<CompactReport> {
    let options = CompactOptions { compress_bytes_min: Some(1024), ..only(compression) };
    store(machine, 12 << 10).compact(id, &options)
}

/// The records after the kill are the same, and the next compression finishes this one.
#[test]
fn a_compression_that_is_killed_at_any_step_leaves_a_whole_log() {
    let (plain, id) = short();
    let reader = plain.audit(id).unwrap();
    let (last, state) = (reader.last_position(), reader.state().unwrap());
    let (digest, seals) = (reader.digest_through(last).unwrap(), reader.check_seals().unwrap());
    // Finishes the last segment here, so that no step is one of a writer's.
    let packed = plain.copied(BOOT);
    compress_short(&packed, id, Compression::Zstd).unwrap();
    let (packed, whole) = (packed.copied(BOOT), packed);
    compress_short(&whole, id, Compression::None).unwrap();
    let whole = whole.copied(BOOT);
    for (from, to) in [(&whole, Compression::Zstd), (&whole, Compression::Lz4), (&packed, Compression::None)]
    {
        let mut partly = BTreeMap::new();
        let look = |machine: &Machine, killed: &str| {
            let audit = machine.audit(id).unwrap_or_else(|error| panic!("{killed}: {error}"));
            assert_eq!(audit.digest_through(last).unwrap(), digest, "{killed}");
            assert_eq!(audit.state().unwrap().slices, state.slices, "{killed}");
            assert!(
                audit.check_seals().unwrap_or_else(|error| panic!("{killed}: {error}")) >= seals,
                "{killed}"
            );
            let packed = files(machine, id).values().filter(|bytes| is_compressed(bytes)).count();
            compress_short(machine, id, to).unwrap_or_else(|error| panic!("{killed}: {error}"));
            assert!(machine.disk.files().iter().all(|path| !name_of(path).ends_with(".new")), "{killed}");
            assert_eq!(machine.audit(id).unwrap().digest_through(last).unwrap(), digest, "{killed}");
            packed
        };
        let crashes = |at| {
            let kinds = [CrashKind::Power { seed: at }, CrashKind::PowerLosingAll, CrashKind::Process];
            let some = if to == Compression::Zstd { kinds.len() } else { 1 };
            kinds.into_iter().take(some).collect()
        };
        let act = |machine: &Machine| compress_short(machine, id, to);
        from.killed_at_each_step(crashes, act, |machine, killed| {
            *partly.entry(look(machine, &format!("to {to}, {killed}"))).or_insert(0) += 1;
        });
        assert!(partly.len() > 2, "some files and not others: {partly:?}");
        let ops = [&CHANGES[..], &[Op::Read]].concat();
        from.refused_at_each_step(&ops, 5, act, |machine, refused| {
            look(machine, &format!("to {to}: {refused}"));
        });
    }
}

#[test]
fn a_full_disk_leaves_the_files_as_they_are() {
    let (machine, id) = written();
    compress(&machine, id, Compression::None).unwrap();
    let machine = compressed(&compressed(&machine, id, Compression::Zstd), id, Compression::None);
    let before = files(&machine, id);
    machine.disk.inject(Fault::DiskFull { capacity_bytes: machine.disk.used_bytes() + 8_000 });
    assert!(matches!(compress(&machine, id, Compression::Zstd), Err(Error::Full { .. })));
    assert!(before == files(&machine, id));
    assert!(machine.disk.files().iter().all(|path| !name_of(path).ends_with(".new")));
    machine.disk.clear_faults();
    assert!(compress(&machine, id, Compression::Zstd).unwrap().compressed.unwrap().segments > 0);
}

/// A reader with an open file, or a noted offset, reads the same bytes from the file that takes its
/// name.
#[test]
fn who_reads_while_segments_are_compressed_reads_on() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = SegmentSizes { first_bytes: 128 << 10, max_bytes: 128 << 10, ahead_bytes_min: 0 };
    let options = StoreOptions { segments: sizes, ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    let session = store.create(&types()).unwrap();
    let id = session.id();
    write_text(&session, 7, 900);
    session.close().unwrap();
    let (dir, stop) = (store.session_dir(id), AtomicBool::new(false));
    let reader = LogReader::open(&dir).unwrap();
    let (last, middle) = (reader.last_position(), reader.last_position().get() / 2);
    let (digest, then) = (reader.digest_through(last).unwrap(), reader.state_at(middle).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(reader.digest_through(last).unwrap(), digest);
                    assert_eq!(reader.state_at(middle).unwrap(), then);
                    let (mut follower, mut next) = (Follower::open(&dir, 0).unwrap(), 0);
                    follower
                        .poll(|met| {
                            let LogUpdate::Record { record, .. } = met else {
                                panic!("nothing was recovered")
                            };
                            assert_eq!(record.sequence.get(), next);
                            next += 1;
                            Ok(())
                        })
                        .unwrap();
                    assert!(next > last.get());
                }
            });
        }
        for round in 0..4 {
            for compression in [Compression::Zstd, Compression::Lz4, Compression::None] {
                let report = store.compact(id, &only(compression)).unwrap().compressed.unwrap();
                assert!(
                    report.segments > 0 || (round == 0 && compression == Compression::None),
                    "{report:?}"
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A session that was extended after compressed segments is compressed again. An open session is
/// left alone.
#[test]
fn a_session_goes_on_behind_its_compressed_segments() {
    let (plain, id) = written();
    let machine = compressed(&plain, id, Compression::Zstd);
    let before = files(&machine, id);
    let session = store(&machine, 128 << 10).open_session(id, &types()).unwrap();
    assert!(matches!(compress(&machine, id, Compression::Zstd), Err(Error::Locked { .. })));
    write_text(&session, 11, 400);
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    for (path, bytes) in before.iter().filter(|(_, bytes)| is_compressed(bytes)) {
        assert!(*bytes == machine.disk.read_file(path).unwrap(), "{}", name_of(path));
    }
    let report = compress(&machine, id, Compression::Zstd).unwrap().compressed.unwrap();
    assert!(report.segments > 0 && report.segments < report.finished, "{report:?}");
    let machine = machine.copied(BOOT);
    // A killed process is recovered after compressed segments.
    let session = machine.open(id, Durability::Process).unwrap();
    assert_eq!(session.dynamic().state().unwrap().slices, state.slices);
    session.dispatch(step(1)).unwrap();
    machine.crash(CrashKind::Process);
    std::mem::forget(session);
    let session = machine.open(id, Durability::Boundary).unwrap();
    session.dispatch(step(2)).unwrap();
    session.close().unwrap();
    let reader = LogReader::open_on(Arc::new(machine.disk.clone()), machine.dir(id)).unwrap();
    reader.check_seals().unwrap();
}
