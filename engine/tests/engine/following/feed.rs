//! Event feeds for read models: each event once, in the order of the log, from any position, while
//! others write and however often the model is stopped.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::thread;
use std::time::Duration;

use foldlog::inspect::{EventFeed, Fed, FedEvent};
use foldlog::{BackgroundSync, Session, SnapshotOptions, Store, StoreOptions, Value};
use foldlog_test_support::host::{Noted, Notes, Plan, StepAdded, types};

use super::*;

/// Longest wait of a test for events that should arrive at once.
const SOON: Duration = Duration::from_secs(60);

fn store(disk: &MemoryStorage) -> Store {
    let options = StoreOptions {
        storage: Arc::new(disk.process()),
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with("/store", options).unwrap()
}

fn add(session: &Session, title: &str) {
    session.dispatch(StepAdded { title: title.to_owned(), part: 0 }).unwrap();
}

/// A table of steps by sequence number, with its position, as a host stores it in a database.
#[derive(Clone, Debug, Default, PartialEq)]
struct Table {
    /// Titles, and whether they count.
    rows: BTreeMap<u64, (String, bool)>,
    notes: usize,
    next: u64,
}

impl Table {
    fn take(&mut self, fed: &Fed) {
        match fed {
            Fed::Event(FedEvent { sequence, event, .. }) => {
                assert!(sequence.get() >= self.next, "{sequence} comes twice");
                if let Some(step) = event.read::<StepAdded>().unwrap() {
                    // As seen by a host that only knows the name.
                    let value = event.value().unwrap();
                    assert_eq!(value.get("title").and_then(Value::as_str), Some(step.title.as_str()));
                    self.rows.insert(sequence.get(), (step.title, true));
                }
                self.notes += usize::from(event.read::<Noted>().unwrap().is_some());
                self.next = sequence.get() + 1;
            }
            Fed::RolledBack { at, abandoned, restored, .. } => {
                // The notes are in LOG and stay.
                for (ranges, counts) in [(abandoned, false), (restored, true)] {
                    for range in ranges {
                        for (_, row) in self.rows.range_mut(range.start().get()..=range.end().get()) {
                            assert_ne!(row.1, counts, "{row:?} is told twice");
                            row.1 = counts;
                        }
                    }
                }
                self.next = at.get() + 1;
            }
            other => panic!("{other:?}"),
        }
    }

    fn catch_up(&mut self, feed: &mut EventFeed) {
        while let Some(fed) = feed.try_next().unwrap() {
            self.take(&fed);
        }
    }

    fn titles(&self) -> Vec<String> {
        self.rows.values().filter(|(_, counts)| *counts).map(|(title, _)| title.clone()).collect()
    }

    #[track_caller]
    fn is_of(&self, session: &Session) {
        let plan: Vec<String> =
            session.view::<Plan>().unwrap().iter().map(|step| step.title.clone()).collect();
        assert_eq!(self.titles(), plan);
        assert_eq!(self.notes as u64, session.log().slice::<Notes>().unwrap().len());
    }
}

#[test]
fn a_model_that_is_stopped_anywhere_goes_on_behind_what_it_took() {
    let disk = MemoryStorage::new();
    let mut session = store(&disk).create(&types()).unwrap();
    let id = session.id();
    // More than a feed reads ahead.
    for part in 0..600 {
        add(&session, &format!("step {part}"));
        if part % 7 == 0 {
            session.dispatch(Noted { text: "noted".to_owned() }).unwrap();
        }
        if part == 300 {
            let there = session.snapshot(SnapshotOptions::default()).unwrap();
            add(&session, "given up");
            session.dispatch(Noted { text: "stays".to_owned() }).unwrap();
            session.rollback(&there).unwrap();
        }
    }
    let mut model = Table::default();
    for taken in [1, 100, 255, 256, 257, usize::MAX] {
        let mut feed = session.log().events_from(model.next).unwrap();
        for _ in 0..taken {
            let Some(fed) = feed.try_next().unwrap() else { break };
            model.take(&fed);
        }
        drop(feed);
        session.close().unwrap();
        session = store(&disk).open_session(id, &types()).unwrap();
    }
    model.is_of(&session);
    // There is nothing yet after the end.
    let mut feed = session.log().events_from(model.next).unwrap();
    assert!(feed.try_next().unwrap().is_none());
    add(&session, "new");
    model.catch_up(&mut feed);
    model.is_of(&session);
    // A reader of the log sees the same.
    let reader = LogReader::open_on(Arc::new(disk), session.dir()).unwrap();
    let mut read = Table::default();
    read.catch_up(&mut reader.events_from(0).unwrap());
    assert_eq!(read, model);
}

/// A rollback may return to a position that an earlier one has abandoned, as the undo of a rewind
/// does: the events there count again. A model received the position alone, and lost them.
#[test]
fn a_model_follows_rollbacks_forth_and_back_from_wherever_it_stands() {
    let disk = MemoryStorage::new();
    let session = store(&disk).create(&types()).unwrap();
    let mut models = vec![Table::default()];
    let mut feed = session.log().events_from(0).unwrap();
    let mut live = Table::default();
    let mut positions = Vec::new();
    for step in 0..40_u64 {
        add(&session, &format!("step {step}"));
        positions.push(session.log().position().unwrap());
        if step % 3 == 2 {
            // Various positions, some of them abandoned, all deterministic.
            session.rollback_to(positions[(step * 7 % positions.len() as u64) as usize]).unwrap();
        }
        live.catch_up(&mut feed);
        live.is_of(&session);
        // A feed that is restarted at each moment after its last event.
        let mut anew = models.last().unwrap().clone();
        anew.catch_up(&mut session.log().events_from(anew.next).unwrap());
        anew.is_of(&session);
        assert_eq!(anew, live);
        models.push(anew);
    }
    for mut behind in models {
        behind.catch_up(&mut session.log().events_from(behind.next).unwrap());
        behind.is_of(&session);
        assert_eq!(behind, live);
    }
}

#[test]
fn a_model_sees_each_event_once_while_threads_write() {
    let directory = tempfile::tempdir().unwrap();
    let session = Store::open(directory.path()).unwrap().create(&types()).unwrap();
    let (inside, outside) = thread::scope(|scope| {
        for thread in 0..4 {
            let session = &session;
            scope.spawn(move || (0..250).for_each(|step| add(session, &format!("{thread} {step}"))));
        }
        // One model in the process, and one that another process could have.
        let follow = |mut feed: EventFeed| {
            move || {
                let mut model = Table::default();
                while model.rows.len() < 1_000 {
                    model.take(&feed.next_within(SOON).unwrap().expect("there is more to come"));
                }
                model
            }
        };
        let inside = scope.spawn(follow(session.log().events_from(0).unwrap()));
        let outside = scope.spawn(follow(EventFeed::open(session.dir(), 0).unwrap()));
        (inside.join().unwrap(), outside.join().unwrap())
    });
    inside.is_of(&session);
    assert_eq!(inside, outside);
}

#[test]
fn a_feed_waits_for_what_comes_and_ends_with_its_session() {
    let disk = MemoryStorage::new();
    let session = store(&disk).create(&types()).unwrap();
    let mut feed = session.log().events_from(0).unwrap();
    assert!(feed.next_within(Duration::ZERO).unwrap().is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut titles = Vec::new();
            while let Some(fed) = feed.next_within(SOON).unwrap() {
                let Fed::Event(event) = fed else { panic!("{fed:?}") };
                titles.push(event.event.read::<StepAdded>().unwrap().unwrap().title);
            }
            titles
        });
        add(&session, "first");
        add(&session, "second");
        session.close().unwrap();
        assert_eq!(waits.join().unwrap(), ["first", "second"]);
    });
}

#[test]
fn a_stream_of_events_holds_no_thread_and_ends_with_its_session() {
    use futures_core::Stream;
    let disk = MemoryStorage::new();
    let session = store(&disk).create(&types()).unwrap();
    let (inside, outside) = (
        session.log().events_from(0).unwrap(),
        EventFeed::open_on(Arc::new(disk.clone()), session.dir(), 0).unwrap(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        // Both tasks and the writer share one thread.
        let inside = tokio::spawn(async move {
            let (mut feed, mut model) = (inside, Table::default());
            while let Some(fed) = poll_fn(|waker| Pin::new(&mut feed).poll_next(waker)).await {
                model.take(&fed.unwrap());
            }
            model
        });
        let outside = tokio::spawn(async move {
            let (mut feed, mut model) = (outside, Table::default());
            while model.rows.len() < 20 {
                model.take(&poll_fn(|waker| Pin::new(&mut feed).poll_next(waker)).await.unwrap().unwrap());
            }
            model
        });
        for step in 0..20 {
            session.dispatch_async(StepAdded { title: format!("{step}"), part: 0 }).await.unwrap();
            tokio::task::yield_now().await;
        }
        let outside = tokio::time::timeout(SOON, outside).await.unwrap().unwrap();
        outside.is_of(&session);
        session.close().unwrap();
        assert_eq!(tokio::time::timeout(SOON, inside).await.unwrap().unwrap(), outside);
    });
}
