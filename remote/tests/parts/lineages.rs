//! Makes sessions whose logs are no plain sequence of records: forks, salvaged and compacted ones.
//! Takes them over and copies them to other machines, and compares the logs.

use std::collections::BTreeSet;
use std::path::Path;

use foldlog::inspect::LogReader;
use foldlog::{
    CompactOptions, Error, Event, Policy, Session, SessionOptions, SessionTypes, Slice, SnapshotOptions,
    Store,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Drafted(String);

impl Event for Drafted {
    const NAME: &'static str = "text.drafted";
}

struct Text;

impl Slice for Text {
    const NAME: &'static str = "text";
    type Item = Drafted;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Stepped(u64);

impl Event for Stepped {
    const NAME: &'static str = "step.added";
}

struct Steps;

impl Slice for Steps {
    const NAME: &'static str = "steps";
    type Item = Stepped;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Noted(String);

impl Event for Noted {
    const NAME: &'static str = "noted";
}

struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = Noted;
}

pub(crate) fn types() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Text>()
        .replace_latest::<Text>()
        .slice::<Steps>()
        .append_all::<Steps>()
        .slice_with::<Notes>(Policy::Log)
        .append_all::<Notes>()
        .build()
        .unwrap()
}

/// Describes how a session came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lineage {
    Fork,
    /// Forked after the parent's first record.
    ForkAtOnce,
    ForkOfFork,
    /// Forked from a fork that has only its first record of its own.
    ForkOfFreshFork,
    Salvaged,
    /// Compacted before it was replicated at all.
    Compacted,
    /// Compacted twice, and partly replicated in between.
    CompactedAgain,
    /// Replicated with all its bodies, and compacted afterwards.
    HeldThenCompacted,
    ForkOfCompacted,
    /// A fork that was compacted, including the part that it shares with its parent.
    CompactedFork,
}

pub(crate) const LINEAGES: [Lineage; 10] = [
    Lineage::Fork,
    Lineage::ForkAtOnce,
    Lineage::ForkOfFork,
    Lineage::ForkOfFreshFork,
    Lineage::Salvaged,
    Lineage::Compacted,
    Lineage::CompactedAgain,
    Lineage::HeldThenCompacted,
    Lineage::ForkOfCompacted,
    Lineage::CompactedFork,
];

/// Opens the store of the named worker in a directory. Without a name the store has no replicator.
pub(crate) type Opens<'a> = &'a dyn Fn(&Path, Option<&str>) -> Store;

/// Writes drafts, each of which replaces the one before, rolls some of them back, and writes steps
/// that stay.
pub(crate) fn write(session: &Session, drafts: std::ops::Range<u64>) {
    for n in drafts {
        session.dispatch(Drafted(format!("draft {n}: {}", "and so on. ".repeat(30)))).unwrap();
        match n % 10 {
            3 => _ = session.dispatch(Stepped(n)).unwrap(),
            5 => _ = session.dispatch(Noted(format!("note {n}"))).unwrap(),
            7 => {
                let before = session.log().position().unwrap();
                session.dispatch(Stepped(1_000 + n)).unwrap();
                session.rollback_to(before).unwrap();
            }
            _ => {}
        }
        if n % 25 == 8 {
            let tag = Some(format!("at {n}"));
            session.snapshot(SnapshotOptions { tag, ..SnapshotOptions::default() }).unwrap();
        }
    }
}

fn compact(store: &Store, id: Uuid) {
    let report = store.compact(id, &CompactOptions::default()).unwrap();
    assert!(report.dropped > 10, "{report:?}");
}

/// Makes a session in the directory, replicated in full by a worker `one`, and returns its id.
pub(crate) fn make(lineage: Lineage, directory: &Path, open: Opens<'_>) -> Uuid {
    let (plain, held) = (open(directory, None), || open(directory, Some("one")));
    let first = plain.create(&types()).unwrap();
    write(&first, 0..60);
    // Exceeds the size of a record.
    first.dispatch(Noted("long ".repeat(30_000))).unwrap();
    write(&first, 60..70);
    let (id, last) = (first.id(), first.log().position().unwrap());
    let fork = |of: Uuid, at: foldlog::SequenceNumber| {
        let fork = plain.fork(of, at, &types(), SessionOptions::default()).unwrap();
        write(&fork, 100..140);
        let (id, last) = (fork.id(), fork.log().position().unwrap());
        fork.close().unwrap();
        (id, last)
    };
    let id = match lineage {
        Lineage::Fork => fork(id, last - 20).0,
        Lineage::ForkAtOnce => fork(id, 0.into()).0,
        Lineage::ForkOfFork => {
            let (id, last) = fork(id, last - 20);
            fork(id, last - 30).0
        }
        Lineage::ForkOfFreshFork => {
            let fresh = plain.fork(id, last - 20, &types(), SessionOptions::default()).unwrap();
            let (id, last) = (fresh.id(), fresh.log().position().unwrap());
            fresh.close().unwrap();
            fork(id, last).0
        }
        Lineage::Salvaged => {
            first.close().unwrap();
            plain.salvage(plain.session_dir(id), SessionOptions::default()).unwrap().session
        }
        Lineage::Compacted | Lineage::ForkOfCompacted => {
            first.close().unwrap();
            compact(&plain, id);
            match lineage {
                Lineage::ForkOfCompacted => {
                    let log = LogReader::open(plain.session_dir(id)).unwrap();
                    let known = log.compacted_ranges()[0].known[1];
                    fork(id, known).0
                }
                _ => id,
            }
        }
        Lineage::CompactedAgain => {
            first.close().unwrap();
            compact(&plain, id);
            let session = held().open_session(id, &types()).unwrap();
            write(&session, 200..220);
            session.close().unwrap();
            // Compacts records that were never replicated, and some that were.
            let unreplicated = plain_that_writes(directory, open);
            let session = unreplicated.open_session(id, &types()).unwrap();
            write(&session, 220..270);
            session.close().unwrap();
            compact(&unreplicated, id);
            id
        }
        Lineage::HeldThenCompacted => {
            first.close().unwrap();
            held().open_session(id, &types()).unwrap().close().unwrap();
            compact(&plain_that_writes(directory, open), id);
            id
        }
        Lineage::CompactedFork => {
            let (id, _) = fork(id, last - 20);
            compact(&plain, id);
            id
        }
    };
    drop(plain);
    let session = held().open_session(id, &types()).unwrap();
    write(&session, 300..310);
    session.close().unwrap();
    id
}

/// Opens a store without a worker's name, which may write replicated sessions nevertheless.
fn plain_that_writes(directory: &Path, open: Opens<'_>) -> Store {
    open(directory, None)
}

/// Compares a session's own log with one that was made of its replicated records: all records, the
/// state at each position, and their origin.
#[track_caller]
pub(crate) fn assert_alike(lineage: Lineage, own: &Path, made: &Path) {
    let (own, made) = (LogReader::open(own).unwrap(), LogReader::open(made).unwrap());
    made.check_seals().unwrap();
    let last = own.last_position();
    assert_eq!(made.last_position(), last, "{lineage:?}");
    assert_eq!(made.digest_through(last).unwrap(), own.digest_through(last).unwrap(), "{lineage:?}");
    assert_eq!(
        (made.opening_record(), made.opened_sequence()),
        (own.opening_record(), own.opened_sequence())
    );
    assert_eq!((made.tags(), made.declarations()), (own.tags(), own.declarations()));
    let mut known = 0;
    for position in 0..=last.get() {
        match (own.state_reader_at(position), made.state_reader_at(position)) {
            (Ok(own), Ok(made)) => {
                known += 1;
                assert_eq!(own.digest().unwrap(), made.digest().unwrap(), "{lineage:?} at {position}");
            }
            (Err(Error::Compacted { earliest: own, .. }), Err(Error::Compacted { earliest: made, .. })) => {
                let earlier = lineage == Lineage::CompactedAgain && made < own;
                assert!(own == made || earlier, "{lineage:?} at {position}: {own}, {made}");
            }
            // The bodies were replicated before they were dropped, or none was dropped yet.
            (Err(Error::Compacted { .. }), Ok(_)) => {
                let before =
                    made.compacted_ranges().first().is_some_and(|range| range.from > position.into());
                let held = matches!(lineage, Lineage::HeldThenCompacted | Lineage::CompactedAgain);
                assert!(before || held, "{lineage:?} at {position}");
            }
            (own, made) => panic!("{lineage:?} at {position}: {:?}, {:?}", own.err(), made.err()),
        }
    }
    assert!(known > 10, "{lineage:?}: {known}");
    if own.compacted_ranges().is_empty() {
        assert_eq!(made.compacted_ranges(), Vec::new(), "{lineage:?}");
    }
}

/// Exercises a session after a takeover: all operations that a session allows.
fn assert_goes_on(lineage: Lineage, store: &Store, id: Uuid, session: Session) {
    let earlier = session.view::<Steps>().unwrap().len();
    write(&session, 400..430);
    let before = session.log().position().unwrap();
    session.dispatch(Stepped(1)).unwrap();
    session.rollback_to(before).unwrap();
    assert_eq!(session.view::<Steps>().unwrap().len(), earlier + 3, "{lineage:?}");
    // As far back as its log reaches.
    let (dir, opened_at) =
        (session.dir().to_owned(), LogReader::open(session.dir()).unwrap().opened_sequence());
    let tagged: Vec<_> =
        session.log().snapshots().unwrap().into_iter().map(|snapshot| snapshot.position).collect();
    let back = tagged.first().copied().unwrap();
    let then = LogReader::open(&dir).unwrap().state_reader_at(back).unwrap().digest().unwrap();
    session.rollback_to(back).unwrap();
    let now = LogReader::open(&dir).unwrap().state_reader().unwrap().digest().unwrap();
    // A rollback leaves LOG slices.
    assert!(now != then || lineage == Lineage::ForkAtOnce);
    session.rollback_to(before).unwrap();
    for at in [Some(before), opened_at.checked_sub(1), Some(back)].into_iter().flatten() {
        let fork = match store.fork(id, at, &types(), SessionOptions::default()) {
            Err(Error::Compacted { .. }) if lineage == Lineage::CompactedFork => continue,
            fork => fork.unwrap_or_else(|error| panic!("{lineage:?} at {at}: {error}")),
        };
        write(&fork, 500..510);
        let (dir, fork) = (fork.dir().to_owned(), fork.close());
        fork.unwrap();
        let forked = LogReader::open(dir).unwrap();
        forked.check_lineage(&LogReader::open(session.dir()).unwrap()).unwrap();
    }
    session.close().unwrap();
    let state = |dir: &Path| LogReader::open(dir).unwrap().state_reader().unwrap().digest().unwrap();
    let was = state(&dir);
    let report = store.compact(id, &CompactOptions::default()).unwrap();
    assert!(report.dropped > 0, "{lineage:?}: {report:?}");
    assert_eq!(state(&dir), was, "{lineage:?}");
    let session = store.open_session(id, &types()).unwrap();
    write(&session, 600..610);
    session.close().unwrap();
    LogReader::open(&dir).unwrap().check_seals().unwrap();
}

/// Takes a session over, works with it there, and takes it over once more.
pub(crate) fn take_over_and_go_on(lineage: Lineage, open: Opens<'_>) {
    let directories = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [one, two, three] = [&directories[0], &directories[1], &directories[2]].map(tempfile::TempDir::path);
    let id = make(lineage, one, open);
    let own = open(one, None).session_dir(id);
    let store = open(two, Some("two"));
    let session = store.take_over(id, &types()).unwrap_or_else(|error| panic!("{lineage:?}: {error}"));
    let copied = tempfile::tempdir().unwrap();
    crate::directories::copy(session.dir(), &copied.path().join(id.to_string()));
    // The takeover itself appends nothing.
    assert_alike(lineage, &own, &copied.path().join(id.to_string()));
    assert_goes_on(lineage, &store, id, session);
    drop(store);
    let again = open(three, Some("three")).take_over(id, &types());
    let again = again.unwrap_or_else(|error| panic!("{lineage:?}, again: {error}"));
    let dirs = (open(two, None).session_dir(id), again.dir().to_owned());
    again.close().unwrap();
    let digest = |dir: &Path| {
        let log = LogReader::open(dir).unwrap();
        (
            log.last_position(),
            log.digest_through(log.last_position()).unwrap(),
            log.state_reader().unwrap().digest().unwrap(),
        )
    };
    assert_eq!(digest(&dirs.0), digest(&dirs.1), "{lineage:?}");
}

/// Copies a session for reading, and later its new records. Then restores records to a log that
/// lost them in a power cut.
pub(crate) fn pull_and_fetch(lineage: Lineage, open: Opens<'_>) {
    let directories = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [one, two, older] = [&directories[0], &directories[1], &directories[2]].map(tempfile::TempDir::path);
    let id = make(lineage, one, open);
    let (own, made) = (open(one, None).session_dir(id), open(two, None).session_dir(id));
    let store = open(two, Some("two"));
    assert!(store.pull(id).unwrap().new > 0);
    assert_alike(lineage, &own, &made);
    if lineage == Lineage::HeldThenCompacted {
        // Records that were replicated with their bodies have them.
        let compacted = [&own, &made].map(|dir| LogReader::open(dir).unwrap().compacted_ranges());
        assert_eq!(compacted.map(|ranges| ranges.len()), [1, 0]);
    }
    assert_eq!(store.pull(id).unwrap().new, 0);
    crate::directories::copy(one, older);

    let first = open(one, Some("one"));
    let session = first.open_session(id, &types()).unwrap();
    write(&session, 700..720);
    session.close().unwrap();
    assert!(store.pull(id).unwrap().new > 20);
    assert_alike(lineage, &own, &made);
    drop(first);

    // The disk of the first worker lost its tail.
    let first = open(older, Some("one"));
    let session = first.open_session(id, &types()).unwrap();
    assert!(session.log().recovery().fetched > 20);
    session.close().unwrap();
    assert_alike(lineage, &own, &first.session_dir(id));
    let positions: BTreeSet<_> = [one, older]
        .map(|directory| LogReader::open(open(directory, None).session_dir(id)).unwrap().last_position())
        .into();
    assert_eq!(positions.len(), 1, "{lineage:?}");
}
