//! Shows that one writer wins if several race for a session over the wire.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use foldlog_codec::{Record, RecordKind};
use foldlog_remote::{ChunkReader, ChunkWriter, Error, Remote, Runtime, open_remote};
use uuid::Uuid;

use crate::server;

const WRITERS: usize = 8;

/// The acknowledged records of each race: sequence number and body.
type Told = Mutex<Vec<Vec<(u64, Vec<u8>)>>>;

/// `FOLDLOG_S3_RACES` is the number of races, by default 200.
#[test]
fn races_of_eight_writers_append_nothing_twice() {
    let Some(server) = server::bucket() else { return };
    let races = std::env::var("FOLDLOG_S3_RACES").map_or(200, |races| races.parse().unwrap());
    race(races, || open_remote(&server.url(), server::retries(), &server.variables()).unwrap());
}

/// Runs this many races of eight writers, each for a session without a claim.
pub(crate) fn race(races: usize, open: impl Fn() -> Remote) {
    let sessions: Arc<Vec<Uuid>> = Arc::new((0..races).map(|_| Uuid::new_v4()).collect());
    let told: Arc<Told> = Arc::new(Mutex::new(vec![Vec::new(); races]));
    let start = Arc::new(Barrier::new(WRITERS));
    let threads: Vec<_> = (0..WRITERS)
        .map(|who| {
            let (told, start, sessions) = (Arc::clone(&told), Arc::clone(&start), Arc::clone(&sessions));
            let remote = open();
            thread::spawn(move || {
                let runtime = Runtime::start().unwrap();
                for (race, session) in sessions.iter().enumerate() {
                    start.wait();
                    let reader = ChunkReader::new(remote.bucket().clone(), *session);
                    if let Some(appended) = runtime.run(race_once(reader, who)).unwrap() {
                        told.lock().unwrap()[race].push(appended);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());

    let remote = open();
    let mut won = 0;
    for (race, told) in told.lock().unwrap().iter_mut().enumerate() {
        let mut log = Vec::new();
        let mut each = |chunk: &foldlog_remote::chunk::Chunk<'_>| {
            log.extend(chunk.records().map(|record| (record.sequence.get(), record.body.to_vec())));
        };
        remote.read(sessions[race], &mut each).unwrap();
        told.sort();
        // Nothing was in doubt, so the log contains each acknowledged record once, and no others.
        assert_eq!(&log, told, "race {race}");
        won += log.len();
    }
    assert!(won > 0);
    println!("{races} races of {WRITERS} writers: {won} records acknowledged, none twice");
}

/// Claims the session and appends one record. Returns `None` if another writer was faster.
async fn race_once(reader: ChunkReader, who: usize) -> Option<(u64, Vec<u8>)> {
    let mut writer = match ChunkWriter::claim(reader, &format!("writer {who}"), &mut |_| {}).await {
        Ok(writer) => writer,
        Err(Error::Fenced { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    let (sequence, body) = (writer.next_sequence(), format!("by {who}").into_bytes());
    let record = Record { sequence, kind: RecordKind::Observed, time_us: 0, body: &body };
    match writer.append([record]).await {
        Ok(_) => Some((sequence.get(), body)),
        Err(Error::Fenced { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}
