//! The committed bytes of the format: later versions must read every file that was ever compressed.

use std::fs;
use std::path::PathBuf;

use foldlog_codec::SequenceNumber;
use foldlog_codec::segment::SegmentHeader;

use super::*;
use crate::log::chain::Segment;
use crate::log::layout;
use crate::storage::FileStorage;

fn golden(compression: Compression) -> PathBuf {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/log/compressed/golden");
    PathBuf::from(directory).join(format!("{compression}.seg"))
}

/// Three blocks: two that shrink, and a short one that does not.
fn plain() -> Vec<u8> {
    let words = |n: usize| format!("line {n}: the same words, and number {}\n", n * n % 97).into_bytes();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let shrink = (0..).flat_map(words).take(2 * BLOCK_BYTES);
    // The content of a segment file ends with its last byte that is not 0.
    shrink.chain((0..110).flat_map(|_| noise())).chain([1]).collect()
}

/// Returns a segment whose file may have any content.
fn segment(path: &Path) -> Segment {
    let header = SegmentHeader {
        ordinal: 0,
        session: uuid::Uuid::nil(),
        first_sequence: SequenceNumber::MIN,
        watermark: SequenceNumber::MIN,
        salt: 0,
        previous: None,
    };
    Segment::new(path.to_owned(), header, None)
}

/// Writes the golden files again, only for a new version of the format:
/// `cargo test -- --ignored golden_files_are_written`.
#[cfg(feature = "compression")]
#[test]
#[ignore = "writes the golden files"]
fn golden_files_are_written() {
    for compression in [Compression::Zstd, Compression::Lz4] {
        let dir = tempfile::tempdir().unwrap();
        let path = layout::segment_file(dir.path(), 0);
        fs::write(&path, plain()).unwrap();
        let (storage, dir, segment) = (&FileStorage::new(), dir.path(), &segment(&path));
        let asked = SegmentCompression { storage, dir, segment, compression, bytes_min: 0, dry_run: false };
        let kept = asked.run().unwrap();
        assert!(kept.written);
        fs::copy(path, golden(compression)).unwrap();
    }
}

#[cfg(feature = "compression")]
#[test]
fn what_was_compressed_once_is_read_as_it_was() {
    for compression in [Compression::Zstd, Compression::Lz4] {
        let (storage, path) = (FileStorage::new(), golden(compression));
        assert_eq!(compression_of(&storage, &path).unwrap(), compression);
        let file = open(&storage, &path).unwrap();
        let plain = plain();
        assert_eq!(file.len().unwrap(), plain.len() as u64);
        let mut bytes = vec![0; plain.len() + 10];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), plain.len());
        assert!(bytes[..plain.len()] == plain);
        // From any position, across the ends of blocks and of the file.
        for (from, len) in [(250, 10), (65_530, 20), (131_071, 2), (131_900, 500), (1, 131_072), (140_000, 5)]
        {
            let mut bytes = vec![0; len];
            let read = file.read_at(&mut bytes, from as u64).unwrap();
            let there = plain.get(from..).unwrap_or_default();
            assert!(bytes[..read] == there[..len.min(there.len())], "{len} from {from}");
        }
        assert!(damage(&storage, &path, 0).unwrap().is_none());
        assert!(file.write_at(b"x", 0).is_err() && file.allocate(1 << 20).is_err());
    }
}

/// Without codecs nothing is reported as damage, and nothing is written.
#[cfg(not(feature = "compression"))]
#[test]
fn a_build_without_codecs_says_which_one_is_missing() {
    for compression in [Compression::Zstd, Compression::Lz4] {
        let (storage, path) = (FileStorage::new(), golden(compression));
        let error = open(&storage, &path).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::CompressionUnavailable { .. }) && !error.is_damage(), "{text}");
        assert!(text.contains(&compression.to_string()) && text.contains("`compression`"), "{text}");
        assert!(is_compressed(&storage, &path).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let plain_file = layout::segment_file(dir.path(), 0);
        fs::write(&plain_file, plain()).unwrap();
        let (storage, dir, segment) = (&storage, dir.path(), &segment(&plain_file));
        let asked = SegmentCompression { storage, dir, segment, compression, bytes_min: 0, dry_run: false };
        assert!(matches!(asked.run(), Err(Error::CompressionUnavailable { .. })));
        assert!(fs::read(&plain_file).unwrap() == plain());
    }
}
