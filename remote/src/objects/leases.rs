//! Leases in a bucket: objects that are created and removed, and never changed.
//!
//! A renewal is an object with the next number beneath the worker's own directory. Each renewal
//! removes the one two numbers before it, so a killed worker leaves two. For each session, the
//! object with the number of the epoch names the worker's lease:
//!
//! ```text
//! foldlog lease 1
//! {worker}
//! {length in milliseconds}
//! {name, up to the end}
//! ```
//!
//! It is put after the claim, and removed when the session is closed, or after the next claim. A
//! bucket that permits no removal accumulates them all. A session that was closed there then counts
//! as its worker's while the worker lives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use object_store::PutPayload;
use object_store::path::Path;
use uuid::Uuid;

use super::bucket::{Bucket, PutOutcome};
use crate::chunk::NOTE_BYTES_MAX;
use crate::error::{Error, Result};
use crate::lease::renewal::Leases;
use crate::lease::{SessionLease, check_length};

const FIRST_LINE: &str = "foldlog lease 1";

/// More than such an object has.
const LINK_BYTES_MAX: usize = NOTE_BYTES_MAX + 256;

/// Number of renewals that remain.
const KEPT: u64 = 2;

/// Maximum number of lookups of a session whose lease changes in the meantime.
const LOOKS_MAX: u32 = 3;

const WHAT: &str = "read a session's lease";

/// Writes the lease of one worker into a bucket.
#[derive(Debug)]
pub struct ObjectLeases {
    bucket: Bucket,
    worker: Uuid,
    link: String,
    /// Number of the next renewal.
    next: AtomicU64,
}

impl ObjectLeases {
    pub(crate) fn new(bucket: Bucket, name: &str, length: Duration) -> ObjectLeases {
        let worker = Uuid::new_v4();
        let link = format!("{FIRST_LINE}\n{worker}\n{}\n{name}", length.as_millis());
        ObjectLeases { bucket, worker, link, next: AtomicU64::new(1) }
    }

    async fn remove_renewal(&self, number: u64) {
        let key = renewals(&self.bucket, self.worker).join(format!("{number:020}"));
        self.bucket.remove(&key).await;
    }
}

fn links(bucket: &Bucket, session: Uuid) -> Path {
    bucket.key_of(&["sessions", &session.to_string(), "lease"])
}

fn link_key(bucket: &Bucket, session: Uuid, epoch: u64) -> Path {
    links(bucket, session).join(format!("{epoch:020}"))
}

fn renewals(bucket: &Bucket, worker: Uuid) -> Path {
    bucket.key_of(&["leases", &worker.to_string()])
}

impl Leases for ObjectLeases {
    async fn renew(&self) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let key = renewals(&self.bucket, self.worker).join(format!("{number:020}"));
        self.bucket.put_once(&key, &PutPayload::new()).await;
        if let Some(old) = number.checked_sub(KEPT).filter(|old| *old > 0) {
            self.remove_renewal(old).await;
        }
    }

    async fn link(&self, session: Uuid, epoch: u64) -> bool {
        let payload = PutPayload::from(self.link.clone());
        let put = self.bucket.put_once(&link_key(&self.bucket, session, epoch), &payload).await;
        // No other worker claimed that epoch.
        let is_linked = !matches!(put, PutOutcome::Failed(_));
        if let Some(before) = epoch.checked_sub(1).filter(|before| is_linked && *before > 0) {
            self.bucket.remove(&link_key(&self.bucket, session, before)).await;
        }
        is_linked
    }

    async fn unlink(&self, session: Uuid, epoch: u64) {
        self.bucket.remove(&link_key(&self.bucket, session, epoch)).await;
    }

    async fn end(&self) {
        let next = self.next.load(Ordering::SeqCst);
        for number in next.saturating_sub(KEPT).max(1)..next {
            self.remove_renewal(number).await;
        }
    }
}

/// Returns the lease under which a session was last claimed. An object that does not have the form
/// of a worker's is ignored.
pub(crate) async fn lease(bucket: &Bucket, session: Uuid) -> Result<Option<SessionLease>> {
    for _ in 0..LOOKS_MAX {
        let Some((epoch, _)) = bucket.greatest(&links(bucket, session), WHAT).await? else { return Ok(None) };
        let link = match bucket.get(&link_key(bucket, session, epoch), LINK_BYTES_MAX, WHAT).await {
            // No worker writes such an object.
            Err(Error::TooLarge { .. }) => return Ok(None),
            link => link?,
        };
        // Removed in the meantime: the session was closed, or claimed by another worker.
        let Some(link) = link else { continue };
        let Some((worker, length, name)) = parse(&link) else { return Ok(None) };
        let renewal = bucket.greatest(&renewals(bucket, worker), WHAT).await?;
        let (renewal, renewed_us) = renewal.map_or((0, None), |(number, put_us)| (number, Some(put_us)));
        return Ok(Some(SessionLease { epoch, worker, name, length, renewal, renewed_us, left: None }));
    }
    Ok(None)
}

fn parse(link: &[u8]) -> Option<(Uuid, Duration, String)> {
    let mut lines = std::str::from_utf8(link).ok()?.splitn(4, '\n');
    lines.next().filter(|first| *first == FIRST_LINE)?;
    let worker = lines.next()?.parse().ok()?;
    let length = check_length(Duration::from_millis(lines.next()?.parse().ok()?)).ok()?;
    Some((worker, length, lines.next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_lite::StreamExt;
    use object_store::ObjectStore;
    use object_store::memory::InMemory;
    use tokio::time;

    use super::*;
    use crate::lease::renewal::LeaseRenewer;
    use crate::lease::{LeaseStanding, LeaseWatch};
    use crate::retries::Retries;

    const SESSION: Uuid = Uuid::from_u128(7);
    const OTHER: Uuid = Uuid::from_u128(8);
    const LENGTH: Duration = Duration::from_secs(30);

    struct Place {
        store: Arc<InMemory>,
        bucket: Bucket,
        begun: time::Instant,
    }

    impl Place {
        fn new() -> Place {
            let store = Arc::new(InMemory::new());
            let bucket = Bucket::new(Arc::clone(&store) as _, "team", Retries::default()).expect("a place");
            Place { store, bucket, begun: time::Instant::now() }
        }

        fn keeper(&self, name: &str) -> Arc<LeaseRenewer<ObjectLeases>> {
            LeaseRenewer::new(ObjectLeases::new(self.bucket.clone(), name, LENGTH), LENGTH)
        }

        async fn lease(&self) -> Option<SessionLease> {
            lease(&self.bucket, SESSION).await.unwrap()
        }

        /// Looks at the session's lease now.
        async fn look(&self, watch: &mut LeaseWatch) -> LeaseStanding {
            let now = self.begun.elapsed();
            watch.look(self.lease().await.as_ref(), now, now)
        }

        async fn keys(&self) -> Vec<String> {
            let listed: Vec<_> = self.store.list(None).collect().await;
            listed.into_iter().map(|found| found.unwrap().location.to_string()).collect()
        }
    }

    /// Runs a future on a paused clock: time passes once nothing else can happen.
    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn a_worker_renews_for_as_long_as_it_has_sessions_and_one_that_is_gone_runs_out() {
        run(async {
            let place = Place::new();
            let keeper = place.keeper("one");
            keeper.hold(SESSION, 1).await;
            keeper.hold(OTHER, 4).await;
            let mut watch = LeaseWatch::new();
            assert_eq!(place.look(&mut watch).await, LeaseStanding::Watched { left: LENGTH });
            for _ in 0..100 {
                time::sleep(LENGTH / 2).await;
                assert!(matches!(place.look(&mut watch).await, LeaseStanding::Alive { .. }));
            }
            // One lease for both sessions, of which two renewals remain.
            assert_eq!(place.keys().await.iter().filter(|key| key.contains("leases")).count(), 2);
            // Another worker has claimed one of them: the lease is renewed for the other one.
            keeper.lose(OTHER, 4);
            time::sleep(LENGTH).await;
            assert!(matches!(place.look(&mut watch).await, LeaseStanding::Alive { .. }));
            // The process has ended.
            drop(keeper);
            place.look(&mut watch).await;
            time::sleep(LENGTH - Duration::from_millis(1)).await;
            let left = Duration::from_millis(1);
            assert_eq!(place.look(&mut watch).await, LeaseStanding::Alive { left });
            time::sleep(left).await;
            assert_eq!(place.look(&mut watch).await, LeaseStanding::RanOut);
        });
    }

    #[test]
    fn a_session_that_is_closed_or_fenced_is_renewed_no_more_and_nothing_stays() {
        run(async {
            let place = Place::new();
            let (one, two) = (place.keeper("one"), place.keeper("two"));
            one.hold(SESSION, 1).await;
            two.hold(SESSION, 2).await;
            let lease = place.lease().await.unwrap();
            assert_eq!((lease.epoch, lease.name.as_str(), lease.length), (2, "two", LENGTH));
            // The fenced one learns of it and releases its own lease, but not the other's.
            one.lose(SESSION, 1);
            one.release(SESSION, 1).await;
            assert_eq!(place.lease().await.map(|lease| lease.name), Some("two".to_owned()));
            two.release(SESSION, 2).await;
            assert_eq!(place.look(&mut LeaseWatch::new()).await, LeaseStanding::None);
            // Its renewals are removed too; the fenced one's remain until its timer runs.
            let keys = place.keys().await;
            assert!(keys.len() == 1 && keys[0].contains("leases/"), "{keys:?}");
            // It starts again with the next session, before and after the timer's next round.
            two.hold(SESSION, 3).await;
            assert!(place.lease().await.is_some_and(|lease| lease.renewal > 0));
            two.release(SESSION, 3).await;
            time::sleep(LENGTH).await;
            assert!(place.keys().await.is_empty(), "{:?}", place.keys().await);
            two.hold(SESSION, 4).await;
            let mut watch = LeaseWatch::new();
            place.look(&mut watch).await;
            time::sleep(LENGTH).await;
            assert!(matches!(place.look(&mut watch).await, LeaseStanding::Alive { .. }));
        });
    }

    #[test]
    fn what_is_no_lease_says_nothing() {
        run(async {
            let place = Place::new();
            let worker = Uuid::from_u128(9);
            let sound = format!("foldlog lease 1\n{worker}\n1000\nname\nof two lines");
            assert_eq!(parse(sound.as_bytes()).unwrap().2, "name\nof two lines");
            for wrong in [
                String::new(),
                sound.replace("lease 1", "lease 2"),
                sound.replace("1000", "99"),
                sound.replace("1000", "18446744073709551615"),
                sound.replace(&worker.to_string(), "nobody"),
                format!("foldlog lease 1\n{worker}"),
            ] {
                assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
            }
            for (epoch, wrong) in [(3, "something else".to_owned()), (4, "x".repeat(LINK_BYTES_MAX + 1))] {
                let put = PutPayload::from(wrong);
                place.bucket.put_once(&link_key(&place.bucket, SESSION, epoch), &put).await;
                assert_eq!(place.lease().await, None, "{epoch}");
            }
        });
    }
}
