//! Decides which connections have a place, and which of them gives up its place to a new one.
//!
//! A connection *waits* while it has no complete request: before the head of its first request has
//! arrived, and after each answer is written. If all places are taken, the connection that has
//! waited longest gives up its place. Clients that send nothing, or half a request, therefore block
//! no others. A connection that is being answered keeps its place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    free: Arc<Semaphore>,
    waiting: Mutex<ConnectionQueue>,
    /// Notified when a connection starts to wait.
    more: Notify,
}

#[derive(Debug, Default)]
struct ConnectionQueue {
    begun: u64,
    /// Waiting connections, the longest wait first.
    connections: BTreeMap<u64, Arc<Notify>>,
    /// Number of connections that were requested to give up their places and still have them.
    leaving: usize,
}

#[derive(Debug)]
pub(super) struct ConnectionPermit {
    places: Arc<ConnectionLimiter>,
    phase: Mutex<ConnectionPhase>,
    given_up: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug)]
enum ConnectionPhase {
    /// Waits for a request. Contains the ordinal of this wait among all waits.
    Waiting(u64),
    Answering,
    /// The answer exists but is not completely written.
    Writing,
}

/// Locks a mutex. The data is valid even after a panic of its holder: it is as before the
/// interrupted answer.
pub(super) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionLimiter {
    pub(super) fn new(count: usize) -> Arc<ConnectionLimiter> {
        let free = Arc::new(Semaphore::new(count));
        Arc::new(ConnectionLimiter { free, waiting: Mutex::default(), more: Notify::new() })
    }

    /// Returns a place for a new connection. If none is free, waits until the connection that has
    /// waited longest has given up its place, or another one has ended.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Arc<ConnectionPermit>> {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return Some(ConnectionPermit::new(self, permit));
            }
            self.give_up_longest();
            tokio::select! {
                permit = Arc::clone(&self.free).acquire_owned() => return Some(ConnectionPermit::new(self, permit.ok()?)),
                () = self.more.notified() => {}
            }
        }
    }

    fn give_up_longest(&self) {
        let mut waiting = lock_mutex(&self.waiting);
        if waiting.leaving > 0 {
            return;
        }
        if let Some((_, given_up)) = waiting.connections.pop_first() {
            waiting.leaving += 1;
            given_up.notify_one();
        }
    }

    fn begin_to_wait(&self, given_up: &Arc<Notify>) -> u64 {
        let mut waiting = lock_mutex(&self.waiting);
        waiting.begun += 1;
        let begun = waiting.begun;
        waiting.connections.insert(begun, Arc::clone(given_up));
        drop(waiting);
        self.more.notify_one();
        begun
    }
}

impl ConnectionPermit {
    fn new(places: &Arc<ConnectionLimiter>, permit: OwnedSemaphorePermit) -> Arc<ConnectionPermit> {
        let given_up = Arc::new(Notify::new());
        let begun = places.begin_to_wait(&given_up);
        let phase = Mutex::new(ConnectionPhase::Waiting(begun));
        Arc::new(ConnectionPermit { places: Arc::clone(places), phase, given_up, _permit: permit })
    }

    /// Returns when the connection must give up its place.
    pub(super) async fn given_up(&self) {
        self.given_up.notified().await;
    }

    /// Notes that a complete request has arrived. Has no effect if the connection was already
    /// requested to give up its place.
    pub(super) fn answers(&self) {
        let mut phase = lock_mutex(&self.phase);
        if let ConnectionPhase::Waiting(begun) = *phase
            && lock_mutex(&self.places.waiting).connections.remove(&begun).is_some()
        {
            *phase = ConnectionPhase::Answering;
        }
    }

    /// Notes that the answer exists. It is a single piece, so the next flush writes all of it.
    pub(super) fn note_answered(&self) {
        let mut phase = lock_mutex(&self.phase);
        if let ConnectionPhase::Answering = *phase {
            *phase = ConnectionPhase::Writing;
        }
    }

    /// Notes that all output is written.
    pub(super) fn note_flushed(&self) {
        let mut phase = lock_mutex(&self.phase);
        if let ConnectionPhase::Writing = *phase {
            *phase = ConnectionPhase::Waiting(self.places.begin_to_wait(&self.given_up));
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut waiting = lock_mutex(&self.places.waiting);
        if let ConnectionPhase::Waiting(begun) = *lock_mutex(&self.phase)
            && waiting.connections.remove(&begun).is_none()
        {
            waiting.leaving = waiting.leaving.saturating_sub(1);
        }
    }
}
