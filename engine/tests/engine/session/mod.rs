//! Stories of sessions through the public API: a host's actions, and the state that it finds
//! afterwards.

mod by_name;
mod declarations;
mod exports;
mod forks;
mod imaging;
mod in_time;
mod limits;
mod listing;
mod logs;
mod long;
mod policies;
mod reducers;
mod resting;
mod snapshots;
mod stores;
mod subscribers;
mod threads;
mod two_sessions;
mod versions;

use std::sync::Arc;

use foldlog::storage::MemoryStorage;
use foldlog::{
    BackgroundSync, FixedClock, Session, SessionOptions, SessionTypes, Slice, Store, StoreOptions,
};
use foldlog_test_support::host::{StepAdded, types};
use serde_json::Value;

/// The start of every story: 2026-01-02T03:00:00Z.
const BEGIN_US: i64 = 1_767_322_800_000_000;

/// A store in memory whose clock stands still until it is moved.
struct Home {
    disk: MemoryStorage,
    clock: Arc<FixedClock>,
    store: Store,
}

fn home() -> Home {
    home_with(|_| {})
}

fn home_with(change: impl FnOnce(&mut StoreOptions)) -> Home {
    let disk = MemoryStorage::new();
    let clock = Arc::new(FixedClock::new(BEGIN_US));
    let mut options = StoreOptions {
        storage: Arc::new(disk.clone()),
        clock: Arc::clone(&clock) as _,
        seed: Some(1),
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    change(&mut options);
    let store = Store::open_with("/store", options).unwrap();
    Home { disk, clock, store }
}

impl Home {
    fn session(&self) -> Session {
        self.store.create(&types()).unwrap()
    }

    fn reopened(&self, session: Session, types: &SessionTypes) -> Session {
        let id = session.id();
        session.close().unwrap();
        self.store.open_session(id, types).unwrap()
    }
}

fn seeded(seed: u64) -> SessionOptions {
    SessionOptions { seed: Some(seed), ..SessionOptions::default() }
}

fn step(title: &str) -> StepAdded {
    part(title, 0)
}

fn part(title: &str, part: u8) -> StepAdded {
    StepAdded { title: title.to_owned(), part }
}

fn titles<S: Slice<Item = StepAdded>>(session: &Session) -> Vec<String> {
    session.view::<S>().unwrap().iter().map(|step| step.title.clone()).collect()
}

/// Returns the stored items of a slice as JSON, whatever its policy; none if there is no such
/// slice.
fn stored(session: &Session, slice: &str) -> Vec<Value> {
    let state = session.dynamic().state().unwrap();
    let items = state.slices.get(slice).map(|slice| slice.items.as_slice()).unwrap_or_default();
    items.iter().map(|item| serde_json::to_value(item.value().unwrap()).unwrap()).collect()
}

fn kinds(session: &Session) -> Vec<String> {
    let mut kinds = Vec::new();
    let read = session.log().records(0, u64::MAX, |record| {
        assert_eq!(record.sequence, kinds.len() as u64);
        kinds.push(record.kind.name().to_owned());
        Ok(())
    });
    read.unwrap();
    kinds
}
