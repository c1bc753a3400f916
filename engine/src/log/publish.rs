//! Sharing one sync among all threads that wait on a session.
//!
//! A thread that needs records below `target` durable calls [`SyncGate::wait`]. One of the waiting
//! threads leads: it runs the sync for everything written so far, outside the gate's lock. The
//! others wait. Either its result is sufficient for them, or one of them leads the next sync. The
//! gate remembers a failure permanently: a sync is never retried. A sync that could not begin is
//! not a failure.
//!
//! The gate is generic over the synchronization primitives, so that a model checker runs the same
//! lines (`publish/model.rs`).
//!
//! # Invariants
//!
//! 1. `synced` never decreases. It is raised only after a sync that began when everything below it
//!    had been written.
//! 2. At most one sync runs at a time.
//! 3. After a failed sync no call succeeds for a target that was not reached before.

use std::fmt::Debug;
use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog_codec::SequenceNumber;

/// Provides the synchronization primitives that the gate uses.
pub(crate) trait Primitives {
    type Mutex<T: Send>: Send + Sync;
    type Guard<'a, T: Send + 'a>: DerefMut<Target = T>
    where
        Self: 'a;
    type Condvar: Send + Sync;
    type Word: Send + Sync;

    fn mutex<T: Send>(value: T) -> Self::Mutex<T>;
    fn condvar() -> Self::Condvar;
    fn lock<T: Send>(mutex: &Self::Mutex<T>) -> Self::Guard<'_, T>;
    fn wait<'a, T: Send>(condvar: &Self::Condvar, guard: Self::Guard<'a, T>) -> Self::Guard<'a, T>;
    fn notify_all(condvar: &Self::Condvar);
    fn word(value: u64) -> Self::Word;
    /// Reads a word. The caller then sees everything that was written before the word was set to
    /// this value.
    fn get(word: &Self::Word) -> u64;
    fn set(word: &Self::Word, value: u64);
}

#[derive(Debug)]
pub(crate) struct ParkingLot;

impl Primitives for ParkingLot {
    type Mutex<T: Send> = parking_lot::Mutex<T>;
    type Guard<'a, T: Send + 'a> = parking_lot::MutexGuard<'a, T>;
    type Condvar = parking_lot::Condvar;
    type Word = AtomicU64;

    fn mutex<T: Send>(value: T) -> Self::Mutex<T> {
        parking_lot::Mutex::new(value)
    }

    fn condvar() -> Self::Condvar {
        parking_lot::Condvar::new()
    }

    fn lock<T: Send>(mutex: &Self::Mutex<T>) -> Self::Guard<'_, T> {
        mutex.lock()
    }

    fn wait<'a, T: Send>(condvar: &Self::Condvar, mut guard: Self::Guard<'a, T>) -> Self::Guard<'a, T> {
        condvar.wait(&mut guard);
        guard
    }

    fn notify_all(condvar: &Self::Condvar) {
        condvar.notify_all();
    }

    fn word(value: u64) -> Self::Word {
        AtomicU64::new(value)
    }

    fn get(word: &Self::Word) -> u64 {
        word.load(Ordering::Acquire)
    }

    fn set(word: &Self::Word, value: u64) {
        word.store(value, Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) enum NotSynced<E> {
    /// A sync failed: the state of the data that it covered is unknown.
    Failed(Arc<E>),
    /// A sync found a resource missing before any failure; a later sync may cover the same data.
    Refused(Arc<E>),
}

#[derive(Debug)]
struct State<E> {
    synced: SequenceNumber,
    running: bool,
    failed: Option<Arc<E>>,
}

/// Shares syncs among threads; see the module docs.
pub(crate) struct SyncGate<E: Send + Sync, P: Primitives = ParkingLot> {
    state: P::Mutex<State<E>>,
    changed: P::Condvar,
    /// Copies of `state.synced` and of the existence of a failure, for callers that only read. Both
    /// are written under the lock.
    synced: P::Word,
    failed: P::Word,
}

impl<E: Send + Sync + Debug, P: Primitives> Debug for SyncGate<E, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = P::lock(&self.state);
        f.debug_struct("SyncGate").field("state", &*state).finish()
    }
}

impl<E: Send + Sync, P: Primitives> SyncGate<E, P> {
    /// Creates a gate with everything below `synced` durable.
    pub(crate) fn new(synced: SequenceNumber) -> SyncGate<E, P> {
        SyncGate {
            state: P::mutex(State { synced, running: false, failed: None }),
            changed: P::condvar(),
            synced: P::word(synced.get()),
            failed: P::word(0),
        }
    }

    /// Returns the sequence number below which everything is durable.
    pub(crate) fn synced_end(&self) -> SequenceNumber {
        P::get(&self.synced).into()
    }

    /// Records that a sync other than those of [`wait`](SyncGate::wait) made everything below
    /// `synced` durable.
    pub(crate) fn raise(&self, synced: SequenceNumber) {
        if synced <= self.synced_end() {
            return;
        }
        let mut state = P::lock(&self.state);
        if synced > state.synced {
            state.synced = synced;
            P::set(&self.synced, synced.get());
            P::notify_all(&self.changed);
        }
    }

    /// Records that a write failed, so that no later sync can guarantee anything. Returns the first
    /// failure, the only one that counts.
    pub(crate) fn fail(&self, cause: Arc<E>) -> Arc<E> {
        let mut state = P::lock(&self.state);
        let first = Arc::clone(state.failed.get_or_insert(cause));
        P::set(&self.failed, 1);
        P::notify_all(&self.changed);
        first
    }

    pub(crate) fn failure(&self) -> Option<Arc<E>> {
        if P::get(&self.failed) == 0 {
            return None;
        }
        P::lock(&self.state).failed.clone()
    }

    /// Returns once everything below `target` is durable. If this thread leads, it calls `sync`
    /// without the gate's lock; `sync` makes everything written so far durable and returns its end.
    /// Returns `Ok(true)` if this thread led. If the sync was refused, this thread gets that error,
    /// and another one leads.
    pub(crate) fn wait(
        &self,
        target: SequenceNumber,
        mut sync: impl FnMut() -> Result<SequenceNumber, NotSynced<E>>,
    ) -> Result<bool, Arc<E>> {
        let mut led = false;
        let mut state = P::lock(&self.state);
        loop {
            if state.synced >= target {
                return Ok(led);
            }
            if let Some(cause) = &state.failed {
                return Err(Arc::clone(cause));
            }
            if state.running {
                state = P::wait(&self.changed, state);
                continue;
            }
            state.running = true;
            drop(state);
            let result = sync();
            led = true;
            state = P::lock(&self.state);
            state.running = false;
            match result {
                Ok(synced) => {
                    state.synced = state.synced.max(synced);
                    P::set(&self.synced, state.synced.get());
                }
                Err(NotSynced::Failed(cause)) => {
                    state.failed.get_or_insert(cause);
                    P::set(&self.failed, 1);
                }
                Err(NotSynced::Refused(cause)) => {
                    P::notify_all(&self.changed);
                    return Err(cause);
                }
            }
            P::notify_all(&self.changed);
        }
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sync_serves_every_thread_that_waits() {
        let gate: SyncGate<String> = SyncGate::new(SequenceNumber::MIN);
        let syncs = AtomicU64::new(0);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    gate.wait(8.into(), || {
                        syncs.fetch_add(1, Ordering::SeqCst);
                        Ok(8.into())
                    })
                    .unwrap();
                });
            }
        });
        assert_eq!(syncs.load(Ordering::SeqCst), 1);
        assert_eq!(gate.synced_end(), 8);
    }

    #[test]
    fn a_failed_sync_is_never_retried_and_its_first_cause_stays() {
        let gate: SyncGate<String> = SyncGate::new(3.into());
        assert!(gate.wait(5.into(), || Err(NotSynced::Failed(Arc::new("disk gone".to_owned())))).is_err());
        let again = gate.wait(5.into(), || Ok(5.into())).unwrap_err();
        assert_eq!(*again, "disk gone");
        assert_eq!(*gate.fail(Arc::new("later".to_owned())), "disk gone");
        assert!(gate.wait(3.into(), || Ok(SequenceNumber::MIN)).is_ok(), "what was durable before stays so");
    }

    #[test]
    fn a_refused_sync_is_no_failure_and_the_next_one_counts() {
        let gate: SyncGate<String> = SyncGate::new(3.into());
        let refused = gate.wait(5.into(), || Err(NotSynced::Refused(Arc::new("no handle".to_owned()))));
        assert_eq!(*refused.unwrap_err(), "no handle");
        assert!(gate.failure().is_none());
        assert_eq!(gate.synced_end(), 3);
        assert!(gate.wait(5.into(), || Ok(5.into())).unwrap());
        assert_eq!(gate.synced_end(), 5);
    }
}
