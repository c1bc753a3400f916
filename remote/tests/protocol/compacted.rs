//! Shows how readers, writers and collections handle volumes that lack the bodies that a compaction
//! dropped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{
    Base, DROPPED_BODIES, Dropped, DroppedBodies, KnownPositions, ObjectId, Observed, Payload,
};
use foldlog_codec::{Record, RecordKind};
use foldlog_remote::chunk::Chunk;
use foldlog_remote::compaction::{CompactedVolume, Compaction};
use foldlog_remote::volume::Extent;
use foldlog_remote::{
    Bucket, ChunkReader, ChunkWriter, CollectOptions, Error, MIN_AGE, Payloads, SessionPayloads,
    SessionWriter, collect,
};
use tokio::time;

use crate::sim::world::{SESSION, claim, collected, place, run};
use crate::sim::{Fault, Net, wrong};

/// Limit of a volume's length: below four whole chunks, above four chunks without two or three
/// bodies.
const LONG: u64 = 2_200;

/// Returns the body of the record with this number.
fn body(number: u64) -> String {
    format!("body {number}: {}", "of some length ".repeat(30))
}

fn record(kind: RecordKind, sequence: u64, body: &[u8]) -> Record<'_> {
    Record { sequence: sequence.into(), kind, time_us: sequence as i64, body }
}

/// Appends dispatches, each in a chunk of its own.
async fn append(writer: &mut ChunkWriter, count: u64) -> Result<(), Error> {
    for _ in 0..count {
        let next = writer.next_sequence().get();
        writer.append([record(RecordKind::Dispatch, next, body(next).as_bytes())]).await?;
    }
    // Lets the volumes be written, which happens after the append.
    time::sleep(Duration::from_secs(60)).await;
    Ok(())
}

/// States that the bodies of all records through a position were dropped, except every third one.
fn dropped(through: u64) -> DroppedBodies {
    let base = Base { position: through.into(), goes_on: false, slices: Vec::new() };
    let known = KnownPositions { ends: vec![through.into()], bases: vec![base] };
    let mut dropped = DroppedBodies { known, runs: Vec::new() };
    (0..through).filter(|sequence| sequence % 3 != 0).for_each(|sequence| dropped.push(sequence.into()));
    dropped
}

async fn say(writer: &mut ChunkWriter, dropped: &DroppedBodies) {
    let data = dropped.encode();
    let observed = Observed { name: DROPPED_BODIES.to_owned(), data: Payload::new(&data) }.encode();
    let next = writer.next_sequence().get();
    writer.append([record(RecordKind::Observed, next, &observed)]).await.unwrap();
}

/// A log of 21 dispatches, a record that drops some of the first bodies, and some records after it.
async fn log() -> (Arc<Net>, ChunkWriter) {
    let net = Net::new(1, 0);
    let mut writer = claim(&net, 0).await.unwrap();
    append(&mut writer, 21).await.unwrap();
    say(&mut writer, &dropped(13)).await;
    append(&mut writer, 3).await.unwrap();
    (net, writer)
}

/// Checks the records that are read of a log: each is whole, or has a placeholder if its body was
/// dropped. Counts the placeholders.
#[derive(Default)]
struct Checked {
    records: u64,
    without: u64,
    /// For each placeholder that names the known slices: its sequence number and that name.
    known: Vec<(u64, ObjectId)>,
}

impl Checked {
    fn see(&mut self, chunk: &Chunk<'_>) {
        for one in chunk.records() {
            let (sequence, whole) = (one.sequence.get(), body(one.sequence.get()));
            assert_eq!((sequence, one.time_us), (self.records, sequence as i64));
            self.records += 1;
            match one.kind {
                RecordKind::Dispatch => assert_eq!(one.body, whole.as_bytes()),
                RecordKind::Observed => {}
                RecordKind::Dropped => {
                    assert_eq!(
                        Dropped::decode(one.body),
                        Ok(Dropped::from_body(RecordKind::Dispatch, whole.as_bytes()))
                    );
                    assert!(sequence % 3 != 0);
                    self.without += 1;
                    self.known
                        .extend(Dropped::decode_known(one.body).unwrap().map(|known| (sequence, known)));
                }
                kind => panic!("{kind} at {sequence}"),
            }
        }
    }
}

async fn read_by(bucket: Bucket) -> (Checked, Result<(), Error>) {
    let mut checked = Checked::default();
    let read = ChunkReader::new(bucket, SESSION).read_to_end(&mut |chunk| checked.see(chunk)).await;
    (checked, read)
}

async fn read(net: &Arc<Net>) -> (Checked, Result<(), Error>) {
    read_by(place(net, 1)).await
}

/// Returns the numbers of the bodies that any object in the store contains.
fn bodies_in(net: &Net) -> BTreeSet<u64> {
    let objects = net.objects();
    let stands = |number: &u64| {
        let text = body(*number).into_bytes();
        objects.values().any(|bytes| bytes.windows(text.len()).any(|window| window == text))
    };
    (0..100).filter(stands).collect()
}

fn keys(net: &Net, part: &str) -> Vec<String> {
    net.objects().keys().filter(|key| key.contains(part)).cloned().collect()
}

#[test]
fn bodies_that_were_dropped_go_with_their_chunks_and_the_chain_stays_as_it_is() {
    run(async {
        let (net, mut writer) = log().await;
        let chain = *writer.chain();
        // No object is a day old.
        assert_eq!(collected(&net, 9).await.unwrap().dropped, 0);
        time::sleep(MIN_AGE).await;
        let before = bodies_in(&net);
        assert_eq!(before.len(), 24);
        let report = collected(&net, 9).await.unwrap();
        assert_eq!((report.chunks, report.dropped, report.waiting), (24, 8, 0));
        let without: BTreeSet<u64> = (0..13).filter(|number| number % 3 != 0).collect();
        assert_eq!(bodies_in(&net), before.difference(&without).copied().collect());
        let (checked, ended) = read(&net).await;
        assert_eq!((ended, checked.records, checked.without), (Ok(()), 25, 8));
        // Each of the four ranges states where the slices are known. A range of volumes has one
        // such object.
        let known = ObjectId::from_content(&dropped(13).known.encode());
        assert_eq!(checked.known, [1, 4, 7, 11].map(|at| (at, known)));
        assert_eq!(
            place(&net, 1).get_object(SESSION, known).await.unwrap(),
            Some(dropped(13).known.encode())
        );
        // The writer continues, and so does its successor.
        append(&mut writer, 2).await.unwrap();
        let next = claim(&net, 2).await.unwrap();
        assert_eq!(next.chain().next_sequence(), chain.next_sequence() + 2);
        let resumed = ChunkReader::resume(place(&net, 3), chain).await.unwrap();
        assert_eq!(*resumed.chain(), chain);
        // Ranges that lost nothing keep their volumes.
        assert_eq!(keys(&net, "/volumes/4/").len(), 3);
        assert_eq!(keys(&net, "/volumes/16/").len(), 0);
        assert_eq!((keys(&net, "/compactions/").len(), keys(&net, "/compacted/").len()), (1, 1));
        let again = collected(&net, 9).await.unwrap();
        assert_eq!((again.dropped, again.chunks), (0, 0));
        assert_eq!(keys(&net, "/compactions/").len(), 1, "nothing is written twice");
    });
}

#[test]
fn a_collection_that_is_killed_at_any_request_leaves_a_log_that_is_read_and_the_next_one_goes_on() {
    run(async {
        for fault in [Fault::AnswerLost, Fault::RequestLost] {
            let mut requests = 0;
            loop {
                let (net, _) = log().await;
                time::sleep(MIN_AGE).await;
                net.cut(9, requests, fault);
                let killed = collected(&net, 9).await;
                let (checked, ended) = read(&net).await;
                assert_eq!((ended, checked.records), (Ok(()), 25), "behind {requests} requests");
                assert!(checked.without == 0 || checked.without == 8, "{}", checked.without);
                collected(&net, 8).await.unwrap();
                let (checked, ended) = read(&net).await;
                assert_eq!((ended, checked.records, checked.without), (Ok(()), 25, 8));
                assert!(!bodies_in(&net).contains(&1));
                assert_eq!(keys(&net, "/volumes/4/").len(), 2, "behind {requests} requests");
                // Objects that were put for a compaction that did not happen are removed.
                assert_eq!(keys(&net, "/compacted/").len(), 1, "behind {requests} requests");
                if killed.is_ok() {
                    break;
                }
                requests += 1;
            }
            assert!(requests > 80, "{requests}");
        }
    });
}

/// A log whose ranges exceed the length of a volume, unless bodies were dropped from them.
async fn long_log() -> (Arc<Net>, ChunkWriter) {
    let net = Net::new(1, 0);
    net.set_volume_bytes(LONG);
    let mut writer = claim(&net, 0).await.unwrap();
    append(&mut writer, 21).await.unwrap();
    say(&mut writer, &dropped(11)).await;
    append(&mut writer, 3).await.unwrap();
    assert!(keys(&net, "/volumes/").is_empty());
    (net, writer)
}

#[test]
fn bodies_go_from_ranges_too_that_are_too_long_for_a_volume() {
    run(async {
        let (net, mut writer) = long_log().await;
        time::sleep(MIN_AGE).await;
        let whole = bodies_in(&net);
        // Waits a day, in which every writer and reader can learn that these numbers are taken.
        for _ in 0..2 {
            let report = collected(&net, 9).await.unwrap();
            assert_eq!((report.chunks, report.dropped, report.waiting), (0, 0, 7));
            assert_eq!(keys(&net, "/volumes/4/").len(), 3);
            assert!(whole.is_subset(&bodies_in(&net)));
            let (checked, ended) = read(&net).await;
            assert_eq!((ended, checked.without), (Ok(()), 0));
            append(&mut writer, 1).await.unwrap();
            writer = claim(&net, 2).await.unwrap();
        }
        time::sleep(MIN_AGE).await;
        let mut options = CollectOptions::default();
        options.dry_run = true;
        assert_eq!(collect(&place(&net, 9), SESSION, options).await.unwrap().dropped, 7);
        let report = collected(&net, 9).await.unwrap();
        assert_eq!((report.chunks, report.dropped, report.waiting), (12, 7, 0));
        assert!(keys(&net, "/volumes/").is_empty());
        assert_eq!(keys(&net, "/collected/").len(), 3);
        assert_eq!(bodies_in(&net).len(), whole.len() + 2 - 7);
        let (checked, ended) = read(&net).await;
        assert_eq!((ended, checked.records, checked.without), (Ok(()), 27, 7));
        append(&mut writer, 2).await.unwrap();
        let next = claim(&net, 3).await.unwrap();
        assert_eq!(next.chain().next_sequence(), 29);
        let again = collected(&net, 9).await.unwrap();
        assert_eq!((again.dropped, again.chunks, again.volumes), (0, 0, 0));
    });
}

#[test]
fn a_collection_of_long_ranges_that_is_killed_at_any_request_leaves_a_log_that_is_read() {
    run(async {
        for fault in [Fault::AnswerLost, Fault::RequestLost] {
            for days in 1..3 {
                let mut requests = 0;
                loop {
                    let (net, _) = long_log().await;
                    time::sleep(MIN_AGE).await;
                    if days == 2 {
                        assert_eq!(collected(&net, 9).await.unwrap().dropped, 0);
                        time::sleep(MIN_AGE).await;
                    }
                    net.cut(9, requests, fault);
                    let killed = collected(&net, 9).await;
                    let (checked, ended) = read(&net).await;
                    assert_eq!((ended, checked.records), (Ok(()), 25), "behind {requests} requests");
                    for _ in 0..2 {
                        collected(&net, 8).await.unwrap();
                        let (checked, ended) = read(&net).await;
                        assert_eq!((ended, checked.records), (Ok(()), 25), "behind {requests} requests");
                        time::sleep(MIN_AGE).await;
                    }
                    assert!(!bodies_in(&net).contains(&1), "behind {requests} requests");
                    assert_eq!(read(&net).await.0.without, 7);
                    assert!(keys(&net, "/volumes/").is_empty(), "behind {requests} requests");
                    if killed.is_ok() {
                        break;
                    }
                    requests += 1;
                }
                assert!(requests > 40, "{requests}");
            }
        }
    });
}

/// A removed number could be created again, by a writer that was paused or by a late put.
#[test]
fn a_writer_that_was_paused_until_a_long_range_was_compacted_is_told_what_it_would_have_been() {
    run(async {
        for (learns, hours) in [(false, 0), (true, 0), (true, 11), (true, 23)] {
            let net = Net::new(1, 0);
            net.set_volume_bytes(LONG);
            let mut paused = claim(&net, 0).await.unwrap();
            append(&mut paused, 5).await.unwrap();
            let mut writer = claim(&net, 2).await.unwrap();
            append(&mut writer, 12).await.unwrap();
            say(&mut writer, &dropped(15)).await;
            append(&mut writer, 4).await.unwrap();
            time::sleep(MIN_AGE).await;
            assert_eq!(collected(&net, 9).await.unwrap().dropped, 0);
            assert!(!keys(&net, "/volumes/").is_empty());
            time::sleep(Duration::from_secs(3_600) * hours).await;
            let mut reader = ChunkReader::new(place(&net, 3), SESSION);
            if learns {
                // The reader stops in the middle of a range, which it knows to be full.
                for _ in 0..6 {
                    assert!(reader.next(&mut |_| {}).await.unwrap());
                }
            }
            time::sleep(MIN_AGE).await;
            assert!(collected(&net, 9).await.unwrap().dropped > 5);
            // A chunk under a removed number is no part of the log.
            let fenced = append(&mut paused, 1).await.unwrap_err();
            assert!(matches!(fenced, Error::Fenced { .. }), "{fenced:?}");
            assert!(net.revived() > 0);
            reader.read_to_end(&mut |_| {}).await.unwrap();
            assert_eq!(reader.chain().next_sequence(), 22);
            let (checked, ended) = read(&net).await;
            assert_eq!((ended, checked.records), (Ok(()), 22));
            append(&mut writer, 3).await.unwrap();
        }
    });
}

/// A range that had lost bodies before it was replicated, and lost none now, kept its old statement
/// of where the slices are known. It followed ranges with newer statements, and the bodies for its
/// positions were dropped by now.
#[test]
fn what_was_known_before_is_said_behind_nothing_that_lost_bodies_since() {
    run(async {
        let net = Net::new(1, 0);
        let mut writer = claim(&net, 0).await.unwrap();
        append(&mut writer, 8).await.unwrap();
        // A local compaction had dropped these before they were replicated.
        let (old, new) = (dropped(9), dropped(15));
        let known = |of: &DroppedBodies| ObjectId::from_content(&of.known.encode());
        let mut payloads = Payloads::new(place(&net, 0), SESSION);
        payloads.put(known(&old), old.known.encode()).await.unwrap();
        for number in 8..16 {
            let stands = Dropped::from_body(RecordKind::Dispatch, body(number).as_bytes());
            let stands = if number % 4 == 0 { stands.encode_held(known(&old)) } else { stands.encode() };
            writer.append([record(RecordKind::Dropped, number, &stands)]).await.unwrap();
        }
        append(&mut writer, 8).await.unwrap();
        let mut all = DroppedBodies { known: new.known.clone(), runs: Vec::new() };
        (1..16).for_each(|number| all.push(number.into()));
        say(&mut writer, &all).await;
        append(&mut writer, 3).await.unwrap();
        time::sleep(MIN_AGE).await;
        let report = collected(&net, 9).await.unwrap();
        assert_eq!((report.dropped, report.waiting), (7, 0));
        let mut said = Vec::new();
        let mut reader = ChunkReader::new(place(&net, 1), SESSION);
        let see = &mut |chunk: &Chunk<'_>| {
            let dropped = chunk.records().filter(|record| record.kind == RecordKind::Dropped);
            said.extend(dropped.filter_map(|record| Dropped::decode_known(record.body).unwrap()));
        };
        reader.read_to_end(see).await.unwrap();
        assert!(said.len() > 3 && said.iter().all(|one| *one == known(&new)), "{said:?}");
    });
}

#[test]
fn a_reader_in_the_middle_has_the_old_objects_or_the_new_ones() {
    run(async {
        for stops in 0..25 {
            let (net, mut writer) = log().await;
            time::sleep(MIN_AGE).await;
            let mut reader = ChunkReader::new(place(&net, 1), SESSION);
            let mut checked = Checked::default();
            for _ in 0..stops {
                assert!(reader.next(&mut |chunk| checked.see(chunk)).await.unwrap());
            }
            assert_eq!(collected(&net, 9).await.unwrap().dropped, 8);
            for _ in 0..stops / 2 {
                reader.next(&mut |chunk| checked.see(chunk)).await.unwrap();
            }
            // Again, and the reader does not know about this compaction either.
            append(&mut writer, 2).await.unwrap();
            say(&mut writer, &dropped(19)).await;
            append(&mut writer, 1).await.unwrap();
            time::sleep(MIN_AGE).await;
            assert_eq!(collected(&net, 9).await.unwrap().dropped, 4);
            reader.read_to_end(&mut |chunk| checked.see(chunk)).await.unwrap();
            assert_eq!(checked.records, 29, "behind {stops} chunks");
            // A statement of an older compaction never follows one of a newer compaction.
            let newer = ObjectId::from_content(&dropped(19).known.encode());
            let first = checked.known.iter().position(|(_, known)| *known == newer);
            let from = first.unwrap_or(checked.known.len());
            assert!(checked.known[from..].iter().all(|(_, known)| *known == newer), "{:?}", checked.known);
            let (checked, ended) = read(&net).await;
            assert_eq!((ended, checked.without), (Ok(()), 12));
            assert_eq!(keys(&net, "/compactions/").len(), 2);
            assert!(
                keys(&net, "/compacted/").iter().all(|key| key.contains("/compacted/00000000000000000002/"))
            );
        }
    });
}

#[test]
fn every_wrong_byte_of_what_stands_for_volumes_is_noticed() {
    run(async {
        let (net, _) = log().await;
        time::sleep(MIN_AGE).await;
        let volumes: Vec<(String, Vec<u8>)> =
            net.objects().into_iter().filter(|(key, _)| key.contains("/volumes/4/")).collect();
        collected(&net, 9).await.unwrap();
        for key in [&keys(&net, "/compacted/")[0], &keys(&net, "/compactions/")[0]] {
            let whole = net.objects()[key].clone();
            for bytes in wrong(&whole) {
                net.set(key, bytes);
                let (checked, ended) = read(&net).await;
                assert_eq!(checked.records, 0);
                assert!(matches!(ended, Err(Error::Volume { .. } | Error::Compaction { .. })), "{ended:?}");
            }
            net.remove(key);
            let (_, ended) = read(&net).await;
            assert!(matches!(ended, Err(Error::Volume { .. } | Error::Compaction { .. })), "{ended:?}");
            // The volumes that it replaces are as good, while they exist.
            volumes.iter().for_each(|(key, bytes)| net.set(key, bytes.clone()));
            let (checked, ended) = read(&net).await;
            assert_eq!((ended, checked.records), (Ok(()), 25));
            volumes[..4].iter().for_each(|(key, _)| net.remove(key));
            net.set(key, whole);
        }
        assert_eq!(read(&net).await.0.without, 8);
    });
}

#[test]
fn a_writer_that_was_paused_until_bodies_were_dropped_is_told_what_it_would_have_been() {
    run(async {
        let net = Net::new(1, 0);
        let mut paused = claim(&net, 0).await.unwrap();
        append(&mut paused, 5).await.unwrap();
        // Its last record is stored, but the answer is lost.
        net.script(&[Fault::AnswerLost]);
        let five = body(5);
        let put = paused.append([record(RecordKind::Dispatch, 5, five.as_bytes())]);
        assert!(time::timeout(Duration::from_millis(200), put).await.is_err());
        let mut writer = claim(&net, 2).await.unwrap();
        let mut late = ChunkReader::new(place(&net, 3), SESSION);
        late.read_to_end(&mut |_| {}).await.unwrap();
        append(&mut writer, 12).await.unwrap();
        say(&mut writer, &dropped(15)).await;
        append(&mut writer, 4).await.unwrap();
        time::sleep(MIN_AGE).await;
        assert!(collected(&net, 9).await.unwrap().dropped > 5);
        assert!(!bodies_in(&net).contains(&5));
        assert_eq!(paused.settle().await.unwrap(), 6);
        let fenced = append(&mut paused, 1).await.unwrap_err();
        assert!(matches!(fenced, Error::Fenced { .. }), "{fenced:?}");
        assert!(matches!(ChunkWriter::claim_behind(late, "late").await, Err(Error::Fenced { .. })));
        // The writer's chunks under collected numbers are no part of the log, and are removed
        // again.
        assert!(net.revived() > 0);
        let (checked, ended) = read(&net).await;
        assert_eq!((ended, checked.records), (Ok(()), 23));
        assert!(collected(&net, 9).await.unwrap().chunks > 0);
        assert!(!bodies_in(&net).contains(&5));
        append(&mut writer, 3).await.unwrap();
        assert_eq!(read(&net).await.0.records, 26);
    });
}

#[test]
fn schedules_of_collections_and_readers_over_a_failing_store_lose_no_record_and_mix_nothing() {
    let mut kills = 0;
    for seed in 0..60 {
        run(async {
            let net = Net::new(seed, 0);
            if seed >= 40 {
                // Ranges that exceed the length of a volume lose bodies a day later.
                net.set_volume_bytes(LONG);
            }
            let mut writer = claim(&net, 0).await.unwrap();
            let (mut through, mut said, mut ends) = (0, BTreeSet::new(), Vec::new());
            for round in 0..4 {
                append(&mut writer, 6 + net.draw(12)).await.unwrap();
                through += 4 + net.draw(5);
                said.insert(writer.next_sequence());
                let all = dropped(through);
                let mut these = DroppedBodies { runs: Vec::new(), ..all.clone() };
                all.sequences().filter(|one| !said.contains(one)).for_each(|one| these.push(one));
                ends.push(ObjectId::from_content(&these.known.encode()));
                say(&mut writer, &these).await;
                append(&mut writer, net.draw(6)).await.unwrap();
                time::sleep(MIN_AGE).await;
                let next = writer.next_sequence().get();
                let requests = net.draw(150);
                if net.draw(2) == 0 {
                    net.cut(9, requests, Fault::AnswerLost);
                }
                let mut readers = Vec::new();
                for reader in 10..13 {
                    let bucket = place(&net, reader);
                    let wait = Duration::from_millis(net.draw(4_000));
                    readers.push(tokio::spawn(async move {
                        time::sleep(wait).await;
                        read_by(bucket).await
                    }));
                }
                let second = tokio::spawn({
                    let bucket = place(&net, 8);
                    async move { collect(&bucket, SESSION, CollectOptions::default()).await }
                });
                kills += u64::from(collected(&net, 9).await.is_err());
                for reader in readers {
                    let (checked, ended) = reader.await.unwrap();
                    assert_eq!((ended, checked.records), (Ok(()), next), "seed {seed}, round {round}");
                    let order = checked
                        .known
                        .iter()
                        .map(|(_, known)| ends.iter().position(|end| end == known).unwrap());
                    assert!(order.is_sorted(), "seed {seed}: an older compaction behind a newer one");
                }
                let _ = second.await.unwrap();
                net.uncut();
                let _ = collected(&net, 7).await.unwrap();
            }
            let (checked, ended) = read(&net).await;
            assert_eq!((ended, checked.records), (Ok(()), writer.next_sequence().get()), "seed {seed}");
            assert!(checked.without > 0);
        });
    }
    assert!(kills > 20, "{kills}");
}

#[test]
fn the_bytes_of_a_compaction_stay_as_they_are() {
    let volume = |first, count| CompactedVolume { extent: Extent { first, count }, len: 300, hash: [8; 32] };
    let compaction = Compaction {
        session: SESSION,
        number: 3,
        said_at: 1_000,
        known: [7; 32],
        volumes: vec![volume(0, 64), volume(128, 192)],
    };
    let bytes = compaction.encode().unwrap();
    let golden: Vec<u8> = [
        &b"FOLDCMP\n"[..],
        &[1, 0, 80, 0],
        SESSION.as_bytes(),
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[0xe8, 3, 0, 0, 0, 0, 0, 0],
        &[7; 32],
        &[2, 0, 0, 0],
        &[0; 8],
        &[64, 0, 0, 0],
        &[0x2c, 1, 0, 0, 0, 0, 0, 0],
        &[8; 32],
        &[128, 0, 0, 0, 0, 0, 0, 0],
        &[192, 0, 0, 0],
        &[0x2c, 1, 0, 0, 0, 0, 0, 0],
        &[8; 32],
    ]
    .concat();
    assert_eq!(bytes[..bytes.len() - 32], golden);
    assert_eq!(bytes[bytes.len() - 32..], *blake3::hash(&golden).as_bytes());
    assert_eq!(Compaction::decode(&bytes, SESSION, 3), Ok(compaction.clone()));
    assert_eq!(compaction.around(63).map(|volume| volume.extent.first), Some(0));
    assert!(compaction.around(64).is_none() && compaction.around(320).is_none());
    assert!(
        !compaction.touches(Extent { first: 64, count: 64 })
            && compaction.touches(Extent { first: 64, count: 65 })
    );
    // A later version and invalid fields are distinguished from damage.
    let hashed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = golden.clone();
        change(&mut bytes);
        let hash = *blake3::hash(&bytes).as_bytes();
        Compaction::decode(&[bytes, hash.to_vec()].concat(), SESSION, 3).unwrap_err().to_string()
    };
    for (at, byte, said) in [
        (8, 2, "a later version of foldlog wrote it"),
        (0, 0, "it does not start like a compaction"),
        (12, 9, "it belongs to another session"),
        (28, 4, "its key and its bytes name different numbers"),
        (76, 3, "its fields cannot be decoded"),
        (88, 0, "its fields cannot be decoded"),
        (132, 63, "its fields cannot be decoded"),
    ] {
        let text = hashed(&|bytes| bytes[at] = byte);
        assert!(text.ends_with(&format!("cannot be used: {said}")), "{at}: {text}");
    }
}
