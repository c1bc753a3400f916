//! Compressed segments: every query has the same answer before and after a compression, a kill at
//! any step leaves a complete log, and the cost of damage is bounded.

mod damage;
mod decoder;
mod form;
mod killed;
mod questions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog::log::SegmentSizes;
use foldlog::{CompactOptions, CompactReport, Compression, Durability, Store, StoreOptions};
use foldlog_test_support::crash::{BOOT, Machine, large_note};
use foldlog_test_support::host::{DraftEdited, StepAdded, types};
use foldlog_test_support::workload::write_text;
use uuid::Uuid;

const CODECS: [Compression; 2] = [Compression::Zstd, Compression::Lz4];

/// Opens the store of a machine as a new process does, with segments of this length.
fn store(machine: &Machine, segment_bytes: u64) -> Store {
    let segments = SegmentSizes { first_bytes: segment_bytes, max_bytes: segment_bytes, ahead_bytes_min: 0 };
    let options = StoreOptions { segments, ..machine.options(Durability::Boundary) };
    Store::open_with("/home/store", options).unwrap()
}

/// Returns a closed session of several segments of 128 KiB, all of it durable.
fn written() -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = store(&machine, 128 << 10).create(&types()).unwrap();
    write_text(&session, 1, 500);
    session.rollback_to(session.log().position().unwrap() - 30).unwrap();
    write_text(&session, 2, 500);
    let id = session.id();
    session.close().unwrap();
    (machine.copied(BOOT), id)
}

fn only(compression: Compression) -> CompactOptions {
    CompactOptions { compression: Some(compression), keep_bodies: true, ..CompactOptions::default() }
}

fn compress(machine: &Machine, id: Uuid, compression: Compression) -> foldlog::Result<CompactReport> {
    store(machine, 128 << 10).compact(id, &only(compression))
}

fn compressed(machine: &Machine, id: Uuid, compression: Compression) -> Machine {
    let machine = machine.copied(BOOT);
    let report = compress(&machine, id, compression).unwrap().compressed.unwrap();
    assert!(report.segments > 0, "{report:?}");
    machine
}

fn is_compressed(bytes: &[u8]) -> bool {
    bytes.starts_with(b"FOLDZIP\n")
}

fn files(machine: &Machine, id: Uuid) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |path: PathBuf| (path.clone(), machine.disk.read_file(&path).unwrap());
    machine.segments(id).into_iter().map(read).collect()
}

fn first_compressed(machine: &Machine, id: Uuid) -> (PathBuf, Vec<u8>) {
    files(machine, id).into_iter().find(|(_, bytes)| is_compressed(bytes)).unwrap()
}

fn up_to_the_last(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// Returns a closed session whose one finished segment is 70 KiB long and compresses very well.
fn small(compression: Compression) -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = store(&machine, 68 << 10).create(&types()).unwrap();
    for n in 0..150 {
        session
            .dispatch(StepAdded { title: "the same words again, ".repeat(20), part: (n % 3) as u8 })
            .unwrap();
    }
    let id = session.id();
    session.close().unwrap();
    let machine = machine.copied(BOOT);
    let report = store(&machine, 68 << 10).compact(id, &only(compression)).unwrap();
    assert_eq!(report.compressed.unwrap().segments, 1);
    (machine.copied(BOOT), id)
}

/// Returns a closed session of short events, whose first segment is compressed although it is
/// short.
fn tiny(compression: Compression) -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = store(&machine, 4096).create(&types()).unwrap();
    for n in 0..20 {
        session
            .dispatch(StepAdded { title: format!("{n}: the same words again"), part: (n % 3) as u8 })
            .unwrap();
    }
    session.dispatch(large_note(1)).unwrap();
    for n in 0..30 {
        session.dispatch(StepAdded { title: format!("{n}: and once more the same"), part: 1 }).unwrap();
    }
    let id = session.id();
    session.close().unwrap();
    let machine = machine.copied(BOOT);
    let options = CompactOptions { compress_bytes_min: Some(1024), ..only(compression) };
    assert!(store(&machine, 4096).compact(id, &options).unwrap().compressed.unwrap().segments > 0);
    (machine.copied(BOOT), id)
}

/// Returns a closed session of short edits, whose first segment is compacted too.
fn tiny_compacted(compression: Compression) -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = store(&machine, 4096).create(&types()).unwrap();
    for n in 0..45 {
        session
            .dispatch(DraftEdited { place: n % 4, line: format!("{n}: the same words again and again") })
            .unwrap();
    }
    let id = session.id();
    session.close().unwrap();
    let machine = machine.copied(BOOT);
    let options = CompactOptions { compress_bytes_min: Some(512), keep_bodies: false, ..only(compression) };
    let report = store(&machine, 4096).compact(id, &options).unwrap();
    assert!(report.dropped > 30 && report.compressed.unwrap().segments > 0);
    (machine.copied(BOOT), id)
}

fn name_of(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}
