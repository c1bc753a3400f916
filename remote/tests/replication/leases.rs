//! Shows when a session may be taken over: the state of leases, and who waits for how long. Leases
//! do not decide whether a takeover is safe.

use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::Replication;
use foldlog::{Error, Session, Store, StoreOptions};
use foldlog_remote::{
    LEASE_LENGTH_MAX, LeasePacer, LeaseWait, LeaseWaitOutcome, Place, Retries, SessionLease, SteadyPacing,
    open_place, wait_for_lease,
};

use crate::notes::{note, types};
use crate::pacing::NoTime;

/// Longer than a test takes, so that nothing is renewed meanwhile.
const LONG: Duration = LEASE_LENGTH_MAX;

/// A place in a directory, and its workers.
struct World {
    directory: tempfile::TempDir,
    place: Arc<dyn Place>,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("bucket")).unwrap();
        let url = format!("file://{}", directory.path().join("bucket").display());
        World { place: open_place(&url, Retries::default()).unwrap(), directory }
    }

    fn worker(&self, name: &str, lease: Option<Duration>) -> Store {
        let replication = Some(Replication::new(self.place.replicator_with(name, lease).unwrap()));
        let options = StoreOptions { replication, ..StoreOptions::default() };
        Store::open_with(self.directory.path().join(name), options).unwrap()
    }

    fn lease(&self, session: &Session) -> Option<SessionLease> {
        self.place.lease(session.id()).unwrap()
    }

    fn wait(&self, session: &Session, at_most: Duration, pacing: &dyn LeasePacer) -> LeaseWaitOutcome {
        wait_for_lease(self.place.as_ref(), session.id(), &LeaseWait::new(at_most, pacing)).unwrap()
    }
}

#[test]
fn a_session_is_free_once_its_lease_was_not_renewed_for_as_long_as_it_lasts() {
    let world = World::new();
    let session = world.worker("one", Some(LONG)).create(&types()).unwrap();
    let lease = world.lease(&session).unwrap();
    assert_eq!((lease.epoch, lease.name.as_str(), lease.length, lease.left), (1, "one", LONG, None));
    assert!(lease.renewed_us.is_some());

    let pacing = NoTime::new();
    let waited = world.wait(&session, LONG * 2, &pacing);
    assert_eq!(waited, LeaseWaitOutcome::Free { lease: Some(lease.clone()) });
    assert_eq!(pacing.now(), LONG, "neither earlier nor later");

    // A host may give up earlier, which does not mean that the worker lives.
    let pacing = NoTime::new();
    let kept = LeaseWaitOutcome::Kept { lease, lives: false };
    assert_eq!(world.wait(&session, LONG - Duration::from_millis(1), &pacing), kept);
    assert_eq!(pacing.now(), LONG - Duration::from_millis(1));
    assert_eq!(
        world.wait(&session, LONG, &NoTime::and_then(|now| now < LONG / 2)),
        LeaseWaitOutcome::Stopped
    );
    let stopped = SteadyPacing::new();
    stopped.stop();
    assert_eq!(world.wait(&session, LONG, &stopped), LeaseWaitOutcome::Stopped);
}

#[test]
fn nobody_waits_for_a_session_that_was_closed_or_whose_worker_keeps_no_lease() {
    let world = World::new();
    let (closed, leaseless) = (world.worker("one", Some(LONG)), world.worker("two", None));
    let session = closed.create(&types()).unwrap();
    let id = session.id();
    assert!(world.lease(&session).is_some());
    session.close().unwrap();
    let other = leaseless.create(&types()).unwrap();
    for session in [id, other.id()] {
        let pacing = NoTime::new();
        let waited = wait_for_lease(world.place.as_ref(), session, &LeaseWait::new(LONG, &pacing)).unwrap();
        assert_eq!(waited, LeaseWaitOutcome::Free { lease: None });
        assert_eq!(pacing.now(), Duration::ZERO);
    }
    let taken = world.worker("three", Some(LONG)).take_over(id, &types()).unwrap();
    assert_eq!(world.lease(&taken).map(|lease| (lease.epoch, lease.name)), Some((2, "three".to_owned())));
}

#[test]
fn a_worker_that_lives_is_known_to_as_soon_as_it_renews() {
    let world = World::new();
    let session = world.worker("one", Some(Duration::from_secs(3))).create(&types()).unwrap();
    // Uses the machine's clock: the wait ends with the renewal.
    let pacing = SteadyPacing::new();
    let wait = LeaseWait::new(LONG, &pacing).until_it_lives();
    let waited = wait_for_lease(world.place.as_ref(), session.id(), &wait).unwrap();
    let LeaseWaitOutcome::Kept { lease, lives: true } = waited else { panic!("{waited:?}") };
    assert!(lease.renewal > 1 && lease.name == "one", "{lease:?}");
    // Simulates the death of the process: nothing is renewed, and nothing released.
    std::mem::forget(session);
}

#[test]
fn a_worker_that_is_paused_while_its_lease_runs_out_is_fenced_and_one_whose_lease_lies_as_well() {
    for waits in [true, false] {
        let world = World::new();
        let old = world.worker("one", Some(LONG)).create(&types()).unwrap();
        old.dispatch(note("held")).unwrap();
        old.sync().unwrap();
        if waits {
            let waited = world.wait(&old, LONG, &NoTime::new());
            assert!(matches!(waited, LeaseWaitOutcome::Free { lease: Some(_) }), "{waited:?}");
        }
        // The old worker still lives. The takeover's safety does not depend on the lease.
        let new = world.worker("two", Some(LONG)).take_over(old.id(), &types()).unwrap();
        let lease = world.lease(&new).unwrap();
        assert_eq!((lease.epoch, lease.name.as_str()), (2, "two"));
        old.dispatch(note("too late")).unwrap();
        assert!(matches!(old.sync(), Err(Error::Fenced { epoch: 2, .. })));
        drop(old);
        // The fenced worker releases only its own lease.
        assert_eq!(world.lease(&new), Some(lease));
        new.dispatch(note("went on")).unwrap();
        new.close().unwrap();
    }
}

#[test]
fn a_claim_while_somebody_waits_begins_the_wait_anew() {
    let world = World::new();
    let (one, two) = (world.worker("one", Some(LONG)), world.worker("two", Some(LONG)));
    let session = one.create(&types()).unwrap();
    session.sync().unwrap();
    let taken = std::sync::Mutex::new(None);
    let id = session.id();
    let pacing = NoTime::and_then(move |now| {
        let mut taken = taken.lock().unwrap();
        if now > LONG / 2 && taken.is_none() {
            *taken = Some(two.take_over(id, &types()).unwrap());
        }
        true
    });
    let waited = world.wait(&session, LONG * 3, &pacing);
    assert!(
        matches!(&waited, LeaseWaitOutcome::Free { lease: Some(lease) } if lease.epoch == 2 && lease.name == "two"),
        "{waited:?}"
    );
    assert!(pacing.now() > LONG + LONG / 2, "{:?}", pacing.now());
}

#[test]
fn a_lease_lasts_from_a_tenth_of_a_second_to_an_hour() {
    let world = World::new();
    for wrong in [Duration::ZERO, Duration::from_millis(99), LONG + Duration::from_millis(1), Duration::MAX] {
        let refused = world.place.replicator_with("one", Some(wrong)).unwrap_err();
        assert!(refused.to_string().contains("100 ms to one hour"), "{refused}");
    }
}
