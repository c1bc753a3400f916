//! Shows how readers and writers handle volumes, collected chunks, and chunks that return after
//! their collection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog_remote::chunk::Chunk;
use foldlog_remote::volume::{Extent, Volume, VolumeEncoder, VolumeForm};
use foldlog_remote::{ChunkReader, ChunkWriter, CollectOptions, Error, MIN_AGE, SessionWriter, collect};
use proptest::prelude::{any, proptest};
use tokio::time;
use uuid::Uuid;

use crate::sim::world::{SESSION, bucket, claim, place, record, run};
use crate::sim::{Fault, Net, SPANS, oracle, wrong};

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn chunk_key(number: u64) -> String {
    format!("team/agents/sessions/{SESSION}/log/{number:020}")
}

pub(crate) fn volume_key(span: u64, first: u64) -> String {
    format!("team/agents/sessions/{SESSION}/volumes/{span}/{first:020}")
}

pub(crate) fn mark_key(first: u64) -> String {
    format!("team/agents/sessions/{SESSION}/collected/{first:020}")
}

/// Appends records, each in a chunk of its own.
pub(crate) async fn append(writer: &mut ChunkWriter, count: u64) -> Result<(), Error> {
    for _ in 0..count {
        let next = writer.next_sequence().get();
        writer.append([record(next, format!("body {next}").as_bytes())]).await?;
    }
    // Lets the volumes be written, which happens after the append.
    time::sleep(Duration::from_secs(60)).await;
    Ok(())
}

/// A log with this many chunks (a claim and records), and its volumes.
pub(crate) async fn log(chunks: u64) -> (Arc<Net>, ChunkWriter) {
    let net = Net::new(1, 0);
    let mut writer = claim(&net, 0).await.unwrap();
    append(&mut writer, chunks - 1).await.unwrap();
    (net, writer)
}

/// Waits a day, and collects. Returns the number of collected chunks.
pub(crate) async fn collected(net: &Arc<Net>) -> u64 {
    time::sleep(MIN_AGE).await;
    collect(&place(net, 9), SESSION, CollectOptions::default()).await.unwrap().chunks
}

/// Reads to the end. Returns the number of records, and the result.
pub(crate) async fn read(net: &Arc<Net>) -> (usize, Result<(), Error>) {
    let mut records = 0;
    let mut each = |chunk: &Chunk<'_>| {
        chunk.records().for_each(|one| {
            assert_eq!(one.body, format!("body {}", one.sequence).as_bytes());
            records += 1;
        });
    };
    let read = ChunkReader::new(place(net, 1), SESSION).read_to_end(&mut each).await;
    (records, read)
}

#[test]
fn a_volume_holds_its_chunks_whole_and_a_collection_leaves_the_young_and_the_last() {
    run(async {
        let (net, mut writer) = log(23).await;
        assert_eq!(oracle::volumes(&net.objects(), &net.first()), 6);
        assert!(net.objects().contains_key(&volume_key(16, 0)));
        let none = collect(&place(&net, 9), SESSION, CollectOptions::default()).await.unwrap();
        assert_eq!((none.chunks, none.left, none.young, none.next.get()), (0, 23, 20, 22));
        time::sleep(MIN_AGE).await;
        let mut options = CollectOptions::default();
        options.dry_run = true;
        let would = collect(&place(&net, 9), SESSION, options).await.unwrap();
        assert_eq!((would.chunks, would.left, would.young), (20, 3, 0));
        let bytes: usize = (0..20).map(|number| net.objects()[&chunk_key(number)].len()).sum();
        assert_eq!(would.bytes, bytes as u64);
        assert_eq!(collected(&net).await, 20);
        let left: Vec<bool> = (0..23).map(|number| net.objects().contains_key(&chunk_key(number))).collect();
        assert_eq!(left, [vec![false; 20], vec![true; 3]].concat());
        // Readers, the writer and its successor miss nothing.
        assert_eq!(read(&net).await, (22, Ok(())));
        append(&mut writer, 9).await.unwrap();
        let mut next = claim(&net, 2).await.unwrap();
        append(&mut next, 4).await.unwrap();
        assert_eq!(read(&net).await, (35, Ok(())));
        assert_eq!(collected(&net).await, 16);
        assert_eq!(read(&net).await, (35, Ok(())));
        assert_eq!(net.revived(), 0);
    });
}

#[test]
fn every_wrong_byte_of_a_volume_is_noticed_and_matters_only_where_its_chunks_are_gone() {
    run(async {
        let (net, _) = log(6).await;
        let whole = net.objects()[&volume_key(4, 0)].clone();
        assert!(Volume::decode(VolumeForm::Whole, &whole, SESSION, Extent { first: 0, count: 4 }).is_ok());
        let wrong: Vec<Vec<u8>> = wrong(&whole).collect();
        for bytes in &wrong {
            net.set(&volume_key(4, 0), bytes.clone());
            assert_eq!(read(&net).await, (5, Ok(())));
        }
        // A chunk is only removed if its volume is valid.
        assert_eq!(collected(&net).await, 0);
        net.set(&volume_key(4, 0), whole.clone());
        assert_eq!(collected(&net).await, 4);
        for bytes in wrong {
            net.set(&volume_key(4, 0), bytes);
            let (records, read) = read(&net).await;
            assert_eq!(records, 0);
            assert!(matches!(read, Err(Error::Volume { first: 0, last: 3, .. })), "{read:?}");
        }
        let refused = claim(&net, 3).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the volume of the removed chunks 0 to 3 cannot be used: it is damaged: its bytes do not match \
             the hash at their end"
        );
        net.set(&volume_key(4, 0), whole);
        assert_eq!(read(&net).await, (5, Ok(())));
    });
}

#[test]
fn a_volume_that_is_gone_is_made_again_or_named() {
    run(async {
        let (net, _) = log(6).await;
        net.remove(&volume_key(4, 0));
        assert_eq!(read(&net).await, (5, Ok(())));
        // The collection puts the missing volume, and waits a day.
        let report = collect(&place(&net, 9), SESSION, CollectOptions::default()).await.unwrap();
        assert_eq!((report.volumes, report.chunks, report.young), (1, 0, 4));
        assert_eq!(collected(&net).await, 4);
        net.remove(&volume_key(4, 0));
        let gone = Error::Volume { first: 0, last: 3, reason: "it is missing" };
        assert_eq!(read(&net).await, (0, Err(gone.clone())));
        assert_eq!(claim(&net, 3).await.unwrap_err(), gone);
    });
}

#[test]
fn a_volume_of_another_session_or_range_is_passed_over() {
    run(async {
        let (net, _) = log(10).await;
        let other = Uuid::from_u128(9);
        let reader = ChunkReader::new(place(&net, 0), other);
        let mut theirs = ChunkWriter::claim(reader, "w", &mut |_| {}).await.unwrap();
        append(&mut theirs, 5).await.unwrap();
        let foreign = volume_key(4, 0).replace(&SESSION.to_string(), &other.to_string());
        for bytes in [&foreign, &volume_key(4, 4)].map(|key| net.objects()[key].clone()) {
            net.set(&volume_key(4, 0), bytes);
            assert_eq!(read(&net).await, (9, Ok(())));
        }
        // A valid volume of chunks that are not those of the chain. The protocol never writes one.
        let chunks: Vec<Vec<u8>> = (4..8).map(|number| net.objects()[&chunk_key(number)].clone()).collect();
        let extent = Extent { first: 0, count: 4 };
        let mut encoder =
            VolumeEncoder::new(VolumeForm::Whole, SESSION, extent, chunks.iter().map(Vec::len)).unwrap();
        chunks.iter().for_each(|chunk| encoder.push(chunk));
        net.set(&volume_key(4, 0), encoder.finish().unwrap());
        assert_eq!(read(&net).await, (9, Ok(())));
        time::sleep(MIN_AGE).await;
        let report = collect(&place(&net, 9), SESSION, CollectOptions::default()).await.unwrap();
        assert_eq!(report.chunks, 4, "those of the second volume alone");
        assert!(net.objects().contains_key(&chunk_key(0)) && !net.objects().contains_key(&chunk_key(4)));
        net.set(&mark_key(0), b"mark".to_vec());
        let reason = "one of its chunks does not match the log";
        assert_eq!(read(&net).await, (0, Err(Error::Volume { first: 0, last: 3, reason })));
    });
}

#[test]
fn a_damaged_large_volume_costs_requests_alone() {
    run(async {
        let (net, _) = log(18).await;
        let reads = net.reads();
        assert_eq!(read(&net).await, (17, Ok(())));
        let with = net.reads() - reads;
        collected(&net).await;
        for bytes in [vec![], b"FOLDVOL\n".repeat(20)] {
            net.set(&volume_key(16, 0), bytes);
            assert_eq!(read(&net).await, (17, Ok(())));
        }
        net.remove(&volume_key(16, 0));
        let reads = net.reads();
        assert_eq!(read(&net).await, (17, Ok(())));
        assert_eq!(net.reads() - reads, with + 3, "three small volumes more");
    });
}

#[test]
fn a_paused_writer_that_creates_a_collected_chunk_again_is_fenced_and_nobody_reads_it() {
    run(async {
        let (net, mut first) = log(2).await;
        let mut second = claim(&net, 1).await.unwrap();
        append(&mut second, 3).await.unwrap();
        assert_eq!(collected(&net).await, 4);
        let fenced = first.append([record(1, b"too late")]).await.unwrap_err();
        assert!(matches!(fenced, Error::Fenced { epoch, by, .. } if epoch.get() == 2 && by == second.id()));
        assert_eq!(net.revived(), 1);
        assert!(net.objects().contains_key(&chunk_key(2)));
        assert_eq!(read(&net).await, (4, Ok(())));
        // It is collected once more.
        assert_eq!(collected(&net).await, 1);
        append(&mut second, 1).await.unwrap();
    });
}

#[test]
fn a_put_that_is_repeated_behind_its_own_collection_is_known_again() {
    run(async {
        let (net, mut writer) = log(3).await;
        // The chunk is created, the answer is lost, and the caller gives up for days.
        net.script(&[Fault::AnswerLost]);
        let lost = time::timeout(Duration::from_millis(200), writer.append([record(2, b"body 2")])).await;
        assert!(lost.is_err() && writer.is_in_doubt());
        let mut other = claim(&net, 1).await.unwrap();
        append(&mut other, 4).await.unwrap();
        assert_eq!(collected(&net).await, 8);
        assert_eq!(writer.settle().await.unwrap(), 3);
        assert_eq!(net.revived(), 1);
        assert!(matches!(writer.append([record(3, b"x")]).await, Err(Error::Fenced { .. })));
        assert_eq!(read(&net).await, (7, Ok(())));
    });
}

#[test]
fn a_claim_that_waited_until_its_number_was_collected_claims_nothing() {
    run(async {
        let (net, mut writer) = log(2).await;
        let mut reader = ChunkReader::new(place(&net, 1), SESSION);
        reader.read_to_end(&mut |_| {}).await.unwrap();
        append(&mut writer, 3).await.unwrap();
        assert_eq!(collected(&net).await, 4);
        let fenced = ChunkWriter::claim_behind(reader, "late").await.unwrap_err();
        assert!(matches!(fenced, Error::Fenced { by, .. } if by == writer.id()), "{fenced:?}");
        assert_eq!(net.revived(), 1);
        append(&mut writer, 1).await.unwrap();
        assert_eq!(read(&net).await, (5, Ok(())));
    });
}

#[test]
fn a_reader_that_sleeps_between_asking_for_a_volume_and_reading_a_chunk_takes_none_that_was_revived() {
    run(async {
        let (net, mut first) = log(3).await;
        let mut second = claim(&net, 1).await.unwrap();
        append(&mut second, 2).await.unwrap();
        net.remove(&volume_key(4, 0));
        let whole = net.objects();
        // The hook sets the reader's clock: the reader has found no volume, and sleeps.
        let clock = Arc::new(AtomicU64::new(0));
        let read_clock = Arc::clone(&clock);
        let asleep = bucket(&net, 2)
            .with_spans(SPANS)
            .with_clock(move || Duration::from_secs(read_clock.load(Ordering::Relaxed)));
        let revived = Arc::new(Mutex::new(None));
        let (sees, extent) = (Arc::clone(&revived), Extent { first: 0, count: 4 });
        net.before_reading(&chunk_key(3), move |net| {
            // Meanwhile the volume is written, its chunks are collected, and the old writer puts
            // its own chunk.
            let chunks: Vec<Vec<u8>> = (0..4).map(|number| whole[&chunk_key(number)].clone()).collect();
            let mut encoder =
                VolumeEncoder::new(VolumeForm::Whole, SESSION, extent, chunks.iter().map(Vec::len)).unwrap();
            chunks.iter().for_each(|chunk| encoder.push(chunk));
            net.set(&volume_key(4, 0), encoder.finish().unwrap());
            net.set(&mark_key(0), b"mark".to_vec());
            (0..4).for_each(|number| net.remove(&chunk_key(number)));
            net.set(&chunk_key(3), sees.lock().unwrap().take().unwrap());
            clock.store(2 * MIN_AGE.as_secs(), Ordering::Relaxed);
        });
        // The chunk that the old writer would put if there were no claim.
        let claim = net.objects()[&chunk_key(3)].clone();
        net.remove(&chunk_key(3));
        first.append([record(2, b"revived")]).await.unwrap();
        *revived.lock().unwrap() = Some(net.objects()[&chunk_key(3)].clone());
        net.set(&chunk_key(3), claim);
        // Undoes the volume, so that the reader starts before these events.
        time::sleep(Duration::from_secs(60)).await;
        net.remove(&volume_key(4, 0));

        let mut bodies = Vec::new();
        let mut each = |chunk: &Chunk<'_>| {
            bodies.extend(chunk.records().map(|one| String::from_utf8_lossy(one.body).into_owned()));
        };
        ChunkReader::new(asleep, SESSION).read_to_end(&mut each).await.unwrap();
        assert_eq!(bodies, ["body 0", "body 1", "body 2", "body 3"]);
    });
}

#[test]
fn a_put_that_comes_late_reads_back_what_stands_before_it() {
    run(async {
        let (net, mut writer) = log(3).await;
        for (pause, more) in [(0, 0), (11, 0), (13, 3), (1, 0)] {
            time::sleep(HOUR * pause).await;
            let reads = net.reads();
            writer.append([record(writer.next_sequence().get(), b"x")]).await.unwrap();
            // The volume and its mark, and the chunk before.
            assert_eq!(net.reads() - reads, more, "behind {pause} hours");
        }
        // A writer must not continue at a place that has lost it.
        time::sleep(HOUR * 13).await;
        net.remove(&chunk_key(6));
        let next = writer.next_sequence().get();
        let lost = writer.append([record(next, b"x")]).await.unwrap_err();
        assert_eq!(lost, Error::RemoteWentBack { chunk: 6 });
        assert_eq!(writer.append([record(next, b"x")]).await.unwrap_err(), lost);
    });
}

#[test]
fn who_follows_a_log_goes_on_by_its_volumes_once_its_chunks_are_collected() {
    run(async {
        let (net, mut writer) = log(7).await;
        let mut tail = ChunkReader::new(place(&net, 1), SESSION);
        tail.read_to_end(&mut |_| {}).await.unwrap();
        let stood = *tail.chain();
        append(&mut writer, 5).await.unwrap();
        assert_eq!(collected(&net).await, 12);
        let mut resumed = ChunkReader::resume(place(&net, 2), stood).await.unwrap();
        for reader in [&mut tail, &mut resumed] {
            let mut read = Vec::new();
            reader
                .read_to_end(&mut |chunk| read.extend(chunk.records().map(|one| one.sequence.get())))
                .await
                .unwrap();
            assert_eq!(read, [6, 7, 8, 9, 10]);
        }
        // A chunk that is in no volume any more is lost.
        net.remove(&volume_key(4, 4));
        let gone = ChunkReader::resume(place(&net, 2), stood).await.unwrap_err();
        assert_eq!(gone, Error::RemoteWentBack { chunk: 6 });
    });
}

#[test]
fn an_append_is_acknowledged_whose_volume_fails_and_the_next_writer_makes_up_for_it() {
    run(async {
        let net = Net::new(1, 0);
        let mut writer = claim(&net, 0).await.unwrap();
        append(&mut writer, 2).await.unwrap();
        // The last chunk of the range arrives, and no later put does.
        net.script(&[&[Fault::None], &[Fault::Busy; 4][..]].concat());
        append(&mut writer, 1).await.unwrap();
        assert_eq!(oracle::volumes(&net.objects(), &net.first()), 0);
        append(&mut writer, 13).await.unwrap();
        assert_eq!(oracle::volumes(&net.objects(), &net.first()), 3);
        drop(writer);
        let mut next = claim(&net, 1).await.unwrap();
        append(&mut next, 1).await.unwrap();
        // The missing volume, and the large one, which needed it.
        assert_eq!(oracle::volumes(&net.objects(), &net.first()), 5);
        assert_eq!(read(&net).await, (17, Ok(())));
    });
}

#[test]
fn a_short_session_costs_two_requests_more_and_making_sure_of_an_end_eight() {
    run(async {
        let (net, _) = log(3).await;
        let reads = net.reads();
        assert_eq!(read(&net).await, (2, Ok(())));
        // Three chunks and the end, the volume and its mark, and then the checks after the end.
        assert_eq!(net.reads() - reads, 3 + 1 + 2 + 8);
        // A reader that polls asks for the next number and the one after it.
        let mut reader = ChunkReader::new(place(&net, 1), SESSION);
        reader.read_to_end(&mut |_| {}).await.unwrap();
        let reads = net.reads();
        reader.read_to_end(&mut |_| {}).await.unwrap();
        assert_eq!(net.reads() - reads, 2);
    });
}

#[test]
fn the_bytes_of_a_volume_stay_as_they_are() {
    let chunks: [&[u8]; 3] = [b"one", b"", b"three"];
    let extent = Extent { first: 6, count: 3 };
    let mut encoder =
        VolumeEncoder::new(VolumeForm::Whole, SESSION, extent, chunks.iter().map(|chunk| chunk.len()))
            .unwrap();
    chunks.iter().for_each(|chunk| encoder.push(chunk));
    let bytes = encoder.finish().unwrap();
    let golden: Vec<u8> = [
        &b"FOLDVOL\n"[..],
        &[1, 0, 40, 0],
        SESSION.as_bytes(),
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0],
        b"onethree",
    ]
    .concat();
    assert_eq!(bytes[..bytes.len() - 32], golden);
    assert_eq!(bytes[bytes.len() - 32..], *blake3::hash(&golden).as_bytes());
    let decoded = Volume::decode(VolumeForm::Whole, &bytes, SESSION, extent).unwrap();
    assert_eq!(decoded.chunks().collect::<Vec<_>>(), chunks);

    // A later version and an excessive length are distinguished from damage.
    let mut newer = golden;
    newer[8] = 2;
    let hash = *blake3::hash(&newer).as_bytes();
    newer.extend_from_slice(&hash);
    let reason = "a later version of foldlog wrote it";
    assert_eq!(
        Volume::decode(VolumeForm::Whole, &newer, SESSION, extent),
        Err(Error::Volume { first: 6, last: 8, reason })
    );
    let long = VolumeEncoder::new(VolumeForm::Whole, SESSION, extent, [16 << 20, 16 << 20, 1]).unwrap_err();
    assert!(matches!(long, Error::TooLarge { what: "volume", .. }));
    assert!(VolumeEncoder::new(VolumeForm::Whole, SESSION, extent, [1, 2]).is_err());
}

proptest! {
    /// Arbitrary bytes cause no panic, even with a correct hash at their end.
    #[test]
    fn any_bytes_are_a_volume_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0_usize..300, wrong in any::<u32>()) {
        let extent = Extent { first: 8, count: 4 };
        let _ = Volume::decode(VolumeForm::Whole, &bytes, SESSION, extent);
        let lengths = [bytes.len() / 2, 0, 0, bytes.len() - bytes.len() / 2];
        let mut encoder = VolumeEncoder::new(VolumeForm::Whole, SESSION, extent, lengths).unwrap();
        encoder.push(&bytes);
        let mut whole = encoder.finish().unwrap();
        let end = whole.len() - 32;
        let at = at % (end - 4);
        whole[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
        let hash = *blake3::hash(&whole[..end]).as_bytes();
        whole[end..].copy_from_slice(&hash);
        if let Ok(volume) = Volume::decode(VolumeForm::Whole, &whole, SESSION, extent) {
            let chunks: Vec<&[u8]> = volume.chunks().collect();
            assert_eq!((chunks.len(), chunks.concat().len()), (4, bytes.len()));
        }
    }
}
