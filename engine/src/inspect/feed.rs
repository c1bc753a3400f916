//! A session's events from a position on, and on as they are written: what keeps a read model up to date.
//!
//! # Invariants
//!
//! 1. Each event is handed over once, in the order of the log, whether it stood there before or is written meanwhile.
//! 2. Memory does not grow with the log, nor with how far a reader is behind: a feed holds at most [`BATCH`] of what it hands
//!    over, and two numbers for each rollback of the log.
//! 3. A feed takes no lock, and nobody who writes waits for it.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use foldlog_codec::body::{Rollback, ToolEnd};
use foldlog_codec::record::RecordNames;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

use super::LogReader;
use super::contents::{ContentReading, RecordedContent, RecordedEvent};
use super::follow::{Follower, LogUpdate};
use crate::changes::ChangeNotifier;
use crate::clock;
use crate::error::{Error, Result};
use crate::fold::path::Path as LivePath;
use crate::log::chain;
use crate::log::compaction::Compaction;
use crate::log::objects::Objects;
use crate::session::{Session, SubscriptionGuard};
use crate::storage::{FileStorage, Storage};

/// Greatest number of events and rollbacks that a feed reads ahead.
const BATCH: usize = 256;

/// Shortest and longest time between two looks at a log that another process writes.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Hands over the events of a session from a position on, and goes on with what is written, by this process or another one.
///
/// A read model keeps the sequence number of the last event that it took together with what it made of it, and goes on behind
/// it the next time. It sees every event that was dispatched, those included that a rollback abandons later: the rollback is
/// handed over too, and says which records count no more, and which count again.
///
/// ```
/// # use foldlog::{Event, SessionTypes, Store};
/// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// # struct Said(String);
/// # impl Event for Said {
/// #     const NAME: &'static str = "chat.said";
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
/// use foldlog::inspect::Fed;
///
/// session.dispatch(Said("before".to_owned()))?;
/// let mut events = session.events_from(0)?;
/// session.dispatch(Said("meanwhile".to_owned()))?;
/// let mut said = Vec::new();
/// while let Some(fed) = events.try_next()? {
///     if let Fed::Event(event) = fed {
///         said.extend(event.event.read::<Said>()?);
///     }
/// }
/// assert_eq!(said, [Said("before".to_owned()), Said("meanwhile".to_owned())]);
/// # Ok(())
/// # }
/// ```
pub struct EventFeed {
    follower: Follower,
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    objects: Arc<Objects>,
    /// Rollbacks of the log up to what was read; `None` if they have to be read first.
    path: Option<LivePath>,
    read: VecDeque<Fed>,
    /// What stopped the reading, behind what was read.
    failed: Option<Error>,
    /// Who says that there is more; `None` if another process may write the log.
    told: Option<(Arc<FeedSignal>, SubscriptionGuard)>,
    /// Time until the next look if nobody says that there is more.
    pause: Duration,
    #[cfg(feature = "async")]
    look: Option<crate::offload::BoxedFuture<()>>,
}

/// Describes what an [`EventFeed`] hands over.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fed {
    /// An event was dispatched.
    Event(FedEvent),
    /// STATE went back: what the events of some records did to STATE slices counts no more, and what those of others did, which
    /// an earlier rollback had abandoned, counts again. What any of them did to LOG slices stays.
    ///
    /// A read model keeps the rows of abandoned records, marked as such: a rollback to a position that was abandoned, as undoing
    /// a [rewind](crate::tools::ExecutionState::undo_rewind) is, brings them back.
    RolledBack {
        /// Sequence number of the record that rolled back.
        at: SequenceNumber,
        /// Position to which STATE went back.
        to: SequenceNumber,
        /// Records that count no more, in ascending order.
        abandoned: Vec<RangeInclusive<SequenceNumber>>,
        /// Records that count again, in ascending order.
        restored: Vec<RangeInclusive<SequenceNumber>>,
    },
    /// A recovery of the log replaced records that were handed over, which were not durable yet: they never happened. What
    /// stands in their place follows.
    Replaced {
        /// Sequence number of the first record that was replaced.
        from: SequenceNumber,
        /// Sequence number of the last record that was replaced.
        through: SequenceNumber,
    },
}

/// Holds an event as an [`EventFeed`] hands it over.
#[derive(Debug)]
pub struct FedEvent {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub time: DateTime<Utc>,
    /// The event, to be [read](RecordedEvent::read) as the host's type.
    pub event: RecordedEvent,
}

/// Passes on from a session to a feed that there is more.
#[derive(Debug, Default)]
struct FeedSignal {
    state: Mutex<ToldState>,
    changes: ChangeNotifier,
}

#[derive(Debug, Default)]
struct ToldState {
    more: bool,
    /// Whether the session was closed, or the feed is no longer among its subscribers.
    ended: bool,
}

impl FeedSignal {
    fn tell(&self, change: impl FnOnce(&mut ToldState)) {
        change(&mut self.state.lock());
        self.changes.notify_all();
    }
}

/// Tells a feed that its session was closed, once the session drops this with the subscription.
struct Tells(Arc<FeedSignal>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.tell(|told| told.ended = true);
    }
}

impl fmt::Debug for EventFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = self.read.front().map(Fed::sequence);
        f.debug_struct("EventFeed")
            .field("session", &self.session())
            .field("next", &next)
            .finish_non_exhaustive()
    }
}

impl Fed {
    /// Returns the sequence number of the record that this tells of: the position up to which whoever has taken this is. Of
    /// records that were replaced, that before the first one.
    pub fn sequence(&self) -> SequenceNumber {
        match self {
            Fed::Event(event) => event.sequence,
            Fed::RolledBack { at, .. } => *at,
            Fed::Replaced { from, .. } => from.saturating_sub(1),
        }
    }
}

impl EventFeed {
    /// Reads the events of the session in the directory `dir` from the record `from` on, which need not be written yet. The
    /// session may be written by another process; it is looked at every 10 to 200 ms.
    ///
    /// # Errors
    ///
    /// Those of [`Follower::open`].
    pub fn open(dir: impl AsRef<Path>, from: impl Into<SequenceNumber>) -> Result<EventFeed> {
        EventFeed::open_on(Arc::new(FileStorage::new()), dir, from)
    }

    /// Reads the events of the session in the directory `dir` of `storage`, as [`open`](EventFeed::open) does.
    ///
    /// # Errors
    ///
    /// Those of [`Follower::open`].
    pub fn open_on(
        storage: Arc<dyn Storage>,
        dir: impl AsRef<Path>,
        from: impl Into<SequenceNumber>,
    ) -> Result<EventFeed> {
        let (dir, from) = (dir.as_ref(), from.into());
        let objects = Arc::new(Objects::new(Arc::clone(&storage), dir));
        Ok(EventFeed {
            follower: Follower::open_on(Arc::clone(&storage), dir, from)?,
            storage,
            dir: dir.to_owned(),
            objects,
            path: (from == SequenceNumber::MIN).then(LivePath::default),
            read: VecDeque::new(),
            failed: None,
            told: None,
            pause: LOOKS.0,
            #[cfg(feature = "async")]
            look: None,
        })
    }

    /// Returns the id of the session.
    pub fn session(&self) -> Uuid {
        self.follower.session()
    }

    /// Returns what comes next, if it is there already. Does not wait. The first rollback behind a position other than 0 has the log
    /// read from its beginning.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] for an event that a compaction has dropped: a read model begins with what the slices hold at the
    /// earliest position that is known, and goes on behind it. Those of [`Follower::poll`], once all before the damage was handed
    /// over; [`Error::Inconsistent`] if the body of a record cannot be read, [`Error::Object`] if an object is missing or damaged.
    pub fn try_next(&mut self) -> Result<Option<Fed>> {
        if self.read.is_empty() && self.failed.is_none() {
            self.read_on();
        }
        match (self.read.pop_front(), &self.failed) {
            (None, Some(_)) => self.failed.take().map_or(Ok(None), Err),
            (fed, _) => Ok(fed),
        }
    }

    /// Returns what comes next, and waits for it for as long as `limit`. Returns `None` if nothing comes in that time, or the
    /// session of this process was closed and everything was handed over.
    ///
    /// # Errors
    ///
    /// Those of [`try_next`](EventFeed::try_next).
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Fed>> {
        let until = clock::after(limit);
        loop {
            // Asked before the log is: what is written from here on is told.
            let ended = self.told.as_ref().map(|(told, _)| {
                let mut state = told.state.lock();
                state.more = false;
                state.ended
            });
            if let Some(fed) = self.try_next()? {
                self.pause = LOOKS.0;
                return Ok(Some(fed));
            }
            if ended == Some(true) || clock::is_past(until) {
                return Ok(None);
            }
            self.wait(until);
        }
    }

    /// Waits on this thread until there may be more, or that moment.
    fn wait(&mut self, until: Instant) {
        let Some((told, _)) = &self.told else {
            let look = clock::after(self.next_pause()).min(until);
            std::thread::sleep(look.saturating_duration_since(clock::now()));
            return;
        };
        let mut state = told.state.lock();
        while !state.more && !state.ended && !told.changes.wait_until(&mut state, until).timed_out() {}
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = pause.saturating_mul(2).min(LOOKS.1);
        pause
    }

    /// Reads what is there, as much as a feed reads ahead.
    fn read_on(&mut self) {
        let EventFeed { follower, storage, dir, objects, read, path, .. } = self;
        let mut full = false;
        let polled = follower.poll(|met| {
            full = read.len() >= BATCH;
            if full {
                return Err(enough());
            }
            match met {
                LogUpdate::Record { record, .. } if record.kind == RecordKind::DROPPED => {
                    return Err(dropped_event_error(storage.as_ref(), dir, record.sequence)?);
                }
                LogUpdate::Record { record, names } => match rolled_back_to(&record)? {
                    Some(to) => {
                        let known = match path.take() {
                            Some(path) => path,
                            None => path_before(storage, dir, record.sequence)?,
                        };
                        read.push_back(rolled_back(&known, record.sequence, to));
                        let known = path.insert(known);
                        known.add(record.sequence, to);
                    }
                    None => read.extend(event(&record, names, objects)?.map(Fed::Event)),
                },
                LogUpdate::Replaced { from, through } => {
                    *path = None;
                    read.push_back(Fed::Replaced { from, through });
                }
            }
            Ok(())
        });
        self.failed = polled.err().filter(|_| !full);
    }
}

/// Ends a poll. Nobody sees the error, and the next poll begins with the same record.
fn enough() -> Error {
    Error::NoSuchPosition { position: SequenceNumber::MAX, last: None }
}

/// Makes the error of an event that a compaction has dropped.
fn dropped_event_error(storage: &dyn Storage, dir: &Path, position: SequenceNumber) -> Result<Error> {
    let compaction = Compaction::read(storage, &chain::discover(storage, dir)?.segments)?;
    let nothing = Error::Compacted { position, earliest: position };
    Ok(compaction.map_or(nothing, |compaction| compaction.unknown(position)))
}

/// Reads which rollbacks stand before the record `end`.
fn path_before(storage: &Arc<dyn Storage>, dir: &Path, end: SequenceNumber) -> Result<LivePath> {
    let mut path = LivePath::default();
    let mut is_over = false;
    let polled = Follower::open_on(Arc::clone(storage), dir, SequenceNumber::MIN)?.poll(|met| {
        let LogUpdate::Record { record, .. } = met else { return Ok(()) };
        is_over = record.sequence >= end;
        if is_over {
            return Err(enough());
        }
        if let Some(to) = rolled_back_to(&record)? {
            path.add(record.sequence, to);
        }
        Ok(())
    });
    match polled {
        Err(error) if !is_over => Err(error),
        _ => Ok(path),
    }
}

/// Returns what a feed hands over of a rollback. `path` has those before it.
fn rolled_back(path: &LivePath, at: SequenceNumber, to: SequenceNumber) -> Fed {
    let restored = path.abandoned_by(to + 1, at.saturating_sub(1));
    Fed::RolledBack { at, to, abandoned: path.abandoned_by(at, to), restored }
}

/// Returns the position to which a record rolled STATE back.
fn rolled_back_to(record: &Record<'_>) -> Result<Option<SequenceNumber>> {
    let bad = Error::unread(record.sequence);
    Ok(match record.kind {
        RecordKind::ROLLBACK => Some(Rollback::decode(record.body).map_err(bad)?.to),
        // The end of a call that was not committed is the rollback to its begin.
        RecordKind::TOOL_END => ToolEnd::decode(record.body).map_err(bad)?.rolled_back_to(),
        _ => None,
    })
}

/// Returns the event of a record, if it holds one.
fn event(record: &Record<'_>, names: &RecordNames, objects: &Objects) -> Result<Option<FedEvent>> {
    if record.kind != RecordKind::DISPATCH {
        return Ok(None);
    }
    let recorded = ContentReading { names, objects, compaction: None }.decode_record(record)?;
    let (sequence, time) = (recorded.sequence, recorded.time);
    Ok(match recorded.content {
        RecordedContent::Event(event) => Some(FedEvent { sequence, time, event }),
        _ => None,
    })
}

impl LogReader {
    /// Reads the events of the session from the record `from` on, and goes on with what is written later.
    ///
    /// # Errors
    ///
    /// Those of [`EventFeed::open`].
    pub fn events_from(&self, from: impl Into<SequenceNumber>) -> Result<EventFeed> {
        EventFeed::open_on(Arc::clone(&self.storage), self.dir(), from)
    }
}

impl Session {
    /// Reads the session's events from the record `from` on, and goes on with what is written, until the session is closed. A
    /// feed does not keep the session open. Except with [`Durability::Every`](crate::Durability::Every), an event may be handed
    /// over before it is durable; if a recovery finds that it is lost, the feed hands over [`Fed::Replaced`].
    ///
    /// # Errors
    ///
    /// Those of [`EventFeed::open`].
    pub fn events_from(&self, from: impl Into<SequenceNumber>) -> Result<EventFeed> {
        let told = Arc::<FeedSignal>::default();
        let tells = Tells(Arc::clone(&told));
        let listening = self.listen(move |_| tells.0.tell(|told| told.more = true));
        let feed = EventFeed::open_on(Arc::clone(self.storage()), self.dir(), from)?;
        Ok(EventFeed { told: listening.map(|listening| (told, listening)), ..feed })
    }
}

#[cfg(feature = "async")]
mod streaming {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures_core::Stream;

    use super::{EventFeed, Fed, LOOKS};
    use crate::clock;
    use crate::error::Result;
    use crate::offload::wait_for_any;

    /// Ends when the session of this process was closed, and else never. Reads the log where it is polled, as much as a feed
    /// reads ahead.
    impl Stream for EventFeed {
        type Item = Result<Fed>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            let feed = &mut *self;
            loop {
                if let Some(look) = &mut feed.look {
                    match look.as_mut().poll(context) {
                        Poll::Ready(()) => feed.look = None,
                        Poll::Pending => return Poll::Pending,
                    }
                }
                // Asked before the log is: what is written from here on is heard.
                let (ended, heard) = match &feed.told {
                    Some((told, _)) => (told.state.lock().ended, Some(told.changes.listen())),
                    None => (false, None),
                };
                match feed.try_next() {
                    Ok(None) if ended => return Poll::Ready(None),
                    Ok(None) => {}
                    Ok(Some(fed)) => {
                        feed.pause = LOOKS.0;
                        return Poll::Ready(Some(Ok(fed)));
                    }
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
                let look = heard.is_none().then(|| clock::after(feed.next_pause()));
                feed.look = Some(Box::pin(wait_for_any(heard, look)));
            }
        }
    }
}
