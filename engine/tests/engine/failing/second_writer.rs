//! Two writers of one session, on a file system whose locks exclude no process.

use std::collections::BTreeMap;
use std::fs;

use foldlog::storage::Fault;
use foldlog::{Durability, Error, Session, Store};
use foldlog_test_support::crash::Machine;
use foldlog_test_support::host::{Noted, Notes, types};
use uuid::Uuid;

use super::LEVELS;

fn note(session: &Session, text: &str) -> foldlog::Result<u64> {
    session.dispatch(Noted { text: text.to_owned() }).map(foldlog::SequenceNumber::get)
}

/// Returns a session with some records, and two processes that both have it open for writing.
fn both(level: Durability) -> (Machine, Uuid, [Session; 2]) {
    let machine = Machine::default();
    let session = machine.process(level).create(&types()).unwrap();
    for n in 0..5 {
        note(&session, &format!("before {n}")).unwrap();
    }
    let id = session.id();
    session.close().unwrap();
    assert!({
        let first = machine.open(id, level).unwrap();
        let refused = machine.open(id, level).is_err_and(|error| matches!(error, Error::Locked { .. }));
        first.close().unwrap();
        refused
    });
    machine.disk.inject(Fault::LocksExcludeNobody);
    let both = [machine.open(id, level).unwrap(), machine.open(id, level).unwrap()];
    (machine, id, both)
}

/// When writers did not check the file before a write, each acknowledged all its records, under
/// numbers that the other had used too.
#[test]
fn two_writers_whom_no_lock_keeps_apart_acknowledge_no_number_twice() {
    for level in LEVELS {
        for turns in [[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 1]] {
            let (machine, id, both) = both(level);
            let mut acknowledged: BTreeMap<u64, Vec<String>> = BTreeMap::new();
            let mut stopped = [false; 2];
            for (n, turn) in turns.into_iter().cycle().take(80).enumerate() {
                let text = format!("{n} by writer {turn}{}", "x".repeat(n % 7));
                match note(&both[turn], &text) {
                    Ok(sequence) => acknowledged.entry(sequence).or_default().push(text),
                    Err(Error::SecondWriter { session, .. }) => stopped[turn] = session == id,
                    Err(Error::DurabilityUnknown { cause, .. } | Error::Poisoned { cause })
                        if matches!(*cause, Error::SecondWriter { .. }) =>
                    {
                        stopped[turn] = true;
                    }
                    Err(error) => panic!("{level:?}, {turns:?}: {error}"),
                }
            }
            assert_ne!(stopped, [false; 2], "{level:?}, {turns:?}");
            let twice: Vec<_> = acknowledged.values().filter(|texts| texts.len() > 1).collect();
            assert!(twice.is_empty(), "{level:?}, {turns:?}: {twice:?}");
            drop(both);
            machine.disk.clear_faults();
            let session = machine.open(id, level).unwrap();
            let notes = session.log().slice::<Notes>().unwrap().tail(100).unwrap();
            for text in acknowledged.into_values().flatten() {
                assert!(notes.iter().any(|note| note.text == text), "{level:?}, {turns:?}: {text}");
            }
        }
    }
}

/// The note next to the lock reveals a writer that has not written anything yet.
#[test]
fn a_writer_that_syncs_finds_that_the_session_was_opened_again() {
    let (_machine, id, [first, second]) = both(Durability::Boundary);
    note(&first, "acknowledged, and not yet durable").unwrap();
    let error = first.sync().unwrap_err();
    let Error::DurabilityUnknown { cause, .. } = &error else { panic!("{error}") };
    assert!(matches!(&**cause, Error::SecondWriter { session, .. } if *session == id), "{error}");
    assert!(error.to_string().contains("another process took its lock"), "{error}");
    // Dropping the first writer leaves the second one's note in place.
    drop(first);
    second.sync().unwrap();
}

/// Copies by hard links have separate locks and share the segments, which are mapped here. Each of
/// two writers once overwrote records that the other had acknowledged.
#[test]
fn writers_of_copies_by_hard_links_find_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let store = |name: &str| Store::open(directory.path().join(name)).unwrap();
    let session = store("one").create(&types()).unwrap();
    note(&session, "before").unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let copy = directory.path().join("two/sessions").join(id.to_string());
    fs::create_dir_all(&copy).unwrap();
    for segment in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        if segment.is_file() {
            fs::hard_link(&segment, copy.join(segment.file_name().unwrap())).unwrap();
        }
    }
    let [one, two] = ["one", "two"].map(|name| store(name).open_session(id, &types()).unwrap());
    note(&one, "first").unwrap();
    let error = note(&two, "second").unwrap_err();
    assert!(matches!(error, Error::SecondWriter { .. }), "{error}");
    assert!(matches!(note(&two, "again"), Err(Error::Poisoned { .. })));
    note(&one, "goes on").unwrap();
    one.close().unwrap();
    drop(two);
    let session = store("one").open_session(id, &types()).unwrap();
    let notes = session.log().slice::<Notes>().unwrap().tail(10).unwrap();
    assert_eq!(
        notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(),
        ["before", "first", "goes on"]
    );
}
