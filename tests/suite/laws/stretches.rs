//! The session stores items of consecutive dispatches together in a memory of their own. Reads,
//! rollbacks, removals and openings show no difference.

use std::sync::Arc;

use foldlog::storage::MemoryStorage;
use foldlog::{
    BackgroundSync, Event, Item, Session, SessionTypes, Slice, SliceOp, Snapshot, SnapshotOptions, Store,
    StoreOptions, View,
};
use foldlog_codec::msgpack;
use proptest::prelude::*;
use proptest::sample::Index;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
struct Word {
    number: u64,
    text: String,
}

impl Event for Word {
    const NAME: &'static str = "word";
}

#[derive(Serialize, Deserialize, Debug, Clone)]
struct Turned {
    by: usize,
}

impl Event for Turned {
    const NAME: &'static str = "turned";
}

struct Words;

impl Slice for Words {
    const NAME: &'static str = "words";
    type Item = Word;
}

fn types() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Words>()
        .append_all::<Words>()
        .reducer::<Words, Turned>(|words, turned, _| {
            let mut items: Vec<Item<Word>> = words.items().collect();
            let by = turned.by.min(items.len());
            items.rotate_right(by);
            Ok(SliceOp::Replace(items))
        })
        .build()
        .unwrap()
}

#[derive(Clone, Debug)]
enum Deed {
    Stretch(usize),
    /// An item that is too large to be stored together with others.
    Large,
    Turn(usize),
    /// Removes every nth item.
    Thin(u64),
    Clear,
    Look,
    Snapshot,
    RollBack(Index),
    /// Starts or ends a subscription, which receives the events too.
    Listen(bool),
    Reopen,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        8 => (1..150_usize).prop_map(Deed::Stretch),
        4 => (1..4_usize).prop_map(Deed::Stretch),
        1 => Just(Deed::Large),
        2 => (0..200_usize).prop_map(Deed::Turn),
        2 => (2..40_u64).prop_map(Deed::Thin),
        1 => Just(Deed::Clear),
        4 => Just(Deed::Look),
        2 => Just(Deed::Snapshot),
        2 => any::<Index>().prop_map(Deed::RollBack),
        1 => any::<bool>().prop_map(Deed::Listen),
        1 => Just(Deed::Reopen),
    ];
    prop::collection::vec(deed, 1..20)
}

/// A view taken once, and the content that it must always show.
struct Seen {
    view: View<Word>,
    items: Vec<Item<Word>>,
    words: Vec<Word>,
}

/// A session and the vector that it is compared with.
struct Pair {
    store: Store,
    session: Session,
    words: Vec<Word>,
    next: u64,
    listening: Option<foldlog::Subscription>,
    snapshots: Vec<(Snapshot, Vec<Word>)>,
    seen: Vec<Seen>,
}

impl Pair {
    fn new() -> Pair {
        let options = StoreOptions {
            storage: Arc::new(MemoryStorage::new()),
            background: BackgroundSync::Inline,
            ..StoreOptions::default()
        };
        let store = Store::open_with("/store", options).unwrap();
        let session = store.create(&types()).unwrap();
        let (words, snapshots, seen) = (Vec::new(), Vec::new(), Vec::new());
        Pair { store, session, words, next: 0, listening: None, snapshots, seen }
    }

    fn dispatch(&mut self, text: String) {
        let word = Word { number: self.next, text };
        self.next += 1;
        self.session.dispatch(word.clone()).unwrap();
        self.words.push(word);
    }

    fn go_on(&mut self, deed: Deed) {
        match deed {
            Deed::Stretch(len) => (0..len).for_each(|_| self.dispatch(format!("word {}", self.next))),
            Deed::Large => self.dispatch("large ".repeat(200)),
            Deed::Turn(by) => {
                self.session.dispatch(Turned { by }).unwrap();
                let by = by.min(self.words.len());
                self.words.rotate_right(by);
            }
            Deed::Thin(every) => {
                self.session.clear_where::<Words>(move |word| word.number.is_multiple_of(every)).unwrap();
                self.words.retain(|word| !word.number.is_multiple_of(every));
            }
            Deed::Clear => {
                self.session.clear::<Words>().unwrap();
                self.words.clear();
            }
            Deed::Look => {
                let view = self.session.view::<Words>().unwrap();
                let items = view.items().collect();
                self.seen.push(Seen { view, items, words: self.words.clone() });
            }
            Deed::Snapshot => {
                let snapshot = self.session.snapshot(SnapshotOptions::default()).unwrap();
                self.snapshots.push((snapshot, self.words.clone()));
            }
            Deed::RollBack(to) => {
                if let Some(at) = (!self.snapshots.is_empty()).then(|| to.index(self.snapshots.len())) {
                    self.session.rollback(&self.snapshots[at].0).unwrap();
                    self.words = self.snapshots[at].1.clone();
                }
            }
            Deed::Listen(listen) => {
                if let Some(listening) = self.listening.take() {
                    self.session.log().unsubscribe(listening);
                }
                self.listening = listen.then(|| self.session.log().subscribe(|_| {}));
            }
            Deed::Reopen => {
                let id = self.session.id();
                self.session.clone().close().unwrap();
                self.session = self.store.open_session(id, &types()).unwrap();
                self.listening = None;
            }
        }
    }

    fn check(&self) {
        let view = self.session.view::<Words>().unwrap();
        assert_eq!(view.len(), self.words.len() as u64);
        assert!(view.iter().eq(&self.words), "{view:?}");
        assert!(view.iter().rev().eq(self.words.iter().rev()), "{view:?} from its end");
        assert_eq!(view.latest(), self.words.last());
    }
}

proptest! {
    #![proptest_config(super::config())]

    #[test]
    fn what_is_held_together_is_the_list_that_it_stands_for(deeds in deeds()) {
        let mut pair = Pair::new();
        for deed in deeds {
            pair.go_on(deed);
            pair.check();
        }
        for Seen { view, items, words } in &pair.seen {
            assert!(view.iter().eq(words), "a view changed");
            assert!(items.iter().map(|item| &**item).eq(words), "a handle shows another item");
        }
        let state = pair.session.dynamic().state().unwrap();
        let items = state.slices.get("words").map(|slice| slice.items.as_slice()).unwrap_or_default();
        let stored: Vec<Word> = items.iter().map(|item| msgpack::from_slice(&item.bytes).unwrap()).collect();
        assert_eq!(stored, pair.words, "by the records");
        pair.go_on(Deed::Reopen);
        pair.check();
    }
}
