//! What a place of sessions holds: chunks of records, and volumes of chunks.

use foldlog_codec::body::ObjectId;
use foldlog_remote::chain::Chain;
use foldlog_remote::chunk::{Chunk, Encoder};
use foldlog_remote::volume::{self, Extent, Volume};
use uuid::Uuid;

/// Reads a chunk or a volume, as it is and with the hash at its end made right. What decodes encodes to the same bytes.
pub fn chunks(bytes: &[u8]) {
    chunk(bytes);
    volume(bytes);
    let hashed = [bytes, blake3::hash(bytes).as_bytes()].concat();
    chunk(&hashed);
    volume(&hashed);
}

fn chunk(bytes: &[u8]) {
    let Ok(chunk) = Chunk::decode(bytes, 0) else { return };
    let mut encoder = Encoder::new(chunk.head.clone()).unwrap();
    if let Some(captures) = &chunk.captures {
        let packs: Vec<ObjectId> = captures.packs().collect();
        encoder.set_captures(&packs, captures.inlined).unwrap();
    }
    chunk.records().for_each(|record| encoder.push(record).unwrap());
    let encoded = encoder.finish();
    assert_eq!((encoded.bytes.as_slice(), encoded.hash), (bytes, chunk.hash));
    // No chain begins but with a claim.
    if Chain::new(chunk.head.session).take(bytes).is_ok() {
        assert_eq!((chunk.head.number, chunk.count), (0, 0));
    }
}

fn volume(bytes: &[u8]) {
    let (Some(session), Some(first), Some(count)) = (bytes.get(12..28), bytes.get(28..36), bytes.get(36..40))
    else {
        return;
    };
    let session = Uuid::from_slice(session).unwrap();
    let first = u64::from_le_bytes(first.try_into().unwrap());
    let extent = Extent { first, count: u32::from_le_bytes(count.try_into().unwrap()).into() };
    let Ok(volume) = Volume::decode(bytes, session, extent) else { return };
    let chunks: Vec<&[u8]> = volume.chunks().collect();
    let lengths = chunks.iter().map(|chunk| chunk.len());
    let mut encoder = volume::Encoder::new(session, extent, lengths).unwrap();
    chunks.iter().for_each(|chunk| encoder.push(chunk));
    assert_eq!(encoder.finish().unwrap(), bytes);
    chunks.into_iter().for_each(chunk);
}
