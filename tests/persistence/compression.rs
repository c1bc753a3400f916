//! Compression of files: the stored form determines how it is read, and damaged data is never read
//! as other data.

use std::io::Write;
use std::process::{Command, Stdio};

use foldlog_tasks::{CompressionAlgorithm, Error, StateCompression};

use CompressionAlgorithm::{Gzip, Lz4, None as Plain, Zstd};

fn by(algorithm: CompressionAlgorithm, threshold_bytes: u64) -> StateCompression {
    StateCompression { threshold_bytes, ..StateCompression::new(algorithm) }
}

/// Returns a text that compresses well, but not to almost nothing.
fn text(bytes: usize) -> Vec<u8> {
    let mut text = b"{\n".to_vec();
    (0u64..)
        .map(|n| format!("\"{}\",", n * n % 977))
        .take_while(|line| {
            text.extend_from_slice(line.as_bytes());
            text.len() < bytes
        })
        .for_each(drop);
    text
}

/// The exact bytes return on both sides of the threshold.
#[test]
fn every_algorithm_goes_both_ways_at_every_level() {
    for algorithm in CompressionAlgorithm::ALL {
        for level in [0, 1, 9, 22, u32::MAX] {
            let data = text(if level > 9 { 2_000 } else { 40_000 });
            let compression = StateCompression { level, ..by(algorithm, 1_000) };
            let stored = compression.compress(&data).unwrap();
            assert_eq!(CompressionAlgorithm::detect(&stored), Some(algorithm), "the bytes name the codec");
            let is_shorter = algorithm != Plain && (algorithm, level) != (Gzip, 0);
            assert_eq!(stored.len() < data.len(), is_shorter, "{algorithm:?} {level}");
            assert_eq!(StateCompression::decompress(&stored, data.len() as u64).unwrap(), data);
            let longer = StateCompression::decompress(&stored, data.len() as u64 - 1);
            assert!(matches!(longer, Err(Error::TooLong { .. })), "{algorithm:?}: {longer:?}");
        }
    }
}

#[test]
fn a_higher_level_of_zstandard_stores_a_long_text_in_fewer_bytes() {
    let data = text(200_000);
    let stored = |level| StateCompression { level, ..by(Zstd, 0) }.compress(&data).unwrap().len();
    let (low, high) = (stored(1), stored(22));
    assert!(high < low, "{high} bytes at level 22, {low} at level 1");
}

/// Data below the threshold stays readable, and data at the threshold does not.
#[test]
fn data_below_the_threshold_stays_as_it_is() {
    let data = text(1_000);
    for algorithm in [Gzip, Zstd, Lz4] {
        let at = data.len() as u64;
        assert_eq!(by(algorithm, at + 1).compress(&data).unwrap(), data);
        assert_ne!(by(algorithm, at).compress(&data).unwrap(), data);
    }
}

/// Regression: `null`, the value of a session without a repository, was compressed by gzip although
/// no algorithm was chosen.
#[test]
fn every_json_text_has_a_plain_form() {
    for data in [&b"{}"[..], b"[]", b"\"a\"", b"null\n", b"true", b"false", b"-1", b"0"] {
        for compression in [by(Plain, 0), by(Plain, 1_000), by(Zstd, 1_000)] {
            assert_eq!(compression.compress(data).unwrap(), data);
        }
        assert_eq!(CompressionAlgorithm::detect(data), Some(Plain));
        assert_eq!(StateCompression::decompress(data, 1_000).unwrap(), data);
    }
}

/// Regression: data that is no JSON text was compressed by gzip although no algorithm was chosen,
/// even below the threshold.
#[test]
fn data_that_is_no_json_text_is_refused_rather_than_compressed_unasked() {
    let frames = [Gzip, Zstd, Lz4].map(|algorithm| by(algorithm, 0).compress(b"{}").unwrap());
    let others = [&b""[..], b"plain words", b"{\x18", b"[\xff", b"\"\x00", b"\n{}"];
    for data in frames.iter().map(Vec::as_slice).chain(others) {
        for algorithm in CompressionAlgorithm::ALL {
            let short = by(algorithm, 1_000).compress(data);
            assert!(matches!(short, Err(Error::NotPlain)), "{algorithm:?} {data:?}: {short:?}");
        }
        let unchosen = by(Plain, 0).compress(data);
        assert!(matches!(unchosen, Err(Error::NotPlain)), "{data:?}: {unchosen:?}");
        for algorithm in [Gzip, Zstd, Lz4] {
            let stored = by(algorithm, 0).compress(data).unwrap();
            assert_eq!(CompressionAlgorithm::detect(&stored), Some(algorithm));
            assert_eq!(StateCompression::decompress(&stored, 1_000).unwrap(), data);
        }
    }
}

#[test]
fn bytes_that_are_neither_a_frame_nor_plain_text_are_refused() {
    for unknown in [&b""[..], b"plain", b"{\xb5\x2f\xfd", b"\x28\xb5\x2f"] {
        let read = StateCompression::decompress(unknown, 1_000);
        assert!(matches!(read, Err(Error::UnknownCodec)), "{unknown:?}: {read:?}");
    }
}

/// No loss may be silent: each truncation, and each wrong byte, causes an error or returns the
/// exact data.
#[test]
fn every_truncation_and_every_wrong_byte_of_a_frame_is_told() {
    let data = text(600);
    let mut told = 0;
    for algorithm in [Gzip, Zstd, Lz4] {
        let stored = by(algorithm, 0).compress(&data).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..stored.len()).map(|len| stored[..len].to_vec()).collect();
        for place in 0..stored.len() {
            // All values of the first bytes, which determine the codec, and some values of the
            // others.
            let flips: Vec<u8> = if place < 8 { (1..=255).collect() } else { vec![1, 0x10, 0x80, 0xff] };
            for flip in flips {
                let mut stored = stored.clone();
                stored[place] ^= flip;
                damaged.push(stored);
            }
        }
        damaged.push([stored.clone(), vec![0]].concat());
        damaged.push([stored.clone(), stored.clone()].concat());
        for damaged in damaged {
            match StateCompression::decompress(&damaged, 1 << 20) {
                Ok(read) => assert_eq!(read, data, "{algorithm:?}"),
                Err(_) => told += 1,
            }
        }
    }
    assert!(told > 3_000, "only {told} were told");
}

/// A small file with an enormous text must not be decompressed beyond the reader's limit.
#[test]
fn a_bomb_is_read_no_further_than_allowed() {
    let zeros = vec![b' '; 8 << 20];
    for algorithm in [Gzip, Zstd, Lz4] {
        let stored = by(algorithm, 0).compress(&zeros).unwrap();
        assert!(stored.len() < 1 << 17, "{algorithm:?}: {}", stored.len());
        let read = StateCompression::decompress(&stored, 1 << 16);
        assert!(matches!(read, Err(Error::TooLong { bytes_max: 0x1_0000 })), "{algorithm:?}");
    }
}

/// Exports must be readable without foldlog.
#[test]
fn the_usual_programs_read_what_is_compressed() {
    let data = text(5_000);
    for (algorithm, program) in [(Gzip, "gzip"), (Zstd, "zstd"), (Lz4, "lz4")] {
        let mut command = Command::new(program);
        command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            foldlog_test_support::skipped(format!("there is no `{program}` here"));
            continue;
        };
        let stored = by(algorithm, 0).compress(&data).unwrap();
        child.stdin.take().unwrap().write_all(&stored).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout == data, "{program}");
    }
}
