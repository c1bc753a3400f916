//! Shows when a session in a database may be taken over: the server decides by the clock that dated
//! the renewals.

use std::time::Duration;

use foldlog::replication::Replication;
use foldlog::{Error, Store, StoreOptions};
use foldlog_remote::{LeasePacer, LeaseWait, LeaseWaitOutcome, Place, SteadyPacing, wait_for_lease};

use crate::notes::{note, types};
use crate::pacing::NoTime;
use crate::places::place;
use crate::server::{schema_of, shared};

/// Longer than a test takes, so that nothing is renewed meanwhile.
const LONG: Duration = Duration::from_secs(3_600);

fn worker(directory: &tempfile::TempDir, place: &dyn Place, name: &str, lease: Duration) -> Store {
    let replication = Some(Replication::new(place.replicator_with(name, Some(lease)).unwrap()));
    Store::open_with(directory.path(), StoreOptions { replication, ..StoreOptions::default() }).unwrap()
}

#[test]
fn a_lease_is_alive_until_the_server_says_otherwise_and_nobody_has_to_watch_it() {
    let Some(server) = shared() else { return };
    let (url, [one, two]) = (server.url(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let (place, schema) = (place(&url), schema_of(&url));
    let old = worker(&one, place.as_ref(), "one", LONG).create(&types()).unwrap();
    old.sync().unwrap();
    let id = old.id();
    let lease = place.lease(id).unwrap().unwrap();
    assert_eq!((lease.epoch, lease.name.as_str(), lease.length), (1, "one", LONG));
    let pacing = NoTime::new();
    let wait = |at_most| wait_for_lease(place.as_ref(), id, &LeaseWait::new(at_most, &pacing)).unwrap();
    let kept = wait(Duration::ZERO);
    assert!(matches!(&kept, LeaseWaitOutcome::Kept { lives: true, .. }), "{kept:?}");
    let until_it_lives = LeaseWait::new(LONG, &pacing).until_it_lives();
    let kept = wait_for_lease(place.as_ref(), id, &until_it_lives).unwrap();
    assert!(matches!(&kept, LeaseWaitOutcome::Kept { lives: true, .. }), "{kept:?}");
    assert_eq!(pacing.now(), Duration::ZERO);

    // Advances the server's clock by an hour.
    server.sql(&format!("UPDATE {schema}.leases SET renewed = renewed - interval '1 hour'"));
    let free = wait(LONG);
    assert!(
        matches!(&free, LeaseWaitOutcome::Free { lease: Some(lease) } if lease.left == Some(Duration::ZERO)),
        "{free:?}"
    );
    assert_eq!(pacing.now(), Duration::ZERO);
    let new = worker(&two, place.as_ref(), "two", LONG).take_over(id, &types()).unwrap();
    let lease = place.lease(id).unwrap().unwrap();
    assert_eq!((lease.epoch, lease.name.as_str()), (2, "two"));
    old.dispatch(note("too late")).unwrap();
    assert!(matches!(old.sync(), Err(Error::Fenced { epoch: 2, .. })));
    drop(old);
    assert!(place.lease(id).unwrap().is_some(), "what the fenced one leaves is its own");
    new.close().unwrap();
    assert_eq!(wait(LONG), LeaseWaitOutcome::Free { lease: None });
    // Setting a clock back extends no lease.
    let third = worker(&one, place.as_ref(), "three", LONG).create(&types()).unwrap();
    server.sql(&format!("UPDATE {schema}.leases SET renewed = renewed + interval '1 year'"));
    assert_eq!(place.lease(third.id()).unwrap().unwrap().left, Some(LONG));
}

#[test]
fn a_worker_renews_its_lease_while_it_has_sessions() {
    let Some(server) = shared() else { return };
    let (place, directory) = (place(&server.url()), tempfile::tempdir().unwrap());
    let session =
        worker(&directory, place.as_ref(), "one", Duration::from_millis(300)).create(&types()).unwrap();
    let renewal = || place.lease(session.id()).unwrap().unwrap().renewal;
    let (first, renews) = (renewal(), SteadyPacing::new());
    while renewal() == first {
        assert!(renews.pause(Duration::from_millis(20)));
    }
}

#[test]
fn tables_without_leases_get_them_with_the_next_claim() {
    let Some(server) = shared() else { return };
    let (url, directory) = (server.url(), tempfile::tempdir().unwrap());
    let (place, schema) = (place(&url), schema_of(&url));
    let store = || worker(&directory, place.as_ref(), "one", LONG);
    let session = store().create(&types()).unwrap();
    session.dispatch(note("of the older version")).unwrap();
    let id = session.id();
    session.close().unwrap();
    server.sql(&format!(
        "DROP TABLE {schema}.leases; ALTER TABLE {schema}.sessions DROP COLUMN lease; \
         ALTER TABLE {schema}.records DROP COLUMN dropped; ALTER TABLE {schema}.objects DROP COLUMN withdrawn; \
         UPDATE {schema}.version SET version = 1"
    ));
    assert_eq!(place.lease(id).unwrap(), None);
    assert_eq!(place.read_standing(id).unwrap().unwrap().epoch, 1);
    let session = store().open_session(id, &types()).unwrap();
    assert_eq!(place.lease(id).unwrap().map(|lease| lease.epoch), Some(2));
    session.close().unwrap();
}
