//! Which connections have a place, and which of them gives its place up for a new one.
//!
//! A connection *waits* while it has no whole request: before the head of its first one has arrived, and once what it was
//! answered is written. Where all places are taken, the connection that has waited longest gives its place up, so that
//! clients that send nothing, or half a request, keep nobody else out. One that is answered keeps its place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The places of a server.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    free: Arc<Semaphore>,
    waiting: Mutex<ConnectionQueue>,
    /// Notified when a connection begins to wait.
    more: Notify,
}

#[derive(Debug, Default)]
struct ConnectionQueue {
    begun: u64,
    /// Connections that wait, those that have waited longest first.
    connections: BTreeMap<u64, Arc<Notify>>,
    /// Number of connections that were told to give up their places and still have them.
    leaving: usize,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    places: Arc<ConnectionLimiter>,
    phase: Mutex<ConnectionPhase>,
    given_up: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug)]
enum ConnectionPhase {
    /// Waits for a request, since this many others began to.
    Waiting(u64),
    Answering,
    /// The answer is there, and not all of it is written.
    Writing,
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionLimiter {
    pub(super) fn new(count: usize) -> Arc<ConnectionLimiter> {
        let free = Arc::new(Semaphore::new(count));
        Arc::new(ConnectionLimiter { free, waiting: Mutex::default(), more: Notify::new() })
    }

    /// Returns a place for a new connection. Where none is free, this waits until the connection that has waited longest
    /// has given up its own, or another one has ended.
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

    /// Returns once the connection is to give up its place.
    pub(super) async fn given_up(&self) {
        self.given_up.notified().await;
    }

    /// Notes that a whole request has arrived. One that was told before to give up its place comes too late.
    pub(super) fn answers(&self) {
        let mut phase = lock_mutex(&self.phase);
        if let ConnectionPhase::Waiting(begun) = *phase
            && lock_mutex(&self.places.waiting).connections.remove(&begun).is_some()
        {
            *phase = ConnectionPhase::Answering;
        }
    }

    /// Notes that the answer is there. It is one piece, and so is written with the next flush.
    pub(super) fn note_answered(&self) {
        let mut phase = lock_mutex(&self.phase);
        if let ConnectionPhase::Answering = *phase {
            *phase = ConnectionPhase::Writing;
        }
    }

    /// Notes that all is written that there was to write.
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
