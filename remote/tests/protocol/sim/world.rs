//! Writers that claim, append, pause, give up and return, and the results that each of them got.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog_codec::{Record, RecordKind, SequenceNumber};
use foldlog_remote::{
    Bucket, ChunkReader, ChunkWriter, CollectOptions, CollectReport, Error, Retries, SessionWriter, collect,
};
use tokio::runtime::Builder;
use tokio::time;
use uuid::Uuid;

use super::{Fault, Net, SPANS, oracle};

pub(crate) const SESSION: Uuid = Uuid::from_u128(0x5eed_0000_0000_0000_0000_0000_0000_0001);

/// Short enough that a schedule sees all attempts fail.
pub(crate) fn retries() -> Retries {
    Retries {
        within: Duration::ZERO,
        attempts: 4,
        request_timeout: Duration::from_millis(500),
        first_wait: Duration::from_millis(20),
        longest_wait: Duration::from_millis(300),
    }
}

pub(crate) fn record(sequence: u64, body: &[u8]) -> Record<'_> {
    Record { sequence: sequence.into(), kind: RecordKind::Observed, time_us: sequence as i64 - 3, body }
}

pub(crate) fn bucket(net: &Arc<Net>, client: usize) -> Bucket {
    Bucket::new(net.client(client), "team/agents", retries()).unwrap()
}

/// The place as one process sees it. Its clock follows tokio's, and its volumes have few chunks.
pub(crate) fn place(net: &Arc<Net>, client: usize) -> Bucket {
    let begun = time::Instant::now();
    bucket(net, client)
        .with_spans(SPANS)
        .with_volume_bytes(net.volume_bytes())
        .with_clock(move || begun.elapsed())
}

pub(crate) async fn claim(net: &Arc<Net>, client: usize) -> Result<ChunkWriter, Error> {
    ChunkWriter::claim(ChunkReader::new(place(net, client), SESSION), "w", &mut |_| {}).await
}

pub(crate) async fn collected(net: &Arc<Net>, client: usize) -> Result<CollectReport, Error> {
    collect(&place(net, client), SESSION, CollectOptions::default()).await
}

/// Runs a future on a paused clock: time passes once nothing else can happen.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(future)
}

/// One record that a writer tried to append.
#[derive(Clone, Debug)]
struct Attempt {
    sequence: u64,
    body: Vec<u8>,
    epoch: u64,
    started: u64,
    acknowledged: Option<u64>,
}

/// Results of the writers, in order.
#[derive(Default)]
struct Told {
    attempts: Vec<Attempt>,
    /// Epoch of each acknowledged claim, the event at which the call began, and the bodies of the
    /// records that it read.
    claims: Vec<(u64, u64, Vec<Vec<u8>>)>,
    outcomes: BTreeMap<&'static str, u64>,
    trace: Vec<String>,
}

pub(crate) struct World {
    pub(crate) net: Arc<Net>,
    /// Whether chunks are collected, with pauses as long as that takes.
    collects: bool,
    told: Mutex<Told>,
}

/// Result of a schedule.
pub(crate) struct Outcome {
    pub(crate) outcomes: BTreeMap<&'static str, u64>,
    pub(crate) faults: BTreeMap<Fault, u64>,
    pub(crate) bodies: Vec<Vec<u8>>,
    pub(crate) revived: u64,
    pub(crate) volumes: u64,
    pub(crate) trace: Vec<String>,
}

impl World {
    fn note(&self, who: usize, what: &'static str) {
        let mut told = self.told.lock().unwrap();
        *told.outcomes.entry(what).or_default() += 1;
        told.trace.push(format!("{who} {what} {}", self.net.event()));
    }

    fn bucket(&self, who: usize) -> Bucket {
        let bucket = bucket(&self.net, who);
        if !self.collects {
            return bucket;
        }
        let begun = time::Instant::now();
        bucket.with_spans(SPANS).with_clock(move || begun.elapsed())
    }

    async fn pause(&self) {
        // One pause of eight is long enough for others to take over.
        let mut most = if self.net.draw(8) == 0 { 60_000 } else { 300 };
        // One of six is long enough for all chunks to be collected.
        if self.collects && self.net.draw(6) == 0 {
            most = 80 * 3_600_000;
        }
        time::sleep(Duration::from_millis(self.net.draw(most))).await;
    }

    /// Runs a few lives of one writer, each from a claim to its end.
    async fn lives(&self, who: usize) {
        for life in 0..1 + self.net.draw(4) {
            self.pause().await;
            let mut read = Vec::new();
            let began = self.net.event();
            let mut reader = ChunkReader::new(self.bucket(who), SESSION);
            let mut each = |chunk: &foldlog_remote::chunk::Chunk<'_>| {
                read.extend(chunk.records().map(|record| record.body.to_vec()));
            };
            // Half of the claims give way to any put since they read.
            let claimed = if self.net.draw(2) == 0 {
                ChunkWriter::claim(reader, "a writer", &mut each).await
            } else {
                match reader.read_to_end(&mut each).await {
                    Ok(()) => {
                        if self.collects && self.net.draw(2) == 0 {
                            self.pause().await;
                        }
                        ChunkWriter::claim_behind(reader, "a writer").await
                    }
                    Err(error) => Err(error),
                }
            };
            match claimed {
                Ok(writer) => {
                    self.note(who, "claimed");
                    self.told.lock().unwrap().claims.push((writer.epoch().get(), began, read));
                    self.appends(who, life, writer).await;
                }
                Err(Error::Fenced { .. }) => self.note(who, "lost the claim"),
                Err(Error::Unknown { .. }) => self.note(who, "claim unknown"),
                Err(Error::Store { .. }) => self.note(who, "could not read"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Collects chunks from time to time.
    async fn collections(&self, who: usize) {
        for _ in 0..8 {
            time::sleep(Duration::from_millis(self.net.draw(30 * 3_600_000))).await;
            match collect(&self.bucket(who), SESSION, CollectOptions::default()).await {
                Ok(report) if report.chunks > 0 => self.note(who, "collected"),
                Ok(_) => self.note(who, "nothing to collect"),
                Err(Error::Store { .. }) => self.note(who, "could not collect"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Follows the log with one reader, across pauses.
    async fn follows(&self, who: usize) -> Vec<Vec<u8>> {
        let (mut reader, mut read) = (ChunkReader::new(self.bucket(who), SESSION), Vec::new());
        for _ in 0..20 {
            self.pause().await;
            let mut each = |chunk: &foldlog_remote::chunk::Chunk<'_>| {
                read.extend(chunk.records().map(|record| record.body.to_vec()));
            };
            match reader.read_to_end(&mut each).await {
                Ok(()) | Err(Error::Store { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            if self.net.draw(3) == 0 {
                reader = match ChunkReader::resume(self.bucket(who), *reader.chain()).await {
                    Ok(reader) => reader,
                    Err(Error::Store { .. }) => reader,
                    Err(error) => panic!("{error}"),
                };
            }
        }
        read
    }

    async fn appends(&self, who: usize, life: u64, mut writer: ChunkWriter) {
        for turn in 0..1 + self.net.draw(10) {
            self.pause().await;
            let next = writer.next_sequence().get();
            let count = 1 + self.net.draw(3);
            let bodies: Vec<Vec<u8>> =
                (0..count).map(|at| format!("{who}/{life}/{turn}/{at}").into_bytes()).collect();
            let started = self.net.event();
            let epoch = writer.epoch().get();
            let attempts = bodies.iter().zip(next..).map(|(body, sequence)| Attempt {
                sequence,
                body: body.clone(),
                epoch,
                started,
                acknowledged: None,
            });
            self.told.lock().unwrap().attempts.extend(attempts);
            let records: Vec<Record<'_>> = (next..).zip(&bodies).map(|(at, body)| record(at, body)).collect();
            // Some callers give up in the middle.
            let patience = if self.net.draw(10) == 0 { self.net.draw(200) } else { 1_000_000 };
            let appended = time::timeout(Duration::from_millis(patience), writer.append(records)).await;
            self.forget(epoch, writer.next_sequence());
            let mut settled = appended.unwrap_or_else(|_| {
                self.note(who, "gave up waiting");
                Err(Error::Unknown {
                    next: writer.next_sequence(),
                    failure: foldlog_remote::RemoteFailure::TimedOut,
                    details: Box::default(),
                })
            });
            let mut tries = self.net.draw(4);
            while matches!(settled, Err(Error::Unknown { .. })) && tries > 0 {
                self.note(who, "unknown");
                self.pause().await;
                settled = writer.settle().await;
                tries -= 1;
            }
            match settled {
                Ok(upto) => {
                    self.note(who, "acknowledged");
                    self.acknowledge(epoch, upto);
                }
                Err(Error::Fenced { epoch: other, .. }) => {
                    self.note(who, "fenced");
                    assert!(other.get() > epoch);
                    let next = writer.next_sequence().get();
                    let again = writer.append([record(next, b"never")]).await;
                    assert!(matches!(again, Err(Error::Fenced { .. })), "{again:?}");
                    return;
                }
                Err(Error::Unknown { .. }) if self.net.draw(2) == 0 => {
                    self.note(who, "gave up");
                    return;
                }
                Err(Error::Unknown { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Drops the attempts that were handed in and not accepted.
    fn forget(&self, epoch: u64, next: SequenceNumber) {
        let mut told = self.told.lock().unwrap();
        told.attempts.retain(|attempt| attempt.epoch != epoch || attempt.sequence < next.get());
    }

    fn acknowledge(&self, epoch: u64, upto: SequenceNumber) {
        let event = self.net.event();
        let mut told = self.told.lock().unwrap();
        let due = told
            .attempts
            .iter_mut()
            .filter(|attempt| attempt.epoch == epoch && attempt.sequence < upto.get());
        due.for_each(|attempt| {
            attempt.acknowledged.get_or_insert(event);
        });
    }
}

/// Runs the schedule of a seed, and checks its result. With `collects`, chunks are put into volumes
/// and collected, and some pauses and requests take days.
pub(crate) fn schedule(seed: u64, collects: bool) -> Outcome {
    run(async {
        let net = Net::new(seed, [0, 30, 100, 300][(seed % 4) as usize]);
        let world = Arc::new(World { net: Arc::clone(&net), collects, told: Mutex::new(Told::default()) });
        let writers: Vec<_> = (0..2 + seed as usize % 7)
            .map(|who| {
                let world = Arc::clone(&world);
                tokio::spawn(async move { world.lives(who).await })
            })
            .collect();
        let mut followers = Vec::new();
        if collects {
            net.set_late(Duration::from_secs(80 * 3_600));
            let collector = Arc::clone(&world);
            tokio::spawn(async move { collector.collections(50).await });
            let follower = Arc::clone(&world);
            followers.push(tokio::spawn(async move { follower.follows(51).await }));
        }
        for writer in writers {
            writer.await.unwrap();
        }
        // Lets late requests arrive.
        time::sleep(Duration::from_secs(if collects { 1_000_000 } else { 3_600 })).await;
        net.heal();
        let outcome = check(&world).await;
        for follower in followers {
            let read = follower.await.unwrap();
            assert_eq!(read, outcome.bodies[..read.len()], "who follows the log reads what is in it");
        }
        outcome
    })
}

/// The oracle: one total order, no acknowledged record missing or repeated, no fork, and no
/// acknowledged record that began after the claim of another writer.
async fn check(world: &World) -> Outcome {
    // The first put under a number counts, whatever happened to it later.
    let chunks = oracle::history(&world.net.first());
    let volumes = oracle::volumes(&world.net.objects(), &world.net.first());
    let log: Vec<(&[u8], u64)> = chunks
        .iter()
        .flat_map(|chunk| chunk.bodies.iter().map(|body| (body.as_slice(), chunk.epoch)))
        .collect();
    let told = std::mem::take(&mut *world.told.lock().unwrap());

    let distinct: BTreeSet<&[u8]> = log.iter().map(|(body, _)| *body).collect();
    assert_eq!(distinct.len(), log.len(), "no record stands in the log twice");
    let attempts: BTreeMap<&[u8], &Attempt> =
        told.attempts.iter().map(|attempt| (attempt.body.as_slice(), attempt)).collect();
    for (body, epoch) in &log {
        let attempt = attempts.get(body).unwrap_or_else(|| panic!("{body:?} was never appended"));
        assert_eq!(attempt.epoch, *epoch);
    }

    let created = world.net.created();
    let key = |number: u64| format!("team/agents/sessions/{SESSION}/log/{number:020}");
    let claims: Vec<(u64, u64, u64)> = chunks
        .iter()
        .filter(|chunk| chunk.bodies.is_empty())
        .map(|chunk| (chunk.epoch, created[&key(chunk.number)], chunk.first))
        .collect();
    for attempt in told.attempts.iter().filter(|attempt| attempt.acknowledged.is_some()) {
        let there = log.get(attempt.sequence as usize).unwrap_or_else(|| panic!("{attempt:?} is missing"));
        assert_eq!(there.0, attempt.body, "what was acknowledged stands where it was said to");
        let superseded = claims.iter().find(|(epoch, at, _)| *epoch > attempt.epoch && *at < attempt.started);
        assert_eq!(superseded, None, "a superseded writer had {attempt:?} acknowledged");
    }
    in_order(&told.attempts);
    for (epoch, began, read) in &told.claims {
        let (_, at, first) =
            claims.iter().find(|claim| claim.0 == *epoch).expect("an acknowledged claim is there");
        assert!(began < at);
        let before: Vec<&[u8]> = log[..*first as usize].iter().map(|(body, _)| *body).collect();
        assert_eq!(read, &before, "a claim has read all that stands before it");
    }

    // The crate's own reader agrees.
    let mut read = Vec::new();
    let mut reader = ChunkReader::new(world.bucket(99), SESSION);
    reader
        .read_to_end(&mut |chunk| read.extend(chunk.records().map(|record| record.body.to_vec())))
        .await
        .unwrap();
    assert_eq!(read, log.iter().map(|(body, _)| *body).collect::<Vec<_>>());
    assert_eq!(reader.ignored_count(), 0);
    Outcome {
        outcomes: told.outcomes,
        faults: world.net.counts(),
        bodies: read,
        revived: world.net.revived(),
        volumes,
        trace: told.trace,
    }
}

/// Checks that each acknowledged record precedes all records that were begun after its
/// acknowledgement.
fn in_order(attempts: &[Attempt]) {
    let mut acknowledged: Vec<&Attempt> = attempts.iter().filter(|one| one.acknowledged.is_some()).collect();
    acknowledged.sort_by_key(|attempt| attempt.started);
    let mut ends: Vec<(u64, u64)> =
        acknowledged.iter().map(|one| (one.acknowledged.unwrap(), one.sequence)).collect();
    ends.sort_unstable();
    let (mut at, mut greatest) = (0, None);
    for attempt in acknowledged {
        while at < ends.len() && ends[at].0 < attempt.started {
            greatest = greatest.max(Some(ends[at].1));
            at += 1;
        }
        assert!(greatest < Some(attempt.sequence), "{attempt:?} stands before what was acknowledged earlier");
    }
}
