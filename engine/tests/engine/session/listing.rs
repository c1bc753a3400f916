//! The listing of a store, and the index that it keeps for the next one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use foldlog::storage::{FileStorage, Op, Storage as _};
use foldlog::{
    CompactOptions, Durability, Error, SequenceNumber, Session, SessionOptions, Store, StoreOptions,
};
use foldlog_test_support::Watched;
use foldlog_test_support::crash::{large_note, step};
use foldlog_test_support::host::types;
use parking_lot::Mutex;
use proptest::prelude::*;
use tempfile::TempDir;
use uuid::Uuid;

/// Enough sessions for a listing to keep an index.
const MANY: u128 = 80;

/// A store of many closed sessions on a real file system, and the directories in which files were
/// opened since the last query.
struct Shelf {
    directory: TempDir,
    store: Store,
    opened: Arc<Mutex<BTreeSet<PathBuf>>>,
}

fn shelf() -> Shelf {
    let directory = tempfile::tempdir().unwrap();
    let opened: Arc<Mutex<BTreeSet<PathBuf>>> = Arc::default();
    let heard = Arc::clone(&opened);
    let disk = Watched::new(FileStorage::new(), move |op, path| {
        if op == Op::Open {
            heard.lock().insert(path.parent().unwrap_or(path).to_owned());
        }
    });
    let options =
        StoreOptions { storage: Arc::new(disk), durability: Durability::Process, ..StoreOptions::default() };
    let store = Store::open_with(directory.path(), options).unwrap();
    for id in 1..=MANY {
        let options = SessionOptions { id: Some(Uuid::from_u128(id)), ..SessionOptions::default() };
        let session = store.create_with(&types(), options.tag("number", id.to_string())).unwrap();
        session.dispatch(step(1)).unwrap();
        session.close().unwrap();
    }
    Shelf { directory, store, opened }
}

impl Shelf {
    fn index(&self) -> PathBuf {
        self.directory.path().join("sessions.index")
    }

    /// Lists the sessions once nothing has changed for a while.
    fn listed(&self) -> Vec<String> {
        let later = SystemTime::now() + Duration::from_secs(60);
        let now_us = later.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        let found = self.store.overviews(i64::try_from(now_us).unwrap(), None, &mut |_| {}).unwrap();
        found.into_iter().map(|(id, found)| format!("{id} {:?}", found.map_err(|e| e.to_string()))).collect()
    }

    /// Lists the sessions without the index, and leaves the index in place.
    fn listed_anew(&self) -> Vec<String> {
        let aside = self.directory.path().join("aside");
        let _ = fs::rename(self.index(), &aside);
        let listed = self.listed();
        let _ = fs::remove_file(self.index());
        let _ = fs::rename(aside, self.index());
        listed
    }

    /// Returns the sessions whose directories were read since the last call.
    fn looked_into(&self) -> Vec<u128> {
        let opened = std::mem::take(&mut *self.opened.lock());
        let ids = (1..=MANY).map(Uuid::from_u128);
        ids.filter(|id| opened.contains(&self.store.session_dir(*id))).map(|id| id.as_u128()).collect()
    }

    fn open(&self, id: u128) -> Session {
        self.store.open_session(Uuid::from_u128(id), &types()).unwrap()
    }
}

#[test]
fn a_listing_reads_the_sessions_that_changed_since_the_last_and_no_others() {
    let shelf = shelf();
    let first = shelf.listed();
    assert_eq!(first.len() as u128, MANY);
    assert_eq!(shelf.looked_into().len() as u128, MANY);
    assert_eq!(shelf.listed(), first);
    assert_eq!(shelf.looked_into(), [0; 0], "nothing has changed");

    let session = shelf.open(7);
    session.dispatch(step(2)).unwrap();
    session.close().unwrap();
    let held = shelf.open(9);
    shelf.store.delete(Uuid::from_u128(11)).unwrap();
    shelf.looked_into();
    let listed = shelf.listed();
    assert_eq!(shelf.looked_into(), [7, 9]);
    assert!(listed != first && listed.len() as u128 == MANY - 1);
    held.set_tag("held", "since").unwrap();
    assert!(shelf.listed()[8].contains("held"), "a session that is open is read each time");
    held.close().unwrap();
    assert!(shelf.listed() == shelf.listed_anew());
}

/// On some file systems writes to a mapped segment do not change its time. Without a stamp by the
/// writer, they would never be listed.
#[test]
fn a_writer_stamps_its_sessions_directory_at_both_ends() {
    let shelf = shelf();
    let (dir, storage) = (shelf.store.session_dir(Uuid::from_u128(3)), FileStorage::new());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    let make_old = || fs::File::open(&dir).unwrap().set_modified(long_ago).unwrap();
    let modified = || storage.stamp(&dir).unwrap().unwrap().modified_ns;
    make_old();
    let old = modified();
    let session = shelf.open(3);
    assert!(modified() > old);
    make_old();
    session.close().unwrap();
    assert!(modified() > old);
    // Readers leave no trace.
    make_old();
    shelf.store.summary(Uuid::from_u128(3)).unwrap();
    assert_eq!(modified(), old);
}

#[test]
fn what_changes_within_one_tick_of_the_file_systems_clock_is_listed() {
    let shelf = shelf();
    let now_us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    shelf.store.overviews(i64::try_from(now_us).unwrap(), None, &mut |_| {}).unwrap();
    assert!(!shelf.index().exists(), "the next change could bear the same stamp");
}

#[test]
fn a_session_whose_writer_was_killed_is_read_each_time() {
    let shelf = shelf();
    let note = shelf.directory.path().join("writers").join(format!("{}.json", Uuid::from_u128(5)));
    fs::create_dir_all(note.parent().unwrap()).unwrap();
    fs::write(&note, b"{}").unwrap();
    let first = shelf.listed();
    shelf.looked_into();
    assert_eq!(shelf.listed(), first);
    assert_eq!(shelf.looked_into(), [5]);
}

/// The status of a waiting session changes when a question expires, without a write.
#[test]
fn only_sessions_in_which_nothing_waits_are_known_beforehand() {
    use foldlog::tools::{ExecuteOptions, Question, ToolCall, ToolError, ToolRegistry, ToolRunner};
    use foldlog::{ExecutionState, ResourceRegistry};
    let shelf = shelf();
    let session = shelf.open(2);
    let state = ExecutionState::new(session.clone(), ResourceRegistry::default());
    let operation = ToolRunner::new(state, ToolRegistry::new())
        .begin(&ToolCall::new("ask", "{}"), &ExecuteOptions::default())
        .unwrap();
    operation.fail(ToolError::Ask(Question::new("May it?"))).unwrap_err();
    session.close().unwrap();
    let first = shelf.listed();
    assert!(first[1].contains("ask"), "{}", first[1]);
    shelf.looked_into();
    assert_eq!(shelf.listed(), first);
    assert_eq!(shelf.looked_into(), [2]);
}

#[test]
fn a_damaged_index_is_passed_over_and_written_anew() {
    let shelf = shelf();
    let listed = shelf.listed();
    let whole = fs::read(shelf.index()).unwrap();
    let mut hostile: Vec<Vec<u8>> =
        (0..whole.len()).step_by(whole.len() / 40).map(|at| whole[..at].to_vec()).collect();
    hostile.extend((0..whole.len()).step_by(whole.len() / 60).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x21;
        bytes
    }));
    hostile.push(b"FOLDLIST".to_vec());
    for bytes in hostile {
        fs::write(shelf.index(), &bytes).unwrap();
        assert!(shelf.listed() == listed);
        assert!(fs::read(shelf.index()).unwrap() == whole);
    }
    // An index larger than any of so many sessions is not read.
    fs::File::create(shelf.index()).unwrap().set_len(1 << 40).unwrap();
    assert!(shelf.listed() == listed);
    // If no index can be written, a listing works without it.
    fs::remove_file(shelf.index()).unwrap();
    fs::create_dir(shelf.directory.path().join("sessions.index.new")).unwrap();
    assert!(shelf.listed() == listed);
    assert!(!shelf.index().exists());
}

/// A writer's note was written through the link, over an existing file, and removed again at
/// closing.
#[test]
fn a_link_in_the_place_of_the_writers_notes_is_not_followed() {
    let shelf = shelf();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join(format!("{}.json", Uuid::from_u128(4)));
    fs::write(&file, "somebody's").unwrap();
    let notes = shelf.directory.path().join("writers");
    fs::remove_dir_all(&notes).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &notes).unwrap();
    let listed = shelf.listed();
    let session = shelf.open(4);
    session.dispatch(step(2)).unwrap();
    session.close().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");
    // Killed writers are unknown, so no session is taken from the index.
    shelf.looked_into();
    assert!(shelf.listed() != listed);
    assert_eq!(shelf.looked_into().len() as u128, MANY);
}

#[derive(Clone, Debug)]
enum Change {
    Step,
    Large,
    Tag,
    RollBack,
    Compact,
    Fork,
    Delete,
    Collect,
    Replace,
}

fn apply(shelf: &Shelf, id: Uuid, change: &Change) -> Result<(), Error> {
    let dir = shelf.store.session_dir(id);
    let within = |write: &dyn Fn(&Session) -> Result<SequenceNumber, Error>| {
        let session = shelf.store.open_session(id, &types())?;
        write(&session)?;
        session.close()
    };
    match change {
        Change::Step => within(&|session| session.dispatch(step(3))),
        Change::Large => within(&|session| session.dispatch(large_note(1))),
        Change::Tag => within(&|session| session.set_tag("seen", "yes")),
        Change::RollBack => within(&|session| session.rollback_to(1).map(|report| report.sequence)),
        Change::Compact => shelf.store.compact(id, &CompactOptions::default()).map(|_| ()),
        Change::Collect => shelf.store.collect(&Default::default()).map(|_| ()),
        Change::Delete => shelf.store.delete(id),
        Change::Fork => {
            shelf.store.fork(id, 1, &types(), SessionOptions::default()).and_then(|fork| fork.close())
        }
        Change::Replace => {
            replace(&dir);
            Ok(())
        }
    }
}

/// Replaces the last segment by a copy, as a person does who restores a file. The copy lacks the
/// last bytes, so that it differs.
fn replace(dir: &Path) {
    let mut segments: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.sort();
    if let Some(last) = segments.last() {
        let bytes = fs::read(last).unwrap();
        fs::write(last, &bytes[..bytes.len() * 2 / 3]).unwrap();
    }
}

fn changes() -> impl Strategy<Value = Vec<(u128, Change)>> {
    use Change::*;
    let change =
        prop::sample::select(vec![Step, Large, Tag, RollBack, Compact, Fork, Delete, Collect, Replace]);
    prop::collection::vec((1..=12_u128, change), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Law: after any changes of a store, a listing with an index equals one without.
    #[test]
    fn a_listing_tells_what_one_tells_that_knows_nothing(changes in changes()) {
        let shelf = shelf();
        shelf.listed();
        for (id, change) in changes {
            // Refused if the session is damaged or deleted.
            let _ = apply(&shelf, Uuid::from_u128(id), &change);
            prop_assert_eq!(shelf.listed(), shelf.listed_anew(), "after {:?} of {}", change, id);
        }
    }
}
