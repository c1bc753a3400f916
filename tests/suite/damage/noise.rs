//! Arbitrary bytes after the end of a log, in any amount.

use foldlog::SequenceNumber;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldlog::inspect::{LogReader, walk_on};
use foldlog::storage::{FileStorage, Storage};
use foldlog::{BackgroundSync, Durability, Store, StoreOptions};
use foldlog_codec::RecordKind;
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::segment::SegmentHeader;
use foldlog_test_support::crash::{BOOT, Chance, Mortal, OTHER_BOOT, count, write_steps};
use foldlog_test_support::host::types;

use super::{corruption, unattested, used};

const NOISE_BYTES: usize = 1 << 20;

/// Returns kinds of noise: random bytes, and bytes that look like the header of a long frame at
/// every other offset.
fn noises() -> Vec<(&'static str, Vec<u8>)> {
    let mut chance = Chance::new(11);
    let chance: Vec<u8> =
        (0..NOISE_BYTES / 8).flat_map(|_| (chance.number() | 1 << 63).to_le_bytes()).collect();
    // As lengths, these values are between 1 and 9 MiB.
    let mut headers: Vec<u8> = [0x81, 0x10, 0x91, 0x00].into_iter().cycle().take(NOISE_BYTES).collect();
    headers[NOISE_BYTES - 1] = 1;
    vec![("chance", chance), ("headers", headers)]
}

/// The search for evidence gave up after a number of checksums, and that counted as damage: a
/// mebibyte of random bytes after an unattested end made the session unreadable.
#[test]
fn noise_behind_an_unattested_end_is_a_torn_tail_however_much_it_is() {
    for (name, noise) in noises() {
        for boot in [BOOT, OTHER_BOOT] {
            let (machine, id) = unattested();
            let records = count(&machine.open(id, Durability::Process).unwrap());
            let path = machine.segments(id).pop().unwrap();
            let end = used(&machine, &path);
            machine
                .disk
                .mutate_file(&path, |bytes| {
                    bytes.truncate(end);
                    bytes.extend_from_slice(&noise);
                })
                .unwrap();
            let machine = machine.copied(boot);
            let session =
                machine.open(id, Durability::Process).unwrap_or_else(|error| panic!("{name}: {error}"));
            let torn = session.log().recovery().torn.clone().unwrap();
            assert_eq!(count(&session), records, "{name}");
            assert_eq!((torn.offset, torn.bytes), (end as u64, noise.len() as u64), "{name}");
            write_steps(&session, 1);
            session.close().unwrap();
        }
    }
}

/// A frame in the middle of noise that attests earlier records must be found.
#[test]
fn a_frame_in_the_middle_of_noise_is_evidence_all_the_same() {
    for (name, noise) in noises() {
        for place in [0, 4_095, NOISE_BYTES / 2 + 1, NOISE_BYTES - 200] {
            let (machine, id) = unattested();
            let records = count(&machine.open(id, Durability::Process).unwrap());
            let path = machine.segments(id).pop().unwrap();
            let end = used(&machine, &path);
            let segment = SegmentHeader::decode(&machine.disk.read_file(&path).unwrap()).unwrap();
            let mut attests = Vec::new();
            let header = Header {
                crc: 0,
                predecessor_crc: 7,
                body_len: 0,
                sequence: SequenceNumber::new(records + 9),
                watermark: SequenceNumber::new(records + 9),
                kind: RecordKind::Synced,
                time_us: 0,
            };
            let context = Context::new(segment.salt, segment.first_sequence);
            frame::encode(context, &header, b"", &mut attests).unwrap();
            machine
                .disk
                .mutate_file(&path, |bytes| {
                    bytes.truncate(end);
                    bytes.extend_from_slice(&noise);
                    bytes[end + place..end + place + attests.len()].copy_from_slice(&attests);
                })
                .unwrap();
            let machine = machine.copied(OTHER_BOOT);
            let corrupt = corruption(machine.open(id, Durability::Process).unwrap_err());
            assert_eq!(
                (corrupt.offset, corrupt.sequence),
                (end as u64, records.into()),
                "{name}, at {place}"
            );
        }
    }
}

/// An audit of an 8 KiB file with a large claimed length took 39 s: it examined every missing byte.
#[test]
fn a_byte_far_into_a_sparse_segment_is_found_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let process = Mortal::born(None);
    let options = StoreOptions {
        storage: Arc::new(process.clone()),
        durability: Durability::Process,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    let store = Store::open_with(directory.path().join("store"), options).unwrap();
    let session = store.create(&types()).unwrap();
    write_steps(&session, 5);
    let (id, dir, records) = (session.id(), session.dir().to_owned(), count(&session));
    process.kill();
    drop(session);
    let file = std::fs::OpenOptions::new().write(true).open(dir.join("0000000000.seg")).unwrap();
    let far = 64 << 30;
    if let Err(error) = file.write_all_at(b"\x01", far).and_then(|()| file.sync_all()) {
        return foldlog_test_support::skipped(format_args!("no file so long: {error}"));
    }
    let blocks = file.metadata().unwrap().blocks();
    if blocks > 1024 {
        return foldlog_test_support::skipped(format_args!("the file system has no holes: {blocks} blocks"));
    }
    let began = Instant::now();
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::new());
    assert_eq!(walk_on(&storage, &dir, &mut |_| Ok(())).unwrap().records, records);
    let audit = LogReader::open_on(storage, &dir).unwrap();
    assert_eq!(audit.records_len(), records);
    audit.check_seals().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let session = store.open_session(id, &types()).unwrap();
    let torn = session.log().recovery().torn.clone().unwrap();
    assert!(torn.offset + torn.bytes == far + 1, "{torn:?}");
    write_steps(&session, 1);
    session.close().unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}
