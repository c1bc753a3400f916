//! Reads the objects of a store and checks that they are one history. It is written from the byte
//! diagram of a chunk alone, and uses none of the crate's code.

use std::collections::{BTreeMap, BTreeSet};

/// Contents of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) writer: [u8; 16],
    pub(crate) nonce: [u8; 16],
    pub(crate) first: u64,
    pub(crate) bodies: Vec<Vec<u8>>,
    previous: [u8; 32],
    hash: [u8; 32],
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn short(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(array(bytes, at)) as usize
}

/// Decodes a chunk.
pub(crate) fn see(bytes: &[u8]) -> Seen {
    let end = bytes.len() - 32;
    let hash = array(bytes, end);
    assert_eq!(*blake3::hash(&bytes[..end]).as_bytes(), hash, "the hash at the end");
    assert_eq!((&bytes[..8], &bytes[9..12]), (&b"FOLDRMT\n"[..], &b"\x00\x9c\x00"[..]));
    let mut at = 156 + short(bytes, 152);
    match bytes[8] {
        1 => {}
        2 => {
            at += 4 + 40 * short(bytes, at);
            at += 4 + short(bytes, at);
        }
        other => panic!("format version {other}"),
    }
    let mut bodies = Vec::new();
    for _ in 0..short(bytes, 12) {
        let len = short(bytes, at + 9);
        bodies.push(bytes[at + 13..at + 13 + len].to_vec());
        at += 13 + len;
    }
    assert_eq!(at, end, "nothing stands behind the records");
    Seen {
        number: number(bytes, 32),
        epoch: number(bytes, 40),
        writer: array(bytes, 48),
        nonce: array(bytes, 64),
        first: number(bytes, 112),
        bodies,
        previous: array(bytes, 80),
        hash,
    }
}

/// Returns the chunks of a session's log, and checks that they are one history: every number once,
/// each chunk linked to its predecessor, one writer for each epoch, and records without a gap. In
/// these tests no chunk is ignored.
pub(crate) fn history(objects: &BTreeMap<String, Vec<u8>>) -> Vec<Seen> {
    let mut chunks: Vec<Seen> = Vec::new();
    let (mut writers, mut nonces) = (BTreeMap::new(), BTreeSet::new());
    let log = objects.iter().filter(|(key, _)| key.contains("/log/"));
    for (place, (key, bytes)) in log.enumerate() {
        let chunk = see(bytes);
        assert!(key.ends_with(&format!("/log/{place:020}")), "{key} is number {place}");
        assert_eq!(chunk.number, place as u64);
        let (previous, epoch, next) = match chunks.last() {
            Some(last) => (last.hash, last.epoch, last.first + last.bodies.len() as u64),
            None => ([0; 32], 0, 0),
        };
        assert_eq!(chunk.previous, previous, "chunk {place} stands behind the one before it");
        assert_eq!(chunk.first, next, "chunk {place} goes on where the one before it ended");
        assert!(chunk.epoch >= epoch, "chunk {place} is no superseded writer's");
        assert_eq!(
            chunk.epoch > epoch,
            chunk.bodies.is_empty(),
            "claims raise the epoch, and nothing else does"
        );
        assert_eq!(
            *writers.entry(chunk.epoch).or_insert(chunk.writer),
            chunk.writer,
            "an epoch has one writer"
        );
        assert!(nonces.insert(chunk.nonce), "no two chunks have one nonce");
        chunks.push(chunk);
    }
    chunks
}

/// Checks that each volume contains exactly the first chunks under their numbers, and returns the
/// number of volumes.
pub(crate) fn volumes(objects: &BTreeMap<String, Vec<u8>>, first: &BTreeMap<String, Vec<u8>>) -> u64 {
    let volumes = objects.iter().filter_map(|(key, bytes)| Some((key.split_once("/volumes/")?, bytes)));
    let mut count = 0;
    for ((session, name), bytes) in volumes {
        let (span, begin) = name.split_once('/').unwrap();
        let (span, begin): (usize, u64) = (span.parse().unwrap(), begin.parse().unwrap());
        let end = bytes.len() - 32;
        assert_eq!(*blake3::hash(&bytes[..end]).as_bytes(), bytes[end..], "the hash at the end");
        assert_eq!((&bytes[..8], &bytes[8..12]), (&b"FOLDVOL\n"[..], &b"\x01\x00\x28\x00"[..]));
        assert!(session.ends_with(&uuid::Uuid::from_bytes(array(bytes, 12)).to_string()));
        assert_eq!((number(bytes, 28), short(bytes, 36)), (begin, span));
        let mut at = 40 + 4 * span;
        for place in 0..span {
            let len = short(bytes, 40 + 4 * place);
            let chunk = &first[&format!("{session}/log/{:020}", begin + place as u64)];
            assert_eq!(&bytes[at..at + len], chunk, "chunk {place} of the volume at {begin}");
            at += len;
        }
        assert_eq!(at, end, "nothing stands behind the chunks");
        count += 1;
    }
    count
}
