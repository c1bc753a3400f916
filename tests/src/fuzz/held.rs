//! The objects of a bucket of sessions: chunks of records, volumes of chunks, and the lists of
//! compacted volumes and of withdrawn names.

use foldlog_codec::body::ObjectId;
use foldlog_remote::chain::Chain;
use foldlog_remote::chunk::{Chunk, ChunkEncoder};
use foldlog_remote::compaction::Compaction;
use foldlog_remote::volume::{self, Extent, Volume, VolumeForm};
use foldlog_remote::withdrawal::{Name, Withdrawal};
use uuid::Uuid;

/// Reads a chunk, a volume, a compaction or a withdrawal, unchanged and with a corrected hash at
/// its end. A decoded object encodes to the same bytes.
pub fn chunks(bytes: &[u8]) {
    let hashed = [bytes, blake3::hash(bytes).as_bytes()].concat();
    for bytes in [bytes, &hashed] {
        chunk(bytes);
        compacted(bytes);
        volume(VolumeForm::Whole, bytes);
        volume(VolumeForm::Compacted, bytes);
        compaction(bytes);
        withdrawal(bytes);
    }
}

fn withdrawal(bytes: &[u8]) {
    let (Some(session), Some(number)) = (bytes.get(12..28), bytes.get(28..36)) else { return };
    let number = u64::from_le_bytes(number.try_into().unwrap());
    let decoded = Withdrawal::decode(bytes, Uuid::from_slice(session).unwrap(), number);
    let Ok(withdrawal) = decoded else { return };
    assert_eq!(withdrawal.encode().unwrap(), bytes);
    for name in withdrawal.names {
        assert_eq!(Name::parse(&name.to_string()), Some(name));
    }
}

/// A chain accepts a compacted chunk only if that chunk is at the chain's start.
fn compacted(bytes: &[u8]) {
    let Ok(chunk) = Chunk::decode_compacted(bytes, 0) else { return };
    assert_eq!(bytes.last_chunk(), Some(&chunk.hash.0));
    assert_eq!(chunk.records().count(), chunk.count as usize);
    if Chain::new(chunk.head.session).take_compacted(bytes).is_ok() {
        assert_eq!((chunk.head.number, chunk.count), (0, 0));
    }
}

fn compaction(bytes: &[u8]) {
    let (Some(session), Some(number)) = (bytes.get(12..28), bytes.get(28..36)) else { return };
    let number = u64::from_le_bytes(number.try_into().unwrap());
    let decoded = Compaction::decode(bytes, Uuid::from_slice(session).unwrap(), number);
    let Ok(compaction) = decoded else { return };
    assert_eq!(compaction.encode().unwrap(), bytes);
    for volume in &compaction.volumes {
        assert_eq!(compaction.around(volume.extent.first), Some(volume));
        assert_eq!(compaction.around(volume.extent.last()), Some(volume));
    }
}

fn chunk(bytes: &[u8]) {
    let Ok(chunk) = Chunk::decode(bytes, 0) else { return };
    let mut encoder = ChunkEncoder::new(chunk.head.clone()).unwrap();
    if let Some(captures) = &chunk.captures {
        let packs: Vec<ObjectId> = captures.packs().collect();
        encoder.set_captures(&packs, captures.inlined).unwrap();
    }
    chunk.records().for_each(|record| encoder.push(record).unwrap());
    let encoded = encoder.finish();
    assert_eq!((encoded.bytes.as_slice(), encoded.hash), (bytes, chunk.hash));
    // Every chain starts with a claim.
    if Chain::new(chunk.head.session).take(bytes).is_ok() {
        assert_eq!((chunk.head.number, chunk.count), (0, 0));
    }
}

fn volume(form: VolumeForm, bytes: &[u8]) {
    let (Some(session), Some(first), Some(count)) = (bytes.get(12..28), bytes.get(28..36), bytes.get(36..40))
    else {
        return;
    };
    let session = Uuid::from_slice(session).unwrap();
    let first = u64::from_le_bytes(first.try_into().unwrap());
    let extent = Extent { first, count: u32::from_le_bytes(count.try_into().unwrap()).into() };
    let Ok(volume) = Volume::decode(form, bytes, session, extent) else { return };
    let chunks: Vec<&[u8]> = volume.chunks().collect();
    let lengths = chunks.iter().map(|chunk| chunk.len());
    let mut encoder = volume::VolumeEncoder::new(form, session, extent, lengths).unwrap();
    chunks.iter().for_each(|chunk| encoder.push(chunk));
    assert_eq!(encoder.finish().unwrap(), bytes);
    chunks.into_iter().for_each(if form == VolumeForm::Whole { chunk } else { compacted });
}
