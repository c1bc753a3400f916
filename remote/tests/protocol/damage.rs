//! Shows that a reader rejects chunks that are not as they were put.

use std::sync::Arc;

use foldlog::replication::CapturePacks;
use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, RecordKind};
use foldlog_remote::chunk::{Chunk, ChunkEncoder, ChunkHash, ChunkHead, Epoch, WriterId};
use foldlog_remote::{ChunkReader, ChunkWriter, Error, GapEnd, SessionWriter};
use proptest::prelude::{any, proptest};
use uuid::Uuid;

use crate::sim::world::{SESSION, bucket, record, run};
use crate::sim::{Net, oracle};

fn key(number: u64) -> String {
    format!("team/agents/sessions/{SESSION}/log/{number:020}")
}

/// A log of a claim and two chunks, of which the first has captures.
async fn log() -> Arc<Net> {
    let net = Net::new(1, 0);
    let mut writer =
        ChunkWriter::claim(ChunkReader::new(bucket(&net, 0), SESSION), "w", &mut |_| {}).await.unwrap();
    let packs = [ObjectId::from_content(b"a pack"), ObjectId::from_content(b"another pack")];
    let captures = CapturePacks { packs: &packs, inlined: b"a third" };
    let records = [record(0, b"zero"), record(1, b"one")];
    writer.append_with(Some(captures), &records).await.unwrap();
    writer.append([record(2, b"two")]).await.unwrap();
    net
}

/// Reads to the end. Returns the number of chunks before the error, and the result.
async fn read(net: &Arc<Net>) -> (usize, Result<(), Error>) {
    let mut chunks = 0;
    let read = ChunkReader::new(bucket(net, 1), SESSION).read_to_end(&mut |_| chunks += 1).await;
    (chunks, read)
}

/// Recomputes the hash at the end of the bytes, as anyone who forges a chunk can.
fn hashed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 32;
    let hash = *blake3::hash(&bytes[..end]).as_bytes();
    bytes[end..].copy_from_slice(&hash);
    bytes
}

#[test]
fn every_wrong_byte_of_a_chunk_is_noticed() {
    run(async {
        let net = log().await;
        let whole = net.objects()[&key(1)].clone();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            net.set(&key(1), bytes);
            let (chunks, read) = read(&net).await;
            assert_eq!(chunks, 1);
            assert!(matches!(read, Err(Error::Damaged { chunk: 1, .. })), "byte {at}: {read:?}");
        }
        for len in 0..whole.len() {
            net.set(&key(1), whole[..len].to_vec());
            assert!(matches!(read(&net).await, (1, Err(Error::Damaged { chunk: 1, .. }))), "{len} bytes");
        }
        net.set(&key(1), [whole.clone(), vec![0]].concat());
        assert!(matches!(read(&net).await.1, Err(Error::Damaged { .. })));
        // A session whose log cannot be read cannot be claimed.
        let claim = ChunkWriter::claim(ChunkReader::new(bucket(&net, 0), SESSION), "w", &mut |_| {}).await;
        assert!(matches!(claim, Err(Error::Damaged { chunk: 1, .. })));
        net.set(&key(1), whole);
        assert_eq!(read(&net).await, (3, Ok(())));
    });
}

#[test]
fn captures_are_read_as_they_were_written_and_no_length_in_them_is_believed() {
    run(async {
        let net = log().await;
        let whole = net.objects()[&key(1)].clone();
        let chunk = Chunk::decode(&whole, 1).unwrap();
        let captures = chunk.captures.unwrap();
        let packs: Vec<ObjectId> = captures.packs().collect();
        assert_eq!(packs, [ObjectId::from_content(b"a pack"), ObjectId::from_content(b"another pack")]);
        assert_eq!(captures.inlined, b"a third");
        assert_eq!(chunk.records().count(), 2);
        // Chunks without captures do not mention them.
        assert_eq!(Chunk::decode(&net.objects()[&key(2)], 2).unwrap().captures, None);
        for at in [156, 156 + 4 + 2 * 40] {
            for count in [3_u32, 1 << 20, u32::MAX] {
                let mut bytes = whole.clone();
                bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
                let bytes = hashed(bytes);
                assert!(matches!(Chunk::decode(&bytes, 1), Err(Error::Malformed { .. })), "{at}: {count}");
            }
        }
        let mut encoder = ChunkEncoder::new(chunk.head.clone()).unwrap();
        let refused = encoder.set_captures(&[], &vec![0; (1 << 20) + 1]);
        assert!(matches!(refused, Err(Error::TooLarge { what: "pack of captures", .. })), "{refused:?}");
    });
}

#[test]
fn every_byte_that_is_exchanged_with_its_hash_ends_the_reading_too() {
    run(async {
        let net = log().await;
        let whole = net.objects()[&key(1)].clone();
        for at in 0..whole.len() - 32 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            net.set(&key(1), hashed(bytes));
            // At the latest the next chunk names another predecessor. For a lowered epoch that is
            // the only sign.
            let (_, read) = read(&net).await;
            assert!(read.is_err(), "byte {at} was exchanged unnoticed");
            assert!(!matches!(read, Err(Error::Damaged { .. })), "byte {at}: {read:?}");
        }
    });
}

#[test]
fn a_last_chunk_that_breaks_a_rule_ends_the_reading_and_says_which() {
    run(async {
        let net = log().await;
        let whole = net.objects()[&key(2)].clone();
        // Each has a correct hash, so that only the rule rejects it.
        let exchanged = [
            (0, "it does not start like a chunk"),
            (10, "its head cannot be decoded"),
            (32, "its key and its bytes name different numbers"),
            (48, "another writer claimed its epoch"),
            (112, "its records do not match its content digest"),
            (120, "its records do not match its content digest"),
            (whole.len() - 33, "its records do not match its content digest"),
        ];
        for (at, expected) in exchanged {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            net.set(&key(2), hashed(bytes));
            assert_eq!(
                read(&net).await,
                (2, Err(Error::Malformed { chunk: 2, reason: expected })),
                "byte {at}"
            );
        }
        let mut raised = whole.clone();
        raised[40] += 1;
        net.set(&key(2), hashed(raised));
        let expected = Error::Malformed { chunk: 2, reason: "it raises the epoch, but is not a claim" };
        assert_eq!(read(&net).await, (2, Err(expected)));
        let mut elsewhere = whole;
        elsewhere[80] ^= 1;
        net.set(&key(2), hashed(elsewhere));
        assert!(matches!(read(&net).await, (2, Err(Error::Broken { chunk: 2, .. }))));
    });
}

#[test]
fn a_newer_format_is_told_from_damage() {
    run(async {
        let net = log().await;
        let mut bytes = net.objects()[&key(1)].clone();
        bytes[8..10].copy_from_slice(&9_u16.to_le_bytes());
        net.set(&key(1), hashed(bytes));
        assert_eq!(read(&net).await, (1, Err(Error::NewerFormat { chunk: 1, found: 9, supported: 2 })));
        let claim = ChunkWriter::claim(ChunkReader::new(bucket(&net, 0), SESSION), "w", &mut |_| {}).await;
        assert!(matches!(claim, Err(Error::NewerFormat { .. })));
    });
}

#[test]
fn a_chunk_of_another_session_is_not_ours() {
    run(async {
        let net = log().await;
        let other = Uuid::from_u128(9);
        let mut writer =
            ChunkWriter::claim(ChunkReader::new(bucket(&net, 0), other), "w", &mut |_| {}).await.unwrap();
        writer.append([record(0, b"theirs")]).await.unwrap();
        net.set(&key(3), net.objects()[&key(1).replace(&SESSION.to_string(), &other.to_string())].clone());
        assert_eq!(read(&net).await, (3, Err(Error::NotOurs { chunk: 3, session: SESSION, found: other })));
    });
}

#[test]
fn a_chunk_that_was_removed_or_a_log_that_went_back_is_noticed() {
    run(async {
        let net = log().await;
        let whole = net.objects();
        let mut writer =
            ChunkWriter::claim(ChunkReader::new(bucket(&net, 0), SESSION), "w", &mut |_| {}).await.unwrap();
        let known = *writer.chain();

        // Removed from the middle.
        net.remove(&key(1));
        assert_eq!(
            read(&net).await,
            (1, Err(Error::Missing { chunk: 1, behind: GapEnd::Chunk { chunk: 2 } }))
        );
        net.set(&key(1), whole[&key(1)].clone());
        assert_eq!(read(&net).await, (4, Ok(())));

        // Removed from the end: a reader that knew the end notices, another one cannot.
        net.remove(&key(3));
        assert_eq!(read(&net).await, (3, Ok(())));
        let resumed = ChunkReader::resume(bucket(&net, 0), known).await.unwrap_err();
        assert_eq!(resumed, Error::RemoteWentBack { chunk: 3 });

        // Another writer continues from there. The writer that knew the true end is not merged into
        // it.
        let mut other =
            ChunkWriter::claim(ChunkReader::new(bucket(&net, 1), SESSION), "w", &mut |_| {}).await.unwrap();
        other.append([record(3, b"another three")]).await.unwrap();
        let error = writer.append([record(3, b"three")]).await.unwrap_err();
        assert!(matches!(error, Error::Broken { chunk: 4, .. } | Error::Fenced { .. }), "{error:?}");
        assert_eq!(writer.settle().await.unwrap_err(), error);
        assert_eq!(oracle::history(&net.objects()).len(), 5);
    });
}

#[test]
fn an_object_that_is_too_long_is_not_read() {
    run(async {
        let net = log().await;
        net.set(&key(3), vec![0; (32 << 20) + 1]);
        let (chunks, read) = read(&net).await;
        assert_eq!(
            (chunks, read),
            (3, Err(Error::TooLarge { what: "object", len: (32 << 20) + 1, max: 32 << 20 }))
        );
    });
}

#[test]
fn what_no_log_holds_is_not_appended() {
    run(async {
        let net = log().await;
        let mut writer =
            ChunkWriter::claim(ChunkReader::new(bucket(&net, 0), SESSION), "w", &mut |_| {}).await.unwrap();
        let gap = writer.append([record(4, b"gap")]).await.unwrap_err();
        assert_eq!(gap, Error::OutOfOrder { expected: 3.into(), found: 4.into() });
        let envelope = Record { kind: RecordKind::Synced, ..record(3, b"") };
        assert_eq!(writer.append([envelope]).await.unwrap_err(), Error::NotContent { sequence: 3.into() });
        let long = vec![0; (16 << 20) + 1];
        let too_long = writer.append([record(3, &long)]).await.unwrap_err();
        assert!(matches!(too_long, Error::TooLarge { what: "record", .. }));
        // These errors do not stop the writer. Records that do not fit into one chunk take several.
        let large = vec![7; 15 << 20];
        let records = (3..8).map(|sequence| record(sequence, &large));
        assert_eq!(writer.append(records).await.unwrap(), 8);
        let history = oracle::history(&net.objects());
        assert_eq!(history.iter().map(|chunk| chunk.bodies.len()).collect::<Vec<_>>(), [0, 2, 1, 0, 2, 2, 1]);
    });
}

proptest! {
    /// Arbitrary bytes cause no panic, even with a correct hash at their end.
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0_usize..400, wrong in any::<u32>()) {
        let _ = Chunk::decode(&bytes, 0);
        let head = ChunkHead {
            session: SESSION,
            number: 0,
            epoch: Epoch::new(1),
            writer: WriterId::default(),
            nonce: [0; 16],
            previous: ChunkHash::default(),
            first_sequence: 0.into(),
            note: "note".to_owned(),
        };
        let mut encoder = ChunkEncoder::new(head).unwrap();
        encoder.push(record(0, &bytes)).unwrap();
        let mut whole = encoder.finish().bytes;
        let at = at % (whole.len() - 36);
        whole[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
        if let Ok(chunk) = Chunk::decode(&hashed(whole), 0) {
            assert_eq!(chunk.records().count() as u64, u64::from(chunk.count));
        }
    }
}
