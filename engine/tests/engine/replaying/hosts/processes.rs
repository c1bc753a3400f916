//! Hosts of several processes, each of which is killed or closes its session.

use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::{Error, Session, SessionOptions, SystemClock};
use foldlog_test_support::replayed_host::{Noted, store_in};
use tempfile::TempDir;
use uuid::Uuid;

use super::host::{copy, types};

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Close,
    Kill,
}
use End::{Close, Kill};

/// Observes its process's number, and notes it three times.
fn three(session: &Session, process: u64) -> foldlog::Result<()> {
    let process: u64 = session.inputs().observe("process", || process)?;
    (0..3).try_for_each(|place| session.dispatch(Noted::new(10 * process + place, "in turn")).map(drop))
}

/// Runs processes one after the other on one session.
fn lives(ends: &[End], host: &dyn Fn(&Session, u64) -> foldlog::Result<()>) -> (TempDir, Uuid) {
    let mut directory = tempfile::tempdir().unwrap();
    let mut id = None;
    for (process, end) in (0..).zip(ends) {
        let store = store_in(directory.path(), Arc::new(SystemClock));
        let session = match id {
            None => store.create(&types()).unwrap(),
            Some(id) => store.open_session(id, &types()).unwrap(),
        };
        id = Some(session.id());
        host(&session, process).unwrap();
        match end {
            Close => session.close().unwrap(),
            Kill => {
                let left = tempfile::tempdir().unwrap();
                let to = store_in(left.path(), Arc::new(SystemClock)).session_dir(session.id());
                copy(session.dir(), &to);
                directory = left;
            }
        }
    }
    (directory, id.unwrap())
}

/// A recovery rewrote the records of the previous killed process, but not the frame that marks
/// where that process started. The host was called once too few, and the records counted as
/// missing.
#[test]
fn a_host_is_called_for_each_process_however_many_were_killed_one_after_the_other() {
    let stories: [&[End]; 6] = [
        &[Close, Kill, Close],
        &[Kill, Kill, Close],
        &[Kill, Kill, Kill, Kill],
        &[Close, Kill, Kill, Close, Kill],
        &[Close, Close, Kill],
        &[Kill, Close, Close],
    ];
    for ends in stories {
        let (directory, id) = lives(ends, &three);
        let log = LogReader::open(store_in(directory.path(), Arc::new(SystemClock)).session_dir(id)).unwrap();
        let replay = Replay::new(&log, &types()).run(|session| three(&session, 77));
        let report = replay.unwrap_or_else(|error| panic!("{ends:?}: {error}"));
        let all = ends.len() as u64;
        assert_eq!((report.processes, report.compared), (all, 4 * all), "{ends:?}");
    }
}

/// A process that recovered a session and wrote nothing else may be killed before its segment
/// counts. The next recovery learns only from that segment where the earlier processes started.
#[test]
fn a_recovery_that_wrote_nothing_else_passes_on_where_the_processes_before_it_began() {
    let host = |session: &Session, process: u64| match process {
        2 | 3 => session.sync(),
        _ => three(session, process),
    };
    let (directory, id) = lives(&[Close, Kill, Kill, Kill, Kill, Close], &host);
    let log = LogReader::open(store_in(directory.path(), Arc::new(SystemClock)).session_dir(id)).unwrap();
    let report = Replay::new(&log, &types()).run(|session| three(&session, 77)).unwrap();
    assert_eq!((report.processes, report.compared), (4, 16));
}

/// A log whose last record was synced was taken for that of a closed session. Most hosts are killed
/// while they wait, so the first record after such a wait was one too many.
#[test]
fn a_host_that_was_killed_while_it_waited_has_not_written_too_few_records() {
    let waits = |session: &Session, process: u64| -> foldlog::Result<()> {
        three(session, process)?;
        session.sync()
    };
    // The steps that the killed process did not reach.
    let goes_on = |session: &Session| -> foldlog::Result<()> {
        three(session, 77)?;
        session.dispatch(Noted::new(9, "behind the wait")).map(drop)
    };
    let stories: [(&[End], bool); 5] = [
        (&[Kill], false),
        (&[Close, Kill], false),
        (&[Kill, Close], true),
        (&[Close], true),
        (&[Kill, Kill, Close], true),
    ];
    for (ends, closed) in stories {
        let (directory, id) = lives(ends, &waits);
        let log = LogReader::open(store_in(directory.path(), Arc::new(SystemClock)).session_dir(id)).unwrap();
        let (mut told, replay) = (None, Replay::new(&log, &types()).all());
        let report = replay.run(|session| told = goes_on(&session).err()).unwrap();
        assert_eq!(report.divergences.len(), usize::from(closed), "{ends:?}: {:?}", report.divergences);
        assert_eq!(matches!(told, Some(Error::ReplayEnded { .. })), !closed, "{ends:?}: {told:?}");
    }
}

/// The process that closed the session may not be the one that wrote the last record.
#[test]
fn a_recovery_that_closes_the_session_says_nothing_of_the_killed_process_before_it() {
    let host = |session: &Session, process: u64| match process {
        1 => session.sync(),
        _ => three(session, process),
    };
    let (directory, id) = lives(&[Kill, Close], &host);
    let log = LogReader::open(store_in(directory.path(), Arc::new(SystemClock)).session_dir(id)).unwrap();
    assert!(log.report().closed);
    let goes_on = |session: Session| -> foldlog::Result<()> {
        three(&session, 77)?;
        session.dispatch(Noted::new(9, "not written")).map(drop)
    };
    let report = Replay::new(&log, &types()).run(goes_on).unwrap();
    assert_eq!((report.processes, report.compared), (1, 4));
}

/// The frames that mark the parent's processes, in the segments that a fork shares, were taken for
/// the fork's. Their numbers belong to the parent's log, and the fork's host was called for
/// processes that never existed.
#[test]
fn the_processes_of_a_forks_parent_are_not_the_forks() {
    let (directory, id) = lives(&[Kill, Close], &three);
    let store = store_in(directory.path(), Arc::new(SystemClock));
    let fork = store.fork(id, 1, &types(), SessionOptions::default()).unwrap();
    let host = |session: &Session| -> foldlog::Result<()> {
        (0..12).try_for_each(|number| session.dispatch(Noted::new(number, "in the fork")).map(drop))
    };
    host(&fork).unwrap();
    let dir = fork.dir().to_owned();
    fork.close().unwrap();
    let log = LogReader::open(dir).unwrap();
    let report = Replay::new(&log, &types()).run(|session| host(&session)).unwrap();
    assert_eq!((report.processes, report.compared), (1, 12));
}
