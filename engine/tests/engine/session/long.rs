//! Logs long enough to be folded by one thread while another reads them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use foldlog::{Error, Event, SequenceNumber, SessionTypes, Slice, SnapshotOptions, Store, StoreOptions};
use foldlog_test_support::host::{self, Draft, DraftEdited, Noted, Undeclared};
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use super::{home_with, step};

/// An event of about 300 bytes for one slice.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
struct Line {
    number: u64,
    text: String,
}

impl Event for Line {
    const NAME: &'static str = "line";
}

struct Lines;

impl Slice for Lines {
    const NAME: &'static str = "lines";
    type Item = Line;
}

const LINES: u64 = 20_000;

fn line(number: u64) -> Line {
    Line { number, text: "and so on ".repeat(30 + (number % 3) as usize) }
}

fn no_images(options: &mut StoreOptions) {
    options.image_bytes_min = u64::MAX;
}

fn lines(store: &Store) -> Uuid {
    let types = SessionTypes::builder().slice::<Lines>().append_all::<Lines>().build().unwrap();
    let session = store.create(&types).unwrap();
    (0..LINES).for_each(|number| assert!(session.dispatch(line(number)).is_ok()));
    let id = session.id();
    session.close().unwrap();
    id
}

#[test]
fn a_long_log_of_all_sorts_opens_as_it_was_left() {
    let home = home_with(no_images);
    let types = host::builder().slice::<Lines>().append_all::<Lines>().build().unwrap();
    let session = home.store.create(&types).unwrap();
    let mut snapshot = None;
    for number in 0..LINES {
        session.dispatch(line(number)).unwrap();
        match number % 7 {
            0 => drop(session.dispatch(step("a step")).unwrap()),
            1 => {
                let edit = DraftEdited { place: (number % 5) as usize, line: format!("line {number}") };
                session.dispatch(edit).map(drop).unwrap();
            }
            2 => session.dispatch(Noted { text: format!("note {number}") }).map(drop).unwrap(),
            // Declared after much was read already.
            3 if number > LINES / 2 => session.dispatch(Undeclared { value: 7 }).map(drop).unwrap(),
            _ => {}
        }
        match number % 2_500 {
            100 => snapshot = Some(session.snapshot(SnapshotOptions::default()).unwrap()),
            300 => drop(session.rollback(snapshot.as_ref().unwrap()).unwrap()),
            _ => {}
        }
    }
    let (state, position) = (session.dynamic().state().unwrap(), session.log().position());
    let shown: Vec<Line> = session.view::<Lines>().unwrap().iter().cloned().collect();
    let session = home.reopened(session, &types);
    assert_eq!(session.log().position(), position);
    assert_eq!(session.log().recovery().from_image, None);
    assert!(session.view::<Lines>().unwrap().iter().eq(&shown), "{} lines", shown.len());
    assert_eq!(session.dynamic().state().unwrap().digest(), state.digest());
    assert!(!session.view::<Draft>().unwrap().is_empty());
}

/// A host that cannot decode one of the lines.
#[derive(Serialize, Deserialize)]
struct Picky<const BAD: u64> {
    number: Number<BAD>,
}

#[derive(Serialize)]
struct Number<const BAD: u64>(u64);

impl<'de, const BAD: u64> Deserialize<'de> for Number<BAD> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            number if number == BAD => Err(serde::de::Error::custom("not this one")),
            number => Ok(Number(number)),
        }
    }
}

impl<const BAD: u64> Event for Picky<BAD> {
    const NAME: &'static str = "line";
}

impl<const BAD: u64> Slice for Picky<BAD> {
    const NAME: &'static str = "lines";
    type Item = Picky<BAD>;
}

fn is_named<const BAD: u64>(store: &Store, id: Uuid) {
    let types = SessionTypes::builder().slice::<Picky<BAD>>().append_all::<Picky<BAD>>().build().unwrap();
    match store.open_session(id, &types) {
        Err(Error::Decode { name, sequence, reason }) => {
            // The opening and the declaration come before the first line.
            assert_eq!((name.as_str(), sequence), ("line", SequenceNumber::new(BAD + 2)));
            assert!(reason.contains("not this one"), "{reason}");
        }
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn an_item_that_does_not_read_is_named_wherever_in_a_long_log_it_stands() {
    let home = home_with(no_images);
    let id = lines(&home.store);
    is_named::<0>(&home.store, id);
    is_named::<18_000>(&home.store, id);
    is_named::<{ LINES - 1 }>(&home.store, id);
}

#[test]
fn a_host_that_panics_while_it_reads_an_item_panics_in_the_thread_that_opens() {
    fn scared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let number = u64::deserialize(deserializer)?;
        assert!(number < 18_000, "too many");
        Ok(number)
    }
    #[derive(Serialize, Deserialize)]
    struct Scared {
        #[serde(deserialize_with = "scared")]
        number: u64,
    }
    impl Event for Scared {
        const NAME: &'static str = "line";
    }
    struct Few;
    impl Slice for Few {
        const NAME: &'static str = "lines";
        type Item = Scared;
    }
    let home = home_with(no_images);
    let id = lines(&home.store);
    let types = SessionTypes::builder().slice::<Few>().append_all::<Few>().build().unwrap();
    let opened = catch_unwind(AssertUnwindSafe(|| home.store.open_session(id, &types).map(drop)));
    let said = opened.unwrap_err();
    assert_eq!(said.downcast_ref::<&str>(), Some(&"too many"));
    let types = SessionTypes::builder().slice::<Lines>().append_all::<Lines>().build().unwrap();
    assert_eq!(home.store.open_session(id, &types).unwrap().view::<Lines>().unwrap().len(), LINES);
}
