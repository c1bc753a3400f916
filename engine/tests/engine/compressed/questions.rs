//! Compares the answers to queries of a log and of its compressed form.

use std::path::Path;
use std::sync::Arc;

use foldlog::inspect::{Follower, LogReader, LogUpdate};
use foldlog::storage::Op;
use foldlog::{
    BackupOptions, CompactOptions, Compression, Durability, Error, Policy, SequenceNumber, SessionOptions,
    Store,
};
use foldlog_test_support::crash::{Machine, step};
use foldlog_test_support::host::{Notes, Plan, assert_reduced_again, types};
use foldlog_test_support::workload::write_text;
use uuid::Uuid;

use super::{
    CODECS, compress, compressed, files, first_compressed, is_compressed, name_of, only, store, written,
};

/// The answers of a log to every kind of query.
#[derive(PartialEq)]
struct Answers {
    records: Vec<(u64, foldlog::RecordKind, i64, Vec<u8>)>,
    digests: Vec<[u8; 32]>,
    states: Vec<foldlog::State>,
    seals: u64,
    followed: Vec<u64>,
    export: Vec<u8>,
}

fn answers(machine: &Machine, id: Uuid, through: u64) -> Answers {
    let reader = machine.audit(id).unwrap();
    let mut records = Vec::new();
    reader
        .records(0, through, |record| {
            records.push((record.sequence.get(), record.kind, record.time_us, record.body.to_vec()));
            Ok(())
        })
        .unwrap();
    let some = || (0..=through).step_by(97).map(SequenceNumber::from);
    let all = [Policy::State, Policy::Log, Policy::Cache].into();
    let export = reader.export_at(through, &all).unwrap().to_json().unwrap().into_bytes();
    let mut followed = Vec::new();
    let mut follower = Follower::open_on(Arc::new(machine.disk.clone()), machine.dir(id), 0).unwrap();
    follower
        .poll(|met| {
            let LogUpdate::Record { record, .. } = met else { panic!("nothing was recovered") };
            followed.extend(Some(record.sequence.get()).filter(|sequence| *sequence <= through));
            Ok(())
        })
        .unwrap();
    assert_reduced_again(&reader, &types());
    Answers {
        records,
        digests: some().map(|at| reader.digest_through(at).unwrap()).collect(),
        states: some().map(|at| reader.state_at(at).unwrap()).collect(),
        seals: reader.check_seals().unwrap(),
        followed,
        export,
    }
}

#[test]
fn whatever_is_asked_of_a_log_has_the_same_answer_when_it_is_compressed() {
    let (plain, id) = written();
    // Both contain the record that states why the last segment was finished.
    let zstd = compressed(&plain, id, Compression::Zstd);
    let plain = compressed(&zstd, id, Compression::None);
    let through = plain.audit(id).unwrap().last_position().get();
    let expected = answers(&plain, id, through);
    assert!(expected.seals > 2 && expected.states.len() > 8);
    let session = plain.open(id, Durability::Boundary).unwrap();
    let items = (session.view::<Plan>().unwrap().len(), session.log().slice::<Notes>().unwrap().len());
    for codec in CODECS {
        let machine = compressed(&plain, id, codec);
        let found = answers(&machine, id, through);
        assert!(expected.records == found.records && expected.states == found.states, "{codec}");
        assert!(expected == found, "{codec}");
        let session = machine.open(id, Durability::Boundary).unwrap();
        assert_eq!(
            (session.view::<Plan>().unwrap().len(), session.log().slice::<Notes>().unwrap().len()),
            items
        );
        for (at, note) in session.log().slice::<Notes>().unwrap().iter().enumerate().step_by(50) {
            assert_eq!(note.unwrap().text, plain_note(&plain, id, at));
        }
        // Rollbacks and forks have their targets within compressed segments.
        for at in [40_u64, 333, 600, through - 40] {
            let then = plain.audit(id).unwrap().state_at(at).unwrap();
            let fork = store(&machine, 128 << 10).fork(id, at, &types(), SessionOptions::default()).unwrap();
            assert_eq!(fork.dynamic().state().unwrap().slices, then.slices, "{codec}, a fork at {at}");
            fork.dispatch(step(1)).unwrap();
            let (fork, state) = (fork.id(), (fork.dynamic().state().unwrap(), fork.close().unwrap()).0);
            assert_eq!(
                machine.open(fork, Durability::Boundary).unwrap().dynamic().state().unwrap().slices,
                state.slices
            );
            machine.audit(fork).unwrap().check_lineage(&machine.audit(id).unwrap()).unwrap();
            session.rollback_to(at).unwrap();
            assert_eq!(
                session.dynamic().state().unwrap().slices["draft"],
                then.slices["draft"],
                "{codec}, back to {at}"
            );
        }
        session.close().unwrap();
        machine.audit(id).unwrap().check_seals().unwrap();
    }
}

fn plain_note(machine: &Machine, id: Uuid, at: usize) -> String {
    let session = store(machine, 128 << 10).open_read_only(id, &types()).unwrap();
    session.log().slice::<Notes>().unwrap().iter().nth(at).unwrap().unwrap().text.clone()
}

/// Images contain offsets in segments and checksums, which are valid for either form.
#[test]
fn an_image_stays_good() {
    let machine = Machine::default().with_images();
    let session = store(&machine, 128 << 10).create(&types()).unwrap();
    write_text(&session, 8, 600);
    let (id, state) = (session.id(), session.dynamic().state().unwrap());
    session.close().unwrap();
    let from = |machine: &Machine| {
        let session = machine.open(id, Durability::Boundary).unwrap();
        assert_eq!(session.dynamic().state().unwrap().slices, state.slices);
        let from = session.log().recovery().from_image;
        session.close().unwrap();
        from
    };
    let before = from(&machine).unwrap();
    assert!(before.get() > 300);
    for compression in [Compression::Zstd, Compression::Lz4, Compression::None] {
        assert!(compress(&machine, id, compression).unwrap().compressed.unwrap().segments > 0);
        assert!(from(&machine).unwrap() >= before, "{compression}");
    }
}

#[test]
fn a_walk_reads_each_block_once_and_a_record_one_block() {
    let (plain, id) = written();
    let machine = compressed(&plain, id, Compression::Lz4);
    let (path, bytes) = first_compressed(&machine, id);
    let blocks = super::decoder::parts(&bytes).blocks.len();
    let reader = machine.audit(id).unwrap();
    let reads = || {
        let trace = machine.disk.take_trace();
        trace.into_iter().filter(|(op, at)| *op == Op::Read && *at == path).count()
    };
    reads();
    reader.records(0, u64::MAX, |_| Ok(())).unwrap();
    // The magic number, the head and the table of the file are additional reads.
    assert_eq!(reads(), 3 + blocks);
    let near = machine
        .frames(id)
        .unwrap()
        .into_iter()
        .find(|frame| frame.segment == path && frame.start > 90_000)
        .unwrap();
    reads();
    reader.records(near.sequence, near.sequence, |_| Ok(())).unwrap();
    assert!(reads() <= 3 + 2, "one block, and what the index names before the record");
}

/// A copy of a compressed session is compressed where possible, and a later backup extends it.
#[test]
fn a_backup_of_a_compressed_session_is_restored_and_gone_on_with() {
    let (plain, id) = written();
    let machine = compressed(&plain, id, Compression::Zstd);
    let copies = || Store::open_with("/mnt/copies", machine.options(Durability::Boundary)).unwrap();
    let back_up = || copies().backup_from(machine.dir(id), BackupOptions::default());
    let first = back_up().unwrap();
    let copied = |machine: &Machine| -> Vec<bool> {
        let dir = Path::new("/mnt/copies/sessions").join(id.to_string());
        let segments = machine.disk.dump().into_iter().filter(|(path, _)| path.parent() == Some(&dir));
        segments
            .filter(|(path, _)| name_of(path).ends_with(".seg"))
            .map(|(_, bytes)| is_compressed(&bytes))
            .collect()
    };
    let packed = files(&machine, id).values().map(|bytes| is_compressed(bytes)).collect::<Vec<_>>();
    assert!(copied(&machine) == packed, "{:?} of {packed:?}", copied(&machine));

    // The session and its copy are extended, also after shared segments are compressed in only one
    // of them.
    let session = store(&machine, 128 << 10).open_session(id, &types()).unwrap();
    write_text(&session, 12, 300);
    session.close().unwrap();
    let second = back_up().unwrap();
    assert_eq!(second.records_before, first.records);
    compress(&machine, id, Compression::Lz4).unwrap();
    let session = machine.open(id, Durability::Boundary).unwrap();
    session.dispatch(step(3)).unwrap();
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    let third = back_up().unwrap();
    assert_eq!(third.records_before, second.records);
    let copy = LogReader::open_on(Arc::new(machine.disk.clone()), &third.dir).unwrap();
    let own = machine.audit(id).unwrap();
    assert_eq!(
        copy.digest_through(own.last_position()).unwrap(),
        own.digest_through(own.last_position()).unwrap()
    );
    copy.check_seals().unwrap();

    // The copy is compressed on its own: nothing is appended to its files, and the next backup adds
    // others.
    let segments = copies().compact(id, &only(Compression::Zstd)).unwrap().compressed.unwrap().segments;
    assert!(segments > 0);
    let session = machine.open(id, Durability::Boundary).unwrap();
    session.dispatch(step(4)).unwrap();
    session.close().unwrap();
    match back_up() {
        Ok(fourth) => assert_eq!(fourth.records_before, third.records),
        Err(error) => assert!(matches!(error, Error::NotACopy { .. }), "{error}"),
    }
    let restored = copies().open_session(id, &types()).unwrap();
    assert_eq!(restored.dynamic().state().unwrap().slices["draft"], state.slices["draft"]);
}

/// A store of many short sessions can be compressed, although each session is one unfinished
/// segment.
#[test]
fn the_segment_of_a_short_session_is_finished_and_compressed_where_that_is_asked_for() {
    let machine = Machine::default();
    let compacted = |steps: u64, compress_bytes_min| {
        let session = store(&machine, 128 << 10).create(&types()).unwrap();
        write_text(&session, 1, steps);
        let id = session.id();
        session.close().unwrap();
        let options = CompactOptions { compress_bytes_min, ..only(Compression::Zstd) };
        let before = store(&machine, 128 << 10).read_log(id).unwrap().state().unwrap();
        let report = store(&machine, 128 << 10).compact(id, &options).unwrap().compressed.unwrap();
        assert_eq!(store(&machine, 128 << 10).read_log(id).unwrap().state().unwrap().slices, before.slices);
        report
    };
    assert_eq!(compacted(60, None).finished, 0);
    let report = compacted(60, Some(4096));
    assert_eq!((report.finished, report.segments), (1, 1));
    assert!(report.bytes_before > 16 << 10 && report.bytes_after * 2 < report.bytes_before, "{report:?}");
    // A segment this short is unchanged: its successor would take as much space.
    assert_eq!(compacted(10, Some(4096)).finished, 0);
}
