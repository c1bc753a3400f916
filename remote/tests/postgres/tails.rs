//! Shows that a reader can follow a session that another worker writes.

use std::thread;

use futures_lite::{StreamExt, future};
use uuid::Uuid;

use crate::server::{own, replicator, retries, shared};
use crate::worker::{append, claim};

const SESSION: Uuid = Uuid::from_u128(1);

#[test]
fn a_tail_yields_what_is_held_and_then_what_comes_from_any_position_on() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let (one, two) = (replicator(&url, "one", retries()), replicator(&url, "two", retries()));
    // It waits for a session that does not exist yet, and for a record.
    let mut first = two.tail(SESSION, 0.into()).unwrap();
    let mut late = two.tail(SESSION, 3.into()).unwrap();
    claim(&one, SESSION).unwrap();
    append(&one, SESSION, 1, 0, &["a", "b"]).unwrap();
    let next = |tail: &mut foldlog_remote::Tail| {
        let record = tail.wait().unwrap().unwrap();
        (record.sequence.get(), String::from_utf8(record.body).unwrap(), record.epoch.get())
    };
    assert_eq!(next(&mut first), (0, "a".to_owned(), 1));
    assert_eq!(next(&mut first), (1, "b".to_owned(), 1));
    claim(&one, SESSION).unwrap();
    append(&one, SESSION, 2, 2, &["c", "d"]).unwrap();
    assert_eq!(next(&mut first), (2, "c".to_owned(), 2));
    assert_eq!(next(&mut late), (3, "d".to_owned(), 2));
    // Any executor can poll it as a stream.
    append(&one, SESSION, 2, 4, &["e"]).unwrap();
    let streamed = future::block_on(first.take(2).collect::<Vec<_>>());
    let streamed: Vec<u64> = streamed.into_iter().map(|record| record.unwrap().sequence.get()).collect();
    assert_eq!(streamed, [3, 4]);
    assert_eq!(next(&mut late), (4, "e".to_owned(), 2));
}

#[test]
fn a_tail_goes_on_behind_a_server_that_was_killed_and_misses_nothing() {
    let Some(server) = own() else { return };
    let url = server.url();
    let (one, two) = (replicator(&url, "one", retries()), replicator(&url, "two", retries()));
    claim(&one, SESSION).unwrap();
    let mut tail = two.tail(SESSION, 0.into()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..300 {
                append(&one, SESSION, 1, n, &[&n.to_string()]).unwrap();
                if n == 150 {
                    server.kill();
                    server.start();
                }
            }
        });
        for n in 0..300 {
            assert_eq!(tail.wait().unwrap().unwrap().sequence.get(), n);
        }
    });
}

#[test]
fn an_append_notifies_whoever_follows() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let one = replicator(&url, "one", retries());
    claim(&one, SESSION).unwrap();
    let mut listens = server.holding(&format!("LISTEN foldlog_{}", SESSION.simple()));
    append(&one, SESSION, 1, 0, &["a"]).unwrap();
    assert_eq!(listens.hear(), "");
}
