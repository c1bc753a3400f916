//! Shows that the database also drops the bodies that a compaction dropped.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog::inspect::LogReader;
use foldlog::replication::Replication;
use foldlog::{CompactOptions, Error, Store, StoreOptions};
use foldlog_remote::{CollectOptions, CollectReport, LeasePacer, SteadyPacing, open_place};
use uuid::Uuid;

use crate::lineages::{types, write};
use crate::server::{replicator, retries, schema_of, shared};

fn store(url: &str, directory: &Path, name: &str) -> Store {
    let replication = Some(Replication::new(Arc::new(replicator(url, name, retries()))));
    Store::open_with(directory, StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}

fn collect(url: &str, id: Uuid, dry_run: bool) -> CollectReport {
    let mut options = CollectOptions::default();
    options.dry_run = dry_run;
    open_place(url, retries()).unwrap().collect(id, options).unwrap().unwrap()
}

#[test]
fn bodies_that_a_compaction_dropped_go_from_the_database_and_the_links_stay() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let schema = schema_of(&url);
    let directories = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let [one, two, three, older] = &directories;
    let here = store(&url, one.path(), "one");
    let session = here.create(&types()).unwrap();
    let id = session.id();
    write(&session, 0..150);
    session.close().unwrap();
    crate::directories::copy(one.path(), older.path());
    let count = |what: &str| -> i64 {
        let count = format!("SELECT count(*) FROM {schema}.records WHERE session = '{id}' AND {what}");
        server.query(&count)[0].get(0)
    };
    let bodies = "position('and so on. and so on.'::bytea in body) > 0";
    let before = count(bodies);
    assert!(before >= 150, "{before}");
    assert_eq!(collect(&url, id, false).dropped, 0, "nobody has said that anything was dropped");
    let compacted = here.compact(id, &CompactOptions::default()).unwrap();
    assert!(compacted.dropped > 100, "{compacted:?}");
    let would = collect(&url, id, true);
    assert_eq!((would.dropped, would.waiting, count(bodies)), (compacted.dropped, 0, before));
    let report = collect(&url, id, false);
    assert_eq!(report, would);
    let left = count(bodies);
    assert!(left <= before - 100, "{left} of {before}");
    assert_eq!(collect(&url, id, false).dropped, 0);

    // The log stays readable, also for a worker that still has the bodies, and that worker
    // continues.
    let pulled = store(&url, two.path(), "two");
    pulled.pull(id).unwrap();
    let (own, made) = (here.session_dir(id), pulled.session_dir(id));
    let (own, made) = (LogReader::open(own).unwrap(), LogReader::open(made).unwrap());
    let last = own.last_position();
    assert_eq!(
        (made.last_position(), made.digest_through(last).unwrap()),
        (last, own.digest_through(last).unwrap())
    );
    for position in 0..=last.get() {
        match (own.state_reader_at(position), made.state_reader_at(position)) {
            (Ok(own), Ok(made)) => assert_eq!(own.digest().unwrap(), made.digest().unwrap(), "at {position}"),
            (Err(Error::Compacted { .. }), Err(Error::Compacted { .. }) | Ok(_)) => {}
            (own, made) => panic!("at {position}: {:?}, {:?}", own.err(), made.err()),
        }
    }
    let session = store(&url, older.path(), "one").open_session(id, &types()).unwrap();
    assert!(matches!(session.rollback_to(50_u64), Err(Error::Compacted { .. })));
    write(&session, 150..160);
    session.close().unwrap();
    let session = store(&url, three.path(), "three").take_over(id, &types()).unwrap();
    write(&session, 160..170);
    session.close().unwrap();

    // The checks cover a body's placeholder as they cover a body.
    let row = "kind = 18 ORDER BY sequence OFFSET 7 LIMIT 1";
    let row = format!("sequence = (SELECT sequence FROM {schema}.records WHERE session = '{id}' AND {row})");
    for damage in [
        "body = set_byte(body, 5, 255)",
        "body = body || 'x'",
        "dropped = NULL",
        "dropped = sha256('')",
        "kind = 3",
        "time_us = time_us + 1",
    ] {
        let table = format!("{schema}.records");
        server.sql(&format!(
            "CREATE TABLE {schema}.kept AS SELECT * FROM {table} WHERE session = '{id}' AND {row}"
        ));
        server.sql(&format!("UPDATE {table} SET {damage} WHERE session = '{id}' AND {row}"));
        let place = open_place(&url, retries()).unwrap();
        let text = place.reader(id).unwrap().read_on(&mut |_| {}).unwrap_err().to_string();
        assert!(text.contains("is damaged in the database"), "{damage}: {text}");
        server.sql(&format!(
            "UPDATE {table} r SET body = k.body, dropped = k.dropped, kind = k.kind, time_us = k.time_us \
             FROM {schema}.kept k WHERE r.session = k.session AND r.sequence = k.sequence"
        ));
        server.sql(&format!("DROP TABLE {schema}.kept"));
        place.reader(id).unwrap().read_on(&mut |_| {}).unwrap();
    }
}

/// A collection had read the log before a newer compaction was recorded, and changed rows after a
/// collection that had read it. Its statement of where the slices are known then accompanied bodies
/// that were already removed.
#[test]
fn a_collection_that_a_newer_compaction_has_overtaken_drops_nothing() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let directory = tempfile::tempdir().unwrap();
    let here = store(&url, directory.path(), "one");
    let session = here.create(&types()).unwrap();
    let id = session.id();
    write(&session, 0..150);
    session.close().unwrap();
    here.compact(id, &CompactOptions::default()).unwrap();
    // It has read the log, and waits for the lock of another collection.
    let key = i64::from_le_bytes(*id.as_bytes().first_chunk().unwrap());
    let other = server.administrator();
    other.run(&format!("SELECT pg_advisory_lock({key})"));
    let overtaken = std::thread::spawn({
        let url = url.clone();
        move || collect(&url, id, false)
    });
    let waits = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
         AND (classid::bigint << 32 | objid::bigint) = {key}"
    );
    let pacing = SteadyPacing::new();
    while server.query(&waits)[0].get::<_, i64>(0) == 0 {
        assert!(pacing.pause(Duration::from_millis(20)));
    }
    let session = here.open_session(id, &types()).unwrap();
    write(&session, 150..300);
    session.close().unwrap();
    let compacted = here.compact(id, &CompactOptions::default()).unwrap();
    assert!(compacted.dropped > 100, "{compacted:?}");
    other.run(&format!("SELECT pg_advisory_unlock({key})"));
    let overtaken = overtaken.join().unwrap();
    assert!(overtaken.dropped == 0 && overtaken.waiting > 100, "{overtaken:?}");
    assert!(collect(&url, id, false).dropped > 200);
}
