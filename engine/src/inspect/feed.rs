//! Feeds of a session's events: from a position on, continuing as events are written, to keep a
//! read model up to date.
//!
//! # Invariants
//!
//! 1. Each event is returned once, in the order of the log, whether it was written before or after
//!    the feed was opened.
//! 2. Memory does not grow with the log, nor with the lag of a reader: a feed stores at most
//!    [`BATCH`] entries ahead, and two numbers for each rollback of the log.
//! 3. A feed takes no lock, and never delays a writer.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use foldlog_codec::body::Rollback;
use foldlog_codec::record::RecordNames;
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

use super::LogReader;
use super::contents::{ContentReading, RecordedContent, RecordedEvent};
use super::follow::{Follower, LogUpdate};
use crate::clock;
use crate::error::{Error, Result};
use crate::fold::live_path::LivePath;
use crate::log::chain;
use crate::log::dropped_ranges::Compaction;
use crate::log::objects::Objects;
use crate::session::{SessionLog, SubscriptionGuard};
use crate::storage::{FileStorage, Storage};
use crate::wakeups::ChangeNotifier;

/// Maximum number of events and rollbacks that a feed reads ahead.
const BATCH: usize = 256;

/// Shortest and longest interval between two checks of a log that another process writes.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Returns the events of a session from a position on, and continues with events that this process
/// or another one writes.
///
/// A read model stores the sequence number of the last processed event together with its own data,
/// and continues after that number the next time. It sees every dispatched event, even if a
/// rollback abandons it later. The rollback is returned too. It lists the records that no longer
/// count, and the ones that count again.
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
/// let mut events = session.log().events_from(0)?;
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
    /// Rollbacks of the log up to the last read record; `None` if they have yet to be read.
    path: Option<LivePath>,
    read: VecDeque<Fed>,
    /// Error that stopped reading, after the entries in `read`.
    failed: Option<Error>,
    /// Signal for new records; `None` if another process may write the log.
    told: Option<(Arc<FeedSignal>, SubscriptionGuard)>,
    /// Interval until the next check without a signal.
    pause: Duration,
    #[cfg(feature = "async")]
    look: Option<crate::offload::BoxedFuture<()>>,
}

/// Describes an entry of an [`EventFeed`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Fed {
    /// An event was dispatched.
    Event(FedEvent),
    /// STATE was rolled back. The changes that events of some records made to STATE slices no
    /// longer count. Changes of other records, which an earlier rollback had abandoned, count
    /// again. Changes to LOG slices stay.
    ///
    /// A read model should keep the rows of abandoned records and mark them. A rollback to an
    /// abandoned position, such as undoing a [rewind](crate::tools::ExecutionState::undo_rewind),
    /// restores them.
    RolledBack {
        /// Sequence number of the record that rolled back.
        at: SequenceNumber,
        /// Position to which STATE was rolled back.
        to: SequenceNumber,
        /// Records that no longer count, in ascending order.
        abandoned: Vec<RangeInclusive<SequenceNumber>>,
        /// Records that count again, in ascending order.
        restored: Vec<RangeInclusive<SequenceNumber>>,
    },
    /// A recovery of the log replaced records that were returned before they were durable: they
    /// never happened. Their replacements follow.
    Replaced {
        /// Sequence number of the first record that was replaced.
        from: SequenceNumber,
        /// Sequence number of the last record that was replaced.
        through: SequenceNumber,
    },
}

/// An event of an [`EventFeed`].
#[derive(Debug)]
pub struct FedEvent {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Time of the record.
    pub time: DateTime<Utc>,
    /// The event, to be [read](RecordedEvent::read) as the host's type.
    pub event: RecordedEvent,
}

/// Signals new records from a session to a feed.
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

/// Signals a feed that its session was closed: the session drops this with the subscription.
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
    /// Returns the sequence number of the entry's record: the position of a reader after processing
    /// it. For replaced records, that is the position before the first one.
    pub fn sequence(&self) -> SequenceNumber {
        match self {
            Fed::Event(event) => event.sequence,
            Fed::RolledBack { at, .. } => *at,
            Fed::Replaced { from, .. } => from.saturating_sub(1),
        }
    }
}

impl EventFeed {
    /// Reads the events of the session in the directory `dir` from the record `from` on, which need
    /// not exist yet. Another process may write the session; the log is checked every 10 to 200 ms.
    pub fn open(dir: impl AsRef<Path>, from: impl Into<SequenceNumber>) -> Result<EventFeed> {
        EventFeed::open_on(Arc::new(FileStorage::new()), dir, from)
    }

    /// Reads the events of the session in the directory `dir` of `storage`, as
    /// [`open`](EventFeed::open) does.
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

    /// Returns the next entry if it is available, without blocking. If the feed started at a
    /// position other than 0, its first rollback makes it read the log from the start.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] for an event that a compaction has dropped: a read model then starts
    /// with the contents of the slices at the earliest known position, and continues after it. The
    /// errors of [`Follower::poll`], after everything before the damage was returned;
    /// [`Error::Inconsistent`] if the body of a record cannot be read, [`Error::Object`] if an
    /// object is missing or damaged.
    pub fn try_next(&mut self) -> Result<Option<Fed>> {
        if self.read.is_empty() && self.failed.is_none() {
            self.read_on();
        }
        match (self.read.pop_front(), &self.failed) {
            (None, Some(_)) => self.failed.take().map_or(Ok(None), Err),
            (fed, _) => Ok(fed),
        }
    }

    /// Returns the next entry, and blocks until it is available, for at most `limit`. Returns
    /// `None` if there is none in that time, or if the session of this process was closed and
    /// everything was returned.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Fed>> {
        let until = clock::after(limit);
        loop {
            // Reset before the log is read: records written from here on give a new signal.
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

    /// Blocks this thread until there may be more, or until that moment.
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

    /// Reads the available records, up to the read-ahead limit of a feed.
    fn read_on(&mut self) {
        let EventFeed { follower, storage, dir, objects, read, path, .. } = self;
        let mut full = false;
        let polled = follower.poll(|met| {
            full = read.len() >= BATCH;
            if full {
                return Err(enough());
            }
            match met {
                LogUpdate::Record { record, .. } if record.kind == RecordKind::Dropped => {
                    return Err(dropped_event_error(storage.as_ref(), dir, record.sequence)?);
                }
                LogUpdate::Record { record, names } => match rollback_of(&record)? {
                    Some(Rollback { to, .. }) => {
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

/// Ends a poll. The error is discarded, and the next poll starts with the same record.
fn enough() -> Error {
    Error::NoSuchPosition { position: SequenceNumber::MAX, last: None }
}

fn dropped_event_error(storage: &dyn Storage, dir: &Path, position: SequenceNumber) -> Result<Error> {
    let compaction = Compaction::read(storage, &chain::discover(storage, dir)?.segments)?;
    let nothing = Error::Compacted { position, earliest: position };
    Ok(compaction.map_or(nothing, |compaction| compaction.unknown(position)))
}

/// Reads the rollbacks before the record `end`.
fn path_before(storage: &Arc<dyn Storage>, dir: &Path, end: SequenceNumber) -> Result<LivePath> {
    let mut path = LivePath::default();
    let mut is_over = false;
    let polled = Follower::open_on(Arc::clone(storage), dir, SequenceNumber::MIN)?.poll(|met| {
        let LogUpdate::Record { record, .. } = met else { return Ok(()) };
        is_over = record.sequence >= end;
        if is_over {
            return Err(enough());
        }
        if let Some(rollback) = rollback_of(&record)? {
            path.add(record.sequence, rollback.to);
        }
        Ok(())
    });
    match polled {
        Err(error) if !is_over => Err(error),
        _ => Ok(path),
    }
}

/// Returns the entry of a feed for a rollback. `path` contains the rollbacks before it.
fn rolled_back(path: &LivePath, at: SequenceNumber, to: SequenceNumber) -> Fed {
    let restored = path.abandoned_by(to + 1, at.saturating_sub(1));
    Fed::RolledBack { at, to, abandoned: path.abandoned_by(at, to), restored }
}

fn rollback_of(record: &Record<'_>) -> Result<Option<Rollback>> {
    record.rollback().map_err(Error::unread(record.sequence))
}

/// Returns the event of a record, if it contains one.
fn event(record: &Record<'_>, names: &RecordNames, objects: &Objects) -> Result<Option<FedEvent>> {
    if record.kind != RecordKind::Dispatch {
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
    /// Reads the events of the session from the record `from` on, and continues with events that
    /// are written later.
    pub fn events_from(&self, from: impl Into<SequenceNumber>) -> Result<EventFeed> {
        EventFeed::open_on(Arc::clone(&self.storage), self.dir(), from)
    }
}

impl SessionLog<'_> {
    /// Reads the session's events from the record `from` on, and continues with new events until
    /// the session is closed. A feed does not keep the session open. Except with
    /// [`Durability::Every`](crate::Durability::Every), an event may be returned before it is
    /// durable. If a recovery finds that it is lost, the feed returns [`Fed::Replaced`].
    pub fn events_from(&self, from: impl Into<SequenceNumber>) -> Result<EventFeed> {
        let told = Arc::<FeedSignal>::default();
        let tells = Tells(Arc::clone(&told));
        let listening = self.listen(move |_| tells.0.tell(|told| told.more = true));
        let feed = EventFeed::open_on(Arc::clone(self.session.storage()), self.session.dir(), from)?;
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

    /// Ends when the session of this process was closed, and otherwise never. Reads the log in the
    /// polling task, up to the read-ahead limit of a feed.
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
                // Registered before the log is read: records written from here on wake the task.
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
