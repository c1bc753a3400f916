//! Subscribers, which a session notifies of its records.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use foldlog_codec::msgpack::Value;
use foldlog_codec::{RecordKind, SequenceNumber};
use parking_lot::Mutex;

use super::write::PendingEvent;
use super::{SessionInner, SessionLog};
use crate::error::panic_message;
use crate::types::Event;

/// Maximum number of subscriber panics that are stored.
const WARNINGS_MAX: usize = 64;

/// Describes a record to a subscriber.
#[derive(Clone)]
pub struct RecordNotification {
    pub(super) sequence: SequenceNumber,
    pub(super) time_us: i64,
    pub(super) kind: RecordKind,
    pub(super) event: Option<PendingEvent>,
}

impl fmt::Debug for RecordNotification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordNotification")
            .field("sequence", &self.sequence)
            .field("kind", &self.kind)
            .field("name", &self.event_name())
            .finish()
    }
}

impl RecordNotification {
    /// Returns the sequence number of the record.
    pub fn sequence(&self) -> SequenceNumber {
        self.sequence
    }

    /// Returns the time of the record, in microseconds since 1970-01-01 UTC.
    pub fn time_us(&self) -> i64 {
        self.time_us
    }

    /// Returns the kind of the record.
    pub fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Returns the event's name and version, if the record dispatched an event.
    pub fn event_name(&self) -> Option<(&str, u32)> {
        self.event.as_ref().map(|event| (event.name.as_str(), event.version))
    }

    /// Returns the event, if the record dispatched one of type `E`.
    pub fn event<E: Event>(&self) -> Option<&E> {
        self.event.as_ref()?.value.as_ref()?.downcast_ref()
    }

    /// Returns the event as a value, if neither the dispatch nor the declaration of the event gave
    /// it a Rust type.
    pub fn event_value(&self) -> Option<&Value> {
        self.event.as_ref()?.value.as_ref()?.downcast_ref()
    }
}

/// Identifies a subscriber, for [`SessionLog::unsubscribe`](crate::SessionLog::unsubscribe).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subscription(u64);

/// Reports a panic of a subscriber. The record of the notification is unaffected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberPanic {
    /// Sequence number of the record that the subscriber was notified of.
    pub sequence: SequenceNumber,
    /// Message of the panic.
    pub message: String,
}

type Subscriber = dyn Fn(&RecordNotification) + Send + Sync;

/// A subscriber that is notified of the records from `since` on.
#[derive(Clone)]
struct SubscriberEntry {
    id: u64,
    since: SequenceNumber,
    subscriber: Arc<Subscriber>,
}

/// The subscribers of a session, the notifications to deliver, and the panics to report.
#[derive(Default)]
pub(super) struct Subscribers {
    subscribers: Mutex<Vec<SubscriberEntry>>,
    count: AtomicUsize,
    next: AtomicU64,
    /// Notifications, each with the sequence number below which all records must be durable before
    /// it is delivered.
    queue: Mutex<VecDeque<(SequenceNumber, RecordNotification)>>,
    telling: Mutex<()>,
    warnings: Mutex<VecDeque<SubscriberPanic>>,
}

impl Subscribers {
    /// Returns whether there are subscribers. Under the writer's lock the answer stays true.
    pub(super) fn listen(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Returns whether a notification is pending.
    pub(super) fn waits(&self) -> bool {
        self.listen() && !self.queue.lock().is_empty()
    }

    /// Queues a notification, if there are subscribers. Called under the writer's lock, so
    /// notifications have the order of their records.
    pub(super) fn queue(&self, durable_first: SequenceNumber, notice: impl FnOnce() -> RecordNotification) {
        if self.listen() {
            self.queue.lock().push_back((durable_first, notice()));
        }
    }

    /// Delivers the queued notifications whose records are as durable as promised; records below
    /// `synced` are durable. If a different thread, or a subscriber further up this stack, is
    /// delivering, it continues until the queue is empty.
    pub(super) fn tell(&self, synced: &dyn Fn() -> SequenceNumber) {
        let ready = || self.queue.lock().front().is_some_and(|(durable, _)| *durable <= synced());
        while self.listen() && ready() {
            let Some(_telling) = self.telling.try_lock() else { return };
            while let Some(notice) = self.next_notice(synced) {
                let subscribers = self.subscribers.lock().clone();
                for to in subscribers.iter().filter(|to| to.since <= notice.sequence) {
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (to.subscriber)(&notice))) {
                        self.warn(notice.sequence, panic_message(&*panic));
                    }
                }
            }
        }
    }

    /// Drops all subscribers: one that owns a handle of its session would otherwise keep it open
    /// forever.
    pub(super) fn end(&self) {
        let ended = std::mem::take(&mut *self.subscribers.lock());
        self.count.store(0, Ordering::Release);
        self.queue.lock().clear();
        // Dropped last and without any lock, since a subscriber may own arbitrary values.
        drop(ended);
    }

    fn remove(&self, subscription: Subscription) {
        let mut list = self.subscribers.lock();
        let place = list.iter().position(|subscribed| subscribed.id == subscription.0);
        let ended = place.map(|place| list.remove(place));
        if ended.is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
        drop(list);
        // Dropped without the lock, since a subscriber may own arbitrary values.
        drop(ended);
    }

    fn next_notice(&self, synced: &dyn Fn() -> SequenceNumber) -> Option<RecordNotification> {
        let mut queue = self.queue.lock();
        let (durable_first, _) = queue.front()?;
        if *durable_first > synced() {
            return None;
        }
        queue.pop_front().map(|(_, notice)| notice)
    }

    fn warn(&self, sequence: SequenceNumber, message: String) {
        let mut warnings = self.warnings.lock();
        if warnings.len() == WARNINGS_MAX {
            warnings.pop_front();
        }
        warnings.push_back(SubscriberPanic { sequence, message });
    }
}

/// A subscription, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SubscriptionGuard {
    session: Weak<SessionInner>,
    subscription: Subscription,
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            session.subscribers.remove(self.subscription);
        }
    }
}

impl SessionLog<'_> {
    /// Calls `subscriber` for each record from now on, in order, once the record is as durable as
    /// [`durability`](crate::SessionLog::durability) promises. The subscriber may dispatch.
    ///
    /// If it panics, the record is unaffected, the other subscribers are called, and
    /// [`take_panics`](crate::SessionLog::take_panics) reports the panic. Closing ends all
    /// subscriptions; a subscriber that owns a handle of this session keeps it open until then.
    ///
    /// A [replay](crate::replay) notifies subscribers of the recorded records. Notifications of
    /// records from the log precede the return of the call that led to them. Events from the log
    /// for which the host declared no slice have no [value](RecordNotification::event). The log
    /// does not record which of several threads notifies a subscriber: a subscriber that dispatches
    /// needs a separate lane, or a host that writes on one thread.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&types)?;
    /// use std::sync::mpsc;
    ///
    /// let (tell, told) = mpsc::channel();
    /// let _subscription = session.log().subscribe(move |record| {
    ///     let _ = tell.send(record.event::<Said>().cloned());
    /// });
    /// session.dispatch(Said("hello".to_owned()))?;
    /// assert!(told.iter().any(|said| said == Some(Said("hello".to_owned()))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(
        &self,
        subscriber: impl Fn(&RecordNotification) + Send + Sync + 'static,
    ) -> Subscription {
        let subscribers = &self.session.inner.subscribers;
        let id = subscribers.next.fetch_add(1, Ordering::Relaxed);
        // Records before this one may still be queued for others.
        let state = self.session.inner.state.lock();
        let since = state.log.next_sequence();
        subscribers.subscribers.lock().push(SubscriberEntry { id, since, subscriber: Arc::new(subscriber) });
        subscribers.count.fetch_add(1, Ordering::Release);
        Subscription(id)
    }

    /// Ends a subscription. Idempotent.
    pub fn unsubscribe(&self, subscription: Subscription) {
        self.session.inner.subscribers.remove(subscription);
    }

    /// Calls `subscriber` as [`subscribe`](crate::SessionLog::subscribe) does, until the returned
    /// guard is dropped. Does not keep the session open.
    ///
    /// Returns `None` for a session that another process may write, since that causes no
    /// notifications.
    pub(crate) fn listen(
        &self,
        subscriber: impl Fn(&RecordNotification) + Send + Sync + 'static,
    ) -> Option<SubscriptionGuard> {
        if self.session.inner.types.is_none() || self.session.inner.read_only.is_some() {
            return None;
        }
        let subscription = self.subscribe(subscriber);
        if self.session.inner.state.lock().closed {
            self.session.inner.subscribers.end();
        }
        Some(SubscriptionGuard { session: Arc::downgrade(&self.session.inner), subscription })
    }

    /// Returns the panics of subscribers since the last call, at most the last 64.
    pub fn take_panics(&self) -> Vec<SubscriberPanic> {
        self.session.inner.subscribers.warnings.lock().drain(..).collect()
    }
}
