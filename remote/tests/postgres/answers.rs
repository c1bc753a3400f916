//! Shows that a lost answer or a broken connection neither loses nor repeats a record.

use foldlog::replication::{ReplicaError, Replicator};
use foldlog_remote::{PlaceEnvironment, PlaceItem, open_place_with};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use uuid::Uuid;

use crate::proxy::{Proxy, Way};
use crate::server::{hasty, replicator, retries, schema_of, shared};
use crate::worker::{append, claim, held};

/// Number of places at which connections are cut, in each direction.
const CUTS: u64 = 120;

#[test]
fn wherever_a_connection_is_cut_each_record_is_held_once_and_each_that_was_acknowledged() {
    let Some(server) = shared() else { return };
    let (proxy, url) = (Proxy::new(&server), server.url());
    let cut = replicator(&proxy.url(&url), "cut", retries());
    let whole = replicator(&url, "whole", retries());
    let mut cuts = 0;
    for way in [Way::ToServer, Way::FromServer] {
        for seed in 0..CUTS {
            let mut draw = ChaCha8Rng::seed_from_u64(seed);
            let session = Uuid::from_u128(u128::from(seed) + 1 + way as u128 * 1_000);
            // New connections begin with many bytes, existing ones do not. Either way a cut hits a
            // claim or an append.
            proxy.cut_after(
                way,
                i64::from(draw.next_u32() % if way == Way::ToServer { 6_000 } else { 1_500 }),
                false,
            );
            let (_, epoch) = claim(&cut, session).unwrap();
            let mut texts = Vec::new();
            for n in 0..3 {
                let text = format!("{way:?} {seed} {n}");
                append(&cut, session, epoch, n, &[&text]).unwrap();
                texts.push(text);
            }
            cuts += u64::from(proxy.heal());
            let (ended, found) = held(&whole, session).unwrap();
            assert_eq!((ended.epoch, found), (1, texts), "{way:?} {seed}");
        }
    }
    println!("{cuts} of {} were cut", 2 * CUTS);
    assert!(cuts > CUTS / 2, "{cuts}");
}

#[test]
fn wherever_a_reading_is_cut_each_record_is_handed_on_once() {
    let Some(server) = shared() else { return };
    let (proxy, url, session) = (Proxy::new(&server), server.url(), Uuid::from_u128(5));
    let whole = replicator(&url, "whole", retries());
    let texts: Vec<String> = (0..3_000).map(|n| format!("{n} {}", "x".repeat(100))).collect();
    for half in texts.chunks(1_500) {
        let (next, epoch) = claim(&whole, session).unwrap();
        append(&whole, session, epoch, next, &half.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    }
    let place = open_place_with(&proxy.url(&url), retries(), &PlaceEnvironment::new()).unwrap();
    let mut cuts = 0;
    for seed in 0..40 {
        let mut draw = ChaCha8Rng::seed_from_u64(seed);
        proxy.cut_after(Way::FromServer, i64::from(draw.next_u32() % 600_000), false);
        let (mut claims, mut found) = (Vec::new(), Vec::new());
        let mut each = |met: PlaceItem<'_>| match met {
            PlaceItem::Claim { epoch, .. } => claims.push((epoch, found.len())),
            PlaceItem::Record(record) => found.push(String::from_utf8(record.body.to_vec()).unwrap()),
            _ => {}
        };
        place.reader(session).unwrap().read_on(&mut each).unwrap();
        assert_eq!(claims, [(1, 0), (2, 1_500)]);
        assert!(found == texts, "{seed}");
        cuts += u64::from(proxy.heal());
    }
    assert!(cuts > 20, "{cuts}");
}

#[test]
fn an_append_whose_answers_are_lost_stays_in_doubt_and_is_settled_by_the_next_call() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(3));
    let (mut in_doubt, mut next) = (0, 0);
    for seed in 0..60 {
        // With a new replicator, because the answer to a notification of an earlier append would
        // count as well.
        let proxy = Proxy::new(&server);
        let cut = replicator(&proxy.url(&url), "cut", hasty());
        let (end, epoch) = claim(&cut, session).unwrap();
        assert_eq!(end, next);
        // The whole answer has less than 300 bytes.
        proxy.cut_after(Way::FromServer, seed * 5, true);
        let appended = append(&cut, session, epoch, next, &[&next.to_string()]);
        proxy.heal();
        next += 1;
        match appended {
            Ok(()) => {}
            Err(ReplicaError::Unknown { .. }) => {
                in_doubt += 1;
                // The record in doubt is written before the next one, once.
                append(&cut, session, epoch, next, &[&next.to_string()]).unwrap();
                next += 1;
            }
            Err(other) => panic!("{seed}: {other:?}"),
        }
    }
    assert!(in_doubt > 50, "{in_doubt}");
    let texts = held(&replicator(&url, "whole", retries()), session).unwrap().1;
    assert_eq!(texts, (0..next).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn an_append_that_was_committed_in_front_of_anothers_claim_is_acknowledged_and_the_next_is_fenced() {
    let Some(server) = shared() else { return };
    let (proxy, url) = (Proxy::new(&server), server.url());
    let session = Uuid::from_u128(4);
    // Not by `one`, because the answer to the notification of this append could take the cut.
    let before = replicator(&url, "before", retries());
    let (_, epoch) = claim(&before, session).unwrap();
    append(&before, session, epoch, 0, &["a"]).unwrap();
    // The other worker claims after the commit and before the reading that confirms it.
    let one = replicator(&proxy.url(&url), "one", retries());
    let (_, epoch) = claim(&one, session).unwrap();
    let two = replicator(&url, "two", retries());
    let schema = schema_of(&url);
    // The answer to the append is lost while the other worker waits for its row.
    server.sql(&format!(
        "CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NEW; END';
         CREATE TRIGGER slow BEFORE INSERT ON {schema}.records EXECUTE FUNCTION {schema}.slow()"
    ));
    let appended = std::thread::scope(|scope| {
        let lock = server.holding("SELECT pg_advisory_lock(77)");
        let appending = scope.spawn(|| append(&one, session, epoch, 1, &["b"]));
        server.wait_for_lock();
        proxy.cut_after(Way::FromServer, 0, false);
        let way_back = proxy.hold();
        drop(lock);
        server.sql(&format!("DROP TRIGGER slow ON {schema}.records"));
        // The append is committed by now: the trigger's table could be changed.
        assert_eq!(claim(&two, session).unwrap(), (2, 3));
        drop(way_back);
        appending.join().unwrap()
    });
    assert_eq!(appended, Ok(()));
    assert!(proxy.heal(), "the answer was not lost");
    let fenced = append(&one, session, epoch, 2, &["c"]);
    assert!(matches!(fenced, Err(ReplicaError::Fenced { epoch: 3, .. })), "{fenced:?}");
    assert_eq!(held(&two, session).unwrap().1, ["a", "b"]);
    one.release(session, epoch);
}
