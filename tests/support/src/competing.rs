//! Processes that compete for a session: each opens it whenever it is free, and writes a few notes.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

use foldlog::log::SegmentSizes;
use foldlog::{Durability, Error, Session, SnapshotOptions, Store, StoreOptions};
use uuid::Uuid;

use crate::child;
use crate::crash::Chance;
use crate::host::{Noted, types};

/// Opens a store with segments of a page, and with images as often as possible.
pub fn store_at(path: &Path, durability: Durability) -> Store {
    let segments = SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 };
    let options = StoreOptions { durability, segments, image_bytes_min: 4096, ..StoreOptions::default() };
    Store::open_with(path, options).unwrap()
}

/// The content of a note: the writing process, the number of its opening, the number of the note
/// within it, and text that fills the segments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub process: u64,
    pub opening: u64,
    pub nth: u64,
}

impl Mark {
    fn note(&self) -> Noted {
        Noted { text: format!("{} {} {} {}", self.process, self.opening, self.nth, "x".repeat(150)) }
    }

    /// Reads a mark from a note's text, or from a child's report of it.
    pub fn of(text: &str) -> Mark {
        let mut numbers = text.split(' ').map(|word| word.parse());
        let mut next = || numbers.next().unwrap().unwrap();
        Mark { process: next(), opening: next(), nth: next() }
    }
}

/// The test's own lock, held by the current writer of the session. The system releases a killed
/// process's locks in any order; the file's content distinguishes that from two simultaneous
/// writers.
struct Held(File);

impl Held {
    fn take(path: &Path) -> Held {
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        if file.try_lock().is_err() {
            file.lock().unwrap();
            let mut left = String::new();
            file.read_to_string(&mut left).unwrap();
            assert_ne!(left, "let go", "another process was writing");
        }
        Held::say(&mut file, "held");
        Held(file)
    }

    fn say(file: &mut File, word: &str) {
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        file.write_all(word.as_bytes()).unwrap();
    }

    fn let_go(mut self) {
        Held::say(&mut self.0, "let go");
        self.0.unlock().unwrap();
    }
}

fn open(store: &Store, id: Uuid) -> Option<Session> {
    match store.open_session(id, &types()) {
        Ok(session) => Some(session),
        Err(Error::Locked { .. }) => None,
        Err(error) => panic!("neither open nor locked: {error}"),
    }
}

/// Opens the session whenever it is free, writes a few notes, and closes or drops it. `argument`
/// contains the store, the session, the process's number, its first opening and the number of its
/// openings. Each note is reported as `kept`.
pub fn take_turns(argument: &str) {
    let words: Vec<&str> = argument.split(' ').collect();
    let [path, id, process, first, openings] = words[..] else { panic!("{words:?}") };
    let (path, id) = (Path::new(path), id.parse().unwrap());
    let (process, first): (u64, u64) = (process.parse().unwrap(), first.parse().unwrap());
    let durability = [Durability::Process, Durability::Boundary, Durability::Every][process as usize % 3];
    let mut chance = Chance::new(process << 32 | first);
    for opening in first..first + openings.parse::<u64>().unwrap() {
        let store = store_at(path, durability);
        let session = loop {
            match open(&store, id) {
                Some(session) => break session,
                None => std::thread::yield_now(),
            }
        };
        let held = Held::take(&path.join("held-by-whoever-writes"));
        for nth in 0..1 + chance.below(12) {
            let mark = Mark { process, opening, nth };
            session.dispatch(mark.note()).unwrap();
            child::tell("kept", format!("{process} {opening} {nth}"));
            if chance.percent(10) {
                session.snapshot(SnapshotOptions::default()).unwrap();
            }
        }
        held.let_go();
        if chance.percent(70) {
            session.close().unwrap();
        }
    }
}
