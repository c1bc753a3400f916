//! Shows the log after a server is killed, or returns in an earlier state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use foldlog::replication::{ReplicaError, Replicator};
use uuid::Uuid;

use crate::server::{own, replicator, retries};
use crate::worker::{append, claim, held, reason};

/// Number of kills, unless `FOLDLOG_POSTGRES_KILLS` sets another one.
fn kills() -> u64 {
    std::env::var("FOLDLOG_POSTGRES_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10)
}

#[test]
fn nothing_acknowledged_is_missing_behind_kills_of_the_server_and_nothing_is_held_twice() {
    let Some(server) = own() else { return };
    let url = server.url();
    let workers = [0, 1, 2].map(|name| replicator(&url, &format!("worker {name}"), retries()));
    let acknowledged = [0, 1, 2].map(|_| AtomicU64::new(0));
    let (rounds, ended) = (kills(), AtomicU64::new(0));
    thread::scope(|scope| {
        let working = workers.iter().zip(&acknowledged).map(|(worker, acknowledged)| {
            let ended = &ended;
            scope.spawn(move || {
                let session = Uuid::from_u128(u128::from(worker.name().as_bytes()[7]));
                let (mut next, epoch) = claim(worker, session).unwrap();
                while ended.load(Ordering::SeqCst) == 0 {
                    let texts = [next, next + 1].map(|n| n.to_string());
                    append(worker, session, epoch, next, &texts.each_ref().map(String::as_str)).unwrap();
                    next += 2;
                    acknowledged.store(next, Ordering::SeqCst);
                }
            })
        });
        let working: Vec<_> = working.collect();
        for _ in 0..rounds {
            let before: u64 = acknowledged.iter().map(|one| one.load(Ordering::SeqCst)).sum();
            // Kills the server during appends, at random moments.
            while acknowledged.iter().map(|one| one.load(Ordering::SeqCst)).sum::<u64>() < before + 40 {
                if working.iter().any(|one| one.is_finished()) {
                    ended.store(1, Ordering::SeqCst);
                    panic!("a worker has failed");
                }
                thread::yield_now();
            }
            server.kill();
            server.start();
        }
        ended.store(1, Ordering::SeqCst);
        working.into_iter().for_each(|one| one.join().unwrap());
    });
    server.kill();
    server.start();
    let reader = replicator(&url, "reader", retries());
    for (name, acknowledged) in acknowledged.iter().enumerate() {
        let session = Uuid::from_u128(u128::from(b'0' + name as u8));
        let (_, texts) = held(&reader, session).unwrap();
        let next = acknowledged.load(Ordering::SeqCst);
        assert!(next >= rounds);
        assert_eq!(texts, (0..next).map(|n| n.to_string()).collect::<Vec<_>>());
    }
}

/// Keeps the files' owner, since the server's user has to own them.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

#[test]
fn a_server_that_is_behind_what_was_acknowledged_is_noticed_by_writers_and_readers_who_knew_it() {
    let Some(server) = own() else { return };
    let (url, session, other) = (server.url(), Uuid::from_u128(1), Uuid::from_u128(2));
    let [writer, claimer, late] = ["writer", "claimer", "late"].map(|name| replicator(&url, name, retries()));
    let (_, epoch) = claim(&writer, session).unwrap();
    append(&writer, session, epoch, 0, &["a", "b"]).unwrap();
    server.stop();
    let copied = server.directory().join("copy");
    copy(&server.data(), &copied);
    server.start();
    append(&writer, session, epoch, 2, &["c"]).unwrap();
    claim(&late, other).unwrap();
    let read = claimer.read(session, &mut |_| {}).unwrap();
    let mut tail = claimer.tail(session, 0.into()).unwrap();
    let seen: Vec<u64> = (0..3).map(|_| tail.wait().unwrap().unwrap().sequence.get()).collect();
    assert_eq!(seen, [0, 1, 2]);

    // A server takes over that never received the last commits.
    server.stop();
    std::fs::remove_dir_all(server.data()).unwrap();
    copy(&copied, &server.data());
    server.start();
    for result in [
        append(&writer, session, epoch, 3, &["d"]),
        claimer.claim(session, read.next).map(drop),
        append(&late, other, 1, 0, &["a"]),
    ] {
        let text = reason(result);
        assert!(text.contains("went back to an older state"), "{text}");
    }
    // A writer that noticed stops, although the server would accept its records.
    assert!(reason(append(&writer, session, epoch, 2, &["c"])).contains("went back"));
    let ended = tail.wait().unwrap().unwrap_err().to_string();
    assert!(ended.contains("went back"), "{ended}");
    assert!(tail.wait().is_none());
    // A new claim continues from the records that are there.
    assert_eq!(held(&claimer, session).unwrap().1, ["a", "b"]);
    assert_eq!(claim(&claimer, session).unwrap(), (2, 2));
    let fenced = append(&replicator(&url, "x", retries()), session, epoch, 2, &["x"]);
    assert!(matches!(fenced, Err(ReplicaError::Failed { .. })));
}
