//! LOG slices, read from the log by position.

use foldlog::inspect::LogReader;
use foldlog::log::SegmentSizes;
use foldlog::testkit::rollback_discarding_logs;
use foldlog::{
    BackgroundSync, Durability, Error, Item, LogView, Policy, Session, SessionTypes, Slice, SliceOp, Store,
    StoreOptions,
};
use foldlog_test_support::host::{Noted, Notes, types};

/// Returns some places: the first, the last, those next to marks and batches, and many in between.
fn places(len: u64) -> impl Iterator<Item = u64> {
    (0..len).filter(move |place| place % 97 == 0 || place % 256 < 2 || place % 256 == 255 || len - place < 3)
}

fn note(n: u64) -> Noted {
    Noted { text: format!("note {n} {}", "x".repeat((n % 50) as usize)) }
}

fn write(session: &Session, notes: std::ops::Range<u64>) {
    for n in notes {
        session.dispatch(note(n)).unwrap();
    }
}

/// Checks that a view shows the first notes, wherever it is read.
fn check(log: &LogView<Noted>, len: u64) {
    assert_eq!(log.len(), len);
    for place in places(len) {
        assert_eq!(*log.get(place).unwrap().unwrap(), note(place), "at {place} of {len}");
    }
    for beyond in [len, len + 1, u64::MAX] {
        assert!(log.get(beyond).unwrap().is_none());
    }
    let whole: Vec<Noted> = log.iter().map(|item| (*item.unwrap()).clone()).collect();
    assert!(whole.iter().eq(&(0..len).map(note).collect::<Vec<_>>()), "in order and without gaps");
    for count in [0, 1, 255, 256, 257, len as usize, usize::MAX] {
        let tail: Vec<Noted> = log.tail(count).unwrap().iter().map(|item| (**item).clone()).collect();
        assert_eq!(tail, whole[whole.len().saturating_sub(count)..], "the last {count}");
    }
}

fn store(directory: &std::path::Path, background: BackgroundSync) -> Store {
    let options = StoreOptions {
        durability: Durability::Process,
        segments: SegmentSizes { first_bytes: 1, max_bytes: 16 << 10, ahead_bytes_min: 0 },
        image_bytes_min: 1,
        background,
        ..StoreOptions::default()
    };
    Store::open_with(directory, options).unwrap()
}

/// Over several segments, which are sealed meanwhile, with an active writer.
#[test]
fn a_view_shows_what_was_there_when_it_was_taken_from_the_front_the_middle_and_the_tail() {
    tell_of_views(BackgroundSync::Inline);
    tell_of_views(BackgroundSync::Thread);
}

fn tell_of_views(background: BackgroundSync) {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), background);
    let session = store.create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    assert!(session.log().slice::<Notes>().unwrap().is_empty());
    let mut views = Vec::new();
    for n in 0..1500 {
        session.dispatch(note(n)).unwrap();
        // Records of another kind in between.
        if n % 7 == 0 {
            session.set_tag("n", n.to_string()).unwrap();
        }
        if [0, 255, 256, 700, 1499].contains(&n) {
            views.push((session.log().slice::<Notes>().unwrap(), n + 1));
        }
    }
    let segments = std::fs::read_dir(&dir).unwrap().filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        path.extension().is_some_and(|extension| extension == "seg")
    });
    assert!(segments.count() > 3);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&session, 1500..1700));
        views.iter().for_each(|(log, len)| check(log, *len));
        writer.join().unwrap();
    });
    check(&session.log().slice::<Notes>().unwrap(), 1700);
    session.rollback_to(300).unwrap();
    check(&session.log().slice::<Notes>().unwrap(), 1700);
    session.close().unwrap();
    views.iter().for_each(|(log, len)| check(log, *len));

    let again = store.open_session(id, &types()).unwrap();
    // The background thread may not have written an image before the session was closed.
    assert!(again.log().recovery().from_image.is_some() || background == BackgroundSync::Thread);
    check(&again.log().slice::<Notes>().unwrap(), 1700);
    again.dispatch(note(1700)).unwrap();
    check(&again.log().slice::<Notes>().unwrap(), 1701);
    let audited = LogReader::open(&dir).unwrap().state().unwrap();
    assert_eq!(again.dynamic().state().unwrap(), audited);
}

/// Only tests can undo items of LOG: such items are missing from the slice, before an image and
/// after it.
#[test]
fn items_that_were_undone_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), BackgroundSync::Inline);
    let mut session = store.create(&types()).unwrap();
    let id = session.id();
    let mut expected = 0;
    for _ in 0..4 {
        write(&session, expected..expected + 300);
        expected += 300;
        let here = session.log().position().unwrap();
        let before = session.log().slice::<Notes>().unwrap();
        for n in 0..300 {
            session.dispatch(note(7 * n)).unwrap();
        }
        rollback_discarding_logs(&session, here).unwrap();
        check(&before, expected);
        check(&session.log().slice::<Notes>().unwrap(), expected);
        session.close().unwrap();
        session = store.open_session(id, &types()).unwrap();
        assert!(session.log().recovery().from_image.is_some());
        check(&session.log().slice::<Notes>().unwrap(), expected);
    }
}

/// The sum of the last three notes' lengths and its own.
struct Window;

impl Slice for Window {
    const NAME: &'static str = "window";
    type Item = u64;
    const ITEM_NAME: &'static str = "window.sum";
}

#[test]
fn a_reducer_sees_as_many_last_items_as_it_asks_for_also_behind_an_image() {
    let types = SessionTypes::builder()
        .slice_with::<Window>(Policy::Log)
        .tail_items::<Window>(3)
        .reducer::<Window, Noted>(|last, noted, _| {
            let items: Vec<Item<u64>> = last.items().collect();
            assert!(items.len() <= 3);
            Ok(SliceOp::Append(items.iter().map(|sum| **sum % 1000).sum::<u64>() + noted.text.len() as u64))
        })
        .build()
        .unwrap();
    let mut expected: Vec<u64> = Vec::new();
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), BackgroundSync::Inline);
    let id = store.create(&types).unwrap().id();
    for round in 0..5 {
        let session: Session = store.open_session(id, &types).unwrap();
        assert!(session.log().recovery().from_image.is_some());
        // The last items may be in different segments.
        for n in 0..[1, 2, 1, 300, 7][round] {
            session.dispatch(note(n)).unwrap();
            let last = expected.iter().rev().take(3).map(|sum| sum % 1000).sum::<u64>();
            expected.push(last + note(n).text.len() as u64);
        }
        let sums: Vec<u64> =
            session.log().slice::<Window>().unwrap().iter().map(|sum| *sum.unwrap()).collect();
        assert_eq!(sums, expected, "round {round}");
    }
}

#[test]
fn a_frame_that_was_damaged_since_is_an_error_where_it_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path(), BackgroundSync::Inline);
    let session = store.create(&types()).unwrap();
    write(&session, 0..1500);
    let log = session.log().slice::<Notes>().unwrap();
    let first = session.dir().join("0000000000.seg");
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[2000] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    let read: Vec<_> = log.iter().collect();
    let (sound, bad) = read.split_at(read.len() - 1);
    assert!(matches!(bad, [Err(Error::Corrupt(_))]), "the first that cannot be read is the last");
    assert!(sound.iter().zip(0..).all(|(item, n)| **item.as_ref().unwrap() == note(n)));
    assert_eq!(*log.get(1400).unwrap().unwrap(), note(1400));
    assert_eq!(log.tail(100).unwrap().len(), 100);
}
