//! Shows that unreferenced payloads are removed, and that writers may reference one again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::RecordKind;
use foldlog_codec::body::{ObjectId, Observed, Payload};
use foldlog_remote::withdrawal::{Name, Withdrawal};
use foldlog_remote::{
    ChunkReader, ChunkWriter, CollectOptions, Error, MIN_AGE, Payloads, SessionPayloads, collect,
};
use tokio::time;

use crate::sim::world::{SESSION, collected, place, run};
use crate::sim::{Fault, Net, wrong};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns the payload with this number, and its hash.
fn payload(number: u64) -> (ObjectId, Vec<u8>) {
    let bytes = format!("payload {number}").into_bytes();
    (ObjectId::from_content(&bytes), bytes)
}

/// A worker that puts payloads before the records that name them.
struct Worker {
    writer: ChunkWriter,
    payloads: Payloads,
}

impl Worker {
    async fn new(net: &Arc<Net>, client: usize) -> Worker {
        let place = place(net, client);
        loop {
            // The store may fail.
            let claimed =
                ChunkWriter::claim(ChunkReader::new(place.clone(), SESSION), "w", &mut |_| {}).await;
            if let Ok(writer) = claimed {
                return Worker { writer, payloads: Payloads::new(place, SESSION) };
            }
        }
    }

    async fn put(&mut self, number: u64) -> Result<(), Error> {
        let (object, bytes) = payload(number);
        self.payloads.put(object, bytes).await
    }

    /// Has the worker keep no payload bytes, as if its payloads were too long.
    fn keeps_none(self) -> Worker {
        Worker { payloads: self.payloads.with_kept_bytes(0), ..self }
    }

    /// Appends a record that names a payload, and acknowledges it, as a replicator does.
    async fn append(&mut self, number: u64, paused: Duration) -> Result<(), Error> {
        self.payloads.make_sure().await?;
        time::sleep(paused).await;
        let data = payload(number).0.reference();
        let observed = Observed { name: "n".to_owned(), data: Payload::new(&data) }.encode();
        let sequence = self.writer.next_sequence();
        let record =
            foldlog_codec::Record { sequence, kind: RecordKind::Observed, time_us: 0, body: &observed };
        self.writer.append([record]).await?;
        self.payloads.make_sure().await?;
        self.payloads.forget();
        Ok(())
    }
}

/// Collects, and returns the numbers of payloads that it removed and left.
async fn removed_and_left(net: &Arc<Net>) -> (u64, u64) {
    let report = collected(net, 9).await.unwrap();
    (report.payloads, report.payloads_left)
}

async fn is_there(net: &Arc<Net>, number: u64) -> bool {
    let (object, bytes) = payload(number);
    let found = place(net, 1).get_object(SESSION, object).await.unwrap();
    found.is_some_and(|found| {
        assert_eq!(found, bytes);
        true
    })
}

/// Returns the names under which a payload is stored, each as its generation.
fn names(net: &Net, number: u64) -> Vec<u32> {
    let (object, _) = payload(number);
    let parse = |key: &String| Name::parse(key.rsplit('/').next().unwrap());
    let all =
        net.objects().keys().filter(|key| key.contains("/objects/")).filter_map(parse).collect::<Vec<_>>();
    all.into_iter().filter(|name| name.hash == object.hash).map(|name| name.before).collect()
}

/// A session that names payload 0, but not payload 1: its writer died in between.
async fn log() -> (Arc<Net>, Worker) {
    let net = Net::new(1, 0);
    let mut worker = Worker::new(&net, 0).await;
    worker.put(1).await.unwrap();
    worker.put(0).await.unwrap();
    worker.append(0, Duration::ZERO).await.unwrap();
    (net, worker)
}

#[test]
fn a_payload_that_nothing_names_goes_a_day_after_it_was_found_so() {
    run(async {
        let (net, _) = log().await;
        // It was put just now, and the next record may name it.
        assert_eq!(removed_and_left(&net).await, (0, 1));
        assert!(net.objects().keys().all(|key| !key.contains("/withdrawn/")));
        time::sleep(MIN_AGE).await;
        let mut options = CollectOptions::default();
        options.dry_run = true;
        let dry = collect(&place(&net, 9), SESSION, options).await.unwrap();
        assert_eq!((dry.payloads, dry.payloads_left), (0, 1));
        assert_eq!(removed_and_left(&net).await, (0, 1));
        assert_eq!(removed_and_left(&net).await, (0, 1));
        assert!(is_there(&net, 1).await);
        assert_eq!(net.objects().keys().filter(|key| key.contains("/withdrawn/")).count(), 1);
        time::sleep(MIN_AGE).await;
        let dry = collect(&place(&net, 9), SESSION, options).await.unwrap();
        assert_eq!((dry.payloads, dry.payload_bytes, dry.payloads_left), (1, 9, 0));
        assert!(is_there(&net, 1).await);
        assert_eq!(collected(&net, 9).await.unwrap().payload_bytes, 9);
        assert!(!is_there(&net, 1).await && is_there(&net, 0).await);
        assert_eq!(removed_and_left(&net).await, (0, 0));
    });
}

#[test]
fn a_payload_that_is_named_again_gets_a_name_that_nobody_removes() {
    run(async {
        let (net, _) = log().await;
        time::sleep(MIN_AGE).await;
        assert_eq!(removed_and_left(&net).await, (0, 1));
        let mut worker = Worker::new(&net, 2).await;
        worker.put(1).await.unwrap();
        assert_eq!(names(&net, 1), [0, 1]);
        time::sleep(MIN_AGE).await;
        // No record names it yet, so its withdrawn name is removed. The other name is withdrawn
        // too.
        assert_eq!(removed_and_left(&net).await, (1, 1));
        assert_eq!(names(&net, 1), [1]);
        worker.append(1, Duration::ZERO).await.unwrap();
        assert_eq!(names(&net, 1), [1, 2], "the writer was paused for a day, and noticed");
        for _ in 0..3 {
            time::sleep(MIN_AGE).await;
            assert_eq!(removed_and_left(&net).await, (0, 0));
            assert!(is_there(&net, 1).await);
        }
    });
}

#[test]
fn a_writer_that_is_paused_in_front_of_its_append_or_within_it_loses_no_payload() {
    run(async {
        for (before, within) in
            [(HOUR * 13, Duration::ZERO), (Duration::ZERO, HOUR * 13), (HOUR * 11, HOUR * 11)]
        {
            let (net, _) = log().await;
            time::sleep(MIN_AGE).await;
            let mut worker = Worker::new(&net, 2).await;
            worker.put(1).await.unwrap();
            assert_eq!(removed_and_left(&net).await, (0, 1));
            time::sleep(before).await;
            worker.append(1, within).await.unwrap();
            assert_eq!(names(&net, 1), [0, 1], "put once more, under a name that was not withdrawn");
            time::sleep(MIN_AGE).await;
            assert_eq!(removed_and_left(&net).await, (0, 0));
            assert!(is_there(&net, 1).await);
        }
    });
}

#[test]
fn a_writer_that_was_paused_until_its_payload_was_removed_puts_it_once_more() {
    run(async {
        for within in [Duration::ZERO, MIN_AGE * 3] {
            let (net, _) = log().await;
            time::sleep(MIN_AGE).await;
            let mut worker = Worker::new(&net, 2).await;
            worker.put(1).await.unwrap();
            assert_eq!(removed_and_left(&net).await, (0, 1));
            // The payload is removed before the append or during it: the collection finds no chunk
            // that names it.
            let other = tokio::spawn({
                let net = Arc::clone(&net);
                async move {
                    time::sleep(MIN_AGE).await;
                    removed_and_left(&net).await
                }
            });
            if within.is_zero() {
                time::sleep(MIN_AGE + HOUR).await;
            }
            worker.append(1, within).await.unwrap();
            assert_eq!(other.await.unwrap(), (1, 0));
            assert_eq!(names(&net, 1), [1]);
            time::sleep(MIN_AGE).await;
            assert_eq!(removed_and_left(&net).await, (0, 0));
            assert!(is_there(&net, 1).await);
        }
    });
}

#[test]
fn a_writer_whose_long_payload_was_removed_while_it_was_paused_appends_nothing_that_names_it() {
    run(async {
        let (net, _) = log().await;
        time::sleep(MIN_AGE).await;
        let mut worker = Worker::new(&net, 2).await.keeps_none();
        worker.put(1).await.unwrap();
        assert_eq!(removed_and_left(&net).await, (0, 1));
        time::sleep(MIN_AGE).await;
        assert_eq!(removed_and_left(&net).await, (1, 0));
        let refused = worker.append(1, Duration::ZERO).await.unwrap_err();
        assert!(matches!(refused, Error::MissingPayload { .. }), "{refused:?}");
        // The log contains nothing of it, and the feed starts again.
        assert_eq!(worker.writer.next_sequence(), 1);
        let mut worker = Worker::new(&net, 3).await;
        worker.put(1).await.unwrap();
        worker.append(1, Duration::ZERO).await.unwrap();
        assert_eq!(names(&net, 1), [1]);
        assert!(is_there(&net, 1).await);
    });
}

/// A reader that meets many of them asks for withdrawals once.
#[test]
fn payloads_under_later_names_cost_a_reader_no_request_for_each_withdrawal() {
    run(async {
        let (net, mut worker) = log().await;
        for number in 2..12 {
            worker.put(number).await.unwrap();
        }
        for number in 12..40 {
            worker.put(number).await.unwrap();
            time::sleep(MIN_AGE).await;
            collected(&net, 9).await.unwrap();
        }
        assert!(net.objects().keys().filter(|key| key.contains("/withdrawn/")).count() > 20);
        let mut worker = Worker::new(&net, 2).await;
        for number in 2..12 {
            worker.put(number).await.unwrap();
            worker.append(number, Duration::ZERO).await.unwrap();
        }
        let (before, reader) = (net.reads(), place(&net, 1));
        for number in 2..12 {
            let (object, bytes) = payload(number);
            assert_eq!(reader.get_object(SESSION, object).await.unwrap(), Some(bytes));
        }
        let asked = net.reads() - before;
        assert!(asked < 30 + 10 * 3, "{asked}");
    });
}

#[test]
fn a_collection_of_payloads_that_is_killed_at_any_request_loses_none_and_the_next_one_goes_on() {
    run(async {
        for fault in [Fault::AnswerLost, Fault::RequestLost] {
            for days in 1..3 {
                let mut requests = 0;
                loop {
                    let (net, _) = log().await;
                    time::sleep(MIN_AGE).await;
                    if days == 2 {
                        assert_eq!(removed_and_left(&net).await, (0, 1));
                        time::sleep(MIN_AGE).await;
                    }
                    net.cut(9, requests, fault);
                    let killed = collected(&net, 9).await;
                    net.uncut();
                    assert!(is_there(&net, 0).await, "behind {requests} requests");
                    let (mut removed, mut left) = (0, 1);
                    for _ in 0..4 {
                        (removed, left) = removed_and_left(&net).await;
                        time::sleep(MIN_AGE).await;
                    }
                    assert_eq!((removed, left), (0, 0), "behind {requests} requests");
                    assert!(is_there(&net, 0).await && !is_there(&net, 1).await);
                    if killed.is_ok() {
                        break;
                    }
                    requests += 1;
                }
                assert!(requests > 8, "{requests}");
            }
        }
    });
}

#[test]
fn every_wrong_byte_of_a_withdrawal_is_noticed_and_what_stands_under_a_first_name_is_read() {
    run(async {
        let (net, _) = log().await;
        time::sleep(MIN_AGE).await;
        assert_eq!(removed_and_left(&net).await, (0, 1));
        let key = net.objects().into_keys().find(|key| key.contains("/withdrawn/")).unwrap();
        let whole = net.objects()[&key].clone();
        for bytes in wrong(&whole) {
            net.set(&key, bytes);
            assert!(is_there(&net, 0).await);
            let mut worker = Worker::new(&net, 2).await;
            let refused = worker.put(1).await.unwrap_err();
            assert!(matches!(refused, Error::Withdrawal { number: 1, .. }), "{refused:?}");
            let refused = collected(&net, 9).await.unwrap_err();
            assert!(matches!(refused, Error::Withdrawal { number: 1, .. }), "{refused:?}");
        }
    });
}

/// A record of a later version may name any payload.
#[test]
fn nothing_goes_of_a_session_in_which_a_record_does_not_decode() {
    run(async {
        let (net, mut worker) = log().await;
        let sequence = worker.writer.next_sequence();
        let kind = RecordKind::from_byte(99).unwrap();
        let later = foldlog_codec::Record { sequence, kind, time_us: 0, body: b"\xff" };
        worker.writer.append([later]).await.unwrap();
        for _ in 0..3 {
            time::sleep(MIN_AGE).await;
            assert_eq!(removed_and_left(&net).await, (0, 0));
        }
        assert!(is_there(&net, 1).await);
    });
}

/// Over a store that fails, writers come and go, put payloads that they never name, pause for days
/// at any point, and name payloads that others left. Two collections run at any moment. At the end
/// every acknowledged record has its payload.
#[test]
fn schedules_of_writers_that_pause_and_collections_lose_no_payload_of_what_was_acknowledged() {
    let (mut removed, mut again, mut refused, mut acknowledged) = (0, 0, 0, 0);
    for seed in 0..60 {
        run(async {
            let net = Net::new(seed, if seed % 2 == 0 { 0 } else { 15 });
            let mut named = BTreeSet::new();
            let mut worker = Worker::new(&net, 0).await;
            let mut collections = Vec::new();
            for step in 0..60_u64 {
                let number = net.draw(24);
                match net.draw(8) {
                    0 => worker = Worker::new(&net, 0).await,
                    1 | 2 => {
                        let _ = worker.put(number).await;
                    }
                    3 | 4 => {
                        let (place, wait) = (place(&net, 8 + step as usize % 2), HOUR * net.draw(100) as u32);
                        collections.push(tokio::spawn(async move {
                            time::sleep(wait).await;
                            collect(&place, SESSION, CollectOptions::default()).await
                        }));
                    }
                    _ => {
                        let pause = || HOUR * [0, 0, 13, 30, 80][net.draw(5) as usize];
                        let (before, mut within) = (pause(), pause() * u32::from(seed % 3 == 0));
                        if seed % 4 == 0 {
                            // A worker that keeps no bytes cannot survive a sleep of a day within
                            // an append, which is a known limit.
                            worker = worker.keeps_none();
                            within = within.min(HOUR * 12);
                        }
                        if worker.put(number).await.is_err() {
                            continue;
                        }
                        time::sleep(before).await;
                        match worker.append(number, within).await {
                            Ok(()) => {
                                named.insert(number);
                                acknowledged += 1;
                            }
                            Err(error) => {
                                refused += u64::from(matches!(error, Error::MissingPayload { .. }));
                                worker = Worker::new(&net, 0).await;
                            }
                        }
                    }
                }
            }
            for collection in collections {
                removed += collection.await.unwrap().map_or(0, |report| report.payloads);
            }
            net.heal();
            for _ in 0..3 {
                removed += collected(&net, 9).await.unwrap().payloads;
                time::sleep(MIN_AGE).await;
            }
            for number in 0..24 {
                again += names(&net, number).iter().filter(|before| **before > 0).count();
                assert!(is_there(&net, number).await || !named.contains(&number), "seed {seed}: {number}");
            }
        });
    }
    println!("{acknowledged} acknowledged, {removed} removed, {again} put again, {refused} refused");
    assert!(acknowledged > 500 && removed > 100 && again > 50 && refused > 3);
}

#[test]
fn the_bytes_of_a_withdrawal_stay_as_they_are() {
    let name = |byte, before| Name { hash: [byte; 32], before };
    let withdrawal =
        Withdrawal { session: SESSION, number: 3, names: vec![name(7, 0), name(7, 1), name(8, 258)] };
    let bytes = withdrawal.encode().unwrap();
    let golden: Vec<u8> = [
        &b"FOLDWDN\n"[..],
        &[1, 0, 40, 0],
        SESSION.as_bytes(),
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0],
        &[7; 32],
        &[0, 0, 0, 0],
        &[7; 32],
        &[1, 0, 0, 0],
        &[8; 32],
        &[2, 1, 0, 0],
    ]
    .concat();
    assert_eq!(bytes[..bytes.len() - 32], golden);
    assert_eq!(bytes[bytes.len() - 32..], *blake3::hash(&golden).as_bytes());
    assert_eq!(Withdrawal::decode(&bytes, SESSION, 3), Ok(withdrawal));
    // A later version and invalid fields are distinguished from damage.
    let hashed = |at: usize, byte: u8| {
        let mut bytes = golden.clone();
        bytes[at] = byte;
        let hash = *blake3::hash(&bytes).as_bytes();
        Withdrawal::decode(&[bytes, hash.to_vec()].concat(), SESSION, 3).unwrap_err().to_string()
    };
    for (at, byte, said) in [
        (8, 2, "a later version of foldlog wrote it"),
        (0, 0, "it does not start like a withdrawal"),
        (12, 9, "it belongs to another session"),
        (28, 4, "its key and its bytes name different numbers"),
        (36, 4, "its fields cannot be decoded"),
        (72, 2, "its fields cannot be decoded"),
    ] {
        assert!(hashed(at, byte).contains(said), "{at}: {}", hashed(at, byte));
    }
    let text = |name: Name| name.to_string();
    for name in [name(7, 0), name(7, 1), name(8, 258)] {
        assert_eq!(Name::parse(&text(name)), Some(name));
    }
    let hex = text(name(7, 0));
    for wrong in [
        format!("{hex}.0"),
        format!("{hex}.01"),
        format!("{hex}.4294967295"),
        format!("{hex}."),
        hex[1..].to_owned(),
        hex.replace('7', "A"),
    ] {
        assert_eq!(Name::parse(&wrong), None, "{wrong}");
    }
}
