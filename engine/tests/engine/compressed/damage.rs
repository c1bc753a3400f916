//! Damaged and hostile compressed segments: how much is lost, which errors are reported, and that
//! no result is ever wrong.

use std::ops::Range;
use std::sync::Arc;

use foldlog::inspect::{LogReader, ReadOptions, damaged_places_on};
use foldlog::{Compression, Durability, Error, SessionOptions};
use foldlog_test_support::crash::{BOOT, Machine, step};
use foldlog_test_support::host::types;
use foldlog_test_support::killed;
use uuid::Uuid;

use super::decoder::{crc32, parts};
use super::{CODECS, compress, compressed, files, first_compressed, is_compressed, name_of, small, written};
use super::{tiny, tiny_compacted};

/// Either opening the log fails, or all results are unchanged and a check of seals fails.
#[test]
fn a_changed_byte_anywhere_in_a_compressed_segment_is_found() {
    let sessions: [fn(Compression) -> (Machine, Uuid); 2] = [tiny, tiny_compacted];
    for (codec, session) in CODECS.iter().flat_map(|codec| sessions.map(|session| (*codec, session))) {
        let (machine, id) = session(codec);
        let sound = machine.audit(id).unwrap();
        let (last, state) = (sound.last_position(), sound.state().unwrap());
        let (digest, seals) = (sound.digest_through(last).unwrap(), sound.check_seals().unwrap());
        let (path, bytes) = first_compressed(&machine, id);
        assert!(bytes.len() < 3_000, "{}", bytes.len());
        let (mut found, mut unused) = (0, 0);
        let step = killed::step(5);
        for at in (0..bytes.len()).step_by(step) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            machine.disk.write_file(&path, &damaged).unwrap();
            match machine.audit(id) {
                Err(error) => {
                    assert!(error.is_damage(), "{codec}, byte {at}: {error}");
                    assert!(error.to_string().contains(name_of(&path)), "{codec}, byte {at}: {error}");
                    // Without its magic number the file is unrecognizable.
                    assert!(
                        at < 8 || error.to_string().contains("of the file"),
                        "{codec}, byte {at}: {error}"
                    );
                    found += 1;
                }
                // The head is repeated in the first block, and no frame needs a byte after the last
                // record.
                Ok(reader) => {
                    assert_eq!(reader.state().unwrap(), state, "{codec}, byte {at}");
                    assert_eq!(reader.digest_through(last).unwrap(), digest, "{codec}, byte {at}");
                    let error = reader.check_seals().unwrap_err();
                    assert!(error.is_damage() && error.to_string().contains("of the file"), "{at}: {error}");
                    unused += 1;
                }
            }
        }
        machine.disk.write_file(&path, &bytes).unwrap();
        assert_eq!(machine.audit(id).unwrap().check_seals().unwrap(), seals);
        assert!(unused <= 256 && found > 200 / step, "{codec}: {unused} and {found} of {}", bytes.len());
    }
}

#[test]
fn a_file_that_was_cut_or_lengthened_is_never_read_wrong() {
    for codec in CODECS {
        let (machine, id) = small(codec);
        let sound = machine.audit(id).unwrap();
        let (last, digest) = (sound.last_position(), sound.digest_through(sound.last_position()).unwrap());
        let (path, bytes) = first_compressed(&machine, id);
        let machine_before = small(codec).0.audit(id).unwrap();
        for len in (0..bytes.len()).step_by(killed::step(211)).chain([bytes.len() - 1]) {
            machine.disk.write_file(&path, &bytes[..len]).unwrap();
            let error = machine.audit(id).map(drop).unwrap_err();
            assert!(error.is_damage(), "{codec}, {len} bytes: {error}");
            let store = machine.process(Durability::Boundary);
            match store.salvage(machine.dir(id), SessionOptions::default()) {
                Ok(salvaged) => {
                    let end = machine.audit(salvaged.session).unwrap().opened_sequence().get() - 1;
                    let salvaged = machine.audit(salvaged.session).unwrap().digest_through(end).unwrap();
                    assert!(salvaged == machine_before.digest_through(end).unwrap(), "{codec}, {len} bytes");
                }
                Err(error) => assert!(error.is_damage(), "{codec}, {len} bytes: {error}"),
            }
        }
        for more in [&[0_u8][..], &[0; 5000], b"FOLDLOG\n"] {
            machine.disk.write_file(&path, [&bytes, more].concat()).unwrap();
            let reader = machine.audit(id).unwrap();
            assert_eq!(reader.digest_through(last).unwrap(), digest);
            assert!(reader.check_seals().unwrap_err().is_damage(), "the file says where it ends");
        }
    }
}

/// Changes a file and corrects its checksums, as an attacker who knows the format would.
fn forged(file: &[u8], change: impl FnOnce(&mut Vec<u8>, Range<usize>)) -> Vec<u8> {
    let (head, table) = (parts(file).head, parts(file).table);
    let mut bytes = file.to_vec();
    change(&mut bytes, table.clone());
    let crcs =
        [(12, crc32(bytes.get(head).unwrap_or_default())), (24, crc32(bytes.get(table).unwrap_or_default()))];
    for (at, crc) in crcs {
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32(&bytes[..28]).to_le_bytes();
    bytes[28..32].copy_from_slice(&crc);
    bytes
}

/// Memory is allocated for the bytes of a file, not for the lengths that it claims, and the answer
/// is quick.
#[test]
fn a_hostile_file_is_damage_and_takes_no_memory() {
    let (machine, id) = small(Compression::Zstd);
    let (path, sound) = first_compressed(&machine, id);
    let digest = machine.audit(id).unwrap().digest_through(100).unwrap();
    let block = parts(&sound).blocks[0].clone();
    let plain_len = |len: u64| {
        move |bytes: &mut Vec<u8>, _: Range<usize>| {
            bytes[16..24].copy_from_slice(&len.to_le_bytes());
        }
    };
    let entry = |nth: usize, len: u32, crc: Option<u32>| {
        move |bytes: &mut Vec<u8>, table: Range<usize>| {
            let at = table.start + 8 * nth;
            bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
            if let Some(crc) = crc {
                bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
            }
        }
    };
    // A zstd block that decompresses to far more than 64 KiB, with a matching checksum.
    let bomb = zstd::bulk::compress(&vec![7; 64 << 20], 19).unwrap();
    let with_bomb = |bytes: &mut Vec<u8>, table: Range<usize>| {
        let len = (bomb.len() as u32).to_le_bytes();
        bytes[table.start..table.start + 4].copy_from_slice(&len);
        bytes[table.start + 4..table.start + 8].copy_from_slice(&crc32(&bomb).to_le_bytes());
        bytes.splice(block.clone(), bomb.iter().copied());
    };
    let files = [
        forged(&sound, plain_len(u64::MAX)),
        forged(&sound, plain_len(1 << 62)),
        forged(&sound, plain_len(0)),
        forged(&sound, plain_len(84)),
        forged(&sound, plain_len(1 << 16)),
        forged(&sound, plain_len((1 << 16) + 1)),
        forged(&sound, entry(0, u32::MAX, None)),
        forged(&sound, entry(0, (64 << 10) + 1, None)),
        forged(&sound, entry(0, 64 << 10, None)),
        forged(&sound, entry(0, 0, None)),
        forged(&sound, entry(1, 3, Some(0))),
        forged(&sound, with_bomb),
        // The second block repeats the first. Blocks do not overlap, so it is read from elsewhere.
        forged(&sound, |bytes, table| bytes.copy_within(table.start..table.start + 8, table.start + 8)),
    ];
    for (nth, bytes) in files.iter().enumerate() {
        machine.disk.write_file(&path, bytes).unwrap();
        let error = machine.audit(id).map(drop).unwrap_err();
        assert!(error.is_damage(), "{nth}: {error}");
        let read =
            LogReader::open_sound(Arc::new(machine.disk.clone()), machine.dir(id), ReadOptions::default());
        if let Ok(read) = read {
            assert!(read.last_position().get() < 150, "{nth}");
            assert!(read.last_position().get() < 100 || read.digest_through(100).unwrap() == digest, "{nth}");
        }
        places(&machine, id);
        assert!(compress(&machine, id, Compression::None).is_err(), "{nth}: no damage is made plain");
        assert!(*bytes == machine.disk.read_file(&path).unwrap());
    }
}

fn places(machine: &Machine, id: Uuid) -> (Vec<String>, u64) {
    let mut records = 0;
    let places = damaged_places_on(&machine.disk, &machine.dir(id), &mut |_| {
        records += 1;
        Ok(())
    });
    (places.unwrap().into_iter().map(|place| format!("{place:?}")).collect(), records)
}

/// A damaged block costs 64 KiB: records before it are read and salvaged, and those after it are
/// found.
#[test]
fn a_damaged_block_costs_no_other() {
    let (plain, id) = written();
    let machine = compressed(&plain, id, Compression::Zstd);
    let whole = machine.audit(id).unwrap();
    let (_, all) = places(&machine, id);
    let segments: Vec<_> =
        files(&machine, id).into_iter().filter(|(_, bytes)| is_compressed(bytes)).collect();
    for (path, bytes) in &segments[1..3] {
        for (nth, block) in parts(bytes).blocks.into_iter().enumerate() {
            let mut damaged = bytes.clone();
            damaged[block.start + block.len() / 2] ^= 4;
            machine.disk.write_file(path, &damaged).unwrap();
            let error = machine.audit(id).map(drop).unwrap_err();
            let told = format!(
                "block {nth} of the compressed segment is damaged: bytes {}..{}",
                block.start, block.end
            );
            assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(&told), "{error}");
            let (places, records) = places(&machine, id);
            assert!(
                !places.is_empty() && places.iter().all(|place| place.contains(name_of(path))),
                "{places:?}"
            );
            assert!(places[0].contains(&told), "{places:?}");
            // 64 KiB contain about 180 of these records.
            assert!(records < all && records + 320 > all, "{records} of {all}");
            let storage = Arc::new(machine.disk.clone());
            let sound = LogReader::open_sound(storage, machine.dir(id), ReadOptions::default()).unwrap();
            let end = sound.last_position();
            assert_eq!(sound.digest_through(end).unwrap(), whole.digest_through(end).unwrap());
            let mut beyond = 0;
            sound
                .beyond_damage(|_| {
                    beyond += 1;
                    Ok(())
                })
                .unwrap();
            assert!(beyond > 10, "{beyond} frames behind the damage");
            let store = machine.process(Durability::Boundary);
            let salvaged = store.salvage(machine.dir(id), SessionOptions::default()).unwrap();
            let again = machine.audit(salvaged.session).unwrap();
            assert_eq!(again.digest_through(end).unwrap(), whole.digest_through(end).unwrap());
            store.open_session(salvaged.session, &types()).unwrap().dispatch(step(1)).unwrap();
            machine.disk.write_file(path, bytes).unwrap();
        }
        // Without its table a segment is lost except for its header. The segments before and after
        // it are found.
        let mut damaged = bytes.clone();
        damaged[parts(bytes).table.start + 3] ^= 4;
        machine.disk.write_file(path, &damaged).unwrap();
        let error = machine.audit(id).map(drop).unwrap_err();
        assert!(
            error.to_string().contains("the block table of the compressed segment is damaged"),
            "{error}"
        );
        let (places, records) = places(&machine, id);
        assert!(records < all && records + 700 > all, "{records} of {all}: {places:?}");
        // The same applies to a segment whose first bytes are damaged.
        let mut damaged = bytes.clone();
        damaged[17] ^= 4;
        machine.disk.write_file(path, &damaged).unwrap();
        let error = machine.audit(id).map(drop).unwrap_err();
        assert!(error.to_string().contains("the start of a compressed segment"), "{error}");
        let (_, again) = self::places(&machine, id);
        assert!(again < all && again + 700 > all, "{again} of {all}");
        machine.disk.write_file(path, bytes).unwrap();
    }
    assert_eq!(places(&machine, id), (Vec::new(), all));
}

/// Decompressing a damaged file would lose the rest for good, and make it look intact.
#[test]
fn a_damaged_segment_is_neither_made_plain_nor_compressed_otherwise() {
    let (plain, id) = written();
    let machine = compressed(&plain, id, Compression::Zstd);
    let (path, bytes) = first_compressed(&machine, id);
    let mut damaged = bytes.clone();
    damaged[40] ^= 1;
    machine.disk.write_file(&path, &damaged).unwrap();
    for compression in [Compression::None, Compression::Lz4] {
        let machine = machine.copied(BOOT);
        let error = compress(&machine, id, compression).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains("the head"), "{error}");
        assert!(damaged == machine.disk.read_file(&path).unwrap());
    }
}
